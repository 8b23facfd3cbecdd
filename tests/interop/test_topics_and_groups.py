"""``penstock topics`` and ``penstock groups`` against a running broker, through its HTTP port."""

import http.client
import json

import pytest
from click.testing import CliRunner

from penstock.cli.groups import command as groups
from penstock.cli.topics import command as topics
from penstock.model.errors import NotFound, PenstockError
from penstock.wire.rocketmq.codes import RequestCode


@pytest.fixture
def run(rocketmq_broker):
    """Run a verb on the broker; its output, parsed with ``--json``."""

    def call(command, *arguments):
        where = ("--endpoint", rocketmq_broker.endpoints["http"])
        result = CliRunner().invoke(command, [*arguments, *where])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return json.loads(result.output) if "--json" in arguments else result.output

    return call


def test_a_topic_lives_from_create_to_delete(run):
    assert "created with 3 queues" in run(topics, "create", "cli-orders", "--queues", "3")
    with pytest.raises(PenstockError, match="exists"):
        run(topics, "create", "cli-orders")
    assert "cli-orders" in run(topics, "list")
    (row,) = run(topics, "list", "cli-orders", "--json")
    assert (row["queues"], row["messages"]) == (3, 0)
    assert "cli-orders: 3 queues" in run(topics, "show", "cli-orders")
    assert len(run(topics, "show", "cli-orders", "--json")["each_queue"]) == 3
    assert "deleted" in run(topics, "delete", "cli-orders", "--yes")
    with pytest.raises(NotFound, match="no topic 'cli-orders'"):
        run(topics, "show", "cli-orders")


def test_deleting_asks_first_and_says_what_would_go(run, rocketmq_broker, client):
    run(topics, "create", "cli-precious", "--queues", "1")
    assert client.send("cli-precious", b"one").is_ok
    arguments = ["cli-precious", "--endpoint", rocketmq_broker.endpoints["http"]]
    for verb in ("delete", "purge"):
        for answer in ("n\n", ""):  # no, and nobody there
            refused = CliRunner().invoke(topics, [verb, *arguments], input=answer)
            assert "cli-precious" in refused.stderr
            assert "1 stored" in refused.stderr
            assert isinstance(refused.exception, PenstockError)
    assert run(topics, "show", "cli-precious", "--json")["messages"] == 1
    done = CliRunner().invoke(topics, ["delete", *arguments], input="y\n")
    assert (done.exit_code, done.stdout) == (0, "topic 'cli-precious' deleted with its messages\n")


def test_ready_is_shown_beside_stored_and_purging_leaves_none_of_it(run, client):
    run(topics, "create", "cli-full", "--queues", "1")
    for body in (b"one", b"two", b"three"):
        assert client.send("cli-full", body).is_ok
    client.create_group("cli-purged")
    commit = {"consumerGroup": "cli-purged", "topic": "cli-full", "queueId": "0"}
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    assert client.request(code, {**commit, "commitOffset": "1"}).is_ok
    (row,) = run(topics, "list", "cli-full", "--json")
    assert (row["ready"], row["messages"]) == (2, 3)
    head, line = run(topics, "list", "cli-full").splitlines()
    assert head.split()[:5] == ["TOPIC", "SPACE", "QUEUES", "READY", "STORED"]
    assert line.split()[:5] == ["cli-full", "-", "1", "2", "3"]
    assert run(topics, "purge", "cli-full", "--yes") == "topic 'cli-full' purged of 2 messages\n"
    (row,) = run(topics, "list", "cli-full", "--json")
    assert row["ready"] == 0
    assert client.request(RequestCode.QUERY_CONSUMER_OFFSET, commit).number("offset") == 3


def test_names_with_slashes_and_percents_reach_the_broker_whole(run):
    for name in ("a/b c", "%RETRY%cli", "ü?&#"):
        run(topics, "create", name)
        assert run(topics, "show", name, "--json")["name"] == name
        run(topics, "delete", name, "--yes")


def test_the_broker_is_found_by_its_data_directory(rocketmq_broker):
    result = CliRunner().invoke(topics, ["list", "--json", "--data", str(rocketmq_broker.data)])
    assert result.exit_code == 0
    assert isinstance(json.loads(result.output), list)


