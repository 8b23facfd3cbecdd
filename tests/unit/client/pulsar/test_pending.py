"""What has no receipt: its order, its bound, and who hears of its end."""

import asyncio
import threading

import pytest

from kit.client.pulsar_producer import HeardSend
from penstock.client.callbacks import CallbackThread, result_of, settle_future
from penstock.client.loop import Relay
from penstock.client.pulsar.encoding import Content, Pieces
from penstock.client.pulsar.errors import ClientError, StateError, TimedOut, WouldBlock
from penstock.client.pulsar.message import MessageId
from penstock.client.pulsar.pending import (
    AwaitedSend,
    BlockedSend,
    CallbackSend,
    PendingEntry,
    ReceiptOutOfOrder,
    SendRoom,
    UnconfirmedEntries,
    too_late,
)
from penstock.testing.clock import ManualClock


def send(size=1, deadline_ms=10_000):
    return HeardSend(Content(bytes(size)), size, deadline_ms)


def entry(sequence_id, sends=None, deadline_ms=100, **fields):
    sends = [send()] if sends is None else sends
    last = sequence_id + max(len(sends) - 1, 0)
    return PendingEntry(
        sequence_id, last, Pieces(b"head", b"body"), sends, 0, deadline_ms, **fields
    )


# ---- entries ------------------------------------------------------------------------------------


def test_receipts_in_order_end_the_oldest():
    pending = UnconfirmedEntries()
    entries = [entry(number) for number in range(3)]
    for each in entries:
        pending.add(each)
    assert (len(pending), pending.messages, pending.bytes) == (3, 3, 24)
    assert pending.confirmed(0, is_duplicate=False) is entries[0]
    assert pending.oldest is entries[1]
    assert pending.newest is entries[2]
    assert list(pending) == entries[1:]
    assert (pending.messages, pending.bytes) == (2, 16)


def test_a_receipt_that_nobody_waits_for_is_nothing():
    pending = UnconfirmedEntries()
    assert pending.confirmed(5, is_duplicate=False) is None
    pending.add(entry(7))
    assert pending.confirmed(5, is_duplicate=False) is None
    assert pending.refused(5) is None


def test_the_receipt_of_a_duplicate_may_overtake_others():
    pending = UnconfirmedEntries()
    first, second = entry(0), entry(1)
    pending.add(first)
    pending.add(second)
    assert pending.confirmed(1, is_duplicate=True) is second
    assert pending.confirmed(0, is_duplicate=False) is first


def test_any_other_receipt_that_is_early_means_that_one_was_lost():
    pending = UnconfirmedEntries()
    pending.add(entry(0))
    pending.add(entry(1))
    with pytest.raises(ReceiptOutOfOrder, match="confirmed 1 before 0"):
        pending.confirmed(1, is_duplicate=False)
    assert len(pending) == 2


def test_equal_ids_end_one_after_the_other():
    pending = UnconfirmedEntries()
    first, second = entry(3), entry(3)
    pending.add(first)
    pending.add(second)
    assert pending.confirmed(3, is_duplicate=False) is first
    assert pending.confirmed(3, is_duplicate=False) is second


def test_only_those_whose_time_is_up_expire():
    pending = UnconfirmedEntries()
    old, young = entry(0, deadline_ms=5), entry(1, deadline_ms=6)
    pending.add(old)
    pending.add(young)
    assert pending.expire(4) == []
    assert pending.expire(5) == [old]
    assert pending.drain() == [young]
    assert (len(pending), pending.messages, pending.bytes) == (0, 0, 0)
    assert pending.oldest is None
    assert pending.newest is None


def test_messages_of_a_batch_have_their_places_in_it():
    sends = [send(), send()]
    entry(0, sends).end(3, 4, 1)
    assert [each.outcome for each in sends] == [
        MessageId(3, 4, 1, 0),
        MessageId(3, 4, 1, 1),
    ]
    assert sends[0].outcome.batch_size == 2


def test_a_message_alone_is_its_entry():
    (only,) = sends = [send()]
    entry(0, sends).end(3, 4, -1)
    assert only.outcome == MessageId(3, 4)


def test_a_message_in_chunks_has_the_last_ones_id_and_knows_the_first():
    only, chunks = send(), []
    entry(0, [], first_chunk=chunks).end(3, 4, -1)
    entry(0, [], first_chunk=chunks).end(3, 5, -1)
    entry(0, [only], first_chunk=chunks).end(3, 6, -1)
    assert only.outcome == MessageId(3, 6)
    assert only.outcome.first_chunk == MessageId(3, 4)


def test_all_of_an_entry_hear_that_it_failed():
    sends = [send(), send()]
    error = ClientError("no")
    entry(0, sends).fail(error)
    assert [each.outcome for each in sends] == [error, error]


# ---- room ---------------------------------------------------------------------------------------


class Room:
    def __init__(self, messages=2, size_bytes=100, *, blocks=True):
        self.clock = ManualClock()
        self.begun = []
        self.room = SendRoom(
            messages, size_bytes, self.clock, self.begun.append, blocks=blocks, what="the producer"
        )


