"""Turns: coalesced on the loop, one commit beside them, a failed sync told and final."""

import asyncio
import threading

import pytest

from kit.turn_scene import CountingConnection, TurnScene
from penstock.model.errors import InvariantBroken, SyncFailed
from penstock.server import turns
from penstock.server.pacing import PACE_MAX_US
from penstock.server.turns import CommitThread


@pytest.fixture
def scene(engine, loop, clock):
    return TurnScene(engine, loop, clock)


def test_many_requests_in_one_iteration_are_one_turn(scene):
    for _ in range(10):
        scene.turns.request_turn()
    scene.loop.run()
    assert scene.engine.turns == 1


def test_a_turn_that_leaves_work_lets_the_loop_poll_before_the_next(scene):
    scene.engine.needs_turn = True
    scene.turns.request_turn()
    scene.loop.step()
    assert scene.engine.turns == 1
    scene.engine.needs_turn = False
    scene.loop.step()
    assert scene.engine.turns == 2
    assert scene.loop.step() == 0


def test_a_stirred_connection_is_flushed_once_after_the_turn(scene):
    order = []
    connection = CountingConnection(lambda: order.append("flush"))
    scene.engine.on_turn = lambda: order.append("turn")
    scene.turns.schedule(connection)
    scene.loop.run()
    assert order == ["turn", "flush"]


def test_a_connection_stirred_while_being_flushed_is_looked_at_in_a_turn_of_its_own(scene):
    second = CountingConnection()
    scene.turns.schedule(CountingConnection(lambda: scene.turns.schedule(second)))
    scene.loop.step()
    assert second.flushes == 0
    scene.loop.step()
    assert second.flushes == 1


def test_the_timer_follows_the_engines_deadline_and_moves_only_forward_in_haste(scene):
    scene.engine.deadline_ms = scene.loop.clock.monotonic_ms() + 500
    scene.turns.request_turn()
    scene.loop.run()
    scene.engine.deadline_ms -= 400
    scene.turns.request_turn()
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
    scene.turns.request_turn()
    scene.loop.run()
    assert scene.commits.under_way


def test_many_bytes_commit_at_once(scene):
    scene.engine.unsynced_messages = 1
    scene.engine.unsynced_bytes = 64 * 1024
    scene.turns.request_turn()
    scene.loop.run()
    assert scene.commits.under_way


def test_little_waiting_lingers_for_company_and_no_longer(scene):
    scene.engine.unsynced_messages = 1
    scene.turns.request_turn()
    scene.loop.run()
    assert not scene.commits.under_way
    scene.loop.advance(1)
    assert scene.commits.under_way


def test_the_linger_counts_from_the_first_waiter(engine, loop, clock):
    scene = TurnScene(engine, loop, clock, commit_linger_ms=3)
    engine.unsynced_messages = 1
    scene.turns.request_turn()
    loop.run()
    loop.advance(2)
    engine.unsynced_messages = 2
    scene.turns.request_turn()
    loop.run()
    assert not scene.commits.under_way
    loop.advance(1)
    assert scene.commits.under_way


def test_company_that_makes_it_much_ends_the_linger(scene):
    scene.engine.unsynced_messages = 1
    scene.turns.request_turn()
    scene.loop.run()
    scene.engine.unsynced_messages = 500
    scene.turns.request_turn()
    scene.loop.run()
    assert len(scene.commits.under_way) == 1
    scene.loop.advance(5)
    assert scene.engine.jobs == 1


def test_a_definition_never_lingers(scene):
    scene.engine.is_durability_awaited = True
    scene.turns.request_turn()
    scene.loop.run()
    assert scene.commits.under_way


def test_one_sync_is_in_flight_and_its_end_starts_the_next_with_all_that_gathered(scene):
    scene.engine.unsynced_messages = 200
    scene.turns.request_turn()
    scene.loop.run()
    scene.engine.unsynced_messages = 700
    scene.turns.request_turn()
    scene.loop.run()
    assert scene.engine.jobs == 1
    scene.commits.end()
    assert scene.engine.jobs == 2
    assert scene.turns.commit_messages.sum == 900


def test_confirms_are_flushed_as_soon_as_the_sync_returned(scene):
    connection = CountingConnection()
    scene.engine.on_synced = lambda: scene.turns.schedule(connection)
    scene.engine.unsynced_messages = 200
    scene.turns.request_turn()
    scene.loop.run()
    scene.commits.end()
    assert connection.flushes == 1
    # They have left: there is nothing that a turn could do for them.
    assert scene.loop.step() == 0


def test_who_is_stirred_by_a_turn_is_looked_at_behind_it_without_another_one(scene):
    connection = CountingConnection()
    scene.engine.on_turn = lambda: scene.turns.schedule(connection)
    scene.turns.request_turn()
    scene.loop.run()
    assert scene.engine.turns == 1
    assert connection.flushes == 1


