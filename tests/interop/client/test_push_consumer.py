"""The push consumer: listeners, retries, dead letters, batches, hooks, and its life."""

import asyncio
import threading
import time

import pytest

from penstock.client import (
    ConsumeResult,
    GroupTaken,
    Later,
    Message,
    Producer,
    PushConsumer,
    ResultKind,
    State,
    StateError,
)

SOON_MS = 200
"""How often the consumers of these tests persist; nothing waits for it."""


@pytest.fixture
def send(cluster, unique):
    """Send bodies to a topic: ``send(topic, b"a", b"b", tag="x")``."""
    with Producer(cluster.name_server, unique("senders")) as producer:

        def make(topic, *bodies, **message):
            return [producer.send(Message(topic, body, **message)) for body in bodies]

        yield make


@pytest.fixture
def consume(cluster, group):
    """Make a running consumer; all are stopped at the end."""
    made = []

    def make(listener, *topics, **options):
        how = {"consume_from": "first", "persist_interval_ms": SOON_MS, "instance_name": group}
        consumer = PushConsumer(cluster.name_server, group, listener, **(how | options))
        for topic in topics:
            consumer.subscribe(topic)
        consumer.start()
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.stop()


class Received:
    """A listener that remembers what it got, and answers what it is told."""

    def __init__(self, answer=None):
        self.messages, self.answer = [], answer

    def __call__(self, message):
        self.messages.append(message)
        answer = self.answer(message) if callable(self.answer) else self.answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def bodies(self):
        return sorted(message.body for message in self.messages)


def first_only(answer):
    """Answer this to a message that comes for the first time."""
    return lambda message: None if message.reconsume_times else answer


def test_a_function_gets_every_message_once(topic, send, consume, eventually):
    bodies = [b"%03d" % number for number in range(100)]
    send(topic, *bodies[:50], tag="t", keys=["k1", "k2"], properties={"user": "u"})
    got = Received(lambda message: ConsumeResult.SUCCESS)
    consume(got, topic)
    send(topic, *bodies[50:])
    eventually(lambda: len(got.messages) >= 100, what="all came")
    assert got.bodies == bodies
    first = min(got.messages, key=lambda message: message.body)
    assert (first.topic, first.tag, first.keys) == (topic, "t", ("k1", "k2"))
    assert first.properties["user"] == "u"
    assert (first.reconsume_times, first.queue.topic) == (0, topic)


def test_a_coroutine_runs_on_the_event_loop_that_started_it(cluster, topic, group, send):
    async def main():
        loops, bodies, enough = set(), [], asyncio.Event()

        async def listener(message):
            await asyncio.sleep(0)
            loops.add(asyncio.get_running_loop())
            bodies.append(message.body)
            if len(bodies) == 20:
                enough.set()

        consumer = PushConsumer(cluster.name_server, group, listener, consume_from="first")
        await consumer.subscribe_async(topic)
        async with consumer:
            await asyncio.wait_for(enough.wait(), 20)
        assert loops == {asyncio.get_running_loop()}
        assert len(set(bodies)) == 20

    send(topic, *[b"%d" % number for number in range(20)])
    asyncio.run(main())


def test_a_coroutine_of_a_consumer_started_plainly_runs_somewhere_else(
    topic, send, consume, eventually
):
    bodies = []

    async def listener(message):
        await asyncio.sleep(0)
        bodies.append((message.body, threading.current_thread().name))

    consume(listener, topic)
    send(topic, b"x")
    eventually(lambda: bodies, what="it came")
    assert bodies == [(b"x", "penstock-listeners")]


def test_later_comes_again_under_its_own_topic_and_id(topic, send, consume, eventually):
    (sent,) = send(topic, b"again", tag="t")
    got = Received(first_only(Later(delay_level=1)))
    consumer = consume(got, topic)
    eventually(lambda: len(got.messages) == 2, what="it came twice")
    first, second = got.messages
    assert [each.topic for each in got.messages] == [topic, topic]
    assert second.queue.topic.startswith("%RETRY%")
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert first.message_id == second.message_id == sent.message_id
    assert consumer.statistics().topics[topic].sent_back == 1


