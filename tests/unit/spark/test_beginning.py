import pytest

from kit.fake_upstream import FakeUpstream
from penstock.spark.options import read_options
from penstock.spark.query import ending, starting
from penstock.spark.upstream import BadOffsets


@pytest.fixture
def upstream():
    made = FakeUpstream(orders=2)
    made.move("orders", "0", earliest=3, end=10)
    made.move("orders", "1", end=20)
    made.times = {1000: 5, 2000: 8}
    return made


def begin(upstream, **given):
    options = read_options({"topics": "orders", **given})
    return starting(options, upstream, upstream.resolve()).offsets["orders"]


def end(upstream, **given):
    options = read_options({"topics": "orders", **given})
    return ending(options, upstream, upstream.resolve()).offsets["orders"]


def test_words(upstream):
    assert begin(upstream) == {"0": 3, "1": 0}
    assert begin(upstream, startingOffsets="EARLIEST") == {"0": 3, "1": 0}
    assert begin(upstream, startingOffsets="latest") == {"0": 10, "1": 20}
    assert end(upstream) == {"0": 10, "1": 20}


def test_offsets_by_queue_with_words_as_numbers_and_the_rest_as_by_default(upstream):
    assert begin(upstream, startingOffsets='{"orders": {"0": 7}}') == {"0": 7, "1": 0}
    text = '{"orders": {"0": -2, "1": -1}}'
    assert begin(upstream, startingOffsets=text) == {"0": 3, "1": 20}
    assert end(upstream, endingOffsets='{"orders": {"1": 4}}') == {"0": 10, "1": 4}


def test_times_for_all_topics_for_a_topic_and_for_a_queue(upstream):
    assert begin(upstream, startingTimestamp="1000") == {"0": 5, "1": 5}
    assert end(upstream, endingTimestamp="2000") == {"0": 8, "1": 8}
    by_topic = '{"orders": 1000}'
    assert begin(upstream, startingOffsetsByTimestamp=by_topic) == {"0": 5, "1": 5}
    by_queue = '{"orders": {"1": 2000}}'
    assert begin(upstream, startingOffsetsByTimestamp=by_queue) == {"0": 3, "1": 8}
    assert end(upstream, endingOffsetsByTimestamp=by_queue) == {"0": 10, "1": 8}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"order": {"0": 1}}', "did you mean 'orders'"),
        ('{"orders": {"7": 1}}', "has no queue '7'; it has 0, 1"),
        ('{"orders": {"0": 11}}', "above its end 10"),
    ],
)
def test_offsets_of_what_is_not_there_are_refused(upstream, text, words):
    with pytest.raises(BadOffsets, match=words):
        begin(upstream, startingOffsets=text)


def test_offsets_that_retention_removed_are_moved_only_for_those_who_accept_loss(upstream):
    text = '{"orders": {"0": 1}}'
    assert begin(upstream, startingOffsets=text)["0"] == 1
    assert begin(upstream, startingOffsets=text, failOnDataLoss="false")["0"] == 3


def test_nothing_ends_at_the_earliest_offset(upstream):
    with pytest.raises(BadOffsets, match="end before it begins"):
        end(upstream, endingOffsets="earliest")
