"""Diagnosis: who is slow, who waits for whom, since when and why (flow-control.md section 3).

Everything that is wrong is a ``Finding``, the worst first:

    alarm        memory or disk holds all publishers
    holding      publishers wait for a stage, a limit or a query (the chains of who waits for whom)
    refusing     publishers are told no
    discarding   messages are thrown away: no queue for them, or no room
    behind       a reader cannot keep up, or nobody reads what was read before
    dead         dead letters grow, and nobody looks at them
    parked       it lies there and nobody waits for it: never the answer

The *answer* is the first of them, or that all is well. What tells alike things apart is the table
of rules in docs/diagnosis.md; each goes by what the broker knows: states and links of stages
(``StageView``), the past of readers (``ProgressView``), refusals and losses (``TroubleView``).

Delivery side, for each subscription that is behind: who asks, is below its own limits and gets
nothing has a reason (a rate, its keys drain, no room to put delayed ones aside); a consumer at its
in-flight limit is slow, or never acks; one below it whose socket does not take its bytes is not
reading; nobody with demand means nobody pulls; where consumers would take more it may be that the
dead are buried first. A Spark query that takes all its limits allow and is behind is slow itself,
and its progress says where: read, transform or sink.

Things are known by ids; names are for people. A pure function of views: the engine makes them
(``engine/flow_map.py``), ``/api/flow`` shows both.
"""

import shlex
from collections.abc import Iterable, Sequence
from typing import Final, Literal
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from penstock.flow.credit import stage_label
from penstock.flow.demand import Withheld
from penstock.flow.progress import LOOPS_MIN, STUCK_MS, HostView, ProgressView
from penstock.flow.reason import Reason
from penstock.model.ids import size_text
from penstock.model.names import object_id

# ---- views --------------------------------------------------------------------------------------
# What an operator sees of a stage, and one finding about all of them.
#
# Plain values, made by ``engine/flow_map.py``, judged by ``diagnosis.py``, shown by ``/api/flow``.


State = Literal["running", "flow", "blocking", "blocked", "slow"]

Severity = Literal["alarm", "holding", "refusing", "discarding", "behind", "dead", "parked", "ok"]

SEVERITIES: Final[tuple[Severity, ...]] = (
    "alarm",
    "holding",
    "refusing",
    "discarding",
    "behind",
    "dead",
    "parked",
)
"""The worst first."""

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
    """Since when it is held: of the episode, not of its last moment."""
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
    refusal: str = ""
    """Log: the kind of what it says then (``RefusalKind``)."""
    refusing: str = ""
    """Log: why whoever will not wait is turned away at once (F6, F7); nobody is held then."""
    recent: float | None = None
    """``share`` of the last moments (``RECENT_MS``) only: by it blame is shared out."""
    stalls: int = 0
    """How often it was held in the last moments."""
    undone: "UndoneView | None" = None
    """What it has begun and goes on with in the next turns, if there is such a thing."""
    id: str = ""
    waits_for: str = ""
    """Id of what holds it."""
    belongs_to: str = ""
    """Id of what it is a part of: a channel's connection, a queue's or a subscription's topic."""
    downstream_ids: tuple[str, ...] = ()
    progress: ProgressView | None = None
    """Subscription: its past; None = not known, and then what is ready counts."""
    group: "GroupView | None" = None
    """Subscription: clients that read it by asking (RocketMQ); None = there are none such."""
    sync: "SyncView | None" = None
    """Log: what the disk does."""

    per_s: float = 0.0
    """Messages a second through it; of a subscription those that are settled."""
    hops: tuple[tuple[str, float], ...] = ()
    """(id of a stage, messages a second that go to it), the busiest first."""
    others: int = 0
    """Connection: so many more wait for the same as it does, and have no view of their own."""

    @property
    def label(self) -> str:
        return stage_label(self.kind, self.name)

    @property
    def members(self) -> tuple[str, ...]:
        """Clients that read it by asking, by name."""
        return () if self.group is None else tuple([each.client for each in self.group.members])

    @property
    def key(self) -> str:
        """What others know it by."""
        return self.id or self.label

    @property
    def awaited(self) -> str:
        """The key of what holds it."""
        return self.waits_for or self.culprit

    @property
    def is_held(self) -> bool:
        return self.state not in ("running", "slow")

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
    age_ms: int = 0


class SyncView(msgspec.Struct, frozen=True):
    """The disk, as the log sees it."""

    since_ms: int | None = None
    """When the sync under way began."""
    age_ms: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    """Of the last syncs."""
    unsynced_bytes: int = 0


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
    lease_text: str = ""
    """Why its lease is broken; empty = it is not."""
    polls: int = 1
    """How often it asked for messages; 0 = it has a lease and did not begin."""
    age_ms: int | None = None
    """Of the oldest message it did not get; None = not known."""
    own_rows_max: int = 0
    """Rows of its last batch when its user allows no more (``maxRowsPerTrigger``); else 0."""


class ConsumerView(msgspec.Struct, frozen=True):
    """One consumer of a subscription."""

    name: str
    unacked: int = 0
    unacked_max: int = 0
    """Its window or in-flight limit, whichever binds; 0 = none."""
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
    id: str = ""
    connection: str = ""
    """Id of its connection."""
    is_unlimited: bool = False
    """It asked for no window at all: whatever comes is sent to it."""
    unsettled_ms: int | None = None
    """For how long it holds messages and gave none of them back; None = not known."""
    is_passive: bool = False
    """It takes by itself, now and then: that it could take more says nothing."""

    @property
    def is_at_limit(self) -> bool:
        """True when it settles slower than it is served."""
        return self.unacked >= self.unacked_max > 0


