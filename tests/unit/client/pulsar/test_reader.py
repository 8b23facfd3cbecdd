"""A reader is a consumer that leaves no trace; no socket."""

import asyncio

import pytest

from penstock.client.options import resolve
from penstock.client.pulsar.errors import StateError
from penstock.client.pulsar.message import MessageId, ReceivedMessage
from penstock.client.pulsar.options import ConsumerOptions
from penstock.client.pulsar.reader import Reader, ReaderOptions, reader_options, subscription_of
from penstock.client.pulsar.why import Waits, Why
from penstock.wire.pulsar import protocol_pb2 as pb


class FakePart:
    def __init__(self, has_more):
        self._has_more = has_more

    async def has_more(self):
        return self._has_more


class FakeConsumer:
    """What a reader asks of a consumer."""

    name = "me"
    topics = ("t",)
    is_connected = True

    def __init__(self, *messages, more=()):
        self.waiting = list(messages)
        self.more = more
        self.acked = []
        self.queued = 0
        self.sought = []

    def receive(self, timeout_ms=None):
        if not self.waiting:
            raise StateError("closed")
        return self.waiting.pop(0)

    async def receive_async(self, timeout_ms=None):
        return self.receive()

    def acknowledge_cumulative(self, message):
        self.acked.append(message.message_id)

    async def acknowledge_cumulative_async(self, message):
        self.acked.append(message.message_id)

    def parts(self):
        return [FakePart(each) for each in self.more]

    def statistics(self):
        return self

    def why(self):
        return Why(Waits.MESSAGES, "the broker has none")

    async def seek_async(self, target):
        self.sought.append(target)

    async def last_message_ids_async(self):
        return {"t": MessageId(1, 2)}

    def close(self):
        self.waiting.clear()


def message(entry):
    said = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return ReceivedMessage("t", MessageId(1, entry), b"%d" % entry, said)


def test_what_is_read_is_acknowledged_and_a_loop_ends_with_the_reader():
    consumer = FakeConsumer(message(0), message(1))
    reader = Reader(consumer)
    assert [each.data for each in reader] == [b"0", b"1"]
    assert consumer.acked == [MessageId(1, 0), MessageId(1, 1)]


def test_the_same_is_awaited():
    consumer = FakeConsumer(message(0))
    assert asyncio.run(Reader(consumer).read_next_async()).data == b"0"
    assert consumer.acked == [MessageId(1, 0)]


@pytest.mark.parametrize(("more", "expected"), [((), False), ((False, True), True)])
def test_it_has_more_when_one_of_its_partitions_has(more, expected):
    assert Reader(FakeConsumer(more=more)).has_message_available() is expected


def test_it_has_more_when_something_is_in_its_queue():
    consumer = FakeConsumer()
    consumer.queued = 1
    assert Reader(consumer).has_message_available()


def test_it_moves_and_shows_what_its_consumer_shows():
    consumer = FakeConsumer()
    with Reader(consumer) as reader:
        reader.seek(MessageId(1, 1))
        assert consumer.sought == [MessageId(1, 1)]
        assert reader.last_message_ids() == {"t": MessageId(1, 2)}
        assert reader.is_connected
        assert str(reader) == "reader 'me' of t: the broker has none"
        assert repr(reader) == f"<{reader}>"


def test_its_consumer_is_not_durable_and_begins_where_it_is_told():
    options = resolve(ReaderOptions, {"is_start_inclusive": True, "reader_name": "me"})
    found = resolve(ConsumerOptions, reader_options(MessageId(1, 2), options))
    assert found["is_durable"] is False
    assert found["start_message_id"] == MessageId(1, 2)
    assert found["is_start_inclusive"] is True
    assert found["consumer_name"] == "me"


def test_no_two_readers_have_one_subscription():
    assert subscription_of("reader") != subscription_of("reader")
    assert subscription_of("x").startswith("x-")
