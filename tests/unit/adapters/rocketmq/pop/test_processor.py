"""POP_MESSAGE: what is handed out, in which order, from where on, and what waits."""

import pytest

from kit.rocketmq.bench import BenchConsumer, Popper, RocketmqBench, is_void
from penstock.adapters.rocketmq.group_registry import GroupRegistry, OffsetRegistry
from penstock.adapters.rocketmq.pop.service import IN_MEMORY_BYTES_MAX
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig, TopicConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode

RETRY = "%RETRY%g_orders"


class Dice:
    """A random source that gives what it is told, then zeros."""

    def __init__(self, *values):
        self.values = list(values)

    def randrange(self, end):
        return self.values.pop(0) % end if self.values else 0


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4))
    bench.broker.random = Dice()
    bench.settle()
    return bench


@pytest.fixture
def popper(bench):
    return Popper(bench)


def fill(bench, *bodies, queue=0, topic="orders", **properties):
    client = bench.client()
    for body in bodies:
        assert client.send(topic, body, queue=queue, **properties).code == 0


def make_late(bench, popper, *bodies):
    """Messages in the retry topic: popped once and never acknowledged."""
    fill(bench, *bodies)
    assert len(popper.pop(invisible_time=1000).messages) == len(bodies)
    bench.advance(1000)


# What a pop gives.


def test_a_pop_gives_messages_with_receipts_and_says_how_many_are_left(bench, popper):
    fill(bench, b"a", b"b", b"c")
    answer = popper.pop(messages=2)
    assert answer.bodies == [b"a", b"b"]
    assert answer.rest == 1
    assert answer.ext["startOffsetInfo"] == "0 0 0"
    assert answer.ext["msgOffsetInfo"] == "0 0 0,1"
    assert answer.ext["popTime"] == str(bench.clock.wall_ms())
    assert answer.ext["invisibleTime"] == "60000"
    assert 0 <= int(answer.ext["reviveQid"]) < 8
    assert "orderCountInfo" not in answer.ext


def test_a_popped_message_is_invisible_to_everybody_of_its_group(bench, popper):
    fill(bench, b"a")
    assert popper.pop().bodies == [b"a"]
    assert Popper(bench).pop().code == ResponseCode.PULL_NOT_FOUND
    assert Popper(bench, group="other").pop().bodies == [b"a"]


def test_a_client_that_goes_keeps_its_messages_invisible_until_their_time_is_up(bench, popper):
    fill(bench, b"a")
    popper.pop(invisible_time=5000)
    popper.close()
    bench.advance(4999)
    assert Popper(bench).pop().code == ResponseCode.PULL_NOT_FOUND
    bench.advance(1)
    assert Popper(bench).pop().bodies == [b"a"]


def test_queue_minus_one_takes_from_all_queues_starting_at_a_random_one(bench, popper):
    for number in range(4):
        fill(bench, b"%d" % number, queue=number)
    bench.broker.random = Dice(2)
    answer = popper.pop()
    assert answer.bodies == [b"2", b"3", b"0", b"1"]
    assert answer.ext["startOffsetInfo"] == "0 2 0;0 3 0;0 0 0;0 1 0"


def test_a_named_queue_gives_only_its_own_messages(bench, popper):
    for number in range(4):
        fill(bench, b"%d" % number, queue=number)
    assert popper.pop(3).bodies == [b"3"]
    assert popper.pop(3).code == ResponseCode.PULL_NOT_FOUND


def test_an_answer_ends_with_the_message_that_reaches_256_kib(bench, popper):
    fill(bench, bytes(300_000), *[bytes(100_000)] * 5)
    assert [len(each) for each in popper.pop().bodies] == [300_000]
    assert [len(each) for each in popper.pop().bodies] == [100_000] * 3
    assert [len(each) for each in popper.pop().bodies] == [100_000] * 2


def test_what_is_not_durable_is_not_popped(bench, popper):
    fill(bench, b"a")
    client = bench.client()
    popper.pop()
    ext = {"producerGroup": "p", "topic": "orders", "queueId": "0", "bornTimestamp": "0",
           "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "sysFlag": "0", "flag": "0",
           "properties": ""}  # fmt: skip
    client.write(RequestCode.SEND_MESSAGE, ext, b"b")
    bench.turns()
    opaque = popper.start_pop()
    bench.turns()
    assert popper.heard(opaque) is None
    bench.settle()
    assert popper.heard(opaque).bodies == [b"b"]


# Where a group begins.


def test_a_new_group_with_init_min_begins_at_the_oldest_message(bench, popper):
    fill(bench, b"a", b"b")
    assert popper.pop(init_mode=0).bodies == [b"a", b"b"]


