"""Our consumer and Pulsar's C++ one on one subscription, of each type."""

import time

import pytest

from penstock.client.pulsar import Batching, NothingReceived, SubscriptionType

pulsar_client = pytest.importorskip("pulsar")
WAIT_MS = 10_000
POLL_MS = 50
TYPES = {
    SubscriptionType.EXCLUSIVE: pulsar_client.ConsumerType.Exclusive,
    SubscriptionType.SHARED: pulsar_client.ConsumerType.Shared,
    SubscriptionType.FAILOVER: pulsar_client.ConsumerType.Failover,
    SubscriptionType.KEY_SHARED: pulsar_client.ConsumerType.KeyShared,
}


class Company:
    """One of ours and one of theirs on a subscription, and what each has got."""

    def __init__(self, pulsar, kind):
        self.pulsar = pulsar
        self.topic = pulsar.topic()
        self.kind = kind
        self.cpp = pulsar.cpp()
        self.client = pulsar.client()

    def ours(self, **options):
        return self.client.subscribe(self.topic, "s", subscription_type=self.kind, **options)

    def theirs(self, **options):
        return self.cpp.subscribe(self.topic, "s", consumer_type=TYPES[self.kind], **options)

    def publish(self, count, start=0):
        with self.client.create_producer(self.topic, batching_type=Batching.KEY) as producer:
            for number in range(start, start + count):
                producer.send_callback(b"%d" % number, lambda _: None, key=f"k{number % 20}")
            producer.flush()


def drained(consumer, wait_ms=POLL_MS):
    """(key, number) of all that comes to one of ours."""
    found = []
    while True:
        try:
            message = consumer.receive(wait_ms)
        except NothingReceived:
            return found
        found.append((message.key, int(message.data)))
        consumer.acknowledge(message)


def drained_cpp(consumer, wait_ms=POLL_MS):
    found = []
    while True:
        try:
            message = consumer.receive(wait_ms)
        except pulsar_client.Timeout:
            return found
        found.append((message.partition_key(), int(message.data())))
        consumer.acknowledge(message)


def shared_out(count, ours=None, theirs=None):
    """What each of them got, once so many have arrived in all."""
    mine, others = [], []
    end = time.monotonic() + WAIT_MS / 1000
    while len({*numbers(mine), *numbers(others)}) < count:
        assert time.monotonic() < end, "nobody gets the rest"
        mine += drained(ours) if ours else []
        others += drained_cpp(theirs) if theirs else []
    return mine, others


def numbers(found):
    return sorted(number for _, number in found)


def test_an_exclusive_subscription_goes_from_one_to_the_other(pulsar):
    company = Company(pulsar, SubscriptionType.EXCLUSIVE)
    ours = company.ours()
    with pytest.raises(pulsar_client.ConsumerBusy):
        company.theirs()
    company.publish(20)
    assert numbers(shared_out(20, ours)[0]) == list(range(20))
    ours.close()
    theirs = company.theirs()
    company.publish(20, 20)
    assert numbers(shared_out(20, theirs=theirs)[1]) == list(range(20, 40))


def test_a_shared_subscription_is_shared(pulsar):
    company = Company(pulsar, SubscriptionType.SHARED)
    ours = company.ours(receiver_queue_size=5)
    theirs = company.theirs(receiver_queue_size=5)
    with company.client.create_producer(company.topic, batching_enabled=False) as producer:
        for number in range(100):
            producer.send_callback(b"%d" % number, lambda _: None)
        producer.flush()
    mine, others = shared_out(100, ours, theirs)
    assert sorted(numbers(mine) + numbers(others)) == list(range(100))
    assert mine
    assert others


def test_a_failover_subscription_goes_over_to_the_other(pulsar):
    company = Company(pulsar, SubscriptionType.FAILOVER)
    ours, theirs = company.ours(), company.theirs()
    company.publish(30)
    mine, others = shared_out(30, ours, theirs)
    assert not (mine and others)
    (ours if mine else theirs).close()
    company.publish(30, 30)
    left = {"theirs": theirs} if mine else {"ours": ours}
    found = shared_out(30, **left)
    assert set(numbers(found[0] + found[1])) == set(range(30, 60))


def test_a_key_of_a_key_shared_subscription_is_in_one_hand(pulsar):
    company = Company(pulsar, SubscriptionType.KEY_SHARED)
    ours, theirs = company.ours(), company.theirs()
    company.publish(200)
    mine, others = shared_out(200, ours, theirs)
    assert sorted(numbers(mine) + numbers(others)) == list(range(200))
    assert mine
    assert others
    assert not {key for key, _ in mine} & {key for key, _ in others}
    for found in (mine, others):
        for key in {key for key, _ in found}:
            got = [number for each, number in found if each == key]
            assert got == sorted(got)


def test_what_their_producer_sends_in_any_form_is_received_by_ours(pulsar):
    company = Company(pulsar, SubscriptionType.EXCLUSIVE)
    ours = company.ours()
    kinds = pulsar_client.CompressionType
    for number, compression in enumerate(
        (kinds.NONE, kinds.LZ4, kinds.ZLib, kinds.ZSTD, kinds.SNAPPY)
    ):
        for is_batch in (False, True):
            producer = company.cpp.create_producer(
                company.topic, compression_type=compression, batching_enabled=is_batch
            )
            producer.send(
                b"x" * 100, properties={"n": str(number)}, partition_key="k", event_timestamp=5
            )
            producer.close()
            message = ours.receive(WAIT_MS)
            assert message.data == b"x" * 100
            assert (message.properties, message.key) == ({"n": str(number)}, "k")
            assert message.event_time_ms == 5
            ours.acknowledge(message)
    producer = company.cpp.create_producer(
        company.topic, chunking_enabled=True, batching_enabled=False
    )
    body = bytes(range(256)) * 4 * 1024 * 6
    producer.send(body)
    assert ours.receive(WAIT_MS).data == body
