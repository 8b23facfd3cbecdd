"""Spark queries as the broker knows them: where each stands, what is kept for it, whom it brakes.

Several queries may share one subscription (two sinks of one DataFrame): each has a checkpoint of
its own, a position and a lease, so what the slowest needs is kept. The first is named as the
subscription, the others with ``#`` and the beginning of their checkpoint's id. A new run of a
checkpoint goes on in the place of the old one.

Where a query stands is a subscription ``spark/<name>`` on each of its topics: durable, without
consumers and not among those that hold data by themselves (D11), because its lease does that. The
position is what the query says it has processed for good: the ``start`` of its polls. Rows in the
catalog hold leases, cursors hold positions, so both outlive the broker. A lease is looked at every
second, a brake ten times as often while somebody is behind; in pieces of ``LOOK_STEPS_MAX`` queues,
and others have their turns between two of them, however many queries there are. A query that is
forgotten is so at once; its positions go piece by piece, in the same looks.

Invariants: a position goes back only when a query that was silent takes its lease there, or when
two polls in a row name an older one: a poll that was late does not undo the one after it. A lease
that breaks is reported once (log, counter, ``take_lease_events``). A query without a row is one
whose positions were found at a restart.

Not here: polls (``query_service.py``), the arithmetic of a brake (``flow/spark_brake.py``).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec.structs import replace

from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.topic import Hold, TopicLimits, needs_limits
from penstock.flow.reason import Culprit, Reason
from penstock.flow.reserve import Reserve
from penstock.flow.spark_brake import (
    BacklogBound,
    Backpressure,
    Brake,
    Cause,
    DrainRate,
    Lease,
    QueryBacklog,
)
from penstock.model.errors import AlreadyExists, PenstockError
from penstock.model.names import control_problem, object_id
from penstock.model.queries import AnyRequest, AnyResponse, OffsetMap
from penstock.model.spark_batch import BAD_REQUEST, BatchProgress

if TYPE_CHECKING:
    from penstock.engine.flow_context import FlowContext
    from penstock.engine.host import Host
    from penstock.engine.registry import Registry
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Queue, Topic, TopicPolicy
    from penstock.log.catalog import Definitions
    from penstock.settings.protocols import SparkSettings

_log = logging.getLogger(__name__)

PREFIX: Final = "spark/"
QUERY_KIND: Final = "spark-query"

POSITION_OPTIONS: Final = SubscriptionOptions(mode=Mode.EXCLUSIVE, holds_data=False)


class QueryRefused(PenstockError):
    """A request that cannot be answered; ``kind`` is for programs, the text for people."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind: Final = kind


class QueryOutlet(Protocol):
    """Whoever asks."""

    def answered(self, request: AnyRequest, answer: AnyResponse | QueryRefused) -> None:
        """A question that had to wait has its answer."""
        ...


class LeaseEvent(msgspec.Struct, frozen=True):
    """A lease that broke, or was mended."""

    at_ms: int
    """Wall time."""
    event: str
    """``lease-broken`` or ``lease-mended``."""
    query: str
    cause: str
    text: str


class QueryRow(msgspec.Struct, frozen=True):
    """A query in the catalog; its key is the name, its positions are cursors."""

    ttl_ms: int
    heard_ms: int
    """Wall time; written now and then, so a restart may find it a little old."""
    cause: Cause = ""
    text: str = ""
    subscription: str = ""
    """Empty in rows of before: the name."""
    checkpoint: str = ""
    is_leaving: bool = False
    """True when it is forgotten, and some of its positions are still there."""