def test_raising_too_often_makes_a_dead_letter(
    *, cluster, topic, group, send, consume, unique, eventually
):
    send(topic, b"bad", keys="k")
    got = Received(ValueError("no"))
    consume(got, topic, retries_max=0)
    eventually(lambda: got.messages, what="it came")
    dead = Received()
    with PushConsumer(
        cluster.name_server, unique("undertakers"), dead, consume_from="first"
    ) as undertaker:
        undertaker.subscribe(f"%DLQ%{group}")
        eventually(lambda: dead.messages, what="the dead letter came")
    assert (dead.messages[0].body, dead.messages[0].keys) == (b"bad", ("k",))
    assert len(got.messages) == 1


def test_a_message_the_broker_cannot_take_back_goes_to_its_retry_topic_as_a_copy(
    *, cluster, topic, group, send, consume, unique, eventually
):
    """And there, with no retries left, to the dead letters."""

    def listener(message):
        message.stored.commit_log_offset = 1 << 50  # a place where nothing is
        raise ValueError("no")

    (sent,) = send(topic, b"bad", tag="t")
    consume(listener, topic, retries_max=0)
    dead = Received()
    with PushConsumer(
        cluster.name_server, unique("undertakers"), dead, consume_from="first"
    ) as undertaker:
        undertaker.subscribe(f"%DLQ%{group}")
        eventually(lambda: dead.messages, what="the dead letter came")
    (letter,) = dead.messages
    assert (letter.body, letter.tag, letter.message_id) == (b"bad", "t", sent.message_id)
    assert letter.properties["RETRY_TOPIC"] == topic


def test_batches_are_lists_and_part_of_one_may_be_done(topic, send, consume, eventually):
    sizes, again = [], []

    def listener(messages):
        if messages[0].reconsume_times:
            again.extend(message.body for message in messages)
            return None
        sizes.append(len(messages))
        return Later(delay_level=1, done=1) if len(messages) > 1 else None

    send(topic, *[b"%02d" % number for number in range(40)])
    consume(listener, topic, consume_batch=10)
    eventually(lambda: sum(sizes) == 40, what="all came")
    assert 1 < max(sizes) <= 10
    eventually(lambda: len(again) == 40 - len(sizes), what="all but the done ones came again")
    assert len(set(again)) == len(again)


def test_kinds_of_results_reach_hooks_and_statistics(topic, send, consume, eventually):
    class Hook:
        def __init__(self):
            self.seen = []

        def before(self, group, queue, messages):
            return messages[0].body

        def after(self, group, queue, finished, context):
            self.seen.append((context, finished.kind, queue.topic))

    answers = {b"ok": None, b"later": ConsumeResult.LATER, b"raise": ValueError("no")}
    hook = Hook()

    def listener(message):
        if message.body == b"slow":
            time.sleep(0.35)
        answer = answers.get(message.body)
        if isinstance(answer, Exception):
            raise answer
        return answer

    consumer = consume(listener, topic, hooks=[hook], consume_timeout_ms=300)
    send(topic, b"ok", b"later", b"raise", b"slow")
    eventually(lambda: len(hook.seen) == 4, what="four calls ended")
    assert sorted(hook.seen) == sorted(
        [
            (b"ok", ResultKind.SUCCESS, topic),
            (b"later", ResultKind.LATER, topic),
            (b"raise", ResultKind.EXCEPTION, topic),
            (b"slow", ResultKind.TIME_OUT, topic),
        ],
        key=lambda each: each[0],
    )
    eventually(
        lambda: all(consumer.statistics().topics[topic].results[kind] == 1 for kind in ResultKind),
        what="all four are counted",
    )


def test_a_listener_that_takes_too_long_loses_its_message_to_the_broker(
    topic, send, consume, eventually
):
    release = threading.Event()
    consumer = consume(lambda _: release.wait(20) and None, topic, consume_timeout_ms=300)
    send(topic, b"stuck")

    def is_given_back():
        figures = consumer.statistics()
        return topic in figures.topics and figures.topics[topic].sent_back == 1

    eventually(is_given_back, what="it was given back while it runs")
    assert consumer.statistics().cached_messages == 0
    release.set()


