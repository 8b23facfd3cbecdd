"""``penstock topics`` and ``penstock groups`` against a running broker, through its HTTP port."""

import http.client
import json

import pytest
from click.testing import CliRunner

from penstock.cli.groups import command as groups
from penstock.cli.topics import command as topics
from penstock.model.errors import NotFound, PenstockError


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
    assert "deleted" in run(topics, "delete", "cli-orders")
    with pytest.raises(NotFound, match="no topic 'cli-orders'"):
        run(topics, "show", "cli-orders")


def test_names_with_slashes_and_percents_reach_the_broker_whole(run):
    for name in ("a/b c", "%RETRY%cli", "ü?&#"):
        run(topics, "create", name)
        assert run(topics, "show", name, "--json")["name"] == name
        run(topics, "delete", name)


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
