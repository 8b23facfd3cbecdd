"""Acks in groups, and batches that are acked piece by piece."""

import pytest

from penstock.client.pulsar.consumer import acks
from penstock.client.pulsar.consumer.acks import AckGroup, bits_of, words_of
from penstock.client.pulsar.message import MessageId
from penstock.wire.pulsar.protocol_pb2 import CommandAck


def of_batch(index, size=3, entry=5):
    return MessageId(1, entry, -1, index, size)


def sent(group):
    """(type, [(entry, ack set)]) of each command."""
    found = []
    for command in group.flush(0):
        ids = [(each.entryId, list(each.ack_set)) for each in command.ack.message_id]
        found.append((command.ack.ack_type, ids))
    return found


def test_whole_entries_go_out_once_and_together():
    group = AckGroup(has_batch_index_acks=False)
    for entry in (3, 4, 3):
        assert group.add(MessageId(1, entry))
    assert group.is_acked((1, 3))
    assert sent(group) == [(CommandAck.Individual, [(3, []), (4, [])])]
    assert sent(group) == []


def test_a_batch_is_acked_when_all_of_it_is():
    group = AckGroup(has_batch_index_acks=False)
    assert [group.add(of_batch(n)) for n in (0, 2)] == [False, False]
    assert sent(group) == []
    assert group.add(of_batch(1))
    assert sent(group) == [(CommandAck.Individual, [(5, [])])]


def test_several_messages_of_a_batch_are_acked_at_once():
    group = AckGroup(has_batch_index_acks=True)
    assert not group.add(of_batch(0), 0b101)
    assert sent(group) == [(CommandAck.Individual, [(5, [0b010])])]
    assert group.add(of_batch(1), 0b010)
    assert sent(group) == [(CommandAck.Individual, [(5, [])])]


def test_with_index_acks_the_broker_hears_what_is_left():
    group = AckGroup(has_batch_index_acks=True)
    group.add(of_batch(0))
    assert sent(group) == [(CommandAck.Individual, [(5, [0b110])])]
    group.add(of_batch(2))
    assert sent(group) == [(CommandAck.Individual, [(5, [0b010])])]
    group.add(of_batch(1))
    assert sent(group) == [(CommandAck.Individual, [(5, [])])]


def test_what_comes_again_has_only_what_is_left():
    group = AckGroup(has_batch_index_acks=False)
    group.add(of_batch(0))
    assert group.arrived((1, 5), 3, []) == 0b110
    assert group.arrived((1, 5), 3, [0b011]) == 0b010
    assert group.arrived((1, 6), 3, []) == 0b111


def test_a_cumulative_ack_replaces_what_is_before_it():
    group = AckGroup(has_batch_index_acks=False)
    group.add(MessageId(1, 3))
    group.add(MessageId(1, 9))
    group.add_cumulative(MessageId(1, 7))
    group.add_cumulative(MessageId(1, 6))
    assert group.is_acked((1, 6))
    assert not group.is_acked((1, 8))
    assert sent(group) == [(CommandAck.Cumulative, [(7, [])]), (CommandAck.Individual, [(9, [])])]


def test_a_cumulative_ack_inside_a_batch_acks_what_is_before_the_batch():
    group = AckGroup(has_batch_index_acks=False)
    group.add_cumulative(of_batch(1))
    assert sent(group) == [(CommandAck.Cumulative, [(4, [])])]
    assert group.arrived((1, 5), 3, []) == 0b100
    group.add_cumulative(of_batch(2))
    assert sent(group) == [(CommandAck.Cumulative, [(5, [])])]


def test_a_cumulative_ack_inside_the_first_batch_has_nothing_before_it():
    group = AckGroup(has_batch_index_acks=False)
    group.add_cumulative(of_batch(1, entry=0))
    assert sent(group) == []


