"""JSON bodies about groups and queues: heartbeats, locks, assignments, acknowledgements.

Attributes are the wire names in snake case. Read with ``lenient_json.decode_body``, written with
``encode_body``. Enumerations come as names (Java, ali-ons, Go) or as ordinals (C++); they are
members once read, and leave as names. What C++ leaves out of a subscription is rebuilt.

Not here: routes and what brokers tell name servers (``route_bodies.py``).
"""

from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from penstock.model.record import tag_hash

SUBSCRIBE_ALL: Final = "*"
EXPRESSION_CHARS_MAX: Final = 8192
"""Tags or SQL92 of one subscription; each tag costs a hash of all its characters."""


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


class SubscriptionData(Body, gc=False, kw_only=True, rename="camel"):
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


class ConsumerData(Body, gc=False, kw_only=True, rename="camel"):
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


class ProducerData(Body, gc=False, kw_only=True, rename="camel"):
    """One producer group of a client."""

    group_name: str


class HeartbeatData(Body, gc=False, kw_only=True, rename="camel"):
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


class LockBatchBody(Body, gc=False, kw_only=True, rename="camel"):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = []


class LockBatchAnswer(Body, gc=False, kw_only=True, rename="camel"):
    """The queues that were locked."""

    locked: list[MessageQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)


class ConsumerList(Body, gc=False, kw_only=True, rename="camel"):
    """Answer to GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: list[str] = []


class CheckClientBody(Body, gc=False, kw_only=True, rename="camel"):
    """CHECK_CLIENT_CONFIG."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class QueryAssignmentBody(Body, gc=False, kw_only=True, rename="camel"):
    """QUERY_ASSIGNMENT."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: MessageModel | int = MessageModel.CLUSTERING

    def __post_init__(self) -> None:
        self.message_model = _member(self.message_model, MessageModel)


class QueueAssignment(Body, gc=False, kw_only=True, rename="camel"):
    """One queue for the asking client; queueId -1 is all queues of the broker."""

    message_queue: MessageQueue
    mode: RequestMode = RequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentAnswer(Body, gc=False, kw_only=True, rename="camel"):
    """What the asking client shall read."""

    message_queue_assignments: list[QueueAssignment] | None = None
    """None = keep what you have; empty = nothing for you."""


class SetRequestModeBody(Body, gc=False, kw_only=True, rename="camel"):
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


BATCH_ACK_BYTES_MAX: Final = 512
"""4096 messages; a pop takes 32."""


class BatchAckBody(Body, gc=False, kw_only=True, rename="camel"):
    """BATCH_ACK_MESSAGE."""

    broker_name: str = ""
    acks: list[BatchAck] = []


class SubscriptionGroupConfig(Body, gc=False, kw_only=True, rename="camel"):
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
