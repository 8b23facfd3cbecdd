"""When a message is to be delivered: delay levels, timers, and ali-ons' start time (sheet 2.3).

    DELAY               level 1..18 of the table; more counts as 18; wins over all timers
    TIMER_DELAY_SEC     seconds from now
    TIMER_DELAY_MS      milliseconds from now
    TIMER_DELIVER_MS    wall time in milliseconds; so is __STARTDELIVERTIME of ali-ons

Timers tick every second. RocketMQ notes the tick *before* the wanted time (TIMER_OUT_MS: a wanted
time that is a tick itself counts as one earlier) and delivers when that tick is over; so do we, and
nothing is delivered early. Delays are not ticked.

What decided the delay is used up and is taken out of the properties: a message that is sent back
later, or read by another program and sent on, must not wait a second time.

Not here: the waiting itself (``engine/delay.py``), the level of a message that is sent back
(``retry.py``).
"""

from typing import Final, NamedTuple

from penstock.wire.rocketmq.properties import (
    DELAY,
    START_DELIVER_TIME,
    TIMER_DELIVER_MS,
    value_of,
    with_property,
    without_properties,
)

_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS

LEVELS_MS: Final = (
    1 * _SECOND_MS, 5 * _SECOND_MS, 10 * _SECOND_MS, 30 * _SECOND_MS,
    1 * _MINUTE_MS, 2 * _MINUTE_MS, 3 * _MINUTE_MS, 4 * _MINUTE_MS, 5 * _MINUTE_MS,
    6 * _MINUTE_MS, 7 * _MINUTE_MS, 8 * _MINUTE_MS, 9 * _MINUTE_MS, 10 * _MINUTE_MS,
    20 * _MINUTE_MS, 30 * _MINUTE_MS, 1 * _HOUR_MS, 2 * _HOUR_MS,
)  # fmt: skip
"""Level n waits ``LEVELS_MS[n - 1]``."""

LEVEL_MAX: Final = len(LEVELS_MS)
TIMER_TICK_MS: Final = 1_000

TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"

TIMER_NAMES: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, START_DELIVER_TIME)
"""In the order in which they are looked for."""

DELAY_NAMES: Final = (DELAY, *TIMER_NAMES)

_ILLEGAL: Final = (
    "timer message illegal, the delay time should not be bigger than the max delay %dms; "
    "or if set del msg, the delay time should be bigger than the current time"
)
_DIGITS_MAX: Final = 18


class DelayRefused(ValueError):
    """The delay that a message asks for is impossible: MESSAGE_ILLEGAL, with this remark."""


class Delay(NamedTuple):
    """What a message's properties say about time."""

    deliver_ms: int
    """Wall time; 0 = at once."""
    properties: bytes
    """What is left of them to be stored."""


def level_ms(level: int) -> int:
    """How long a level waits; 0 for no level."""
    return LEVELS_MS[min(level, LEVEL_MAX) - 1] if level > 0 else 0


def plan_delay(properties: bytes, now_ms: int, timer_ms_max: int) -> Delay:
    """Read the delay of a message that comes in at wall time ``now_ms``; ``DelayRefused``."""
    level_text = value_of(properties, DELAY)
    level = _number(DELAY, level_text) if level_text else 0
    if level > 0:
        rest = without_properties(properties, DELAY_NAMES)
        return Delay(now_ms + level_ms(level), rest)
    wanted_ms = _timer(properties, now_ms)
    if wanted_ms <= now_ms:
        if value_of(properties, TIMER_DELETE_KEY):
            raise DelayRefused(_ILLEGAL % timer_ms_max)
        return Delay(0, without_properties(properties, (DELAY,)) if level_text else properties)
    if wanted_ms - now_ms > timer_ms_max:
        raise DelayRefused(_ILLEGAL % timer_ms_max)
    out_ms = timer_out_ms(wanted_ms)
    rest = without_properties(properties, (DELAY, *TIMER_NAMES[:2], TIMER_OUT_MS))
    return Delay(out_ms + TIMER_TICK_MS, with_property(rest, TIMER_OUT_MS, str(out_ms)))


def timer_out_ms(wanted_ms: int) -> int:
    """The last tick before a wanted time."""
    return (wanted_ms - 1) // TIMER_TICK_MS * TIMER_TICK_MS


def _timer(properties: bytes, now_ms: int) -> int:
    """The wall time that a timer asks for; 0 when none does."""
    for name in TIMER_NAMES:
        text = value_of(properties, name)
        if text:
            value = _number(name, text)
            if name == TIMER_DELAY_SEC:
                return now_ms + value * _SECOND_MS
            return now_ms + value if name == TIMER_DELAY_MS else value
    return 0


def _number(name: str, text: bytes) -> int:
    digits = text.removeprefix(b"-")
    if not (digits.isdigit() and len(digits) <= _DIGITS_MAX):
        shown = text[:40].decode("utf-8", "replace")
        raise DelayRefused(f"property {name} is {shown!r}; give a whole number")
    return int(text)
