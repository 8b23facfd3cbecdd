"""What a scan of the log found, in numbers and in sentences for the person who must know (P7)."""

from typing import Final, NamedTuple

import msgspec

DAMAGES_KEPT_MAX: Final = 1000
"""Damaged stretches and gaps described one by one; beyond that they are only counted."""


class Damage(NamedTuple):
    """One stretch of the log that cannot be read."""

    path: str
    """File, relative to the data directory."""
    offset: int
    """Byte in that file."""
    position: int
    """Log position of that byte."""
    length: int
    what: str
    """"frame head", "record" ..."""

    def __str__(self) -> str:
        return f"{self.path} byte {self.offset}: damaged {self.what} ({self.length} bytes)"


class ScanReport(msgspec.Struct):
    """Counters and findings of one scan; complete once the scan has been finished."""

    from_position: int = 0
    end_position: int = 0
    """Where the next frame goes; known after ``LogScan.finish`` or a whole walk."""
    durable_mark: int = 0
    """Everything below was synced for certain."""
    last_head_crc: int = 0
    """``head_crc`` of the last frame, for the chain to go on; 0 when none was read."""
    epoch: int = 0
    """Largest epoch seen."""
    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes_read: int = 0
    records_lost: int = 0
    """Records known or believed to have been in damaged stretches."""
    damage_count: int = 0
    damages: list[Damage] = msgspec.field(default_factory=list)
    gaps: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """[from, to) positions between segments that are in no file: removed, or lost."""
    missing_tail: tuple[int, int] | None = None
    """[end of the log, synced mark) when bytes known to be synced are not there."""
    chain_breaks: int = 0
    """Frames that do not follow the frame before them."""
    torn_tail: Damage | None = None
    """Bytes of an unfinished write at the end: cut, and kept aside, by ``LogScan.finish``."""
    dropped: list[Damage] = msgspec.field(default_factory=list)
    """Frames torn before they were durable with whole ones behind them: dropped as units."""
    kept_as: list[str] = msgspec.field(default_factory=list)
    """Files into which cut and dropped bytes were put."""

    @property
    def is_damaged(self) -> bool:
        """True when something that was synced cannot be read; a torn tail is not damage."""
        return bool(self.damage_count or self.chain_breaks or self.missing_tail)

    def add_damage(self, damage: Damage) -> None:
        """Count one damaged stretch and describe it if there is room."""
        self.damage_count += 1
        if len(self.damages) < DAMAGES_KEPT_MAX:
            self.damages.append(damage)

    def add_gap(self, start: int, end: int) -> None:
        """Note positions that no segment holds."""
        if len(self.gaps) < DAMAGES_KEPT_MAX:
            self.gaps.append((start, end))

    def sentences(self) -> list[str]:
        """The findings, one sentence each, worst first; empty when all is well."""
        lines = [str(damage) for damage in self.damages]
        if self.damage_count > len(self.damages):
            lines.append(f"and {self.damage_count - len(self.damages)} more damaged stretches")
        if self.missing_tail is not None:
            start, end = self.missing_tail
            lines.append(
                f"the log ends at position {start} although everything up to {end} was synced; "
                f"{end - start} bytes are missing"
            )
        if self.chain_breaks:
            lines.append(f"{self.chain_breaks} frames do not follow the frame before them")
        lines += [f"no segment holds positions {start} to {end}" for start, end in self.gaps]
        for damage in self.dropped:
            lines.append(
                f"{damage.path} byte {damage.offset}: {damage.length} bytes of unfinished writes, "
                "dropped; none of it was known to be synced"
            )
        if self.torn_tail is not None:
            lines.append(
                f"{self.torn_tail.path} byte {self.torn_tail.offset}: the log ends in an "
                f"unfinished write of {self.torn_tail.length} bytes"
                + (f", cut and kept in {', '.join(self.kept_as)}" if self.kept_as else "")
            )
        return lines
