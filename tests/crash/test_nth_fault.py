"""T7: the n-th storage call fails, for every n of a 200-operation script (SQLite's way)."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from kit.simulation import committing, consuming, endings, operating, publishing, staging
from kit.simulation.world import Crowd, World
from penstock.engine.ports import Publication
from penstock.engine.topic import route_to
from penstock.model.errors import LogError
from penstock.model.record import neutral_record
from penstock.settings.flow import FlowSettings
from penstock.testing.storage import ANY, Fault, FaultKind, FaultPlan

SEED = 20
LARGE_BYTES = 3000
"""Twenty of these fill a segment."""


def large(world):
    """A list of large messages: the segment is full soon."""
    if not world.publishers:
        publishing.connect_publisher(world)
    publisher, target = world.publishers[0], world.live_topics[0]
    route = route_to(target.topic)
    publications = []
    for _ in range(6):
        number = publisher.next_number
        publisher.next_number += 1
        sent = world.ledger.send(publisher.name, number, target.label, LARGE_BYTES)
        publisher.pending[number] = sent
        record = neutral_record(sent.body)
        publications.append(Publication(record=record, queues=(), route=route, token=number))
    publisher.channel.publish(publications)
    committing.turn(world)
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
        consumer.flush()
        if consumer.held:
            consuming.hand_back(world, consumer, list(consumer.held), "settle")
    committing.turn(world)


def consume(world):
    """A consumer that takes everything, so that segments become free."""
    for sim_topic in world.live_topics:
        for following in sim_topic.followings.values():
            if not any(consumer.following is following for consumer in world.consumers):
                endings.attach_drain(world, sim_topic, following)


def topic(world):
    world.create_topic("plain")


def sink(world):
    """A batch of Spark: put, committed, and nothing of it left beside the log."""
    if not world.sinks:
        world.sinks.append(staging.SimSink(world, world.fresh("sink")))
    staging.stage(world)
    staging.commit(world)
    for _ in range(5):
        committing.turn(world)
        commit(world)


def restart(world):
    world.restart(is_power_cut=False)


ROUND = (publishing.publish, committing.turn, commit, settle, large, commit, settle)
SCRIPT = (
    (topic, commit, consuming.subscribe, consume, committing.turn, commit)
    + ROUND * 7
    + (sink, sink)
    + (topic, snapshot, commit, snapshot, commit, operating.delete_topic, commit)
    + ROUND * 6
    + (sink, restart, sink, consume, consuming.read)
    + ROUND * 6
    + (snapshot, commit, snapshot, commit, commit, consuming.read, topic)
    + ROUND * 6
    + (snapshot, commit)
)


def world_of(plan):
    world = World(SEED, plan)
    storage = replace(world.settings.storage, settled_keep_ms=1, settled_keep_bytes_max=0)
    # Ordinary limits: this script is about the disk, and must not change with the simulator's.
    world.settings = replace(world.settings, storage=storage, flow=FlowSettings())
    world.crowd = Crowd()
    return world


def run(plan, *, is_power_cut, fail_at=0, is_answer_lost=False):
    """The script, a last stop, and the audit; a call that fails loudly ends the process."""
    world = world_of(plan)
    world.catalog.fail_at, world.catalog.is_answer_lost = fail_at, is_answer_lost
    _survive(world, world.boot)
    for operation in SCRIPT:
        _survive(world, lambda operation=operation: operation(world))
    calls = Calls(plan.total, dict(plan.calls), world.catalog.calls)
    plan.clear()
    world.catalog.fail_at = 0
    world.restart(is_power_cut=is_power_cut)
    endings.audit(world)
    endings.drain(world)
    return world, calls


class Calls(NamedTuple):
    """How often the script called what."""

    total: int
    verbs: dict
    transactions: int


def _survive(world, operation):
    try:
        operation()
    except (OSError, LogError):
        # The process stops rather than lies; the next one finds the disk well again.
        world.storage.plan.clear()
        world.restart(is_power_cut=False)


GROWING = ("open", "make_dir", "rename", "write", "truncate")
CASES = [
    (ANY, FaultKind.EIO),
    *[(verb, FaultKind.ENOSPC) for verb in GROWING],
    ("write", FaultKind.SHORT),
]


def test_the_script_has_two_hundred_operations_and_meets_every_verb():
    world, calls = run(FaultPlan(), is_power_cut=False)
    assert len(SCRIPT) >= 200
    assert all(calls.verbs.values()), calls.verbs
    assert calls.verbs["write"] > 70
    assert calls.verbs["sync"] > 50
    assert calls.verbs["remove"] > 3, "retention took segments"
    assert world.ledger.confirmed_count > 200
    assert sum(each.batch for each in world.sinks) >= 2, "batches of a sink were committed"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("verb", "kind"), CASES)
def test_whichever_call_fails_nothing_confirmed_is_lost_and_nothing_invented(verb, kind):
    _, calls = run(FaultPlan(), is_power_cut=False)
    last = calls.total if verb == ANY else calls.verbs[verb]
    for nth in range(1, last + 1):
        plan = FaultPlan(Fault(verb, nth, kind))
        try:
            run(plan, is_power_cut=nth % 2 == 0)
        except Exception as error:
            error.add_note(f"{verb} call {nth} of {last} failed with {kind.name}")
            raise
        assert plan.struck == 1, f"{verb} call {nth} was never made"


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_whichever_catalog_transaction_fails_nothing_confirmed_is_lost(is_answer_lost):
    _, calls = run(FaultPlan(), is_power_cut=False)
    last = calls.transactions
    assert last > 8
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
