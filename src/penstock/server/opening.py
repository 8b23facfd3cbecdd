"""From a path to a recovered engine: directory, lock, format, log, in that order.

Everything that can be wrong with a data directory is found here, before anybody connects, and ends
in one sentence that says what, which, and what to do: ``StartRefused`` for the place, ``LogError``
for what is in it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from penstock.engine.broker import Engine
from penstock.log.catalog import CATALOG_NAME, SqliteCatalog
from penstock.log.recovery import Recovered
from penstock.log.storage import DirectoryLock, DiskStorage, Storage
from penstock.log.store import Store
from penstock.model.clock import Clock
from penstock.model.errors import StartRefused
from penstock.server.faults import Faults, FaultyStorage
from penstock.server.probes import boot_id
from penstock.server.protocols import dead_letter_formats, fact_readers
from penstock.settings.load import Settings

logger = logging.getLogger(__name__)

SILENCE_SECONDS: Final = 1.0
"""A recovery that takes longer than this says so, every second or two, until it is done."""


class DataDirectory(msgspec.Struct, frozen=True):
    """A data directory in use."""

    directory: Path
    lock: DirectoryLock
    store: Store
    engine: Engine


def lock_directory(text: str) -> tuple[Path, DirectoryLock]:
    """The data directory, ours alone from now on."""
    directory = make_directory(text)
    lock = DirectoryLock(directory)
    lock.acquire()
    return directory, lock


def open_engine(
    directory: Path, lock: DirectoryLock, settings: Settings, clock: Clock, faults: Faults | None
) -> DataDirectory:
    """Recover the log and make the engine of it; everything is closed again when that fails."""
    storage: Storage = DiskStorage(directory)
    if faults is not None:
        storage = FaultyStorage(storage, faults)
    catalog = SqliteCatalog(directory / CATALOG_NAME)
    started = time.monotonic()
    try:
        with RecoveryProgress(f"recovering the log in {directory}"):
            store, recovered = Store.open(
                storage, catalog, settings.storage, clock, boot_id=boot_id()
            )
            engine = Engine(
                store,
                recovered,
                clock,
                settings,
                facts=fact_readers(),
                dead_letter_formats=dead_letter_formats(),
            )
    except OSError as error:
        catalog.close()
        raise refused(directory, error) from error
    _tell(recovered, store, time.monotonic() - started)
    return DataDirectory(directory, lock, store, engine)


def _tell(recovered: Recovered, store: Store, seconds: float) -> None:
    for note in recovered.notes:
        logger.warning("recovery: %s", note)
    if not recovered.is_new:
        logger.info(
            "log recovered",
            extra={
                "seconds": round(seconds, 3),
                "log_bytes": store.log_bytes,
                "is_clean": recovered.is_clean,
                "is_rebuilt": recovered.is_rebuilt,
            },
        )


def make_directory(text: str) -> Path:
    """The data directory, made if missing; ``StartRefused`` when it cannot be used."""
    path = Path(text).expanduser().absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StartRefused(
            f"data directory {path} cannot be made: a file is in its place; "
            "move it away, or use --data with another path"
        ) from None
    except OSError as error:
        raise refused(path, error) from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StartRefused(
            f"data directory {path} is not writable for this user; change its owner or mode, "
            "or use --data with another path"
        )
    if (mode := path.stat().st_mode & 0o077) != 0:
        logger.warning(
            "other users of this machine can look into the data directory; chmod 700 it",
            extra={"directory": str(path), "mode": f"{0o700 | mode:o}"},
        )
    return path


def refused(path: Path, error: OSError) -> StartRefused:
    """The sentence for an error of the operating system while opening."""
    where = error.filename or path
    return StartRefused(
        f"data directory {path} cannot be used: {error.strerror} ({where}); "
        "make room or change its mode, or use --data with another path"
    )


class RecoveryProgress:
    """Says that recovery is still going on, from a thread of its own, while the loop cannot.

    Used with ``with``; prints nothing when it is quick.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-patience", daemon=True)
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_done.set()
        self._thread.join()

    def _run(self) -> None:
        pause = SILENCE_SECONDS
        while not self._is_done.wait(pause):
            seconds = time.monotonic() - self._started
            print(f"penstock: {self._what} ({seconds:.0f} s)", file=sys.stderr, flush=True)
            pause = 2 * SILENCE_SECONDS
