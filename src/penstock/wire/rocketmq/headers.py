"""Typed ``ext`` fields of requests and answers, for both sides.

Attributes are the wire names in snake case (``queueOffset`` is ``queue_offset``), so that a reader
finds them in RocketMQ's own documents. ``parse`` is lenient: numbers and booleans may be quoted or
not, unknown fields are ignored, empty or missing ones take the default. A field that is required
or makes no sense is an error that names it. Integers are checked to fit the width RocketMQ gives
them, so that what was parsed can be packed.

Not here: JSON bodies (``bodies.py``), reading a send straight from a frame (``frames.py``).
"""

from enum import IntFlag
from functools import cache
from typing import Annotated, Final, TypeVar

import msgspec

from penstock.wire.rocketmq.codes import RequestCode
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


class PullHeader(Header, kw_only=True):
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


class PullAnswer(Header, kw_only=True):
    """Answer to a pull, found or not."""

    suggest_which_broker_id: I64 = 0
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


class QueueHeader(Header, kw_only=True):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: I32
    committed: bool | None = None


class SearchOffsetHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None
    """LOWER (default) or UPPER."""


class QueryOffsetHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class UpdateOffsetHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET; ali-ons commits -1 for queues it never consumed from."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class OffsetAnswer(Header, kw_only=True):
    """Answer to every question for one offset."""

    offset: I64


class TimestampAnswer(Header, kw_only=True):
    """Answer to GET_EARLIEST_MSG_STORETIME."""

    timestamp: I64


class SendBackHeader(Header, kw_only=True):
    """CONSUMER_SEND_MSG_BACK; ``offset`` is a commitLogOffset."""

    offset: I64
    group: str
    delay_level: I32 = 0
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


class UnregisterHeader(Header, kw_only=True):
    """UNREGISTER_CLIENT; either group may be empty or absent."""

    client_id: str = msgspec.field(name="clientID", default="")
    producer_group: str | None = None
    consumer_group: str | None = None