class Query:
    """One query: its position on each topic, its lease, how fast it drains.

    It keeps no rows and holds no poll; whoever stops hearing of it asks ``is_alive``.
    """

    __slots__ = (
        "_back",
        "checkpoint",
        "coming",
        "dead",
        "drain",
        "failure",
        "had_batch",
        "heard_ms",
        "is_limited",
        "last",
        "lease",
        "lost",
        "name",
        "own_rows_max",
        "polls",
        "reads",
        "retried",
        "saved_ms",
        "state",
        "subscription",
        "text",
    )

    def __init__(self, name: str, lease: Lease) -> None:
        self.name: Final = name
        self.subscription = name
        self.checkpoint = ""
        """Which of the subscription's queries it is; empty = it does not say."""
        self.had_batch = False
        """True when a checkpoint may hold a batch of it, which must then be readable again."""
        self.lease: Final = lease
        self.reads: dict[Topic, Subscription] = {}
        """Its topics, and its position on each."""
        self.coming: Counter[Topic] = Counter()
        """Topics that positions are being made on, by how many requests."""
        self.drain = DrainRate()
        self.last = BatchProgress()
        self.state = "new"
        """new, running, idle, stopped or failed."""
        self.text = ""
        """What its last word said besides."""
        self.failure = ""
        """Why it failed, until a batch of it is done."""
        self.heard_ms: int | None = None
        """Monotonic time of its last word; None = not since the broker started."""
        self.saved_ms = 0
        """Wall time of the row in the catalog."""
        self.is_limited = False
        """True when the last batch was smaller than what was there: its own limits bound it."""
        self.own_rows_max = 0
        """Rows of the last batch when they are all that its user allows; 0 = it is not at that."""
        self.polls = 0
        self.retried = 0
        self.dead = 0
        """Rows that its flow sent to be tried again, and to the dead letters; since the start."""
        self.lost = 0
        """Most messages of a queue that were gone before it read them."""
        # Offsets that one poll named below the position: the next one decides.
        self._back: dict[int, int] = {}

    def is_alive(self, now_ms: int, alive_ms_max: int) -> bool:
        """True when it was heard of lately and has not said that it is over."""
        return (
            self.heard_ms is not None
            and now_ms - self.heard_ms <= alive_ms_max
            and not self.is_over
        )

    @property
    def is_over(self) -> bool:
        """True when it said so, and did not poll since."""
        return self.state in ("stopped", "failed")

    def row(self, *, is_leaving: bool = False) -> bytes:
        lease = self.lease
        row = QueryRow(
            lease.ttl_ms,
            lease.heard_ms,
            lease.cause,
            lease.text,
            self.subscription,
            self.checkpoint,
            is_leaving,
        )
        return msgspec.json.encode(row)

    # Where it stands.

    def position(self, queue: Queue) -> int:
        """Everything below is processed; what retention removed is not counted as behind."""
        return max(self.reads[queue.topic].low_mark(queue.queue_id), queue.index.min_offset)

    def lowest(self, queue: Queue) -> int:
        """The first offset that is kept for it: a step back that one poll named counts already."""
        low = self.reads[queue.topic].low_mark(queue.queue_id)
        return min(low, self._back.get(queue.queue_id, low))

    def acknowledge(self, queue: Queue, offset: int, *, is_sure: bool = False) -> tuple[int, int]:
        """It has processed everything below; returns (messages, bytes) that this is ahead."""
        subscription, queue_id = self.reads[queue.topic], queue.queue_id
        low = subscription.low_mark(queue_id)
        if offset == low:
            self._back.pop(queue_id, None)
            return 0, 0
        if offset > low:
            self._back.pop(queue_id, None)
            size = queue.index.bytes_between(low, offset)
            subscription.commit(queue_id, offset)
            return offset - max(low, queue.index.min_offset), size
        if is_sure or queue_id in self._back:
            self._back.pop(queue_id, None)
            where = {"query": self.name, "queue": queue.name, "from": low, "to": offset}
            _log.info("a query began again at an older place", extra=where)
            subscription.commit(queue_id, offset)
        else:
            self._back[queue_id] = offset
        return 0, 0

    def topics(self) -> list[Topic]:
        """What it reads and still exists."""
        return [topic for topic in self.reads if not topic.is_deleted]

    def backlog(self, topic: Topic, wall_ms: int, now_ms: int) -> QueryBacklog:
        """How far it is behind on one topic, unsynced messages included."""
        messages = size = 0
        oldest_ms = wall_ms
        for queue in topic.queues:
            index, low = queue.index, self.position(queue)
            if index.next_offset > low:
                messages += index.next_offset - low
                size += index.bytes_between(low, index.next_offset)
                entries = index.entries(low, 1)
                oldest_ms = min(oldest_ms, entries[0][3]) if entries else oldest_ms
        return QueryBacklog(
            self.name,
            messages,
            size,
            wall_ms - oldest_ms,
            self.drain.messages_per_s(now_ms),
            self.drain.bytes_per_s(now_ms),
            self.last.slow_part,
        )

    def held_bytes(self) -> int:
        """Log bytes that are kept for it."""
        return sum(self.held_bytes_of(topic) for topic in self.topics())

    def held_bytes_of(self, topic: Topic) -> int:
        return sum(
            queue.index.bytes_between(self.lowest(queue), queue.index.next_offset)
            for queue in topic.queues
        )


