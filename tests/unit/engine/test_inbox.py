"""The inbox of a queue: newcomers first, then everybody in turn, and order per channel."""

from penstock.engine.inbox import Inbox
from penstock.engine.parcel import Parcel
from penstock.engine.ports import Publication
from penstock.model.record import neutral_record


class Sender:
    """Stands for a channel; only its identity counts."""


def parcel(channel, name=b""):
    return Parcel(channel, [Publication(neutral_record(name))], None, len(name))


def take_first(inbox):
    head = inbox.heads()[0]
    inbox.take(head)
    return head


def test_a_newcomer_is_before_channels_that_have_more_waiting():
    inbox, flood, quiet = Inbox(), Sender(), Sender()
    first, second = parcel(flood), parcel(flood)
    inbox.put(first)
    inbox.put(second)
    assert take_first(inbox) is first
    newcomer = parcel(quiet)
    inbox.put(newcomer)
    assert inbox.newcomers() == [newcomer]
    assert take_first(inbox) is newcomer
    assert take_first(inbox) is second
    assert not inbox


def test_channels_with_more_take_turns():
    inbox, senders = Inbox(), [Sender() for _ in range(3)]
    for _ in range(2):
        for sender in senders:
            inbox.put(parcel(sender))
    order = [senders.index(take_first(inbox).channel) for _ in range(6)]
    assert order == [0, 1, 2, 0, 1, 2]


def test_only_the_first_parcel_of_a_channel_is_at_the_head():
    inbox, sender = Inbox(), Sender()
    first, second = parcel(sender), parcel(sender)
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
        inbox.put(parcel(Sender()))
    assert inbox.messages == 3
    assert len(list(inbox)) == 3
    take_first(inbox)
    assert inbox.messages == 2
    inbox.clear()
    assert (inbox.messages, bool(inbox)) == (0, False)
