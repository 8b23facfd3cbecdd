"""The order of things: opens the shop, the broker, billing and Spark, plays the acts, judges.

Everything is ended in any case, an interrupt included; ``keep`` waits before it is. A claim that
does not hold makes the verdict bad and the exit code 1; so does a story that takes too long.
"""

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli.story import QUEUES, TOPIC, Size
from penstock.cli.story.acts import ACTS
from penstock.cli.story.billing import Billing
from penstock.cli.story.board import Board
from penstock.cli.story.household import Household
from penstock.cli.story.job import Job
from penstock.cli.story.reckoning import reckon
from penstock.cli.story.shop import Shop
from penstock.cli.story.tills import NO_PIKA, has_pika, open_tills
from penstock.cli.story.view import Screen
from penstock.model.errors import PenstockError
from penstock.model.ids import size_text

LOOK_S: Final = 0.1
ANSWERS_S_MAX: Final = 20.0
DRAIN_S_MAX: Final = 120.0
MEMORY_BYTES_MAX: Final = 256 << 20
"""What the broker may need at most; it needs a quarter of it."""


class Story:
    """One telling."""

    def __init__(self, size: Size, screen: Screen) -> None:
        self.size: Final = size
        self.screen: Final = screen
        self.checks: list[tuple[str, bool, str]] = []
        self.figures: dict[str, Any] = {}
        self.broker: Household
        self.job: Job
        self.shop: Shop
        self.billing: Billing
        self.board: Board

    def tell(self, *, is_kept: bool = False) -> bool:
        """From the first line to the last; True when every claim holds."""
        # The story speaks for itself; the clients' own lines would come in between.
        logging.getLogger("penstock").setLevel(logging.ERROR)
        with (
            tempfile.TemporaryDirectory(
                prefix="penstock-demo-", ignore_cleanup_errors=True
            ) as directory,
            contextlib.ExitStack() as stack,
        ):
            self._open(Path(directory), stack)
            for number, (title, act) in enumerate(ACTS, 1):
                self.board.title = f"act {number} of {len(ACTS)}: {title}"
                self.screen.say(click.style(self.board.title, bold=True))
                act(self)
            if is_kept:
                self._keep()
            self._close_and_count()
        self.screen.end(self._last_words())
        return self.is_good

    @property
    def is_good(self) -> bool:
        """Every claim holds."""
        return bool(self.checks) and all(is_true for _, is_true, _ in self.checks)

    def verdict(self) -> dict[str, Any]:
        """The outcome, ready for JSON."""
        return {
            "is_good": self.is_good,
            "seconds": round(self.screen.elapsed_s, 1),
            **self.figures,
            "checks": [
                {"claim": claim, "is_true": is_true, "figures": figures}
                for claim, is_true, figures in self.checks
            ],
        }

    # What an act uses.

    def say(self, text: str) -> None:
        """One line of narration."""
        self.screen.say(text)

    def check(self, claim: str, is_true: bool, figures: str = "") -> None:
        """Something the story claims; told at the end."""
        self.checks.append((claim, is_true, figures))

    def wait(self, seconds: float) -> None:
        """Let it go on for a while."""
        self.until(lambda: False, seconds)

    def until(self, condition: Callable[[], bool], seconds_max: float) -> bool:
        """Look on until something is so; False when it did not come true in time."""
        end = time.monotonic() + seconds_max
        while not condition():
            if self.job.state == "failed":
                raise PenstockError(f"the Spark job failed: {self.job.why()}")
            if time.monotonic() > end:
                return False
            if self.screen.is_due:
                board = self.board
                board.look()
                self.screen.show(board.lines(), board.line(), is_news=board.is_news)
            time.sleep(LOOK_S)
        return True

    # The story's own business.

    def _open(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.broker = Household(directory)
        stack.callback(self.broker.close)
        self.broker.open()
        self.broker.ask("POST", "/api/topics", {"name": TOPIC, "space": "", "queues": QUEUES})
        flight = self.broker.endpoints.get("flight")
        if flight is None:
            raise PenstockError(
                "the broker has no Flight port, so Spark cannot read from it; "
                "`pip install 'penstock[spark]'` brings what is missing"
            )
        self.say(
            f"a private broker is ready: RocketMQ {self.broker.endpoints['rocketmq']}, "
            f"AMQP {self.broker.endpoints['amqp']}, Flight {flight}, "
            f"HTTP {self.broker.endpoints['http']}"
        )
        self.job = Job(directory)
        stack.callback(self.job.close)
        self.job.open(flight, self.size.batch_target_s)
        self.billing = Billing(self.broker.endpoints["rocketmq"])
        stack.callback(self.billing.close)
        self.billing.open()
        self.shop = Shop(open_tills(self.broker.endpoints), self.size.orders_per_s)
        stack.callback(self.shop.close)
        self.shop.open()
        self.board = Board(self.broker, self.shop, self.billing, self.job)
        tills = "RocketMQ and AMQP (pika)" if has_pika() else "RocketMQ"
        self.say(
            f"the shop places {self.size.orders_per_s} orders a second by {tills}, billing "
            "consumes them; Spark starts meanwhile"
        )
        if not has_pika():
            self.say(NO_PIKA)

    def _keep(self) -> None:
        endpoints = self.broker.endpoints
        self.say(f"it goes on until Ctrl-C; the broker is process {self.broker.pid}:")
        for name, endpoint in endpoints.items():
            self.say(f"  {name:<16} {endpoint}")
        self.say(f"  look at it: curl http://{endpoints['http']}/api/flow")
        self.say(f"  Parquet, and what Spark says: {self.job.out}, {self.job.log}")
        self.board.title = "kept running; Ctrl-C ends it"
        with contextlib.suppress(KeyboardInterrupt):
            self.until(lambda: False, float("inf"))

    def _close_and_count(self) -> None:
        self.board.title = "the shop closes; everybody finishes"
        self.say(self.board.title)
        shop, billing, job = self.shop, self.billing, self.job
        shop.stop()
        is_answered = self.until(lambda: not shop.outstanding, ANSWERS_S_MAX)
        self.check("every order was answered", is_answered and not shop.unknown,
                   f"{shop.placed:,} placed, {len(shop.unknown)} without an answer")  # fmt: skip
        by = shop.sent_by
        self.check("orders came by every protocol that has a till, into one topic",
                   set(by) == {till.name for till in shop.tills},
                   ", ".join(f"{count:,} by {name}" for name, count in by.items()))  # fmt: skip
        job.drain()
        is_consumed = self.until(lambda: shop.confirmed <= set(billing.numbers), DRAIN_S_MAX)
        is_drained = self.until(lambda: job.is_over, DRAIN_S_MAX)
        self.check("billing and Spark came to the end", is_consumed and is_drained)
        self._reckon()

    def _reckon(self) -> None:
        shop, billing = self.shop, self.billing
        found = reckon(self.job.out)
        stored = len(shop.confirmed)
        self.check(
            "published = consumed = rows in Parquet",
            len(set(found.numbers)) == len(set(billing.numbers)) == stored,
            f"{stored:,} = {len(set(billing.numbers)):,} = {len(set(found.numbers)):,}",
        )
        lost = len(shop.confirmed - set(found.numbers)) + len(shop.confirmed - set(billing.numbers))
        both = (found.numbers, billing.numbers)
        twice = sum(len(each) - len(set(each)) for each in both)
        strangers = len((set(found.numbers) | set(billing.numbers)) - shop.confirmed)
        self.check(
            "nothing lost, nothing twice, nothing that was refused",
            lost == 0 and twice == 0 and strangers == 0,
            f"{lost} lost, {twice} twice, {strangers} refused ones stored",
        )
        self.check(
            "windows and sums of Spark are those of its rows",
            found.windows > 0 and found.wrong_windows == 0,
            f"{found.windows} closed windows, {found.wrong_windows} wrong",
        )
        peak = self.broker.memory_bytes()
        self.check("the broker stayed small", peak < MEMORY_BYTES_MAX, f"peak {size_text(peak)}")
        self.figures = {
            "placed": shop.placed,
            "published": stored,
            "refused": shop.refused,
            "consumed": len(billing.numbers),
            "rows": len(found.numbers),
            "revenue_cents": found.revenue,
            "peak_memory_bytes": peak,
        }

    def _last_words(self) -> list[str]:
        lines = [""]
        for claim, is_true, figures in self.checks:
            mark = click.style("yes", fg="green") if is_true else click.style("NO ", fg="red")
            lines.append(f"  {mark}  {claim}" + (f"  ({figures})" if figures else ""))
        told = self.figures
        lines.append(
            f"\n{told['placed']:,} orders placed, {told['published']:,} published, "
            f"{told['refused']:,} refused and told so, {told['rows']:,} rows in Parquet, "
            f"broker's peak memory {size_text(told['peak_memory_bytes'])}, "
            f"{self.screen.elapsed_s:.0f} s"
        )
        return lines
