"""The board: what the broker, its clients and Spark say of themselves now, in a few lines.

Everything about flow is read from the broker's ``/api/flow`` and ``/api/queries``, as an operator
or a dashboard would; a broker that is too busy to answer leaves the last answer standing.
"""

import contextlib
import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from textwrap import shorten
from typing import Any, Final, NamedTuple, TextIO

import click

from penstock.cli.http_client import age_text
from penstock.demo.story.processes import Job, Processes
from penstock.demo.story.publishers import THRESHOLD, Billing
from penstock.demo.story.shop import Shop
from penstock.model.errors import PenstockError
from penstock.model.ids import size_text

NOBODY: Final = "nobody waits"
SENTENCE_MAX: Final = 90
"""Characters of a sentence that a log has seen before."""
LOOKS_MAX: Final = 2_000
"""Looks of an act that are remembered: more than it can have."""
SAID_MAX: Final = 6
"""Looks that were wrong which are told."""


LOOKS_MIN: Final = 2
"""That somebody is watched for, once the broker must have found them."""
HOST: Final = "host"
"""The machine, as findings call it."""
OK_S: Final = 5.0
"""For how long something that is over may be named."""
STORE_WORDS: Final = "period in queue"
"""What RocketMQ's client is told whose send waited too long for the disk."""


class BlamedLook(NamedTuple):
    """Who was to blame at a moment; empty = nobody."""

    asked: float
    """What begins later may not be in the answer."""
    at: float
    """When the answer was there: a busy broker takes its time."""
    blamed: str
    found: frozenset[str] = frozenset()
    """All that are to blame for something."""
    is_store_busy: bool = False
    """The shop was told so a moment ago."""

    def has_found(self, culprit: str) -> bool:
        return any(each.startswith(culprit) for each in self.found)

    def names_only(self, culprit: str) -> bool:
        """Nobody, or this one; or somebody whom the machine makes slow."""
        is_machine = HOST in self.found or (self.is_store_busy and self.blamed == "log")
        return not self.blamed or self.blamed.startswith(culprit) or is_machine


