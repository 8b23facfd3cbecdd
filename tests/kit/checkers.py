"""History checkers: was anything confirmed lost, or anything invented, reordered, renumbered (A7).

A history is a list of plain ``Op``; a value names its publisher and number, ``pub:seq``. Unknown
outcomes are ``INFO``, never ``FAIL``: a publish that was not answered may or may not have happened.
Each checker walks its history once and returns a frozen report with ``is_valid`` and a ``sentence``
that a person can act on.

* ``total_queue``: lost = confirmed minus seen after a full drain; unexpected = seen, never sent;
* ``fifo``: first deliveries of one publisher in one queue come in the order it sent them;
* ``log_order``: an offset names one value for ever, readers go up, a poll skips nothing;
* ``set_full``: what was confirmed is in every read begun after its confirm.

Not here: linearizability (Wing-Gong-Lowe), which no test of the foundation needs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec

SHOWN_MAX: Final = 5
"""Values named in a report's sentence; the report itself holds all of them."""


class Outcome(IntEnum):
    """What is known about an operation."""

    INVOKE = 0
    OK = 1
    FAIL = 2
    """Certainly did not happen."""
    INFO = 3
    """Nobody knows."""


class Op(msgspec.Struct, gc=False):
    """One line of a history."""

    process: str
    verb: str
    """``enqueue``, ``dequeue``."""
    value: str
    outcome: int
    time_ns: int = 0
    is_redelivered: bool = False


class Seen(msgspec.Struct, gc=False):
    """One delivery, in the order in which the broker handed them over."""

    queue: str
    value: str
    is_redelivered: bool = False


class Poll(msgspec.Struct, gc=False):
    """One answer to a reader with visible offsets."""

    reader: str
    queue: str
    entries: list[tuple[int, str]]
    """(offset, value), as they came."""
    is_after_seek: bool = False


class SetRead(msgspec.Struct, gc=False):
    """One read of the whole set."""

    begun_ns: int
    values: frozenset[str]


@dataclass(frozen=True)
class TotalQueueReport:
    """Counts of a queue's history after it was drained."""

    attempted: int
    confirmed: int
    seen: int
    recovered: int
    """Publishes of unknown outcome that did turn up: allowed."""
    lost: list[str]
    unexpected: list[str]
    duplicated: list[str]
    """Seen twice without the redelivered mark."""

    @property
    def is_valid(self) -> bool:
        """True when nothing was lost and nothing invented; duplicates are judged by the caller."""
        return not self.lost and not self.unexpected

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return (
            f"{self.attempted} sent, {self.confirmed} confirmed, {self.seen} seen: "
            f"{_named('lost', self.lost)}, {_named('invented', self.unexpected)}, "
            f"{_named('duplicated', self.duplicated)}, {self.recovered} recovered"
        )


def total_queue(history: Iterable[Op]) -> TotalQueueReport:
    """Jepsen's total-queue: what went in comes out, once the queue is drained."""
    attempted: set[str] = set()
    confirmed: set[str] = set()
    failed: set[str] = set()
    seen: dict[str, int] = {}
    unflagged: dict[str, int] = {}
    for op in history:
        if op.verb == "enqueue":
            attempted.add(op.value)
            if op.outcome == Outcome.OK:
                confirmed.add(op.value)
            elif op.outcome == Outcome.FAIL:
                failed.add(op.value)
        elif op.outcome == Outcome.OK:
            seen[op.value] = seen.get(op.value, 0) + 1
            if not op.is_redelivered:
                unflagged[op.value] = unflagged.get(op.value, 0) + 1
    # A refused publish that turns up is as invented as one that was never sent (law 6).
    allowed = (attempted - failed) | confirmed
    return TotalQueueReport(
        attempted=len(attempted),
        confirmed=len(confirmed),
        seen=len(seen),
        recovered=sum(1 for value in seen if value in allowed and value not in confirmed),
        lost=sorted(confirmed.difference(seen)),
        unexpected=sorted(value for value in seen if value not in allowed),
        duplicated=sorted(value for value, count in unflagged.items() if count > 1),
    )


@dataclass(frozen=True)
class OrderReport:
    """Breaches of an order, each as a sentence."""

    checked: int
    breaches: list[str] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """True when nothing was out of order."""
        return not self.breaches

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.is_valid:
            return f"{self.checked} in order"
        return f"{len(self.breaches)} breaches in {self.checked}: " + "; ".join(
            self.breaches[:SHOWN_MAX]
        )


