"""Leases: two bounds, told once, mended by a word."""

from penstock.flow.lease import Lease


def lease(**changes):
    return Lease(**{"ttl_ms": 1000, "bytes_max": 100, "now_ms": 0} | changes)


def test_a_lease_holds_within_its_time_and_its_bytes():
    held = lease()
    assert not held.judge(1000, 100)
    assert held.holds


def test_silence_beyond_its_time_breaks_it_once():
    held = lease()
    assert held.judge(1001, 0)
    assert not held.judge(2000, 0)
    assert (held.cause, held.is_broken, held.holds) == ("silence", True, False)
    assert "silent for 1 s" in held.text


def test_too_many_bytes_break_it():
    held = lease()
    assert held.judge(0, 101)
    assert held.cause == "bytes"


def test_a_word_renews_it():
    held = lease()
    held.hear(900, 0)
    assert not held.judge(1900, 0)


def test_a_word_mends_a_broken_lease_only_within_its_bytes():
    held = lease()
    held.judge(0, 500)
    assert not held.hear(10, 500)
    assert held.is_broken
    assert held.hear(20, 50)
    assert held.holds


def test_a_lease_given_back_is_not_broken():
    held = lease()
    held.release()
    assert not held.holds
    assert not held.is_broken
    assert not held.judge(10_000, 500)
