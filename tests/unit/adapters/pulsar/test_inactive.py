"""Unit tests for topics that nobody uses: which of them go, when, and who keeps one."""

import pytest

from kit.pulsar.bench import PulsarBench, message_tail
from penstock.adapters.pulsar import inactive as room
from penstock.adapters.pulsar.inactive import CAUGHT_UP, LOOK_MS
from penstock.adapters.pulsar.namespaces import InactiveTopicRule, RetentionRule
from penstock.adapters.pulsar.naming import parse_name
from penstock.model.names import topic_name
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings

TOPIC = "persistent://public/default/orders"
NAME = topic_name("orders")
SECONDS = 10
LONG_MS = SECONDS * 1000 + 2 * LOOK_MS


@pytest.fixture
def deleting():
    """A broker that deletes topics which nobody has used for ten seconds."""
    settings = PulsarSettings(delete_inactive_topics=True, inactive_topics_s_max=SECONDS)
    return PulsarBench(Settings(pulsar=settings))


def produce(client, topic=TOPIC, producer_id=1):
    client.call("PRODUCER", topic=topic, producer_id=producer_id, request_id=1)


def close_producer(client):
    client.call("CLOSE_PRODUCER", producer_id=1, request_id=2)


def made(bench, name=NAME):
    """A topic that a client of Pulsar made, which is gone."""
    bench.broker.topics.create(parse_name(f"persistent://public/default/{name.name}"))
    return bench.engine.topic(name)


def is_there(bench, name=NAME):
    return bench.engine.topic(name) is not None


def test_a_topic_that_nobody_uses_is_deleted_after_its_time(deleting):
    client = deleting.client()
    produce(client)
    close_producer(client)
    deleting.pass_time(SECONDS * 1000 - LOOK_MS)
    assert is_there(deleting)
    deleting.pass_time(3 * LOOK_MS)
    assert not is_there(deleting)


def test_nothing_is_deleted_unless_a_policy_says_so(bench):
    client = bench.client()
    produce(client)
    close_producer(client)
    bench.pass_time(10 * LONG_MS)
    assert is_there(bench)


def test_where_no_policy_asks_for_it_nobody_looks_again(bench):
    task = bench.broker.timers._tasks[-1]
    bench.pass_time(2 * LOOK_MS)
    assert task.next_deadline_ms() is None


@pytest.mark.parametrize("where", ["namespace", "topic"])
def test_a_policy_of_a_namespace_or_a_topic_is_enough(bench, where):
    client = bench.client()
    produce(client)
    close_producer(client)
    bench.pass_time(2 * LOOK_MS)
    rule = InactiveTopicRule("delete_when_no_subscriptions", SECONDS, True)
    if where == "namespace":
        bench.broker.namespaces.set_policies("public/default", inactive_topic=rule)
    else:
        bench.broker.namespaces.set_topic_policies(NAME, inactive_topic=rule)
    bench.pass_time(LONG_MS)
    assert not is_there(bench)


