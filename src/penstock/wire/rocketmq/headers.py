"""Typed ``ext`` fields of requests and answers, for both sides.

Attributes are the wire names in snake case (``queueOffset`` is ``queue_offset``), so that a reader
finds them in RocketMQ's own documents. ``parse`` is lenient: numbers and booleans may be quoted or
not, unknown fields are ignored, empty or missing ones take the default. A field that is required
or makes no sense is an error that names it. Integers are checked to fit the width RocketMQ gives
them, so that what was parsed can be packed.

Not here: sends (``send_headers.py``), JSON bodies (``bodies.py``), what a broker checks next.
"""

from enum import IntFlag
from functools import cache
from typing import Annotated, Final, TypeVar

import msgspec

from penstock.wire.rocketmq.command import Command, Malformed

I32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
I64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Header(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """The typed ``ext`` of one kind of request or answer."""


H = TypeVar("H", bound=Header)


def parse(kind: type[H], command: Command) -> H:
    """The header of a command; raises ``Malformed`` naming the field that is wrong."""
    try:
        return msgspec.convert(command.ext, kind, strict=False)
    except msgspec.ValidationError:
        filled = {name: value for name, value in command.ext.items() if value}
    try:
        return msgspec.convert(filled, kind, strict=False)
    except msgspec.ValidationError as problem:
        raise Malformed(f"{kind.__name__}: {problem}", opaque=command.opaque) from None


def fields(header: Header) -> dict[str, str]:
    """The ``ext`` map of a header: text only, without what is None."""
    found: dict[str, str] = {}
    for attribute, name in _names(type(header)):
        value = getattr(header, attribute)
        if value is None:
            continue
        if value.__class__ is bool:
            value = "true" if value else "false"
        found[name] = str(value)
    return found


@cache
def _names(kind: type[Header]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


class PullFlag(IntFlag):
    """``sysFlag`` of a pull."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE = 16


class PullHeader(Header, gc=False, kw_only=True, rename="camel"):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32 = 32
    sys_flag: I32 = 0
    commit_offset: I64 = 0
    suspend_timeout_millis: I64 = 0
    subscription: str | None = None
    sub_version: I64 = 0
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None


class PullAnswer(Header, gc=False, kw_only=True, rename="camel"):
    """Answer to a pull, found or not."""

    suggest_which_broker_id: I64 = 0
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


class QueueHeader(Header, gc=False, kw_only=True, rename="camel"):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: I32
    committed: bool | None = None


class SearchOffsetHeader(Header, gc=False, kw_only=True, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None
    """LOWER (default) or UPPER."""


class QueryOffsetHeader(Header, gc=False, kw_only=True, rename="camel"):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class UpdateOffsetHeader(Header, gc=False, kw_only=True, rename="camel"):
    """UPDATE_CONSUMER_OFFSET; ali-ons commits -1 for queues it never consumed from."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class OffsetAnswer(Header, gc=False, kw_only=True, rename="camel"):
    """Answer to every question for one offset."""

    offset: I64


class TimestampAnswer(Header, gc=False, kw_only=True, rename="camel"):
    """Answer to GET_EARLIEST_MSG_STORETIME."""

    timestamp: I64


class SendBackHeader(Header, gc=False, kw_only=True, rename="camel"):
    """CONSUMER_SEND_MSG_BACK; ``offset`` is a commitLogOffset."""

    offset: I64
    group: str
    delay_level: I32 = 0
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


class UnregisterHeader(Header, gc=False, kw_only=True, rename="camel"):
    """UNREGISTER_CLIENT; either group may be empty or absent."""

    client_id: str = msgspec.field(name="clientID", default="")
    producer_group: str | None = None
    consumer_group: str | None = None


class GroupHeader(Header, gc=False, kw_only=True, rename="camel"):
    """GET_CONSUMER_LIST_BY_GROUP and NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str


class TopicHeader(Header, gc=False, kw_only=True, rename="camel"):
    """GET_ROUTEINFO_BY_TOPIC and DELETE_TOPIC_*."""

    topic: str
    accept_standard_json_only: bool | None = None


class CreateTopicHeader(Header, gc=False, kw_only=True, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str
    default_topic: str = ""
    read_queue_nums: I32 = 8
    write_queue_nums: I32 = 8
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: str | None = None


class ViewMessageHeader(Header, gc=False, kw_only=True, rename="camel"):
    """VIEW_MESSAGE_BY_ID; ``offset`` is a commitLogOffset."""

    offset: I64
    topic: str | None = None


UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class QueryMessageHeader(Header, gc=False, kw_only=True, rename="camel"):
    """QUERY_MESSAGE, by a key or by the unique key."""

    topic: str
    key: str
    max_num: I32 = 32
    begin_timestamp: I64 = 0
    end_timestamp: I64 = (1 << 63) - 1
    unique_key_query: bool = msgspec.field(name=UNIQUE_KEY_QUERY, default=False)


class EndTransactionHeader(Header, gc=False, kw_only=True, rename="camel"):
    """END_TRANSACTION."""

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    """8 commit, 12 roll back, 0 unknown."""
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionHeader(Header, gc=False, kw_only=True, rename="camel"):
    """CHECK_TRANSACTION_STATE, from the broker to a producer."""

    topic: str | None = None
    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None
