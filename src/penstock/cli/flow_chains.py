"""Who waits for whom, read from the answer of ``/api/flow``: chains, and the page of one name.

A chain is a list of labels from who waits to who is slow. Its last part may be no stage: a limit,
an alarm, somebody who does not consume. ``narrowed`` keeps the shape of the page, so that programs
read both alike, and adds ``contains`` and ``chains``.

Pure functions of the page. Not here: finding the bottleneck (the broker does, ``flow/diagnosis``),
how a chain is printed (``flow_lines.py``).
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from penstock.flow.credit import stage_label
from penstock.model.errors import NotFound

ALARMS: Final = ("memory", "disk")
"""Reasons that are alarms: they hold whoever publishes, and nobody is slow."""

Page = dict[str, Any]

_ENDS: Final = {
    "subscription": "nobody: it has no consumer",
    "demand": "its consumers: none of them asks for messages",
    "burials": "its own dead letters, which are buried first",
}
"""Kinds of findings that name the stage itself: what to say instead of its name again."""


def label_of(row: Page) -> str:
    """How others name a stage, or what a finding found."""
    return stage_label(row["kind"], row["name"])


def is_held(stage: Page) -> bool:
    """True in every state but ``running``."""
    return bool(stage["state"] != "running")


def chain_of_finding(finding: Page) -> list[str]:
    """From who waits to who is slow, as the broker found it."""
    chain, end = list(finding["chain"]), _end_of_finding(finding)
    return chain if not end or (chain and chain[-1] == end) else [*chain, end]


def _end_of_finding(finding: Page) -> str:
    kind, name = finding["kind"], str(finding["name"])
    if kind in ALARMS:
        return f"{kind} alarm: {name}"
    if kind in _ENDS and finding["side"] == "delivery":
        return _ENDS[kind]
    if kind == "network":
        return f"the network, or consumer {name}"
    if kind in ("channel", "connection", "consumer", "log", "queue"):
        return label_of(finding)
    if any(label.endswith(name) for label in finding["chain"][-1:]):
        return ""
    return name


def chain_of_stage(stage: Page, by_label: dict[str, Page]) -> list[str]:
    """From this stage to whom it waits for, as far as somebody waits."""
    chain = [label_of(stage)]
    while (following := _next_label(stage, by_label)) and following not in chain:
        chain.append(following)
        if following not in by_label:
            break
        stage = by_label[following]
    return chain


def _next_label(stage: Page, by_label: dict[str, Page]) -> str:
    """Whom it waits for; empty when it does not wait, or nobody can say."""
    undone = stage["undone"]
    if undone is not None and undone["waits_for"]:
        return str(undone["waits_for"])
    if not is_held(stage):
        return ""
    if stage["reason"] in ALARMS:
        return f"{stage['reason']} alarm: {stage['culprit']}"
    if stage["culprit"]:
        return str(stage["culprit"])
    links = [by_label[label] for label in stage["downstream"] if label in by_label]
    held = [link for link in links if is_held(link)]
    # As the broker does: a held link leads on, and of several that run none is proven.
    if held:
        return label_of(max(held, key=lambda link: float(link["share"])))
    return label_of(links[0]) if len(links) == 1 else ""


def narrowed(page: Page, contains: str) -> Page:
    """The page with what concerns stages and consumers of that name; raises if there is none."""
    stages = [each for each in page["stages"] if _is_meant(each, contains)]
    if not stages:
        raise _unknown(page, contains)
    by_label = {label_of(each): each for each in page["stages"]}
    meant = {label_of(each) for each in stages}
    chains = _chains(page["stages"], by_label, meant, contains)
    # Whoever they wait for concerns them as well.
    awaited = meant.union(*chains)
    findings = [each for each in page["findings"] if _concerns(each, awaited, contains)]
    return {
        **page,
        "contains": contains,
        "diagnosis": findings[0] if findings else _own_words(stages, chains, by_label, contains),
        "findings": findings,
        "stages": stages,
        "chains": chains,
        "events": [each for each in page["events"] if label_of(each) in meant],
    }


def _is_meant(stage: Page, contains: str) -> bool:
    # People copy "connection amqp-2" from the screen; one word alone is always part of a name.
    if contains in stage["name"] or (" " in contains and label_of(stage).startswith(contains)):
        return True
    return any(contains in consumer["name"] for consumer in stage["consumers"])


def _concerns(finding: Page, labels: set[str], contains: str) -> bool:
    named = (label_of(finding), *chain_of_finding(finding))
    return contains in finding["name"] or not labels.isdisjoint(named)


def _chains(
    stages: Iterable[Page], by_label: dict[str, Page], meant: set[str], contains: str
) -> list[list[str]]:
    """Every chain that begins at, passes or ends at one that is meant, none part of another."""
    found = []
    for stage in stages:
        chain = chain_of_stage(stage, by_label)
        is_limit = chain[-1] not in by_label and contains in chain[-1]
        if len(chain) > 1 and (is_limit or not meant.isdisjoint(chain)):
            found.append(chain)
    inner = {label for chain in found for label in chain[1:]}
    # A channel held by the same limit or alarm as its connection waits with it.
    beside = {(label, chain[-1]) for chain in found for label in by_label[chain[0]]["downstream"]}
    return [
        chain for chain in found if chain[0] not in inner and (chain[0], chain[-1]) not in beside
    ]


def _own_words(
    stages: list[Page], chains: list[list[str]], by_label: dict[str, Page], contains: str
) -> Page:
    """A finding like the broker's, of what it had no reason to mention."""
    finding = {"kind": "none", "name": "", "side": "none", "chain": [], "share": 0.0}
    if chains:
        first, *_, last = chains[0]
        is_warned = by_label[first]["state"] == "blocking"
        verb = "would wait, if it published, for" if is_warned else "waits for"
        return {**finding, "chain": chains[0], "sentence": f"{first} {verb} {last}."}
    if len(stages) == 1 and not is_held(stages[0]):
        return {**finding, "sentence": f"Nothing holds {label_of(stages[0])}."}
    held = sum(map(is_held, stages))
    count = f"{held} of" if held else "None of"
    return {
        **finding,
        "sentence": f"{count} {len(stages)} stages with {contains!r} in their name "
        f"{'are' if held > 1 else 'is'} held.",
    }


def _unknown(page: Page, contains: str) -> NotFound:
    stages, left_out = page["stages"], page["stages_left_out"]
    names = {str(each["name"]) for each in stages}
    nearest = get_close_matches(contains, names, n=1)
    beyond = f", and {left_out:,} that run are not listed" if left_out else ""
    hint = f"`penstock why {nearest[0]!r}`, or `penstock why`" if nearest else "`penstock why`"
    return NotFound(
        f"no connection, queue, subscription or consumer has {contains!r} in its name; "
        f"{len(stages):,} stages were looked at{beyond}; "
        f"try {hint} for all that is held"
    )