class GroupView(msgspec.Struct, frozen=True):
    """Clients that read a subscription by asking for messages."""

    members: "tuple[MemberView, ...]" = ()
    lock_owner: str = ""
    """Who has locked a queue that has messages, and is gone; empty = nobody."""


class MemberView(msgspec.Struct, frozen=True):
    """A client of a group, with what it says of itself when it is asked."""

    client: str
    threshold: str = ""
    """Which of its own limits holds a queue: ``messages``, ``bytes`` or ``span`` (F15)."""
    limit: int = 0
    cached: int = 0
    """What it has of that, when it said so; -1 = it did not."""
    is_certain: bool = True
    """False: its counts were held against the usual limits, it may have set others."""
    is_ordered: bool = False
    is_failing: bool = False
    """Messages failed in its hands lately."""
    frozen_ms: int = 0
    """For how long the offset of some queue did not move that it has messages of."""
    frozen_queue: str = ""


class Ref(msgspec.Struct, frozen=True):
    """Something that has an id, with the name that people know it by."""

    kind: str
    id: str
    name: str


class WaiterView(msgspec.Struct, frozen=True):
    """Who waits, or is told no."""

    id: str
    name: str
    since_ms: int | None = None
    share: float = 0.0


class Advice(msgspec.Struct, frozen=True):
    """A command that helps, and what for."""

    why: str
    command: str


class HeadlinePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a headline; with an id it is the name of something."""

    text: str
    id: str = ""


class TroubleView(msgspec.Struct, frozen=True):
    """Refusals or losses that happen again and again, each kind for each place once."""

    severity: Literal["refusing", "discarding", "dead"]
    culprit: Ref
    cause: str
    text: str
    """What happens, as a sentence without its stop."""
    since_ms: int
    count: int
    waiters: tuple[WaiterView, ...] = ()
    waiters_total: int = 0
    via: str = ""
    """Id of what it passed on its way there: an exchange."""


class AlarmView(msgspec.Struct, frozen=True):
    """A raised alarm."""

    reason: Reason
    text: str
    since_ms: int | None = None


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, or that nothing is."""

    kind: str
    """Kind of stage (channel, queue, log, consumer ...), alarm (memory, disk), limit or none."""
    name: str
    sentence: str
    side: Literal["publish", "delivery", "none"] = "none"
    chain: tuple[str, ...] = ()
    """Labels of the held stages that led there, upstream first."""
    share: float = 0.0
    """How much of the last 10 s the first of them stood still."""
    is_felt: bool = True
    """False: no publisher waits for it, and it is not for long either."""
    severity: Severity = "behind"
    culprit: Ref = Ref("none", "", "")
    cause: str = ""
    since_ms: int | None = None
    """When the episode began."""
    is_now: bool = True
    """False: it is over, and shown for a moment longer."""
    waiters: tuple[WaiterView, ...] = ()
    """At most ``WAITERS_MAX`` of those who wait."""
    waiters_total: int = 0
    path: tuple[str, ...] = ()
    """Ids from who waits to the culprit."""
    starved: tuple[str, ...] = ()
    """Ids of topics that get nothing because their publishers wait."""
    detail: str = ""
    do: tuple[Advice, ...] = ()

    @property
    def id(self) -> str:
        """The same as long as the episode lasts."""
        return f"{self.severity}/{self.culprit.id}"

    @property
    def headline(self) -> tuple[HeadlinePart, ...]:
        """The shortest way to say it."""
        return _headline(self)


WAITERS_MAX: Final = 16
"""Who waits, by name; ten thousand held connections are one finding, not a page."""
STARVED_MAX: Final = 16
PARKED_MAX: Final = 20
"""Readers that nobody misses which are listed."""
HUNG_MS: Final = 5000
"""A sync that takes longer than this hangs; before that the disk is slow."""
SLOW_BURIALS_MS: Final = 5000
"""Dead letters that are not written after this time have a slow target."""
FROZEN_MS: Final = 15_000
"""Clients commit every 5 s: an offset that stands still for three of them is no accident."""
UNLIMITED_MIN: Final = 50
"""Unsettled messages of a consumer without a window from which on its age is looked at."""


# ---- diagnosis ----------------------------------------------------------------------------------


__all__ = [
    "NOTHING",
    "RECENT_MS",
    "AlarmView",
    "ConsumerView",
    "Finding",
    "QueryView",
    "Ref",
    "StageView",
    "State",
    "SyncView",
    "TroubleView",
    "WaiterView",
    "answer_of",
    "diagnose",
    "findings_of",
]

NOTHING: Final = Finding(
    "none",
    "",
    "Nothing is held back: the publishers, the network or their own limits set the pace.",
    severity="ok",
)


def diagnose(stages: Sequence[StageView]) -> Finding:
    """The most important finding."""
    return answer_of(findings_of(stages), stages)


def answer_of(findings: Sequence[Finding], stages: Iterable[StageView]) -> Finding:
    """The worst finding, or that all is well, with the stage that is nearest to its limits."""
    for finding in findings:
        if finding.severity != "parked":
            return finding
    busiest = max(stages, key=lambda each: each.share, default=None)
    if busiest is None or round(busiest.share * 100) == 0:
        return NOTHING
    detail = f"The busiest stage is {busiest.label}, {percent(busiest.share)} of the last 10 s."
    return replace(
        NOTHING, culprit=_ref(busiest), cause="busiest", share=busiest.share, detail=detail
    )


