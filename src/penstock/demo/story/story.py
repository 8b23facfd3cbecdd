"""The order of things: opens the shop, the broker, billing and Spark, plays the acts, judges.

Everything is ended in any case, an interrupt included; ``keep`` waits before it is. A claim that
does not hold makes the verdict bad and the exit code 1; so does a story that takes too long.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import click

from penstock.demo.story import LARGE_CENTS, LARGE_TOPIC, QUEUES, QUIET_PER_S, TOPIC, Size
from penstock.demo.story.board import Board, Screen
from penstock.demo.story.processes import Job, Processes
from penstock.demo.story.publishers import (
    PULL,
    THRESHOLD,
    Billing,
    LargeOrderReader,
    open_publishers,
    open_readers,
    readers_text,
    tills_text,
)
from penstock.demo.story.shop import Shop
from penstock.model.errors import PenstockError
from penstock.model.ids import size_text

if TYPE_CHECKING:
    from penstock.demo.story.processes import Batch

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
        self.broker: Processes
        self.job: Job
        self.shop: Shop
        self.billing: Billing
        self.readers: list[LargeOrderReader]
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
            # Who begins with a backlog is behind, and rightly named so: that is before the acts.
            acts = ACTS if spark_is_there(self) else ()
            for number, (title, act) in enumerate(acts, 1):
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
        self.screen.say(text)

    def check(self, claim: str, is_true: bool, figures: str = "") -> None:
        """Something the story claims; told at the end."""
        self.checks.append((claim, is_true, figures))

    def wait(self, seconds: float) -> None:
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
        self.broker = Processes(directory)
        stack.callback(self.broker.close)
        self.broker.open()
        for topic in (TOPIC, LARGE_TOPIC):
            self.broker.ask("POST", "/api/topics", {"name": topic, "space": "", "queues": QUEUES})
        flight = self.broker.endpoints.get("flight")
        if flight is None:
            raise PenstockError(
                "the broker has no Flight port, so Spark cannot read from it; "
                "`pip install 'penstock-broker[spark]'` brings what is missing"
            )
        self.say(
            f"a private broker is ready: RocketMQ {self.broker.endpoints['rocketmq']}, "
            f"AMQP {self.broker.endpoints['amqp']}, Pulsar {self.broker.endpoints['pulsar']}, "
            f"Flight {flight}, "
            f"HTTP {self.broker.endpoints['http']}"
        )
        self.readers = open_readers(self.broker.endpoints)
        self.job = Job(directory)
        stack.callback(self.job.close)
        self.job.open(flight, self.size.batch_target_s)
        self.billing = Billing(self.broker.endpoints["rocketmq"])
        stack.callback(self.billing.close)
        self.billing.open()
        self.shop = Shop(open_publishers(self.broker.endpoints), QUIET_PER_S)
        stack.callback(self.shop.close)
        self.shop.open()
        self.board = Board(self.broker, self.shop, self.billing, self.job)
        self.say(
            f"the shop places {self.size.orders_per_s} orders a second by "
            f"{tills_text(self.shop.publishers)}; billing consumes them; few until Spark is there"
        )
        self.say(
            "Spark will sum them into Parquet, and write those from an amount on "
            f"({LARGE_CENTS / 100:.0f}) to topic {LARGE_TOPIC}"
        )

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
        self.check("orders came by every protocol that has a publisher, into one topic",
                   set(by) == {publisher.name for publisher in shop.publishers},
                   ", ".join(f"{count:,} by {name}" for name, count in by.items()))  # fmt: skip
        job.drain()
        is_consumed = self.until(lambda: shop.confirmed <= set(billing.numbers), DRAIN_S_MAX)
        is_drained = self.until(lambda: job.is_over, DRAIN_S_MAX)
        self.check("billing and Spark came to the end", is_consumed and is_drained)
        self._reckon()

    def _reckon(self) -> None:
        shop, billing = self.shop, self.billing
        found = count_again(self.job.out)
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
        large = self._read_back()
        peak = self.broker.memory_bytes()
        self.check("the broker stayed small", peak < MEMORY_BYTES_MAX, f"peak {size_text(peak)}")
        self.figures = {
            "placed": shop.placed,
            "placed_by": shop.sent_by,
            "published": stored,
            "refused": shop.refused,
            "consumed": len(billing.numbers),
            "rows": len(found.numbers),
            "large": large,
            "revenue_cents": found.revenue,
            "peak_memory_bytes": peak,
        }

    def _read_back(self) -> dict[str, int]:
        """What Spark's sink wrote, by every client that reads it; how many orders each found."""
        shop = self.shop
        large = Counter(
            (number, shop.amounts[number])
            for number in shop.confirmed
            if shop.amounts[number] >= LARGE_CENTS
        )
        by = readers_text(self.readers)
        self.say(f"what Spark wrote to {LARGE_TOPIC} is read back by {by}")
        read = {each.title: read_orders(each.read()) for each in self.readers}
        counts = {title: each.total() for title, each in read.items()}
        self.check(
            f"{LARGE_TOPIC}: every large order that was published, once, read back by {by}",
            bool(large) and all(each == large for each in read.values()),
            " = ".join(f"{count:,}" for count in (large.total(), *counts.values())),
        )
        return {"published": large.total(), **counts}

    def _last_words(self) -> list[str]:
        lines = [""]
        for claim, is_true, figures in self.checks:
            mark = click.style("yes", fg="green") if is_true else click.style("NO ", fg="red")
            lines.append(f"  {mark}  {claim}" + (f"  ({figures})" if figures else ""))
        told = self.figures
        lines.append(
            f"\n{told['placed']:,} orders placed, {told['published']:,} published, "
            f"{told['refused']:,} refused and told so, {told['rows']:,} rows in Parquet, "
            f"{told['large']['published']:,} large ones in a topic, "
            f"broker's peak memory {size_text(told['peak_memory_bytes'])}, "
            f"{self.screen.elapsed_s:.0f} s"
        )
        return lines


