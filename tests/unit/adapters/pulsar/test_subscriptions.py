"""Unit tests for subscriptions as operators handle them: made, moved, skipped, expired, deleted."""

import pytest

from kit.pulsar.consumers import EARLIEST, LATEST, TOPIC, Publisher, Subscriber
from penstock.adapters.pulsar import subscriptions as room
from penstock.adapters.pulsar.errors import PulsarError
from penstock.adapters.pulsar.naming import parse_name
from penstock.adapters.pulsar.subscriptions import (
    Position,
    SubscribeRates,
    ack_set,
    acked_ranges,
)
from penstock.engine.host import Start, SubscriptionOptions
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.names import topic_name
from penstock.wire.pulsar.frames import ServerError


@pytest.fixture
def publisher(client):
    return Publisher(client)


@pytest.fixture
def topic(bench, publisher):
    return bench.broker.topics.find(parse_name(TOPIC))


@pytest.fixture
def all_of_it(bench):
    return bench.broker.subscriptions


def stored(bench, name="s"):
    return bench.engine.topic(topic_name("orders")).subscriptions[f"pulsar/{name}"]


def reading(client, name="s", **fields):
    return Subscriber(client, subscription=name, **fields).opened().flow(1_000)


# ---- ack sets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "words", "acked"),
    [
        (3, [0b110], [(10, 11)]),
        (3, [0b101], [(11, 12)]),
        (3, [0], [(10, 13)]),
        (3, [0b111], []),
        (3, [-1], []),
        (3, [], [(10, 13)]),
        (6, [0b101010], [(10, 11), (12, 13), (14, 15)]),
        (70, [-1], [(74, 80)]),
        (70, [0, 0b111111], [(10, 74)]),
        (64, [-(2**63)], [(10, 73)]),
        (2, [0b01, -1, -1], [(11, 12)]),
    ],
)
def test_bits_that_are_not_set_are_acked(messages, words, acked):
    assert acked_ranges(10, messages, words) == acked


@pytest.mark.parametrize("messages", [1, 63, 64, 65, 128, 1000])
def test_an_ack_set_says_what_is_left_and_is_read_back(messages):
    unsettled = [(10 + at, 10 + at + 1) for at in range(0, messages, 3)]
    words = ack_set(10, unsettled)
    acked = acked_ranges(10, messages, words)

    assert sum(end - start for start, end in acked) == messages - len(unsettled)
    assert all(-(2**63) <= word < 2**63 for word in words)


# ---- made and found -----------------------------------------------------------------------------


def test_a_subscription_is_made_at_the_end_unless_told(bench, client, publisher, topic, all_of_it):
    sent = publisher.publish_all(3)
    all_of_it.create(topic, "end")
    all_of_it.create(topic, "begin", Start.EARLIEST)
    all_of_it.create(topic, "there", sent[1][1])
    sent.append(publisher.publish())

    assert reading(client, "end").ids() == sent[3:]
    assert reading(client, "begin").ids() == sent
    assert reading(client, "there").ids() == sent[1:]


def test_a_subscription_is_made_once(topic, all_of_it):
    all_of_it.create(topic, "s")
    with pytest.raises(AlreadyExists, match="Subscription already exists for topic"):
        all_of_it.create(topic, "s")


def test_a_subscription_nobody_uses_is_not_kept_beside_the_engines(topic, all_of_it):
    all_of_it.create(topic, "s")

    assert not all_of_it._used
    assert all_of_it.find(topic, "s") is not None
    assert all_of_it.find(topic, "t") is None
    with pytest.raises(NotFound, match="Subscription t not found for topic"):
        all_of_it.get(topic, "t")


def test_names_are_those_of_pulsar_of_this_partition(bench, client, all_of_it):
    bench.engine.create_topic(topic_name("lanes"), queues=2)
    bench.engine.create_subscription(topic_name("lanes"), "amqp", SubscriptionOptions())
    one, two = [
        bench.broker.topics.find(parse_name(f"persistent://public/default/lanes-partition-{at}"))
        for at in (0, 1)
    ]
    all_of_it.create(one, "b")
    all_of_it.create(one, "a")
    all_of_it.create(two, "c")

    assert (all_of_it.names(one), all_of_it.names(two)) == (["a", "b"], ["c"])


def test_names_of_a_topic_without_a_log(bench, client, all_of_it):
    name = "non-persistent://public/default/passing"
    Subscriber(client, name, "s").opened()

    assert all_of_it.names(bench.broker.topics.find(parse_name(name))) == ["s"]


# ---- deleted ------------------------------------------------------------------------------------


def test_a_subscription_with_consumers_is_deleted_by_force_only(bench, client, topic, all_of_it):
    consumer = reading(client)
    with pytest.raises(PulsarError, match="Subscription has active connected consumers") as refused:
        all_of_it.delete(topic, "s")
    assert refused.value.code is ServerError.ConsumerBusy
    assert not consumer.is_told_closed()
    all_of_it.delete(topic, "s", force=True)

    assert consumer.is_told_closed()
    assert all_of_it.names(topic) == []
    assert not all_of_it._used


def test_deleting_what_is_not_there_is_not_found(topic, all_of_it):
    with pytest.raises(NotFound):
        all_of_it.delete(topic, "s")


# ---- moved --------------------------------------------------------------------------------------


