"""From a message to the bytes of a send: what may be sent, properties, compression, header, batch.

    check_message -> Encoder.encode -> EncodedMessage -> frame(queue, opaque), once per try

The header of a send is JSON in letters (SEND_MESSAGE_V2). What is the same for every message of a
topic is made once, what is the same for every message of a queue, too; per message remain flags,
time, properties and the opaque, which the connection gives.

A body of ``compress_bytes_min`` or more is compressed with zlib and marked without a method, which
every client of every age reads; it is sent as it is when that is not smaller. The unique key stays
the same in every try, so a message that was stored twice can be told.

The rules are those of RocketMQ's brokers, plus what this client alone can know: that a property
would shadow one of RocketMQ's own, that two delays contradict each other. Every refusal is an
``InvalidMessage`` that says what is wrong with which message; nothing was sent.

Threads: messages are encoded by whoever sends them, so keys are made under a lock.
Not here: the layouts in general (``wire/rocketmq/properties.py``, ``wire/rocketmq/stored.py``).
"""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from penstock.client.errors import InvalidMessage
from penstock.client.message import RETRY_PREFIX, Message
from penstock.client.routes import CLIENT_LANGUAGE, CLIENT_VERSION
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import SendHeaderV2, fields
from penstock.wire.rocketmq.message_id import UniqueKeys
from penstock.wire.rocketmq.properties import PROPERTIES_BYTES_MAX, SYSTEM_NAMES
from penstock.wire.rocketmq.stored import BATCH_MESSAGES_MAX, BatchItem, SysFlag, join_batch

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The topic whose route tells which brokers make topics by themselves."""

TOPIC_PARTS_MAX: Final = 4096
"""Topics whose header is kept; the oldest goes first."""

QUEUE_PARTS_MAX: Final = 65_536
"""Queues whose part of the header is kept; the oldest goes first."""

_PREFIX: Final = Struct(">II")
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_JSON: Final = msgspec.json.Encoder().encode

_LIFTED: Final = frozenset(("RECONSUME_TIME", "MAX_RECONSUME_TIMES"))
"""In a message to a retry topic these are header fields."""

ITEM_BYTES: Final = 22
"""What the layout adds to body and properties of a message."""

_SAMPLE_KEY: Final = "0" * 32
"""As long as the unique key of a version 4 address; those of version 6 are 24 longer."""

_KEY_SLACK_BYTES: Final = 24

TOPIC_CHARACTERS_MAX: Final = 127
RETRY_TOPIC_CHARACTERS_MAX: Final = 255
DELAY_LEVEL_MAX: Final = 18
GROUP_CHARACTERS_MAX: Final = 255
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
"""Of a topic or a group."""

SYSTEM_TOPICS: Final = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
"""A broker writes these itself and refuses everybody else."""

USER_NAMES: Final = frozenset(
    (
        "CHECK_IMMUNITY_TIME_IN_SECONDS", "BUYER_ID", "INSTANCE_ID", "CORRELATION_ID",
        "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "TRACE_CONTEXT", "TRANSFER_FLAG", "CORRECTION_FLAG",
        "MQ2_FLAG", "TRACE_ON", "MSG_REGION", "PUSH_REPLY_TIME", "ARRIVE_TIME",
        "EXTEND_UNIQ_INFO", "DUP_INFO", "BORN_TIMESTAMP", "__BORNHOST", "ORIGIN_MESSAGE_ID",
        "INNER_MULTI_DISPATCH",
    )
)  # fmt: skip
"""RocketMQ's names that a sender may well set; the others follow from fields of the message."""

_RESERVED: Final = SYSTEM_NAMES - USER_NAMES


