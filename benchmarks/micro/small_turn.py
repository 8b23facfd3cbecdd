"""What a turn costs when little is in it: the CPU price of middling rates, without a network.

A publisher sends some messages, one per read, and a consumer acknowledges the last deliveries; one
turn appends, delivers and answers, one commit confirms. Real pumps, turns, AMQP sessions, engine
and log; loop, sockets and the sync are stubs, so what is left is our own Python.

    .venv/bin/python benchmarks/micro/small_turn.py              us per turn, by part
    .venv/bin/python benchmarks/micro/small_turn.py --calls      Python calls per turn, by function
    .venv/bin/python benchmarks/micro/small_turn.py --messages 1
    .venv/bin/python benchmarks/micro/small_turn.py --rest-us 500

The figure is the least of many rounds: what the machine can do when nobody disturbs it. A broker
between idle and busy pays more, for its caches are cold when it wakes up: ``--rest-us`` sleeps
before every turn.
"""

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.turn_scene import HandCommits
from penstock.adapters.amqp.factory import AmqpFactory
from penstock.adapters.contract import Peer
from penstock.model.ids import ConnectionId
from penstock.server.lifecycle import SystemClock, settle_heap
from penstock.server.listener import ConnectionLimit
from penstock.server.opening import lock_directory, open_engine
from penstock.server.pacing import Pacing
from penstock.server.pump import Pump, PumpContext
from penstock.server.turns import Turns
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import PROTOCOL_HEADER
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Ack, Consume, Publish, Qos
from penstock.wire.amqp.methods.channel import ConfirmSelect
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.connection import Open, StartOk, TuneOk
from penstock.wire.amqp.methods.queue import Declare

QUEUE = "small-turn"
PERSISTENT = b"\x10\x00\x02"
WARM_UP = 500
ROUND_TURNS = 200


class Timer:
    """A timer that never fires."""

    def cancel(self) -> None:
        """Nothing was going to happen."""


class HandLoop:
    """Runs what is ready when told to; has no time of its own."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], object]] = []
        self._timer = Timer()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """It is next."""
        self._ready.append(callback)

    def call_later(self, seconds: float, callback: Callable[..., object]) -> Timer:
        """A turn that keeps its distance is due at once; whatever is later never comes."""
        if seconds < 0.01:
            self._ready.append(callback)
        return self._timer

    def run(self) -> None:
        """Until nothing is ready."""
        while self._ready:
            ready, self._ready = self._ready, []
            for callback in ready:
                callback()


class Transport:
    """A socket that takes everything."""

    def __init__(self) -> None:
        self.written = 0

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is buffered."""

    def write(self, data: bytes) -> None:
        """Gone."""
        self.written += len(data)

    def get_write_buffer_size(self) -> int:
        """Nothing is buffered."""
        return 0

    def pause_reading(self) -> None:
        """Whoever is paused is not measured here."""
        raise AssertionError("the broker stopped reading")


