"""When a message is to be delivered: delay levels, timers, ali-ons' start time (sheet 2.3), recall.

    DELAY               level 1..18 of the table; more counts as 18; wins over all timers
    TIMER_DELAY_SEC     seconds from now
    TIMER_DELAY_MS      milliseconds from now
    TIMER_DELIVER_MS    wall time in milliseconds; so is __STARTDELIVERTIME of ali-ons

Timers tick every second. RocketMQ notes the tick *before* the wanted time (TIMER_OUT_MS: a wanted
time that is a tick itself counts as one earlier) and delivers when that tick is over; so do we, and
nothing is delivered early. Delays are not ticked.

What decided the delay is used up and is taken out of the properties: a message that is sent back
later, or read by another program and sent on, must not wait a second time.

A timer message can be recalled (370) until its tick: the answer to its send carries a handle that
names topic, broker, time and unique key. As with RocketMQ, a handle under which nothing waits any
more is no error: whoever asks twice, because an answer was lost, gets the same answer.

Not here: the waiting itself (``engine/delay.py``), the level of a message that is sent back
(``retry.py``).
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.requests import ErrorResponse
from penstock.model.record import Wire
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.frames import REGION
from penstock.wire.rocketmq.headers import RecallAnswer, RecallHeader, fields, parse
from penstock.wire.rocketmq.properties import (
    DELAY,
    START_DELIVER_TIME,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    value_of,
    with_property,
    without_properties,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RemotingPeer, RocketmqBroker
    from penstock.engine.topic import Topic
    from penstock.wire.rocketmq.command import Command

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

HANDLE_VERSION: Final = "v1"
HANDLE_CHARS_MAX: Final = 1_024
"""Of a recall handle: two names, a number and a unique key."""
CANDIDATES_MAX: Final = 64
"""Entries of the key index that one recall looks at: their hashes may lie."""
NOTHING_WAITS: Final = "nothing waits under this handle: it was recalled before, or never sent"


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


# ---- recall -------------------------------------------------------------------------------------


class RecallHandle(NamedTuple):
    """What a recall handle says."""

    topic: str
    broker_name: str
    timestamp_ms: int
    """One millisecond behind the tick before the message's time; 0 when it is no number."""
    unique_key: str


def recall_handle(topic: str, broker_name: str, properties: bytes) -> str | None:
    """The handle of a timer message; None for one that cannot be recalled."""
    out_ms = value_of(properties, TIMER_OUT_MS)
    unique_key = value_of(properties, UNIQ_KEY)
    if not out_ms or topic.startswith(RETRY_PREFIX) or b" " in unique_key:
        return None
    parts = (HANDLE_VERSION, topic, broker_name, str(int(out_ms) + 1))
    return urlsafe_b64encode(b" ".join([*(each.encode() for each in parts), unique_key])).decode()


def parse_recall_handle(text: str) -> RecallHandle:
    """The parts of a handle; raises ``ErrorResponse`` 604."""
    parts: list[str] = []
    if len(text) <= HANDLE_CHARS_MAX:
        padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
        try:
            parts = b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        except ValueError:
            parts = []
    if len(parts) < 1 + len(RecallHandle._fields) or parts[0] != HANDLE_VERSION:
        raise _not_recalled("recall handle is invalid")
    _, topic, broker_name, time, unique_key = parts[:5]
    is_number = time.isascii() and time.isdigit() and len(time) <= _DIGITS_MAX
    return RecallHandle(topic, broker_name, int(time) if is_number else 0, unique_key)


def recall_message(connection: RemotingPeer, command: Command) -> None:
    """RECALL_MESSAGE: a timer message is dropped before its time; answered when that is durable."""
    header = parse(RecallHeader, command)
    broker = connection.broker
    rmq_topic = broker.topics.find(header.topic)
    if rmq_topic is None:
        raise ErrorResponse(
            ResponseCode.TOPIC_NOT_EXIST,
            f"recall failed, the topic[{header.topic}] not exist",
        )
    handle = parse_recall_handle(header.recall_handle)
    if handle.topic != header.topic:
        raise _not_recalled("recall failed, topic not match")
    if handle.broker_name != broker.broker_name:
        raise _not_recalled("recall failed, broker service not available")
    left_ms = handle.timestamp_ms - broker.clock.wall_ms()
    if not 0 < left_ms < broker.settings.timer_ms_max:
        raise _not_recalled("recall failed, timestamp invalid")
    remark = None if _cancel(broker, rmq_topic.topic, handle) else NOTHING_WAITS
    ext = fields(RecallAnswer(msg_id=handle.unique_key)) | {"MSG_REGION": REGION.decode()}
    broker.engine.after_durable(lambda: connection.answer(command, ext=ext, remark=remark))


def _cancel(broker: RocketmqBroker, topic: Topic, handle: RecallHandle) -> bool:
    engine = broker.engine
    key, out_ms = handle.unique_key.encode(), b"%d" % (handle.timestamp_ms - 1)
    positions = engine.positions_of(
        topic, key, begin_ms=0, end_ms=broker.clock.wall_ms() + 1, count_max=CANDIDATES_MAX
    )
    is_found = False
    for position in positions:
        located = engine.locate(position)
        if located is None or located.record.wire != Wire.ROCKETMQ:
            continue
        properties = located.record.properties
        if value_of(properties, UNIQ_KEY) == key and value_of(properties, TIMER_OUT_MS) == out_ms:
            is_found = engine.cancel_delayed(position) or is_found
    return is_found


def _not_recalled(remark: str) -> ErrorResponse:
    return ErrorResponse(ResponseCode.ILLEGAL_OPERATION, remark)
