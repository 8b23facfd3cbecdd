"""Answers what Spark queries ask over the bulk link: resolve, poll, lease, report, locate (D18).

A poll acknowledges what the query has processed and asks how far its next batch may go. It is
answered from the index, up to durable ends (D7), or held until there is enough to read or its time
is up (F12); arrival wakes it, nothing polls. Each query's lease keeps what it has not processed
(F18), and queries that fall behind slow the publishers of their topics (``query.py``).

Whatever goes over many topics or queues is a task: it yields what each step costs, and goes on in
the next turn when this one has done its share. Mostly it is done at once.

Invariants: a held poll is answered exactly once unless its asker goes first; nobody is shown an
offset that a crash could give to another message; every query is known by name, at most
``spark.queries_max`` of them.
Not here: the socket (``server/flight.py``), rows (``penstock.bulk``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.engine.spark.query import Query, QueryOutlet, QueryRefused, QueryRegistry
from penstock.engine.spark.staging import STAGE_REQUESTS, StagedWrites
from penstock.engine.spark.topic_search import no_topic, search_topics, topic_named
from penstock.flow.long_poll import HeldPulls
from penstock.log.index import QueueIndex
from penstock.model.names import TopicName
from penstock.model.queries import (
    LOCATED_ENTRIES_MAX,
    AnyRequest,
    AnyResponse,
    CommitBatchRequest,
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
from penstock.model.spark_batch import BAD_REQUEST, EPOCH, BatchProgress

if TYPE_CHECKING:
    from penstock.engine.flow_context import FlowContext
    from penstock.engine.topic import Queue, Topic
    from penstock.flow.spark_brake import Lease
    from penstock.log.store import Store

WAIT_MS_MAX: Final = 60_000
"""Longest hold of a poll: a query that is gone must not look alive for longer."""
POLLS_HELD_MAX: Final = 4096
TASKS_MAX: Final = 1024
"""Questions under way that take more than one turn; each is known by a link that waits for it."""
STEPS_MAX: Final = 500
"""Of tasks in one turn, some 4 us each: 2 ms, or twice that when the last step is a large one."""
QUEUE_STEPS: Final = 3
"""What one queue of an answer costs."""
STATES: Final = ("running", "idle", "stopped", "failed")
"""What a query may report of itself."""


Steps = Generator[int, None, AnyResponse | None]
"""A task: yields what it costs, returns the answer, or None when the poll is held."""


class _Task(NamedTuple):
    """A question under way."""

    request: AnyRequest
    outlet: QueryOutlet
    steps: Steps


class _HeldPoll(NamedTuple):
    """A poll that waits."""

    request: PollRequest[int]
    outlet: QueryOutlet
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
        """Polls that wait, by query; to be looked at only."""
        self._tasks: deque[_Task] = deque()
        self._woken: dict[Query, None] = {}
        """Queries with held polls whose topics have new messages; bounded by their number."""
        self._late: deque[_HeldPoll] = deque()
        """Polls whose time is up; bounded as the held ones they were."""
        self._steps_left = STEPS_MAX
        """Of this turn."""
        self.staged: StagedWrites
        """What Spark's sinks write; the engine sets it, for it is made of more than queries."""

    @property
    def epoch(self) -> int:
        """Offsets of an older epoch may name other messages now (D7)."""
        return self._store.epoch

    @property
    def behind_ms(self) -> int:
        """From which age on a query is behind."""
        return self._chain.flow.behind_ms

    @property
    def wall_ms(self) -> int:
        """Wall time, as messages are stamped with it."""
        return self._chain.clock.wall_ms()

    def handle(self, request: AnyRequest, outlet: QueryOutlet) -> AnyResponse | None:
        """The response, or None when ``outlet`` gets it later; raises ``QueryRefused``."""
        if isinstance(request, STAGE_REQUESTS):
            if isinstance(request, CommitBatchRequest) and request.put_ms:
                self._note_put(request)
            return self.staged.handle(request, outlet)
        return self._handle(request, outlet)

    def _handle(self, request: AnyRequest, outlet: QueryOutlet) -> AnyResponse | None:
        match request:
            case PollRequest():
                return self.poll(request, outlet)
            case ResolveRequest():
                return self._begin(_Task(request, outlet, self._resolving(request)))
            case LeaseRequest():
                return self._begin(_Task(request, outlet, self._leasing(request)))
            case OffsetsByTimeRequest():
                return self._begin(_Task(request, outlet, self._finding(request)))
            case LocateRequest():
                return self.locate(request)
            case ReleaseRequest():
                for query in self.registry.on_subscription(request.subscription):
                    if request.checkpoint in ("", query.checkpoint):
                        self.release(query.name, is_final=request.is_final)
            case ReportRequest():
                state = request.state if request.state in STATES else "running"
                self.report(request.subscription, request.progress, state, request.text)
        return EmptyResponse()

    # Tasks.

    def _begin(self, task: _Task) -> AnyResponse | None:
        """Do it as far as this turn has room for; None = its outlet gets the answer later."""
        if not self._tasks and (done := self._advance(task)) is not None:
            return done[0]
        if len(self._tasks) >= TASKS_MAX:
            raise QueryRefused(
                BAD_REQUEST, f"{TASKS_MAX} questions over many topics are under way; try again"
            )
        self._tasks.append(task)
        self._chain.request_turn()
        return None

    def _advance(self, task: _Task) -> tuple[AnyResponse | None] | None:
        """What it returned, once it has; None while it is not done."""
        while self._steps_left > 0:
            try:
                self._steps_left -= next(task.steps)
            except StopIteration as end:
                return (end.value,)
        return None

    def _go_on(self) -> None:
        """Serve what waits, as far as this turn has room for."""
        while self._steps_left > 0 and (self._tasks or self._late or self._woken):
            if self._late:
                self._wake([self._late.popleft()])
            elif self._woken:
                query = next(iter(self._woken))
                del self._woken[query]
                self._wake(self.held.arrived(query, self._wants))
            else:
                task = self._tasks.popleft()
                try:
                    done = self._advance(task)
                except QueryRefused as refused:
                    task.outlet.answered(task.request, refused)
                    continue
                if done is None:
                    self._tasks.append(task)
                elif done[0] is not None:
                    task.outlet.answered(task.request, done[0])
        if self.can_move:
            self._chain.request_turn()

    @property
    def can_move(self) -> bool:
        """True when a question could go on in the next turn."""
        return bool(self._tasks or self._late or self._woken)

    @property
    def is_waiting(self) -> bool:
        """True when there is something to do in a turn, or at a deadline."""
        return bool(
            self.held.held
            or self.can_move
            or self._steps_left < STEPS_MAX
            or self.registry.look_ms is not None
        )

    # Topics and ranges.

    def _search(
        self, topics: list[str] | None, pattern: str | None, optional: Sequence[str] = ()
    ) -> Generator[int, None, list[Topic]]:
        """The topics that are meant, in the order of their names."""
        return search_topics(
            self._topics, topics, pattern, self.registry.query_queues_max, optional=optional
        )

    def _resolving(self, request: ResolveRequest) -> Steps:
        ranges: list[TopicRange] = []
        topics = yield from self._search(request.topics, request.pattern, request.optional)
        for topic in topics:
            if not topic.is_deleted:
                ranges.append(_range(topic))
                yield QUEUE_STEPS * len(topic.queues)
        is_auto_creating = self.staged.is_auto_creating
        return ResolveResponse(epoch=self.epoch, topics=ranges, is_auto_creating=is_auto_creating)

    def _leasing(self, request: LeaseRequest) -> Steps:
        topics = yield from self._search(request.topics, request.pattern, request.optional)
        lease = yield from self._lease(request, [each for each in topics if not each.is_deleted])
        return LeaseResponse(ttl_ms=lease.ttl_ms, is_broken=lease.is_broken, text=lease.text)

    def _finding(self, request: OffsetsByTimeRequest) -> Steps:
        (topic,) = yield from self._search([request.topic], None)
        offsets = self.by_time(topic, request.at_ms)
        return OffsetsByTimeResponse(epoch=self.epoch, offsets={request.topic: offsets})

    def by_time(self, topic: Topic, at_ms: int) -> dict[int, int]:
        """First offset stored at or after a wall time, for each queue; the durable end if none."""
        return {
            queue.number: min(queue.index.search_time(at_ms), queue.durable_end)
            for queue in topic.queues
        }

    def locate(
        self, request: LocateRequest, *, entries_max: int = LOCATED_ENTRIES_MAX
    ) -> LocateResponse:
        """Where the index entries of a range are, as far as they are durable."""
        topic, number = topic_named(self._topics, request.topic), request.queue
        if topic is None:
            raise no_topic(request.topic)
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

    def poll(self, request: PollRequest[int], outlet: QueryOutlet) -> PollResponse[int] | None:
        """The answer, or None when the poll has to wait: then ``outlet`` gets it later."""
        answer = self._begin(_Task(request, outlet, self._polling(request, outlet)))
        assert answer is None or isinstance(answer, PollResponse)
        return answer

    def _polling(self, request: PollRequest[int], outlet: QueryOutlet) -> Steps:
        topics = yield from self._search(request.topics, request.pattern, request.optional)
        self._check(request)
        query = yield from self.registry.get_or_create(
            request.subscription,
            topics,
            request.start,
            request.checkpoint,
            maker=request.maker,
        )
        query.polls += 1
        if request.report is not None:
            query.last, query.failure = request.report.over(query.last), ""
        yield from self._acknowledge(query, topics, request.start)
        waiting = _HeldPoll(request, outlet, query, topics)
        if request.wait_ms > 0 and not self._has_enough(waiting):
            query.state = "idle"
            deadline_ms = self._chain.now_ms + min(request.wait_ms, WAIT_MS_MAX)
            if self.held.hold(query, waiting, deadline_ms, owner=id(outlet)):
                self._chain.request_turn()  # the deadline may be the nearest now
                return None
        return (yield from self._answer(waiting))

    def arrived(self, queue: Queue) -> None:
        """The durable end of a queue moved: answer the polls that have enough now."""
        if self.held.held:
            for query in self.registry.readers.get(queue.topic, ()):
                if self.held.count(query):
                    self._woken[query] = None
            if self._woken:
                self._go_on()

    def disconnected(self, outlet: QueryOutlet) -> None:
        """An asker is gone: its questions are dropped unanswered."""
        self.staged.disconnected(outlet)
        self.held.cancel_owner(id(outlet))
        self._late = deque(each for each in self._late if each.outlet is not outlet)
        self._tasks = deque(each for each in self._tasks if each.outlet is not outlet)

    def due(self, now_ms: int) -> None:
        """Go on with what takes several turns, answer polls whose time is up; leases and brakes."""
        self._steps_left = STEPS_MAX
        if self.held.held:
            self._late.extend(self.held.due(now_ms))
        self._go_on()
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

    def _lease(self, request: LeaseRequest, topics: list[Topic]) -> Generator[int, None, Lease]:
        """Keep what a query has not processed; where one begins that was silent is believed."""
        known = self.registry.find(request.subscription, request.checkpoint)
        is_begun = known is None or not self.registry.is_alive(known)
        query = yield from self.registry.get_or_create(
            request.subscription,
            topics,
            request.start,
            request.checkpoint,
            maker=request.maker,
        )
        if request.ttl_ms:
            query.lease.ttl_ms = self.registry.ttl_ms(request.ttl_ms)
        yield from self._acknowledge(query, topics, request.start, is_sure=is_begun)
        self.registry.save(query)
        return query.lease

    def release(self, name: str, *, is_final: bool) -> None:
        """The query needs nothing kept; a final release forgets it. Unknown ones are gone."""
        self.registry.release(name, is_final=is_final)

    def report(self, subscription: str, progress: BatchProgress, state: str, text: str) -> None:
        """What its listener saw; a query that nobody knows yet is not made by it."""
        query = self._told_of(subscription, progress, state)
        if query is None:
            return
        query.last = progress.over(query.last)
        if state == "failed":
            query.failure = text or "it does not say why"
        elif progress.batch_ms > 0:
            query.failure = ""
        # Of a query that failed its source, which goes with it, says "stopped".
        if state != "stopped" or query.state != "failed":
            query.state = state
        query.text = "" if state == "failed" else text
        query.retried += progress.retries
        query.dead += progress.dead
        self.registry.heartbeat(query)

    def _told_of(self, subscription: str, progress: BatchProgress, state: str) -> Query | None:
        """Which of the subscription's queries it is.

        One that names no checkpoint is known by Spark's id; one that failed before its first batch
        was done is the one that was heard last.
        """
        if progress.checkpoint or not progress.query_id:
            return self.registry.find(subscription, progress.checkpoint)
        queries = self.registry.on_subscription(subscription)
        known = [each for each in queries if each.last.query_id == progress.query_id]
        if not known:
            # One that never said which it is may be any.
            known = [each for each in queries if state == "failed" or not each.checkpoint]
        return max(known, key=lambda each: each.heard_ms or 0, default=None)

    def _note_put(self, request: CommitBatchRequest) -> None:
        """The writer of a query has timed itself; Spark's id says which query that is."""
        for query in self.registry.queries.values():
            if query.last.query_id == request.query:
                query.last = BatchProgress(put_ms=request.put_ms).over(query.last)

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
    ) -> Generator[int, None, None]:
        messages = size = 0
        for topic in topics:
            yield 1
            if topic.is_deleted or topic not in query.reads:
                continue  # went between two turns
            for number, offset in start.get(str(topic.name), {}).items():
                queue = topic.queues[number] if 0 <= number < len(topic.queues) else None
                if queue is None or offset > queue.durable_end:
                    continue  # of a topic that was made anew: the answer shows what there is
                ahead = query.acknowledge(queue, offset, is_sure=is_sure)
                messages += ahead[0]
                size += ahead[1]
                yield 1
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

    def _wake(self, polls: list[_HeldPoll]) -> None:
        """They are held no longer."""
        for poll in polls:
            self.registry.heartbeat(poll.query)
            self._tasks.append(_Task(poll.request, poll.outlet, self._answer(poll)))

    def _wants(self, poll: _HeldPoll) -> bool:
        self._steps_left -= len(poll.topics)
        return self._has_enough(poll)

    def _answer(self, poll: _HeldPoll) -> Generator[int, None, PollResponse[int]]:
        request, query = poll.request, poll.query
        topics = [topic for topic in poll.topics if not topic.is_deleted]
        if len(topics) < len(poll.topics):
            # Says which one is missing.
            topics = yield from self._search(request.topics, request.pattern, request.optional)
        answer = PollResponse[int](epoch=self.epoch, ends={}, latest={})
        queues: list[Queue] = []
        slices: list[QueueSlice] = []
        for topic in topics:
            yield len(topic.queues)
            if not topic.is_deleted:
                queues += topic.queues
                slices += [self._readable(poll, queue, answer) for queue in topic.queues]
        ends = yield from fair_ends(slices, request.rows_max, request.bytes_max)
        oldest_ms = self.wall_ms
        for queue, slice_, end in zip(queues, slices, ends, strict=True):
            yield QUEUE_STEPS
            name = str(queue.topic.name)
            answer.ends.setdefault(name, {})[queue.number] = end
            answer.latest.setdefault(name, {})[queue.number] = queue.durable_end
            answer.incarnations.setdefault(name, {})[queue.number] = queue.incarnation
            answer.rows += end - slice_.start
            answer.bytes += slice_._replace(end=end).size_bytes
            answer.lag_rows += slice_.end - slice_.start
            answer.lag_bytes += slice_.size_bytes
            if slice_.end > slice_.start:
                oldest_ms = min(oldest_ms, _age(slice_) or oldest_ms)
        answer.lag_ms = self.wall_ms - oldest_ms
        query.drain.gave(answer.rows, answer.bytes, self._chain.now_ms)
        query.is_limited = answer.rows < answer.lag_rows
        is_at_own = query.is_limited and answer.rows >= request.own_rows_max > 0
        query.own_rows_max = request.own_rows_max if is_at_own else 0
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


