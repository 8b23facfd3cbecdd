"""Pop mode of the push consumer: the broker assigns, messages are shared, receipts settle them."""

import threading
import time

import pytest

from penstock.client import (
    Admin,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    StateError,
)

FAST = {
    "is_popping": True,
    "consume_from": "first",
    "rebalance_interval_ms": 300,
    "rebalance_spacing_ms": 50,
    "pop_poll_ms": 1000,
}


class Log:
    """What a listener got; it answers what the test says."""

    def __init__(self, answer=lambda message: None):
        self.messages = []
        self._answer = answer

    def __call__(self, message):
        self.messages.append(message)
        return self._answer(message)

    @property
    def bodies(self):
        return sorted(message.body for message in self.messages)


@pytest.fixture
def producer(cluster, unique):
    with Producer(cluster.name_server, unique("producer")) as producer:
        yield producer


@pytest.fixture
def set_mode(cluster, topic, group):
    with Admin(cluster.name_server) as admin:

        def setter(mode, share=-1):
            admin.set_consume_mode(group, topic, mode, share=share)

        yield setter


@pytest.fixture
def make(cluster, topic, group):
    """Make a consumer of the group with a listener."""

    def maker(listener, name="one", **options):
        consumer = PushConsumer(
            cluster.name_server,
            group,
            listener,
            **{**FAST, "instance_name": f"{group}-{name}", **options},
        )
        consumer.subscribe(topic)
        return consumer

    return maker


def numbers(count, first=0):
    return sorted(b"%d" % number for number in range(first, first + count))


def send(producer, topic, bodies):
    for body in bodies:
        producer.send(Message(topic, body))


def pop_of(consumer):
    return consumer.statistics().pop


def test_a_group_set_to_pop_gets_everything_once(make, set_mode, producer, topic, eventually):
    set_mode("POP")
    send(producer, topic, numbers(40))
    log = Log()
    with make(log) as consumer:
        eventually(lambda: len(log.messages) >= 40, seconds=15, what="forty messages")
        assert log.bodies == numbers(40)
        assert consumer.queues() == [] or all(
            queue.topic.startswith("%RETRY%") for queue in consumer.queues()
        )
        eventually(lambda: pop_of(consumer).acked == 40, seconds=10, what="all acknowledged")
        figures = pop_of(consumer)
        assert (figures.popped, sum(figures.unacked.values()), figures.lost) == (40, 0, 0)
    again = Log()
    with make(again):
        send(producer, topic, [b"new"])
        eventually(lambda: again.messages, seconds=15, what="the new message")
        assert again.bodies == [b"new"]


def test_members_share_queues_without_owning_any(make, set_mode, producer, topic, eventually):
    set_mode("POP")
    slow, fast = Log(lambda _: time.sleep(0.02)), Log(lambda _: time.sleep(0.02))
    options = {"consume_threads": 2, "pop_batch": 2, "pop_threshold": 2}
    with make(slow, "one", **options), make(fast, "two", **options):
        send(producer, topic, numbers(60))
        eventually(
            lambda: len(slow.messages) + len(fast.messages) >= 60, seconds=20, what="all came"
        )
        assert sorted(slow.bodies + fast.bodies) == numbers(60)
        assert slow.messages
        assert fast.messages


def test_a_failed_message_is_given_back_for_the_time_of_its_first_delivery(
    make, set_mode, producer, topic, eventually
):
    set_mode("POP")
    log = Log(lambda _: ConsumeResult.LATER)
    with make(log) as consumer:
        send(producer, topic, [b"fails"])
        eventually(lambda: pop_of(consumer).given_back == 1, seconds=10, what="given back")
        (message,) = log.messages
        eventually(
            lambda: message.pop_handle.split(" ")[2] == "10000", seconds=5, what="ten seconds"
        )
        assert pop_of(consumer).acked == 0


def test_a_result_after_the_invisible_time_is_ignored_and_the_message_comes_again(
    make, set_mode, producer, topic, eventually
):
    set_mode("POP")
    box = []

    def too_long_once(message):
        if message.reconsume_times == 0:
            box[0].extend(message, 300)
            time.sleep(0.5)

    log = Log(too_long_once)
    consumer = make(log)
    box.append(consumer)
    with consumer:
        send(producer, topic, [b"again"])
        eventually(lambda: len(log.messages) == 2, seconds=30, what="it came again")
        eventually(lambda: pop_of(consumer).acked == 1, seconds=10, what="acknowledged")
        eventually(lambda: pop_of(consumer).too_late == 1, seconds=5, what="one result ignored")
    first, second = log.messages
    assert (second.body, second.topic, second.reconsume_times) == (b"again", topic, 1)
    assert second.message_id == first.message_id
    assert "1ST_POP_TIME" in second.properties


