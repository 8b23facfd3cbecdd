"""Diagnosis: who is slow, told in one sentence (flow-control.md section 3).

Publish side: an alarm is the bottleneck by itself; else the chains of who waits for whom are walked
(``held_chains``).

Delivery side, for each subscription with messages ready: who asks, is below its own limits and gets
nothing has a reason (a rate, its keys drain, no room to put delayed ones aside); a consumer at its
in-flight limit is slow; one below it whose socket does not take its bytes is not reading; nobody
with demand means nobody pulls; where consumers would take more it may be that the dead are buried
first. Consumers are named: whose reason it is, and on whom it depends. A Spark query that takes all
its limits allow and is behind is slow itself, and its progress says where: read, transform or sink.
Only when neither side shows anything is the broker not the bottleneck.

A pure function of views: the engine makes them (``engine/flow_map.py``), ``/api/flow`` shows both.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from penstock.flow.credit import stage_label
from penstock.flow.demand import Withheld
from penstock.flow.reason import Reason
from penstock.model.ids import size_text

# ---- views --------------------------------------------------------------------------------------
# What an operator sees of a stage, and one finding about all of them.
#
# Plain values, made by ``engine/flow_map.py``, judged by ``diagnosis.py``, shown by ``/api/flow``.


State = Literal["running", "flow", "blocking", "blocked"]

RECENT_MS: Final = 2000
"""What was slow before that is history; shorter, and one slow sync would be all there is."""


BURIALS: Final = "burials"
EXPIRIES: Final = "expiries"
COMMANDS: Final = "commands"
PUBLISHES_AFTER_CLOSE: Final = "publishes after close"
"""What may be spread over turns (``UndoneView``)."""


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
    recent: float | None = None
    """``share`` of the last moments (``RECENT_MS``) only: by it blame is shared out."""
    stalls: int = 0
    """How often it was held in the last moments."""
    undone: "UndoneView | None" = None
    """What it has begun and goes on with in the next turns, if there is such a thing."""

    @property
    def label(self) -> str:
        return stage_label(self.kind, self.name)

    @property
    def is_held(self) -> bool:
        """True in every state but ``running``."""
        return self.state != "running"

    @property
    def weight(self) -> float:
        """How much it waits, for the diagnosis."""
        return self.share if self.recent is None else self.recent


class UndoneView(msgspec.Struct, frozen=True):
    """Work of a stage that is spread over turns, so that others are served between them (law 5)."""

    what: str
    """Subscription: ``BURIALS``, ``EXPIRIES``; connection: ``COMMANDS``; channel:
    ``PUBLISHES_AFTER_CLOSE``."""
    count: int
    """How many are left; at least so many."""
    since_ms: int
    waits_for: str = ""
    """Label of the stage for which it waits, if it is more than the next turn."""


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
    unacked_bytes: int = 0
    unacked_bytes_max: int = 0
    """0 = none."""
    is_unsent_high: bool = False
    """Its socket has not taken what it was sent (F14)."""
    has_demand: bool = True
    """It has asked for messages it did not get yet: permits, an open window, a held pull."""
    blocked_by: tuple[Withheld, ...] = ()
    """Everything that keeps messages from it (``Withheld``); empty = it would get the next one."""
    waits_for: str = ""
    """The consumer that is active in its place, or has to settle messages of its keys first."""
    last_grant_ms: int | None = None
    """When it was last granted permits (monotonic); None = never, or it has none."""

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
    is_felt: bool = True
    """False: no publisher waits for it, and it is not for long either."""


# ---- diagnosis ----------------------------------------------------------------------------------


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
    sinks = sum(stage.kind == "sink" for stage in held)
    if sinks:
        of_spark = "1 sink of Spark" if sinks == 1 else f"{sinks} sinks of Spark"
        if blocked == 0:
            return of_spark
        return f"{blocked} publishing connection{'s' if blocked > 1 else ''} and {of_spark}"
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
    # Who stands by is not the reason, unless all do.
    consumers = tuple(each for each in consumers if not _stands_by(each)) or consumers
    reason, concerned = _withheld(consumers)
    # What concerns all goes before the limits of some: others could take more but for that.
    if reason not in _OF_ALL:
        at_limit = [consumer for consumer in consumers if consumer.is_at_limit]
        if at_limit:
            worst = max(at_limit, key=lambda consumer: consumer.unacked)
            return _delivery(stage, "consumer", worst.name, f"{behind}; {_slow(worst)}.")
        unread = [consumer.name for consumer in consumers if consumer.is_unsent_high]
        if unread:
            deaf = f"the network or consumer {unread[0]} is slow: it does not read what it was sent"
            return _delivery(stage, "network", unread[0], f"{behind}; {deaf}.")
    return _delivery(stage, reason, stage.name, f"{behind}, but {_why(reason, concerned)}.")


WITHHELD_WORDS: Final = {
    Withheld.SUBSCRIPTION: "its consumers together have as many unsettled as it allows",
    Withheld.RATE: "its dispatch rate is used up",
    Withheld.DELAYED_ROOM: "those next may have to be put aside until their time, "
    "and there is no room for that on disk (topics.delayed_on_disk_max)",
    Withheld.DRAINING: "they wait until the consumer that had their keys before has settled them",
    Withheld.LOOK_AHEAD: "too many wait for consumers of other keys that ask for nothing",
    Withheld.INACTIVE: "another consumer is to take over first",
    Withheld.NOTHING_READY: "nobody consumes the queues they are in",
    Withheld.DEMAND: "no consumer asks for messages: nobody pulls",
}
"""Why those who ask get nothing, the most telling reason first."""

_OF_ALL: Final = (
    Withheld.SUBSCRIPTION,
    Withheld.RATE,
    Withheld.DELAYED_ROOM,
    Withheld.DRAINING,
)
"""Reasons of the subscription and not of one consumer."""

NAMED_MAX: Final = 2
"""Consumers named in one sentence."""


def _withheld(consumers: Sequence[ConsumerView]) -> tuple[Withheld, list[ConsumerView]]:
    """What keeps messages from those who ask and may have them, or that nobody asks; from whom."""
    asking = [
        each
        for each in consumers
        if each.has_demand and not (each.is_at_limit or each.is_unsent_high)
    ]
    for reason in WITHHELD_WORDS:
        concerned = [each for each in asking if reason in each.blocked_by]
        if concerned:
            return reason, concerned
    return Withheld.DEMAND, list(consumers)


def _why(reason: Withheld, concerned: Sequence[ConsumerView]) -> str:
    names = [each.name for each in concerned[:NAMED_MAX]]
    more = len(concerned) - len(names)
    who = ", ".join(names) + (f" and {more} more" if more else "")
    awaited = next((each.waits_for for each in concerned if each.waits_for), "")
    return (
        f"{WITHHELD_WORDS[reason]} ({'consumer' if len(concerned) == 1 else 'consumers'} {who}"
        + (f", for consumer {awaited})" if awaited else ")")
    )


def _slow(consumer: ConsumerView) -> str:
    has = f"{consumer.unacked} unsettled messages, its limit is {consumer.unacked_max}"
    if Withheld.BYTES in consumer.blocked_by and Withheld.UNSETTLED not in consumer.blocked_by:
        has = (
            f"{size_text(consumer.unacked_bytes)} of unsettled messages, "
            f"its limit is {size_text(consumer.unacked_bytes_max)}"
        )
    return f"consumer {consumer.name} is slow: it has {has}"


def _stands_by(consumer: ConsumerView) -> bool:
    return Withheld.INACTIVE in consumer.blocked_by


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
    if not consumer.has_demand or consumer.is_at_limit or consumer.is_unsent_high:
        return False
    return not any(each in WITHHELD_WORDS for each in consumer.blocked_by)


def _delivery(stage: StageView, kind: str, name: str, sentence: str) -> Diagnosis:
    return Diagnosis(kind, name, sentence, "delivery", (stage.label,), stage.share)


# ---- held chains --------------------------------------------------------------------------------
# Who waits for whom on the publish side, and who is to blame for it (flow-control.md section 3).
#
# Walking downstream from each stage that is held and that nobody held waits for: *the bottleneck is
# the first stage that is not itself held back, after the last one that is*. A held stage names whom
# it waits for (its culprit); where it does not, its ``downstream`` links are followed. Who lacks
# room names the connection that has it, and the walk goes on there. A limit ends the walk: it is
# the bottleneck.
#
# But states have a memory of a second, and a queue that waited for one slow sync in it is not why a
# channel is behind all the time. So to be held back *now and then* does not count (``FELT``): a
# stage is passed on the walk when it was held at least half of the time that the first one waits,
# or again and again, at least half as often as the one before it: a channel that runs out of credit
# in every turn waits for its queue only as long as the turn takes. Where figures tell nothing,
# states decide.
#
# Several chains may be held at once; the one that makes publishers wait longest is named first.
# Not here: alarms, and why deliveries are slow (``diagnosis.py``).


STAGE_WORDS: Final = {
    "connection": "it has most of the in-flight pool",
    "channel": "parsing and routing",
    "queue": "index writes, or one hot queue",
    "log": "the disk",
}
"""What a stage does that may take long, or that others may have to wait for."""
FELT: Final = 0.5
"""The part of somebody's waiting that makes a stage further down its cause."""
OFTEN: Final = 20
"""Stalls within ``RECENT_MS`` that are no accident: ten a second."""
_PASSING_ON: Final = (None, Reason.FLOW, Reason.ROOM)
"""Reasons to wait for a stage; every other one is a limit, which ends the walk."""
_PUBLISHERS: Final = ("connection", "channel", "sink")
"""Stages at which people wait."""
_CHAIN_LABELS: Final = ("connection ", "channel ", "queue ", "log")
"""How labels of stages begin; one that is not in view is gone, or one of too many."""
_DELIVERY_KINDS: Final = ("subscription", "consumer")