class Encoder:
    """Makes the requests of one producer's sends; from any thread."""

    __slots__ = (
        "_clock", "_compress_bytes_min", "_compress_level", "_keys", "_lock", "_queue_parts",
        "_topic_parts", "auto_create_queues", "group",
    )  # fmt: skip

    def __init__(
        self,
        group: str,
        keys: UniqueKeys,
        clock: Clock,
        *,
        compress_bytes_min: int = 4096,
        compress_level: int = 5,
        auto_create_queues: int = 4,
    ) -> None:
        self.group = group
        self.auto_create_queues = auto_create_queues
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._compress_bytes_min = compress_bytes_min
        self._compress_level = compress_level
        self._topic_parts: dict[tuple[str, bool], str] = {}
        self._queue_parts: dict[QueueRef, str] = {}

    def encode(self, message: Message, *, is_half: bool = False) -> EncodedMessage:
        """A checked message; ``is_half`` makes it the first part of a transaction."""
        now_ms = self._clock.wall_ms()
        with self._lock:
            key = self._keys.make_at(now_ms)
        properties = properties_of(message, key)
        if is_half:
            properties = f"TRAN_MSG\x01true\x02PGROUP\x01{self.group}\x02{properties}"
        body = message.body
        size = len(body)
        sys_flag = _PREPARED if is_half else 0
        if size >= self._compress_bytes_min:
            packed = zlib.compress(body, self._compress_level)
            if len(packed) < size:
                body = packed
                sys_flag |= _COMPRESSED
        encoded = EncodedMessage(
            self, message.topic, key, properties, body, size, now_ms, message.flag, sys_flag,
        )  # fmt: skip
        if message.topic.startswith(RETRY_PREFIX):
            _lift_times(encoded, message)
        return encoded

    def encode_batch(self, messages: Sequence[Message]) -> EncodedMessage:
        """A checked list of messages of one topic (``check_batch``), as one request."""
        with self._lock:
            keys = [self._keys.make() for _ in messages]
        body = batch_body(messages, keys)
        # No key of its own: Apache's broker adds these to every message, after the message's.
        properties = "" if messages[0].wait_store_ok else "WAIT\x01false\x02"
        return EncodedMessage(
            self,
            messages[0].topic,
            ",".join(keys),
            properties,
            body,
            len(body),
            self._clock.wall_ms(),
            is_batch=True,
        )

    def topic_part(self, topic: str, is_batch: bool) -> str:
        """The front of a header, which all messages of a topic share."""
        found = self._topic_parts.get((topic, is_batch))
        if found is None:
            found = self._make_topic_part(topic, is_batch)
            if len(self._topic_parts) >= TOPIC_PARTS_MAX:
                del self._topic_parts[next(iter(self._topic_parts))]
            self._topic_parts[topic, is_batch] = found
        return found

    def queue_part(self, queue: QueueRef) -> str:
        """The part of a header that says which queue."""
        found = self._queue_parts.get(queue)
        if found is None:
            found = f'"e":"{queue.queue}","n":{_JSON(queue.broker).decode()}'
            if len(self._queue_parts) >= QUEUE_PARTS_MAX:
                del self._queue_parts[next(iter(self._queue_parts))]
            self._queue_parts[queue] = found
        return found

    def _make_topic_part(self, topic: str, is_batch: bool) -> str:
        # Brokers of ours read a send that begins with its code without taking the JSON apart twice.
        return (
            f'{{"code":{_code(is_batch)},"language":"PYTHON","version":{CLIENT_VERSION}'
            f',"serializeTypeCurrentRPC":"JSON","extFields":{{"a":{_JSON(self.group).decode()}'
            f',"b":{_JSON(topic).decode()},"c":"{AUTO_CREATE_TOPIC}"'
            f',"d":"{self.auto_create_queues}","k":"false","m":"{"true" if is_batch else "false"}"'
        )


class EncodedMessage(msgspec.Struct, eq=False, gc=False):
    """A message ready for any queue of its topic; what each try adds is the queue."""

    encoder: Encoder
    topic: str
    unique_key: str
    """Of a batch: those of its messages, joined by commas."""
    properties: str
    body: bytes
    size_bytes: int
    """What it counts in the send window: the body before compression."""
    born_ms: int
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    is_batch: bool = False

    def frame(self, queue: QueueRef, opaque: int, flag: int = 0) -> bytes:
        """The frame of the request, the short way."""
        body, encoder, times_max = self.body, self.encoder, self.max_reconsume_times
        header = (
            f"{encoder.topic_part(self.topic, self.is_batch)},{encoder.queue_part(queue)}"
            f',"f":"{self.sys_flag}","g":"{self.born_ms}","h":"{self.flag}","j":"{self.reconsume_times}"'
            f',"i":{_JSON(self.properties).decode()}'
            f"{'' if times_max is None else _times_max(times_max)}"
            f'}},"flag":{flag},"opaque":{opaque}}}'
        ).encode()
        size = len(header)
        return b"".join((_PREFIX.pack(4 + size + len(body), size), header, body))

    def command(self, queue: QueueRef) -> Command:
        """The same as a command, for requests that are signed: the signature covers the fields."""
        header = SendHeaderV2(
            producer_group=self.encoder.group,
            topic=self.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self.encoder.auto_create_queues,
            queue_id=queue.queue,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=self.reconsume_times,
            max_reconsume_times=self.max_reconsume_times,
            batch=self.is_batch,
            broker_name=queue.broker,
        )
        return Command(
            _code(self.is_batch),
            fields(header),
            self.body,
            language=CLIENT_LANGUAGE,
            version=CLIENT_VERSION,
        )


def _code(is_batch: bool) -> int:
    return int(RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2)


