"""Diagnosis: who is slow, who waits for whom, since when and why (flow-control.md section 3).

Everything that is wrong is a ``Finding``, the worst first:

    alarm        memory or disk holds all publishers
    holding      publishers wait for a stage, a limit or a query (the chains of who waits for whom)
    refusing     publishers are told no
    discarding   messages are thrown away: no queue for them, or no room
    behind       a reader cannot keep up, or nobody reads what was read before (``delivery.py``)
    dead         dead letters grow, and nobody looks at them
    parked       it lies there and nobody waits for it: never the answer

The *answer* is the first of them, or that all is well. What tells alike things apart is the table
of rules in docs/diagnosis.md; each goes by what the broker knows (``views.py``). A pure function of
views: the engine makes them (``engine/flow_map.py``), ``/api/flow`` shows both.
"""

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import unquote

from msgspec.structs import replace

from penstock.flow.credit import stage_label
from penstock.flow.delivery import JUDGEMENT, LOOK, delivery_side, readers_of
from penstock.flow.episodes import WINDOW_MS
from penstock.flow.finding import (
    LIMIT_WORDS,
    NOTHING,
    SEVERITIES,
    WAITERS_MAX,
    Finding,
    advice_for,
    brake_advice,
    percent,
    topic_of_limit,
    topic_of_queue,
)
from penstock.flow.progress import HostView
from penstock.flow.reason import Reason
from penstock.flow.views import AlarmView, Ref, StageView, TroubleView
from penstock.model.ids import size_text
from penstock.model.steps import Steps, finished

STARVED_MAX: Final = 16
HUNG_MS: Final = 5000
"""A sync that takes longer than this hangs; before that the disk is slow."""


def diagnose(stages: Sequence[StageView]) -> Finding:
    """The most important finding."""
    return answer_of(findings_of(stages), stages)


def answer_of(findings: Sequence[Finding], stages: Sequence[StageView]) -> Finding:
    """The worst finding, or that all is well, with the stage that is nearest to its limits."""
    for finding in findings:
        if finding.severity != "parked":
            return finding
    slowest = max(stages, key=lambda each: each.share, default=None)
    if slowest is not None and round(slowest.share * 100):
        return _busiest(slowest, f"held for {percent(slowest.share)} of the last 10 s")
    # Nobody ever had to wait: then by what goes through it; through the log goes everything.
    flows = [each for each in stages if each.kind != LOG and round(each.per_s)]
    if not flows:
        return NOTHING
    quickest = max(flows, key=lambda each: each.per_s)
    return _busiest(quickest, f"{round(quickest.per_s):,} messages a second")


def _busiest(stage: StageView, how: str) -> Finding:
    detail = f"The busiest stage is {stage.label}: {how}."
    return replace(NOTHING, culprit=stage.ref, cause="busiest", share=stage.share, detail=detail)


def findings_of(
    stages: Sequence[StageView],
    troubles: Iterable[TroubleView] = (),
    alarms: Iterable[AlarmView] = (),
    host: HostView | None = None,
) -> list[Finding]:
    """Every finding, the worst first; of the same severity in the order of their weight."""
    return finished(findings_steps(stages, troubles, alarms, host))


