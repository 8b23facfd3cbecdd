"""``penstock publish`` and ``penstock consume`` with ``pulsar://`` URLs."""

import json

import pytest
from click.testing import CliRunner

from penstock.cli import consume, publish


@pytest.fixture
def run():
    """Run a verb; its result."""

    def call(verb, *arguments, given="", code=0):
        result = CliRunner().invoke(verb.command, list(arguments), input=given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def url(pulsar):
    return f"{pulsar.url}/{pulsar.name('cli')}"


def read(run, url, *flags, count=1):
    return run(consume, url, "--from", "first", "--count", str(count), *flags).stdout


def test_what_is_published_is_consumed_with_all_that_belongs_to_it(run, url):
    sent = run(
        publish, url, "hello", "--key", "k1", "-p", "colour=red", "--tag", "new",
        "--ordering-key", "customer",
    )  # fmt: skip
    assert sent.stdout.startswith("STORED  ")
    (line,) = read(run, url, "--json").splitlines()
    record = json.loads(line)
    assert (record["body"], record["keys"], record["tag"]) == ("hello", ["k1"], "new")
    assert record["properties"] == {"colour": "red"}
    assert record["ordering_key"] == "customer"
    assert record["id"] in sent.stdout


def test_every_line_of_a_pipe_is_a_message_and_bodies_come_out_as_they_went_in(run, url):
    result = run(publish, url, given="one\ntwo\r\nthree")
    assert "3 sent" in result.stderr
    assert read(run, url, "--body", count=3) == "one\ntwo\nthree\n"
    # What was printed does not come again.
    run(publish, url, "four")
    assert read(run, url, "--body") == "four\n"


def test_lines_are_for_people(run, url):
    run(publish, url, "message {n}", "--count", "3", "--key", "k")
    lines = read(run, url, count=3).splitlines()
    assert [line.split("  ")[2:] for line in lines] == [["[k]", f"message {n}"] for n in (1, 2, 3)]


def test_one_topic_is_piped_into_another_with_everything(run, pulsar, url):
    run(publish, url, "x", "--key", "k", "-p", "a=b", "--tag", "t")
    records = read(run, url, "--json")
    copy = f"{pulsar.url}/public/default/{pulsar.name('copy')}"
    run(publish, copy, "--records", given=records)
    (line,) = read(run, copy, "--json").splitlines()
    old, new = json.loads(records), json.loads(line)
    for name in ("body", "keys", "tag", "properties", "ordering_key"):
        assert new[name] == old[name]


def test_json_of_what_was_sent_names_its_place(run, url):
    found = json.loads(run(publish, url, "x", "--json").stdout)
    assert found["status"] == "STORED"
    assert found["id"] == f"{found['ledger']}:{found['entry']}:{found['partition']}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("x", "--delay-level", "3"), "--delay-level is RocketMQ's; use --delay"),
        (("x", "--key", "a", "--key", "b"), "a message of Pulsar has one --key"),
    ],
)
def test_flags_that_are_rocketmqs_are_told_apart(run, url, arguments, told):
    assert told in run(publish, url, *arguments, code=2).output


def test_filters_are_rocketmqs(run, url):
    assert "Pulsar has no filters here" in run(consume, url, "--tags", "a", code=2).output


@pytest.mark.parametrize("wrong", ["pulsar://", "pulsar://host:1", "pulsar://h/a/b", "pulsar:///t"])
def test_a_url_without_a_topic_is_told_how_one_looks(run, wrong):
    assert "pulsar://HOST:PORT/TOPIC" in run(publish, wrong, "x", code=2).output


@pytest.mark.parametrize("wrong", ["pulsar+ssl://h:6651/orders", "amqp://h/orders"])
def test_a_url_of_another_kind_is_no_topic_of_rocketmq(run, wrong):
    assert "pulsar://HOST:PORT/TOPIC, without TLS" in run(publish, wrong, "x", code=2).output


def test_from_a_time_on(run, url):
    run(publish, url, given="old\n")
    # Nothing for so long ends it, too.
    assert run(consume, url, "--from", "1h", "--wait", "300ms", "--body").stdout == "old\n"
    assert "neither first, last" in run(consume, url, "--from", "soon", code=2).output