def _times_max(times_max: int) -> str:
    return f',"l":"{times_max}"'


def _lift_times(encoded: EncodedMessage, message: Message) -> None:
    """A message that goes back to be retried tells in its header how often it was."""
    times = message.properties.get("RECONSUME_TIME", "")
    times_max = message.properties.get("MAX_RECONSUME_TIMES", "")
    if times.isdecimal():
        encoded.reconsume_times = int(times)
    if times_max.isdecimal():
        encoded.max_reconsume_times = int(times_max)


def properties_of(message: Message, unique_key: str) -> str:
    """``name 01 value 02 ...`` of everything a message says; ``InvalidMessage`` if it cannot."""
    if _is_bare(message):
        return f"UNIQ_KEY\x01{unique_key}\x02"
    pairs = [("UNIQ_KEY", unique_key)]
    if message.tag:
        pairs.append(("TAGS", message.tag))
    if message.keys:
        pairs.append(("KEYS", " ".join(message.keys)))
    if message.ordering_key:
        pairs.append(("__SHARDINGKEY", message.ordering_key))
    if not message.wait_store_ok:
        pairs.append(("WAIT", "false"))
    if message.delay_level:
        pairs.append(("DELAY", str(message.delay_level)))
    elif message.delay_ms:
        pairs.append(("TIMER_DELAY_MS", str(message.delay_ms)))
    elif message.deliver_at_ms:
        pairs.append(("TIMER_DELIVER_MS", str(message.deliver_at_ms)))
    if message.properties:
        pairs += _own_pairs(message)
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs])
    # Separators inside a name or value would make other properties of it when it is read.
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs):
        raise InvalidMessage(
            f"message for topic {message.topic!r}: tag, keys or properties contain a character"
            f" 1 or 2, which RocketMQ uses as separators; remove it"
        )
    if not text.isascii() or len(text) > PROPERTIES_BYTES_MAX:
        _check_bytes(message, text)
    return text


def _is_bare(message: Message) -> bool:
    """True when a body is all it has, which is the most frequent message there is."""
    return not (
        message.tag
        or message.keys
        or message.properties
        or message.ordering_key
        or message.delay_level
        or message.delay_ms
        or message.deliver_at_ms
        or not message.wait_store_ok
    )


def _own_pairs(message: Message) -> list[tuple[str, str]]:
    if message.topic.startswith(RETRY_PREFIX):
        return [each for each in message.properties.items() if each[0] not in _LIFTED]
    return list(message.properties.items())


def _check_bytes(message: Message, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(
            f"message for topic {message.topic!r}: tag, keys or properties are not Unicode text"
        ) from None
    if size > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(
            f"message for topic {message.topic!r} has properties of {size} bytes, limit"
            f" {PROPERTIES_BYTES_MAX}; put it into the body"
        )


# ---- batches -------------------------------------------------------------------------------------
#
# The messages of a batch share topic and ``wait_store_ok``, go to one queue, and are stored as
# messages of their own. They cannot be delayed, and do not go to retry topics. A batch counts
# against ``message_bytes_max`` as a whole; ``split_batch`` makes lists that fit.


def check_batch(messages: Sequence[Message], bytes_max: int) -> None:
    """Raise ``InvalidMessage`` unless these (each checked by itself) may be one batch."""
    if not messages:
        raise InvalidMessage("a batch needs at least one message")
    if len(messages) > BATCH_MESSAGES_MAX:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages, limit {BATCH_MESSAGES_MAX}; use split_batch"
        )
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"a batch cannot go to a retry topic ({first.topic!r})")
    for each in messages:
        if each.topic != first.topic:
            raise InvalidMessage(
                f"a batch has one topic, not {first.topic!r} and {each.topic!r}; use split_batch"
            )
        if each.wait_store_ok != first.wait_store_ok:
            raise InvalidMessage("the messages of a batch share wait_store_ok; use split_batch")
        if each.delay_level or each.delay_ms or each.deliver_at_ms:
            raise InvalidMessage("messages of a batch cannot be delayed; send them one by one")
        if each.ordering_key != first.ordering_key:
            raise InvalidMessage(
                "a batch goes to one queue, so its messages share their ordering_key; use"
                " split_batch"
            )
    size = sum(map(item_bytes, messages))
    if size > bytes_max:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages has up to {size} bytes, limit {bytes_max}"
            f" (message_bytes_max); use split_batch"
        )