class Board:
    """Looks, remembers the extremes, and puts it into words."""

    def __init__(self, broker: Processes, shop: Shop, billing: Billing, job: Job) -> None:
        self.title = ""
        self.blamed = ""
        """Id of who is to blame, as the broker said last; empty = nobody."""
        self._looks: deque[BlamedLook] = deque(maxlen=LOOKS_MAX)
        self._began = self._ended = math.inf
        self._refused = 0
        self._store_busy_at = -math.inf
        self.is_news = False
        """Whether there is a bottleneck that this act has not had before."""
        self._told: set[tuple[str, str]] = set()
        self.lag_max = 0
        self._broker = broker
        self._shop = shop
        self._billing = billing
        self._job = job
        self._rates = Rates()
        self._flow: dict[str, Any] = {}
        self._queries: list[dict[str, Any]] = []
        self._sinks: list[dict[str, Any]] = []
        self._figures = (0.0, 0.0)

    def look(self) -> None:
        asked = time.monotonic()
        with contextlib.suppress(PenstockError):
            self._flow = self._broker.ask("GET", "/api/flow")
            answer = self._answer
            self.blamed = "" if answer["severity"] == "ok" else str(answer["culprit"]["id"])
            self._note_look(asked)
            spark = self._broker.ask("GET", "/api/queries")
            self._queries, self._sinks = spark["queries"], spark["sinks"]
        news = (self.title, self.blamed)
        self.is_news = bool(self.blamed) and news not in self._told
        self._told.add(news)
        self.lag_max = max(self.lag_max, self.lag)
        self._figures = (
            self._rates.of("confirmed", len(self._shop.confirmed)),
            self._rates.of("consumed", len(self._billing.numbers)),
        )

    def _note_look(self, asked: float) -> None:
        now, shop = time.monotonic(), self._shop
        if shop.refused > self._refused and STORE_WORDS in shop.last_reason:
            self._store_busy_at = now
        self._refused = shop.refused
        is_busy = now - self._store_busy_at <= OK_S
        self._looks.append(BlamedLook(asked, now, self.blamed, self._found, is_busy))

    def watch(self) -> None:
        """Something begins now that is to be found: from now on it is noted who is named."""
        self._looks.clear()
        self._began, self._ended = time.monotonic(), math.inf

    def is_watched(self, within_s: float) -> bool:
        """True when who is to be found by then was looked for often enough."""
        return sum(each.asked >= self._began + within_s for each in self._looks) >= LOOKS_MIN

    def over(self) -> None:
        """It ended; whom it concerned may be named for a moment longer."""
        self._ended = time.monotonic()

    def named(self, culprit: str, within_s: float) -> tuple[bool, str]:
        """Whether such a one was named in every look from that time on, and nobody else in any.

        But for moments in which the machine itself is slow, as the shop was told of its disk or the
        broker found of its CPUs: then others may be named first, and this one must be found beside
        them. With what was said otherwise, or in how many looks it was.
        """
        due = [
            each
            for each in self._looks
            if self._began + within_s <= each.asked and each.at <= self._ended
        ]
        missed = [each for each in due if not each.has_found(culprit)]
        others = [each for each in self._looks if not each.names_only(culprit)]
        right = [each for each in self._looks if each.blamed.startswith(culprit)]
        if right and due and not missed and not others:
            first = right[0].at - self._began
            said = f"{right[0].blamed} from {first:.1f} s on, in {len(right)} looks"
            busy = sum(not each.blamed.startswith(culprit) for each in due)
            return True, said + (f"; the machine was slow in {busy}" if busy else "")
        wrong = [
            f"{each.blamed or 'nobody'} after {each.at - self._began:.1f} s"
            for each in sorted({*missed, *others}, key=lambda each: each.at)
        ]
        return False, ", ".join(wrong[:SAID_MAX]) or "nobody looked in time"

    @property
    def is_machine_slow(self) -> bool:
        """True when the broker found, when looked last, that others have its CPUs."""
        return HOST in self._found

    @property
    def sentence(self) -> str:
        """Who is the bottleneck and who waits for it, as the broker says."""
        return str(self._answer["sentence"]) if self.blamed else NOBODY

    @property
    def lag(self) -> int:
        """Of the query that is furthest behind, when looked last."""
        return max((each["lag_messages"] for each in self._queries), default=0)

    def lines(self) -> list[str]:
        confirmed, consumed = self._figures
        shop, billing = self._shop, self._billing
        held = billing.held
        return [
            click.style(f"--- {self.title} ".ljust(78, "-"), dim=True),
            f"shop      {confirmed:6,.0f} orders/s confirmed   {shop.refused:,} refused"
            f"   {shop.outstanding:,} without an answer yet",
            f"broker    peak memory {size_text(self._broker.memory_bytes())}   "
            + _colored(", ".join(self._states()[:3]) or "all stages run"),
            f"billing   {consumed:6,.0f} orders/s consumed    "
            + (
                _colored(f"{len(held)} queues held by {held[0].threshold.value} > {THRESHOLD}")
                if held
                else f"at most {billing.fullest} in a cache"
            ),
            *self._query_lines(),
            f"waiting   {_colored(self.sentence)}",
        ]

    def line(self) -> str:
        confirmed, consumed = self._figures
        held = [f"billing held in {len(self._billing.held)} queues"] if self._billing.held else []
        lags = [f"{each['name']} {each['lag_messages']:,} behind" for each in self._queries]
        parts = [
            f"shop {confirmed:,.0f}/s, {self._shop.refused:,} refused",
            f"billing {consumed:,.0f}/s",
            *held,
            f"Spark {', '.join(lags) or self._job.state}",
            self.sentence if self.is_news else shorten(self.sentence, SENTENCE_MAX),
        ]
        return "; ".join(parts)

    @property
    def _found(self) -> frozenset[str]:
        return frozenset([each["culprit"]["id"] for each in self._flow.get("findings", [])])

    @property
    def _answer(self) -> dict[str, Any]:
        """The worst finding, or that there is none."""
        found: dict[str, Any] = self._flow.get("answer", {"severity": "ok"})
        return found

    def _states(self) -> list[str]:
        return [
            f"{each['kind']} {each['name']} {each['state']}"
            for each in self._flow.get("stages", [])
            if each["state"] != "running"
        ]

    def _query_lines(self) -> list[str]:
        if not self._queries:
            return [f"spark     {self._job.state}"]
        return [
            *(self._query_line(each) for each in self._queries),
            *(
                f"sink      {each['sink']:<12} {each['rows']:6,} messages in batch {each['batch']}"
                for each in self._sinks
                if each["batch"] >= 0
            ),
        ]

    def _query_line(self, query: dict[str, Any]) -> str:
        name = str(query["name"])
        last = next(
            (each for each in reversed(self._job.batches) if name.endswith(each.query)), None
        )
        batch = f"{last.rows:,} rows in {last.ms / 1000:.1f} s" if last else "none yet"
        return (
            f"spark     {name:<12} {query['messages_per_s']:6,.0f} rows/s   last batch {batch}   "
            f"{query['lag_messages']:,} behind ({age_text(query['lag_seconds'])})"
        )


