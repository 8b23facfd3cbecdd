"""Where a group begins, by everything that decides it."""

import asyncio
from datetime import UTC, datetime

import pytest

from penstock.client.consumer.consume_from import ConsumeFrom, first_offset, timestamp_ms
from penstock.model.assignment import QueueRef

NORMAL = QueueRef("orders", "b", 0)
RETRY = QueueRef("%RETRY%g", "b", 0)
AT_MS = 1_700_000_000_000


class Broker:
    """Answers 77 for the end and 33 for a time."""

    async def max_offset(self, queue):
        return 77

    async def search_offset(self, queue, at_ms):
        assert at_ms == AT_MS
        return 33


def begin(queue, stored, where):
    return asyncio.run(first_offset(queue, stored, where, AT_MS, Broker()))


@pytest.mark.parametrize("where", list(ConsumeFrom))
@pytest.mark.parametrize("queue", [NORMAL, RETRY])
def test_a_stored_offset_wins_whatever_consume_from_says(where, queue):
    assert begin(queue, 5, where) == 5
    assert begin(queue, 0, where) == 0


@pytest.mark.parametrize(
    ("where", "queue", "offset"),
    [
        (ConsumeFrom.FIRST, NORMAL, 0),
        (ConsumeFrom.FIRST, RETRY, 0),
        (ConsumeFrom.LAST, NORMAL, 77),
        (ConsumeFrom.LAST, RETRY, 0),
        (ConsumeFrom.TIMESTAMP, NORMAL, 33),
        (ConsumeFrom.TIMESTAMP, RETRY, 77),
    ],
)
@pytest.mark.parametrize("nothing", [None, -1])
def test_without_a_stored_offset_consume_from_decides(where, queue, offset, nothing):
    assert begin(queue, nothing, where) == offset


@pytest.mark.parametrize("where", list(ConsumeFrom))
def test_any_other_negative_offset_leaves_the_queue_for_later(where):
    assert begin(NORMAL, -2, where) is None


def test_a_time_may_be_given_as_text_datetime_or_milliseconds():
    moment = datetime(2024, 1, 31, 23, 59, 59, tzinfo=UTC)
    assert timestamp_ms(moment, 0) == 1_706_745_599_000
    assert timestamp_ms(1234, 0) == 1234
    local = datetime(2024, 1, 31, 23, 59, 59)
    assert timestamp_ms("20240131235959", 0) == int(local.timestamp() * 1000)
    assert timestamp_ms(None, AT_MS) == AT_MS - 1_800_000
    with pytest.raises(ValueError, match="not like 20240131235959"):
        timestamp_ms("yesterday", 0)


def test_every_choice_has_its_name_for_the_heartbeat():
    assert [each.wire.value for each in ConsumeFrom] == [
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ]
