"""CPU per message: publish -> append -> dispatch -> settle, lists of 100, one queue, durable.

CPU time of the whole process (user and system, all threads) over the messages that went all the
way, syncs included; the garbage collector runs as in the broker. Making messages is the client's
work: it is timed where it happens and taken off.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.engine.bench_engine import BenchCore, BenchOutlet, bench_settings
from penstock.engine.connection import ConnectionOptions
from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.subscription.consumer import ConsumerRefusal
from penstock.engine.topic import DirectRoute
from penstock.flow.budgets import UnsentLimit
from penstock.flow.demand import Window
from penstock.model.names import topic_name
from penstock.model.record import neutral_record

PREFETCH = 2000


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
    directory: Path, *, messages: int, body_bytes: int, list_size: int, connections: int
) -> CpuFigures:
    """Push ``messages`` through a fresh core on ``directory``."""
    settings = bench_settings(directory)
    core = BenchCore(settings)
    # A connection that has more to send sends what a turn takes from it.
    lists_per_turn = max(1, settings.flow.turn_channel_messages_max // list_size)
    engine, outlet = core.engine, BenchOutlet()
    options = ConnectionOptions(pending_publishes_max=0)
    channels = [
        engine.connect(core.connection_id(), outlet, f"bench-{number}", options).open_channel()
        for number in range(connections)
    ]
    topic = engine.create_topic(topic_name("bench"))
    subscription = engine.create_subscription(topic.name, "bench", SubscriptionOptions())
    # No socket, so nothing is ever unsent.
    consumer = subscription.attach(outlet, Window(PREFETCH), name="bench", unsent=UnsentLimit(0, 0))
    assert not isinstance(consumer, ConsumerRefusal)
    queue = topic.queues[0]
    route, body = DirectRoute(queue), b"x" * body_bytes
    settled = sent = 0
    making = 0.0
    began, cpu = time.perf_counter(), time.process_time()
    while settled < messages:
        for channel in channels * lists_per_turn:
            if sent < messages and channel.connection.may_read:
                making -= time.process_time()
                publications = _publications(route, body, list_size, sent)
                making += time.process_time()
                channel.publish(publications)
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
    return CpuFigures(settled, cpu / settled * 1e6, making / settled * 1e6, settled / seconds)


def _publications(route: DirectRoute, body: bytes, count: int, first: int) -> list[Publication]:
    return [
        Publication(neutral_record(body), route=route, token=number)
        for number in range(first, first + count)
    ]
