"""Heartbeats: half an interval of silence makes us speak, two of theirs end it."""

from penstock.adapters.amqp.heartbeat import Heartbeat


def test_an_interval_of_zero_turns_both_directions_off():
    beat = Heartbeat(0, 5)
    assert beat.deadline_ms is None
    assert not beat.wants_beat(10**9)
    assert not beat.is_dead(10**9)


def test_a_beat_is_wanted_after_half_an_interval_without_a_write():
    beat = Heartbeat(10, 0)
    assert beat.deadline_ms == 5_000
    assert not beat.wants_beat(4_999)
    assert beat.wants_beat(5_000)
    beat.sent_ms = 4_000
    assert not beat.wants_beat(8_999)
    assert beat.wants_beat(9_000)


def test_the_peer_is_dead_after_two_silent_intervals_and_any_byte_counts():
    beat = Heartbeat(10, 0)
    assert not beat.is_dead(19_999)
    assert beat.is_dead(20_000)
    beat.heard_ms = 15_000
    assert not beat.is_dead(34_999)
    assert beat.is_dead(35_000)


def test_the_nearest_of_both_deadlines_is_the_next():
    beat = Heartbeat(10, 0)
    beat.sent_ms = 18_000
    beat.looked()
    assert beat.deadline_ms == 20_000


def test_the_deadline_is_never_late_and_right_once_somebody_looked():
    beat = Heartbeat(10, 0)
    for now_ms in range(0, 60_000, 700):
        beat.heard_ms = now_ms
        beat.sent_ms = now_ms - now_ms % 2100
        assert beat.deadline_ms <= min(beat.sent_ms + 5_000, beat.heard_ms + 20_000)
        if now_ms >= beat.deadline_ms:
            beat.looked()
            assert beat.deadline_ms == beat.sent_ms + 5_000