def _colored(text: str) -> str:
    return text if text in (NOBODY, "all stages run") else click.style(text, fg="cyan")


# ---- view ---------------------------------------------------------------------------------------
# What is seen while the story goes on: a few lines that change in place, or plain lines.
#
# On a terminal the board (rates, states, who waits for whom) is drawn over itself twice a second
# and narration scrolls above it. Anywhere else there is one line per narration and one every few
# seconds, so that a log of it can be read. Only ANSI sequences that every terminal knows.


BOARD_S: Final = 0.5
PLAIN_S: Final = 3.0
_UP: Final = "\x1b[{}A"
_REST: Final = "\x1b[J"


class Screen:
    """Shows; knows nothing of what it shows."""

    def __init__(self, out: TextIO | None = None, *, is_silent: bool = False) -> None:
        self._out = out or sys.stdout
        self._is_silent = is_silent
        self._is_terminal = self._out.isatty() and not is_silent
        self._began = time.monotonic()
        self._drawn = 0
        self._due = 0.0
        self._plain_due = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() >= self._due

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        if self._is_silent:
            return
        self._wipe()
        self._write(f"{self.elapsed_s:5.0f} s  {text}\n")

    def show(self, board: Sequence[str], plain: str, *, is_news: bool = False) -> None:
        """The board as it is now; ``plain`` is the same in one line, and news does not wait."""
        now = time.monotonic()
        self._due = now + BOARD_S
        if self._is_silent:
            return
        if not self._is_terminal:
            if is_news or now >= self._plain_due:
                self._plain_due = now + PLAIN_S
                self._write(f"{self.elapsed_s:5.0f} s  {plain}\n")
            return
        width = shutil.get_terminal_size().columns - 1
        self._wipe()
        # A line that wraps would be two, and the next wipe would leave one behind.
        self._write("".join(f"{_cut(each, width)}\n" for each in board))
        self._drawn = len(board)

    def end(self, lines: Sequence[str]) -> None:
        """The last words; they stay."""
        self._wipe()
        if not self._is_silent:
            self._write("".join(f"{each}\n" for each in lines))

    def _wipe(self) -> None:
        if self._drawn:
            self._write(_UP.format(self._drawn) + "\r" + _REST)
            self._drawn = 0

    def _write(self, text: str) -> None:
        click.echo(text, file=self._out, nl=False)


def _cut(line: str, width: int) -> str:
    """A line that is too long loses its colours with its end."""
    seen = click.unstyle(line)
    return line if len(seen) <= width else seen[:width]


class Rates:
    """Things per second, from counts that only grow."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int]] = {}

    def of(self, name: str, count: int) -> float:
        """Since this was asked the last time."""
        now = time.monotonic()
        at, before = self._before.get(name, (now, count))
        self._before[name] = (now, count)
        return (count - before) / (now - at) if now > at else 0.0