def test_a_group_that_nobody_knows_is_named(run):
    with pytest.raises(NotFound, match="no group 'nobody'"):
        run(groups, "show", "nobody")
    assert run(groups, "list", "nobody-has-this-name", "--json") == []


def test_a_time_that_is_none_is_a_usage_error(rocketmq_broker):
    result = CliRunner().invoke(groups, ["reset", "g", "--topic", "t", "--to", "soon"])
    assert result.exit_code == 2
    assert "neither earliest" in result.output


@pytest.mark.parametrize(
    ("order", "headers", "body", "status"),
    [
        ("POST /api/topics", {"content-type": "text/plain"}, b'{"name": "x"}', 415),
        ("POST /api/topics", {"host": "evil.example"}, b'{"name": "x"}', 403),
        ("DELETE /api/topics/x", {"host": "evil.example"}, b"", 403),
        ("POST /api/topics", {}, b'{"name": 5}', 400),
        ("POST /api/topics", {}, b'{"name": "x", "queue": 5}', 400),
        ("POST /api/topics", {}, b"{" + b" " * 5000, 413),
        ("POST /api/group-modes", {}, b'{"group": "g", "topic": "gone", "mode": "pop"}', 404),
        ("DELETE /api/groups/gone", {}, b"", 404),
    ],
)
def test_changes_are_for_programs_on_this_machine(rocketmq_broker, order, headers, body, status):
    method, path = order.split()
    connection = http.client.HTTPConnection(*rocketmq_broker.address("http"), timeout=5)
    connection.request(method, path, body, {"content-type": "application/json", **headers})
    response = connection.getresponse()
    assert (response.status, "error" in json.loads(response.read())) == (status, True)
    connection.close()


def test_lag_of_a_consumer_group_is_shown_reset_and_deleted(run, client):
    client.create_topic("cli-lag", 2)
    client.create_group("cli-readers")
    for number in range(10):
        client.send("cli-lag", b"x" * 100, queue_id=number % 2)
    place = {"topic": "cli-lag", "consumerGroup": "cli-readers", "commitOffset": "2"}
    for queue in ("0", "1"):
        client.request(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "queueId": queue})
    (row,) = run(groups, "list", "cli-readers", "--json")
    assert (row["topic"], row["lag_messages"], row["mode"]) == ("cli-lag", 6, "pull")
    assert row["lag_bytes"] > 600
    assert row["lag_seconds"] >= 0
    assert "cli-readers on cli-lag: 6 messages" in run(groups, "show", "cli-readers")
    run(groups, "reset", "cli-readers", "--topic", "cli-lag", "--to", "earliest")
    ask = {"topic": "cli-lag", "queueId": "1", "consumerGroup": "cli-readers"}
    assert client.request(RequestCode.QUERY_CONSUMER_OFFSET, ask).number("offset") == 0
    run(groups, "reset", "cli-readers", "--topic", "cli-lag", "--to", "2h", "--queue", "0")
    run(groups, "delete", "cli-readers")
    assert run(groups, "list", "cli-readers", "--json") == []


def test_a_group_is_switched_between_pop_and_pull(run, client):
    client.create_topic("cli-mode", 1)
    client.create_group("cli-poppers")
    place = {"topic": "cli-mode", "consumerGroup": "cli-poppers", "queueId": "0"}
    client.request(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": "0"})
    switch = ("mode", "cli-poppers", "--topic", "cli-mode")
    assert "by pop" in run(groups, *switch, "pop", "--share", "3")
    (topic,) = run(groups, "show", "cli-poppers", "--json")["topics"]
    assert (topic["mode"], topic["share"]) == ("pop", 3)
    run(groups, *switch, "pull")
    assert run(groups, "show", "cli-poppers", "--json")["topics"][0]["mode"] == "pull"


def test_a_topic_made_by_the_command_is_one_that_clients_can_use(run, connect):
    run(topics, "create", "cli-made", "--queues", "3")
    client, names = connect(), connect("rocketmq")
    assert names.route("cli-made").queue_datas[0].write_queue_nums == 3
    assert client.send("cli-made", b"x", queue_id=2).is_ok
    assert client.pull("cli-made", 2).messages
    run(topics, "delete", "cli-made", "--yes")
    assert names.route("cli-made") is None
