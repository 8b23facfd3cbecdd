"""What a delayed or release record changes besides indexes, in the append and in recovery alike.

A delayed record is noted under its hour and pins its segment; a release (or cancel, with no
targets) ends both, and its entries keep the original's segment as long as they are needed.
"""

from collections.abc import Iterable
from typing import Final

from penstock.log.cursors import Release
from penstock.log.delayed_files import DelayedFiles
from penstock.log.retention import Retention
from penstock.log.staged import Special
from penstock.model.record import RecordFlag

_DELAYED: Final = int(RecordFlag.DELAYED)


class DelayNotes:
    """Keeps hour files and segment uses in step."""

    __slots__ = ("_delayed", "_retention")

    def __init__(self, delayed: DelayedFiles, retention: Retention) -> None:
        self._delayed = delayed
        self._retention = retention

    def note(self, specials: Iterable[Special]) -> None:
        """Delayed and release records were appended."""
        for appending, length, release in specials:
            record = appending.record
            if release is not None:
                ends = [
                    (index.queue_id, offset + record.messages)
                    for index, offset in zip(appending.queues, appending.first_offsets, strict=True)
                ]
                self.released(record.deliver_ms, release, record.position, ends)
            elif record.flags & _DELAYED:
                self.delayed(record.deliver_ms, record.position, length)

    def delayed(self, deliver_ms: int, position: int, length: int) -> None:
        """A record that gets its offsets later was stored."""
        self._delayed.add(deliver_ms, position, length)
        self._retention.note_delayed(position, 1)

    def released(
        self, deliver_ms: int, release: Release, position: int, ends: Iterable[tuple[int, int]]
    ) -> None:
        """It got offsets up to these (queue_id, end offset)s, or none and never will.

        ``position`` is that of the release record.
        """
        self._delayed.remove(deliver_ms, release.position)
        self._retention.note_released(release.position, position, ends)
