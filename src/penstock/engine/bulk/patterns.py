"""Regular expressions of topic names whose time is bounded before they are used.

Python's matcher tries one way after the other, and a few characters can ask for more ways than
there is time: ``(a+)+b``. The broker has one thread, so a pattern is looked at first. Every choice
it leaves multiplies the ways:

    *  +  {2,}  {2,99}   as many as a name has characters       ?            two
    (a|b|c)              three; outside of groups one after the other, which costs nothing

A repeated group must not hold a choice, because then the ways multiply with every turn.

Not here: which topics there are (``finding.py``).
"""

import re
from functools import lru_cache
from typing import Final

from penstock.engine.bulk.orders import BAD_REQUEST, QueryRefused
from penstock.model.names import NAME_BYTES_MAX

PATTERN_CHARACTERS_MAX: Final = 1024
WAYS_MAX: Final = 2 * NAME_BYTES_MAX**3
"""Three times "anything" in a name; some tenths of a second in the worst of names, never more."""
PATTERNS_KEPT: Final = 256
_TURNS_MAX: Final = 64
_SKIPPED: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:P<\w+>|[:=!>#]|<[=!])?|\(", re.S
)
"""What is one thing whatever it holds: an escape, a class of characters, the head of a group."""
_REPEAT: Final = re.compile(r"[*+]|\{\d*,?\d*\}|\?")


@lru_cache(maxsize=PATTERNS_KEPT)
def topic_pattern(text: str) -> re.Pattern[str]:
    """The compiled pattern; raises ``QueryRefused`` when it is none, or would take too long."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise QueryRefused(
            BAD_REQUEST, f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters"
        )
    try:
        compiled = re.compile(text)
    except re.error as problem:
        raise QueryRefused(
            BAD_REQUEST, f"pattern {text!r} is no regular expression: {problem}"
        ) from None
    if ways(text) > WAYS_MAX:
        raise QueryRefused(
            BAD_REQUEST,
            f"pattern {text!r} may take too long: at most three of * and + in a pattern, and none "
            "in a group that is repeated itself",
        )
    return compiled


def ways(text: str) -> int:
    """At most so many ways a good pattern leaves to match a name."""
    total, at = 1, 0
    groups: list[list[int]] = []
    """Of each open group: alternatives so far, ways when it began."""
    closed = 1
    """Ways that the thing just before leaves by itself."""
    while at < len(text):
        if (skipped := _SKIPPED.match(text, at)) is not None:
            if skipped[0].startswith("("):
                groups.append([1, total])
            closed, at = 1, skipped.end()
        elif (repeat := _REPEAT.match(text, at)) is not None:
            total *= _factor(repeat[0], closed)
            # A question mark behind a repeat says how to try, not how often.
            at = repeat.end() + (text[repeat.end() : repeat.end() + 1] in ("?", "+"))
        else:
            if text[at] == ")" and groups:
                alternatives, before = groups.pop()
                total *= alternatives
                closed = total // before
            else:
                closed = 1
                if text[at] == "|" and groups:
                    groups[-1][0] += 1
            at += 1
    return total


def _factor(repeat: str, each: int) -> int:
    """How many times as many ways a repeat leaves, of a thing that leaves ``each`` by itself."""
    if repeat == "?":
        return 2
    least, comma, _ = repeat.strip("{}").partition(",")
    if repeat[0] == "{" and not comma:
        turns = min(int(least or 1), _TURNS_MAX)
        return min(int(each ** max(0, turns - 1)), WAYS_MAX + 1)
    return NAME_BYTES_MAX if each == 1 else WAYS_MAX + 1
