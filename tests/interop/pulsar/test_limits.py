"""Quotas, rates, delays, TTL, topics without a log (observations 11)."""

import contextlib
import time

import pytest

from kit.pulsar_peer import NONE

KILOBYTE = b"x" * 1000
QUOTA_BYTES = 10_000


def quota(pulsar, policy):
    """A topic with a quota of 10 kB and a subscription that holds everything."""
    namespace = pulsar.namespace(
        backlogQuota={"limitSize": QUOTA_BYTES, "policy": policy, "limitTime": -1}
    )
    return pulsar.topic(namespace=namespace)


HOLDS = [
    ("producer_request_hold", "ProducerBlockedQuotaExceededError"),
    ("producer_exception", "ProducerBlockedQuotaExceededException"),
]
FULL = "Cannot create producer on topic with backlog quota exceeded"


@pytest.mark.parametrize(("policy", "code"), HOLDS)
def test_a_full_quota_closes_producers_and_refuses_new_ones(impatient, policy, code):
    """Pulsar looks once a minute (a second here), Penstock at each publish.

    There a hold begins by closing the producer, here it ends so.
    """
    topic, peer = quota(impatient, policy), impatient.peer()
    consumer = impatient.peer().consumer(topic, "s")
    producer = peer.producer(topic)
    for _ in range(20):
        producer.send(KILOBYTE)
    closed = False
    while not closed:
        found = peer.receive()
        assert found.kind in {"send_receipt", "close_producer"}
        closed = found.kind == "close_producer"
    assert found.command.request_id == NONE
    producer.send(KILOBYTE)
    peer.expect_nothing()
    peer.no_producer(code, FULL, topic)
    peer.no_producer(code, FULL, topic, producer_id=producer.id)
    # Drained, the next one is taken at once.
    consumer.flow(1000)
    while consumer.stats().msgBacklog:
        for each in consumer.peer.gather():
            if each.kind == "message":
                target = each.command.message_id
                consumer.acked((target.ledgerId, target.entryId))
    peer.producer(topic).publish(KILOBYTE)


def test_eviction_skips_the_oldest_and_says_nothing(pulsar, peer):
    topic = quota(pulsar, "consumer_backlog_eviction")
    consumer = pulsar.peer().consumer(topic, "s", "Shared")
    producer = peer.producer(topic)
    consumer.flow(2)
    consumer.peer.expect_nothing()
    sent = producer.publish_all([KILOBYTE] * 20)
    consumer.messages(2)
    pulsar.eventually(lambda: pulsar.backlog(topic, "s") <= 9, "the oldest are gone")
    peer.expect_nothing()
    consumer.peer.expect_nothing()
    # What it holds stays counted, although nobody waits for it.
    assert consumer.unacked == 2
    assert not consumer.acked(sent[0]).HasField("error")
    consumer.flow(100)
    found = [(each.command.message_id.ledgerId, each.command.message_id.entryId)
             for each in consumer.peer.gather()]  # fmt: skip
    assert found == sent[-len(found) :]
    assert 1 <= len(found) <= 9


def test_a_quota_by_age(pulsar, peer):
    """Pulsar's looks at whole ledgers, and so at nothing here; Penstock's at the oldest message."""
    rule = {"limitSize": -1, "policy": "producer_exception", "limitTime": 1}
    namespace = pulsar.namespace()
    pulsar.rest.done(
        "POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=message_age", rule
    )
    topic = pulsar.topic(namespace=namespace)
    pulsar.peer().consumer(topic, "s")
    producer = peer.producer(topic)
    producer.publish()
    if pulsar.is_real:
        time.sleep(3)
        producer.publish()
        peer.expect_nothing()
        peer.producer(topic)
        return

    def is_closed():
        producer.send()
        return peer.receive().kind == "close_producer"

    pulsar.eventually(is_closed, "its oldest message is too old")
    peer.no_producer("ProducerBlockedQuotaExceededException", FULL, topic)


def test_readers_alone_make_no_backlog(pulsar, peer):
    topic = quota(pulsar, "producer_exception")
    pulsar.peer().reader(topic)
    producer = peer.producer(topic)
    producer.publish_all([KILOBYTE] * 20)
    if pulsar.is_real:
        time.sleep(2.5)
    peer.expect_nothing()
    peer.producer(topic)


# ---- rates


