"""Settings of AMQP 0-9-1: what is negotiated, whom we say we are; defaults follow RabbitMQ 3.13."""

from dataclasses import dataclass

from penstock.model.errors import SettingsError
from penstock.settings.declare import KIB, MIB, setting

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
    consumers_per_channel_max: int = setting(1_000, "Consumers of one channel")
    vhosts_max: int = setting(1_000, "Virtual hosts of the broker")
    exchanges_max: int = setting(20_000, "Exchanges of all virtual hosts together")
    bindings_max: int = setting(500_000, "Bindings of all virtual hosts together")
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
            ("arguments_bytes_max", 1, 1 << 31),
            ("consumer_timeout_ms", 0, 1 << 40),
            ("pending_publishes_max", 0, 1 << 31),
            ("answers_held_bytes_max", 1, 1 << 40),
        ):
            value: int = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(f"amqp.{name} is {value}; it must be {low} to {high}")