def test_a_commit_that_the_store_wants_later_starts_then_and_not_before(scene):
    scene.engine.unsynced_messages = 100_000
    scene.engine.sync_from_ms = scene.loop.clock.monotonic_ms() + 50
    scene.turns.request_turn()
    scene.loop.run()
    scene.loop.advance(49)
    assert not scene.commits.under_way
    scene.loop.advance(1)
    assert scene.commits.under_way


def test_a_failed_sync_is_told_to_clients_first_and_then_ends_the_process(scene):
    order = []
    connection = CountingConnection(lambda: order.append("refusals written"))
    scene.engine.on_synced = lambda: scene.turns.schedule(connection)
    scene.turns._failed = lambda error: order.append(type(error))
    scene.engine.unsynced_messages = 200
    scene.turns.request_turn()
    scene.loop.run()
    scene.commits.end(OSError(5, "Input/output error"))
    assert order == ["refusals written", SyncFailed]
    assert isinstance(scene.engine.synced_jobs[0][1], OSError)


def test_an_exception_of_the_engine_stops_all_turns(scene):
    def explode():
        raise InvariantBroken("two and two are five")

    scene.engine.on_turn = explode
    scene.turns.request_turn()
    scene.loop.run()
    scene.turns.request_turn()
    scene.loop.run()
    assert scene.engine.turns == 1
    assert [type(failure) for failure in scene.failures] == [InvariantBroken]


def test_a_foreign_exception_ends_in_a_sentence(scene):
    scene.engine.on_turn = {}.popitem
    scene.turns.request_turn()
    scene.loop.run()
    assert "KeyError" in str(scene.failures[0])


def test_connections_are_fed_before_the_engines_turn_and_stir_no_second_one(scene):
    order = []
    connection = CountingConnection(on_flush=lambda: order.append("flush"))
    connection.on_feed = lambda: (order.append("feed"), scene.turns.request_turn())
    scene.engine.on_turn = lambda: order.append("turn")
    scene.turns.schedule(connection)
    scene.loop.run()
    assert order == ["feed", "turn", "flush"]


def test_a_mistake_found_while_feeding_ends_the_turn_before_the_engine_has_it(scene):
    connection = CountingConnection()
    connection.on_feed = lambda: scene.turns.broken(InvariantBroken("credit is negative"))
    scene.turns.schedule(connection)
    scene.loop.run()
    assert scene.engine.turns == 0
    assert len(scene.failures) == 1


# ---- commit thread ------------------------------------------------------------------------------
# The commit thread: outcomes reach the loop, errors too, and stop waits for the job.


class Job:
    def __init__(self, error=None):
        self.error = error
        self.thread = None

    def run(self):
        self.thread = threading.get_ident()
        if self.error is not None:
            raise self.error


def run_jobs(jobs, before=None):
    async def scene():
        loop = asyncio.get_running_loop()
        outcomes = []
        done = asyncio.Event()

        def ended(outcome):
            outcomes.append(outcome)
            if len(outcomes) < len(jobs):
                thread.submit(jobs[len(outcomes)])
            else:
                done.set()

        thread = CommitThread(loop, ended, before)
        thread.start()
        thread.submit(jobs[0])
        await asyncio.wait_for(done.wait(), 10)
        assert thread.stop(10)
        return outcomes

    return asyncio.run(scene())


def test_jobs_run_one_after_the_other_in_one_other_thread():
    jobs = [Job(), Job(), Job()]
    outcomes = run_jobs(jobs)
    assert [outcome.job for outcome in outcomes] == jobs
    assert len({job.thread for job in jobs}) == 1
    assert jobs[0].thread != threading.get_ident()


def test_the_loop_gives_way_until_the_thread_has_taken_the_job(monkeypatch):
    monkeypatch.setattr(turns, "HAND_OVER_S", 10)
    go_on = threading.Event()

    async def scene():
        ended = asyncio.Event()
        thread = CommitThread(asyncio.get_running_loop(), lambda _: ended.set(), go_on.wait)
        thread.start()
        for _ in range(3):
            ended.clear()
            thread.submit(Job(), gives_way=True)
            assert thread._jobs.empty()
            assert not ended.is_set(), "it waits for the taking, not for the disk"
            go_on.set()
            await asyncio.wait_for(ended.wait(), 10)
            go_on.clear()
        assert thread.stop(10)

    asyncio.run(scene())


def test_a_thread_that_does_not_come_is_not_waited_for_and_takes_the_job_later():
    async def scene():
        ended = asyncio.Event()
        thread = CommitThread(asyncio.get_running_loop(), lambda _: ended.set())
        thread.submit(Job(), gives_way=True)
        thread.start()
        await asyncio.wait_for(ended.wait(), 10)
        ended.clear()
        thread.submit(Job(), gives_way=True)
        await asyncio.wait_for(ended.wait(), 10)
        assert thread.stop(10)

    asyncio.run(scene())


def test_an_error_of_the_disk_comes_back_as_a_value():
    error = OSError(5, "Input/output error")
    assert run_jobs([Job(error)])[0].error is error