# ---- all queries of an engine -------------------------------------------------------------------


LEASE_LOOK_MS: Final = 1000
BRAKE_LOOK_MS: Final = 100
LOOK_STEPS_MAX: Final = 500
"""Queues of queries that are looked at in one go: some 2 ms."""
POSITION_STEPS: Final = 6
QUEUE_POSITION_STEPS: Final = 3
"""What it costs to make the position of a query on a topic, and on each of its queues."""
FORGET_STEPS: Final = 2
"""What it costs to remove the position of a query on a topic, and again on each of its queues."""
LOOK_PIECE_MS: Final = 20
"""Between two pieces of a look: it may take a tenth of a core, and no more."""
SAVE_MS: Final = 60_000
"""How old the word of a living query may be in the catalog: little beside a lease of a day."""
LEASE_EVENTS_MAX: Final = 256
"""Kept for ``take_lease_events`` when nobody takes them."""
SUBSCRIPTION_QUERIES_MAX: Final = 16
"""On one subscription, so that new checkpoints day by day do not use up ``spark.queries_max``."""
CHECKPOINT_NAMED: Final = 8
"""Characters of a checkpoint's id in the name of a query that is not the first."""
CHECKPOINT_ID: Final = re.compile(r"[0-9A-Za-z-]{0,64}")


