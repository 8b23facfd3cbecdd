"""Where a push consumer begins, what it remembers, and where it keeps that."""

import threading
import time

import pytest

from penstock.client import Message, Producer, PushConsumer, QueueRef
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.headers import QueryOffsetHeader


@pytest.fixture
def one_queue(cluster, unique):
    """A topic with one queue."""
    name = unique("single")
    cluster.create_topic(name, 1)
    return name


@pytest.fixture
def send(cluster, unique):
    with Producer(cluster.name_server, unique("senders")) as producer:
        yield lambda topic, *bodies: [producer.send(Message(topic, body)) for body in bodies]


class Bodies(list):
    """A listener that remembers bodies."""

    def __call__(self, message):
        self.append(message.body)


def run(cluster, group, listener, topic, **options):
    options = {"consume_from": "first"} | options
    consumer = PushConsumer(cluster.name_server, group, listener, **options)
    consumer.subscribe(topic)
    return consumer


def test_a_new_member_goes_on_where_the_group_was(cluster, topic, group, send, eventually):
    for body in (b"one", b"two"):
        got = Bodies()
        with run(cluster, group, got, topic):
            send(topic, body)
            eventually(lambda got=got: got, what="it came")
        assert got == [body]


def test_without_stored_offsets_first_is_everything(cluster, topic, group, send, eventually):
    send(topic, b"old")
    got = Bodies()
    with run(cluster, group, got, topic):
        eventually(lambda: got == [b"old"], what="the old one came")


def test_a_time_begins_with_the_messages_after_it(cluster, one_queue, group, send, eventually):
    send(one_queue, b"old")
    threading.Event().wait(0.05)
    between_ms = int(time.time() * 1000)
    threading.Event().wait(0.05)
    send(one_queue, b"new")
    got = Bodies()
    how = {"consume_from": "timestamp", "consume_timestamp": between_ms}
    with run(cluster, group, got, one_queue, offset_store=Store(), **how):
        eventually(lambda: got, what="the new one came")
    assert got == [b"new"]


def test_last_begins_at_the_end(cluster, one_queue, group, send, eventually):
    """With a store of its own: a broker gives new groups of young topics offset 0."""
    send(one_queue, b"old")
    got = Bodies()
    with run(cluster, group, got, one_queue, offset_store=Store(), consume_from="last") as it:
        eventually(lambda: one_queue in {each.topic for each in it.queues()}, what="it is ours")
        send(one_queue, b"new")
        eventually(lambda: got, what="the new one came")
    assert got == [b"new"]


class Store:
    """A user's own offset store."""

    def __init__(self):
        self.kept = {}

    def read(self, queue):
        return self.kept.get(queue)

    def write(self, offsets):
        self.kept.update(offsets)


def stored_offset(client, group, topic):
    header = QueryOffsetHeader(consumer_group=group, topic=topic, queue_id=0)
    answer = client.wait(client.start(RequestCode.QUERY_CONSUMER_OFFSET, header))
    return int(answer.ext["offset"])


def test_offsets_are_kept_where_the_user_wants(cluster, one_queue, group, send, eventually):
    store, got = Store(), Bodies()
    send(one_queue, b"a", b"b")
    with run(cluster, group, got, one_queue, offset_store=store):
        eventually(lambda: len(got) == 2, what="both came")
    broker = next(queue.broker for queue in store.kept if queue.topic == one_queue)
    assert store.kept[QueueRef(one_queue, broker, 0)] == 2
    again = Bodies()
    store.kept[QueueRef(one_queue, broker, 0)] = 1
    with run(cluster, group, again, one_queue, offset_store=store):
        eventually(lambda: again, what="one came again")
    assert again == [b"b"]


def test_offsets_reach_the_broker_while_the_consumer_runs(
    cluster, one_queue, group, send, eventually
):
    got = Bodies()
    consumer = run(cluster, group, got, one_queue, persist_interval_ms=100, instance_name=group)
    with consumer, cluster.connect() as client:
        send(one_queue, b"a", b"b", b"c")
        eventually(lambda: len(got) == 3, what="all came")
        consumer.commit()
        assert stored_offset(client, group, one_queue) == 3


def test_an_offset_outside_the_queue_is_set_right(cluster, one_queue, group, send, eventually):
    """With a store of its own: Penstock does not take an offset behind the end."""

    class Wrong(Store):
        def read(self, queue):
            return super().read(queue) if queue in self.kept else 1000

    send(one_queue, b"old")
    with cluster.connect() as client:
        # Apache's queues follow its log; one that is empty still would be read from 0.
        eventually(lambda: client.offset(RequestCode.GET_MAX_OFFSET, one_queue).number("offset"))
    store, got = Wrong(), Bodies()
    consumer = run(
        cluster, group, got, one_queue, instance_name=group, rebalance_spacing_ms=100,
        offset_store=store,
    )  # fmt: skip

    def is_moved():
        figures = [each for each in consumer.statistics().queues if each.queue.topic == one_queue]
        return figures and figures[0].next_offset == 1

    with consumer:
        eventually(is_moved, what="the queue begins anew at its end")
        send(one_queue, b"new")
        eventually(lambda: got, what="the new one came")
    assert got == [b"new"]
    assert {offset for queue, offset in store.kept.items() if queue.topic == one_queue} == {2}


def test_broadcasting_gives_every_member_everything_and_keeps_offsets_in_a_file(
    *, cluster, topic, group, send, tmp_path, eventually
):
    def member(name, listener):
        return run(
            cluster, group, listener, topic, instance_name=name, is_broadcasting=True,
            offsets_directory=str(tmp_path),
        )  # fmt: skip

    def failing(message):
        failed.append(message.body)
        raise ValueError("broadcasting has no retries")

    one, failed = Bodies(), Bodies()
    with member("one", one), member("two", failing):
        send(topic, b"a", b"b", b"c")
        eventually(lambda: len(one) == len(failed) == 3, what="both got all")
    assert sorted(one) == sorted(failed) == [b"a", b"b", b"c"]
    assert len(list(tmp_path.rglob("offsets.json"))) == 2
    again = Bodies()
    with member("one", again):
        send(topic, b"d")
        eventually(lambda: again, what="the new one came")
    assert again == [b"d"]
