"""Messages that could not be consumed: sent back (36), tried again later, or given up (sheet 2.3).

    delayLevel < 0, or tried ``max`` times already   ->  %DLQ%group, at once
    delayLevel = 0                                   ->  %RETRY%group, level 3 + times tried
    delayLevel > 0                                   ->  %RETRY%group, that level

``max`` is the request's (clients from 3.4.9 on), else the group's ``retryMaxTimes``. The consumer
names the message by commitLogOffset; what is stored is a new message with a new id that remembers
the first one (ORIGIN_MESSAGE_ID) and the topic it came from (RETRY_TOPIC).

A client whose send-back fails sends the message to %RETRY%group itself; ``destination`` says where
that really goes.

Not here: waiting (``engine/delay.py``), dead letters of other protocols (``burial.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from penstock.adapters.rocketmq import transactions
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.adapters.rocketmq.naming import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    dlq_topic,
    retry_topic,
    wire_name,
)
from penstock.adapters.rocketmq.requests import Answer, no_permission, refusal_answer, system_error
from penstock.adapters.rocketmq.send import Storing
from penstock.adapters.rocketmq.shown import shown_at
from penstock.adapters.rocketmq.transactions import Transactions
from penstock.engine.ports import Death
from penstock.model.names import TopicName
from penstock.model.record import Record, RecordFlag
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig, TopicConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.frames import send_answer
from penstock.wire.rocketmq.headers import SendBackHeader, parse
from penstock.wire.rocketmq.properties import (
    DELAY,
    PROPERTIES_BYTES_MAX,
    START_DELIVER_TIME,
    TIMER_DELIVER_MS,
    format_properties,
    value_of,
    with_property,
    without_properties,
)
from penstock.wire.rocketmq.stored import (
    RocketmqFacts,
    StoredMessage,
    SysFlag,
    decode_stored,
    record_of,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.send import Draft, Special
    from penstock.adapters.rocketmq.topics import Place


# ---- delay --------------------------------------------------------------------------------------
# When a message is to be delivered: delay levels, timers, and ali-ons' start time (sheet 2.3).
#
# | DELAY               level 1..18 of the table; more counts as 18; wins over all timers
# | TIMER_DELAY_SEC     seconds from now
# | TIMER_DELAY_MS      milliseconds from now
# | TIMER_DELIVER_MS    wall time in milliseconds; so is __STARTDELIVERTIME of ali-ons
#
# Timers tick every second. RocketMQ notes the tick *before* the wanted time (TIMER_OUT_MS: a wanted
# time that is a tick itself counts as one earlier) and delivers when that tick is over; so do we,
# and nothing is delivered early. Delays are not ticked.
#
# What decided the delay is used up and is taken out of the properties: a message that is sent back
# later, or read by another program and sent on, must not wait a second time.
#
# Not here: the waiting itself (``engine/delay.py``), send-back's choice of a level
# (``retrying.py``).


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
"""In the order in which they are asked."""

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


def is_timed(properties: bytes) -> bool:
    """False when ``plan`` would find nothing: three searches, for the many that are not timed."""
    return b"DELAY" in properties or b"TIMER_D" in properties or b"__START" in properties


def level_ms(level: int) -> int:
    """How long a level waits; 0 for no level."""
    return LEVELS_MS[min(level, LEVEL_MAX) - 1] if level > 0 else 0


def plan(properties: bytes, now_ms: int, timer_ms_max: int) -> Delay:
    """Read the delay of a message that comes in at wall time ``now_ms``; ``DelayRefused``."""
    level_text = value_of(properties, DELAY)
    level = _number(DELAY, level_text) if level_text else 0
    if level > 0:
        rest = without_properties(properties, (DELAY, *TIMER_NAMES))
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


# ---- send back ----------------------------------------------------------------------------------


MAX_TIMES_VERSION: Final = 121
"""V3_4_9: from here on the client's ``maxReconsumeTimes`` counts."""

RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
WAIT: Final = "WAIT"

_USED_UP: Final = (DELAY, *TIMER_NAMES, TIMER_OUT_MS, WAIT)
_TRANSACTION: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_FACTS: Final = RocketmqFacts()