def test_moving_a_subscription_closes_its_consumers_and_tells_when_it_is_durable(
    bench, client, publisher, topic, all_of_it
):
    sent = publisher.publish_all(3)
    consumer = reading(client, initialPosition="Earliest")
    consumer.ack(*consumer.ids())
    done = []
    all_of_it.get(topic, "s").seek(sent[1][1], lambda: done.append(True))
    assert done == []
    assert (consumer.is_told_closed(), done) == (True, [True])

    assert reading(client).ids() == sent[1:]


def test_a_move_that_is_done_leaves_nothing_behind(bench, publisher, topic, all_of_it):
    publisher.publish_all(3)
    all_of_it.create(topic, "s")
    all_of_it.get(topic, "s").seek(0)
    bench.settle()

    assert not all_of_it._used


def test_readers_that_moved_and_never_came_back_are_forgotten_one_day(
    bench, client, publisher, all_of_it, monkeypatch
):
    monkeypatch.setattr(room, "SOUGHT_KEPT", 2)
    sent = publisher.publish_all(3)
    for name in "abc":
        reader = Subscriber(client, TOPIC, name, durable=False, start=EARLIEST).opened()
        reader.seek(sent[1])
        bench.settle()

    assert [name for _, name in all_of_it._sought] == ["b", "c"]


# ---- skipped and expired ------------------------------------------------------------------------


def test_entries_are_skipped_whole_and_only_so_many(bench, client, publisher, topic, all_of_it):
    all_of_it.create(topic, "s")
    sent = publisher.publish_all(5, messages=3)
    all_of_it.skip(topic, "s", 2)
    assert stored(bench).low_mark(topic.queue.queue_id) == 6
    all_of_it.skip(topic, "s", 0)
    all_of_it.skip(topic, "s", -1)

    assert reading(client).ids() == sent[2:]


@pytest.mark.parametrize("count", [5, 1_000_000])
def test_more_entries_than_there_are_may_be_skipped(bench, publisher, topic, all_of_it, count):
    all_of_it.create(topic, "s")
    publisher.publish_all(5)
    assert all_of_it.skip(topic, "s", count) == 5
    assert all_of_it.skip(topic, "s", count) == 0

    assert stored(bench).low_mark(topic.queue.queue_id) == 5


def test_everything_may_be_skipped(bench, publisher, topic, all_of_it):
    all_of_it.create(topic, "s")
    publisher.publish_all(5, messages=2)
    all_of_it.skip_all(topic, "s")

    assert stored(bench).low_mark(topic.queue.queue_id) == 10


def test_skipping_tells_consumers_nothing_and_leaves_their_permits(
    client, publisher, topic, all_of_it
):
    consumer = reading(client)
    publisher.publish_all(3)
    consumer.ids()
    permits = consumer.permits
    all_of_it.skip_all(topic, "s")

    assert not consumer.is_told_closed()
    assert (consumer.permits, consumer.ids()) == (permits, [])


def test_what_is_older_expires_and_nothing_younger(bench, client, publisher, topic, all_of_it):
    all_of_it.create(topic, "s")
    now_ms = bench.clock.wall_ms()
    publisher.publish(publish_time=now_ms - 20_000)
    young = publisher.publish(publish_time=now_ms - 5_000)
    all_of_it.expire(topic, "s", 10, now_ms)

    assert reading(client).ids() == [young]


# ---- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        (EARLIEST, 0), (LATEST, 9), ((0, 5), 0), ("here", 3), ("inside", 3), ("end", 9),
        ("behind", 9), ("newer", 9), ("-1", 0),
    ],
)  # fmt: skip
def test_ids_are_compared_and_mean_the_entry_in_which_they_lie(
    publisher, topic, all_of_it, where, offset
):
    ledger = publisher.publish_all(3, messages=3)[0][0]
    ids = {
        "here": (ledger, 3), "inside": (ledger, 5), "end": (ledger, 9), "behind": (ledger, 10**15),
        "newer": (ledger + 1, 0), "-1": (ledger, 2**64 - 1),
    }  # fmt: skip
    where = ids.get(where, where)

    assert all_of_it.offset_of(topic, Position(*where)) == offset


def test_the_place_of_what_is_gone_is_the_first_that_is_there(bench, publisher, topic, all_of_it):
    ledger = publisher.publish_all(3)[0][0]
    topic.queue.index.min_offset = 2

    assert all_of_it.offset_of(topic, Position(ledger, 0)) == 2
    assert all_of_it.offset_of(topic, Position(*EARLIEST)) == 2


# ---- the rate of SUBSCRIBEs ---------------------------------------------------------------------


def test_the_table_of_rates_is_bounded(monkeypatch):
    monkeypatch.setattr(room, "SUBSCRIBERS_KEPT", 3)
    rates = SubscribeRates()
    for number in range(10):
        assert rates.may_subscribe((number,), 1, 1_000, 0)

    assert len(rates._periods) == 3
    assert not rates.may_subscribe((9,), 1, 1_000, 0)


def test_a_period_begins_with_the_first_subscribe_in_it():
    rates = SubscribeRates()
    told = [rates.may_subscribe(("c",), 2, 1_000, at) for at in (0, 900, 950, 1_000, 1_100, 1_200)]

    assert told == [True, True, False, True, True, False]
