"""The pull consumer: queues, pulls in every way, offsets, its place in a group."""

import asyncio
import multiprocessing
import threading

import pytest

from penstock.client import (
    BrokerRefused,
    Message,
    NoRoute,
    Producer,
    PullConsumer,
    PullStatus,
    QueueRef,
    StateError,
)
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.headers import GroupHeader


@pytest.fixture
def consumer(cluster, group):
    with PullConsumer(cluster.name_server, group) as consumer:
        yield consumer


@pytest.fixture
def send(cluster, unique, eventually):
    """Send bodies to one queue, and wait until they can be read: Apache's broker needs a moment."""
    with (
        Producer(cluster.name_server, unique("producer")) as producer,
        PullConsumer(cluster.name_server, unique("looker"), registers_group=False) as looker,
    ):

        def sender(queue, *bodies, tag=None):
            messages = [Message(queue.topic, body, tag=tag) for body in bodies]
            last = [producer.send(each, queue=queue) for each in messages][-1]
            eventually(lambda: looker.max_offset(queue) > last.queue_offset, what="all readable")

        yield sender


def bodies(result):
    return [message.body for message in result]


def test_queues_of_a_topic_and_pulls_from_an_offset(consumer, topic, send):
    queues = consumer.queues(topic)
    assert [queue.queue for queue in queues] == [0, 1, 2, 3]
    send(queues[1], b"a", b"b", b"c")
    result = consumer.pull(queues[1], 1)
    assert (bodies(result), result.status) == ([b"b", b"c"], PullStatus.FOUND)
    assert (result.next_offset, result.min_offset, result.max_offset) == (3, 0, 3)
    assert bodies(consumer.pull(queues[1], 0, max_messages=1)) == [b"a"]


def test_a_pull_that_finds_nothing_says_so_at_once(consumer, topic, send):
    queue = consumer.queues(topic)[0]
    assert consumer.pull(queue, 0).status is PullStatus.NO_NEW_MESSAGE
    send(queue, b"a")
    result = consumer.pull(queue, 1)
    assert (result.status, result.next_offset, list(result)) == (PullStatus.NO_NEW_MESSAGE, 1, [])


def test_an_offset_outside_the_queue_is_moved(consumer, topic, send):
    queue = consumer.queues(topic)[0]
    send(queue, b"a")
    result = consumer.pull(queue, 100)
    assert result.status is PullStatus.OFFSET_MOVED
    assert result.next_offset in (0, 1)


def test_only_wanted_tags_come(consumer, topic, send):
    queue = consumer.queues(topic)[0]
    send(queue, b"a", tag="A")
    send(queue, b"b", tag="B")
    assert bodies(consumer.pull(queue, 0, tags="B")) == [b"b"]
    result = consumer.pull(queue, 0, tags=["C", "D"])
    assert (result.status, result.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 2)


def test_a_pull_may_wait_for_a_message(consumer, topic, send):
    queue = consumer.queues(topic)[0]
    got, done = [], threading.Event()

    def on_done(result):
        got.append(result)
        done.set()

    consumer.pull_callback(queue, 0, on_done, wait_ms=20_000)
    send(queue, b"late")
    assert done.wait(10)
    assert bodies(got[0]) == [b"late"]


def test_a_callback_gets_the_error_as_well(consumer, unique):
    got, done = [], threading.Event()

    def on_done(result):
        got.append(result)
        done.set()

    consumer.pull_callback(QueueRef(unique("no-topic"), "nobody", 0), 0, on_done)
    assert done.wait(10)
    assert isinstance(got[0], NoRoute)


def test_everything_can_be_awaited(cluster, topic, group, send):
    async def reads():
        async with PullConsumer(cluster.name_server, group) as consumer:
            queue = (await consumer.queues_async(topic))[0]
            await asyncio.to_thread(send, queue, b"a")
            waiting = consumer.pull_async(queue, 1, wait_ms=20_000)
            await asyncio.to_thread(send, queue, b"b")
            return bodies(await consumer.pull_async(queue, 0)), bodies(await waiting)

    first, second = asyncio.run(reads())
    assert first[0] == b"a"
    assert second == [b"b"]


def test_offsets_are_stored_at_once_or_with_the_next_round(cluster, topic, group, send):
    with PullConsumer(cluster.name_server, group) as consumer:
        queue, other = consumer.queues(topic)[:2]
        send(queue, b"a", b"b")
        send(other, b"c")
        consumer.commit(queue, 2)
        assert consumer.committed(queue) == 2
        consumer.commit(queue, 1)
        assert consumer.committed(queue) == 1
        consumer.note_offset(other, 1)
    with PullConsumer(cluster.name_server, group) as again:
        assert (again.committed(queue), again.committed(other)) == (1, 1)


