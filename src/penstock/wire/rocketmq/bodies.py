"""JSON bodies of requests and responses: groups, queues, routes, registrations.

Attributes are the wire names in snake case. Read with ``decode_body``, written with
``encode_body``. Enumerations come as names (Java, ali-ons, Go) or as ordinals (C++); they are
members once read, and leave as names. What C++ leaves out of a subscription is rebuilt.

Not here: the ``ext`` fields of commands (``headers.py``).
"""

import re
import struct
import zlib
from enum import IntFlag, StrEnum
from typing import Any, Final, TypeVar

import msgspec

from penstock.model.record import tag_hash
from penstock.wire.rocketmq.command import Malformed

SUBSCRIBE_ALL: Final = "*"
EXPRESSION_CHARS_MAX: Final = 8192
"""Tags or SQL92 of one subscription; each tag costs a hash of all its characters."""


MASTER: Final = "0"
"""The broker id a producer looks for."""

BATCH_ACK_BYTES_MAX: Final = 512
"""4096 messages; a pop takes 32."""

BODY_BYTES_MAX: Final = 256 * 1024
"""Largest JSON body a broker reads: a heartbeat of 1,000 subscriptions. A client that asks a
large cluster for its topics passes more."""
ODD_SHARE: Final = 4
"""Rewriting keys costs a microsecond a token: only a fourth of the limit may need it (50 ms)."""
NESTING_MAX: Final = 64

T = TypeVar("T")

_TOKEN: Final = re.compile(rb'"(?:[^"\\]+|\\.)*+"?|[{}\[\]:,]|[^\s"{}\[\]:,]++', re.DOTALL)
"""A string without its end reaches to the end of the text: looking for it again would be slow."""
_BRACKETS: Final = {b"}": b"{", b"]": b"["}
_ENCODE: Final = msgspec.json.Encoder().encode
_DECODERS: Final[dict[Any, Any]] = {}
"""One per shape; shapes are ours, peers cannot add any."""

_I32: Final = struct.Struct(">i")
_SEPARATOR: Final = " "
_FIELDS_MIN: Final = 5