class GroupHeader(Header, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP and NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str


class TopicHeader(Header, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC and DELETE_TOPIC_*."""

    topic: str
    accept_standard_json_only: bool | None = None


class CreateTopicHeader(Header, kw_only=True):
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


class ViewMessageHeader(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID; ``offset`` is a commitLogOffset."""

    offset: I64
    topic: str | None = None


UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


class QueryMessageHeader(Header, kw_only=True):
    """QUERY_MESSAGE, by a key or by the unique key."""

    topic: str
    key: str
    max_num: I32 = 32
    begin_timestamp: I64 = 0
    end_timestamp: I64 = (1 << 63) - 1
    unique_key_query: bool = msgspec.field(name=UNIQUE_KEY_QUERY, default=False)


class EndTransactionHeader(Header, kw_only=True):
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


class CheckTransactionHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE, from the broker to a producer."""

    topic: str | None = None
    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


# ---- sends: long names (V1), single letters (V2), and whichever a batch used --------------------


class SendHeader(Header, kw_only=True):
    """SEND_MESSAGE; the attributes are those of every version."""

    producer_group: str
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    """Below 0: the broker picks one."""
    sys_flag: I32 = 0
    born_timestamp: I64 = 0
    flag: I32 = 0
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = None


class SendHeaderV2(SendHeader, kw_only=True):
    """SEND_MESSAGE_V2: the same in letters."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c", default="")
    default_topic_queue_nums: I32 = msgspec.field(name="d", default=4)
    queue_id: I32 = msgspec.field(name="e")
    sys_flag: I32 = msgspec.field(name="f", default=0)
    born_timestamp: I64 = msgspec.field(name="g", default=0)
    flag: I32 = msgspec.field(name="h", default=0)
    properties: str = msgspec.field(name="i", default="")
    reconsume_times: I32 = msgspec.field(name="j", default=0)
    unit_mode: bool = msgspec.field(name="k", default=False)
    max_reconsume_times: I32 | None = msgspec.field(name="l", default=None)
    batch: bool = msgspec.field(name="m", default=False)
    broker_name: str | None = msgspec.field(name="n", default=None)


class SendAnswer(Header, kw_only=True):
    """Answer to a send; of a batch ``msg_id`` is a comma list and ``queue_offset`` the first."""

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: bool | None = msgspec.field(name="TRACE_ON", default=None)


class ReplyHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: the reply to a request, from the broker to whoever asked."""

    producer_group: str
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    sys_flag: I32 = 0
    born_timestamp: I64 = 0
    flag: I32 = 0
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    born_host: str
    """``ip:port`` of the one who replies."""
    store_host: str
    store_timestamp: I64


class RecallHeader(Header, kw_only=True):
    """RECALL_MESSAGE; the handle is that of the answer to the send."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallAnswer(Header, kw_only=True):
    """The unique key of the message that was recalled."""

    msg_id: str


_BY_LETTERS: Final = frozenset(
    (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
)


def parse_send_header(command: Command) -> SendHeader:
    """The header of any send; batches come in letters from Java and in long names from Go."""
    if command.code in _BY_LETTERS and "topic" not in command.ext:
        return parse(SendHeaderV2, command)
    return parse(SendHeader, command)


# ---- pop; the strings inside are those of ``pop_handle.py`` -------------------------------------


class PopHeader(Header, kw_only=True):
    """POP_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: I32 = -1
    """-1: any queue."""
    max_msg_nums: I32 = 32
    invisible_time: I64 = 60_000
    poll_time: I64 = 0
    born_time: I64 = 0
    init_mode: I32 = 0
    """Where a new group begins: 0 at the oldest message, 1 at the newest."""
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopAnswer(Header, kw_only=True):
    """Answer to a pop; the client builds the handles from it (``pop_handle.py``)."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32 = 0
    rest_num: I64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckHeader(Header, kw_only=True):
    """ACK_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64


class ChangeInvisibleHeader(Header, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64


class ChangeInvisibleAnswer(Header, kw_only=True):
    """The parts of the new handle; the old one is void."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32 = 0


class PeekHeader(Header, kw_only=True):
    """PEEK_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: I32 = -1
    max_msg_nums: I32 = 32


class NotificationHeader(Header, kw_only=True):
    """NOTIFICATION: wait until there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: I32 = -1
    poll_time: I64 = 0
    born_time: I64 = 0
    order: bool = False
    attempt_id: str | None = None


class NotificationAnswer(Header, kw_only=True):
    """Whether there is."""

    has_msg: bool
    polling_full: bool = False


# ---- operators and their tools, about groups ----------------------------------------------------


class GroupNameHeader(Header, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False
    """What older tools call it."""


class GroupConfigHeader(Header, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class ProducerGroupHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class ConsumeStatsHeader(Header, kw_only=True):
    """GET_CONSUME_STATS; without a topic it is about all that the group reads."""

    consumer_group: str
    topic: str | None = None


class GroupTopicHeader(Header, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str


class OrderedHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS."""

    is_order: bool = False
    """Only of topics that keep their order."""


class StatisticsHeader(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class ConsumeQueueHeader(Header, kw_only=True):
    """QUERY_CONSUME_QUEUE."""

    topic: str
    queue_id: I32
    index: I64
    count: I32 = 10
    consumer_group: str | None = None


class ResetOffsetHeader(Header, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET, and RESET_CONSUMER_CLIENT_OFFSET to clients."""

    topic: str
    group: str
    timestamp: I64 = -1
    """Wall time in milliseconds; -1 = the end."""
    is_force: bool = False
    """Obey although it goes forward."""
    queue_id: I32 = -1
    offset: I64 | None = None


class RelayHeader(Header, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str
    client_id: str = msgspec.field(name="clientId")
    msg_id: str = msgspec.field(name="msgId", default="")
