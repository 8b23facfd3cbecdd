"""Every way to send, against a real broker."""

import asyncio
import threading
import time

import pytest

from penstock.client import (
    InvalidMessage,
    Message,
    Producer,
    QueueRef,
    SendHook,
    SendKind,
    SendStatus,
    StateError,
    split_batch,
)
from penstock.wire.rocketmq.codes import RequestCode


@pytest.fixture
def producer(cluster, group):
    with Producer(cluster.name_server, group) as producer:
        yield producer


def test_a_message_arrives_with_everything_it_was_given(producer, topic, read_topic):
    before_ms = time.time_ns() // 1_000_000
    message = Message(
        topic, "äöü".encode(), tag="new", keys=["k1", "k2"], properties={"colour": "grün"}, flag=7
    )
    result = producer.send(message)
    (found,) = read_topic(topic, 1)
    assert (found.body.decode(), found.tag, found.keys, found.flag) == (
        "äöü",
        "new",
        ("k1", "k2"),
        7,
    )
    assert found.properties["colour"] == "grün"
    assert result.status is SendStatus.SEND_OK
    assert (result.message_id, result.offset_message_id) == (
        found.message_id,
        found.offset_message_id,
    )
    assert (result.queue.topic, result.queue.queue) == (topic, found.queue.queue)
    assert result.queue_offset == found.offset
    assert before_ms <= found.born_at_ms <= time.time_ns() // 1_000_000


def test_messages_take_turns_over_all_queues(producer, topic):
    queues = {producer.send(Message(topic, b"x")).queue for _ in range(4)}
    assert queues == set(producer.queues(topic))
    assert len(queues) == 4


def test_many_sends_may_be_awaited_at_a_time(cluster, group, topic, read_topic):
    async def send():
        async with Producer(cluster.name_server, group) as producer:
            sends = [producer.send_async(Message(topic, b"%d" % number)) for number in range(300)]
            return await asyncio.gather(*sends)

    results = asyncio.run(send())
    found = read_topic(topic, 300)
    assert {int(each.body) for each in found} == set(range(300))
    assert {each.message_id for each in found} == {each.message_id for each in results}


