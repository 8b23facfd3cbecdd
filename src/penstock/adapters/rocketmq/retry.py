"""CONSUMER_SEND_MSG_BACK (36): a message that could not be consumed is tried again or given up.

    delayLevel < 0, or tried ``max`` times already   ->  %DLQ%group, at once
    delayLevel = 0                                   ->  %RETRY%group, level 3 + times tried
    delayLevel > 0                                   ->  %RETRY%group, that level

``max`` is the request's (clients from 3.4.9 on), else the group's ``retryMaxTimes`` (sheet 2.3).
The consumer names the message by commitLogOffset; what is stored is a new message with a new id
that remembers the first one (ORIGIN_MESSAGE_ID) and the topic it came from (RETRY_TOPIC).

Not here: a client whose send-back fails and that sends to %RETRY%group itself (``send.py``),
waiting (``engine/delay.py``), dead letters of other protocols (``present.py``).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.adapters.rocketmq.connection import RocketmqConnection
from penstock.adapters.rocketmq.delay import DELAY_NAMES, TIMER_OUT_MS, level_ms
from penstock.adapters.rocketmq.filters import RETRY_TOPIC
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.adapters.rocketmq.naming import DLQ_PREFIX, dlq_topic, retry_topic
from penstock.adapters.rocketmq.present import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    present_at,
)
from penstock.adapters.rocketmq.requests import no_permission, refusal_response, system_error
from penstock.adapters.rocketmq.send import (
    CallbackPublication,
    note_dead_letter,
    reconsume_times_max,
)
from penstock.adapters.rocketmq.topics import RocketmqTopic
from penstock.model.record import RecordFlag
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import SendBackHeader, parse
from penstock.wire.rocketmq.properties import value_of, with_property, without_properties
from penstock.wire.rocketmq.stored import (
    RocketmqFacts,
    StoredMessage,
    SysFlag,
    decode_stored,
    record_of,
)

ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
WAIT: Final = "WAIT"

_USED_UP: Final = (*DELAY_NAMES, TIMER_OUT_MS, WAIT)
_TRANSACTION: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_FACTS: Final = RocketmqFacts()


def send_back(connection: RocketmqConnection, command: Command) -> None:
    """CONSUMER_SEND_MSG_BACK; answered when the new message is durable."""
    header = parse(SendBackHeader, command)
    broker = connection.broker
    config = broker.service(GroupRegistry).require(header.group, connection.peer.maker)
    if config.retry_queue_nums <= 0:
        connection.answer(command)  # the group does not want retries: dropped, as RocketMQ does
        return
    target = broker.topics.for_group(retry_topic(config.group_name), config.retry_queue_nums)
    stored = present_at(broker, header.offset)
    if stored is None:
        raise system_error(f"look message by offset failed, {header.offset}")
    message, _ = decode_stored(stored)
    times_max = reconsume_times_max(config, command.version, header.max_reconsume_times)
    if header.delay_level < 0 or message.reconsume_times >= times_max:
        target, delay_ms = broker.topics.for_group(dlq_topic(header.group)), 0
    else:
        delay_ms = level_ms(
            header.delay_level or broker.settings.retry_first_level + message.reconsume_times
        )
    if not target.is_writable:
        raise no_permission(f"the topic[{target.name}] sending message is forbidden")
    connection.sends.store([_retried(connection, command, message, target, delay_ms)])


def _retried(
    connection: RocketmqConnection,
    command: Command,
    message: StoredMessage,
    target: RocketmqTopic,
    delay_ms: int,
) -> CallbackPublication:
    """The new message, and what its consumer hears when it is stored."""
    broker = connection.broker
    properties = _retry_properties(message)
    if target.name.startswith(DLQ_PREFIX):
        properties = with_property(properties, DLQ_ORIGIN_TOPIC, message.topic)
        properties = with_property(properties, DLQ_ORIGIN_MESSAGE_ID, message.offset_message_id)
    is_committed = message.sys_flag & _TRANSACTION == SysFlag.TRANSACTION_COMMIT
    queue = broker.random.randrange(target.queues)
    record = record_of(
        replace(
            message,
            topic=target.name,
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

    def stored(_publication: CallbackPublication) -> None:
        if target.name.startswith(DLQ_PREFIX):
            note_dead_letter(broker.engine, target, properties)
        connection.answer(command)

    def refused_with(code: int, remark: str) -> None:
        connection.answer(command, code, remark=remark)

    return CallbackPublication(
        record,
        route=target.routes[queue],
        keys=tuple(_FACTS.keys(record)),
        stored=stored,
        refused=lambda refusal: refused_with(*refusal_response(refusal)),
    )


def _retry_properties(message: StoredMessage) -> bytes:
    """What a message sent back has in its properties, whichever topic it goes to."""
    properties = without_properties(message.properties, _USED_UP)
    if not value_of(properties, RETRY_TOPIC):
        properties = with_property(properties, RETRY_TOPIC, message.topic)
    if not value_of(properties, ORIGIN_MESSAGE_ID):
        properties = with_property(properties, ORIGIN_MESSAGE_ID, message.offset_message_id)
    return with_property(properties, WAIT, "false")