def test_a_paused_consumer_gets_nothing_until_it_is_resumed(topic, send, consume, eventually):
    got = Received()
    consumer = consume(got, topic, pull_suspend_ms=200)
    send(topic, b"before")
    eventually(lambda: got.messages, what="the first came")
    consumer.pause()
    paused = time.monotonic()

    def has_looked_since():
        # Apache's broker keeps a pull up to five seconds longer than it was asked to.
        since_ms = (time.monotonic() - paused) * 1000
        return all(each.pulled_ms_ago < since_ms for each in consumer.statistics().queues)

    eventually(has_looked_since, what="the last pull of every queue is over")
    send(topic, b"while")
    assert all(each.is_paused for each in consumer.statistics().queues)
    assert got.bodies == [b"before"]
    consumer.resume()
    eventually(lambda: len(got.messages) == 2, what="the second came")


def test_stopping_waits_for_listeners_and_stores_what_they_did(
    *, cluster, topic, group, send, consume, eventually
):
    entered, release, done = threading.Event(), threading.Event(), []

    def listener(message):
        entered.set()
        assert release.wait(20)
        done.append(message.body)

    send(topic, b"slow")
    consumer = consume(listener, topic)
    assert entered.wait(20)
    stopping = threading.Thread(target=consumer.stop)
    stopping.start()
    release.set()
    stopping.join(20)
    assert done == [b"slow"]
    assert consumer.state is State.STOPPED
    got = Received()
    consume(got, topic, instance_name="next")
    send(topic, b"new")
    eventually(lambda: got.messages, what="the new one came")
    assert got.bodies == [b"new"]


def test_stopping_does_not_wait_longer_than_it_may(topic, send, consume):
    entered, release = threading.Event(), threading.Event()

    def listener(_):
        entered.set()
        release.wait(20)

    send(topic, b"stuck")
    consumer = consume(listener, topic, await_termination_ms=50)
    assert entered.wait(20)
    begun = time.monotonic()
    consumer.stop()
    assert time.monotonic() - begun < 5
    release.set()


def test_wrong_calls_are_said_to_be_wrong(cluster, topic, group, consume):
    consumer = consume(print, topic)
    with pytest.raises(StateError, match="runs already"):
        consumer.start()
    twin = PushConsumer(cluster.name_server, group, print, instance_name=group)
    with pytest.raises(GroupTaken, match=group):
        twin.start()
    assert twin.state is State.FAILED
    consumer.stop()
    consumer.stop()
    with pytest.raises(StateError, match="stopped"):
        consumer.statistics()
    with pytest.raises(StateError, match="make a new one"):
        consumer.start()
    with pytest.raises(TypeError, match="did you mean 'consume_batch'"):
        PushConsumer(cluster.name_server, group, print, consume_batchs=2)
    with pytest.raises(TypeError, match="listener"):
        PushConsumer(cluster.name_server, group, "print")


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_listener_may_stop_its_own_consumer(topic, send, consume, eventually, is_ordered):
    lasted_s = []

    def stop(_):
        began = time.monotonic()
        consumer.stop()
        lasted_s.append(time.monotonic() - began)

    consumer = consume(stop, topic, is_ordered=is_ordered, await_termination_ms=60_000)
    send(topic, b"a")
    eventually(lambda: lasted_s, what="the end of stop()")
    assert lasted_s[0] < 15
    assert consumer.state is State.STOPPED


def test_a_coroutine_listener_may_stop_its_own_consumer(topic, send, consume, eventually):
    lasted_s = []

    async def stop(_):
        began = time.monotonic()
        await consumer.stop_async()
        lasted_s.append(time.monotonic() - began)

    consumer = consume(stop, topic, await_termination_ms=60_000)
    send(topic, b"a")
    eventually(lambda: lasted_s, what="the end of stop_async()")
    assert lasted_s[0] < 15
