"""What changed in one subscription's place in one queue since it was last saved (D5).

Collected during a turn, taken once before the append, so that a hundred single acks become one
range, or just a higher low mark, in one settle record.

Invariant: replaying what ``take`` gave, in the order it was given, onto the previously saved state
makes the state at the moment of the take.
Not here: the encoding (``log/format.py``).
"""

from penstock.engine.cursor import joined_ranges
from penstock.model.ids import QueueId, QueueOffset
from penstock.model.settlement import Cause, QueueSettlement


class Notes:
    """Unsaved changes of one cursor."""

    __slots__ = ("_counts", "_mark", "_ranges", "_saved_low", "_sought", "is_empty")

    def __init__(self, low_mark: int) -> None:
        self._saved_low = low_mark
        self._ranges: dict[Cause, list[tuple[int, int]]] = {}
        self._counts: dict[int, int] = {}
        self._mark = -1
        self._sought = -1
        self.is_empty = True
        """True when there is nothing to save."""

    def settled(self, cause: Cause, start: int, end: int) -> None:
        """[start, end) is done."""
        self.is_empty = False
        ranges = self._ranges.get(cause)
        if ranges is None:
            self._ranges[cause] = [(start, end)]
        elif ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))

    def settled_runs(self, cause: Cause, runs: list[tuple[int, int]]) -> None:
        """All of these are done."""
        self.is_empty = False
        self._ranges.setdefault(cause, []).extend(runs)

    def counted(self, offset: int, attempts: int) -> None:
        """A message came back, for the ``attempts``-th time."""
        self.is_empty = False
        self._counts[offset] = attempts

    def marked(self, delivered_mark: int) -> None:
        """Nothing at or above the mark has been delivered so far."""
        self.is_empty = False
        self._mark = delivered_mark

    def sought(self, low_mark: int) -> None:
        """The cursor was moved: whatever was noted before no longer counts."""
        self._ranges.clear()
        self._counts.clear()
        self._sought = low_mark
        self.is_empty = False

    def reset(self, low_mark: int) -> None:
        """The saved state is the present one."""
        self._saved_low = low_mark
        self._ranges.clear()
        self._counts.clear()
        self._mark = self._sought = -1
        self.is_empty = True

    def take(self, queue_id: QueueId, low_mark: int) -> list[tuple[Cause, QueueSettlement]]:
        """Everything noted, one part per cause, and start anew."""
        parts: list[tuple[Cause, QueueSettlement]] = []
        if self._sought >= 0:
            self._saved_low = self._sought
            parts.append((Cause.SOUGHT, QueueSettlement(queue_id, QueueOffset(self._sought))))
        for cause, ranges in self._ranges.items():
            is_raised = low_mark != self._saved_low
            part = QueueSettlement(queue_id, QueueOffset(low_mark if is_raised else -1))
            if len(ranges) > 1 or ranges[0][1] > low_mark:
                part.ranges = joined_ranges([each for each in ranges if each[1] > low_mark])
            self._saved_low = low_mark
            if is_raised or part.ranges:
                parts.append((cause, part))
        if self._mark >= 0 or self._counts:
            if not parts:
                parts.append((Cause.DELIVERED, QueueSettlement(queue_id, QueueOffset(-1))))
            parts[-1][1].delivered_mark = self._mark
            # Also below the low mark: it may stand inside a batch that came back.
            parts[-1][1].counts = list(self._counts.items())
        self.reset(low_mark)
        return parts