def test_offsets_of_a_queue_can_be_asked_for(consumer, topic, send):
    queue = consumer.queues(topic)[2]
    send(queue, b"a", b"b")
    assert (consumer.min_offset(queue), consumer.max_offset(queue)) == (0, 2)
    stored_at_ms = [message.stored_at_ms for message in consumer.pull(queue, 0)]
    assert consumer.search_offset(queue, stored_at_ms[0]) == 0
    assert consumer.search_offset(queue, stored_at_ms[1] + 60_000) == 2
    assert consumer.earliest_store_time(queue) == stored_at_ms[0]


def test_a_range_is_read_to_its_end(consumer, topic, send):
    queue = consumer.queues(topic)[0]
    send(queue, *(b"%d" % number for number in range(70)))
    read = [message.body for message in consumer.read(queue, 3, 67)]
    assert read == [b"%d" % number for number in range(3, 67)]
    assert len(list(consumer.read(queue, 0, 1_000_000))) == 70
    assert list(consumer.read(queue, 70, 80)) == []


def test_a_message_that_is_sent_back_comes_again(consumer, topic, send, eventually):
    queue = consumer.queues(topic)[0]
    send(queue, b"again")
    (message,) = consumer.pull(queue, 0)
    consumer.send_back(message, delay_level=1)
    retry = f"%RETRY%{consumer.group}"

    def came():
        return list(consumer.pull(consumer.queues(retry)[0], 0))

    eventually(lambda: _has_queues(consumer, retry), seconds=10, what="a retry topic")
    eventually(came, seconds=10, what="the message came back")
    (again,) = came()
    assert (again.body, again.topic, again.reconsume_times) == (b"again", topic, 1)


def _has_queues(consumer, topic):
    try:
        return consumer.queues(topic)
    except NoRoute:
        return []


def test_members_of_a_group_hear_of_their_share(cluster, topic, group, eventually):
    shares = {}

    def listener(name):
        return lambda _topic, everything, mine: shares.__setitem__(name, (everything, mine))

    options = {"rebalance_interval_ms": 500, "rebalance_spacing_ms": 100}
    with PullConsumer(cluster.name_server, group, **options, instance_name="one") as one:
        one.on_queues_changed(topic, listener("one"))
        eventually(lambda: len(shares.get("one", ((), ()))[1]) == 4, seconds=10, what="all queues")
        with PullConsumer(cluster.name_server, group, **options, instance_name="two") as two:
            two.on_queues_changed(topic, listener("two"))
            eventually(
                lambda: [len(shares.get(name, ((), ()))[1]) for name in ("one", "two")] == [2, 2],
                seconds=10,
                what="two queues each",
            )
            assert len(shares["two"][0]) == 4
        eventually(lambda: len(shares["one"][1]) == 4, seconds=10, what="all queues again")


def test_a_reader_without_a_group_is_heard_of_by_nobody(cluster, topic, group, send):
    with PullConsumer(cluster.name_server, group, registers_group=False) as reader:
        queue = reader.queues(topic)[0]
        send(queue, b"a")
        assert bodies(reader.pull(queue, 0)) == [b"a"]
        with cluster.connect() as client:
            header = GroupHeader(consumer_group=group)
            assert not client.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header).is_ok
        with pytest.raises(StateError, match="no share"):
            reader.on_queues_changed(topic, print)
        with pytest.raises(StateError, match="no rounds"):
            reader.note_offset(queue, 1)


def _read_in_child(name_server, group, queue, results):
    with PullConsumer(name_server, group, registers_group=False) as reader:
        results.put(bodies(reader.pull(queue, 0)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_reads_with_a_consumer_of_its_own(cluster, topic, group, send):
    with PullConsumer(cluster.name_server, group) as parent:
        queue = parent.queues(topic)[0]
        send(queue, b"a", b"b")
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(
            target=_read_in_child, args=(cluster.name_server, f"{group}-child", queue, results)
        )
        child.start()
        try:
            assert results.get(timeout=20) == [b"a", b"b"]
        finally:
            child.join(10)
        assert bodies(parent.pull(queue, 1)) == [b"b"]


def test_a_stopped_consumer_says_so(cluster, group, topic):
    consumer = PullConsumer(cluster.name_server, group)
    with pytest.raises(StateError, match="start"):
        consumer.queues(topic)
    consumer.start()
    consumer.stop()
    with pytest.raises(StateError, match="stopped"):
        consumer.queues(topic)
    with pytest.raises(StateError, match="make a new one"):
        consumer.start()


def test_an_sql_expression_chooses_messages(consumer, cluster, topic, unique, eventually):
    queue = consumer.queues(topic)[0]
    with Producer(cluster.name_server, unique("producer")) as producer:
        for price in ("3", "7", "9"):
            message = Message(topic, price.encode(), properties={"price": price})
            producer.send(message, queue=queue)
    eventually(lambda: consumer.max_offset(queue) == 3, what="all readable")
    assert bodies(consumer.pull(queue, 0, sql="price > 5")) == [b"7", b"9"]
    with pytest.raises(BrokerRefused, match="SUBSCRIPTION_PARSE_FAILED"):
        consumer.pull(queue, 0, sql="price >")
