"""The answer of ``/api/flow`` as lines for people: the sentence, chains, alarms, short tables.

``why_lines`` says what holds the whole broker, ``name_lines`` what there is about one name. The
first line is always the answer in one sentence; a list that is cut off says by how much.

Pure functions of the page. Not here: the screen of ``why --watch`` (``why.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import unquote

from penstock.cli.http_client import Column, age_text, rows_as_lines
from penstock.flow.credit import stage_label
from penstock.flow.demand import ClientCause, Withheld
from penstock.flow.episodes import WINDOW_MS
from penstock.flow.finding import advice_for
from penstock.model.errors import NotFound
from penstock.model.ids import size_text

ROWS_MAX: Final = 20
CHAINS_MAX: Final = 5
OTHERS_MAX: Final = 3
NAMES_MAX: Final = 3
"""Connections listed that the same alarm holds."""

_ALARM_WORDS: Final = {
    "flow.memory_limit": ("memory", "The memory alarm is raised: {used} used, limit {limit}"),
    "flow.disk_free_limit": ("disk", "The disk alarm is raised: {used} free, limit {limit}"),
}
"""Setting of an alarm -> its name, and what it is."""


def why_lines(page: Page) -> list[str]:
    """What holds the broker, and nothing else."""
    finding, held = page["answer"], [each for each in page["stages"] if is_held(each)]
    lines = [finding["sentence"]]
    if finding["severity"] == "ok":
        # Who would be the first to be held, if anybody was at all.
        lines += [finding["detail"]] if finding["detail"] else []
    else:
        lines += _block(_finding_lines(finding, page))
        lines += _block(_facts(finding, page["at_ms"]))
    lines += _block(_limits(page["limits"], finding))
    lines += _block(_others([each for each in page["findings"] if each != finding]))
    lines += _block(_stage_table(held, page, page["stages_held"]))
    return lines + _block(_undone_table(page["stages"], page))


def name_lines(page: Page, narrow: Page) -> list[str]:
    """What there is about one name; ``page`` is the whole answer, ``narrow`` its part."""
    chains, stages = narrow["chains"], narrow["stages"]
    lines = [narrow["answer"]["sentence"]]
    if chains:
        for chain in chains[:CHAINS_MAX]:
            lines += _block(_chain_lines(chain, page))
        lines += _more(len(chains) - CHAINS_MAX, "who wait")
    else:
        lines += _block(_finding_lines(narrow["answer"], page))
    if narrow["answer"] in page["findings"]:
        lines += _block(_facts(narrow["answer"], page["at_ms"]))
    lines += _block(_limits(page["limits"], narrow["answer"]))
    lines += _block(_others(narrow["findings"][1:]))
    lines += _block(_stage_table(stages, page, len(stages), with_ready=True))
    lines += _block(_consumer_table(stages))
    return lines + _block(_undone_table(stages, page))


def _block(lines: Sequence[str]) -> list[str]:
    return ["", *lines] if lines else []


def _more(count: int, what: str) -> list[str]:
    return [f"... and {count:,} more {what}; --json has them"] if count > 0 else []


def _facts(finding: Page, at_ms: int) -> list[str]:
    """Since when, who waits, who suffers with them, and what helps."""
    lines = []
    if finding["since_ms"] is not None:
        ago = age_text(max(0, at_ms - finding["since_ms"]) / 1000)
        lines.append(f"Since {ago} ago." if finding["is_now"] else f"It began {ago} ago.")
    waiters, total = finding["waiters"], finding["waiters_total"]
    if total > 1 or any(each["name"] not in finding["sentence"] for each in waiters):
        names = ", ".join([each["name"] for each in waiters[:NAMES_MAX]])
        more = f" and {total - NAMES_MAX:,} more" if total > NAMES_MAX else ""
        lines.append(f"{_CONCERNED.get(finding['severity'], 'Waiting')}: {names}{more}.")
    if finding["starved"]:
        names = ", ".join([unquote(each.partition("/")[2]) for each in finding["starved"]])
        lines.append(f"Starved with it: {names}.")
    said = [each for each in _SENTENCES.split(finding["detail"]) if each]
    # What the first line says already need not be said again.
    news = [each for each in said if each.removesuffix(".") not in finding["sentence"]]
    lines += [" ".join(news)] if news else []
    lines += [f"To {each['why']}: {each['command']}" for each in finding["do"]]
    return lines + ([HINTS[finding["cause"]]] if finding["cause"] in HINTS else [])


_SENTENCES: Final = re.compile(r"(?<=\.) (?=[A-Z])")
"""Between two sentences, as far as names of clients let one tell."""

HINTS: Final = {
    "slow-consumer": "It helps to start more of them, or to make this one quicker.",
    "never-acks": "Does its code ack what it is done with? What it has goes to others when it "
    "closes its connection.",
    "not-reading": "Its process is stuck, or the network between it and the broker is.",
    "requeue-loop": "Let it reject what it cannot use, and give dead letters a place; or limit how "
    "often a message is delivered.",
    "unroutable": "Bind a queue; or publish with the mandatory flag: then its client is told.",
    "routing": "It helps to have fewer bindings, or publishers on several connections.",
    "index": "It helps to spread the messages over several queues.",
}
"""Cause -> what helps that is no command of ours."""


_CONCERNED: Final = {"refusing": "Refused", "discarding": "From", "dead": "From"}
"""Severity -> what becomes of those who are concerned, unless they wait."""


def _finding_lines(finding: Page, page: Page) -> list[str]:
    chain = chain_of_finding(finding)
    if finding["kind"] not in ALARMS:
        return _chain_lines(chain, page)
    # They wait beside each other, not one for the next; some are only warned.
    *warned, alarm = chain
    by_label = {label_of(each): each for each in page["stages"]}
    held = [each for each in warned if by_label.get(each, {}).get("state") == "blocked"]
    held = [each for each in held if each.startswith("connection ")] or held
    if not held:
        return []
    names = ", ".join(held[:NAMES_MAX]) + (" ..." if len(held) > NAMES_MAX else "")
    return [f"  {names}", f"  -> {alarm}"]


def _chain_lines(chain: list[str], page: Page) -> list[str]:
    """One line for each that waits, the last for whom all of them wait."""
    if not chain:
        return []
    by_label = {label_of(each): each for each in page["stages"]}
    steps = [f"  {'-> ' if number else ''}{label}" for number, label in enumerate(chain)]
    notes = [_wait_text(by_label.get(label), page["at_ms"]) for label in chain[:-1]]
    width = max((len(step) for step in steps[:-1]), default=0)
    lines = [
        f"{step:<{width}}  {note}".rstrip() for step, note in zip(steps[:-1], notes, strict=True)
    ]
    return [*lines, steps[-1]]


def _wait_text(stage: Page | None, at_ms: int) -> str:
    if stage is None or not is_held(stage):
        return ""
    if stage["state"] == "blocking":
        return "held as soon as it publishes"
    since = _since(stage, at_ms)
    held = "held" if since == "-" else f"held for {since}"
    # Three seconds of the last ten are all there were, if it is held for three seconds.
    held_ms = min(WINDOW_MS, at_ms - (stage["since_ms"] or 0))
    if stage["share"] * WINDOW_MS >= ALL_THE_TIME * held_ms:
        return held
    return f"{held}, {_percent(stage['share'])} of the last 10 s"


ALL_THE_TIME: Final = 0.9
"""Of the time since it began; what is lacking is the rounding of its share."""


def _limits(limits: Iterable[Page], answer: Page) -> list[str]:
    """Every limit that is reached, with what to do about it; of an alarm the answer says it."""
    lines = []
    for limit in limits:
        if not limit["is_reached"]:
            continue
        amount: Callable[[int], str] = size_text if limit["unit"] == "bytes" else str
        figures = {"used": amount(limit["used"]), "limit": amount(limit["limit"])}
        alarm, what = _ALARM_WORDS.get(limit["setting"], ("", ""))
        if alarm and answer["kind"] == alarm:
            continue
        following = "; ".join(
            [f"to {each.why}: {each.command}" for each in advice_for(f"alarm/{alarm}", alarm)]
            if alarm
            else [f"`penstock settings` explains {limit['setting']}; change it with --set"]
        )
        what = what or f"A limit is reached: {limit['name']}, {{used}} of {{limit}}"
        lines.append(f"{what.format(**figures)}. Next: {following}.")
    return lines


def _others(findings: Sequence[Page]) -> list[str]:
    shown = [f"Also: {each['sentence']}" for each in findings[:OTHERS_MAX]]
    return shown + _more(len(findings) - OTHERS_MAX, "findings")


def _stage_table(
    stages: Sequence[Page], page: Page, total: int, *, with_ready: bool = False
) -> list[str]:
    if not stages:
        return []
    at_ms = page["at_ms"]
    ready: list[Column] = [("READY", _ready_text)] if with_ready else []
    columns: list[Column] = [
        ("KIND", lambda row: row["kind"]),
        ("NAME", lambda row: row["name"]),
        ("STATE", lambda row: row["state"]),
        ("REASON", lambda row: row["reason"] or "-"),
        ("SINCE", lambda row: _since(row, at_ms)),
        ("SHARE", lambda row: _percent(row["share"])),
        *ready,
        ("HELD BY", lambda row: row["culprit"] or "-"),
    ]
    ordered = sorted(stages, key=lambda row: (not is_held(row), -float(row["share"])))
    shown = ordered[:ROWS_MAX]
    return rows_as_lines(columns, shown) + _more(
        total - len(shown), "stages" if with_ready else "held stages"
    )


def _ready_text(row: Page) -> str:
    # Of the publish side it is always 0, which would look like an empty queue.
    return f"{row['ready']:,}" if row["ready"] or row["kind"] == "subscription" else "-"


def _undone_table(stages: Iterable[Page], page: Page) -> list[str]:
    """Work that is spread over turns."""
    busy = [each for each in stages if each["undone"] is not None]
    if not busy:
        return []
    at_ms = page["at_ms"]
    columns: list[Column] = [
        ("UNDONE", lambda row: row["undone"]["what"]),
        ("LEFT", lambda row: f"{row['undone']['count']:,}"),
        ("SINCE", lambda row: _since(row["undone"], at_ms)),
        ("OF", label_of),
        (
            "WAITS FOR",
            lambda row: row["undone"]["waits_for"] or row["culprit"] or "its next turn",
        ),
    ]
    shown = busy[:ROWS_MAX]
    return rows_as_lines(columns, shown) + _more(len(busy) - len(shown), "with undone work")


def _consumer_table(stages: Collection[Page]) -> list[str]:
    rows = [
        {**consumer, "subscription": stage["name"]}
        for stage in stages
        for consumer in stage["consumers"]
    ]
    if not rows:
        return []
    columns: list[Column] = [
        ("CONSUMER", lambda row: row["name"]),
        ("SUBSCRIPTION", lambda row: row["subscription"]),
        ("UNACKED", lambda row: f"{row['unacked']:,}"),
        ("LIMIT", lambda row: f"{row['unacked_max']:,}" if row["unacked_max"] else "-"),
        ("IT", consumer_text),
    ]
    shown = rows[:ROWS_MAX]
    total = sum(stage["consumers_total"] for stage in stages)
    return rows_as_lines(columns, shown) + _more(total - len(shown), "consumers")


def consumer_text(row: Page) -> str:
    """What a consumer does now, or why it gets nothing."""
    says = row.get("says")
    if says and says["cause"] in SAID_WORDS:
        return SAID_WORDS[says["cause"]].format(f"{says['waiting']:,}")
    return _seen(row)


def _seen(row: Page) -> str:
    """The same by what the broker sees of it."""
    blocked_by = row.get("blocked_by", ())
    if Withheld.BYTES in blocked_by and Withheld.UNSETTLED not in blocked_by:
        return "is at its limit of bytes: it has to settle first"
    if row["unacked"] >= row["unacked_max"] > 0:
        return "is at its limit: it has to settle first"
    if row["is_unsent_high"]:
        return "does not read what it was sent"
    if Withheld.INACTIVE not in blocked_by and not row["has_demand"]:
        return "does not ask for messages"
    awaited = row.get("waits_for")
    if Withheld.INACTIVE in blocked_by and not awaited:
        return "is to take over in a moment"
    found = [text for reason, text in WITHHELD_WORDS.items() if reason in blocked_by]
    whom = f" (for consumer {awaited})" if awaited else ""
    return found[0] + whom if found else "takes messages"


SAID_WORDS: Final = {
    ClientCause.NOT_RECEIVED: "has {} messages that its application does not take",
    ClientCause.QUEUE_BYTES: "does not read: its receiver queue is full, {} messages",
    ClientCause.LISTENERS: "has a busy listener, {} messages wait for it",
    ClientCause.PAUSED: "is paused by its application",
    ClientCause.LETTERS: "waits for its letter topic, {} letters",
    ClientCause.STARTING: "waits until all its parts are subscribed",
}
"""What a consumer says of itself; few do."""

WITHHELD_WORDS: Final = {
    Withheld.INACTIVE: "stands by: another is active",
    Withheld.SUBSCRIPTION: "waits: all consumers together have to settle first",
    Withheld.RATE: "waits: the dispatch rate is used up",
    Withheld.DELAYED_ROOM: "waits: no room to put delayed messages aside",
    Withheld.DRAINING: "waits until the former owner of its keys has settled",
    Withheld.LOOK_AHEAD: "waits: too much is parked for the keys of others",
    Withheld.NOTHING_READY: "waits: there is nothing to read for it",
}
"""What a consumer that asks does instead of taking messages."""


def _since(row: dict[str, Any], at_ms: int) -> str:
    since_ms = row["since_ms"]
    return "-" if since_ms is None else age_text(max(0, at_ms - since_ms) / 1000)


def _percent(share: float) -> str:
    return f"{round(share * 100)} %"


# ---- flow chains --------------------------------------------------------------------------------
# Who waits for whom, read from the answer of ``/api/flow``: chains, and the page of one name.
#
# A chain is a list of labels from who waits to who is slow. Its last part may be no stage: a limit,
# an alarm, somebody who does not consume. ``narrowed`` keeps the shape of the page, so that
# programs read both alike, and adds ``contains`` and ``chains``.
#
# Pure functions of the page. Not here: finding the bottleneck (the broker does,
# ``flow/diagnosis``), how a chain is printed (``flow_lines.py``).


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
    """True when it waits; one that is only slow does not."""
    return stage["state"] not in ("running", "slow")


def chain_of_finding(finding: Page) -> list[str]:
    """From who waits to who is slow, as the broker found it."""
    chain, end = list(finding["chain"]), _end_of_finding(finding)
    return chain if not end or (chain and chain[-1] == end) else [*chain, end]


def _end_of_finding(finding: Page) -> str:
    kind, name = finding["kind"], str(finding["name"])
    if kind in ALARMS:
        return f"{kind} alarm: {name}"
    if kind in _ENDS and finding["side"] == "delivery":
        # One that throws messages away may well have consumers.
        is_unread = kind != "subscription" or finding["cause"] == "nobody"
        return _ENDS[kind] if is_unread else ""
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
    ids = {each["id"] for each in stages}
    findings = [each for each in page["findings"] if _concerns(each, awaited, ids, contains)]
    findings = _of_consumers(stages, findings, contains) + findings
    answer = findings[0] if findings else _own_words(stages, chains, by_label, contains)
    return {
        **page,
        "contains": contains,
        "answer": answer,
        "diagnosis": answer,
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


def _of_consumers(stages: Iterable[Page], findings: Iterable[Page], contains: str) -> list[Page]:
    """A finding about consumers of that name, unless it is said already; none = no such name."""
    meant = [
        (consumer, stage)
        for stage in stages
        if contains not in label_of(stage)
        for consumer in stage["consumers"]
        if contains in consumer["name"]
    ]
    if not meant or any(contains in each["name"] for each in findings):
        return []
    said = [
        f"consumer {consumer['name']} in {label_of(stage)} {consumer_text(consumer)}"
        for consumer, stage in meant[:NAMES_MAX]
    ]
    more = [f"and {len(meant) - NAMES_MAX} more"] if len(meant) > NAMES_MAX else []
    (first, stage), *_ = meant
    culprit = {"kind": "consumer", "id": first["id"], "name": first["name"]}
    sentence = "; ".join([*said, *more]) + "."
    return [_statement(sentence, [label_of(stage)], culprit, side="delivery")]


def _statement(sentence: str, chain: list[str], culprit: Page, side: str = "none") -> Page:
    """In the form of the broker's findings, of what it had no reason to mention."""
    return {
        "kind": culprit["kind"], "name": culprit["name"], "side": side, "sentence": sentence,
        "chain": chain, "share": 0.0, "id": f"ok/{culprit['id']}", "severity": "ok",
        "culprit": culprit, "culprit_id": culprit["id"], "cause": "", "since_ms": None,
        "is_now": True, "waiters": [], "waiters_total": 0, "path": [], "starved": [],
        "headline": [{"text": sentence}], "detail": "", "do": [],
    }  # fmt: skip