def test_a_producer_keeps_its_topic(deleting):
    client = deleting.client()
    produce(client)
    for _ in range(4):
        deleting.pass_time(LONG_MS // 2)
        client.say("PONG")
    assert is_there(deleting)
    client.vanish()
    deleting.pass_time(LONG_MS)
    assert not is_there(deleting)


def test_a_subscription_keeps_its_topic_also_without_a_consumer(deleting):
    client = deleting.client()
    client.call("SUBSCRIBE", topic=TOPIC, subscription="s", subType="Shared", consumer_id=1,
                request_id=1)  # fmt: skip
    client.vanish()
    deleting.pass_time(2 * LONG_MS)
    assert is_there(deleting)


def test_a_subscription_that_has_acked_all_keeps_it_only_if_the_mode_says_so(deleting):
    rule = InactiveTopicRule(CAUGHT_UP, SECONDS, True)
    deleting.broker.namespaces.set_policies("public/default", inactive_topic=rule)
    client = deleting.client()
    produce(client)
    client.call("SUBSCRIBE", topic=TOPIC, subscription="s", subType="Shared", consumer_id=1,
                request_id=1)  # fmt: skip
    client.publish(1, 0, b"x")
    client.heard()
    client.vanish()
    deleting.pass_time(2 * LONG_MS)
    assert is_there(deleting)

    again = deleting.client()
    again.call("SUBSCRIBE", topic=TOPIC, subscription="s", subType="Shared", consumer_id=1,
               request_id=1)  # fmt: skip
    again.say("FLOW", consumer_id=1, messagePermits=10)
    (found,) = again.commands()
    place = {"ledgerId": found.message.message_id.ledgerId, "entryId": 0}
    again.say("ACK", consumer_id=1, ack_type="Individual", message_id=[place])
    deleting.settle()
    again.vanish()
    deleting.pass_time(LONG_MS)
    assert not is_there(deleting)


def test_subscriptions_of_others_always_keep_it(deleting):
    rule = InactiveTopicRule(CAUGHT_UP, SECONDS, True)
    deleting.broker.namespaces.set_policies("public/default", inactive_topic=rule)
    deleting.reader(made(deleting), "rocketmq/group")
    deleting.pass_time(2 * LONG_MS)
    assert is_there(deleting)


@pytest.mark.parametrize("restarts", [False, True])
def test_topics_that_another_protocol_made_stay(deleting, restarts):
    deleting.engine.create_topic(NAME)
    other = topic_name("theirs")
    made(deleting, other)
    deleting.settle()
    if restarts:
        deleting.stop()
    deleting.pass_time(2 * LONG_MS)
    assert is_there(deleting)
    assert not is_there(deleting, other)


def test_who_publishes_by_another_way_keeps_it(deleting):
    topic, channel = made(deleting), deleting.channel()
    for number in range(4):
        deleting.pass_time(LONG_MS // 2)
        deleting.publish(channel, topic, b"%d" % number)
    assert is_there(deleting)


def test_partitioned_topics_stay(deleting):
    deleting.broker.topics.create(parse_name(TOPIC), 3)
    deleting.pass_time(2 * LONG_MS)
    assert is_there(deleting)


@pytest.fixture
def deleting_all():
    """The same, with partitioned topics."""
    settings = PulsarSettings(
        delete_inactive_topics=True,
        inactive_topics_s_max=SECONDS,
        delete_inactive_partitioned_topics=True,
    )
    return PulsarBench(Settings(pulsar=settings))


def test_a_partitioned_topic_goes_as_a_whole_where_that_is_set(deleting_all):
    deleting_all.broker.topics.create(parse_name(TOPIC), 3)
    deleting_all.pass_time(LONG_MS)
    assert not is_there(deleting_all)


def test_a_partition_in_use_keeps_all_of_them(deleting_all):
    deleting_all.broker.topics.create(parse_name(TOPIC), 3)
    client = deleting_all.client()
    produce(client, f"{TOPIC}-partition-1")
    for _ in range(4):
        deleting_all.pass_time(LONG_MS // 2)
        client.say("PONG")
    assert is_there(deleting_all)
    client.vanish()
    deleting_all.pass_time(LONG_MS)
    assert not is_there(deleting_all)


def test_a_message_that_waits_for_its_time_keeps_its_topic(deleting):
    rule = InactiveTopicRule(CAUGHT_UP, SECONDS, True)
    deleting.broker.namespaces.set_policies("public/default", inactive_topic=rule)
    client = deleting.client()
    produce(client)
    client.call("SUBSCRIBE", topic=TOPIC, subscription="s", subType="Shared", consumer_id=1,
                request_id=1)  # fmt: skip
    client.say("FLOW", consumer_id=1, messagePermits=10)
    at_ms = deleting.clock.wall_ms() + 3_600_000
    client.publish(1, 0, tail=message_tail(0, b"later", deliver_at_time=at_ms))
    client.heard()
    client.vanish()
    deleting.pass_time(2 * LONG_MS)
    assert is_there(deleting)


@pytest.mark.parametrize(("minutes", "stays"), [(-1, True), (60, True), (0, False)])
def test_what_retention_keeps_is_not_deleted_with_its_topic(deleting, minutes, stays):
    rule = RetentionRule(minutes, -1 if minutes else 0)
    deleting.broker.namespaces.set_policies("public/default", retention=rule)
    made(deleting)
    deleting.pass_time(10 * LONG_MS)
    assert is_there(deleting) is stays
    if minutes > 0:
        deleting.advance(minutes * 60_000)
        deleting.pass_time(2 * LOOK_MS)
        assert not is_there(deleting)


def test_a_compacted_topic_stays(deleting):
    made(deleting)
    deleting.broker.compaction.start(parse_name(TOPIC))
    deleting.pass_time(2 * LONG_MS)
    assert is_there(deleting)


def test_a_look_at_many_topics_goes_in_pieces(deleting, monkeypatch):
    monkeypatch.setattr(room, "TOPICS_AT_ONCE", 3)
    for number in range(10):
        made(deleting, topic_name(f"t{number}"))
    looks = []
    look = room.InactiveTopics._look

    def note(task, topic, now_ms):
        looks.append(now_ms)
        return look(task, topic, now_ms)

    monkeypatch.setattr(room.InactiveTopics, "_look", note)
    deleting.pass_time(LOOK_MS)
    assert len(looks) == 3
    deleting.pass_time(LOOK_MS - 100)
    assert len(looks) == 10
    deleting.pass_time(LONG_MS)
    assert not any(is_there(deleting, topic_name(f"t{number}")) for number in range(10))
