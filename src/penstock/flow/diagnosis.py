"""Diagnosis: who is slow, told in one sentence (flow-control.md section 3).

Publish side, walking downstream: *the bottleneck is the first stage that is not itself held back,
after the last one that is*. A held stage names whom it waits for (its culprit); where it does not,
its ``downstream`` links are followed. An alarm or a limit ends the walk: it is the bottleneck.
Several chains may be held at once; the one whose stages stand still the largest share of time is
named first.

Delivery side, for each subscription with messages ready: a consumer at its in-flight limit is slow;
one below it whose socket does not take its bytes is not reading; nobody with demand means nobody
pulls. A Spark query that takes all its limits allow and is behind is slow itself, and its progress
says where: read, transform or sink. Only when neither side shows anything is the broker not the
bottleneck.

A pure function of views: the engine makes them (``engine/flow_map.py``), ``/api/flow`` shows both.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from penstock.flow.reason import Reason
from penstock.flow.stage import stage_label

State = Literal["running", "flow", "blocking", "blocked"]


class StageView(msgspec.Struct, frozen=True):
    """One stage as an operator sees it now."""

    kind: str
    name: str
    state: State = "running"
    reason: Reason | None = None
    culprit: str = ""
    """What holds it: the label (``kind name``) of a stage, or an alarm's or limit's own words."""
    since_ms: int | None = None
    share: float = 0.0
    """Fraction of the last 10 s it was held."""
    downstream: tuple[str, ...] = ()
    """Labels of the stages it hands messages to."""
    ready: int = 0
    """Subscription: messages that could be delivered now."""
    consumers: "tuple[ConsumerView, ...]" = ()
    """Subscription: its consumers."""
    query: "QueryView | None" = None
    """Query: what it says of itself."""
    refusing: str = ""
    """Log: why whoever will not wait is turned away at once (F6, F7); nobody is held then."""

    @property
    def label(self) -> str:
        """How other stages name it."""
        return stage_label(self.kind, self.name)

    @property
    def is_held(self) -> bool:
        """True in every state but ``running``."""
        return self.state != "running"


class QueryView(msgspec.Struct, frozen=True):
    """A Spark query (F18)."""

    name: str
    slow_part: str = ""
    """Which part of its batches takes longest: read, transform or sink; empty = not known."""
    messages_per_s: float = 0.0
    is_limited: bool = False
    """It takes as much as its own limits allow, and there is more."""
    is_alive: bool = True
    is_holding: bool = False
    """Publishers wait for it."""


class ConsumerView(msgspec.Struct, frozen=True):
    """One consumer of a subscription."""

    name: str
    unacked: int = 0
    unacked_max: int = 0
    """Its in-flight limit or window, whichever binds; 0 = none."""
    is_unsent_high: bool = False
    """Its socket has not taken what it was sent (F14)."""
    has_demand: bool = True
    """It has asked for messages it did not get yet: permits, an open window, a held pull."""

    @property
    def is_at_limit(self) -> bool:
        """True when it settles slower than it is served."""
        return self.unacked >= self.unacked_max > 0


class Diagnosis(msgspec.Struct, frozen=True):
    """One finding."""

    kind: str
    """Kind of stage (channel, queue, log, consumer ...), alarm (memory, disk), limit or none."""
    name: str
    sentence: str
    side: Literal["publish", "delivery", "none"] = "none"
    chain: tuple[str, ...] = ()
    """The held stages that led there, upstream first."""
    share: float = 0.0
    """How much of the last 10 s the first of them stood still."""


_STAGE_WORDS: Final = {
    "channel": "parsing and routing",
    "queue": "index writes, or one hot queue",
    "log": "the disk",
}

_DELIVERY_KINDS: Final = ("subscription", "consumer")

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
    """Every finding, the most important first: alarms, held chains, then slow deliveries."""
    held = _publish_side(stages)
    blamed = {finding.name for finding in held}
    turned = [_refusing(each) for each in stages if each.refusing and each.name not in blamed]
    return _alarms(stages) + turned + held + _delivery_side(stages)


def _refusing(stage: StageView) -> Diagnosis:
    why = _STAGE_WORDS.get(stage.kind)
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


def _publish_side(stages: Sequence[StageView]) -> list[Diagnosis]:
    by_label = {stage.label: stage for stage in stages}
    # End of the walk -> (weight, share, chain) of all the walks that end there.
    weights: dict[tuple[str, str], float] = {}
    best: dict[tuple[str, str], Diagnosis] = {}
    # Ten thousand connections that wait for the same stage take the same way: it is walked once.
    walked: dict[tuple[str, Reason | None, str], tuple[str, str]] = {}
    for stage in stages:
        if not stage.is_held or (stage.reason is not None and stage.reason.is_resource):
            continue
        way = (stage.kind, stage.reason, stage.culprit)
        if stage.culprit and way in walked:
            weights[walked[way]] += stage.share
            continue
        finding = _walk(stage, by_label)
        if finding is None:
            continue
        end = walked[way] = (finding.kind, finding.name)
        weights[end] = weights.get(end, 0.0) + stage.share
        if end not in best or len(finding.chain) > len(best[end].chain):
            best[end] = finding
    # Ties go to the longer chain: it has looked further downstream.
    order = sorted(best, key=lambda end: (weights[end], len(best[end].chain)), reverse=True)
    return [best[end] for end in order]


def _walk(start: StageView, by_label: dict[str, StageView]) -> Diagnosis | None:
    """Follow who waits for whom until somebody does not wait."""
    chain = [start.label]
    stage = start
    while True:
        if stage.reason not in (None, Reason.FLOW):
            return _limit(stage, chain, start.share)
        following = _next_stage(stage, by_label)
        if following is None:
            return _beyond(stage, chain, start.share)
        if following.label in chain:
            # A ring of held stages: name it instead of walking for ever. Law 3 forbids it.
            return Diagnosis(
                "ring",
                following.label,
                f"These stages wait for each other: {' -> '.join(chain)} -> {following.label}.",
                "publish",
                tuple(chain),
                start.share,
            )
        if not following.is_held:
            return _bottleneck(following, chain, start.share)
        if following.reason is not None and following.reason.is_resource:
            return None
        chain.append(following.label)
        stage = following


def _next_stage(stage: StageView, by_label: dict[str, StageView]) -> StageView | None:
    named = by_label.get(stage.culprit)
    if named is not None:
        return named
    links = [by_label[label] for label in stage.downstream if label in by_label]
    # A held link leads on; otherwise the only link is the culprit, and of several none is proven.
    held = [link for link in links if link.is_held]
    if held:
        return max(held, key=lambda link: link.share)
    return links[0] if len(links) == 1 else None


def _bottleneck(stage: StageView, chain: list[str], share: float) -> Diagnosis:
    why = _STAGE_WORDS.get(stage.kind)
    return Diagnosis(
        stage.kind,
        stage.name,
        f"{stage.label} is the bottleneck{f' ({why})' if why else ''}: "
        f"{' -> '.join(chain)} {'waits' if len(chain) == 1 else 'wait'} for it "
        f"{_percent(share)} of the time.",
        "publish",
        tuple(chain),
        share,
    )


def _beyond(stage: StageView, chain: list[str], share: float) -> Diagnosis:
    """Held by something that is no stage in view."""
    who = stage.culprit or f"what comes after {stage.label}"
    return Diagnosis(
        "unknown" if not stage.culprit else "external",
        who,
        f"{' -> '.join(chain)} {'waits' if len(chain) == 1 else 'wait'} for {who} "
        f"{_percent(share)} of the time.",
        "publish",
        tuple(chain),
        share,
    )


def _limit(stage: StageView, chain: list[str], share: float) -> Diagnosis:
    assert stage.reason is not None
    return Diagnosis(
        "query" if stage.reason is Reason.SPARK else "limit",
        stage.culprit,
        f"{stage.label} is held by a limit ({stage.reason.value}): {stage.culprit}; "
        f"{_percent(share)} of the time.",
        "delivery" if stage.kind in _DELIVERY_KINDS else "publish",
        tuple(chain),
        share,
    )


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
        return None
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


def _percent(share: float) -> str:
    return f"{round(share * 100)} %"