def test_two_event_loops_share_a_producer(producer, topic, read_topic):
    async def send():
        await asyncio.gather(*[producer.send_async(Message(topic, b"x")) for _ in range(20)])

    threads = [threading.Thread(target=asyncio.run, args=(send(),)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    read_topic(topic, 40)


def test_a_callback_hears_of_every_end_on_a_thread_of_its_own(producer, topic, eventually):
    outcomes, names = [], set()

    def on_done(outcome):
        names.add(threading.current_thread().name)
        outcomes.append(outcome)

    for _ in range(30):
        producer.send_callback(Message(topic, b"x"), on_done)
    eventually(lambda: len(outcomes) == 30, what="thirty callbacks")
    assert all(each.is_ok for each in outcomes)
    assert names == {f"penstock-callbacks-{producer.group}"}


def test_a_callback_may_send_the_next_message(cluster, group, topic, read_topic):
    options = {"in_flight_messages_max": 1}
    with Producer(cluster.name_server, group, **options) as producer:
        ended = threading.Event()

        def chain(left):
            def on_done(outcome):
                if left:
                    chain(left - 1)
                else:
                    ended.set()

            producer.send_callback(Message(topic, b"x"), on_done)

        chain(4)
        assert ended.wait(20)
    read_topic(topic, 5)


def test_oneway_arrives_although_nobody_says_so(producer, topic, read_topic):
    for number in range(5):
        producer.send_oneway(Message(topic, b"%d" % number))
    assert {each.body for each in read_topic(topic, 5)} == {b"0", b"1", b"2", b"3", b"4"}


def test_oneway_is_on_its_way_when_the_producer_is_stopped(cluster, group, topic, read_topic):
    with Producer(cluster.name_server, group) as producer:
        producer.send_oneway(Message(topic, b"last"))
    assert read_topic(topic, 1)[0].body == b"last"


def test_a_batch_is_stored_as_messages_of_its_own_in_one_queue(producer, topic, read_topic):
    result = producer.send_batch([Message(topic, b"%d" % number, tag="t") for number in range(5)])
    found = read_topic(topic, 5)
    assert [each.body for each in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert {each.queue.queue for each in found} == {result.queue.queue}
    assert found[0].offset == result.queue_offset
    assert [each.message_id for each in found] == result.message_id.split(",")
    assert [each.offset_message_id for each in found] == result.offset_message_id.split(",")


def test_a_long_list_is_sent_in_batches_that_fit(cluster, group, topic, read_topic):
    with Producer(cluster.name_server, group, message_bytes_max=2000) as producer:
        messages = [Message(topic, b"x" * 300) for _ in range(20)]
        with pytest.raises(InvalidMessage, match="split_batch"):
            producer.send_batch(messages)
        batches = list(split_batch(messages, bytes_max=2000))
        for batch in batches:
            producer.send_batch(batch)
    assert len(batches) > 2
    read_topic(topic, 20)


def test_messages_of_one_key_keep_their_order(producer, topic, read_topic):
    for number in range(30):
        producer.send(Message(topic, b"%d" % number, ordering_key=f"key-{number % 3}"))
    by_key = {}
    for each in read_topic(topic, 30):
        by_key.setdefault(each.ordering_key, []).append((each.queue.queue, int(each.body)))
    for key, places in by_key.items():
        assert len({queue for queue, _ in places}) == 1, key
        assert [number for _, number in places] == sorted(number for _, number in places)


def test_a_selector_or_the_caller_chooses_the_queue(producer, topic):
    chosen = producer.send(Message(topic, b"x"), selector=lambda queues, message: queues[2])
    assert chosen.queue.queue == 2
    queue = producer.queues(topic)[1]
    assert producer.send(Message(topic, b"x"), queue=queue).queue == queue
    with pytest.raises(InvalidMessage, match="does not fit"):
        producer.send(Message(topic, b"x"), queue=QueueRef("other", "b", 0))


def test_delayed_messages_come_when_they_are_due(producer, topic, read_topic):
    now_ms = time.time_ns() // 1_000_000
    producer.send(Message(topic, b"level", delay_level=1))
    producer.send(Message(topic, b"delay", delay_ms=1200))
    producer.send(Message(topic, b"at", deliver_at_ms=now_ms + 1500))
    read_topic(topic, 0)
    found = read_topic(topic, 3)
    assert {each.body for each in found} == {b"level", b"delay", b"at"}
    # RocketMQ floors timers to whole seconds.
    assert time.time_ns() // 1_000_000 - now_ms >= 1000


def test_a_large_body_travels_compressed(producer, topic, read_topic):
    body = b"penstock " * 1000
    producer.send(Message(topic, body))
    (found,) = read_topic(topic, 1)
    assert found.stored_bytes < len(body) // 4
    assert found.sys_flag & 1
    assert found.body == body


def test_a_topic_that_does_not_exist_is_made_by_its_first_message(
    cluster, group, unique, read_topic
):
    topic = unique("auto")
    with Producer(cluster.name_server, group, auto_create_queues=2) as producer:
        assert producer.send(Message(topic, b"first")).is_ok
    assert read_topic(topic, 1)[0].body == b"first"


def test_what_no_broker_would_take_is_refused_here(producer, topic):
    for message in (
        Message("bad topic", b"x"),
        Message(topic, b""),
        Message(topic, bytes(4 * 1024 * 1024 + 1)),
    ):
        with pytest.raises(InvalidMessage):
            producer.send(message)
    assert producer.statistics().failed == 0


def test_sends_beyond_the_window_wait_and_statistics_tell(cluster, group, topic):
    async def send():
        async with Producer(cluster.name_server, group, in_flight_messages_max=2) as producer:
            await producer.send_async(Message(topic, b"x"))
            sends = [producer.send_async(Message(topic, b"x")) for _ in range(50)]
            meanwhile = producer.statistics()
            await asyncio.gather(*sends)
            return meanwhile, producer.statistics()

    meanwhile, after = asyncio.run(send())
    assert meanwhile.in_flight_messages == 2
    assert (meanwhile.waiting, meanwhile.waiting_for) == (48, "messages")
    assert (after.sent, after.waiting, after.in_flight_messages, after.in_flight_bytes) == (
        51,
        0,
        0,
        0,
    )
    assert after.held_episodes == 1


def test_brokers_know_the_producers_group(cluster, producer, topic, eventually):
    producer.send(Message(topic, b"x"))
    with cluster.connect() as client:
        code, header = RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": producer.group}
        eventually(lambda: client.request(code, header).is_ok, what="the group is known")


class Watching(SendHook):
    """Keeps what it is shown."""

    def __init__(self):
        self.seen = []

    def before(self, context):
        self.seen.append(("before", context.kind, context.result))

    def after(self, context):
        self.seen.append(("after", context.address, context.result.message_id))


def test_hooks_see_a_send_before_and_after(cluster, group, topic):
    hook = Watching()
    with Producer(cluster.name_server, group, hooks=[hook]) as producer:
        result = producer.send(Message(topic, b"x", ordering_key="k"))
    assert hook.seen == [
        ("before", SendKind.ORDERED, None),
        ("after", cluster.broker_address, result.message_id),
    ]


def test_a_producer_is_used_between_start_and_stop_and_only_once(cluster, group, topic):
    producer = Producer(cluster.name_server, group)
    with pytest.raises(StateError, match="created"):
        producer.send(Message(topic, b"x"))
    producer.start()
    with pytest.raises(StateError, match="runs already"):
        producer.start()
    producer.stop()
    producer.stop()
    with pytest.raises(StateError, match="stopped"):
        producer.send(Message(topic, b"x"))
    with pytest.raises(StateError, match="stopped"):
        producer.start()


def test_a_client_may_call_itself_anything(cluster, group, topic):
    with Producer(cluster.name_server, group, client_ip="my-laptop") as producer:
        assert producer.send(Message(topic, b"x")).is_ok
