"""What a Pulsar entry costs in our own Python: in, out and its ack, without network and disk.

    .venv/bin/python benchmarks/micro/pulsar_turn.py              us per entry, by part
    .venv/bin/python benchmarks/micro/pulsar_turn.py --batch 100 --entries 10
    .venv/bin/python benchmarks/micro/pulsar_turn.py --calls      by function, as a profiler sees it

One connection with a producer and a consumer; every cycle is a read with
some SENDs and the ACKs of what the last cycle delivered, a turn, and a commit whose sync is a stub.
The figure is the least of many rounds.
"""

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path

from small_turn import HandLoop, Transport

sys.path.append(str(Path(__file__).parents[1] / "macro"))
from pulsar_driver import FRAMES_MADE, PERMITS, Load, ack_frame, flow_frame, send_frames

from kit.pulsar.bench import command
from kit.turn_scene import HandCommits
from penstock.adapters.contract import Peer
from penstock.adapters.pulsar.factory import PulsarFactory
from penstock.model.ids import ConnectionId
from penstock.server.lifecycle import SystemClock, settle_heap
from penstock.server.listener import ConnectionLimit
from penstock.server.opening import lock_directory, open_engine
from penstock.server.pacing import Pacing
from penstock.server.pump import Pump, PumpContext
from penstock.server.turns import Turns
from penstock.settings.load import Settings
from penstock.wire.pulsar.frames import encode
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

TOPIC = "persistent://public/default/turn"
WARM_UP = 200
ROUND_CYCLES = 50


