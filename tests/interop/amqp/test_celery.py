"""celery: a worker process and a caller; results by rpc, retries, priorities, remote control."""

import os
import runpy
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from penstock.testing.running import eventually

WORKER = Path(__file__).with_name("celery_worker.py")
SECONDS_MAX = 30
application = runpy.run_path(str(WORKER))["application"]


@pytest.fixture(scope="module")
def queue():
    return f"celery-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def app(url, queue):
    with application(url, queue) as app:
        yield app


@pytest.fixture(scope="module")
def worker(app, url, queue, tmp_path_factory):
    said = tmp_path_factory.mktemp("celery") / "output"
    environment = {**os.environ, "BROKER_URL": url, "PYTHONWARNINGS": "ignore"}
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), queue], env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, cwd=said.parent,
        )  # fmt: skip
    try:
        yield process
        assert process.poll() is None, said.read_text()
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)


def test_priorities_are_kept_while_nobody_works(app, queue):
    """Before the worker is there: what waits is sorted by the broker."""
    app.tasks["add"].apply_async((1, 1), priority=0)
    urgent = app.tasks["add"].apply_async((2, 2), priority=5)
    with app.connection_for_read() as connection, connection.channel() as channel:
        declared = channel.queue_declare(queue, passive=True)
        assert declared.message_count == 2
        first = channel.basic_get(queue)
        assert first.properties["correlation_id"] == urgent.id
        assert first.properties["priority"] == 5
        channel.basic_reject(first.delivery_tag, requeue=True)


def test_tasks_answer(app, worker):
    results = [app.tasks["add"].delay(number, 1) for number in range(30)]
    assert [each.get(timeout=SECONDS_MAX) for each in results] == list(range(1, 31))


def test_an_error_is_raised_where_the_result_is_asked_for(app, worker):
    with pytest.raises(LookupError, match="nothing there"):
        app.tasks["broken"].delay().get(timeout=SECONDS_MAX)


def test_a_task_is_tried_again_until_it_succeeds(app, worker):
    assert app.tasks["shaky"].delay(2).get(timeout=SECONDS_MAX) == 2


def test_a_countdown_waits_in_the_worker(app, worker):
    """An ETA makes the worker raise its prefetch while it holds the message back."""
    results = [app.tasks["add"].apply_async((1, 2), countdown=0.3) for _ in range(3)]
    assert [each.get(timeout=SECONDS_MAX) for each in results] == [3, 3, 3]


def test_workers_are_found_and_asked(app, worker, queue):
    control = app.control
    found = eventually(lambda: control.ping(timeout=1), SECONDS_MAX, "pong")
    assert any("ok" in answer for each in found for answer in each.values())
    (queues,) = control.inspect(timeout=1, limit=1).active_queues().values()
    assert [each["name"] for each in queues] == [queue]