class QueryRegistry:
    """Every query of one engine: their rows in the catalog, leases, and brakes on publishers."""

    def __init__(
        self,
        settings: SparkSettings,
        chain: FlowContext,
        *,
        definitions: Definitions,
        registry: Registry,
        host: Host,
        remove_subscription: Callable[[Topic, Subscription, str], None],
    ) -> None:
        self._settings = settings
        self._chain = chain
        self._definitions = definitions
        self._registry = registry
        self._host = host
        self._remove_subscription = remove_subscription
        self.queries: dict[str, Query] = {}
        self._reserve = Reserve(chain.topics.reserve_percent)
        self._by_checkpoint: dict[tuple[str, str], Query] = {}
        """By subscription and checkpoint."""
        self._leaving: dict[str, Query] = {}
        """Forgotten, with positions that are still to be removed; nobody else knows them."""
        self.readers: dict[Topic, dict[Query, int]] = {}
        """Who reads a topic, and how many queues it had then; to be looked at only."""
        self.positions = 0
        """Queues that all queries read together."""
        self._coming = 0
        """Queues that they will read besides, once the requests under way are done."""
        self._round: Iterator[int] | None = None
        """A look at all leases and brakes that is under way."""
        self._is_behind = False
        self.pressures: Final = Pressures(
            settings, self.backlogs, self.positions_on, lambda: self._chain.now_ms
        )
        self.leases_broken: Counter[str] = Counter()
        """By cause."""
        self._lease_events: list[LeaseEvent] = []
        self.look_ms: int | None = None
        """When leases and brakes want to be looked at; None without queries."""

    @property
    def query_queues_max(self) -> int:
        """Queues that one query may read."""
        return self._settings.query_queues_max

    def restore(self) -> None:
        """After a restart: the queries whose positions or leases are there."""
        wall_ms = self._chain.clock.wall_ms()
        for topic in self._registry.topics.values():
            for name, subscription in topic.subscriptions.items():
                if name.startswith(PREFIX):
                    query = self._known(name.removeprefix(PREFIX), wall_ms)
                    self._read(query, topic, subscription)
                    query.had_batch = True
        for name, body in self._definitions.all(QUERY_KIND).items():
            if name not in self.queries:
                self._definitions.delete(QUERY_KIND, name)  # its topics are gone
                continue
            row, query = msgspec.json.decode(body, type=QueryRow), self.queries[name]
            query.lease.ttl_ms = self.ttl_ms(row.ttl_ms)
            query.lease.restore(min(row.heard_ms, wall_ms), row.cause, row.text)
            query.saved_ms = row.heard_ms
            self._identify(query, row.subscription or name, row.checkpoint)
            if row.is_leaving:
                self._leave(query)
        if self.queries or self._leaving:
            self.look_ms = self._chain.now_ms

    # What queries say.

    def find(self, subscription: str, checkpoint: str) -> Query | None:
        """The query of a checkpoint; one that never said which it is may be any."""
        found = self._by_checkpoint.get((subscription, checkpoint))
        if found is None:
            found = self.queries.get(subscription)
            if found is not None and checkpoint and found.checkpoint:
                return None
        return found

    def on_subscription(self, subscription: str) -> list[Query]:
        return [each for each in self.queries.values() if each.subscription == subscription]

    def get_or_create(
        self,
        subscription: str,
        topics: list[Topic],
        start: OffsetMap,
        checkpoint: str = "",
        *,
        maker: str = "",
    ) -> Generator[int, None, Query]:
        """The query of that subscription and checkpoint on these topics, made if there is none.

        Yields what each step costs: a position on a topic takes longer than a look at one. Whoever
        leaves it before its end leaves a query on some of the topics, and the next request of the
        same query makes the rest; so does one behind a crash, since the row is saved first.
        """
        while True:
            # Names, places and positions of those that leave are free once they are gone.
            yield from self._forgetting()
            query = self.find(subscription, checkpoint)
            missing = self._check_positions(query, topics)
            if query is None:
                self._make_room(subscription, checkpoint, maker)
            if not self._leaving:
                break
        is_new = query is None
        if query is None:
            name = self._free_name(subscription, checkpoint)
            query = self._known(name, self._chain.clock.wall_ms())
            self._reserve.made(maker)
        if checkpoint and not query.checkpoint:
            self._identify(query, subscription, checkpoint)
            is_new = True
        for topic in [each for each in query.reads if each.is_deleted]:
            self._unread(query, topic)
        self.heartbeat(query)
        if is_new:
            self.save(query)
        yield from self._read_all(query, missing, start)
        yield len(topics)
        return query

    def _read_all(
        self, query: Query, missing: dict[Topic, int], start: OffsetMap
    ) -> Generator[int, None, None]:
        """Make a position on each of these topics, whose queues count until that is done."""
        for topic, queues in missing.items():
            self._expect(query, topic, queues)
        try:
            while missing:
                if self.queries.get(query.name) is not query:
                    raise QueryRefused(
                        BAD_REQUEST,
                        f"query '{query.name}' was forgotten while its positions were made; ask "
                        "again",
                    )
                topic = next(iter(missing))
                if topic not in query.reads and not topic.is_deleted:
                    self._read(query, topic, self._subscribed(query, topic, start))
                queues = missing.pop(topic)
                self._expect_no_more(query, topic, queues)
                yield POSITION_STEPS + QUEUE_POSITION_STEPS * queues
        finally:
            for topic, queues in missing.items():
                self._expect_no_more(query, topic, queues)

    def _expect(self, query: Query, topic: Topic, queues: int) -> None:
        query.coming[topic] += 1
        self._coming += queues

    def _expect_no_more(self, query: Query, topic: Topic, queues: int) -> None:
        query.coming[topic] -= 1
        if not query.coming[topic]:
            del query.coming[topic]
        self._coming -= queues

    def heartbeat(self, query: Query) -> None:
        """It polled or reported: it lives, and so does its lease; not that of a forgotten one."""
        if self.queries.get(query.name) is not query:
            return
        query.heard_ms = self._chain.now_ms
        wall_ms = self._chain.clock.wall_ms()
        lease = query.lease
        if lease.cause:
            cause = lease.cause
            if lease.hear(wall_ms, query.held_bytes()):
                self._record(LeaseEvent(wall_ms, "lease-mended", query.name, cause, "it is back"))
                self.save(query)
        else:
            lease.hear(wall_ms, 0)
        if wall_ms - query.saved_ms >= SAVE_MS:
            self.save(query)
        if self.look_ms is None:
            self.look_ms = query.heard_ms
            self._chain.request_turn()

    def save(self, query: Query) -> None:
        """Put its row into the next transaction, unless it was forgotten meanwhile."""
        if self.queries.get(query.name) is not query:
            return
        query.saved_ms = query.lease.heard_ms
        self._definitions.put(QUERY_KIND, query.name, query.row())
        self._chain.request_turn()

    def release(self, name: str, *, is_final: bool) -> None:
        """Nothing is kept for it any more; with ``is_final`` it is forgotten.

        Many positions are removed piece by piece (``due``), also behind a crash.
        """
        query = self.queries.get(name)
        if query is None:
            return
        query.lease.release()
        query.state = "stopped"
        if is_final:
            self._leave(query)
            if len(self._leaving) > 1 or self._forget_some():
                self._definitions.put(QUERY_KIND, name, query.row(is_leaving=True))
        else:
            self.save(query)
        self.look_ms = self._chain.now_ms
        self._chain.request_turn()

    def _leave(self, query: Query) -> None:
        del self.queries[query.name]
        self._by_checkpoint.pop((query.subscription, query.checkpoint), None)
        self._leaving[query.name] = query

    def _forget_some(self) -> bool:
        """One piece of it; True when there is more."""
        steps = 0
        for step in self._forgetting():
            steps += step
            if steps >= LOOK_STEPS_MAX:
                break
        return bool(self._leaving)

    def _forgetting(self) -> Iterator[int]:
        """Remove the positions of all that leave; may be left and begun again at any step."""
        while self._leaving:
            query = next(iter(self._leaving.values()))
            if query.reads:
                topic, read = next(iter(query.reads.items()))
                if not topic.is_deleted:
                    self._remove_subscription(topic, read, "released")
                self._unread(query, topic)
                yield FORGET_STEPS * (1 + len(topic.queues))
            else:
                # Last: as long as one position is there, a restart knows that it has to go.
                del self._leaving[query.name]
                self._definitions.delete(QUERY_KIND, query.name)

    # Leases and brakes.

    def due(self, now_ms: int) -> None:
        """Look at leases and brakes, if it is time; or at the next piece of them."""
        if self.look_ms is None or now_ms < self.look_ms:
            return
        if self._leaving and self._forget_some():
            self.look_ms = now_ms + LOOK_PIECE_MS
            return
        if self._round is None:
            self._is_behind = False
            self._round = self._looking()
        steps = 0
        for step in self._round:
            steps += step
            if steps >= LOOK_STEPS_MAX:
                self.look_ms = now_ms + LOOK_PIECE_MS
                return
        self._round = None
        pause_ms = BRAKE_LOOK_MS if self._is_behind else LEASE_LOOK_MS
        self.look_ms = now_ms + pause_ms if self.queries else None

    def _looking(self) -> Iterator[int]:
        """One look at every lease and every brake; yields how many queues each part looked at.

        Turns pass in between: whoever came meanwhile is seen the next time.
        """
        for query in list(self.queries.values()):
            if query.lease.holds and self.queries.get(query.name) is query:
                yield from self._judge(query)
        for topic in [each for each in self.pressures.by_topic if each not in self.readers]:
            self._braked(self.pressures.forget(topic))
            yield 1
        for topic in list(self.readers):
            yield 1
            if topic.is_deleted:
                for query in list(self.readers[topic]):
                    self._unread(query, topic)
                self._braked(self.pressures.forget(topic))
                continue
            backlogs: list[QueryBacklog] = []
            for query in list(self.readers.get(topic, ())):
                if self._may_brake(query, topic):
                    now_ms, wall_ms = self._chain.now_ms, self._chain.clock.wall_ms()
                    backlogs.append(query.backlog(topic, wall_ms, now_ms))
                    yield len(topic.queues)
            if backlogs:
                self._braked(self.pressures.look(topic, backlogs))
                self._is_behind |= self.pressures.by_topic[topic].is_bounded
            else:
                self._braked(self.pressures.forget(topic))

    def _judge(self, query: Query) -> Iterator[int]:
        held_bytes = 0
        for topic in query.topics():
            if not topic.is_deleted and topic in query.reads:
                held_bytes += query.held_bytes_of(topic)
            yield len(topic.queues)
        wall_ms, lease = self._chain.clock.wall_ms(), query.lease
        if lease.judge(wall_ms, held_bytes):
            self.leases_broken[lease.cause] += 1
            self._record(LeaseEvent(wall_ms, "lease-broken", query.name, lease.cause, lease.text))
            self.save(query)

    def _braked(self, is_changed: bool) -> None:
        if is_changed:
            self._chain.request_turn()

    def look_now(self, topic: Topic) -> None:
        """Its limits were made anew: a brake belongs into them before the next publish is judged.

        A topic that many read is looked at piece by piece, with all others.
        """
        if topic in self.readers and self.positions_on(topic) <= LOOK_STEPS_MAX:
            backlogs = self.backlogs(topic)
            is_changed = (
                self.pressures.look(topic, backlogs) if backlogs else self.pressures.forget(topic)
            )
            self._braked(is_changed)
        if self.look_ms is not None:
            self.look_ms = self._chain.now_ms

    def lowest_kept(self, queue: Queue) -> int | None:
        """The first offset that a lease keeps of a queue; None when none does (D11)."""
        readers = self.readers.get(queue.topic)
        if not readers:
            return None
        return min((query.lowest(queue) for query in readers if query.lease.holds), default=None)

    def backlogs(self, topic: Topic) -> list[QueryBacklog]:
        """How far behind each query is that may brake a topic's publishers."""
        now_ms, wall_ms = self._chain.now_ms, self._chain.clock.wall_ms()
        return [
            query.backlog(topic, wall_ms, now_ms)
            for query in self.readers.get(topic, ())
            if self._may_brake(query, topic)
        ]

    def positions_on(self, topic: Topic) -> int:
        """How many queues ``backlogs`` looks at."""
        return len(self.readers.get(topic, ())) * len(topic.queues)

    def ttl_ms(self, wanted_ms: int) -> int:
        """How long a lease lasts without a word; 0 = as long as may be."""
        longest_ms = self._settings.lease_ms_max
        return min(wanted_ms, longest_ms) if wanted_ms > 0 else longest_ms

    def take_lease_events(self) -> list[LeaseEvent]:
        """Leases that broke or were mended since the last call, for events."""
        events, self._lease_events = self._lease_events, []
        return events

    def is_alive(self, query: Query) -> bool:
        """True when it was heard of lately."""
        return query.is_alive(self._chain.now_ms, self._settings.alive_ms_max)

    def _may_brake(self, query: Query, topic: Topic) -> bool:
        return query.lease.holds and topic in query.reads and self.is_alive(query)

    def _read(self, query: Query, topic: Topic, position: Subscription) -> None:
        query.reads[topic] = position
        queues = len(topic.queues)
        self.readers.setdefault(topic, {})[query] = queues
        self.positions += queues

    def _unread(self, query: Query, topic: Topic) -> None:
        query.reads.pop(topic, None)
        readers = self.readers.get(topic)
        if readers is not None:
            self.positions -= readers.pop(query, 0)
            if not readers:
                del self.readers[topic]

    def _check_positions(self, query: Query | None, topics: list[Topic]) -> dict[Topic, int]:
        """The topics that are new to it, and their queues.

        Refuses what would make looks at leases and brakes take for ever. Positions that are being
        made are counted, so that requests side by side keep the bounds, too.
        """
        own = query.reads if query is not None else {}
        missing = {topic: len(topic.queues) for topic in topics if topic not in own}
        if not missing:
            return missing
        more = sum(missing.values())
        settings = self._settings
        there = {*own, *(query.coming if query is not None else ())}.difference(missing)
        one = more + sum(len(topic.queues) for topic in there if not topic.is_deleted)
        if one > settings.query_queues_max:
            raise QueryRefused(
                BAD_REQUEST,
                f"the query would read {one} queues and {settings.query_queues_max} are allowed "
                "(spark.query_queues_max); read fewer topics, or divide them over several queries",
            )
        all_ = more + self._coming + self.positions
        if all_ > settings.positions_max:
            raise QueryRefused(
                BAD_REQUEST,
                f"all queries together would read {all_} queues and {settings.positions_max} are "
                "allowed (spark.positions_max); forget one with `penstock queries forget`, or read "
                "fewer topics",
            )
        return missing

    def _known(self, name: str, wall_ms: int) -> Query:
        query = self.queries.get(name)
        if query is None:
            settings = self._settings
            lease = Lease(
                ttl_ms=settings.lease_ms_max, bytes_max=settings.lease_bytes_max, now_ms=wall_ms
            )
            query = self.queries[name] = Query(name, lease)
        return query

    def _identify(self, query: Query, subscription: str, checkpoint: str) -> None:
        query.subscription, query.checkpoint = subscription, checkpoint
        if checkpoint:
            self._by_checkpoint[subscription, checkpoint] = query

    def _make_room(self, subscription: str, checkpoint: str, maker: str) -> None:
        """Look whether one more may be; those that left nothing to go back to make place."""
        problem = control_problem("subscription", subscription)
        if problem is not None:
            raise QueryRefused(BAD_REQUEST, problem)
        if not CHECKPOINT_ID.fullmatch(checkpoint):
            raise QueryRefused(
                BAD_REQUEST,
                "the id of a checkpoint has at most 64 letters and digits; use the source of "
                "`penstock-broker`, which makes one",
            )
        silent = [each for each in self.on_subscription(subscription) if not self.is_alive(each)]
        for query in [each for each in silent if not each.had_batch]:
            silent.remove(query)
            self.release(query.name, is_final=True)
        if len(self.on_subscription(subscription)) >= SUBSCRIPTION_QUERIES_MAX:
            self._replace_silent(subscription, silent)
        places_max = self._settings.queries_max
        if not subscription or len(self.queries) >= places_max:
            raise QueryRefused(
                BAD_REQUEST,
                f"there are {len(self.queries)} queries and {places_max} are allowed "
                "(spark.queries_max); forget one with `penstock queries forget`",
            )
        problem = self._reserve.refusal(maker, len(self.queries), places_max)
        if problem is not None:
            raise QueryRefused(
                BAD_REQUEST,
                f"no more queries (spark.queries_max): {problem} with `penstock queries forget`",
            )

    def _replace_silent(self, subscription: str, silent: list[Query]) -> None:
        """The one that is kept for nothing, else the longest silent, goes."""
        if not silent:
            raise QueryRefused(
                BAD_REQUEST,
                f"{SUBSCRIPTION_QUERIES_MAX} queries run on subscription '{subscription}', and no "
                "more may; give this one a subscription of its own",
            )
        query = min(silent, key=lambda each: (each.lease.holds, each.lease.heard_ms))
        if query.lease.holds:
            text = (
                f"subscription '{subscription}' has {SUBSCRIPTION_QUERIES_MAX} queries, the longest"
                " silent one made room for a new one"
            )
            wall_ms = self._chain.clock.wall_ms()
            self.leases_broken["silence"] += 1
            self._record(LeaseEvent(wall_ms, "lease-broken", query.name, "silence", text))
        self.release(query.name, is_final=True)

    def _free_name(self, subscription: str, checkpoint: str) -> str:
        short = f"{subscription}#{checkpoint[:CHECKPOINT_NAMED]}"
        names = (subscription, short, f"{subscription}#{checkpoint}")
        name = next((each for each in names if each not in self.queries), None)
        if name is None:
            raise QueryRefused(
                BAD_REQUEST,
                f"a subscription is named '{names[-1]}' already; name yours without '#'",
            )
        return name

    def _subscribed(self, query: Query, topic: Topic, start: OffsetMap) -> Subscription:
        found = topic.subscriptions.get(PREFIX + query.name)
        if found is not None:
            return found
        options = replace(POSITION_OPTIONS, is_durable=topic.is_durable)
        try:
            made = self._registry.create_subscription(
                topic, PREFIX + query.name, options, self._host
            )
        except AlreadyExists as problem:
            raise QueryRefused(BAD_REQUEST, str(problem)) from None
        given = start.get(str(topic.name), {})
        for queue in topic.queues:
            # Where it begins is known at once, so it is no progress and no step back.
            offset = given.get(queue.number, 0)
            if queue.index.min_offset < offset <= queue.durable_end:
                made.seek(queue.queue_id, offset)
        return made

    def _record(self, event: LeaseEvent) -> None:
        extra = {"query": event.query, "cause": event.cause, "why": event.text}
        if event.event == "lease-broken":
            _log.warning("the lease of a query is broken; its data is not kept", extra=extra)
        else:
            _log.info("the lease of a query holds again", extra=extra)
        if len(self._lease_events) < LEASE_EVENTS_MAX:
            self._lease_events.append(event)


