"""Progress of a group as this consumer knows it, over the store where it is kept.

    RemoteBrokerOffsetStore   the broker: members of a clustering group share their progress
    LocalFileOffsetStore      a local file: a broadcasting consumer's own progress
    UserOffsetStore           any object of the user's with ``read`` and ``write``

``OffsetTable.note`` is called at each settlement and costs a dict write; ``persist`` runs every few
seconds and when a queue is given up. Offsets only grow unless somebody says otherwise (a reset, a
seek): results arrive in any order, and a late one must not undo progress.

Invariant: what is written to the store was noted here; what did not change is not written again.
Not here: which offset may be noted (``process_queue.py``), where to begin without one
(``subscription.py``).
"""

import asyncio
import inspect
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.client.errors import ClientError
from penstock.client.requests import BrokerRequests
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)

DIRECTORY: Final = ".penstock_offsets"
"""Of local offset files, in the home directory."""


class OffsetStore(Protocol):
    """Where offsets are kept. A user's own store is any object with these two methods."""

    async def read(self, queue: QueueRef) -> int | None:
        """The offset to go on at; None when the store knows of none. Raises when it cannot say."""
        ...

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
        """Keep these; returns those that were kept (the others are written again next time)."""
        ...


class OffsetTable:
    """Offsets in memory, and which of them the store does not have yet."""

    def __init__(self, store: OffsetStore) -> None:
        self.store = store
        self._known: dict[QueueRef, int] = {}
        self._written: dict[QueueRef, int] = {}

    def get(self, queue: QueueRef) -> int | None:
        """The offset known here, without asking the store."""
        return self._known.get(queue)

    def note(self, queue: QueueRef, offset: int, *, is_increase_only: bool = True) -> None:
        """Everything below ``offset`` is settled."""
        known = self._known.get(queue)
        if known is None or offset > known or not is_increase_only:
            self._known[queue] = offset

    async def read(self, queue: QueueRef) -> int | None:
        """The store's offset, known here from now on; None when it has none."""
        offset = await self.store.read(queue)
        if offset is None or offset < 0:
            return None
        self._known[queue] = self._written[queue] = offset
        return offset

    async def persist(self, queues: Collection[QueueRef] | None = None) -> None:
        """Write what changed, of these queues or of all."""
        wanted = list(self._known) if queues is None else queues
        changed = {
            queue: offset
            for queue in wanted
            if (offset := self._known.get(queue)) is not None and self._written.get(queue) != offset
        }
        if not changed:
            return
        for queue in await self.store.write(changed):
            if queue in self._known:
                self._written[queue] = changed[queue]

    def forget(self, queue: QueueRef) -> None:
        """The queue is another member's now: what was known here grows stale."""
        self._known.pop(queue, None)
        self._written.pop(queue, None)

    def snapshot(self, topic: str | None = None) -> dict[QueueRef, int]:
        """The offsets known here, of one topic or of all."""
        return {q: o for q, o in self._known.items() if topic is None or q.topic == topic}


class RemoteBrokerOffsetStore:
    """The store of a clustering group.

    Offsets go to the master of the queue's broker and nowhere else: slaves do not keep them. A
    write that fails is tried again with the next persist.
    """

    def __init__(self, requests: BrokerRequests, group: str) -> None:
        self._requests = requests
        self._group = group

    async def read(self, queue: QueueRef) -> int | None:
        """The broker's offset; raises when the broker cannot be asked.

        Without the flag a broker answers 0 for a queue that still has its first message, and a
        group that means to begin at the end would get everything. Old brokers ignore it.
        """
        return await self._requests.query_offset(queue, self._group, zero_if_not_found=False)

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
        """Store all, side by side; answers are awaited, so a lost one is written again."""
        stored = await asyncio.gather(*(self._write(*each) for each in offsets.items()))
        return [queue for queue, is_stored in zip(offsets, stored, strict=True) if is_stored]

    async def _write(self, queue: QueueRef, offset: int) -> bool:
        try:
            await self._requests.update_offset(queue, self._group, offset, oneway=False)
        except ClientError as problem:
            _log.warning("offset not stored", extra={"queue": queue, "why": str(problem)})
            return False
        return True


class _Entry(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int
    offset: int


class _File(msgspec.Struct, rename="camel"):
    offset_table: list[_Entry] = []


def offsets_file(directory: str | None, client_id: str, group: str) -> Path:
    root = Path(directory) if directory is not None else Path.home() / DIRECTORY
    return root / _safe(client_id) / _safe(group) / "offsets.json"


class LocalFileOffsetStore:
    """The store of a broadcasting consumer.

        <directory>/<client id>/<group>/offsets.json
        {"offsetTable": [{"topic", "brokerName", "queueId", "offset"}, ...]}

    Each write makes a new file beside the old one and takes its place, so a crash leaves one of the
    two whole; the one before is kept as ``offsets.json.bak`` and read when the first cannot be. The
    client id of a broadcasting consumer does not change from start to start (it has no process id
    in it): that is how it finds its file again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[QueueRef, int] | None = None
        # Queues are given up side by side, and each of them persists; the file has one writer.
        self._writing = asyncio.Lock()

    async def read(self, queue: QueueRef) -> int | None:
        return (await self._table()).get(queue)

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
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


class UserOffsetStore:
    """Any object with ``read(queue)`` and ``write(offsets)``, plain functions or coroutines.

    Plain ones run on a thread, since a database call must not hold up the client's loop. What
    ``write`` returns does not matter: it has kept everything unless it raised.
    """

    def __init__(self, store: Any) -> None:
        for name in ("read", "write"):
            if not callable(getattr(store, name, None)):
                raise TypeError(
                    f"an offset store has read(queue) and write(offsets); {store!r} has no {name}"
                )
        self._store = store

    async def read(self, queue: QueueRef) -> int | None:
        """What the store says; its errors mean "not now"."""
        try:
            found = await _call(self._store.read, queue)
        except Exception as problem:
            raise ClientError(f"the offset store cannot read {queue}: {problem!r}") from problem
        return None if found is None else int(found)

    async def write(self, offsets: Mapping[QueueRef, int]) -> Collection[QueueRef]:
        try:
            await _call(self._store.write, dict(offsets))
        except Exception:
            _log.exception("the offset store cannot write", extra={"queues": len(offsets)})
            return ()
        return list(offsets)


async def _call(function: Any, argument: object) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(argument)
    return await asyncio.to_thread(function, argument)
