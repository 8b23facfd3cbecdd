"""Settlements: which causes make dead letters, and that they survive their own encoding."""

import msgspec
import pytest

from penstock.model.ids import QueueId, QueueOffset, SubscriptionId
from penstock.model.settlement import Cause, QueueSettlement, Settlement

DEAD_LETTERS = {Cause.EXPIRED, Cause.DROPPED_HEAD, Cause.REJECTED, Cause.DELIVERY_LIMIT}


@pytest.mark.parametrize("cause", Cause)
def test_only_messages_given_up_on_become_dead_letters(cause):
    assert cause.is_dead_letter == (cause in DEAD_LETTERS)


def test_a_settlement_reads_back_as_it_was_written():
    settlement = Settlement(
        SubscriptionId(7),
        Cause.ACKED,
        [
            QueueSettlement(QueueId(1), QueueOffset(10), [(12, 14)], 1000, [(15, 2)]),
            QueueSettlement(QueueId(2), QueueOffset(-1)),
        ],
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settlement), type=Settlement) == settlement


def test_the_numbers_of_causes_are_fixed_because_they_are_on_disk():
    assert [(cause.name, cause.value) for cause in Cause] == [
        ("ACKED", 0),
        ("COMMITTED", 1),
        ("EXPIRED", 2),
        ("DROPPED_HEAD", 3),
        ("REJECTED", 4),
        ("DELIVERY_LIMIT", 5),
        ("PURGED", 6),
        ("SOUGHT", 7),
        ("CORRUPT", 8),
        ("DELIVERED", 9),
        ("MOVED", 10),
    ]


def test_two_settlements_do_not_share_their_lists():
    first = QueueSettlement(QueueId(1), QueueOffset(0))
    first.ranges.append((1, 2))
    assert QueueSettlement(QueueId(1), QueueOffset(0)).ranges == []
