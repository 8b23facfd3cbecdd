"""Faults on purpose (D26): a disk that waits, fails or is full, figures that are not true.

Exists only with ``--faults``; without it nobody makes a ``Faults`` and the endpoint is not there.
The state is plain and read from both threads: the commit thread asks ``before_sync``, the log
writes through ``FaultyStorage``, the probes ask ``memory_used`` and ``disk_free``.

=============  ====================================================================================
store-hold     the next syncs wait until ``ms`` from now: F5, F6, F7 and D8 act
sync-delay     every sync takes ``ms`` longer
write-error    the next ``count`` writes to the log fail with ENOSPC or EIO: none of it is stored
queue-delay    a topic's queues take nothing in for ``ms``: its publishers, and only they, wait
memory         pretend this many bytes are resident
disk           pretend this many bytes are free
clear          all of that is over
=============  ====================================================================================
"""

from __future__ import annotations

import asyncio
import builtins
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.engine.broker import Engine
from penstock.engine.topic import Queue
from penstock.flow.credit import Stage
from penstock.log.storage import File, Storage
from penstock.model.errors import NotFound, SettingsError
from penstock.model.names import TopicName
from penstock.server.turns import Turns

HOLD_MS_MAX: Final = 600_000
"""Ten minutes: longer than any time-out that could be worth looking at."""

ERRORS: Final = {"enospc": errno.ENOSPC, "eio": errno.EIO}
LOG_FOLDER: Final = "log/"
"""Only writes to segments fail on purpose; the catalog and side files have tests of their own."""


class FaultOrder(msgspec.Struct, forbid_unknown_fields=True):
    """One order as ``POST /api/faults`` takes it."""

    fault: str
    ms: int = 0
    count: int = 1
    error: str = "enospc"
    bytes: int = 0
    topic: str = ""


def _nothing() -> None:
    """Until somebody wants to hear of orders."""


