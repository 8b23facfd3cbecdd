"""The word for how a connection, channel or queue fares, as RabbitMQ's management shows it.

    running    nothing holds it
    flow       it waits for the next stage, or did a moment ago (queues and channels 1 s,
               connections 5 s: credit comes and goes many times a second, the word does not)
    blocking   an alarm is raised, but it has published nothing, so nothing is held
    blocked    an alarm holds what it publishes

Who is to blame and since when is told by ``/api/flow``, of the same stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.flow.reason import Reason

if TYPE_CHECKING:
    from penstock.engine.broker import Engine
    from penstock.engine.connection import Channel, Connection
    from penstock.engine.topic import Topic
    from penstock.flow.credit import Stage

RUNNING: Final = "running"
FLOW: Final = "flow"
BLOCKING: Final = "blocking"
BLOCKED: Final = "blocked"
CONNECTION_MEMORY_MS: Final = 5_000
"""A connection is still called in flow this long after it was (sheet 3.1)."""


def connection_state(connection: Connection, engine: Engine, now_ms: int) -> str:
    """How a connection fares."""
    gate = connection.gate
    if gate.resources:
        return BLOCKED
    if engine.alarms.is_raised:
        return BLOCKING
    if gate.reasons or _was_in_flow(connection.stage, now_ms):
        return FLOW
    return RUNNING


def channel_state(channel: Channel | None, now_ms: int) -> str:
    """How a channel fares; one that never published has nothing to wait for."""
    if channel is None:
        return RUNNING
    return FLOW if channel.hold is not None else _state(channel.stage, now_ms)


def queue_state(topic: Topic, now_ms: int) -> str:
    """How a queue fares: as the worst of the queues it is made of."""
    states = {_state(queue.stage, now_ms) for queue in topic.queues}
    return FLOW if FLOW in states else RUNNING


def _state(stage: Stage, now_ms: int) -> str:
    return FLOW if stage.episodes.reasons(now_ms) else RUNNING


def _was_in_flow(stage: Stage, now_ms: int) -> bool:
    episodes = stage.episodes
    if episodes.reasons(now_ms):
        return True
    return any(
        each.reason is Reason.FLOW and now_ms - each.until_ms < CONNECTION_MEMORY_MS
        for each in episodes.history
    )
