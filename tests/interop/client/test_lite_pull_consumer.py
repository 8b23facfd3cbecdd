"""The lite pull consumer: subscribe or assign, poll, seek, pause, commit, iterate."""

import asyncio
import threading
import time

import pytest

from penstock.client import (
    BrokerRefused,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    StateError,
)

FAST = {
    "rebalance_interval_ms": 500,
    "rebalance_spacing_ms": 50,
    "metadata_check_interval_ms": 50,
}


@pytest.fixture
def producer(cluster, unique):
    with Producer(cluster.name_server, unique("producer")) as producer:
        yield producer


@pytest.fixture
def send(producer):
    """Send bodies to one queue."""

    def sender(queue, *bodies, tag=None):
        for body in bodies:
            producer.send(Message(queue.topic, body, tag=tag), queue=queue)

    return sender


@pytest.fixture
def make(cluster, group):
    """Make consumers of the group that begin with the first message."""

    def maker(**options):
        return LitePullConsumer(
            cluster.name_server,
            group,
            **{"consume_from": "first", "instance_name": group, **FAST, **options},
        )

    return maker


def collect(consumer, count, seconds=10):
    """Poll until there are so many bodies."""
    found = []
    until = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < until, f"only {len(found)} of {count} came"
        found += consumer.poll(200)
    return [message.body for message in found]


def numbers(count):
    return [b"%d" % number for number in range(count)]


def test_a_subscribed_topic_is_read_and_what_was_polled_is_stored_at_the_end(make, topic, producer):
    for body in numbers(30):
        producer.send(Message(topic, body))
    with make() as consumer:
        consumer.subscribe(topic)
        assert sorted(collect(consumer, 30)) == sorted(numbers(30))
        assert len(consumer.queues()) == 4
    producer.send(Message(topic, b"later"))
    with make() as consumer:
        consumer.subscribe(topic)
        assert collect(consumer, 1) == [b"later"]


def test_assigned_queues_are_read_and_no_others(make, topic, send):
    with make() as consumer:
        queues = consumer.topic_queues(topic)
        send(queues[1], b"mine")
        send(queues[2], b"not mine")
        consumer.assign([queues[1]])
        assert collect(consumer, 1) == [b"mine"]
        assert consumer.poll(0) == []
        consumer.assign([queues[2]])
        assert collect(consumer, 1) == [b"not mine"]
        assert consumer.queues() == [queues[2]]


def test_one_subscribes_or_assigns_and_never_both(make, topic, unique):
    subscriber, assigned = make(), make()
    subscriber.subscribe(topic)
    with pytest.raises(StateError, match="cannot be assigned"):
        subscriber.assign([])
    assigned.assign([])
    with pytest.raises(StateError, match="cannot subscribe"):
        assigned.subscribe(topic)


def test_members_of_a_group_share_the_queues_and_take_over_from_each_other(
    make, topic, producer, eventually
):
    with make(instance_name="one") as one:
        one.subscribe(topic)
        eventually(lambda: len(one.queues()) == 4, seconds=10, what="all queues")
        with make(instance_name="two") as two:
            two.subscribe(topic)
            eventually(lambda: len(two.queues()) == len(one.queues()) == 2, seconds=10, what="half")
            for body in numbers(20):
                producer.send(Message(topic, body))
            got = []
            eventually(
                lambda: got.extend(one.poll(50) + two.poll(50)) or len(got) == 20,
                seconds=10,
                what="twenty messages",
            )
            assert sorted(each.body for each in got) == sorted(numbers(20))
            two.commit()
        eventually(lambda: len(one.queues()) == 4, seconds=10, what="all queues again")
        assert one.poll(300) == []


