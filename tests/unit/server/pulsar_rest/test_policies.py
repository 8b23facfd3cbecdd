"""Unit tests for policies over REST: said, told, in effect, and there after a restart."""

import pytest

from kit.pulsar.bench import message_tail
from penstock.model.names import TopicName
from penstock.server.pulsar_rest.policies import POLICIES
from penstock.wire.pulsar.frames import NO_ID, ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

NAMESPACE = "namespaces/public/default"
TOPIC = "persistent/public/default/orders"
NAME = "persistent://public/default/orders"
ORDERS = TopicName("", "orders")

RETENTION = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}
PUBLISH = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
DISPATCH = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
SUBSCRIBE = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10}

VALUES = {
    "retention": RETENTION,
    "message_ttl_s": 60,
    "deduplication": True,
    "schema_compatibility_strategy": "FORWARD",
    "schema_validation_enforced": True,
    "is_allow_auto_update_schema": False,
    "publish_rate": PUBLISH,
    "dispatch_rate": DISPATCH,
    "subscription_dispatch_rate": DISPATCH,
    "subscribe_rate": SUBSCRIBE,
    "max_unacked_messages_per_consumer": 5,
    "max_unacked_messages_per_subscription": 6,
    "subscription_types_enabled": ["Shared"],
    "auto_topic_creation": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 2,
    },
    "auto_subscription_creation": {"allowAutoSubscriptionCreation": False},
    "max_producers_per_topic": 3,
    "max_consumers_per_topic": 4,
    "max_consumers_per_subscription": 2,
    "inactive_topic": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    },
    "delayed_delivery": {"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 0},
    "max_message_size": 1000,
    "persistence": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 1.0,
    },
}

PLACES = [
    pytest.param(policy, place, id=f"{policy.field}-{place.split('/')[0]}")
    for policy in POLICIES
    for word, place in (
        (policy.of_namespace, f"{NAMESPACE}/{policy.of_namespace}"),
        (policy.of_topic, f"{TOPIC}/{policy.of_topic}"),
    )
    if word
]


@pytest.fixture
def topic(rest):
    rest.done("PUT", TOPIC)


# ---- said and told


def test_every_policy_is_tried_here():
    assert set(VALUES) == {policy.field for policy in POLICIES}


@pytest.mark.parametrize(("policy", "place"), PLACES)
def test_a_policy_is_said_told_kept_and_taken_back(bench, rest, topic, policy, place):
    before = rest("GET", place)
    value = VALUES[policy.field]
    rest.done(policy.method, place, value)
    assert rest.get(place) == value
    assert rest.get(f"{place}?applied=true") == value
    bench.kill()
    assert rest.get(place) == value
    rest.done("DELETE", place)
    bench.kill()
    after = rest("GET", place)
    assert (after.status, after.body) == (before.status, before.body)


@pytest.mark.parametrize("policy", [each for each in POLICIES if each.among_all],
                         ids=lambda policy: policy.field)  # fmt: skip
def test_a_policy_is_among_all_of_its_namespace(rest, policy):
    value = VALUES[policy.field]
    body = {policy.among_all: {"standalone": value} if policy.by_cluster else value}
    rest.done("PUT", "namespaces/public/other", body)
    assert rest.get("namespaces/public/other")[policy.among_all] == body[policy.among_all]
    if policy.of_namespace:
        assert rest.get(f"namespaces/public/other/{policy.of_namespace}") == value


def test_what_nobody_says_is_nothing(rest, topic):
    assert rest("GET", f"{TOPIC}/retention").status == 204
    assert rest("GET", f"{NAMESPACE}/messageTTL").status == 204
    assert rest.get(f"{NAMESPACE}/schemaCompatibilityStrategy") == "UNDEFINED"
    assert rest.get(f"{TOPIC}/maxUnackedMessagesOnConsumer?applied=true") == 50_000


