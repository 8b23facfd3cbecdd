"""When a message or an idle object is out of time."""

from penstock.engine.expiry import IdleExpiry, expires_ms
from penstock.model.record import neutral_record

ENTRY = (0, 0, 0, 1_000, 100, 1, 0, 0)


def test_the_earlier_of_the_two_times_counts():
    record = neutral_record(b"x")
    assert expires_ms(ENTRY, record, 0) == 0
    assert expires_ms(ENTRY, record, 50) == 1_050
    record.expire_ms = 1_020
    assert expires_ms(ENTRY, record, 50) == 1_020
    assert expires_ms(ENTRY, record, 10) == 1_010
    assert expires_ms(ENTRY, record, 0) == 1_020


def test_an_unused_object_is_over_when_its_time_is_up():
    idle = IdleExpiry(500, now_ms=1_000)
    assert idle.deadline_ms() == 1_500
    idle.used(1_400)
    assert not idle.is_over(1_899)
    assert idle.is_over(1_900)


def test_without_a_time_it_is_never_over():
    idle = IdleExpiry(0, now_ms=1_000)
    assert idle.deadline_ms() is None
    assert not idle.is_over(10**12)
