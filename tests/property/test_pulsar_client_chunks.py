"""Chunks of a shared subscription, in any order, stored twice, over any number of cut connections.

Whatever comes when: at last each message is put together, and every copy of every chunk is acked.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.pulsar.consumer.entries import Chunks, Opened
from penstock.wire.pulsar.protocol_pb2 import MessageMetadata

CHUNKS = 3
ROUNDS = 12
LATER = st.lists(st.one_of(st.integers(0, 40), st.just("cut")), max_size=60)


def opened(message, number):
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=message,
        publish_time=message,
        uuid=f"p-{message}",
        chunk_id=number,
        num_chunks_from_msg=CHUNKS,
        total_chunk_msg_size=CHUNKS,
    )
    return Opened(metadata, b"%d" % number, 1, is_batch=False, is_chunk=True)


class Life:
    """What a broker stored, what the consumer has of it, and what is acked."""

    def __init__(self, doubles, pending_max):
        self.stored = {}
        for message, again in enumerate(doubles):
            # A producer whose connection was cut sends the whole message again.
            for number in [*range(again), *range(CHUNKS)]:
                self.stored[1, len(self.stored)] = message, number
        self.waiting = list(self.stored)
        self.whole = set()
        self.chunks = Chunks(pending_max=pending_max, bytes_max=1_000, expire_ms=1_000)
        self.unacked = set(self.stored)

    def deliver(self, at):
        entry = self.waiting.pop(at)
        message, number = self.stored[entry]
        found = self.chunks.add(opened(message, number), entry, 0)
        self.unacked -= set(self.chunks.take_doubles())
        if found is not None:
            assert found.payload == b"012"
            self.whole.add(message)
            self.unacked -= set(self.chunks.entries_of(entry))
            self.chunks.settled(entry)
        self.waiting += self.chunks.take_strays()

    def cut(self):
        """All that is not acked comes again."""
        self.chunks.clear()
        self.waiting = sorted(self.unacked)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, CHUNKS - 1), min_size=1, max_size=6), LATER, st.integers(2, 10))
def test_at_last_every_message_is_whole_and_every_copy_is_acked(doubles, steps, pending_max):
    life = Life(doubles, pending_max)
    for step in steps:
        if step == "cut":
            life.cut()
        elif life.waiting:
            life.deliver(step % len(life.waiting))
    for _ in range(ROUNDS):
        # As a broker brings what is asked for again: by position.
        life.waiting.sort()
        for _ in range(len(life.waiting)):
            life.deliver(0)
    assert life.whole == set(range(len(doubles)))
    assert life.unacked == set()
