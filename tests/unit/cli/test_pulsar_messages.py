"""Lines of text and messages of Pulsar; what a URL means."""

import json

import click
import pytest

from penstock.cli.pulsar_messages import (
    PulsarTarget,
    as_json,
    as_line,
    from_record,
    message_of,
    parse_target,
    stored_json,
    stored_line,
)
from penstock.client.pulsar import MessageId, ReceivedMessage
from penstock.wire.pulsar import protocol_pb2 as pb

NOTHING = {"tag": None, "keys": (), "ordering_key": None, "delay": None, "delay_level": None}


@pytest.mark.parametrize(
    ("url", "topic"),
    [
        ("pulsar://h:1/t", "persistent://public/default/t"),
        ("pulsar://h:1/a/b/t", "persistent://a/b/t"),
        ("pulsar://h:1/persistent/a/b/t", "persistent://a/b/t"),
        ("pulsar://h:1/non-persistent/a/b/t", "non-persistent://a/b/t"),
    ],
)
def test_a_url_names_broker_and_topic(url, topic):
    assert parse_target(url) == PulsarTarget("pulsar://h:1", topic)


def test_several_brokers_may_be_named():
    assert parse_target("pulsar://a:1,b:2/t").service_url == "pulsar://a:1,b:2"


def test_what_is_no_url_is_a_topic_of_rocketmq():
    assert parse_target("orders") is None


@pytest.mark.parametrize(
    "wrong", ["pulsar://", "pulsar://h", "pulsar://h/", "pulsar:///t", "pulsar://h/a/b",
              "pulsar://h/x/a/b/t", "pulsar://h/a//t"],
)  # fmt: skip
def test_a_url_that_names_no_topic_is_told_how_one_looks(wrong):
    with pytest.raises(click.UsageError, match="pulsar://HOST:PORT/TOPIC"):
        parse_target(wrong)


def test_flags_become_a_message():
    given = {**NOTHING, "tag": "t", "keys": ("k",), "ordering_key": "o", "delay": "5s"}
    found = message_of(b"x", given, {"a": "b"})
    assert (found.value, found.key, found.ordering_key) == (b"x", "k", b"o")
    assert found.properties == {"a": "b", "TAGS": "t"}
    assert found.deliver_after_ms == 5000
    assert message_of(b"x", NOTHING, {}).key is None


@pytest.mark.parametrize(
    ("flags", "told"), [({"delay_level": 3}, "use --delay"), ({"keys": ("a", "b")}, "one --key")]
)
def test_flags_that_are_rocketmqs_are_refused(flags, told):
    with pytest.raises(click.UsageError, match=told):
        message_of(b"", {**NOTHING, **flags}, {})


def received(data=b"body", **fields):
    said = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1000, **fields)
    said.properties.add(key="TAGS", value="t")
    said.properties.add(key="a", value="b")
    return ReceivedMessage("topic", MessageId(1, 2), data, said, redelivery_count=1)


def test_a_record_comes_back_as_the_message_it_was():
    line = as_json(received(partition_key="k", ordering_key=b"o"))
    again = from_record(line)
    assert (again.value, again.key, again.ordering_key) == (b"body", "k", b"o")
    assert again.properties == {"a": "b", "TAGS": "t"}
    assert json.loads(line)["sequence_id"] == 7


def test_a_record_of_rocketmq_is_understood():
    found = from_record('{"body": "x", "keys": ["k1", "k2"], "tag": "new"}')
    assert (found.value, found.key, found.properties) == (b"x", "k1", {"TAGS": "new"})


def test_lines_for_people_show_key_tries_and_body():
    line = as_line(received(partition_key="k"))
    assert line.endswith("1:2:-1  [k]  (try 2)  body")
    assert as_line(received(b"", null_value=True)).endswith("(no value)")


def test_what_was_stored_is_shown_with_its_place():
    assert stored_line(MessageId(1, 2, 0)) == "STORED  1:2:0"
    assert stored_json(MessageId(1, 2, 0, 3))["batch_index"] == 3
