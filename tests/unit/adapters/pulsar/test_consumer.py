"""Unit tests for SUBSCRIBE: who is let in, in which order things are asked, what an error leaves.

FLOW, ACK and what else consumers say: ``test_consumer_flow.py``, ``test_consumer_acks.py``; who of
several gets what: ``test_consumer_dispatch.py``. Which rule of Pulsar is held to by which test:
``test_rules_index.py``.
"""

import logging

import pytest

from kit.pulsar.bench import PulsarBench
from kit.pulsar.consumers import EARLIEST, TOPIC, Publisher, Subscriber
from penstock.adapters.pulsar import consumer as room
from penstock.adapters.pulsar.connection import PROBE_MS
from penstock.adapters.pulsar.namespaces import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    SubscribeRate,
)
from penstock.engine.topic import TopicPolicy
from penstock.model.names import topic_name
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, Schema

BIG_METADATA = [{"key": "k", "value": "v" * 1024}]
STICKY = {"keySharedMode": "STICKY"}
READER = {"durable": False, "start": EARLIEST}


def settings(**pulsar):
    return Settings(pulsar=PulsarSettings(**pulsar))


def policies(bench, **changes):
    bench.broker.namespaces.set_policies("public/default", **changes)


def sticky(*ranges):
    return {**STICKY, "hashRanges": [{"start": start, "end": end} for start, end in ranges]}


def subscriptions(bench, name="orders"):
    topic = bench.engine.topic(topic_name(name))
    return [] if topic is None else sorted(topic.subscriptions)


def assert_nothing_is_left(bench, *clients):
    """Of all that SUBSCRIBEs wanted nothing is used, kept or waited for."""
    assert not bench.broker.topics._used
    assert not bench.broker.subscriptions._used
    for client in clients:
        for group in client.connection._groups:
            assert not getattr(group, "_consumers", None)


@pytest.fixture
def topic(bench):
    return bench.engine.create_topic(topic_name("orders"))


@pytest.fixture
def other(bench):
    """A second client."""
    return bench.client()


# ---- rights -------------------------------------------------------------------------------------


def test_the_right_to_consume_is_asked_for_topic_and_subscription(bench, client):
    asked = []
    bench.broker.may_consume = lambda of, topic, name: asked.append((of, str(topic), name)) or True
    Subscriber(client, subscription="mine").opened()

    assert asked == [(client.connection, TOPIC, "mine")]


def test_without_the_right_it_is_refused_and_nothing_is_made(bench, client):
    bench.broker.may_consume = lambda *_: False

    assert Subscriber(client).refusal() == (
        ServerError.AuthorizationError,
        "Client is not authorized to subscribe",
    )
    assert bench.engine.topic(topic_name("orders")) is None
    assert_nothing_is_left(bench, client)


def test_a_check_of_rights_that_fails_is_a_refusal_with_its_text(bench, client):
    def broken(*_):
        raise RuntimeError("the directory does not answer")

    bench.broker.may_consume = broken

    assert Subscriber(client).refusal() == (
        ServerError.AuthorizationError,
        "the directory does not answer",
    )
    assert_nothing_is_left(bench, client)


def test_rights_are_asked_before_the_metadata_and_before_who_has_the_id(bench, client):
    consumer = Subscriber(client).opened()
    bench.broker.may_consume = lambda *_: False
    again = Subscriber(client, consumer_id=consumer.id, metadata=BIG_METADATA)

    assert again.refusal()[0] is ServerError.AuthorizationError


# ---- metadata and the same id -------------------------------------------------------------------


def test_metadata_of_1024_bytes_are_taken_and_one_more_is_refused(bench, client):
    value = "v" * 1023
    Subscriber(client, metadata=[{"key": "k", "value": value}]).opened()

    assert Subscriber(client, metadata=BIG_METADATA).refusal() == (
        ServerError.MetadataError,
        "metadata has a max size of 1024 bytes",
    )


def test_metadata_are_looked_at_before_the_id_and_before_the_topic_is_made(bench, client):
    """So a real 4.0.8 does."""
    consumer = Subscriber(client, topic="other").opened()
    again = Subscriber(client, consumer_id=consumer.id, metadata=BIG_METADATA)
    missing = Subscriber(client, force_topic_creation=False, metadata=BIG_METADATA)

    assert again.refusal()[0] is ServerError.MetadataError
    assert missing.refusal()[0] is ServerError.MetadataError
    assert bench.engine.topic(topic_name("orders")) is None


def test_the_same_id_once_it_is_done_succeeds_again_and_makes_nothing(bench, client):
    consumer = Subscriber(client).opened()
    Subscriber(client, "other", "t", "Exclusive", consumer_id=consumer.id).opened()

    assert subscriptions(bench) == ["pulsar/s"]
    assert bench.engine.topic(topic_name("other")) is None
    assert len(bench.broker.topics._used) == 1


