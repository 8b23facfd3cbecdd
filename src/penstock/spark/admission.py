"""F17, Spark admission: how many rows the next batch may have, so that it takes about its target.

Who grants: the drain rate measured on the batches before. Who spends: ``latestOffset``. Who stops:
nobody; a slow batch makes the next one smaller. What wakes it: the end of each batch.

The rows of the next batch follow the time of the last one, at most halved or doubled at a time:
``rows x target / time``, through an average (EWMA) so that one hiccup is no trend. Three rules:

* The first batch pays for everything that is cold: it may lower the limit, its rate is not kept.
* A batch that was not full says what little there was, not what could be done: it raises nothing,
  and lowers only when it took longer than its target.
* If fewer rows twice hardly made it shorter, rows are not what takes the time (a trigger interval
  above the target, a slow commit). Then that time is the *pace*, and taken for the target, until a
  batch is clearly faster or it is time to look again; or else the limit would fall to nothing, and
  the backlog grow.

Pure: times come in as arguments.
Not here: limits of bytes and minimum rows (``query.py``), the producers' side (F18, at the broker).
"""

from typing import Final

import msgspec

FIRST_ROWS: Final = 5_000
"""Small enough for a transformation of 1 ms a row, eight doublings below 1 M rows a batch."""
ROWS_MIN: Final = 10
ROWS_MAX: Final = 1 << 40
STEP_MAX: Final = 2.0
STEP_MIN: Final = 0.5
WEIGHT: Final = 0.6
"""Of the last batch in the average of seconds per row."""
FIRST_PATIENCE: Final = 2.0
"""Targets that a first batch may last before it counts as too large."""
SHORTEST_S: Final = 1e-6
"""A batch that a coarse clock calls shorter took this long: its rate is divided by."""
_FEWER: Final = 0.75
"""Of the rows of an earlier batch: the least difference that two points of a line should have."""
_DOUBTS: Final = 2
_FASTER: Final = 0.7
_PACED_MAX: Final = 12
"""Batches after which a pace is doubted: it may have been a hiccup."""
_ROOM: Final = 1.1
"""Beyond the pace, so that a limit which is too low is found out."""


class Admission(msgspec.Struct):
    """The limit of one query, and what it was learned from."""

    target_s: float
    rows_max: int = ROWS_MAX
    """The user's limit."""
    rows: int = 0
    """Limit of the next batch."""
    row_s: float = 0.0
    """Seconds a row takes, on average; 0 = not known yet."""
    pace_s: float = 0.0
    """How long batches take whatever they hold; 0 = rows are what takes the time."""
    batches: int = 0
    _paced: int = 0
    _doubts: int = 0
    """How often fewer rows were no help."""
    _larger: tuple[int, float] = (0, 0.0)
    """Rows and seconds of the batch that smaller ones are compared with."""

    def __post_init__(self) -> None:
        self.rows = min(FIRST_ROWS, self.rows_max)

    @property
    def rate(self) -> float:
        """Rows per second; 0 = not known yet."""
        return 1 / self.row_s if self.row_s else 0.0

    def observe(self, rows: int, took_s: float) -> None:
        """A batch of so many rows took so long."""
        if rows <= 0 or took_s <= 0:
            return
        took_s = max(took_s, SHORTEST_S)
        self.batches += 1
        if self.batches == 1:
            if took_s > FIRST_PATIENCE * self.target_s:
                self._set(min(rows, self.rows) * STEP_MIN)
            return
        spent = took_s / rows
        self.row_s = WEIGHT * spent + (1 - WEIGHT) * self.row_s if self.row_s else spent
        self._learn_pace(rows, took_s)
        is_full = rows >= _FEWER * self.rows
        target = max(self.target_s, _ROOM * self.pace_s)
        if is_full:
            wanted = target / self.row_s
            self._set(min(max(wanted, STEP_MIN * rows), STEP_MAX * rows))
        elif took_s > target:
            self._set(min(self.rows, max(target / spent, STEP_MIN * rows)))

    def _learn_pace(self, rows: int, took_s: float) -> None:
        self._paced += 1
        if self._paced > _PACED_MAX or took_s < _FASTER * self.pace_s:
            self.pace_s = 0.0
        rows_then, took_then = self._larger
        if _FEWER ** (1 + self._doubts) * rows_then < rows < rows_then:
            return  # small steps add up: the next ones are compared with the same batch
        if rows < rows_then and took_s > self.target_s:
            row_s = max(0.0, (took_then - took_s) / (rows_then - rows))
            # By these two points a batch without rows would still be too long.
            if took_s - row_s * rows > self.target_s:
                self._doubts += 1
                if self._doubts < _DOUBTS:
                    return  # one such batch is as likely a hiccup
                self.pace_s = took_s
                self._paced = 0
                # Averages over batches whose rows did not matter say nothing about a row.
                self.row_s = took_s / rows_then
        self._doubts = 0
        self._larger = (rows, took_s)

    def _set(self, rows: float) -> None:
        self.rows = max(1, min(max(int(rows), ROWS_MIN), self.rows_max))
