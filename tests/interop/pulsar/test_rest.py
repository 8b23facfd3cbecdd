"""The REST API as clients' tests and the administration tool use it (observations 13)."""

import pytest

from kit.pulsar_peer import EARLIEST


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