def findings_of(
    stages: Sequence[StageView],
    troubles: Iterable[TroubleView] = (),
    alarms: Iterable[AlarmView] = (),
    host: HostView | None = None,
) -> list[Finding]:
    """Every finding, the worst first; of the same severity in the order of their weight."""
    held = held_chains(stages)
    blamed = {finding.name for finding in held}
    turned = [_refusing(each) for each in stages if each.refusing and each.name not in blamed]
    felt = [finding for finding in held if finding.is_felt]
    # A queue that waits for a sync now and then holds nobody: worth a line, and no answer.
    unfelt = [
        replace(each, severity="parked") if each.culprit.kind == "log" else each
        for each in held
        if not each.is_felt
    ]
    troubled = [_trouble(each) for each in troubles]
    turned = [_with_refused(each, troubled) for each in turned]
    told = {each.id for each in turned}
    troubled = [each for each in troubled if each.id not in told]
    delivery = _delivery_side(stages)
    found = _alarms(stages, alarms) + _hosts(host, felt) + turned + felt + troubled + delivery
    found = [_with_part(each, delivery) for each in found]
    found.sort(key=lambda each: SEVERITIES.index(each.severity))
    parked = next((at for at, each in enumerate(found) if each.severity == "parked"), len(found))
    found[parked:parked] = unfelt
    # The same culprit may be found in two ways: what was said first stands.
    unlike = {(each.id, each.cause): each for each in reversed(found)}
    return list(unlike.values())[::-1]


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


def _ref(stage: StageView) -> Ref:
    return Ref(stage.kind, stage.key, stage.name)


def _headline(finding: Finding) -> tuple[HeadlinePart, ...]:
    if finding.severity == "ok":
        return (HeadlinePart("Nothing is held back."),)
    culprit = finding.culprit
    named = HeadlinePart(culprit.name or finding.name, culprit.id)
    words = CAUSE_WORDS.get(finding.cause, finding.cause)
    verb = " is the bottleneck" if finding.severity == "holding" else ""
    if verb:
        words = _HOLDING_WORDS.get(finding.cause, words)
    parts = [named, HeadlinePart(f"{verb}: {words}." if verb else f" {words}.")]
    if finding.waiters:
        first = finding.waiters[0]
        others = finding.waiters_total - 1
        more = f" and {others} other{'s' if others > 1 else ''} wait for it." if others else ""
        parts += [HeadlinePart(" "), HeadlinePart(first.name, first.id)]
        parts.append(HeadlinePart(more or " waits for it."))
    return tuple(parts)


CAUSE_WORDS: Final = {
    "memory": "is above its limit",
    "disk": "too little is free",
    "work": "it does all it can",
    "busy": "is busy, and tells senders so",
    "no-buffer": "has no write buffer left: all wait for the disk",
    "write-failed": "could not be written to",
    "sync-failed": "could not be synced",
    "busy-host": "its CPUs are taken by others",
    "routing": "parsing and routing",
    "index": "index writes, or one hot queue",
    "slow": "it is slow",
    "hung": "a sync does not come back",
    "room": "it has most of the in-flight pool",
    "limit": "it is reached",
    "read": "its read is slow",
    "transform": "its transform is slow",
    "sink": "its sink is slow",
    "transform-or-sink": "its transform or its sink is slow",
    "unknown": "which part of it is slow is not known",
    "own-limit": "takes no more than its own limit allows",
    "silent": "does not poll",
    "not-started": "has a lease and did not begin",
    "lease-broken": "lost its lease",
    "nobody": "has messages, and nobody consumes",
    "never-acks": "never acks",
    "slow-consumer": "is slow",
    "not-reading": "does not read what it was sent",
    "requeue-loop": "takes the same message and gives it back, again and again",
    "unroutable": "publishes what no queue wants",
    "drop-head": "drops its oldest messages: it is full",
    "ring": "keeps the newest only, as it was asked to",
    "length-limit": "refuses what is published: it is full",
    "dead-letters": "has more and more dead letters",
    "held": "it is full, and its publishers wait",
    "rate": "is used up",
    "quota": "is passed: a reader is too far behind",
    "pending": "too much is not confirmed yet",
    "stage": "too many staged rows are not committed",
    "held-too-long": "held publishes for as long as it may, and refuses them",
    "too-large": "refuses messages that are too large",
    "terminated": "is ended for good, and takes no more",
    "demand": "has consumers that do not ask for messages",
    "subscription-unsettled": "has as many unsettled as it allows",
    "delayed-room": "has no room to put delayed messages aside",
    "draining": "waits for the keys of a former consumer",
    "look-ahead": "has too much for consumers of other keys",
    "inactive": "waits for a consumer that is to take over",
    "nothing-ready": "has messages in queues that nobody reads",
    "flow": "waits for what comes after it",
    "spark": "is behind its bound",
    "memory-alarm": "refuses publishes: the memory alarm is raised",
    "disk-alarm": "refuses publishes: the disk alarm is raised",
    "no-route": "refuses what no queue wants",
    "closing": "is about to stop",
    "letters-lost": "has no room for dead letters: they are lost",
    "letters-slow": "buries messages that died, and is not done",
    "external": "is beside the chain",
    "cycle": "wait for each other",
    "does-not-ask": "does not ask for more",
    "stopped-pulling": "has stopped pulling",
    "threshold-messages": "is slow: it has as many messages as it keeps",
    "threshold-bytes": "is slow: it has as many bytes as it keeps",
    "threshold-span": "is slow: one message keeps it from going on",
    "ordered-stuck": "consumes in order, and a message fails again and again",
    "ordered-slow": "consumes in order, and is slow",
    "lock-owner-gone": "is gone, and still has a lock",
    "burials": "buries messages that died",
}
"""Cause -> what is said of the culprit after its name."""

_HOLDING_WORDS: Final = {
    "held": "it is reached",
    "rate": "it is used up",
    "quota": "it is passed",
    "spark": "it is behind its bound",
    "own-limit": "it takes no more than its own limit allows",
    "silent": "it does not poll",
}
"""The same after "is the bottleneck"."""