def held_chains(stages: Sequence[StageView]) -> list[Diagnosis]:
    """A finding for every stage that somebody waits for, the one most waited for first."""
    by_label = {stage.label: stage for stage in stages}
    starts: list[tuple[StageView, _WaitChain]] = []
    # Ten thousand connections that wait for the same stage go the same way: it is walked once.
    chains: dict[tuple[str, Reason | None, str], _WaitChain] = {}
    for stage in stages:
        if not stage.is_held or (stage.reason is not None and stage.reason.is_resource):
            continue
        key = (stage.kind, stage.reason, stage.culprit)
        chain = chains.get(key) if stage.culprit else None
        if chain is None:
            chain = chains[key] = _WaitChain(stage, by_label)
        starts.append((stage, chain))
    # Who waits is what counts; those that are waited for are on its way already.
    awaited = {each.label for chain in chains.values() for each in chain.held}
    findings = _FindingsByEnd()
    for stage, chain in starts:
        if stage.label not in awaited or chain.is_ring:
            findings.add(stage, chain)
    return findings.findings()


class _WaitChain:
    """What comes after a held stage, as far as somebody waits."""

    def __init__(self, start: StageView, by_label: dict[str, StageView]) -> None:
        self.held: Final[list[StageView]] = []
        """Stages that are held themselves, after the first."""
        self.end: StageView | None = None
        """The first that is not; None when the last one waits for a limit, or for nobody known."""
        self.is_ring = False
        seen = {start.label}
        stage = start
        while stage.reason in _PASSING_ON:
            following = _next_stage(stage, by_label)
            if following is None:
                return
            if following.label in seen or not following.is_held:
                # A ring of held stages is named instead of walked for ever. Law 3 forbids it.
                self.end = following
                self.is_ring = following.is_held
                return
            seen.add(following.label)
            self.held.append(following)
            stage = following

    def blamed(self, start: StageView) -> int:
        """Who makes ``start`` wait: a number of ``held``, or -1 for who comes after all of them."""
        before, waits = start, start.weight
        for number, stage in enumerate(self.held):
            waits = min(waits, stage.weight)
            is_long = waits >= FELT * start.weight
            is_often = stage.stalls >= max(OFTEN, FELT * before.stalls)
            if not (is_long or is_often):
                return number
            before = stage
        return -1

    def finding(self, start: StageView, blamed: int) -> Diagnosis | None:
        """What there is to say about it."""
        chain = [start, *self.held]
        labels, last = [stage.label for stage in chain], chain[-1]
        if self.is_ring:
            return _ring(self.end or last, labels, start.share)
        if blamed >= 0:
            return _bottleneck(self.held[blamed], labels[: blamed + 1], start.share)
        if last.reason is not None and last.reason.is_resource:
            return None
        if last.reason not in (None, Reason.FLOW) and self.end is None:
            return _limit(last, labels, start.share)
        if self.end is None:
            return _beyond(last, labels, start.share)
        return _bottleneck(self.end, labels, start.share)


