"""The REST API as clients' tests and the administration tool use it (observations 13)."""

import json

import pytest

from kit.pulsar_peer import EARLIEST
from penstock.wire.pulsar.protocol_pb2 import KeyValue


def path(pulsar, topic):
    return pulsar.path(topic)


@pytest.fixture
def plain(pulsar):
    """Path of a topic that nobody has made."""
    return f"persistent/public/default/{pulsar.name()}"


def test_partitions_are_made_once(pulsar, plain):
    assert pulsar.rest.put(f"{plain}/partitions", 3).status == 204
    again = pulsar.rest.put(f"{plain}/partitions", 3)
    assert (again.status, again.reason) == (409, "This topic already exists")
    found = pulsar.rest.get(f"{plain}/partitions")
    assert found.status == 200
    assert found.json["partitions"] == 3
    assert pulsar.rest.post(f"{plain}/partitions", 2).status == 422
    assert pulsar.rest.post(f"{plain}/partitions", 5).status == 204
    assert pulsar.rest.get(f"{plain}/partitions").json["partitions"] == 5


@pytest.mark.parametrize(
    "body", [{"partitions": 3}, {"partitions": "3", "properties": {"a": "b"}}, "3"]
)
def test_partitions_may_be_given_as_other_tools_do(pulsar, plain, body):
    kind = "application/vnd.partitioned-topic-metadata+json"
    assert pulsar.rest.call("PUT", f"{plain}/partitions", body, kind).status == 204
    assert pulsar.rest.get(f"{plain}/partitions").json["partitions"] == 3


def test_numbers_and_booleans_may_be_strings(pulsar):
    namespace = f"namespaces/{pulsar.namespace()}"
    quota = {"limit": "10240", "policy": "producer_request_hold"}
    assert pulsar.rest.post(f"{namespace}/backlogQuota", quota).status == 204
    found = pulsar.rest.get(f"{namespace}/backlogQuotaMap").json["destination_storage"]
    assert (found["limit"], found["limitSize"]) == (10240, 10240)
    assert pulsar.rest.post(f"{namespace}/deduplication", "true").status == 204
    assert pulsar.rest.get(f"{namespace}/deduplication").json is True
    assert pulsar.rest.post(f"{namespace}/messageTTL", "5").status == 204
    assert pulsar.rest.get(f"{namespace}/messageTTL").json == 5
    assert pulsar.rest.post(f"{namespace}/messageTTL", "true").status == 400


def test_partitions_of_a_plain_topic_are_a_conflict(pulsar, plain):
    assert pulsar.rest.put(plain).status == 204
    again = pulsar.rest.put(f"{plain}/partitions", 3)
    assert (again.status, again.reason) == (409, "This topic already exists")


def test_partitions_of_an_unknown_topic(pulsar, plain):
    found = pulsar.rest.get(f"{plain}/partitions?checkAllowAutoCreation=false")
    assert found.status == 404
    topic = plain.replace("persistent/", "persistent://", 1)
    assert found.reason == f"Topic {topic} not found"


def test_a_plain_topic_is_made_once_and_deleted(pulsar, plain):
    assert pulsar.rest.put(plain).status == 204
    assert pulsar.rest.put(plain).status == 409
    assert pulsar.rest.delete(plain).status == 204
    assert pulsar.rest.delete(plain).status == 404


def test_a_topic_in_use_is_deleted_by_force_only(pulsar, peer, topic):
    peer.producer(topic)
    peer.consumer(topic, "s")
    found = pulsar.rest.delete(path(pulsar, topic))
    assert found.status == 412
    assert "Topic has 2 connected producers/consumers" in found.reason
    assert pulsar.rest.delete(f"{path(pulsar, topic)}?force=true").status == 204


def test_lookup(pulsar, plain):
    found = pulsar.rest.get(f"/lookup/v2/topic/{plain}")
    assert found.status == 200
    for name in ("brokerUrl", "nativeUrl"):
        assert found.json[name].startswith("pulsar://")
    assert found.json["httpUrl"].startswith("http://")
    assert not found.json["brokerUrlSsl"]


