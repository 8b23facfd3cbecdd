"""Permits as numbers, and the inbox between threads."""

import asyncio
import threading

import pytest

from kit.client.pulsar_consumer import scene
from penstock.client.pulsar.consumer.receiver_queue import InboxRoom, MessageInbox, ReceiverPermits
from penstock.client.pulsar.errors import StateError
from penstock.client.pulsar.message import MessageId, ReceivedMessage
from penstock.wire.pulsar.protocol_pb2 import MessageMetadata

METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)


class Part:
    def __init__(self, post_at=1_000):
        self.epoch = 0
        self.taken = 0
        self.taken_post_at = post_at
        self.last_taken = None
        self.is_durable = True
        self.is_noting = False
        self.posts = 0
        self.notes = []

    def post_taken(self):
        self.posts += 1

    def note_taken(self, message):
        self.notes.append(message)


def message(number, source, size=1, epoch=0):
    data = bytes([number % 256]) * size
    return ReceivedMessage("t", MessageId(1, number), data, METADATA, source=source, epoch=epoch)


# ---- permits ------------------------------------------------------------------------------------


def test_the_threshold_is_half_of_the_queue_and_at_least_one():
    assert [ReceiverPermits(size).refill_at for size in (0, 1, 2, 3, 10, 1_000)] == [
        1,
        1,
        1,
        1,
        5,
        500,
    ]


def test_what_gathered_goes_out_in_one_grant():
    permits = ReceiverPermits(10)
    assert permits.connected() == 10
    permits.arrived(10)
    assert [permits.taken(1) for _ in range(4)] == [0, 0, 0, 0]
    assert permits.taken(3) == 7


def test_a_child_waits_for_its_parent_once():
    permits = ReceiverPermits(10)
    assert permits.connected(may_start=False) == 0
    assert permits.is_waiting_for_start
    assert permits.taken(7) == 0
    assert permits.start() == 17
    assert permits.start() == 0


def test_paused_grants_nothing_and_resumed_what_is_worth_it():
    permits = ReceiverPermits(10)
    permits.connected()
    permits.arrived(10)
    permits.pause()
    assert permits.taken(10) == 0
    assert permits.resume() == 10


def test_paused_before_it_was_connected_grants_nothing_either():
    permits = ReceiverPermits(10)
    permits.pause()
    assert permits.connected() == 0
    assert permits.resume() == 10


def test_without_a_connection_nothing_is_granted_and_nothing_gathers():
    permits = ReceiverPermits(4)
    assert (permits.start(), permits.taken(4), permits.wanted(1)) == (0, 0, 0)
    permits.connected()
    permits.disconnected()
    assert (permits.taken(4), permits.gathered) == (0, 0)
    assert permits.connected() == 4


def test_a_queue_of_0_grants_what_receivers_want_and_what_a_batch_took_too_much():
    permits = ReceiverPermits(0)
    assert permits.connected() == 0
    assert (permits.wanted(0), permits.wanted(1), permits.wanted(1)) == (0, 1, 0)
    permits.arrived(4)
    assert permits.taken(4) == 0
    assert permits.wanted(2) == 5


# ---- inbox --------------------------------------------------------------------------------------


def test_messages_leave_in_the_order_they_came():
    inbox, part = MessageInbox(InboxRoom(1_000)), Part()
    inbox.put([message(n, part) for n in range(5)])
    assert [inbox.take().message_id.entry_id for _ in range(5)] == [0, 1, 2, 3, 4]
    assert inbox.take() is None
    assert part.last_taken == MessageId(1, 4)


def test_the_source_hears_of_what_was_taken_when_it_is_worth_it():
    inbox, part = MessageInbox(InboxRoom(1_000)), Part(post_at=3)
    inbox.put([message(n, part) for n in range(4)])
    inbox.take()
    inbox.take()
    assert part.posts == 0
    inbox.take()
    assert (part.posts, part.taken) == (1, 3)


def test_it_is_full_by_bytes_until_half_of_them_are_gone():
    rooms = []
    inbox, part = MessageInbox(InboxRoom(100, lambda: rooms.append(1))), Part()
    inbox.put([message(n, part, size=25) for n in range(4)])
    assert inbox.room.is_full
    inbox.take()
    assert (inbox.room.is_full, rooms) == (True, [])
    inbox.take()
    assert (inbox.room.is_full, rooms) == (False, [1])


