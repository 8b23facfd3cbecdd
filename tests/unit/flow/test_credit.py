"""Credit between two stages (F1)."""

from itertools import pairwise

import pytest

from penstock.flow.credit import Credit
from penstock.flow.stage import Stage
from penstock.model.errors import InvariantBroken


def hop(initial=4, more=2):
    sender, receiver = Stage("channel", "1"), Stage("queue", "orders")
    return sender, receiver, Credit(sender, receiver, initial=initial, more=more)


def chain(*names, initial=4, more=2):
    stages = [Stage("stage", name) for name in names]
    return stages, [Credit(a, b, initial=initial, more=more) for a, b in pairwise(stages)]


def test_a_sender_is_free_until_its_last_credit_is_spent():
    sender, receiver, credit = hop()
    credit.spend(3)
    assert not sender.is_blocked
    credit.spend()
    assert sender.blocked_by == {receiver}
    assert credit.available == 0


def test_a_list_that_crosses_zero_is_still_sent_whole():
    sender, _, credit = hop()
    credit.spend(3)
    credit.spend(100)
    assert credit.in_flight == 103
    assert sender.is_blocked


def test_grants_come_in_steps_of_more():
    sender, _, credit = hop()
    credit.spend(4)
    credit.processed()
    assert (credit.available, sender.is_blocked) == (0, True)
    credit.processed()
    assert (credit.available, sender.is_blocked) == (2, False)


def test_what_is_left_of_a_step_counts_towards_the_next_grant():
    _, _, credit = hop()
    credit.spend(4)
    credit.processed(3)
    assert (credit.available, credit.in_flight) == (2, 1)
    credit.processed(1)
    assert (credit.available, credit.in_flight) == (4, 0)


def test_an_overdrawn_sender_stays_blocked_until_its_credit_is_positive():
    sender, _, credit = hop()
    credit.spend(10)
    credit.processed(6)
    assert (credit.available, sender.is_blocked) == (0, True)
    credit.processed(2)
    assert (credit.available, sender.is_blocked) == (2, False)


def test_a_blocked_receiver_defers_its_grants_and_flushes_all_of_them_when_it_is_free():
    (reader, channel, _queue), (first, second) = chain("reader", "channel", "queue")
    first.spend(4)
    second.spend(4)
    first.processed(4)
    assert (first.available, reader.is_blocked) == (0, True)
    second.processed(2)
    assert not channel.is_blocked
    assert (first.available, reader.is_blocked) == (4, False)


def test_a_receiver_with_two_blockers_defers_until_both_are_gone():
    reader, channel = Stage("connection", "c"), Stage("channel", "1")
    hot, cold = Stage("queue", "hot"), Stage("queue", "cold")
    inbound = Credit(reader, channel, initial=2, more=1)
    to_hot = Credit(channel, hot, initial=1, more=1)
    to_cold = Credit(channel, cold, initial=1, more=1)
    inbound.spend(2)
    to_hot.spend()
    to_cold.spend()
    inbound.processed(2)
    to_hot.processed()
    assert channel.blocked_by == {cold}
    assert reader.is_blocked
    to_cold.processed()
    assert not reader.is_blocked


def test_relief_travels_a_very_long_chain_without_recursion():
    stages, hops = chain(*map(str, range(5000)), initial=1, more=1)
    for credit in hops:
        credit.spend()
    # Everybody but the last has processed what it got, and cannot say so.
    for credit in hops[:-1]:
        credit.processed()
    assert all(stage.is_blocked for stage in stages[:-1])
    hops[-1].processed()
    assert not any(stage.is_blocked for stage in stages)


def test_bytes_and_messages_of_one_hop_do_not_release_each_other():
    sender, receiver, messages = hop(initial=2, more=1)
    sizes = Credit(sender, receiver, initial=1000, more=500)
    messages.spend(2)
    sizes.spend(5000)
    messages.processed(2)
    assert sender.blocked_by == {receiver}
    sizes.processed(5000)
    assert not sender.is_blocked


def test_death_of_a_side_unblocks_the_sender_and_forgets_what_is_owed():
    (reader, channel, _), (first, second) = chain("reader", "channel", "queue")
    first.spend(4)
    second.spend(4)
    first.processed(4)
    second.close()
    assert not channel.is_blocked
    assert not reader.is_blocked
    first.close()
    first.close()
    first.spend(100)
    first.processed(100)
    assert not reader.is_blocked


def test_a_credit_closed_while_its_grant_is_deferred_grants_nothing_later():
    (reader, channel, _), (first, second) = chain("reader", "channel", "queue")
    first.spend(2)
    second.spend(4)
    first.processed(2)
    first.close()
    assert channel.take_deferred() == []
    available = first.available
    second.processed(4)
    assert first.available == available
    assert not reader.is_blocked


@pytest.mark.parametrize(
    ("spent", "processed", "figures", "expected"),
    [
        (4, 0, (8, 2), (False, 4)),  # more room frees the sender
        (3, 0, (2, 1), (True, -1)),  # less room blocks it at once
        (4, 1, (4, 1), (False, 1)),  # a smaller step makes owed processing due
        (4, 1, (4, 4), (True, 0)),  # a larger step grants nothing early
    ],
)
def test_credit_can_be_resized_under_way(spent, processed, figures, expected):
    sender, _, credit = hop()
    credit.spend(spent)
    credit.processed(processed)
    initial, more = figures
    credit.resize(initial=initial, more=more)
    assert (sender.is_blocked, credit.available) == expected


@pytest.mark.parametrize(("initial", "more"), [(0, 0), (4, 0), (4, 5), (-1, -1)])
def test_figures_that_could_deadlock_are_refused(initial, more):
    with pytest.raises(ValueError, match="more must be between 1 and initial"):
        hop(initial, more)


def test_processing_more_than_was_sent_is_our_own_mistake():
    _, _, credit = hop()
    credit.spend(1)
    with pytest.raises(InvariantBroken, match="queue orders processed more than channel 1 sent"):
        credit.processed(2)
