"""The ledger of delivery tags, by examples; the law is in ``property/test_unacked_ledger.py``."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.adapters.amqp.consumers import Holder
from penstock.adapters.amqp.unacked import RUN_AGE_MS_MAX, Unacked, stretches
from penstock.model.ids import QueueId
from penstock.wire.amqp.codes import AmqpError, ReplyCode

A, B = cast("list[Holder]", [object(), object()])
Q = QueueId(7)


def ledger(count: int = 0) -> Unacked:
    """Tags 1 to ``count`` with offsets from 100 on."""
    unacked = Unacked()
    if count:
        unacked.add(A, Q, list(range(100, 100 + count)), 0)
    return unacked


def offsets(unacked: Unacked, *tags: int, is_multiple: bool = False) -> list[int]:
    take = unacked.take_multiples if is_multiple else unacked.take_each
    pieces, unknown = take(list(tags))
    assert unknown is None
    return [offset for piece in pieces for offset in piece.settled_offsets]


def test_tags_begin_with_one_and_count_everything() -> None:
    unacked = Unacked()
    assert unacked.add(A, Q, [5, 6], 0) == 1
    assert unacked.skip(3) == 3
    assert unacked.add_batch(A, Q, [7, 8, 9], 0) == 6
    assert unacked.add(B, Q, [10], 0) == 7
    assert unacked.count == 4


def test_one_ack_in_the_middle_leaves_both_sides() -> None:
    unacked = ledger(5)
    assert offsets(unacked, 3) == [102]
    assert unacked.count == 4
    assert offsets(unacked, 4, is_multiple=True) == [100, 101, 103]
    assert offsets(unacked, 5) == [104]


def test_acks_of_neighbours_are_one_piece() -> None:
    unacked = ledger(1000)
    pieces, unknown = unacked.take_each(list(range(1, 501)))
    assert unknown is None
    assert [piece.tags for piece in pieces] == [500]
    pieces, unknown = unacked.take_each(list(range(1000, 500, -1)))
    assert unknown is None
    assert [piece.tags for piece in pieces] == [500]
    assert unacked.count == 0


def test_a_batch_is_one_tag_with_all_its_offsets() -> None:
    unacked = Unacked()
    unacked.add(A, Q, [1], 0)
    unacked.add_batch(A, Q, [2, 3, 4], 0)
    unacked.add(A, Q, [5], 0)
    assert offsets(unacked, 2) == [2, 3, 4]
    assert unacked.count == 2


def test_an_unknown_tag_is_told_and_what_was_before_it_is_taken() -> None:
    unacked = ledger(4)
    pieces, unknown = unacked.take_each([3, 1, 9, 2])
    assert unknown == 9
    assert sorted(piece.settled_offsets[0] for piece in pieces) == [100, 102]
    assert unacked.count == 2


def test_an_unknown_tag_of_a_nack_is_an_error() -> None:
    unacked = ledger(2)
    with pytest.raises(AmqpError, match="unknown delivery tag 3") as caught:
        unacked.take(3, is_multiple=True)
    assert caught.value.code is ReplyCode.PRECONDITION_FAILED
    assert unacked.count == 2


def test_zero_means_all_only_when_it_is_multiple() -> None:
    unacked = ledger(2)
    with pytest.raises(AmqpError, match="unknown delivery tag 0"):
        unacked.take(0, is_multiple=False)
    assert unacked.take(0, is_multiple=True)
    assert unacked.take(0, is_multiple=True) == []


def test_what_was_taken_can_be_put_back() -> None:
    unacked = ledger(6)
    pieces = unacked.take(4, is_multiple=False) + unacked.take(2, is_multiple=True)
    unacked.put_back(pieces)
    assert unacked.count == 6
    assert offsets(unacked, 6, is_multiple=True) == [100, 101, 102, 103, 104, 105]


def test_a_run_is_as_old_as_its_first_delivery() -> None:
    unacked = Unacked()
    assert unacked.oldest_ms is None
    unacked.add(A, Q, [1], 1000)
    unacked.add(A, Q, [2], 1000 + RUN_AGE_MS_MAX - 1)
    unacked.add(A, Q, [3], 1000 + RUN_AGE_MS_MAX)
    assert unacked.oldest_ms == 1000
    unacked.take(2, is_multiple=True)
    assert unacked.oldest_ms == 1000 + RUN_AGE_MS_MAX


def test_stretches_are_found_in_any_order() -> None:
    assert stretches([4]) == [(4, 4)]
    assert stretches([4, 5, 6]) == [(4, 6)]
    assert stretches([9, 5, 4, 7, 6]) == [(4, 7), (9, 9)]
    assert stretches([4, 4]) == [(4, 4), (4, 4)]


def test_rising_multiple_acks_of_one_run_are_one_piece() -> None:
    unacked = ledger(10)
    pieces, unknown = unacked.take_multiples([3, 5, 8])
    assert unknown is None
    assert [piece.settled_offsets for piece in pieces] == [list(range(100, 108))]
    assert unacked.count == 2


def test_of_multiple_acks_those_before_the_unknown_one_are_settled() -> None:
    unacked = ledger(10)
    unacked.take_each([5])
    pieces, unknown = unacked.take_multiples([3, 5, 8])
    assert unknown == 5
    assert [offset for piece in pieces for offset in piece.settled_offsets] == [100, 101, 102]
    assert unacked.count == 6
