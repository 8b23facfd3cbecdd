"""The ledger of delivery tags: what one channel was given and has not settled yet.

Tags count up from 1, those of deliver and get-ok together; what needs no ack uses up tags, too.
They are kept as runs, not one by one: tags next to each other, that one holder got from one queue,
with their offsets in one list. Settling cuts pieces out of runs; a piece is a run of its own, so
that it can be put back (tx.rollback)::

    run   | first_tag 7 | tags 5 | holder, queue | offsets, from ``at`` on |
    ack 9 -> run 7..8, piece 9 (settled), run 10..11: all three share one list of offsets

A batch record of another protocol is one tag with several offsets; it is a run by itself.

Invariants: runs are in order of their tags and do not overlap; ``count`` is the number of unsettled
tags; a tag is taken at most once. Bounds: what is unsettled is bounded by F13; a list is at most
``RUN_TAGS_MAX`` long, so a settled tag keeps no more than that in memory.
Not here: what becomes of a piece (``settling.py``).
"""

from __future__ import annotations

from bisect import bisect_right
from operator import lt
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.wire.amqp.codes import AmqpError, ReplyCode

if TYPE_CHECKING:
    from penstock.adapters.amqp.consumers import Holder
    from penstock.model.ids import QueueId

RUN_TAGS_MAX: Final = 4096
"""Tags after which a new run is begun although the last one could go on."""
RUN_AGE_MS_MAX: Final = 1000
"""So is it after this time: a run is as old as its first delivery, for ``consumer_timeout``."""


class Run(msgspec.Struct, eq=False):
    """Tags next to each other."""

    first_tag: int
    tags: int
    holder: Holder
    queue_id: QueueId
    offsets: list[int]
    at: int = 0
    """Where in the list its offsets begin; negative when all of them have one tag."""
    time_ms: int = 0
    """Monotonic time of its first delivery."""

    @property
    def end_tag(self) -> int:
        """The first tag behind it."""
        return self.first_tag + self.tags

    @property
    def settled_offsets(self) -> list[int]:
        """The offsets of its tags."""
        at, tags, offsets = self.at, self.tags, self.offsets
        if at < 0 or (at == 0 and tags == len(offsets)):
            return offsets
        return offsets[at : at + tags]

    @property
    def is_batch(self) -> bool:
        """True for the one tag of a record with several messages in it."""
        return self.at < 0

    def part(self, first_tag: int, tags: int) -> Run:
        """Some of its tags."""
        return Run(
            first_tag,
            tags,
            self.holder,
            self.queue_id,
            offsets=self.offsets,
            at=self.at if self.is_batch else self.at + first_tag - self.first_tag,
            time_ms=self.time_ms,
        )


