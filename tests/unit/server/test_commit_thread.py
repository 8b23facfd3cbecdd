"""The commit thread: outcomes reach the loop, errors too, and stop waits for the job."""

import asyncio
import threading

from penstock.server import commit_thread
from penstock.server.commit_thread import CommitThread


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
    monkeypatch.setattr(commit_thread, "HAND_OVER_S", 10)
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
