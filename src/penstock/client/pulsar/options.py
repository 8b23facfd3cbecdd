"""Options of the Pulsar client and its consumers; declared as ``client/options.py`` says.

Not here: options of producers (beside theirs), what an option does (the room that reads
it).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, TypedDict

from penstock.client.options import Option
from penstock.client.pulsar.backoff import INITIAL_MS, MAX_MS
from penstock.client.pulsar.message import MessageId


class ClientOptions(TypedDict, total=False):
    """Options of a ``Client``."""

    operation_timeout_ms: Annotated[
        int, Option(30_000, "How long a request, or opening something, may take.", 1)
    ]
    connection_timeout_ms: Annotated[int, Option(10_000, "How long connecting may take.", 1)]
    keep_alive_interval_ms: Annotated[
        int, Option(30_000, "How often a PING goes out; two without any answer end it.", 10)
    ]
    backoff_initial_ms: Annotated[
        int, Option(INITIAL_MS, "Wait after the first failure; it doubles.", 1)
    ]
    backoff_max_ms: Annotated[int, Option(MAX_MS, "Longest wait between two attempts.", 1)]
    token: Annotated[str | None, Option(None, "A JSON web token to say who this is.")]
    listener_name: Annotated[
        str | None, Option(None, "Which of a broker's advertised addresses to use.")
    ]
    concurrent_lookups_max: Annotated[
        int, Option(1_000, "Look-ups under way; more of them wait.", 1)
    ]
    unsent_bytes_max: Annotated[
        int, Option(128 * 1024 * 1024, "Bytes not yet taken by one connection's socket.", 1)
    ]


class SubscriptionType(IntEnum):
    """Who gets which message of a subscription; numbers are those of the wire."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def is_shared(self) -> bool:
        """Several consumers get messages at the same time; acks are for single ones."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class InitialPosition(IntEnum):
    """Where a subscription that does not exist yet begins."""

    LATEST = 0
    EARLIEST = 1


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """What happens to messages that come again and again, as with Pulsar's Java client.

    Names that are not given are ``<topic>-<subscription>-DLQ`` and ``...-RETRY``.
    """

    redeliveries_max: int = 16
    """Messages that came back more often go to the dead-letter topic."""
    dead_letter_topic: str | None = None
    retry_letter_topic: str | None = None
    initial_subscription: str | None = None
    """A subscription made with the dead-letter topic, so that nothing in it is lost."""


@dataclass(frozen=True, slots=True)
class RedeliveryBackoff:
    """A delay that grows with every redelivery of a message."""

    min_ms: int = 1_000
    max_ms: int = 60_000
    multiplier: float = 2.0

    def delay_ms(self, redelivery_count: int) -> int:
        """Of the redelivery after this many."""
        # Above 64 doublings every delay is the longest one, and a power would not end.
        grown = self.min_ms * self.multiplier ** min(max(redelivery_count, 0), 64)
        return int(min(grown, self.max_ms))


class ConsumerOptions(TypedDict, total=False):
    """Options of ``Client.subscribe``."""

    subscription_type: Annotated[
        SubscriptionType, Option(SubscriptionType.EXCLUSIVE, "Who gets which message.")
    ]
    is_durable: Annotated[
        bool, Option(True, "Whether the broker remembers what was acked when nobody is connected.")
    ]
    consumer_name: Annotated[
        str | None, Option(None, "What the broker calls it; a random name by default.")
    ]
    receiver_queue_size: Annotated[
        int,
        Option(1_000, "Messages received ahead of the application; 0 = none at all.", 0, 1_000_000),
    ]
    max_total_receiver_queue_size_across_partitions: Annotated[
        int, Option(50_000, "The same for all partitions and topics of it together.", 1)
    ]
    receiver_queue_bytes_max: Annotated[
        int,
        Option(
            64 * 1024 * 1024,
            "Bytes received ahead of the application, after which nothing more is read.",
            1,
        ),
    ]
    initial_position: Annotated[
        InitialPosition, Option(InitialPosition.LATEST, "Where a new subscription begins.")
    ]
    start_message_id: Annotated[
        MessageId | None, Option(None, "Where a subscription that is not durable begins.")
    ]
    is_start_inclusive: Annotated[
        bool, Option(False, "Whether the message with the start id is received, too.")
    ]
    start_rollback_s: Annotated[
        int, Option(0, "Begin with messages published this long ago; not durable only.", 0)
    ]
    listener: Annotated[
        Callable[..., object] | None,
        Option(None, "Called with (consumer, message) for each; then ``receive`` is not used."),
    ]
    listener_threads: Annotated[
        int, Option(1, "Threads that call it; what must stay in order does.", 1, 1_024)
    ]
    active_listener: Annotated[
        Callable[..., object] | None,
        Option(
            None,
            "Failover only: called with (consumer, topic, is_active) on every change; is_active is"
            " None when the connection is lost.",
        ),
    ]
    ack_group_ms: Annotated[
        int, Option(100, "How long acks are gathered; 0 = each is sent at once.", 0)
    ]
    ack_group_max: Annotated[int, Option(1_000, "Acks gathered at most.", 1, 100_000)]
    has_ack_receipts: Annotated[
        bool, Option(False, "Whether an ack waits until the broker has it; see ``acknowledge``.")
    ]
    has_batch_index_acks: Annotated[
        bool, Option(False, "Whether single messages of a batch are acked at the broker.")
    ]
    ack_timeout_ms: Annotated[
        int,
        Option(0, "What is not acked this long after it was received comes again; 0 = never.", 0),
    ]
    ack_timeout_tick_ms: Annotated[int, Option(1_000, "How often that is looked at.", 1)]
    negative_ack_delay_ms: Annotated[
        int, Option(60_000, "How long after a negative ack a message comes again.", 0)
    ]
    negative_ack_backoff: Annotated[
        RedeliveryBackoff | None, Option(None, "The same, growing with every redelivery.")
    ]
    dead_letter_policy: Annotated[
        DeadLetterPolicy | None, Option(None, "Where messages go that come too often.")
    ]
    is_retry_enabled: Annotated[
        bool,
        Option(False, "Whether ``reconsume_later`` works; the retry-letter topic is consumed."),
    ]
    priority_level: Annotated[
        int, Option(0, "Consumers with a lower number get messages first.", -(2**31), 2**31 - 1)
    ]
    properties: Annotated[
        Mapping[str, str] | None, Option(None, "What the broker shows of this consumer.")
    ]
    subscription_properties: Annotated[
        Mapping[str, str] | None, Option(None, "What the broker keeps with a new subscription.")
    ]
    is_read_compacted: Annotated[
        bool, Option(False, "Read the newest value of each key only; exclusive and failover.")
    ]
    is_replicated: Annotated[bool, Option(False, "Replicate the subscription's state.")]
    sticky_ranges: Annotated[
        Sequence[tuple[int, int]] | None,
        Option(
            None, "Key-shared: hashes (0..65535, both ends) this consumer gets; None = a share."
        ),
    ]
    is_out_of_order_allowed: Annotated[
        bool, Option(False, "Key-shared: a key may move before its messages are acked.")
    ]
    pending_chunked_max: Annotated[
        int, Option(10, "Messages in chunks put together at the same time.", 1)
    ]
    chunked_expire_ms: Annotated[
        int, Option(60_000, "How long the next chunk of a message may take.", 1)
    ]
    chunked_bytes_max: Annotated[
        int, Option(128 * 1024 * 1024, "Bytes of all messages that are being put together.", 1)
    ]
    pattern_refresh_ms: Annotated[
        int, Option(60_000, "How often new topics and partitions are looked for.", 10)
    ]
    pattern_domain: Annotated[
        str,
        Option(
            "persistent",
            "Which topics a pattern is for.",
            choices=("persistent", "non-persistent", "all"),
        ),
    ]
    batch_receive_bytes_max: Annotated[
        int, Option(10 * 1024 * 1024, "Bytes that end a ``receive_batch``.", 1)
    ]
    batch_receive_timeout_ms: Annotated[
        int, Option(100, "How long a ``receive_batch`` gathers messages.", 0)
    ]