def test_the_same_id_before_it_is_done_is_not_ready_and_the_first_succeeds(bench, client):
    first = Subscriber(client)
    second = Subscriber(client, consumer_id=first.id)

    assert second.refusal() == (
        ServerError.ServiceNotReady,
        "Consumer is already present on the connection",
    )
    first.opened()


def test_ids_are_those_of_one_connection(bench, client, other):
    Subscriber(client, consumer_id=1).opened()
    Subscriber(other, consumer_id=1).opened()

    (subscription,) = bench.broker.subscriptions._used.values()
    assert len(subscription.users) == 2


def test_an_id_that_failed_is_free_and_meets_its_error_only_while_the_cause_lasts(bench, client):
    first = Subscriber(client, force_topic_creation=False)
    assert first.refusal()[0] is ServerError.TopicNotFound
    again = Subscriber(client, consumer_id=first.id, force_topic_creation=False)
    assert again.refusal()[0] is ServerError.TopicNotFound

    bench.engine.create_topic(topic_name("orders"))
    Subscriber(client, consumer_id=first.id, force_topic_creation=False).opened()


def test_an_id_that_fails_late_is_free_again(bench, client, other):
    holder = Subscriber(other, kind="Exclusive").opened()
    first = Subscriber(client, kind="Exclusive")
    other.say("PONG")
    assert first.refusal()[0] is ServerError.ConsumerBusy
    holder.close()

    Subscriber(client, kind="Exclusive", consumer_id=first.id).opened()


def test_an_id_that_its_client_gave_up_waiting_for_is_free_again(bench, client, other):
    """A client's time-out is shorter than ours may be: CLOSE_CONSUMER, then the same id again."""
    holder = Subscriber(other, kind="Exclusive").opened()
    first = Subscriber(client, kind="Exclusive")
    first.close()
    second = Subscriber(client, kind="Exclusive", consumer_id=first.id)
    assert second.answers() == []
    holder.close()

    second.opened()
    assert first.answers() == []


def test_more_consumers_than_a_connection_may_have_are_too_many(client, monkeypatch):
    monkeypatch.setattr(room, "CONSUMERS_MAX", 2)
    Subscriber(client).opened()
    Subscriber(client).opened()

    assert Subscriber(client).refusal()[0] is ServerError.TooManyRequests


# ---- the topic ----------------------------------------------------------------------------------


def test_a_missing_topic_is_made_when_the_client_wants_it(bench, client):
    Subscriber(client).opened()

    assert bench.engine.topic(topic_name("orders")) is not None


@pytest.mark.parametrize("where", ["broker", "namespace"])
def test_a_missing_topic_is_not_found_where_creation_is_off(where):
    bench = PulsarBench(settings(allow_auto_topic_creation=where != "broker"))
    if where == "namespace":
        policies(bench, auto_topic_creation=AutoTopicCreation(allow_auto_topic_creation=False))
    client = bench.client()

    assert Subscriber(client).refusal() == (
        ServerError.TopicNotFound,
        f"Topic {TOPIC} does not exist",
    )
    assert_nothing_is_left(bench, client)


def test_a_missing_topic_is_not_found_when_the_client_does_not_force_it(bench, client):
    assert Subscriber(client, force_topic_creation=False).refusal() == (
        ServerError.TopicNotFound,
        f"Topic {TOPIC} does not exist",
    )
    assert bench.engine.topic(topic_name("orders")) is None


def test_a_partition_is_read_by_itself(bench, client):
    bench.engine.create_topic(topic_name("orders"), queues=3)
    consumer = Subscriber(client, f"{TOPIC}-partition-2").opened().flow(10)
    Publisher(client, f"{TOPIC}-partition-1", 1).publish(b"elsewhere")
    sent = Publisher(client, f"{TOPIC}-partition-2", 2).publish(b"here")

    (frame,) = client.heard_of(BaseCommand.MESSAGE)
    assert frame[0].message.message_id.partition == 2
    assert (frame[0].message.message_id.ledgerId, frame[0].message.message_id.entryId) == sent
    assert consumer.unacked == 1


@pytest.mark.parametrize("number", [3, 9])
def test_a_partition_that_is_not_there_is_not_found(bench, client, number):
    bench.engine.create_topic(topic_name("orders"), queues=3)
    name = f"{TOPIC}-partition-{number}"

    refusal = (ServerError.TopicNotFound, f"Topic {name} does not exist")
    assert Subscriber(client, name).refusal() == refusal


def test_the_name_of_a_partitioned_topic_itself_is_not_allowed(bench, client):
    bench.engine.create_topic(topic_name("orders"), queues=3)

    assert Subscriber(client).refusal() == (
        ServerError.NotAllowedError,
        f"Found partitioned metadata for non-partitioned topic: {TOPIC}",
    )


def test_an_unknown_namespace_is_not_served_here(client):
    code, text = Subscriber(client, "persistent://nobody/nowhere/x").refusal()

    assert code is ServerError.ServiceNotReady
    assert "Please redo the lookup." in text


@pytest.mark.parametrize("name", ["per://x", "persistent://public/default/", "a/b"])
def test_a_name_that_is_no_topic_is_invalid(client, name):
    code, text = Subscriber(client, name).refusal()

    assert code is ServerError.InvalidTopicName
    assert text.startswith("Invalid topic name: ")


