"""What Spark's sinks write: puts find room beside the log, commits bring them into it (D19).

    put      room -> (the Flight process writes a file) -> done
    commit   look at the files -> wait for the topics -> copy -> sync -> commit record -> sync
             -> entries -> answer

A put asks for room before it writes, and waits while memory, disk, the room for staged rows or its
topic is short; so its task waits, the batch takes longer, and the next one is smaller. A commit
waits while a topic is above its limit, and may pass it by all it has: a batch cannot be cut. One
commit copies at a time, in slices of a turn; what it copies is seen by nobody, and its one record,
written when the copy is durable, makes all of it count.

Which batch is which: (sink, query) has a last batch. A larger number is new, the same number is a
replay: answered, and the rows that came with it are dropped. A smaller one is a replay where
whoever writes counts batches himself; Spark repeats only the last batch of a query, so from a
streaming query it means that its checkpoint was set back, and its batches may hold other rows than
those of that number: it is refused, as is a batch of another checkpoint that is not new. Gaps are
fine: a batch without rows need not come.

Law 3: the disk alarm may wait for a query to let go of what its lease keeps, so such a query has a
reserve; a brake may wait for the query that commits, so its own brake is not for it; topics of
pipelines' own (hidden ones) hold nobody, and those of a flow's letters do not hold it, or what it
cannot process would stop what it can; and of batches that fill the room for staged rows one may
always go on.

Invariants: nothing of a batch is visible before its commit record is durable, everything after; an
abort never undoes a commit; every put, commit, stage and sink is one of a bounded number.

Not here: what is staged, and its room (``stage_room.py``), files and records
(``log/staging.py``), the socket (``server/flight.py``), Arrow (``bulk/staging.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.engine.spark.query import QueryOutlet, QueryRefused, QueryRegistry
from penstock.engine.spark.stage_room import PUTS_MAX, StagedBatch, StageRoom
from penstock.engine.spark.topic_search import no_topic, search_topics, topic_named
from penstock.engine.topic import Hold, Queue, Topic, TopicPolicy
from penstock.flow.reason import Reason
from penstock.flow.reserve import Reserve
from penstock.log.staging import (
    HEAD_BYTES,
    Block,
    BlockHead,
    SinkKey,
    SinkRow,
    StageCommit,
    StageDamaged,
    StagedCopy,
    batch_path,
    is_stage_name,
    read_block,
    read_head,
)
from penstock.model.errors import AppendFailed, PenstockError
from penstock.model.ids import QueueId
from penstock.model.names import control_problem, object_id, topic_name
from penstock.model.queries import (
    STAGE_TOPICS_MAX,
    AbortBatchRequest,
    AbortBatchResponse,
    AnyResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    EmptyResponse,
    SinkStateRequest,
    SinkStateResponse,
    StageDoneRequest,
    StagedTopic,
    StageRoomRequest,
    StageRoomResponse,
)
from penstock.model.refusal import Refusal
from penstock.model.spark_batch import (
    BAD_REQUEST,
    NO_STAGE,
    NO_TOPIC,
    REWOUND,
    UNREACHABLE,
    StagedRows,
)

if TYPE_CHECKING:
    from penstock.engine.commit import Commits
    from penstock.engine.delay import Delays
    from penstock.engine.flow_context import FlowContext
    from penstock.engine.registry import Registry
    from penstock.flow.credit import Stage
    from penstock.log.storage import File
    from penstock.log.store import Store
    from penstock.model.names import TopicName
    from penstock.settings.load import Settings

_log = logging.getLogger(__name__)

STAGE_REQUESTS: Final = (
    CommitBatchRequest,
    AbortBatchRequest,
    SinkStateRequest,
    StageRoomRequest,
    StageDoneRequest,
)
AnyStageRequest = (
    CommitBatchRequest | AbortBatchRequest | SinkStateRequest | StageRoomRequest | StageDoneRequest
)

COPY_ROWS_MAX: Final = 3000
COPY_BYTES_MAX: Final = 1 << 20
"""Of one turn: some 3 ms of the loop, a third of a microsecond a row and the write."""
ENTER_ROWS_MAX: Final = 8000
"""Index entries made in one turn: some 3 ms."""
BUFFERS_SHARE: Final = 2
"""One of so many parts of the write buffers is for copies: publishers must find room, too."""
STEPS_MAX: Final = 400
"""Blocks and topics that are looked at in one turn: some 2 ms."""
LOOKS_MAX: Final = 32
"""Puts, and commits, that wait and are looked at in one turn."""
WAIT_MS_MAX: Final = 60_000
RETRY_MS: Final = 100
"""After a write the disk refused."""
ABANDON_MS: Final = 60_000
"""A copy that cannot go on, and that nobody asks for any more, is given up after this."""
COMMITS_MAX: Final = 1000
PUTS_HELD_MAX: Final = 4096
NO_TURN: Final = -1
ABORTED_MAX: Final = 1000
"""Puts that one abort drops; the others end in time."""
PASSING_MAX: Final = 8
"""Topics whose limits hold nothing of a put or a commit: a flow has two, for its letters."""
NAME_CHARACTERS_MAX: Final = 1000
"""Of a sink or a query."""
NEAREST_TOPICS_MAX: Final = 2000
"""With more topics nobody is told which name is the nearest."""
SHOWN_MAX: Final = 100
"""Sinks that are shown of each kind: that wait, that commit, that were used last, with stages."""
LOOK_MS: Final = 60_000
"""How often stages and sinks are looked at for their end, at least."""


class StageCounters(msgspec.Struct):
    """What sinks did since the start; only ever grows."""

    commits: int = 0
    rows: int = 0
    bytes: int = 0
    """Of records that were copied into the log."""
    replays: int = 0
    replays_changed: int = 0
    """Replays with another number of rows than the batch had."""
    rewound: int = 0
    """Commits that were refused because of their checkpoint."""
    aborted: int = 0
    """Puts that an abort dropped."""
    expired: int = 0
    """Batches that nobody committed in time."""
    holds: int = 0
    """Puts that had to wait."""


class _Asker(NamedTuple):
    """Who waits for a commit."""

    request: CommitBatchRequest
    outlet: QueryOutlet
    deadline_ms: int


class _HeldPut(NamedTuple):
    """A put that waits for room."""

    request: StageRoomRequest
    outlet: QueryOutlet
    deadline_ms: int
    since_ms: int


class HeldSink:
    """A sink one of whose puts, or whose commit, waits."""

    __slots__ = ("hold", "since_ms", "stage")

    def __init__(self, stage: Stage, hold: Hold, now_ms: int) -> None:
        self.stage: Final = stage
        self.hold = hold
        self.since_ms: Final = now_ms


_GO_ON: Final = "goes on"
_TOPICS: Final = "waits for its topics"
_LOG: Final = "waits for the log"
_SYNC: Final = "waits for a sync"

_Work = Generator[tuple[str, int], None, None]
"""What it waits for, and what the step cost."""


class _Commit:
    """One batch on its way into the log."""

    __slots__ = (
        "askers",
        "copy",
        "first_offsets",
        "has_begun",
        "hold",
        "idle_ms",
        "is_looked_at",
        "is_sealed",
        "is_synced",
        "key",
        "path",
        "pause",
        "queues",
        "request",
        "rows",
        "since_ms",
        "size_bytes",
        "topics",
        "work",
    )

    def __init__(self, request: CommitBatchRequest, now_ms: int) -> None:
        self.request: Final = request
        self.key: Final = (request.sink, request.query)
        self.path: Final = batch_path(request.sink, request.query, request.batch)
        self.askers: list[_Asker] = []
        self.idle_ms: int | None = None
        """Since when nobody asks for it."""
        self.since_ms: Final = now_ms
        self.pause = _GO_ON
        self.hold: Hold | None = None
        self.rows = self.size_bytes = 0
        self.queues: dict[Queue, tuple[int, int]] = {}
        """(rows, bytes) for each, as the files say."""
        self.topics: dict[Topic, tuple[int, int]] = {}
        self.copy: Final = StagedCopy()
        self.first_offsets: dict[Queue, int] = {}
        self.is_looked_at = False
        """True when it is known what it has; nobody is told what it waits for before that."""
        self.has_begun = self.is_sealed = self.is_synced = False
        self.work: _Work


class StagedWrites:
    """Puts, commits and sinks of one engine."""

    def __init__(
        self,
        settings: Settings,
        chain: FlowContext,
        *,
        store: Store,
        registry: Registry,
        commits: Commits,
        delays: Delays,
        queries: QueryRegistry,
        create_topic: Callable[[TopicName, int, TopicPolicy, str], Topic],
        committed: Callable[[Iterable[Queue]], None],
        appended: Callable[[int], None],
    ) -> None:
        """``committed``: queues have got all of a commit; ``appended``: the log has grown."""
        self._spark = settings.spark
        self._message_bytes_max = settings.topics.message_bytes_max
        self._chain = chain
        self._store = store
        self._registry = registry
        self._log = commits
        self._delays = delays
        self._queries = queries
        self._create_topic = create_topic
        self._committed = committed
        self._appended = appended
        self.counters: Final = StageCounters()
        self._room: Final = StageRoom(
            settings.spark,
            chain,
            store.stages.found(),
            remove=store.stages.remove_all,
            remove_puts=store.stages.remove,
        )
        self._sink_reserve = Reserve(chain.topics.reserve_percent)
        self._puts: list[_HeldPut] = []
        self._commits: dict[SinkKey, _Commit] = {}
        self._copier: _Commit | None = None
        self.held: dict[SinkKey, HeldSink] = {}
        """Those that wait, for the flow map; to be looked at only."""
        self._is_log_free = False
        self._retry_ms = 0
        self._seen_free_bytes = -1
        self._spent_bytes = 0
        """Of the disk's reserve, since it was last looked at."""
        self._look_ms: int | None = None
        self._looks = NO_TURN
        """Number of the last look at limits, below all turns: figures of a turn are not its."""
        if self._room.batches or store.sinks.rows:
            self._look_ms = chain.now_ms + LOOK_MS

    # Questions.

    def handle(self, request: AnyStageRequest, outlet: QueryOutlet) -> AnyResponse | None:
        """The response, or None when ``outlet`` gets it later; raises ``QueryRefused``."""
        if self._log.failure is not None:
            raise QueryRefused(UNREACHABLE, self._log.failure.text)
        for what, name in (("sink", request.sink), ("query", request.query)):
            problem = control_problem(what, name)
            if not name or len(name) > NAME_CHARACTERS_MAX or problem:
                text = problem or f"a {what} has 1 to {NAME_CHARACTERS_MAX} characters"
                raise QueryRefused(BAD_REQUEST, text)
        if isinstance(request, StageRoomRequest | CommitBatchRequest):
            _check_passing(request)
        match request:
            case StageRoomRequest():
                return self._put(request, outlet)
            case StageDoneRequest():
                return self._done(request)
            case CommitBatchRequest():
                return self._commit(request, outlet)
            case AbortBatchRequest():
                return self._abort(request)
            case SinkStateRequest():
                return self._state(request)

    def _state(self, request: SinkStateRequest) -> SinkStateResponse:
        last = self._store.sinks.get(request.sink, request.query)
        is_committing = (request.sink, request.query) in self._commits
        if last is None:
            return SinkStateResponse(is_committing=is_committing)
        return SinkStateResponse(
            batch=last.batch,
            rows=last.rows,
            at_ms=last.at_ms,
            checkpoint=last.checkpoint,
            is_committing=is_committing,
        )

    def disconnected(self, outlet: QueryOutlet) -> None:
        """An asker is gone: nobody waits for its answers, and what it was writing is dropped."""
        left = {_key(each) for each in self._puts if each.outlet is outlet}
        self._puts = [each for each in self._puts if each.outlet is not outlet]
        for key in left:
            self._note_hold(key, None)
        self._room.disconnected(outlet)
        for commit in list(self._commits.values()):
            commit.askers = [each for each in commit.askers if each.outlet is not outlet]
            self._drop_if_idle(commit)

    # Puts.

    def _put(self, request: StageRoomRequest, outlet: QueryOutlet) -> AnyResponse | None:
        if request.batch < 0 or not is_stage_name(request.name):
            raise QueryRefused(
                BAD_REQUEST,
                f"put {request.name!r} of batch {request.batch}: a put is named "
                "<partition>.<uuid>, of digits, letters and '-', and batches count from 0",
            )
        is_made = self._make_missing(request)
        self._looks -= 1
        held = self._held_put(request)
        if held is None:
            answer = self._grant(request, outlet)
            if not is_made:
                return answer
            # It leaves when the topics that were made are durable (D6).
            self._log.after_durable(lambda: outlet.answered(request, answer))
            return None
        self.counters.holds += 1
        if request.wait_ms <= 0:
            return StageRoomResponse(held=held.culprit)
        if len(self._puts) >= PUTS_HELD_MAX:
            raise QueryRefused(UNREACHABLE, f"{PUTS_HELD_MAX} puts wait already; try again")
        now_ms = self._chain.now_ms
        deadline_ms = now_ms + min(request.wait_ms, WAIT_MS_MAX)
        self._puts.append(_HeldPut(request, outlet, deadline_ms, now_ms))
        self._note_hold((request.sink, request.query), held)
        self._chain.request_turn()  # the deadline may be the nearest now
        return None

    def _make_missing(self, request: StageRoomRequest) -> bool:
        """Make topics that are not there; True when the answer has to wait for them."""
        if len(request.topics) > STAGE_TOPICS_MAX:
            raise QueryRefused(
                BAD_REQUEST,
                f"one task writes to {len(request.topics)} topics, limit {STAGE_TOPICS_MAX}",
            )
        is_made = False
        for name in request.topics:
            topic = topic_named(self._registry.topics, name)
            if topic is None:
                self._make(name, request.maker)
                is_made = True
            elif not topic.is_durable:
                raise QueryRefused(
                    BAD_REQUEST,
                    f"topic '{name}' is not durable: what a sink promises it could not keep; "
                    "write to a durable one",
                )
            elif topic.is_terminated:
                raise QueryRefused(
                    NO_TOPIC, f"topic '{name}' is terminated and takes no more messages"
                )
        return is_made

    def _make(self, name: str, maker: str) -> None:
        known = self._registry.topics
        if not self.is_auto_creating:
            try:
                if len(known) <= NEAREST_TOPICS_MAX:
                    for _ in search_topics(known, [name], None, 1):
                        pass
                raise no_topic(name)
            except QueryRefused as refused:
                said = str(refused)
                end = "" if said.endswith("?") else "."
                advice = f"`penstock topics create {name}` makes it, rows do not"
                text = f"{said}{end} {advice} (spark.is_auto_creating)"
                raise QueryRefused(refused.kind, text) from None
        space, _, own = name.rpartition("/")
        policy = TopicPolicy(retention_ms=self._spark.topic_retention_ms)
        try:
            self._create_topic(topic_name(own, space), self._spark.topic_queues, policy, maker)
        except (ValueError, PenstockError) as problem:
            raise QueryRefused(BAD_REQUEST, f"topic '{name}' cannot be made: {problem}") from None

    @property
    def is_auto_creating(self) -> bool:
        """True when rows make the topics that are not there."""
        return self._spark.is_auto_creating

    def _held_put(self, request: StageRoomRequest) -> Hold | None:
        """What a put has to wait for; refuses one that may never go on."""
        self._room.check_batch(request)
        # What is staged is copied later: it takes its room twice.
        hold = self._short(_spark_ids(request), 2 * request.bytes) or self._room.full(request)
        for name in request.topics:
            topic = topic_named(self._registry.topics, name)
            if hold is None and topic is not None:
                hold = self._over_limit(topic, request)
        return hold

    def _grant(self, request: StageRoomRequest, outlet: QueryOutlet) -> StageRoomResponse:
        """Room for a put, and where its rows go."""
        if request.bytes > 0:
            self._room.charge(request, outlet)
            self._spent_bytes += 2 * request.bytes
            self._look_soon()
        return StageRoomResponse(
            topics=[self._staged_topic(name) for name in request.topics],
            wall_ms=self._chain.clock.wall_ms(),
        )

    def _staged_topic(self, name: str) -> StagedTopic:
        topic = topic_named(self._registry.topics, name)
        if topic is None:  # since it was looked at
            raise no_topic(name)
        # A queue of a topic with priorities is a priority, and rows have none (D10).
        queues = topic.queues[:1] if topic.policy.max_priority else topic.queues
        own = topic.policy.message_bytes_max or self._message_bytes_max
        return StagedTopic(
            name=name,
            queues=[int(queue.queue_id) for queue in queues],
            message_bytes_max=min(own, self._message_bytes_max),
        )

    def _done(self, request: StageDoneRequest) -> EmptyResponse:
        """What a put really takes; also of one whose batch has ended: its file must end, too."""
        path = batch_path(request.sink, request.query, request.batch)
        self._room.ended(path, request.name, request.bytes)
        self._look_soon()
        return EmptyResponse()

    # Commits.

    def _commit(
        self, request: CommitBatchRequest, outlet: QueryOutlet
    ) -> CommitBatchResponse | None:
        if (
            request.batch < 0
            or len(request.stages) > PUTS_MAX
            or not all(is_stage_name(each.name) for each in request.stages)
        ):
            raise QueryRefused(
                BAD_REQUEST,
                f"commit of batch {request.batch}: at most {PUTS_MAX} stages, named as their "
                "receipts say, and batches count from 0",
            )
        running = self._commits.get((request.sink, request.query))
        if running is None:
            answer = self._replayed(request)
            if answer is not None:
                return answer
            if len(self._commits) >= COMMITS_MAX:
                raise QueryRefused(UNREACHABLE, f"{COMMITS_MAX} commits wait already; try again")
            self._check_place(request)
            running = self._commits[request.sink, request.query] = _Commit(
                request, self._chain.now_ms
            )
            running.work = self._committing(running)
        elif running.request.batch != request.batch:
            raise QueryRefused(
                UNREACHABLE,
                f"batch {running.request.batch} of query '{request.query}' is being committed to "
                f"sink '{request.sink}'; try batch {request.batch} again when it is done",
            )
        deadline_ms = self._chain.now_ms + min(max(request.wait_ms, 0), WAIT_MS_MAX)
        running.askers.append(_Asker(request, outlet, deadline_ms))
        running.idle_ms = None
        self._room.keep(running.path)  # somebody still wants it
        self._chain.request_turn()
        return None

    def _check_place(self, request: CommitBatchRequest) -> None:
        """Nobody's new sinks may push out what is remembered of others' (law 5)."""
        rows = self._store.sinks.rows
        if request.is_single or (request.sink, request.query) in rows:
            return
        problem = self._sink_reserve.refusal(request.maker, len(rows), self._spark.sinks_max)
        if problem is not None:
            raise QueryRefused(BAD_REQUEST, f"no more sinks (spark.sinks_max): {problem}")
        self._sink_reserve.made(request.maker)

    def _replayed(self, request: CommitBatchRequest) -> CommitBatchResponse | None:
        """The answer to a batch that is done already; None when it is new. See the module's text.

        Refuses one whose checkpoint was set back, or is not the one that the sink knows.
        """
        last = self._store.sinks.get(request.sink, request.query)
        if last is None or request.batch > last.batch:
            return None
        what = f"batch {request.batch} of query '{request.query}' in sink '{request.sink}'"
        is_other = bool(
            request.checkpoint and last.checkpoint and request.checkpoint != last.checkpoint
        )
        if is_other or (request.is_streaming and request.batch < last.batch):
            self.counters.rewound += 1
            why = (
                f"belongs to checkpoint {request.checkpoint}, and the sink has batches up to "
                f"{last.batch} of checkpoint {last.checkpoint}"
                if is_other
                else f"is older than the last one, {last.batch}: the checkpoint was set back, and "
                "its batches may hold other rows now"
            )
            text = (
                f"{what} {why}; to write its rows once more give the sink another name (option "
                "sink) or transactionalId, to go on behind what is there use the checkpoint as it "
                "was"
            )
            _log.warning("a commit is refused", extra={"why": text})
            raise QueryRefused(REWOUND, text)
        rows = sum(each.rows for each in request.stages)
        self.counters.replays += 1
        if request.batch == last.batch and rows != last.rows:
            self.counters.replays_changed += 1
            _log.warning(
                "a batch was written again with another number of rows; the first one counts",
                extra={"batch": what, "rows": last.rows, "now": rows},
            )
        self._room.drop(batch_path(request.sink, request.query, request.batch))
        known_rows = last.rows if request.batch == last.batch else rows
        return CommitBatchResponse(rows=known_rows, is_replay=True)

    def _committing(self, commit: _Commit) -> _Work:
        """All of a commit, step by step; raises ``QueryRefused`` before the record is written."""
        yield from self._look(commit)
        commit.is_looked_at = True
        while True:
            commit.hold = self._held_commit(commit)
            self._note_hold(commit.key, commit.hold)
            if commit.hold is None and self._copier is None:
                break
            yield _TOPICS, len(commit.topics) or 1
        self._copier = commit
        try:
            for topic, (rows, size) in commit.topics.items():
                if topic.limits is not None:
                    topic.limits.admit_batch(rows, size, self._chain.now_ms)
            yield from self._copy(commit)
            yield from self._synced(commit)
            yield from self._seal(commit)
            yield from self._synced(commit)
            while self._store.is_entering:
                whole, delayed = self._store.enter_staged(ENTER_ROWS_MAX)
                self._delays.committed(delayed)
                self._show([index.queue_id for index in whole])
                yield _GO_ON, STEPS_MAX
        finally:
            self._copier = None
            if not commit.is_sealed:
                self._store.drop_copy()

    def _look(self, commit: _Commit) -> _Work:
        """Count what the files have, and for which queues."""
        for stage in commit.request.stages:
            rows = 0
            for head in self._heads(commit, stage):
                queue = self._registry.queues.get(QueueId(head.queue_id))
                if queue is None:
                    raise _topic_gone(commit)
                commit.queues[queue] = _plus(commit.queues.get(queue), head)
                commit.topics[queue.topic] = _plus(commit.topics.get(queue.topic), head)
                commit.size_bytes += head.size_bytes
                rows += head.rows
                yield _GO_ON, 1
            if rows != stage.rows:
                raise _no_stage(commit, f"put {stage.name} has {rows} rows, not {stage.rows}")
            commit.rows += rows

    def _heads(self, commit: _Commit, stage: StagedRows) -> Iterator[BlockHead]:
        if not stage.rows:
            return
        with self._opened(commit, stage) as file:
            at = 0
            while (head := read_head(file, at)) is not None:
                yield head
                at += HEAD_BYTES + head.rest_bytes

    def _blocks(self, commit: _Commit) -> Iterator[Block]:
        for stage in commit.request.stages:
            if not stage.rows:
                continue
            with self._opened(commit, stage) as file:
                at = 0
                while (head := read_head(file, at)) is not None:
                    yield read_block(file, at, head)
                    at += HEAD_BYTES + head.rest_bytes

    @contextmanager
    def _opened(self, commit: _Commit, stage: StagedRows) -> Iterator[File]:
        """A file of a put; whatever is wrong with it, the batch must be written again."""
        try:
            file = self._store.stages.open(commit.path, stage.name)
            try:
                yield file
            finally:
                file.close()
        except FileNotFoundError:
            raise _no_stage(commit, f"put {stage.name} is not there (any more)") from None
        except (OSError, StageDamaged) as problem:
            raise _no_stage(commit, f"put {stage.name} cannot be read: {problem}") from None

    def _held_commit(self, commit: _Commit) -> Hold | None:
        """What a commit has to wait for; refuses one whose topic takes nothing any more."""
        request = commit.request
        hold = self._short(_spark_ids(request), commit.size_bytes)
        for topic in commit.topics:
            if hold is None:
                if topic.is_deleted:
                    raise _topic_gone(commit)
                hold = self._over_limit(topic, request)
        return hold

    def _copy(self, commit: _Commit) -> _Work:
        commit.has_begun = True
        for blocks in self._slices(commit):
            yield from self._written(partial(self._copy_slice, commit, blocks))
        seen = {int(queue.queue_id) for queue in commit.queues}
        if commit.copy.rows != commit.rows or not seen.issuperset(commit.copy.queue_rows()):
            raise _no_stage(commit, "a put was written again while it was copied")

    def _slices(self, commit: _Commit) -> Iterator[list[Block]]:
        """Blocks for one turn each."""
        blocks: list[Block] = []
        rows = size = 0
        for block in self._blocks(commit):
            if blocks and (rows + block.rows > COPY_ROWS_MAX or size > COPY_BYTES_MAX):
                yield blocks
                blocks, rows, size = [], 0, 0
            blocks.append(block)
            rows += block.rows
            size += len(block.records)
        if blocks:
            yield blocks

    def _copy_slice(self, commit: _Commit, blocks: Sequence[Block]) -> None:
        before = self._store.end_position
        try:
            self._store.copy_staged(commit.copy, blocks, self._chain.clock.wall_ms())
        except StageDamaged as problem:
            raise _no_stage(commit, str(problem)) from None
        self._log.appended_apart(before)

    def _seal(self, commit: _Commit) -> _Work:
        """The one record that makes everything count."""
        request, queues = commit.request, commit.queues
        record = StageCommit(
            request.sink,
            request.query,
            request.batch,
            commit.rows,
            request.checkpoint,
            request.is_single,
        )

        def write() -> None:
            # At the last moment: it may have waited for the log since the copy was durable.
            if any(queue.is_deleted for queue in queues):
                raise _topic_gone(commit)
            before = self._store.end_position
            commit.first_offsets = {queue: queue.index.staged_offset for queue in queues}
            self._store.commit_staged(commit.copy, record, self._chain.clock.wall_ms())
            commit.is_sealed = True
            self._log.appended_apart(before, queues)

        yield from self._written(write)
        self._bound_sinks()

    def _written(self, write: Callable[[], None]) -> _Work:
        """Write when the log takes something, as often as the disk refuses it."""
        while True:
            now_ms = self._chain.now_ms
            if self._can_write(now_ms):
                try:
                    write()
                except AppendFailed:
                    self._retry_ms = now_ms + RETRY_MS
                else:
                    self._retry_ms = 0
                    self._appended(now_ms)
                    yield _GO_ON, STEPS_MAX
                    return
            yield _LOG, 1

    def _can_write(self, now_ms: int) -> bool:
        buffers = self._log.buffers
        return (
            self._is_log_free
            and now_ms >= self._retry_ms
            and buffers.unsynced_bytes * BUFFERS_SHARE <= buffers.capacity_bytes
        )

    def _synced(self, commit: _Commit) -> _Work:
        """Wait until all that was written is durable."""
        commit.is_synced = False

        def synced() -> None:
            commit.is_synced = True
            self._chain.request_turn()

        self._log.after_durable(synced)
        while not commit.is_synced:
            yield _SYNC, 1

    def _show(self, queue_ids: Iterable[int]) -> None:
        """Queues have all entries that were promised: readers see what is durable of them."""
        found = [self._registry.queues.get(QueueId(each)) for each in queue_ids]
        queues = [queue for queue in found if queue is not None]
        for queue in queues:
            queue.durable_end = queue.synced_end
        self._committed(queues)

    def _finish(self, commit: _Commit) -> None:
        """All of it is durable and visible: earlier stages of the query end, askers are told."""
        del self._commits[commit.key]
        self._note_hold(commit.key, None)
        request, counters = commit.request, self.counters
        counters.commits += 1
        counters.rows += commit.rows
        counters.bytes += commit.size_bytes
        self._room.drop(commit.path)
        self._room.drop_older(commit.path)
        offsets: dict[str, dict[int, tuple[int, int]]] = {}
        totals = commit.copy.queue_rows()
        for queue, first in commit.first_offsets.items():
            rows = totals.get(int(queue.queue_id), (0, 0))[0]
            if rows:
                of_topic = offsets.setdefault(str(queue.topic.name), {})
                of_topic[queue.number] = (first, first + rows)
        answer = CommitBatchResponse(rows=commit.rows, offsets=offsets)
        for asker in commit.askers:
            if asker.request.stages == request.stages:
                asker.outlet.answered(asker.request, answer)
            else:
                # Somebody wrote the same batch once more meanwhile; the first one counts.
                self._answer_replay(asker)

    def _answer_replay(self, asker: _Asker) -> None:
        answer: CommitBatchResponse | QueryRefused | None
        try:
            answer = self._replayed(asker.request)
        except QueryRefused as refused:
            answer = refused
        if answer is not None:
            asker.outlet.answered(asker.request, answer)

    def _refuse(self, commit: _Commit, refused: QueryRefused) -> None:
        """Nothing of it is visible; what was copied is dead space."""
        del self._commits[commit.key]
        commit.work.close()
        self._note_hold(commit.key, None)
        for asker in commit.askers:
            asker.outlet.answered(asker.request, refused)

    def _drop_if_idle(self, commit: _Commit) -> None:
        """A commit that nobody asks for any more and that has not begun need not begin."""
        if commit.askers:
            return
        if not commit.has_begun:
            del self._commits[commit.key]
            commit.work.close()
            self._note_hold(commit.key, None)
        elif commit.idle_ms is None:
            commit.idle_ms = self._chain.now_ms

    def _abort(self, request: AbortBatchRequest) -> AbortBatchResponse:
        last = self._store.sinks.get(request.sink, request.query)
        running = self._commits.get((request.sink, request.query))
        if last is not None and request.batch <= last.batch:
            return AbortBatchResponse(is_committed=True)
        if running is not None and running.request.batch == request.batch:
            return AbortBatchResponse()
        path = batch_path(request.sink, request.query, request.batch)
        names = [each for each in request.stages[:ABORTED_MAX] if is_stage_name(each)]
        known = self._room.forget(path, names)
        if known:
            self._store.stages.remove(path, known)
            self.counters.aborted += len(known)
            self._chain.request_turn()
        return AbortBatchResponse(dropped=len(known))

    # What makes puts and commits wait.

    def _short(self, spark_ids: Collection[str], size: int) -> Hold | None:
        """Held by an alarm; a query whose lease keeps data has a reserve of disk (law 3)."""
        alarms = self._chain.alarms
        if not alarms.is_raised:
            return None
        if alarms.memory.is_raised:
            return Hold(Reason.MEMORY, alarms.memory.culprit)
        disk, reserve = alarms.disk, self._spark.disk_reserve_bytes
        if disk.value != self._seen_free_bytes:
            self._seen_free_bytes, self._spent_bytes = disk.value, 0
        left = disk.value - self._spent_bytes - size
        if disk.limit and left >= max(0, disk.limit - reserve) and self._has_lease(spark_ids):
            return None
        return Hold(Reason.DISK, disk.culprit)

    def _has_lease(self, spark_ids: Collection[str]) -> bool:
        """True when data is kept for this query of Spark: that it goes on is what frees it."""
        return any(
            each.lease.holds and each.last.query_id and each.last.query_id in spark_ids
            for each in self._queries.queries.values()
        )

    def _over_limit(
        self, topic: Topic, request: StageRoomRequest | CommitBatchRequest
    ) -> Hold | None:
        limits = topic.limits
        if limits is None or topic.name.is_hidden:
            return None
        exempt: Collection[str] = ()
        if limits.spark is not None:
            spark_ids = _spark_ids(request)
            exempt = [
                each.name
                for each in self._queries.queries.values()
                if each.last.query_id and each.last.query_id in spark_ids
            ]
        now_ms, wall_ms = self._chain.now_ms, self._chain.clock.wall_ms()
        found = limits.hold_batch(self._looks, wall_ms, now_ms, exempt)
        if isinstance(found, Refusal):
            raise QueryRefused(NO_TOPIC, found.text)
        return None if str(topic.name) in request.passing else found

    def _note_hold(self, key: SinkKey, hold: Hold | None) -> None:
        """Tell the flow map: what a sink waits for, and since when."""
        held, now_ms = self.held.get(key), self._chain.now_ms
        if hold is None:
            commit = self._commits.get(key)
            is_over = commit is None or commit.hold is None
            if held is not None and is_over and not any(_key(each) == key for each in self._puts):
                del self.held[key]
                held.stage.close()
            return
        if held is None:
            sink, query = key
            name, sink_id = f"{sink} of query {query}", object_id("sink", query, sink)
            stage = self._chain.stage("sink", name, sink_id)
            held = self.held[key] = HeldSink(stage, hold, now_ms)
        elif held.hold.reason is hold.reason:
            held.hold = hold  # its figures change; it is the same hold
            return
        else:
            held.stage.episodes.left(held.hold.reason, now_ms)
            held.hold = hold
        held.stage.episodes.entered(hold.reason, hold.culprit, now_ms)

    # Turns.

    @property
    def is_waiting(self) -> bool:
        """True when there is something to do in a turn, or at a time."""
        return bool(self._commits or self._puts or self._look_ms is not None)

    def run(self, *, is_log_free: bool) -> None:
        """Go on with what can: each turn a slice of the copy, and a look at those that wait."""
        self._is_log_free = is_log_free
        self._looks -= 1
        if self._log.failure is not None:
            self._fail(self._log.failure)
            return
        if self._puts:
            self._look_at_puts()
        steps = STEPS_MAX
        for commit in list(self._commits.values())[:LOOKS_MAX]:
            if steps > 0 and self._may_go_on(commit):
                steps -= self._advance(commit, steps)
        if len(self._commits) > LOOKS_MAX:
            for key in list(self._commits)[:LOOKS_MAX]:
                self._commits[key] = self._commits.pop(key)

    def can_move(self, *, is_log_free: bool) -> bool:
        """True when the next turn would move a commit (law 4)."""
        self._is_log_free = is_log_free
        return any(
            commit.pause is not _TOPICS and self._may_go_on(commit)
            for commit in self._commits.values()
        )

    def _may_go_on(self, commit: _Commit) -> bool:
        if commit.pause is _SYNC:
            return commit.is_synced
        return commit.pause is not _LOG or self._can_write(self._chain.now_ms)

    def _advance(self, commit: _Commit, steps_max: int) -> int:
        """Take steps of a commit until it has to wait; how many."""
        steps = 0
        try:
            while steps < steps_max:
                commit.pause, cost = next(commit.work)
                steps += cost
                if commit.pause is not _GO_ON:
                    break
        except StopIteration:
            self._finish(commit)
        except QueryRefused as refused:
            self._refuse(commit, refused)
        return steps

    def _look_at_puts(self) -> None:
        looked, self._puts = self._puts[:LOOKS_MAX], self._puts[LOOKS_MAX:]
        over: set[SinkKey] = set()
        for put in looked:
            answer: StageRoomResponse | QueryRefused
            try:
                held = self._held_put(put.request)
                if held is not None:
                    self._puts.append(put)
                    self._note_hold(_key(put), held)
                    continue
                answer = self._grant(put.request, put.outlet)
            except QueryRefused as refused:
                answer = refused
            put.outlet.answered(put.request, answer)
            over.add(_key(put))
        # At the end: another put of the same sink may wait on.
        for key in over:
            self._note_hold(key, None)

    def due(self, now_ms: int) -> None:
        """Answer those whose time is up, end stages and sinks whose time is."""
        late = [put for put in self._puts if put.deadline_ms <= now_ms]
        if late:
            self._puts = [put for put in self._puts if put.deadline_ms > now_ms]
            for put in late:
                self._answer_late(put)
        for commit in list(self._commits.values()):
            is_late = any(asker.deadline_ms <= now_ms for asker in commit.askers)
            if is_late and commit.is_looked_at:
                waiting = commit.askers
                commit.askers = [each for each in waiting if each.deadline_ms > now_ms]
                held = CommitBatchResponse(held=self._why(commit))
                for asker in waiting:
                    if asker.deadline_ms <= now_ms:
                        asker.outlet.answered(asker.request, held)
                self._drop_if_idle(commit)
            is_stuck = commit.pause is _LOG and not commit.is_sealed
            if is_stuck and commit.idle_ms is not None and now_ms - commit.idle_ms >= ABANDON_MS:
                self._refuse(commit, QueryRefused(UNREACHABLE, "the disk takes nothing"))
        if self._look_ms is not None and now_ms >= self._look_ms:
            self._end_stages(now_ms)

    def _answer_late(self, put: _HeldPut) -> None:
        try:
            held = self._held_put(put.request)
            answer: StageRoomResponse | QueryRefused
            answer = self._grant(put.request, put.outlet) if held is None else _held(held)
        except QueryRefused as refused:
            answer = refused
        put.outlet.answered(put.request, answer)
        self._note_hold(_key(put), None)

    def _why(self, commit: _Commit) -> str:
        """What a commit waits for, for whoever asked for it."""
        if commit.hold is not None:
            return commit.hold.culprit
        if self._copier is not commit and self._copier is not None:
            return f"the rows of sink '{self._copier.request.sink}' are being copied first"
        return f"its {commit.rows} rows are being copied into the log"

    def next_deadline_ms(self) -> int | None:
        """When ``due`` or ``run`` has something to do that nobody else asks for."""
        deadlines = [put.deadline_ms for put in self._puts]
        for commit in self._commits.values():
            deadlines += [asker.deadline_ms for asker in commit.askers]
            if commit.pause is _LOG and self._retry_ms:
                deadlines.append(self._retry_ms)
            if commit.idle_ms is not None:
                deadlines.append(commit.idle_ms + ABANDON_MS)
        for held in self.held.values():
            if held.hold.until_ms is not None:
                deadlines.append(held.hold.until_ms)
        if self._look_ms is not None:
            deadlines.append(self._look_ms)
        return min(deadlines, default=None)

    def _fail(self, failure: Refusal) -> None:
        """A sync failed: nothing can be stored any more (P4)."""
        refused = QueryRefused(UNREACHABLE, failure.text)
        for commit in list(self._commits.values()):
            self._refuse(commit, refused)
        puts, self._puts = self._puts, []
        for put in puts:
            put.outlet.answered(put.request, refused)
            self._note_hold(_key(put), None)

    # Ends.

    def _look_soon(self) -> None:
        if self._look_ms is None and self._room.batches:
            self._look_ms = self._chain.now_ms + min(LOOK_MS, self._spark.stage_ms_max)
            self._chain.request_turn()

    def _end_stages(self, now_ms: int) -> None:
        committing = {commit.path for commit in self._commits.values()}
        self.counters.expired += self._room.expire(now_ms, committing)
        wall_ms, sinks = self._chain.clock.wall_ms(), self._store.sinks
        for row in list(sinks.rows.values()):
            # Whoever asks again for the answer of a plain write does so while its rows are staged.
            kept_ms = self._spark.stage_ms_max if row.is_single else self._spark.sink_ms_max
            if wall_ms - row.at_ms >= kept_ms and row.key not in self._commits:
                sinks.forget(row.key)
        oldest_ms = min((each.wrote_ms for each in self._room.batches.values()), default=now_ms)
        self._look_ms = min(now_ms + LOOK_MS, max(now_ms + 1, oldest_ms + self._spark.stage_ms_max))
        if not self._room.batches and not sinks.rows:
            self._look_ms = None

    def _bound_sinks(self) -> None:
        """Forget those used longest ago, plain writes first, beyond what is remembered."""
        sinks = self._store.sinks
        while len(sinks.rows) > self._spark.sinks_max:
            singles = (row for row in sinks.rows.values() if row.is_single)
            row = next(singles, None) or next(iter(sinks.rows.values()))
            if not row.is_single:
                extra = {"sink": row.sink, "query": row.query, "batch": row.batch}
                _log.warning("too many sinks: the last batch of one is forgotten", extra=extra)
            sinks.forget(row.key)
        if self._look_ms is None:
            self._look_ms = self._chain.now_ms + LOOK_MS

    # What can be seen of it.

    @property
    def size_bytes(self) -> int:
        """Of all staged rows."""
        return self._room.size_bytes

    @property
    def staged_ms_ago(self) -> int:
        """Since the last put of the batch that ends first, if nobody commits it."""
        now_ms = self._chain.now_ms
        return now_ms - min((each.wrote_ms for each in self._room.batches.values()), default=now_ms)

    @property
    def commits_waiting(self) -> int:
        return len(self._commits)

    @property
    def puts_held(self) -> int:
        return len(self._puts)

    def snapshots(self) -> list[SinkSnapshot]:
        """Sinks and what is staged for them: those that were used last, and all that wait."""
        now_ms, wall_ms, rows = (
            self._chain.now_ms,
            self._chain.clock.wall_ms(),
            self._store.sinks.rows,
        )
        staged: dict[str, list[StagedBatch]] = {}
        for batch in self._room.batches.values():
            staged.setdefault(batch.parent, []).append(batch)
        keys = [*islice(self.held, SHOWN_MAX), *islice(self._commits, SHOWN_MAX)]
        keys += islice(reversed(rows), SHOWN_MAX)
        known = {batch_path(*key, 0).rpartition("/")[0]: key for key in keys}
        for parent in islice(reversed(staged), SHOWN_MAX):
            if parent not in known:
                known[parent] = staged[parent][-1].key
        found = [
            self._snapshot(key, rows.get(key), staged.get(parent, []), now_ms, wall_ms)
            for parent, key in known.items()
        ]
        return sorted(found, key=lambda each: (each.sink, each.query))

    def _snapshot(
        self,
        key: SinkKey,
        row: SinkRow | None,
        batches: list[StagedBatch],
        now_ms: int,
        wall_ms: int,
    ) -> SinkSnapshot:
        held, commit = self.held.get(key), self._commits.get(key)
        return SinkSnapshot(
            sink=key[0],
            query=key[1],
            batch=row.batch if row is not None else -1,
            rows=row.rows if row is not None else 0,
            committed_ms_ago=wall_ms - row.at_ms if row is not None else -1,
            staged_batches=len(batches),
            staged_bytes=sum(each.size_bytes for each in batches),
            staged_ms_ago=max((now_ms - each.wrote_ms for each in batches), default=0),
            state="held" if held is not None else "committing" if commit is not None else "idle",
            held=held.hold.culprit if held is not None else "",
        )


class SinkSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A sink as operators see it; field names are those of the JSON that HTTP gives out."""

    sink: str
    query: str
    batch: int
    """The last one that is visible; -1 = none is known."""
    rows: int
    committed_ms_ago: int
    """-1 = never, as far as is known."""
    staged_batches: int
    staged_bytes: int
    """Rows that wait for their commit, or for their end."""
    staged_ms_ago: int
    """Since the last put of the oldest of them."""
    state: str
    """idle, committing, or held: a put or the commit waits."""
    held: str
    """For what."""


def _key(put: _HeldPut) -> SinkKey:
    return put.request.sink, put.request.query


def _check_passing(request: StageRoomRequest | CommitBatchRequest) -> None:
    if len(request.passing) > PASSING_MAX:
        raise QueryRefused(
            BAD_REQUEST,
            f"limits of at most {PASSING_MAX} topics may be passed by letters, not of "
            f"{len(request.passing)}",
        )


def _spark_ids(request: StageRoomRequest | CommitBatchRequest) -> tuple[str, ...]:
    """Which query of Spark's it may be of: ``query`` is its id only where a stream writes."""
    if request.spark_query:
        return (request.spark_query,)
    if isinstance(request, CommitBatchRequest) and request.checkpoint:
        return (request.query, request.checkpoint)
    return (request.query,)


def _held(hold: Hold) -> StageRoomResponse:
    return StageRoomResponse(held=hold.culprit)


def _plus(known: tuple[int, int] | None, head: BlockHead) -> tuple[int, int]:
    rows, size = known or (0, 0)
    return rows + head.rows, size + head.size_bytes


def _no_stage(commit: _Commit, why: str) -> QueryRefused:
    request = commit.request
    return QueryRefused(
        NO_STAGE,
        f"batch {request.batch} of sink '{request.sink}' cannot be committed: {why}; write the "
        "batch again (staged rows stay for spark.stage_ms_max)",
    )


def _topic_gone(commit: _Commit) -> QueryRefused:
    return QueryRefused(
        NO_TOPIC,
        f"a topic that batch {commit.request.batch} of sink '{commit.request.sink}' was written "
        "for is gone; write the batch again",
    )
