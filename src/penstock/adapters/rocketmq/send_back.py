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

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.adapters.rocketmq.busy import refusal_answer
from penstock.adapters.rocketmq.delay import TIMER_NAMES, TIMER_OUT_MS, level_ms
from penstock.adapters.rocketmq.group_book import GroupBook
from penstock.adapters.rocketmq.naming import DLQ_PREFIX, dlq_topic, retry_topic
from penstock.adapters.rocketmq.replies import Answer, no_permission, system_error
from penstock.adapters.rocketmq.shown import shown_at
from penstock.adapters.rocketmq.storing import Storing
from penstock.model.record import RecordFlag
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig, TopicConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import SendBackHeader, parse
from penstock.wire.rocketmq.properties import (
    DELAY,
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
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session
    from penstock.adapters.rocketmq.topics import Place

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


def send_back(session: Session, command: Command) -> None:
    """CONSUMER_SEND_MSG_BACK."""
    header = parse(SendBackHeader, command)
    house = session.house
    config = group_config(house, header.group)
    if config.retry_queue_nums <= 0:
        session.answer(command)  # the group does not want retries: dropped, as RocketMQ does
        return
    retry = _retry_place(house, config)
    stored = shown_at(house, header.offset)
    if stored is None:
        raise system_error(f"look message by offset failed, {header.offset}")
    message, _ = decode_stored(stored)
    times_max = config.retry_max_times
    if command.version >= MAX_TIMES_VERSION and header.max_reconsume_times is not None:
        times_max = header.max_reconsume_times
    if header.delay_level < 0 or message.reconsume_times >= times_max:
        place, delay_ms = dlq_place(house, header.group), 0
    else:
        place = retry
        delay_ms = level_ms(
            header.delay_level or house.settings.retry_first_level + message.reconsume_times
        )
    if not place.is_writable:
        raise no_permission(f"the topic[{place.name}] sending message is forbidden")
    session.sends.store([_again(session, command, message, place, delay_ms)])


def destination(
    house: House, group: str, *, times: int, times_max: int | None, version: int
) -> Place | None:
    """Where a message that a client sends to %RETRY%group goes instead; None = there indeed.

    Ordered consumers give up this way: while one of the group holds a queue, it is a dead letter.
    """
    config = group_config(house, group)
    if version < MAX_TIMES_VERSION or times_max is None:
        times_max = config.retry_max_times
    is_ordered = house.locks.holds_any(group, house.clock.monotonic_ms())
    return dlq_place(house, group) if is_ordered or times > times_max else None


def group_config(house: House, group: str) -> SubscriptionGroupConfig:
    """The group's settings; raises ``Answer`` 26."""
    config = house.part(GroupBook).find(group)
    if config is None:
        raise Answer(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
        )
    return config


def dlq_place(house: House, group: str) -> Place:
    """The group's dead-letter topic, made when it is needed."""
    return _group_place(house, dlq_topic(group), 1)


def retry_properties(message: StoredMessage) -> bytes:
    """What a message sent back has in its properties, whichever topic it goes to."""
    properties = without_properties(message.properties, _USED_UP)
    if not value_of(properties, RETRY_TOPIC):
        properties = with_property(properties, RETRY_TOPIC, message.topic)
    if not value_of(properties, ORIGIN_MESSAGE_ID):
        properties = with_property(properties, ORIGIN_MESSAGE_ID, message.offset_message_id)
    return with_property(properties, WAIT, "false")


def _again(
    session: Session, command: Command, message: StoredMessage, place: Place, delay_ms: int
) -> Storing:
    """The new message, and what its consumer hears when it is stored."""
    house = session.house
    properties = retry_properties(message)
    if place.name.startswith(DLQ_PREFIX):
        properties = with_property(properties, DLQ_ORIGIN_TOPIC, message.topic)
        properties = with_property(properties, DLQ_ORIGIN_MESSAGE_ID, message.offset_message_id)
    is_committed = message.sys_flag & _TRANSACTION == SysFlag.TRANSACTION_COMMIT
    queue = house.random.randrange(place.queues)
    record = record_of(
        replace(
            message,
            topic=place.name,
            queue_id=queue,
            properties=properties,
            store_host=house.store_host,
            reconsume_times=message.reconsume_times + 1,
            prepared_offset=message.prepared_offset or (is_committed and message.commit_log_offset),
            body_crc=-1,
        ),
        deliver_ms=house.clock.wall_ms() + delay_ms if delay_ms else 0,
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


def _retry_place(house: House, config: SubscriptionGroupConfig) -> Place:
    return _group_place(house, retry_topic(config.group_name), config.retry_queue_nums)


def _group_place(house: House, name: str, queues: int) -> Place:
    house.topics.check_name(name)
    return house.topics.find(name) or house.topics.put(
        TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
    )


HANDLERS: Final[dict[int, Handler]] = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
