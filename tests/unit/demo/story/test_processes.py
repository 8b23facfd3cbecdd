"""Spark's process as the story sees it, with another program in its place."""

import sys
import textwrap

import pytest

from penstock.demo.story import QUERIES, processes
from penstock.demo.story.processes import Amount, Batch, Job, row_seconds, set_row_seconds

ENDED_S_MAX = 20


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A job that runs a program of the test's own instead of the pipeline."""
    running = []

    def start(program):
        script = tmp_path / "program"
        script.write_text(f"#!{sys.executable}\n" + textwrap.dedent(program))
        script.chmod(0o755)
        monkeypatch.setattr(processes.sys, "executable", str(script))
        job = Job(tmp_path / "story")
        (tmp_path / "story").mkdir()
        job.open("127.0.0.1:1", 2.0)
        running.append(job)
        return job

    yield start
    for job in running:
        job.close()


def test_a_job_tells_its_batches_and_ends_when_it_is_drained(started):
    job = started(
        """
        import json, sys
        for query in ("rows", "sums"):
            print(json.dumps({"state": "running", "query": query, "batch": 0, "rows": 5, "ms": 9}))
        print("not for us", flush=True)
        sys.stdin.readline() == "drain\\n" and print(json.dumps({"state": "drained"}))
        """
    )
    job.drain()
    job._reader.join(ENDED_S_MAX)
    assert job.is_over
    assert job.state == "drained"
    assert [(each.query, each.rows) for each in job.batches] == [("rows", 5), ("sums", 5)]


def test_a_job_that_dies_has_failed_and_its_last_words_are_kept(started):
    job = started("import sys; sys.exit('no room for Java')")
    job._reader.join(ENDED_S_MAX)
    assert job.state == "failed"
    assert "no room for Java" in job.why()


def test_a_job_that_does_not_end_is_ended(started, monkeypatch):
    monkeypatch.setattr(processes, "END_S_MAX", 0.2)
    job = started("import time; time.sleep(600)")
    job.close()
    assert job.state == "failed"


def test_a_job_is_running_once_every_query_had_a_batch(tmp_path):
    job = Job(tmp_path)
    for query in QUERIES:
        assert not job.is_running
        job._note({"state": "running", "query": query, "batch": 0, "rows": 1, "ms": 1})
    assert job.is_running


def test_a_job_that_never_started_can_be_drained_and_closed(tmp_path):
    job = Job(tmp_path)
    job.drain()
    job.close()
    assert job.why() == "it said nothing"


def test_the_last_batch_of_a_query_is_the_highest_number_that_was_told(tmp_path):
    job = Job(tmp_path)
    assert job.last_batch("rows") == -1
    job.batches += [Batch("rows", 3, 10, 5), Batch("sums", 7, 10, 5), Batch("rows", 4, 0, 5)]
    assert job.last_batch("rows") == 4


# ---- slowness -----------------------------------------------------------------------------------


def test_a_row_costs_what_the_file_says_and_nothing_without_one(tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(processes.time, "sleep", slept.append)
    monkeypatch.setattr(processes, "LOOK_S", -1)
    amount = Amount(str(tmp_path / "slow"))
    assert amount(250, 4) == 1000
    set_row_seconds(tmp_path / "slow", 0.5)
    amount(1, 1)
    set_row_seconds(tmp_path / "slow", 0)
    amount(1, 1)
    assert slept == [0.5]


def test_the_file_is_looked_at_now_and_then_only(tmp_path):
    path = tmp_path / "slow"
    set_row_seconds(path, 0.25)
    assert row_seconds(str(path)) == 0.25
    set_row_seconds(path, 0.5)
    assert row_seconds(str(path)) == 0.25


def test_a_file_with_something_else_in_it_costs_nothing(tmp_path):
    (tmp_path / "slow").write_text("soon")
    assert row_seconds(str(tmp_path / "slow")) == 0
