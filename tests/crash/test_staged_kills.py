"""``kill -9`` of a broker whose sinks put and commit: every row is there exactly once (D19)."""

import random
import threading
import uuid
from collections import Counter

import pyarrow as pa
import pytest

from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import BulkError, Ticket
from penstock.model.queries import CommitBatchRequest
from penstock.model.spark_batch import NO_STAGE, UNREACHABLE, StageCommand, StagedRows
from penstock.testing.running import BrokerProcess

ROWS = 700
PASSING = (UNREACHABLE, NO_STAGE)
"""After these a driver does its batch again; nothing else may happen to an honest one."""


class Driver(threading.Thread):
    """Writes batch after batch, each until it is told that it is committed."""

    def __init__(self, process, sink, seed):
        super().__init__(daemon=True)
        self._process = process
        self._sink = sink
        self._rng = random.Random(seed)
        self.batch = 0
        self.replays = 0
        self.problem = None
        self.is_over = False

    def run(self):
        while not self.is_over:
            try:
                self._write()
            except BulkError as problem:
                if problem.kind not in PASSING:
                    self.problem = problem
                    return
            except OSError:  # no broker, so no address
                continue

    def _write(self):
        rows = [f"{self._sink}:{self.batch}:{number}".encode() for number in range(ROWS)]
        host, port = self._process.address("flight")
        stages = []
        with BulkClient(f"{host}:{port}", patience_s=3) as client:
            for partition, share in enumerate((rows[:300], rows[300:])):
                command = StageCommand(
                    sink=self._sink, query="q", batch=self.batch, stage=uuid.uuid4().hex,
                    partition=partition, topic="out",
                )  # fmt: skip
                receipt = client.put_stage(command, [pa.record_batch({"body": share})])
                if self._rng.random() < 0.2:
                    # A task that was tried again: only one of the two is named.
                    again = StageCommand(
                        sink=self._sink, query="q", batch=self.batch, stage=uuid.uuid4().hex,
                        partition=partition, topic="out",
                    )  # fmt: skip
                    receipt = client.put_stage(again, [pa.record_batch({"body": share})])
                stages.append(StagedRows(name=receipt.name, rows=receipt.rows))
            request = CommitBatchRequest(
                sink=self._sink, query="q", batch=self.batch, stages=stages, checkpoint="c"
            )
            answer = client.commit_batch(request, patience_s=20)
        assert answer.rows == ROWS
        self.replays += answer.is_replay
        self.batch += 1


@pytest.mark.timeout(600)
def test_every_row_is_there_once_however_often_the_broker_is_killed(tmp_path, request):
    rounds = 30 if request.config.getoption("--long") else 4
    rng = random.Random(7)
    with BrokerProcess(tmp_path / "data", flags=("--flight", "0")) as process:
        drivers = [Driver(process, f"sink{number}", number) for number in range(2)]
        for driver in drivers:
            driver.start()
        for _ in range(rounds):
            before = sum(driver.batch for driver in drivers)
            pause = threading.Event()
            while sum(driver.batch for driver in drivers) < before + 3:
                assert not any(driver.problem for driver in drivers)
                pause.wait(0.01)
            pause.wait(rng.uniform(0, 0.15))
            process.kill()
            process.start()
        for driver in drivers:
            driver.is_over = True
        for driver in drivers:
            driver.join(60)
            assert driver.problem is None
        host, port = process.address("flight")
        with BulkClient(f"{host}:{port}", patience_s=30) as client:
            found = Counter(bodies(client))
            last = {each: client.sink_state(each, "q").batch for each in ("sink0", "sink1")}
    for driver in drivers:
        batches = last[driver._sink] + 1
        # The last one may have been committed by a broker that did not live to say so.
        assert batches in (driver.batch, driver.batch + 1)
        for batch in range(batches):
            for number in range(ROWS):
                assert found.pop(f"{driver._sink}:{batch}:{number}".encode(), 0) == 1
    assert not found


def bodies(client):
    for queue in client.resolve(["out"]).topics[0].queues:
        ticket = Ticket(topic="out", queue=queue.queue, start=0, end=queue.end, check=True)
        for batch in client.read(ticket):
            yield from batch.column("body").to_pylist()