def test_with_index_acks_a_cumulative_ack_has_the_rest_of_the_batch():
    group = AckGroup(has_batch_index_acks=True)
    group.add_cumulative(of_batch(1))
    assert sent(group) == [(CommandAck.Cumulative, [(5, [0b100])])]


@pytest.mark.parametrize("has_index_acks", [True, False])
def test_a_batch_acked_one_by_one_from_behind_and_then_up_to_there_is_acked_whole(has_index_acks):
    group = AckGroup(has_batch_index_acks=has_index_acks)
    group.add(of_batch(2))
    group.add_cumulative(of_batch(1))
    before = 5 if has_index_acks else 4
    left = [0b100] if has_index_acks else []
    assert sent(group) == [
        (CommandAck.Cumulative, [(before, left)]),
        (CommandAck.Individual, [(5, [])]),
    ]


def test_a_batch_acked_in_part_and_then_up_to_its_end_is_acked_once():
    group = AckGroup(has_batch_index_acks=True)
    group.add(of_batch(0))
    group.add_cumulative(of_batch(2))
    assert sent(group) == [(CommandAck.Cumulative, [(5, [])])]


def test_after_a_reconnect_only_what_waits_to_be_sent_is_known():
    group = AckGroup(has_batch_index_acks=False)
    group.add(of_batch(0))
    group.add(MessageId(1, 9))
    group.reconnected()
    assert group.arrived((1, 5), 3, []) == 0b111
    assert group.is_acked((1, 9))
    group.add_cumulative(MessageId(1, 20))
    group.flush(0)
    group.reconnected()
    assert not group.is_acked((1, 10))


def test_many_acks_are_several_commands(monkeypatch):
    monkeypatch.setattr(acks, "IDS_PER_COMMAND", 2)
    group = AckGroup(has_batch_index_acks=False)
    group.add_entries([(1, n) for n in range(5)])
    assert [len(each.ack.message_id) for each in group.flush(0)] == [2, 2, 1]


def test_tables_have_bounds(monkeypatch):
    monkeypatch.setattr(acks, "BATCHES_MAX", 2)
    monkeypatch.setattr(acks, "PENDING_MAX", 2)
    group = AckGroup(has_batch_index_acks=False)
    for entry in range(4):
        group.add(of_batch(0, entry=entry))
    assert len(group._left) == 2
    group.add_entries([(9, n) for n in range(5)])
    assert (len(group), group.dropped) == (2, 3)


def test_a_batch_that_is_forgotten_is_not_told_of(monkeypatch):
    monkeypatch.setattr(acks, "BATCHES_MAX", 2)
    group = AckGroup(has_batch_index_acks=True)
    for entry in range(4):
        group.add(of_batch(0, entry=entry))
    assert sent(group) == [(CommandAck.Individual, [(2, [0b110]), (3, [0b110])])]


@pytest.mark.parametrize("bits", [0, 1, 2**63, 2**64, 2**130 - 1])
def test_words_are_bits_and_back(bits):
    assert bits_of(words_of(bits, 131)) == bits


def test_words_are_signed_as_java_has_them():
    assert words_of(2**64 - 1, 64) == [-1]
    assert bits_of([]) is None


def test_what_is_not_handed_out_of_a_batch_is_done_with():
    group = AckGroup(has_batch_index_acks=True)
    group.handed_out((1, 1), 4, 0b1100)
    assert group.arrived((1, 1), 4, ()) == 0b1100
    assert len(group) == 0
    assert not group.add(MessageId(1, 1, -1, 2, 4))
    (command,) = group.flush(5)
    assert list(command.ack.message_id[0].ack_set) == [0b1000]
    # It came again before that was heard.
    group.handed_out((1, 1), 4, 0b1100)
    assert group.add(MessageId(1, 1, -1, 3, 4))
    group.handed_out((1, 2), 4, 0)
    (command,) = group.flush(5)
    assert [(each.ledgerId, each.entryId) for each in command.ack.message_id] == [(1, 1), (1, 2)]
