"""Numbers of the process around the engine, gathered by the server when somebody asks."""

from collections.abc import Mapping

import msgspec

from penstock.telemetry.histogram import Histogram


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