def test_a_new_group_with_init_max_begins_at_the_first_message_of_a_young_queue(bench, popper):
    fill(bench, b"a", b"b")
    assert popper.pop(init_mode=1).bodies == [b"a", b"b"]


def test_a_new_group_with_init_max_begins_at_the_last_message_of_an_old_queue(
    bench, popper, monkeypatch
):
    monkeypatch.setattr("penstock.adapters.rocketmq.pop.service.IN_MEMORY_BYTES_MAX", 10)
    fill(bench, b"a", b"b", b"c")
    assert IN_MEMORY_BYTES_MAX > 10
    assert popper.pop(0, init_mode=1).bodies == [b"c"]
    queue = bench.broker.topics.find("orders").topic.queues[0]
    assert bench.broker.service(OffsetRegistry).committed(queue, "g") == 2


def test_nothing_is_given_out_before_the_beginning_is_durable(bench, popper):
    fill(bench, b"a")
    first, second = popper.start_pop(messages=1), popper.start_pop(messages=1)
    bench.turns()
    assert popper.heard(first) is None
    assert popper.heard(second) is None
    bench.settle()
    assert popper.heard(first).bodies == [b"a"]
    assert popper.heard(second) is None


def test_the_chosen_beginning_is_stored_at_once_and_survives_a_restart(bench, popper):
    fill(bench, b"a")
    popper.pop(0, init_mode=0)
    bench.settle()
    bench.kill()
    queue = bench.broker.topics.find("orders").topic.queues[0]
    assert bench.broker.service(OffsetRegistry).committed(queue, "g") == 0
    assert Popper(bench).pop(0, init_mode=1).bodies == [b"a"]


def test_a_group_switches_between_pull_and_pop_without_losing_its_place(bench, popper):
    fill(bench, b"a", b"b", b"c", b"d")
    offset = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    BenchConsumer.on(bench).heartbeat("g")
    popper.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "2"})
    first, second = popper.pop(0).messages
    assert [first.body, second.body] == [b"c", b"d"]
    assert popper.ack(first).code == 0
    assert popper.ask(RequestCode.QUERY_CONSUMER_OFFSET, offset).ext["offset"] == "3"
    assert popper.ack(second).code == 0
    assert popper.ask(RequestCode.QUERY_CONSUMER_OFFSET, offset).ext["offset"] == "4"


def test_pops_follow_a_reset_and_pulls_are_not_told_of_it_later(bench, popper):
    fill(bench, b"a", b"b")
    popper.ack_all(popper.pop(0).messages)
    queue = bench.broker.topics.find("orders").topic.queues[0]
    offsets = bench.broker.service(OffsetRegistry)
    offsets.reset(queue, "g", 0)
    popper.ack_all(popper.pop(0).messages)
    assert offsets.take_reset(queue, "g") is None
    assert offsets.committed(queue, "g") == 2


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("offset", [0, 2])
def test_after_a_reset_of_a_queue_the_invisible_come_again_and_old_receipts_are_void(
    bench, popper, order, offset
):
    fill(bench, b"a", b"b", b"c", b"d")
    old = popper.pop(0, order=order).messages
    bench.broker.service(GroupRegistry).find("g")
    ext = {"topic": "orders", "group": "g", "timestamp": "0", "queueId": "0"}
    answer = popper.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**ext, "offset": str(offset)})
    assert answer.code == 0
    again = popper.pop(0, order=order).messages
    assert [each.body for each in again] == [b"a", b"b", b"c", b"d"][offset:]
    assert all(is_void(popper.ack(each)) for each in old)
    queue = bench.broker.topics.find("orders").topic.queues[0]
    assert bench.broker.service(OffsetRegistry).committed(queue, "g") == offset
    popper.ack_all(again)
    assert bench.broker.service(OffsetRegistry).committed(queue, "g") == 4


def test_an_empty_answer_has_the_fields_of_any_other(bench, popper):
    fill(bench, b"a", b"b")
    popper.pop(0, messages=1, order=True)
    answer = popper.pop(0, order=True, invisible_time=7000)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert answer.ext == {
        "popTime": str(bench.clock.wall_ms()),
        "invisibleTime": "7000",
        "reviveQid": "999",
        "restNum": "1",
    }


def test_an_answer_after_waiting_in_vain_has_them_too(bench, popper):
    opaque = popper.start_pop(0)
    bench.advance(15_000)
    answer = popper.heard(opaque)
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert answer.ext["restNum"] == "0"
    assert answer.ext["popTime"] == str(bench.clock.wall_ms())
    assert answer.ext["invisibleTime"] == "60000"
    assert 0 <= int(answer.ext["reviveQid"]) < 8


