"""Pull: a reader that sees offsets, asks for what it wants, and may wait for it (F12).

``PullService.read`` answers from the index and the log at once; ``PullService.pull`` holds a
request that found nothing new until something arrives that suits it, or its deadline. A pull keeps
no state in the broker but the hold: where the reader stands is its own business until it commits.

Only what is durable is shown, or a crash would hand a seen offset to another message (D7). The tag
hash in the index is asked before a record is read.

Invariants: a held pull is answered exactly once, unless its peer goes first; what a filter refused
is not looked at twice while a pull is held; one answer scans a bounded number of entries.
Not here: the table of holds (``flow/long_poll.py``), what an answer looks like on a wire.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from penstock.engine.filter.filters import Filter, Prefilter
from penstock.engine.host import Host, IndexEntry, SubscribedQueue
from penstock.flow.long_poll import HeldPulls
from penstock.log.index import IndexFlag
from penstock.model.record import Record

SCAN_ENTRIES_MAX: Final = 800
"""Entries one answer looks at when a filter refuses them; RocketMQ scans 16000 bytes of 20."""

SCAN_CHUNK: Final = 100
"""Entries taken from the index at a time while scanning."""

_TRANSIENT: Final = int(IndexFlag.TRANSIENT)
"""As a plain number: an enum's ``&`` costs more than all else that is done for an entry."""


class PullStatus(Enum):
    """How a pull ended."""

    FOUND = "found"
    NO_NEW = "no-new"
    """At the end, and nothing came in time."""
    FILTERED = "filtered"
    """There were messages, none of them wanted: go on at ``next_offset``."""
    OFFSET_TOO_SMALL = "offset-too-small"
    """Removed by retention: go on at ``min_offset``."""
    OFFSET_TOO_LARGE = "offset-too-large"
    """Beyond the end: go on at ``max_offset``."""
    REMOVED = "removed"
    """The records at this place are gone or unreadable: go on at ``next_offset``."""
    CANCELLED = "cancelled"
    """The queue was deleted while the pull was held."""


class Pull(msgspec.Struct, eq=False):
    """One request."""

    outlet: PullOutlet
    queue: SubscribedQueue
    offset: int
    messages_max: int = 32
    bytes_max: int = 256 * 1024
    """At least one record is given, whatever its size."""
    filter: Filter | None = None
    prefilter: Prefilter | None = None
    """Spares reading what the filter would refuse; never changes the answer."""
    whole_batches: bool = False
    """A batch is one record of the answer; else each of its messages is (``batch.py``)."""
    deadline_ms: int = 0
    """Monotonic time until which it may be held; 0 = answer at once."""
    token: int = 0
    """The adapter's own number for it."""
    scanned_to: int = 0
    """Nothing below suits it; moves on while it is held."""


class PullResult(msgspec.Struct):
    """One answer."""

    status: PullStatus
    records: list[Record]
    entries: list[IndexEntry]
    """The index entries of the records: first offsets, store times, sizes."""
    next_offset: int
    """Where to go on."""
    min_offset: int
    max_offset: int
    """The end of what this reader may see."""


class PullOutlet(Protocol):
    """The part of ``connection.Outlet`` that concerns pulls."""

    def answered(self, pull: Pull, result: PullResult) -> None:
        """A held pull has its answer."""
        ...


