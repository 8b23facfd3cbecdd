"""Ids: where transient ones begin."""

import pytest

from penstock.model.ids import ID_MAX, TRANSIENT_ID_MIN, UNASSIGNED_OFFSET, is_transient_id


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [(0, False), (TRANSIENT_ID_MIN - 1, False), (TRANSIENT_ID_MIN, True), (ID_MAX, True)],
)
def test_ids_from_two_to_the_31_on_are_transient(identifier, expected):
    assert is_transient_id(identifier) is expected


def test_ids_and_the_unassigned_offset_fill_their_fields():
    assert ID_MAX.bit_length() == 32
    assert UNASSIGNED_OFFSET.bit_length() == 64
