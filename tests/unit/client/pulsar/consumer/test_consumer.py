"""The consumer against a broker that is an object: every rule a client has, without sockets."""

import asyncio
import re
import threading

import pytest

from kit.client.pulsar_consumer import TYPES, scene, until
from kit.pulsar_payload import PulsarMessage, single_tail, tail
from penstock.client.pulsar import (
    DeadLetterPolicy,
    InitialPosition,
    InvalidUse,
    JsonSchema,
    MessageId,
    NothingReceived,
    RedeliveryBackoff,
    Refused,
    StateError,
    StringSchema,
    SubscriptionType,
    TimedOut,
    Unreachable,
    Waits,
    WouldBlock,
)
from penstock.client.pulsar.consumer.consumer import NOTICES_MAX
from penstock.client.pulsar.consumer.redelivery import STRAY_MS, STRAY_RETURNS_MAX
from penstock.wire.pulsar import protocol_pb2 as pb
from penstock.wire.pulsar.frames import NO_ID, ServerError

SHARED = {"subscription_type": SubscriptionType.SHARED}
FAILOVER = {"subscription_type": SubscriptionType.FAILOVER}
KEY_SHARED = {"subscription_type": SubscriptionType.KEY_SHARED}
CAUSES = pb.ConsumerWait.Cause
READER = {"is_durable": False, "start_message_id": MessageId.earliest}


def numbers(count, start=0):
    return [b"%d" % each for each in range(start, start + count)]


# ---- before anything is sent --------------------------------------------------------------------


def refused(message, topic="t", name="s", **options):
    @scene
    async def play(bench):
        with pytest.raises((InvalidUse, ValueError, TypeError), match=message):
            await bench.subscribe(topic, name, **options)
        assert bench.broker.subscribes == []

    play()


@pytest.mark.parametrize("topic", ["", "a b", "per://x/y/z", "a/b", "persistent://a/b/", "x y/b/c"])
def test_a_name_that_is_no_topic_is_refused_before_anything_is_sent(topic):
    refused("topic", topic)


@pytest.mark.parametrize("name", ["", "  ", "pulsar.dedup", "pulsar.repl.x"])
def test_a_subscription_needs_a_name_that_pulsar_does_not_keep(name):
    refused("subscription", "t", name)


def test_compacted_reads_are_for_persistent_topics_with_one_active_consumer():
    refused("is_read_compacted", is_read_compacted=True, **SHARED)
    refused("is_read_compacted", "non-persistent://public/default/t", is_read_compacted=True)


def test_a_listener_for_active_changes_is_for_failover_only():
    refused("active_listener", active_listener=print)


@pytest.mark.parametrize("topic", [None, 5, ["a", 5]])
def test_what_is_no_name_at_all_is_refused_with_what_to_give(topic):
    refused("topic", topic)


def test_a_topic_in_bytes_is_no_list_of_topics():
    refused("a consumer needs a topic, .* not b't'", b"t")


def test_a_listener_that_does_not_take_what_it_is_called_with_is_refused_at_once():
    refused(r"listener is called as listener\(consumer, message\)", listener=lambda message: None)
    refused(
        r"active_listener\(consumer, topic, is_active\)",
        active_listener=lambda consumer, is_active: None,
        **FAILOVER,
    )


def test_a_pattern_excludes_names():
    refused("is no name", ["a", re.compile("public/default/b-.*")])


def test_properties_are_text_and_a_schema_is_a_schema():
    refused("properties have 1: 2; names and values are str", properties={1: 2})
    refused("properties .* cannot be UTF-8", properties={"a": "\udc80"})
    refused("subscription_properties have 'a': 2", subscription_properties={"a": 2})
    refused("a schema is .* not 3", schema=3)


def test_other_wrong_options_are_refused_with_what_to_do():
    refused("0..65535", sticky_ranges=[(0, 70_000)], **KEY_SHARED)
    refused("overlap", sticky_ranges=[(0, 10), (10, 20)], **KEY_SHARED)
    refused("key-shared", sticky_ranges=[(0, 10)])
    refused("seek", start_message_id=MessageId.earliest)
    refused("shared", dead_letter_policy=DeadLetterPolicy())
    refused("receiver_queue_size", receiver_queue_sise=3)
    refused("a topic", [])
    refused("a topic", [], is_retry_enabled=True)


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ("redeliveries_max is '3'", {"dead_letter_policy": DeadLetterPolicy(redeliveries_max="3")}),
        ("topic 'a b' is no", {"dead_letter_policy": DeadLetterPolicy(dead_letter_topic="a b")}),
        ("topic 'a b' is no", {"dead_letter_policy": DeadLetterPolicy(retry_letter_topic="a b")}),
        ("subscription", {"dead_letter_policy": DeadLetterPolicy(initial_subscription=" ")}),
        ("min_ms is -5", {"negative_ack_backoff": RedeliveryBackoff(min_ms=-5)}),
        ("max_ms is 10", {"negative_ack_backoff": RedeliveryBackoff(max_ms=10)}),
        ("max_ms is '9'", {"negative_ack_backoff": RedeliveryBackoff(max_ms="9")}),
        ("multiplier is '2'", {"negative_ack_backoff": RedeliveryBackoff(multiplier="2")}),
        ("multiplier is 0.5", {"negative_ack_backoff": RedeliveryBackoff(multiplier=0.5)}),
    ],
)
def test_what_is_wrong_inside_of_an_option_is_refused_too(told, options):
    refused(told, **SHARED, **options)


@pytest.mark.parametrize("ranges", [[5], [("a", "b")], [(1, 2, 3)], ["ab"], [(True, 5)]])
def test_a_sticky_range_is_a_pair_of_numbers(ranges):
    refused("sticky range .* is no pair of hashes", sticky_ranges=ranges, **KEY_SHARED)


@scene
async def test_how_many_and_how_long_are_numbers(bench):
    consumer = await bench.subscribe()
    with pytest.raises(InvalidUse, match="timeout_ms is '5'; milliseconds"):
        consumer.receive("5")
    with pytest.raises(InvalidUse, match="timeout_ms is '5'; milliseconds"):
        await consumer.receive_async("5")
    for given, told in (
        ({"messages_max": -1}, "messages_max is -1; a number from 0 on"),
        ({"messages_max": "1"}, "messages_max is '1'; a number from 0 on"),
        ({"bytes_max": -1}, "bytes_max is -1; a number from 0 on"),
        ({"timeout_ms": "5"}, "timeout_ms is '5'; milliseconds"),
    ):
        with pytest.raises(InvalidUse, match=told):
            consumer.receive_batch(**given)
        with pytest.raises(InvalidUse, match=told):
            await consumer.receive_batch_async(**given)
    assert consumer.receive_batch(0, timeout_ms=0) == []


def test_a_closed_client_subscribes_to_nothing():
    @scene
    async def play(bench):
        await bench.client.close_async()
        with pytest.raises(StateError, match="client of pulsar://broker:6650 is closed; make"):
            await bench.subscribe()
        assert bench.broker.commands == []

    play()


# ---- SUBSCRIBE ----------------------------------------------------------------------------------


@scene
async def test_partitions_are_asked_for_first_and_one_topic_is_one_consumer(bench):
    await bench.subscribe("t")
    kinds = [each.type for each in bench.broker.commands]
    order = [TYPES.PARTITIONED_METADATA, TYPES.LOOKUP, TYPES.SUBSCRIBE, TYPES.FLOW]
    assert [each for each in kinds if each in order] == order
    assert bench.broker.subscribes[0].topic == "persistent://public/default/t"


@scene
async def test_subscribe_says_all_there_is_to_say(bench):
    await bench.subscribe(
        "t",
        "s",
        consumer_name="me",
        priority_level=3,
        initial_position=InitialPosition.EARLIEST,
        properties={"a": "b"},
        subscription_properties={"c": "d"},
        is_replicated=True,
        is_read_compacted=True,
        schema=StringSchema(),
    )
    (said,) = bench.broker.subscribes
    assert (said.subscription, said.consumer_name, said.priority_level) == ("s", "me", 3)
    assert said.durable
    assert not said.HasField("start_message_id")
    assert said.initialPosition == pb.CommandSubscribe.Earliest
    assert (said.metadata[0].key, said.subscription_properties[0].value) == ("a", "d")
    assert said.replicate_subscription_state
    assert said.read_compacted
    assert said.force_topic_creation
    assert said.schema.type == pb.Schema.String
    assert (said.HasField("consumer_epoch"), said.consumer_epoch) == (True, 0)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (SubscriptionType.EXCLUSIVE, pb.CommandSubscribe.Exclusive),
        (SubscriptionType.SHARED, pb.CommandSubscribe.Shared),
        (SubscriptionType.FAILOVER, pb.CommandSubscribe.Failover),
        (SubscriptionType.KEY_SHARED, pb.CommandSubscribe.Key_Shared),
    ],
)
def test_subscribe_says_its_type_and_how_often_all_was_wanted_again(kind, said):
    @scene
    async def play(bench):
        consumer = await bench.subscribe(subscription_type=kind)
        await bench.settle()
        await consumer.redeliver_unacknowledged_async()
        bench.broker.cut()
        await until(lambda: len(bench.broker.subscribes) == 2)
        assert [each.subType for each in bench.broker.subscribes] == [said, said]
        epochs = [each.consumer_epoch for each in bench.broker.subscribes]
        assert epochs == ([0, 0] if kind.is_shared else [0, 1])
        assert bench.broker.subscribes[0].HasField("consumer_epoch") is not kind.is_shared

    play()


@scene
async def test_bytes_send_no_schema_and_key_shared_says_its_ranges(bench):
    await bench.subscribe(sticky_ranges=[(0, 9), (20, 29)], **KEY_SHARED)
    (said,) = bench.broker.subscribes
    assert not said.HasField("schema")
    assert said.keySharedMeta.keySharedMode == pb.STICKY
    assert [(each.start, each.end) for each in said.keySharedMeta.hashRanges] == [(0, 9), (20, 29)]


@scene
async def test_partitions_are_children_of_one_parent(bench):
    bench.broker.partitions["persistent://public/default/t"] = 3
    consumer = await bench.subscribe("t")
    assert [each.topic[-1] for each in bench.broker.subscribes] == ["0", "1", "2"]
    assert [bench.part(consumer, n).partition for n in range(3)] == [0, 1, 2]
    assert len(consumer.topics) == 3


