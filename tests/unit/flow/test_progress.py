"""Progress: what of the past tells alike things apart."""

from penstock.flow.progress import (
    ENDED_MS,
    LOOPS_MIN,
    PUBLISHERS_MAX,
    READ_MS,
    TROUBLES_MAX,
    Progress,
    Spell,
    Troubles,
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
        progress.returned([3, 4])
        progress.returned([5])
    assert (progress.loops, progress.loop_offset) == (LOOPS_MIN, 3)
    assert progress.is_noteworthy(0)
    progress.settled(1)
    assert progress.loops == 0


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
