"""Diagnosis: who is slow, told in one sentence (flow-control.md section 3).

Publish side: an alarm is the bottleneck by itself; else the chains of who waits for whom are walked
(``held_chains.py``).

Delivery side, for each subscription with messages ready: a consumer at its in-flight limit is slow;
one below it whose socket does not take its bytes is not reading; nobody with demand means nobody
pulls; where consumers would take more it may be that the dead are buried first. A Spark query that
takes all its limits allow and is behind is slow itself, and its progress says where: read,
transform or sink. Only when neither side shows anything is the broker not the bottleneck.

A pure function of views: the engine makes them (``engine/flow_map.py``), ``/api/flow`` shows both.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.flow.held_chains import STAGE_WORDS, held_chains
from penstock.flow.reason import Reason
from penstock.flow.views import (
    BURIALS,
    RECENT_MS,
    ConsumerView,
    Diagnosis,
    QueryView,
    StageView,
    State,
)

__all__ = [
    "NOTHING",
    "RECENT_MS",
    "ConsumerView",
    "Diagnosis",
    "QueryView",
    "StageView",
    "State",
    "diagnose",
    "findings_of",
]

NOTHING: Final = Diagnosis(
    "none",
    "",
    "Nothing is held back: the publishers, the network or their own limits set the pace.",
)


def diagnose(stages: Sequence[StageView]) -> Diagnosis:
    """The most important finding."""
    findings = findings_of(stages)
    return findings[0] if findings else NOTHING


def findings_of(stages: Sequence[StageView]) -> list[Diagnosis]:
    """Every finding, the most important first: alarms, held publishers, then slow deliveries.

    Last what holds nobody: a queue that waits for a sync now and then.
    """
    held = held_chains(stages)
    blamed = {finding.name for finding in held}
    turned = [_refusing(each) for each in stages if each.refusing and each.name not in blamed]
    felt = [finding for finding in held if finding.is_felt]
    unfelt = [finding for finding in held if not finding.is_felt]
    return _alarms(stages) + turned + felt + _delivery_side(stages) + unfelt


def _refusing(stage: StageView) -> Diagnosis:
    why = STAGE_WORDS.get(stage.kind)
    return Diagnosis(
        stage.kind,
        stage.name,
        f"{stage.label} is the bottleneck{f' ({why})' if why else ''}: {stage.refusing}; "
        "sends that do not wait are refused as they come.",
        "publish",
        (stage.label,),
        stage.share,
    )


def _alarms(stages: Iterable[StageView]) -> list[Diagnosis]:
    """One finding per raised alarm, however many connections it holds."""
    found: dict[Reason, list[StageView]] = {}
    for stage in stages:
        if stage.reason is not None and stage.reason.is_resource and stage.is_held:
            found.setdefault(stage.reason, []).append(stage)
    return [
        Diagnosis(
            reason.value,
            held[0].culprit,
            f"The {reason.value} alarm holds {_publishers(held)}: {held[0].culprit}.",
            "publish",
            tuple(stage.label for stage in held[:_CHAIN_MAX]),
            max(stage.share for stage in held),
        )
        for reason, held in found.items()
    ]


_CHAIN_MAX: Final = 16
"""Names listed in one finding; ten thousand held connections are one finding, not a page."""


def _publishers(held: list[StageView]) -> str:
    # Channels of a held connection wait with it; people count connections.
    blocked = sum(stage.state == "blocked" for stage in held if stage.kind == "connection")
    if blocked == 0:
        return "nobody yet (no connection that it concerns has published)"
    return "1 publishing connection" if blocked == 1 else f"{blocked} publishing connections"


def _delivery_side(stages: Iterable[StageView]) -> list[Diagnosis]:
    slow = sorted((s for s in stages if s.ready > 0), key=lambda s: s.ready, reverse=True)
    return [finding for stage in slow if (finding := _subscription(stage)) is not None]


def _subscription(stage: StageView) -> Diagnosis | None:
    """Why messages that are ready are not delivered; None when they are about to be."""
    if stage.query is not None:
        return _query(stage, stage.query)
    consumers = stage.consumers
    behind = f"{stage.ready} messages are ready in {stage.label}"
    if not consumers:
        return _delivery(stage, "subscription", stage.name, f"{behind}, but nobody consumes.")
    if any(_is_served(consumer) for consumer in consumers):
        return _burying(stage, behind)
    at_limit = [consumer for consumer in consumers if consumer.is_at_limit]
    if at_limit:
        worst = max(at_limit, key=lambda consumer: consumer.unacked)
        return _delivery(
            stage,
            "consumer",
            worst.name,
            f"{behind}; consumer {worst.name} is slow: it has {worst.unacked} unsettled messages, "
            f"its limit is {worst.unacked_max}.",
        )
    unread = [consumer for consumer in consumers if consumer.is_unsent_high]
    if unread:
        return _delivery(
            stage,
            "network",
            unread[0].name,
            f"{behind}; the network or consumer {unread[0].name} is slow: "
            "it does not read what it was sent.",
        )
    return _delivery(
        stage, "demand", stage.name, f"{behind}, but no consumer asks for messages: nobody pulls."
    )


def _burying(stage: StageView, behind: str) -> Diagnosis | None:
    """It has consumers who would take them, but nothing is delivered before the dead are buried."""
    undone = stage.undone
    if undone is None or undone.what != BURIALS:
        return None
    does = f"it first buries {undone.count} messages that died"
    return _delivery(stage, BURIALS, stage.name, f"{behind}; {does}.")


def _query(stage: StageView, query: QueryView) -> Diagnosis | None:
    """Why a Spark query is behind; None while it simply has its next batch before it."""
    behind = f"Spark query {query.name} is {stage.ready} messages behind"
    if not query.is_alive:
        return _delivery(stage, "query", query.name, f"{behind}, and it does not poll.")
    if not (query.is_limited or query.is_holding):
        return None
    part = f"its {query.slow_part} is the slow part" if query.slow_part else "which part is unknown"
    waits = "; publishers wait for it" if query.is_holding else ""
    return _delivery(
        stage,
        "query",
        query.name,
        f"{behind} at {round(query.messages_per_s)} messages a second: {part}{waits}.",
    )


def _is_served(consumer: ConsumerView) -> bool:
    return consumer.has_demand and not consumer.is_at_limit and not consumer.is_unsent_high


def _delivery(stage: StageView, kind: str, name: str, sentence: str) -> Diagnosis:
    return Diagnosis(kind, name, sentence, "delivery", (stage.label,), stage.share)
