"""The scenario simulator: a whole broker core against chance, one seed at a time (T25).

Engine, store, simulated disk and simulated peers run in one thread on a manual clock. Everything
that happens follows from the seed: the same seed gives the same trace, line by line, in every
process. The eight laws of flow control and the promises P1, P2, P5 and D7 are checked as the run
goes on; a breach stops it with the seed, the step and the last events::

    from kit.simulator import simulate
    outcome = simulate(seed=7)          # raises SimulationFailed with a report
    outcome.digest                      # sha256 of the trace

A *family* of seeds says what a world has and what may happen in it (``steps.Family``): another kind
of topic, subscription or peer is another family, and the traces of the others stay as they are::

    simulate(seed=7, family=PARTITIONS)

Not here: what can happen (``simulation/steps.py``), what must hold (``simulation/laws.py``), what
is checked when the run ends (``simulation/endings.py``).
"""

import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kit.simulation import delaying, direct
from kit.simulation.endings import finish
from kit.simulation.laws import check_step
from kit.simulation.steps import CLASSIC, Family
from kit.simulation.world import World

STEPS_DEFAULT: Final = 2000


class SimulationFailed(AssertionError):
    """A run broke a law or an assertion; the text says how to see it again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run that broke nothing did."""

    seed: int
    digest: str
    """Hash of the trace."""
    events: int
    turns: int
    lives: int
    """How many times the broker was started."""
    confirmed: int
    refused: int
    received: int
    direct: int = 0
    """Messages that topics without a log handed out."""
    spilled: int = 0
    """Delayed messages that were in files at once, at most."""
    staged: int = 0
    """Rows that sinks of Spark committed."""


def simulate(seed: int, steps: int = STEPS_DEFAULT, family: Family = CLASSIC) -> Outcome:
    """Run one seed of a family to its end."""
    world = World(seed, kinds=family.kinds, has_batches=family.has_batches)
    with delaying.spilling(world) if family.is_spilling else nullcontext():
        return _run(world, steps, family)


def _run(world: World, steps: int, family: Family) -> Outcome:
    choices = [step for _, step in family.steps]
    weights = list(accumulate(weight for weight, _ in family.steps))
    try:
        world.boot()
        for number in range(steps):
            world.trace.step = number
            step = world.rng.choices(choices, cum_weights=weights)[0]
            step(world)
            check_step(world)
            direct.check(world)
            delaying.check(world)
        world.trace.note("the end")
        finish(world, is_released=family.is_released)
    except Exception as error:
        raise SimulationFailed(_report(world, family, error)) from error
    ledger = world.ledger
    return Outcome(
        world.seed,
        world.trace.digest,
        world.trace.count,
        world.turns,
        world.lives,
        ledger.confirmed_count,
        ledger.refused_count,
        ledger.received_count,
        world.direct_messages,
        world.spilled_max,
        sum(sink.committed_rows for sink in world.sinks),
    )


def _report(world: World, family: Family, error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    events = "\n".join(f"  {line}" for line in world.trace.last)
    return (
        f"seed {world.seed}, step {world.trace.step}, life {world.lives}: "
        f"{type(error).__name__}: {error}\n"
        f"raised in {where.name} ({where.filename.rpartition('penstock/')[2]}:{where.lineno})\n"
        f"last events:\n{events}\n"
        "again: ./penstock test tests/scenario/test_simulator.py "
        f"-k {family.name} --seed {world.seed}"
    )
