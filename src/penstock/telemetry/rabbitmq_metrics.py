"""The metrics that dashboards made for RabbitMQ look for, under RabbitMQ's names.

A handful, aggregated over all queues as RabbitMQ's ``/metrics`` does; everything that Penstock has
to say is under its own names (``metrics.py``). Written as text by hand: no library is needed for
lines without buckets.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock import __version__
from penstock.engine.statistics import EngineStatistics, TopicStatistics
from penstock.model.steps import Steps
from penstock.telemetry.statistics import ProcessStatistics

SUBSCRIPTION: Final = "amqp"
"""Queues are counted as AMQP sees them: by this subscription of every topic."""
GAUGE: Final = "gauge"
COUNTER: Final = "counter"

Line = tuple[str, str, str, float]
"""Name, type, help, value."""


class QueueTotals:
    """Sums of all queues, as AMQP sees them."""

    def __init__(self) -> None:
        self.queues = self.consumers = 0
        self.ready = self.unacked = 0
        self.settled = self.redelivered = 0

    def add(self, topic: TopicStatistics) -> None:
        for each in topic.subscriptions:
            if each.name == SUBSCRIPTION:
                self.queues += 1
                self.consumers += each.consumers
                self.ready += each.ready + each.delayed
                self.unacked += each.unacked
                self.settled += each.settled
                self.redelivered += each.redelivered


def rabbitmq_steps(
    engine: EngineStatistics, process: ProcessStatistics, topics: Iterable[TopicStatistics | float]
) -> Steps[bytes]:
    """The page, in the Prometheus text format; a number among the topics is steps of the next."""
    totals = QueueTotals()
    for topic in topics:
        if isinstance(topic, float):
            yield topic
            continue
        totals.add(topic)
        yield 1
    lines = [
        "# TYPE rabbitmq_build_info untyped",
        f'rabbitmq_build_info{{product_name="Penstock",product_version="{__version__}"}} 1',
    ]
    for name, kind, text, value in _lines(engine, process, totals):
        lines += [f"# TYPE {name} {kind}", f"# HELP {name} {text}", f"{name} {value:.15g}"]
    return ("\n".join(lines) + "\n").encode()


def _lines(
    engine: EngineStatistics, process: ProcessStatistics, queues: QueueTotals
) -> Iterator[Line]:
    yield from _objects(engine, process, queues)
    yield from _messages(engine, queues)
    yield from _resources(engine, process)


def _objects(
    engine: EngineStatistics, process: ProcessStatistics, queues: QueueTotals
) -> Iterator[Line]:
    yield "rabbitmq_connections", GAUGE, "Connections currently open", engine.connections
    yield "rabbitmq_channels", GAUGE, "Channels currently open", engine.channels
    yield "rabbitmq_consumers", GAUGE, "Consumers currently connected", queues.consumers
    yield "rabbitmq_queues", GAUGE, "Queues available", queues.queues
    opened = process.accepted_total
    yield "rabbitmq_connections_opened_total", COUNTER, "Connections opened", opened
    closed = opened - process.connections
    yield "rabbitmq_connections_closed_total", COUNTER, "Connections closed or ended", closed


def _messages(engine: EngineStatistics, queues: QueueTotals) -> Iterator[Line]:
    ready, unacked = queues.ready, queues.unacked
    settled, redelivered = queues.settled, queues.redelivered
    yield "rabbitmq_queue_messages_ready", GAUGE, "Messages ready to be delivered", ready
    yield "rabbitmq_queue_messages_unacked", GAUGE, "Messages delivered, not acked", unacked
    yield "rabbitmq_queue_messages", GAUGE, "Sum of ready and unacknowledged", ready + unacked
    for name, text, value in (
        ("received", "Messages received from publishers", engine.published),
        ("confirmed", "Messages confirmed to publishers", engine.confirmed),
        ("routed", "Messages routed to queues", engine.routed),
        ("unroutable_dropped", "Messages no queue was found for", engine.unroutable_dropped),
        (
            "unroutable_returned",
            "Mandatory messages no queue was found for",
            engine.unroutable_returned,
        ),
        ("delivered", "Messages delivered to consumers", settled + unacked + redelivered),
        ("redelivered", "Messages redelivered to consumers", redelivered),
        ("acknowledged", "Messages acknowledged by consumers", settled),
    ):
        yield f"rabbitmq_global_messages_{name}_total", COUNTER, text, value


def _resources(engine: EngineStatistics, process: ProcessStatistics) -> Iterator[Line]:
    for name, text, value in (
        ("process_resident_memory_bytes", "Memory used in bytes", process.memory_used),
        ("resident_memory_limit_bytes", "Memory high watermark in bytes", process.memory_limit),
        ("disk_space_available_bytes", "Disk space available in bytes", process.disk_free),
        ("disk_space_available_limit_bytes", "Free disk space low watermark", process.disk_limit),
        ("alarms_memory_used_watermark", "1 if the memory alarm holds", engine.is_memory_alarmed),
        ("alarms_free_disk_space_watermark", "1 if the disk alarm holds", engine.is_disk_alarmed),
    ):
        yield f"rabbitmq_{name}", GAUGE, text, value
