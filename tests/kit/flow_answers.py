"""Answers as ``/api/flow`` gives them, made by hand, for tests of who reads them.

    page = flow_answer([stage("queue", "hot", culprit="log")], [finding("log", "log", ...)])

What is not named is as of a stage that runs. ``tests/scenario/test_why.py`` asks a real broker.
"""

from collections.abc import Sequence
from typing import Any, Final

from penstock.flow.finding import NOTHING

AT_MS: Final = 1_800_000_000_000
"""The moment of every answer."""

Row = dict[str, Any]


def stage(kind: str, name: str, **given: Any) -> Row:
    """A stage; one with a culprit or a reason is held."""
    is_held = bool(given.get("culprit") or given.get("reason"))
    return {
        "kind": kind,
        "name": name,
        "state": "flow" if is_held else "running",
        "reason": "flow" if is_held else None,
        "culprit": None,
        "since_ms": AT_MS - 2500 if is_held else None,
        "share": 0.0,
        "downstream": [],
        "ready": 0,
        "undone": None,
        "query": None,
        "consumers": [],
        "consumers_total": len(given.get("consumers", ())),
        "id": f"{kind}/{name}",
        "waits_for": None,
        "culprit_id": None,
        "belongs_to": None,
        "sync": None,
        "oldest_ms": None,
        "members": [],
        "per_s": 0.0,
        "hops": [],
        "others": 0,
        **given,
    }


def consumer(name: str, **given: Any) -> Row:
    """A consumer of a subscription, who would take messages."""
    idle = {"unacked": 0, "unacked_max": 0, "is_unsent_high": False, "has_demand": True}
    return {"id": f"consumer/{name}", "name": name, **idle, **given}


def finding(kind: str, name: str, sentence: str, *chain: str, side: str = "publish") -> Row:
    """What the broker has found."""
    return {
        "kind": kind,
        "name": name,
        "side": side,
        "sentence": sentence,
        "chain": list(chain),
        "share": 0.5,
        "id": f"holding/{kind}/{name}",
        "severity": "holding",
        "culprit": {"kind": kind, "id": f"{kind}/{name}", "name": name},
        "culprit_id": f"{kind}/{name}",
        "cause": "",
        "since_ms": None,
        "is_now": True,
        "waiters": [],
        "waiters_total": 0,
        "path": [],
        "starved": [],
        "headline": [],
        "detail": "",
        "do": [],
    }


def limit(name: str, setting: str, used: int, most: int, unit: str = "bytes") -> Row:
    """A limit that is reached."""
    return {
        "id": f"limit/{setting}",
        "name": name,
        "setting": setting,
        "limit": most,
        "used": used,
        "unit": unit,
        "is_reached": True,
        "is_floor": False,
    }


def flow_answer(
    stages: Sequence[Row] = (), findings: Sequence[Row] = (), limits: Sequence[Row] = ()
) -> Row:
    """The whole page."""
    nothing = finding(NOTHING.kind, NOTHING.name, NOTHING.sentence, side="none")
    nothing |= {"severity": NOTHING.severity}
    return {
        "at_ms": AT_MS,
        "answer": findings[0] if findings else nothing,
        "diagnosis": findings[0] if findings else nothing,
        "findings": list(findings),
        "findings_total": len(findings),
        "readers_left_out": 0,
        "troubles_dropped": 0,
        "stages": list(stages),
        "stages_total": len(stages),
        "stages_held": sum(each["state"] != "running" for each in stages),
        "stages_left_out": 0,
        "requests": [],
        "limits": list(limits),
        "events_dropped": 0,
        "events": [],
    }