def test_the_answer_waits_until_topic_and_subscription_are_durable(bench, client):
    client.say(
        "SUBSCRIBE",
        topic=TOPIC, subscription="s", subType="Shared", consumer_id=1, request_id=1,
    )  # fmt: skip
    bench.turns()
    assert not client.connection.outgoing()

    assert client.next().type == BaseCommand.SUCCESS
    bench.cut_power()
    assert subscriptions(bench) == ["pulsar/s"]


# ---- the subscription ---------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["broker", "namespace"])
def test_a_missing_durable_subscription_is_not_found_where_creation_is_off(where):
    bench = PulsarBench(settings(allow_auto_subscription_creation=where != "broker"))
    if where == "namespace":
        off = AutoSubscriptionCreation(allow_auto_subscription_creation=False)
        policies(bench, auto_subscription_creation=off)
    bench.engine.create_topic(topic_name("orders"))
    client = bench.client()

    assert Subscriber(client).refusal() == (
        ServerError.SubscriptionNotFound,
        "Subscription does not exist",
    )
    assert subscriptions(bench) == []
    assert_nothing_is_left(bench, client)


def test_a_durable_subscription_that_is_there_is_found_where_creation_is_off(bench, client):
    Subscriber(client).opened().close()
    off = AutoSubscriptionCreation(allow_auto_subscription_creation=False)
    policies(bench, auto_subscription_creation=off)

    Subscriber(client).opened()


def test_a_non_durable_subscription_is_free_of_that_rule():
    client = PulsarBench(settings(allow_auto_subscription_creation=False)).client()

    Subscriber(client, **READER).opened()


def schema(text, kind=Schema.Json):
    return {"name": "x", "schema_data": text, "type": kind}


PERSON = b'{"type":"record","name":"p","fields":[{"name":"a","type":"string"}]}'
OTHER = b'{"type":"record","name":"p","fields":[{"name":"b","type":"string"}]}'


def test_a_schema_is_brought_to_a_topic_that_nobody_uses(bench, client):
    Subscriber(client, schema=schema(PERSON)).opened()

    code, _ = client.error(
        "PRODUCER", topic=TOPIC, producer_id=1, request_id=9, schema=schema(OTHER)
    )
    assert code is ServerError.IncompatibleSchema


def test_a_schema_is_compared_before_all_that_follows(bench, client):
    Subscriber(client, schema=schema(PERSON)).opened()
    refused = Subscriber(client, subscription="", schema=schema(OTHER), read_compacted=True)

    assert refused.refusal()[0] is ServerError.IncompatibleSchema


def test_a_missing_subscription_is_told_before_a_schema_that_does_not_fit(bench, client):
    Subscriber(client, schema=schema(PERSON)).opened()
    off = AutoSubscriptionCreation(allow_auto_subscription_creation=False)
    policies(bench, auto_subscription_creation=off)
    refused = Subscriber(client, subscription="new", schema=schema(OTHER))

    assert refused.refusal()[0] is ServerError.SubscriptionNotFound


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_read_compacted_is_not_for_shared_types(bench, client, kind):
    assert Subscriber(client, kind=kind, read_compacted=True).refusal() == (
        ServerError.NotAllowedError,
        "readCompacted only allowed on failover or exclusive subscriptions",
    )


def test_read_compacted_wants_a_log(client):
    topic = "non-persistent://public/default/orders"

    assert Subscriber(client, topic, kind="Exclusive", read_compacted=True).refusal() == (
        ServerError.NotAllowedError,
        "readCompacted only valid on persistent topics",
    )


def test_a_subscription_that_is_to_be_replicated_is_warned_of_and_taken(client, caplog):
    with caplog.at_level(logging.WARNING, "penstock.adapters.pulsar.consumer"):
        Subscriber(client, replicate_subscription_state=True).opened()

    assert "replicated" in caplog.text


@pytest.mark.parametrize("where", ["broker", "namespace", "topic"])
def test_a_type_may_be_switched_off(where):
    bench = PulsarBench(
        settings(subscription_types_enabled="Exclusive,Shared") if where == "broker" else None
    )
    allowed = ["Exclusive", "Shared"]
    if where == "namespace":
        policies(bench, subscription_types_enabled=allowed)
    elif where == "topic":
        bench.engine.create_topic(topic_name("orders"))
        bench.broker.namespaces.set_topic_policies(
            topic_name("orders"), subscription_types_enabled=allowed
        )
    client = bench.client()

    assert Subscriber(client, kind="Key_Shared").refusal() == (
        ServerError.NotAllowedError,
        f"Topic[{{{TOPIC}}}] doesn't support Key_Shared sub type!",
    )
    Subscriber(client, kind="Shared").opened()


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(bench, client, name):
    assert Subscriber(client, subscription=name).refusal() == (
        ServerError.ProducerBusy,
        "Empty subscription name",
    )
    assert subscriptions(bench) == []


