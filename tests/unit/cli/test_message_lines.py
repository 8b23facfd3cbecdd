import json

import click
import pytest

from penstock.cli.message_lines import as_line, as_record, duration_ms, from_record
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import StoredMessage


def received(body=b"hello", reconsume_times=0, **properties):
    given = {"UNIQ_KEY": "ID", "TAGS": "new", "KEYS": "k1 k2", "colour": "red", **properties}
    stored = StoredMessage(
        topic="orders", body=body, queue_id=2, queue_offset=17, store_ms=1_700_000_000_123,
        reconsume_times=reconsume_times, properties=format_properties(given),
    )  # fmt: skip
    return ReceivedMessage(stored, QueueRef("orders", "b", 2))


@pytest.mark.parametrize("body", [b"hello", "grüße".encode(), b"\xff\x00\xfe", b""])
def test_a_printed_record_can_be_published_again(body):
    record = as_record(received(body, __SHARDINGKEY="customer"))
    message = from_record("copy", json.dumps(record))
    assert (message.topic, message.body, message.tag) == ("copy", body, "new")
    assert message.keys == ("k1", "k2")
    assert message.properties == {"colour": "red"}
    assert message.ordering_key == "customer"


def test_a_record_says_where_the_message_was():
    record = as_record(received())
    assert (record["broker"], record["queue"], record["offset"], record["id"]) == ("b", 2, 17, "ID")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not a line of JSON"),
        ("[1]", "a JSON object"),
        ('{"body_base64": "%"}', "no base64"),
        ('{"properties": [1]}', "properties is"),
    ],
)
def test_a_line_that_is_no_record_is_told_with_what_is_wrong(line, words):
    with pytest.raises(click.UsageError, match=words):
        from_record("t", line)


def test_a_line_for_people_says_where_tag_try_and_body():
    line = as_line(received(reconsume_times=2))
    assert line.endswith("b/2@17  [new]  (try 3)  hello")


def test_bodies_do_not_move_the_cursor_nor_fill_the_screen():
    assert as_line(received(b"a\x1b[2Jb\n")).endswith("a\\x1b[2Jb\\n")
    assert as_line(received(b"x" * 500)).endswith("... (+300)")
    assert as_line(received(b"\xff\xfe")).endswith("2 bytes: ff fe")


def test_durations_have_units():
    assert [duration_ms(each) for each in ("500ms", "1.5s", "2m", "1h", "1d")] == [
        500, 1_500, 120_000, 3_600_000, 86_400_000,
    ]  # fmt: skip
    with pytest.raises(click.UsageError, match="no duration"):
        duration_ms("5")