# What Spark wrote, read by another program, against what the broker confirmed.
#
# Parquet is read with pyarrow and not with the Spark that wrote it. Which files count is what the
# sink's log says (``_spark_metadata``): one that a failed task left behind is not part of the
# result.


WINDOW_US: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class FinalCount:
    """What is in the two Parquet directories."""

    numbers: list[int]
    """Of every row, as often as it is there."""
    windows: int
    """Closed windows, by item."""
    wrong_windows: int
    """Whose orders or revenue are not those of the rows."""
    revenue: int


def count_again(out: Path) -> FinalCount:
    """Read both directories and compare the one with the other."""
    rows = _table(out / "rows", ["id", "item", "amount", "timestamp"])
    orders: Counter[tuple[int, str]] = Counter()
    revenue: Counter[tuple[int, str]] = Counter()
    for item, amount, at_us in zip(rows["item"], rows["amount"], rows["timestamp"], strict=True):
        window = (at_us // WINDOW_US * WINDOW_US, item)
        orders[window] += 1
        revenue[window] += amount
    sums = _table(out / "sums", ["start", "item", "orders", "revenue"])
    found = list(zip(sums["start"], sums["item"], sums["orders"], sums["revenue"], strict=True))
    wrong = sum(
        (orders[start, item], revenue[start, item]) != (count, amount)
        for start, item, count, amount in found
    )
    repeated = len(found) - len({(start, item) for start, item, _, _ in found})
    return FinalCount(rows["id"], len(found), wrong + repeated, sum(revenue.values()))


def committed_files(directory: Path) -> list[Path]:
    """The files that the sink's log names, each once."""
    log = directory / "_spark_metadata"
    paths: dict[str, None] = {}
    for batch in sorted(log.iterdir()) if log.is_dir() else ():
        if batch.name.startswith("."):
            continue
        # The first line is the version of the format; compacted batches repeat the ones before.
        for line in batch.read_text().splitlines()[1:]:
            paths[json.loads(line)["path"]] = None
    return [Path(unquote(urlsplit(each).path)) for each in paths]


def _table(directory: Path, columns: list[str]) -> dict[str, list[Any]]:
    """Columns as lists; times in microseconds."""
    import pyarrow as pa
    from pyarrow import parquet

    found: dict[str, list[Any]] = {name: [] for name in columns}
    for path in committed_files(directory):
        table = parquet.read_table(path, columns=columns)
        for name in columns:
            column = table[name]
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            found[name] += column.to_pylist()
    return found


def read_orders(bodies: list[bytes]) -> Counter[tuple[int, int]]:
    """Number and amount of each order that Spark's sink wrote, as often as it is there."""
    orders = [json.loads(body) for body in bodies]
    return Counter((each["id"], each["amount"]) for each in orders)


# The three acts: the disk, the consumer and Spark are slow, and each time the right one waits.


ACT_S_MAX: Final = 45.0
CALM_S: Final = 10.0
"""Until the act before is forgotten, on a machine that is not busy."""
WELL_S_MAX: Final = 90.0
"""Until everybody has caught up with the act before; on a drowned machine Spark takes its time."""
SPARK_S_MAX: Final = 240.0
"""Java, Spark and the backlog of its start: 20 s on an idle machine, minutes on a drowned one."""
SLOW_BATCHES: Final = 2
"""That the slow query is watched for at least."""
BEGUN_BEFORE: Final = 2
"""Batches behind the last one we heard of that may have begun before the query was slow: one that
is done and not told yet, and one that runs."""
BUSY_SHARE: Final = 0.05
"""Of the shop's orders: a machine that is busy with other things may have some of them refused."""
FOUND_S: Final = 2.0
"""Within which time it is found who holds or refuses."""
BEHIND_S: Final = 10.0
"""The same of who is behind."""
IN_FLIGHT_SHARE: Final = 0.1
"""Of the bound: sends that had passed the gate when it closed."""


def spark_is_there(story: Story) -> bool:
    """Wait for Spark, with few orders meanwhile; then the shop is as busy as it is."""
    shop, job, size = story.shop, story.job, story.size
    story.board.title = "before: everybody arrives"
    is_there = story.until(
        lambda: job.is_running and 0 <= story.board.lag < size.orders_per_s, SPARK_S_MAX
    )
    shop.per_second = size.orders_per_s
    story.wait(size.steady_s)
    story.check(
        "Spark runs and has caught up", is_there, f"{job.state}, {story.board.lag:,} behind"
    )
    return is_there


def store_is_held(story: Story) -> None:
    """F5, F6: a send that waits for a silent disk is refused in time, and nothing is lied about."""
    shop, size = story.shop, story.size
    all_is_well(story, "store held")
    refused, confirmed = shop.refused, len(shop.confirmed)
    story.say("no sync returns until this was seen (penstock fault store-hold)")
    hold = {"fault": "store-hold", "ms": int(2 * ACT_S_MAX * 1000)}
    story.broker.ask("POST", "/api/faults", hold)
    story.board.watch()
    is_refused = story.until(lambda: shop.refused > refused, ACT_S_MAX)
    reason = shop.last_reason
    story.say(f"the shop is told: {reason}")
    story.until(lambda: story.board.is_watched(FOUND_S), ACT_S_MAX)
    story.board.over()
    story.broker.ask("POST", "/api/faults", {"fault": "clear"})
    is_over = story.until(
        lambda: len(shop.confirmed) > confirmed + 2 * size.orders_per_s, ACT_S_MAX
    )
    story.check(
        "store held: sends are refused within a moment, and go on when the disk does",
        is_refused and is_over,
        f"{shop.refused - refused} refused",
    )
    said = story.board.named("log", FOUND_S)
    story.check("store held: the broker names the log all the time, and nobody else", *said)


def consumer_is_slow(story: Story) -> None:
    """F15: a slow consumer stops asking; the shop and everybody else go on."""
    shop, billing, size = story.shop, story.billing, story.size
    all_is_well(story, "slow consumer")
    confirmed, refused = len(shop.confirmed), shop.refused
    story.say(f"each order costs billing {size.slow_order_s * 1000:.0f} ms from now on")
    billing.order_s = size.slow_order_s
    story.board.watch()
    end = time.monotonic() + BEHIND_S + size.steady_s
    is_held = story.until(lambda: bool(billing.held), ACT_S_MAX)
    fullest = 0

    def is_seen() -> bool:
        nonlocal fullest
        fullest = max(fullest, billing.fullest)
        return time.monotonic() > end and story.board.is_watched(BEHIND_S)

    # Messages that wait for five seconds, and more of them: then somebody is behind.
    story.until(is_seen, ACT_S_MAX)
    story.check(
        "slow consumer: its thresholds stop the pulls, within a limit and one pull",
        is_held and 0 < fullest <= THRESHOLD + PULL,
        f"at most {fullest} in a cache, limit {THRESHOLD}",
    )
    taken, turned_away = len(shop.confirmed) - confirmed, shop.refused - refused
    story.check(
        "slow consumer: the shop does not feel it",
        taken > 0 and turned_away <= BUSY_SHARE * taken,
        f"{taken:,} confirmed meanwhile, {turned_away} refused",
    )
    billing.order_s = 0.0
    story.board.over()
    story.say("billing is fast again")
    is_free = story.until(
        lambda: not billing.held and len(shop.confirmed) - len(billing.numbers) < THRESHOLD,
        ACT_S_MAX,
    )
    story.check("slow consumer: let go, it catches up", is_free)
    said = story.board.named("client/", BEHIND_S)
    story.check("slow consumer: the broker names its client all the time, and nobody else", *said)


def spark_is_slow(story: Story) -> None:
    """F17, F18: batches get smaller, then the publishers of the topic are held at the bound."""
    shop, job, size = story.shop, story.job, story.size
    bound = size.backlog_messages_max
    _set_backpressure(story, bound)
    all_is_well(story, "slow Spark")
    # On a drowned machine it may still have more to come through than the bound allows from now on.
    story.until(lambda: story.board.lag < bound / 2, ACT_S_MAX)
    story.board.lag_max = 0
    began, refused = job.last_batch("rows") + BEGUN_BEFORE, shop.refused
    story.say(
        f"each row costs Spark {size.slow_row_s * 1000:.0f} ms from now on; "
        f"{TOPIC} says spark_backpressure = hard at {bound:,} messages"
    )
    job.slow_down(size.slow_row_s)
    story.board.watch()
    # A send may also be refused because the machine, or another query, was busy for a moment.
    is_told = story.until(
        lambda: shop.refused > refused and "Spark query 'orders-rows'" in shop.last_reason,
        ACT_S_MAX,
    )
    story.say(f"the shop is told: {shop.last_reason}")
    story.wait(size.held_s)
    story.until(
        lambda: len(_batches(story, began)) >= SLOW_BATCHES and story.board.is_watched(BEHIND_S),
        ACT_S_MAX,
    )
    story.check(
        "slow Spark: the shop is held, and told by which query",
        is_told,
        f"{shop.refused - refused} refused",
    )
    story.check(
        "slow Spark: its backlog stays at the bound",
        bound / 2 < story.board.lag_max <= bound * (1 + IN_FLIGHT_SHARE),
        f"at most {story.board.lag_max:,}, bound {bound:,}",
    )
    rows = _batches(story, began)
    story.check(
        "slow Spark: admission keeps its batches small, whatever waits",
        len(rows) >= SLOW_BATCHES and all(each.rows <= bound / 2 for each in rows),
        ", ".join(f"{each.rows} rows in {each.ms / 1000:.1f} s" for each in rows[:6]),
    )
    job.slow_down(0)
    story.board.over()
    confirmed, refused = len(shop.confirmed), shop.refused
    story.say("Spark is fast again")
    is_free = story.until(
        lambda: len(shop.confirmed) > confirmed + 2 * size.orders_per_s, ACT_S_MAX
    )
    story.check("slow Spark: let go, it catches up and the shop goes on", is_free)
    said = story.board.named("query/orders-rows", BEHIND_S)
    story.check("slow Spark: the broker names this query all the time, and nobody else", *said)


def all_is_well(story: Story, act: str) -> None:
    """Before it begins, nobody is named: else nobody could tell who is meant.

    Unless the broker finds that the machine is busy: then who is named is slow with it, in the act,
    too, and ``Board.named`` knows.
    """
    shop, board = story.shop, story.board
    if not story.until(lambda: not board.blamed, CALM_S):
        # With few orders whoever is behind catches up sooner.
        shop.per_second = QUIET_PER_S
        story.until(lambda: not board.blamed, WELL_S_MAX)
        shop.per_second = story.size.orders_per_s
    is_well = not board.blamed or board.is_machine_slow
    story.check(f"{act}: nobody is named before", is_well, board.blamed)


def _batches(story: Story, began: int) -> list[Batch]:
    """What the slow query has done since that number; a batch under way is not there yet."""
    batches = story.job.batches
    return [each for each in batches if each.query == "rows" and each.rows and each.number > began]


def _set_backpressure(story: Story, messages_max: int) -> None:
    """What ``penstock topics set`` does."""
    policy = {"spark_backpressure": "hard", "spark_backlog_messages_max": messages_max}
    story.broker.ask("POST", "/api/topic-policies", {"topic": TOPIC, **policy})


Act = Callable[["Story"], None]
ACTS: Final[tuple[tuple[str, Act], ...]] = (
    ("the store is held", store_is_held),
    ("the consumer is slow", consumer_is_slow),
    ("the Spark job is slow", spark_is_slow),
)
"""What is told, in this order."""