def findings_steps(
    stages: Sequence[StageView],
    troubles: Iterable[TroubleView] = (),
    alarms: Iterable[AlarmView] = (),
    host: HostView | None = None,
) -> Steps[list[Finding]]:
    """The same in steps: each of very many readers that are behind may have something to tell."""
    held = yield from held_chains(stages)
    # Where only queues wait for it, that it refuses senders says more than that it holds nobody.
    holding = {each.culprit.id for each in held if each.waiters_total}
    refusing = [each for each in stages if each.refusing and each.key not in holding]
    turned = [_refusing(each) for each in refusing]
    refused = {each.culprit.id for each in turned}
    held = [each for each in held if each.culprit.id not in refused]
    felt = [finding for finding in held if finding.is_felt]
    # A queue that waits for a sync now and then holds nobody: worth a line, and no answer.
    unfelt = [
        replace(each, severity="parked")
        if each.culprit.kind in _CHAIN_KINDS and each.cause != "cycle"
        else each
        for each in held
        if not each.is_felt
    ]
    troubled: list[Finding] = []
    for trouble in troubles:
        troubled.append(_trouble(trouble))
        yield JUDGEMENT
    turned = [_with_refused(each, troubled) for each in turned]
    told = {each.id for each in turned}
    troubled = [each for each in troubled if each.id not in told]
    delivery = yield from delivery_side(stages)
    alarmed = _alarms(stages, alarms)
    yield LOOK * len(stages)
    found = alarmed + _hosts(host, felt) + turned + felt + troubled + delivery
    for number, each in enumerate(found):
        found[number] = _with_readers(_with_part(each, delivery), stages)
        yield LOOK * (len(stages) if each.cause in _FULL else 1)
    found.sort(key=lambda each: SEVERITIES.index(each.severity))
    parked = next((at for at, each in enumerate(found) if each.severity == "parked"), len(found))
    found[parked:parked] = unfelt
    # The same culprit may be found in two ways: what was said first stands.
    unlike = {(each.id, each.cause): each for each in reversed(found)}
    return list(unlike.values())[::-1]


def _with_readers(finding: Finding, stages: Sequence[StageView]) -> Finding:
    """A topic that is full is the fault of who does not empty it: that is told with it."""
    if finding.cause not in _FULL or finding.severity not in ("holding", "refusing"):
        return finding
    is_limit = finding.culprit.kind == "limit"
    topic = topic_of_limit(finding.culprit.id) if is_limit else finding.culprit.id
    said = readers_of(stages, topic)
    return replace(finding, detail=f"{finding.detail} {said}".strip()) if said else finding


_FULL: Final = ("held", "quota", "length-limit", "held-too-long")
"""Causes that say that somebody has not taken what is there."""


def _hosts(host: HostView | None, held: Sequence[Finding]) -> list[Finding]:
    """A busy machine: to blame when somebody waits for what only a CPU can do, else a remark."""
    if host is None:
        return []
    felt = [each for each in held if each.culprit.kind in _CPU_KINDS]
    waiters = {each.id: each for found in felt for each in found.waiters}
    said = f"our threads waited {percent(host.share)} of the last seconds for a CPU"
    waits = f"; {felt[0].culprit.name} is slow with it" if felt else ""
    return [
        Finding(
            "host",
            "host",
            f"The host is busy: {said}{waits}.",
            "publish" if felt else "none",
            felt[0].chain if felt else (),
            host.share,
            severity="holding" if felt else "parked",
            culprit=Ref("host", "host", "host"),
            cause="busy-host",
            since_ms=host.since_ms,
            waiters=tuple(waiters.values())[:WAITERS_MAX],
            waiters_total=sum([each.waiters_total for each in felt]),
            path=(*(felt[0].path if felt else ()), "host"),
            detail="Other programs, or the other guests of the machine, have its CPUs.",
        )
    ]


_CPU_KINDS: Final = ("channel", "queue")
"""Stages that wait for nothing but a CPU."""


def _with_refused(finding: Finding, troubled: Iterable[Finding]) -> Finding:
    """That it turns publishers away is known by its state, whom by those who were."""
    same = [each for each in troubled if each.id == finding.id]
    failed = [each for each in same if each.cause in _FAILURES]
    if failed:
        return failed[0]
    if not same:
        return finding
    waiters = {each.id: each for found in same for each in found.waiters}
    return replace(
        finding,
        since_ms=min((each.since_ms for each in same if each.since_ms is not None), default=None),
        waiters=tuple(waiters.values())[:WAITERS_MAX],
        waiters_total=max(len(waiters), *[each.waiters_total for each in same]),
        path=(*list(waiters)[:1], finding.culprit.id),
        detail=same[0].sentence,
    )


_FAILURES: Final = ("write-failed", "sync-failed")
"""Refusals that say more than that the log is busy."""