def test_lookup_in_an_unknown_namespace(pulsar):
    found = pulsar.rest.get("/lookup/v2/topic/persistent/public/nowhere/x")
    assert (found.status, found.reason) == (404, "Namespace not found")


def test_namespaces_and_tenants(pulsar):
    name = pulsar.name("ns")
    assert pulsar.rest.put(f"namespaces/public/{name}", {}).status == 204
    again = pulsar.rest.put(f"namespaces/public/{name}", {})
    assert (again.status, again.reason) == (409, "Namespace already exists")
    found = pulsar.rest.put(f"namespaces/nobody-{name}/x", {})
    assert (found.status, found.reason) == (404, "Tenant does not exist")
    found = pulsar.rest.get(f"namespaces/public/no-{name}/topics")
    assert (found.status, found.reason) == (404, "Namespace does not exist")
    assert pulsar.rest.get(f"namespaces/public/{name}/topics").json == []


def test_a_tenant_is_made_once(pulsar):
    name = pulsar.name("tenant")
    clusters = pulsar.rest.get("clusters").json
    body = {"allowedClusters": clusters, "adminRoles": []}
    assert pulsar.rest.put(f"tenants/{name}", body).status == 204
    again = pulsar.rest.put(f"tenants/{name}", body)
    assert (again.status, again.reason) == (409, "Tenant already exist")
    assert pulsar.rest.put(f"namespaces/{name}/x", {}).status == 204


def test_compaction_runs_and_says_so(pulsar, peer, topic):
    producer = peer.producer(topic)
    for key in ("a", "b", "a"):
        producer.publish(key.encode(), partition_key=key)
    assert pulsar.rest.put(f"{path(pulsar, topic)}/compaction").status == 204
    found = pulsar.rest.get(f"{path(pulsar, topic)}/compaction")
    assert found.status == 200
    assert found.json["status"] in {"RUNNING", "SUCCESS"}
    pulsar.eventually(
        lambda: pulsar.rest.get(f"{path(pulsar, topic)}/compaction").json["status"] == "SUCCESS",
        "compaction is done",
    )
    consumer = peer.consumer(topic, "s", read_compacted=True, initialPosition="Earliest")
    consumer.flow(10)
    assert [each.payload for each in consumer.messages(2)] in ([b"b", b"a"], [b"a", b"b"])
    peer.expect_nothing()


def test_subscriptions_are_made_once(pulsar, peer, topic):
    sent = peer.producer(topic).publish()
    place = f"{path(pulsar, topic)}/subscription/made"
    latest = {"ledgerId": 9223372036854775807, "entryId": 9223372036854775807}
    assert pulsar.rest.put(place, latest).status == 204
    again = pulsar.rest.put(place, latest)
    assert (again.status, again.reason) == (409, "Subscription already exists for topic")
    early = f"{path(pulsar, topic)}/subscription/early"
    assert pulsar.rest.put(early, {"ledgerId": -1, "entryId": -1}).status == 204
    consumer = peer.consumer(topic, "early")
    consumer.flow(1)
    assert consumer.message().id == sent
    assert sorted(pulsar.rest.get(f"{path(pulsar, topic)}/subscriptions").json) == ["early", "made"]


