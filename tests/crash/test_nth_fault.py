"""T7: the n-th storage call fails, for every n of a 200-operation script (SQLite's way)."""

import pytest

from penstock.model.errors import LogError
from penstock.testing.faults import ANY, Fault, FaultKind, FaultPlan
from penstock.testing.simulation import committing, consuming, endings, operating, publishing
from penstock.testing.simulation.world import World

SEED = 20


def roll(world):
    """Enough bytes that the segment is full soon."""
    world.clock.advance(10)
    for _ in range(3):
        publishing.publish(world)
    committing.turn(world)


def snapshot(world):
    """Time for a cursor snapshot, a retention sweep and an idle mark."""
    world.clock.advance(600)
    committing.turn(world)


def commit(world):
    committing.start_job(world)
    committing.run_job(world)
    committing.finish_job(world)


def settle(world):
    for consumer in list(world.consumers):
        if consumer.held:
            consuming.hand_back(world, consumer, list(consumer.held), "settle")


def topic(world):
    world.create_topic("plain")


def restart(world):
    world.restart(is_power_cut=False)


ROUND = (publishing.publish, committing.turn, commit, settle, publishing.publish, roll, commit)
SCRIPT = (
    (
        topic,
        commit,
        consuming.subscribe,
        consuming.attach,
        consuming.attach,
        committing.turn,
        commit,
    )
    + ROUND * 7
    + (topic, snapshot, commit, snapshot, commit, operating.delete_topic, commit)
    + ROUND * 7
    + (restart, consuming.attach, consuming.read)
    + ROUND * 6
    + (snapshot, commit, snapshot, commit, commit, consuming.read)
    + ROUND * 5
    + (commit,)
)


def run(plan, *, is_power_cut, fail_at=0, is_answer_lost=False):
    """The script, a last stop, and the audit; a call that fails loudly ends the process."""
    world = World(SEED, plan)
    world.catalog.fail_at, world.catalog.is_answer_lost = fail_at, is_answer_lost
    _survive(world, world.boot)
    for operation in SCRIPT:
        _survive(world, lambda operation=operation: operation(world))
    plan.clear()
    world.restart(is_power_cut=is_power_cut)
    endings.audit(world)
    endings.drain(world)
    return world


def _survive(world, operation):
    try:
        operation()
    except (OSError, LogError):
        # The process stops rather than lies; the next one finds the disk well again.
        world.storage.plan.clear()
        world.restart(is_power_cut=False)


def calls_of_the_script():
    plan = FaultPlan()
    run(plan, is_power_cut=False)
    return plan.total


def test_the_script_has_two_hundred_operations_and_meets_every_verb():
    plan = FaultPlan()
    world = run(plan, is_power_cut=False)
    assert len(SCRIPT) >= 200
    assert plan.calls["write"] > 100
    assert plan.calls["sync"] > 50
    assert plan.calls["sync_dir"] > 3
    assert plan.calls["remove"] > 0, "retention took a segment"
    assert world.ledger.confirmed_count > 300


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.ENOSPC, FaultKind.SHORT])
def test_whichever_call_fails_nothing_confirmed_is_lost_and_nothing_invented(kind):
    last = calls_of_the_script()
    for nth in range(1, last + 1):
        plan = FaultPlan(Fault(ANY, nth, kind))
        try:
            run(plan, is_power_cut=nth % 2 == 0)
        except Exception as error:
            error.add_note(f"call {nth} of {last} failed with {kind.name}")
            raise
        assert plan.struck == 1, f"call {nth} was never made"


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_whichever_catalog_transaction_fails_nothing_confirmed_is_lost(is_answer_lost):
    last = run(FaultPlan(), is_power_cut=False).catalog.calls
    assert last > 20
    for nth in range(1, last + 1):
        try:
            run(
                FaultPlan(),
                is_power_cut=nth % 2 == 0,
                fail_at=nth,
                is_answer_lost=is_answer_lost,
            )
        except Exception as error:
            error.add_note(f"catalog transaction {nth} of {last} failed")
            raise
