"""``penstock publish`` against a broker that runs."""

import json

import pytest
from click.testing import CliRunner

from penstock.cli.publish import Pace, command


@pytest.fixture
def run(cluster):
    """Run the verb; its result."""

    def call(*arguments, given="", code=0):
        where = ("--name-server", cluster.name_server)
        result = CliRunner().invoke(command, [*arguments, *where], input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def stored(cluster):
    """All messages of a topic with four queues."""

    def read(topic):
        found = []
        with cluster.connect() as client:
            for queue in range(4):
                offset = 0
                while (answer := client.pull(topic, queue, offset)).is_ok:
                    found += answer.messages
                    offset = answer.number("nextBeginOffset")
        return found

    return read


def test_one_message_is_sent_with_all_that_belongs_to_it(run, stored, topic):
    result = run(
        topic, "hello", "--tag", "new", "--key", "k1", "--key", "k2", "-p", "colour=red",
        "--ordering-key", "customer",
    )  # fmt: skip
    assert result.stdout.startswith("SEND_OK  ")
    (message,) = stored(topic)
    properties = message.property_map()
    assert message.body == b"hello"
    assert properties["TAGS"] == "new"
    assert properties["KEYS"] == "k1 k2"
    assert properties["colour"] == "red"
    assert properties["__SHARDINGKEY"] == "customer"


def test_every_line_of_a_pipe_is_a_message(run, stored, topic):
    result = run(topic, given="one\ntwo\r\nthree")
    assert "3 sent" in result.stderr
    assert result.stdout == ""
    assert sorted(each.body for each in stored(topic)) == [b"one", b"three", b"two"]


def test_a_whole_pipe_can_be_one_message(run, stored, topic):
    run(topic, "-", "--whole", given="one\ntwo\n")
    assert [each.body for each in stored(topic)] == [b"one\ntwo\n"]


def test_a_body_is_repeated_and_numbered(run, stored, topic):
    result = run(topic, "message {n}", "--count", "5", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["SEND_OK"] * 5
    assert {each.body for each in stored(topic)} == {b"message %d" % n for n in range(1, 6)}


def test_records_of_another_topic_can_be_sent_again(run, stored, topic):
    lines = [json.dumps({"body": "a", "tag": "t", "properties": {"x": "1"}, "offset": 7})]
    run(topic, "--records", given="\n".join(lines))
    (message,) = stored(topic)
    assert (message.body, message.property_map()["TAGS"]) == (b"a", "t")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["t", "x", "-p", "colour"], "NAME=VALUE"),
        (["t", "x", "--delay", "soon"], "no duration"),
        (["t", "x", "--delay", "1s", "--delay-level", "2"], "exclude each other"),
        (["t", "--count", "2"], "needs a BODY"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments, words):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_cluster_that_is_not_there_is_told_in_a_sentence(unused_port):
    where = f"127.0.0.1:{unused_port}"
    result = CliRunner().invoke(command, ["t", "x", "--name-server", where])
    assert result.exit_code == 1
    assert "not sent" in result.stderr
    assert where in result.stderr


def test_a_pace_spreads_messages_over_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("penstock.cli.publish.time.monotonic", lambda: now[0])
    monkeypatch.setattr("penstock.cli.publish.time.sleep", lambda s: now.__setitem__(0, now[0] + s))
    pace = Pace(10)
    for _ in range(21):
        pace.wait()
    assert now[0] == pytest.approx(102.0)
