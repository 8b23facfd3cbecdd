"""The properties string of a message: ``name 01 value 02 name 01 value 02 ...``.

A pair needs a name and a value; anything else between two separators is skipped, and of two pairs
with one name the last wins, as in RocketMQ. It stays bytes on its way through the broker: single
values are found by ``value_span``, the map is made for people, filters and other protocols only.

Not here: which properties become key, tag and id (``stored.py``).
"""

from collections.abc import Collection, Mapping
from typing import Final

from penstock.model.record import Facts, Record
from penstock.wire.rocketmq.command import Malformed

NAME_END: Final = b"\x01"
PAIR_END: Final = b"\x02"
PROPERTIES_BYTES_MAX: Final = 32767
"""The length field is a signed short."""

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
SHARDING_KEY: Final = "__SHARDINGKEY"
UNIQ_KEY: Final = "UNIQ_KEY"
DELAY: Final = "DELAY"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
"""What ali-ons (and the cloud) says for TIMER_DELIVER_MS."""
POP_CK: Final = "POP_CK"
"""The receipt of a popped message; the client writes it into what it hands out."""
CORRELATION_ID: Final = "CORRELATION_ID"
"""Which request a reply belongs to."""
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
"""The client id of whoever waits for the reply."""
TTL: Final = "TTL"
"""How long it waits, in milliseconds."""
MSG_TYPE: Final = "MSG_TYPE"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
KEY_SEPARATOR: Final = b" "
MESSAGE_ID: Final = "message_id"
"""In a record of our own; RocketMQ's is UNIQ_KEY."""

_SYSTEM_NAMES: Final = """
    TAGS KEYS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION
    TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME INNER_NUM INNER_BASE
    DUP_INFO CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET __transactionId__
    TRANSACTION_CHECK_TIMES INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME
    PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME __SHARDINGKEY
    PROPERTY_FORWARD_QUEUE_ID REDIRECT INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TRACE_CONTEXT
    TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP
    __CRC32# DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __STARTDELIVERTIME
"""
SYSTEM_NAMES: Final = frozenset(_SYSTEM_NAMES.split())
"""Names that belong to RocketMQ: the rest are the user's."""


def parse_properties(properties: bytes) -> dict[str, str]:
    """The map; never fails, broken UTF-8 is replaced."""
    found: dict[str, str] = {}
    for pair in properties.decode("utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            found[name] = value
    return found


def neutral_facts(record: Record) -> Facts:
    """What a record of our own says: its properties have this form, its id is one of them (D16)."""
    properties = parse_properties(record.properties)
    return Facts(
        key=record.key.decode("utf-8", "replace"),
        tag=record.tag.decode("utf-8", "replace"),
        message_id=properties.pop(MESSAGE_ID, ""),
        born_ms=record.born_ms,
        deliver_ms=record.deliver_ms,
        properties=properties,
    )


def format_properties(properties: Mapping[str, str]) -> bytes:
    """The string; pairs without name or value are left out, since no reader would see them."""
    return b"".join([pair(name, value) for name, value in properties.items() if name and value])


def pair(name: str, value: str) -> bytes:
    """One pair; refuses names and values that would become something else when read."""
    try:
        key, text = name.encode(), value.encode()
    except UnicodeEncodeError:
        raise Malformed(f"property {name!r} is not Unicode text") from None
    if NAME_END in key or PAIR_END in key or PAIR_END in text:
        raise Malformed(f"property {name!r} contains a separator (byte 1 or 2); remove it")
    return b"%b\x01%b\x02" % (key, text)


def value_span(properties: bytes, mark: bytes) -> tuple[int, int]:
    """Where the value of a property is: (start, length), (0, 0) when there is none.

    ``mark`` is the name with ``NAME_END`` behind it. Linear, and no copy of the string.
    """
    return span_at(properties, mark, properties.rfind(mark))


def span_at(properties: bytes, mark: bytes, at: int) -> tuple[int, int]:
    """The same for a caller that has looked for the last mark itself and found it (or -1)."""
    while at >= 0:
        if at == 0 or properties[at - 1] == 2:
            start = at + len(mark)
            end = properties.find(b"\x02", start)
            if end < 0:
                end = len(properties)
            if end > start:
                return start, end - start
        at = properties.rfind(mark, 0, at)
    return 0, 0


def value_of(properties: bytes, name: str) -> bytes:
    """The value of one property, empty when there is none."""
    at, size = value_span(properties, name.encode() + NAME_END)
    return properties[at : at + size]


def with_property(properties: bytes, name: str, value: str) -> bytes:
    """The string with one pair more; an earlier one of that name no longer counts."""
    if properties and not properties.endswith(PAIR_END):
        properties += PAIR_END
    return properties + pair(name, value)


def without_properties(properties: bytes, names: Collection[str]) -> bytes:
    """The string without the pairs of these names."""
    unwanted = {name.encode() for name in names}
    kept = [
        each + PAIR_END
        for each in properties.split(PAIR_END)
        if each and each.partition(NAME_END)[0] not in unwanted
    ]
    return b"".join(kept)
