"""CPU per message: publish -> append -> dispatch -> settle, lists of 100, one queue, durable.

CPU time of the whole process (user and system, all threads) over the messages that went all the
way, syncs included; the garbage collector runs as in the broker. Making the messages is not counted
as the broker's work: it is measured by itself and taken off.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from penstock.cli.benches.bench_engine import BenchCore, BenchOutlet, bench_settings
from penstock.engine.connection import ConnectionOptions
from penstock.engine.consumer import ConsumerRefusal
from penstock.engine.ports import Publication
from penstock.engine.routing import DirectRoute
from penstock.engine.subscription import SubscriptionOptions
from penstock.flow.prefetch import Window
from penstock.flow.unsent import UnsentLimit
from penstock.model.names import topic_name
from penstock.model.record import neutral_record

PREFETCH = 1000


class CpuFigures(NamedTuple):
    """Microseconds of CPU per message."""

    messages: int
    total_us: float
    making_us: float
    messages_per_s: float

    @property
    def core_us(self) -> float:
        """The broker core's share."""
        return self.total_us - self.making_us


def measure_cpu(
    directory: Path, *, messages: int, body_bytes: int, list_size: int, lists_per_turn: int = 4
) -> CpuFigures:
    """Push ``messages`` through a fresh core on ``directory``."""
    core = BenchCore(bench_settings(directory))
    engine, outlet = core.engine, BenchOutlet()
    connection = engine.connect(
        core.connection_id(), outlet, "bench", ConnectionOptions(pending_publishes_max=0)
    )
    channel = connection.open_channel()
    topic = engine.create_topic(topic_name("bench"))
    subscription = engine.create_subscription(topic.name, "bench", SubscriptionOptions())
    # No socket, so nothing is ever unsent.
    consumer = subscription.attach(outlet, Window(PREFETCH), name="bench", unsent=UnsentLimit(0, 0))
    assert not isinstance(consumer, ConsumerRefusal)
    queue = topic.queues[0]
    route, body = DirectRoute(queue), b"x" * body_bytes
    making_us = _making_us(route, body, list_size)
    settled = sent = 0
    began, cpu = time.perf_counter(), time.process_time()
    while settled < messages:
        for _ in range(lists_per_turn):
            if sent < messages and connection.may_read:
                channel.publish(_publications(route, body, list_size, sent))
                sent += list_size
        engine.turn()
        core.commit()
        deliveries, outlet.deliveries = outlet.deliveries, []
        if deliveries:
            consumer.unsent.sent_all()
            subscription.settle(queue.queue_id, [each.offset for each in deliveries])
            settled += len(deliveries)
    core.run_dry()
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
    assert outlet.confirms == sent
    assert not outlet.refusals
    core.close()
    return CpuFigures(settled, cpu / settled * 1e6, making_us, settled / seconds)


def _publications(route: DirectRoute, body: bytes, count: int, first: int) -> list[Publication]:
    return [
        Publication(neutral_record(body), route=route, token=number)
        for number in range(first, first + count)
    ]


def _making_us(route: DirectRoute, body: bytes, count: int) -> float:
    rounds = 500
    best = float("inf")
    for _ in range(5):
        cpu = time.process_time()
        for number in range(rounds):
            _publications(route, body, count, number)
        best = min(best, time.process_time() - cpu)
    return best / (rounds * count) * 1e6