def test_a_fault_on_purpose_acts_before_the_disk():
    order = []
    job = Job()
    job.run = lambda: order.append("disk")
    run_jobs([job], before=lambda: order.append("fault"))
    assert order == ["fault", "disk"]


# ---- turns and syncs that keep their distance ---------------------------------------------------


@pytest.fixture
def busy(engine, loop, clock):
    """Much comes in small pieces, a sync is out, and the turn before it has just begun."""
    scene = TurnScene(engine, loop, clock, is_paced=True)
    engine.unsynced_messages, engine.unsynced_bytes = 200, 40_000
    scene.turns.request_turn()
    loop.step()
    assert scene.commits.under_way
    engine.unsynced_messages = 5
    return scene


def test_at_a_high_rate_a_turn_keeps_its_distance_to_the_last_one(busy):
    before = busy.engine.turns
    for _ in range(3):
        busy.turns.request_turn()
        busy.loop.run()
    busy.loop.advance(1)
    assert busy.engine.turns == before
    assert busy.turns.turns_delayed == 1
    busy.loop.advance(1)
    assert busy.engine.turns == before + 1


def test_what_arrives_after_the_pace_does_not_wait_for_the_timer(busy):
    before = busy.engine.turns
    busy.turns.request_turn()
    busy.now_us += PACE_MAX_US - 1
    busy.turns.data_arrived()
    busy.loop.run()
    assert busy.engine.turns == before
    busy.now_us += 1
    busy.turns.data_arrived()
    busy.turns.data_arrived()
    busy.loop.run()
    assert busy.engine.turns == before + 1
    busy.loop.advance(5)
    assert busy.engine.turns == before + 1


def test_confirms_leave_while_the_next_turn_keeps_its_distance(busy):
    before = busy.engine.turns
    connection = CountingConnection()
    busy.turns.schedule(connection)
    busy.loop.run()
    assert not connection.flushes
    busy.commits.end()
    assert connection.flushes == 1
    assert busy.engine.turns == before


def test_a_turn_with_much_in_it_or_long_after_the_last_does_not_wait(busy):
    before = busy.engine.turns
    busy.engine.unsynced_messages = 200
    busy.turns.request_turn()
    busy.loop.run()
    assert busy.engine.turns == before + 1
    busy.engine.unsynced_messages = 5
    busy.now_us += PACE_MAX_US
    busy.turns.request_turn()
    busy.loop.run()
    assert busy.engine.turns == before + 2


def test_at_a_low_rate_turns_come_as_they_are_asked_for(engine, loop, clock):
    scene = TurnScene(engine, loop, clock, commits=0, is_paced=True)
    for count in (1, 2, 3):
        scene.turns.request_turn()
        loop.run()
        assert engine.turns == count


def test_the_rate_is_known_without_any_commit(engine, loop, clock):
    """With durability ``os`` there are none."""
    scene = TurnScene(engine, loop, clock, commits=0, is_paced=True)

    def bring():
        engine.appended_messages += 10

    engine.on_turn = bring
    for _ in range(10):
        scene.now_us += PACE_MAX_US
        scene.turns.request_turn()
        loop.run()
        loop.advance(1)
    assert engine.turns == 10
    assert not engine.jobs
    scene.turns.request_turn()
    loop.run()
    assert engine.turns == 10
    assert scene.turns.turns_delayed == 1


@pytest.fixture
def middling(engine, loop, clock):
    """4 messages a millisecond, and a sync that has just come back."""
    scene = TurnScene(engine, loop, clock, each=2, is_paced=True)
    engine.unsynced_messages = 3
    scene.turns.request_turn()
    loop.run()
    scene.commits.end()
    assert engine.jobs == 1
    return scene


def another_turn(scene, after_us):
    scene.engine.unsynced_messages += 3
    scene.now_us += after_us
    scene.turns.request_turn()
    scene.loop.run()


def test_at_a_middling_rate_the_turn_that_finds_the_time_come_begins_the_sync(middling):
    for _ in range(2):
        another_turn(middling, 1_000)
        assert middling.engine.jobs == 1
    another_turn(middling, 1_000)
    assert middling.engine.jobs == 2


def test_when_no_turn_comes_a_timer_begins_the_sync(middling):
    another_turn(middling, 1_000)
    middling.loop.advance(2)
    assert middling.engine.jobs == 1
    middling.loop.advance(1)
    assert middling.engine.jobs == 2


def test_a_definition_and_much_at_once_do_not_keep_the_distance(middling):
    middling.engine.is_durability_awaited = True
    another_turn(middling, 1_000)
    assert middling.engine.jobs == 2
    middling.commits.end()
    middling.engine.is_durability_awaited = False
    middling.engine.unsynced_messages = 500
    another_turn(middling, 1_000)
    assert middling.engine.jobs == 3


def test_at_a_middling_rate_the_loop_gives_way_to_the_sync(middling):
    another_turn(middling, 5_000)
    assert middling.commits.under_way
    assert middling.commits.has_given_way


def test_at_a_high_rate_it_does_not(busy):
    assert not busy.commits.has_given_way