@pytest.mark.parametrize("name", ["pulsar.repl", "pulsar.replx", "pulsar.repl.c1", "pulsar.dedup"])
def test_reserved_names_are_refused(client, name):
    assert Subscriber(client, subscription=name).refusal() == (
        ServerError.ProducerBusy,
        "Subscription with reserved subscription name attempted",
    )


@pytest.mark.parametrize("name", ["pulsar.dedupx", "__compaction", "a/b", "a b", "ü"])
def test_other_odd_names_are_taken(client, name):
    Subscriber(client, subscription=name).opened()


def test_a_client_without_batches_may_subscribe_whatever_the_topic_has(bench, client):
    Publisher(client).publish(b"a", b"b")
    old = bench.client(protocol_version=3)

    Subscriber(old, initialPosition="Earliest").opened()


# ---- the order of what is asked -----------------------------------------------------------------

LIMITED = SubscribeRate(subscribe_throttling_rate_per_consumer=1, rate_period_in_second=10)


def test_the_checks_of_subscribe_come_in_pulsars_order(bench, client):
    """Every SUBSCRIBE here breaks the rule that it is told of and all that are asked later."""
    topic = bench.engine.create_topic(topic_name("orders"))
    policies(bench, subscription_types_enabled=["Exclusive", "Failover"], subscribe_rate=LIMITED)
    everything = {"kind": "Shared", "subscription": "", "read_compacted": True, "consumer_id": 7}
    told = [Subscriber(client, **everything).refusal()]
    everything["read_compacted"] = False
    told.append(Subscriber(client, **everything).refusal())
    everything["kind"] = "Exclusive"
    told.append(Subscriber(client, **everything).refusal())
    everything["subscription"] = "pulsar.dedup"
    told.append(Subscriber(client, **everything).refusal())
    Subscriber(client, kind="Exclusive", consumer_id=7).opened().close()
    keep = Subscriber(client, kind="Exclusive", subscription="keep").opened()
    (used,) = bench.broker.topics._used.values()
    used.fence = "unloading"
    everything["subscription"] = "s"
    told.append(Subscriber(client, **everything).refusal())
    bench.pass_time(10_000)
    client.say("PONG")
    told.append(Subscriber(client, **everything).refusal())
    used.fence = ""

    assert [text.split()[0] for _, text in told] == [
        "readCompacted", f"Topic[{{{TOPIC}}}]", "Empty", "Subscription", "Subscribe", "Topic",
    ]  # fmt: skip
    assert told[-1][1] == "Topic is temporarily unavailable"
    assert subscriptions(bench) == ["pulsar/keep", "pulsar/s"]
    assert keep.stats().consumerName == ""
    assert not topic.is_deleting


# ---- the subscribe rate -------------------------------------------------------------------------


def rated(client, consumer_id=7, **fields):
    return Subscriber(client, consumer_id=consumer_id, consumer_name="c", **fields)


def test_a_consumer_that_comes_too_often_is_limited_for_the_rest_of_the_period(bench, client):
    policies(bench, subscribe_rate=LIMITED)
    rated(client).opened().close()
    assert rated(client).refusal() == (
        ServerError.NotAllowedError,
        "Subscribe limited by subscribe rate limit per consumer.",
    )
    bench.pass_time(9_900)
    assert rated(client).refusal()[0] is ServerError.NotAllowedError
    bench.pass_time(100)

    rated(client).opened()


def test_the_rate_is_that_of_address_name_and_id_whatever_the_connection(bench, client):
    policies(bench, subscribe_rate=LIMITED)
    rated(client).opened().close()
    client.vanish()
    again = bench.client()

    assert rated(again).refusal()[0] is ServerError.NotAllowedError
    rated(again, consumer_id=8).opened()
    Subscriber(again, consumer_id=7, consumer_name="d").opened()
    elsewhere = bench.stranger(host="10.0.0.9")
    elsewhere.call("CONNECT", client_version="x", protocol_version=20)
    rated(elsewhere).opened()


def test_a_subscribe_that_is_refused_before_the_rate_leaves_no_row_in_it(bench, client):
    policies(bench, subscribe_rate=LIMITED)
    rated(client, subscription="").refusal()
    rated(client, subscription="pulsar.dedup").refusal()

    assert not bench.broker.subscriptions.rates._periods
    rated(client).opened()


def test_a_refusal_by_the_rate_does_not_count_and_leaves_nothing(bench, client):
    policies(bench, subscribe_rate=LIMITED)
    rated(client).opened().close()
    for _ in range(5):
        rated(client).refusal()

    assert_nothing_is_left(bench, client)
    ((_, count),) = bench.broker.subscriptions.rates._periods.values()
    assert count == 1


# ---- topics that are closed for the moment ------------------------------------------------------


