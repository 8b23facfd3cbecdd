"""Episodes: stalls told so that a person can use them."""

import pytest

from penstock.flow.episodes import (
    EDGES_MAX,
    HISTORY_MAX,
    SETTLED_AT_ONCE,
    Episodes,
    Journal,
    StallShare,
)
from penstock.flow.reason import Reason

FLOW, DISK = Reason.FLOW, Reason.DISK


def test_short_gaps_belong_to_the_same_episode_but_are_not_counted_as_stalled():
    episodes = Episodes(memory_ms=1000)
    assert episodes.entered(FLOW, "queue q", 0)
    assert episodes.left(FLOW, 100) is None
    assert not episodes.entered(FLOW, "queue r", 1000)
    episodes.left(FLOW, 1050)
    [episode] = episodes.settle(2050)
    assert (episode.since_ms, episode.until_ms) == (0, 1050)
    assert (episode.stalled_ms, episode.stalls, episode.culprit) == (150, 2, "queue r")
    assert episodes.count(FLOW) == 1
    assert episodes.stalled_ms(FLOW, 2050) == 150


def test_a_gap_as_long_as_the_memory_begins_a_new_episode():
    episodes = Episodes(memory_ms=1000)
    episodes.entered(FLOW, "q", 0)
    episodes.left(FLOW, 100)
    assert episodes.entered(FLOW, "q", 1100)
    assert episodes.count(FLOW) == 2
    assert [e.stalled_ms for e in episodes.history] == [100]


def test_the_state_keeps_saying_flow_for_the_memory_after_the_last_stall():
    episodes = Episodes(memory_ms=1000)
    assert (episodes.state(0), episodes.since_ms(0)) == ("running", None)
    episodes.entered(FLOW, "q", 10)
    episodes.left(FLOW, 20)
    assert (episodes.state(1019), episodes.since_ms(1019)) == ("flow", 10)
    assert (episodes.state(1020), episodes.since_ms(1020)) == ("running", None)


def test_an_alarm_outranks_flow():
    episodes = Episodes()
    episodes.entered(FLOW, "q", 10)
    episodes.entered(DISK, "disk", 30)
    assert episodes.state(40) == "blocked"
    assert episodes.since_ms(40) == 10
    assert episodes.reasons(40) == {FLOW: "q", DISK: "disk"}


def test_without_memory_an_episode_ends_when_it_is_left():
    episodes = Episodes(memory_ms=0)
    episodes.entered(FLOW, "q", 10)
    episode = episodes.left(FLOW, 60)
    assert episode.stalled_ms == 50
    assert episodes.left(FLOW, 70) is None


def test_a_stall_with_two_holders_lasts_until_both_have_left():
    episodes = Episodes(memory_ms=0)
    assert episodes.entered(FLOW, "credit", 0)
    assert not episodes.entered(FLOW, "gate", 10)
    assert episodes.left(FLOW, 20) is None
    assert episodes.left(FLOW, 50).stalled_ms == 50


def test_stalled_time_includes_the_stall_in_progress():
    episodes = Episodes()
    episodes.entered(FLOW, "q", 100)
    assert episodes.stalled_ms(FLOW, 350) == 250
    assert episodes.stalled_ms(DISK, 350) == 0
    assert episodes.seen == (FLOW,)


def test_overlapping_reasons_count_once_in_the_share():
    episodes = Episodes(window_ms=1000)
    episodes.entered(FLOW, "q", 1000)
    episodes.entered(DISK, "d", 1200)
    episodes.left(FLOW, 1400)
    episodes.left(DISK, 1500)
    assert episodes.share(2000) == pytest.approx(0.5)


def test_history_is_bounded():
    episodes = Episodes(memory_ms=0)
    for at in range(HISTORY_MAX * 3):
        episodes.entered(FLOW, "q", at * 10)
        episodes.left(FLOW, at * 10 + 5)
    assert len(episodes.history) == HISTORY_MAX
    assert episodes.count(FLOW) == HISTORY_MAX * 3


@pytest.mark.parametrize(
    ("stalls", "now", "open_since", "expected"),
    [
        ([], 50_000, None, 0.0),
        ([(0, 10_000)], 10_000, None, 1.0),
        ([(0, 10_000)], 15_000, None, 0.5),
        ([(0, 10_000)], 20_000, None, 0.0),
        ([(0, 10_000)], 90_000, None, 0.0),
        ([], 20_000, 5_000, 1.0),
        ([(10_000, 11_000)], 20_000, 19_000, 0.2),
        ([(0, 1_000_000)], 1_000_000, None, 1.0),
        ([(100, 200), (300, 400), (9_000, 9_800)], 10_000, None, 0.1),
        ([(7, 7)], 10_000, None, 0.0),
    ],
)
def test_share_of_the_last_ten_seconds(stalls, now, open_since, expected):
    share = StallShare(10_000)
    for since, until in stalls:
        share.add(since, until)
    assert share.share(now, open_since) == pytest.approx(expected)


def test_the_oldest_slot_counts_in_proportion():
    share = StallShare(10_000)
    share.add(0, 500)
    assert share.stalled_ms(10_250) == 250


def test_the_journal_reports_each_edge_once():
    journal = Journal(0, memory_ms=1000)
    episodes = journal.episodes("queue", "orders")
    assert journal.next_deadline_ms is None
    episodes.entered(FLOW, "log main", 10)
    episodes.left(FLOW, 20)
    episodes.entered(FLOW, "log main", 30)
    episodes.left(FLOW, 40)
    journal.tick(500)
    assert journal.next_deadline_ms is not None
    [entered] = journal.take_edges()
    assert (entered.kind, entered.name, entered.at_ms) == ("queue", "orders", 10)
    journal.tick(1100)
    [left] = journal.take_edges()
    assert (left.at_ms, left.episode.stalled_ms, left.episode.stalls) == (40, 20, 2)
    journal.tick(5000)
    assert journal.take_edges() == []
    assert journal.next_deadline_ms is None


