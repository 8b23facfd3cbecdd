"""Stages, who holds them, and what wakes them."""

from penstock.flow.credit import Credit
from penstock.flow.journal import Journal
from penstock.flow.reason import Reason
from penstock.flow.stage import Stage


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
