"""What a message must be like to be sent."""

import pytest

from penstock.client.errors import InvalidMessage
from penstock.client.message import Message
from penstock.client.producer.encoding import check_group, check_message

MAX = 100


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Message("", b"x"), "letters, digits"),
        (Message("bad topic", b"x"), "letters, digits"),
        (Message("a/b", b"x"), "letters, digits"),
        (Message("t" * 128, b"x"), "longer than 127"),
        (Message("%RETRY%" + "g" * 249, b"x"), "longer than 255"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "written by brokers"),
        (Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x"), "written by brokers"),
        (Message("t", b""), "empty body"),
        (Message("t", b"x" * 101), "101 bytes, limit 100"),
        (Message("t", b"x", properties={"TAGS": "a"}), "belongs to RocketMQ"),
        (Message("t", b"x", properties={"UNIQ_KEY": "a"}), "belongs to RocketMQ"),
        (Message("t", b"x", properties={"a": ""}), "at least one character"),
        (Message("t", b"x", properties={"": "a"}), "at least one character"),
        (Message("t", b"x", properties={"a": 1}), "text"),
        (Message("t", b"x", delay_level=19), "not 0 to 18"),
        (Message("t", b"x", delay_level=-1), "not 0 to 18"),
        (Message("t", b"x", delay_level=1, delay_ms=5), "one of"),
        (Message("t", b"x", delay_ms=5, deliver_at_ms=5), "one of"),
        (Message("t", b"x", delay_ms=-5), "past"),
    ],
)
def test_what_no_broker_would_take_is_refused_with_words(message, said):
    with pytest.raises(InvalidMessage, match=said):
        check_message(message, MAX)


@pytest.mark.parametrize(
    "message",
    [
        Message("t" * 127, b"x" * 100),
        Message("%RETRY%" + "g" * 248, b"x"),
        Message("a|b-c_d%9", b"x"),
        Message("t", b"x", properties={"a": "b", "CHECK_IMMUNITY_TIME_IN_SECONDS": "9"}),
        Message("%RETRY%g", b"x", properties={"RECONSUME_TIME": "2", "RETRY_TOPIC": "t"}),
        Message("t", b"x", delay_level=18),
        Message("t", b"x", delay_ms=0),
        Message("t", b"x", deliver_at_ms=1),
    ],
)
def test_what_brokers_take_passes(message):
    check_message(message, MAX)


@pytest.mark.parametrize("group", ["", "a b", "g" * 256])
def test_a_group_that_no_broker_would_know_is_refused(group):
    with pytest.raises(ValueError, match="letters, digits"):
        check_group(group)