@scene
async def test_children_flow_only_when_all_are_subscribed(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    bench.broker.held.add(TYPES.SUBSCRIBE)
    task = asyncio.ensure_future(bench.subscribe("t", receiver_queue_size=10))
    await until(lambda: len(bench.broker.waiting) == 2)
    (first, last), bench.broker.waiting = bench.broker.waiting, []
    bench.broker._answer(*first)
    await bench.settle(30)
    assert bench.broker.flows == []
    bench.broker._answer(*last)
    await task
    await bench.settle()
    assert bench.broker.flows == [10, 10]


@scene
async def test_a_child_that_comes_back_flows_by_itself(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    consumer = await bench.subscribe("t", receiver_queue_size=10)
    await bench.settle()
    bench.broker.cut()
    await until(lambda: len(bench.broker.subscribes) == 4 and consumer.is_connected)
    await bench.settle()
    assert bench.broker.flows == [10, 10, 10, 10]


@scene
async def test_a_child_that_is_not_durable_does_not_wait_for_the_others(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    bench.broker.held.add(TYPES.SUBSCRIBE)
    task = asyncio.ensure_future(bench.subscribe("t", receiver_queue_size=10, **READER))
    await until(lambda: len(bench.broker.waiting) == 2)
    (first, last), bench.broker.waiting = bench.broker.waiting, []
    bench.broker._answer(*first)
    await until(lambda: bench.broker.flows == [10])
    bench.broker._answer(*last)
    await task
    await bench.settle()
    assert bench.broker.flows == [10, 10]


@scene
async def test_what_is_joined_while_paused_waits_for_resume_too(bench):
    name = "persistent://public/default/t"
    bench.broker.partitions[name] = 1
    consumer = await bench.subscribe("t", pattern_refresh_ms=10, receiver_queue_size=10)
    await bench.settle()
    await consumer.pause_async()
    bench.broker.partitions[name] = 2
    await until(lambda: len(consumer.topics) == 2)
    await bench.settle()
    assert bench.broker.flows == [10]
    await consumer.resume_async()
    await until(lambda: bench.broker.flows == [10, 10])


@scene
async def test_what_is_joined_while_paused_waits_for_resume_also_if_it_is_not_durable(bench):
    name = "persistent://public/default/t"
    bench.broker.partitions[name] = 1
    consumer = await bench.subscribe("t", pattern_refresh_ms=10, receiver_queue_size=10, **READER)
    await bench.settle()
    await consumer.pause_async()
    bench.broker.partitions[name] = 2
    await until(lambda: len(consumer.topics) == 2)
    await bench.settle()
    assert bench.broker.flows == [10]
    await consumer.resume_async()
    await until(lambda: bench.broker.flows == [10, 10])


@scene
async def test_what_is_joined_while_it_is_resumed_begins(bench):
    name = "persistent://public/default/t"
    bench.broker.partitions[name] = 1
    consumer = await bench.subscribe("t", pattern_refresh_ms=10, receiver_queue_size=10)
    await consumer.pause_async()
    bench.broker.held.add(TYPES.SUBSCRIBE)
    bench.broker.partitions[name] = 2
    await until(lambda: bench.broker.waiting)
    await consumer.resume_async()
    bench.broker.release(TYPES.SUBSCRIBE)
    await until(lambda: bench.broker.flows == [10, 10])


@scene
async def test_a_child_whose_first_attempt_was_refused_still_waits_for_its_parent(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    bench.broker.refusals[TYPES.SUBSCRIBE] = [(ServerError.ServiceNotReady, "not yet")]
    await bench.subscribe("t", receiver_queue_size=10)
    await bench.settle()
    kinds = [each.type for each in bench.broker.commands]
    assert len(bench.broker.subscribes) == 3
    assert TYPES.SUBSCRIBE not in kinds[kinds.index(TYPES.FLOW) :]
    assert bench.broker.flows == [10, 10]


@scene
async def test_all_partitions_together_are_no_further_ahead_than_the_total(bench):
    bench.broker.partitions["persistent://public/default/t"] = 4
    await bench.subscribe("t", max_total_receiver_queue_size_across_partitions=40)
    await bench.settle()
    assert bench.broker.flows == [10, 10, 10, 10]


@scene
async def test_partitions_that_come_later_get_what_is_left_of_the_total(bench):
    name = "persistent://public/default/t"
    bench.broker.partitions[name] = 2
    consumer = await bench.subscribe(
        "t",
        pattern_refresh_ms=10,
        receiver_queue_size=15,
        max_total_receiver_queue_size_across_partitions=40,
    )
    bench.broker.partitions[name] = 4
    await until(lambda: len(consumer.topics) == 4)
    await until(lambda: bench.broker.flows == [15, 15, 5, 5])


@scene
async def test_a_queue_of_0_is_for_one_topic_without_partitions(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    with pytest.raises(InvalidUse, match="without partitions"):
        await bench.subscribe("t", receiver_queue_size=0)
    assert bench.broker.subscribes == []


@scene
async def test_one_partition_that_is_refused_leaves_none_behind(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    busy = (ServerError.ConsumerBusy, "Exclusive consumer is already connected")
    bench.broker.refusals[TYPES.SUBSCRIBE] = [busy]
    with pytest.raises(Refused, match="close the other consumer"):
        await bench.subscribe("t")
    assert len(bench.broker.all(TYPES.CLOSE_CONSUMER)) == 1
    assert bench.client._open == {}


@scene
async def test_a_pattern_takes_the_topics_that_match_and_new_ones_later(bench):
    name = "persistent://public/default/"
    bench.broker.topics = [f"{name}orders-1", f"{name}other", f"{name}orders-2-partition-0"]
    consumer = await bench.subscribe(re.compile("public/default/orders-.*"), pattern_refresh_ms=10)
    assert consumer.topics == [f"{name}orders-1", f"{name}orders-2"]
    bench.broker.topics.append(f"{name}orders-3")
    bench.broker.topics.remove(f"{name}orders-1")
    await until(lambda: consumer.topics == [f"{name}orders-2", f"{name}orders-3"])


@scene
async def test_a_pattern_makes_no_topics_and_passes_over_those_that_are_gone(bench):
    name = "persistent://public/default/"
    bench.broker.topics = [f"{name}orders-1", f"{name}orders-2"]
    gone = (ServerError.TopicNotFound, "Topic does not exist")
    bench.broker.refusals[TYPES.SUBSCRIBE] = [gone]
    consumer = await bench.subscribe(re.compile("orders-.*"))
    assert len(consumer.topics) == 1
    assert [each.force_topic_creation for each in bench.broker.subscribes] == [False, False]
    bench.broker.refusals[TYPES.SUBSCRIBE] = [gone]
    with pytest.raises(Refused, match="create the topic"):
        await bench.subscribe("orders-1")


@scene
async def test_partitions_that_are_added_are_joined(bench):
    name = "persistent://public/default/t"
    bench.broker.partitions[name] = 1
    consumer = await bench.subscribe("t", pattern_refresh_ms=10, receiver_queue_size=10)
    bench.broker.partitions[name] = 3
    await until(lambda: len(consumer.topics) == 3)
    await until(lambda: bench.broker.flows == [10, 10, 10])


@scene
async def test_what_a_partition_brings_is_acked_although_others_are_still_being_joined(bench):
    name = "persistent://public/default/t"
    bench.broker.partitions[name] = 1
    consumer = await bench.subscribe("t", pattern_refresh_ms=10, ack_group_ms=0, **READER)
    await bench.settle()
    bench.broker.held.add(TYPES.SUBSCRIBE)
    bench.broker.partitions[name] = 3
    await until(lambda: len(bench.broker.waiting) == 2)
    transport, first = bench.broker.waiting.pop(0)
    bench.broker._answer(transport, first)
    await until(lambda: len(bench.broker.flows) == 2)
    for _ in range(2):
        bench.broker.deliver(b"new", consumer_id=first.subscribe.consumer_id)
    consumer.acknowledge(await consumer.receive_async(5_000))
    await until(lambda: bench.broker.acks == [[(7, 0)]])
    message = await consumer.receive_async(5_000)
    consumer.acknowledge_cumulative(message.message_id)
    await until(lambda: len(bench.broker.acks) == 2)


@scene
async def test_a_topic_that_is_refused_keeps_no_other_from_coming_or_going(bench):
    names = [f"persistent://public/default/o-{n}" for n in range(1, 4)]
    bench.broker.topics = names[:1]
    consumer = await bench.subscribe(re.compile("o-.*"), pattern_refresh_ms=10)
    bench.broker.refused = {names[1]: (ServerError.ConsumerBusy, "busy")}
    bench.broker.topics = names[1:]
    await until(lambda: consumer.topics == names[2:])
    await bench.settle()
    number = bench.part(consumer).consumer_id
    assert bench.broker.all(TYPES.FLOW)[-1].consumer_id == number
    del bench.broker.refused[names[1]]
    await until(lambda: consumer.topics == [names[2], names[1]])


@scene
async def test_a_topic_that_is_silent_keeps_no_other_from_its_flow(bench):
    names = [f"persistent://public/default/o-{n}" for n in range(2)]
    consumer = await bench.subscribe(re.compile("o-.*"), pattern_refresh_ms=10)
    bench.broker.held.add(TYPES.SUBSCRIBE)
    bench.broker.topics = names
    await until(lambda: len(bench.broker.waiting) == 2)
    transport, last = bench.broker.waiting.pop()
    bench.broker._answer(transport, last)
    await until(lambda: bench.broker.flows)
    assert consumer.topics == [last.subscribe.topic]


@scene
async def test_partitions_that_are_joined_while_it_is_closed_are_left_again(bench):
    name = "persistent://public/default/t"
    bench.broker.partitions[name] = 1
    consumer = await bench.subscribe("t", pattern_refresh_ms=10)
    bench.broker.held.add(TYPES.SUBSCRIBE)
    bench.broker.partitions[name] = 2
    await until(lambda: bench.broker.waiting)
    await consumer.close_async()
    assert not bench.broker.transports[0].is_closed
    bench.broker.release(TYPES.SUBSCRIBE)
    await until(lambda: bench.broker.transports[0].is_closed)


@scene
async def test_several_topics_are_received_from_as_one(bench):
    consumer = await bench.subscribe(["a", "b"])
    await bench.settle()
    for number in (0, 1):
        bench.broker.deliver(b"%d" % number, consumer_id=bench.part(consumer, number).consumer_id)
    assert sorted(await bench.receive(consumer, 2)) == [b"0", b"1"]


@scene
async def test_a_refusal_that_may_pass_is_tried_again_and_one_that_does_not_is_told(bench):
    bench.broker.refusals[TYPES.SUBSCRIBE] = [(ServerError.ServiceNotReady, "not yet")] * 3
    await bench.subscribe()
    assert len(bench.broker.subscribes) == 4
    bench.broker.refusals[TYPES.SUBSCRIBE] = [(ServerError.TopicNotFound, "gone")]
    with pytest.raises(Refused, match="create the topic"):
        await bench.subscribe("u")


# ---- permits ------------------------------------------------------------------------------------


@scene
async def test_the_whole_queue_is_granted_after_subscribe(bench):
    await bench.subscribe(receiver_queue_size=100)
    await bench.settle()
    assert bench.broker.flows == [100]


@scene
async def test_permits_gather_until_half_of_the_queue_was_taken(bench):
    consumer = await bench.subscribe(receiver_queue_size=10)
    await bench.settle()
    for body in numbers(10):
        bench.broker.deliver(body)
    await bench.receive(consumer, 4)
    await bench.settle()
    assert bench.broker.flows == [10]
    await bench.receive(consumer, 1)
    await until(lambda: bench.broker.flows == [10, 5])


@scene
async def test_a_batch_counts_by_its_messages(bench):
    consumer = await bench.subscribe(receiver_queue_size=10)
    await bench.settle()
    bench.broker.deliver(*numbers(15))
    await bench.settle()
    assert bench.part(consumer).permits.outstanding == -5
    assert await bench.receive(consumer, 15) == numbers(15)
    await until(lambda: sum(bench.broker.flows) == 25)
    assert bench.part(consumer).permits.outstanding == 10


@scene
async def test_what_is_not_handed_out_gives_its_permits_back(bench):
    consumer = await bench.subscribe(receiver_queue_size=4, **SHARED)
    await bench.settle()
    bench.broker.deliver(*numbers(4), ack_set=[0b0110])
    await until(lambda: len(consumer.inboxes[0]) == 2)
    assert bench.part(consumer).permits.outstanding == 2
    assert await bench.receive(consumer, 2) == [b"1", b"2"]


@scene
async def test_a_queue_of_0_asks_for_one_message_per_receive(bench):
    consumer = await bench.subscribe(receiver_queue_size=0)
    await bench.settle()
    assert bench.broker.flows == []
    waiting = asyncio.ensure_future(consumer.receive_async())
    await until(lambda: bench.broker.flows == [1])
    bench.broker.deliver(b"x")
    assert (await waiting).data == b"x"
    with pytest.raises(NothingReceived):
        await consumer.receive_async(1)
    assert bench.broker.flows == [1, 1]
    bench.broker.deliver(*numbers(3))
    await until(lambda: len(consumer.inboxes[0]) == 3)
    assert await bench.receive(consumer, 3) == numbers(3)
    waiting = asyncio.ensure_future(consumer.receive_async())
    await until(lambda: bench.broker.flows == [1, 1, 3])
    bench.broker.deliver(b"y")
    assert (await waiting).data == b"y"


@scene
async def test_no_flow_while_paused_and_what_gathered_when_resumed(bench):
    consumer = await bench.subscribe(receiver_queue_size=10)
    await bench.settle()
    await consumer.pause_async()
    for body in numbers(10):
        bench.broker.deliver(body)
    await bench.receive(consumer, 10)
    await bench.settle()
    assert bench.broker.flows == [10]
    assert consumer.why().reason is Waits.RESUME
    await consumer.resume_async()
    await bench.settle()
    assert bench.broker.flows == [10, 10]


@scene
async def test_a_queue_of_0_asks_for_nothing_while_paused(bench):
    consumer = await bench.subscribe(receiver_queue_size=0)
    await consumer.pause_async()
    waiting = asyncio.ensure_future(consumer.receive_async())
    await bench.settle()
    assert bench.broker.flows == []
    await consumer.resume_async()
    await until(lambda: bench.broker.flows == [1])
    bench.broker.deliver(b"x")
    assert (await waiting).data == b"x"


@scene
async def test_nothing_is_granted_without_a_connection(bench):
    consumer = await bench.subscribe(receiver_queue_size=4)
    await bench.settle()
    for body in numbers(4):
        bench.broker.deliver(body)
    await bench.settle()
    bench.broker.is_away = True
    bench.broker.cut()
    assert await bench.receive(consumer, 4) == numbers(4)
    await bench.settle()
    assert bench.broker.flows == [4]
    bench.broker.is_away = False
    await until(lambda: len(bench.broker.subscribes) == 2)
    await bench.settle()
    assert bench.broker.flows == [4, 4]


@scene
async def test_reading_stops_when_the_queue_has_too_many_bytes(bench):
    consumer = await bench.subscribe(receiver_queue_bytes_max=100, receiver_queue_size=100)
    await bench.settle()
    for _ in range(5):
        bench.broker.deliver(bytes(30))
        await bench.settle(3)
    transport = bench.broker.transports[-1]
    assert not transport.is_reading
    assert len(consumer.inboxes[0]) == 4
    assert "receiver_queue_bytes_max" in str(consumer.why())
    await bench.receive(consumer, 3)
    await until(lambda: transport.is_reading)
    await bench.receive(consumer, 2)


@scene
async def test_one_that_is_closed_while_its_queue_is_full_keeps_no_other_from_being_read(bench):
    other = await bench.subscribe("other")
    full = await bench.subscribe("full", receiver_queue_bytes_max=1)
    await bench.settle()
    bench.broker.deliver(b"xxx")
    await bench.settle()
    assert not bench.broker.transports[-1].is_reading
    await full.close_async()
    await bench.settle()
    assert bench.broker.transports[-1].is_reading
    bench.broker.deliver(b"y", consumer_id=bench.part(other).consumer_id)
    await until(lambda: len(other.inboxes[0]) == 1)


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.KEY_SHARED])
def test_the_bound_of_bytes_is_of_all_threads_of_a_listener_together(kind):
    @scene
    async def play(bench):
        go = threading.Event()
        await bench.subscribe(
            listener=lambda consumer, message: go.wait(10),
            listener_threads=4,
            receiver_queue_bytes_max=400,
            subscription_type=kind,
        )
        await bench.settle()
        transport = bench.broker.transports[-1]
        try:
            delivered = 0
            while transport.is_reading:
                metadata = pb.MessageMetadata(
                    producer_name="p", sequence_id=0, publish_time=1, partition_key=f"k{delivered}"
                )
                bench.broker.deliver(tail=tail(metadata, bytes(90)))
                delivered += 1
                await bench.settle(3)
            # One of each thread is at work.
            assert 400 <= delivered * 90 <= 400 + 5 * 90
        finally:
            go.set()

    play()


@scene
async def test_who_waits_for_an_answer_is_not_kept_from_it_by_a_full_queue(bench):
    await bench.subscribe("full", receiver_queue_bytes_max=1)
    await bench.settle()
    bench.broker.deliver(b"xxx")
    await bench.settle()
    assert not bench.broker.transports[-1].is_reading
    other = await bench.subscribe("other")
    await bench.settle()
    waiting = asyncio.ensure_future(other.receive_async())
    await until(lambda: bench.broker.transports[-1].is_reading)
    bench.broker.deliver(b"y", consumer_id=bench.part(other).consumer_id)
    assert (await waiting).data == b"y"


# ---- coming back --------------------------------------------------------------------------------


@scene
async def test_after_a_reconnect_permits_begin_anew_and_the_queue_is_empty(bench):
    consumer = await bench.subscribe(receiver_queue_size=10)
    await bench.settle()
    for body in numbers(6):
        bench.broker.deliver(body)
    await bench.receive(consumer, 2)
    bench.broker.cut()
    await until(lambda: len(bench.broker.subscribes) == 2)
    await until(lambda: bench.broker.flows == [10, 10])
    assert len(consumer.inboxes[0]) == 0
    part = bench.part(consumer)
    assert (part.permits.outstanding, part.permits.gathered, part.taken) == (10, 0, 0)
    assert consumer.statistics().reconnects == 1


@scene
async def test_what_came_with_the_end_of_a_consumer_is_not_granted_again_after_it(bench):
    consumer = await bench.subscribe(receiver_queue_size=10)
    await bench.settle()
    number = bench.part(consumer).consumer_id
    with bench.broker.one_read():
        for _ in range(4):
            bench.broker.deliver(tail=single_tail(b"x")[:-1] + b"y")
        bench.broker.say(TYPES.CLOSE_CONSUMER, consumer_id=number, request_id=NO_ID)
    await until(lambda: len(bench.broker.subscribes) == 2)
    await until(lambda: bench.broker.flows == [10, 10])
    for body in numbers(6):
        bench.broker.deliver(body)
    await bench.receive(consumer, 6)
    await bench.settle()
    assert sum(bench.broker.flows[1:]) - 6 <= 10


@scene
async def test_a_durable_subscription_comes_back_without_a_start_id(bench):
    await bench.subscribe()
    await bench.settle()
    bench.broker.deliver(b"x")
    await bench.settle()
    bench.broker.cut()
    await until(lambda: len(bench.broker.subscribes) == 2)
    assert not bench.broker.subscribes[1].HasField("start_message_id")


@scene
async def test_a_durable_subscription_that_was_moved_comes_back_without_a_start_id_too(bench):
    consumer = await bench.subscribe()
    await consumer.seek_async(MessageId(7, 3))
    bench.broker.cut()
    await until(lambda: len(bench.broker.subscribes) == 2)
    assert not bench.broker.subscribes[1].HasField("start_message_id")


@scene
async def test_one_that_is_not_durable_comes_back_with_its_first_message_not_handed_out(bench):
    consumer = await bench.subscribe(**READER)
    await bench.settle()
    bench.broker.deliver(*numbers(3))
    assert await bench.receive(consumer, 1) == [b"0"]
    bench.broker.cut()
    await until(lambda: len(bench.broker.subscribes) == 2)
    start = bench.broker.subscribes[1].start_message_id
    assert (start.ledgerId, start.entryId, start.batch_index) == (7, 0, 1)
    await bench.settle()
    bench.broker.deliver(*numbers(3), entry=0)
    assert await bench.receive(consumer, 2) == [b"1", b"2"]


@scene
async def test_with_an_empty_queue_it_comes_back_behind_the_last_one_handed_out(bench):
    consumer = await bench.subscribe(**READER)
    await bench.settle()
    assert bench.broker.subscribes[0].start_message_id.ledgerId == NO_ID
    bench.broker.deliver(b"0")
    await bench.receive(consumer, 1)
    bench.broker.cut()
    await until(lambda: len(bench.broker.subscribes) == 2)
    assert bench.broker.subscribes[1].start_message_id.entryId == 0
    await bench.settle()
    bench.broker.deliver(b"0", entry=0)
    bench.broker.deliver(b"1", entry=1)
    assert await bench.receive(consumer, 1) == [b"1"]


@scene
async def test_one_that_is_not_durable_and_received_nothing_says_no_more_than_before(bench):
    await bench.subscribe(is_durable=False)
    bench.broker.cut()
    await until(lambda: len(bench.broker.subscribes) == 2)
    assert not bench.broker.subscribes[1].HasField("start_message_id")


@scene
async def test_a_broker_that_closes_the_consumer_gets_it_again(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    bench.broker.say(
        TYPES.CLOSE_CONSUMER, consumer_id=bench.part(consumer).consumer_id, request_id=NO_ID
    )
    await until(lambda: len(bench.broker.subscribes) == 2)
    assert len(bench.broker.transports) == 1
    await until(lambda: consumer.is_connected)


@scene
async def test_failures_to_come_back_are_tried_again_for_ever(bench):
    consumer = await bench.subscribe()
    bench.broker.refusals[TYPES.SUBSCRIBE] = [(ServerError.AuthorizationError, "no")] * 5
    bench.broker.cut()
    await until(lambda: consumer.is_connected)
    assert len(bench.broker.subscribes) == 7


@scene
async def test_a_second_connect_while_one_is_under_way_is_ignored(bench):
    consumer = await bench.subscribe()
    handler = bench.part(consumer).handler
    handler.grab()
    handler.grab()
    await bench.settle()
    assert len(bench.broker.subscribes) == 1
    bench.broker.held.add(TYPES.SUBSCRIBE)
    bench.broker.cut()
    await until(lambda: len(bench.broker.waiting) == 1)
    handler.grab()
    await bench.settle()
    assert len(bench.broker.subscribes) == 2
    bench.broker.release(TYPES.SUBSCRIBE)
    await until(lambda: consumer.is_connected)


@scene
async def test_a_second_connect_while_the_first_looks_for_its_broker_is_ignored(bench):
    consumer = await bench.subscribe()
    bench.broker.held.add(TYPES.LOOKUP)
    bench.broker.cut()
    await until(lambda: bench.broker.waiting)
    bench.part(consumer).handler.grab()
    await bench.settle()
    bench.broker.release(TYPES.LOOKUP)
    await until(lambda: consumer.is_connected)
    await bench.settle()
    assert len(bench.broker.subscribes) == 2


@scene
async def test_one_that_was_closed_does_not_connect_again(bench):
    consumer = await bench.subscribe()
    handler = bench.part(consumer).handler
    await consumer.close_async()
    bench.broker.commands.clear()
    handler.grab()
    await bench.settle()
    assert bench.broker.commands == []


@scene
async def test_closed_while_it_looks_for_its_broker_it_never_subscribes(bench):
    bench.broker.held.add(TYPES.LOOKUP)
    task = asyncio.ensure_future(bench.subscribe())
    await until(lambda: bench.broker.waiting)
    await bench.client.close_async()
    bench.broker.release(TYPES.LOOKUP)
    with pytest.raises(StateError):
        await task
    await bench.settle()
    assert bench.broker.subscribes == []


@scene
async def test_after_a_success_the_first_wait_is_the_shortest_again(bench):
    consumer = await bench.subscribe()
    handler = bench.part(consumer).handler
    assert handler._backoff._stop_ms == 0, "a consumer has no mandatory stop"
    asked = []

    class Noted:
        def next_ms(self):
            asked.append("wait")
            return 1

        def reset(self):
            asked.append("reset")

    handler._backoff = Noted()
    bench.broker.refusals[TYPES.SUBSCRIBE] = [(ServerError.ServiceNotReady, "not yet")]
    bench.broker.cut()
    await until(lambda: consumer.is_connected)
    assert asked == ["wait", "wait", "reset"]


@scene
async def test_a_subscription_that_succeeds_after_close_is_undone(bench):
    bench.broker.held.add(TYPES.SUBSCRIBE)
    consumer = await asyncio.wait_for(_opened_late(bench), 5)
    bench.broker.release(TYPES.SUBSCRIBE)
    await until(lambda: bench.broker.transports[0].is_closed)
    assert bench.broker.flows == []
    assert consumer.handler.state.value == "closed"


async def _opened_late(bench):
    task = asyncio.ensure_future(bench.subscribe())
    await until(lambda: len(bench.broker.waiting) == 1)
    (consumer,) = bench.client._open.values()
    part = bench.broker.transports[-1].connection._consumers[0]
    await part.close()
    with pytest.raises(StateError, match="closed while it was opened"):
        await task
    assert consumer.topics == []
    return part


@scene
async def test_a_subscription_that_takes_too_long_is_not_wanted_any_more(bench):
    bench.broker.held.add(TYPES.SUBSCRIBE)
    opening = asyncio.ensure_future(bench.subscribe())
    await until(lambda: bench.broker.waiting)
    (asked,) = bench.broker.subscribes
    bench.clock.advance(30_000)
    bench.broker.transports[-1].connection._request_timed_out(asked.request_id, 30_000)
    with pytest.raises(TimedOut):
        await opening
    await bench.settle()
    assert [each.consumer_id for each in bench.broker.all(TYPES.CLOSE_CONSUMER)] == [
        asked.consumer_id
    ]


@scene
async def test_closed_by_the_broker_with_the_answer_it_subscribes_again(bench):
    bench.broker.held.add(TYPES.SUBSCRIBE)
    opening = asyncio.ensure_future(bench.subscribe())
    await until(lambda: bench.broker.waiting)
    bench.broker.release(TYPES.SUBSCRIBE)
    number = bench.broker.subscribes[0].consumer_id
    bench.broker.say(TYPES.CLOSE_CONSUMER, consumer_id=number, request_id=NO_ID)
    consumer = await opening
    assert (len(bench.broker.subscribes), bench.broker.flows) == (2, [1_000])
    assert consumer.is_connected


@scene
async def test_subscribe_completes_once_although_it_succeeds_often(bench):
    consumer = await bench.subscribe()
    for count in (2, 3, 4):
        bench.broker.cut()
        bench.broker.held.add(TYPES.SUBSCRIBE)
        await until(lambda: bench.broker.waiting)
        attempt = bench.part(consumer).handler._task
        bench.broker.release(TYPES.SUBSCRIBE)
        # It would raise what a second end of the same future is.
        await attempt
        assert len(bench.broker.subscribes) == count
    assert bench.part(consumer).handler.epoch == 3


@scene
async def test_candidates_for_the_dead_letter_topic_are_forgotten_on_reconnect(bench):
    policy = DeadLetterPolicy(redeliveries_max=1)
    consumer = await bench.subscribe(dead_letter_policy=policy, **SHARED)
    await bench.settle()
    bench.broker.deliver(b"x", redelivery_count=1)
    await bench.settle()
    assert len(bench.part(consumer).letters) == 1
    bench.broker.cut()
    await until(lambda: consumer.is_connected)
    assert len(bench.part(consumer).letters) == 0


@scene
async def test_acks_survive_a_lost_connection_and_what_was_acked_does_not_come_twice(bench):
    consumer = await bench.subscribe(ack_group_ms=600_000, **SHARED)
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await consumer.receive_async()
    await consumer.acknowledge_async(message)
    await bench.settle()
    bench.part(consumer)._look_at_acks()
    before = len(bench.broker.commands)
    bench.broker.on_flow = lambda: bench.broker.acks or bench.broker.deliver(b"x", entry=0)
    bench.broker.held.add(TYPES.SUBSCRIBE)
    bench.broker.cut()
    await until(lambda: bench.broker.waiting)
    bench.broker.release(TYPES.SUBSCRIBE)
    await until(lambda: bench.broker.acks == [[(7, 0)]])
    await bench.settle()
    kinds = [each.type for each in bench.broker.commands[before:]]
    assert kinds[-3:] == [TYPES.SUBSCRIBE, TYPES.ACK, TYPES.FLOW]
    assert len(consumer.inboxes[0]) == 0


@scene
async def test_what_was_acked_while_there_was_no_connection_does_not_come_again(bench):
    consumer = await bench.subscribe(ack_group_ms=600_000, **SHARED)
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await consumer.receive_async()
    bench.broker.on_flow = lambda: bench.broker.acks or bench.broker.deliver(b"x", entry=0)
    bench.broker.held.add(TYPES.SUBSCRIBE)
    bench.broker.cut()
    await until(lambda: bench.broker.waiting)
    consumer.acknowledge(message)
    bench.broker.release(TYPES.SUBSCRIBE)
    await until(lambda: len(bench.broker.flows) == 2)
    await bench.settle()
    assert len(consumer.inboxes[0]) == 0


@scene
async def test_a_batch_acked_before_and_after_the_last_look_is_acked_whole_when_it_comes_back(
    bench,
):
    consumer = await bench.subscribe(ack_group_ms=600_000)
    await bench.settle()
    bench.broker.deliver(*numbers(3))
    first, *others = [await consumer.receive_async() for _ in range(3)]
    consumer.acknowledge(first)
    bench.part(consumer)._look_at_acks()
    consumer.acknowledge(others)
    bench.broker.cut()
    await until(lambda: consumer.statistics().reconnects == 1)
    await until(lambda: bench.broker.acks == [[(7, 0)]])


@scene
async def test_a_batch_that_comes_again_is_handed_out_but_for_what_was_acked_since(bench):
    consumer = await bench.subscribe(ack_group_ms=600_000)
    await bench.settle()
    bench.broker.deliver(*numbers(3))
    one, two, _ = [await consumer.receive_async() for _ in range(3)]
    consumer.acknowledge(one)
    bench.broker.cut()
    await until(lambda: consumer.statistics().reconnects == 1)
    consumer.acknowledge(two)
    bench.part(consumer)._look_at_acks()
    bench.broker.deliver(*numbers(3), entry=0)
    again = [await consumer.receive_async() for _ in range(2)]
    assert [each.data for each in again] == [b"0", b"2"]
    consumer.acknowledge(again)
    bench.part(consumer).flush_acks()
    await until(lambda: bench.broker.acks == [[(7, 0)]])


# ---- acks ---------------------------------------------------------------------------------------


@scene
async def test_acks_are_gathered_and_sent_together(bench):
    consumer = await bench.subscribe(ack_group_ms=5)
    await bench.settle()
    for body in numbers(3):
        bench.broker.deliver(body)
    for _ in range(3):
        consumer.acknowledge(await consumer.receive_async())
    await until(lambda: bench.broker.acks)
    assert bench.broker.acks == [[(7, 0), (7, 1), (7, 2)]]


@scene
async def test_a_group_that_is_full_is_sent_at_once_and_the_rest_when_closed(bench):
    consumer = await bench.subscribe(ack_group_ms=600_000, ack_group_max=2)
    await bench.settle()
    for body in numbers(3):
        bench.broker.deliver(body)
    messages = [await consumer.receive_async() for _ in range(3)]
    consumer.acknowledge(messages[:2])
    await until(lambda: bench.broker.acks == [[(7, 0), (7, 1)]])
    consumer.acknowledge(messages[2])
    await consumer.close_async()
    assert bench.broker.acks[-1] == [(7, 2)]
    kinds = [each.type for each in bench.broker.commands]
    assert kinds.index(TYPES.CLOSE_CONSUMER) > max(n for n, k in enumerate(kinds) if k == TYPES.ACK)


@scene
async def test_what_is_acked_behind_a_full_group_goes_with_it(bench):
    consumer = await bench.subscribe(ack_group_ms=600_000, ack_group_max=2)
    await bench.settle()
    for body in numbers(5):
        bench.broker.deliver(body)
    # On the client's thread: nothing is sent before the last of them is said.
    consumer.acknowledge([await consumer.receive_async() for _ in range(5)])
    await until(lambda: bench.broker.acks)
    assert bench.broker.acks == [[(7, number) for number in range(5)]]


@scene
async def test_acks_of_batches_are_told_apart_however_they_are_mixed(bench):
    consumer = await bench.subscribe(ack_group_ms=600_000, has_batch_index_acks=True)
    await bench.settle()
    bench.broker.deliver(*numbers(3))
    bench.broker.deliver(b"alone")
    bench.broker.deliver(*numbers(3))
    found = [await consumer.receive_async() for _ in range(7)]
    consumer.acknowledge([found[at] for at in (0, 4, 1, 3, 5, 2)])
    await consumer.flush_acks_async()
    (said,) = bench.broker.all(TYPES.ACK)
    assert [(each.entryId, list(each.ack_set)) for each in said.message_id] == [
        (1, []),
        (0, []),
        (2, [0b100]),
    ]


@scene
async def test_receipts_are_waited_for_on_demand(bench):
    consumer = await bench.subscribe(has_ack_receipts=True)
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await consumer.receive_async()
    bench.broker.held.add(TYPES.ACK)
    task = asyncio.ensure_future(consumer.acknowledge_async(message))
    await until(lambda: bench.broker.waiting)
    assert not task.done()
    bench.broker.release(TYPES.ACK)
    await task
    assert bench.broker.all(TYPES.ACK)[0].HasField("request_id")


@scene
async def test_a_receipt_is_of_what_was_sent_before_too(bench):
    consumer = await bench.subscribe(ack_group_ms=0, **SHARED)
    await bench.settle()
    bench.broker.deliver(b"x")
    bench.broker.deliver(b"y")
    consumer.acknowledge([await consumer.receive_async() for _ in range(2)])
    await until(lambda: bench.broker.acks == [[(7, 0), (7, 1)]])
    bench.broker.held.add(TYPES.ACK)
    flushing = asyncio.ensure_future(consumer.flush_acks_async())
    await until(lambda: bench.broker.waiting)
    assert not flushing.done()
    assert bench.broker.acks[1:] == [[(7, 1)]]
    bench.broker.release(TYPES.ACK)
    await flushing
    await consumer.flush_acks_async()
    assert len(bench.broker.acks) == 2, "it has a receipt"


@scene
async def test_a_flush_that_got_no_receipt_is_not_taken_for_one_by_the_next(bench):
    await bench.client.close_async()
    bench.client = bench.make_client(operation_timeout_ms=20)
    consumer = await bench.subscribe(ack_group_ms=600_000)
    await bench.settle()
    for body in numbers(2):
        bench.broker.deliver(body)
    bench.broker.held.add(TYPES.ACK)
    consumer.acknowledge([await consumer.receive_async() for _ in range(2)])
    for _ in range(2):
        with pytest.raises(TimedOut, match="ack by"):
            await consumer.flush_acks_async()
    bench.broker.held.clear()
    await consumer.flush_acks_async()
    assert bench.broker.acks == [[(7, 0), (7, 1)], [(7, 1)], [(7, 1)]]
    await consumer.flush_acks_async()
    assert len(bench.broker.acks) == 3, "it has a receipt"


@scene
async def test_a_receipt_that_is_late_says_nothing_about_another_place(bench):
    await bench.client.close_async()
    bench.client = bench.make_client(operation_timeout_ms=20)
    consumer = await bench.subscribe(ack_group_ms=600_000)
    await bench.settle()
    bench.broker.deliver(b"x")
    consumer.acknowledge(await consumer.receive_async())
    bench.broker.held.add(TYPES.ACK)
    flushing = asyncio.ensure_future(consumer.flush_acks_async())
    await until(lambda: bench.broker.waiting)
    await consumer.seek_async(MessageId.earliest)
    with pytest.raises(TimedOut):
        await flushing
    await consumer.flush_acks_async()
    assert bench.broker.acks == [[(7, 0)]]


@scene
async def test_acks_go_out_also_if_no_receipt_can_be_waited_for(bench):
    await bench.client.close_async()
    bench.client = bench.make_client(unsent_bytes_max=1_000)
    consumer = await bench.subscribe(ack_group_ms=600_000)
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await consumer.receive_async()
    connection = bench.broker.transports[-1].connection
    connection.pause_writing()
    for _ in range(100):
        connection.send(pb.BaseCommand(type=TYPES.PONG, pong=pb.CommandPong()))
    consumer.acknowledge(message)
    with pytest.raises(WouldBlock, match="unsent_bytes_max"):
        await consumer.flush_acks_async()
    connection.resume_writing()
    await until(lambda: bench.broker.acks == [[(7, 0)]])
    await consumer.flush_acks_async()
    assert bench.broker.acks == [[(7, 0)], [(7, 0)]]


@scene
async def test_with_receipts_each_ack_waits_for_its_own_however_it_was_sent(bench):
    consumer = await bench.subscribe(has_ack_receipts=True, ack_group_ms=0)
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await consumer.receive_async()
    bench.broker.held.add(TYPES.ACK)
    task = asyncio.ensure_future(consumer.acknowledge_async(message))
    await until(lambda: any(each[1].ack.HasField("request_id") for each in bench.broker.waiting))
    assert not task.done()
    bench.broker.release(TYPES.ACK)
    await task


@scene
async def test_an_ack_that_leaves_with_another_one_s_waits_for_that_receipt(bench):
    consumer = await bench.subscribe(has_ack_receipts=True, ack_group_ms=600_000)
    await bench.settle()
    bench.broker.deliver(b"x")
    bench.broker.deliver(b"y")
    messages = [await consumer.receive_async() for _ in range(2)]
    bench.broker.held.add(TYPES.ACK)
    tasks = [asyncio.ensure_future(consumer.acknowledge_async(each)) for each in messages]
    await until(lambda: bench.broker.waiting)
    await bench.settle()
    assert [each.done() for each in tasks] == [False, False]
    bench.broker.refusals[TYPES.ACK] = [(ServerError.MetadataError, "no")] * 2
    bench.broker.release(TYPES.ACK)
    for task in tasks:
        with pytest.raises(Refused, match="ack by"):
            await task


@scene
async def test_what_was_acked_before_a_seek_is_not_acked_again_behind_it(bench):
    consumer = await bench.subscribe(ack_group_ms=0, **SHARED)
    await bench.settle()
    bench.broker.deliver(b"x")
    consumer.acknowledge(await consumer.receive_async())
    await until(lambda: bench.broker.acks)
    await consumer.seek_async(MessageId.earliest)
    await consumer.flush_acks_async()
    assert len(bench.broker.acks) == 1


@scene
async def test_cumulative_acks_are_not_for_shared_subscriptions(bench):
    consumer = await bench.subscribe(**SHARED)
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await consumer.receive_async()
    with pytest.raises(InvalidUse, match="use acknowledge"):
        consumer.acknowledge_cumulative(message)


@scene
async def test_a_cumulative_ack_names_the_last_entry(bench):
    consumer = await bench.subscribe(ack_group_ms=0)
    await bench.settle()
    for body in numbers(3):
        bench.broker.deliver(body)
    await bench.receive(consumer, 2)
    consumer.acknowledge_cumulative(await consumer.receive_async())
    await until(lambda: bench.broker.acks == [[(7, 2)]])
    assert bench.broker.all(TYPES.ACK)[0].ack_type == pb.CommandAck.Cumulative


@scene
async def test_an_entry_nobody_can_read_is_acked_with_the_reason(bench):
    consumer = await bench.subscribe(receiver_queue_size=2)
    await bench.settle()
    broken = bytearray(single_tail(b"hello"))
    broken[-1] ^= 1
    bench.broker.deliver(tail=bytes(broken))
    bench.broker.deliver(b"good")
    assert await bench.receive(consumer, 1) == [b"good"]
    (ack,) = bench.broker.all(TYPES.ACK)
    assert ack.validation_error == pb.CommandAck.ChecksumMismatch
    await until(lambda: sum(bench.broker.flows) == 4)


def test_of_entries_that_nobody_can_read_the_first_is_a_warning_and_all_are_counted(caplog):
    @scene
    async def play(bench):
        consumer = await bench.subscribe()
        await bench.settle()
        secret = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        secret.encryption_keys.add(key="k", value=b"v")
        for _ in range(3):
            bench.broker.deliver(tail=single_tail(b"x")[:-1] + b"y")
            bench.broker.deliver(tail=tail(secret, b"x"))
        await bench.settle()
        found = consumer.statistics()
        assert (found.corrupt, found.encrypted) == (3, 3)

    caplog.set_level("DEBUG", logger="penstock.client.pulsar")
    play()
    levels = [each.levelname for each in caplog.records if "entry" in each.message]
    assert sorted(levels) == ["DEBUG"] * 4 + ["WARNING"] * 2


@scene
async def test_what_was_forgotten_or_given_up_is_counted(bench):
    consumer = await bench.subscribe()
    part = bench.part(consumer)
    part.chunks.given_up, part.acks.dropped, part.tracker.dropped = 1, 2, 3
    found = consumer.statistics()
    assert (found.chunked_given_up, found.acks_dropped, found.untracked) == (1, 2, 3)


@scene
async def test_a_batch_that_cannot_be_read_gives_back_what_it_was_charged_once(bench):
    consumer = await bench.subscribe(receiver_queue_size=10)
    await bench.settle()
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=4
    )
    bench.broker.deliver(tail=tail(metadata, b"\x00"))
    metadata.encryption_keys.add(key="k", value=b"v")
    bench.broker.deliver(tail=tail(metadata, b"\x00"))
    await bench.settle()
    permits = bench.part(consumer).permits
    assert permits.outstanding + permits.gathered == 10
    statistics = consumer.statistics()
    assert (statistics.corrupt, statistics.encrypted) == (1, 4)


@scene
async def test_a_message_in_chunks_that_does_not_inflate_is_acked_with_all_of_them(bench):
    await bench.subscribe()
    await bench.settle()
    for number in range(2):
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=0, compression=pb.ZLIB,
            uncompressed_size=9, uuid="u", chunk_id=number, num_chunks_from_msg=2,
        )  # fmt: skip
        bench.broker.deliver(tail=tail(metadata, b"nonsense"))
    await until(lambda: bench.broker.acks == [[(7, 0), (7, 1)]])


@scene
async def test_a_dead_letter_that_cannot_be_sent_is_tried_again(bench):
    policy = DeadLetterPolicy(redeliveries_max=1)
    consumer = await bench.subscribe(
        dead_letter_policy=policy, negative_ack_delay_ms=0, ack_group_ms=0, **SHARED
    )
    tries = []

    async def make(topic, subscription):
        tries.append(topic)
        raise Unreachable(topic, "not today")

    consumer._make_producer = make
    await bench.settle()
    bench.broker.deliver(b"x", redelivery_count=1)
    consumer.negative_acknowledge(await consumer.receive_async())
    await until(lambda: len(tries) == 1)
    part = bench.part(consumer)
    await until(lambda: len(part.negatives) == 1)
    bench.clock.advance(999)
    part._negatives_due()
    assert len(part.negatives) == 1
    bench.clock.advance(1)
    part._negatives_due()
    await until(lambda: len(tries) == 2)
    assert bench.broker.acks == []


@scene
async def test_of_a_batch_of_dead_letters_only_those_that_were_not_sent_are_tried_again(bench):
    policy = DeadLetterPolicy(redeliveries_max=1)
    consumer = await bench.subscribe(
        dead_letter_policy=policy, negative_ack_delay_ms=0, ack_group_ms=0, **SHARED
    )
    buried = []
    refusals = [None, Unreachable("t", "not today"), None, None]

    class Grave:
        async def send_async(self, letter):
            await bench.settle()
            problem = refusals.pop(0)
            if problem is not None:
                raise problem
            buried.append(letter.value)

        async def shut(self): ...

    async def make(topic, subscription):
        return Grave()

    consumer._make_producer = make
    await bench.settle()
    bench.broker.deliver(*numbers(3), redelivery_count=1)
    for _ in range(3):
        message = await consumer.receive_async()
    consumer.negative_acknowledge(message)
    part = bench.part(consumer)
    await until(lambda: len(part.negatives) == 1)
    # What was sent was acked before the rest is tried again.
    part.flush_acks()
    bench.clock.advance(1_000)
    part._negatives_due()
    await until(lambda: bench.broker.acks == [[(7, 0)]])
    assert buried == numbers(3)
    assert consumer.statistics().dead_letters == 3


@scene
async def test_a_dead_letter_that_was_not_sent_before_a_reconnect_is_forgotten(bench):
    policy = DeadLetterPolicy(redeliveries_max=1)
    consumer = await bench.subscribe(dead_letter_policy=policy, negative_ack_delay_ms=0, **SHARED)
    part, gate = bench.part(consumer), asyncio.get_running_loop().create_future()

    async def make(topic, subscription):
        await gate
        raise Unreachable(topic, "not today")

    consumer._make_producer = make
    await bench.settle()
    bench.broker.deliver(b"x", redelivery_count=1)
    consumer.negative_acknowledge(await consumer.receive_async())
    await until(lambda: consumer.letters_under_way)
    bench.broker.cut()
    await until(lambda: consumer.is_connected)
    gate.set_result(None)
    await until(lambda: not consumer.letters_under_way)
    await bench.settle()
    # The broker sends it again by itself.
    assert (len(part.letters), len(part.negatives)) == (0, 0)


# ---- once more ----------------------------------------------------------------------------------


@scene
async def test_a_negative_ack_asks_for_the_entry_again(bench):
    consumer = await bench.subscribe(negative_ack_delay_ms=0, **SHARED)
    await bench.settle()
    bench.broker.deliver(*numbers(3))
    message = await consumer.receive_async()
    consumer.negative_acknowledge(message)
    kind = TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES
    await until(lambda: bench.broker.all(kind))
    assert [each.entryId for each in bench.broker.all(kind)[0].message_ids] == [0]


@scene
async def test_of_a_batch_only_what_was_given_back_comes_again_however_soon_that_is(bench):
    consumer = await bench.subscribe(negative_ack_delay_ms=0, ack_group_ms=600_000, **SHARED)
    await bench.settle()
    bench.broker.deliver(*numbers(3))
    messages = [await consumer.receive_async() for _ in range(3)]
    consumer.acknowledge(messages[:2])
    consumer.negative_acknowledge(messages[2])
    kind = TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES
    await until(lambda: bench.broker.all(kind))
    bench.broker.deliver(*numbers(3), entry=0, redelivery_count=1)
    assert (await consumer.receive_async(5_000)).data == b"2"
    assert len(consumer.inboxes[0]) == 0


@scene
async def test_what_was_given_back_and_acked_after_all_does_not_come_again(bench):
    consumer = await bench.subscribe(negative_ack_delay_ms=5, ack_group_ms=600_000, **SHARED)
    await bench.settle()
    for body in numbers(2):
        bench.broker.deliver(body)
    one, two = [await consumer.receive_async() for _ in range(2)]
    for message in (one, two):
        consumer.negative_acknowledge(message)
    consumer.acknowledge(one)
    await bench.settle()
    bench.clock.advance(10)
    bench.part(consumer)._negatives_due()
    await bench.settle()
    kinds = (TYPES.ACK, TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    told = [each for each in bench.broker.commands if each.type in kinds]
    assert [each.type for each in told] == list(kinds)
    ids = told[1].redeliver_unacknowledged_messages.message_ids
    assert [each.entryId for each in ids] == [1]


@scene
async def test_what_was_given_back_later_and_is_due_earlier_does_not_wait_for_the_other(bench):
    backoff = RedeliveryBackoff(min_ms=1, max_ms=600_000, multiplier=1_000)
    consumer = await bench.subscribe(negative_ack_backoff=backoff, **SHARED)
    await bench.settle()
    bench.broker.deliver(b"a", redelivery_count=5)
    bench.broker.deliver(b"b")
    for _ in range(2):
        consumer.negative_acknowledge(await consumer.receive_async())
    await bench.settle()
    bench.clock.advance(1)
    kind = TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES
    await until(lambda: bench.broker.all(kind))
    assert [each.entryId for each in bench.broker.all(kind)[0].message_ids] == [1]


@scene
async def test_what_is_not_acked_in_time_comes_again(bench):
    consumer = await bench.subscribe(ack_timeout_ms=1_000, ack_timeout_tick_ms=1, **SHARED)
    await bench.settle()
    bench.broker.deliver(b"a")
    bench.broker.deliver(b"b")
    consumer.acknowledge(await consumer.receive_async())
    await consumer.receive_async()
    await until(lambda: consumer.statistics().unacked_tracked == 1)
    bench.clock.advance(1_001)
    kind = TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES
    await until(lambda: bench.broker.all(kind))
    assert [each.entryId for each in bench.broker.all(kind)[0].message_ids] == [1]


@scene
async def test_with_one_active_consumer_a_redelivery_is_of_everything_and_empties_the_queue(bench):
    consumer = await bench.subscribe(receiver_queue_size=4)
    await bench.settle()
    for body in numbers(4):
        bench.broker.deliver(body)
    await bench.receive(consumer, 1)
    await consumer.redeliver_unacknowledged_async()
    (said,) = bench.broker.all(TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert (list(said.message_ids), said.consumer_epoch) == ([], 1)
    assert len(consumer.inboxes[0]) == 0
    bench.broker.deliver(b"old", consumer_epoch=0)
    bench.broker.deliver(b"new", consumer_epoch=1)
    assert await bench.receive(consumer, 1) == [b"new"]


@scene
async def test_a_message_that_came_too_often_is_buried(bench):
    policy = DeadLetterPolicy(redeliveries_max=2, initial_subscription="watch")
    consumer = await bench.subscribe(
        dead_letter_policy=policy, negative_ack_delay_ms=0, ack_group_ms=0, **SHARED
    )
    buried = []

    class Grave:
        def send_async(self, letter):
            buried.append(letter)
            return asyncio.sleep(0)

        async def shut(self):
            buried.append("shut")

    async def make(topic, subscription):
        buried.append((topic, subscription))
        return Grave()

    consumer._make_producer = make
    await bench.settle()
    bench.broker.deliver(b"x", redelivery_count=2)
    consumer.negative_acknowledge(await consumer.receive_async())
    await until(lambda: bench.broker.acks == [[(7, 0)]])
    assert buried[0] == ("persistent://public/default/t-s-DLQ", "watch")
    assert buried[1].properties["REAL_TOPIC"] == "persistent://public/default/t"
    assert buried[1].properties["ORIGIN_MESSAGE_ID"] == "7:0:-1"
    assert bench.broker.all(TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES) == []
    assert consumer.statistics().dead_letters == 1


@scene
async def test_who_came_back_more_often_than_allowed_is_not_handed_out(bench):
    policy = DeadLetterPolicy(redeliveries_max=1)
    consumer = await bench.subscribe(dead_letter_policy=policy, **SHARED)
    consumer.bury = lambda child, messages: None
    await bench.settle()
    bench.broker.deliver(b"x", redelivery_count=2)
    bench.broker.deliver(b"y")
    assert await bench.receive(consumer, 1) == [b"y"]


# ---- moving, and the rest -----------------------------------------------------------------------


@scene
async def test_a_seek_empties_the_queue_and_skips_to_the_place_in_the_batch(bench):
    consumer = await bench.subscribe(is_start_inclusive=True)
    await bench.settle()
    bench.broker.deliver(*numbers(3))
    await bench.settle()
    await consumer.seek_async(MessageId(7, 0, -1, 1, 3))
    assert len(consumer.inboxes[0]) == 0
    (said,) = bench.broker.all(TYPES.SEEK)
    assert (said.message_id.ledgerId, said.message_id.entryId) == (7, 0)
    bench.broker.deliver(*numbers(3), entry=0)
    assert await bench.receive(consumer, 2) == [b"1", b"2"]


@scene
async def test_a_batch_that_was_sought_into_is_acked_when_all_that_came_of_it_is(bench):
    consumer = await bench.subscribe(is_start_inclusive=True, ack_group_ms=0)
    await bench.settle()
    bench.broker.deliver(*numbers(3))
    await bench.settle()
    await consumer.seek_async(MessageId(7, 0, -1, 1, 3))
    bench.broker.deliver(*numbers(3), entry=0)
    one, two = [await consumer.receive_async() for _ in range(2)]
    consumer.acknowledge(one)
    await bench.settle()
    assert bench.broker.acks == []
    consumer.acknowledge(two)
    await until(lambda: bench.broker.acks == [[(7, 0)]])


@pytest.mark.parametrize("bodies", [[b"x"], numbers(3)])
def test_an_entry_of_which_nothing_is_behind_the_place_sought_is_acked(bodies):
    @scene
    async def play(bench):
        consumer = await bench.subscribe(ack_group_ms=0)
        await bench.settle()
        size = len(bodies) if len(bodies) > 1 else 0
        await consumer.seek_async(MessageId(7, 0, -1, size - 1, size))
        bench.broker.deliver(*bodies, entry=0)
        await until(lambda: bench.broker.acks == [[(7, 0)]])
        assert len(consumer.inboxes[0]) == 0

    play()


@scene
async def test_a_batch_of_which_others_acked_a_part_is_acked_with_the_rest(bench):
    consumer = await bench.subscribe(ack_group_ms=0, **SHARED)
    await bench.settle()
    bench.broker.deliver(*numbers(3), ack_set=[0b110])
    consumer.acknowledge([await consumer.receive_async() for _ in range(2)])
    await until(lambda: bench.broker.acks == [[(7, 0)]])


@pytest.mark.parametrize("gone", [{0}, {1, 2}, {0, 1, 2}])
def test_a_batch_of_which_compaction_took_a_part_is_acked_with_the_rest(gone):
    @scene
    async def play(bench):
        consumer = await bench.subscribe(ack_group_ms=0)
        await bench.settle()
        payload = b""
        for number in range(3):
            single = pb.SingleMessageMetadata(payload_size=1, compacted_out=number in gone)
            raw = single.SerializeToString()
            payload += len(raw).to_bytes(4, "big") + raw + b"%d" % number
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=3
        )
        bench.broker.deliver(tail=tail(metadata, payload))
        for _ in range(3 - len(gone)):
            assert bench.broker.acks == []
            consumer.acknowledge(await consumer.receive_async())
        await until(lambda: bench.broker.acks == [[(7, 0)]])

    play()


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("is_reconnected_first", [False, True])
def test_one_that_is_not_durable_goes_where_it_was_moved_whatever_was_in_flight(
    is_taken, is_reconnected_first
):
    @scene
    async def play(bench):
        consumer = await bench.subscribe(**READER)
        await bench.settle()
        for body in numbers(3):
            bench.broker.deliver(body)
        await bench.receive(consumer, 3)
        bench.broker.held.add(TYPES.SEEK)
        seeking = asyncio.ensure_future(consumer.seek_async(MessageId(7, 1)))
        await until(lambda: bench.broker.waiting)
        bench.broker.deliver(b"in flight")
        await bench.settle()
        if is_taken:
            assert consumer.inboxes[0].take().data == b"in flight"
        number = bench.part(consumer).consumer_id
        if is_reconnected_first:
            bench.broker.say(TYPES.CLOSE_CONSUMER, consumer_id=number, request_id=NO_ID)
            await until(lambda: len(bench.broker.subscribes) == 2)
            await bench.settle()
            bench.broker.release(TYPES.SEEK)
        else:
            bench.broker.release(TYPES.SEEK)
            bench.broker.say(TYPES.CLOSE_CONSUMER, consumer_id=number, request_id=NO_ID)
        await seeking
        await until(lambda: len(bench.broker.subscribes) == 2)
        start = bench.broker.subscribes[1].start_message_id
        assert (start.ledgerId, start.entryId) == (7, 1)
        bench.broker.deliver(b"next", entry=2)
        assert (await consumer.receive_async(5_000)).data == b"next"
        bench.broker.cut()
        await until(lambda: len(bench.broker.subscribes) == 3)
        start = bench.broker.subscribes[2].start_message_id
        assert (start.ledgerId, start.entryId) == (7, 2)

    play()


@scene
async def test_what_is_in_flight_while_a_seek_is_refused_is_not_acked(bench):
    consumer = await bench.subscribe(ack_group_ms=0)
    await bench.settle()
    bench.broker.held.add(TYPES.SEEK)
    seeking = asyncio.ensure_future(consumer.seek_async(MessageId(7, 0)))
    await until(lambda: bench.broker.waiting)
    bench.broker.deliver(b"in flight", entry=0)
    await bench.settle()
    bench.broker.refusals[TYPES.SEEK] = [(ServerError.UnknownError, "no")]
    bench.broker.release(TYPES.SEEK)
    with pytest.raises(Refused):
        await seeking
    assert bench.broker.acks == []
    assert (await consumer.receive_async(5_000)).data == b"in flight"


@scene
async def test_what_is_taken_while_a_seek_is_under_way_is_not_waited_for_behind_it(bench):
    consumer = await bench.subscribe(ack_timeout_ms=60_000, **SHARED)
    await bench.settle()
    bench.broker.held.add(TYPES.SEEK)
    seeking = asyncio.ensure_future(consumer.seek_async(MessageId.latest))
    await until(lambda: bench.broker.waiting)
    bench.broker.deliver(b"x")
    assert await bench.receive(consumer, 1) == [b"x"]
    bench.broker.release(TYPES.SEEK)
    await seeking
    assert consumer.statistics().unacked_tracked == 0


@scene
async def test_a_seek_that_is_refused_changes_nothing(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    bench.broker.deliver(b"x")
    await bench.settle()
    bench.broker.refusals[TYPES.SEEK] = [(ServerError.MetadataError, "no")]
    with pytest.raises(Refused):
        await consumer.seek_async(MessageId.latest)
    assert await bench.receive(consumer, 1) == [b"x"]


@scene
async def test_a_seek_that_is_refused_after_a_reconnect_changes_nothing_either(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    bench.broker.held.add(TYPES.SEEK)
    seeking = asyncio.ensure_future(consumer.seek_async(MessageId(7, 0, -1, 1, 3)))
    await until(lambda: bench.broker.waiting)
    number = bench.part(consumer).consumer_id
    bench.broker.say(TYPES.CLOSE_CONSUMER, consumer_id=number, request_id=NO_ID)
    await until(lambda: len(bench.broker.subscribes) == 2)
    await bench.settle()
    bench.broker.refusals[TYPES.SEEK] = [(ServerError.MetadataError, "no")]
    bench.broker.release(TYPES.SEEK)
    with pytest.raises(Refused):
        await seeking
    bench.broker.deliver(*numbers(3), entry=0)
    assert await bench.receive(consumer, 3) == numbers(3)


@scene
async def test_a_seek_that_is_refused_puts_back_what_was_there_before_what_came_meanwhile(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    bench.broker.deliver(b"x")
    await bench.settle()
    bench.broker.held.add(TYPES.SEEK)
    seeking = asyncio.ensure_future(consumer.seek_async(MessageId.latest))
    await until(lambda: bench.broker.waiting)
    bench.broker.deliver(b"y")
    await bench.settle()
    bench.broker.refusals[TYPES.SEEK] = [(ServerError.MetadataError, "no")]
    bench.broker.release(TYPES.SEEK)
    with pytest.raises(Refused):
        await seeking
    assert await bench.receive(consumer, 2) == [b"x", b"y"]


@scene
async def test_a_message_taken_just_when_a_seek_has_succeeded_is_no_place_to_go_on_from(bench):
    consumer = await bench.subscribe(**READER)
    await bench.settle()
    part, taken = bench.part(consumer), []
    bench.broker.held.add(TYPES.SEEK)
    seeking = asyncio.ensure_future(consumer.seek_async(MessageId(7, 50)))
    await until(lambda: bench.broker.waiting)
    bench.broker.deliver(b"of the place before", entry=3)
    await bench.settle()
    go_to = part._go_to

    def go_to_while_another_thread_takes(place):
        go_to(place)
        taking = threading.Thread(target=lambda: taken.append(consumer.inboxes[0].take()))
        taking.start()
        taking.join(0.2)

    part._go_to = go_to_while_another_thread_takes
    bench.broker.release(TYPES.SEEK)
    await seeking
    await until(lambda: taken)
    del part._go_to
    bench.broker.cut()
    await until(lambda: len(bench.broker.subscribes) == 2)
    start = bench.broker.subscribes[-1].start_message_id
    assert (start.ledgerId, start.entryId) == (7, 50)


@scene
async def test_one_that_goes_back_in_time_goes_back_to_that_time_however_late_it_reconnects(bench):
    options = {"is_durable": False, "start_message_id": MessageId.latest}
    consumer = await bench.subscribe(start_rollback_s=60, **options)
    moved = await bench.subscribe(**options)
    await moved.seek_async(bench.clock.wall_ms() - 10_000)
    bench.clock.advance(100_000)
    bench.broker.cut()
    await until(lambda: consumer.is_connected and moved.is_connected)
    said = [each.start_message_rollback_duration_sec for each in bench.broker.subscribes]
    assert said[:2] == [60, 0]
    assert sorted(said[2:]) == [111, 160]


@scene
async def test_a_seek_to_a_time_says_the_time(bench):
    consumer = await bench.subscribe()
    await consumer.seek_async(1_234)
    assert bench.broker.all(TYPES.SEEK)[0].message_publish_time == 1_234


@scene
async def test_the_last_id_of_an_empty_topic_is_none(bench):
    consumer = await bench.subscribe()
    assert await consumer.last_message_id_async() == MessageId(-1, -1)


@scene
async def test_unsubscribe_ends_the_consumer(bench):
    consumer = await bench.subscribe()
    await consumer.unsubscribe_async()
    assert len(bench.broker.all(TYPES.UNSUBSCRIBE)) == 1
    with pytest.raises(StateError, match="closed"):
        await consumer.receive_async()
    assert consumer.why().reason is Waits.CLOSED


@scene
async def test_a_consumer_that_may_not_unsubscribe_goes_on_as_before(bench):
    consumer = await bench.subscribe(ack_group_ms=5, **SHARED)
    await bench.settle()
    bench.broker.deliver(b"x")
    bench.broker.deliver(b"y")
    consumer.acknowledge(await consumer.receive_async())
    await bench.settle()
    bench.broker.refusals[TYPES.UNSUBSCRIBE] = [(ServerError.MetadataError, "others have it")]
    with pytest.raises(Refused, match=r"others have it; close .*unsubscribe\(force=True\)"):
        await consumer.unsubscribe_async()
    consumer.acknowledge(await consumer.receive_async())
    await until(lambda: sum(map(len, bench.broker.acks)) == 2)


@scene
async def test_active_changes_are_told_in_order(bench):
    told = []
    consumer = await bench.subscribe(
        active_listener=lambda it, topic, is_active: told.append(is_active), **FAILOVER
    )
    number = bench.part(consumer).consumer_id
    for is_active in (False, True):
        bench.broker.say(TYPES.ACTIVE_CONSUMER_CHANGE, consumer_id=number, is_active=is_active)
        await bench.settle()
        if not is_active:
            assert consumer.why().reason is Waits.ACTIVE
    await until(lambda: told == [False, True])
    bench.broker.cut()
    await until(lambda: told == [False, True, None])


@scene
async def test_a_slow_listener_for_active_changes_hears_the_last_ones(bench):
    told, gate = [], threading.Event()

    def listener(consumer, topic, is_active):
        gate.wait(10)
        told.append(is_active)

    consumer = await bench.subscribe(active_listener=listener, **FAILOVER)
    part = bench.part(consumer)
    for number in range(NOTICES_MAX + 10):
        consumer.active_changed(part, number)
    gate.set()
    await until(lambda: told and told[-1] == NOTICES_MAX + 9)
    assert NOTICES_MAX <= len(told) <= NOTICES_MAX + 1
    assert told == sorted(told)


@scene
async def test_a_listener_gets_every_message(bench):
    got = []
    consumer = await bench.subscribe(listener=lambda it, message: got.append(message.data))
    await bench.settle()
    for body in numbers(5):
        bench.broker.deliver(body)
    await until(lambda: got == numbers(5))
    with pytest.raises(StateError, match="listener"):
        await consumer.receive_async()


@scene
async def test_threads_of_a_listener_keep_the_order_of_a_key(bench):
    got, hands = {}, {}

    def listener(consumer, message):
        got.setdefault(message.key, []).append(int(message.data))
        hands.setdefault(message.key, set()).add(threading.get_ident())

    await bench.subscribe(listener=listener, listener_threads=4, **KEY_SHARED)
    await bench.settle()
    for number in range(200):
        keyed = PulsarMessage(b"%d" % number, key=f"k{number % 9}")
        bench.broker.deliver(tail=single_tail(keyed))
    await until(lambda: sum(map(len, got.values())) == 200)
    assert all(each == sorted(each) for each in got.values())
    assert all(len(each) == 1 for each in hands.values())
    assert len(set().union(*hands.values())) > 1


@scene
async def test_a_key_that_only_says_that_it_is_base64_goes_to_a_thread_of_its_own(bench):
    heard = []
    await bench.subscribe(
        listener=lambda consumer, message: heard.append(message.key),
        listener_threads=2,
        **KEY_SHARED,
    )
    await bench.settle()
    said = PulsarMessage(b"x", key="a")
    bench.broker.deliver(tail=single_tail(said, partition_key_b64_encoded=True))
    await until(lambda: heard == ["a"])
    assert len(bench.broker.transports) == 1


@scene
async def test_a_listener_that_fails_gets_the_next_message(bench):
    got = []

    def listener(consumer, message):
        got.append(message.data)
        raise ValueError("not this one")

    await bench.subscribe(listener=listener)
    await bench.settle()
    for body in numbers(3):
        bench.broker.deliver(body)
    await until(lambda: got == numbers(3))
    assert bench.broker.acks == []


@scene
async def test_a_listener_at_work_while_it_is_closed_can_ack_its_message(bench):
    begun, go, ended = threading.Event(), threading.Event(), []

    def listener(consumer, message):
        begun.set()
        go.wait(10)
        consumer.acknowledge(message)
        ended.append(message.data)

    consumer = await bench.subscribe(listener=listener)
    await bench.settle()
    for body in numbers(2):
        bench.broker.deliver(body)
    await until(begun.is_set)
    closing = asyncio.ensure_future(asyncio.to_thread(consumer.close))
    await until(lambda: consumer.inboxes[0].closed_why is not None)
    assert not closing.done()
    go.set()
    await closing
    assert ended == [b"0"]
    assert bench.broker.acks == [[(7, 0)]]
    kinds = [each.type for each in bench.broker.commands]
    assert kinds.index(TYPES.ACK) < kinds.index(TYPES.CLOSE_CONSUMER)


@scene
async def test_a_listener_may_close_its_consumer(bench):
    closed = threading.Event()

    def listener(consumer, message):
        consumer.acknowledge(message)
        consumer.close()
        closed.set()

    await bench.subscribe(listener=listener)
    await bench.settle()
    bench.broker.deliver(b"x")
    await until(closed.is_set)
    assert bench.broker.acks == [[(7, 0)]]


@scene
async def test_listeners_may_close_each_other_s_consumers(bench):
    together, closed, consumers = threading.Barrier(2, timeout=5), [], []

    def listener(consumer, message):
        together.wait()
        for each in consumers:
            if each is not consumer:
                each.close()
        closed.append(message.data)

    for name in ("a", "b"):
        consumers.append(await bench.subscribe("t", name, listener=listener))
        await bench.settle()
        bench.broker.deliver(b"x")
    await until(lambda: len(closed) == 2)


@scene
async def test_a_batch_is_received_when_it_is_full_or_time_is_up(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    for body in numbers(5):
        bench.broker.deliver(body)
    found = await consumer.receive_batch_async(3, timeout_ms=5_000)
    assert [each.data for each in found] == numbers(3)
    found = await consumer.receive_batch_async(timeout_ms=20)
    assert [each.data for each in found] == [b"3", b"4"]
    assert await consumer.receive_batch_async(timeout_ms=1) == []


@scene
async def test_a_message_in_chunks_is_one_message_and_acked_with_all_of_them(bench):
    consumer = await bench.subscribe(ack_group_ms=0)
    await bench.settle()
    for number in range(3):
        part = single_tail(
            b"part%d" % number, uuid="u", chunk_id=number, num_chunks_from_msg=3,
            total_chunk_msg_size=15,
        )  # fmt: skip
        bench.broker.deliver(tail=part)
    message = await consumer.receive_async()
    assert message.data == b"part0part1part2"
    assert (message.message_id.entry, message.message_id.first_chunk.entry) == ((7, 2), (7, 0))
    consumer.acknowledge(message)
    await until(lambda: bench.broker.acks == [[(7, 0), (7, 1), (7, 2)]])


def chunk(number, count=2):
    return single_tail(
        b"part%d" % number, uuid="u", chunk_id=number, num_chunks_from_msg=count,
        total_chunk_msg_size=5 * count,
    )  # fmt: skip


@scene
async def test_chunks_of_a_shared_subscription_that_come_out_of_order_are_asked_for_again(
    bench,
):
    consumer = await bench.subscribe(**SHARED)
    part = bench.part(consumer)
    await bench.settle()
    bench.broker.deliver(tail=chunk(1), entry=1)
    bench.broker.deliver(tail=chunk(0), entry=0)
    await bench.settle()
    bench.clock.advance(STRAY_MS - 1)
    part._negatives_due()
    kind = TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES
    assert bench.broker.all(kind) == []
    bench.clock.advance(1)
    part._negatives_due()
    await bench.settle()
    assert [each.entryId for each in bench.broker.all(kind)[0].message_ids] == [1]
    bench.broker.deliver(tail=chunk(1), entry=1, redelivery_count=1)
    assert await bench.receive(consumer, 1) == [b"part0part1"]


@scene
async def test_a_chunk_that_comes_too_soon_does_not_take_the_beginning_away(bench):
    consumer = await bench.subscribe(**SHARED)
    await bench.settle()
    bench.broker.deliver(tail=chunk(0, 3), entry=0)
    bench.broker.deliver(tail=chunk(2, 3), entry=2)
    await bench.settle()
    bench.clock.advance(STRAY_MS)
    bench.part(consumer)._negatives_due()
    await bench.settle()
    (said,) = bench.broker.all(TYPES.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert [each.entryId for each in said.message_ids] == [2]
    bench.broker.deliver(tail=chunk(1, 3), entry=1)
    bench.broker.deliver(tail=chunk(2, 3), entry=2, redelivery_count=1)
    assert await bench.receive(consumer, 1) == [b"part0part1part2"]


@scene
async def test_a_chunk_whose_message_has_no_beginning_is_not_asked_for_without_end(bench):
    consumer = await bench.subscribe(**SHARED)
    await bench.settle()
    bench.broker.deliver(tail=chunk(1), entry=1, redelivery_count=STRAY_RETURNS_MAX)
    await bench.settle()
    assert len(bench.part(consumer).negatives) == 0


@scene
async def test_with_one_active_consumer_chunks_come_in_order_and_none_is_asked_for(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    bench.broker.deliver(tail=chunk(1), entry=1)
    await bench.settle()
    assert len(bench.part(consumer).negatives) == 0


@scene
async def test_chunks_that_were_stored_twice_are_acked_and_give_their_permits_back(bench):
    consumer = await bench.subscribe(ack_group_ms=0, receiver_queue_size=4)
    await bench.settle()
    for number in (0, 0, 1, 1):
        part = single_tail(
            b"part%d" % number, uuid="u", chunk_id=number, num_chunks_from_msg=2,
            total_chunk_msg_size=10,
        )  # fmt: skip
        bench.broker.deliver(tail=part)
    message = await consumer.receive_async()
    assert message.data == b"part0part1"
    await until(lambda: [each for ids in bench.broker.acks for each in ids] == [(7, 1), (7, 3)])
    assert bench.broker.flows == [4, 2]
    consumer.acknowledge(message)
    await until(lambda: bench.broker.acks[-1] == [(7, 0), (7, 2)])


@scene
async def test_values_are_what_the_schema_makes_of_them(bench):
    consumer = await bench.subscribe("t", "s", schema=JsonSchema())
    await bench.settle()
    bench.broker.deliver(b'{"a": 1}')
    assert (await consumer.receive_async()).value == {"a": 1}


@scene
async def test_why_says_what_is_waited_for(bench):
    consumer = await bench.subscribe(receiver_queue_size=2)
    await bench.settle()
    assert consumer.why().reason is Waits.MESSAGES
    for body in numbers(2):
        bench.broker.deliver(body)
    await bench.settle()
    assert "permits are out" in str(consumer.why())
    assert "permits are out" in str(consumer)
    assert "permits are out" in repr(consumer)
    assert consumer.statistics().why.reason is Waits.APPLICATION
    bench.broker.is_away = True
    bench.broker.cut()
    assert consumer.why().reason is Waits.CONNECTION
    assert "reconnecting since" in str(consumer.why())
    bench.broker.is_away = False


def said(waits):
    return [(CAUSES.Name(each.cause), each.waiting, each.limit) for each in waits]


@scene
async def test_penstock_hears_that_the_application_takes_nothing_and_that_it_does_again(bench):
    bench.broker.version = "Penstock 1"
    consumer = await bench.subscribe(receiver_queue_size=4)
    await bench.settle()
    for body in numbers(4):
        bench.broker.deliver(body)
    await bench.settle()
    (told,) = await bench.look()
    assert said([told]) == [("NOT_RECEIVED", 4, 4)]
    assert (told.consumer_id, told.lasted_ms) == (bench.part(consumer).consumer_id, 1_000)
    assert await bench.look(10) == [], "the broker counts on by itself"
    await bench.receive(consumer, 1)
    (told,) = await bench.look(1)
    assert (said([told]), told.lasted_ms) == ([("NOT_RECEIVED", 3, 4)], 0)
    consumer.acknowledge([await consumer.receive_async() for _ in range(3)])
    assert said(await bench.look(1)) == [("NOTHING", 0, 0)]


@scene
async def test_an_application_that_takes_nothing_is_told_of_while_the_broker_may_send_more(bench):
    bench.broker.version = "Penstock 1"
    await bench.subscribe(receiver_queue_size=10)
    await bench.settle()
    bench.broker.deliver(b"x")
    await bench.settle()
    assert said(await bench.look(3)) == [("NOT_RECEIVED", 1, 10)]


@scene
async def test_another_broker_than_penstock_never_hears_of_it(bench):
    consumer = await bench.subscribe(receiver_queue_size=4)
    await bench.settle()
    for body in numbers(4):
        bench.broker.deliver(body)
    await consumer.pause_async()
    assert await bench.look(5) == []
    assert bench.broker.all(TYPES.PING) == []


@scene
async def test_penstock_hears_of_a_pause_and_of_its_end(bench):
    bench.broker.version = "Penstock 1"
    consumer = await bench.subscribe()
    await consumer.pause_async()
    assert said(await bench.look(3)) == [("PAUSED", 0, 0)]
    await consumer.resume_async()
    assert said(await bench.look(3)) == [("NOTHING", 0, 0)]


@scene
async def test_penstock_hears_again_on_a_new_connection(bench):
    bench.broker.version = "Penstock 1"
    consumer = await bench.subscribe()
    await consumer.pause_async()
    assert said(await bench.look()) == [("PAUSED", 0, 0)]
    bench.broker.cut()
    await until(lambda: consumer.is_connected)
    assert said(await bench.look()) == [("PAUSED", 0, 0)]


@scene
async def test_penstock_hears_of_what_the_application_has_and_does_not_ack(bench):
    bench.broker.version = "Penstock 1"
    consumer = await bench.subscribe(**SHARED)
    await bench.settle()
    for body in numbers(3):
        bench.broker.deliver(body)
    await bench.receive(consumer, 3)
    assert said(await bench.look(4)) == [("UNACKED", 0, 0)]


@scene
async def test_penstock_hears_of_a_queue_that_has_all_its_bytes(bench):
    bench.broker.version = "Penstock 1"
    await bench.subscribe(receiver_queue_bytes_max=100, receiver_queue_size=100)
    await bench.settle()
    for _ in range(4):
        bench.broker.deliver(bytes(30))
    await bench.settle()
    assert said(await bench.look()) == [("QUEUE_BYTES", 4, 100)]


@scene
async def test_penstock_hears_that_a_queue_of_0_is_not_asked_for_anything(bench):
    bench.broker.version = "Penstock 1"
    await bench.subscribe(receiver_queue_size=0)
    await bench.settle()
    assert said(await bench.look(3)) == [("NOT_RECEIVED", 0, 0)]


@scene
async def test_penstock_hears_of_a_busy_listener(bench):
    bench.broker.version = "Penstock 1"
    begun, go_on = threading.Event(), threading.Event()

    def listener(consumer, message):
        begun.set()
        go_on.wait(10)

    await bench.subscribe(receiver_queue_size=3, listener=listener)
    await bench.settle()
    for body in numbers(3):
        bench.broker.deliver(body)
    try:
        await until(begun.is_set)
        assert said(await bench.look(3)) == [("LISTENERS", 2, 1)]
    finally:
        go_on.set()


@scene
async def test_penstock_hears_of_letters_that_get_no_receipt(bench):
    bench.broker.version = "Penstock 1"
    policy = DeadLetterPolicy(redeliveries_max=1)
    consumer = await bench.subscribe(**SHARED, is_retry_enabled=True, dead_letter_policy=policy)
    await bench.settle()
    bench.broker.deliver(b"x", consumer_id=bench.broker.subscribes[0].consumer_id)
    message = await consumer.receive_async()
    bench.broker.held.add(TYPES.PRODUCER)
    task = asyncio.ensure_future(consumer.reconsume_later_async(message, 1_000))
    await until(lambda: consumer.letters_under_way)
    assert {cause for cause, _, _ in said(await bench.look())} == {"LETTERS"}
    task.cancel()


@scene
async def test_consumers_of_which_nothing_is_to_be_said_are_not_looked_at(bench):
    bench.broker.version = "Penstock 1"
    consumer = await bench.subscribe()
    await bench.look(1)
    connection = bench.broker.transports[-1].connection
    assert not connection._watched
    bench.broker.deliver(b"x")
    await bench.settle()
    assert connection._watched
    consumer.acknowledge(await consumer.receive_async())
    await until(lambda: bench.broker.acks)
    await bench.look(1)
    assert not connection._watched


@scene
async def test_one_that_acks_everything_at_once_now_and_then_is_not_looked_at(bench):
    bench.broker.version = "Penstock 1"
    consumer = await bench.subscribe(ack_group_ms=0)
    await bench.settle()
    for body in numbers(3):
        bench.broker.deliver(body)
    messages = [await consumer.receive_async() for _ in range(3)]
    consumer.acknowledge_cumulative(messages[-1])
    await until(lambda: bench.broker.acks)
    assert await bench.look(4) == []
    assert not bench.broker.transports[-1].connection._watched


@scene
async def test_what_the_broker_may_wait_for_is_counted_by_connection(bench):
    consumer = await bench.subscribe(**SHARED)
    for connection in (1, 2):
        await bench.settle()
        for body in numbers(3):
            bench.broker.deliver(body)
        await bench.receive(consumer, 3)
        assert "acks of 3 messages" in str(consumer.why())
        if connection == 1:
            bench.broker.cut()
            await until(lambda: consumer.is_connected)


@scene
async def test_nothing_received_says_what_is_waited_for(bench):
    consumer = await bench.subscribe()
    with pytest.raises(NothingReceived, match="the broker has nothing to send"):
        await consumer.receive_async(1)
    with pytest.raises(TimedOut):
        await consumer.receive_async(1)


@scene
async def test_a_receiver_that_gives_up_leaves_the_message_for_the_next(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    waiting = asyncio.ensure_future(consumer.receive_async())
    await bench.settle()
    waiting.cancel()
    bench.broker.deliver(b"x")
    assert await bench.receive(consumer, 1) == [b"x"]


@pytest.mark.parametrize("is_batch", [True, False])
@pytest.mark.parametrize("turns", range(12))
def test_a_receiver_that_gives_up_just_when_it_is_answered_loses_nothing(turns, is_batch):
    @scene
    async def play(bench):
        consumer = await bench.subscribe()
        await bench.settle()
        wanted = [b"x"]
        if is_batch:
            wanted.insert(0, b"w")
            waiting = asyncio.ensure_future(consumer.receive_batch_async(2, timeout_ms=60_000))
            bench.broker.deliver(b"w")
        else:
            waiting = asyncio.ensure_future(consumer.receive_async())
        await bench.settle()
        bench.broker.deliver(b"x")
        await bench.settle(turns)
        if waiting.cancel():
            await asyncio.wait([waiting])
        if waiting.cancelled():
            assert await bench.receive(consumer, len(wanted)) == wanted

    play()


@scene
async def test_who_gives_up_waiting_for_a_batch_leaves_its_messages_for_the_next(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    waiting = asyncio.ensure_future(consumer.receive_batch_async(4, timeout_ms=60_000))
    bench.broker.deliver(b"0")
    bench.broker.deliver(b"1")
    await until(lambda: consumer.statistics().messages == 2 and not consumer.inboxes[0])
    await bench.settle()
    waiting.cancel()
    await bench.settle()
    bench.broker.deliver(b"2")
    assert await bench.receive(consumer, 3) == numbers(3)


@scene
async def test_what_a_receiver_leaves_goes_to_one_that_waits_already(bench):
    consumer = await bench.subscribe()
    await bench.settle()
    waiting = asyncio.ensure_future(consumer.receive_batch_async(4, timeout_ms=60_000))
    bench.broker.deliver(b"0")
    await until(lambda: consumer.statistics().messages == 1 and not consumer.inboxes[0])
    await bench.settle()
    other = asyncio.ensure_future(consumer.receive_async(5_000))
    await bench.settle()
    waiting.cancel()
    assert (await other).data == b"0"


@scene
async def test_retry_letters_may_be_of_whatever_can_be_gone_through(bench):
    consumer = await bench.subscribe({"t": 1, "u": 2}, is_retry_enabled=True, **SHARED)
    names = ("t", "u", "t-s-RETRY")
    assert consumer.topics == [f"persistent://public/default/{name}" for name in names]


@scene
async def test_the_end_of_a_topic_is_known_when_all_partitions_have_reached_it(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    consumer = await bench.subscribe("t")
    ended = []
    for number in (0, 1):
        bench.broker.say(
            TYPES.REACHED_END_OF_TOPIC, consumer_id=bench.part(consumer, number).consumer_id
        )
        await bench.settle()
        ended.append(consumer.has_reached_end_of_topic)
    assert ended == [False, True]


@scene
async def test_a_message_of_another_consumer_is_not_acked_here(bench):
    mine, other = await bench.subscribe("t"), await bench.subscribe("u")
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await other.receive_async()
    with pytest.raises(InvalidUse, match="not received by"):
        mine.acknowledge(message)


@scene
async def test_a_message_that_a_closed_consumer_received_is_acked_by_the_next_one(bench):
    first = await bench.subscribe(ack_group_ms=0)
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await first.receive_async()
    await first.close_async()
    second = await bench.subscribe(ack_group_ms=0)
    second.acknowledge(message)
    await until(lambda: bench.broker.acks == [[(7, 0)]])


@scene
async def test_what_is_no_message_is_not_acked_and_nothing_beside_it(bench):
    consumer = await bench.subscribe(ack_group_ms=600_000)
    await bench.settle()
    bench.broker.deliver(b"x")
    message = await consumer.receive_async()
    for wrong in (b"x", None, 5, [message, "x"]):
        with pytest.raises(InvalidUse, match="is no message; give"):
            consumer.acknowledge(wrong)
    with pytest.raises(InvalidUse, match="is no message"):
        consumer.negative_acknowledge("x")
    await consumer.flush_acks_async()
    assert bench.broker.acks == []


@pytest.mark.parametrize("target", ["x", 1.5, -1, None])
def test_a_seek_to_nowhere_is_refused(target):
    @scene
    async def play(bench):
        consumer = await bench.subscribe()
        with pytest.raises(InvalidUse, match="seek goes to"):
            await consumer.seek_async(target)

    play()


@scene
async def test_an_id_is_enough_to_ack_where_it_says_the_partition(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    consumer = await bench.subscribe("t", ack_group_ms=0)
    consumer.acknowledge(MessageId(7, 5, 1))
    await until(lambda: bench.broker.acks == [[(7, 5)]])
    with pytest.raises(InvalidUse, match="of which topic"):
        consumer.acknowledge(MessageId(7, 5))