def _concerns(finding: Page, labels: set[str], ids: set[str], contains: str) -> bool:
    named = (label_of(finding), *chain_of_finding(finding))
    # A consumer is to blame on whose connection it is; who is refused is on nobody's chain.
    by_id = {*finding["path"], *[each["id"] for each in finding["waiters"]]}
    return contains in finding["name"] or not labels.isdisjoint(named) or not ids.isdisjoint(by_id)


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
    nobody = {"kind": "none", "id": "", "name": ""}
    if chains:
        first, *_, last = chains[0]
        is_warned = by_label[first]["state"] == "blocking"
        verb = "would wait, if it published, for" if is_warned else "waits for"
        return _statement(f"{first} {verb} {last}.", chains[0], nobody)
    if len(stages) == 1 and not is_held(stages[0]):
        return _statement(f"Nothing holds {label_of(stages[0])}.", [], nobody)
    held = sum(map(is_held, stages))
    count = f"{held} of" if held else "None of"
    verb = "are" if held > 1 else "is"
    sentence = f"{count} {len(stages)} stages with {contains!r} in their name {verb} held."
    return _statement(sentence, [], nobody)


def _unknown(page: Page, contains: str) -> NotFound:
    stages, left_out = page["stages"], page["stages_left_out"]
    names = {str(each["name"]) for each in stages}
    nearest = get_close_matches(contains, names, n=1)
    consumers_left_out = sum(each["consumers_total"] - len(each["consumers"]) for each in stages)
    unlisted = [f"{left_out:,} stages that run"] if left_out else []
    unlisted += [f"{consumers_left_out:,} consumers"] if consumers_left_out else []
    beyond = f", and {' and '.join(unlisted)} are not listed" if unlisted else ""
    what = "no connection, queue, subscription or consumer"
    hint = f"`penstock why {nearest[0]!r}`, or `penstock why`" if nearest else "`penstock why`"
    return NotFound(
        f"{'nothing that is listed' if unlisted else what} has {contains!r} in its name; "
        f"{len(stages):,} stages were looked at{beyond}; "
        f"try {hint} for all that is held"
    )