def test_time_held_is_known_while_it_is_still_going_on():
    journal = Journal(0, memory_ms=1000)
    queue, connection = journal.episodes("queue", "q"), journal.episodes("connection", "c")
    queue.entered(FLOW, "log", 10)
    connection.entered(DISK, "disk", 20)
    connection.left(DISK, 50)
    assert list(journal.unfinished(110)) == [("queue", FLOW, 100), ("connection", DISK, 30)]
    queue.left(FLOW, 110)
    journal.tick(2000)
    assert list(journal.unfinished(2000)) == []


def test_the_journal_asks_for_a_turn_only_when_an_episode_may_end():
    journal = Journal(0, memory_ms=1000)
    journal.tick(5000)
    queue = journal.episodes("queue", "q")
    queue.entered(FLOW, "log", 5000)
    assert journal.next_deadline_ms is None, "while it is held there is nothing to end"
    queue.left(FLOW, 5000)
    assert journal.next_deadline_ms == 6000
    queue.entered(FLOW, "log", 5050)
    journal.tick(6000)
    assert journal.next_deadline_ms is None, "it went on"


def test_an_episode_that_was_held_again_meanwhile_ends_after_its_last_stall():
    journal = Journal(0, memory_ms=1000)
    queue = journal.episodes("queue", "q")
    queue.entered(FLOW, "log", 0)
    queue.left(FLOW, 10)
    queue.entered(FLOW, "log", 500)
    queue.left(FLOW, 900)
    journal.take_edges()
    journal.tick(1100)
    assert journal.next_deadline_ms == 1900
    assert journal.take_edges() == []
    journal.tick(1900)
    (left,) = journal.take_edges()
    assert (left.at_ms, left.episode.stalls) == (900, 2)
    assert journal.next_deadline_ms is None


@pytest.fixture
def settled(monkeypatch):
    """Stages whose episodes were looked at for their end."""
    looks, settle = [], Episodes.settle
    monkeypatch.setattr(
        Episodes, "settle", lambda self, now_ms: looks.append(self.name) or settle(self, now_ms)
    )
    return looks


def test_of_thousands_that_are_over_at_once_each_tick_ends_some(settled):
    journal = Journal(0, memory_ms=1000)
    stages = [journal.episodes("connection", str(number)) for number in range(1000)]
    for stage in stages:
        stage.entered(DISK, "disk", 0)
        stage.left(DISK, 50)
    journal.take_edges()
    for now_ms in range(100, 1100, 100):
        journal.tick(now_ms)
    assert settled == [], "nothing can have ended"
    journal.tick(1100)
    assert len(settled) == len(journal.take_edges()) == SETTLED_AT_ONCE
    while journal.open:
        before = len(settled)
        assert journal.next_deadline_ms == journal.now_ms + 1
        journal.tick(journal.next_deadline_ms)
        assert 0 < len(settled) - before <= SETTLED_AT_ONCE
    assert settled == [str(number) for number in range(1000)], "each once, the first to end first"
    assert journal.next_deadline_ms is None


def test_journal_time_never_goes_back():
    journal = Journal(100)
    journal.tick(50)
    assert journal.now_ms == 100


def test_edges_nobody_takes_are_dropped_and_counted():
    journal = Journal(0, memory_ms=0)
    episodes = journal.episodes("queue", "q")
    for at in range(EDGES_MAX):
        episodes.entered(FLOW, "log", at)
        episodes.left(FLOW, at)
    assert len(journal.take_edges()) == EDGES_MAX
    assert journal.edges_dropped == EDGES_MAX


def test_of_very_many_edges_some_are_taken_at_once_the_oldest_first():
    journal = Journal(0, memory_ms=0)
    episodes = journal.episodes("queue", "q")
    for at in range(5):
        episodes.entered(FLOW, "log", at)
        episodes.left(FLOW, at)
    assert [edge.at_ms for edge in journal.take_edges(4)] == [0, 0, 1, 1]
    assert [edge.at_ms for edge in journal.take_edges(100)] == [2, 2, 3, 3, 4, 4]


def test_a_smaller_window_and_the_number_of_stalls_in_it():
    share = StallShare(10_000)
    share.add(1_000, 4_000)
    share.add(9_000, 9_500)
    share.add(9_600, 9_600)
    assert share.share(10_000, window_ms=2_000) == 0.25
    assert share.share(10_000, 9_900, window_ms=2_000) == 0.3
    assert share.share(10_000, window_ms=60_000) == share.share(10_000) == 0.35
    assert share.ended(10_000, 2_000) == 2
    assert share.ended(10_000, 10_000) == 3
    assert share.ended(25_000, 10_000) == 0


def test_an_episode_that_goes_on_after_a_refusal_ends_as_its_last_stall_does():
    episodes = Episodes(memory_ms=1_000)
    episodes.entered(Reason.HELD, "length_max", 0)
    episodes.refused(Reason.HELD)
    episodes.left(Reason.HELD, 20_000)
    episodes.entered(Reason.HELD, "length_max", 20_010)
    episodes.left(Reason.HELD, 26_000)
    (episode,) = episodes.settle(27_000)
    assert (episode.ended, episode.stalls) == ("released", 2)
