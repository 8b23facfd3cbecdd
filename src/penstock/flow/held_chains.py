"""Who waits for whom on the publish side, and who is to blame for it (flow-control.md section 3).

Walking downstream from each stage that is held and that nobody held waits for: *the bottleneck is
the first stage that is not itself held back, after the last one that is*. A held stage names whom
it waits for (its culprit); where it does not, its ``downstream`` links are followed. Who lacks room
names the connection that has it, and the walk goes on there. A limit ends the walk: it is the
bottleneck.

But states have a memory of a second, and a queue that waited for one slow sync in it is not why a
channel is behind all the time. So to be held back *now and then* does not count (``FELT``): a stage
is passed on the walk when it was held at least half of the time that the first one waits, or again
and again, at least half as often as the one before it: a channel that runs out of credit in every
turn waits for its queue only as long as the turn takes. Where figures tell nothing, states decide.

Several chains may be held at once; the one that makes publishers wait longest is named first.
Not here: alarms, and why deliveries are slow (``diagnosis.py``).
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.flow.reason import Reason
from penstock.flow.views import Diagnosis, StageView

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
_PUBLISHERS: Final = ("connection", "channel")
"""Stages at which people wait."""
_CHAIN_LABELS: Final = ("connection ", "channel ", "queue ", "log")
"""How labels of stages begin; one that is not in view is gone, or one of too many."""
_DELIVERY_KINDS: Final = ("subscription", "consumer")


def held_chains(stages: Sequence[StageView]) -> list[Diagnosis]:
    """A finding for every stage that somebody waits for, the one most waited for first."""
    by_label = {stage.label: stage for stage in stages}
    starts: list[tuple[StageView, _Way]] = []
    # Ten thousand connections that wait for the same stage go the same way: it is walked once.
    ways: dict[tuple[str, Reason | None, str], _Way] = {}
    for stage in stages:
        if not stage.is_held or (stage.reason is not None and stage.reason.is_resource):
            continue
        key = (stage.kind, stage.reason, stage.culprit)
        way = ways.get(key) if stage.culprit else None
        if way is None:
            way = ways[key] = _Way(stage, by_label)
        starts.append((stage, way))
    # Who waits is what counts; those that are waited for are on its way already.
    awaited = {each.label for way in ways.values() for each in way.held}
    tally = _Tally()
    for stage, way in starts:
        if stage.label not in awaited or way.is_ring:
            tally.add(stage, way)
    return tally.findings()


class _Way:
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


class _Tally:
    """Findings by their end, and how much waiting each of them explains."""

    def __init__(self) -> None:
        self._found: dict[tuple[_Way, int], Diagnosis | None] = {}
        self._best: dict[tuple[str, str], Diagnosis] = {}
        self._waiting: dict[tuple[str, str], float] = {}
        self._unfelt: dict[tuple[str, str], float] = {}

    def add(self, start: StageView, way: _Way) -> None:
        """Somebody waits."""
        key = (way, way.blamed(start))
        if key not in self._found:
            self._found[key] = way.finding(start, key[1])
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
    """As people read it."""
    return f"{round(share * 100)} %"
