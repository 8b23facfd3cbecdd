"""Acks of a batch, whatever part of it is handed out, in whichever order, however often it comes.

A broker hears that an entry is done with when everything that was handed out of it is acked, and
never before; of the pieces it hears what is left.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.pulsar.consumer.acks import AckGroup, bits_of
from penstock.client.pulsar.message import MessageId

ENTRY = (7, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.integers(0, 2**70 - 1)),
        st.tuples(st.just("come_again"), st.just(0)),
        st.tuples(st.just("flush"), st.just(0)),
    ),
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 70), st.integers(0, 2**70 - 1), st.booleans(), STEPS)
def test_a_batch_is_acked_when_all_that_was_handed_out_of_it_is(size, wanted, has_index, steps):
    group = AckGroup(has_batch_index_acks=has_index)
    wanted &= (1 << size) - 1
    group.handed_out(ENTRY, size, group.arrived(ENTRY, size, ()) & wanted)
    left, is_done = wanted, False
    for name, number in [*steps, ("ack", 2**70 - 1), ("flush", 0)]:
        if name == "ack":
            bits = number & left
            for index in range(size):
                if bits >> index & 1:
                    left &= ~(1 << index)
                    assert group.add(MessageId(*ENTRY, -1, index, size)) is (not left)
        elif name == "come_again" and not is_done and not group.is_acked(ENTRY):
            assert group.arrived(ENTRY, size, ()) & wanted == left
            group.handed_out(ENTRY, size, left)
        elif name == "flush":
            for command in group.flush(1):
                (said,) = command.ack.message_id
                assert (said.ledgerId, said.entryId) == ENTRY
                is_done = not said.ack_set
                assert bits_of(said.ack_set) == (left or None)
                assert not is_done or not left
        assert group.is_acked(ENTRY) or is_done or left
    assert is_done