class Hearing(Transport):
    """A socket that takes everything and remembers it."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def write(self, data):
        self.heard.append(data)


class Bench:
    """A broker and one client, driven by hand."""

    def __init__(self, directory, entries, load):
        settings, clock = Settings(), SystemClock()
        opened = open_engine(*lock_directory(directory), settings, clock, None)
        self.loop = HandLoop()
        self.failures = []
        self.turns = Turns(
            opened.engine,
            self.loop,
            clock,
            Pacing(settings.storage),
            failed=self.failures.append,
            make_commits=self._make_commits,
        )
        factory = PulsarFactory(settings)
        factory.open(opened.engine, clock, {})
        context = PumpContext(opened.engine, self.turns, clock, self.loop, settings.listeners)
        self.transport = Hearing()
        peer = Peer("127.0.0.1", 40_000, "127.0.0.1", 6650)
        place = ConnectionLimit(1, per_address_max=1).acquire(peer.host)
        self.pump = Pump(ConnectionId(1), peer, factory, context, lambda _: None, place=place)
        self.pump.connection_made(self.transport)
        self._entries = entries
        self._load = load
        self._sends = []
        self._at = 0

    def _make_commits(self, *arguments):
        self.commits = HandCommits(*arguments)
        return self.commits

    def settle(self):
        for _ in range(10):
            self.loop.run()
            self.sync()
            time.sleep(0.002)  # a small commit may linger
            self.turns.request_turn()

    def sync(self):
        if self.commits.under_way:
            for job in self.commits.under_way:
                job.run()
            self.commits.end()

    def say(self, kind, **fields):
        self.pump.data_received(encode(command(kind, **fields)))
        self.settle()

    def open(self):
        self.say("CONNECT", client_version="Pulsar-Bench-1", protocol_version=20)
        self.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1, producer_name="bench-1")
        self._sends = list(send_frames("bench-1", self._load))
        if self._load.is_consuming:
            self.say(
                "SUBSCRIBE", topic=TOPIC, subscription="bench",
                subType=self._load.subscription_type, consumer_id=1,
                request_id=2, initialPosition="Earliest",
            )  # fmt: skip
            self.pump.data_received(flow_frame(PERMITS))
        self.settle()
        self.transport.heard.clear()

    def cycle(self, seconds):
        """A read, a turn, a commit and its answers; adds what each part took."""
        # Of this process: on a busy machine others' time is not ours.
        clock, load = time.process_time, self._load
        at = self._at
        data = [self._sends[(at + each) % FRAMES_MADE] for each in range(self._entries)]
        self._at = (at + self._entries) % FRAMES_MADE
        heard, self.transport.heard = b"".join(self.transport.heard), []
        if load.is_consuming:
            ids = ids_in(heard)
            data += [ack_frame(ids[at : at + load.acks]) for at in range(0, len(ids), load.acks)]
            if ids:
                data.append(flow_frame(len(ids) * load.batch))
        arriving = b"".join(data)
        begun = clock()
        self.pump.data_received(arriving)
        self.pump.feed()
        read = clock()
        self.loop.run()
        turned = clock()
        for job in self.commits.under_way:
            job.run()
        synced = clock()
        if self.commits.under_way:
            self.commits.end()
        self.loop.run()
        confirmed = clock()
        seconds[0] += read - begun
        seconds[1] += turned - read
        seconds[2] += confirmed - synced


def ids_in(heard):
    """Ids of the MESSAGEs."""
    found, at = [], 0
    while at < len(heard):
        if heard[at + 9] == BaseCommand.MESSAGE:
            found.append(heard[at + 16 : at + 16 + heard[at + 15]])
        at += 4 + int.from_bytes(heard[at : at + 4], "big")
    return found


def calls(bench, entries):
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(ROUND_CYCLES):
        bench.cycle([0.0, 0.0, 0.0])
    profile.disable()
    count = ROUND_CYCLES * entries
    print(f"{'calls':>7} {'own us':>7}  function, per entry")
    rows = vars(pstats.Stats(profile))["stats"].items()
    for (path, _, name), (_, ran, own, *_) in sorted(rows, key=lambda row: -row[1][2]):
        if own * 1e6 / count >= 0.04:
            place = path.rpartition("penstock/")[2] if "penstock/" in path else ""
            print(f"{ran / count:7.2f} {own * 1e6 / count:7.2f}  {place} {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=250, help="SENDs of a read")
    parser.add_argument("--batch", type=int, default=1, help="messages of a SEND")
    parser.add_argument("--acks", type=int, default=1, help="entries acknowledged by one command")
    parser.add_argument("--keys", action="store_true", help="SENDs have partition keys")
    parser.add_argument("--type", default="Shared", help="of the subscription")
    parser.add_argument("--only-in", action="store_true", help="nobody consumes")
    parser.add_argument("--rounds", type=int, default=20, help="the least counts")
    parser.add_argument("--calls", action="store_true", help="a profile instead of time")
    options = parser.parse_args()
    load = Load(
        TOPIC, 0, options.batch, acks=options.acks, has_keys=options.keys,
        subscription_type=options.type, is_consuming=not options.only_in,
    )  # fmt: skip
    shared_memory = Path("/dev/shm")
    place = shared_memory if shared_memory.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as directory:
        bench = Bench(directory, options.entries, load)
        bench.open()
        settle_heap()
        for _ in range(WARM_UP):
            bench.cycle([0.0, 0.0, 0.0])
        if options.calls:
            calls(bench, options.entries)
        else:
            best = [1e9, 1e9, 1e9]
            for _ in range(options.rounds):
                seconds = [0.0, 0.0, 0.0]
                for _ in range(ROUND_CYCLES):
                    bench.cycle(seconds)
                best = [min(a, b) for a, b in zip(best, seconds, strict=True)]
            read, turn, confirm = [each * 1e6 / ROUND_CYCLES / options.entries for each in best]
            print(
                f"{options.entries} SENDs of {options.batch} a read: read {read:.2f} us an entry,"
                f" turn {turn:.2f}, confirm {confirm:.2f}, together {read + turn + confirm:.2f}"
            )
        if bench.failures:
            sys.exit(str(bench.failures[0]))


if __name__ == "__main__":
    main()
