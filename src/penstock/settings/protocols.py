"""Settings of AMQP 0-9-1: what is negotiated, whom we say we are; defaults follow RabbitMQ 3.13."""

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from penstock.model.errors import SettingsError
from penstock.settings.declare import GIB, KIB, MIB, setting

FRAME_MAX_MIN = 4 * KIB
"""Smallest frame limit that the protocol allows."""


@dataclass(frozen=True, slots=True)
class AmqpSettings:
    """Connections, channels and consumers."""

    server_product: str = setting(
        "RabbitMQ", "Product told to clients; kombu and celery choose their ways by it"
    )
    server_version: str = setting("3.13.7", "Version told to clients, in RabbitMQ's counting")
    cluster_name: str = setting("", "Cluster told to clients; empty = broker.name")
    channel_max: int = setting(2047, "Channels of one connection")
    frame_max: int = setting(128 * KIB, "Largest frame, as offered to clients")
    heartbeat_s: int = setting(60, "Heartbeat interval offered to clients; 0 = none")
    close_ms_max: int = setting(
        3_000, "A peer that is told to close has this long to answer before it is cut off"
    )
    message_bytes_max: int = setting(
        128 * MIB,
        "Largest message body, if topics.message_bytes_max allows it; a larger one costs 406",
    )
    content_ms_max: int = setting(
        30_000, "D22: a content let in although memory is short must be complete in this time"
    )
    consumers_per_channel_max: int = setting(2_048, "Consumers of one channel")
    vhosts_max: int = setting(1_000, "Virtual hosts of the broker")
    exchanges_max: int = setting(20_000, "Exchanges of all virtual hosts together")
    bindings_max: int = setting(500_000, "Bindings of all virtual hosts together")
    policies_max: int = setting(
        1_000, "Policies of all virtual hosts together, those of operators included"
    )
    arguments_bytes_max: int = setting(
        16 * KIB, "Arguments of one queue, exchange, binding or consumer, as they came"
    )
    consumer_timeout_ms: int = setting(
        30 * 60_000, "A delivery unsettled for this long closes its channel (406); 0 = never"
    )
    pending_publishes_max: int = setting(
        0, "F9: unconfirmed publishes of one connection; 0 = credit and bytes decide"
    )
    answers_held_bytes_max: int = setting(
        MIB, "D6: answers of one connection that wait for the disk before it is read no more"
    )
    is_guest_local: bool = setting(True, "The user guest may log in from this machine only")

    def __post_init__(self) -> None:
        for name, low, high in (
            ("channel_max", 1, 65_535),
            ("frame_max", FRAME_MAX_MIN, 1 << 31),
            ("heartbeat_s", 0, 65_535),
            ("close_ms_max", 1, 3_600_000),
            ("message_bytes_max", 1, 512 * MIB),
            ("content_ms_max", 1, 1 << 40),
            ("consumers_per_channel_max", 1, 1 << 31),
            ("vhosts_max", 1, 1 << 31),
            ("exchanges_max", 1, 1 << 31),
            ("bindings_max", 1, 1 << 31),
            ("policies_max", 1, 1 << 31),
            ("arguments_bytes_max", 1, 1 << 31),
            ("consumer_timeout_ms", 0, 1 << 40),
            ("pending_publishes_max", 0, 1 << 31),
            ("answers_held_bytes_max", 1, 1 << 40),
        ):
            value: int = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(f"amqp.{name} is {value}; it must be {low} to {high}")


# ---- rocketmq -----------------------------------------------------------------------------------
# Settings of the RocketMQ protocol: names, topics, limits; defaults follow RocketMQ 5.3 (D25).


AT_LEAST_ONE: Final = (
    "default_topic_queues",
    "frame_ms_max",
    "strangers_bytes_max",
    "short_polling_ms",
    "suspend_ms_max",
    "pull_messages_max",
    "pull_bytes_max",
    "pull_disk_messages_max",
    "pull_disk_bytes_max",
    "resident_bytes",
    "queue_lock_ms",
)
"""Settings of which 0 would mean that nothing moves, or that a timer never rests."""


