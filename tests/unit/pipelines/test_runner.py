"""Flows that fail, recover, end and are stopped; time is told, Spark is a fake."""

from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.pipelines.flow_file import parse_pipeline
from penstock.pipelines.runner import (
    GONE,
    NOT_YET_S,
    RESTARTS_MAX,
    RESTARTS_MAX_ONCE,
    START_S,
    STOP_S,
    FlowRun,
    Runner,
    SparkGone,
)
from penstock.pipelines.state import NotYet


class FakeQuery:
    def __init__(self):
        self.batches = []
        self.is_running = True
        self.error = None
        self.stops = 0

    def is_active(self):
        return self.is_running

    def problem(self):
        return self.error

    def progress(self):
        return self.batches[-1:]

    def stop(self):
        self.stops += 1
        self.is_running = False

    def batch(self, number):
        self.batches.append({"batchId": number, "sources": [{}], "timestamp": str(number)})

    def fail(self, text):
        self.is_running, self.error = False, text


class Bench:
    """One flow, and everything around it."""

    def __init__(self, *, is_once=False):
        text = '[flow.x]\nfrom = { topics = "a" }\nto = { topic = "b" }'
        self.now = 0.0
        self.queries = []
        self.refusals = []
        self.is_paused = self.was_told = False
        (flow,) = parse_pipeline(text, path=Path("/p"), environment={}, given={}).flows
        self.run = FlowRun(
            flow,
            self.start,
            self,
            clock=lambda: self.now,
            is_once=is_once,
            redacted=lambda text: text.replace("hunter2", "***"),
        )

    def pause(self):
        self.was_told = True

    def start(self):
        if self.refusals:
            raise self.refusals.pop(0)
        self.queries.append(FakeQuery())
        return self.queries[-1]

    @property
    def query(self):
        return self.queries[-1]

    @property
    def state(self):
        return self.run.figures.state

    def look(self, after=0.0):
        self.now += after
        self.run.look()
        return self.state

    def starts_after(self):
        """Seconds until it is started again."""
        began, count = self.now, len(self.queries)
        while len(self.queries) == count and not self.run.is_over:
            self.look(0.5)
        return self.now - began


@pytest.fixture
def bench():
    made = Bench()
    made.look()
    return made


def test_a_flow_that_fails_is_started_again_ever_later(bench):
    pauses = []
    for _ in range(8):
        bench.query.fail("no broker")
        assert bench.look() == "waiting"
        assert bench.run.figures.line().endswith("no broker")
        pauses.append(bench.starts_after())
        assert not bench.run.figures.line().endswith("no broker")
        bench.look()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert bench.run.figures.restarts == 8
    assert bench.run.figures.text == "no broker"


def test_a_batch_that_is_done_makes_the_next_failure_the_first_again(bench):
    for _ in range(4):
        bench.query.fail("no broker")
        bench.look()
        bench.starts_after()
    bench.query.batch(7)
    assert bench.look() == "idle"
    assert bench.run.figures.text == ""
    bench.query.fail("again")
    bench.look()
    assert bench.starts_after() == 1


def test_after_many_starts_without_a_batch_it_has_failed(bench):
    for _ in range(RESTARTS_MAX):
        bench.query.fail("password hunter2 is wrong")
        bench.look()
        bench.starts_after()
    assert bench.state == "failed"
    assert len(bench.queries) == RESTARTS_MAX
    assert bench.run.figures.text == "password *** is wrong"
    bench.look(1000)
    assert len(bench.queries) == RESTARTS_MAX


def test_what_is_wrong_with_the_flow_itself_is_not_tried_again():
    bench = Bench()
    bench.refusals = [PenstockError("flow 'x': there is no column 'y'")]
    assert bench.look() == "failed"
    assert bench.run.figures.line() == "x: failed, there is no column 'y'"
    assert bench.look(100) == "failed"


@pytest.mark.parametrize(
    "text",
    [
        "queue 0 was deleted and made anew; ... or begin with a new checkpoint",
        "batch 3 of sink 'x' has more than 1.0 GiB of rows (spark.stage_batch_bytes_max): make",
    ],
)
def test_what_somebody_must_decide_is_not_tried_again(bench, text):
    bench.query.fail(text)
    assert bench.look() == "failed"