def _with_part(finding: Finding, delivery: Iterable[Finding]) -> Finding:
    """For whom publishers wait is known by the brake, which part of it is slow by its progress."""
    if finding.severity != "holding" or finding.culprit.kind != "query":
        return finding
    same = [each for each in delivery if each.culprit.id == finding.culprit.id]
    return replace(finding, cause=same[0].cause, detail=same[0].sentence) if same else finding


def _refusing(stage: StageView) -> Finding:
    why = _stage_words(stage)
    return Finding(
        stage.kind,
        stage.name,
        f"{stage.label} is the bottleneck{f' ({why})' if why else ''}: {stage.refusing}; "
        "sends that do not wait are refused as they come.",
        "publish",
        (stage.label,),
        stage.share,
        severity="refusing",
        culprit=stage.ref,
        cause=_stage_cause(stage),
        since_ms=_since(stage),
        path=(stage.key,),
    )


def _since(stage: StageView) -> int | None:
    """Of the log: since when it fails, or the sync under way takes."""
    if stage.since_ms is not None or stage.sync is None:
        return stage.since_ms
    return stage.sync.since_ms


def _trouble(trouble: TroubleView) -> Finding:
    culprit = trouble.culprit
    if culprit.kind == "limit":
        culprit = replace(culprit, name=_limit_name(culprit.id))
    return Finding(
        culprit.kind,
        culprit.name,
        f"{trouble.text}.",
        "delivery" if trouble.severity == "dead" else "publish",
        (stage_label(culprit.kind, culprit.name),),
        severity=trouble.severity,
        culprit=culprit,
        cause=trouble.cause,
        since_ms=trouble.since_ms,
        waiters=trouble.waiters,
        waiters_total=trouble.waiters_total,
        path=(
            *[each.id for each in trouble.waiters[:1]],
            culprit.id,
            *([trouble.via] if trouble.via else []),
        ),
        detail=f"{trouble.count:,} messages so far.",
        do=advice_for(trouble.limit or culprit.id, trouble.cause),
    )


def _alarms(stages: Iterable[StageView], raised: Iterable[AlarmView]) -> list[Finding]:
    """One finding per raised alarm, however many connections it holds."""
    found: dict[Reason, list[StageView]] = {each.reason: [] for each in raised}
    known = {each.reason: each for each in raised}
    for stage in stages:
        if stage.reason is not None and stage.reason.is_resource and stage.is_held:
            found.setdefault(stage.reason, []).append(stage)
    return [_alarm(reason, held, known.get(reason)) for reason, held in found.items()]


def _alarm(reason: Reason, held: list[StageView], alarm: AlarmView | None) -> Finding:
    text = alarm.text if alarm is not None else held[0].culprit
    # Channels of a held connection wait with it; people count connections.
    blocked = [each for each in held if each.state == "blocked" and each.kind in _ALARMED]
    since_ms = alarm.since_ms if alarm is not None else _oldest(blocked)
    return Finding(
        reason.value,
        text,
        f"The {reason.value} alarm holds {_publishers(held)}: {text}.",
        "publish",
        tuple(stage.label for stage in (blocked or held)[:_CHAIN_MAX]),
        max((stage.share for stage in held), default=0.0),
        severity="alarm",
        culprit=Ref("alarm", f"alarm/{reason.value}", f"{reason.value} alarm"),
        cause=reason.value,
        since_ms=since_ms,
        waiters=tuple([each.waiter for each in blocked[:WAITERS_MAX]]),
        waiters_total=len(blocked) + sum([each.others for each in blocked]),
        path=(*[each.key for each in blocked[:1]], f"alarm/{reason.value}"),
        do=advice_for(f"alarm/{reason.value}", reason.value),
    )


_ALARMED: Final = ("connection", "sink")
_CHAIN_MAX: Final = 16
"""Names listed in one finding; ten thousand held connections are one finding, not a page."""


def _publishers(held: list[StageView]) -> str:
    # Channels of a held connection wait with it; people count connections.
    blocked = sum(
        1 + stage.others
        for stage in held
        if stage.kind == "connection" and stage.state == "blocked"
    )
    sinks = sum(stage.kind == "sink" for stage in held)
    if sinks:
        of_spark = "1 sink of Spark" if sinks == 1 else f"{sinks} sinks of Spark"
        if blocked == 0:
            return of_spark
        return f"{blocked} publishing connection{'s' if blocked > 1 else ''} and {of_spark}"
    if blocked == 0:
        return "nobody yet (no connection that it concerns has published)"
    return "1 publishing connection" if blocked == 1 else f"{blocked} publishing connections"