def test_who_finds_room_is_begun_and_who_does_not_waits_in_line():
    scene = Room()
    sends = [send() for _ in range(4)]
    assert [scene.room.take_or_wait(each) for each in sends] == [True, True, False, False]
    assert scene.begun == sends[:2]
    assert scene.room.waiting == 2
    assert scene.room.waits_since_ms == scene.clock.monotonic_ms()
    scene.room.give(1, 1)
    assert scene.begun == sends[:3]
    scene.room.give(2, 2)
    assert scene.begun == sends
    assert scene.room.waiting == 0
    assert scene.room.messages == 1


def test_bytes_bound_as_messages_do():
    scene = Room(10, 100)
    assert scene.room.take_or_wait(send(60))
    assert not scene.room.take_or_wait(send(50))
    # Nobody overtakes the one that waits, however small.
    assert not scene.room.take_or_wait(send(1))
    scene.room.give(1, 60)
    assert scene.room.messages == 2
    assert scene.room.bytes == 51


def test_refused_is_told_how_full_it_is_and_what_to_do():
    scene = Room(1, blocks=False)
    scene.room.take_or_wait(send(7))
    with pytest.raises(
        WouldBlock,
        match=r"the producer is full: 1 of 1 messages and 7 of 100 bytes.*block_if_queue_full=True",
    ):
        scene.room.take_or_wait(send())
    assert scene.room.refusals == 1
    assert scene.room.waiting == 0


def test_who_waits_for_too_long_leaves_and_the_next_has_the_room():
    scene = Room(10, 100)
    scene.room.take_or_wait(send(60))
    late, small = send(50, deadline_ms=5), send(20)
    scene.room.take_or_wait(late)
    scene.room.take_or_wait(small)
    assert scene.room.expire(4) == []
    assert scene.room.expire(5) == [late]
    assert scene.begun[-1] is small


def test_a_caller_that_is_held_is_let_go_with_its_room():
    scene = Room(1)
    scene.room.take_or_wait(send())
    held = send()
    assert not scene.room.take_or_wait(held, holds_caller=True)
    assert not held.admitted.is_set()
    scene.room.give(1, 1)
    assert held.admitted.is_set()


def test_the_futures_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr("penstock.client.pulsar.pending.WAITING_MAX", 1)
    scene = Room(1)
    scene.room.take_or_wait(send())
    scene.room.take_or_wait(send())
    with pytest.raises(WouldBlock):
        scene.room.take_or_wait(send())


def test_closing_gives_back_all_who_wait():
    scene = Room(1)
    scene.room.take_or_wait(send())
    waiting = send()
    scene.room.take_or_wait(waiting)
    assert scene.room.drain() == [waiting]


def test_more_partitions_have_more_room():
    scene = Room(1)
    scene.room.take_or_wait(send())
    scene.room.grow(2)
    assert scene.room.take_or_wait(send())
    assert scene.room.messages_max == 2


def test_too_late_says_for_how_long_and_why():
    error = too_late("producer of topic t", 30_000, "reconnecting since 29.9 s")
    assert isinstance(error, TimedOut)
    assert str(error) == (
        "a message of the producer of topic t to the broker (reconnecting since 29.9 s) was not"
        " answered within 30000 ms"
    )


# ---- who hears of it ----------------------------------------------------------------------------


def test_a_blocked_thread_gets_the_id_or_the_error():
    lock = threading.Lock()
    lock.acquire()
    blocked = BlockedSend(Content(b""), 0, 0, lock=lock)
    blocked.done(MessageId(1, 2))
    assert result_of(blocked, 1000) == MessageId(1, 2)
    blocked.outcome = StateError("closed")
    lock.release()
    with pytest.raises(StateError, match="closed"):
        result_of(blocked, None)


def test_a_future_gets_the_id_or_the_error_and_a_cancelled_one_nothing():
    async def scene():
        loop = asyncio.get_running_loop()
        sends = [AwaitedSend(Content(b""), 0, 0, future=loop.create_future()) for _ in range(3)]
        sends[2].future.cancel()
        sends[0].done(MessageId(1, 2))
        sends[1].done(StateError("closed"))
        sends[2].done(MessageId(1, 2))
        assert await sends[0].future == MessageId(1, 2)
        with pytest.raises(StateError):
            await sends[1].future

    asyncio.run(scene())


def test_a_future_of_another_loop_is_settled_there():
    async def scene():
        loop = asyncio.get_running_loop()
        relay = Relay(loop, settle_future)
        waiting = AwaitedSend(Content(b""), 0, 0, future=loop.create_future(), relay=relay)
        thread = threading.Thread(target=waiting.done, args=(MessageId(1, 2),))
        thread.start()
        assert await waiting.future == MessageId(1, 2)
        thread.join()

    asyncio.run(scene())


def test_a_send_with_a_callback_goes_to_its_thread_and_errors_stay_inside(caplog):
    ended, heard = [], []
    thread = CallbackThread("t", print, print)
    thread.put = ended.append

    def fails(outcome):
        heard.append(outcome)
        raise RuntimeError("the user's")

    each = CallbackSend(Content(b""), 0, 0, keeps_room=True, on_done=fails, thread=thread)
    each.call()
    assert heard == [], "it has not ended"
    each.done(MessageId(1, 2))
    assert ended == [each]
    each.call()
    assert heard == [MessageId(1, 2)]
    assert "send callback failed" in caplog.text