def arrivals(count, receive):
    began = time.monotonic()
    found = []
    for _ in range(count):
        receive()
        found.append(time.monotonic() - began)
    return found


def test_a_publish_rate_spreads_receipts(pulsar, peer):
    rate = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
    topic = pulsar.topic(namespace=pulsar.namespace(publishRate=rate))
    producer = peer.producer(topic)
    if pulsar.is_real:
        time.sleep(1)
    for _ in range(20):
        producer.send()
    found = arrivals(20, producer.receipt)
    assert 0.7 <= found[-1] <= 4
    other = pulsar.peer()
    other.expect_nothing()


def limited(pulsar, messages=-1, size=-1):
    """A topic with a publish rate."""
    rate = {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size}
    return pulsar.topic(namespace=pulsar.namespace(publishRate=rate))


def test_a_publish_rate_of_bytes(pulsar, peer):
    producer = peer.producer(limited(pulsar, size=10_000))
    if pulsar.is_real:
        time.sleep(1)
    for _ in range(20):
        producer.send(KILOBYTE)
    assert 0.7 <= arrivals(20, producer.receipt)[-1] <= 4


def test_batches_are_charged_after_they_are_taken(pulsar, peer):
    """Two of 20 messages at 10 in a second: the first at once, whatever it costs."""
    producer = peer.producer(limited(pulsar, messages=10))
    if pulsar.is_real:
        time.sleep(1)
    for _ in range(2):
        producer.send([b"x"] * 20)
    first, second = arrivals(2, producer.receipt)
    # Charged before, it would take the two seconds of its messages.
    assert first <= 1.5
    assert second - first >= 0.7
    assert second <= 4


def test_what_a_rate_stops(pulsar, peer):
    """Pulsar reads nothing more of the connection; Penstock stops the one producer only."""
    producer = peer.producer(limited(pulsar, messages=10))
    free = peer.producer(pulsar.topic())
    if pulsar.is_real:
        time.sleep(1)
    for _ in range(20):
        producer.send()
    free.send()
    peer.command("ping")
    found = [peer.receive() for _ in range(22)]
    order = [
        "free" if getattr(each.command, "producer_id", None) == free.id else each.kind
        for each in found
    ]
    last = len(order) - 1
    if pulsar.is_real:
        assert min(order.index("pong"), order.index("free")) > last - 10
    else:
        assert max(order.index("pong"), order.index("free")) < last - 5


def test_a_rate_does_not_stop_another_connection_for_long(pulsar, peer):
    """Another one is not behind the ten seconds' worth that this one has sent."""
    topic = limited(pulsar, messages=10)
    producer = peer.producer(topic)
    other = pulsar.peer().producer(topic)
    if pulsar.is_real:
        time.sleep(1)
    for _ in range(100):
        producer.send()
    producer.receipt()
    other.publish()
    assert answered(peer) < 90


def answered(peer):
    """Frames that have come by now."""
    found = 0
    with contextlib.suppress(TimeoutError):
        while peer.receive(0.02):
            found += 1
    return found


def test_a_dispatch_rate_spreads_messages(pulsar, peer):
    rate = {
        "dispatchThrottlingRateInMsg": 10,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 1,
    }
    namespace = pulsar.namespace(dispatchRate=rate)
    topic = pulsar.topic(namespace=namespace)
    pulsar.peer().producer(topic).publish_all([b"x"] * 25)
    consumer = peer.consumer(topic, "s", initialPosition="Earliest")
    if pulsar.is_real:
        time.sleep(1)
    consumer.flow(100)
    found = arrivals(25, consumer.message)
    assert 0.9 <= found[-1] <= 5


# ---- delays


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_a_delayed_message_waits(pulsar, peer, topic, kind):
    """Pulsar is early or late by up to a tick of one second."""
    consumer = peer.consumer(topic, "s", kind)
    consumer.flow(10)
    peer.expect_nothing()
    began = time.time()
    sent = pulsar.peer().producer(topic).publish(deliver_at_time=int(began * 1000) + 2000)
    assert consumer.message().id == sent
    late = time.time() - began - 2
    assert (-1.1 if pulsar.is_real else -0.05) <= late <= 4