def _refusing(stage: StageView) -> Finding:
    why = STAGE_WORDS.get(stage.kind)
    return Finding(
        stage.kind,
        stage.name,
        f"{stage.label} is the bottleneck{f' ({why})' if why else ''}: {stage.refusing}; "
        "sends that do not wait are refused as they come.",
        "publish",
        (stage.label,),
        stage.share,
        severity="refusing",
        culprit=_ref(stage),
        cause=_stage_cause(stage),
        since_ms=stage.since_ms if stage.sync is None else stage.sync.since_ms,
        path=(stage.key,),
    )


def _trouble(trouble: TroubleView) -> Finding:
    culprit = trouble.culprit
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
        do=_advice(culprit.id, trouble.cause),
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
        waiters=tuple([_waiter(each) for each in blocked[:WAITERS_MAX]]),
        waiters_total=len(blocked) + sum([each.others for each in blocked]),
        path=(*[each.key for each in blocked[:1]], f"alarm/{reason.value}"),
        do=_advice(f"alarm/{reason.value}", reason.value),
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


def _waiter(stage: StageView) -> WaiterView:
    return WaiterView(stage.key, stage.name, stage.since_ms, stage.share)


def _oldest(stages: Iterable[StageView]) -> int | None:
    return min((each.since_ms for each in stages if each.since_ms is not None), default=None)


# ---- advice -------------------------------------------------------------------------------------
# Commands that help, by what is to blame. Each exists and works (tests/unit/flow/test_advice.py).


def _advice(culprit_id: str, cause: str) -> tuple[Advice, ...]:
    kind, _, rest = culprit_id.partition("/")
    if kind == "alarm":
        return _ALARM_ADVICE[rest]
    if kind == "limit":
        setting, _, limited = rest.partition("/")
        if limited.startswith("sub/"):
            limited = f"topic/{limited.split('/')[1]}"
        if not limited.startswith("topic/") or setting not in _LIMIT_OPTIONS:
            return (Advice("see what the setting means", "penstock settings"),)
        return (_limit_advice(limited, setting),)
    if kind in ("topic", "sub"):
        return _topic_advice(f"topic/{rest.partition('/')[0]}", cause)
    return _STAGE_ADVICE.get(kind, ())


def _topic_advice(topic: str, cause: str) -> tuple[Advice, ...]:
    if cause in ("length-limit", "drop-head", "ring", "letters-lost"):
        return (_limit_advice(topic, "length_max"),)
    if cause == Withheld.SUBSCRIPTION:
        return (_limit_advice(topic, "unacked_max"),)
    return (Advice("see who reads it", f"penstock topics show {topic_argument(topic)}"),)


def _limit_advice(topic_id: str, setting: str) -> Advice:
    why, option = _LIMIT_OPTIONS[setting]
    return Advice(why, f"penstock topics set {topic_argument(topic_id)} {option}")


_STAGE_ADVICE: Final = {
    "query": (Advice("see what it says of itself", "penstock queries"),),
    "log": (Advice("look at the disk and the settings", "penstock doctor"),),
}


def topic_argument(topic_id: str) -> str:
    """A topic's id as an argument of a command."""
    name, *rest = topic_id.removeprefix("topic/").split("@")
    quoted = shlex.quote(unquote(name))
    return f"{quoted} --space {shlex.quote(unquote(rest[0]))}" if rest and rest[0] else quoted


_ALARM_ADVICE: Final = {
    "memory": (
        Advice("see who is behind", "penstock groups list"),
        Advice("allow more, until the next start", "penstock limits set --memory 0.9"),
    ),
    "disk": (
        Advice("see who fills the disk", "penstock topics list"),
        Advice("ask for less, until the next start", "penstock limits set --disk-free 1GiB"),
    ),
}

_LIMIT_OPTIONS: Final = {
    "length_max": ("take the limit away", "--length-max 0"),
    "bytes_max": ("take the limit away", "--bytes-max 0"),
    "publish_messages_per_s": ("take the limit away", "--publish-rate 0"),
    "publish_bytes_per_s": ("take the limit away", "--publish-bytes-rate 0"),
    "quota_bytes_max": ("take the limit away", "--quota-bytes-max 0"),
    "quota_age_ms_max": ("take the limit away", "--quota-age-max 0"),
    "unacked_max": ("take the limit away", "--unacked 0"),
}
"""Setting of a topic -> what to do about it, as an option of ``penstock topics set``."""


# ---- delivery side ------------------------------------------------------------------------------


def _delivery_side(stages: Iterable[StageView]) -> list[Finding]:
    stages = list(stages)
    holding = {_topic_of_limit(each.waits_for) for each in stages if each.is_held}
    slow = sorted((s for s in stages if _is_looked_at(s)), key=lambda s: s.ready, reverse=True)
    found = [each for stage in slow for each in _subscription(stage, holding)]
    parked = [each for each in found if each.severity == "parked"]
    return [each for each in found if each.severity != "parked"] + parked[:PARKED_MAX]


def _is_looked_at(stage: StageView) -> bool:
    if stage.ready > 0 or stage.query is not None:
        return True
    if stage.undone is not None and stage.undone.what == BURIALS:
        return True
    progress = stage.progress
    return progress is not None and (
        progress.loops >= LOOPS_MIN
        or progress.discarding_ms is not None
        or any(each.is_unlimited or each.is_passive for each in stage.consumers)
    )


def _topic_of_limit(limit_id: str) -> str:
    """The id of the topic that a limit limits; empty when it is no such limit."""
    if not limit_id.startswith("limit/"):
        return ""
    _, _, limited = limit_id.removeprefix("limit/").partition("/")
    return limited if limited.startswith("topic/") else ""


