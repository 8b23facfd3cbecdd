"""The cases of the AMQP comparison, what they must reach, and how a table is made of them."""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from process_cost import resident_bytes

from benchmarks.engine.starting import NO_BYTECODE
from penstock.testing.running import BrokerProcess

PACED_PER_S = 4000
PACED_SECONDS = 10
PACED_TRIES = 12
SINGLE_MESSAGES = 60_000
IDLE_SECONDS = 2
MIB = 2**20


class Goal(NamedTuple):
    """A figure of ours over RabbitMQ's: at least, or at most, this."""

    figure: str
    bound: float
    is_floor: bool = False


class Case(NamedTuple):
    name: str
    what: str
    flags: tuple[str, ...]
    goals: tuple[Goal, ...]
    messages: int = 0
    """0 = as many as the run is told."""
    tries: int = 1
    """Runs at most until the host leaves one alone."""


class SettleAction(NamedTuple):
    case: str
    figure: str
    ours: float
    theirs: float | None
    ratio: float | None
    goal: str
    is_met: bool | None


def _saturated(rate, cpu=None):
    goals = [Goal("per_s", rate, is_floor=True), Goal("confirm_p99_ms", 0.4)]
    return tuple(goals + ([Goal("cpu_us", cpu)] if cpu else []))


CASES = (
    Case("default-128", "128 B", ("-s", "128"), _saturated(5)),
    Case("default-1k", "1 KiB", ("-s", "1024"), _saturated(5)),
    Case("unique-128", "128 B, unique headers", ("-s", "128", "-U"), _saturated(3, 0.25)),
    Case("unique-1k", "1 KiB, unique headers", ("-s", "1024", "-U"), _saturated(3, 0.25)),
    Case(
        "single-128", "128 B, unique headers, one publish per send",
        ("-s", "128", "-U", "-b", "1"),
        (Goal("per_s", 1.5, is_floor=True), Goal("cpu_us", 0.6)),
        SINGLE_MESSAGES,
    ),
    Case(
        "paced-128", f"128 B at {PACED_PER_S:,}/s",
        ("-s", "128", "-r", str(PACED_PER_S)),
        (Goal("confirm_p99_ms", 1.2), Goal("delivery_p99_ms", 0.6)),
        PACED_PER_S * PACED_SECONDS,
        PACED_TRIES,
    ),
)  # fmt: skip
BROKERS = ("penstock", "rabbitmq")
ABSOLUTE = (("penstock_idle_mib", 60.0, "MiB"), ("penstock_start_s", 0.4, "s"))
UNITS = {
    "per_s": "messages/s",
    "cpu_us": "broker CPU per message, us",
    "confirm_p99_ms": "confirm p99, ms",
    "delivery_p99_ms": "delivery p99, ms",
    "stolen": "taken by the host, % of the machine",
}


def start_seconds(place, times):
    """From exec to the ready file, in an empty directory each time; the median."""
    # As ./penstock starts it: with bytecode, whatever the shell of this machine prefers.
    os.environ.pop(NO_BYTECODE, None)
    seconds = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(dir=place) as each:
            broker = BrokerProcess(Path(each, "data"))
            began = time.monotonic()
            broker.start()
            seconds.append(time.monotonic() - began)
            broker.stop()
    return statistics.median(seconds)


def idle_mib(pid):
    """Resident memory a moment after the start."""
    time.sleep(IDLE_SECONDS)
    return resident_bytes(pid) / MIB


def median_of(reports):
    return {key: statistics.median(each[key] for each in reports) for key in reports[0]}


def judged(found):
    """Every goal of the cases that ran, met or not; without RabbitMQ there is no telling."""
    verdicts = []
    for case in CASES:
        sides = found["cases"].get(case.name, {})
        ours, theirs = sides.get("penstock"), sides.get("rabbitmq")
        if ours is None:
            continue
        for goal in case.goals:
            other = theirs[goal.figure] if theirs else None
            ratio = ours[goal.figure] / other if other else None
            is_met = None
            if ratio is not None:
                is_met = ratio >= goal.bound if goal.is_floor else ratio <= goal.bound
            text = f"{'>=' if goal.is_floor else '<='} {goal.bound:g}x"
            verdicts.append(
                SettleAction(case.name, goal.figure, ours[goal.figure], other, ratio, text, is_met)
            )
    for name, bound, unit in ABSOLUTE:
        value = found.get("start", {}).get(name)
        if value is not None:
            theirs = found["start"].get(name.replace("penstock", "rabbitmq"))
            goal = f"<= {bound:g} {unit}"
            verdicts.append(SettleAction("start", name, value, theirs, None, goal, value <= bound))
    return verdicts


def table(found, verdicts):
    """Markdown: every figure of every case, with the goal where there is one."""
    goals = {(each.case, each.figure): each for each in verdicts}
    lines = [
        f"| | Penstock | RabbitMQ {found.get('rabbitmq', '')} | ratio | goal |",
        "|---|---|---|---|---|",
    ]
    for case in CASES:
        sides = found["cases"].get(case.name)
        if not sides:
            continue
        for figure, unit in UNITS.items():
            cells = [sides[name][figure] if name in sides else None for name in BROKERS]
            verdict = goals.get((case.name, figure))
            lines.append(_row(f"{case.what}: {unit}", cells, verdict))
    for name, _, unit in ABSOLUTE:
        verdict = goals.get(("start", name))
        if verdict is not None:
            what = f"{name.removeprefix('penstock_').rpartition('_')[0]}, {unit}"
            lines.append(_row(what, [verdict.ours, verdict.theirs], verdict))
    return "\n".join(lines)


def _row(what, cells, verdict):
    ours, theirs = cells
    ratio = f"{ours / theirs:.2f}" if ours and theirs else ""
    goal = ""
    if verdict is not None:
        goal = verdict.goal + {True: ", met", False: ", **not met**", None: ""}[verdict.is_met]
    return f"| {what} | {_number(ours)} | {_number(theirs)} | {ratio} | {goal} |"


def _number(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