END_STEPS: Final = 8
"""What it costs to find where a slice has so many bytes: one look at the index for each halving."""


def max_min_shares(wanted: Sequence[int], total: int) -> list[int]:
    """``total`` for those who want so much: nobody gets more than it wants, none can be envied."""
    given = [0] * len(wanted)
    left = len(wanted)
    for at in sorted(range(len(wanted)), key=lambda each: wanted[each]):
        given[at] = min(wanted[at], total // left)
        total -= given[at]
        left -= 1
    return given


def fair_ends(
    slices: Sequence[QueueSlice], rows_max: int, bytes_max: int
) -> Generator[int, None, list[int]]:
    """Where each slice ends so that all together are within the limits; 0 = no limit."""
    ends = [each.end for each in slices]
    rows = [each.end - each.start for each in slices]
    if 0 < rows_max < sum(rows):
        rows = max_min_shares(rows, rows_max)
        ends = [each.start + count for each, count in zip(slices, rows, strict=True)]
    if bytes_max > 0 and any(rows):
        cut = [each._replace(end=end) for each, end in zip(slices, ends, strict=True)]
        sizes: list[int] = []
        for each in cut:
            yield 1
            sizes.append(each.size_bytes)
        if sum(sizes) > bytes_max:
            ends = []
            for each, share in zip(cut, max_min_shares(sizes, bytes_max), strict=True):
                yield END_STEPS
                ends.append(_end_within(each, share))
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