@pytest.mark.parametrize("why", ["deleting", "unloading", "a failed write"])
def test_a_fenced_topic_is_temporarily_unavailable(bench, client, topic, monkeypatch, why):
    keep = Subscriber(client).opened()
    if why == "deleting":
        topic.is_deleting = True
    elif why == "unloading":
        next(iter(bench.broker.topics._used.values())).fence = why
    else:
        monkeypatch.setattr(type(bench.engine), "is_failed", property(lambda _: True))

    assert Subscriber(client, subscription="new").refusal() == (
        ServerError.ServiceNotReady,
        "Topic is temporarily unavailable",
    )
    assert subscriptions(bench) == ["pulsar/s"]
    (used,) = bench.broker.topics._used.values()
    assert len(used.users) == 1
    assert not keep.is_told_closed()


def test_a_subscribe_that_waits_while_its_topic_goes_is_not_ready(bench, client, other):
    Subscriber(other, kind="Exclusive").opened()
    waiting = Subscriber(client, kind="Exclusive")
    (topic,) = bench.broker.topics._used.values()
    bench.broker.topics.unload(topic.name)

    assert waiting.refusal() == (
        ServerError.ServiceNotReady,
        "Topic is temporarily unavailable",
    )
    assert_nothing_is_left(bench, client, other)


# ---- who is gone before it is done --------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, READER], ids=["durable", "non-durable"])
def test_a_client_that_is_gone_before_all_is_durable_leaves_no_consumer(bench, client, fields):
    bench.engine.create_topic(topic_name("orders"))
    bench.settle()
    Subscriber(client, **fields)
    bench.turns()
    client.vanish()

    assert_nothing_is_left(bench)
    assert subscriptions(bench) == ([] if fields else ["pulsar/s"])
    found = bench.engine.topic(topic_name("orders")).subscriptions
    assert all(not each.consumers for each in found.values())


def test_a_consumer_closed_before_all_is_durable_is_not_told_success(bench, client):
    consumer = Subscriber(client)
    client.say("CLOSE_CONSUMER", consumer_id=consumer.id, request_id=9)

    assert client.answer(9).type == BaseCommand.SUCCESS
    assert consumer.answers() == []
    assert_nothing_is_left(bench, client)


def test_a_client_that_is_gone_while_it_waits_for_the_holder_leaves_the_counts_right(
    bench, client, other
):
    holder = Subscriber(other, kind="Exclusive").opened()
    Subscriber(client, kind="Exclusive")
    client.vanish()
    other.say("PONG")
    bench.settle()

    (topic,) = bench.broker.topics._used.values()
    (subscription,) = bench.broker.subscriptions._used.values()
    assert len(topic.users) == len(subscription.users) == 1
    holder.flow(1)
    sent = Publisher(other).publish()
    assert holder.ids() == [sent]


def test_a_client_that_is_gone_while_a_seek_runs_leaves_the_counts_right(bench, client, other):
    consumer = Subscriber(other).opened()
    consumer.seek(EARLIEST)
    Subscriber(client)
    client.vanish()
    bench.settle()

    assert_nothing_is_left(bench, client, other)


# ---- an error leaves nothing --------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, READER], ids=["durable", "non-durable"])
@pytest.mark.parametrize(
    "ranges", [[], [(300, 200)], [(1, 2), (2, 3)], [(70_000, 80_000)], [(-5, 3)]]
)
def test_ranges_that_cannot_be_leave_no_subscription(bench, client, topic, ranges, fields):
    refused = Subscriber(client, kind="Key_Shared", keySharedMeta=sticky(*ranges), **fields)

    assert refused.refusal()[0] is ServerError.ConsumerAssignError
    assert subscriptions(bench) == []
    assert_nothing_is_left(bench, client)


def test_ranges_that_cannot_be_leave_a_subscription_that_was_there(bench, client):
    Subscriber(client).opened().close()
    refused = Subscriber(client, kind="Key_Shared", keySharedMeta=sticky((70_000, 80_000)))

    assert refused.refusal()[0] is ServerError.ConsumerAssignError
    assert subscriptions(bench) == ["pulsar/s"]
    assert_nothing_is_left(bench, client)


def test_more_consumers_than_the_engine_takes_leave_no_count():
    topics = TopicSettings(consumers_per_subscription_max=1)
    bench = PulsarBench(Settings(topics=topics))
    client = bench.client()
    Subscriber(client).opened()

    assert Subscriber(client).refusal()[0] is ServerError.ConsumerBusy
    (used,) = bench.broker.topics._used.values()
    (subscription,) = bench.broker.subscriptions._used.values()
    assert len(used.users) == len(subscription.users) == 1


def test_more_subscriptions_than_the_engine_takes_are_not_allowed():
    bench = PulsarBench(Settings(topics=TopicSettings(subscriptions_per_topic_max=1)))
    client = bench.client()
    Subscriber(client).opened()
    code, text = Subscriber(client, subscription="two").refusal()

    assert code is ServerError.NotAllowedError
    assert "subscriptions_per_topic_max" in text
    (used,) = bench.broker.topics._used.values()
    assert len(used.users) == 1


