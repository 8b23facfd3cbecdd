"""Memory and disk alarms (F3)."""

import pytest

from penstock.flow.alarms import AlarmBoard, Edge, Watermark, disk_alarm, memory_alarm, parse_limit
from penstock.flow.reason import Reason
from penstock.model.errors import SettingsError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("is_floor", "values", "raised"),
    [
        (False, [100, 101, 100, 95, 94, 100, 101], [0, 1, 1, 1, 1, 1, 1]),
        (False, [101, 90, 89, 90, 100, 101], [1, 1, 0, 0, 0, 1]),
        (True, [90, 89, 100, 101, 90, 89], [0, 1, 1, 0, 0, 1]),
    ],
)
def test_a_watermark_is_raised_at_one_mark_and_cleared_beyond_the_other(is_floor, values, raised):
    watermark = Watermark(100, 90, is_floor=is_floor)
    assert [watermark.update(value) for value in values] == [bool(r) for r in raised]


@pytest.mark.parametrize("is_floor", [False, True])
@pytest.mark.parametrize("value", [0, 1, 1 << 60])
def test_a_limit_of_zero_is_raised_whatever_the_value(is_floor, value):
    assert Watermark(0, 0, is_floor=is_floor).update(value)


def test_marks_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="low mark 2 and high mark 1"):
        Watermark(1, 2)


def test_each_edge_is_reported_once_per_episode():
    alarm = memory_alarm(1000, 0.9)
    edges = [alarm.update(value, at) for at, value in enumerate([500, 1001, 1002, 950, 899, 10])]
    assert edges == [None, Edge.RAISED, None, None, Edge.CLEARED, None]
    assert alarm.episodes == 1
    assert alarm.since_ms is None


def test_since_is_when_it_was_raised():
    alarm = disk_alarm(1000, 1.1)
    alarm.update(999, 7)
    alarm.update(1, 9)
    assert (alarm.is_raised, alarm.since_ms) == (True, 7)
    assert alarm.update(1100, 10) is None
    assert alarm.update(1101, 11) is Edge.CLEARED


def test_a_probe_that_fails_counts_as_the_worst():
    memory, disk = memory_alarm(1000, 0.9), disk_alarm(1000, 1.1)
    assert memory.failed(1) is Edge.RAISED
    assert disk.failed(1) is Edge.RAISED
    assert memory.update(10, 2) is Edge.CLEARED


def test_a_new_limit_counts_at_once():
    alarm = memory_alarm(1000, 0.9)
    alarm.update(600, 1)
    assert alarm.resize(0, 0, 2) is Edge.RAISED
    assert alarm.resize(1000, 900, 3) is Edge.CLEARED


def test_the_board_speaks_rabbitmq_words():
    board = AlarmBoard(memory_alarm(1000, 0.9), disk_alarm(1000, 1.1))
    assert (board.is_raised, board.text, board.raised) == (False, "", {})
    board.disk.update(0, 1)
    assert board.text == "low on disk"
    board.memory.update(5000, 2)
    assert board.text == "low on memory & low on disk"
    assert board.raised == {
        Reason.MEMORY: "4.9 KiB used, limit 1000 B",
        Reason.DISK: "0 B free, limit 1000 B",
    }


@pytest.mark.parametrize(
    ("text", "total", "expected"),
    [
        ("0.6", 1000, 600),
        ("60%", 1000, 600),
        ("1.0", 1000, 1000),
        ("0", 1000, 0),
        ("0.0", 1000, 0),
        ("1", 1000, 1),
        ("500000", 1000, 500_000),
        ("2GiB", 1, 2 * GIB),
        ("2 gib", 1, 2 * GIB),
        ("1.5 MB", 1, 1_500_000),
        ("64k", 1, 65536),
        ("auto", 10 * GIB, GIB // 2),
        ("auto", 1000 * GIB, GIB),
    ],
)
def test_limits_are_read_as_shares_or_bytes(text, total, expected):
    assert parse_limit(text, total) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "2 parsecs", "1.5", "101%", "nan", "inf", "GiB"])
def test_an_unreadable_limit_is_an_error_that_quotes_it(text):
    with pytest.raises(SettingsError, match="limit"):
        parse_limit(text, 1000)


def test_a_disk_is_short_of_what_is_missing_to_its_amber_mark():
    alarm = disk_alarm(1000, 1.1)
    assert alarm.shortage_bytes == 0, "nobody has looked yet"
    shortages = []
    for value in (1251, 1250, 1249, 500, 0):
        alarm.update(value, 1)
        shortages.append(alarm.shortage_bytes)
    assert shortages == [0, 0, 1, 750, 1250]


def test_the_amber_mark_lies_where_the_alarm_clears_or_above():
    alarm = disk_alarm(1000, 2.0)
    alarm.update(1, 1)
    assert alarm.update(1 + alarm.shortage_bytes, 2) is Edge.CLEARED


def test_a_limit_of_zero_and_memory_are_never_short_of_disk():
    stopped, memory = disk_alarm(0, 1.1), memory_alarm(1000, 0.9)
    stopped.update(0, 1)
    memory.update(5000, 1)
    assert (stopped.shortage_bytes, memory.shortage_bytes) == (0, 0)
