"""An operator publishes, and looks at messages without keeping any."""

import pytest

from kit.amqp.peer import AmqpBench
from penstock.adapters.amqp.management.definitions import QueueDefinition, make_queue
from penstock.adapters.amqp.management.operator_service import ACK_MODES, OperatorService
from penstock.adapters.amqp.topology.queue import AmqpQueue
from penstock.model.record import neutral_record
from penstock.model.refusal import Refusal, RefusalKind
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.methods.queue import Declare
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties

PERSISTENT = encode_properties(Properties(delivery_mode=2))


@pytest.fixture
def bench() -> AmqpBench:
    return AmqpBench()


@pytest.fixture
def queue(bench: AmqpBench) -> AmqpQueue:
    return make_queue(bench.broker.vhosts["/"], QueueDefinition("q", arguments={}))


class Clerk:
    """A desk, and what it answered."""

    def __init__(self, bench: AmqpBench) -> None:
        self.bench = bench
        self.desk = OperatorService(bench.broker)
        self.answers: list[Refusal | None] = []

    def publish(
        self, key: str, body: bytes, exchange: str = "", properties: bytes = PERSISTENT
    ) -> bool:
        return self.desk.publish(
            self.bench.broker.vhosts["/"],
            exchange,
            key,
            content=(properties, body),
            answer=self.answers.append,
        )


def test_a_publish_is_answered_when_it_is_durable(bench: AmqpBench, queue: AmqpQueue) -> None:
    clerk = Clerk(bench)
    assert clerk.publish("q", b"one")
    bench.turns()
    assert clerk.answers == []
    bench.settle()
    assert clerk.answers == [None]
    assert queue.ready == 1


def test_cc_and_bcc_of_a_publish_count_and_bcc_is_not_told(
    bench: AmqpBench, queue: AmqpQueue
) -> None:
    others = [
        make_queue(bench.broker.vhosts["/"], QueueDefinition(name, arguments={}))
        for name in ("open", "hidden")
    ]
    headers = {"CC": ["open"], "BCC": ["hidden"]}
    clerk = Clerk(bench)
    copied = encode_properties(Properties(delivery_mode=2, headers=headers))
    assert clerk.publish("nowhere", b"x", properties=copied)
    bench.settle()
    assert [each.ready for each in (queue, *others)] == [0, 1, 1]
    (record,) = bench.records(others[1].topic)
    assert decode_properties(record.properties).headers == {"CC": ["open"]}
    wrong = encode_properties(Properties(headers={"BCC": "no array"}))
    with pytest.raises(AmqpError, match="header BCC must be an array"):
        clerk.publish("q", b"x", properties=wrong)


def test_an_unroutable_publish_and_a_missing_exchange_are_told_apart(bench: AmqpBench) -> None:
    clerk = Clerk(bench)
    assert not clerk.publish("none", b"x")
    with pytest.raises(AmqpError, match="no exchange 'none'"):
        clerk.publish("q", b"x", exchange="none")


def test_an_alarm_refuses_at_once_and_stores_nothing(bench: AmqpBench, queue: AmqpQueue) -> None:
    clerk = Clerk(bench)
    bench.engine.set_alarm("disk", 0)
    assert clerk.publish("q", b"x")
    bench.settle()
    (refusal,) = clerk.answers
    assert refusal is not None
    assert refusal.kind is RefusalKind.DISK_ALARM
    assert queue.ready == 0


@pytest.mark.parametrize("mode", ACK_MODES)
def test_a_look_leaves_nothing_in_flight(bench: AmqpBench, queue: AmqpQueue, mode: str) -> None:
    clerk = Clerk(bench)
    for body in (b"one", b"two", b"three"):
        clerk.publish("q", body)
    bench.settle()
    taken = clerk.desk.get(queue, 2, mode)
    assert [clerk.desk.presented(queue, each).body for each in taken] == [b"one", b"two"]
    bench.settle()
    assert queue.unacked == 0
    assert queue.ready == (3 if mode.endswith("true") else 1)
    (again, *_) = clerk.desk.get(queue, 1, mode)
    assert again.is_redelivered is mode.endswith("true")


def test_what_another_protocol_published_is_shown_as_amqp(bench: AmqpBench) -> None:
    topic = bench.topic("foreign")
    queue = bench.broker.vhosts["/"].queues.get("foreign")
    assert queue is not None
    assert queue.subscription is not None
    bench.publish(bench.channel(), topic, b"body")
    bench.settle()
    desk = OperatorService(bench.broker)
    (taken,) = desk.get(queue, 5, "ack_requeue_true")
    assert desk.presented(queue, taken).body == b"body"


@pytest.mark.parametrize("mode", ACK_MODES)
def test_a_batch_is_settled_or_given_back_as_a_whole(bench: AmqpBench, mode: str) -> None:
    topic = bench.topic("batches")
    queue = bench.broker.vhosts["/"].queues.get("batches")
    assert queue is not None
    assert queue.subscription is not None
    batch = neutral_record(b"five in one")
    batch.reshape(messages=5)
    bench.publish(bench.channel(), topic, batch)
    bench.settle()
    OperatorService(bench.broker).get(queue, 1, mode)
    bench.settle()
    assert (queue.ready, queue.unacked) == (5 if mode.endswith("true") else 0, 0)


def test_an_exclusive_queue_and_an_unknown_mode_are_refused(
    bench: AmqpBench, queue: AmqpQueue
) -> None:
    desk = OperatorService(bench.broker)
    with pytest.raises(AmqpError, match="ackmode 'none' is not known"):
        desk.get(queue, 1, "none")
    peer = bench.client()
    peer.call(1, Declare(0, "mine", is_exclusive=True))
    mine = bench.broker.vhosts["/"].queues.get("mine")
    assert mine is not None
    with pytest.raises(AmqpError, match="RESOURCE_LOCKED"):
        desk.get(mine, 1, "ack_requeue_true")