def test_a_topic_that_is_not_there_yet_is_waited_for_but_not_by_who_runs_once():
    bench = Bench()
    bench.refusals = [NotYet("no topic 'a'")] * 50
    assert bench.look() == "waiting"
    assert bench.run.figures.line() == "x: waiting, no topic 'a'"
    # Whoever makes the topic does not wait for minutes.
    assert bench.starts_after() == 50 * NOT_YET_S
    assert bench.run.figures.line() == "x: starting"
    once = Bench(is_once=True)
    once.refusals = [NotYet("no topic 'a'")] * 50
    once.starts_after()
    assert once.state == "failed"
    assert len(once.refusals) == 50 - RESTARTS_MAX_ONCE


def test_a_machine_that_is_too_busy_to_start_python_is_given_more_time():
    once = Bench(is_once=True)
    for _ in range(RESTARTS_MAX - 1):
        once.starts_after()
        once.look()
        once.query.fail("the worker failed to connect back")
        assert once.look() == "waiting"
    once.starts_after()
    once.query.fail("something else")
    assert once.look() == "failed"


def test_a_query_that_ends_by_itself_is_done():
    bench = Bench(is_once=True)
    bench.look()
    bench.query.batch(0)
    bench.query.is_running = False
    assert bench.look() == "done"
    assert bench.run.figures.batch == 0


def test_to_stop_the_source_is_told_and_the_query_ends_when_it_rests(bench):
    bench.run.stop()
    assert (bench.was_told, bench.look(), bench.query.stops) == (True, "stopping", 0)
    bench.query.batch(1)
    assert bench.look(5) == "stopping"
    bench.is_paused = True
    assert (bench.look(), bench.query.stops) == ("stopped", 1)


def test_a_batch_that_does_not_end_is_stopped_after_its_time(bench):
    bench.run.stop()
    assert bench.look(STOP_S - 1) == "stopping"
    assert bench.look(1) == "stopped"
    assert bench.query.stops == 1


def test_a_flow_that_waits_for_its_next_start_stops_at_once(bench):
    bench.query.fail("x")
    bench.look()
    bench.run.stop()
    assert bench.look() == "stopped"


def test_a_query_that_ends_while_it_is_stopped_is_no_failure(bench):
    bench.run.stop()
    bench.query.fail("stopped on the way")
    assert bench.look() == "stopped"


def test_without_spark_a_flow_fails_at_once_and_one_that_is_stopped_is_stopped():
    def gone():
        raise SparkGone("connection refused")

    for is_stopping, state in ((False, "failed"), (True, "stopped")):
        each = Bench()
        each.run.look()
        each.queries[-1].is_active = gone
        if is_stopping:
            each.run.stop()
        each.run.look()
        assert (each.run.figures.state, each.run.figures.text) == (state, GONE)
    never_began = Bench()
    never_began.refusals.append(SparkGone("connection refused"))
    assert never_began.look() == "failed"


def test_one_flow_that_failed_does_not_end_the_others():
    one, other = Bench(), Bench()
    one.refusals = [PenstockError("no")]
    runner = Runner([one.run, other.run])
    assert runner.look()
    assert [each.state for each in runner.figures] == ["failed", "starting"]
    other.query.is_running = False
    assert not runner.look()
    assert runner.has_failed
    third = Bench()
    runner = Runner([third.run])
    runner.look()
    runner.stop()
    third.is_paused = True
    runner.stop()
    assert not runner.look()
    assert not runner.has_failed


def test_flows_are_started_a_few_at_a_time():
    benches = [Bench() for _ in range(4)]
    runner = Runner([each.run for each in benches])
    runner.look()
    assert [len(each.queries) for each in benches] == [1, 1, 0, 0]
    runner.look()
    assert [len(each.queries) for each in benches] == [1, 1, 0, 0]
    benches[0].query.batch(0)
    runner.look()
    runner.look()
    assert [len(each.queries) for each in benches] == [1, 1, 1, 0]
    benches[1].now = benches[2].now = START_S
    runner.look()
    assert [len(each.queries) for each in benches] == [1, 1, 1, 1]