def _oldest(stages: Iterable[StageView]) -> int | None:
    return min((each.since_ms for each in stages if each.since_ms is not None), default=None)


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
LOG: Final = "log"
_PUBLISHERS: Final = ("connection", "channel", "sink")
"""Stages at which people wait."""
_CHAIN_KINDS: Final = ("connection", "channel", "queue", "log")
"""How ids and labels of stages begin; one that is not in view is gone, or one of too many."""
_DELIVERY_KINDS: Final = ("subscription", "consumer")
WALK: Final = 0.2
"""Steps that a walk from one held stage is."""


def held_chains(stages: Sequence[StageView]) -> Steps[list[Finding]]:
    """A finding for every stage that somebody waits for, the one most waited for first."""
    by_key = {stage.key: stage for stage in stages}
    yield LOOK * len(stages)
    starts: list[tuple[StageView, _WaitChain]] = []
    # Ten thousand connections that wait for the same stage go the same way: it is walked once.
    chains: dict[tuple[str, Reason | None, str], _WaitChain] = {}
    for stage in stages:
        # Whether a reader at a limit is behind is another question (``delivery.py``).
        is_reader = stage.kind in _DELIVERY_KINDS
        is_alarmed = stage.reason is not None and stage.reason.is_resource
        if not stage.is_held or is_reader or is_alarmed:
            continue
        key = (stage.kind, stage.reason, stage.awaited)
        chain = chains.get(key) if stage.awaited else None
        if chain is None:
            chain = chains[key] = _WaitChain(stage, by_key)
        starts.append((stage, chain))
        yield WALK
    # Who waits is what counts; those that are waited for are on its way already.
    awaited = {each.key for chain in chains.values() for each in chain.held}
    findings = _FindingsByEnd(by_key, [each for each in stages if _is_braking(each)])
    for stage, chain in starts:
        if stage.key not in awaited or chain.is_ring:
            findings.add(stage, chain)
            yield WALK
    return (yield from findings.findings())


class _WaitChain:
    """What comes after a held stage, as far as somebody waits."""

    def __init__(self, start: StageView, by_key: dict[str, StageView]) -> None:
        self.held: Final[list[StageView]] = []
        """Stages that are held themselves, after the first."""
        self.end: StageView | None = None
        """The first that is not; None when the last one waits for a limit, or for nobody known."""
        self.is_ring = False
        seen = {start.key}
        stage = start
        while (following := _next_stage(stage, by_key)) is not None:
            if following.key in seen or not following.is_held:
                # A ring of held stages is named instead of walked for ever. Law 3 forbids it.
                self.end = following
                self.is_ring = following.is_held
                return
            seen.add(following.key)
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

    def finding(self, start: StageView, blamed: int) -> Finding | None:
        """What there is to say about it."""
        chain = [start, *self.held]
        last = chain[-1]
        if self.is_ring:
            return _ring(self.end or last, chain)
        if blamed >= 0:
            return _bottleneck(self.held[blamed], chain[: blamed + 1])
        if last.reason is not None and last.reason.is_resource:
            return None
        if last.reason not in (None, Reason.FLOW) and self.end is None:
            return _limit(last, chain)
        if self.end is None:
            return _beyond(last, chain)
        return _bottleneck(self.end, chain)