class Faults:
    """The faults in force."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self._hold_until = 0.0
        self.sync_delay_ms = 0
        self.write_errors_left = 0
        self.write_errno = errno.ENOSPC
        self.memory_bytes: int | None = None
        self.disk_bytes: int | None = None
        self.queue_hold: QueueHold | None = None
        """Set once there is an engine with queues to hold."""
        self.changed: Callable[[], None] = _nothing
        """Called after every order, so that pretended figures are seen at once."""

    def order(self, order: FaultOrder) -> str:
        """Do as ordered and say what is in force now, in one sentence."""
        verb = _VERBS.get(order.fault)
        if verb is None:
            raise SettingsError(f"fault {order.fault!r} is unknown; use one of {', '.join(_VERBS)}")
        if not 0 <= order.ms <= HOLD_MS_MAX or order.count < 0 or order.bytes < 0:
            raise SettingsError(f"ms must be 0 to {HOLD_MS_MAX}, count and bytes at least 0")
        done = verb(self, order)
        self.changed()
        return done

    def view(self) -> dict[str, object]:
        """What is in force, for ``GET /api/faults``."""
        return {
            "store_hold_ms": max(0, round((self._hold_until - time.monotonic()) * 1000)),
            "sync_delay_ms": self.sync_delay_ms,
            "write_errors_left": self.write_errors_left,
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
        }

    # What the broker asks.

    def before_sync(self) -> None:
        """In the commit thread: wait as long as ordered, or until cleared."""
        if self.sync_delay_ms:
            self._released.wait(self.sync_delay_ms / 1000)
        while (left := self._hold_until - time.monotonic()) > 0:
            self._released.wait(left)

    def before_write(self, path: str) -> None:
        """Before the log appends: fail as ordered."""
        if self.write_errors_left and path.startswith(LOG_FOLDER):
            self.write_errors_left -= 1
            raise OSError(self.write_errno, f"{os.strerror(self.write_errno)} (on purpose)")

    # The orders.

    def _store_hold(self, order: FaultOrder) -> str:
        self._released.clear()
        self._hold_until = time.monotonic() + order.ms / 1000
        return f"syncs wait for {order.ms} ms from now"

    def _sync_delay(self, order: FaultOrder) -> str:
        self._released.clear()
        self.sync_delay_ms = order.ms
        return f"every sync takes {order.ms} ms longer"

    def _write_error(self, order: FaultOrder) -> str:
        number = ERRORS.get(order.error.lower())
        if number is None:
            raise SettingsError(f"error {order.error!r} is unknown; use enospc or eio")
        self.write_errno = number
        self.write_errors_left = order.count
        return f"the next {order.count} writes to the log fail with {order.error.lower()}"

    def _queue_delay(self, order: FaultOrder) -> str:
        if not order.topic:
            raise SettingsError("queue-delay needs a topic")
        if self.queue_hold is None:
            raise NotFound("this broker has no queues yet")
        self.queue_hold.hold(order.topic, order.ms)
        return f"the queues of topic {order.topic!r} take nothing in for {order.ms} ms"

    def _memory(self, order: FaultOrder) -> str:
        self.memory_bytes = order.bytes
        return f"memory used is said to be {order.bytes} bytes"

    def _disk(self, order: FaultOrder) -> str:
        self.disk_bytes = order.bytes
        return f"free disk is said to be {order.bytes} bytes"

    def _clear(self, _order: FaultOrder) -> str:
        self._hold_until = 0.0
        self.sync_delay_ms = 0
        self.write_errors_left = 0
        self.memory_bytes = self.disk_bytes = None
        self._released.set()
        if self.queue_hold is not None:
            self.queue_hold.clear()
        return "no fault is in force"


_VERBS: Final[dict[str, Callable[[Faults, FaultOrder], str]]] = {
    "store-hold": Faults._store_hold,
    "sync-delay": Faults._sync_delay,
    "write-error": Faults._write_error,
    "queue-delay": Faults._queue_delay,
    "memory": Faults._memory,
    "disk": Faults._disk,
    "clear": Faults._clear,
}


class FaultyFile:
    """A file whose writes ask first; satisfies ``File``."""

    __slots__ = ("_faults", "_file", "_path", "close", "read", "size", "sync", "truncate")

    def __init__(self, file: File, path: str, faults: Faults) -> None:
        self._file = file
        self._path = path
        self._faults = faults
        self.read = file.read
        self.size = file.size
        self.truncate = file.truncate
        self.sync = file.sync
        self.close = file.close

    def write(self, data: bytes) -> int:
        """Append, unless ordered otherwise."""
        self._faults.before_write(self._path)
        return self._file.write(data)


class FaultyStorage:
    """A storage whose log writes can be made to fail; satisfies ``Storage``."""

    def __init__(self, storage: Storage, faults: Faults) -> None:
        self._storage = storage
        self._faults = faults
        self.exists = storage.exists
        self.size = storage.size
        self.make_dir = storage.make_dir
        self.rename = storage.rename
        self.remove = storage.remove
        self.remove_dir = storage.remove_dir
        self.sync_dir = storage.sync_dir
        self.free_bytes = storage.free_bytes

    def open(self, path: str, *, create: bool) -> File:
        """Open a file whose writes ask first."""
        return FaultyFile(self._storage.open(path, create=create), path, self._faults)

    def list(self, path: str) -> builtins.list[str]:
        """Names in a directory, sorted."""
        return self._storage.list(path)


# ---- queue hold ---------------------------------------------------------------------------------
# The fault ``queue-delay``: queues of one topic that take nothing in for a while (D26).
#
# Nothing is pretended: each queue's stage is blocked by a stage called ``fault queue-delay``,
# exactly as a slow log would block it, so credit runs out hop by hop and only publishers of that
# topic wait.


class QueueHold:
    """Holds the queues of topics by name."""

    def __init__(self, engine: Engine, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._turns = turns
        self._loop = loop
        self._culprit = Stage("fault", "queue-delay")
        self._held: dict[Queue, asyncio.TimerHandle] = {}

    def hold(self, topic: str, ms: int) -> None:
        """Hold the topic's queues for so long; a second order replaces the first."""
        space, _, name = topic.rpartition("/")
        found = self._engine.topic(TopicName(space, name))
        if found is None:
            raise NotFound(f"there is no topic {topic!r}")
        for queue in found.queues:
            self._release(queue)
            if ms:
                queue.stage.block(self._culprit)
                self._held[queue] = self._loop.call_later(ms / 1000, self._release, queue)

    def clear(self) -> None:
        for queue in list(self._held):
            self._release(queue)

    def _release(self, queue: Queue) -> None:
        timer = self._held.pop(queue, None)
        if timer is not None:
            timer.cancel()
            queue.stage.unblock(self._culprit)
            self._turns.request_turn()
