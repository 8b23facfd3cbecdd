"""Settings of the RocketMQ protocol: names, topics, limits; defaults follow RocketMQ 5.3 (D25)."""

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from penstock.model.errors import SettingsError
from penstock.settings.declare import GIB, KIB, MIB, setting

AT_LEAST_ONE: Final = (
    "default_topic_queues",
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
    is_auto_creating_groups: bool = setting(True, "Unknown consumer groups are made on first use")
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
