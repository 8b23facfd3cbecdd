"""From a path to a recovered engine: directory, lock, format, log, in that order.

Everything that can be wrong with a data directory is found here, before anybody connects, and ends
in one sentence that says what, which, and what to do: ``StartRefused`` for the place, ``LogError``
for what is in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec

from penstock.adapters.contract import AdapterFactory
from penstock.adapters.timers import Timers
from penstock.engine.broker import Engine
from penstock.engine.ports import DeadLetterFormat, FactsReader
from penstock.log.catalog import CATALOG_NAME, SqliteCatalog
from penstock.log.recovery import Recovered
from penstock.log.storage import DirectoryLock, DiskStorage, Storage
from penstock.log.store import Store
from penstock.model.clock import Clock
from penstock.model.errors import StartRefused
from penstock.model.record import Wire
from penstock.server.faults import Faults, FaultyStorage
from penstock.server.probes import boot_id
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker
    from penstock.server.admin import Desk
    from penstock.server.join import Join

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
            engine = Engine(store, recovered, clock, settings, facts=readers(), burials=burials())
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
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
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


# ---- deadlines of protocols ---------------------------------------------------------------------
# Drives the deadlines of a protocol's shared state, which belong to no connection.
#
# One loop timer for the nearest deadline; at least one look a second, so that a deadline which came
# nearer without a word is late by no more than that.


LOOK_MS: Final = 1000


class DeadlineDriver:
    """Calls ``due`` in time; ``turn`` asks for a turn of the engine afterwards."""

    def __init__(
        self,
        timers: Timers,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        turn: Callable[[], None],
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._loop = loop
        self._turn = turn
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_scheduled = False
        self._is_stopped = False
        timers.on_reschedule = self._reschedule
        self._arm()

    def stop(self) -> None:
        self._is_stopped = True
        self._timers.on_reschedule = lambda: None
        if self._timer is not None:
            self._timer.cancel()

    def _reschedule(self) -> None:
        """Look again, once, after whatever runs now; many calls are one look."""
        if not self._is_scheduled and not self._is_stopped:
            self._is_scheduled = True
            self._loop.call_soon(self._arm)

    def _arm(self) -> None:
        self._is_scheduled = False
        if self._is_stopped:
            return
        now_ms = self._clock.monotonic_ms()
        deadline_ms = self._timers.next_deadline_ms()
        at_ms = now_ms + LOOK_MS if deadline_ms is None else min(deadline_ms, now_ms + LOOK_MS)
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return  # it looks early enough, and again after that
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._loop.call_later(max(0, at_ms - now_ms) / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        deadline_ms = self._timers.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self._timers.due(now_ms)
            self._turn()
        self._arm()


# ---- protocols ----------------------------------------------------------------------------------
# The protocols a broker speaks: which adapter listens on which port.
#
# Adding a protocol is one line in ``built_in``: its factory and the setting of its port. Ports of
# protocols that are not built yet have settings already; they are simply not in the list. A
# protocol whose connections share something opens it once all ports are known (``open``), before
# anybody is accepted; its readers of stored bytes and its burials are given to the engine
# (D15).


Open = Callable[["Engine", Clock, Mapping[str, str]], Timers]
"""Called with the endpoints of all listeners; what it returns is driven until the broker stops."""


class ProtocolBinding(NamedTuple):
    """A protocol and its port; 0 = any free one."""

    factory: AdapterFactory
    port: int
    open: Open | None = None
    join: Callable[[], Join] | None = None
    """Made after ``open``: tells another process that this broker is here (D20)."""
    desk: Callable[[], Desk] | None = None
    """Made after ``open``: what operators see and do of this protocol's topics and groups."""
    broker: Callable[[], AmqpBroker] | None = None
    """Known after ``open``: what RabbitMQ's management API shows."""


def readers() -> dict[int, FactsReader]:
    """Who reads the stored bytes of which wire, also when its listener is off."""
    from penstock.wire.amqp.origin import AmqpFacts
    from penstock.wire.rocketmq.stored import RocketmqFacts

    return {int(Wire.ROCKETMQ): RocketmqFacts(), int(Wire.AMQP): AmqpFacts()}


def burials() -> dict[int, DeadLetterFormat]:
    """Who makes dead letters of which wire."""
    from penstock.adapters.rocketmq.present import RocketmqDeadLetterFormat

    return {int(Wire.ROCKETMQ): RocketmqDeadLetterFormat()}


def built_in(settings: Settings) -> list[ProtocolBinding]:
    """Every protocol that is built and not switched off."""
    return [*_rocketmq(settings), *_amqp(settings)]


def _amqp(settings: Settings) -> list[ProtocolBinding]:
    port = settings.listeners.port("amqp")
    if port is None:
        return []
    from penstock.adapters.amqp.factory import AmqpFactory

    factory = AmqpFactory(settings)
    return [ProtocolBinding(factory, port, open=factory.open, broker=lambda: factory.broker)]


def _rocketmq(settings: Settings) -> list[ProtocolBinding]:
    listeners = settings.listeners
    name_port, broker_port = listeners.port("rocketmq"), listeners.port("rocketmq_broker")
    if name_port is None and broker_port is None:
        return []
    # Imported only here: a broker without RocketMQ does not pay for it.
    from penstock.adapters.rocketmq.admin import OperatorService
    from penstock.adapters.rocketmq.factory import BrokerFactory, RocketmqStartup
    from penstock.adapters.rocketmq.name_server.server import NameServerFactory

    startup = RocketmqStartup(settings)
    found: list[ProtocolBinding] = []
    if broker_port is not None:
        found.append(ProtocolBinding(BrokerFactory(startup), broker_port))
    if name_port is not None:
        found.append(ProtocolBinding(NameServerFactory(lambda: startup.broker), name_port))
    # The first to listen opens what both share.
    found[0] = found[0]._replace(open=startup.open, desk=lambda: OperatorService(startup.broker))
    if settings.rocketmq.join and broker_port is not None:
        from penstock.server.join import Join

        found[0] = found[0]._replace(join=lambda: Join(startup.broker, settings.rocketmq.join))
    return found
