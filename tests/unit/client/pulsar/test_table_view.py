"""A topic as a map; no socket."""

import asyncio
import threading

import pytest

from penstock.client.pulsar.errors import StateError, TimedOut, WouldBlock
from penstock.client.pulsar.message import MessageId, ReceivedMessage
from penstock.client.pulsar.schema import StringSchema
from penstock.client.pulsar.table_view import TableView
from penstock.client.pulsar.why import Waits, Why
from penstock.wire.pulsar import protocol_pb2 as pb


class FakeConsumer:
    """What a table view asks of a consumer."""

    what = "consumer"

    def __init__(self, **ends):
        self.ends = ends
        self.acked = []
        self.messages = 0
        self.reason = Waits.MESSAGES

    async def last_message_ids_async(self):
        return self.ends

    def statistics(self):
        return self

    def why(self):
        return Why(self.reason, "as it is")

    def acknowledge_cumulative(self, message):
        self.acked.append(message.message_id)


def message(entry, key, value=b"v", topic="t"):
    said = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if key is not None:
        said.partition_key = key
    if value is None:
        said.null_value = True
    return ReceivedMessage(topic, MessageId(1, entry), value or b"", said, schema=StringSchema())


class ClosedConsumer(FakeConsumer):
    def acknowledge_cumulative(self, message):
        raise StateError("it is closed")


@pytest.fixture
def view():
    return TableView("t", 3)


def fill(view, consumer, patience_ms=1000):
    asyncio.run(view.fill(consumer, patience_ms))


def test_the_newest_value_of_a_key_is_there_and_one_without_a_value_takes_it_out(view):
    consumer = FakeConsumer(t=MessageId(1, 3))
    view.take(consumer, message(0, "a", b"1"))
    view.take(consumer, message(1, "b", b"2"))
    view.take(consumer, message(2, "a", b"3"))
    view.take(consumer, message(3, "b", None))
    fill(view, consumer)
    assert dict(view) == {"a": "3"}
    assert view.snapshot() == {"a": "3"}
    assert ("a" in view, "b" in view, len(view)) == (True, False, 1)
    assert consumer.acked[-1] == MessageId(1, 3)
    assert repr(view) == "<table view of t, 1 keys>"


def test_messages_without_a_key_are_passed_over_but_seen(view):
    consumer = FakeConsumer(t=MessageId(1, 0))
    view.take(consumer, message(0, None))
    fill(view, consumer)
    assert dict(view) == {}


def test_a_value_that_cannot_be_read_takes_the_old_one_away(view):
    consumer = FakeConsumer(t=MessageId(1, 1))
    view.take(consumer, message(0, "a", b"1"))
    view.take(consumer, message(1, "a", b"\xff"))
    fill(view, consumer)
    assert dict(view) == {}


def test_listeners_hear_changes_and_their_errors_stay_with_them(view, caplog):
    consumer, heard = FakeConsumer(), []

    def fails(key, value):
        raise RuntimeError("the user's")

    view.take(consumer, message(0, "a", b"1"))
    view.listen(fails)
    view.for_each_and_listen(lambda key, value: heard.append((key, value)))
    view.take(consumer, message(1, "b", b"2"))
    view.take(consumer, message(2, "a", None))
    assert heard == [("a", "1"), ("b", "2"), ("a", None)]
    assert "listener failed" in caplog.text


def test_it_is_filled_when_every_partition_was_read_to_its_end(view):
    consumer = FakeConsumer(a=MessageId(1, 5), b=MessageId(1, 2), empty=MessageId(-1, -1))
    view.take(consumer, message(5, "x", topic="a"))

    async def scene():
        filling = asyncio.ensure_future(view.fill(consumer, 10_000))
        await asyncio.sleep(0)
        assert not filling.done()
        view.take(consumer, message(2, "y", topic="b"))
        await filling

    asyncio.run(scene())
    assert set(view) == {"x", "y"}


def test_nothing_more_within_its_patience_is_too_late(view):
    consumer = FakeConsumer(t=MessageId(1, 5))
    consumer.reason = Waits.CONNECTION
    with pytest.raises(TimedOut, match="filling of the table view of t"):
        fill(view, consumer, 10)


def test_what_was_compacted_away_is_not_waited_for(view, monkeypatch):
    monkeypatch.setattr("penstock.client.pulsar.table_view.COMPACTED_MS", 10)
    fill(view, FakeConsumer(t=MessageId(1, 5)), 100_000)
    assert dict(view) == {}


class SlowConsumer(FakeConsumer):
    """Of a broker that says nothing for a while, and then sends the rest."""

    view = None
    asked = 0

    async def last_message_ids_async(self):
        self.asked += 1
        if self.asked == 2:
            self.come(4, "a")
            asyncio.get_running_loop().call_later(0.005, self.come, 5, "b")
        return self.ends

    def come(self, entry, key):
        self.messages += 1
        self.view.take(self, message(entry, key))


def test_a_broker_that_takes_its_time_is_not_taken_for_one_that_has_no_more(view, monkeypatch):
    monkeypatch.setattr("penstock.client.pulsar.table_view.COMPACTED_MS", 10)
    consumer = SlowConsumer(t=MessageId(1, 5))
    consumer.view = view
    fill(view, consumer, 100_000)
    assert dict(view) == {"a": "v", "b": "v"}
    assert consumer.asked == 2


def test_more_keys_than_it_may_hold_end_it(view):
    consumer = FakeConsumer(t=MessageId(1, 9))
    for number, key in enumerate("abcd"):
        view.take(consumer, message(number, key))
    for use in (lambda: fill(view, consumer), lambda: len(view), lambda: view["a"]):
        with pytest.raises(WouldBlock, match="keys_max=3"):
            use()


def test_one_that_has_ended_tells_its_listeners_nothing_more(view):
    consumer, heard = FakeConsumer(), []
    view.listen(lambda key, value: heard.append(key))
    for number, key in enumerate("abcda"):
        view.take(consumer, message(number, key))
    assert heard == ["a", "b", "c"]


def test_a_listener_may_look_at_the_whole_table(view):
    consumer, heard = FakeConsumer(), []
    view.take(consumer, message(0, "a", b"1"))

    def look():
        view.for_each_and_listen(lambda key, value: heard.append(view.snapshot()))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(5)
    assert heard == [{"a": "1"}]


def test_one_that_is_not_open_says_so(view):
    with pytest.raises(StateError, match="is not open"):
        view.close()


def test_a_message_that_comes_while_it_is_closed_is_taken_quietly(view):
    view.take(ClosedConsumer(), message(0, "a"))
    assert dict(view) == {"a": "v"}
