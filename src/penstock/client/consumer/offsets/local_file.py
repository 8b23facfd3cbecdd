"""Offsets in a local file: a broadcasting consumer's own progress.

    <directory>/<client id>/<group>/offsets.json
    {"offsetTable": [{"topic", "brokerName", "queueId", "offset"}, ...]}

Each write makes a new file beside the old one and takes its place, so a crash leaves one of the two
whole; the one before is kept as ``offsets.json.bak`` and read when the first cannot be.

The client id of a broadcasting consumer does not change from start to start (it has no process id
in it): that is how it finds its file again.

Not here: what was settled (``table.py``).
"""

import asyncio
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)

DIRECTORY = ".penstock_offsets"
"""In the home directory."""


class _Entry(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int
    offset: int


class _File(msgspec.Struct, rename="camel"):
    offset_table: list[_Entry] = []


def offsets_file(directory: str | None, client_id: str, group: str) -> Path:
    """Where the offsets of a group of a client are."""
    root = Path(directory) if directory is not None else Path.home() / DIRECTORY
    return root / _safe(client_id) / _safe(group) / "offsets.json"


class LocalFileOffsets:
    """The offset store of a broadcasting consumer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[QueueRef, int] | None = None
        # Queues are given up side by side, and each of them persists; the file has one writer.
        self._writing = asyncio.Lock()

    async def read(self, queue: QueueRef) -> int | None:
        """The offset in the file; None when there is none."""
        return (await self._table()).get(queue)

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
        """Write the whole file anew."""
        table = await self._table()
        table.update(offsets)
        try:
            async with self._writing:
                await asyncio.to_thread(_write, self._path, dict(table))
        except OSError as problem:
            _log.warning("offsets not stored", extra={"path": str(self._path), "why": str(problem)})
            return ()
        return list(offsets)

    async def _table(self) -> dict[QueueRef, int]:
        if self._known is None:
            found = await asyncio.to_thread(_read, self._path)
            if self._known is None:
                self._known = found
        return self._known


def _read(path: Path) -> dict[QueueRef, int]:
    for each in (path, _backup(path)):
        try:
            entries = msgspec.json.decode(each.read_bytes(), type=_File).offset_table
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError) as problem:
            _log.warning("offsets cannot be read", extra={"path": str(each), "why": str(problem)})
            continue
        return {QueueRef(e.topic, e.broker_name, e.queue_id): e.offset for e in entries}
    return {}


def _write(path: Path, table: Mapping[QueueRef, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [_Entry(*queue, offset) for queue, offset in sorted(table.items())]
    fresh = path.with_suffix(".json.tmp")
    with fresh.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(_File(entries))))
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        os.replace(path, _backup(path))
    os.replace(fresh, path)


def _backup(path: Path) -> Path:
    return path.with_suffix(".json.bak")


def _safe(name: str) -> str:
    """A name as one part of a path."""
    return "".join(c if c.isalnum() or c in "-_.@%#" else "_" for c in name) or "_"
