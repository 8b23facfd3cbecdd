"""The desk for Spark queries: resolve, poll, lease and what else is asked over the bulk link (D18).

A poll acknowledges what the query has processed and asks how far its next batch may go. It is
answered from the index, up to durable ends (D7), or held until there is enough to read or its time
is up (F12); arrival wakes it, nothing polls. Each query's lease keeps what it has not processed
(F18), and queries that fall behind slow the publishers of their topics (``pressure.py``).

Invariants: a held poll is answered exactly once unless its asker goes first; nobody is shown an
offset that a crash could give to another message; every query is known by name, at most
``spark.queries_max`` of them.
Not here: the socket (``server/flight.py``), rows (``penstock.bulk``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.engine.spark import query as books
from penstock.engine.spark.query import (
    BAD_REQUEST,
    EPOCH,
    NO_TOPIC,
    LocatedSpan,
    OffsetMap,
    PollAnswer,
    PollOrder,
    PollOutlet,
    Query,
    QueryRefused,
)
from penstock.flow.long_poll import HeldPulls
from penstock.log.index import QueueIndex
from penstock.model.names import NAME_BYTES_MAX, TopicName
from penstock.model.progress import BatchProgress

if TYPE_CHECKING:
    from penstock.engine.broker import Parts
    from penstock.engine.topic import Queue, Topic
    from penstock.flow.spark_brake import Lease

WAIT_MS_MAX: Final = 60_000
"""Longest hold of a poll: a query that is gone must not look alive for longer."""
POLLS_HELD_MAX: Final = 4096
_POLLS: Final = "polls"


class _Held:
    """A poll that waits."""

    __slots__ = ("order", "outlet", "query", "topics")

    def __init__(
        self, order: PollOrder, outlet: PollOutlet, query: Query, topics: list[Topic]
    ) -> None:
        self.order = order
        self.outlet = outlet
        self.query = query
        self.topics = topics


class QueryService:
    """All queries of one engine."""

    def __init__(self, parts: Parts, book: books.QueryRegistry) -> None:
        self._parts = parts
        self._chain = parts.chain
        self.book: Final = book
        self.held: HeldPulls[_Held] = HeldPulls(POLLS_HELD_MAX, POLLS_HELD_MAX)
        """Polls that wait; to be looked at only."""

    @property
    def epoch(self) -> int:
        """Offsets of an older epoch may name other messages now (D7)."""
        return self._parts.store.epoch

    @property
    def wall_ms(self) -> int:
        """Wall time, as messages are stamped with it."""
        return self._chain.clock.wall_ms()

    @property
    def run_start(self) -> int:
        """Transient records below this position did not survive the restart (D6)."""
        return self._parts.host.transient_floor

    # Questions.

    def resolve(self, topics: list[str] | None, pattern: str | None) -> list[Topic]:
        """The topics that are meant, in the order of their names."""
        return found_topics(self._parts.registry.topics, topics, pattern)

    def by_time(self, topic: str, at_ms: int) -> dict[int, int]:
        """First offset stored at or after a wall time, for each queue; the durable end if none."""
        found = self.resolve([topic], None)[0]
        return {
            queue.number: min(queue.index.search_time(at_ms), queue.durable_end)
            for queue in found.queues
        }

    def locate(
        self, topic: str, queue: int, start: int, end: int, *, entries_max: int
    ) -> LocatedSpan:
        """Where the index entries of a stretch of a queue are, as far as they are durable."""
        found = self.resolve([topic], None)[0]
        if not 0 <= queue < len(found.queues):
            raise QueryRefused(
                BAD_REQUEST, f"topic '{topic}' has queues 0 to {len(found.queues) - 1}, not {queue}"
            )
        chosen = found.queues[queue]
        index = chosen.index
        start, end = max(start, index.min_offset), min(end, chosen.durable_end)
        files: list[tuple[str, int, int]] = []
        tail, upto = b"", max(start, end)
        if start < end:
            files, tail, upto = index.located(start, end, entries_max)
        return LocatedSpan(
            int(chosen.queue_id), chosen.incarnation, index.min_offset, upto, files, tail
        )

    # Polls.

    def poll(self, order: PollOrder, outlet: PollOutlet) -> PollAnswer | None:
        """The answer, or None when the poll is held: then ``polled`` is called later."""
        topics = self.resolve(order.topics, order.pattern)
        self._check(order)
        query = self.book.heard(order.subscription, topics, order.start)
        query.polls += 1
        if order.report is not None:
            query.last = order.report.over(query.last)
        self._acknowledge(query, topics, order.start)
        waiting = _Held(order, outlet, query, topics)
        if order.wait_ms > 0 and not self._suits(waiting):
            query.state = "idle"
            deadline_ms = self._chain.now_ms + min(order.wait_ms, WAIT_MS_MAX)
            if self.held.hold(_POLLS, waiting, deadline_ms, owner=id(outlet)):
                self._chain.stir()  # the deadline may be the nearest now
                return None
        return self._answer(waiting)

    def arrived(self, queue: Queue) -> None:
        """The durable end of a queue moved: answer the polls that have enough now."""
        if self.held.held:
            topic = queue.topic
            self._say(
                self.held.arrived(_POLLS, lambda each: topic in each.topics and self._suits(each))
            )

    def disconnected(self, outlet: PollOutlet) -> None:
        """An asker is gone: its polls are dropped unanswered."""
        self.held.cancel_owner(id(outlet))

    def due(self, now_ms: int) -> None:
        """Answer polls whose time is up; look at leases and brakes."""
        if self.held.held:
            self._say(self.held.due(now_ms))
        self.book.due(now_ms)

    def next_deadline_ms(self) -> int | None:
        """When ``due`` has something to do."""
        look_ms = self.book.look_ms
        held_ms = self.held.next_deadline_ms if self.held else None
        if held_ms is None or look_ms is None:
            return look_ms if held_ms is None else held_ms
        return min(held_ms, look_ms)

    @property
    def polls_held(self) -> int:
        return len(self.held)

    # Leases and reports.

    def lease(self, name: str, topics: list[Topic], start: OffsetMap, *, ttl_ms: int) -> Lease:
        """Keep what a query has not processed; where one begins that was silent is believed."""
        known = self.book.queries.get(name)
        is_begun = known is None or not self.book.is_alive(known)
        query = self.book.heard(name, topics, start)
        if ttl_ms:
            query.lease.ttl_ms = ttl_ms
        self._acknowledge(query, topics, start, is_sure=is_begun)
        self.book.save(query)
        return query.lease

    def release(self, name: str, *, is_final: bool) -> None:
        """The query needs nothing kept; a final release forgets it. Unknown ones are gone."""
        self.book.release(name, is_final=is_final)

    def report(self, name: str, progress: BatchProgress, state: str, text: str) -> None:
        """What its listener saw; a query that nobody knows yet is not made by it."""
        query = self.book.queries.get(name)
        if query is None:
            return
        query.last, query.state = progress.over(query.last), state
        query.text = text
        self.book.hear(query)

    # Parts.

    def _check(self, order: PollOrder) -> None:
        """Refuse offsets of another time: they may name other messages (D7)."""
        if not order.subscription:
            raise QueryRefused(BAD_REQUEST, "a poll needs the name of its subscription")
        if order.epoch and order.epoch != self.epoch:
            raise QueryRefused(
                EPOCH,
                f"the offsets are of epoch {order.epoch}, the broker is in epoch {self.epoch}: it "
                "lost unsynced messages when its machine stopped, and offsets may name others now; "
                "begin with a new checkpoint",
            )

    def _acknowledge(
        self, query: Query, topics: list[Topic], start: OffsetMap, *, is_sure: bool = False
    ) -> None:
        messages = size = 0
        for topic in topics:
            for number, offset in start.get(str(topic.name), {}).items():
                queue = topic.queues[number] if 0 <= number < len(topic.queues) else None
                if queue is None or offset > queue.durable_end:
                    continue  # of a topic that was made anew: the answer shows what there is
                ahead = query.acknowledge(queue, offset, is_sure=is_sure)
                messages += ahead[0]
                size += ahead[1]
        if messages:
            query.drain.took(messages, size, self._chain.now_ms)
            self._chain.stir()

    def _suits(self, poll: _Held) -> bool:
        """True when there is enough to read."""
        order = poll.order
        wanted = max(1, min(order.rows_min, order.rows_max) if order.rows_max else order.rows_min)
        there = 0
        for topic in poll.topics:
            if topic.is_deleted:
                return True
            given = order.start.get(str(topic.name), {})
            for queue in topic.queues:
                low = max(given.get(queue.number, 0), queue.index.min_offset)
                there += max(0, queue.durable_end - low)
                if there >= wanted:
                    return True
        return False

    def _say(self, polls: list[_Held]) -> None:
        for poll in polls:
            self.book.hear(poll.query)
            answer: PollAnswer | QueryRefused
            try:
                answer = self._answer(poll)
            except QueryRefused as refused:
                answer = refused
            poll.outlet.polled(poll.order, answer)

    def _answer(self, poll: _Held) -> PollAnswer:
        order, query = poll.order, poll.query
        topics = [topic for topic in poll.topics if not topic.is_deleted]
        if len(topics) < len(poll.topics):
            topics = self.resolve(order.topics, order.pattern)  # says which one is missing
        answer = PollAnswer(
            epoch=self.epoch, ends={}, latest={}, starts={}, incarnations={}
        )  # fmt: skip
        queues = [queue for topic in topics for queue in topic.queues]
        stretches = [self._stretch(poll, queue, answer) for queue in queues]
        ends = ends_within(stretches, order.rows_max, order.bytes_max)
        for queue, stretch, end in zip(queues, stretches, ends, strict=True):
            name = str(queue.topic.name)
            answer.ends.setdefault(name, {})[queue.number] = end
            answer.latest.setdefault(name, {})[queue.number] = queue.durable_end
            answer.incarnations.setdefault(name, {})[queue.number] = queue.incarnation
            answer.rows += end - stretch.start
            answer.bytes += stretch._replace(end=end).size_bytes
            answer.lag_rows += stretch.end - stretch.start
            answer.lag_bytes += stretch.size_bytes
        query.drain.gave(answer.rows, answer.bytes, self._chain.now_ms)
        query.is_limited = answer.rows < answer.lag_rows
        query.state = "running" if answer.rows else "idle"
        answer.held = next(
            (text for topic in topics if (text := self.book.pressures.held(topic, query.name))),
            None,
        )
        return answer

    def _stretch(self, poll: _Held, queue: Queue, answer: PollAnswer) -> Stretch:
        name = str(queue.topic.name)
        given = poll.order.start.get(name, {}).get(queue.number)
        earliest = queue.index.min_offset
        start = earliest if given is None else max(given, earliest)
        if given is None or given < earliest:
            answer.starts.setdefault(name, {})[queue.number] = start
        if given is not None and given < earliest:
            poll.query.lost = max(poll.query.lost, earliest - given)
            broke = poll.query.lease.broke
            why = f"its lease was broken, {broke}" if broke else "retention removed them"
            answer.lost = (
                f"messages {given} to {earliest - 1} of queue {queue.number} of topic '{name}' are "
                f"gone before query '{poll.query.name}' read them: {why}"
            )
        return Stretch(queue.index, start, max(start, queue.durable_end))


# ---- finding ------------------------------------------------------------------------------------
# Which topics a query means: by name, by pattern, or all that are not hidden (D9).


NAMES_MAX: Final = 10_000


def found_topics(
    known: Mapping[TopicName, Topic], names: list[str] | None, pattern: str | None
) -> list[Topic]:
    """The topics, in the order of their names; raises ``QueryRefused``."""
    if names is not None:
        if len(names) > NAMES_MAX:
            raise QueryRefused(BAD_REQUEST, f"{len(names)} topics are named, limit {NAMES_MAX}")
        found = [_named(known, name) for name in dict.fromkeys(names)]
    else:
        matches = None if pattern is None else topic_pattern(pattern)
        found = [
            topic
            for name, topic in known.items()
            if not name.is_hidden and (matches is None or matches.fullmatch(str(name)))
        ]
    return sorted(found, key=lambda topic: str(topic.name))


def _named(known: Mapping[TopicName, Topic], name: str) -> Topic:
    space, _, last = name.rpartition("/")
    topic = known.get(TopicName("", name)) or known.get(TopicName(space, last))
    if topic is None:
        # A name may hold slashes itself: then no cut at the last one finds it.
        topic = next((each for known_name, each in known.items() if str(known_name) == name), None)
    if topic is not None:
        return topic
    shown = [str(each) for each in known if not each.is_hidden][:NAMES_MAX]
    nearest = get_close_matches(name, shown, n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else "`penstock topics list` shows them"
    raise QueryRefused(NO_TOPIC, f"there is no topic '{name}'; {hint}")


# ---- patterns -----------------------------------------------------------------------------------
# Regular expressions of topic names whose time is bounded before they are used.
#
# Python's matcher tries one way after the other, and a few characters can ask for more ways than
# there is time: ``(a+)+b``. The broker has one thread, so a pattern is looked at first. Every
# choice it leaves multiplies the ways:
#
# | *  +  {2,}  {2,99}   as many as a name has characters       ?            two
# | (a|b|c)              three; outside of groups one after the other, which costs nothing
#
# A repeated group must not hold a choice, because then the ways multiply with every turn.
#
# Not here: which topics there are (``finding.py``).


PATTERN_CHARACTERS_MAX: Final = 1024
WAYS_MAX: Final = 2 * NAME_BYTES_MAX**3
"""Three times "anything" in a name; some tenths of a second in the worst of names, never more."""
PATTERNS_KEPT: Final = 256
_TURNS_MAX: Final = 64
_SKIPPED: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:P<\w+>|[:=!>#]|<[=!])?|\(", re.S
)
"""What is one thing whatever it holds: an escape, a class of characters, the head of a group."""
_REPEAT: Final = re.compile(r"[*+]|\{\d*,?\d*\}|\?")


@lru_cache(maxsize=PATTERNS_KEPT)
def topic_pattern(text: str) -> re.Pattern[str]:
    """The compiled pattern; raises ``QueryRefused`` when it is none, or would take too long."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise QueryRefused(
            BAD_REQUEST, f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters"
        )
    try:
        compiled = re.compile(text)
    except re.error as problem:
        raise QueryRefused(
            BAD_REQUEST, f"pattern {text!r} is no regular expression: {problem}"
        ) from None
    if ways(text) > WAYS_MAX:
        raise QueryRefused(
            BAD_REQUEST,
            f"pattern {text!r} may take too long: at most three of * and + in a pattern, and none "
            "in a group that is repeated itself",
        )
    return compiled