@dataclass(frozen=True, slots=True)
class RocketmqSettings:
    """Name server and broker."""

    join: str = setting(
        "", "D20: register with this name server (HOST:PORT) instead of running one", flag="--join"
    )
    broker_name: str = setting(
        "", "Name of this broker in routes; empty = broker.name", flag="--broker-name"
    )
    advertise: str = setting(
        "",
        "D20: IPv4 address in routes and message ids; empty = the one dialled, 127.0.0.1 in ids",
        flag="--advertise",
    )
    is_vip_open: bool = setting(
        True,
        "VIP channel: the broker's port - 2 answers, too; clients up to 4.4 send to it",
    )
    cluster: str = setting("DefaultCluster", "Name of the cluster in routes")
    register_ms: int = setting(30_000, "D20: how often a joined broker registers")
    broker_silence_ms_max: int = setting(
        120_000, "A registered broker leaves the routes after this much silence"
    )
    is_auto_creating: bool = setting(
        True, "Unknown topics are made on their first send, after the model of TBW102"
    )
    default_topic_queues: int = setting(8, "Queues of TBW102: the most an auto-made topic gets")
    is_creating_on_lookup: bool = setting(
        False, "Unknown topics are made when a client asks for their route (ali-ons)"
    )
    retention_ms: int = setting(
        72 * 3_600_000, "D11: messages of topics made by RocketMQ clients stay this long"
    )
    body_bytes_max: int = setting(4 * MIB, "Largest body of a send")
    properties_bytes_max: int = setting(32_767, "Longest properties string of a send")
    invalid_parameter_code: int = setting(
        29, "Answer to bad topic names and queue ids: 29 as 5.3.2 and later, 1 as older ones"
    )
    retry_first_level: int = setting(
        3, "Delay level of a first retry: 3 = 10 s; 4 = 30 s as older notes have it"
    )
    is_storing_replies: bool = setting(
        True, "Replies to requests are also stored, in the topic CLUSTER_REPLY_TOPIC"
    )
    timer_ms_max: int = setting(3 * 86_400_000, "A timer further away than this is refused")
    queue_lock_ms: int = setting(
        60_000, "A queue lock that its ordered consumer has not renewed for this long is free"
    )
    transaction_check_ms: int = setting(
        30_000, "How often the producers of an undecided half message are asked"
    )
    transaction_immunity_ms: int = setting(
        6_000, "Nobody asks about a half message that is younger than this"
    )
    transaction_checks_max: int = setting(
        15, "After so many questions a half message goes to TRANS_CHECK_MAX_TIME_TOPIC"
    )
    transactions_open_max: int = setting(
        100_000, "Undecided half messages; beyond it producers are told to wait"
    )
    pending_sends_max: int = setting(
        10_000, "F9: sends of one connection that wait for the disk; resumes at half"
    )
    is_readable: bool = setting(True, "False: every pull is refused with NO_PERMISSION")
    is_auto_creating_groups: bool = setting(
        True, "Unknown consumer groups are made by a heartbeat or pull"
    )
    is_notifying_members: bool = setting(
        True, "Members of a group are told at once when others come or go (code 40)"
    )
    is_long_polling: bool = setting(
        True, "False: pulls that find nothing wait short_polling_ms and are woken by sweeps only"
    )
    short_polling_ms: int = setting(1_000, "Wait and sweep of short polling")
    suspend_ms_max: int = setting(120_000, "F12: longest wait a pull may ask for")
    is_balancing: bool = setting(
        True, "QUERY_ASSIGNMENT divides queues; False: every member gets all of them"
    )
    is_sql_allowed: bool = setting(True, "Consumers may filter by SQL92")
    is_filtering_retries: bool = setting(
        False, "Messages of retry topics are judged by the filter of the topic they came from"
    )
    is_bit_mapping: bool = setting(
        False, "Bloom bit maps of SQL92 filters: asked at the append, saves reading later"
    )
    is_resetting_here: bool = setting(
        True, "Offsets are reset by the broker, as 5.x does; False: by the clients, as 4.x did"
    )
    pull_messages_max: int = setting(32, "Messages of one answer to a pull")
    pull_bytes_max: int = setting(256 * KIB, "Bytes of one answer to a pull; one message always")
    pull_disk_messages_max: int = setting(8, "The same for what is not in memory any more")
    pull_disk_bytes_max: int = setting(64 * KIB, "The same for what is not in memory any more")
    resident_bytes: int = setting(
        4 * GIB, "Messages further behind the end of the log than this count as on disk"
    )
    is_telling_offset_moves: bool = setting(
        True, "Corrected offsets become messages of the topic OFFSET_MOVED_EVENT"
    )
    idle_ms_max: int = setting(120_000, "A connection that says nothing for this long is closed")
    frame_ms_max: int = setting(10_000, "A frame that was begun must be complete after this")
    strangers_bytes_max: int = setting(
        32 * MIB,
        "First requests of all connections that are not complete; beyond it the oldest is cut off",
    )

    def __post_init__(self) -> None:
        if self.join:
            host, colon, port = self.join.rpartition(":")
            if not (host and colon and port.isdecimal() and 0 < int(port) <= 65535):
                raise SettingsError(
                    f"rocketmq.join is {self.join!r}; name a host and a port, as 10.0.0.5:9876"
                )
        if self.advertise:
            try:
                IPv4Address(self.advertise)
            except ValueError:
                raise SettingsError(
                    f"rocketmq.advertise is {self.advertise!r}; use an IPv4 address, as 10.0.0.5"
                ) from None
        if self.invalid_parameter_code not in (1, 29):
            raise SettingsError(
                f"rocketmq.invalid_parameter_code is {self.invalid_parameter_code}; use 29 or 1"
            )
        if not 0 < self.properties_bytes_max <= 32_767:
            raise SettingsError(
                f"rocketmq.properties_bytes_max is {self.properties_bytes_max}; "
                "the format allows 1 to 32767"
            )
        for name in AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise SettingsError(
                    f"rocketmq.{name} is {getattr(self, name)}; it must be 1 or more"
                )


