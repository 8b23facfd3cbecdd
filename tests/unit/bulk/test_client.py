"""The client's side of staged writes: what goes over Flight, and what a break does to it."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.bulk.client import BulkClient
from penstock.bulk.link import Problem
from penstock.bulk.tickets import BulkError
from penstock.model.queries import CommitBatchRequest, CommitBatchResponse
from penstock.model.spark_batch import HELD, UNREACHABLE, StageCommand, StageEnd, StageReceipt

BATCH = pa.record_batch({"body": [b"one", b"two"]})
COMMAND = StageCommand(sink="out", query="q", batch=7, stage="abc", partition=3, topic="orders")


class _Server(flight.FlightServerBase):
    """Takes puts as the Flight process does, and answers commits with what it is given."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.commands: list[StageCommand] = []
        self.rows: list[int] = []
        self.ends: list[int] = []
        self.breaks = 0
        """Puts that break after their first batch."""
        self.answers: list[CommitBatchResponse] = []
        self.asked: list[CommitBatchRequest] = []

    def do_put(self, _context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self.commands.append(msgspec.json.decode(descriptor.command, type=StageCommand))
        rows, end = 0, -1
        for chunk in reader:
            if chunk.data is None:
                end = msgspec.json.decode(chunk.app_metadata.to_pybytes(), type=StageEnd).rows
            else:
                rows += chunk.data.num_rows
            if self.breaks:
                self.breaks -= 1
                raise flight.FlightUnavailableError("gone for a moment")
        self.rows.append(rows)
        self.ends.append(end)
        receipt = StageReceipt(name=self.commands[-1].name, rows=rows, bytes=9, crc=1)
        writer.write(pa.py_buffer(msgspec.json.encode(receipt)))

    def do_action(self, _context: Any, action: Any) -> Any:
        asked = msgspec.json.decode(action.body.to_pybytes(), type=CommitBatchRequest)
        self.asked.append(asked)
        if not self.answers:
            problem = Problem(kind="no-stage", text="nothing is staged")
            raise flight.FlightServerError("x", extra_info=msgspec.json.encode(problem))
        return iter([flight.Result(msgspec.json.encode(self.answers.pop(0)))])


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as made:
        yield made


@pytest.fixture
def client(server: _Server) -> BulkClient:
    return BulkClient(f"127.0.0.1:{server.port}", patience_s=5)


def test_a_put_says_whose_rows_they_are_and_brings_its_receipt(
    server: _Server, client: BulkClient
) -> None:
    receipt = client.put_stage(COMMAND, iter([BATCH, BATCH]))

    assert receipt == StageReceipt(name="3.abc", rows=4, bytes=9, crc=1)
    assert server.commands == [COMMAND]
    assert server.rows == server.ends == [4]


def test_a_put_without_rows_asks_nobody(server: _Server, client: BulkClient) -> None:
    assert client.put_stage(COMMAND, iter([])) == StageReceipt(name="3.abc", rows=0)
    assert server.commands == []


def test_a_put_that_breaks_before_its_second_batch_is_tried_again(
    server: _Server, client: BulkClient
) -> None:
    server.breaks = 1

    assert client.put_stage(COMMAND, iter([BATCH])).rows == 2
    assert server.rows == [2]


def test_a_put_that_breaks_later_is_left_to_whoever_has_the_rows(
    server: _Server, client: BulkClient
) -> None:
    server.breaks = 1

    with pytest.raises(BulkError) as caught:
        client.put_stage(COMMAND, (BATCH for _ in range(10_000)))
    assert caught.value.kind == UNREACHABLE


def test_rows_whose_source_fails_have_no_end(server: _Server, client: BulkClient) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        client.put_stage(COMMAND, rows())
    assert server.ends == [-1]


def test_a_commit_that_is_held_is_asked_for_again(server: _Server, client: BulkClient) -> None:
    server.answers = [CommitBatchResponse(held="topic is full"), CommitBatchResponse(rows=4)]

    answer = client.commit_batch(CommitBatchRequest(sink="out", query="q", batch=7))

    assert answer.rows == 4
    assert [each.wait_ms > 0 for each in server.asked] == [True, True]


def test_a_commit_that_is_held_for_too_long_says_for_what(
    server: _Server, client: BulkClient
) -> None:
    server.answers = [CommitBatchResponse(held="topic 'orders' is full")]

    with pytest.raises(BulkError, match="topic 'orders' is full") as caught:
        client.commit_batch(CommitBatchRequest(sink="out", query="q", batch=7), patience_s=0)
    assert caught.value.kind == HELD


def test_a_refused_commit_is_an_error_with_the_brokers_words(client: BulkClient) -> None:
    with pytest.raises(BulkError, match="nothing is staged") as caught:
        client.commit_batch(CommitBatchRequest(sink="out", query="q", batch=7))
    assert caught.value.kind == "no-stage"
