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
from kit.simulator import SimulationFailed, simulate

STEPS = 2000
SEEDS = 500
SEEDS_LONG = 10_000
CHUNK = 100
"""Seeds of one test: small enough that a run shows its progress."""

SEEDS_DIRECT = range(20_000, 20_200)
STEPS_DIRECT = 1000
"""With a topic without a log; seeds of their own, for they make other runs."""

SEEDS_SPILLING = range(30_000, 30_100)
STEPS_SPILLING = 1000
"""With more delays than memory holds; seeds of their own, too."""

WORKERS = 2
"""Processes that share the seeds out; each seed is a world of its own."""


def pytest_generate_tests(metafunc):
    if "first_seed" in metafunc.fixturenames:
        seeds = SEEDS_LONG if metafunc.config.getoption("--long") else SEEDS
        if metafunc.config.getoption("--seed") is not None:
            seeds = CHUNK
        metafunc.parametrize("first_seed", range(0, seeds, CHUNK))


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_law(first_seed, chosen_seed):
    if chosen_seed is not None:
        assert simulate(chosen_seed, STEPS).confirmed
        return
    seeds = range(first_seed, first_seed + CHUNK)
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        outcomes = list(pool.map(simulate, seeds, repeat(STEPS), chunksize=5))
    # A simulation in which nothing happens proves nothing.
    assert sum(outcome.confirmed for outcome in outcomes) > 200 * CHUNK
    assert sum(outcome.received for outcome in outcomes) > 400 * CHUNK
    assert sum(outcome.lives for outcome in outcomes) > 3 * CHUNK
    assert len({outcome.digest for outcome in outcomes}) == CHUNK


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_law_beside_a_topic_without_a_log():
    run = partial(simulate, steps=STEPS_DIRECT, is_direct=True)
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
    run = partial(simulate, steps=STEPS_SPILLING, is_spilling=True)
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=get_context("spawn"),
        initializer=logging.disable,
        initargs=(logging.CRITICAL,),
    ) as pool:
        outcomes = list(pool.map(run, SEEDS_SPILLING, chunksize=5))
    assert sum(outcome.spilled for outcome in outcomes) > 10 * len(SEEDS_SPILLING)


def digest_in_another_process(seed, hash_seed):
    code = f"from kit.simulator import simulate; print(simulate({seed}, 500).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_same_seed_leaves_the_same_trace_in_every_process():
    assert digest_in_another_process(3, "1") == digest_in_another_process(3, "2")
    assert simulate(3, 500).digest == digest_in_another_process(3, "1")
    assert simulate(3, 500).digest != simulate(4, 500).digest


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