class _FindingsByEnd:
    """Findings by their end, and how much waiting each of them explains."""

    def __init__(self) -> None:
        self._found: dict[tuple[_WaitChain, int], Diagnosis | None] = {}
        self._best: dict[tuple[str, str], Diagnosis] = {}
        self._waiting: dict[tuple[str, str], float] = {}
        self._unfelt: dict[tuple[str, str], float] = {}

    def add(self, start: StageView, chain: _WaitChain) -> None:
        key = (chain, chain.blamed(start))
        if key not in self._found:
            self._found[key] = chain.finding(start, key[1])
        finding = self._found[key]
        if finding is None:
            return
        end = (finding.kind, finding.name)
        if start.kind in _PUBLISHERS:
            self._waiting[end] = self._waiting.get(end, 0.0) + start.weight
        else:
            # Fifty queues that wait for the log at the same time wait once, and nobody for them.
            self._unfelt[end] = max(self._unfelt.get(end, 0.0), start.weight)
        known = self._best.get(end)
        if known is None or len(finding.chain) > len(known.chain):
            self._best[end] = finding

    def findings(self) -> list[Diagnosis]:
        """The heaviest first; ties go to the longer chain: it has looked further downstream."""

        def order(end: tuple[str, str]) -> tuple[float, int]:
            weight = self._waiting.get(end, 0.0) + self._unfelt.get(end, 0.0)
            return weight, len(self._best[end].chain)

        return [
            self._best[end]
            if end in self._waiting or self._unfelt[end] >= FELT
            else replace(self._best[end], is_felt=False)
            for end in sorted(self._best, key=order, reverse=True)
        ]


