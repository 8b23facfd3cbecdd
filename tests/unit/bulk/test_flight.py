"""The Flight server over a real data directory and a broker that is only a socket."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from kit.bulk_data import BulkData
from penstock.bulk import rows as client_module
from penstock.bulk.broker import BrokerClient
from penstock.bulk.client import BulkClient
from penstock.bulk.link import SOCKET_NAME, Problem
from penstock.bulk.rows import FLIGHT_OPTIONS
from penstock.bulk.tickets import BulkError, RowFilter, Summary, Ticket
from penstock.model.queries import LeaseRequest, PollRequest, ResolveRequest
from penstock.model.record import neutral_record
from penstock.model.spark_batch import BatchProgress

COUNT = 1000


@pytest.fixture
def directory(tmp_path):
    data = BulkData(tmp_path / "data")
    queues = data.topic("orders", 2)
    for at in range(0, COUNT, 100):
        made = [
            neutral_record(b"%d" % n, tag=b"odd" if n % 2 else b"") for n in range(at, at + 100)
        ]
        data.append(*((record, (queues[n % 2],)) for n, record in enumerate(made)))
    data.close()
    return tmp_path / "data"


@pytest.fixture
def served(serve, directory):
    return serve(directory)


@pytest.fixture
def client(served):
    with BulkClient(f"127.0.0.1:{served[1].port}", patience_s=5) as made:
        yield made


@pytest.fixture
def plain(served):
    """What somebody has who knows nothing of ours."""
    location = f"grpc://127.0.0.1:{served[1].port}"
    with flight.connect(location, generic_options=FLIGHT_OPTIONS) as made:
        yield made


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def ticket(**fields):
    return Ticket(**({"topic": "orders", "queue": 0, "start": 0, "end": 500} | fields))


def test_a_ticket_gives_its_rows_over_the_wire(client):
    batches = list(client.read(ticket(start=10, rows_per_batch=200)))

    assert [batch.num_rows for batch in batches] == [200, 200, 90]
    table = pa.Table.from_batches(batches)
    assert table["offset"].to_pylist() == list(range(10, 500))
    assert table["body"].to_pylist() == [b"%d" % (2 * n) for n in range(10, 500)]
    assert client.summary == Summary(
        next_offset=500, rows=490, read=490, bytes=client.summary.bytes
    )


def test_a_filter_is_evaluated_on_the_servers_side(client):
    wanted = RowFilter("tag", "odd")

    assert sum(b.num_rows for b in client.read(ticket(queue=1, filter=wanted))) == 500
    assert list(client.read(ticket(queue=0, filter=wanted))) == []
    assert (client.summary.read, client.summary.rows) == (500, 0)


def test_questions_reach_the_broker_and_their_answers_come_back(client, served):
    broker = served[0]
    assert [q.end for q in client.resolve(["orders"]).topics[0].queues] == [500, 500]
    assert client.by_time("orders", 0) == {"orders": {0: 0, 1: 0}}
    assert client.lease(LeaseRequest(subscription="s", ttl_ms=5)).ttl_ms == 5
    client.report("s", BatchProgress(rows=3), state="idle")
    client.release("s")
    polled = client.poll(PollRequest(subscription="s", start={"orders": {0: 3}}, wait_ms=20))

    assert polled.ends == {"orders": {0: 3}}
    names = [type(question).__name__ for question in broker.asked]
    assert names == [
        "ResolveRequest",
        "OffsetsByTimeRequest",
        "LeaseRequest",
        "ReportRequest",
        "ReleaseRequest",
        "PollRequest",
    ]
    assert broker.asked[3].progress.rows == 3


def test_polls_and_leases_tell_the_broker_who_asks_whatever_the_client_says(client, served):
    client.lease(LeaseRequest(subscription="s", maker="another"))
    client.poll(PollRequest(subscription="s", start={"orders": {0: 3}}, maker="another"))

    makers = {question.maker for question in served[0].asked}
    assert len(makers) == 1
    assert makers.pop().startswith("127.0.0.1:")


def test_the_brokers_words_reach_the_client(client):
    with pytest.raises(BulkError, match="there is no topic 'nothing'") as caught:
        client.resolve(["nothing"])
    assert caught.value.kind == "no-topic"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.kind, str(copy)) == ("no-topic", str(caught.value))


def test_data_loss_is_an_error_of_its_own_kind(client, directory):
    for path in (directory / "log").iterdir():
        path.unlink()
    with pytest.raises(BulkError, match="lost") as caught:
        list(client.read(ticket()))
    assert caught.value.kind == "data-loss"
    assert list(client.read(ticket(fail_on_data_loss=False))) == []
    assert client.summary.lost == 500


@pytest.mark.parametrize(
    "bad",
    [b"", b"{}", b'{"topic": "orders", "queue": 0, "from": 5, "to": 1}',
     b'{"topic": "orders", "queue": 0, "from": 0, "to": 1, "columns": ["nothing"]}',
     b'{"topic": "orders", "queue": 0, "from": 0, "to": 1, "clumns": ["body"]}',
     b'{"topic": "orders", "queue": 0, "from": 0, "to": 100000000000000000000}'],
)  # fmt: skip
def test_what_is_no_ticket_is_a_bad_request(plain, bad):
    with pytest.raises(flight.FlightServerError, match="this is no ticket") as caught:
        plain.do_get(flight.Ticket(bad)).read_all()
    assert "Traceback" not in str(caught.value)
    assert msgspec.json.decode(caught.value.extra_info, type=Problem).kind == "bad-request"


@pytest.mark.parametrize(("name", "body"), [("locate", b"{}"), ("nothing", b""), ("poll", b"{")])
def test_what_is_no_question_is_a_bad_request(plain, name, body):
    with pytest.raises(flight.FlightServerError) as caught:
        list(plain.do_action(flight.Action(name, body)))
    assert msgspec.json.decode(caught.value.extra_info, type=Problem).kind == "bad-request"


def test_plain_pyarrow_finds_topics_and_reads_them(plain):
    [info] = plain.list_flights()
    assert info.descriptor.path == [b"orders"]
    assert info.total_records == COUNT
    asked = plain.get_flight_info(flight.FlightDescriptor.for_path("orders"))
    command = json.dumps({"topic": "orders", "columns": ["offset"]})
    narrow = plain.get_flight_info(flight.FlightDescriptor.for_command(command))

    tables = [plain.do_get(endpoint.ticket).read_all() for endpoint in asked.endpoints]
    assert [table.num_rows for table in tables] == [500, 500]
    assert tables[0].schema == asked.schema
    assert plain.do_get(narrow.endpoints[0].ticket).read_all().column_names == ["offset"]
    assert [name for name, _ in plain.list_actions()] == [
        "resolve", "poll", "by_time", "lease", "release", "report",
        "commit_batch", "abort_batch", "sink_state",
    ]  # fmt: skip
    with pytest.raises(flight.FlightServerError, match="name a topic"):
        plain.get_flight_info(flight.FlightDescriptor.for_command(b"?"))


def test_a_broker_that_hangs_up_is_asked_again(client, served):
    served[0].hangs_up = 2

    assert len(client.resolve().topics) == 1
    assert len(served[0].asked) == 3


def test_a_directory_with_a_very_long_name_has_a_socket_too(serve, directory, tmp_path):
    # Its broker binds to a short name; the line has to find it by the long one.
    deep = tmp_path.joinpath(*["a directory with a long name"] * 5)
    deep.mkdir(parents=True)
    broker, _ = serve(directory)
    (deep / SOCKET_NAME).symlink_to(directory / SOCKET_NAME)
    line = BrokerClient(deep / SOCKET_NAME)
    try:
        assert len(line.ask("resolve", ResolveRequest()).topics) == 1
    finally:
        line.close()
    assert len(broker.asked) == 1


def test_a_broker_that_is_gone_is_one_clear_error(served, monkeypatch):
    monkeypatch.setattr(client_module, "PAUSE_S", 0.01)
    served[0].hangs_up = 1000
    with (
        BulkClient(f"127.0.0.1:{served[1].port}", patience_s=0.1) as client,
        pytest.raises(BulkError, match="does not answer") as caught,
    ):
        client.resolve()
    assert caught.value.kind == "unreachable"


def test_a_port_where_nobody_listens_is_one_clear_error():
    with BulkClient("127.0.0.1:1", patience_s=0.05) as client:
        with pytest.raises(BulkError, match="no answer from Penstock's Flight port"):
            list(client.read(ticket()))
        with pytest.raises(BulkError, match="no answer from Penstock's Flight port"):
            client.resolve()


def test_a_report_does_not_keep_a_task_that_is_done(served, monkeypatch):
    monkeypatch.setattr(client_module, "REPORT_S_MAX", 0.2)
    served[0].hangs_up = 1000
    with BulkClient(f"127.0.0.1:{served[1].port}", patience_s=600) as client:
        before = time.monotonic()
        with pytest.raises(BulkError) as caught:
            client.report("s", BatchProgress(rows=3))
    assert caught.value.kind == "unreachable"
    assert time.monotonic() - before < 60


def test_a_read_that_breaks_goes_on_behind_its_last_batch(client, monkeypatch):
    chunks, asked = BulkClient._chunks, []

    def breaking(self, rest):
        asked.append((rest.start, rest.end))
        for number, chunk in enumerate(chunks(self, rest)):
            if number == 2 and len(asked) < 3:
                raise flight.FlightUnavailableError("the server was restarted")
            yield chunk

    monkeypatch.setattr(BulkClient, "_chunks", breaking)
    monkeypatch.setattr(client_module, "PAUSE_S", 0.01)
    batches = list(client.read(ticket(rows_per_batch=50)))

    assert asked == [(0, 500), (100, 500), (200, 500)]
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(500))
    assert (client.summary.rows, client.summary.next_offset) == (500, 500)


def test_a_client_is_pickled_by_its_description(client):
    with pickle.loads(pickle.dumps(client)) as copy:
        assert (copy.endpoint, copy.patience_s) == (client.endpoint, client.patience_s)
        assert len(copy.resolve().topics) == 1


def test_readers_above_the_limit_wait_and_are_then_told_to_come_again(
    serve, directory, monkeypatch
):
    monkeypatch.setattr("penstock.bulk.flight.STREAM_WAIT_S", 0.05)
    _, server = serve(directory, streams_max=1)
    held = server._streams.acquire("ipv4:192.0.2.1:4711")
    with BulkClient(f"127.0.0.1:{server.port}", patience_s=0.3) as client:
        with pytest.raises(BulkError, match="too many reads") as caught:
            list(client.read(ticket()))
        assert caught.value.kind == "unreachable"
        server._streams.release(held)
        assert sum(batch.num_rows for batch in client.read(ticket())) == 500
        # A reader that leaves early gives its place back.
        assert next(client.read(ticket(rows_per_batch=10))).num_rows == 10
        assert sum(batch.num_rows for batch in client.read(ticket())) == 500


def test_polls_leave_room_for_questions_that_are_answered_at_once(client, served):
    broker = served[0]
    broker.gate.clear()
    answers = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(client.poll(PollRequest(subscription="s", wait_ms=1200)))
        )
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    assert len(client.resolve().topics) == 1
    broker.gate.set()
    for thread in threads:
        thread.join(20)

    assert len(answers) == 20
    assert broker.most_polls <= 12
    # With more polls than places each waits less at the broker (the fake says how long).
    assert min(answer.lag_rows for answer in answers) < 1200


def test_the_process_says_its_port_serves_all_its_addresses_and_stops_when_told(directory):
    hosts = ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1", "127.0.0.2"]
    command = [sys.executable, "-m", "penstock.bulk", "--data", str(directory)]
    command += ["--parent", str(os.getpid()), "--host", hosts[0], "--host", hosts[1]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        port = json.loads(process.stdout.readline())["port"]
        for host in hosts:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            with (
                BulkClient(place, patience_s=0.3) as client,
                pytest.raises(BulkError, match="the broker does not answer"),
            ):
                client.resolve()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_one_address_leaves_places_for_others(serve, directory, monkeypatch):
    monkeypatch.setattr("penstock.bulk.flight.STREAM_WAIT_S", 0.05)
    _, server = serve(directory, streams_max=4)
    places = server._streams
    own = [places.acquire(f"ipv4:192.0.2.1:{port}") for port in range(1, 5)]
    assert [place is not None for place in own] == [True, True, True, False]
    assert places.acquire("ipv6:%5B2001:db8::1%5D:1").host == "2001:db8::1"