@pytest.mark.parametrize(
    ("method", "policy", "body"),
    [
        ("POST", "deduplication", False),
        ("PUT", "schemaCompatibilityStrategy", "FORWARD"),
        ("POST", "retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}),
        ("POST", "messageTTL", 60),
        ("POST", "maxUnackedMessagesPerConsumer", 5),
        ("POST", "persistence", {
            "bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 1.0,
        }),
    ],
)  # fmt: skip
def test_policies_are_set_and_told(pulsar, method, policy, body):
    namespace = pulsar.namespace()
    place = f"namespaces/{namespace}/{policy}"
    assert pulsar.rest.call(method, place, body).status == 204
    found = pulsar.rest.get(place)
    assert found.status == 200
    if isinstance(body, dict):
        assert {name: found.json[name] for name in body} == body
    else:
        assert found.json == body


def test_health_and_version(pulsar):
    assert pulsar.rest.get("brokers/health").text == "ok"
    found = pulsar.rest.get("brokers/version")
    assert found.status == 200
    if pulsar.is_real:
        assert found.text == "4.0.8"


def test_statistics_name_producers_consumers_and_backlog(pulsar, peer, topic):
    producer = peer.producer(topic, "p")
    producer.publish_all([b"x"] * 3)
    consumer = peer.consumer(topic, "s", "Shared", consumer_name="c", initialPosition="Earliest")
    consumer.flow(10)
    consumer.messages(3)
    found = pulsar.stats(topic)
    assert [each["producerName"] for each in found["publishers"]] == ["p"]
    subscription = found["subscriptions"]["s"]
    assert (subscription["type"], subscription["msgBacklog"]) == ("Shared", 3)
    told = subscription["consumers"][0]
    assert told["consumerName"] == "c"
    assert (told["availablePermits"], told["unackedMessages"]) == (7, 3)
    assert not told["blockedConsumerOnUnackedMsgs"]


def test_messages_are_peeked_skipped_and_reset(pulsar, peer, topic):
    sent = peer.producer(topic).publish_all([b"a", b"b", b"c"])
    peer.consumer(topic, "s", initialPosition="Earliest").close()
    place = f"{path(pulsar, topic)}/subscription/s"
    assert pulsar.rest.get(f"{place}/position/2").text == "b"
    assert pulsar.rest.post(f"{place}/skip/1").status == 204
    assert pulsar.backlog(topic, "s") == 2
    assert pulsar.rest.post(f"{place}/skip_all").status == 204
    assert pulsar.backlog(topic, "s") == 0
    assert pulsar.rest.post(f"{place}/resetcursor/0").status == 204
    reader = peer.reader(topic, EARLIEST)
    reader.flow(3)
    assert [each.id for each in reader.messages(3)] == sent
    assert pulsar.backlog(topic, "s") == 3


def test_a_backlog_is_analyzed_and_a_topic_truncated(pulsar, peer, topic):
    sent = peer.producer(topic).publish_all([b"a", b"b", b"c", [b"d"] * 3])
    consumer = peer.consumer(topic, "s", "Shared", initialPosition="Earliest")
    consumer.flow(2)
    consumer.messages(2)
    consumer.acked(sent[1])
    place = f"{path(pulsar, topic)}/subscription/s/analyzeBacklog"
    found = pulsar.rest.post(place).json
    assert found == {
        "entries": 3, "messages": 5, "aborted": False,
        "filterRejectedEntries": 0, "filterAcceptedEntries": 3, "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0, "filterAcceptedMessages": 5, "filterRescheduledMessages": 0,
        "firstMessageId": "{}:{}".format(*sent[0]), "lastMessageId": "{}:{}".format(*sent[3]),
    }  # fmt: skip
    third = {"ledgerId": sent[2][0], "entryId": sent[2][1]}
    assert pulsar.rest.post(place, third).json["messages"] == 4
    assert pulsar.rest.delete(f"{path(pulsar, topic)}/truncate").status == 204
    assert pulsar.backlog(topic, "s") == 0
    found = pulsar.rest.post(place).json
    assert (found["entries"], "firstMessageId" in found) == (0, False)


def test_lists_of_topics(pulsar, peer):
    namespace = pulsar.namespace()
    topic = f"persistent://{namespace}/one"
    pulsar.look_up(topic)
    peer.producer(topic)
    parts = pulsar.topic(namespace=namespace, partitions=2)
    assert topic in pulsar.rest.get(f"persistent/{namespace}").json
    assert pulsar.rest.get(f"persistent/{namespace}/partitioned").json == [parts]
    found = pulsar.rest.get(f"namespaces/{namespace}/topics").json
    assert sorted(found) == sorted([topic, *(f"{parts}-partition-{i}" for i in (0, 1))])
    assert namespace in pulsar.rest.get("namespaces/public").json
    assert "public" in pulsar.rest.get("tenants").json


# ---- subscriptions


FIRST = {"ledgerId": -1, "entryId": -1}
MISSING = [
    ("GET", "subscriptions", None),
    ("DELETE", "subscription/s", None),
    ("POST", "subscription/s/skip/1", None),
    ("POST", "subscription/s/skip_all", None),
    ("POST", "subscription/s/analyzeBacklog", None),
    ("DELETE", "truncate", None),
    ("POST", "subscription/s/expireMessages/1", None),
    ("POST", "all_subscription/expireMessages/1", None),
    ("POST", "subscription/s/resetcursor/1", None),
    ("GET", "subscription/s/position/1", None),
    ("GET", "messageid/1", None),
    ("GET", "stats", None),
    ("GET", "internalStats", None),
    ("GET", "lastMessageId", None),
    ("POST", "terminate", None),
    ("PUT", "unload", None),
    ("GET", "retention", None),
]


@pytest.mark.parametrize(("method", "what", "body"), MISSING)
def test_nothing_is_done_to_a_topic_that_is_not_there(pulsar, plain, method, what, body):
    found = pulsar.rest.call(method, f"{plain}/{what}", body)
    topic = plain.replace("persistent/", "persistent://", 1)
    assert (found.status, found.reason) == (404, f"Topic {topic} not found")


@pytest.mark.parametrize(
    ("method", "what", "body"),
    [
        ("DELETE", "", None),
        ("POST", "/skip/1", None),
        ("POST", "/skip_all", None),
        ("POST", "/expireMessages/1", None),
        ("POST", "/resetcursor/1", None),
        ("POST", "/resetcursor", FIRST),
    ],
)
def test_nothing_is_done_to_a_subscription_that_is_not_there(pulsar, plain, method, what, body):
    assert pulsar.rest.put(plain).status == 204
    found = pulsar.rest.call(method, f"{plain}/subscription/s{what}", body)
    topic = plain.replace("persistent/", "persistent://", 1)
    assert (found.status, found.reason) == (404, f"Subscription s not found for topic {topic}")


def test_a_subscription_makes_its_topic(pulsar, plain):
    assert pulsar.rest.put(f"{plain}/subscription/s", "earliest").status == 204
    assert pulsar.rest.get(f"{plain}/subscriptions").json == ["s"]


def test_a_subscription_in_use_is_deleted_by_force_only(pulsar, peer, topic):
    consumer = peer.consumer(topic, "s")
    place = f"{path(pulsar, topic)}/subscription/s"
    found = pulsar.rest.delete(place)
    assert (found.status, found.reason) == (412, "Subscription has active connected consumers")
    assert pulsar.rest.delete(f"{place}?force=true").status == 204
    consumer.expect_closed()


def test_a_reset_to_a_message_and_behind_it(pulsar, peer, topic):
    sent = peer.producer(topic).publish_all([b"x"] * 5)
    place = f"{path(pulsar, topic)}/subscription/s"
    assert pulsar.rest.put(place).status == 204
    where = {"ledgerId": sent[2][0], "entryId": sent[2][1], "partitionIndex": -1}
    for body, left in ((where, 3), ({**where, "excluded": True}, 2), (FIRST, 5)):
        assert pulsar.rest.post(f"{place}/resetcursor", body).status == 204
        assert pulsar.backlog(topic, "s") == left
    assert pulsar.rest.post(f"{place}/expireMessages", where).status == 204
    pulsar.eventually(lambda: pulsar.backlog(topic, "s") == 2, "the first three expire")


def test_partitions_have_it_together(pulsar):
    topic = pulsar.topic(partitions=3)
    place = f"{path(pulsar, topic)}/subscription/s"
    assert pulsar.rest.put(place, FIRST).status == 204
    again = pulsar.rest.put(place, FIRST)
    assert (again.status, again.reason) == (409, "Subscription already exists for topic")
    for number in range(3):
        part = f"{path(pulsar, topic)}-partition-{number}"
        assert pulsar.rest.get(f"{part}/subscriptions").json == ["s"]
    assert pulsar.rest.get(f"{path(pulsar, topic)}/subscriptions").json == ["s"]
    assert pulsar.rest.post(f"{place}/skip_all").status == 204
    assert pulsar.rest.post(f"{place}/resetcursor/0").status == 204
    for method, what, body in (
        ("POST", "skip/1", None),
        ("POST", "resetcursor", FIRST),
        ("GET", "position/1", None),
    ):
        assert pulsar.rest.call(method, f"{place}/{what}", body).status == 405
    found = pulsar.rest.get(f"{path(pulsar, topic)}/partitioned-stats").json
    assert found["metadata"]["partitions"] == len(found["partitions"]) == 3
    assert list(found["subscriptions"]) == ["s"]
    assert pulsar.rest.delete(place).status == 204
    assert pulsar.rest.get(f"{path(pulsar, topic)}/subscriptions").json == []


@pytest.mark.parametrize(
    ("method", "what", "status"),
    [
        ("PUT", "subscription/s", 400),
        ("POST", "subscription/s/expireMessages/5", 405),
        ("POST", "subscription/s/resetcursor/0", 204),
        ("GET", "subscription/s/position/1", 405),
        ("GET", "messageid/0", 405),
        ("GET", "lastMessageId", 405),
        ("POST", "terminate", 406),
    ],
)
def test_without_a_log_there_are_no_places(pulsar, peer, method, what, status):
    topic = pulsar.topic(domain="non-persistent")
    peer.consumer(topic, "s", "Shared")
    assert pulsar.rest.get(f"{path(pulsar, topic)}/subscriptions").json == ["s"]
    body = FIRST if method == "PUT" else None
    assert pulsar.rest.call(method, f"{path(pulsar, topic)}/{what}", body).status == status


# ---- messages


def test_a_peeked_message_says_what_it_is(pulsar, peer, topic):
    producer = peer.producer(topic, "till")
    place = f"{path(pulsar, topic)}/subscription/s"
    pulsar.rest.put(place)
    ledger, entry = producer.publish(
        b"body",
        partition_key="k",
        publish_time=1_700_000_000_123,
        event_time=1_600_000_000_000,
        properties=[KeyValue(key="colour", value="red")],
    )
    found = pulsar.rest.get(f"{place}/position/1")
    assert (found.status, found.text) == (200, "body")
    told = found.headers
    assert told["x-pulsar-message-id"] == f"{ledger}:{entry}"
    assert json.loads(told["x-pulsar-property"]) == {"colour": "red"}
    assert told["x-pulsar-publish-time"] == "2023-11-14T22:13:20.123Z"
    assert told["x-pulsar-event-time"].startswith("2020-09-13T12:26:40")
    assert told["x-pulsar-producer-name"] == "till"
    assert told["x-pulsar-partition-key"] == "k"
    assert told["x-pulsar-is-encrypted"] == "false"
    missing = pulsar.rest.get(f"{place}/position/2")
    assert (missing.status, missing.reason) == (404, "Message not found")
    by_id = pulsar.rest.get(f"{path(pulsar, topic)}/ledger/{ledger}/entry/{entry}")
    assert by_id.text == "body"
    assert pulsar.rest.get(f"{path(pulsar, topic)}/examinemessage").text == "body"


def test_a_peeked_batch_comes_whole(pulsar, peer, topic):
    place = f"{path(pulsar, topic)}/subscription/s"
    pulsar.rest.put(place)
    peer.producer(topic).publish([b"one", b"two"])
    found = pulsar.rest.get(f"{place}/position/1")
    assert found.headers["x-pulsar-num-batch-message"] == "2"
    assert found.text.encode() == b"\0\0\0\2\x18\3one\0\0\0\2\x18\3two"


def test_ids_at_times(pulsar, peer, topic):
    producer = peer.producer(topic)
    sent = [producer.publish(publish_time=1_000 * n, event_time=9_000 - n) for n in (1, 2, 3)]
    for ms, expected in ((0, sent[0]), (1_500, sent[1]), (3_000, sent[2])):
        found = pulsar.rest.get(f"{path(pulsar, topic)}/messageid/{ms}").json
        assert (found["ledgerId"], found["entryId"]) == expected
    found = pulsar.rest.get(f"{path(pulsar, topic)}/messageid/9000").json
    assert found["entryId"] == sent[2][1] + 1


# ---- schemas


def text_of(*fields):
    said = [{"name": each, "type": ["null", "string"], "default": None} for each in fields]
    return json.dumps({"type": "record", "name": "A", "fields": said})


def test_schemas_are_brought_shown_and_deleted(pulsar, plain):
    pulsar.rest.put(plain)
    place = plain.replace("persistent/", "schemas/", 1)
    missing = pulsar.rest.get(f"{place}/schema")
    assert (missing.status, missing.reason) == (404, "Schema not found")
    body = {"type": "JSON", "schema": text_of("a"), "properties": {"x": "y"}}
    more = {**body, "schema": text_of("a", "b")}
    for given, version in ((body, 0), (body, 0), (more, 1), (body, 0)):
        found = pulsar.rest.post(f"{place}/schema", given)
        assert (found.status, found.json) == (200, {"version": {"version": version}})
    shown = pulsar.rest.get(f"{place}/schema").json
    assert (shown["version"], shown["type"], shown["data"]) == (1, "JSON", text_of("a", "b"))
    assert pulsar.rest.get(f"{place}/schema/0").json["data"] == text_of("a")
    assert pulsar.rest.get(f"{place}/schema/7").status == 404
    found = pulsar.rest.get(f"{place}/schemas").json["getSchemaResponses"]
    assert [each["version"] for each in found] == [0, 1]
    assert pulsar.rest.post(f"{place}/version", body).json == {"version": 0}
    other = {**body, "schema": text_of("c")}
    assert pulsar.rest.post(f"{place}/version", other).json == {"version": -1}
    found = pulsar.rest.post(f"{place}/compatibility", other)
    answer = {"schemaCompatibilityStrategy": "FULL", "compatibility": True}
    assert (found.status, found.json) == (202, answer)
    wrong = {"type": "STRING", "schema": "", "properties": {}}
    assert pulsar.rest.post(f"{place}/schema", wrong).status == 409
    assert pulsar.rest.post(f"{place}/schema", {**body, "schema": "{no"}).status == 422
    # Numbers go on: messages carry those of old schemas.
    assert pulsar.rest.delete(f"{place}/schema").json == {"version": 2}
    assert pulsar.rest.get(f"{place}/schema").status == 404
    assert pulsar.rest.post(f"{place}/schema", wrong).json == {"version": {"version": 3}}


def test_the_schema_of_a_pair_is_one_object(pulsar, plain):
    pulsar.rest.put(plain)
    place = plain.replace("persistent/", "schemas/", 1)
    data = '{"key":{"type":"string"},"value":{"type":"int"}}'
    types = {"key.schema.type": "AVRO", "value.schema.type": "AVRO"}
    body = {"type": "KEY_VALUE", "schema": data, "properties": types}
    assert pulsar.rest.post(f"{place}/schema", body).status == 200
    shown = pulsar.rest.get(f"{place}/schema").json
    assert (shown["data"], shown["properties"]) == (data, types)


# ---- partitions


@pytest.mark.parametrize(
    ("method", "what", "body", "status"),
    [
        ("PUT", "-partition-9", None, 412),
        ("PUT", "-partition-1/partitions", 3, 412),
        ("POST", "/partitions", 1, 422),
        ("POST", "/partitions", 2, 204),
        ("PUT", "x/partitions", 0, 406),
        ("POST", "x/partitions", 3, 409),
        ("DELETE", "", None, 409),
        ("POST", "/terminate", None, 405),
        ("DELETE", "x/partitions", None, 404),
        ("GET", "/stats", None, 404),
        ("GET", "x/partitioned-stats", None, 404),
    ],
)
def test_what_can_be_done_to_partitions(pulsar, method, what, body, status):
    topic = pulsar.topic(partitions=2)
    assert pulsar.rest.call(method, f"{path(pulsar, topic)}{what}", body).status == status