def test_a_delay_within_a_tick_is_none(pulsar, peer):
    """A tick is a second unless a policy says otherwise."""
    tick = {"active": True, "tickTime": 60_000, "maxDeliveryDelayInMillis": 0}
    topic = pulsar.topic(namespace=pulsar.namespace(delayedDelivery=tick))
    consumer = peer.consumer(topic, "s", "Shared")
    consumer.flow(10)
    peer.expect_nothing()
    due = time.time() + 30
    sent = pulsar.peer().producer(topic).publish(deliver_at_time=int(due * 1000))
    assert consumer.message().id == sent
    assert time.time() < due


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_delay_means_nothing_to_one_active_consumer(pulsar, peer, topic, kind):
    consumer = peer.consumer(topic, "s", kind)
    if kind == "Failover":
        peer.expect("active_consumer_change")
    consumer.flow(10)
    ahead = int(time.time() * 1000) + 60_000
    sent = pulsar.peer().producer(topic).publish(deliver_at_time=ahead)
    assert consumer.message().id == sent


def test_a_delayed_message_holds_no_permit(pulsar, peer, topic):
    consumer = peer.consumer(topic, "s", "Shared")
    consumer.flow(10)
    peer.expect_nothing()
    producer = pulsar.peer().producer(topic)
    producer.publish(deliver_at_time=int(time.time() * 1000) + 60_000)
    peer.expect_nothing()
    assert (consumer.permits, consumer.unacked) == (10, 0)
    sent = producer.publish()
    assert consumer.message().id == sent


# ---- expiry


def test_expiring_by_rest_says_nothing(pulsar, peer, topic):
    producer = pulsar.peer().producer(topic)
    old = int(time.time() * 1000) - 60_000
    producer.publish_all([b"x"] * 3, publish_time=old)
    consumer = peer.consumer(topic, "s", "Shared", initialPosition="Earliest")
    consumer.flow(10)
    consumer.messages(3)
    before = consumer.permits, consumer.unacked
    pulsar.rest.done("POST", f"{pulsar.path(topic)}/subscription/s/expireMessages/10")
    pulsar.eventually(lambda: pulsar.backlog(topic, "s") == 0, "they are gone")
    peer.expect_nothing()
    # There they are counted until the consumer goes: nobody can ack them any more.
    permits, unacked = before
    assert (consumer.permits, consumer.unacked) == (permits, unacked if pulsar.is_real else 0)


# ---- topics without a log


@pytest.fixture
def passing(pulsar):
    return pulsar.topic(domain="non-persistent")


def test_without_a_log_every_receipt_is_0_0(peer, passing):
    producer = peer.producer(passing)
    assert producer.publish_all([b"x"] * 3) == [(0, 0)] * 3


def test_without_a_log_a_message_without_permits_is_dropped(pulsar, peer, passing):
    consumer = peer.consumer(passing, "s", "Shared")
    producer = pulsar.peer().producer(passing)
    producer.publish(b"dropped")
    peer.expect_nothing()
    consumer.flow(1)
    peer.expect_nothing()
    producer.publish(b"taken")
    found = consumer.message()
    assert (found.id, found.payload) == ((0, 0), b"taken")


def test_without_a_log_a_batch_is_sent_whole_on_one_permit(pulsar, peer, passing):
    consumer = peer.consumer(passing, "s", "Shared")
    consumer.flow(1)
    peer.expect_nothing()
    producer = pulsar.peer().producer(passing)
    producer.publish([b"a", b"b", b"c", b"d"])
    assert consumer.message().messages == 4
    producer.publish(b"dropped")
    peer.expect_nothing()


def test_without_a_log_acks_are_answered_and_redelivery_is_nothing(pulsar, peer, passing):
    consumer = peer.consumer(passing, "s", "Shared")
    consumer.flow(10)
    peer.expect_nothing()
    pulsar.peer().producer(passing).publish()
    consumer.message()
    assert not consumer.acked((0, 0)).HasField("error")
    consumer.redeliver()
    peer.expect_nothing()


def test_without_a_log_a_seek_succeeds_and_closes_nothing(peer, passing):
    consumer = peer.consumer(passing, "s", "Shared")
    request = consumer.seek((0, 0))
    peer.expect("success", request_id=request)
    peer.expect_nothing()


def test_without_a_log_there_is_no_last_id(peer, passing):
    consumer = peer.consumer(passing, "s", "Shared")
    text = "Failed to recover Transaction Buffer."
    peer.refused("UnknownError", text, "get_last_message_id", consumer_id=consumer.id)
