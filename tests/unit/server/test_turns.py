"""Turns: coalesced on the loop, one commit beside them, a failed sync told and final."""

from collections.abc import Callable

import pytest

from penstock.model.errors import InvariantBroken, PenstockError, SyncFailed
from penstock.server.commit_policy import CommitPolicy
from penstock.server.commit_thread import Outcome
from penstock.server.pace import PACE_US, Pace
from penstock.server.turns import Turns
from penstock.settings.storage import StorageSettings


class HandCommits:
    """A commit thread that ends a job when the test says so."""

    def __init__(self, loop, done, before):
        self.done = done
        self.under_way = []

    def start(self):
        pass

    def submit(self, job):
        assert not self.under_way, "one sync in flight"
        self.under_way.append(job)

    def stop(self, seconds_max):
        return not self.under_way

    def end(self, error=None):
        self.done(Outcome(self.under_way.pop(), error, 0.001))


class Connection:
    def __init__(self, on_flush: Callable[[], None] = lambda: None) -> None:
        self.flushes = 0
        self.on_flush = on_flush
        self.on_feed: Callable[[], object] = lambda: None

    def feed(self) -> None:
        self.on_feed()

    def flush(self) -> None:
        self.flushes += 1
        self.on_flush()


class Scene:
    def __init__(self, engine, loop, clock, *, commits=20, is_paced=False, **storage) -> None:
        self.engine = engine
        self.loop = loop
        self.failures: list[PenstockError] = []
        self.commits: HandCommits

        def make(*arguments):
            self.commits = HandCommits(*arguments)
            return self.commits

        policy = CommitPolicy(StorageSettings(**storage))
        self.now_us = PACE_US
        self.is_paced = is_paced
        for count in range(commits):  # a rate at which a linger finds company
            policy.reached(100 * (count + 1), clock.monotonic_ms())
        engine.appended_messages = 100 * commits
        self.turns = Turns(
            engine,
            loop,
            clock,
            policy,
            failed=self.failures.append,
            make_commits=make,
            pace=Pace(self.now_ns),
        )

    def now_ns(self):
        if not self.is_paced:  # every look is long after the last turn
            self.now_us += PACE_US
        return self.now_us * 1000


@pytest.fixture
def scene(engine, loop, clock):
    return Scene(engine, loop, clock)


@pytest.fixture
def busy(engine, loop, clock):
    """Much comes in small pieces, a sync is out, and the turn before it has just begun."""
    scene = Scene(engine, loop, clock, is_paced=True)
    engine.unsynced_messages, engine.unsynced_bytes = 200, 40_000
    scene.turns.request()
    loop.step()
    assert scene.commits.under_way
    engine.unsynced_messages = 5
    return scene


def test_many_requests_in_one_iteration_are_one_turn(scene):
    for _ in range(10):
        scene.turns.request()
    scene.loop.run()
    assert scene.engine.turns == 1


def test_a_turn_that_leaves_work_lets_the_loop_poll_before_the_next(scene):
    scene.engine.needs_turn = True
    scene.turns.request()
    scene.loop.step()
    assert scene.engine.turns == 1
    scene.engine.needs_turn = False
    scene.loop.step()
    assert scene.engine.turns == 2
    assert scene.loop.step() == 0


def test_a_stirred_connection_is_flushed_once_after_the_turn(scene):
    order = []
    connection = Connection(lambda: order.append("flush"))
    scene.engine.on_turn = lambda: order.append("turn")
    scene.turns.stir(connection)
    scene.loop.run()
    assert order == ["turn", "flush"]


def test_a_connection_stirred_while_being_flushed_is_looked_at_in_a_turn_of_its_own(scene):
    second = Connection()
    scene.turns.stir(Connection(lambda: scene.turns.stir(second)))
    scene.loop.step()
    assert second.flushes == 0
    scene.loop.step()
    assert second.flushes == 1