def test_the_nearest_counts(rest, topic):
    rest.done("POST", f"{NAMESPACE}/messageTTL", 60)
    assert rest.get(f"{TOPIC}/messageTTL?applied=true") == 60
    rest.done("POST", f"{TOPIC}/messageTTL?messageTTL=30")
    assert rest.get(f"{TOPIC}/messageTTL?applied=true") == 30
    rest.done("DELETE", f"{TOPIC}/messageTTL")
    assert rest.get(f"{TOPIC}/messageTTL?applied=true") == 60


def test_policies_go_with_their_topic(rest, topic):
    rest.done("POST", f"{TOPIC}/retention", RETENTION)
    rest.done("DELETE", TOPIC)
    rest.done("PUT", TOPIC)
    assert rest("GET", f"{TOPIC}/retention").status == 204


def test_a_partition_has_the_policies_of_its_topic(rest):
    rest.done("PUT", "persistent/public/default/parts/partitions", 2)
    rest.done("POST", "persistent/public/default/parts-partition-1/messageTTL", 5)
    assert rest.get("persistent/public/default/parts/messageTTL") == 5


# ---- backlog quotas


@pytest.mark.parametrize("place", [NAMESPACE, TOPIC])
def test_quotas_are_said_by_their_type(bench, rest, topic, place):
    assert rest.get(f"{place}/backlogQuotaMap") == {}
    size = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    age = {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}
    rest.done("POST", f"{place}/backlogQuota", size)
    rest.done("POST", f"{place}/backlogQuota?backlogQuotaType=message_age", age)
    bench.kill()
    # Older tools say limit for limitSize.
    shown = {"destination_storage": {**size, "limit": 1000}, "message_age": {**age, "limit": -1}}
    assert rest.get(f"{place}/backlogQuotaMap") == shown
    assert rest.get(f"{place}/backlogQuotaMap?applied=true") == shown
    rest.done("DELETE", f"{place}/backlogQuota")
    assert list(rest.get(f"{place}/backlogQuotaMap")) == ["message_age"]


def test_older_tools_say_limit(rest):
    rest.done("POST", f"{NAMESPACE}/backlogQuota", {"limit": 77, "policy": "producer_exception"})
    assert rest.get(f"{NAMESPACE}/backlogQuotaMap")["destination_storage"]["limitSize"] == 77


def test_what_is_kept_must_be_more_than_what_may_wait(rest):
    quota = {"limitSize": 20 << 20, "policy": "producer_exception"}
    rest.done("POST", f"{NAMESPACE}/retention", RETENTION)
    status, text = rest.refused("POST", f"{NAMESPACE}/backlogQuota", quota)
    assert (status, text[:45]) == (412, "Backlog Quota exceeds configured retention qu")
    rest.done("DELETE", f"{NAMESPACE}/retention")
    rest.done("POST", f"{NAMESPACE}/backlogQuota", quota)
    status, text = rest.refused("POST", f"{NAMESPACE}/retention", RETENTION)
    assert (status, text[:45]) == (412, "Retention Quota must exceed configured backlo")


# ---- what is refused


