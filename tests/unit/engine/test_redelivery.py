"""What must be delivered again or later, in its original order."""

from penstock.engine.delayed_room import DelayedRoom
from penstock.engine.redelivery import Redelivery


def room(count_max):
    return DelayedRoom(count_max, lambda subscription: None)


def test_what_comes_back_is_served_in_its_original_order():
    redelivery = Redelivery(room(10))
    for offset in (7, 3, 5):
        redelivery.back(offset)
    assert redelivery.take(2) == [3, 5]
    redelivery.put_back([3])
    assert redelivery.take(9) == [3, 7]
    assert redelivery.is_empty


def test_a_delayed_entry_waits_for_its_moment():
    redelivery = Redelivery(room(10))
    redelivery.delay(4, due_ms=200, messages=3)
    redelivery.delay(2, due_ms=300, messages=1)
    assert redelivery.delayed_messages == 4
    assert redelivery.next_due_ms() == 200
    assert redelivery.ripen(199) == 0
    assert redelivery.ripen(250) == 1
    assert redelivery.again == [4]
    assert redelivery.delayed_messages == 1


def test_a_delayed_entry_that_is_settled_before_never_ripens():
    redelivery = Redelivery(room(10))
    redelivery.delay(4, due_ms=200, messages=3)
    assert redelivery.undelay(4)
    assert not redelivery.undelay(4)
    assert redelivery.next_due_ms() is None
    assert redelivery.ripen(999) == 0
    assert redelivery.delayed_messages == 0


def test_it_is_full_at_its_bound():
    redelivery = Redelivery(room(2))
    redelivery.delay(1, 100, 1)
    assert not redelivery.is_full
    redelivery.delay(2, 100, 1)
    assert redelivery.is_full
    redelivery.ripen(100)
    assert not redelivery.is_full


def test_what_lies_below_the_low_mark_is_forgotten():
    redelivery = Redelivery(room(10))
    for offset in (1, 5, 9):
        redelivery.back(offset)
        redelivery.counts[offset] = 1
    redelivery.delay(2, 100, 1)
    redelivery.delay(6, 100, 1)
    redelivery.forget_below(5)
    assert (redelivery.again, redelivery.counts) == ([5, 9], {5: 1, 9: 1})
    assert list(redelivery.delayed) == [6]


def test_an_earlier_moment_that_was_given_up_does_not_fire():
    redelivery = Redelivery(room(10))
    redelivery.delay(4, due_ms=100, messages=1)
    redelivery.undelay(4)
    redelivery.delay(4, due_ms=300, messages=1)
    assert redelivery.ripen(200) == 0
    assert redelivery.next_due_ms() == 300
