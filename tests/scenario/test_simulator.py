"""The whole core against chance: the eight laws and the promises, seed by seed (T25)."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from multiprocessing import get_context

import pytest

from kit.simulation.ledger import LawBroken
from kit.simulation.steps import CLASSIC, DIRECT, FAMILIES, PARTITIONS, SINKS, SPILLING
from kit.simulator import SimulationFailed, simulate

STEPS = 2000
SEEDS = {CLASSIC: (500, 10_000), PARTITIONS: (100, 500)}
"""How many of each family, and how many with ``--long``."""

CHUNK = 100
"""Seeds of one test: small enough that a run shows its progress."""

SEEDS_DIRECT = range(20_000, 20_200)
STEPS_DIRECT = 1000
"""With a topic without a log; seeds of their own, for they make other runs."""

SEEDS_SPILLING = range(30_000, 30_100)
STEPS_SPILLING = 1000
"""With more delays than memory holds; seeds of their own, too."""

SEEDS_SINKS = range(40_000, 40_060)
STEPS_SINKS = 1000
"""With sinks of Spark, whose batches must be there exactly once."""

WORKERS = 2
"""Processes that share the seeds out; each seed is a world of its own."""


def pytest_generate_tests(metafunc):
    if "first_seed" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("--long")
        is_one = metafunc.config.getoption("--seed") is not None
        counts = {family: each[is_long] for family, each in SEEDS.items()}
        chunks = [
            pytest.param(family, first, id=f"{family.name}-{first}")
            for family, count in (dict.fromkeys(FAMILIES, 1) if is_one else counts).items()
            for first in range(0, count, CHUNK)
        ]
        metafunc.parametrize(("family", "first_seed"), chunks)


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_law(family, first_seed, chosen_seed):
    if chosen_seed is not None:
        fewer = {DIRECT: STEPS_DIRECT, SPILLING: STEPS_SPILLING, SINKS: STEPS_SINKS}
        steps = fewer.get(family, STEPS)
        assert simulate(chosen_seed, steps, family).confirmed
        return
    seeds = range(first_seed, first_seed + CHUNK)
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        outcomes = list(pool.map(simulate, seeds, repeat(STEPS), repeat(family), chunksize=5))
    # A simulation in which nothing happens proves nothing.
    assert sum(outcome.confirmed for outcome in outcomes) > 200 * CHUNK
    assert sum(outcome.received for outcome in outcomes) > 400 * CHUNK
    assert sum(outcome.lives for outcome in outcomes) > 3 * CHUNK
    assert len({outcome.digest for outcome in outcomes}) == CHUNK


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_law_beside_a_topic_without_a_log():
    run = partial(simulate, steps=STEPS_DIRECT, family=DIRECT)
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        outcomes = list(pool.map(run, SEEDS_DIRECT, chunksize=5))
    assert sum(outcome.confirmed for outcome in outcomes) > 50 * len(SEEDS_DIRECT)
    assert sum(outcome.direct for outcome in outcomes) > 50 * len(SEEDS_DIRECT)


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_law_with_more_delays_than_memory_holds():
    run = partial(simulate, steps=STEPS_SPILLING, family=SPILLING)
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        outcomes = list(pool.map(run, SEEDS_SPILLING, chunksize=5))
    assert sum(outcome.spilled for outcome in outcomes) > 10 * len(SEEDS_SPILLING)


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_law_beside_sinks_of_spark():
    run = partial(simulate, steps=STEPS_SINKS, family=SINKS)
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        outcomes = list(pool.map(run, SEEDS_SINKS, chunksize=5))
    assert sum(outcome.staged for outcome in outcomes) > 20 * len(SEEDS_SINKS)
    assert sum(outcome.lives for outcome in outcomes) > 2 * len(SEEDS_SINKS)


def digests_in_another_process(seed, hash_seed):
    code = (
        "from kit.simulation.steps import FAMILIES; from kit.simulator import simulate; "
        f"print(*(simulate({seed}, 500, each).digest for each in FAMILIES))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def test_the_same_seed_leaves_the_same_trace_in_every_process():
    assert digests_in_another_process(3, "1") == digests_in_another_process(3, "2")
    here = [simulate(3, 500, family).digest for family in FAMILIES]
    assert here == digests_in_another_process(3, "1")
    assert here != [simulate(4, 500, family).digest for family in FAMILIES]


def test_a_broken_law_names_seed_step_events_and_the_command_to_see_it_again(monkeypatch):
    def break_a_law(world):
        if world.trace.step == 40:
            raise LawBroken("planted")

    monkeypatch.setattr("kit.simulator.check_step", break_a_law)
    with pytest.raises(SimulationFailed) as failure:
        simulate(5, 100)
    text = str(failure.value)
    assert "seed 5, step 40" in text
    assert "planted" in text
    assert text.count("\n  ") >= 20
    assert "--seed 5" in text