def split_batch(
    messages: Iterable[Message], *, bytes_max: int = 4 * 1024 * 1024, messages_max: int = 1024
) -> Iterator[list[Message]]:
    """Lists that may be sent as batches, in order; each as long as its messages go together.

    A message that is too large or delayed comes alone: send it by itself, or see it refused.
    """
    batch: list[Message] = []
    kind: tuple[object, ...] = ()
    size = 0
    for each in messages:
        each_kind, each_bytes = _kind(each), item_bytes(each)
        is_full = len(batch) >= messages_max or size + each_bytes > bytes_max
        if batch and (is_full or each_kind != kind or _is_alone(each)):
            yield batch
            batch, size = [], 0
        batch.append(each)
        kind = each_kind
        size += each_bytes
        if _is_alone(each):
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def item_bytes(message: Message) -> int:
    """What a message takes in a batch, at most."""
    text = properties_of(message, _SAMPLE_KEY)
    size = len(text) if text.isascii() else len(text.encode())
    return ITEM_BYTES + len(message.body) + size + _KEY_SLACK_BYTES


def batch_body(messages: Sequence[Message], unique_keys: Sequence[str]) -> bytes:
    """The body that carries them."""
    return join_batch(
        [
            BatchItem(each.body, properties_of(each, key).encode(), each.flag)
            for each, key in zip(messages, unique_keys, strict=True)
        ]
    )


def _kind(message: Message) -> tuple[object, ...]:
    return message.topic, message.wait_store_ok, message.ordering_key


def _is_alone(message: Message) -> bool:
    is_delayed = message.delay_level or message.delay_ms or message.deliver_at_ms
    return bool(is_delayed) or message.topic.startswith(RETRY_PREFIX)


# ---- what may be sent ----------------------------------------------------------------------------


def check_message(message: Message, body_bytes_max: int) -> None:
    """Raise ``InvalidMessage`` unless a broker can take it."""
    check_topic(message.topic)
    body = message.body
    if not body:
        raise InvalidMessage(
            f"message for topic {message.topic!r} has an empty body; brokers refuse that"
        )
    if len(body) > body_bytes_max:
        raise InvalidMessage(
            f"message for topic {message.topic!r} has a body of {len(body)} bytes, limit"
            f" {body_bytes_max} (message_bytes_max); send it in parts"
        )
    if message.properties:
        _check_properties(message)
    if message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
        _check_delay(message)


@lru_cache(maxsize=1024)
def check_topic(topic: str) -> None:
    """Raise ``InvalidMessage`` unless messages may be sent to it."""
    is_retry = topic.startswith(RETRY_PREFIX)
    length_max = RETRY_TOPIC_CHARACTERS_MAX if is_retry else TOPIC_CHARACTERS_MAX
    if not topic or _NAME.fullmatch(topic) is None:
        raise InvalidMessage(
            f"topic {topic[:60]!r} must consist of letters, digits and any of %|_- alone"
        )
    if len(topic) > length_max:
        raise InvalidMessage(f"topic {topic[:60]!r}... is longer than {length_max} characters")
    if topic in SYSTEM_TOPICS:
        raise InvalidMessage(f"topic {topic!r} is written by brokers only; use another one")


def check_group(group: str) -> None:
    """Raise ``ValueError`` unless it can name a producer group."""
    if _NAME.fullmatch(group) is None or len(group) > GROUP_CHARACTERS_MAX:
        raise ValueError(
            f"group {group[:60]!r} must consist of 1 to {GROUP_CHARACTERS_MAX} letters, digits and"
            f" any of %|_-"
        )


def _check_properties(message: Message) -> None:
    # What goes to a retry topic is a consumer's message on its way back, with all it carries.
    reserved = frozenset() if message.topic.startswith(RETRY_PREFIX) else _RESERVED
    for name, value in message.properties.items():
        if name in reserved:
            raise InvalidMessage(
                f"property {name!r} belongs to RocketMQ; use the message's own field, or another"
                f" name"
            )
        if not isinstance(name, str) or not isinstance(value, str) or not name or not value:
            raise InvalidMessage(
                f"property {name!r}: names and values are text of at least one character,"
                f" not {value!r}"
            )


def _check_delay(message: Message) -> None:
    given = (message.delay_level, message.delay_ms, message.deliver_at_ms)
    if sum(1 for each in given if each) > 1:
        raise InvalidMessage(
            f"message for topic {message.topic!r}: give one of delay_level, delay_ms and"
            f" deliver_at_ms"
        )
    if not 0 <= message.delay_level <= DELAY_LEVEL_MAX:
        raise InvalidMessage(f"delay_level {message.delay_level} is not 0 to {DELAY_LEVEL_MAX}")
    for name, value in (("delay_ms", message.delay_ms), ("deliver_at_ms", message.deliver_at_ms)):
        if value is not None and value < 0:
            raise InvalidMessage(f"{name} {value} lies in the past")
