"""Which messages may be one batch, and how a long list becomes batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.errors import InvalidMessage
from penstock.client.message import Message
from penstock.client.producer.batch import batch_body, check_batch, item_bytes, split_batch

MAX = 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "at least one"),
        ([Message("a", b"x"), Message("b", b"x")], "one topic"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
        ([Message("a", b"x", delay_level=1)], "delayed"),
        ([Message("a", b"x", delay_ms=10)], "delayed"),
        ([Message("a", b"x", deliver_at_ms=10)], "delayed"),
        ([Message("a", b"x"), Message("a", b"x", wait_store_ok=False)], "wait_store_ok"),
        ([Message("a", b"x"), Message("a", b"x", ordering_key="k")], "ordering_key"),
    ],
)
def test_messages_that_do_not_go_together_are_refused(messages, said):
    with pytest.raises(InvalidMessage, match=said):
        check_batch(messages, MAX)


def test_a_batch_that_is_too_large_names_what_helps():
    with pytest.raises(InvalidMessage, match="split_batch"):
        check_batch([Message("a", b"x" * 600)] * 2, 1000)


def test_a_list_is_split_where_messages_do_not_go_together():
    messages = [
        Message("a", b"1"), Message("a", b"2"), Message("b", b"3"), Message("b", b"4", delay_ms=5),
        Message("b", b"5"), Message("b", b"6", ordering_key="k"),
    ]  # fmt: skip
    found = [[each.body for each in batch] for batch in split_batch(messages)]
    assert found == [[b"1", b"2"], [b"3"], [b"4"], [b"5"], [b"6"]]


def test_a_list_is_split_by_number():
    batches = list(split_batch([Message("a", b"x")] * 5, messages_max=2))
    assert list(map(len, batches)) == [2, 2, 1]


@given(st.lists(st.integers(1, 900), max_size=40), st.integers(300, 2000))
def test_nothing_is_lost_or_reordered_and_every_batch_fits_unless_one_message_does_not(
    sizes, bytes_max
):
    messages = [Message("a", bytes([at % 256]) * size) for at, size in enumerate(sizes)]
    batches = list(split_batch(messages, bytes_max=bytes_max))
    assert [each for batch in batches for each in batch] == messages
    for batch in batches:
        size = len(batch_body(batch, ["K" * 32] * len(batch)))
        assert size <= sum(map(item_bytes, batch))
        if len(batch) > 1:
            check_batch(batch, bytes_max)