def test_what_is_put_back_and_what_goes_with_an_inbox_counts_in_their_room():
    rooms = []
    room = InboxRoom(100, lambda: rooms.append(1))
    inbox, other, part = MessageInbox(room), MessageInbox(room), Part()
    inbox.put([message(0, part, size=60)])
    taken = inbox.take()
    other.put([message(1, part, size=45)])
    assert not room.is_full
    inbox.put_back(taken)
    assert room.is_full
    inbox.close("it is closed")
    assert (room.bytes, room.is_full, rooms) == (45, False, [1])


def test_what_comes_when_it_is_closed_takes_no_room():
    inbox = MessageInbox(InboxRoom(100))
    inbox.close("it is closed")
    inbox.put([message(0, Part(), size=200)])
    assert (len(inbox), inbox.room.bytes, inbox.room.is_full) == (0, 0, False)


def test_clear_takes_back_what_is_of_one_source_and_of_its_old_connections():
    inbox, mine, other = MessageInbox(InboxRoom(1_000)), Part(), Part()
    inbox.put([message(0, mine), message(1, other), message(2, mine, epoch=1)])
    assert [each.message_id.entry_id for each in inbox.clear(mine, 0)] == [0]
    assert [each.message_id.entry_id for each in inbox.clear(mine)] == [2]
    assert (len(inbox), inbox.bytes) == (1, 1)


def test_a_thread_that_waits_gets_what_is_put_and_none_when_time_is_up():
    inbox, part, got = MessageInbox(InboxRoom(1_000)), Part(), []
    assert inbox.take_within(0) is None
    waiting = threading.Event()
    inbox._on_wait = waiting.set
    thread = threading.Thread(target=lambda: got.append(inbox.take_within(10)))
    thread.start()
    assert waiting.wait(10)
    inbox.put([message(7, part)])
    thread.join(10)
    assert got[0].message_id.entry_id == 7
    assert inbox.receivers == 0


def test_a_batch_ends_at_its_bytes_but_has_one_message_at_least():
    inbox, part = MessageInbox(InboxRoom(1_000)), Part()
    inbox.put([message(n, part, size=40) for n in range(4)])
    assert len(inbox.take_many(10, 100, 0)) == 2
    assert len(inbox.take_many(10, 1, 0)) == 1
    assert len(inbox.take_many(10, 1_000, 0)) == 1
    assert inbox.take_many(10, 1_000, 0) == []


@scene
async def test_a_message_for_who_went_away_is_put_back_first(bench):
    inbox, part = MessageInbox(InboxRoom(1_000)), Part()
    waiting = asyncio.ensure_future(inbox.wait())
    await bench.settle()
    inbox.put([message(0, part), message(1, part)])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [inbox.take().message_id.entry_id for _ in range(2)] == [0, 1]
    assert part.taken == 2


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_message_of_a_lost_connection_is_put_back_where_it_does_not_come_again(is_durable):
    inbox, part = MessageInbox(InboxRoom(1_000)), Part()
    part.is_durable = is_durable
    inbox.put([message(0, part)])
    given_up = inbox.take()
    part.epoch, part.taken = 1, 0
    inbox.put([message(1, part, epoch=1)])
    inbox.put_back(given_up)
    found = [each.message_id.entry_id for each in inbox.take_many(2, 1_000, 0)]
    assert found == ([1] if is_durable else [0, 1])
    assert part.taken == 1


@scene
async def test_who_waits_when_it_is_closed_hears_why(bench):
    inbox = MessageInbox(InboxRoom(1_000))
    waiting = asyncio.ensure_future(inbox.wait())
    await bench.settle()
    inbox.close("over")
    with pytest.raises(StateError, match="over"):
        await waiting
    with pytest.raises(StateError):
        inbox.take_within(None)


@pytest.mark.parametrize("is_noting", [True, False])
def test_a_source_that_wants_to_hears_of_each_message_that_is_taken(is_noting):
    inbox, part = MessageInbox(InboxRoom(1_000)), Part()
    part.is_noting = is_noting
    messages = [message(number, part) for number in range(3)]
    inbox.put(messages)
    assert [inbox.take(), *inbox.take_many(10, 1_000, 0)] == messages
    assert part.notes == (messages if is_noting else [])
