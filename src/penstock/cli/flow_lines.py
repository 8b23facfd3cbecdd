"""The answer of ``/api/flow`` as lines for people: the sentence, chains, alarms, short tables.

``why_lines`` says what holds the whole broker, ``name_lines`` what there is about one name. The
first line is always the answer in one sentence; a list that is cut off says by how much.

Pure functions of the page. Not here: whom a stage waits for (``flow_chains.py``), screens
(``watching.py``).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from penstock.cli.asking import Column, age_text, rows_as_lines
from penstock.cli.flow_chains import ALARMS, Page, chain_of_finding, is_held, label_of
from penstock.model.ids import size_text

ROWS_MAX: Final = 20
CHAINS_MAX: Final = 5
OTHERS_MAX: Final = 3
NAMES_MAX: Final = 3
"""Connections listed that the same alarm holds."""

_NEXT_STEPS: Final = {
    "flow.memory_limit": (
        "The memory alarm is raised: {used} used, limit {limit}",
        "let consumers take what is there (`penstock groups list` says who is behind), "
        "or start the broker with a higher --memory-limit",
    ),
    "flow.disk_free_limit": (
        "The disk alarm is raised: {used} free, limit {limit}",
        "make room on the disk (`penstock topics list` says who fills it), "
        "or start the broker with a lower --disk-free-limit",
    ),
}
"""Setting of an alarm -> what it is, and what to do next."""


def why_lines(page: Page) -> list[str]:
    """What holds the broker, and nothing else."""
    finding, held = page["diagnosis"], [each for each in page["stages"] if is_held(each)]
    lines = [finding["sentence"]]
    if finding["kind"] == "none":
        lines += _busiest(page["stages"])
    else:
        lines += _block(_finding_lines(finding, page))
    lines += _block(_alarms(page["limits"]))
    lines += _block(_others(page["findings"][1:]))
    lines += _block(_stage_table(held, page, page["stages_held"]))
    return lines + _block(_undone_table(page["stages"], page))


def name_lines(page: Page, narrow: Page) -> list[str]:
    """What there is about one name; ``page`` is the whole answer, ``narrow`` its part."""
    chains, stages = narrow["chains"], narrow["stages"]
    lines = [narrow["diagnosis"]["sentence"]]
    if chains:
        for chain in chains[:CHAINS_MAX]:
            lines += _block(_chain_lines(chain, page))
        lines += _more(len(chains) - CHAINS_MAX, "who wait")
    else:
        lines += _block(_finding_lines(narrow["diagnosis"], page))
    lines += _block(_alarms(page["limits"]))
    lines += _block(_others(narrow["findings"][1:]))
    lines += _block(_stage_table(stages, page, len(stages), with_ready=True))
    lines += _block(_consumer_table(stages))
    return lines + _block(_undone_table(stages, page))


def _block(lines: Sequence[str]) -> list[str]:
    return ["", *lines] if lines else []


def _more(count: int, what: str) -> list[str]:
    return [f"... and {count:,} more {what}; --json has them"] if count > 0 else []


def _busiest(stages: Iterable[Page]) -> list[str]:
    """Who would be the first to be held, if anybody was at all."""
    busiest = max(stages, key=lambda each: float(each["share"]), default=None)
    if busiest is None or _percent(busiest["share"]) == "0 %":
        return []
    return [
        f"The busiest stage is {label_of(busiest)}: it stood still for "
        f"{_percent(busiest['share'])} of the last 10 s."
    ]


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
    return f"{held}, {_percent(stage['share'])} of the last 10 s"


def _alarms(limits: Iterable[Page]) -> list[str]:
    """Every limit that is reached, with what to do about it."""
    lines = []
    for limit in limits:
        if not limit["is_reached"]:
            continue
        amount: Callable[[int], str] = size_text if limit["unit"] == "bytes" else str
        figures = {"used": amount(limit["used"]), "limit": amount(limit["limit"])}
        what, following = _NEXT_STEPS.get(
            limit["setting"],
            (
                f"A limit is reached: {limit['name']}, {{used}} of {{limit}}",
                f"`penstock settings` explains {limit['setting']}; change it with --set",
            ),
        )
        lines.append(f"{what.format(**figures)}. Next: {following}.")
    return lines


def _others(findings: Sequence[Page]) -> list[str]:
    shown = [f"Also: {each['sentence']}" for each in findings[:OTHERS_MAX]]
    return shown + _more(len(findings) - OTHERS_MAX, "findings")


def _stage_table(
    stages: Sequence[Page], page: Page, total: int, *, with_ready: bool = False
) -> list[str]:
    """The longest held first."""
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
        ("WAITS FOR", lambda row: row["undone"]["waits_for"] or "its next turn"),
    ]
    shown = busy[:ROWS_MAX]
    return rows_as_lines(columns, shown) + _more(len(busy) - len(shown), "with undone work")


def _consumer_table(stages: Iterable[Page]) -> list[str]:
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
        ("IT", _consumer_text),
    ]
    shown = rows[:ROWS_MAX]
    return rows_as_lines(columns, shown) + _more(len(rows) - len(shown), "consumers")


def _consumer_text(row: Page) -> str:
    if row["unacked"] >= row["unacked_max"] > 0:
        return "is at its limit: it has to settle first"
    if row["is_unsent_high"]:
        return "does not read what it was sent"
    return "takes messages" if row["has_demand"] else "does not ask for messages"


def _since(row: dict[str, Any], at_ms: int) -> str:
    since_ms = row["since_ms"]
    return "-" if since_ms is None else age_text(max(0, at_ms - since_ms) / 1000)


def _percent(share: float) -> str:
    return f"{round(share * 100)} %"