class PullService:
    """Answers pulls, now or later (long polling: ``HeldPulls`` keeps the ones that wait).

    It guarantees one answer for each pull that it holds, unless the peer goes first. It commits
    nothing and knows no subscription.
    """

    __slots__ = ("_held", "_host", "given_messages")

    def __init__(self, host: Host, held: HeldPulls[Pull] | None = None) -> None:
        self._host = host
        self._held: HeldPulls[Pull] = held if held is not None else HeldPulls()
        self.given_messages = 0
        """What pulls were answered with so far."""

    def __len__(self) -> int:
        return len(self._held)

    def pull(self, pull: Pull) -> PullResult | None:
        """The answer, or None when the pull is held: then ``answered`` is called later."""
        result = self.read(pull)
        if result.status is not PullStatus.NO_NEW or not self._hold(pull):
            return result
        return None

    def arrived(self, queue: SubscribedQueue) -> None:
        """The durable end of a queue moved: answer the pulls it suits, keep the others."""
        if not self._held.count(queue.queue_id):
            return
        answers: list[tuple[Pull, PullResult]] = []

        def suits(pull: Pull) -> bool:
            result = self.read(pull)
            if result.status in (PullStatus.NO_NEW, PullStatus.FILTERED):
                return False
            answers.append((pull, result))
            return True

        self._held.arrived(queue.queue_id, suits)
        for pull, result in answers:
            pull.outlet.answered(pull, result)

    def due(self, now_ms: int) -> None:
        """Answer those whose time is up with whatever there is."""
        for pull in self._held.due(now_ms) if self._held else ():
            pull.outlet.answered(pull, self.read(pull))

    def cancel(self, pull: Pull) -> bool:
        """Its peer does not want it any more."""
        return self._held.cancel(pull)

    def disconnected(self, outlet: PullOutlet) -> None:
        """The peer is gone: its pulls are dropped unanswered."""
        self._held.cancel_owner(id(outlet))

    def deleted(self, queue: SubscribedQueue) -> None:
        """The queue is gone: whoever waits for it is told."""
        for pull in self._held.cancel_key(queue.queue_id):
            pull.outlet.answered(pull, self._nothing(pull, PullStatus.CANCELLED, pull.offset))

    def next_deadline_ms(self) -> int | None:
        """When ``due`` has something to do."""
        return self._held.next_deadline_ms

    def search_published(
        self,
        queue: SubscribedQueue,
        published_ms: int,
        time_of: Callable[[Record], int] = attrgetter("born_ms"),
    ) -> int:
        """The first offset published at or after that time, by its client's clock; else the end.

        ``index.search_time`` goes by the time of storing, which no client knows. By bisection, a
        record read for each step: publish times are taken to rise, as Pulsar takes them.
        ``time_of``: where a protocol knows more than one time of a message.
        """
        index = queue.index
        low, high = index.min_offset, queue.visible_end(False)
        while low < high:
            middle = (low + high) // 2
            entries = index.entries(middle, 1)
            if not entries:
                high = middle
                continue
            position, first, _, store_ms, length, messages, _, _ = entries[0]
            (record,) = self._host.read([(position, length)])
            # What cannot be read, or says no time, is as old as its place in the log.
            at_ms = store_ms if record is None else time_of(record) or store_ms
            if at_ms >= published_ms:
                high = max(low, min(first, middle))
            else:
                low = first + messages
        return low

    def read(self, pull: Pull) -> PullResult:
        """Answer from what is there now, never holding."""
        queue = pull.queue
        end = queue.visible_end(False)
        start = max(pull.offset, pull.scanned_to)
        if pull.offset < queue.index.min_offset:
            return self._nothing(pull, PullStatus.OFFSET_TOO_SMALL, queue.index.min_offset)
        if pull.offset > end:
            return self._nothing(pull, PullStatus.OFFSET_TOO_LARGE, end)
        scanned = 0
        is_removed = False
        while start < end and scanned < SCAN_ENTRIES_MAX:
            begin = start
            entries, start = self._scan(pull, start, end)
            scanned += max(SCAN_CHUNK, sum([entry[5] for entry in entries]))
            found, is_unreadable = self._readable(pull, entries, begin)
            if len(found) > len(entries):
                found, start = _cut(pull, found, start)
            if found:
                return self._answer(pull, found, start)
            is_removed = is_removed or is_unreadable
        pull.scanned_to = start
        if start == pull.offset:
            return self._nothing(pull, PullStatus.NO_NEW, start)
        status = PullStatus.REMOVED if is_removed else PullStatus.FILTERED
        return self._nothing(pull, status, start)

    def _scan(self, pull: Pull, start: int, end: int) -> tuple[list[IndexEntry], int]:
        """The next entries that can match and fit, and where to go on behind them."""
        wanted: list[IndexEntry] = []
        size = messages = 0
        begin = 0 if pull.whole_batches else start
        matches = pull.filter.matches_entry if pull.filter is not None else None
        judge = pull.prefilter.may_match if pull.prefilter is not None else None
        # Nothing is refused without a filter: one entry more than fits says where to go on.
        is_open = matches is None and judge is None
        count = max(2, min(SCAN_CHUNK, pull.messages_max + 1)) if is_open else SCAN_CHUNK
        entries = pull.queue.index.entries(start, count)
        for entry in entries:
            if entry[1] >= end:
                break
            # Of a batch neither the index nor a map knows anything.
            if entry[5] > 1 or (
                (matches is None or matches(entry[6])) and (judge is None or judge(entry[1]))
            ):
                if wanted and (size + entry[4] > pull.bytes_max or messages >= pull.messages_max):
                    return wanted, entry[1]
                wanted.append(entry)
                size += entry[4]
                messages += entry[5] if entry[1] >= begin else entry[1] + entry[5] - begin
            start = entry[1] + entry[5]
        else:
            if len(entries) < count:
                start = end
        return wanted, min(start, end)

    def _readable(
        self, pull: Pull, entries: list[IndexEntry], begin: int
    ) -> tuple[list[tuple[IndexEntry, Record]], bool]:
        """Those that can be read and match, from an offset on; and whether some were unreadable."""
        if not entries:
            return [], False
        records = self._host.read([(entry[0], entry[4]) for entry in entries])
        floor = self._host.transient_floor
        found: list[tuple[IndexEntry, Record]] = []
        is_unreadable = False
        for entry, record in zip(entries, records, strict=True):
            if record is None or (entry[7] & _TRANSIENT and entry[0] < floor):
                is_unreadable = True
            elif entry[5] > 1 and not pull.whole_batches:
                found += self._opened(pull, entry, record, begin)
            elif pull.filter is None or pull.filter.matches_record(record):
                found.append((entry, record))
        return found, is_unreadable

    def _opened(
        self, pull: Pull, entry: IndexEntry, record: Record, begin: int
    ) -> list[tuple[IndexEntry, Record]]:
        """The messages of a batch that match, from an offset on."""
        if pull.filter is None:
            end = max(begin, entry[1]) + pull.messages_max + 1
            return self._host.batches.messages(entry, record, begin, end)
        opened = self._host.batches.messages(entry, record, begin, entry[1] + entry[5])
        return [each for each in opened if pull.filter.matches_record(each[1])]

    def _answer(
        self, pull: Pull, found: list[tuple[IndexEntry, Record]], next_offset: int
    ) -> PullResult:
        self.given_messages += sum([entry[5] for entry, _ in found])
        return PullResult(
            PullStatus.FOUND,
            [record for _, record in found],
            [entry for entry, _ in found],
            next_offset,
            pull.queue.index.min_offset,
            pull.queue.visible_end(False),
        )

    def _nothing(self, pull: Pull, status: PullStatus, next_offset: int) -> PullResult:
        queue = pull.queue
        return PullResult(
            status, [], [], next_offset, queue.index.min_offset, queue.visible_end(False)
        )

    def _hold(self, pull: Pull) -> bool:
        if pull.deadline_ms <= self._host.clock.monotonic_ms():
            return False
        return self._held.hold(pull.queue.queue_id, pull, pull.deadline_ms, owner=id(pull.outlet))


def _cut(
    pull: Pull, found: list[tuple[IndexEntry, Record]], next_offset: int
) -> tuple[list[tuple[IndexEntry, Record]], int]:
    """Of opened batches what fits, at least one message; and where to go on behind it."""
    size = messages = 0
    for number, (entry, _) in enumerate(found):
        size += entry[4]
        if number and (messages >= pull.messages_max or size > pull.bytes_max):
            return found[:number], entry[1]
        messages += entry[5]
    return found, next_offset
