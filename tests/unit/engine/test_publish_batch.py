"""Batches: runs of publishes that travel together, cut without losing a byte."""

import pytest

from penstock.engine.ports import Publication
from penstock.engine.publish_batch import (
    JOINED_MAX,
    JOINED_MS_MAX,
    PUBLICATION_BYTES,
    BatchKind,
    Inbox,
    PublishBatch,
    publish_batches,
)
from penstock.model.errors import InvariantBroken
from penstock.model.record import Record, RecordFlag, neutral_record

HERE, THERE = object(), object()


def publication(body, route=HERE, *, flags=0, deliver_ms=0, keys=()):
    record = neutral_record(body)
    record.reshape(flags=record.flags | flags)
    record.reshape(deliver_ms=deliver_ms)
    return Publication(record, route=route, keys=keys)


def shapes(publications):
    return [
        (batch.kind, len(batch), batch.size) for batch in publish_batches(None, publications, 5)
    ]


def test_publishes_of_one_route_are_one_parcel():
    assert shapes([publication(b"a"), publication(b"bb")]) == [(BatchKind.PLAIN, 2, 3)]


def test_another_route_or_manner_begins_another_parcel():
    publications = [
        publication(b"a"),
        publication(b"b", THERE),
        publication(b"c", THERE, flags=RecordFlag.TRANSIENT),
        publication(b"d", THERE, deliver_ms=9),
        publication(b"e", THERE, flags=RecordFlag.DELAYED),
        publication(b"f", THERE, flags=RecordFlag.COMPRESSED),
    ]
    assert shapes(publications) == [
        (BatchKind.PLAIN, 1, 1),
        (BatchKind.PLAIN, 1, 1),
        (BatchKind.TRANSIENT, 1, 1),
        (BatchKind.TIMED, 2, 2),
        (BatchKind.PLAIN, 1, 1),
    ]


def test_a_parcel_knows_whether_anything_in_it_has_keys():
    (batch,) = publish_batches(None, [publication(b"a"), publication(b"b", keys=(b"k",))], 5)
    assert batch.has_keys
    assert batch.split(1).has_keys


def test_what_is_split_weighs_together_what_it_weighed_before():
    (batch,) = publish_batches(None, [publication(b"x" * size) for size in (1, 20, 300)], 5)
    charge = batch.charge
    assert charge == 321 + 3 * PUBLICATION_BYTES
    first = batch.split(2)
    assert (first.size, batch.size) == (21, 300)
    assert first.charge + batch.charge == charge
    assert first.arrived_ms == 5


@pytest.mark.parametrize("count", [0, 2])
def test_a_parcel_is_never_split_into_nothing(count):
    batch = PublishBatch(None, [publication(b"a"), publication(b"b")], HERE, 2)
    with pytest.raises(InvariantBroken):
        batch.split(count)


def test_a_publication_without_a_route_is_our_own_mistake():
    with pytest.raises(InvariantBroken):
        publish_batches(None, [publication(b"a", None)], 5)


def parcel_of(*bodies, now_ms=5, **facts):
    (batch,) = publish_batches(None, [publication(body, **facts) for body in bodies], now_ms)
    return batch


def test_what_a_channel_sends_on_joins_what_waits_and_weighs_the_same():
    batch = parcel_of(b"a", b"bb", now_ms=5)
    later = parcel_of(b"ccc", keys=(b"k",), now_ms=5 + JOINED_MS_MAX)
    charge = batch.charge + later.charge
    assert batch.join(later)
    assert [each.record.origin for each in batch.publications] == [b"a", b"bb", b"ccc"]
    assert (batch.charge, batch.has_keys) == (charge, True)


@pytest.mark.parametrize(
    "later",
    [{"route": THERE}, {"flags": RecordFlag.TRANSIENT}, {"now_ms": 6 + JOINED_MS_MAX}],
    ids=["another route", "another kind", "another time"],
)
def test_what_differs_from_what_waits_stays_by_itself(later):
    batch = parcel_of(b"a")
    assert not batch.join(parcel_of(b"b", **later))
    assert (len(batch), batch.size) == (1, 1)


def test_nothing_joins_a_parcel_that_is_routed_or_large():
    routed, large = parcel_of(b"a"), parcel_of(*[b"x"] * JOINED_MAX)
    routed.queues = ()
    assert not routed.join(parcel_of(b"b"))
    assert not large.join(parcel_of(b"b"))


SAME = neutral_record(b"same").shape


@pytest.mark.parametrize(
    ("bodies", "is_run"), [((b"aaaa", b"bbbb"), True), ((b"aaaa", b"bbb"), False), ((b"a",), True)]
)
def test_a_run_is_of_one_shape_and_size(bodies, is_run):
    (batch,) = publish_batches(
        None, [Publication(Record(each, SAME), route=HERE) for each in bodies], 5
    )
    assert batch.is_run is is_run


def test_another_shape_ends_a_run():
    (batch,) = publish_batches(None, [publication(b"aaaa"), publication(b"bbbb")], 5)
    assert not batch.is_run, "each was given a shape of its own"


@pytest.mark.parametrize(("later", "is_run"), [(b"cccc", True), (b"ccc", False)])
def test_a_run_stays_one_only_with_its_like(later, is_run):
    (first,), (second,) = (
        publish_batches(None, [Publication(Record(each, SAME), route=HERE)], 5)
        for each in (b"aaaa", later)
    )
    assert first.join(second)
    assert first.is_run is is_run
    assert first.split(1).is_run is is_run


# ---- inbox --------------------------------------------------------------------------------------
# The inbox of a queue: newcomers first, then everybody in turn, and order per channel.


class Sender:
    """Stands for a channel; only its identity counts."""


def batch(channel, name=b""):
    return PublishBatch(channel, [Publication(neutral_record(name))], None, len(name))


def take_first(inbox):
    head = inbox.heads()[0]
    inbox.take(head)
    return head


def test_a_newcomer_is_before_channels_that_have_more_waiting():
    inbox, flood, quiet = Inbox(), Sender(), Sender()
    first, second = batch(flood), batch(flood)
    inbox.put(first)
    inbox.put(second)
    assert take_first(inbox) is first
    newcomer = batch(quiet)
    inbox.put(newcomer)
    assert inbox.newcomers() == [newcomer]
    assert take_first(inbox) is newcomer
    assert take_first(inbox) is second
    assert not inbox


def test_channels_with_more_take_turns():
    inbox, senders = Inbox(), [Sender() for _ in range(3)]
    for _ in range(2):
        for sender in senders:
            inbox.put(batch(sender))
    order = [senders.index(take_first(inbox).channel) for _ in range(6)]
    assert order == [0, 1, 2, 0, 1, 2]


def test_only_the_first_parcel_of_a_channel_is_at_the_head():
    inbox, sender = Inbox(), Sender()
    first, second = batch(sender), batch(sender)
    inbox.put(first)
    assert not inbox.is_head(second)
    inbox.put(second)
    assert inbox.is_head(first)
    assert not inbox.is_head(second)
    inbox.take(first)
    assert inbox.is_head(second)


def test_messages_are_counted_and_forgotten():
    inbox = Inbox()
    for _ in range(3):
        inbox.put(batch(Sender()))
    assert inbox.messages == 3
    assert len(list(inbox)) == 3
    take_first(inbox)
    assert inbox.messages == 2
    inbox.clear()
    assert (inbox.messages, bool(inbox)) == (0, False)
