"""Where groups stand, over restarts and beside other protocols."""

import random

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.group_registry import (
    NO_OFFSET,
    OFFSETS_KIND,
    OffsetRegistry,
    group_name,
    subscription_name,
)
from penstock.engine.host import SubscriptionOptions

GROUP = "readers"


@pytest.fixture
def bench():
    bench = RocketmqBench()
    topic = bench.topic("orders", queues=3)
    channel = bench.channel()
    for queue in topic.queues:
        bench.publish(channel, _Route(queue), *[b"x"] * 10)
    bench.settle()
    return bench


class _Route:
    steps = 1
    is_constant = True

    def __init__(self, queue):
        self.queue = queue

    def targets(self, record):
        return (self.queue,)


def book_of(bench):
    return bench.broker.service(OffsetRegistry)


def queues_of(bench):
    return bench.broker.topics.find("orders").topic.queues


def committed(bench, group=GROUP):
    return [book_of(bench).committed(queue, group) for queue in queues_of(bench)]


def test_names_go_there_and_back():
    assert group_name(subscription_name("g")) == "g"
    assert group_name("g") is None


def test_only_committed_queues_have_an_offset(bench):
    book_of(bench).commit(queues_of(bench)[1], GROUP, 4)
    assert committed(bench) == [NO_OFFSET, 4, NO_OFFSET]


def test_0_is_an_offset(bench):
    book_of(bench).commit(queues_of(bench)[1], GROUP, 0)
    assert committed(bench) == [NO_OFFSET, 0, NO_OFFSET]


@pytest.mark.parametrize("ending", ["stop", "kill", "cut_power"])
def test_offsets_and_their_absence_survive(bench, ending):
    book_of(bench).commit(queues_of(bench)[0], GROUP, 7)
    book_of(bench).commit(queues_of(bench)[1], GROUP, 0)
    bench.settle()
    getattr(bench, ending)()
    assert committed(bench) == [7, 0, NO_OFFSET]


@pytest.mark.parametrize("ending", ["stop", "kill", "cut_power"])
@pytest.mark.parametrize("offset", [0, 4, 10])
def test_any_first_offset_survives(bench, ending, offset):
    """10 is the end, where the subscription is made: nothing moves, and still it is stored."""
    book_of(bench).commit(queues_of(bench)[0], GROUP, offset)
    bench.settle()
    getattr(bench, ending)()
    assert committed(bench) == [offset, NO_OFFSET, NO_OFFSET]


def test_a_kill_never_invents_progress(bench):
    """T22: whatever was not durable may be lost, but an offset is never further than committed."""
    dice = random.Random(22)
    highest = [NO_OFFSET] * 3
    for _ in range(40):
        number = dice.randrange(3)
        offset = dice.randrange(11)
        book_of(bench).commit(queues_of(bench)[number], GROUP, offset)
        highest[number] = max(highest[number], offset)
        step = dice.random()
        if step < 0.4:
            bench.settle()
            durable = committed(bench)
        elif step < 0.6:
            bench.settle()
            durable = committed(bench)
            bench.kill()
            assert committed(bench) == durable
        for seen, most in zip(committed(bench), highest, strict=True):
            assert seen <= most


def test_a_group_holds_no_data_and_is_no_subscription_of_others(bench):
    topic = bench.broker.topics.find("orders").topic
    bench.engine.create_subscription(topic.name, GROUP, SubscriptionOptions())
    book_of(bench).commit(queues_of(bench)[0], GROUP, 5)
    other = topic.subscriptions[GROUP]
    assert other.low_mark(queues_of(bench)[0].queue_id) == 0
    assert not topic.subscriptions[subscription_name(GROUP)].options.holds_data
    assert book_of(bench).groups_of(topic) == [GROUP]
    assert book_of(bench).topics_of(GROUP) == [topic]


def test_an_equal_commit_writes_nothing(bench):
    book_of(bench).commit(queues_of(bench)[0], GROUP, 5)
    bench.settle()
    before = bench.store.end_position
    for _ in range(10):
        book_of(bench).commit(queues_of(bench)[0], GROUP, 5)
        bench.settle()
    assert bench.store.end_position == before


def test_what_is_forgotten_is_forgotten_after_a_restart_too(bench):
    topic = bench.broker.topics.find("orders").topic
    book_of(bench).commit(queues_of(bench)[0], GROUP, 5)
    assert book_of(bench).forget(topic, GROUP)
    assert not book_of(bench).forget(topic, GROUP)
    assert committed(bench) == [NO_OFFSET] * 3
    assert bench.engine.definitions(OFFSETS_KIND) == {}
    bench.settle()
    bench.kill()
    assert committed(bench) == [NO_OFFSET] * 3
    assert bench.engine.definitions(OFFSETS_KIND) == {}


def test_rows_of_a_deleted_topic_are_dropped_at_the_next_start(bench):
    book_of(bench).commit(queues_of(bench)[0], GROUP, 5)
    bench.settle()
    bench.broker.topics.delete("orders")
    bench.settle()
    bench.kill()
    assert bench.engine.definitions(OFFSETS_KIND) == {}


def test_a_topic_made_anew_has_no_offsets(bench):
    book_of(bench).commit(queues_of(bench)[0], GROUP, 5)
    bench.broker.topics.delete("orders")
    bench.settle()
    bench.topic("orders", queues=3)
    assert committed(bench) == [NO_OFFSET] * 3


def test_a_queue_that_is_added_has_no_offset(bench):
    book_of(bench).commit(queues_of(bench)[0], GROUP, 5)
    bench.engine.grow_topic(bench.broker.topics.find("orders").topic.name, 4)
    assert committed(bench) == [5, NO_OFFSET, NO_OFFSET, NO_OFFSET]


def test_a_reset_is_told_once_and_older_commits_do_not_undo_it(bench):
    book, queue = book_of(bench), queues_of(bench)[0]
    book.commit(queue, GROUP, 8)
    assert book.reset(queue, GROUP, 2) == 2
    assert not book.commit(queue, GROUP, 9)
    assert committed(bench)[0] == 2
    assert book.take_reset(queue, GROUP) == 2
    assert book.take_reset(queue, GROUP) is None
    assert book.commit(queue, GROUP, 9)
    assert committed(bench)[0] == 9
