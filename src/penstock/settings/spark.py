"""Settings of Spark queries: leases, and what those that fall behind do to publishers (F18)."""

from dataclasses import dataclass
from typing import Final

from penstock.model.errors import SettingsError
from penstock.settings.declare import GIB, setting

BACKPRESSURES: Final = ("off", "soft", "hard")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Queries as subscriptions."""

    lease_ms_max: int = setting(
        86_400_000, "F18: data is kept for a query that was silent no longer than this"
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
    flight_restart_ms_max: int = setting(
        30_000, "D18: longest pause before a Flight process that died is started again"
    )

    def __post_init__(self) -> None:
        if self.backpressure not in BACKPRESSURES:
            raise SettingsError(
                f"spark.backpressure is {self.backpressure!r}; use off, soft or hard"
            )
        for name in ("lease_ms_max", "alive_ms_max", "queries_max"):
            if getattr(self, name) < 1:
                raise SettingsError(f"spark.{name} must be at least 1")
