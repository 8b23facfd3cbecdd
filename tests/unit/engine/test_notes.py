"""What is saved of a turn: as little as says it all."""

from penstock.engine.notes import Notes
from penstock.model.settlement import Cause, QueueSettlement


def test_a_hundred_acks_in_order_are_just_a_higher_low_mark():
    notes = Notes(low_mark=0)
    for offset in range(100):
        notes.settled(Cause.ACKED, offset, offset + 1)
    assert notes.take(7, low_mark=100) == [(Cause.ACKED, QueueSettlement(7, 100))]
    assert notes.is_empty
    assert notes.take(7, low_mark=100) == []


def test_scattered_acks_are_joined_and_what_the_low_mark_says_is_left_out():
    notes = Notes(low_mark=0)
    notes.settled_runs(Cause.ACKED, [(9, 10), (5, 6), (6, 8), (0, 2)])
    assert notes.take(7, low_mark=2) == [(Cause.ACKED, QueueSettlement(7, 2, [(5, 8), (9, 10)]))]


def test_each_cause_is_told_apart():
    notes = Notes(low_mark=0)
    notes.settled(Cause.ACKED, 4, 5)
    notes.settled(Cause.EXPIRED, 6, 7)
    assert notes.take(7, low_mark=0) == [
        (Cause.ACKED, QueueSettlement(7, -1, [(4, 5)])),
        (Cause.EXPIRED, QueueSettlement(7, -1, [(6, 7)])),
    ]


def test_counts_and_marks_are_saved_also_when_nothing_is_settled():
    notes = Notes(low_mark=3)
    notes.counted(5, 1)
    notes.counted(5, 2)
    notes.marked(1000)
    assert notes.take(7, low_mark=3) == [
        (Cause.DELIVERED, QueueSettlement(7, -1, [], 1000, [(5, 2)]))
    ]


def test_a_seek_forgets_what_was_noted_before_it_and_comes_first():
    notes = Notes(low_mark=0)
    notes.settled(Cause.ACKED, 0, 9)
    notes.counted(11, 1)
    notes.sought(4)
    notes.settled(Cause.ACKED, 6, 7)
    assert notes.take(7, low_mark=4) == [
        (Cause.SOUGHT, QueueSettlement(7, 4)),
        (Cause.ACKED, QueueSettlement(7, -1, [(6, 7)])),
    ]
