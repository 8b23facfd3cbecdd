"""Credit between two stages (F1)."""

from itertools import pairwise

import pytest

from penstock.flow.credit import Credit, Gate, Stage
from penstock.flow.episodes import Episodes, Journal
from penstock.flow.reason import Reason
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


def test_what_was_handed_over_is_counted_for_good_whatever_is_granted_or_resized():
    _, _, credit = hop()
    credit.spend(3)
    credit.processed(3)
    credit.resize(initial=10, more=5)
    credit.spend(4)
    credit.close()
    assert credit.spent_total == 7


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


# ---- stage --------------------------------------------------------------------------------------
# Stages, who holds them, and what wakes them.


def test_a_stage_is_blocked_while_one_blocker_remains():
    stage, log, alarm = Stage("queue", "q"), Stage("log", "log"), Stage("alarm", "disk")
    stage.block(log)
    stage.block(alarm)
    stage.block(log)
    stage.unblock(log)
    assert stage.blocked_by == {alarm}
    stage.unblock(alarm)
    assert not stage.is_blocked


def test_wake_is_called_once_when_the_last_blocker_goes():
    stage, log, disk = Stage("queue", "q"), Stage("log", "log"), Stage("disk", "d")
    woken = []
    stage.wake = lambda: woken.append(stage)
    stage.block(log)
    stage.block(disk)
    stage.unblock(log)
    assert woken == []
    stage.unblock(disk)
    stage.unblock(disk)
    assert woken == [stage]


def test_a_grant_wakes_every_stage_it_frees_upstream():
    woken = []
    reader, channel, queue = (Stage("stage", name) for name in ("reader", "channel", "queue"))
    for stage in (reader, channel):
        stage.wake = lambda name=stage.name: woken.append(name)
    first = Credit(reader, channel, initial=1, more=1)
    second = Credit(channel, queue, initial=1, more=1)
    first.spend()
    second.spend()
    first.processed()
    second.processed()
    assert woken == ["channel", "reader"]


def test_a_stage_that_spends_in_its_wake_is_blocked_again_and_woken_again():
    sender, receiver = Stage("channel", "1"), Stage("queue", "q")
    credit = Credit(sender, receiver, initial=1, more=1)
    left = [3]

    def send():
        if left[0]:
            left[0] -= 1
            credit.spend()

    sender.wake = send
    send()
    for _ in range(3):
        assert sender.is_blocked
        credit.processed()
    assert not sender.is_blocked


def test_a_stage_blocked_again_while_relief_is_on_its_way_keeps_its_grants_deferred():
    log, alarm = Stage("log", "log"), Stage("alarm", "disk")
    first, second = Stage("queue", "first"), Stage("queue", "second")
    channel = Stage("channel", "1")
    to_log = [Credit(queue, log, initial=1, more=1) for queue in (first, second)]
    inbound = Credit(channel, first, initial=1, more=1)
    inbound.spend()
    for credit in to_log:
        credit.spend()
        log.block(alarm)
        credit.processed()
    inbound.processed()
    # The relief reaches the second queue first; what it wakes holds the first one again.
    second.wake = lambda: first.block(alarm)
    log.unblock(alarm)
    assert first.blocked_by == {alarm}
    assert channel.is_blocked
    first.unblock(alarm)
    assert not channel.is_blocked


def test_a_stall_is_remembered_with_the_time_of_the_turn_and_the_name_of_the_blocker():
    journal = Journal(100)
    stage, log = Stage("queue", "orders", journal), Stage("log", "main", journal)
    stage.block(log)
    journal.tick(350)
    assert stage.episodes.reasons(350) == {Reason.FLOW: "log main"}
    stage.unblock(log)
    journal.tick(900)
    assert stage.episodes.stalled_ms(Reason.FLOW, 900) == 250


def test_a_closed_stage_ends_its_episode_and_is_not_woken():
    journal = Journal(0)
    stage, log = Stage("queue", "orders", journal), Stage("log", "main", journal)
    stage.wake = lambda: 1 / 0
    stage.block(log)
    journal.tick(10)
    stage.close()
    assert not stage.is_blocked
    entered, left = journal.take_edges()
    assert entered.episode is None
    assert left.episode.stalled_ms == 10


def test_repr_names_the_stage_and_its_state():
    stage = Stage("queue", "q")
    stage.block(Stage("log", "l"))
    assert repr(stage) == "<Stage queue q blocked>"


# ---- gate ---------------------------------------------------------------------------------------
# The gate: named reasons, never a boolean (F2).


def test_a_gate_is_open_only_while_no_reason_remains():
    gate = Gate()
    assert gate.close(Reason.FLOW, "queue orders", 10)
    assert gate.close(Reason.DISK, "disk", 20)
    assert gate.open(Reason.FLOW, 30)
    assert not gate.is_open
    assert gate.reasons == {Reason.DISK: "disk"}
    assert gate.open(Reason.DISK, 40)
    assert gate.is_open


def test_closing_twice_is_one_episode_that_is_opened_once():
    gate = Gate()
    assert gate.close(Reason.MEMORY, "memory", 10)
    assert not gate.close(Reason.MEMORY, "memory, again", 20)
    assert gate.reasons == {Reason.MEMORY: "memory, again"}
    assert gate.open(Reason.MEMORY, 30)
    assert not gate.open(Reason.MEMORY, 40)
    assert gate.is_open


def test_since_is_the_oldest_reason_still_there():
    gate = Gate()
    assert gate.since_ms is None
    gate.close(Reason.FLOW, "a", 10)
    gate.close(Reason.RATE, "b", 25)
    assert gate.since_ms == 10
    gate.open(Reason.FLOW, 30)
    assert gate.since_ms == 25


def test_a_dead_peer_leaves_no_reason_and_no_open_episode_behind():
    episodes = Episodes(memory_ms=0)
    gate = Gate(episodes)
    gate.close(Reason.FLOW, "a", 10)
    gate.close(Reason.PENDING, "b", 20)
    assert gate.clear(50) == [Reason.FLOW, Reason.PENDING]
    assert gate.clear(60) == []
    assert gate.is_open
    assert [(e.reason, e.stalled_ms) for e in episodes.history] == [
        (Reason.FLOW, 40),
        (Reason.PENDING, 30),
    ]


@pytest.mark.parametrize(
    ("reasons", "is_alarmed", "state"),
    [
        ((), False, "running"),
        ((), True, "blocking"),
        ((Reason.FLOW,), False, "flow"),
        ((Reason.FLOW,), True, "blocking"),
        ((Reason.QUOTA, Reason.RATE), False, "flow"),
        ((Reason.FLOW, Reason.DISK), True, "blocked"),
        ((Reason.MEMORY,), True, "blocked"),
    ],
)
def test_the_state_has_the_words_operators_know(reasons, is_alarmed, state):
    gate = Gate()
    for reason in reasons:
        gate.close(reason, "x", 0)
    assert gate.state(is_alarmed=is_alarmed) == state


def test_only_alarms_are_announced_to_the_publisher():
    gate = Gate()
    for reason in Reason:
        gate.close(reason, reason.value, 0)
    assert set(gate.resources) == {Reason.MEMORY, Reason.DISK}