def ways(text: str) -> int:
    """At most so many ways a good pattern leaves to match a name."""
    total, at = 1, 0
    groups: list[list[int]] = []
    """Of each open group: alternatives so far, ways when it began."""
    closed = 1
    """Ways that the thing just before leaves by itself."""
    while at < len(text):
        if (skipped := _SKIPPED.match(text, at)) is not None:
            if skipped[0].startswith("("):
                groups.append([1, total])
            closed, at = 1, skipped.end()
        elif (repeat := _REPEAT.match(text, at)) is not None:
            total *= _factor(repeat[0], closed)
            # A question mark behind a repeat says how to try, not how often.
            at = repeat.end() + (text[repeat.end() : repeat.end() + 1] in ("?", "+"))
        else:
            if text[at] == ")" and groups:
                alternatives, before = groups.pop()
                total *= alternatives
                closed = total // before
            else:
                closed = 1
                if text[at] == "|" and groups:
                    groups[-1][0] += 1
            at += 1
    return total


def _factor(repeat: str, each: int) -> int:
    """How many times as many ways a repeat leaves, of a thing that leaves ``each`` by itself."""
    if repeat == "?":
        return 2
    least, comma, _ = repeat.strip("{}").partition(",")
    if repeat[0] == "{" and not comma:
        turns = min(int(least or 1), _TURNS_MAX)
        return min(int(each ** max(0, turns - 1)), WAYS_MAX + 1)
    return NAME_BYTES_MAX if each == 1 else WAYS_MAX + 1


