import pytest

from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.pop_handle import (
    PopHandle,
    format_offsets,
    format_order_counts,
    format_start_offsets,
    parse_handle,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
)


@pytest.mark.parametrize(
    ("text", "handle"),
    [
        (
            "10 1700 60000 3 0 broker-a 2 12",
            PopHandle(10, 1700, 60000, 3, 0, "broker-a", 2, 12),
        ),
        (
            "10 1700 60000 999 2 broker-a 2 12 4096",
            PopHandle(10, 1700, 60000, 999, 2, "broker-a", 2, 12, 4096),
        ),
        ("10 1700 60000 3 0 broker-a 2", PopHandle(10, 1700, 60000, 3, 0, "broker-a", 2, -1)),
    ],
    ids=["remoting", "gRPC", "old"],
)
def test_a_handle_is_eight_words(text, handle):
    assert parse_handle(text) == handle
    if handle.offset >= 0:
        assert str(handle) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        "1 2 3 4 5 b 6 7 8 9",
        "x 1700 60000 3 0 b 2 12",
        "1_0 1700 60000 3 0 b 2 12",
        "٣ 1700 60000 3 0 b 2 12",
        "9" * 30 + " 1700 60000 3 0 b 2 12",
        "- 1700 60000 3 0 b 2 12",
    ],
)
def test_other_texts_are_no_handles(text):
    with pytest.raises(Malformed):
        parse_handle(text)


def test_the_lists_of_an_answer_read_back():
    starts = {(0, 2): 10, (1, 0): 5}
    assert format_start_offsets(starts) == "0 2 10;1 0 5"
    assert parse_start_offsets("0 2 10;1 0 5") == starts
    offsets = {(0, 2): [10, 12], (1, 0): [5]}
    assert format_offsets(offsets) == "0 2 10,12;1 0 5"
    assert parse_offsets("0 2 10,12;1 0 5") == offsets
    counts = {(0, 2, 10): 1}
    assert format_order_counts(counts) == "0 qo2%10 1"
    assert parse_order_counts("0 qo2%10 1;0 3 4") == {(0, 2, 10): 1, (0, 3, -1): 4}


@pytest.mark.parametrize("parse", [parse_start_offsets, parse_offsets, parse_order_counts])
def test_lists_may_be_empty_and_nonsense_in_them_is_malformed(parse):
    assert parse("") == {}
    for text in ("0", "0 1", "a b c", "0 1 x", ";;;0 0 ,"):
        with pytest.raises(Malformed):
            parse(text)
