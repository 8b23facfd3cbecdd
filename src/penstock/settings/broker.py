"""Settings of the process itself: where it keeps its data and how it makes itself known."""

from dataclasses import dataclass
from typing import Final

from penstock.model.errors import SettingsError
from penstock.settings.declare import GIB, KIB, MIB, setting


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Directory, name and switches of one broker process."""

    data: str = setting(
        "./penstock-data", "Directory of the log and the catalog; made if missing", flag="--data"
    )
    name: str = setting("penstock", "Name of this broker in logs and to clients that ask for one")
    faults: bool = setting(
        False, "D26: let `penstock fault` make the disk or a queue misbehave", flag="--faults"
    )
    ready_file: str = setting(
        "",
        "D21: also write pid and endpoints here, as JSON, once every listener accepts",
        flag="--ready-file",
    )
    stop_ms_max: int = setting(10_000, "A clean stop waits this long for peers and the last sync")
    log_level: str = setting("info", "What is logged: debug, info, warning or error")
    is_log_json: bool = setting(False, "Log lines as JSON, one object per line")

    def __post_init__(self) -> None:
        if not self.data:
            raise SettingsError("broker.data is empty; name a directory, as ./penstock-data")
        if not self.name:
            raise SettingsError("broker.name is empty; give the broker a name")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise SettingsError(
                f"broker.log_level is {self.log_level!r}; use debug, info, warning or error"
            )


# ---- listeners ----------------------------------------------------------------------------------
# Settings of listeners: where clients connect. A port is a number, 0 for any free one, or off.


PROTOCOLS: Final = (
    "rocketmq", "rocketmq_broker", "amqp", "pulsar", "pulsar_http", "flight", "http",
)  # fmt: skip
"""Every listener there is or will be; also the names of the endpoints in the ready file (D21)."""

LOCALHOST: Final = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Addresses, ports and limits of connections."""

    bind: str = setting(
        "localhost", "Address to listen on; localhost = 127.0.0.1 and ::1", flag="--bind"
    )
    insecure: bool = setting(
        False, "Allow an address other than loopback without TLS and users", flag="--insecure"
    )
    rocketmq: str = setting("9876", "RocketMQ name server port, 0 or off", flag="--rocketmq")
    rocketmq_broker: str = setting(
        "10911", "RocketMQ broker port, 0 or off", flag="--rocketmq-broker"
    )
    amqp: str = setting("5672", "AMQP 0-9-1 port, 0 or off", flag="--amqp")
    pulsar: str = setting("6650", "Pulsar port, 0 or off", flag="--pulsar")
    pulsar_http: str = setting(
        "off", "Port of Pulsar's REST alone, beside the HTTP port, 0 or off", flag="--pulsar-http"
    )
    flight: str = setting("8815", "Arrow Flight port, 0 or off", flag="--flight")
    http: str = setting("15672", "HTTP port, 0 or off", flag="--http")
    connections_max: int = setting(10_000, "Connections of all listeners together")
    connections_per_address_max: int = setting(1000, "Connections from one address")
    strangers_max: int = setting(
        512, "Connections that have not logged in, or asked anything yet; then the oldest goes"
    )
    strangers_per_address_max: int = setting(256, "The same from one address")
    handshake_ms_max: int = setting(10_000, "A peer must finish its handshake in this time")
    handshake_bytes_max: int = setting(
        16 * KIB, "Bytes read from a peer before its handshake is done"
    )
    http_connections_max: int = setting(
        64, "HTTP connections, kept apart so that they answer in a flood"
    )
    http_connections_per_address_max: int = setting(
        32, "HTTP connections from one address; then its oldest idle one goes, health checks answer"
    )
    receive_buffer_bytes: int = setting(
        256 * KIB,
        "Kernel buffer of a protocol socket; larger lets unconfirmed publishers run ahead; "
        "0 = the kernel decides",
    )

    def __post_init__(self) -> None:
        for protocol in PROTOCOLS:
            text = getattr(self, protocol)
            if text != "off" and not (text.isdecimal() and int(text) <= 65535):
                raise SettingsError(
                    f"listeners.{protocol} is {text!r}; use a port from 1 to 65535, "
                    "0 for any free one, or off"
                )
        for name in ("strangers_max", "strangers_per_address_max"):
            if getattr(self, name) < 1:
                raise SettingsError(
                    f"listeners.{name} must be at least 1: everybody is one at first"
                )
        if not self.bind:
            raise SettingsError("listeners.bind is empty; name an address, as localhost")
        if not self.is_loopback and not self.insecure:
            raise SettingsError(
                f"listeners.bind is {self.bind}, which other machines can reach, and there is no "
                "TLS or login yet; add --insecure if that is what you want, or bind localhost"
            )

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can connect."""
        return all(each == "::1" or each.startswith("127.") for each in self.addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that ``bind`` stands for."""
        return LOCALHOST if self.bind == "localhost" else (self.bind,)

    def port(self, protocol: str) -> int | None:
        """The port of one of ``PROTOCOLS``, 0 for any free one, ``None`` when it is off."""
        text: str = getattr(self, protocol)
        return None if text == "off" else int(text)


