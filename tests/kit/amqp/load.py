"""Overload with AMQP: publishers offer ten times what the consumer takes, and somebody watches.

Publishers with confirms and no window of their own send as fast as their sockets and their pace
allow; one slow consumer settles. Twice a second somebody looks at the broker's memory, its pool and
whom it blames. Then the publishers stop, the consumer is quick, and the books are compared: what
was confirmed must have been consumed, once, and nothing that was refused.

Used by ``benchmarks/macro/amqp_overload.py`` (a minute) and by a short test.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from penstock.cli.http_client import address, send
from penstock.demo.amqp_actors import AmqpConsumer, AmqpControl, AmqpLink, AmqpPublisher
from penstock.wire.amqp.codes import PROTOCOL_HEADER
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Publish
from penstock.wire.amqp.methods.channel import Open as OpenChannel
from penstock.wire.amqp.methods.connection import Open, StartOk, TuneOk

FACTOR: Final = 10
LOOK_SECONDS: Final = 0.5
LOOKS_MIN: Final = 8
"""On a machine that is busy with other things it takes longer, rather than seeing nothing."""
PREFETCH: Final = 100
QUEUE: Final = "work"
SLACK_BYTES: Final = 64 << 20
"""What the process may need beside its idle figure and the pool."""
DRAIN_SECONDS_MAX: Final = 300.0


class Plan(msgspec.Struct, frozen=True):
    """How much of what."""

    seconds: float
    publishers: int = 4
    consumer_per_s: int = 300
    body_bytes: int = 1024
    length_max: int = 0
    """Above 0 the queue holds its publishers at that length (``x-overflow: hold``)."""


class Report(msgspec.Struct):
    """What came of it."""

    seconds: float = 0.0
    sent: int = 0
    confirmed: int = 0
    refused: int = 0
    consumed_meanwhile: int = 0
    consumed: int = 0
    lost: int = 0
    twice: int = 0
    strangers: int = 0
    """Consumed although they were refused."""
    idle_bytes: int = 0
    peak_bytes: int = 0
    pool_bytes: int = 0
    """The limit of the in-flight pool."""
    pool_peak_bytes: int = 0
    blamed: dict[str, int] = {}
    """Kind of bottleneck -> at how many looks the broker named it."""
    sentence: str = ""

    @property
    def is_complete(self) -> bool:
        """Nothing lost, nothing twice, nothing that was refused."""
        return not (self.lost or self.twice or self.strangers) and self.consumed == self.confirmed

    @property
    def is_bounded(self) -> bool:
        """The pool was respected, and memory is what it accounts for."""
        limit = self.idle_bytes + self.pool_bytes + SLACK_BYTES
        return self.pool_peak_bytes <= self.pool_bytes and self.peak_bytes <= limit


async def overload(endpoints: dict[str, str], pid: int, plan: Plan) -> Report:
    """Run it against a broker that does nothing else."""
    report = Report(seconds=plan.seconds, idle_bytes=resident_bytes(pid))
    links: list[AmqpLink] = []

    async def connect(name: str) -> AmqpLink:
        links.append(await AmqpLink.connect(endpoints["amqp"], name))
        return links[-1]

    try:
        control = await AmqpControl.open(await connect("consumer"))
        limits = {"x_max_length": plan.length_max, "x_overflow": "hold"} if plan.length_max else {}
        await control.declare(QUEUE, **limits)
        await control.qos(PREFETCH)
        consumer = await control.consume("consumer", QUEUE)
        consumer.message_seconds = 1 / plan.consumer_per_s
        publishers = [
            await AmqpPublisher.start(
                await connect(f"publisher {number}"),
                f"p{number}",
                QUEUE,
                per_second=FACTOR * plan.consumer_per_s // plan.publishers,
                body_bytes=plan.body_bytes,
            )
            for number in range(plan.publishers)
        ]
        await _watch(endpoints["http"], pid, plan.seconds, report)
        report.consumed_meanwhile = len(consumer.bodies)
        await _finish(publishers, consumer)
        _compare(publishers, consumer, report)
    finally:
        for link in links:
            link.leave()
    return report


async def _watch(http: str, pid: int, seconds: float, report: Report) -> None:
    until = time.monotonic() + seconds
    blamed: Counter[str] = Counter()
    while time.monotonic() < until or blamed.total() < LOOKS_MIN:
        await asyncio.sleep(LOOK_SECONDS)
        _, page = await asyncio.to_thread(send, "GET", "/api/flow", at=address(Path(), http))
        blamed[page["diagnosis"]["kind"]] += 1
        report.sentence = page["diagnosis"]["sentence"]
        pool = _pool(page)
        report.pool_bytes = pool["limit"]
        report.pool_peak_bytes = max(report.pool_peak_bytes, pool["used"])
        report.peak_bytes = max(report.peak_bytes, resident_bytes(pid))
    report.blamed = dict(blamed.most_common())


def _pool(page: dict[str, Any]) -> dict[str, Any]:
    pool: dict[str, Any] = next(x for x in page["limits"] if x["name"] == "in-flight pool")
    return pool


async def _finish(publishers: list[AmqpPublisher], consumer: AmqpConsumer) -> None:
    for each in publishers:
        each.stop()
    consumer.message_seconds = 0.0
    until = time.monotonic() + DRAIN_SECONDS_MAX
    while time.monotonic() < until:
        await asyncio.sleep(0.1)
        stored = sum(len(each.confirmed_numbers) for each in publishers)
        is_answered = not any(each.outstanding for each in publishers)
        if is_answered and len(consumer.bodies) >= stored:
            return


def _compare(publishers: list[AmqpPublisher], consumer: AmqpConsumer, report: Report) -> None:
    confirmed, refused = (
        {
            f"{each.name} {number}".encode()
            for each in publishers
            for number in getattr(each, numbers)
        }
        for numbers in ("confirmed_numbers", "nacked_numbers")
    )
    consumed = set(consumer.bodies)
    report.sent = sum(each.sent for each in publishers)
    report.confirmed, report.refused = len(confirmed), len(refused)
    report.consumed = len(consumed)
    report.twice = len(consumer.bodies) - len(consumed)
    report.lost = len(confirmed - consumed)
    report.strangers = len(consumed & refused)


def resident_bytes(pid: int) -> int:
    """Memory of a process, from /proc."""
    fields = Path(f"/proc/{pid}/statm").read_text("ascii").split()
    return int(fields[1]) * 4096


# ---- amqp flood ---------------------------------------------------------------------------------
# A flood of publishes: one socket, one thread, the same message as fast as the broker takes it.
#
# | with AmqpFlood(endpoint, exchange="", key="hot", body=b"x" * 20) as flood: ...
#
# No confirms, no counting of answers: it is there to make something the bottleneck. ``sent`` is
# what the socket has taken, which is ahead of what the broker has read.


CHUNK_BYTES: Final = 64 * 1024
FRAME_BYTES: Final = 128 * 1024
READ_BYTES: Final = 64 * 1024
PERSISTENT: Final = b"\x10\x00\x02"
TRANSIENT: Final = b"\x00\x00"


class AmqpFlood:
    """Publishes from ``with`` to the end of it."""

    def __init__(
        self,
        endpoint: str,
        *,
        exchange: str,
        key: str,
        body: bytes,
        is_persistent: bool = True,
    ) -> None:
        host, _, port = endpoint.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)))
        self._greet()
        properties = PERSISTENT if is_persistent else TRANSIENT
        one = method_frame(1, Publish(0, exchange, key)) + content_frames(
            1, properties, body, FRAME_BYTES
        )
        self._per_chunk = max(1, CHUNK_BYTES // len(one))
        self._chunk = one * self._per_chunk
        self.sent = 0
        self._is_over = False
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._flood, self._drain)
        ]

    def __enter__(self) -> AmqpFlood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        # Whoever waits in send or recv is woken by it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _greet(self) -> None:
        for data in (
            PROTOCOL_HEADER,
            method_frame(0, StartOk({}, "PLAIN", b"\0guest\0guest")),
            method_frame(0, TuneOk(2047, FRAME_BYTES, 0)) + method_frame(0, Open("/")),
            method_frame(1, OpenChannel()),
        ):
            self._socket.sendall(data)
            self._socket.recv(READ_BYTES)

    def _flood(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over:
                self._socket.sendall(self._chunk)
                self.sent += self._per_chunk

    def _drain(self) -> None:
        """What the broker says is of no interest, but it must not be kept from saying it."""
        with contextlib.suppress(OSError):
            while self._socket.recv(READ_BYTES):
                pass