class Body(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """A JSON body, or a part of one."""


class ConsumeType(StrEnum):
    """How a consumer takes its messages."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether the members of a group share the messages or all get each."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without stored offsets begins; the three in the middle mean the first."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class RequestMode(StrEnum):
    """How a group is served by broker-side assignment."""

    PULL = "PULL"
    POP = "POP"


E = TypeVar("E", bound=StrEnum)


def _member(value: E | int, kind: type[E]) -> E:
    """A name or an ordinal as the member it means."""
    if not isinstance(value, int):
        return value
    members = list(kind)
    if not 0 <= value < len(members):
        raise ValueError(f"{value} is no {kind.__name__}")
    return members[value]


class SubscriptionData(Body, kw_only=True):
    """What a group wants of one topic."""

    topic: str
    sub_string: str = SUBSCRIBE_ALL
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    def __post_init__(self) -> None:
        text = self.sub_string.strip()
        if len(text) > EXPRESSION_CHARS_MAX:
            raise ValueError(f"expression of {len(text)} characters, limit {EXPRESSION_CHARS_MAX}")
        self.expression_type = self.expression_type or "TAG"
        if self.expression_type == "TAG" and not self.tags_set and text not in ("", SUBSCRIBE_ALL):
            tags = (part.strip() for part in text.split("||"))
            self.tags_set = list(dict.fromkeys(tag for tag in tags if tag))
        if len(self.code_set) != len(self.tags_set):
            self.code_set = [tag_hash(tag.encode()) for tag in self.tags_set]


class ConsumerData(Body, kw_only=True):
    """One consumer group of a client."""

    group_name: str
    consume_type: ConsumeType | int = ConsumeType.PASSIVELY
    message_model: MessageModel | int = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere | int = ConsumeFromWhere.LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        self.consume_type = _member(self.consume_type, ConsumeType)
        self.message_model = _member(self.message_model, MessageModel)
        self.consume_from_where = _member(self.consume_from_where, ConsumeFromWhere)


class ProducerData(Body, kw_only=True):
    """One producer group of a client."""

    group_name: str


class HeartbeatData(Body, kw_only=True):
    """HEART_BEAT."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    """Not 0: a V2 heartbeat, whose subscriptions may be left out."""
    without_sub: bool = False


class MessageQueue(msgspec.Struct, gc=False, kw_only=True, rename="camel", frozen=True):
    """One queue of one topic on one broker; usable as a key."""

    topic: str
    broker_name: str
    queue_id: int


class LockBatchBody(Body, kw_only=True):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = []


class LockBatchAnswer(Body, kw_only=True):
    """The queues that were locked."""

    locked: list[MessageQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)


class ConsumerList(Body, kw_only=True):
    """Answer to GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: list[str] = []


class CheckClientBody(Body, kw_only=True):
    """CHECK_CLIENT_CONFIG."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class QueryAssignmentBody(Body, kw_only=True):
    """QUERY_ASSIGNMENT."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: MessageModel | int = MessageModel.CLUSTERING

    def __post_init__(self) -> None:
        self.message_model = _member(self.message_model, MessageModel)


class QueueAssignment(Body, kw_only=True):
    """One queue for the asking client; queueId -1 is all queues of the broker."""

    message_queue: MessageQueue
    mode: RequestMode = RequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentAnswer(Body, kw_only=True):
    """What the asking client shall read."""

    message_queue_assignments: list[QueueAssignment] | None = None
    """None = keep what you have; empty = nothing for you."""


class SetRequestModeBody(Body, kw_only=True):
    """SET_MESSAGE_REQUEST_MODE."""

    topic: str
    consumer_group: str
    mode: RequestMode = RequestMode.PULL
    pop_share_queue_num: int = -1


class BatchAck(msgspec.Struct, gc=False, kw_only=True):
    """Acknowledgements of one pop of one queue."""

    consumer_group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    retry: str = msgspec.field(name="r", default="0")
    start_offset: int = msgspec.field(name="so")
    queue_id: int = msgspec.field(name="q")
    revive_queue_id: int = msgspec.field(name="rq", default=0)
    pop_time: int = msgspec.field(name="pt", default=0)
    invisible_time: int = msgspec.field(name="it", default=0)
    bits: bytes = msgspec.field(name="b", default=b"")
    """Base64 in JSON; bit i of the little-endian bytes = ``start_offset + i``."""

    def offsets(self) -> list[int]:
        """The acknowledged queue offsets."""
        bits = int.from_bytes(self.bits[:BATCH_ACK_BYTES_MAX], "little")
        return [self.start_offset + i for i in range(bits.bit_length()) if bits >> i & 1]


class BatchAckBody(Body, kw_only=True):
    """BATCH_ACK_MESSAGE."""

    broker_name: str = ""
    acks: list[BatchAck] = []


class SubscriptionGroupConfig(Body, kw_only=True):
    """How a broker treats a group."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_timeout_minute: int = 15


# ---- brokers and topics; the order of fields is fixed: ali-ons compares routes as text ----------


class Perm(IntFlag):
    """What may be done with the queues of a topic."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class QueueData(Body, kw_only=True):
    """The queues of a topic on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = int(Perm.READ | Perm.WRITE)
    topic_sys_flag: int = 0


class BrokerData(Body, kw_only=True):
    """Where a broker listens, by broker id."""

    cluster: str = ""
    broker_name: str
    broker_addrs: dict[str, str] = {}
    enable_acting_master: bool = False


class TopicRouteData(Body, kw_only=True):
    """Answer to GET_ROUTEINFO_BY_TOPIC."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}


class Cluster(Body, kw_only=True):
    """Answer to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(Body, kw_only=True):
    """Answer to the requests that list topics."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class KeyValueTable(Body, kw_only=True):
    """Answer to GET_KVLIST_BY_NAMESPACE and REGISTER_BROKER."""

    table: dict[str, str] = {}


class DataVersion(Body, kw_only=True):
    """By which a name server sees that a broker's topics changed."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TopicConfig(Body, kw_only=True):
    """One topic of a broker that registers."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = int(Perm.READ | Perm.WRITE)
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}