def test_the_timer_follows_the_engines_deadline_and_moves_only_forward_in_haste(scene):
    scene.engine.deadline_ms = scene.loop.clock.monotonic_ms() + 500
    scene.turns.request()
    scene.loop.run()
    scene.engine.deadline_ms -= 400
    scene.turns.request()
    scene.loop.run()
    scene.loop.advance(99)
    assert scene.engine.turns == 2
    scene.engine.on_turn = lambda: setattr(scene.engine, "deadline_ms", None)
    scene.loop.advance(1)
    assert scene.engine.turns == 3
    scene.loop.advance(1000)
    assert scene.engine.turns == 3


def test_much_waiting_commits_at_once(scene):
    scene.engine.unsynced_messages = 200
    scene.turns.request()
    scene.loop.run()
    assert scene.commits.under_way


def test_many_bytes_commit_at_once(scene):
    scene.engine.unsynced_messages = 1
    scene.engine.unsynced_bytes = 64 * 1024
    scene.turns.request()
    scene.loop.run()
    assert scene.commits.under_way


def test_little_waiting_lingers_for_company_and_no_longer(scene):
    scene.engine.unsynced_messages = 1
    scene.turns.request()
    scene.loop.run()
    assert not scene.commits.under_way
    scene.loop.advance(1)
    assert scene.commits.under_way


def test_the_linger_counts_from_the_first_waiter(engine, loop, clock):
    scene = Scene(engine, loop, clock, commit_linger_ms=3)
    engine.unsynced_messages = 1
    scene.turns.request()
    loop.run()
    loop.advance(2)
    engine.unsynced_messages = 2
    scene.turns.request()
    loop.run()
    assert not scene.commits.under_way
    loop.advance(1)
    assert scene.commits.under_way


def test_company_that_makes_it_much_ends_the_linger(scene):
    scene.engine.unsynced_messages = 1
    scene.turns.request()
    scene.loop.run()
    scene.engine.unsynced_messages = 500
    scene.turns.request()
    scene.loop.run()
    assert len(scene.commits.under_way) == 1
    scene.loop.advance(5)
    assert scene.engine.jobs == 1


def test_a_definition_never_lingers(scene):
    scene.engine.is_durability_awaited = True
    scene.turns.request()
    scene.loop.run()
    assert scene.commits.under_way


def test_one_sync_is_in_flight_and_its_end_starts_the_next_with_all_that_gathered(scene):
    scene.engine.unsynced_messages = 200
    scene.turns.request()
    scene.loop.run()
    scene.engine.unsynced_messages = 700
    scene.turns.request()
    scene.loop.run()
    assert scene.engine.jobs == 1
    scene.commits.end()
    assert scene.engine.jobs == 2
    assert scene.turns.commit_messages.sum == 900


def test_confirms_are_flushed_as_soon_as_the_sync_returned(scene):
    connection = Connection()
    scene.engine.on_synced = lambda: scene.turns.stir(connection)
    scene.engine.unsynced_messages = 200
    scene.turns.request()
    scene.loop.run()
    scene.commits.end()
    assert connection.flushes == 1
    # They have left: there is nothing that a turn could do for them.
    assert scene.loop.step() == 0


def test_who_is_stirred_by_a_turn_is_looked_at_behind_it_without_another_one(scene):
    connection = Connection()
    scene.engine.on_turn = lambda: scene.turns.stir(connection)
    scene.turns.request()
    scene.loop.run()
    assert scene.engine.turns == 1
    assert connection.flushes == 1


def test_a_commit_that_the_store_wants_later_starts_then_and_not_before(scene):
    scene.engine.unsynced_messages = 100_000
    scene.engine.sync_from_ms = scene.loop.clock.monotonic_ms() + 50
    scene.turns.request()
    scene.loop.run()
    scene.loop.advance(49)
    assert not scene.commits.under_way
    scene.loop.advance(1)
    assert scene.commits.under_way


def test_a_failed_sync_is_told_to_clients_first_and_then_ends_the_process(scene):
    order = []
    connection = Connection(lambda: order.append("refusals written"))
    scene.engine.on_synced = lambda: scene.turns.stir(connection)
    scene.turns._failed = lambda error: order.append(type(error))
    scene.engine.unsynced_messages = 200
    scene.turns.request()
    scene.loop.run()
    scene.commits.end(OSError(5, "Input/output error"))
    assert order == ["refusals written", SyncFailed]
    assert isinstance(scene.engine.synced_jobs[0][1], OSError)


