import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.upstream import BadOffsets, Position, parse_offsets, position, rows_between

MARKS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 30).map(str), st.integers(0, 2**53), min_size=1, max_size=12),
    max_size=4,
)


def text(at):
    return json.dumps(at.as_json())


@given(by_queue=MARKS, incarnations=MARKS, epoch=st.integers(0, 2**31), seed=st.randoms())
def test_equal_positions_are_equal_text_whatever_order_they_were_made_in(
    by_queue, incarnations, epoch, seed
):
    def shuffled(given):
        topics = list(given.items())
        seed.shuffle(topics)
        return {topic: dict(seed.sample(list(q.items()), len(q))) for topic, q in topics}

    first = Position(epoch=epoch, offsets=by_queue, incarnations=incarnations)
    other = Position(epoch=epoch, offsets=shuffled(by_queue), incarnations=shuffled(incarnations))
    assert text(first) == text(other)
    assert text(position(json.loads(text(first)))) == text(first)


def test_queues_stand_in_the_order_of_their_numbers():
    at = Position(offsets={"t": {"10": 1, "9": 2}, "a": {"b:2": 3, "a:11": 4, "a:2": 5}})
    assert list(at.as_json()["offsets"]["t"]) == ["9", "10"]
    assert list(at.as_json()["offsets"]["a"]) == ["a:2", "a:11", "b:2"]


def test_a_checkpoint_of_another_version_or_source_is_refused():
    with pytest.raises(BadOffsets, match="version 2"):
        position({"version": 2})
    with pytest.raises(BadOffsets, match="version None"):
        position({"orders": {"0": 1}})
    with pytest.raises(BadOffsets, match="no offsets of Penstock"):
        position({"version": 1, "epoch": "x"})


def test_a_queue_that_begins_in_a_batch_begins_where_the_batch_says():
    start = Position(offsets={"t": {"0": 10}})
    end = Position(offsets={"t": {"0": 15, "1": 9}}, begins={"t": {"1": 4}})
    assert rows_between(start, end) == 5 + 5
    assert start.begin_of(end, "t", "1") == 4


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{", "neither earliest, latest nor JSON"),
        ("everything", "neither earliest, latest nor JSON"),
        ("[]", "JSON like"),
        ("{}", "JSON like"),
        ('{"t": 5}', "needs its queues"),
        ('{"t": {}}', "needs its queues"),
        ('{"t": {"x": 5}}', "'x' of topic 't' is no queue"),
        ('{"t": {"0": "5"}}', "is no offset"),
        ('{"t": {"0": true}}', "is no offset"),
        ('{"t": {"0": -3}}', "is no offset"),
    ],
)
def test_offsets_that_cannot_be_read_are_named_with_their_option(written, words):
    with pytest.raises(BadOffsets, match=words) as refused:
        parse_offsets("startingOffsets", written)
    assert "startingOffsets" in str(refused.value)


def test_a_time_may_stand_for_all_queues_of_a_topic():
    assert parse_offsets("x", '{"t": 5}', is_nested=False) == {"t": {"": 5}}
