"""Requests of protocols that fail fast: run, refused for age, or drained by a busy store."""

import pytest

from kit.workbench import Workbench
from penstock.engine.request_queue import EXTRA_WORK_MAX
from penstock.flow.fast_fail import BusyCause
from penstock.flow.reason import Culprit

KIB = 1024


@pytest.fixture
def bench():
    return Workbench()


class Recorder:
    publisher = Culprit("c1", "connection/1")

    def __init__(self):
        self.ran = 0
        self.refused = []

    def run(self):
        self.ran += 1

    def refuse(self, busy):
        self.refused.append(busy)


def test_a_request_runs_at_once_while_the_log_takes_what_it_gets(bench):
    request = Recorder()
    bench.engine.request_queue.submit("send", "orders", request)
    assert request.ran == 1


def test_a_waiting_request_runs_when_the_sync_returned(bench):
    job = held_log(bench)
    send, ack = Recorder(), Recorder()
    bench.engine.request_queue.submit("send", "orders", send)
    bench.engine.request_queue.submit("ack", "orders", ack)
    bench.turns()
    assert (send.ran, ack.ran) == (0, 1)
    bench.finish(job)
    bench.turns()
    assert send.ran == 1


def test_a_request_that_waited_too_long_is_refused_with_its_numbers(bench):
    held_log(bench)
    request = Recorder()
    bench.engine.request_queue.submit("send", "orders", request)
    bench.advance(199)
    assert request.refused == []
    bench.advance(1)
    (busy,) = request.refused
    assert (busy.cause, busy.waited_ms, busy.queued) == (BusyCause.AGE, 200, 1)
    assert request.ran == 0


def test_a_busy_store_drains_the_sends_that_wait(bench):
    held_log(bench)
    bench.clock.advance(bench.settings.flow.store_busy_ms - 150)
    request = Recorder()
    bench.engine.request_queue.submit("send", "orders", request)
    bench.advance(100)
    (busy,) = request.refused
    assert busy.cause is BusyCause.STORE


class Laborious(Recorder):
    """A request that makes work beyond the usual, as one that brings a new selector."""

    def __init__(self, queue, steps):
        super().__init__()
        self.queue, self.steps = queue, steps

    def run(self):
        super().run()
        self.queue.charge(self.steps)


def test_requests_that_make_work_are_spread_over_turns_and_hold_up_their_own_class_only(bench):
    queue = bench.engine.request_queue
    pulls = [Laborious(queue, EXTRA_WORK_MAX) for _ in range(5)]
    for number, pull in enumerate(pulls):
        queue.submit("pull", f"t{number}", pull)
    send = Recorder()
    queue.submit("send", "orders", send)
    assert ([each.ran for each in pulls], send.ran) == ([1, 0, 0, 0, 0], 1)
    bench.engine.turn()  # what was run as it arrived counts in this one
    for done in (1, 2, 3, 4, 5):
        assert sum(each.ran for each in pulls) == done
        assert bench.engine.needs_turn == (done < 5)
        bench.engine.turn()
    assert not any(each.refused for each in pulls)


def test_little_work_holds_nobody_up(bench):
    queue = bench.engine.request_queue
    pulls = [Laborious(queue, 5) for _ in range(40)]
    for pull in pulls:
        queue.submit("pull", "orders", pull)
    assert all(each.ran for each in pulls)


def held_log(bench):
    topic = bench.topic()
    bench.publish(bench.channel(), topic, b"a")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(bench.settings.storage.sync_hold_ms + 1)
    return job