def send_back(session: RocketmqConnection, command: Command) -> None:
    header = parse(SendBackHeader, command)
    broker = session.broker
    config = group_config(broker, header.group)
    if config.retry_queue_nums <= 0:
        session.answer(command)  # the group does not want retries: dropped, as RocketMQ does
        return
    retry = _retry_place(broker, config)
    stored = shown_at(broker, header.offset)
    if stored is None:
        raise system_error(f"look message by offset failed, {header.offset}")
    message, _ = decode_stored(stored)
    times_max = config.retry_max_times
    if command.version >= MAX_TIMES_VERSION and header.max_reconsume_times is not None:
        times_max = header.max_reconsume_times
    if header.delay_level < 0 or message.reconsume_times >= times_max:
        place, delay_ms = dlq_place(broker, header.group), 0
    else:
        place = retry
        delay_ms = level_ms(
            header.delay_level or broker.settings.retry_first_level + message.reconsume_times
        )
    if not place.is_writable:
        raise no_permission(f"the topic[{place.name}] sending message is forbidden")
    session.sends.store([_again(session, command, message, place, delay_ms)])


def destination(
    broker: RocketmqBroker, group: str, *, times: int, times_max: int | None, version: int
) -> Place | None:
    """Where a message that a client sends to %RETRY%group goes instead; None = there indeed.

    Ordered consumers give up this way: while one of the group holds a queue, it is a dead letter.
    """
    config = group_config(broker, group)
    if version < MAX_TIMES_VERSION or times_max is None:
        times_max = config.retry_max_times
    is_ordered = broker.locks.holds_any(group, broker.clock.monotonic_ms())
    return dlq_place(broker, group) if is_ordered or times > times_max else None


def group_config(broker: RocketmqBroker, group: str) -> SubscriptionGroupConfig:
    """The group's settings; raises ``Answer`` 26."""
    config = broker.part(GroupRegistry).find(group)
    if config is None:
        raise Answer(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
        )
    return config


def dlq_place(broker: RocketmqBroker, group: str) -> Place:
    """The group's dead-letter topic, made when it is needed."""
    return _group_place(broker, dlq_topic(group), 1)


def retry_properties(message: StoredMessage) -> bytes:
    """What a message sent back has in its properties, whichever topic it goes to."""
    properties = without_properties(message.properties, _USED_UP)
    if not value_of(properties, RETRY_TOPIC):
        properties = with_property(properties, RETRY_TOPIC, message.topic)
    if not value_of(properties, ORIGIN_MESSAGE_ID):
        properties = with_property(properties, ORIGIN_MESSAGE_ID, message.offset_message_id)
    return with_property(properties, WAIT, "false")


def _again(
    session: RocketmqConnection,
    command: Command,
    message: StoredMessage,
    place: Place,
    delay_ms: int,
) -> Storing:
    """The new message, and what its consumer hears when it is stored."""
    broker = session.broker
    properties = retry_properties(message)
    if place.name.startswith(DLQ_PREFIX):
        properties = with_property(properties, DLQ_ORIGIN_TOPIC, message.topic)
        properties = with_property(properties, DLQ_ORIGIN_MESSAGE_ID, message.offset_message_id)
    is_committed = message.sys_flag & _TRANSACTION == SysFlag.TRANSACTION_COMMIT
    queue = broker.random.randrange(place.queues)
    record = record_of(
        replace(
            message,
            topic=place.name,
            queue_id=queue,
            properties=properties,
            store_host=broker.store_host,
            reconsume_times=message.reconsume_times + 1,
            prepared_offset=message.prepared_offset or (is_committed and message.commit_log_offset),
            body_crc=-1,
        ),
        deliver_ms=broker.clock.wall_ms() + delay_ms if delay_ms else 0,
    )
    if delay_ms:
        record.reshape(flags=record.flags | RecordFlag.DELAYED)

    def refused_with(code: int, remark: str) -> None:
        session.answer(command, code, remark=remark)

    return Storing(
        record,
        route=place.routes[queue],
        keys=tuple(_FACTS.keys(record)),
        stored=lambda _storing: session.answer(command),
        refused=lambda refusal: refused_with(*refusal_answer(refusal)),
    )


def _retry_place(broker: RocketmqBroker, config: SubscriptionGroupConfig) -> Place:
    return _group_place(broker, retry_topic(config.group_name), config.retry_queue_nums)


def _group_place(broker: RocketmqBroker, name: str, queues: int) -> Place:
    broker.topics.check_name(name)
    return broker.topics.find(name) or broker.topics.put(
        TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
    )


HANDLERS: Final[dict[int, Handler]] = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}


# ---- special sends ------------------------------------------------------------------------------
# Sends that are not simply stored in their queue: to a retry topic, half, or delayed.
#
# Asked by ``send.py`` for what may be one of them; the order is RocketMQ's: a message that its
# group gives up goes to the dead letters at once, a half message waits for its producer and for no
# time.
#
# ``queueOffset`` of the answer: a half message's is its position, which the producer brings back in
# END_TRANSACTION; a delayed message has none yet and says its position, too.


_SPECIAL_SENDS_FACTS = RocketmqFacts()


