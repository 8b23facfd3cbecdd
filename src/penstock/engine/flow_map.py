"""The stages as an operator sees them: views for the diagnosis and ``/api/flow``.

Publish side: connections, channels, queues, the log. Delivery side: subscriptions (``view`` of
each). A stage says whom it waits for by label, so that the diagnosis can walk the chain.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.connection import Channel, Connection
from penstock.engine.parts import Parts
from penstock.flow.diagnosis import StageView
from penstock.flow.reason import Reason
from penstock.flow.stage import Stage


def flow_views(parts: Parts, now_ms: int) -> list[StageView]:
    """Every stage now."""
    views: list[StageView] = []
    for connection in parts.chain.connections.values():
        views.append(_connection(connection, parts, now_ms))
        views += [_channel(channel, now_ms) for channel in connection.channels.values()]
    log = (parts.chain.log.label,)
    views += [_stage(queue.stage, now_ms, log) for queue in parts.registry.queues.values()]
    views.append(_log(parts, now_ms))
    for topic in parts.registry.topics.values():
        views += [
            replace(subscription.view(), name=f"{topic.name}/{subscription.name}")
            for subscription in topic.subscriptions.values()
        ]
    return views


def _connection(connection: Connection, parts: Parts, now_ms: int) -> StageView:
    view = _stage(
        connection.stage,
        now_ms,
        tuple(channel.stage.label for channel in connection.channels.values()),
    )
    reasons = connection.gate.reasons
    if not reasons:
        if parts.chain.alarms.is_raised:
            return replace(view, state="blocking")
        return view
    reason, culprit = next(
        ((why, who) for why, who in reasons.items() if why.is_resource), next(iter(reasons.items()))
    )
    if reason is Reason.FLOW and connection.stage.is_blocked:
        culprit = view.culprit
    return replace(
        view,
        state="blocked" if reason.is_resource else "flow",
        reason=reason,
        culprit=culprit,
        since_ms=connection.gate.since_ms,
    )


def _channel(channel: Channel, now_ms: int) -> StageView:
    downstream = tuple(queue.stage.label for queue in channel.queue_credits)
    view = _stage(channel.stage, now_ms, downstream)
    hold = channel.hold
    if hold is None or view.is_held:
        return view
    return replace(
        view,
        state="blocked" if hold.reason.is_resource else "flow",
        reason=hold.reason,
        culprit=hold.culprit,
        since_ms=channel.inbox[0].arrived_ms if channel.inbox else None,
    )


def _log(parts: Parts, now_ms: int) -> StageView:
    """The last stage: what holds it is the disk itself, so it never counts as held back."""
    view = _stage(parts.chain.log, now_ms, ())
    return StageView(kind=view.kind, name=view.name, share=view.share)


def _stage(stage: Stage, now_ms: int, downstream: tuple[str, ...]) -> StageView:
    episodes = stage.episodes
    reasons = episodes.reasons(now_ms)
    share = episodes.share(now_ms)
    if not reasons:
        return StageView(stage.kind, stage.name, share=share, downstream=downstream)
    reason, culprit = next(iter(reasons.items()))
    blockers = sorted(stage.blocked_by, key=lambda each: (not each.is_blocked, each.label))
    return StageView(
        kind=stage.kind,
        name=stage.name,
        state="blocked" if reason.is_resource else "flow",
        reason=reason,
        culprit=blockers[0].label if blockers else culprit,
        since_ms=episodes.since_ms(now_ms),
        share=share,
        downstream=downstream,
    )