class _FindingsByEnd:
    """Findings by their end, who waits there, and how much waiting each of them explains."""

    def __init__(self, by_key: dict[str, StageView], braking: Sequence[StageView]) -> None:
        self._by_key = by_key
        self._braking = braking
        self._found: dict[tuple[_WaitChain, int], Finding | None] = {}
        self._best: dict[str, Finding] = {}
        self._waiting: dict[str, float] = {}
        self._unfelt: dict[str, float] = {}
        self._starts: dict[str, list[StageView]] = {}
        self._passed: dict[str, list[StageView]] = {}

    def add(self, start: StageView, chain: _WaitChain) -> None:
        blamed = chain.blamed(start)
        key = (chain, blamed)
        is_new = key not in self._found
        if is_new:
            self._found[key] = chain.finding(start, blamed)
        finding = self._found[key]
        if finding is None:
            return
        end = finding.culprit.id
        if is_new:
            passed = chain.held if blamed < 0 else chain.held[:blamed]
            self._passed.setdefault(end, []).extend(passed)
        self._starts.setdefault(end, []).append(start)
        if start.kind in _PUBLISHERS:
            weight = start.weight * (1 + start.others)
            self._waiting[end] = self._waiting.get(end, 0.0) + weight
        else:
            # Fifty queues that wait for the log at the same time wait once, and nobody for them.
            self._unfelt[end] = max(self._unfelt.get(end, 0.0), start.weight)
        known = self._best.get(end)
        if known is None or len(finding.chain) > len(known.chain):
            self._best[end] = finding

    def findings(self) -> Steps[list[Finding]]:
        """The heaviest first; ties go to the longer chain: it has looked further downstream."""

        def order(end: str) -> tuple[float, int]:
            weight = self._waiting.get(end, 0.0) + self._unfelt.get(end, 0.0)
            return weight, len(self._best[end].chain)

        told: list[Finding] = []
        for end in sorted(self._best, key=order, reverse=True):
            told.append(self._told(end))
            told += self._noisy(told[-1])
            yield 1 + LOOK * len(self._starts[end])
        return told

    def _told(self, end: str) -> Finding:
        """The finding with everybody who waits."""
        starts = self._starts[end]
        connections = [each for each in starts if each.kind in _ALARMED]
        owners = {each.key for each in connections}
        # A channel held by the same limit as its connection waits with it.
        channels = [each for each in starts if each.kind == "channel"]
        waiting = connections + [each for each in channels if each.belongs_to not in owners]
        # It began with the channel, however much later its connection is held as well.
        began = waiting + channels + [each for each in self._passed[end] if each.kind == "channel"]
        waiting.sort(key=lambda each: -each.share)
        is_felt = end in self._waiting or self._unfelt[end] >= FELT
        # Whoever publishes as fast as it can lacks credit for a moment now and then.
        is_felt = is_felt and any(
            each.is_stalled or round(each.share, 2) > 0 or each.stalls >= OFTEN for each in starts
        )
        finding = self._braked(self._best[end], waiting)
        return replace(
            finding,
            is_felt=is_felt,
            since_ms=_oldest(began or starts),
            is_now=any(each.state != "running" for each in starts),
            waiters=tuple([each.waiter for each in waiting[:WAITERS_MAX]]),
            waiters_total=len(waiting) + sum([each.others for each in waiting]),
            starved=self._starved(waiting, finding),
        )

    def _noisy(self, finding: Finding) -> list[Finding]:
        """Of those who wait for the log one may have more than half of what waits for it."""
        if finding.culprit.kind != LOG or not finding.is_now or finding.waiters_total < 2:
            return []
        waiting = self._starts[finding.culprit.id]
        noisy = next(
            (each for each in waiting if each.kind == "connection" and each.has_most), None
        )
        if noisy is None:
            return []
        others = tuple([each for each in finding.waiters if each.id != noisy.key])
        return [
            replace(
                finding,
                kind="connection",
                name=noisy.name,
                culprit=noisy.ref,
                cause="noisy",
                sentence=f"More than half of what waits for {finding.culprit.name} is of "
                f"{noisy.label}: others wait with it.",
                waiters=others,
                waiters_total=finding.waiters_total - 1,
                path=(*[each.id for each in others[:1]], noisy.key),
                detail="",
                do=(),
            )
        ]

    def _braked(self, finding: Finding, waiting: Sequence[StageView]) -> Finding:
        """Who waits for a query waits on the way to a topic that it reads, and is behind on."""
        braking = [each for each in self._braking if each.key == finding.culprit.id]
        if not braking:
            return finding
        queues = {each for stage in waiting[:1] for each in self._queues_of(stage)}
        topics = {topic_of_queue(each) for each in queues}
        first = next((each for each in braking if each.belongs_to in topics), braking[0])
        assert first.query is not None
        return replace(
            finding,
            path=(*finding.path[:-1], first.belongs_to, LOG, finding.culprit.id),
            do=brake_advice(first.belongs_to, *first.query.bound) + finding.do,
        )

    def _starved(self, waiting: Iterable[StageView], finding: Finding) -> tuple[str, ...]:
        """Topics whose publishers wait for something that is not theirs."""
        on_path = set(finding.path)
        on_path |= {each.belongs_to for each in self._braking if each.key == finding.culprit.id}
        found: dict[str, None] = {}
        for stage in waiting:
            for queue_id in self._queues_of(stage):
                topic = topic_of_queue(queue_id)
                if queue_id not in on_path and topic not in on_path:
                    found[topic] = None
            if len(found) >= STARVED_MAX:
                break
        return tuple(found)[:STARVED_MAX]

    def _queues_of(self, stage: StageView) -> list[str]:
        """Ids of the queues that a connection or channel hands messages to."""
        channels = (
            [self._by_key[each] for each in stage.downstream_ids if each in self._by_key]
            if stage.kind == "connection"
            else [stage]
        )
        return [queue_id for channel in channels for queue_id in channel.downstream_ids]


