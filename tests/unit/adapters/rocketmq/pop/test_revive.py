"""Revival: what was popped and not acknowledged in time comes back in the retry topic."""

import pytest

from kit.rocketmq.bench import Popper, RocketmqBench
from penstock.adapters.rocketmq.pop.service import PopStatistics
from penstock.engine.topic import DirectRoute
from penstock.model.record import neutral_record
from penstock.wire.rocketmq.bodies import TopicConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.properties import value_of

RETRY = "%RETRY%g_orders"


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2))
    return bench


@pytest.fixture
def popper(bench):
    return Popper(bench)


def fill(bench, *bodies, queue=0, **properties):
    client = bench.client()
    for body in bodies:
        assert client.send("orders", body, queue=queue, **properties).code == 0


def test_it_goes_to_queue_0_of_the_retry_topic_with_one_attempt_more(bench, popper):
    fill(bench, b"a", queue=1, TAGS="T", KEYS="k")
    (popped,) = popper.pop(invisible_time=1000).messages
    assert popped.message.reconsume_times == 0
    bench.advance(1000)
    (stored,) = bench.stored(RETRY)
    assert (stored.topic, stored.queue_id, stored.body) == (RETRY, 0, b"a")
    assert stored.reconsume_times == 1
    assert stored.property_map()["TAGS"] == "T"
    assert stored.property_map()["KEYS"] == "k"
    assert stored.born_ms == popped.message.born_ms


def test_the_time_of_the_first_pop_is_kept_over_all_attempts(bench, popper):
    fill(bench, b"a")
    first_ms = bench.clock.wall_ms()
    for attempts in range(1, 4):
        popper.pop(invisible_time=1000)
        bench.advance(1000)
        latest = bench.stored(RETRY)[-1]
        assert latest.reconsume_times == attempts
        assert value_of(latest.properties, "1ST_POP_TIME") == b"%d" % first_ms
    assert len(bench.stored(RETRY)) == 3


def test_a_retry_goes_to_the_end_of_the_same_retry_topic(bench, popper):
    fill(bench, b"a")
    popper.pop(invisible_time=1000)
    bench.advance(1000)
    popper.pop(invisible_time=1000)
    bench.advance(1000)
    assert [each.topic for each in bench.stored(RETRY)] == [RETRY, RETRY]
    names = [topic.name.name for topic in bench.engine.topics()]
    assert [name for name in names if name.startswith("%RETRY%")] == [RETRY]


def test_only_what_is_unacknowledged_comes_back(bench, popper):
    fill(bench, b"a", b"b", b"c")
    first, _, third = popper.pop(invisible_time=1000).messages
    popper.ack(first)
    popper.ack(third)
    bench.advance(1000)
    assert [each.body for each in bench.stored(RETRY)] == [b"b"]


def test_what_is_gone_meanwhile_is_skipped(bench, popper):
    fill(bench, b"a", b"b")
    popper.pop(invisible_time=1000)
    bench.broker.topics.find("orders").topic.queues[0].index.trim(1)
    bench.advance(1000)
    assert [each.body for each in bench.stored(RETRY)] == [b"b"]


def test_a_retry_topic_is_durable_before_a_message_moves_to_it(bench, popper):
    fill(bench, b"a")
    popper.pop(invisible_time=1000)
    bench.settle()
    bench.clock.advance(1000)
    bench.engine.turn()
    assert bench.stored(RETRY) == []
    bench.kill()
    popper = Popper(bench)
    assert popper.pop().bodies == [b"a"]