def test_seeking_goes_anywhere_and_forgets_what_was_pulled(make, topic, send, eventually):
    with make(is_auto_commit=False) as consumer:
        queue = consumer.topic_queues(topic)[0]
        send(queue, *numbers(25))
        consumer.assign([queue])
        assert collect(consumer, 10) == numbers(10)
        consumer.seek(queue, 20)
        assert consumer.position(queue) == 20
        assert collect(consumer, 5) == numbers(25)[20:]
        consumer.seek_to_begin(queue)
        first = consumer.poll(5000)[0]
        assert first.body == b"0"
        consumer.seek_to_end(queue)
        send(queue, b"new")
        assert collect(consumer, 1) == [b"new"]
        consumer.seek_to_time(queue, first.stored_at_ms)
        assert consumer.poll(5000)[0].body == b"0"
        with pytest.raises(ValueError, match="outside"):
            consumer.seek(queue, 1000)
        with pytest.raises(StateError, match="not read"):
            consumer.seek_to_begin(queue._replace(queue=3))


def test_a_seek_does_not_wait_for_the_pull_that_is_held(make, topic, send):
    with make() as consumer:
        queue = consumer.topic_queues(topic)[0]
        send(queue, b"a")
        consumer.assign([queue])
        assert collect(consumer, 1) == [b"a"]
        begun = time.monotonic()
        consumer.seek_to_begin(queue)
        assert collect(consumer, 1) == [b"a"]
        assert time.monotonic() - begun < 5


def test_a_paused_queue_rests_and_goes_on_where_it_was(make, topic, send):
    with make() as consumer:
        one, two = consumer.topic_queues(topic)[:2]
        consumer.assign([one, two])
        consumer.pause([one])
        send(one, b"a")
        send(two, b"b")
        assert collect(consumer, 1) == [b"b"]
        assert consumer.poll(100) == []
        consumer.resume([one])
        assert collect(consumer, 1) == [b"a"]


def test_without_automatic_commits_only_a_commit_stores(cluster, make, topic, send, group):
    with make(is_auto_commit=False) as consumer:
        queue = consumer.topic_queues(topic)[0]
        send(queue, *numbers(5))
        consumer.assign([queue])
        collect(consumer, 5)
    with PullConsumer(cluster.name_server, group) as other:
        assert not other.committed(queue)
    with make(is_auto_commit=False) as consumer:
        consumer.assign([queue])
        assert [each.body for each in consumer.poll(5000, max_messages=2)] == numbers(2)
        consumer.commit()
        assert consumer.committed(queue) == 2
        consumer.commit({queue: 4})
        assert consumer.committed(queue) == 4
    with make() as consumer:
        consumer.assign([queue])
        assert collect(consumer, 1) == [b"4"]


def test_an_automatic_commit_stores_what_earlier_polls_gave(make, topic, send):
    with make(auto_commit_interval_ms=1000) as consumer:
        queue = consumer.topic_queues(topic)[0]
        send(queue, *numbers(3))
        consumer.assign([queue])
        assert [each.body for each in consumer.poll(5000, max_messages=2)] == numbers(2)
        assert not consumer.committed(queue)
        until = time.monotonic() + 10
        while not consumer.committed(queue):
            assert time.monotonic() < until
            consumer.pause([queue])
            assert consumer.poll(100) == []
        assert consumer.committed(queue) == 2


def test_an_exception_in_the_with_block_stores_earlier_polls_only(make, topic, send):
    consumer = make()

    def work():
        with consumer:
            queue = consumer.topic_queues(topic)[0]
            send(queue, *numbers(4))
            consumer.assign([queue])
            consumer.poll(5000, max_messages=2)
            consumer.poll(5000, max_messages=1)
            raise RuntimeError("work failed")

    with pytest.raises(RuntimeError, match="work failed"):
        work()
    with make() as again:
        again.assign(again.topic_queues(topic)[:1])
        assert collect(again, 2) == numbers(4)[2:]


def test_a_for_loop_gets_messages_one_by_one_and_commits_what_it_gave(make, topic, send):
    with make() as consumer:
        queue = consumer.topic_queues(topic)[0]
        send(queue, *numbers(9))
        consumer.assign([queue])
        seen = []
        for message in consumer:
            seen.append(message.body)
            if len(seen) == 4:
                break
        assert seen == numbers(4)
        assert consumer.position(queue) == 4
    with make() as consumer:
        consumer.assign([queue])
        assert collect(consumer, 5) == numbers(9)[4:]