def test_a_refused_newcomer_leaves_users_of_topic_and_subscription_as_they_were(bench, client):
    Subscriber(client).opened()
    assert Subscriber(client, kind="Exclusive").refusal()[0] is ServerError.ConsumerBusy
    (used,) = bench.broker.topics._used.values()
    (subscription,) = bench.broker.subscriptions._used.values()

    assert len(used.users) == len(subscription.users) == 1


def test_limits_of_consumers_count_those_who_are_there(bench, client):
    policies(bench, max_consumers_per_subscription=1, max_consumers_per_topic=2)
    first = Subscriber(client).opened()
    assert Subscriber(client).refusal() == (
        ServerError.ConsumerBusy,
        "Subscription reached max consumers limit",
    )
    Subscriber(client, subscription="t").opened()
    assert Subscriber(client, subscription="u").refusal() == (
        ServerError.ConsumerBusy,
        "Topic reached max consumers limit",
    )
    assert subscriptions(bench) == ["pulsar/s", "pulsar/t"]
    first.close()

    Subscriber(client, subscription="u").opened()


# ---- places that are taken ----------------------------------------------------------------------


def test_an_exclusive_holder_that_answers_keeps_its_place(bench, client, other):
    Subscriber(other, kind="Exclusive").opened()
    newcomer = Subscriber(client, kind="Exclusive")
    assert newcomer.answers() == []
    assert other.heard_of(BaseCommand.PING)
    other.say("PONG")

    assert newcomer.refusal() == (
        ServerError.ConsumerBusy,
        "Exclusive consumer is already connected",
    )
    assert not other.is_closed


def test_an_exclusive_holder_that_is_silent_for_5_s_is_cut_off(bench, client, other):
    holder = Subscriber(other, kind="Exclusive").opened().flow(10)
    sent = Publisher(client).publish()
    assert holder.ids() == [sent]
    newcomer = Subscriber(client, kind="Exclusive")
    bench.pass_time(PROBE_MS - 100)
    assert newcomer.answers() == []
    bench.pass_time(100)

    newcomer.opened().flow(10)
    assert other.connection.is_over
    assert [(each.id, each.count) for each in newcomer.messages()] == [(sent, 0)]
    (subscription,) = bench.broker.subscriptions._used.values()
    assert len(subscription.users) == 1


def test_a_holder_that_leaves_while_it_is_asked_leaves_its_place(bench, client, other):
    holder = Subscriber(other, kind="Exclusive").opened()
    newcomer = Subscriber(client, kind="Exclusive")
    holder.close()

    newcomer.opened()


def test_of_two_newcomers_for_a_dead_holders_place_one_has_it(bench, client, other):
    Subscriber(other, kind="Exclusive").opened()
    third = bench.client()
    first, second = Subscriber(client, kind="Exclusive"), Subscriber(third, kind="Exclusive")
    bench.pass_time(PROBE_MS)

    first.opened()
    assert second.refusal()[0] is ServerError.ConsumerBusy


def test_the_holder_on_the_same_connection_keeps_its_place_at_once(client):
    """The client has just spoken: there is nothing to ask."""
    Subscriber(client, kind="Exclusive").opened()

    assert Subscriber(client, kind="Exclusive").refusal()[0] is ServerError.ConsumerBusy


def test_a_sticky_range_of_a_dead_client_goes_to_the_newcomer(bench, client, other):
    Subscriber(other, kind="Key_Shared", keySharedMeta=sticky((0, 100))).opened()
    newcomer = Subscriber(client, kind="Key_Shared", keySharedMeta=sticky((50, 150)))
    bench.pass_time(PROBE_MS)

    newcomer.opened()


def test_a_sticky_range_of_a_client_that_answers_is_refused(bench, client, other):
    Subscriber(other, kind="Key_Shared", keySharedMeta=sticky((0, 100))).opened()
    newcomer = Subscriber(client, kind="Key_Shared", keySharedMeta=sticky((50, 150)))
    other.say("PONG")
    code, text = newcomer.refusal()

    assert code is ServerError.ConsumerAssignError
    assert text.startswith("Range conflict with consumer ")


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Key_Shared"])
def test_another_type_than_the_live_one_is_refused(client, kind):
    Subscriber(client).opened()

    assert Subscriber(client, kind=kind).refusal() == (
        ServerError.ConsumerBusy,
        "Subscription is of different type. Active subscription type of 'Shared' is different than "
        f"the connecting consumer's type '{kind}'.",
    )


def test_with_nobody_connected_any_type_is_taken_and_goes_on_where_it_stands(bench, client):
    publisher = Publisher(client)
    Subscriber(client).opened().close()
    for kind in ("Exclusive", "Failover", "Key_Shared", "Shared"):
        sent = publisher.publish()
        consumer = Subscriber(client, kind=kind).opened().flow(10)
        bench.pass_time(1_000)
        assert consumer.ids() == [sent]
        consumer.ack(sent)
        consumer.close()