def fifo(deliveries: Iterable[Seen]) -> OrderReport:
    """Per (publisher, queue) first deliveries go up; redelivered ones are out of this order."""
    last: dict[tuple[str, str], int] = {}
    breaches: list[str] = []
    checked = 0
    for seen in deliveries:
        if seen.is_redelivered:
            continue
        checked += 1
        publisher, number = _split(seen.value)
        lane = (publisher, seen.queue)
        before = last.get(lane, -1)
        if number <= before:
            breaches.append(f"queue {seen.queue} gave {seen.value} after {publisher}:{before}")
        else:
            last[lane] = number
    return OrderReport(checked, breaches)


def log_order(polls: Sequence[Poll]) -> OrderReport:
    """Offsets mean the same to every reader, for ever (Elle's Kafka model, cut down)."""
    breaches: list[str] = []
    checked = 0
    values: dict[str, dict[int, str]] = {}
    at: dict[tuple[str, str], int] = {}
    for poll in polls:
        lane = values.setdefault(poll.queue, {})
        reader = (poll.reader, poll.queue)
        before = -1 if poll.is_after_seek else at.get(reader, -1)
        for offset, value in poll.entries:
            checked += 1
            if offset <= before:
                breaches.append(
                    f"reader {poll.reader} of {poll.queue} went back from {before} to {offset}"
                )
            before = offset
            known = lane.setdefault(offset, value)
            if known != value:
                breaches.append(f"{poll.queue}@{offset} is both {known} and {value}")
        at[reader] = before
    breaches += _skips(polls, values)
    for queue in sorted(values):
        lane = values[queue]
        breaches += fifo(Seen(queue, lane[offset]) for offset in sorted(lane)).breaches
    return OrderReport(checked, breaches)


@dataclass(frozen=True)
class SetReport:
    """Elements of a set against the reads of it."""

    confirmed: int
    lost: list[str]
    """In no read begun after the confirm."""
    stale: list[str]
    """Missing from a read begun after the confirm, and there later."""
    unexpected: list[str]

    @property
    def is_valid(self) -> bool:
        """True when every confirmed element was in every later read, and nothing was invented."""
        return not (self.lost or self.stale or self.unexpected)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return (
            f"{self.confirmed} confirmed: {_named('lost', self.lost)}, "
            f"{_named('stale', self.stale)}, {_named('invented', self.unexpected)}"
        )


def set_full(
    attempted: Iterable[str],
    confirmed_ns: dict[str, int],
    reads: Sequence[SetRead],
    *,
    stable_ns: int = 0,
) -> SetReport:
    """Each confirmed element is in all reads begun ``stable_ns`` or more after its confirm."""
    pending = sorted(confirmed_ns, key=lambda value: (confirmed_ns[value], value))
    known = set(attempted)
    due: set[str] = set()
    missed: set[str] = set()
    lost: set[str] = set()
    unexpected: set[str] = set()
    next_due = 0
    for read in sorted(reads, key=lambda read: read.begun_ns):
        while next_due < len(pending) and (
            confirmed_ns[pending[next_due]] + stable_ns <= read.begun_ns
        ):
            due.add(pending[next_due])
            next_due += 1
        absent = due - read.values
        missed |= absent
        # Only the last read decides: an element that comes back was stale, not lost.
        lost = absent
        unexpected |= read.values - known
    return SetReport(len(confirmed_ns), sorted(lost), sorted(missed - lost), sorted(unexpected))


def _skips(polls: Sequence[Poll], values: dict[str, dict[int, str]]) -> list[str]:
    """Offsets inside a poll that another reader has seen and this one stepped over."""
    ranks: dict[str, dict[int, int]] = {
        queue: {offset: rank for rank, offset in enumerate(sorted(lane))}
        for queue, lane in values.items()
    }
    return [
        f"reader {poll.reader} of {poll.queue} skipped from {before} to {offset} inside a poll"
        for poll in polls
        for (before, _), (offset, _) in zip(poll.entries, poll.entries[1:], strict=False)
        if ranks[poll.queue][offset] > ranks[poll.queue][before] + 1
    ]


def _split(value: str) -> tuple[str, int]:
    publisher, _, number = value.rpartition(":")
    return publisher, int(number)


def _named(what: str, values: list[str]) -> str:
    if not values:
        return f"0 {what}"
    more = ", ..." if len(values) > SHOWN_MAX else ""
    return f"{len(values)} {what} ({', '.join(values[:SHOWN_MAX])}{more})"