def test_an_acknowledgement_while_the_retry_topic_is_made_still_counts(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop(invisible_time=1000).messages
    bench.settle()
    bench.clock.advance(1000)
    bench.engine.turn()
    assert popper.ack(popped).code == 0
    bench.settle()
    assert bench.stored(RETRY) == []
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND


def test_the_original_is_settled_in_the_frame_of_the_copy(bench, popper):
    fill(bench, b"first")
    popper.pop(invisible_time=1000)
    bench.advance(1000)
    (first,) = popper.pop().messages
    popper.ack(first)
    fill(bench, b"a")
    popper.pop(invisible_time=1000)
    bench.settle()
    bench.clock.advance(1000)
    frames = bench.store.counters.frames
    bench.engine.turn()
    assert bench.store.counters.frames == frames + 1
    bench.kill()
    popper = Popper(bench)
    (again,) = popper.pop().messages
    assert again.message.topic == RETRY
    assert popper.pop().code == ResponseCode.PULL_NOT_FOUND


def test_before_the_frame_is_written_a_crash_leaves_the_original(bench, popper):
    fill(bench, b"a")
    popper.pop(invisible_time=1000)
    bench.settle()
    bench.clock.advance(1000)
    bench.kill()
    (again,) = Popper(bench).pop().messages
    assert again.message.topic == "orders"


def test_groups_have_their_own_retries(bench, popper):
    fill(bench, b"a")
    other = Popper(bench, group="h")
    popper.pop(invisible_time=1000)
    (popped,) = other.pop(invisible_time=1000).messages
    other.ack(popped)
    bench.advance(1000)
    assert [each.body for each in bench.stored(RETRY)] == [b"a"]
    assert bench.stored("%RETRY%h_orders") == []


def test_without_room_for_a_retry_topic_the_message_goes_back_to_its_place(bench):
    topic = "t" * 127
    group = "g" * 200
    bench.client().send(topic, b"a")
    popper = Popper(bench, topic=topic, group=group)
    popper.pop(invisible_time=1000)
    bench.advance(1000)
    (again,) = popper.pop().messages
    assert (again.body, again.handle.retry_flag) == (b"a", 0)
    assert bench.broker.service(PopStatistics).messages["returned"] == 1


def test_a_hung_consumer_holds_no_queue(bench, popper):
    fill(bench, *[b"%d" % i for i in range(10)])
    popper.pop(messages=2, invisible_time=30_000)
    other = Popper(bench)
    found = other.pop(messages=8)
    assert len(found.messages) == 8
    other.ack_all(found.messages)
    bench.advance(30_000)
    assert sorted(other.pop().bodies) == [b"0", b"1"]


def test_a_deleted_topic_takes_its_retries_along(bench, popper):
    fill(bench, b"a")
    popper.pop(invisible_time=1000)
    bench.advance(1000)
    assert bench.stored(RETRY)
    popper.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert bench.broker.topics.find(RETRY) is None


def test_messages_of_other_protocols_are_popped_and_revived_like_ours(bench, popper):
    topic = bench.broker.topics.find("orders").topic
    bench.publish(
        bench.channel(), DirectRoute(topic.queues[1]), neutral_record(b"theirs", tag=b"T")
    )
    bench.settle()
    (popped,) = popper.pop(invisible_time=1000, exp="T", exp_type="TAG").messages
    assert popped.body == b"theirs"
    assert (popped.message.topic, popped.message.queue_id) == ("orders", 1)
    bench.advance(1000)
    (again,) = popper.pop(exp="T", exp_type="TAG").messages
    assert (again.body, again.message.topic) == (b"theirs", RETRY)
    assert (again.message.reconsume_times, again.message.queue_offset) == (1, 0)
    assert popper.ack(again).code == 0


def test_a_delayed_message_is_popped_under_the_place_it_was_released_to(bench, popper):
    fill(bench, b"now", queue=1)
    fill(bench, b"later", queue=1, DELAY="1")
    popper.ack_all(popper.pop().messages)
    bench.advance(1000)
    (popped,) = popper.pop(invisible_time=1000).messages
    assert (popped.body, popped.message.queue_id, popped.message.queue_offset) == (b"later", 1, 1)
    bench.advance(1000)
    (again,) = popper.pop().messages
    assert (again.body, again.message.topic) == (b"later", RETRY)
    assert popper.ack(again).code == 0
