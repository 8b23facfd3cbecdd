"""SUBSCRIBE: who gets in, who is refused with which words (observations 3)."""

import time

import pytest

from kit.pulsar_peer import EARLIEST, as_id, check_error
from penstock.wire.pulsar import protocol_pb2 as pb

DIFFERENT_TYPE = (
    "Subscription is of different type. Active subscription type of 'Shared' is different "
    "than the connecting consumer's type 'Exclusive'."
)
START = as_id(EARLIEST)


def test_the_same_consumer_id_again_succeeds_and_makes_nothing(pulsar, peer, topic):
    consumer = peer.consumer(topic, "s", "Shared")
    again = peer.consumer(topic, "s", "Shared", consumer_id=consumer.id)
    other = pulsar.topic()
    peer.consumer(other, "another", "Exclusive", consumer_id=again.id)
    producer = pulsar.peer().producer(topic)
    sent = producer.publish()
    consumer.flow(1)
    assert consumer.message().id == sent
    assert pulsar.rest.get(f"{pulsar.path(other)}/stats").status == 404


def test_the_same_consumer_id_while_the_first_is_not_done_is_not_ready(pulsar, peer, topic):
    """The holder of an exclusive subscription is asked for a sign of life meanwhile."""
    holder = pulsar.peer()
    holder.consumer(topic, "s")
    first, number = peer.subscribe(topic, "s")
    holder.expect("ping")
    second, _ = peer.subscribe(topic, "s", consumer_id=number)
    found = peer.expect_error("ServiceNotReady", "Consumer is already present on the connection")
    assert found.request_id == second
    holder.close()
    assert peer.answer(first).kind == "success"


def test_a_missing_topic_is_not_found_unless_creation_is_forced(peer, topic):
    text = f"Topic {topic} does not exist"
    peer.no_consumer(("TopicNotFound", text), topic, "s", force_topic_creation=False)


def test_a_missing_topic_is_not_found_where_creation_is_off(pulsar, peer):
    namespace = pulsar.namespace(autoTopicCreation={"allowAutoTopicCreation": False})
    topic = pulsar.topic(namespace=namespace)
    peer.no_consumer(("TopicNotFound", f"Topic {topic} does not exist"), topic, "s")
    peer.no_producer("TopicNotFound", f"Topic not found {topic}", topic)


def test_a_partition_that_is_not_there_is_not_found(pulsar, peer):
    topic = f"{pulsar.topic(partitions=3)}-partition-9"
    pulsar.look_up(topic)
    peer.no_consumer(("TopicNotFound", f"Topic {topic} does not exist"), topic, "s")
    peer.no_producer("TopicNotFound", f"Topic not found {topic}", topic)


def test_a_missing_subscription_where_creation_is_off(pulsar, peer):
    namespace = pulsar.namespace(autoSubscriptionCreation={"allowAutoSubscriptionCreation": False})
    topic = pulsar.topic(namespace=namespace)
    peer.producer(topic)
    peer.no_consumer(("SubscriptionNotFound", "Subscription does not exist"), topic, "s")
    peer.reader(topic)
    peer.no_producer(
        "NotAllowedError",
        "Could not create the initial subscription due to the auto subscription creation "
        "is not allowed.",
        topic,
        initial_subscription_name="first",
    )


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_read_compacted_is_for_exclusive_and_failover(peer, topic, kind):
    text = "readCompacted only allowed on failover or exclusive subscriptions"
    peer.no_consumer(("NotAllowedError", text), topic, "s", kind, read_compacted=True)


def test_read_compacted_wants_a_log(pulsar, peer):
    topic = pulsar.topic(domain="non-persistent")
    text = "readCompacted only valid on persistent topics"
    peer.no_consumer(("NotAllowedError", text), topic, "s", read_compacted=True)


@pytest.mark.parametrize("name", ["", "   "])
def test_an_empty_name_is_refused(peer, topic, name):
    peer.no_consumer(("ProducerBusy", "Empty subscription name"), topic, name)


@pytest.mark.parametrize("name", ["pulsar.repl", "pulsar.replx", "pulsar.repl.c1", "pulsar.dedup"])
def test_reserved_names_are_refused(peer, topic, name):
    text = "Subscription with reserved subscription name attempted"
    peer.no_consumer(("ProducerBusy", text), topic, name)


@pytest.mark.parametrize("name", ["pulsar.dedupx", "__compaction", "a/b", "a b", "ü"])
def test_other_odd_names_are_taken(peer, topic, name):
    peer.consumer(topic, name)


def test_an_exclusive_holder_that_answers_keeps_its_place(pulsar, peer, topic):
    holder = pulsar.peer()
    holder.consumer(topic, "s")
    request, _ = peer.subscribe(topic, "s")
    holder.expect("ping")
    holder.command("pong")
    found = peer.expect_error("ConsumerBusy", "Exclusive consumer is already connected")
    assert found.request_id == request
    holder.expect_nothing()