# ---- shares -------------------------------------------------------------------------------------
# How a limit of rows and bytes is shared among queues: max-min fair, from the index alone.
#
# Whoever has less than its share leaves the rest to the others. Bytes come from the cumulative
# bytes of index entries (D4), so no record is read. When not even one record fits, the oldest one
# is given all the same: a limit slows a query down, it does not stop it.


class Stretch(NamedTuple):
    """What can be read of one queue."""

    entries: QueueIndex
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.entries.bytes_between(self.start, self.end)


def divide(wanted: Sequence[int], total: int) -> list[int]:
    """``total`` for those who want so much: nobody gets more than it wants, none can be envied."""
    given = [0] * len(wanted)
    left = len(wanted)
    for at in sorted(range(len(wanted)), key=lambda each: wanted[each]):
        given[at] = min(wanted[at], total // left)
        total -= given[at]
        left -= 1
    return given


def ends_within(stretches: Sequence[Stretch], rows_max: int, bytes_max: int) -> list[int]:
    """Where each stretch ends so that all together are within the limits; 0 = no limit."""
    ends = [each.end for each in stretches]
    rows = [each.end - each.start for each in stretches]
    if 0 < rows_max < sum(rows):
        rows = divide(rows, rows_max)
        ends = [each.start + count for each, count in zip(stretches, rows, strict=True)]
    if bytes_max > 0 and any(rows):
        cut = [each._replace(end=end) for each, end in zip(stretches, ends, strict=True)]
        sizes = [each.size_bytes for each in cut]
        if sum(sizes) > bytes_max:
            shares = divide(sizes, bytes_max)
            ends = [_end_within(each, share) for each, share in zip(cut, shares, strict=True)]
            if all(end == each.start for each, end in zip(cut, ends, strict=True)):
                oldest = min(
                    (at for at, count in enumerate(rows) if count), key=lambda at: _age(cut[at])
                )
                ends[oldest] = cut[oldest].start + 1
    return ends


def _end_within(stretch: Stretch, size: int) -> int:
    """The last end up to which at most ``size`` bytes lie."""
    index, start, low, high = stretch.entries, stretch.start, stretch.start, stretch.end
    while low < high:
        middle = (low + high + 1) // 2
        if index.bytes_between(start, middle) <= size:
            low = middle
        else:
            high = middle - 1
    return low


def _age(stretch: Stretch) -> int:
    found = stretch.entries.entries(stretch.start, 1)
    return found[0][3] if found else 0