def _subscription(stage: StageView, holding: set[str]) -> list[Finding]:
    """Why messages that are ready are not delivered; nothing when they are about to be."""
    if stage.query is not None:
        found = _query(stage, stage.query)
        return [] if found is None else [found]
    progress = stage.progress
    findings = _slow_burials(stage)
    if progress is not None:
        if progress.discarding_ms is not None:
            findings.append(_discarding(stage, progress))
        if progress.loops >= LOOPS_MIN and progress.unsettled_ms >= RECENT_MS:
            return [*findings, _looping(stage, progress)]
        unread = _without_window(stage, progress) or _never_settled(stage, progress)
        if unread is not None:
            return [*findings, unread]
        if not progress.is_behind:
            return findings
    if not stage.ready:
        return findings
    finding = _behind(stage, progress, is_holding=stage.belongs_to in holding)
    return findings if finding is None else [*findings, finding]


def _behind(stage: StageView, progress: ProgressView | None, *, is_holding: bool) -> Finding | None:
    behind = f"{stage.ready} messages are ready in {stage.label}"
    if stage.members:
        return _member(stage, progress, behind)
    consumers = stage.consumers
    if not consumers:
        return _nobody(stage, progress, behind, is_holding=is_holding)
    if all(each.is_passive for each in consumers):
        return _burying(stage, behind) or _taker(stage, progress, behind)
    if any(_is_served(consumer) for consumer in consumers):
        return _burying(stage, behind)
    # Who stands by is not the reason, unless all do.
    consumers = tuple(each for each in consumers if not _stands_by(each)) or consumers
    reason, concerned = _withheld(consumers)
    # What concerns all goes before the limits of some: others could take more but for that.
    one = None if reason in _OF_ALL else _one_of_them(stage, consumers, progress, behind)
    if one is not None:
        return one
    found = _delivery(
        stage, reason, stage.name, f"{behind}, but {_why(reason, concerned)}.", cause=reason.value
    )
    return replace(found, detail=_names(concerned))


def _nobody(
    stage: StageView, progress: ProgressView | None, behind: str, *, is_holding: bool
) -> Finding:
    is_missed = progress is None or progress.was_read or is_holding
    nobody = "nobody consumes" if is_missed else "nobody has consumed for an hour, or ever"
    return _delivery(
        stage,
        "subscription",
        stage.name,
        f"{behind}, but {nobody}.",
        cause="nobody",
        severity="behind" if is_missed else "parked",
    )


def _one_of_them(
    stage: StageView,
    consumers: Sequence[ConsumerView],
    progress: ProgressView | None,
    behind: str,
) -> Finding | None:
    """A consumer that is at its limit, or does not read; the worst of them."""
    at_limit = [consumer for consumer in consumers if consumer.is_at_limit]
    if at_limit:
        worst = max(
            at_limit, key=lambda each: (_unsettled_ms(each, progress) >= STUCK_MS, each.unacked)
        )
        return _slow_consumer(stage, worst, progress, f"{behind}; ")
    unread = [consumer for consumer in consumers if consumer.is_unsent_high]
    if not unread:
        return None
    name = unread[0].name
    deaf = f"the network or consumer {name} is slow: it does not read what it was sent"
    found = _delivery(stage, "network", name, f"{behind}; {deaf}.", cause="not-reading")
    return _of_consumer(found, stage, unread[0])


def _names(consumers: Sequence[ConsumerView]) -> str:
    return "Consumers: " + ", ".join([each.name for each in consumers[:WAITERS_MAX]]) + "."


def _member(stage: StageView, progress: ProgressView | None, behind: str) -> Finding:
    """A group that reads by asking: it has members, so somebody consumes.

    Why a client does not ask it knows best; what it does not say is judged by what it asks for.
    """
    group = stage.group
    assert group is not None
    if group.lock_owner:
        said = f"a queue is locked by {group.lock_owner}, who is gone; the lock ends by itself"
        return _of_client(stage, group.lock_owner, f"{behind}, but {said}.", "lock-owner-gone")
    members = group.members
    stuck = [each for each in members if each.is_ordered and each.frozen_ms >= FROZEN_MS]
    failing = [each for each in stuck if each.is_failing]
    if failing:
        worst = max(failing, key=lambda each: each.frozen_ms)
        said = (
            f"{worst.client} consumes in order, and {worst.frozen_queue} stands still: "
            f"its first message fails, again and again, for {worst.frozen_ms // 1000} s"
        )
        return _of_client(stage, worst.client, f"{behind}; {said}.", "ordered-stuck")
    held = [each for each in members if each.threshold]
    if held:
        worst = max(held, key=lambda each: (each.is_certain, each.cached))
        said = f"its client {worst.client} is slow: {_threshold(worst)}"
        return _of_client(stage, worst.client, f"{behind}; {said}.", f"threshold-{worst.threshold}")
    if stuck:
        said = f"{stuck[0].client} consumes in order, and {stuck[0].frozen_queue} is slow"
        return _of_client(stage, stuck[0].client, f"{behind}; {said}.", "ordered-slow")
    unread_ms = 0 if progress is None or progress.unread_ms is None else progress.unread_ms
    stopped = unread_ms >= STUCK_MS
    names = ", ".join([each.client for each in members[:NAMED_MAX]])
    more = len(members) - NAMED_MAX
    who = names + (f" and {more} more" if more > 0 else "")
    said = (
        f"has not pulled for {unread_ms // 1000} s"
        if stopped
        else "does not ask for more: it is slow, or at a threshold of its own"
    )
    cause = "stopped-pulling" if stopped else "does-not-ask"
    return _of_client(stage, members[0].client, f"{behind}, but its client {who} {said}.", cause)


