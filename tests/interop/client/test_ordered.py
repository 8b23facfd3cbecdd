"""Ordered consumption against a real broker: order, one reader, dead letters, taking over."""

import itertools
import threading
import time
from collections import defaultdict

import pytest

from penstock.client import ConsumeResult, Message, Producer, PushConsumer, Suspend
from penstock.testing.running import eventually
from penstock.wire.rocketmq.bodies import (
    LockBatchAnswer,
    LockBatchBody,
    MessageQueue,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode

NAMES = itertools.count(1)


@pytest.fixture
def join(cluster, group):
    """Make a running ordered member of the group; all are stopped at the end."""
    members = []

    def make(topic, listener, **options):
        options = {
            "instance_name": f"ordered-{next(NAMES)}",
            "is_ordered": True,
            "consume_from": "first",
            "rebalance_interval_ms": 1_000,
            "rebalance_spacing_ms": 50,
            "suspend_ms": 20,
        } | options
        member = PushConsumer(cluster.name_server, group, listener, **options)
        member.subscribe(topic)
        member.start()
        members.append(member)
        return member

    yield make
    for member in members:
        member.stop()


@pytest.fixture
def send(cluster):
    with Producer(cluster.name_server, "p") as producer:

        def make(topic, key, *bodies):
            for body in bodies:
                producer.send(Message(topic, body.encode(), ordering_key=key))

        yield make


def texts(messages):
    return [message.body.decode() for message in messages]


def test_messages_of_a_key_come_in_order_beside_other_keys(topic, join, send):
    seen = defaultdict(list)
    running, most = defaultdict(int), defaultdict(int)

    def listener(message):
        queue = message.queue.queue
        running[queue] += 1
        most[queue] = max(most[queue], running[queue])
        seen[message.ordering_key].append(int(message.body))
        time.sleep(0.0005)
        running[queue] -= 1

    for number in range(30):
        for key in ("a", "b", "c"):
            send(topic, key, str(number))
    join(topic, listener)
    eventually(lambda: sum(map(len, seen.values())) == 90)
    assert dict(seen) == {key: list(range(30)) for key in "abc"}
    assert set(most.values()) == {1}


def test_a_suspended_message_is_tried_again_before_the_next(topic, join, send):
    tries = []

    def listener(message):
        tries.append((message.body.decode(), message.reconsume_times))
        if message.body == b"bad" and message.reconsume_times < 2:
            return Suspend(10) if message.reconsume_times else ConsumeResult.SUSPEND
        return None

    send(topic, "k", "first", "bad", "last")
    join(topic, listener)
    expected = [("first", 0), ("bad", 0), ("bad", 1), ("bad", 2), ("last", 0)]
    eventually(lambda: tries == expected, what=str(expected))


def test_a_coroutine_listener_that_raises_sees_its_message_again(topic, join, send):
    tries = []

    async def listener(message):
        tries.append(message.body)
        if len(tries) < 3:
            raise ValueError("not yet")

    send(topic, "k", "one")
    join(topic, listener)
    eventually(lambda: tries == [b"one"] * 3)


def test_a_message_that_fails_too_often_is_a_dead_letter_and_the_next_comes(
    cluster, topic, group, join, send
):
    seen = []

    def listener(message):
        seen.append(message.body.decode())
        return ConsumeResult.SUSPEND if message.body == b"poison" else None

    send(topic, "k", "poison", "good")
    join(topic, listener, retries_max=2)
    eventually(lambda: seen == ["poison"] * 3 + ["good"], what="three tries, then the next")
    with cluster.connect() as client:
        dead = eventually(lambda: client.pull(f"%DLQ%{group}").messages, what="a dead letter")
    assert texts(dead) == ["poison"]


def test_commit_and_rollback_without_auto_commit(topic, join, send):
    seen = []

    def listener(message):
        text = message.body.decode()
        seen.append(text)
        if text == "3" and seen.count("3") == 1:
            return ConsumeResult.ROLLBACK
        return ConsumeResult.COMMIT if text in ("1", "3") else None

    send(topic, "k", "1", "2", "3", "4")
    member = join(topic, listener, is_auto_commit=False)
    eventually(lambda: seen == ["1", "2", "3", "2", "3", "4"], what="2 and 3 came again")
    member.stop()
    seen.clear()
    join(topic, listener, is_auto_commit=False)
    eventually(lambda: seen == ["4"], what="4 was never committed")


def test_a_member_that_stops_hands_its_queues_over_at_once(topic, join, send):
    seen = []
    first = join(topic, lambda message: seen.append(("first", int(message.body))))
    send(topic, "k", *map(str, range(10)))
    eventually(lambda: len(seen) == 10)
    second = join(topic, lambda message: seen.append(("second", int(message.body))))
    first.stop()
    send(topic, "k", *map(str, range(10, 20)))
    eventually(lambda: len(seen) >= 20, seconds=10, what="the second member took over")
    assert [number for _, number in seen] == list(range(20))
    # The queue of key k may have come over before the others.
    eventually(
        lambda: len([queue for queue in second.queues() if queue.topic == topic]) == 4,
        what="all four queues are the second member's",
    )


def test_never_two_members_work_on_one_queue_while_they_come_and_go(topic, join, send):
    lock, at_work, clashes = threading.Lock(), set(), []
    seen = defaultdict(list)

    def listener(message):
        with lock:
            if message.queue in at_work:
                clashes.append(message.queue)
            at_work.add(message.queue)
            seen[message.queue].append(message.offset)
        time.sleep(0.002)
        with lock:
            at_work.discard(message.queue)

    for number in range(100):
        send(topic, f"k{number % 16}", str(number))
    members = [join(topic, listener) for _ in range(2)]
    eventually(lambda: sum(map(len, seen.values())) > 20)
    members.append(join(topic, listener))
    members[0].stop()
    for number in range(100):
        send(topic, f"k{number % 16}", str(number))
    eventually(lambda: sum(len(set(each)) for each in seen.values()) == 200, what="all came")
    assert not clashes
    for queue, offsets in seen.items():
        # A message whose call was cut off by a rebalance may come again; none is passed over.
        assert [n for at, n in enumerate(offsets) if n not in offsets[:at]] == sorted(
            set(offsets)
        ), queue


def lock_requests(cluster, group, topic, queues):
    with cluster.connect() as client:
        asked = LockBatchBody(
            consumer_group=group,
            client_id="a stranger",
            mq_set=[
                MessageQueue(topic=topic, broker_name=each.broker, queue_id=each.queue)
                for each in queues
            ],
        )
        answer = client.request(RequestCode.LOCK_BATCH_MQ, body=encode_body(asked))
        return decode_body(answer.body, LockBatchAnswer).locked


def test_queues_are_locked_at_the_broker_until_the_member_stops(cluster, topic, group, join):
    member = join(topic, lambda message: None)
    queues = eventually(lambda: [each for each in member.queues() if each.topic == topic])
    assert not lock_requests(cluster, group, topic, queues)
    member.stop()
    assert len(lock_requests(cluster, group, topic, queues)) == 4


def test_ordered_broadcasting_needs_no_lock(cluster, topic, tmp_path, join, send):
    seen = defaultdict(list)

    def reader(name):
        return lambda message: seen[name].append(int(message.body))

    options = {"is_broadcasting": True, "offsets_directory": str(tmp_path)}
    members = [join(topic, reader(name), **options) for name in ("x", "y")]
    send(topic, "k", *map(str, range(10)))
    eventually(lambda: seen == {"x": list(range(10)), "y": list(range(10))})
    queues = [each for each in members[0].queues() if each.topic == topic]
    assert len(lock_requests(cluster, members[0].group, topic, queues)) == 4
