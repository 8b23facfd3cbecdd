"""The board: what the broker, its clients and Spark say of themselves now, in a few lines.

Everything about flow is read from the broker's ``/api/flow`` and ``/api/queries``, as an operator
or a dashboard would; a broker that is too busy to answer leaves the last answer standing.
"""

import contextlib
from textwrap import shorten
from typing import Any, Final

import click

from penstock.cli.asking import age_text
from penstock.cli.story.billing import THRESHOLD, Billing
from penstock.cli.story.household import Household
from penstock.cli.story.job import Job
from penstock.cli.story.shop import Shop
from penstock.cli.story.view import Rates
from penstock.flow.diagnosis import NOTHING
from penstock.model.errors import PenstockError
from penstock.model.ids import size_text

NOBODY: Final = "nobody waits"
SENTENCE_MAX: Final = 90
"""Characters of a sentence that a log has seen before."""


class Board:
    """Looks, remembers the extremes, and puts it into words."""

    def __init__(self, broker: Household, shop: Shop, billing: Billing, job: Job) -> None:
        self.title = ""
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
        self._figures = (0.0, 0.0)

    def look(self) -> None:
        """Ask everybody."""
        with contextlib.suppress(PenstockError):
            self._flow = self._broker.ask("GET", "/api/flow")
            self._queries = self._broker.ask("GET", "/api/queries")["queries"]
        news = (self.title, self._culprit())
        self.is_news = bool(news[1]) and news not in self._told
        self._told.add(news)
        self.lag_max = max(self.lag_max, self.lag)
        self._figures = (
            self._rates.of("confirmed", len(self._shop.confirmed)),
            self._rates.of("consumed", len(self._billing.numbers)),
        )

    @property
    def sentence(self) -> str:
        """Who is the bottleneck and who waits for it, as the broker says."""
        return str(self._flow["diagnosis"]["sentence"]) if self._culprit() else NOBODY

    @property
    def lag(self) -> int:
        """Of the query that is furthest behind, when looked last."""
        return max((each["lag_messages"] for each in self._queries), default=0)

    def lines(self) -> list[str]:
        """For a terminal."""
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
        """For a log."""
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

    def _culprit(self) -> str:
        """Kind and name of the bottleneck; empty when nobody has to wait."""
        diagnosis = self._flow.get("diagnosis", {"kind": NOTHING.kind})
        if diagnosis["kind"] == NOTHING.kind:
            return ""
        # What a consumer takes in the next moment is not what it cannot cope with.
        if diagnosis["kind"] == "subscription" and not self._billing.held:
            return ""
        return f"{diagnosis['kind']} {diagnosis['name']}"

    def _states(self) -> list[str]:
        return [
            f"{each['kind']} {each['name']} {each['state']}"
            for each in self._flow.get("stages", [])
            if each["state"] != "running"
        ]

    def _query_lines(self) -> list[str]:
        if not self._queries:
            return [f"spark     {self._job.state}"]
        return [self._query_line(each) for each in self._queries]

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