def _threshold(member: MemberView) -> str:
    amount = size_text if member.threshold == "bytes" else "{:,}".format
    limit = f"{'its' if member.is_certain else 'the usual'} limit is {amount(member.limit)}"
    if member.cached < 0:
        return f"a queue is above its threshold of {member.threshold}, {limit}"
    if member.threshold == "span":
        return f"what it has of a queue is {member.cached:,} offsets apart, {limit}"
    unit = " messages" if member.threshold == "messages" else ""
    return f"it has {amount(member.cached)}{unit} of a queue, {limit}"


def _of_client(stage: StageView, client: str, sentence: str, cause: str) -> Finding:
    found = _delivery(stage, "consumer", client, sentence, cause=cause)
    culprit = Ref("client", object_id("client", client), client)
    return replace(found, culprit=culprit, path=(*found.path, culprit.id))


def _never_settled(stage: StageView, progress: ProgressView) -> Finding | None:
    """A group took messages for a limited time (pop) and settles none of them."""
    held = [each for each in stage.consumers if each.is_passive and each.unacked]
    held_ms = max((each.unsettled_ms or 0 for each in held), default=0)
    # That they come back after their time is no settlement, so only what the group says counts.
    if stage.group is None or min(held_ms, progress.unsettled_ms) < STUCK_MS:
        return None
    client = stage.group.members[0].client
    unacked = sum([each.unacked for each in held])
    said = f"and nothing is settled for {progress.unsettled_ms // 1000} s"
    found = _of_client(
        stage,
        client,
        f"Clients of {stage.label} have {unacked} messages, {said}: {client} never acks.",
        "never-acks",
    )
    return replace(found, since_ms=None)


def _taker(stage: StageView, progress: ProgressView | None, behind: str) -> Finding:
    """Nobody is sent messages: who takes them one by one takes too few."""
    taker = max(stage.consumers, key=lambda each: each.unacked)
    unread_ms = 0 if progress is None or progress.unread_ms is None else progress.unread_ms
    stopped = unread_ms >= STUCK_MS
    said = f"has not asked for {unread_ms // 1000} s" if stopped else "asks for too few"
    found = _delivery(
        stage,
        "consumer",
        taker.name,
        f"{behind}, but consumer {taker.name}, which takes them one by one, {said}.",
        cause="stopped-pulling" if stopped else "does-not-ask",
    )
    return _of_consumer(found, stage, taker)


def _slow_consumer(
    stage: StageView, consumer: ConsumerView, progress: ProgressView | None, before: str
) -> Finding:
    unsettled_ms = _unsettled_ms(consumer, progress)
    is_stuck = unsettled_ms >= STUCK_MS
    if is_stuck:
        said = (
            f"consumer {consumer.name} never acks: it has {consumer.unacked} unsettled messages "
            f"and has settled nothing for {unsettled_ms // 1000} s"
        )
    else:
        said = _slow(consumer)
    found = _delivery(
        stage,
        "consumer",
        consumer.name,
        f"{before}{said}.",
        cause="never-acks" if is_stuck else "slow-consumer",
    )
    return _of_consumer(found, stage, consumer)


def _unsettled_ms(consumer: ConsumerView, progress: ProgressView | None) -> int:
    """For how long a consumer settles nothing of what it has."""
    if consumer.unsettled_ms is not None:
        return consumer.unsettled_ms
    return 0 if progress is None else progress.unsettled_ms


def _of_consumer(finding: Finding, stage: StageView, consumer: ConsumerView) -> Finding:
    culprit = Ref("consumer", consumer.id or f"consumer/{consumer.name}", consumer.name)
    path = (stage.key, culprit.id, *([consumer.connection] if consumer.connection else []))
    detail = f"It is on {consumer.connection}." if consumer.connection else ""
    return replace(finding, culprit=culprit, path=path, detail=detail)


def _without_window(stage: StageView, progress: ProgressView) -> Finding | None:
    """A consumer that asked for no window: nothing is ever ready, and it has everything."""
    held = [
        each
        for each in stage.consumers
        if each.is_unlimited and each.unacked >= UNLIMITED_MIN and not each.is_at_limit
    ]
    if not held or progress.unacked_age_ms < STUCK_MS:
        return None
    worst = max(held, key=lambda each: each.unacked)
    before = f"{stage.label} has {worst.unacked} unsettled messages, the oldest "
    before += f"{progress.unacked_age_ms // 1000} s old; "
    found = _slow_consumer(stage, replace(worst, unacked_max=0), progress, before)
    return replace(found, since_ms=None)


def _looping(stage: StageView, progress: ProgressView) -> Finding:
    name = stage.consumers[0].name if stage.consumers else stage.name
    said = (
        f"message {progress.loop_offset} of {stage.label} came back {progress.loops} times in a "
        "row, and nothing is settled"
    )
    found = _delivery(
        stage, "consumer", name, f"{said}: consumer {name} requeues it.", cause="requeue-loop"
    )
    return _of_consumer(found, stage, stage.consumers[0]) if stage.consumers else found


def _slow_burials(stage: StageView) -> list[Finding]:
    """Messages that died are not where they belong, and it takes long."""
    undone = stage.undone
    if undone is None or undone.what != BURIALS or undone.age_ms < SLOW_BURIALS_MS:
        return []
    said = f"it buries messages that died, {undone.count} are left after {undone.age_ms // 1000} s"
    found = _delivery(
        stage,
        "subscription",
        stage.name,
        f"The dead letters of {stage.label} are slow: {said}.",
        cause="letters-slow",
        severity="dead",
    )
    return [replace(found, since_ms=undone.since_ms)]