def test_holders_that_are_silent_for_5_s_are_cut_off(pulsar, peer, topic, request):
    """Of an exclusive subscription and of a producer's name; in CI on a clock of the test's own."""
    if not (pulsar.is_real or request.config.getoption("--long")):
        pytest.skip("takes 5 s: --long; tests/unit/adapters/pulsar has it on a manual clock")
    holder = pulsar.peer()
    holder.consumer(topic, "s")
    holder.producer(topic, "n")
    began = time.monotonic()
    consumer, _ = peer.subscribe(topic, "s")
    producer = peer.request("producer", topic=topic, producer_id=50, producer_name="n")
    assert peer.answer(consumer).kind == "success"
    assert peer.answer(producer).kind == "producer_success"
    assert 4.5 <= time.monotonic() - began <= 8
    assert {each.kind for each in holder.drain()} == {"ping"}


def test_the_holder_on_the_same_connection_is_asked_too(peer, topic):
    peer.consumer(topic, "s")
    request, _ = peer.subscribe(topic, "s")
    while (found := peer.receive()).kind == "ping":
        peer.command("pong")
    assert (found.kind, found.command.request_id) == ("error", request)
    assert found.command.error == pb.ConsumerBusy


def test_the_name_of_a_partitioned_topic_itself(pulsar, peer):
    """4.0 makes a stray topic beside the partitions; Penstock refuses, as 4.2 does."""
    topic = pulsar.topic(partitions=2)
    if pulsar.is_real:
        peer.consumer(topic, "s")
        return
    text = f"Found partitioned metadata for non-partitioned topic: {topic}"
    peer.no_consumer(("NotAllowedError", text), topic, "s")
    peer.no_producer("NotAllowedError", text, topic)


def test_a_topic_that_is_being_deleted_is_not_ready(pulsar, peer, topic):
    """Whoever comes around a forced delete succeeds or is told that it is not ready."""
    pulsar.peer().consumer(topic, "holder", "Shared")

    def ask(number):
        request, _ = peer.subscribe(topic, f"s{number}", "Shared")
        other = peer.request("producer", topic=topic, producer_id=100 + number)
        return request, other

    requests = [each for number in range(10) for each in ask(number)]
    pulsar.rest.done("DELETE", f"{pulsar.path(topic)}?force=true")
    requests += [each for number in range(10, 20) for each in ask(number)]
    for request in requests:
        found = peer.answer(request)
        if found.kind == "error":
            check_error(found.command, "ServiceNotReady", None)


def test_a_type_other_than_the_live_one_is_refused(pulsar, peer, topic):
    peer.consumer(topic, "s", "Shared")
    pulsar.peer().no_consumer(("ConsumerBusy", DIFFERENT_TYPE), topic, "s", "Exclusive")


def test_with_nobody_connected_any_type_is_taken(peer, topic):
    for kind in ("Shared", "Exclusive", "Key_Shared", "Failover", "Shared"):
        consumer = peer.consumer(topic, "s", kind)
        while [each for each in peer.barrier() if each.kind != "active_consumer_change"]:
            pass
        consumer.close()


def sticky(*ranges):
    return {"keySharedMode": "STICKY", "hashRanges": [{"start": a, "end": b} for a, b in ranges]}


def test_another_key_shared_mode_or_order_is_refused(pulsar, peer, topic):
    peer.consumer(topic, "s", "Key_Shared", keySharedMeta={"keySharedMode": "AUTO_SPLIT"})
    second = pulsar.peer()
    second.no_consumer(
        (
            "ConsumerBusy",
            "Subscription is of different type. Active subscription key_shared mode of "
            "'AUTO_SPLIT' is different than the connecting consumer's key_shared mode 'STICKY'.",
        ),
        topic,
        "s",
        "Key_Shared",
        keySharedMeta=sticky((0, 100)),
    )
    second.no_consumer(
        (
            "ConsumerBusy",
            "Active subscription does not allow out of order delivery while the connecting "
            "consumer allows it.",
        ),
        topic,
        "s",
        "Key_Shared",
        keySharedMeta={"keySharedMode": "AUTO_SPLIT", "allowOutOfOrderDelivery": True},
    )


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([], "Ranges for KeyShared policy must not be empty."),
        ([(300, 200)], "Fixed hash range start > end for range: [300,200]"),
        (
            [(300, 400), (350, 500)],
            "Consumer's own ranges conflict: [300,400] overlaps with [350,500]",
        ),
    ],
)
def test_sticky_ranges_that_cannot_be_assigned(pulsar, peer, topic, ranges, text):
    peer.consumer(topic, "s", "Key_Shared", keySharedMeta=sticky((0, 100)))
    pulsar.peer().no_consumer(
        ("ConsumerAssignError", text), topic, "s", "Key_Shared", keySharedMeta=sticky(*ranges)
    )


def test_a_sticky_range_of_somebody_who_answers_is_refused(pulsar, peer, topic):
    peer.consumer(topic, "s", "Key_Shared", keySharedMeta=sticky((0, 100)))
    second = pulsar.peer()
    request, _ = second.subscribe(topic, "s", "Key_Shared", keySharedMeta=sticky((50, 150)))
    peer.expect("ping")
    peer.command("pong")
    found = second.expect_error("ConsumerAssignError", "Range conflict with consumer")
    assert found.request_id == request