class Bench:
    """A broker with a publisher and a consumer, driven by hand."""

    def __init__(self, directory: str, messages: int) -> None:
        settings, clock = Settings(), SystemClock()
        opened = open_engine(*lock_directory(directory), settings, clock, None)
        self.engine = opened.engine
        self.loop: Any = HandLoop()
        self.failures: list[Exception] = []
        self.commits: Any = None
        self.turns = Turns(
            self.engine,
            self.loop,
            clock,
            Pacing(settings.storage),
            failed=self.failures.append,
            make_commits=self._make_commits,
        )
        factory = AmqpFactory(settings)
        factory.open(self.engine, clock, {})
        context = PumpContext(self.engine, self.turns, clock, self.loop, settings.listeners)
        self.transports: list[Any] = [Transport(), Transport()]
        self.pumps: list[Pump] = []
        for number, transport in enumerate(self.transports, start=1):
            peer = Peer("127.0.0.1", 40_000 + number, "127.0.0.1", 5672)
            place = ConnectionLimit(1, per_address_max=1).acquire(peer.host)
            pump = Pump(ConnectionId(number), peer, factory, context, lambda _: None, place=place)
            pump.connection_made(transport)
            self.pumps.append(pump)
        self.messages = messages
        self._tag = 0
        self._publish = method_frame(1, Publish(0, "", QUEUE)) + content_frames(
            1, PERSISTENT, bytes(128), 131_072
        )

    def _make_commits(self, *arguments: Any) -> Any:
        self.commits = HandCommits(*arguments)
        return self.commits

    def _commit(self) -> None:
        for job in self.commits.under_way:
            job.run()
        if self.commits.under_way:
            self.commits.end()

    def settle(self) -> None:
        """Turns and commits until all is quiet."""
        for _ in range(10):
            self.loop.run()
            self._commit()
            time.sleep(0.002)  # a small commit may linger
            self.turns.request_turn()

    def open(self) -> None:
        """Handshakes, a queue, confirms, a consumer."""
        table = {"capabilities": {"publisher_confirms": True}}
        for pump in self.pumps:
            for data in (
                PROTOCOL_HEADER,
                method_frame(0, StartOk(table, "PLAIN", b"\0guest\0guest", "en_US")),
                method_frame(0, TuneOk(2047, 131_072, 0)) + method_frame(0, Open("/")),
                method_frame(1, OpenChannel()),
                method_frame(1, Declare(queue=QUEUE, is_durable=True)),
            ):
                pump.data_received(data)
                self.settle()
        publisher, consumer = self.pumps
        publisher.data_received(method_frame(1, ConfirmSelect()))
        consumer.data_received(
            method_frame(1, Qos(prefetch_count=1000)) + method_frame(1, Consume(queue=QUEUE))
        )
        self.settle()

    def cycle(self, seconds: list[float]) -> None:
        """Reads, a turn, a commit; adds what each part took."""
        clock = time.perf_counter
        publisher, consumer = self.pumps
        ack = method_frame(1, Ack(self._tag, True)) if self._tag else b""
        begun = clock()
        for _ in range(self.messages):
            publisher.data_received(self._publish)
        if ack:
            consumer.data_received(ack)
        self._tag += self.messages
        read = clock()
        self.loop.run()
        turned = clock()
        for job in self.commits.under_way:
            job.run()
        synced = clock()
        if self.commits.under_way:
            self.commits.end()
        confirmed = clock()
        seconds[0] += read - begun
        seconds[1] += turned - read
        seconds[2] += confirmed - synced


def rounds(bench: Bench, count: int, rest_us: int) -> list[float]:
    """The least time of each part of a turn, in us."""
    best = [1e9, 1e9, 1e9]
    for _ in range(count):
        seconds = [0.0, 0.0, 0.0]
        for _ in range(ROUND_TURNS):
            if rest_us:
                time.sleep(rest_us / 1e6)
            bench.cycle(seconds)
        best = [min(a, b * 1e6 / ROUND_TURNS) for a, b in zip(best, seconds, strict=True)]
    return best


def calls(bench: Bench) -> None:
    """Which functions are called how often per turn."""
    profile = cProfile.Profile()
    profile.enable()
    seconds = [0.0, 0.0, 0.0]
    for _ in range(ROUND_TURNS):
        bench.cycle(seconds)
    profile.disable()
    rows = []
    for (path, _, name), (_, count, own, *_) in vars(pstats.Stats(profile))["stats"].items():
        place = path.rpartition("penstock/")[2] if "penstock/" in path else ""
        rows.append((count / ROUND_TURNS, own * 1e6 / ROUND_TURNS, place, name))
    ours = sum(count for count, _, place, _ in rows if place)
    print(f"{ours:.0f} calls of our own per turn, {sum(row[0] for row in rows):.0f} in all\n")
    print(f"{'calls':>7} {'own us':>7}  function")
    for count, own, place, name in sorted(rows, key=lambda row: -row[1]):
        if own >= 0.5:
            print(f"{count:7.1f} {own:7.2f}  {place} {name}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=6, help="messages in a turn")
    parser.add_argument("--rounds", type=int, default=40, help="rounds; the least counts")
    parser.add_argument("--rest-us", type=int, default=0, help="sleep before every turn")
    parser.add_argument("--calls", action="store_true", help="count calls instead of time")
    options = parser.parse_args()
    shared_memory = Path("/dev/shm")
    place = shared_memory if shared_memory.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as directory:
        bench = Bench(directory, options.messages)
        bench.open()
        settle_heap()
        for _ in range(WARM_UP):
            bench.cycle([0.0, 0.0, 0.0])
        if options.calls:
            calls(bench)
        else:
            read, turn, confirm = rounds(bench, options.rounds, options.rest_us)
            print(
                f"{options.messages} messages a turn: read {read:.1f} us, turn {turn:.1f} us,"
                f" confirm {confirm:.1f} us, together {read + turn + confirm:.1f} us"
            )
        if bench.failures:
            sys.exit(str(bench.failures[0]))


if __name__ == "__main__":
    main()