def _discarding(stage: StageView, progress: ProgressView) -> Finding:
    """Old messages make room for new ones: a loss to who reads them, a ring to who does not."""
    is_ring = not progress.was_read
    said = f"{progress.discarded} of its oldest messages were dropped for want of room"
    found = _delivery(
        stage,
        "subscription",
        stage.name,
        f"{stage.label} is full: {said}.",
        cause="ring" if is_ring else "drop-head",
        severity="parked" if is_ring else "discarding",
    )
    return replace(found, since_ms=progress.discarding_ms)


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
    if not consumer.unacked_max:
        has = f"{consumer.unacked} unsettled messages, and no limit (prefetch)"
    if Withheld.BYTES in consumer.blocked_by and Withheld.UNSETTLED not in consumer.blocked_by:
        has = (
            f"{size_text(consumer.unacked_bytes)} of unsettled messages, "
            f"its limit is {size_text(consumer.unacked_bytes_max)}"
        )
    return f"consumer {consumer.name} is slow: it has {has}"


def _stands_by(consumer: ConsumerView) -> bool:
    return Withheld.INACTIVE in consumer.blocked_by


def _burying(stage: StageView, behind: str) -> Finding | None:
    """It has consumers who would take them, but nothing is delivered before the dead are buried."""
    undone = stage.undone
    if undone is None or undone.what != BURIALS:
        return None
    does = f"it first buries {undone.count} messages that died"
    return _delivery(stage, BURIALS, stage.name, f"{behind}; {does}.", cause=BURIALS)


def _query(stage: StageView, query: QueryView) -> Finding | None:
    """Why a Spark query is behind; None while it simply has its next batch before it."""
    culprit = Ref("query", stage.id or f"query/{query.name}", query.name)
    behind = f"Spark query {query.name} is {stage.ready} messages behind"

    def found(sentence: str, cause: str) -> Finding:
        finding = _delivery(stage, "query", query.name, sentence, cause=cause)
        return replace(
            finding,
            culprit=culprit,
            path=(stage.belongs_to or stage.key, culprit.id),
            do=_advice(culprit.id, cause),
        )

    if query.lease_text:
        return found(
            f"The lease of Spark query {query.name} is broken: {query.lease_text}.", "lease-broken"
        )
    progress = stage.progress
    is_behind = progress is None or progress.is_behind or query.is_holding
    if not stage.ready or not is_behind:
        return None
    if not query.is_alive:
        if not query.polls:
            return found(f"{behind}: it has a lease and did not begin to read.", "not-started")
        return found(f"{behind}, and it does not poll.", "silent")
    if not (query.is_limited or query.is_holding):
        return None
    cause = (query.slow_part or "unknown").replace(" ", "-")
    part = f"its {query.slow_part} is the slow part" if query.slow_part else "which part is unknown"
    if query.own_rows_max:
        cause = "own-limit"
        part = (
            f"it takes no more than its own limit allows (maxRowsPerTrigger {query.own_rows_max})"
        )
    waits = "; publishers wait for it" if query.is_holding else ""
    return found(
        f"{behind} at {round(query.messages_per_s)} messages a second: {part}{waits}.", cause
    )


def _is_served(consumer: ConsumerView) -> bool:
    if not consumer.has_demand or consumer.is_at_limit or consumer.is_unsent_high:
        return False
    return not any(each in WITHHELD_WORDS for each in consumer.blocked_by)


def _delivery(
    stage: StageView,
    kind: str,
    name: str,
    sentence: str,
    *,
    cause: str,
    severity: Severity = "behind",
) -> Finding:
    progress = stage.progress
    return Finding(
        kind,
        name,
        sentence,
        "delivery",
        (stage.label,),
        stage.share,
        severity=severity,
        culprit=_ref(stage),
        cause=cause,
        since_ms=stage.since_ms if progress is None else progress.since_ms,
        path=(*([stage.belongs_to] if stage.belongs_to else []), stage.key),
        do=_advice(stage.key, cause),
    )


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
_CHAIN_KINDS: Final = ("connection", "channel", "queue", "log")
"""How ids and labels of stages begin; one that is not in view is gone, or one of too many."""
_DELIVERY_KINDS: Final = ("subscription", "consumer")