# ---- pulsar -------------------------------------------------------------------------------------
# Settings of the Pulsar protocol; names follow its broker.conf, defaults Pulsar 4.0's.


SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
COMPATIBILITY_STRATEGIES: Final = (
    "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL",
    "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE",
)  # fmt: skip
INACTIVE_MODES: Final = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
TOPIC_TYPES: Final = ("non-partitioned", "partitioned")
AT_LEAST_ONE_OF_PULSAR: Final = (
    "tenants_max", "namespaces_max", "topic_policies_max", "default_num_partitions",
    "subscribe_rate_period_s", "inactive_topics_s_max", "delayed_delivery_tick_ms",
    "max_message_size", "frame_ms_max", "max_concurrent_non_persistent_messages",
    "compaction_keys_max", "compaction_kept_bytes_max",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PulsarSettings:
    """Topics, producers and consumers; namespaces and topics may have policies of their own."""

    max_message_size: int = setting(
        5 * MIB, "Largest message; told to clients, which split what is larger into chunks"
    )
    max_pending_publish_requests: int = setting(
        1_000, "F9: sends of one producer that wait for their receipts; 0 = no limit"
    )
    max_concurrent_non_persistent_messages: int = setting(
        1_000, "Sends of one connection to topics without a log that wait; more are dropped"
    )
    frame_ms_max: int = setting(
        30_000, "A frame must be complete in this time while others wait for its room"
    )
    advertised_host: str = setting(
        "", "Host in answers to look-ups; empty = the one the client dialled"
    )
    tenants_max: int = setting(1_000, "Tenants of the broker")
    namespaces_max: int = setting(10_000, "Namespaces of all tenants together")
    topic_policies_max: int = setting(10_000, "Topics that have policies of their own")
    allow_auto_topic_creation: bool = setting(True, "Unknown topics are made by their first use")
    allow_auto_topic_creation_type: str = setting(
        "non-partitioned", "What they are then: non-partitioned or partitioned"
    )
    default_num_partitions: int = setting(1, "Partitions of a partitioned topic made so")
    allow_auto_subscription_creation: bool = setting(
        True, "Unknown durable subscriptions are made by their first consumer"
    )
    subscription_types_enabled: str = setting(
        ",".join(SUBSCRIPTION_TYPES), "Types that consumers may bring, with commas between"
    )
    max_unacked_messages_per_consumer: int = setting(
        50_000, "F13: messages one shared consumer may have unacked; 0 = no limit"
    )
    max_unacked_messages_per_subscription: int = setting(
        200_000, "F13: the same of all consumers of a shared subscription"
    )
    max_producers_per_topic: int = setting(0, "Producers of one topic; 0 = no limit")
    max_consumers_per_topic: int = setting(0, "Consumers of one topic; 0 = no limit")
    max_consumers_per_subscription: int = setting(0, "Consumers of one subscription; 0 = no limit")
    subscribe_rate_per_consumer: int = setting(
        0, "F8: how often one consumer may subscribe in a period; 0 = no limit"
    )
    subscribe_rate_period_s: int = setting(30, "That period, in seconds")
    deduplication: bool = setting(False, "Messages that a producer sends again are not stored")
    acknowledgment_at_batch_index_level: bool = setting(
        True, "Single messages of a batch can be acked; False: such acks are ignored"
    )
    active_consumer_failover_delay_ms: int = setting(
        1_000, "So long nobody gets anything after the active consumer has changed"
    )
    key_shared_use_consistent_hashing: bool = setting(
        True, "Key_Shared: keys by a ring of hashes; False: by halved ranges"
    )
    delayed_delivery: bool = setting(True, "Times of delivery are honoured on shared subscriptions")
    delayed_delivery_tick_ms: int = setting(1_000, "A message due within this is delivered at once")
    delayed_delivery_ms_max: int = setting(0, "Longest delay; a longer one is refused; 0 = any")
    delete_inactive_topics: bool = setting(False, "Topics that nobody uses are deleted")
    inactive_topics_delete_mode: str = setting(
        "delete_when_no_subscriptions",
        "When nobody uses one: with the last subscription gone, or "
        "delete_when_subscriptions_caught_up",
    )
    inactive_topics_s_max: int = setting(60, "They go after so many seconds")
    delete_inactive_partitioned_topics: bool = setting(
        False, "Partitioned ones, too, as a whole; who uses one then makes it anew, as they come"
    )
    compaction_keys_max: int = setting(
        250_000,
        "Keys of a topic that is compacted; with more it is not. Some 300 bytes each while it runs",
    )
    compaction_kept_bytes_max: int = setting(
        GIB,
        "Log bytes of a topic kept since its last compaction for the next one; beyond that the "
        "broker compacts by itself",
    )
    schema_compatibility_strategy: str = setting(
        "FULL", "Which new schemas of a topic are taken; namespaces may say otherwise"
    )
    schema_validation_enforced: bool = setting(
        False, "Producers without a schema are refused on topics that have one"
    )
    allow_auto_update_schema: bool = setting(True, "Clients may bring new schemas")

    def __post_init__(self) -> None:
        for name, allowed in (
            ("allow_auto_topic_creation_type", TOPIC_TYPES),
            ("inactive_topics_delete_mode", INACTIVE_MODES),
            ("schema_compatibility_strategy", COMPATIBILITY_STRATEGIES),
        ):
            if getattr(self, name) not in allowed:
                raise SettingsError(
                    f"pulsar.{name} is {getattr(self, name)!r}; use one of {', '.join(allowed)}"
                )
        unknown = set(self.subscription_types) - set(SUBSCRIPTION_TYPES)
        if unknown or not self.subscription_types:
            raise SettingsError(
                f"pulsar.subscription_types_enabled is {self.subscription_types_enabled!r}; "
                f"use some of {','.join(SUBSCRIPTION_TYPES)}"
            )
        for name in AT_LEAST_ONE_OF_PULSAR:
            if getattr(self, name) < 1:
                raise SettingsError(f"pulsar.{name} must be at least 1")

    @property
    def subscription_types(self) -> list[str]:
        """Those that are enabled, by Pulsar's names."""
        return [each.strip() for each in self.subscription_types_enabled.split(",")]


# ---- spark --------------------------------------------------------------------------------------
# Settings of Spark queries: leases, and what those that fall behind do to publishers (F18).


BACKPRESSURES: Final = ("off", "soft", "hard")
AT_LEAST_ONE_OF_SPARK: Final = (
    "lease_ms_max", "alive_ms_max", "queries_max", "query_queues_max", "positions_max",
    "read_idle_ms_max", "topic_queues", "stage_bytes_max", "stage_batch_bytes_max", "stage_ms_max",
    "sinks_max", "sink_ms_max",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Queries as subscriptions."""

    lease_ms_max: int = setting(
        86_400_000,
        "F18: data is kept for a query that was silent no longer than this; it may ask for less",
    )
    lease_bytes_max: int = setting(
        8 * GIB, "F18: log bytes kept for one query; with more behind it its lease is broken"
    )
    backpressure: str = setting(
        "soft",
        "D23: what a query behind its bound does to its topic's publishers: off, soft (their rate "
        "is capped at 1.1 times what the query drains) or hard (they are held at the bound)",
    )
    backlog_messages_max: int = setting(
        0, "D23: bound of a query's backlog on one topic, in messages; 0 = none"
    )
    backlog_bytes_max: int = setting(4 * GIB, "D23: the same in bytes of log")
    backlog_age_ms_max: int = setting(0, "D23: the same as age of its oldest message")
    alive_ms_max: int = setting(
        60_000, "D23: a query that was silent for longer holds no publishers; its lease goes on"
    )
    busy_hold_ms_max: int = setting(
        1000,
        "D23: how long a publish of a protocol that fails fast (RocketMQ) is held for a query "
        "before it is answered busy; must stay below its clients' send time-out",
    )
    queries_max: int = setting(1000, "Queries the broker knows")
    read_idle_ms_max: int = setting(
        30_000, "A read over Flight that takes nothing for this long ends, with its connection"
    )
    query_queues_max: int = setting(
        1000, "Queues that one query, or one question of the bulk lane, may mean"
    )
    positions_max: int = setting(
        10_000, "Queues that all queries read together; each is looked at for leases and brakes"
    )
    flight_restart_ms_max: int = setting(
        30_000, "D18: longest pause before a Flight process that died is started again"
    )
    is_auto_creating: bool = setting(True, "Topics that a sink writes to are made by its first row")
    topic_queues: int = setting(4, "Queues of a topic that a sink makes")
    topic_retention_ms: int = setting(
        72 * 3_600_000, "D11: messages of a topic that a sink made stay this long"
    )
    stage_bytes_max: int = setting(
        4 * GIB,
        "D19: rows of all sinks that are staged and not committed; with more, puts wait, but those "
        "of one batch go on",
    )
    stage_batch_bytes_max: int = setting(
        GIB, "D19: staged rows of one batch; a larger one fails: maxRowsPerTrigger makes it smaller"
    )
    stage_ms_max: int = setting(
        3_600_000, "D19: a stage that nobody commits goes this long after the last put of its batch"
    )
    stage_hold_ms_max: int = setting(
        600_000, "D19: a put waits so long for room, memory, disk or its topic; then it is refused"
    )
    disk_reserve_bytes: int = setting(
        256 * MIB,
        "D19: below the disk alarm's limit, for queries whose lease keeps data: that they go on "
        "frees it",
    )
    sinks_max: int = setting(10_000, "D19: sinks whose last batch is remembered")
    sink_ms_max: int = setting(
        30 * 86_400_000, "D19: a sink's last batch is forgotten this long after it"
    )

    def __post_init__(self) -> None:
        if self.backpressure not in BACKPRESSURES:
            raise SettingsError(
                f"spark.backpressure is {self.backpressure!r}; use off, soft or hard"
            )
        for name in AT_LEAST_ONE_OF_SPARK:
            if getattr(self, name) < 1:
                raise SettingsError(f"spark.{name} must be at least 1")