def test_an_exception_of_the_engine_stops_all_turns(scene):
    def explode():
        raise InvariantBroken("two and two are five")

    scene.engine.on_turn = explode
    scene.turns.request()
    scene.loop.run()
    scene.turns.request()
    scene.loop.run()
    assert scene.engine.turns == 1
    assert [type(failure) for failure in scene.failures] == [InvariantBroken]


def test_a_foreign_exception_ends_in_a_sentence(scene):
    scene.engine.on_turn = {}.popitem
    scene.turns.request()
    scene.loop.run()
    assert "KeyError" in str(scene.failures[0])


def test_connections_are_fed_before_the_engines_turn_and_stir_no_second_one(scene):
    order = []
    connection = Connection(on_flush=lambda: order.append("flush"))
    connection.on_feed = lambda: (order.append("feed"), scene.turns.request())
    scene.engine.on_turn = lambda: order.append("turn")
    scene.turns.stir(connection)
    scene.loop.run()
    assert order == ["feed", "turn", "flush"]


def test_a_mistake_found_while_feeding_ends_the_turn_before_the_engine_has_it(scene):
    connection = Connection()
    connection.on_feed = lambda: scene.turns.broken(InvariantBroken("credit is negative"))
    scene.turns.stir(connection)
    scene.loop.run()
    assert scene.engine.turns == 0
    assert len(scene.failures) == 1


def test_at_a_high_rate_a_turn_keeps_its_distance_to_the_last_one(busy):
    before = busy.engine.turns
    for _ in range(3):
        busy.turns.request()
        busy.loop.run()
    busy.loop.advance(2)
    assert busy.engine.turns == before
    assert busy.turns.paced == 1
    busy.loop.advance(1)
    assert busy.engine.turns == before + 1


def test_what_arrives_after_the_pace_does_not_wait_for_the_timer(busy):
    before = busy.engine.turns
    busy.turns.request()
    busy.now_us += PACE_US - 1
    busy.turns.arrived()
    busy.loop.run()
    assert busy.engine.turns == before
    busy.now_us += 1
    busy.turns.arrived()
    busy.turns.arrived()
    busy.loop.run()
    assert busy.engine.turns == before + 1
    busy.loop.advance(5)
    assert busy.engine.turns == before + 1


def test_confirms_leave_while_the_next_turn_keeps_its_distance(busy):
    before = busy.engine.turns
    connection = Connection()
    busy.turns.stir(connection)
    busy.loop.run()
    assert not connection.flushes
    busy.commits.end()
    assert connection.flushes == 1
    assert busy.engine.turns == before


def test_a_turn_with_much_in_it_or_long_after_the_last_does_not_wait(busy):
    before = busy.engine.turns
    busy.engine.unsynced_messages = 200
    busy.turns.request()
    busy.loop.run()
    assert busy.engine.turns == before + 1
    busy.engine.unsynced_messages = 5
    busy.now_us += PACE_US
    busy.turns.request()
    busy.loop.run()
    assert busy.engine.turns == before + 2


def test_at_a_low_rate_turns_come_as_they_are_asked_for(engine, loop, clock):
    scene = Scene(engine, loop, clock, commits=0, is_paced=True)
    for count in (1, 2, 3):
        scene.turns.request()
        loop.run()
        assert engine.turns == count


def test_the_rate_is_known_without_any_commit(engine, loop, clock):
    """With durability ``os`` there are none."""
    scene = Scene(engine, loop, clock, commits=0, is_paced=True)

    def bring():
        engine.appended_messages += 10

    engine.on_turn = bring
    for _ in range(10):
        scene.now_us += PACE_US
        scene.turns.request()
        loop.run()
        loop.advance(1)
    assert engine.turns == 10
    assert not engine.jobs
    scene.turns.request()
    loop.run()
    assert engine.turns == 10
    assert scene.turns.paced == 1