def test_stopping_from_another_thread_ends_the_loop(make, topic):
    consumer = make(poll_timeout_ms=60_000)
    consumer.subscribe(topic)
    consumer.start()
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(consumer))
    reader.start()
    consumer.stop()
    reader.join(10)
    assert not reader.is_alive()
    assert seen == []


def test_an_async_for_loop_does_the_same(make, topic, send):
    async def reads():
        async with make() as consumer:
            queue = (await consumer.topic_queues_async(topic))[0]
            await asyncio.to_thread(send, queue, *numbers(12))
            await consumer.assign_async([queue])
            seen = []
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 12:
                    break
            return seen

    assert asyncio.run(reads()) == numbers(12)


def test_a_full_cache_is_held_and_statistics_say_by_which_limit_since_when(
    make, topic, send, eventually
):
    with make(pull_threshold_messages=10, pull_batch=4) as consumer:
        queue = consumer.topic_queues(topic)[0]
        send(queue, *numbers(40))
        consumer.assign([queue])
        eventually(lambda: consumer.statistics().held, seconds=10, what="the limit holds")
        figures = consumer.statistics()
        (held,) = figures.held
        assert (held.queue, held.threshold.value, held.limit) == (queue, "messages", 10)
        assert held.held_ms >= 0
        assert 10 < figures.cached_messages <= 14
        assert figures.threshold_episodes["messages"] == 1
        assert figures.queues[0].lag == 40
        assert collect(consumer, 40) == numbers(40)


def test_the_limit_of_all_queues_holds_every_queue(make, topic, producer, eventually):
    for body in numbers(40):
        producer.send(Message(topic, body))
    with make(pull_threshold_all=10, pull_batch=4) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(consumer.statistics().held) == 4, seconds=10, what="all are held")
        assert consumer.statistics().cached_messages <= 10 + 4 * 4
        assert sorted(collect(consumer, 40)) == sorted(numbers(40))


def test_tags_choose_messages(make, topic, send):
    with make() as consumer:
        queue = consumer.topic_queues(topic)[0]
        send(queue, b"a", tag="A")
        send(queue, b"b", tag="B")
        consumer.assign([queue], tags="B")
        assert collect(consumer, 1) == [b"b"]


def test_a_listener_hears_when_a_topic_has_more_queues(cluster, make, topic, eventually):
    heard = []
    with make() as consumer:
        consumer.on_topic_queues_changed(topic, lambda name, queues: heard.append(len(queues)))
        cluster.create_topic(topic, 6)
        eventually(lambda: heard == [6], seconds=40, what="six queues")


def test_broadcasting_gives_every_member_everything(cluster, unique, topic, producer, tmp_path):
    group = unique("group")
    for body in numbers(4):
        producer.send(Message(topic, body))
    for name in ("one", "two"):
        options = {"is_broadcasting": True, "offsets_directory": str(tmp_path), **FAST}
        with LitePullConsumer(
            cluster.name_server, group, consume_from="first", instance_name=name, **options
        ) as consumer:
            consumer.subscribe(topic)
            assert sorted(collect(consumer, 4)) == numbers(4)
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_a_bad_sql_expression_is_refused_and_leaves_the_subscription_as_it_was(
    make, topic, producer
):
    with make() as consumer:
        consumer.subscribe(topic, sql="price > 5")
        with pytest.raises(BrokerRefused):
            consumer.subscribe(topic, sql="price >")
        for price in ("3", "7"):
            producer.send(Message(topic, price.encode(), properties={"price": price}))
        assert collect(consumer, 1) == [b"7"]


def test_a_bad_sql_expression_fails_the_start(make, topic):
    consumer = make()
    consumer.subscribe(topic, sql="price >")
    with pytest.raises(BrokerRefused):
        consumer.start()


def test_other_tags_count_from_the_next_message_on(make, topic, send):
    with make() as consumer:
        queue = consumer.topic_queues(topic)[0]
        consumer.assign([queue], tags="A")
        send(queue, b"a", tag="A")
        assert collect(consumer, 1) == [b"a"]
        consumer.assign([queue], tags="B")
        send(queue, b"b", tag="B")
        assert collect(consumer, 1) == [b"b"]
