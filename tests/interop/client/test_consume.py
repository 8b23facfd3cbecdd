"""``penstock consume`` against a broker that runs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from penstock.cli.consume import command
from penstock.cli.publish import command as publish
from penstock.client import LitePullConsumer, Message, Producer


@pytest.fixture
def run(cluster, group):
    """Run the verb from the first message on; what it printed."""

    def call(topic, *arguments):
        where = ("--name-server", cluster.name_server, "--group", group, "--from", "first")
        result = CliRunner().invoke(command, [topic, *where, *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


@pytest.fixture
def filled(cluster, topic):
    """A topic with ten messages, five of them tagged even."""
    with Producer(cluster.name_server) as producer:
        for number in range(10):
            tag = "even" if number % 2 == 0 else "odd"
            properties = {"number": str(number)}
            producer.send(Message(topic, b"body %d" % number, tag=tag, properties=properties))
    return topic


def test_every_message_is_a_line_for_people(run, filled):
    lines = run(filled, "--count", "10").splitlines()
    assert sorted(line.partition("]")[2].strip() for line in lines) == [
        f"body {number}" for number in range(10)
    ]


def test_what_was_printed_is_consumed_and_nothing_else(run, filled):
    """``--count`` may end in the middle of what was pulled: the rest is for the next one."""
    first = run(filled, "--count", "3", "--body").splitlines()
    rest = run(filled, "--count", "7", "--body").splitlines()
    assert sorted(first + rest) == [f"body {number}" for number in range(10)]


def test_records_can_be_published_again_as_they_are(run, filled, cluster, unique):
    records = run(filled, "--count", "10", "--json")
    copy = unique("copy")
    cluster.create_topic(copy, 4)
    arguments = [copy, "--records", "--name-server", cluster.name_server]
    assert CliRunner().invoke(publish, arguments, input=records).exit_code == 0
    again = [json.loads(line) for line in run(copy, "--count", "10", "--json").splitlines()]
    once = [json.loads(line) for line in records.splitlines()]
    for rows in (again, once):
        rows.sort(key=lambda row: row["body"])
    assert [(row["body"], row["tag"], row["properties"]) for row in again] == [
        (row["body"], row["tag"], row["properties"]) for row in once
    ]


def test_tags_and_sql_choose(run, filled, unique, cluster):
    even = run(filled, "--tags", "even", "--count", "5", "--body")
    assert sorted(even.splitlines()) == [f"body {number}" for number in (0, 2, 4, 6, 8)]
    where = ("--name-server", cluster.name_server, "--group", unique(), "--from", "first")
    chosen = CliRunner().invoke(
        command, [filled, *where, "--sql", "number > 6", "--count", "3", "--body"]
    )
    assert sorted(chosen.stdout.splitlines()) == [f"body {number}" for number in (7, 8, 9)]


def test_it_ends_when_nothing_comes_for_a_while(run, filled):
    assert len(run(filled, "--wait", "500ms", "--body").splitlines()) == 10


def test_ctrl_c_ends_it_cleanly_and_what_was_printed_stays_consumed(cluster, filled, group, run):
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "consume", filled, "--group", group, "--body",
         "--from", "first", "--name-server", cluster.name_server],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert all(process.stdout.readline().startswith(b"body") for _ in range(10))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        _, complaints = process.communicate()
    with Producer(cluster.name_server) as producer:
        producer.send(Message(filled, b"later"))
    assert run(filled, "--count", "1", "--body") == "later\n", complaints


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["t", "--json", "--body"], "exclude each other"),
        (["t", "--tags", "a", "--sql", "b = 1"], "exclude each other"),
        (["t", "--from", "yesterday"], "neither first, last nor a time"),
        (["t", "--wait", "5"], "no duration"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments, words):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_new_group_can_begin_at_a_time(cluster, filled, unique):
    where = ("--name-server", cluster.name_server, "--body", "--wait", "500ms")
    for start, count in (("1h", 10), (time.strftime("%Y-%m-%dT%H:%M", time.gmtime(0)), 10)):
        arguments = [filled, "--group", unique(), "--from", start, *where]
        result = CliRunner().invoke(command, arguments)
        assert len(result.stdout.splitlines()) == count, result.output


def test_a_new_group_that_begins_last_gets_what_comes_and_nothing_before(cluster, filled, unique):
    """RocketMQ's own answer for a young topic is 0: a new group would get all of it."""
    group = unique()
    arguments = [filled, "--group", group, "--name-server", cluster.name_server, "--body"]
    quiet = CliRunner().invoke(command, [*arguments, "--from", "last", "--wait", "500ms"])
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    with Producer(cluster.name_server) as producer:
        producer.send(Message(filled, b"later"))
    # The group has begun: what came while nobody read is for it.
    after = CliRunner().invoke(command, [*arguments, "--from", "last", "--count", "1"])
    assert after.stdout == "later\n"


def test_a_topic_that_comes_after_its_reader_is_read_from_its_beginning(
    cluster, unique, eventually
):
    """Last is where the end was when the group began: there was nothing, so all of it is new."""
    topic = unique("late")
    quick = {"poll_name_server_interval_ms": 100, "rebalance_interval_ms": 100}
    consumer = LitePullConsumer(cluster.name_server, unique(), consume_from="last", **quick)
    consumer.subscribe(topic)
    with consumer, Producer(cluster.name_server) as producer:
        assert consumer.poll(1) == []
        cluster.create_topic(topic, 1)
        producer.send(Message(topic, b"first of all"))
        eventually(lambda: [each.body for each in consumer.poll(100)] == [b"first of all"], 20)
