"""Both protocols over one engine, fed with bytes line by line: what ``tests/pinned`` is made with.

    bench = PinBench()
    bench.feed("a1", b"AMQP...")        # a1: AMQP, r1: RocketMQ's broker, n1: its name server
    bench.pass_time(1000)
    bench.lines                         # "a1> hex", "time 1000", "a1< hex", ...

``bench.replay(lines)`` does again what such lines say; equal lines mean equal bytes. With a
directory the broker is on disk, and ``state`` tells all that is in it.

Not here: the scripts (``tests/pinned/record.py``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec

from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.connection import AmqpConnection as AmqpSession
from penstock.adapters.contract import Adapter, Peer
from penstock.adapters.rocketmq.broker import RocketmqBroker
from penstock.adapters.rocketmq.connection import RocketmqConnection
from penstock.adapters.rocketmq.factory import HANDLERS, open_broker
from penstock.adapters.rocketmq.name_server.server import NameServerFactory
from penstock.log.catalog import CATALOG_NAME, SqliteCatalog
from penstock.log.storage import DiskStorage
from penstock.model.ids import ConnectionId
from penstock.model.record import Record
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings
from penstock.testing.clock import START_WALL_MS, ManualClock

KIB: Final = 1024
SMALL: Final = Settings(
    storage=StorageSettings(
        segment_bytes_max=64 * KIB,
        index_tail_bytes_max=KIB,
        index_file_entries_max=16,
        snapshot_bytes_min=KIB,
    )
)
"""So that a small directory has several files of each kind."""
LATER_MS: Final = 600_000
"""How long after the beginning of its writing a recorded directory is read."""
ROUNDS_MAX: Final = 10_000
SHOWN_BYTES_MAX: Final = 600
ROCKETMQ_PORT: Final = 10911


class PinBench(AmqpBench):
    """A broker that writes down what it hears and says."""

    rocketmq: RocketmqBroker

    def __init__(
        self,
        directory: Path | None = None,
        settings: Settings | None = None,
        *,
        wall_ms: int = START_WALL_MS,
    ) -> None:
        self.lines: list[str] = []
        self.heard: dict[str, bytes] = {}
        """What each connection was told and nobody took yet."""
        self._directory = directory
        self._wall_ms = wall_ms
        self._sessions: dict[str, Adapter] = {}
        self._wakes = 0
        super().__init__(settings)

    def _open(self) -> None:
        self.clock = ManualClock(wall_ms=self._wall_ms)
        if self._directory is not None:
            self.storage: Any = DiskStorage(self._directory)
            self.catalog: Any = SqliteCatalog(self._directory / CATALOG_NAME)
        super()._open()
        # Chance, the process and the interpreter are in answers; here they are always the same.
        with mock.patch.object(os, "getpid", return_value=4711):
            self.rocketmq = open_broker(
                self.engine, self.clock, self.settings, broker_port=ROCKETMQ_PORT
            )
        self.rocketmq.random.seed(0)

    def close(self) -> None:
        """A clean stop."""
        self.settle()
        self.store.close(self.engine.final_cursors())

    # Lines.

    def feed(self, name: str, data: bytes) -> None:
        """A client writes."""
        self.lines.append(f"{name}> {data.hex()}")
        if name not in self._sessions:
            self._sessions[name] = self._connect(name)
        self._sessions[name].receive(data)
        self._rest()

    def hang_up(self, name: str) -> None:
        """A client is gone."""
        self.lines.append(f"gone {name}")
        self._sessions.pop(name).closed("the peer left")
        self._rest()

    def pass_time(self, ms: int) -> None:
        """Let time pass; everything that falls due on the way is done."""
        self.lines.append(f"time {ms}")
        end_ms = self.clock.monotonic_ms() + ms
        for _ in range(ROUNDS_MAX):
            ticking: list[Any] = [
                self.broker.timers,
                self.rocketmq.timers,
                *self._sessions.values(),
            ]
            times = [self.engine.next_deadline_ms(), *(e.next_deadline_ms() for e in ticking)]
            due_ms = min([each for each in times if each is not None], default=end_ms)
            self.clock.advance(max(0, min(due_ms, end_ms) - self.clock.monotonic_ms()))
            for each in ticking:
                each.due(self.clock.monotonic_ms())
            self.engine.turn()
            self._rest()
            if due_ms >= end_ms:
                return
        raise AssertionError(f"more than {ROUNDS_MAX} deadlines within {ms} ms")

    def replay(self, lines: Iterable[str]) -> list[str]:
        """Do what the lines say clients did; the lines that come of it."""
        for line in lines:
            mark, _, rest = line.partition(" ")
            if mark == "time":
                self.pass_time(int(rest))
            elif mark == "gone":
                self.hang_up(rest)
            elif mark.endswith(">"):
                self.feed(mark[:-1], bytes.fromhex(rest))
        return self.lines

    def _connect(self, name: str) -> Adapter:
        number = int(name[1:])
        if name[0] == "a":
            peer = Peer("127.0.0.1", 40_000 + number, "127.0.0.1", 5672)
            return AmqpSession(ConnectionId(10_000_000 + number), peer, self.broker, self._woken)
        peer = Peer("127.0.0.1", 50_000 + number, "127.0.0.1", ROCKETMQ_PORT)
        identity = ConnectionId(20_000_000 + number)
        if name[0] == "r":
            return RocketmqConnection(identity, peer, self.rocketmq, HANDLERS, self._woken)
        factory = NameServerFactory(lambda: self.rocketmq)
        return factory.make(identity, peer, self.engine, self.clock, self._woken)

    def _rest(self) -> None:
        """Let the engine come to rest; what was said meanwhile, one line a connection."""
        said: dict[str, bytes] = {}
        for _ in range(ROUNDS_MAX):
            self.settle()
            wakes, is_silent = self._wakes, True
            for name, session in self._sessions.items():
                data = b"".join(session.outgoing())
                session.flushed(0)
                if data:
                    said[name] = said.get(name, b"") + data
                    is_silent = False
            if is_silent and wakes == self._wakes and not self.engine.needs_turn:
                break
        else:
            raise AssertionError("the engine does not come to rest")
        for name, data in said.items():
            self.lines.append(f"{name}< {data.hex()}")
            self.heard[name] = self.heard.get(name, b"") + data
        for name in [each for each, session in self._sessions.items() if session.wants_close]:
            self.lines.append(f"{name}< closed")
            self._sessions.pop(name).closed("told to")

    def _woken(self) -> None:
        self._wakes += 1


def state(bench: PinBench) -> dict[str, Any]:
    """Everything durable: topics with messages, subscriptions, cursors, catalog."""
    rows: dict[str, dict[str, str]] = {}
    for (kind, key), body in sorted(bench.catalog.load().items()):
        rows.setdefault(kind, {})[key] = _text(body)
    cursors = [msgspec.to_builtins(each) for each in bench.engine.final_cursors()]
    return {
        "topics": {
            str(topic.name): {
                "queues": [
                    {
                        "id": queue.queue_id,
                        "offsets": [queue.index.min_offset, queue.index.next_offset],
                        "messages": _messages(bench, queue.index.entries(0, 1 << 30)),
                    }
                    for queue in topic.queues
                ],
                "subscriptions": {
                    name: {queue.queue_id: each.low_mark(queue.queue_id) for queue in topic.queues}
                    for name, each in sorted(topic.subscriptions.items())
                },
            }
            for topic in sorted(bench.engine.topics(), key=lambda topic: str(topic.name))
        },
        "cursors": sorted(cursors, key=lambda row: (row["subscription_id"], row["queue_id"])),
        "catalog": rows,
    }


def _messages(bench: PinBench, entries: list[Any]) -> list[Any]:
    records = bench.store.read([(entry[0], entry[4]) for entry in entries])
    return [
        [list(entry), None if record is None else _facts(record)]
        for entry, record in zip(entries, records, strict=True)
    ]


def _facts(record: Record) -> dict[str, Any]:
    shape = record.shape
    return {
        "wire": shape.wire,
        "flags": shape.flags,
        "priority": shape.priority,
        "expire_ms": shape.expire_ms,
        "deliver_ms": shape.deliver_ms,
        "born_ms": record.born_ms,
        "store_ms": record.store_ms,
        "body": _text(record.body),
        "origin": _text(record.origin),
    }


def _text(data: bytes) -> str:
    """Readable; what is long as its hash."""
    if len(data) > SHOWN_BYTES_MAX:
        return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
    return data.decode("utf-8", "backslashreplace")