# ---- storage ------------------------------------------------------------------------------------
# Settings of the log on disk.


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """How bytes reach the disk and how long they stay there."""

    durability: str = setting(
        "fsync",
        "When a confirm may leave: fsync (after fdatasync), interval:MS, or os (after write)",
        flag="--durability",
    )
    segment_bytes_max: int = setting(
        64 * MIB, "Size at which a log segment is closed and a new one begun"
    )
    write_buffers_max: int = setting(5, "Write buffers that may hold bytes not yet durable (F7)")
    write_buffer_bytes: int = setting(16 * MIB, "Size of one write buffer (F7)")
    sync_hold_ms: int = setting(100, "No further write while a sync runs longer than this (D8)")
    commit_linger_ms: int = setting(
        1, "Wait of a small commit for company at high rates, from its first message on; 0 = none"
    )
    commit_distance_us: int = setting(
        3_000,
        "Longest time from sync to sync at middling rates, for streams; 0 = none",
    )
    commit_linger_messages: int = setting(200, "Commit at once when this many messages wait")
    commit_linger_bytes: int = setting(64 * KIB, "Commit at once when this many bytes wait")
    hot_tail_bytes_max: int = setting(8 * MIB, "Newest records kept as objects, by bytes")
    hot_tail_records_max: int = setting(8192, "Newest records kept as objects, by number")
    index_tail_bytes_max: int = setting(
        8 * MIB, "Index entries kept in memory before they are written"
    )
    index_file_entries_max: int = setting(65536, "Entries in one index file")
    snapshot_interval_ms: int = setting(1000, "Cursor snapshots are taken at most this often")
    snapshot_bytes_min: int = setting(
        8 * MIB, "Snapshots of less than this wait ten times as long; recovery reads it again"
    )
    idle_mark_ms: int = setting(1000, "After this idle time an empty frame carries the synced mark")
    settled_keep_ms: int = setting(
        3_600_000, "Settled data stays at least this long if there is room"
    )
    settled_keep_bytes_max: int = setting(
        1 * GIB, "Settled data of the whole directory stays up to this size"
    )
    retention_sweep_ms: int = setting(10_000, "How often segments are looked at for removal")

    def __post_init__(self) -> None:
        kind, _, amount = self.durability.partition(":")
        is_interval = kind == "interval" and amount.isdigit() and int(amount) > 0
        if self.durability not in ("fsync", "os") and not is_interval:
            raise SettingsError(
                f"storage.durability is {self.durability!r}; use fsync, interval:MS (for example "
                "interval:50) or os"
            )
        if self.segment_bytes_max < 64 * KIB:
            raise SettingsError("storage.segment_bytes_max must be at least 64 KiB")
        if self.write_buffers_max < 1 or self.write_buffer_bytes < 64 * KIB:
            raise SettingsError("storage needs at least one write buffer of at least 64 KiB")

    @property
    def unsynced_bytes_max(self) -> int:
        """Bytes that may be appended and not yet durable: all write buffers together."""
        return self.write_buffers_max * self.write_buffer_bytes


# ---- topics -------------------------------------------------------------------------------------
# Settings that new topics start from.


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Defaults and ceilings of topics."""

    queues_max: int = setting(50_000, "Queues of all topics together")
    reserve_percent: int = setting(
        10,
        "Of the places for queues, RocketMQ's groups and Spark's queries, so many of a hundred are "
        "kept for clients that made few of them; 0 = none",
    )
    message_bytes_max: int = setting(16 * MIB, "Largest message of any protocol")
    subscriptions_per_topic_max: int = setting(1000, "Subscriptions of one topic")
    consumers_per_subscription_max: int = setting(10_000, "Consumers of one subscription")
    delivered_reserve: int = setting(1000, "D13: how far ahead the delivered mark is reserved")
    delay_horizon_ms: int = setting(
        600_000, "D14: delayed messages due within this are held in memory"
    )
    delayed_in_memory_max: int = setting(
        200_000,
        "D14: delayed messages held in memory at most, half of them for whole topics and half for "
        "all subscriptions together",
    )
    delayed_on_disk_max: int = setting(
        1_000_000,
        "D14: delayed messages of single subscriptions on disk at most, all together, beyond those "
        "in memory (24 bytes each); with more the reader waits; 0 = memory only",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.reserve_percent < 100:
            raise SettingsError(
                f"topics.reserve_percent is {self.reserve_percent}; use 0 to 99, for example 10"
            )
