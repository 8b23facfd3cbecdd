"""Who owns a key, and how little changes when consumers come and go."""

from types import SimpleNamespace

import pytest

from penstock.engine.consumer import RefusalReason
from penstock.engine.dispatch.key_slots import SLOTS, SlotClaims, SlotRing


def consumer(number, name=None, ranges=()):
    return SimpleNamespace(consumer_id=number, name=name or f"c{number}", key_ranges=ranges)


def owners(ring):
    return [ring.owner(slot).consumer_id for slot in range(1, SLOTS + 1, 7)]


def test_without_consumers_nobody_owns_anything():
    assert SlotRing().owner(5) is None
    assert SlotClaims().owner(5) is None


def test_a_key_falls_into_the_slot_that_others_would_give_it():
    # murmur3_32(b"test") is 0xBA6BD213; without its sign bit 0x3A6BD213.
    assert SlotRing().slot(b"test") == 0x3A6BD213 % 65535 + 1
    assert SlotClaims().slot(b"test") == 0x3A6BD213 % 65536
    assert SlotClaims().slot(b"") == 1


def test_keys_are_spread_over_all_consumers():
    ring = SlotRing()
    for number in range(1, 6):
        ring.add(consumer(number))
    found = owners(ring)
    shares = [found.count(number) / len(found) for number in range(1, 6)]
    assert min(shares) > 0.1
    assert max(shares) < 0.35


def test_a_newcomer_takes_only_what_becomes_its_own():
    ring = SlotRing()
    for number in range(1, 5):
        ring.add(consumer(number))
    before = owners(ring)
    ring.add(consumer(5))
    after = owners(ring)
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {5}


def test_who_leaves_and_comes_back_under_its_name_finds_its_keys_again():
    ring = SlotRing()
    everyone = [consumer(number) for number in range(1, 5)]
    for each in everyone:
        ring.add(each)
    before = owners(ring)
    ring.remove(everyone[1])
    assert 2 not in owners(ring)
    ring.add(consumer(99, name="c2"))
    assert [2 if each == 99 else each for each in owners(ring)] == before


def test_consumers_of_one_name_have_different_keys():
    ring = SlotRing()
    first, second = consumer(1, name="same"), consumer(2, name="same")
    ring.add(first)
    ring.add(second)
    assert set(owners(ring)) == {1, 2}
    ring.remove(first)
    assert set(owners(ring)) == {2}
    ring.remove(second)
    assert ring.owner(1) is None


def test_claimed_ranges_are_kept_and_gaps_have_no_owner():
    claims = SlotClaims()
    first, second = consumer(1, ranges=[(0, 99), (300, 400)]), consumer(2, ranges=[(100, 199)])
    for each in (first, second):
        assert claims.refusal(each) is None
        claims.add(each)
    found = [claims.owner(slot) for slot in (1, 99, 100, 199, 200, 300, 400, 401)]
    assert found == [first, first, second, second, None, first, first, None]
    claims.remove(first)
    assert claims.owner(50) is None


@pytest.mark.parametrize(
    "ranges", [[(50, 150)], [(199, 300)], [(0, 65535)], [(-1, 4)], [(9, 8)], [(70_000, 70_001)]]
)
def test_ranges_that_overlap_or_make_no_sense_are_refused(ranges):
    claims = SlotClaims()
    claims.add(consumer(1, ranges=[(100, 199)]))
    assert claims.refusal(consumer(2, ranges=ranges)).reason is RefusalReason.KEY_RANGE


def test_the_two_ways_do_not_mix():
    assert SlotClaims().refusal(consumer(1)).reason is RefusalReason.KEY_RANGE
    assert SlotRing().refusal(consumer(1, ranges=[(0, 9)])).reason is RefusalReason.KEY_RANGE


def test_ranges_of_one_consumer_may_not_overlap_either():
    claims = SlotClaims()
    assert claims.refusal(consumer(1, ranges=[(0, 9), (5, 20)])) is not None
