"""Steps and laws of delays beyond memory; only in runs that ask for them (``simulate``).

Consumers give messages back for up to some seconds, memory has place for a few of them, and the
files take the rest at once. What must hold: memory keeps its bound, the budget counts what cursors
have aside, and everything that was put aside comes in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from kit.simulation.consuming import hand_back
from kit.simulation.ledger import LawBroken
from kit.simulation.world import World
from penstock.engine.subscription.cursor import Redelivery
from penstock.log import delayed
from penstock.log.delayed import SPILL_NOTE

IN_MEMORY: Final = 12
FLUSH_NOTES: Final = 2
HORIZON_MS: Final = 200
DELAY_MS_MAX: Final = 5_000


@contextmanager
def spilling(world: World) -> Iterator[None]:
    """A run in which hardly anything fits into memory."""
    settings = world.settings
    topics = replace(
        settings.topics, delayed_in_memory_max=2 * IN_MEMORY, delay_horizon_ms=HORIZON_MS
    )
    world.settings = replace(settings, topics=topics)
    world.is_spilling = True
    with patch.object(delayed, "FLUSH_BYTES", FLUSH_NOTES * SPILL_NOTE.size):
        yield


def delay(world: World) -> None:
    """A consumer gives back what it holds, for a while."""
    holding = [each for each in world.consumers if each.held and not each.is_stuck]
    if holding:
        consumer = world.rng.choice(holding)
        places = list(consumer.held)[: world.rng.randint(1, 6)]
        hand_back(
            world, consumer, places, "requeue", delay_ms=world.rng.randrange(20, DELAY_MS_MAX)
        )


def jump(world: World) -> None:
    """A clock that stands still for hours: nothing may be left behind in an hour that is over."""
    world.clock.advance(world.rng.choice((1, 300, 2 * 3_600_000)))
    world.trace.note("time passes at once")


STEPS: Final[tuple[tuple[float, Callable[[World], None]], ...]] = ((8, delay), (0.2, jump))


def check(world: World) -> None:
    if not world.is_spilling:
        return
    found = list(_redeliveries(world))
    budget = world.engine._host.delayed_budget
    in_memory = sum(len(each.delayed) for each in found)
    if in_memory != budget.count:
        raise LawBroken(f"{in_memory} aside in memory, and the budget counts {budget.count}")
    if budget.count > budget.count_max:
        raise LawBroken(f"{budget.count} aside in memory, at most {budget.count_max} (D14)")
    resting = sum(each.is_resting for each in found)
    world.spilled_max = max(world.spilled_max, world.store.spill.notes if resting else 0)


def put_aside(world: World) -> str:
    """A subscription that still waits for somebody's time, if there is one."""
    for sim_topic in world.live_topics if world.is_spilling else ():
        for name, subscription in sim_topic.topic.subscriptions.items():
            if subscription.statistics().delayed:
                return f"subscription {name}"
    return ""


def _redeliveries(world: World) -> Iterator[Redelivery]:
    for sim_topic in world.live_topics:
        for subscription in sim_topic.topic.subscriptions.values():
            for queue_id in subscription.queue_ids:
                yield subscription.cursor(queue_id).redelivery