def test_another_way_to_share_keys_is_refused(client):
    Subscriber(client, kind="Key_Shared", keySharedMeta={"keySharedMode": "AUTO_SPLIT"}).opened()
    claiming = Subscriber(client, kind="Key_Shared", keySharedMeta=sticky((0, 100)))
    loose = Subscriber(
        client,
        kind="Key_Shared",
        keySharedMeta={"keySharedMode": "AUTO_SPLIT", "allowOutOfOrderDelivery": True},
    )

    assert claiming.refusal() == (
        ServerError.ConsumerBusy,
        "Subscription is of different type. Active subscription key_shared mode of 'AUTO_SPLIT' is "
        "different than the connecting consumer's key_shared mode 'STICKY'.",
    )
    assert loose.refusal() == (
        ServerError.ConsumerBusy,
        "Subscription is of different type. Active subscription does not allow out of order "
        "delivery while the connecting consumer allows it.",
    )


def test_names_may_be_taken_twice_and_stay_empty(client):
    names = [
        Subscriber(client, consumer_name=name).opened().stats().consumerName
        for name in ("same", "same", "")
    ]

    assert names == ["same", "same", ""]


# ---- seeks --------------------------------------------------------------------------------------


def test_a_subscribe_during_a_seek_waits_and_then_succeeds_where_it_led(bench, client, other):
    publisher = Publisher(other)
    sent = publisher.publish_all(3)
    consumer = Subscriber(client, initialPosition="Earliest").opened()
    request = consumer.seek(sent[1])
    bench.turns()
    waiting = Subscriber(other)
    bench.turns()
    assert not other.connection.outgoing()

    waiting.opened().flow(10)
    assert consumer.is_told_closed()
    assert client.answer(request).type == BaseCommand.SUCCESS
    assert waiting.ids() == sent[1:]


def test_a_subscribe_after_a_seek_of_its_own_connection_is_answered_after_it(bench, client):
    sent = Publisher(client).publish_all(3)
    consumer = Subscriber(client, initialPosition="Earliest").opened()
    request = consumer.seek(sent[2])
    again = Subscriber(client)

    told = [
        each.close_consumer.consumer_id
        if each.type == BaseCommand.CLOSE_CONSUMER
        else each.success.request_id
        for each in client.commands()
    ]
    assert told == [consumer.id, request, again.request]


# ---- where a subscription begins ----------------------------------------------------------------


@pytest.mark.parametrize(("position", "first"), [("Latest", 3), ("Earliest", 0)])
def test_a_new_durable_subscription_begins_at_its_initial_position(client, position, first):
    publisher = Publisher(client)
    sent = publisher.publish_all(3)
    consumer = Subscriber(client, initialPosition=position).opened().flow(10)
    sent.append(publisher.publish())

    assert consumer.ids() == sent[first:]


def test_a_durable_subscription_that_is_there_stays_where_it_is(client):
    """Neither its initial position nor a start id count."""
    sent = Publisher(client).publish_all(4)
    first = Subscriber(client, initialPosition="Earliest").opened().flow(10)
    first.ack(*first.ids()[:2])
    first.close()
    again = Subscriber(client, initialPosition="Latest", start=sent[3]).opened().flow(10)

    assert again.ids() == sent[2:]


def test_the_start_id_of_a_new_durable_subscription_does_not_count(client):
    sent = Publisher(client).publish_all(3)
    consumer = Subscriber(client, initialPosition="Earliest", start=sent[2]).opened().flow(10)

    assert consumer.ids() == sent


def test_a_new_durable_subscription_may_go_back_by_seconds(bench, client):
    publisher = Publisher(client)
    publisher.publish(b"old", publish_time=bench.clock.wall_ms())
    bench.pass_time(20_000)
    new = publisher.publish(b"new", publish_time=bench.clock.wall_ms())
    bench.pass_time(1_000)
    consumer = Subscriber(client, start_message_rollback_duration_sec=10).opened().flow(10)

    assert consumer.ids() == [new]


def test_a_non_durable_subscription_may_begin_at_the_latest_and_at_the_earliest(client):
    publisher = Publisher(client)
    sent = publisher.publish_all(2)
    late = Subscriber(client, subscription="late", durable=False, start=(2**63 - 1, 2**63 - 1))
    early = Subscriber(client, subscription="early", **READER)
    late.opened().flow(10)
    early.opened().flow(10)
    sent.append(publisher.publish())

    assert late.ids() == sent[2:]
    assert early.ids() == sent


@pytest.mark.parametrize("fields", [{}, {"batch_index": 1}, {"batch_index": 0, "batch_size": 3}])
def test_a_non_durable_subscription_begins_with_the_whole_entry_of_its_start(client, fields):
    sent = Publisher(client).publish_all(3, messages=3)
    start = {"ledgerId": sent[1][0], "entryId": sent[1][1], **fields}
    consumer = Subscriber(client, durable=False, start=start).opened().flow(100)

    found = consumer.messages()
    assert [each.id for each in found] == sent[1:]
    assert [each.ack_set for each in found] == [[], []]