def _ring(first: StageView, chain: list[str], share: float) -> Diagnosis:
    return Diagnosis(
        "ring",
        first.label,
        f"These stages wait for each other: {' -> '.join(chain)} -> {first.label}.",
        "publish",
        tuple(chain),
        share,
    )


def _next_stage(stage: StageView, by_label: dict[str, StageView]) -> StageView | None:
    named = by_label.get(stage.culprit)
    if named is not None:
        return named
    if stage.reason is Reason.ROOM:
        # Whoever has the room is no part of its own chain.
        return None
    if stage.culprit and not stage.culprit.startswith(_CHAIN_LABELS):
        # Something beside the chain: a fault on purpose, say. What comes next is not to blame.
        return None
    links = [by_label[label] for label in stage.downstream if label in by_label]
    # A held link leads on; otherwise the only link is the culprit, and of several none is proven.
    held = [link for link in links if link.is_held]
    if held:
        return max(held, key=lambda link: link.share)
    return links[0] if len(links) == 1 else None


def _bottleneck(stage: StageView, chain: list[str], share: float) -> Diagnosis:
    why = STAGE_WORDS.get(stage.kind)
    return Diagnosis(
        stage.kind,
        stage.name,
        f"{stage.label} is the bottleneck{f' ({why})' if why else ''}: "
        f"{' -> '.join(chain)} {'waits' if len(chain) == 1 else 'wait'} for it "
        f"{percent(share)} of the time.",
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
        f"{percent(share)} of the time.",
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
        f"{percent(share)} of the time.",
        "delivery" if stage.kind in _DELIVERY_KINDS else "publish",
        tuple(chain),
        share,
    )


def percent(share: float) -> str:
    return f"{round(share * 100)} %"
