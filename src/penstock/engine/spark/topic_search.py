"""Which topics are meant: by name, by pattern, or all that are not hidden (D9), found step by step.

Whoever asks may be anybody, and the broker has one thread: a search is a generator that yields what
each step costs, and whoever runs it stops when a turn has done enough. A step is some 4 us.

A pattern is a regular expression whose time is bounded before it is used. Python's matcher tries
one way after the other, and a few characters can ask for more ways than there is time: ``(a+)+b``.
One name cannot be matched in pieces, so what a pattern may ask for in the longest of names is
limited, and what it may ask for in this one is what the step costs. Every choice multiplies::

    *  +  {2,}  {2,99}   as many as a name has characters       ?            two
    (a|b|c)              three; outside of groups one after the other, which costs nothing
    (ab){3}              turns of a group count, for one that holds nothing takes them, too

A repeated group must not hold a choice, because then the ways multiply with every turn.

Not here: what is read of the topics (``query_service.py``).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final

from penstock.engine.spark.query import QueryRefused
from penstock.model.names import NAME_BYTES_MAX, TopicName
from penstock.model.spark_batch import BAD_REQUEST, NO_TOPIC

if TYPE_CHECKING:
    from penstock.engine.topic import Topic

NAMES_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 2 * NAME_BYTES_MAX + 1
"""Space, slash and name."""

Search = Generator[int, None, "list[Topic]"]
"""Yields the steps it took since the last time, returns the topics in the order of their names."""


def search_topics(
    known: Mapping[TopicName, Topic],
    names: list[str] | None,
    pattern: str | None,
    queues_max: int,
    *,
    optional: Sequence[str] = (),
) -> Search:
    """The topics that are meant, and of ``optional`` those that there are.

    Raises ``QueryRefused``, also for more than so many queues.
    """
    named = [*(names or ()), *optional]
    if len(named) > NAMES_MAX:
        raise QueryRefused(BAD_REQUEST, f"{len(named)} topics are named, limit {NAMES_MAX}")
    if any(len(name) > NAME_CHARACTERS_MAX for name in named):
        raise QueryRefused(BAD_REQUEST, f"a topic has at most {NAME_CHARACTERS_MAX} characters")
    found: dict[Topic, None] = {}
    queues = 0
    search = _matching(known, pattern) if names is None else _named(known, names)
    for cost, topic in chain(search, _known(known, optional)):
        yield cost
        # Turns pass between two steps: what was there when it was listed may be gone.
        if topic is not None and not topic.is_deleted and topic not in found:
            found[topic] = None
            queues += len(topic.queues)
            if queues > queues_max:
                raise QueryRefused(
                    BAD_REQUEST,
                    f"more than {queues_max} queues are meant (spark.query_queues_max); name fewer "
                    "topics, or use a narrower pattern",
                )
    return sorted(found, key=lambda topic: str(topic.name))


_Steps = Generator[tuple[int, "Topic | None"], None, None]
"""What each step costs, and what it found."""


def _matching(known: Mapping[TopicName, Topic], pattern: str | None) -> _Steps:
    matcher = None if pattern is None else topic_pattern(pattern)
    for name, topic in list(known.items()):
        if name.is_hidden:
            yield 1, None
        elif matcher is None:
            yield 1, topic
        else:
            text = str(name)
            yield matcher.steps(len(text)), topic if matcher.matches(text) else None


def _named(known: Mapping[TopicName, Topic], names: list[str]) -> _Steps:
    for name in dict.fromkeys(names):
        topic = topic_named(known, name)
        yield 1 + name.count("/"), topic
        if topic is None:
            raise no_topic(name, (yield from _nearest(known, name)))


def _known(known: Mapping[TopicName, Topic], names: Sequence[str]) -> _Steps:
    for name in dict.fromkeys(names):
        yield 1 + name.count("/"), topic_named(known, name)


def topic_named(known: Mapping[TopicName, Topic], name: str) -> Topic | None:
    """The topic that is written like this."""
    found = known.get(TopicName("", name))
    at = -1
    # Space and name may both hold slashes: only a look tells where to cut.
    while found is None and (at := name.find("/", at + 1)) >= 0:
        found = known.get(TopicName(name[:at], name[at + 1 :]))
    return found


def no_topic(name: str, nearest: str = "") -> QueryRefused:
    hint = f"did you mean '{nearest}'?" if nearest else "`penstock topics list` shows them"
    return QueryRefused(NO_TOPIC, f"there is no topic '{name}'; {hint}")


def _nearest(
    known: Mapping[TopicName, Topic], name: str
) -> Generator[tuple[int, Topic | None], None, str]:
    """The topic whose name begins and ends most like this one, by more than half of it."""
    best, alike = "", len(name) / 2
    for each in list(known):
        if each.is_hidden:
            continue
        text = str(each)
        length = min(len(text), len(name))
        same = _alike(text, name, length)
        same += _alike(text[::-1], name[::-1], length - same)
        if same > alike and abs(len(text) - len(name)) <= same:
            best, alike = text, same
        yield 2, None
    return best


def _alike(first: str, second: str, length: int) -> int:
    """Characters that both begin with, up to ``length``; halving, since slices compare fast."""
    low = 0
    while low < length:
        middle = (low + length + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            length = middle - 1
    return low


# ---- patterns -----------------------------------------------------------------------------------

PATTERN_CHARACTERS_MAX: Final = 1024
WAYS_MAX: Final = 2 * NAME_BYTES_MAX**2
"""Twice "anything" in a name: 2 ms in the worst of names."""
WAYS_PER_STEP: Final = 1000
"""Of a few nanoseconds each."""
PATTERNS_KEPT: Final = 256
REPEAT_MAX: Final = NAME_BYTES_MAX
"""In braces: no name has more to repeat."""
GROUPS_DEEP_MAX: Final = 20
"""Groups within groups: many of them take long to compile."""
_SKIPPED: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:P<\w+>|[:=!>#]|<[=!])?|\(", re.S
)
"""What is one thing whatever it holds: an escape, a class of characters, the head of a group."""
_REPEAT: Final = re.compile(r"[*+]|\{\d*,?\d*\}|\?")
_BRACES: Final = re.compile(r"\{(\d*),?(\d*)\}")


class TopicPattern:
    """A compiled pattern, and what it may cost."""

    __slots__ = ("_compiled", "_steps", "text")

    def __init__(self, text: str, compiled: re.Pattern[str]) -> None:
        self.text: Final = text
        self._compiled = compiled
        self._steps: dict[int, int] = {}
        """By the length of a name: as many as there are lengths."""

    def matches(self, name: str) -> bool:
        """True when it is all of the name."""
        return self._compiled.fullmatch(name) is not None

    def steps(self, length: int) -> int:
        """At most so many steps it takes in a name of this length."""
        steps = self._steps.get(length)
        if steps is None:
            steps = self._steps[length] = 1 + ways(self.text, length) // WAYS_PER_STEP
        return steps


@lru_cache(maxsize=PATTERNS_KEPT)
def topic_pattern(text: str) -> TopicPattern:
    """The compiled pattern; raises ``QueryRefused`` when it is none, or would take too long."""
    try:
        return TopicPattern(text, checked_pattern(text, WAYS_MAX))
    except PatternTooLong:
        raise QueryRefused(
            BAD_REQUEST,
            f"pattern {text!r} may take too long: at most two of * and + in a pattern, and none in "
            "a group that is repeated itself",
        ) from None
    except ValueError as problem:
        raise QueryRefused(BAD_REQUEST, f"pattern {problem}") from None


class PatternTooLong(ValueError):
    """A good pattern that leaves more ways to match a name than there is time for."""


def checked_pattern(text: str, ways_max: int, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """The compiled pattern; raises ``ValueError`` when it is none, or is made to take long."""
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"has {len(text)} of at most {PATTERN_CHARACTERS_MAX} characters")
    if ways(text) > ways_max:
        raise PatternTooLong(text)
    for least, most in _BRACES.findall(text):
        # As texts first: a number may have more digits than Python reads.
        if max(len(least), len(most)) > 3 or max(int(least or 0), int(most or 0)) > REPEAT_MAX:
            raise ValueError(
                f"{text!r} is no regular expression of names: it repeats more than {REPEAT_MAX} "
                "times"
            )
    try:
        return re.compile(text, flags)
    except (re.error, OverflowError, RecursionError) as problem:
        raise ValueError(f"{text!r} is no regular expression: {problem}") from None


def ways(text: str, length: int = NAME_BYTES_MAX) -> int:
    """At most so many ways a good pattern leaves to match a name of this length."""
    total, at = 1, 0
    groups: list[list[int]] = []
    """Of each open group: alternatives so far, ways when it began."""
    closed, is_group = 1, False
    """Ways that the thing just before leaves by itself, and whether it is a group."""
    while at < len(text):
        if (skipped := _SKIPPED.match(text, at)) is not None:
            if skipped[0].startswith("("):
                groups.append([1, total])
                if len(groups) > GROUPS_DEEP_MAX:
                    return _TOO_MANY
            closed, is_group, at = 1, False, skipped.end()
        elif (repeat := _REPEAT.match(text, at)) is not None:
            total *= _factor(repeat[0], closed, length, is_group=is_group)
            # A question mark behind a repeat says how to try, not how often.
            at = repeat.end() + (text[repeat.end() : repeat.end() + 1] in ("?", "+"))
        else:
            is_group = text[at] == ")" and bool(groups)
            closed = 1
            if is_group:
                alternatives, before = groups.pop()
                total *= alternatives
                closed = total // before
            elif text[at] == "|" and groups:
                groups[-1][0] += 1
            at += 1
        if total > _TOO_MANY:
            return _TOO_MANY
    return total


_TOO_MANY: Final = NAME_BYTES_MAX**4
"""More than anybody allows; beyond it nobody counts."""


def _factor(repeat: str, each: int, length: int, *, is_group: bool) -> int:
    """How many times as many ways a repeat leaves, of a thing that leaves ``each`` by itself."""
    if repeat == "?":
        return 2
    least, comma, _ = repeat.strip("{}").partition(",")
    turns = max(1, min(int(least[:4] or 1), REPEAT_MAX)) if repeat[0] == "{" else 1
    # A group that may be empty takes its turns all the same.
    trouble = turns * _GROUP_TURN if is_group and turns > 1 else 1
    if repeat[0] == "{" and not comma:
        many = each > 1 and turns > _TURNS_COUNTED
        return _TOO_MANY if many else int(each ** (turns - 1)) * trouble
    return length * trouble if each == 1 else _TOO_MANY


_GROUP_TURN: Final = 8
"""A turn of a repeated group takes as long as so many ways."""
_TURNS_COUNTED: Final = 64
"""Two ways each make more than anybody has time for."""
