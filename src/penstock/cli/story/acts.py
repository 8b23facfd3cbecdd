"""The three acts: the disk, the consumer and Spark are slow, and each time the right one waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.cli.story import QUIET_PER_S, TOPIC
from penstock.cli.story.billing import PULL, THRESHOLD

if TYPE_CHECKING:
    from penstock.cli.story.job import Batch
    from penstock.cli.story.telling import Story

ACT_S_MAX: Final = 45.0
SPARK_S_MAX: Final = 240.0
"""Java, Spark and the backlog of its start: 20 s on an idle machine, minutes on a drowned one."""
SLOW_BATCHES: Final = 2
"""That the slow query is watched for at least."""
BEGUN_BEFORE: Final = 2
"""Batches behind the last one we heard of that may have begun before the query was slow: one that
is done and not told yet, and one that runs."""
BUSY_SHARE: Final = 0.05
"""Of the shop's orders: a machine that is busy with other things may have some of them refused."""
IN_FLIGHT_SHARE: Final = 0.1
"""Of the bound: sends that had passed the gate when it closed."""


def store_is_held(story: Story) -> None:
    """F5, F6: a send that waits for a silent disk is refused in time, and nothing is lied about."""
    shop, size = story.shop, story.size
    story.until(lambda: len(shop.confirmed) > size.orders_per_s * size.steady_s, ACT_S_MAX)
    refused, confirmed = shop.refused, len(shop.confirmed)
    story.say(f"no sync returns for {size.store_hold_ms} ms (penstock fault store-hold)")
    story.broker.ask("POST", "/api/faults", {"fault": "store-hold", "ms": size.store_hold_ms})
    is_refused = story.until(lambda: shop.refused > refused, ACT_S_MAX)
    reason = shop.last_reason
    story.say(f"the shop is told: {reason}")
    is_over = story.until(
        lambda: len(shop.confirmed) > confirmed + 2 * size.orders_per_s, ACT_S_MAX
    )
    story.check(
        "store held: sends are refused within a moment, and go on when the disk does",
        is_refused and is_over,
        f"{shop.refused - refused} refused",
    )


def consumer_is_slow(story: Story) -> None:
    """F15: a slow consumer stops asking; the shop and everybody else go on."""
    shop, billing, size = story.shop, story.billing, story.size
    confirmed, refused = len(shop.confirmed), shop.refused
    story.say(f"each order costs billing {size.slow_order_s * 1000:.0f} ms from now on")
    billing.order_s = size.slow_order_s
    is_held = story.until(lambda: bool(billing.held), ACT_S_MAX)
    fullest = 0

    def is_watched() -> bool:
        nonlocal fullest
        fullest = max(fullest, billing.fullest)
        return False

    story.until(is_watched, size.steady_s)
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
    story.say("billing is fast again")
    is_free = story.until(
        lambda: not billing.held and len(shop.confirmed) - len(billing.numbers) < THRESHOLD,
        ACT_S_MAX,
    )
    story.check("slow consumer: let go, it catches up", is_free)


def spark_is_slow(story: Story) -> None:
    """F17, F18: batches get smaller, then the publishers of the topic are held at the bound."""
    shop, job, size = story.shop, story.job, story.size
    bound = size.backlog_messages_max
    if not _is_caught_up(story):
        story.check("Spark runs and catches up", False, f"{job.state}, {story.board.lag:,} behind")
        return
    _set_backpressure(story, bound)
    story.board.lag_max = 0
    began, refused = job.last_batch("rows") + BEGUN_BEFORE, shop.refused
    story.say(
        f"each row costs Spark {size.slow_row_s * 1000:.0f} ms from now on; "
        f"{TOPIC} says spark_backpressure = hard at {bound:,} messages"
    )
    job.slow_down(size.slow_row_s)
    is_refused = story.until(lambda: shop.refused > refused, ACT_S_MAX)
    reason = shop.last_reason
    story.say(f"the shop is told: {reason}")
    story.wait(size.held_s)
    story.until(lambda: len(_batches(story, began)) >= SLOW_BATCHES, ACT_S_MAX)
    story.check(
        "slow Spark: the shop is held, and told by which query",
        is_refused and "Spark query 'orders-" in reason,
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
    confirmed, refused = len(shop.confirmed), shop.refused
    story.say("Spark is fast again")
    is_free = story.until(
        lambda: len(shop.confirmed) > confirmed + 2 * size.orders_per_s, ACT_S_MAX
    )
    story.check("slow Spark: let go, it catches up and the shop goes on", is_free)


def _batches(story: Story, began: int) -> list[Batch]:
    """What the slow query has done since that number; a batch under way is not there yet."""
    batches = story.job.batches
    return [each for each in batches if each.query == "rows" and each.rows and each.number > began]


def _is_caught_up(story: Story) -> bool:
    """Wait for Spark, with few orders meanwhile."""
    shop, job, size = story.shop, story.job, story.size
    if not job.is_running:
        story.say("Spark is not there yet; the shop is quiet until then")
    shop.per_second = QUIET_PER_S
    is_there = story.until(
        lambda: job.is_running and 0 <= story.board.lag < size.orders_per_s, SPARK_S_MAX
    )
    shop.per_second = size.orders_per_s
    story.wait(size.steady_s)
    return is_there


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
