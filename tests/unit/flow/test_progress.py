"""Progress: what of the past tells alike things apart."""

import pytest

from penstock.flow.progress import (
    ENDED_MS,
    HOST_POINTS_MAX,
    LOOPS_MIN,
    PUBLISHERS_MAX,
    READ_MS,
    TROUBLES_MAX,
    Progress,
    RunDelay,
    Spell,
    Troubles,
    Unsettled,
)
from penstock.flow.reason import Culprit

BEHIND_MS = 5_000


def look(progress, now_ms, age_ms, ready, **given):
    figures = {"unacked_age_ms": 0, "is_read": True, **given}
    return progress.view(now_ms, age_ms=age_ms, ready=ready, behind_ms=BEHIND_MS, **figures)


def test_a_head_that_does_not_move_is_behind_when_it_is_old():
    progress = Progress(0)
    assert not look(progress, 4_000, 4_000, 9).is_behind
    found = look(progress, 6_000, 6_000, 9)
    assert (found.is_behind, found.since_ms) == (True, 5_000)


def test_since_when_it_is_behind_stays_the_same_while_its_head_moves_on():
    progress = Progress(0)
    for second in range(7):
        progress.moved(second * 1000, second * 800, 100 + second, BEHIND_MS)
    found = look(progress, 6_900, 5_300, 107)
    assert (found.is_behind, found.since_ms) == (True, 6_600)
    progress.moved(7_000, 5_200, 110, BEHIND_MS)
    later = look(progress, 7_100, 5_300, 111)
    assert (later.is_behind, later.since_ms) == (True, 6_600)


def test_a_head_that_moves_and_gets_older_is_behind_and_one_that_gets_younger_is_not():
    progress = Progress(0)
    for second in range(12):
        progress.moved(second * 1000, 5_000 + second * 500, 100 + second, BEHIND_MS)
    assert look(progress, 11_500, 11_000, 112).is_behind
    younger = Progress(0)
    for second in range(12):
        younger.moved(second * 1000, 20_000 - second * 500, 100, BEHIND_MS)
    assert not look(younger, 11_500, 14_000, 100).is_behind


def test_what_gets_less_is_never_behind_however_old_it_is():
    progress = Progress(0)
    for second in range(8):
        progress.moved(second * 1000, 6_000 + second * 900, 1_000 - second * 100, BEHIND_MS)
    assert not look(progress, 8_000, 13_000, 250).is_behind


def test_who_was_read_within_the_hour_is_meant_to_be_read():
    progress = Progress(0)
    assert not look(progress, 10_000, 9_000, 1, is_read=False).was_read
    progress.read_ms = 10_000
    assert look(progress, 10_000 + READ_MS, 9_000, 1, is_read=False).was_read
    assert not look(progress, 10_001 + READ_MS, 9_000, 1, is_read=False).was_read


def test_a_message_that_comes_back_again_and_again_is_counted_until_something_is_settled():
    progress = Progress(0)
    for _ in range(LOOPS_MIN):
        progress.returned([3, 4], 0)
        progress.returned([5], 0)
    assert (progress.loops, progress.loop_offset) == (LOOPS_MIN, 3)
    assert progress.is_noteworthy(0)
    progress.settled(1)
    assert progress.loops == 0


def test_a_loop_lasts_while_the_message_comes_back_as_it_used_to():
    progress = Progress(0)
    for number in range(LOOPS_MIN):
        progress.returned([3], 4_000 * number)
    last_ms = 4_000 * (LOOPS_MIN - 1)
    assert progress.is_noteworthy(last_ms + 7_000)
    assert not progress.is_noteworthy(last_ms + 9_000)


def test_a_spell_ends_when_it_pauses_and_begins_anew():
    spell = Spell()
    assert not spell.is_on(0)
    spell.note(2, 1_000)
    spell.note(3, 1_000 + ENDED_MS)
    assert (spell.since_ms, spell.count) == (1_000, 5)
    later_ms = 1_001 + 2 * ENDED_MS
    assert not spell.is_on(later_ms)
    spell.note(1, later_ms)
    assert (spell.since_ms, spell.count, spell.total) == (later_ms, 1, 6)


def test_troubles_are_bounded_and_who_is_concerned_is_counted():
    troubles = Troubles()
    for number in range(PUBLISHERS_MAX + 4):
        who = Culprit(f"c{number}", f"connection/{number}")
        troubles.note("length-limit", Culprit("q", "topic/q"), 1, 0, publisher=who)
    ((cause, trouble),) = troubles.now(0)
    assert (cause, len(trouble.publishers), trouble.publishers_left_out) == (
        "length-limit",
        PUBLISHERS_MAX,
        4,
    )
    for number in range(TROUBLES_MAX):
        troubles.note("length-limit", Culprit("q", f"topic/{number}"), 1, 0)
    assert len(troubles.now(0)) == TROUBLES_MAX
    assert troubles.dropped == 1


def test_very_many_places_keep_their_first_and_hide_nothing_else():
    troubles = Troubles()
    for now_ms in range(0, 10_000, 1_000):
        for number in range(TROUBLES_MAX + 100):
            troubles.note("unroutable", Culprit("c", f"channel/{number}"), 1, now_ms)
    troubles.note("write-failed", Culprit("log", "log"), 1, 9_000)
    found = {each.culprit.id: each.spell.since_ms for _, each in troubles.now(9_000)}
    assert (found["channel/0"], found["log"]) == (0, 9_000)
    troubles.note("unroutable", Culprit("c", "channel/new"), 1, 9_001 + ENDED_MS)
    found = {each.culprit.id for _, each in troubles.now(9_001 + ENDED_MS)}
    assert found == {"channel/new"}, "who is over makes room"


# The host.


def test_a_host_is_busy_when_a_thread_waits_more_than_a_fifth_of_five_seconds():
    delay = RunDelay()
    for second in range(6):
        delay.note({1: 0.0, 2: second * 210.0}, second * 1_000)
        assert (delay.view() is not None) is (second == 5), "not before the window is full"
    assert delay.view().share == pytest.approx(0.21)
    assert delay.view().since_ms == 5_000
    for second in range(6, 12):
        delay.note({1: 0.0, 2: 5 * 210.0}, second * 1_000)
    assert delay.view() is None


def test_a_thread_that_came_or_went_says_nothing_and_looks_are_not_too_often():
    delay = RunDelay()
    for now_ms in range(0, 20_000, 100):
        delay.note({now_ms: 9_000.0}, now_ms)
    assert delay.view() is None
    assert len(delay._points) <= HOST_POINTS_MAX


# A consumer that gives nothing back.


def test_a_consumer_that_holds_nothing_settles_nothing_late():
    unsettled = Unsettled()
    assert unsettled.look(0, 0, 1_000, 0) == 0
    assert unsettled.look(0, 5, 90_000, 90_000) == 0, "a list moved just now"
    assert unsettled.look(0, 5, 100_000, 0) == 10_000
    assert unsettled.look(1, 4, 101_000, 101_000) == 0
    assert unsettled.look(1, 4, 131_000, 130_000) == 30_000, "others settled, it did not"


def test_what_happened_between_two_looks_was_not_later_than_the_last_settlement():
    unsettled = Unsettled()
    unsettled.look(0, 1, 1_000, 1_000)
    assert unsettled.look(1, 5, 60_000, 2_000) == 58_000