def test_a_place_that_retention_removed_is_corrected_and_read_again(bench, popper):
    fill(bench, b"a", b"b", b"c")
    popper.pop(0, messages=1)
    queue = bench.broker.topics.find("orders").topic.queues[0]
    queue.index.trim(2)
    assert popper.pop(0).bodies == [b"c"]


# Filters.


def test_a_tag_filter_passes_over_what_it_does_not_want_for_good(bench, popper):
    fill(bench, b"a", TAGS="A")
    fill(bench, b"b", TAGS="B")
    assert popper.pop(exp="B", exp_type="TAG").bodies == [b"b"]
    assert popper.pop(exp="*").code == ResponseCode.PULL_NOT_FOUND


def test_an_sql_filter_sees_the_properties(bench, popper):
    fill(bench, b"a", level="1")
    fill(bench, b"b", level="5")
    assert popper.pop(exp="level > 3", exp_type="SQL92").bodies == [b"b"]


def test_a_pop_that_found_only_filtered_messages_moves_on_until_it_finds_one(bench, popper):
    fill(bench, *[b"x"] * 100, TAGS="A")
    queue = bench.broker.topics.find("orders").topic.queues[0]
    opaque = popper.start_pop(exp="B", exp_type="TAG")
    bench.settle()
    assert popper.heard(opaque) is None
    assert bench.broker.service(OffsetRegistry).committed(queue, "g") == 100
    fill(bench, b"b", TAGS="B")
    assert popper.heard(opaque).bodies == [b"b"]


def test_a_filter_that_cannot_be_read_is_23(bench, popper):
    answer = popper.pop(exp="a >", exp_type="SQL92")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "parse the consumer's subscription failed" in answer.remark


# The retry topic.


def test_retries_come_first_with_a_chance_of_20_percent(bench, popper):
    make_late(bench, popper, b"late")
    fill(bench, b"new")
    bench.broker.random = Dice(0, 19)
    assert popper.pop().bodies == [b"late", b"new"]


def test_else_retries_come_after_the_normal_queues(bench, popper):
    make_late(bench, popper, b"late")
    fill(bench, b"new")
    bench.broker.random = Dice(0, 20)
    answer = popper.pop()
    assert answer.bodies == [b"new", b"late"]
    assert answer.ext["msgOffsetInfo"] == "0 0 1;1 0 0"


def test_retries_only_fill_what_the_normal_queues_left(bench, popper):
    make_late(bench, popper, b"late")
    fill(bench, b"new")
    bench.broker.random = Dice(0, 99)
    answer = popper.pop(messages=1)
    assert answer.bodies == [b"new"]
    assert answer.rest == 1


def test_a_pop_of_one_queue_gets_retries_too(bench, popper):
    make_late(bench, popper, b"late")
    assert popper.pop(3).bodies == [b"late"]


def test_retries_pass_a_filter_that_changed_unless_the_option_says_otherwise(bench, popper):
    make_late(bench, popper, b"late")
    assert popper.pop(exp="B", exp_type="TAG").bodies == [b"late"]


# Checks.


def test_a_topic_that_does_not_exist_is_17(bench):
    answer = Popper(bench, topic="nowhere").pop()
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_queue_out_of_range_is_29(popper):
    assert popper.pop(4).code == ResponseCode.INVALID_PARAMETER
    assert "queueId[4] is illegal" in popper.pop(4).remark


@pytest.mark.parametrize("messages", [0, -1, 33])
def test_more_than_32_messages_or_none_are_refused(popper, messages):
    assert popper.pop(messages=messages).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("invisible_ms", [0, -5, 1 << 60])
def test_an_invisible_time_that_makes_no_sense_is_refused(popper, invisible_ms):
    assert popper.pop(invisible_time=invisible_ms).code == ResponseCode.INVALID_PARAMETER


def test_a_group_that_may_not_consume_is_16(bench, popper):
    config = SubscriptionGroupConfig(group_name="g", consume_enable=False)
    bench.broker.service(GroupRegistry).put(config)
    assert popper.pop().code == ResponseCode.NO_PERMISSION


def test_a_topic_that_may_not_be_read_is_16(bench):
    bench.broker.topics.put(TopicConfig(topic_name="shut", perm=2))
    assert Popper(bench, topic="shut").pop().code == ResponseCode.NO_PERMISSION


def test_a_deleted_topic_takes_its_receipts_and_readers_along(bench, popper):
    fill(bench, b"a")
    (popped,) = popper.pop().messages
    bench.broker.topics.delete("orders")
    bench.settle()
    assert popper.ack(popped).code == ResponseCode.TOPIC_NOT_EXIST
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=1, write_queue_nums=1))
    fill(bench, b"b")
    assert is_void(popper.ack(popped))
    assert popper.pop().bodies == [b"b"]
