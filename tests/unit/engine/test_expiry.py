"""When a message is out of time."""

from penstock.engine.expiry import expires_ms
from penstock.model.record import neutral_record

ENTRY = (0, 0, 0, 1_000, 100, 1, 0, 0)


def test_the_earlier_of_the_two_times_counts():
    record = neutral_record(b"x")
    assert expires_ms(ENTRY, record, 0) == 0
    assert expires_ms(ENTRY, record, 50) == 1_050
    record.reshape(expire_ms=1_020)
    assert expires_ms(ENTRY, record, 50) == 1_020
    assert expires_ms(ENTRY, record, 10) == 1_010
    assert expires_ms(ENTRY, record, 0) == 1_020