class Unacked:
    """The tags of one channel."""

    __slots__ = ("_firsts", "_runs", "count", "next_tag")

    def __init__(self) -> None:
        self.next_tag = 1
        self.count = 0
        # The same runs twice: their first tags for finding them, by bisection.
        self._firsts: list[int] = []
        self._runs: list[Run] = []

    @property
    def oldest_ms(self) -> int | None:
        """When the longest unsettled message was delivered, up to a second; None = there is none.

        What was put back by a rollback is as old as it was.
        """
        return self._runs[0].time_ms if self._runs else None

    def skip(self, tags: int) -> int:
        """Tags of deliveries that need no ack; the first of them."""
        first = self.next_tag
        self.next_tag += tags
        return first

    def add(self, holder: Holder, queue_id: QueueId, offsets: list[int], now_ms: int) -> int:
        """One tag for each offset; the first of them. The list belongs to the ledger now."""
        count = len(offsets)
        first = self.next_tag
        self.next_tag = first + count
        self.count += count
        last = self._runs[-1] if self._runs else None
        if (
            last is not None
            and last.end_tag == first
            and last.holder is holder
            and last.queue_id == queue_id
            and not last.is_batch
            and len(last.offsets) + count <= RUN_TAGS_MAX
            and now_ms - last.time_ms < RUN_AGE_MS_MAX
        ):
            # Tags and offsets are handed out together: where the tags end, so does the list.
            last.offsets += offsets
            last.tags += count
        else:
            run = Run(first, count, holder, queue_id, offsets=offsets, time_ms=now_ms)
            self._firsts.append(first)
            self._runs.append(run)
        return first

    def add_batch(self, holder: Holder, queue_id: QueueId, offsets: list[int], now_ms: int) -> int:
        """One tag for all these offsets."""
        first = self.skip(1)
        self.count += 1
        run = Run(first, 1, holder, queue_id, offsets=offsets, at=-1, time_ms=now_ms)
        self._firsts.append(first)
        self._runs.append(run)
        return first

    def take(self, tag: int, *, is_multiple: bool) -> list[Run]:
        """Settle this tag, or all up to it (0 = all there are); raises 406 when it is not known."""
        if is_multiple and not tag:
            return self.take_all()
        pieces: list[Run] = []
        if not (self._take_upto(tag, pieces) if is_multiple else self._span(tag, tag, pieces)):
            raise unknown_tag(tag)
        return pieces

    def take_each(self, tags: list[int]) -> tuple[list[Run], int | None]:
        """Settle these, in order, up to the first that is not known: that one comes back, too."""
        pieces: list[Run] = []
        for first, last in stretches(tags):
            if not self._span(first, last, pieces):
                break
        else:
            return pieces, None
        self.put_back(pieces)
        pieces = []
        for tag in tags:
            if not self._span(tag, tag, pieces):
                return pieces, tag
        return pieces, None

    def take_multiples(self, tags: list[int]) -> tuple[list[Run], int | None]:
        """The same for tags of which each settles all before it."""
        pieces: list[Run] = []
        if len(tags) > 1 and tags[0] > 0 and stretches(tags) == [(tags[0], tags[-1])]:
            # After the first of them nothing is left in front of the others.
            if not self._take_upto(tags[0], pieces):
                return pieces, tags[0]
            rest, unknown = self.take_each(tags[1:])
            return pieces + rest, unknown
        if len(tags) > 1 and _is_rising(tags) and min(map(self._find, tags)) >= 0:
            # All of them are known, and none settles a later one: the last says it for all.
            self._take_upto(tags[-1], pieces)
            return pieces, None
        for tag in tags:
            if not tag:
                pieces += self.take_all()
            elif not self._take_upto(tag, pieces):
                return pieces, tag
        return pieces, None

    def take_all(self) -> list[Run]:
        """Settle everything."""
        pieces, self._runs, self._firsts, self.count = self._runs, [], [], 0
        return pieces

    def put_back(self, pieces: list[Run]) -> None:
        """Undo a take."""
        for piece in pieces:
            at = bisect_right(self._firsts, piece.first_tag)
            self._firsts.insert(at, piece.first_tag)
            self._runs.insert(at, piece)
            self.count += piece.tags

    def _find(self, tag: int) -> int:
        """The place of the run with this tag; -1 when it is not unsettled."""
        at = bisect_right(self._firsts, tag) - 1
        if at >= 0:
            run = self._runs[at]
            if tag < run.first_tag + run.tags:
                return at
        return -1

    def _take_upto(self, tag: int, pieces: list[Run]) -> bool:
        at = self._find(tag)
        if at < 0:
            return False
        run = self._runs[at]
        if run.first_tag + run.tags > tag + 1:
            self._split(at, tag + 1)
        taken = self._runs[: at + 1]
        pieces += taken
        del self._runs[: at + 1], self._firsts[: at + 1]
        self.count -= run.tags if not at else sum([run.tags for run in taken])
        return True

    def _span(self, first: int, last: int, pieces: list[Run]) -> bool:
        """Settle the tags from first to last; False when one is not known: some may be taken."""
        at = self._find(first)
        if at < 0:
            return False
        runs = self._runs
        if runs[at].first_tag < first:
            self._split(at, first)
            at += 1
        start, tag = at, first
        while tag <= last and at < len(runs) and (run := runs[at]).first_tag == tag:
            if tag + run.tags > last + 1:
                self._split(at, last + 1)
            tag += run.tags
            at += 1
        pieces += runs[start:at]
        del runs[start:at], self._firsts[start:at]
        self.count -= tag - first
        return tag > last

    def _split(self, at: int, tag: int) -> None:
        """Make two runs of one; the second begins with this tag."""
        run = self._runs[at]
        behind = run.part(tag, run.end_tag - tag)
        # The list is not cut: both go on in it, and only the last one may ever grow.
        run.tags -= behind.tags
        self._runs.insert(at + 1, behind)
        self._firsts.insert(at + 1, tag)


def singles(pieces: list[Run], tags: list[int]) -> list[Run]:
    """The same tags one by one, in this order."""
    homes: dict[int, Run] = {}
    for piece in pieces:
        homes.update(dict.fromkeys(range(piece.first_tag, piece.end_tag), piece))
    return [homes[tag].part(tag, 1) for tag in tags]


def _is_rising(tags: list[int]) -> bool:
    return tags[0] > 0 and all(map(lt, tags, tags[1:]))


def stretches(tags: list[int]) -> list[tuple[int, int]]:
    """First and last of the stretches of tags that follow each other, in ascending order."""
    if len(tags) == 1:
        return [(tags[0], tags[0])]
    if tags == list(range(tags[0], tags[0] + len(tags))):
        return [(tags[0], tags[-1])]
    found: list[tuple[int, int]] = []
    ordered = sorted(tags)
    first = last = ordered[0]
    for tag in ordered[1:]:
        if tag != last + 1:
            found.append((first, last))
            first = tag
        last = tag
    found.append((first, last))
    return found


def unknown_tag(tag: int) -> AmqpError:
    """406, as RabbitMQ says it."""
    return AmqpError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