def _is_braking(stage: StageView) -> bool:
    return stage.query is not None and stage.query.is_holding


def _ring(first: StageView, chain: list[StageView]) -> Finding:
    labels = [each.label for each in chain]
    return Finding(
        "ring",
        first.label,
        f"These stages wait for each other: {' -> '.join(labels)} -> {first.label}.",
        "publish",
        tuple(labels),
        chain[0].share,
        severity="holding",
        culprit=first.ref,
        cause="cycle",
        path=tuple([each.key for each in chain]),
    )


def _next_stage(stage: StageView, by_key: dict[str, StageView]) -> StageView | None:
    if stage.reason is Reason.PENDING:
        # Its publishes are not confirmed because the disk does not come back: so it is the disk's.
        log = by_key.get(LOG)
        return log if log is not None and log.state == "slow" else None
    if stage.reason not in _PASSING_ON:
        return None
    named = by_key.get(stage.awaited)
    if named is not None:
        return named
    is_beside = stage.awaited and not stage.awaited.startswith(_CHAIN_KINDS)
    if is_beside or stage.reason is Reason.ROOM:
        # Something beside the chain, a fault on purpose, say: what comes next is not to blame. And
        # whoever has the room is no part of its own chain.
        return None
    following = stage.downstream_ids or stage.downstream
    links = [by_key[key] for key in following if key in by_key]
    # A held link leads on; otherwise the only link is the culprit, and of several none is proven.
    held = [link for link in links if link.is_held]
    if held:
        return max(held, key=lambda link: link.share)
    return links[0] if len(links) == 1 else None


def _bottleneck(stage: StageView, chain: list[StageView]) -> Finding:
    labels = [each.label for each in chain]
    why = _stage_words(stage)
    return Finding(
        stage.kind,
        stage.name,
        f"{stage.label} is the bottleneck{f' ({why})' if why else ''}: "
        f"{' -> '.join(labels)} {'waits' if len(chain) == 1 else 'wait'} for it"
        f"{_part_of_time(chain[0])}.",
        "publish",
        tuple(labels),
        chain[0].share,
        severity="holding",
        culprit=stage.ref,
        cause=_stage_cause(stage),
        path=(*[each.key for each in chain], stage.key),
        detail=_stage_detail(stage),
        do=advice_for(stage.key, ""),
    )


def _stage_words(stage: StageView) -> str:
    """What of it takes so long."""
    words = STAGE_WORDS.get(stage.kind, "")
    more = _LOG_WORDS.get(_stage_cause(stage)) if stage.kind == LOG else None
    return f"{words}: {more}" if more else words


_LOG_WORDS: Final = {
    "hung": "a sync does not come back",
    "no-buffer": "all write buffers wait for it",
    "write-failed": "it refuses what is written",
    "sync-failed": "a sync failed, and nothing is stored any more",
}
"""Causes of what the log says (``RefusalKind``), and that a sync hangs."""


