"""What comes again: ack time-out, negative acks, dead letters; time is an argument."""

from penstock.client.pulsar.consumer import redelivery
from penstock.client.pulsar.consumer.redelivery import (
    DeadLetterCandidates,
    NegativeAcks,
    UnackedTracker,
    dead_letter_properties,
    dead_letter_topic,
    retry_letter_topic,
    retry_properties,
)
from penstock.client.pulsar.message import MessageId, ReceivedMessage
from penstock.client.pulsar.options import DeadLetterPolicy, RedeliveryBackoff
from penstock.wire.pulsar.protocol_pb2 import MessageMetadata


def message(number=1, **properties):
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    for key, value in properties.items():
        metadata.properties.add(key=key, value=value)
    return ReceivedMessage("persistent://a/b/t", MessageId(3, number), b"x", metadata)


def test_what_is_not_acked_in_time_is_due_once():
    tracker = UnackedTracker(100)
    tracker.add((1, 1), 0)
    tracker.add((1, 2), 50)
    tracker.add((1, 3), 50)
    tracker.remove((1, 3))
    assert tracker.due(99) == []
    assert tracker.due(100) == [(1, 1)]
    assert tracker.due(1_000) == [(1, 2)]
    assert tracker.due(9_000) == []


def test_of_a_batch_the_last_message_received_counts():
    tracker = UnackedTracker(100)
    tracker.add((1, 1), 0)
    tracker.add((1, 1), 60)
    assert tracker.due(120) == []
    assert tracker.due(160) == [(1, 1)]


def test_a_cumulative_ack_removes_all_before():
    tracker = UnackedTracker(1)
    for entry in range(4):
        tracker.add((1, entry), 0)
    tracker.remove_up_to((1, 2))
    assert tracker.due(10) == [(1, 3)]


def test_the_tracker_has_a_bound(monkeypatch):
    monkeypatch.setattr(redelivery, "TRACKED_MAX", 2)
    tracker = UnackedTracker(1)
    for entry in range(5):
        tracker.add((1, entry), 0)
    assert (len(tracker), tracker.dropped) == (2, 3)


def test_what_was_given_back_is_due_after_the_delay():
    negatives = NegativeAcks(100)
    negatives.add((1, 1), 0, 0)
    negatives.add((1, 1), 0, 50)
    negatives.add((1, 2), 0, 10)
    negatives.add((1, 3), 0, 10)
    negatives.remove((1, 3))
    assert (negatives.due(99), negatives.next_ms) == ([], 100)
    assert negatives.due(110) == [(1, 1), (1, 2)]
    assert negatives.next_ms is None


def test_what_is_given_back_and_acked_again_and_again_takes_no_room():
    negatives = NegativeAcks(60_000)
    for number in range(10_000):
        negatives.add((1, number), 0, number)
        negatives.remove((1, number))
    assert len(negatives) == 0
    assert len(negatives._deadlines.heap) < 100


def test_negative_acks_have_a_bound(monkeypatch):
    monkeypatch.setattr(redelivery, "TRACKED_MAX", 2)
    negatives = NegativeAcks(100)
    for entry in range(5):
        negatives.add((1, entry), 0, 0)
    assert negatives.due(100) == [(1, 0), (1, 1)]


def test_a_backoff_grows_with_every_redelivery():
    backoff = RedeliveryBackoff(min_ms=10, max_ms=60, multiplier=2)
    assert [backoff.delay_ms(n) for n in (0, 1, 2, 3, 10_000)] == [10, 20, 40, 60, 60]
    negatives = NegativeAcks(1, backoff)
    negatives.add((1, 1), 2, 0)
    assert negatives.due(39) == []
    assert negatives.due(40) == [(1, 1)]


def test_a_message_is_handed_out_until_it_came_more_often_than_allowed():
    letters = DeadLetterCandidates(DeadLetterPolicy(redeliveries_max=2))
    one = message()
    assert [letters.judge([one], count) for count in (0, 1, 2, 3)] == [False, False, False, True]
    assert letters.take((3, 1)) == [one]
    assert (letters.take((3, 1)), len(letters)) == ([], 0)


def test_what_was_acked_is_no_dead_letter():
    letters = DeadLetterCandidates(DeadLetterPolicy(redeliveries_max=1))
    letters.judge([message()], 1)
    letters.settled(MessageId(3, 1))
    assert letters.take((3, 1)) == []


def test_candidates_have_a_bound_and_beyond_it_messages_are_handed_out(monkeypatch):
    monkeypatch.setattr(redelivery, "DEAD_CANDIDATES_MAX", 1)
    letters = DeadLetterCandidates(DeadLetterPolicy(redeliveries_max=1))
    assert letters.judge([message(1)], 2)
    assert not letters.judge([message(2)], 2)


def test_a_letter_says_where_it_was_first():
    told = dead_letter_properties(message(REAL_TOPIC="first", a="b"))
    assert (told["REAL_TOPIC"], told["a"]) == ("first", "b")
    assert told["ORIGIN_MESSAGE_ID"] == "3:1:-1"


def test_a_retry_letter_counts_how_often_it_was_consumed():
    told, times = retry_properties(message(), "s", 500)
    assert (times, told["RECONSUMETIMES"], told["DELAY_TIME"]) == (1, "1", "500")
    assert retry_properties(message(RECONSUMETIMES="4"), "s", 1)[1] == 5
    assert retry_properties(message(RECONSUMETIMES="many"), "s", 1)[1] == 1


def test_topics_of_letters_are_named_as_javas_client_names_them():
    policy = DeadLetterPolicy()
    assert dead_letter_topic(policy, "t", "s") == "t-s-DLQ"
    assert retry_letter_topic(policy, "t", "s") == retry_letter_topic(None, "t", "s") == "t-s-RETRY"
    given = DeadLetterPolicy(dead_letter_topic="d", retry_letter_topic="r")
    assert (dead_letter_topic(given, "t", "s"), retry_letter_topic(given, "t", "s")) == ("d", "r")