@pytest.mark.parametrize(
    ("method", "policy", "body", "status"),
    [
        ("POST", "retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, 400),
        ("POST", "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}, 400),
        ("POST", "retention", b"{x", 400),
        ("POST", "retention", b"", 400),
        ("POST", "messageTTL", -1, 412),
        ("POST", "messageTTL", b'"soon"', 400),
        ("POST", "maxUnackedMessagesPerConsumer", 1 << 40, 412),
        ("POST", "deduplication", b"7", 400),
        ("PUT", "schemaCompatibilityStrategy", "WHATEVER", 400),
        ("POST", "subscriptionTypesEnabled", ["Own"], 400),
        ("POST", "autoTopicCreation", {"topicType": "odd"}, 412),
        ("POST", "autoTopicCreation", {"topicType": "partitioned", "defaultNumPartitions": 0}, 412),
        ("POST", "inactiveTopicPolicies", {"inactiveTopicDeleteMode": "never"}, 400),
        ("POST", "inactiveTopicPolicies", {"maxInactiveDurationSeconds": 0}, 412),
        ("POST", "backlogQuota", {"policy": "odd"}, 400),
        ("POST", "backlogQuota?backlogQuotaType=odd", {"policy": "producer_exception"}, 400),
        ("POST", "nothing", 1, 404),
    ],
)
def test_a_policy_that_cannot_be_is_refused(rest, method, policy, body, status):
    before = rest.get(NAMESPACE)
    assert rest(method, f"{NAMESPACE}/{policy}", body).status == status
    assert rest.get(NAMESPACE) == before


def test_topics_that_nobody_makes_need_no_type(rest):
    rule = {"allowAutoTopicCreation": False, "topicType": ""}
    assert rest("POST", f"{NAMESPACE}/autoTopicCreation", rule).status == 204


@pytest.mark.parametrize(
    "place", ["namespaces/public/nowhere", "persistent/public/default/nowhere"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_policies_of_what_is_not_there(rest, place, method):
    assert rest(method, f"{place}/retention", RETENTION).status == 404


# ---- in effect

LEVELS = pytest.mark.parametrize("place", [NAMESPACE, TOPIC], ids=["namespace", "topic"])


def of(place, of_namespace, of_topic=""):
    return f"{place}/{of_namespace if place == NAMESPACE else of_topic or of_namespace}"


@LEVELS
def test_retention_is_a_rule_of_the_topic(bench, rest, topic, place):
    rest.done("POST", of(place, "retention"), RETENTION)
    for _ in range(2):
        policy = bench.engine.topic(ORDERS).policy
        assert (policy.retention_ms, policy.retention_bytes_max) == (3_600_000, 10 << 20)
        bench.kill()


@LEVELS
def test_messages_expire(bench, rest, shop, place):
    rest.done("PUT", f"{TOPIC}/subscription/s")
    rest.done("POST", of(place, "messageTTL"), 60)
    shop.send(b"old")
    bench.advance(61_000)
    bench.settle()
    assert rest.get(f"{TOPIC}/stats")["subscriptions"]["s"]["msgBacklog"] == 0


@LEVELS
def test_a_quota_keeps_producers_out(bench, rest, shop, place):
    rest.done("PUT", f"{TOPIC}/subscription/s")
    quota = {"limitSize": 100, "policy": "producer_exception"}
    rest.done("POST", of(place, "backlogQuota"), quota)
    shop.send(b"x" * 200)
    code, _ = bench.client().error("PRODUCER", topic=NAME, producer_id=1, request_id=1)
    assert code is ServerError.ProducerBlockedQuotaExceededException


@LEVELS
def test_duplicates_are_found(rest, shop, place):
    rest.done("POST", of(place, "deduplication", "deduplicationEnabled"), True)
    shop.send(tail=message_tail(5, b"x"))
    shop.client.publish(1, 0, b"again")
    assert shop.client.next().send_receipt.message_id.entryId == NO_ID


@LEVELS
def test_a_strategy_of_schemas_decides(rest, topic, place):
    def post(kind):
        body = {"type": kind, "schema": "", "properties": {}}
        return rest("POST", "schemas/public/default/orders/schema", body).status

    assert (post("STRING"), post("INT32")) == (200, 409)
    rest.done("PUT", of(place, "schemaCompatibilityStrategy"), "ALWAYS_COMPATIBLE")
    assert post("INT32") == 200


@LEVELS
def test_a_dispatch_rate_spreads_messages(bench, rest, shop, place):
    rest.done("POST", of(place, "dispatchRate"), DISPATCH)
    for _ in range(25):
        shop.send(b"x")
    shop.subscribe("s", permits=100)
    assert len(shop.delivered()) == 10
    bench.advance(1_000)
    assert len(shop.delivered()) == 10


@LEVELS
def test_a_dispatch_rate_of_each_subscription_spreads_messages(bench, rest, shop, place):
    rest.done("POST", of(place, "subscriptionDispatchRate"), DISPATCH)
    for _ in range(25):
        shop.send(b"x")
    for name in "st":
        shop.subscribe(name, permits=100)
        assert len(shop.delivered()) == 10


@LEVELS
def test_a_publish_rate_withholds_receipts(bench, rest, shop, place):
    rest.done("POST", of(place, "publishRate"), PUBLISH)
    for number in range(25):
        shop.client.publish(1, number, b"x")
    receipts = shop.kinds().count("SEND_RECEIPT")
    assert receipts < 25
    bench.advance(3_000)
    assert receipts + shop.kinds().count("SEND_RECEIPT") == 25


@LEVELS
def test_a_subscribe_rate_keeps_consumers_out(rest, shop, place):
    rest.done("POST", of(place, "subscribeRate"), SUBSCRIBE)
    asked = {"topic": NAME, "subscription": "s", "subType": "Shared", "consumer_id": 7}
    for number in range(2):
        assert shop.client.call("SUBSCRIBE", **asked, request_id=number).type == BaseCommand.SUCCESS
        shop.client.call("CLOSE_CONSUMER", consumer_id=7, request_id=number)
    code, text = shop.client.error("SUBSCRIBE", **asked, request_id=3)
    assert code is ServerError.NotAllowedError
    assert text == "Subscribe limited by subscribe rate limit per consumer."


@LEVELS
@pytest.mark.parametrize(
    ("of_namespace", "of_topic"),
    [
        ("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer"),
        ("maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription"),
    ],
)
def test_unacked_messages_stop_a_consumer(rest, shop, place, of_namespace, of_topic):
    for _ in range(10):
        shop.send(b"x")
    # Said to one that is there already.
    shop.subscribe("s", "Shared")
    rest.done("POST", of(place, of_namespace, of_topic), 4)
    shop.client.say("FLOW", consumer_id=1, messagePermits=100)
    assert len(shop.delivered()) == 4
    stats = rest.get(f"{TOPIC}/stats")["subscriptions"]["s"]
    told = stats["consumers"][0]
    assert told["unackedMessages"] == stats["unackedMessages"] == 4
    is_own = of_namespace.endswith("Consumer")
    assert told["blockedConsumerOnUnackedMsgs"] is is_own
    assert stats["blockedSubscriptionOnUnackedMsgs"] is not is_own
    rest.done("DELETE", of(place, of_namespace, of_topic))
    assert len(shop.delivered()) == 6


@LEVELS
def test_a_type_that_is_not_allowed_is_refused(rest, shop, place):
    rest.done("POST", of(place, "subscriptionTypesEnabled"), ["Shared"])
    asked = {"topic": NAME, "subscription": "s", "consumer_id": 1, "request_id": 1}
    code, _ = shop.client.error("SUBSCRIBE", **asked, subType="Exclusive")
    assert code is ServerError.NotAllowedError
    assert shop.client.call("SUBSCRIBE", **asked, subType="Shared").type == BaseCommand.SUCCESS


@LEVELS
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("maxProducersPerTopic", "maxProducers"), ServerError.ProducerBusy),
        (("maxConsumersPerTopic", "maxConsumers"), ServerError.ConsumerBusy),
        (("maxConsumersPerSubscription",), ServerError.ConsumerBusy),
    ],
)
def test_who_is_too_many_is_refused(rest, shop, place, words, code):
    rest.done("POST", of(place, *words), 1)
    shop.subscribe("s", "Shared")
    asked = {"topic": NAME, "request_id": 1}
    if code is ServerError.ProducerBusy:
        found, _ = shop.client.error("PRODUCER", **asked, producer_id=2)
    else:
        asked |= {"subscription": "s", "subType": "Shared", "consumer_id": 2}
        found, _ = shop.client.error("SUBSCRIBE", **asked)
    assert found is code
