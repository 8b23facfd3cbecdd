"""Steps of Spark's sinks: tasks put rows beside the log, drivers commit, abort and repeat (D19).

A sink outlives the broker, as a Spark driver does. It writes batch after batch, each until it is
told that it is committed: the same rows again when a put or a commit was lost. What a lost attempt
wrote, and what was aborted, must never be seen; what was committed must be there exactly once.
"""

from collections import Counter
from typing import Final, cast

from kit.simulation.ledger import LawBroken, Sent
from kit.simulation.operating import create_topic
from kit.simulation.world import SimTopic, World
from kit.stages import block_of, write_stage
from penstock.engine.spark.query import QueryRefused
from penstock.log.staging import batch_path
from penstock.model.ids import QueueId
from penstock.model.queries import (
    AbortBatchRequest,
    AnyRequest,
    AnyResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    StageDoneRequest,
    StageRoomRequest,
    StageRoomResponse,
)
from penstock.model.record import neutral_record
from penstock.model.spark_batch import NO_STAGE, NO_TOPIC, UNREACHABLE, StagedRows

SINKS_MAX: Final = 2
ROWS_MAX: Final = 12
TARGETS: Final = ("plain", "lanes", "limited", "short")
READ_MAX: Final = 1 << 20


class SimSink:
    """One query's sink: what its batch has, what is put, what it was told."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self.batch = 0
        self.next_number = 0
        self.attempts = 0
        self.rows: list[tuple[SimTopic, int, Sent, int]] = []
        """(topic, queue id, message, deliver time or 0) of the batch under way."""
        self.stages: list[StagedRows] = []
        self.is_asked = False
        self.committed_rows = 0

    def answered(self, request: AnyRequest, answer: AnyResponse | QueryRefused) -> None:
        """What became of a commit; room is never waited for here."""
        assert isinstance(request, CommitBatchRequest)
        self.is_asked = False
        if isinstance(answer, QueryRefused):
            self._refused(answer)
            return
        assert isinstance(answer, CommitBatchResponse)
        if answer.held:
            self._world.trace.note(f"{self.name} held")
            return
        self._committed(answer)

    def _refused(self, refused: QueryRefused) -> None:
        self._world.trace.note(f"{self.name} refused {refused.kind}")
        if refused.kind == NO_STAGE:
            self.stages = []
        elif refused.kind == NO_TOPIC:
            for _, _, sent, _ in self.rows:
                self._world.ledger.refused(sent, is_certain=True)
            self.rows, self.stages = [], []
        elif refused.kind != UNREACHABLE:
            raise LawBroken(f"{self.name} was refused: {refused}")

    def _committed(self, answer: CommitBatchResponse) -> None:
        if answer.rows != len(self.rows):
            raise LawBroken(f"{self.name} wrote {len(self.rows)} rows and has {answer.rows}")
        told: dict[int, int] = {}
        for name, queues in answer.offsets.items():
            for sim_topic, *_ in self.rows:
                if str(sim_topic.name) == name:
                    for number, (first, _) in queues.items():
                        told[sim_topic.queue_ids[number]] = first
        for sim_topic, queue_id, sent, deliver_ms in self.rows:
            places: tuple[tuple[int, int], ...] = ()
            if not deliver_ms and queue_id in told:
                places = ((queue_id, told[queue_id]),)
                told[queue_id] += 1
            sent.may_vanish |= sim_topic.is_deleted
            self._world.ledger.confirmed(sent, places)
        self.committed_rows += len(self.rows)
        self._world.trace.note(f"{self.name} committed {self.batch} {len(self.rows)}")
        self.batch += 1
        self.rows, self.stages = [], []

    def restarted(self) -> None:
        """The broker is another one: who waited asks again, or was started anew himself."""
        self.is_asked = False
        if self._world.rng.random() < 0.4:
            self.stages = []


def stage(world: World) -> None:
    """A sink's tasks put the rows of its batch."""
    sink = _sink(world)
    if sink is None or sink.is_asked or sink.stages:
        return
    if not sink.rows and not _make_rows(world, sink):
        return
    rng = world.rng
    sink.attempts += 1
    tasks = rng.randint(1, min(3, len(sink.rows)))
    share = -(-len(sink.rows) // tasks)
    stages: list[StagedRows] = []
    for task in range(-(-len(sink.rows) // share)):
        rows = sink.rows[task * share : (task + 1) * share]
        if rng.random() < 0.2:
            # A task that was tried twice: nobody names the first, which had other bytes.
            _put(world, sink, f"{task}.lost{sink.attempts}", [_lost(world, sink, rows[0])])
        name = f"{task}.a{sink.attempts}"
        if not _put(world, sink, name, rows):
            return
        stages.append(StagedRows(name=name, rows=len(rows)))
    sink.stages = stages
    world.trace.note(f"{sink.name} staged {sink.batch} {len(sink.rows)}")


def commit(world: World) -> None:
    """A driver commits what its tasks have put."""
    ready = [each for each in _sinks(world) if each.rows and each.stages and not each.is_asked]
    if not ready:
        return
    sink = world.rng.choice(ready)
    _ask(world, sink, world.rng.choice((0, 200, 2000)))


def abort(world: World) -> None:
    """A driver gives an attempt up; with a commit under way nothing comes of it."""
    sinks = [each for each in _sinks(world) if each.stages]
    if not sinks:
        return
    sink = world.rng.choice(sinks)
    names = [each.name for each in sink.stages]
    request = AbortBatchRequest(sink=sink.name, query="q", batch=sink.batch, stages=names)
    try:
        world.engine.queries.handle(request, sink)
    except QueryRefused:
        return
    if not sink.is_asked:
        sink.stages = []
    world.trace.note(f"{sink.name} aborts")


STEPS: Final = ((4, stage), (4, commit), (0.2, abort))


def unfinished(world: World) -> str:
    """A sink whose batch is not committed although nothing is in its way; it goes on asking."""
    for sink in _sinks(world):
        if not sink.rows:
            continue
        if not sink.stages:
            stage(world)
        if sink.stages and not sink.is_asked:
            _ask(world, sink, 2000)
        if sink.rows and not any(row[0].kind == "short" for row in sink.rows):
            return f"sink {sink.name}"
    return ""


def audit(world: World) -> None:
    """No row of a sink is there twice."""
    counts: Counter[str] = Counter()
    for sim_topic in world.live_topics:
        for queue in sim_topic.topic.queues:
            if queue.queue_id in world.ledger.dead_queues:
                continue
            entries = queue.index.entries(queue.index.min_offset, READ_MAX)
            for record in world.store.read([(entry[0], entry[4]) for entry in entries]):
                if record is not None and record.body.startswith(b"sink"):
                    counts[record.body.partition(b"|")[0].decode()] += 1
    twice = [value for value, count in counts.items() if count > 1]
    if twice:
        raise LawBroken(f"{twice[0]} was written once and is there {counts[twice[0]]} times (D19)")


def _sinks(world: World) -> list[SimSink]:
    return cast("list[SimSink]", world.sinks)


def _sink(world: World) -> SimSink | None:
    sinks = _sinks(world)
    if len(sinks) < SINKS_MAX and world.rng.random() < 0.3:
        sinks.append(SimSink(world, world.fresh("sink")))
    return world.rng.choice(sinks) if sinks else None


def _make_rows(world: World, sink: SimSink) -> bool:
    rng = world.rng
    topics = [each for each in world.live_topics if each.kind in TARGETS]
    if not topics:
        create_topic(world)
        return False
    for _ in range(rng.randint(1, ROWS_MAX)):
        sim_topic = rng.choice(topics)
        sink.rows.append(_row(world, sink, sim_topic))
    return True


def _row(world: World, sink: SimSink, sim_topic: SimTopic) -> tuple[SimTopic, int, Sent, int]:
    rng = world.rng
    sent = world.ledger.send(sink.name, sink.next_number, sim_topic.label, rng.randrange(120))
    sink.next_number += 1
    sent.may_vanish = sim_topic.kind == "short"
    deliver_ms = 0
    if rng.random() < 0.1:
        deliver_ms = world.engine.clock.wall_ms() + rng.randrange(1, 1500)
        sent.is_ordered = False
    queue_id = int(rng.choice(sim_topic.queue_ids))
    return sim_topic, queue_id, sent, deliver_ms


def _lost(
    world: World, sink: SimSink, row: tuple[SimTopic, int, Sent, int]
) -> tuple[SimTopic, int, Sent, int]:
    sim_topic, queue_id, _, deliver_ms = row
    sent = world.ledger.send(sink.name, sink.next_number, sim_topic.label, 10)
    sink.next_number += 1
    world.ledger.refused(sent, is_certain=True)
    return sim_topic, queue_id, sent, deliver_ms


def _put(
    world: World, sink: SimSink, name: str, rows: list[tuple[SimTopic, int, Sent, int]]
) -> bool:
    """One task's file; False when it broke, or there was no room."""
    key = (sink.name, "q", sink.batch)
    topics = sorted({str(row[0].name) for row in rows if not row[0].is_deleted})
    room = StageRoomRequest(
        sink=sink.name, query="q", batch=sink.batch, name=name, topics=topics, bytes=1000
    )
    try:
        answer = world.engine.queries.handle(room, sink)
    except QueryRefused:
        return False
    if not isinstance(answer, StageRoomResponse) or answer.held:
        return False
    blocks = []
    for queue_id, is_delayed in dict.fromkeys((row[1], bool(row[3])) for row in rows):
        records = []
        for _, own_queue, sent, deliver_ms in rows:
            if (own_queue, bool(deliver_ms)) == (queue_id, is_delayed):
                record = neutral_record(sent.body)
                record.reshape(deliver_ms=deliver_ms)
                records.append(record)
        blocks.append(block_of(QueueId(queue_id), records))
    try:
        path = write_stage(world.storage, key, name, blocks)
        size = world.storage.size(path)
    except (OSError, AssertionError):
        _remove(world, f"{batch_path(*key)}/{name}")
        size = 0
    done = StageDoneRequest(sink=sink.name, query="q", batch=sink.batch, name=name, bytes=size)
    world.engine.queries.handle(done, sink)
    return size > 0


def _remove(world: World, path: str) -> None:
    try:
        world.storage.remove(path)
    except OSError:
        return


def _ask(world: World, sink: SimSink, wait_ms: int) -> None:
    request = CommitBatchRequest(
        sink=sink.name, query="q", batch=sink.batch, stages=sink.stages, wait_ms=wait_ms
    )
    sink.is_asked = True
    try:
        answer = world.engine.queries.handle(request, sink)
    except QueryRefused as refused:
        sink.answered(request, refused)
        return
    world.trace.note(f"{sink.name} commits {sink.batch}")
    if answer is not None:
        sink.answered(request, answer)