class TopicConfigTable(Body, kw_only=True):
    """All topics of a broker that registers."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class RegisterBrokerBody(Body, kw_only=True):
    """REGISTER_BROKER; deflated when the header says ``compressed``."""

    topics: TopicConfigTable = msgspec.field(
        name="topicConfigSerializeWrapper", default_factory=TopicConfigTable
    )
    filter_server_list: list[str] = []


# ---- JSON as real peers write it ----------------------------------------------------------------
# Standard JSON of the right shape is read directly. What that refuses is tried again: nulls are
# taken for absent, and keys that are no strings (old fastjson writes ``{0:"host:port"}`` and even
# ``{{"queueId":1}:5}``) become strings of the same text. C++ ends bodies with a newline. Time and
# memory are linear in the size of the body, which is bounded.


def decode_body(data: bytes, kind: type[T], *, bytes_max: int = BODY_BYTES_MAX) -> T:
    """The body of a command; raises ``Malformed`` naming the place that is wrong."""
    if len(data) > bytes_max:
        raise Malformed(f"{kind.__name__} of {len(data)} bytes, limit {bytes_max}")
    try:
        return _decoder(kind).decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        return msgspec.convert(
            _without_nulls(_parse(data, bytes_max // ODD_SHARE)), kind, strict=False
        )
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"{kind.__name__} cannot be read: {problem}") from None


def encode_body(body: object) -> bytes:
    """Standard JSON: every client known reads it."""
    return _ENCODE(body)


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _DECODERS.get(kind)
    if found is None:
        found = _DECODERS[kind] = msgspec.json.Decoder(kind, strict=False)
    return found


def _parse(data: bytes, odd_bytes_max: int) -> Any:
    text = data.strip(b"\0 \r\n\t").decode("utf-8", "replace")
    try:
        return msgspec.json.decode(text)
    except ValueError:
        if len(data) > odd_bytes_max:
            raise
        return msgspec.json.decode(standard_json(text.encode()))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value if each is not None]
    return value


def standard_json(data: bytes) -> bytes:
    """The same JSON with every key a string: numbers are quoted, objects become their text."""
    out: list[bytes] = []
    open_brackets: list[bytes] = []
    key_at, key_depth = -1, 0
    """Where in ``out`` the object begins that is a key, and how deep; -1: none is open."""
    wants_key = False
    for match in _TOKEN.finditer(data):
        token = match.group()
        if token in (b"{", b"["):
            if len(open_brackets) >= NESTING_MAX:
                raise Malformed(f"JSON nested deeper than {NESTING_MAX}")
            if wants_key:
                # Each level would double the backslashes; no peer has more than one.
                if key_at >= 0:
                    raise Malformed("JSON object as key inside a key")
                key_at, key_depth = len(out), len(open_brackets)
            open_brackets.append(token)
            out.append(token)
            wants_key = token == b"{"
        elif token in _BRACKETS:
            if not open_brackets or open_brackets.pop() != _BRACKETS[token]:
                raise Malformed("JSON brackets do not match")
            out.append(token)
            if key_at >= 0 and key_depth == len(open_brackets):
                out[key_at:] = [_ENCODE(b"".join(out[key_at:]).decode("utf-8", "replace"))]
                key_at = -1
            wants_key = False
        elif token == b",":
            out.append(token)
            wants_key = bool(open_brackets) and open_brackets[-1] == b"{"
        elif token == b":":
            out.append(token)
            wants_key = False
        else:
            is_bare_key = wants_key and not token.startswith(b'"')
            out.append(b'"%b"' % token if is_bare_key else token)
            wants_key = False
    return b"".join(out)


# ---- a compressed REGISTER_BROKER: deflated, and not JSON as a whole ----------------------------
# | i32 length . data version as JSON
# | i32 count  . count times: i32 length . "topic read write perm filterType [attributes as JSON]"
# | i32 length . filter servers as JSON
# | since 5.0 more follows, which a name server can do without
#
# What it inflates to is bounded before anything is read. JSON that was deflated as a whole is read
# as well.


def unpack_registration(data: bytes, bytes_max: int) -> RegisterBrokerBody:
    """Topics and version; raises ``Malformed``."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, bytes_max)
    except zlib.error as problem:
        raise Malformed(f"the compressed registration cannot be read: {problem}") from None
    if inflater.unconsumed_tail:
        raise Malformed(f"the registration inflates to more than {bytes_max} bytes")
    if plain.startswith(b"{"):
        return decode_body(plain, RegisterBrokerBody, bytes_max=bytes_max)
    try:
        return _unpacked(plain)
    except (struct.error, ValueError) as problem:
        raise Malformed(f"the compressed registration cannot be read: {problem}") from None


def _unpacked(plain: bytes) -> RegisterBrokerBody:
    text, at = _piece(plain, 0)
    version = decode_body(text, DataVersion)
    (count,) = _I32.unpack_from(plain, at)
    at += _I32.size
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        text, at = _piece(plain, at)
        config = _topic(text.decode("utf-8", "replace"))
        topics[config.topic_name] = config
    return RegisterBrokerBody(
        topics=TopicConfigTable(topic_config_table=topics, data_version=version)
    )


def _piece(plain: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _I32.unpack_from(plain, at)
    at += _I32.size
    if not 0 <= size <= len(plain) - at:
        raise Malformed(f"a part of {size} bytes where {len(plain) - at} are left")
    return plain[at : at + size], at + size


def _topic(text: str) -> TopicConfig:
    fields = text.split(_SEPARATOR, _FIELDS_MIN)
    if len(fields) < _FIELDS_MIN:
        raise Malformed(f"a topic needs {_FIELDS_MIN} fields: {text[:80]!r}")
    name, read, write, perm, filter_type = fields[:_FIELDS_MIN]
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(read),
        write_queue_nums=int(write),
        perm=int(perm),
        topic_filter_type=filter_type,
    )