def held_chains(stages: Sequence[StageView]) -> list[Finding]:
    """A finding for every stage that somebody waits for, the one most waited for first."""
    by_key = {stage.key: stage for stage in stages}
    starts: list[tuple[StageView, _WaitChain]] = []
    # Ten thousand connections that wait for the same stage go the same way: it is walked once.
    chains: dict[tuple[str, Reason | None, str], _WaitChain] = {}
    for stage in stages:
        if not stage.is_held or (stage.reason is not None and stage.reason.is_resource):
            continue
        key = (stage.kind, stage.reason, stage.awaited)
        chain = chains.get(key) if stage.awaited else None
        if chain is None:
            chain = chains[key] = _WaitChain(stage, by_key)
        starts.append((stage, chain))
    # Who waits is what counts; those that are waited for are on its way already.
    awaited = {each.key for chain in chains.values() for each in chain.held}
    findings = _FindingsByEnd(by_key)
    for stage, chain in starts:
        if stage.key not in awaited or chain.is_ring:
            findings.add(stage, chain)
    return findings.findings()


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
        while stage.reason in _PASSING_ON:
            following = _next_stage(stage, by_key)
            if following is None:
                return
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

    def __init__(self, by_key: dict[str, StageView]) -> None:
        self._by_key = by_key
        self._found: dict[tuple[_WaitChain, int], Finding | None] = {}
        self._best: dict[str, Finding] = {}
        self._waiting: dict[str, float] = {}
        self._unfelt: dict[str, float] = {}
        self._starts: dict[str, list[StageView]] = {}

    def add(self, start: StageView, chain: _WaitChain) -> None:
        key = (chain, chain.blamed(start))
        if key not in self._found:
            self._found[key] = chain.finding(start, key[1])
        finding = self._found[key]
        if finding is None:
            return
        end = finding.culprit.id
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

    def findings(self) -> list[Finding]:
        """The heaviest first; ties go to the longer chain: it has looked further downstream."""

        def order(end: str) -> tuple[float, int]:
            weight = self._waiting.get(end, 0.0) + self._unfelt.get(end, 0.0)
            return weight, len(self._best[end].chain)

        return [self._told(end) for end in sorted(self._best, key=order, reverse=True)]

    def _told(self, end: str) -> Finding:
        """The finding with everybody who waits."""
        starts = self._starts[end]
        connections = [each for each in starts if each.kind in _ALARMED]
        owners = {each.key for each in connections}
        # A channel held by the same limit as its connection waits with it.
        alone = [
            each for each in starts if each.kind == "channel" and each.belongs_to not in owners
        ]
        waiting = connections + alone
        waiting.sort(key=lambda each: -each.share)
        is_felt = end in self._waiting or self._unfelt[end] >= FELT
        finding = self._best[end]
        return replace(
            finding,
            is_felt=is_felt,
            since_ms=_oldest(waiting or starts),
            is_now=any(each.state != "running" for each in starts),
            waiters=tuple([_waiter(each) for each in waiting[:WAITERS_MAX]]),
            waiters_total=len(waiting) + sum([each.others for each in waiting]),
            starved=self._starved(waiting, finding),
        )

    def _starved(self, waiting: Iterable[StageView], finding: Finding) -> tuple[str, ...]:
        """Topics whose publishers wait for something that is not theirs."""
        on_path = set(finding.path)
        found: dict[str, None] = {}
        for stage in waiting:
            channels = (
                [self._by_key[each] for each in stage.downstream_ids if each in self._by_key]
                if stage.kind == "connection"
                else [stage]
            )
            for channel in channels:
                for queue_id in channel.downstream_ids:
                    topic = topic_of_queue(queue_id)
                    if queue_id not in on_path and topic not in on_path:
                        found[topic] = None
            if len(found) >= STARVED_MAX:
                break
        return tuple(found)[:STARVED_MAX]


def topic_of_queue(queue_id: str) -> str:
    """``queue/NAME/2`` is a part of ``topic/NAME``."""
    return "topic/" + queue_id.removeprefix("queue/").rpartition("/")[0]


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
        culprit=_ref(first),
        cause="cycle",
        path=tuple([each.key for each in chain]),
    )


def _next_stage(stage: StageView, by_key: dict[str, StageView]) -> StageView | None:
    named = by_key.get(stage.awaited)
    if named is not None:
        return named
    if stage.reason is Reason.ROOM:
        # Whoever has the room is no part of its own chain.
        return None
    if stage.awaited and not stage.awaited.startswith(_CHAIN_KINDS):
        # Something beside the chain: a fault on purpose, say. What comes next is not to blame.
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
    why = STAGE_WORDS.get(stage.kind)
    return Finding(
        stage.kind,
        stage.name,
        f"{stage.label} is the bottleneck{f' ({why})' if why else ''}: "
        f"{' -> '.join(labels)} {'waits' if len(chain) == 1 else 'wait'} for it "
        f"{percent(chain[0].share)} of the time.",
        "publish",
        tuple(labels),
        chain[0].share,
        severity="holding",
        culprit=_ref(stage),
        cause=_stage_cause(stage),
        path=(*[each.key for each in chain], stage.key),
        detail=_stage_detail(stage),
        do=_advice(stage.key, ""),
    )


def _stage_cause(stage: StageView) -> str:
    if stage.kind == "log":
        if stage.sync is not None and stage.sync.age_ms > HUNG_MS:
            return "hung"
        return "no-buffer" if stage.refusal == "no-buffer" else "slow"
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
        f"{' -> '.join(labels)} {'waits' if len(chain) == 1 else 'wait'} for {who} "
        f"{percent(chain[0].share)} of the time.",
        "publish",
        tuple(labels),
        chain[0].share,
        severity="holding",
        culprit=Ref("external", culprit_id, who),
        cause="external",
        path=(*[each.key for each in chain], culprit_id),
    )


def _limit(stage: StageView, chain: list[StageView]) -> Finding:
    assert stage.reason is not None
    is_query = stage.reason is Reason.SPARK
    culprit_id = stage.waits_for or f"limit/{stage.culprit}"
    culprit = Ref(culprit_id.partition("/")[0], culprit_id, _limit_name(culprit_id))
    topic = _topic_of_limit(culprit_id)
    return Finding(
        "query" if is_query else "limit",
        str(stage.culprit),
        f"{stage.label} is held by a limit ({stage.reason.value}): {stage.culprit}; "
        f"{percent(chain[0].share)} of the time.",
        "delivery" if stage.kind in _DELIVERY_KINDS else "publish",
        tuple([each.label for each in chain]),
        chain[0].share,
        severity="behind" if stage.kind in _DELIVERY_KINDS else "holding",
        culprit=culprit,
        cause=stage.reason.value,
        path=(*[each.key for each in chain], *([topic] if topic else []), culprit_id),
        detail=f"{stage.culprit}.",
        do=_advice(culprit_id, stage.reason.value),
    )


def _limit_name(culprit_id: str) -> str:
    """``limit/length_max/topic/orders`` as people say it."""
    kind, _, rest = culprit_id.partition("/")
    if kind != "limit":
        return unquote(rest) or kind
    setting, _, limited = rest.partition("/")
    if not limited:
        return setting
    of, _, name = limited.partition("/")
    return f"{setting} of {of} {unquote(name)}"


def percent(share: float) -> str:
    return f"{round(share * 100)} %"
