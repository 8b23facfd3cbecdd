"""A loop that runs by hand, a transport that records, an engine and an adapter as told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.adapters.contract import Peer
from penstock.server.listener import ConnectionLimit
from penstock.server.pump import Pump, PumpContext
from penstock.settings.broker import ListenerSettings
from penstock.testing.clock import ManualClock


class ManualHandle:
    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], due: float) -> None:
        self.callback = callback
        self.args = args
        self.due = due
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualLoop:
    """The few verbs of an event loop that turns and pumps use; time is the manual clock's."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.soon: list[ManualHandle] = []
        self.timers: list[ManualHandle] = []

    def time(self) -> float:
        return self.clock.monotonic_ms() / 1000

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> ManualHandle:
        handle = ManualHandle(callback, args, self.time())
        self.soon.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> ManualHandle:
        handle = ManualHandle(callback, args, self.time() + delay)
        self.timers.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> ManualHandle:
        return self.call_later(when - self.time(), callback, *args)

    def step(self) -> int:
        """One iteration: everything that was ready when it began; how many callbacks ran."""
        ready, self.soon = self.soon, []
        for handle in ready:
            if not handle.is_cancelled:
                handle.callback(*handle.args)
        return len(ready)

    def run(self, steps_max: int = 100) -> int:
        """Iterate until nothing is ready; how many iterations it took."""
        for count in range(steps_max):
            if not self.soon:
                return count
            self.step()
        raise AssertionError(f"still busy after {steps_max} iterations")

    def advance(self, ms: int) -> None:
        """Move time and fire what came due, oldest first."""
        self.clock.advance(ms)
        while True:
            due = [t for t in self.timers if not t.is_cancelled and t.due <= self.time() + 1e-9]
            self.timers = [t for t in self.timers if not t.is_cancelled and t not in due]
            if not due:
                return
            for handle in sorted(due, key=lambda each: each.due):
                if not handle.is_cancelled:
                    handle.callback(*handle.args)


class FakeTransport:
    """A transport whose socket takes as much as the test allows."""

    def __init__(self) -> None:
        self.protocol: Any = None
        self.written: list[bytes] = []
        self.takes_bytes: int | None = None
        self.buffered = 0
        self.is_reading = True
        self.is_closed = False
        self.is_aborted = False
        self.high: int | None = None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(data)
        if self.takes_bytes is not None:
            self.buffered += max(0, len(data) - self.takes_bytes)
            if self.buffered > 0:
                self.protocol.pause_writing()

    def drain(self) -> None:
        self.buffered = 0
        self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True


class FakeJob:
    def __init__(self, number: int) -> None:
        self.number = number
        self.error: Exception | None = None

    def run(self) -> None:
        if self.error is not None:
            raise self.error


class FakeEngine:
    """An engine that counts what it is asked and says what the test wants."""

    def __init__(self) -> None:
        self.turns = 0
        self.needs_turn = False
        self.appended_messages = 0
        self.unsynced_messages = 0
        self.unsynced_bytes = 0
        self.is_durability_awaited = False
        self.deadline_ms: int | None = None
        self.sync_from_ms = 0
        self.jobs = 0
        self.synced_jobs: list[tuple[int, Exception | None]] = []
        self.on_turn: Callable[[], None] = lambda: None
        self.on_synced: Callable[[], None] = lambda: None

    def turn(self) -> None:
        self.turns += 1
        self.on_turn()

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def next_sync_ms(self) -> int | None:
        if self.unsynced_messages or self.unsynced_bytes or self.is_durability_awaited:
            return self.sync_from_ms
        return None

    def take_sync_job(self) -> FakeJob | None:
        if not (self.unsynced_messages or self.unsynced_bytes or self.is_durability_awaited):
            return None
        self.unsynced_messages = self.unsynced_bytes = 0
        self.is_durability_awaited = False
        self.jobs += 1
        return FakeJob(self.jobs)

    def synced(self, job: FakeJob, error: Exception | None) -> None:
        self.synced_jobs.append((job.number, error))
        self.on_synced()


class FakeAdapter:
    handshake_bytes_max: int | None = None

    def __init__(self, wake, is_established) -> None:
        self.wake = wake
        self.is_established = is_established
        self.is_reading = True
        self.wants_close = False
        self.received: list[bytes] = []
        self.to_send: list[bytes] = []
        self.flushes: list[int] = []
        self.deadline_ms: int | None = None
        self.dues: list[int] = []
        self.ends: list[str] = []
        self.error: Exception | None = None
        self.close_gate_at = b""
        self.opens_gate_when_asked = False

    def receive(self, data):
        if self.error is not None:
            raise self.error
        self.received.append(data)
        if data == self.close_gate_at:
            self.is_reading = False

    def outgoing(self):
        self.is_reading |= self.opens_gate_when_asked
        parts, self.to_send = self.to_send, []
        return parts

    def flushed(self, unsent_bytes):
        self.flushes.append(unsent_bytes)

    def next_deadline_ms(self):
        return self.deadline_ms

    def due(self, now_ms):
        self.dues.append(now_ms)
        self.deadline_ms = None

    def eof(self):
        self.wants_close = True

    def stopping(self, reason):
        self.to_send.append(reason.encode())
        self.wants_close = True

    def closed(self, reason):
        self.ends.append(reason)


class FakeFactory:
    protocol = "fake"

    def __init__(self) -> None:
        self.adapters: list[FakeAdapter] = []
        self.is_established = True

    def make(self, connection_id, peer, engine, clock, wake):
        self.adapters.append(FakeAdapter(wake, self.is_established))
        return self.adapters[-1]


class FakeTurns:
    def __init__(self) -> None:
        self.scheduled = []
        self.requests = 0
        self.arrivals = 0
        self.delayed = None
        self.broken_by = []

    def schedule(self, connection):
        self.scheduled.append(connection)

    def request_turn(self):
        self.requests += 1

    def data_arrived(self):
        self.arrivals += 1

    def broken(self, error):
        self.broken_by.append(error)

    def turn(self):
        """What ``Turns`` does around the engine's part."""
        for connection in self.scheduled:
            connection.feed()
        return self.end_of_turn()

    def end_of_turn(self):
        scheduled, self.scheduled = self.scheduled, []
        for connection in scheduled:
            connection.flush()
        return len(scheduled)


class PumpScene:
    def __init__(self, engine, loop, clock, make_transport) -> None:
        self.make_transport = make_transport
        self.turns = FakeTurns()
        self.loop = loop
        self.clock = clock
        self.context = PumpContext(engine, self.turns, clock, loop, ListenerSettings())
        self.factory = FakeFactory()
        self.lost = []
        self.limit = ConnectionLimit(10, per_address_max=10)
        self.pump = self.connect()
        self.adapter = self.factory.adapters[0]
        self.transport = self.pump._transport

    def connect(self, connection_id=1):
        peer = Peer("127.0.0.1", 40000, "127.0.0.1", 5672)
        pump = Pump(
            connection_id,
            peer,
            self.factory,
            self.context,
            self.lost.append,
            place=self.limit.acquire(peer.host),
        )
        transport = self.make_transport()
        transport.protocol = pump
        pump.connection_made(transport)
        self.turns.end_of_turn()
        return pump


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def loop(clock: ManualClock) -> ManualLoop:
    return ManualLoop(clock)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def make_transport() -> Callable[[], FakeTransport]:
    return FakeTransport


@pytest.fixture
def pump_scene(engine, loop, clock, make_transport):
    """One connected pump between a fake adapter and a fake transport."""
    return PumpScene(engine, loop, clock, make_transport)
