"""Settings of the log on disk."""

from dataclasses import dataclass

from penstock.model.errors import SettingsError
from penstock.settings.declare import GIB, KIB, MIB, setting


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