# ---- pressure -----------------------------------------------------------------------------------
# Back-pressure of queries on the publishers of their topics, brought to the gate (F18, D23).
#
# A topic without a query, or with queries within their bounds, has no brake and costs a publish
# nothing. Soft: the brake is hung into the topic's limits while the bound is passed. Hard: as long
# as a query that lives reads the topic, because "at the bound" must be exact. Only queries that
# were heard of within ``spark.alive_ms_max`` and whose lease holds count: no dead query holds
# publishers.
#
# Not here: the arithmetic (``flow/spark_brake.py``), what holding means (``engine/publish.py``).


Backlogs = Callable[["Topic"], list[QueryBacklog]]
Positions = Callable[["Topic"], int]
"""How many queues of queries there are to look at for the backlogs of a topic."""


class TopicPressure:
    """The brake of one topic; satisfies ``topic.SparkPressure``."""

    __slots__ = ("_backlogs", "_now", "_policy", "_positions", "brake", "topic")

    def __init__(
        self,
        topic: Topic,
        brake: Brake,
        backlogs: Backlogs,
        positions: Positions,
        now: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.brake = brake
        self._backlogs = backlogs
        self._positions = positions
        self._now = now
        self._policy = topic.policy

    @property
    def query(self) -> str:
        """Which one it is; empty while none brakes."""
        return self.brake.query

    @property
    def is_stale(self) -> bool:
        """True when the policy it was made by is not the topic's any more."""
        return self._policy is not self.topic.policy

    @property
    def is_bounded(self) -> bool:
        """True when a query could fall so far behind that publishers are braked."""
        return self.brake.mode is not Backpressure.OFF and self.brake.bound.is_set

    def look(self, backlogs: list[QueryBacklog]) -> bool:
        """Fresh figures; True when the brake was put on or let go."""
        return self.brake.look(backlogs, self._now())

    def begin(self, arriving: int, arriving_bytes: int) -> None:
        """Fresh figures for this turn.

        Of a topic that very many read they are those of the last look and what was admitted since:
        never less than what is behind, so a hard bound holds all the same.
        """
        if self._positions(self.topic) <= LOOK_STEPS_MAX:
            self.look(self._backlogs(self.topic))
        self.brake.count(arriving, arriving_bytes)

    def judge(self, messages: int, size_bytes: int, now_ms: int) -> Hold | None:
        held = self.brake.judge(messages, size_bytes, now_ms)
        if held is None:
            return None
        culprit = Culprit(held.culprit, object_id("query", self.brake.query))
        return Hold(Reason.SPARK, culprit, held.until_ms)

    def admit(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """The publish is on its way in."""
        self.brake.admit(messages, size_bytes, now_ms)


class Pressures:
    """The brakes of all topics that queries read."""

    __slots__ = ("_backlogs", "_now", "_positions", "_settings", "by_topic")

    def __init__(
        self,
        settings: SparkSettings,
        backlogs: Backlogs,
        positions: Positions,
        now: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._backlogs = backlogs
        self._positions = positions
        self._now = now
        self.by_topic: dict[Topic, TopicPressure] = {}

    def look(self, topic: Topic, backlogs: list[QueryBacklog]) -> bool:
        """Fresh figures of the living queries that read a topic; True when its brake changed."""
        is_changed = False
        pressure = self.by_topic.get(topic)
        if pressure is None or pressure.is_stale:
            if pressure is not None:
                self._detach(pressure)
            pressure = self.by_topic[topic] = self._made(topic)
        is_changed |= pressure.look(backlogs)
        brake = pressure.brake
        if brake.is_on or (brake.mode is Backpressure.HARD and brake.bound.is_set):
            self._attach(pressure)
        else:
            is_changed |= self._detach(pressure)
        return is_changed

    def forget(self, topic: Topic) -> bool:
        """No living query reads it; True when that lets publishers go."""
        pressure = self.by_topic.pop(topic, None)
        return pressure is not None and self._detach(pressure)

    def held(self, topic: Topic, query: str) -> str | None:
        """Why publishers of a topic wait because of a query, if they do."""
        pressure = self.by_topic.get(topic)
        if pressure is None or not pressure.brake.is_on or pressure.brake.query != query:
            return None
        return pressure.brake.explain()

    def bound(self, topic: Topic) -> tuple[str, int]:
        """The setting that holds them then, and what it is."""
        pressure = self.by_topic.get(topic)
        return ("", 0) if pressure is None else pressure.brake.tightest

    def _made(self, topic: Topic) -> TopicPressure:
        mode, bound = self.rule(topic.policy)
        brake = Brake(str(topic.name), mode, bound, self._now())
        return TopicPressure(topic, brake, self._backlogs, self._positions, self._now)

    def rule(self, policy: TopicPolicy) -> tuple[Backpressure, BacklogBound]:
        """What holds for a topic with this policy: its own words, else the settings'."""
        own = self._settings
        bound = BacklogBound(
            _given(policy.spark_backlog_messages_max, own.backlog_messages_max),
            _given(policy.spark_backlog_bytes_max, own.backlog_bytes_max),
            _given(policy.spark_backlog_age_ms_max, own.backlog_age_ms_max),
        )
        return Backpressure(policy.spark_backpressure or own.backpressure), bound

    def _attach(self, pressure: TopicPressure) -> None:
        topic = pressure.topic
        if topic.limits is None:
            topic.limits = TopicLimits(topic, self._now())
        topic.limits.spark = pressure

    def _detach(self, pressure: TopicPressure) -> bool:
        topic = pressure.topic
        if topic.limits is None or topic.limits.spark is not pressure:
            return False
        topic.limits.spark = None
        if not needs_limits(topic):
            topic.limits = None
        return True


def _given(value: int, default: int) -> int:
    return default if value < 0 else value
