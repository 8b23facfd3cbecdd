"""Answers what Spark queries ask over the bulk link: resolve, poll, lease, report, locate (D18).

A poll acknowledges what the query has processed and asks how far its next batch may go. It is
answered from the index, up to durable ends (D7), or held until there is enough to read or its time
is up (F12); arrival wakes it, nothing polls. Each query's lease keeps what it has not processed
(F18), and queries that fall behind slow the publishers of their topics (``query.py``).

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
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.engine.spark.query import Query, QueryRefused, QueryRegistry
from penstock.flow.long_poll import HeldPulls
from penstock.log.index import QueueIndex
from penstock.model.names import NAME_BYTES_MAX, TopicName
from penstock.model.queries import (
    BAD_REQUEST,
    EPOCH,
    LOCATED_ENTRIES_MAX,
    NO_TOPIC,
    AnyRequest,
    AnyResponse,
    BatchProgress,
    EmptyResponse,
    IndexFile,
    LeaseRequest,
    LeaseResponse,
    LocateRequest,
    LocateResponse,
    OffsetMap,
    OffsetsByTimeRequest,
    OffsetsByTimeResponse,
    PollRequest,
    PollResponse,
    QueueRange,
    ReleaseRequest,
    ReportRequest,
    ResolveRequest,
    ResolveResponse,
    TopicRange,
)

if TYPE_CHECKING:
    from penstock.engine.flow_context import FlowContext
    from penstock.engine.topic import Queue, Topic
    from penstock.flow.spark_brake import Lease
    from penstock.log.store import Store

WAIT_MS_MAX: Final = 60_000
"""Longest hold of a poll: a query that is gone must not look alive for longer."""
POLLS_HELD_MAX: Final = 4096
_POLLS: Final = "polls"
STATES: Final = ("running", "idle", "stopped", "failed")
"""What a query may report of itself."""


class PollOutlet(Protocol):
    """Whoever polls."""

    def polled(self, request: PollRequest[int], answer: PollResponse[int] | QueryRefused) -> None:
        """A poll that was held has its answer."""
        ...


class _HeldPoll(NamedTuple):
    """A poll that waits."""

    request: PollRequest[int]
    outlet: PollOutlet
    query: Query
    topics: list[Topic]


class QueryService:
    """Polls, leases and reports of all queries of one engine.

    ``handle`` takes any request of the bulk link; ``registry`` holds the queries.
    """

    def __init__(
        self,
        registry: QueryRegistry,
        chain: FlowContext,
        *,
        store: Store,
        topics: Mapping[TopicName, Topic],
        transient_floor: int,
    ) -> None:
        self.registry: Final = registry
        self._chain = chain
        self._store = store
        self._topics = topics
        # Transient records below this position did not survive the restart (D6).
        self._transient_floor = transient_floor
        self.held: HeldPulls[_HeldPoll] = HeldPulls(POLLS_HELD_MAX, POLLS_HELD_MAX)
        """Polls that wait; to be looked at only."""

    @property
    def epoch(self) -> int:
        """Offsets of an older epoch may name other messages now (D7)."""
        return self._store.epoch

    @property
    def wall_ms(self) -> int:
        """Wall time, as messages are stamped with it."""
        return self._chain.clock.wall_ms()

    def handle(self, request: AnyRequest, outlet: PollOutlet) -> AnyResponse | None:
        """The response, or None for a poll that is held; raises ``QueryRefused``."""
        match request:
            case PollRequest():
                return self.poll(request, outlet)
            case ResolveRequest():
                topics = self.resolve(request.topics, request.pattern)
                return ResolveResponse(epoch=self.epoch, topics=[_range(each) for each in topics])
            case OffsetsByTimeRequest():
                offsets = {request.topic: self.by_time(request.topic, request.at_ms)}
                return OffsetsByTimeResponse(epoch=self.epoch, offsets=offsets)
            case LeaseRequest():
                topics = self.resolve(request.topics, request.pattern)
                lease = self.lease(
                    request.subscription,
                    topics,
                    request.start,
                    ttl_ms=request.ttl_ms,
                    checkpoint=request.checkpoint,
                )
                return LeaseResponse(
                    ttl_ms=lease.ttl_ms, is_broken=lease.is_broken, text=lease.text
                )
            case ReleaseRequest():
                for query in self.registry.on_subscription(request.subscription):
                    self.release(query.name, is_final=request.is_final)
            case ReportRequest():
                state = request.state if request.state in STATES else "running"
                self.report(request.subscription, request.progress, state, request.text)
            case LocateRequest():
                return self.locate(request)
        return EmptyResponse()

    # Topics and ranges.

    def resolve(self, topics: list[str] | None, pattern: str | None) -> list[Topic]:
        """The topics that are meant, in the order of their names."""
        return found_topics(self._topics, topics, pattern)

    def by_time(self, topic: str, at_ms: int) -> dict[int, int]:
        """First offset stored at or after a wall time, for each queue; the durable end if none."""
        found = self.resolve([topic], None)[0]
        return {
            queue.number: min(queue.index.search_time(at_ms), queue.durable_end)
            for queue in found.queues
        }

    def locate(
        self, request: LocateRequest, *, entries_max: int = LOCATED_ENTRIES_MAX
    ) -> LocateResponse:
        """Where the index entries of a range are, as far as they are durable."""
        topic, number = self.resolve([request.topic], None)[0], request.queue
        if not 0 <= number < len(topic.queues):
            raise QueryRefused(
                BAD_REQUEST,
                f"topic '{request.topic}' has queues 0 to {len(topic.queues) - 1}, not {number}",
            )
        queue = topic.queues[number]
        index = queue.index
        start, end = max(request.start, index.min_offset), min(request.end, queue.durable_end)
        files: list[tuple[str, int, int]] = []
        tail, upto = b"", max(start, end)
        if start < end:
            files, tail, upto = index.located(start, end, entries_max)
        return LocateResponse(
            epoch=self.epoch,
            queue_id=int(queue.queue_id),
            incarnation=queue.incarnation,
            earliest=index.min_offset,
            end=upto,
            files=[IndexFile(*each) for each in files],
            tail=tail,
            run_start=self._transient_floor,
        )

    # Polls.

    def poll(self, request: PollRequest[int], outlet: PollOutlet) -> PollResponse[int] | None:
        """The answer, or None when the poll is held: then ``polled`` is called later."""
        topics = self.resolve(request.topics, request.pattern)
        self._check(request)
        query = self.registry.get_or_create(
            request.subscription, topics, request.start, request.checkpoint
        )
        query.polls += 1
        if request.report is not None:
            query.last = request.report.over(query.last)
        self._acknowledge(query, topics, request.start)
        waiting = _HeldPoll(request, outlet, query, topics)
        if request.wait_ms > 0 and not self._has_enough(waiting):
            query.state = "idle"
            deadline_ms = self._chain.now_ms + min(request.wait_ms, WAIT_MS_MAX)
            if self.held.hold(_POLLS, waiting, deadline_ms, owner=id(outlet)):
                self._chain.request_turn()  # the deadline may be the nearest now
                return None
        return self._answer(waiting)

    def arrived(self, queue: Queue) -> None:
        """The durable end of a queue moved: answer the polls that have enough now."""
        if self.held.held:
            topic = queue.topic
            self._answer_held(
                self.held.arrived(
                    _POLLS, lambda each: topic in each.topics and self._has_enough(each)
                )
            )

    def disconnected(self, outlet: PollOutlet) -> None:
        """An asker is gone: its polls are dropped unanswered."""
        self.held.cancel_owner(id(outlet))

    def due(self, now_ms: int) -> None:
        """Answer polls whose time is up; look at leases and brakes."""
        if self.held.held:
            self._answer_held(self.held.due(now_ms))
        self.registry.due(now_ms)

    def next_deadline_ms(self) -> int | None:
        """When ``due`` has something to do."""
        look_ms = self.registry.look_ms
        held_ms = self.held.next_deadline_ms if self.held else None
        if held_ms is None or look_ms is None:
            return look_ms if held_ms is None else held_ms
        return min(held_ms, look_ms)

    @property
    def polls_held(self) -> int:
        return len(self.held)

    # Leases and reports.

    def lease(
        self,
        subscription: str,
        topics: list[Topic],
        start: OffsetMap,
        *,
        ttl_ms: int,
        checkpoint: str = "",
    ) -> Lease:
        """Keep what a query has not processed; where one begins that was silent is believed."""
        known = self.registry.find(subscription, checkpoint)
        is_begun = known is None or not self.registry.is_alive(known)
        query = self.registry.get_or_create(subscription, topics, start, checkpoint)
        if ttl_ms:
            query.lease.ttl_ms = ttl_ms
        self._acknowledge(query, topics, start, is_sure=is_begun)
        self.registry.save(query)
        return query.lease

    def release(self, name: str, *, is_final: bool) -> None:
        """The query needs nothing kept; a final release forgets it. Unknown ones are gone."""
        self.registry.release(name, is_final=is_final)

    def report(self, subscription: str, progress: BatchProgress, state: str, text: str) -> None:
        """What its listener saw; a query that nobody knows yet is not made by it."""
        query = self.registry.find(subscription, progress.checkpoint)
        if query is None:
            return
        query.last, query.state = progress.over(query.last), state
        query.text = text
        self.registry.heartbeat(query)

    def _check(self, request: PollRequest[int]) -> None:
        """Refuse offsets of another time: they may name other messages (D7)."""
        if not request.subscription:
            raise QueryRefused(BAD_REQUEST, "a poll needs the name of its subscription")
        if request.epoch and request.epoch != self.epoch:
            raise QueryRefused(
                EPOCH,
                f"the offsets are of epoch {request.epoch}, the broker is in epoch {self.epoch}: "
                "it lost unsynced messages when its machine stopped, and offsets may name others "
                "now; begin with a new checkpoint",
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
            query.had_batch = True
            query.drain.took(messages, size, self._chain.now_ms)
            self._chain.request_turn()

    def _has_enough(self, poll: _HeldPoll) -> bool:
        """True when there is enough to read."""
        request = poll.request
        wanted = max(
            1, min(request.rows_min, request.rows_max) if request.rows_max else request.rows_min
        )
        there = 0
        for topic in poll.topics:
            if topic.is_deleted:
                return True
            given = request.start.get(str(topic.name), {})
            for queue in topic.queues:
                low = max(given.get(queue.number, 0), queue.index.min_offset)
                there += max(0, queue.durable_end - low)
                if there >= wanted:
                    return True
        return False

    def _answer_held(self, polls: list[_HeldPoll]) -> None:
        for poll in polls:
            self.registry.heartbeat(poll.query)
            answer: PollResponse[int] | QueryRefused
            try:
                answer = self._answer(poll)
            except QueryRefused as refused:
                answer = refused
            poll.outlet.polled(poll.request, answer)

    def _answer(self, poll: _HeldPoll) -> PollResponse[int]:
        request, query = poll.request, poll.query
        topics = [topic for topic in poll.topics if not topic.is_deleted]
        if len(topics) < len(poll.topics):
            topics = self.resolve(request.topics, request.pattern)  # says which one is missing
        answer = PollResponse[int](epoch=self.epoch, ends={}, latest={})
        queues = [queue for topic in topics for queue in topic.queues]
        slices = [self._readable(poll, queue, answer) for queue in queues]
        ends = fair_ends(slices, request.rows_max, request.bytes_max)
        for queue, slice_, end in zip(queues, slices, ends, strict=True):
            name = str(queue.topic.name)
            answer.ends.setdefault(name, {})[queue.number] = end
            answer.latest.setdefault(name, {})[queue.number] = queue.durable_end
            answer.incarnations.setdefault(name, {})[queue.number] = queue.incarnation
            answer.rows += end - slice_.start
            answer.bytes += slice_._replace(end=end).size_bytes
            answer.lag_rows += slice_.end - slice_.start
            answer.lag_bytes += slice_.size_bytes
        query.drain.gave(answer.rows, answer.bytes, self._chain.now_ms)
        query.is_limited = answer.rows < answer.lag_rows
        query.had_batch |= answer.rows > 0
        query.state = "running" if answer.rows else "idle"
        answer.held = next(
            (text for topic in topics if (text := self.registry.pressures.held(topic, query.name))),
            None,
        )
        return answer

    def _readable(self, poll: _HeldPoll, queue: Queue, answer: PollResponse[int]) -> QueueSlice:
        name = str(queue.topic.name)
        given = poll.request.start.get(name, {}).get(queue.number)
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
        return QueueSlice(queue.index, start, max(start, queue.durable_end))


def _range(topic: Topic) -> TopicRange:
    queues = [
        QueueRange(
            queue=queue.number,
            queue_id=int(queue.queue_id),
            incarnation=queue.incarnation,
            earliest=queue.index.min_offset,
            end=queue.durable_end,
            bytes=queue.index.bytes_between(queue.index.min_offset, queue.durable_end),
        )
        for queue in topic.queues
    ]
    return TopicRange(name=str(topic.name), queues=queues)


# ---- topics by name -----------------------------------------------------------------------------
# By name, by pattern, or all that are not hidden (D9).


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


class QueueSlice(NamedTuple):
    """What can be read of one queue."""

    entries: QueueIndex
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.entries.bytes_between(self.start, self.end)


def max_min_shares(wanted: Sequence[int], total: int) -> list[int]:
    """``total`` for those who want so much: nobody gets more than it wants, none can be envied."""
    given = [0] * len(wanted)
    left = len(wanted)
    for at in sorted(range(len(wanted)), key=lambda each: wanted[each]):
        given[at] = min(wanted[at], total // left)
        total -= given[at]
        left -= 1
    return given


def fair_ends(slices: Sequence[QueueSlice], rows_max: int, bytes_max: int) -> list[int]:
    """Where each slice_ ends so that all together are within the limits; 0 = no limit."""
    ends = [each.end for each in slices]
    rows = [each.end - each.start for each in slices]
    if 0 < rows_max < sum(rows):
        rows = max_min_shares(rows, rows_max)
        ends = [each.start + count for each, count in zip(slices, rows, strict=True)]
    if bytes_max > 0 and any(rows):
        cut = [each._replace(end=end) for each, end in zip(slices, ends, strict=True)]
        sizes = [each.size_bytes for each in cut]
        if sum(sizes) > bytes_max:
            shares = max_min_shares(sizes, bytes_max)
            ends = [_end_within(each, share) for each, share in zip(cut, shares, strict=True)]
            if all(end == each.start for each, end in zip(cut, ends, strict=True)):
                oldest = min(
                    (at for at, count in enumerate(rows) if count), key=lambda at: _age(cut[at])
                )
                ends[oldest] = cut[oldest].start + 1
    return ends


def _end_within(slice_: QueueSlice, size: int) -> int:
    """The last end up to which at most ``size`` bytes lie."""
    index, start, low, high = slice_.entries, slice_.start, slice_.start, slice_.end
    while low < high:
        middle = (low + high + 1) // 2
        if index.bytes_between(start, middle) <= size:
            low = middle
        else:
            high = middle - 1
    return low


def _age(slice_: QueueSlice) -> int:
    found = slice_.entries.entries(slice_.start, 1)
    return found[0][3] if found else 0
