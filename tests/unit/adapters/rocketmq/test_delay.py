"""Delay levels and timers, row by row."""

import pytest

from penstock.adapters.rocketmq.delay import (
    LEVEL_MAX,
    LEVELS_MS,
    TIMER_TICK_MS,
    Delay,
    DelayRefused,
    level_ms,
    plan_delay,
    timer_out_ms,
)
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.properties import format_properties, parse_properties

TIMER_MS_MAX = RocketmqSettings().timer_ms_max
NOW_MS = 1_700_000_000_123
DAY_MS = 24 * 3_600_000


def plan(given, now_ms):
    return plan_delay(given, now_ms, TIMER_MS_MAX)


def properties(**pairs):
    return format_properties({"KEYS": "k", **{name: str(value) for name, value in pairs.items()}})


def test_the_eighteen_levels():
    seconds = [1, 5, 10, 30]
    minutes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120]
    expected = [each * 1_000 for each in seconds] + [each * 60_000 for each in minutes]
    assert list(LEVELS_MS) == expected
    assert LEVEL_MAX == 18


@pytest.mark.parametrize(
    ("level", "ms"),
    [(-1, 0), (0, 0), (1, 1_000), (3, 10_000), (18, 7_200_000), (19, 7_200_000), (99, 7_200_000)],
)
def test_a_level_above_the_last_counts_as_the_last(level, ms):
    assert level_ms(level) == ms
    assert plan(properties(DELAY=level), NOW_MS).deliver_ms == (NOW_MS + ms if ms else 0)


def test_no_delay_leaves_the_properties_alone():
    assert plan(properties(A="b"), NOW_MS) == Delay(0, properties(A="b"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DELAY", 1),
        ("TIMER_DELAY_SEC", 1),
        ("TIMER_DELAY_MS", 1),
        ("TIMER_DELIVER_MS", NOW_MS + 1),
        ("__STARTDELIVERTIME", NOW_MS + 1),
    ],
)
def test_each_property_makes_a_message_timed(name, value):
    assert plan(properties(**{name: value}), NOW_MS).deliver_ms > NOW_MS


def test_a_level_is_used_up_and_wins_over_timers():
    planned = plan(properties(DELAY=2, TIMER_DELAY_SEC=60, TIMER_DELIVER_MS=NOW_MS + 9), NOW_MS)
    assert planned == Delay(NOW_MS + 5_000, properties())


@pytest.mark.parametrize("level", ["0", "-1", "-3"])
def test_no_level_lets_the_timers_speak(level):
    planned = plan(properties(DELAY=level, TIMER_DELAY_SEC=2), NOW_MS)
    assert planned.deliver_ms >= NOW_MS + 2_000
    assert "DELAY" not in parse_properties(planned.properties)


@pytest.mark.parametrize(
    ("pairs", "wanted_ms"),
    [
        ({"TIMER_DELAY_SEC": 5}, NOW_MS + 5_000),
        ({"TIMER_DELAY_MS": 5_001}, NOW_MS + 5_001),
        ({"TIMER_DELIVER_MS": NOW_MS + 7_777}, NOW_MS + 7_777),
        ({"__STARTDELIVERTIME": NOW_MS + 7_777}, NOW_MS + 7_777),
        ({"TIMER_DELAY_SEC": 5, "TIMER_DELAY_MS": 1, "TIMER_DELIVER_MS": 1}, NOW_MS + 5_000),
        ({"TIMER_DELAY_MS": 4_000, "TIMER_DELIVER_MS": 1}, NOW_MS + 4_000),
    ],
)
def test_timers_deliver_at_the_first_tick_that_is_not_early(pairs, wanted_ms):
    planned = plan(properties(**pairs), NOW_MS)
    assert wanted_ms <= planned.deliver_ms < wanted_ms + TIMER_TICK_MS
    assert planned.deliver_ms % TIMER_TICK_MS == 0
    out_ms = int(parse_properties(planned.properties)["TIMER_OUT_MS"])
    assert out_ms == planned.deliver_ms - TIMER_TICK_MS


@pytest.mark.parametrize(
    ("wanted_ms", "out_ms"), [(5_000, 4_000), (5_001, 5_000), (5_999, 5_000), (6_000, 5_000)]
)
def test_exact_ticks_are_noted_one_earlier_and_others_are_floored(wanted_ms, out_ms):
    assert timer_out_ms(wanted_ms) == out_ms


def test_what_counts_from_now_does_not_count_again_when_it_is_sent_on():
    planned = plan(properties(TIMER_DELAY_SEC=5), NOW_MS)
    assert set(parse_properties(planned.properties)) == {"KEYS", "TIMER_OUT_MS"}
    planned = plan(properties(TIMER_DELIVER_MS=NOW_MS + 5_000), NOW_MS)
    assert "TIMER_DELIVER_MS" in parse_properties(planned.properties)


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "__STARTDELIVERTIME"])
@pytest.mark.parametrize("past_ms", [0, 1, DAY_MS])
def test_a_time_that_has_passed_delays_nothing(name, past_ms):
    given = properties(**{name: NOW_MS - past_ms})
    assert plan(given, NOW_MS) == Delay(0, given)


def test_three_days_are_the_most():
    assert TIMER_MS_MAX == 3 * DAY_MS
    assert plan(properties(TIMER_DELAY_MS=TIMER_MS_MAX), NOW_MS).deliver_ms > NOW_MS
    for pairs in (
        {"TIMER_DELAY_MS": TIMER_MS_MAX + 1},
        {"TIMER_DELAY_SEC": 3 * 86_400 + 1},
        {"TIMER_DELIVER_MS": NOW_MS + TIMER_MS_MAX + 1},
        {"__STARTDELIVERTIME": NOW_MS + TIMER_MS_MAX + 1},
    ):
        with pytest.raises(DelayRefused, match="bigger than the max delay 259200000ms"):
            plan(properties(**pairs), NOW_MS)


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("text", ["soon", "1.5", "1" * 19, "--1", "٣"])
def test_what_is_no_number_is_refused_by_name(name, text):
    with pytest.raises(DelayRefused, match=name):
        plan(properties(**{name: text}), NOW_MS)


def test_taking_back_a_timer_that_is_over_is_refused():
    with pytest.raises(DelayRefused):
        plan(properties(TIMER_DELIVER_MS=NOW_MS, TIMER_DEL_UNIQKEY="x"), NOW_MS)
