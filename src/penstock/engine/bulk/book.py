"""The book of queries: who there is, since when silent, what is kept for them, whom they brake.

Rows in the catalog hold leases, cursors hold positions, so both outlive the broker. A lease is
looked at every second, a brake ten times as often while somebody is behind.

Invariants: a lease that breaks is told once (log, counter, ``take_told``); a query without a row is
one whose positions were found at a restart.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from penstock.engine.bulk.orders import BAD_REQUEST, LeaseTold, OffsetMap, QueryRefused
from penstock.engine.bulk.pressure import Pressures
from penstock.engine.bulk.query import POSITION_OPTIONS, PREFIX, QUERY_KIND, Query, QueryRow
from penstock.flow.spark_brake import Backlog, Backpressure, Lease
from penstock.model.errors import AlreadyExists

if TYPE_CHECKING:
    from penstock.engine.parts import Parts
    from penstock.engine.queue import Queue
    from penstock.engine.subscription import Subscription
    from penstock.engine.topic import Topic
    from penstock.settings.protocols import SparkSettings

_log = logging.getLogger(__name__)

LEASE_LOOK_MS: Final = 1000
BRAKE_LOOK_MS: Final = 100
SAVE_MS: Final = 60_000
"""How old the word of a living query may be in the catalog: little beside a lease of a day."""
TOLD_MAX: Final = 256


class QueryBook:
    """Every query of one engine."""

    def __init__(self, parts: Parts, settings: SparkSettings) -> None:
        self._parts = parts
        self._chain = parts.chain
        self._settings = settings
        self.queries: dict[str, Query] = {}
        self.pressures: Final = Pressures(settings, self.backlogs, lambda: self._chain.now_ms)
        self.leases_broken: Counter[str] = Counter()
        """By cause."""
        self._told: list[LeaseTold] = []
        self.look_ms: int | None = None
        """When leases and brakes want to be looked at; None without queries."""

    def restore(self) -> None:
        """After a restart: the queries whose positions or leases are there."""
        wall_ms = self._chain.clock.wall_ms()
        for topic in self._parts.registry.topics.values():
            for name, subscription in topic.subscriptions.items():
                if name.startswith(PREFIX):
                    query = self._known(name.removeprefix(PREFIX), wall_ms)
                    query.reads[topic] = subscription
        definitions = self._parts.store.definitions
        for name, body in definitions.all(QUERY_KIND).items():
            if name not in self.queries:
                definitions.delete(QUERY_KIND, name)  # its topics are gone
                continue
            row, query = msgspec.json.decode(body, type=QueryRow), self.queries[name]
            query.lease.ttl_ms = row.ttl_ms
            query.lease.restore(min(row.heard_ms, wall_ms), row.cause, row.text)
            query.saved_ms = row.heard_ms
        if self.queries:
            self.look_ms = self._chain.now_ms

    # Hearing of them.

    def heard(self, name: str, topics: list[Topic], start: OffsetMap) -> Query:
        """The query of that name on these topics, made if there is none."""
        query = self.queries.get(name)
        is_new = query is None
        if query is None:
            if not name or len(self.queries) >= self._settings.queries_max:
                raise QueryRefused(
                    BAD_REQUEST,
                    f"there are {len(self.queries)} queries and {self._settings.queries_max} are "
                    "allowed (spark.queries_max); forget one with `penstock queries forget`",
                )
            query = self._known(name, self._chain.clock.wall_ms())
        for topic in [each for each in query.reads if each.is_deleted]:
            del query.reads[topic]
        for topic in topics:
            if topic not in query.reads:
                query.reads[topic] = self._subscribed(query, topic, start)
        self.hear(query)
        if is_new:
            self.save(query)
        return query

    def hear(self, query: Query) -> None:
        """It said something: it lives, and so does its lease."""
        query.heard_ms = self._chain.now_ms
        wall_ms = self._chain.clock.wall_ms()
        lease = query.lease
        if lease.cause:
            cause = lease.cause
            if lease.hear(wall_ms, query.held_bytes()):
                self._tell(LeaseTold(wall_ms, "lease-mended", query.name, cause, "it is back"))
                self.save(query)
        else:
            lease.hear(wall_ms, 0)
        if wall_ms - query.saved_ms >= SAVE_MS:
            self.save(query)
        if self.look_ms is None:
            self.look_ms = query.heard_ms
            self._chain.stir()

    def save(self, query: Query) -> None:
        """Put its row into the next transaction."""
        query.saved_ms = query.lease.heard_ms
        self._parts.store.definitions.put(QUERY_KIND, query.name, query.row())
        self._chain.stir()

    def release(self, name: str, *, is_final: bool) -> None:
        """Nothing is kept for it any more; with ``is_final`` it is forgotten."""
        query = self.queries.get(name)
        if query is None:
            return
        query.lease.release()
        query.state = "stopped"
        if is_final:
            del self.queries[name]
            for topic in query.topics():
                self._parts.remove_subscription(topic, query.reads[topic], "released")
            self._parts.store.definitions.delete(QUERY_KIND, name)
        else:
            self.save(query)
        self.look_ms = self._chain.now_ms
        self._chain.stir()

    # Looking after them.

    def due(self, now_ms: int) -> None:
        """Look at leases and brakes, if it is time."""
        if self.look_ms is None or now_ms < self.look_ms:
            return
        wall_ms = self._chain.clock.wall_ms()
        for query in self.queries.values():
            if query.lease.judge(wall_ms, query.held_bytes()):
                lease = query.lease
                self.leases_broken[lease.cause] += 1
                self._tell(LeaseTold(wall_ms, "lease-broken", query.name, lease.cause, lease.text))
                self.save(query)
        braking = {topic for query in self._alive(now_ms) for topic in query.topics()}
        if self.pressures.look(braking):
            self._chain.stir()
        is_behind = any(
            each.brake.mode is not Backpressure.OFF and each.brake.bound.is_set
            for each in self.pressures.by_topic.values()
        )
        pause_ms = BRAKE_LOOK_MS if is_behind else LEASE_LOOK_MS
        self.look_ms = now_ms + pause_ms if self.queries else None

    def look_now(self) -> None:
        """Limits were made anew: brakes belong into them before the next publish is judged."""
        if self.look_ms is not None:
            self.look_ms = self._chain.now_ms
            self.due(self.look_ms)

    def lowest_kept(self, queue: Queue) -> int | None:
        """The first offset that a lease keeps of a queue; None when none does (D11)."""
        topic = queue.topic
        return min(
            (
                query.lowest(queue)
                for query in self.queries.values()
                if query.lease.holds and topic in query.reads
            ),
            default=None,
        )

    def backlogs(self, topic: Topic) -> list[Backlog]:
        """How far behind each query is that may brake a topic's publishers."""
        now_ms, wall_ms = self._chain.now_ms, self._chain.clock.wall_ms()
        return [
            query.backlog(topic, wall_ms, now_ms)
            for query in self._alive(now_ms)
            if topic in query.reads
        ]

    def take_told(self) -> list[LeaseTold]:
        """Leases that broke or were mended since the last call, for events."""
        told, self._told = self._told, []
        return told

    def is_alive(self, query: Query) -> bool:
        """True when it was heard of lately."""
        return query.is_alive(self._chain.now_ms, self._settings.alive_ms_max)

    # Parts.

    def _alive(self, now_ms: int) -> list[Query]:
        alive_ms_max = self._settings.alive_ms_max
        return [
            query
            for query in self.queries.values()
            if query.lease.holds and query.is_alive(now_ms, alive_ms_max)
        ]

    def _known(self, name: str, wall_ms: int) -> Query:
        query = self.queries.get(name)
        if query is None:
            settings = self._settings
            lease = Lease(
                ttl_ms=settings.lease_ms_max, bytes_max=settings.lease_bytes_max, now_ms=wall_ms
            )
            query = self.queries[name] = Query(name, lease)
        return query

    def _subscribed(self, query: Query, topic: Topic, start: OffsetMap) -> Subscription:
        found = topic.subscriptions.get(PREFIX + query.name)
        if found is not None:
            return found
        options = replace(POSITION_OPTIONS, is_durable=topic.is_durable)
        try:
            made = self._parts.registry.create_subscription(
                topic, PREFIX + query.name, options, self._parts.host
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

    def _tell(self, told: LeaseTold) -> None:
        extra = {"query": told.query, "cause": told.cause, "why": told.text}
        if told.event == "lease-broken":
            _log.warning("the lease of a query is broken; its data is not kept", extra=extra)
        else:
            _log.info("the lease of a query holds again", extra=extra)
        if len(self._told) < TOLD_MAX:
            self._told.append(told)
