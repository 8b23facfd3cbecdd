"""The scenario simulator: a whole broker core against chance, one seed at a time (T25).

Engine, store, simulated disk and simulated peers run in one thread on a manual clock. Everything
that happens follows from the seed: the same seed gives the same trace, line by line, in every
process. The eight laws of flow control and the promises P1, P2, P5 and D7 are checked as the run
goes on; a breach stops it with the seed, the step and the last events::

    from kit.simulator import simulate
    outcome = simulate(seed=7)          # raises SimulationFailed with a report
    outcome.digest                      # sha256 of the trace

Not here: what can happen (``simulation/steps.py``), what must hold (``simulation/laws.py``), what
is checked when the run ends (``simulation/endings.py``).
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kit.simulation import delaying, direct
from kit.simulation.endings import finish
from kit.simulation.laws import check_step
from kit.simulation.steps import STEPS
from kit.simulation.world import World

STEPS_DEFAULT: Final = 2000

Possible = tuple[tuple[float, Callable[[World], None]], ...]
"""How often, and what."""


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


def simulate(
    seed: int, steps: int = STEPS_DEFAULT, *, is_direct: bool = False, is_spilling: bool = False
) -> Outcome:
    """Run one seed to its end.

    ``is_direct``: with a topic without a log beside the others. ``is_spilling``: with delays for
    most of which memory has no place.
    """
    world = World(seed)
    possible = (*STEPS, *direct.STEPS) if is_direct else STEPS
    if is_spilling:
        with delaying.spilling(world):
            return _run(world, steps, (*possible, *delaying.STEPS))
    return _run(world, steps, possible)


def _run(world: World, steps: int, possible: Possible) -> Outcome:
    choices = [step for _, step in possible]
    weights = list(accumulate(weight for weight, _ in possible))
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
        finish(world)
    except Exception as error:
        raise SimulationFailed(_report(world, error)) from error
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
    )


def _report(world: World, error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    events = "\n".join(f"  {line}" for line in world.trace.last)
    return (
        f"seed {world.seed}, step {world.trace.step}, life {world.lives}: "
        f"{type(error).__name__}: {error}\n"
        f"raised in {where.name} ({where.filename.rpartition('penstock/')[2]}:{where.lineno})\n"
        f"last events:\n{events}\n"
        f"again: ./penstock test tests/scenario/test_simulator.py --seed {world.seed}"
    )