def test_a_start_just_before_a_batch_is_the_whole_entry_there(client):
    """A client counts entries one by one: before (l, 6) is (l, 5), a message of the batch at 3."""
    sent = Publisher(client).publish_all(3, messages=3)
    ledger, entry = sent[2]
    consumer = Subscriber(client, durable=False, start=(ledger, entry - 1)).opened().flow(100)

    found = consumer.messages()
    assert [(each.id, each.ack_set) for each in found] == [(sent[1], []), (sent[2], [])]


@pytest.mark.parametrize(
    ("where", "first"), [("before it", 0), ("older", 0), ("behind it", 3), ("newer", 3)]
)
def test_start_ids_of_no_entry_mean_their_place(client, where, first):
    publisher = Publisher(client)
    sent = publisher.publish_all(3)
    ledger = sent[0][0]
    start = {
        "before it": (ledger, 2**64 - 1),
        "older": (0, 0),
        "behind it": (ledger, 99),
        "newer": (ledger + 5, 0),
    }[where]
    consumer = Subscriber(client, durable=False, start=start).opened().flow(10)
    sent.append(publisher.publish())

    assert consumer.ids() == sent[first:]


def test_a_non_durable_subscription_without_a_start_begins_at_its_initial_position(client):
    sent = Publisher(client).publish_all(2)
    consumer = Subscriber(client, durable=False, initialPosition="Earliest").opened().flow(10)

    assert consumer.ids() == sent


# ---- durable and not ----------------------------------------------------------------------------


def test_a_non_durable_subscription_ends_with_its_last_consumer(bench, client):
    first, second = [Subscriber(client, **READER).opened() for _ in "ab"]
    first.close()
    assert subscriptions(bench) == ["pulsar/s"]
    second.close()

    assert subscriptions(bench) == []
    assert_nothing_is_left(bench, client)


def test_a_durable_subscription_stays_without_consumers(bench, client):
    Subscriber(client).opened().close()

    assert subscriptions(bench) == ["pulsar/s"]


def test_a_non_durable_subscription_holds_no_data_and_fills_no_quota(bench, client, topic):
    Subscriber(client, **READER).opened()
    Publisher(client).publish_all(5)

    (stored,) = topic.subscriptions.values()
    assert not stored.options.holds_data
    assert not stored.options.is_durable


def test_a_non_durable_subscription_is_gone_after_a_restart(bench, client):
    Subscriber(client, subscription="kept").opened()
    Subscriber(client, subscription="lost", **READER).opened()
    bench.kill()

    assert subscriptions(bench) == ["pulsar/kept"]


def test_durable_and_non_durable_ones_of_a_name_clash(bench, client):
    Subscriber(client, subscription="durable").opened()
    Subscriber(client, subscription="passing", **READER).opened()

    assert Subscriber(client, subscription="durable", **READER).refusal() == (
        ServerError.NotAllowedError,
        "Durable subscription with the same name already exists.",
    )
    assert Subscriber(client, subscription="passing").refusal() == (
        ServerError.NotAllowedError,
        "NonDurable subscription with the same name already exists.",
    )
    assert subscriptions(bench) == ["pulsar/durable", "pulsar/passing"]


def test_subscriptions_of_a_topic_do_not_disturb_each_other(client):
    one, two = [Subscriber(client, subscription=name).opened().flow(10) for name in "ab"]
    sent = Publisher(client).publish_all(3)
    one.ack(*one.ids())

    assert two.ids() == sent
    assert (one.unacked, two.unacked) == (0, 3)


def test_a_subscription_of_one_partition_leaves_the_others_alone(bench, client):
    topic = bench.engine.create_topic(topic_name("orders"), policy=TopicPolicy(), queues=3)
    Subscriber(client, f"{TOPIC}-partition-1").opened()

    (stored,) = topic.subscriptions.values()
    assert stored.queue_ids == [topic.queues[1].queue_id]


# ---- ranges without end -------------------------------------------------------------------------


def test_more_ranges_than_a_consumer_may_have_are_refused(bench, client):
    ranges = [(number, number) for number in range(room.KEY_RANGES_MAX + 1)]
    Subscriber(client, kind="Key_Shared", keySharedMeta=sticky(*ranges[1:])).opened()
    code, text = Subscriber(client, kind="Key_Shared", keySharedMeta=sticky(*ranges)).refusal()

    assert code is ServerError.ConsumerAssignError
    assert f"{room.KEY_RANGES_MAX} ranges" in text


def test_very_many_ranges_of_several_consumers_are_compared_in_no_time(bench, client):
    """Comparing each with each would be a hundred million steps."""
    for start in range(3):
        ranges = [(number, number) for number in range(start, 12_000, 3)]
        Subscriber(client, kind="Key_Shared", keySharedMeta=sticky(*ranges)).opened()
    clash = [(number, number) for number in range(20_000, 24_000)] + [(11_999, 11_999)]

    refused = Subscriber(client, kind="Key_Shared", keySharedMeta=sticky(*clash))
    assert refused.refusal()[0] is ServerError.ConsumerAssignError
    Subscriber(client, kind="Key_Shared", keySharedMeta=sticky(*clash[:-1])).opened()