def _part_of_time(stage: StageView) -> str:
    """How much of the time it waits; empty when it does so all the time since it began."""
    if stage.is_stalled and stage.stalls == 1:
        return ""
    # Three seconds of the last ten are all there were, if it began three seconds ago.
    window_ms = min(WINDOW_MS, stage.held_ms or WINDOW_MS)
    share = min(1.0, stage.share * WINDOW_MS / window_ms)
    if share >= ALL_THE_TIME and stage.held_ms >= SECOND_MS:
        return f" for {stage.held_ms // SECOND_MS} s"
    if window_ms < SECOND_MS:
        return " now and then"
    return f" {percent(share)} of the last {window_ms // SECOND_MS} s"


ALL_THE_TIME: Final = 0.9
"""Of the time since it began; what is lacking is the rounding of its share."""
SECOND_MS: Final = 1000


def _stage_cause(stage: StageView) -> str:
    if stage.kind == "log":
        if stage.sync is not None and stage.sync.age_ms > HUNG_MS:
            return "hung"
        return stage.refusal if stage.refusal in _LOG_WORDS else "slow"
    return {"connection": "room", "channel": "routing", "queue": "index"}.get(stage.kind, "work")


def _stage_detail(stage: StageView) -> str:
    sync = stage.sync
    if sync is None:
        return ""
    under_way = f" One is under way for {sync.age_ms / 1000:.1f} s." if sync.age_ms else ""
    return (
        f"Syncs take {sync.p50_ms:g} ms (p50), {sync.p99_ms:g} ms (p99); "
        f"{size_text(sync.unsynced_bytes)} wait for one.{under_way}"
        + (f" Now {stage.refusing}." if stage.refusing else "")
    )


def _beyond(stage: StageView, chain: list[StageView]) -> Finding:
    """Held by something that is no stage in view."""
    labels = [each.label for each in chain]
    who = str(stage.culprit) or f"what comes after {stage.label}"
    culprit_id = stage.waits_for or f"external/{who}"
    return Finding(
        "unknown" if not stage.culprit else "external",
        who,
        f"{' -> '.join(labels)} {'waits' if len(chain) == 1 else 'wait'} for {who}"
        f"{_part_of_time(chain[0])}.",
        "publish",
        tuple(labels),
        chain[0].share,
        severity="holding",
        culprit=Ref(culprit_id.partition("/")[0], culprit_id, who),
        cause="external",
        path=(*[each.key for each in chain], culprit_id),
    )


def _limit(stage: StageView, chain: list[StageView]) -> Finding:
    assert stage.reason is not None
    is_query = stage.reason is Reason.SPARK
    culprit_id = stage.waits_for or f"limit/{stage.culprit}"
    culprit = Ref(culprit_id.partition("/")[0], culprit_id, _limit_name(culprit_id))
    topic, often = topic_of_limit(culprit_id), _part_of_time(chain[0])
    return Finding(
        "query" if is_query else "limit",
        str(stage.culprit),
        f"{stage.label} is held by a limit ({stage.reason.value}): {stage.culprit}"
        f"{often and ';'}{often}.",
        "publish",
        tuple([each.label for each in chain]),
        chain[0].share,
        severity="holding",
        culprit=culprit,
        cause=stage.reason.value,
        path=(*[each.key for each in chain], *([topic] if topic else []), culprit_id),
        detail=f"{stage.culprit}.",
        do=advice_for(culprit_id, stage.reason.value),
    )


def _limit_name(culprit_id: str) -> str:
    """``limit/length_max/topic/orders`` as people say it."""
    kind, _, rest = culprit_id.partition("/")
    if kind == "pool":
        return f"{rest} pool"
    if kind != "limit":
        return unquote(rest) or kind
    setting, _, limited = rest.partition("/")
    words = LIMIT_WORDS.get(setting, setting)
    if not limited:
        return words
    of, _, name = limited.partition("/")
    return f"{words} of {of} {unquote(name)}"
