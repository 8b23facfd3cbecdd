"""Settings that new topics start from."""

from dataclasses import dataclass

from penstock.settings.declare import MIB, setting


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Defaults and ceilings of topics."""

    queues_max: int = setting(50_000, "Queues of all topics together")
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