def install(broker: RocketmqBroker) -> Special:
    """Let the sends of this house be asked."""
    broker.specials.append(take)
    return take


def take(draft: Draft) -> bool:
    """Store the draft in its special way; False when it is an ordinary one after all."""
    place, number = draft.place, draft.queue_number
    if place.name.startswith(RETRY_PREFIX):
        grave = _grave(draft)
        if grave is not None:
            properties = without_properties(draft.properties, (DELAY, *TIMER_NAMES))
            _store(draft, draft.record(grave.name, 0, properties), grave)
            return True
    if transactions.is_half(place.name, draft.properties):
        _store_half(draft)
        return True
    broker = draft.session.broker
    try:
        delay = plan(draft.properties, broker.clock.wall_ms(), broker.settings.timer_ms_max)
    except DelayRefused as problem:
        raise Answer(ResponseCode.MESSAGE_ILLEGAL, str(problem)) from None
    if not delay.deliver_ms:
        return False
    record = draft.record(place.name, number, delay.properties, deliver_ms=delay.deliver_ms)
    record.reshape(flags=record.flags | RecordFlag.DELAYED)
    _store(draft, record, place)
    return True


def _grave(draft: Draft) -> Place | None:
    header = draft.send.header
    return destination(
        draft.session.broker,
        draft.place.name.removeprefix(RETRY_PREFIX),
        times=header.reconsume_times,
        times_max=header.max_reconsume_times,
        version=draft.send.version,
    )


def _store_half(draft: Draft) -> None:
    broker = draft.session.broker
    table = broker.part(Transactions)
    table.check_room()
    properties = without_properties(draft.properties, (DELAY, *TIMER_NAMES))
    record = draft.record(
        draft.place.name,
        draft.queue_number,
        transactions.half_properties(properties),
        sys_flag=transactions.committed_flag(draft.send.header.sys_flag),
    )
    transactions.make_half(record)

    def stored(storing: Storing) -> None:
        table.stored(storing.record)
        _answer(draft, storing)

    _put(draft, Storing(record, route=draft.place.routes[draft.queue_number], stored=stored))


def _store(draft: Draft, record: Record, place: Place) -> None:
    number = draft.queue_number if place is draft.place else 0
    _put(
        draft,
        Storing(
            record,
            route=place.routes[number],
            keys=tuple(_SPECIAL_SENDS_FACTS.keys(record)),
            stored=lambda storing: _answer(draft, storing),
        ),
    )


def _put(draft: Draft, storing: Storing) -> None:
    sends = draft.session.sends
    storing.refused = lambda refusal: sends.end(draft.send, *refusal_answer(refusal))
    sends.store([storing])


def _answer(draft: Draft, storing: Storing) -> None:
    session = draft.session
    if draft.send.is_oneway or session.is_closed:
        return
    offset = int(storing.offset)
    session.write(
        send_answer(
            draft.send,
            storing.record.position,
            offset if offset >= 0 else int(storing.record.position),
            host_hex=session.broker.store_host_hex,
            queue_id=draft.queue_number if draft.place.queues > draft.queue_number else 0,
            unique_key=draft.unique_key,
        )
    )


# ---- burial -------------------------------------------------------------------------------------
# Dead letters made of RocketMQ messages by other protocols' consumers (D13).
#
# The letter is a new stored message with the name of the grave in it, so that a pull needs no copy,
# and with DLQ_ORIGIN_TOPIC and DLQ_ORIGIN_MESSAGE_ID, as RocketMQ's own dead letters carry them.
#
# Not here: RocketMQ's own way to the dead letters (``send_back.py``).


BURIED_TOPIC = "DLQ_ORIGIN_TOPIC"
BURIED_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"


class RocketmqDeadLetterFormat:
    """Satisfies ``engine.ports.DeadLetterFormat``."""

    def bury(self, record: Record, death: Death) -> Record | None:
        """The letter; None when the stored bytes make no sense."""
        try:
            message, _ = decode_stored(record.origin)
        except Malformed:
            return None
        message.commit_log_offset = record.position
        kept = without_properties(message.properties, (BURIED_TOPIC, BURIED_MESSAGE_ID))
        origin = format_properties(
            {
                BURIED_TOPIC: wire_name(TopicName(death.space, death.topic)),
                BURIED_MESSAGE_ID: message.offset_message_id,
            }
        )
        if len(kept) + len(origin) <= PROPERTIES_BYTES_MAX:
            message.properties = kept + origin
        message.reconsume_times = max(message.reconsume_times, death.attempts)
        if death.grave:
            message.topic = wire_name(TopicName(death.grave_space, death.grave))
        message.queue_id = 0
        return record_of(message)
