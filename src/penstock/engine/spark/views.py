"""Queries as operators see them: where each stands, how far behind, how fast, which part is slow.

Snapshots made when somebody asks; field names are those of the JSON that HTTP gives out. The same
figures make a query a stage of the flow map (``stage_of``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.flow.views import QueryView, StageView
from penstock.model.names import object_id

if TYPE_CHECKING:
    from penstock.engine.spark.query import Query
    from penstock.engine.spark.query_service import QueryService
    from penstock.engine.topic import Topic

QUEUES_SHOWN_MAX: Final = 1000


class QueuePosition(msgspec.Struct, frozen=True):
    """A query in one queue."""

    queue: int
    position: int
    end: int
    earliest: int


class TopicLag(msgspec.Struct, frozen=True, kw_only=True):
    """A query on one topic."""

    topic: str
    backpressure: str
    is_held: bool
    """True while publishers of the topic wait for this query."""
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    queues: Sequence[QueuePosition]


class QuerySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One query."""

    name: str
    subscription: str
    """Several queries may share it: two sinks of one DataFrame."""
    checkpoint: str
    """Which of them it is; Spark's own id of it is in ``last_batch``."""
    state: str
    """new, running, idle, stopped, failed, or silent when it was not heard of lately."""
    text: str
    topics: Sequence[TopicLag]
    lag_messages: int
    lag_bytes: int
    lag_seconds: float
    messages_per_s: float
    bytes_per_s: float
    is_limited: bool
    """Its own limits bound its last batch: there was more to read."""
    slow_part: str
    """read, transform or sink; empty when that is not known."""
    last_batch: dict[str, object]
    lease: str
    """held, broken or released."""
    lease_text: str
    lease_ttl_ms: int
    lease_bytes: int
    lease_bytes_max: int
    silent_ms: int
    """Since its last word."""
    lost: int
    retried: int
    """Rows that its flow sent to be tried again, since the broker started."""
    dead: int
    """Rows that became dead letters."""
    polls: int
    held: str
    """What publishers are told that wait for it."""


def query_snapshots(service: QueryService, now_ms: int, wall_ms: int) -> list[QuerySnapshot]:
    queries = service.registry.queries
    return [_snapshot(service, queries[name], now_ms, wall_ms) for name in sorted(queries)]


def stage_of(service: QueryService, query: Query, topic: Topic, now_ms: int) -> StageView:
    """A query on a topic as a stage of the delivery side."""
    backlog = query.backlog(topic, service.wall_ms, now_ms)
    pressures = service.registry.pressures
    is_holding = pressures.held(topic, query.name) is not None
    view = QueryView(
        name=query.name,
        slow_part=query.last.slow_part,
        messages_per_s=query.drain.messages_per_s(now_ms),
        is_limited=query.is_limited,
        is_alive=service.registry.is_alive(query),
        is_holding=is_holding,
        bound=pressures.bound(topic) if is_holding else ("", 0),
        lease_text=query.lease.text if query.lease.is_broken else "",
        lease_since_ms=None
        if query.lease.broke_ms is None
        else now_ms - (service.wall_ms - query.lease.broke_ms),
        # How often it asked before this broker started nobody knows, only that it did.
        polls=query.polls or int(query.had_batch),
        age_ms=backlog.age_ms,
        own_rows_max=query.own_rows_max,
        is_stopped=query.is_over,
        failure=query.failure,
        silent_ms=max(0, service.wall_ms - query.lease.heard_ms),
    )
    return StageView(
        "query",
        f"{query.name} on {topic.name}",
        ready=backlog.messages,
        query=view,
        id=object_id("query", query.name),
        belongs_to=topic.name.id,
        progress=query.reads[topic].progress.view(
            now_ms,
            age_ms=backlog.age_ms,
            ready=backlog.messages,
            unacked_age_ms=0,
            is_read=True,
            behind_ms=service.behind_ms,
        ),
    )


def _snapshot(service: QueryService, query: Query, now_ms: int, wall_ms: int) -> QuerySnapshot:
    lease, registry = query.lease, service.registry
    lags = [_topic_lag(service, query, topic, now_ms, wall_ms) for topic in query.topics()]
    held = [registry.pressures.held(topic, query.name) for topic in query.topics()]
    return QuerySnapshot(
        name=query.name,
        subscription=query.subscription,
        checkpoint=query.checkpoint,
        state=query.state if query.is_over or registry.is_alive(query) else "silent",
        text=query.text or query.failure,
        topics=lags,
        lag_messages=sum(each.lag_messages for each in lags),
        lag_bytes=sum(each.lag_bytes for each in lags),
        lag_seconds=max((each.lag_seconds for each in lags), default=0.0),
        messages_per_s=round(query.drain.messages_per_s(now_ms), 1),
        bytes_per_s=round(query.drain.bytes_per_s(now_ms), 1),
        is_limited=query.is_limited,
        slow_part=query.last.slow_part,
        last_batch=dataclasses.asdict(query.last),
        lease="held" if lease.holds else "broken" if lease.is_broken else "released",
        lease_text=lease.text,
        lease_ttl_ms=lease.ttl_ms,
        lease_bytes=query.held_bytes() if lease.holds else 0,
        lease_bytes_max=lease.bytes_max,
        silent_ms=max(0, wall_ms - lease.heard_ms),
        lost=query.lost,
        retried=query.retried,
        dead=query.dead,
        polls=query.polls,
        held=next((text for text in held if text), ""),
    )


def _topic_lag(
    service: QueryService, query: Query, topic: Topic, now_ms: int, wall_ms: int
) -> TopicLag:
    backlog = query.backlog(topic, wall_ms, now_ms)
    pressures = service.registry.pressures
    return TopicLag(
        topic=str(topic.name),
        backpressure=pressures.rule(topic.policy)[0].value,
        is_held=pressures.held(topic, query.name) is not None,
        lag_messages=backlog.messages,
        lag_bytes=backlog.bytes,
        lag_seconds=backlog.age_ms / 1000,
        queues=[
            QueuePosition(
                queue.number, query.position(queue), queue.durable_end, queue.index.min_offset
            )
            for queue in topic.queues[:QUEUES_SHOWN_MAX]
        ],
    )