def test_more_time_keeps_a_message_from_others_and_its_new_receipt_settles_it(
    make, set_mode, producer, topic, eventually
):
    set_mode("POP")
    handles = []
    box = []

    def work(message):
        handles.append(message.pop_handle)
        box[0].extend(message, 60_000)
        handles.append(message.pop_handle)

    log = Log(work)
    consumer = make(log, pop_invisible_ms=5_000)
    box.append(consumer)
    with consumer:
        send(producer, topic, [b"long"])
        eventually(lambda: pop_of(consumer).acked == 1, seconds=10, what="acknowledged")
    assert handles[0] != handles[1]
    assert handles[1].split(" ")[2] == "60000"
    assert log.bodies == [b"long"]


def test_a_group_is_switched_to_pop_and_back_while_it_runs(
    make, set_mode, producer, topic, eventually
):
    log = Log()
    with make(log) as consumer:

        def own():
            return [each for each in consumer.queues() if each.topic == topic]

        eventually(lambda: len(own()) == 4, seconds=10, what="four queues to pull")
        send(producer, topic, numbers(10))
        eventually(lambda: len(log.messages) == 10, seconds=10, what="ten pulled")
        consumer.commit()
        set_mode("POP")
        eventually(
            lambda: not own() and pop_of(consumer).unacked, seconds=10, what="pops instead of pulls"
        )
        send(producer, topic, numbers(10, 10))
        eventually(lambda: len(log.messages) >= 20, seconds=15, what="ten popped")
        eventually(lambda: pop_of(consumer).acked >= 10, seconds=10, what="acknowledged")
        set_mode("PULL")
        eventually(lambda: len(own()) == 4 and not pop_of(consumer).unacked, what="pulls again")
        send(producer, topic, numbers(10, 20))
        eventually(lambda: set(numbers(10, 20)) <= set(log.bodies), seconds=15, what="ten more")
    # At least once: what was popped and what was pulled may overlap at the switch, not be lost.
    assert set(log.bodies) == set(numbers(30))


def test_above_the_limit_nothing_is_popped_and_statistics_say_so(
    make, set_mode, producer, topic, eventually
):
    set_mode("POP")
    go = threading.Event()
    log = Log(lambda _: go.wait(20) and None)
    send(producer, topic, numbers(40))
    with make(log, pop_threshold=8, pop_batch=4) as consumer:
        eventually(lambda: pop_of(consumer).held, seconds=10, what="the limit holds")
        (held,) = pop_of(consumer).held
        assert (held.threshold.value, held.limit, held.queue.queue) == ("messages", 8, -1)
        assert 8 < sum(pop_of(consumer).unacked.values()) <= 12
        go.set()
        eventually(lambda: len(log.messages) == 40, seconds=15, what="all came")
    assert log.bodies == numbers(40)


def test_an_ordered_group_pops_each_queue_in_order_and_waits_after_a_failure(
    make, set_mode, producer, topic, eventually
):
    set_mode("POP")
    tried = []

    def fail_once(message):
        tried.append(message.body)
        if message.body == b"b" and tried.count(b"b") == 1:
            return ConsumeResult.SUSPEND
        return None

    log = Log(fail_once)
    queue = producer.send(Message(topic, b"0")).queue
    for body in (b"a", b"b", b"c"):
        producer.send(Message(topic, body), queue=queue)
    with make(log, is_ordered=True, suspend_ms=200) as consumer:
        eventually(lambda: tried[-1:] == [b"c"], seconds=20, what="the last of the queue")
        eventually(lambda: pop_of(consumer).acked == 4, seconds=10, what="all acknowledged")
    assert tried == [b"0", b"a", b"b", b"b", b"c"]


def test_only_a_popping_consumer_can_give_a_message_more_time(make):
    log = Log()
    with make(log, is_popping=False) as consumer, pytest.raises(StateError, match="does not pop"):
        consumer.extend(None, 1000)
