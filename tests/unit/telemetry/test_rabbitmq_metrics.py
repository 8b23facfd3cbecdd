"""Metrics under RabbitMQ's names, as a dashboard made for it reads them."""

from kit.amqp.peer import AmqpBench
from penstock.engine.broker import Engine
from penstock.model.steps import finished
from penstock.telemetry.rabbitmq_metrics import rabbitmq_steps
from penstock.telemetry.statistics import ProcessStatistics
from penstock.wire.amqp.methods.basic import Consume
from penstock.wire.amqp.methods.queue import Declare


def parsed(page: bytes) -> dict[str, float]:
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def process() -> ProcessStatistics:
    given = dict.fromkeys(ProcessStatistics.__struct_fields__, 0)
    return ProcessStatistics(**{**given, "memory_limit": 1 << 40, "accepted_total": 3})


def page_of(engine: Engine) -> bytes:
    seen = engine.statistics()
    return finished(rabbitmq_steps(seen, process(), seen.topics))


def test_messages_and_resources_have_the_names_people_know() -> None:
    bench = AmqpBench()
    peer = bench.client()
    peer.call(1, Declare(0, "q"))
    for _ in range(3):
        peer.publish(1, "", "q", b"x")
    peer.turn()
    peer.call(1, Declare(0, "other"))
    peer.call(1, Consume(0, "other"))
    figures = parsed(page_of(bench.engine))
    assert figures["rabbitmq_queue_messages_ready"] == 3
    assert figures["rabbitmq_queue_messages"] == 3
    assert figures["rabbitmq_queues"] == 2
    assert figures["rabbitmq_consumers"] == 1
    assert figures["rabbitmq_connections"] == 1
    assert figures["rabbitmq_global_messages_received_total"] == 3
    assert figures["rabbitmq_resident_memory_limit_bytes"] == 1 << 40
    assert figures["rabbitmq_alarms_memory_used_watermark"] == 0


def test_unroutable_messages_are_the_same_number_under_both_names() -> None:
    bench = AmqpBench()
    peer = bench.client()
    for _ in range(3):
        peer.publish(1, "", "nowhere", b"x")
    peer.publish(1, "", "nowhere", b"x", is_mandatory=True)
    peer.turn()
    figures = parsed(page_of(bench.engine))
    assert figures["rabbitmq_global_messages_received_total"] == 4
    assert figures["rabbitmq_global_messages_unroutable_dropped_total"] == 3
    assert figures["rabbitmq_global_messages_unroutable_returned_total"] == 1


def test_the_page_is_prometheus_text() -> None:
    page = page_of(AmqpBench().engine).decode()
    assert page.endswith("\n")
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
