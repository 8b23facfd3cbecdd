"""Numbers of the process around the engine, gathered by the server when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec


class ProcessStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The process now; what ends in ``_total`` only ever grows."""

    durability: str
    memory_used: int
    memory_limit: int
    disk_free: int
    disk_limit: int
    inflight_bytes_max: int
    unsent_bytes_max: int
    unsynced_bytes_max: int
    connections: int
    connections_max: int
    accepted_total: int
    refused_total: Mapping[str, int]
    """Why -> how many peers were turned away."""
    aborted_total: int
    http_connections: int
    log_bytes: int
    log_bytes_appended_total: int
    append_failures_total: int
    corrupt_records_total: int
    stalled_ms_total: Mapping[tuple[str, str], int]
    """(kind of stage, reason) -> time held, the episode that goes on now included."""
    episodes_total: Mapping[tuple[str, str], int]
    events_appended_total: int
    """Edges of episodes told in ``penstock.flow``."""
    events_dropped_total: int
    credit_min: Mapping[str, int]
    """Hop of F1 -> the least credit anybody on it has left; 0 or less = somebody waits."""
    turns_paced_total: int
    syncs_paced_total: int
    sync_seconds: Histogram
    commit_messages: Histogram
    lag_seconds: Histogram


# ---- histogram ----------------------------------------------------------------------------------
# A histogram of plain integers: cheap to feed in a hot path, read when somebody scrapes.


SYNC_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)
"""From a quick NVMe sync to a disk in trouble; F6 calls a commit of one second busy."""

COMMIT_MESSAGES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 10_000.0)
"""How many messages shared one sync."""

LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""How late the event loop ran a timer."""


class Histogram:
    """Counts of observations per upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts as Prometheus wants them, the last under ``+Inf``."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
        return rows

    @property
    def count(self) -> int:
        return sum(self.counts)