def test_a_sticky_range_may_end_at_65536(peer, topic):
    peer.consumer(topic, "s", "Key_Shared", keySharedMeta=sticky((65000, 65536)))


def test_durable_and_non_durable_clash(pulsar, peer, topic):
    peer.consumer(topic, "durable", "Shared")
    peer.consumer(topic, "passing", "Shared", durable=False, start_message_id=START)
    second = pulsar.peer()
    second.no_consumer(
        ("NotAllowedError", "Durable subscription with the same name already exists."),
        topic,
        "durable",
        "Shared",
        durable=False,
        start_message_id=START,
    )
    second.no_consumer(
        ("NotAllowedError", "NonDurable subscription with the same name already exists."),
        topic,
        "passing",
        "Shared",
    )


def test_metadata_has_at_most_1024_bytes(peer, topic):
    metadata = [{"key": "k", "value": "v" * 1100}]
    text = "metadata has a max size of 1024 bytes"
    peer.no_consumer(("MetadataError", text), topic, "s", metadata=metadata)
    peer.producer(topic, metadata=metadata)


def test_a_type_that_is_not_enabled_is_refused(pulsar, peer):
    namespace = pulsar.namespace(subscriptionTypesEnabled=["Exclusive", "Failover"])
    topic = pulsar.topic(namespace=namespace)
    text = f"Topic[{{{topic}}}] doesn't support Shared sub type!"
    peer.no_consumer(("NotAllowedError", text), topic, "s", "Shared")
    peer.consumer(topic, "s", "Exclusive")


def test_limits_of_consumers_and_producers(pulsar, peer):
    namespace = pulsar.namespace(
        maxConsumersPerSubscription=1, maxConsumersPerTopic=2, maxProducersPerTopic=1
    )
    topic = pulsar.topic(namespace=namespace)
    peer.consumer(topic, "s", "Shared")
    text = "Subscription reached max consumers limit"
    peer.no_consumer(("ConsumerBusy", text), topic, "s", "Shared")
    peer.consumer(topic, "t", "Shared")
    text = "Topic reached max consumers limit"
    peer.no_consumer(("ConsumerBusy", text), topic, "u", "Shared")
    peer.producer(topic)
    peer.no_producer("ProducerBusy", f"Topic '{topic}' reached max producers limit", topic)


def test_subscribing_while_a_seek_runs_waits_and_succeeds(pulsar, peer, topic):
    producer = pulsar.peer().producer(topic)
    sent = producer.publish_all([b"a", b"b", b"c"])
    consumer = peer.consumer(topic, "s")
    request = consumer.seek(sent[1])
    again, number = peer.subscribe(topic, "s", consumer_id=77)
    consumer.expect_closed()
    assert {peer.receive().command.request_id for _ in range(2)} == {request, again}
    peer.command("flow", consumer_id=number, messagePermits=1)
    assert peer.message().id == sent[1]


def test_the_subscribe_rate_is_by_address_name_and_id(pulsar, peer):
    rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10}
    namespace = pulsar.namespace(subscribeRate=rate)
    topic = pulsar.topic(namespace=namespace)
    peer.producer(topic)
    if pulsar.is_real:
        # The policy reaches the topic some time after the call.
        pulsar.eventually(lambda: is_limited(peer, topic, 4), "the limit works")
    fields = {"consumer_name": "c", "consumer_id": 5}
    for _ in range(2):
        peer.consumer(topic, "s", "Shared", **fields).close()
    refusal = ("NotAllowedError", "Subscribe limited by subscribe rate limit per consumer.")
    peer.no_consumer(refusal, topic, "s", "Shared", **fields)
    pulsar.peer().no_consumer(refusal, topic, "s", "Shared", **fields)
    peer.consumer(topic, "s", "Shared", consumer_name="c", consumer_id=6)


def is_limited(peer, topic, number):
    request, _ = peer.subscribe(topic, "first", "Shared", consumer_name="p", consumer_id=number)
    found = peer.answer(request)
    if found.kind == "success":
        peer.ask("close_consumer", consumer_id=number)
    return found.kind == "error"


def test_a_name_may_be_taken_twice_on_shared_and_may_be_empty(pulsar, peer, topic):
    for number in (1, 2):
        peer.consumer(topic, "s", "Shared", consumer_name="same", consumer_id=number)
    peer.consumer(topic, "s", "Shared", consumer_name="", consumer_id=3)
    names = [
        each["consumerName"] for each in pulsar.stats(topic)["subscriptions"]["s"]["consumers"]
    ]
    assert sorted(names) == ["", "same", "same"]


def test_a_client_without_batches_is_closed_when_one_would_be_sent(pulsar, topic):
    producer = pulsar.peer().producer(topic)
    producer.publish([b"a", b"b"])
    new = pulsar.peer().consumer(topic, "t", initialPosition="Earliest")
    new.flow(1)
    assert new.message().messages == 2
    old = pulsar.peer(protocol_version=3)
    consumer = old.consumer(topic, "s", initialPosition="Earliest")
    consumer.flow(10)
    old.expect_closed()
