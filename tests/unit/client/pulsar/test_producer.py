"""The producer as programs use it: its bound, its ways to send, its partitions; no socket."""

import asyncio
import threading

import pytest

from kit.client.pulsar_producer import FakeCluster
from penstock.client.loop import client_loop
from penstock.client.pulsar.compression import Compression
from penstock.client.pulsar.errors import InvalidUse, StateError, TimedOut, WouldBlock
from penstock.client.pulsar.message import Message, MessageId
from penstock.client.pulsar.producer import Producer
from penstock.client.pulsar.schema import SchemaMismatch, StringSchema
from penstock.client.pulsar.topics import parse_topic
from penstock.client.pulsar.why import Waits
from penstock.testing.clock import ManualClock
from penstock.wire.pulsar.frames import ServerError

WAIT_S = 10


class Scene:
    """A producer on the client's thread, and its broker."""

    def __init__(self, *, partitions=0, schema=None, **options):
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.broker = self.cluster.broker
        self.cluster.partition_count = partitions
        self.closed = []
        options.setdefault("batching_enabled", False)
        self.producer = Producer(
            self.cluster, parse_topic("t"), schema=schema, on_closed=self.closed.append, **options
        )
        client_loop().run(self.producer.open())

    def on_loop(self, call, *args):
        """Run it on the client's thread, behind what was handed to it before."""

        async def run():
            # What callers hand over is begun in the turn after the one it arrives in.
            for _ in range(3):
                await asyncio.sleep(0)
            return call(*args)

        return client_loop().run(run())

    def confirm(self, count=None):
        self.on_loop(self.broker.confirm, count)

    def sent(self):
        return self.on_loop(lambda: [each.payload for each in self.broker.sends])

    def late(self, ms):
        """Time passes, and the producer looks at it."""
        self.clock.advance(ms)
        self.on_loop(self.producer._time_is_up)


@pytest.fixture
def scene():
    made = []

    def make(**options):
        made.append(Scene(**options))
        return made[-1]

    yield make
    for each in made:
        each.on_loop(lambda one=each: one.broker.confirm())
        each.producer.close()


def in_thread(call, *args, **fields):
    """What a blocking call gives, or raises, in another thread."""
    outcome = []

    def run():
        try:
            outcome.append(call(*args, **fields))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.outcome = outcome
    return thread


def test_send_waits_for_the_receipt(scene):
    bench = scene()
    thread = in_thread(bench.producer.send, b"x", key="k")
    while not bench.sent():
        pass
    assert thread.is_alive()
    bench.confirm()
    thread.join(WAIT_S)
    assert thread.outcome == [MessageId(3, 0)]


def test_callbacks_get_ids_and_give_their_room_back(scene):
    bench = scene(max_pending_messages=2)
    heard = []
    done = threading.Event()
    bench.producer.send_callback(b"a", heard.append)
    bench.producer.send_callback(b"b", lambda each: (heard.append(each), done.set()))
    assert bench.sent() == [b"a", b"b"]
    bench.confirm()
    assert done.wait(WAIT_S)
    assert heard == [MessageId(3, 0), MessageId(3, 1)]
    assert bench.producer.statistics().pending_messages == 0


def test_a_full_producer_blocks_until_a_receipt_comes(scene):
    bench = scene(max_pending_messages=1)
    bench.producer.send_callback(b"a")
    thread = in_thread(bench.producer.send_callback, b"b")
    while not bench.producer.statistics().waiting:
        pass
    assert thread.is_alive()
    assert bench.sent() == [b"a"]
    why = bench.producer.why()
    assert why.reason is Waits.RECEIPTS
    assert "sends that wait for room: 1, the first since 0.0 s" in str(bench.producer)
    assert "1 of 1 messages" in str(why)
    bench.confirm()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert bench.sent() == [b"b"]


def test_a_full_producer_refuses_if_it_is_told_to(scene):
    bench = scene(max_pending_messages=1, block_if_queue_full=False)
    bench.producer.send_callback(b"a")
    with pytest.raises(WouldBlock, match="1 of 1 messages"):
        bench.producer.send(b"b")
    assert bench.producer.statistics().refused == 1
    bench.confirm()
    bench.on_loop(lambda: None)
    bench.producer.send_callback(b"c")
    assert bench.sent() == [b"c"]


def test_bytes_are_bounded_too(scene):
    bench = scene(max_pending_bytes=100, block_if_queue_full=False)
    bench.producer.send_callback(bytes(60))
    with pytest.raises(WouldBlock, match="60 of 100 bytes"):
        bench.producer.send_callback(bytes(41))


def test_who_waits_for_room_for_too_long_is_told(scene):
    bench = scene(max_pending_messages=1, send_timeout_ms=1000)
    bench.producer.send_callback(b"a")
    thread = in_thread(bench.producer.send, b"b")
    while not bench.producer.statistics().waiting:
        pass
    bench.late(1000)
    thread.join(WAIT_S)
    assert isinstance(thread.outcome[0], TimedOut)
    assert "1000 ms" in str(thread.outcome[0])


def test_a_send_that_nobody_confirms_is_too_late_and_its_room_is_free(scene):
    bench = scene(send_timeout_ms=1000)
    heard = []
    bench.producer.send_callback(b"a", heard.append)
    bench.sent()
    bench.late(999)
    assert heard == []
    bench.late(1)
    while not heard:
        pass
    assert isinstance(heard[0], TimedOut)
    assert bench.producer.statistics().failed == 1
    while bench.producer.statistics().pending_messages:
        pass


def test_awaited_sends_stand_in_line_and_keep_their_order(scene):
    bench = scene(max_pending_messages=2)

    async def main():
        futures = [bench.producer.send_async(b"%d" % number) for number in range(6)]
        while not all(each.done() for each in futures):
            await asyncio.to_thread(bench.confirm)
        return [each.result() for each in futures]

    assert asyncio.run(main()) == [MessageId(3, number) for number in range(6)]


def test_a_schema_makes_the_bytes_and_refuses_what_it_cannot(scene):
    bench = scene(schema=StringSchema())
    bench.producer.send_callback("Grüße")
    assert bench.sent() == ["Grüße".encode()]
    with pytest.raises(SchemaMismatch, match="takes a str"):
        bench.producer.send(b"x")


def test_a_message_or_its_fields_but_not_both(scene):
    bench = scene()
    bench.producer.send_callback(Message(b"x", key="k"))
    assert bench.sent() == [b"x"]
    with pytest.raises(InvalidUse, match="not both"):
        bench.producer.send(Message(b"x"), key="k")
    with pytest.raises(SchemaMismatch, match="bytes, not str"):
        bench.producer.send("text")


def test_keys_go_to_their_partition_and_the_rest_takes_turns(scene):
    bench = scene(partitions=3)
    assert bench.producer.partitions == 3
    for _ in range(2):
        bench.producer.send_callback(b"keyed", key="a")
    for _ in range(3):
        bench.producer.send_callback(b"not")
    sent = bench.on_loop(
        lambda: [(each.command.producer_id, each.payload) for each in bench.broker.sends]
    )
    assert [at for at, payload in sent if payload == b"keyed"] == [97 % 3] * 2
    assert sorted(at for at, payload in sent if payload == b"not") == [0, 1, 2]


def test_a_function_of_the_users_decides_on_the_callers_thread(scene):
    threads = []

    def choose(message, count):
        threads.append(threading.current_thread())
        return len(message.value) % count

    bench = scene(partitions=3, routing=choose)
    bench.producer.send_callback(b"four")
    assert threads == [threading.current_thread()]
    sent = bench.on_loop(lambda: [each.command.producer_id for each in bench.broker.sends])
    assert sent == [1]


def test_partitions_that_are_added_get_messages_too(scene):
    bench = scene(partitions=1)
    bench.cluster.partition_count = 3
    client_loop().run(bench.producer._look_for_partitions())
    assert bench.producer.partitions == 3
    for number in range(3):
        bench.producer.send_callback(b"%d" % number)
    ids = bench.on_loop(lambda: {each.command.producer_id for each in bench.broker.sends})
    assert len(ids) == 3


def test_of_added_partitions_all_are_opened_or_none_is_left_behind(scene):
    bench = scene(partitions=1)
    bench.cluster.partition_count = 3
    bench.broker.refusals = [ServerError.ProducerBusy]
    client_loop().run(bench.producer._look_for_partitions())
    assert bench.producer.partitions == 1
    assert len(bench.broker.connection.owners) == 1
    client_loop().run(bench.producer._look_for_partitions())
    assert bench.producer.partitions == len(bench.broker.connection.owners) == 3


def test_partitions_that_are_opened_while_it_is_closed_are_closed_too(scene):
    bench = scene(partitions=1)
    bench.cluster.partition_count = 2
    connection = bench.broker.connection

    async def play():
        bench.broker.line = asyncio.get_running_loop().create_future()
        bench.producer._check_task = asyncio.create_task(bench.producer._look_for_partitions())
        while len(bench.broker.asked) < 2:
            await asyncio.sleep(0)
        await bench.producer.shut()
        bench.broker.line.set_result(None)
        while connection.owners:
            await asyncio.sleep(0)

    client_loop().run(play(), WAIT_S)


def test_all_partitions_together_have_a_bound(scene):
    bench = scene(partitions=3, max_pending_messages=2, max_pending_messages_across_partitions=5)
    assert bench.producer._room.messages_max == 5
    bench = scene(partitions=3, max_pending_messages=1)
    assert bench.producer._room.messages_max == 3


def test_close_flushes_and_tells_its_client(scene):
    bench = scene(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    bench.producer.send_callback(b"x")
    thread = in_thread(bench.producer.close)
    while not bench.sent():
        pass
    bench.confirm()
    thread.join(WAIT_S)
    assert bench.closed == [bench.producer]
    assert bench.producer.statistics().stored == 1
    with pytest.raises(StateError, match="is closed; make a new one"):
        bench.producer.send(b"x")
    bench.producer.close()
    assert bench.closed == [bench.producer]


@pytest.mark.parametrize("is_closing", [True, False])
def test_who_flushes_waits_for_those_without_room_too(scene, is_closing):
    bench = scene(max_pending_messages=2)

    async def main():
        producer = bench.producer
        sends = [producer.send_async(b"%d" % number) for number in range(7)]
        over = asyncio.ensure_future(
            producer.close_async() if is_closing else producer.flush_async()
        )
        while not over.done():
            await asyncio.to_thread(bench.confirm)
        await over
        return await asyncio.gather(*sends)

    assert asyncio.run(main()) == [MessageId(3, number) for number in range(7)]
    assert bench.producer.statistics().pending_messages == 0


def test_a_flush_that_is_given_up_sends_nothing_and_the_next_one_ends(scene):
    bench = scene(max_pending_messages=1)
    bench.producer.send_callback(b"a")
    waiting = in_thread(bench.producer.send_callback, b"b")
    while not bench.producer.statistics().waiting:
        pass

    async def give_up():
        flushing = asyncio.ensure_future(bench.producer._flush())
        await asyncio.sleep(0)
        flushing.cancel()

    bench.on_loop(lambda: None)
    client_loop().run(give_up())
    bench.confirm()
    waiting.join(WAIT_S)
    assert bench.sent() == [b"b"]
    bench.confirm()
    bench.producer.flush()
    assert bench.sent() == []
    assert bench.producer.statistics().pending_messages == 0


def test_who_waits_for_slow_callbacks_is_told_when_his_own_time_is_up(scene):
    bench = scene(max_pending_messages=1, send_timeout_ms=1000)
    gate = threading.Event()
    # Its room is free when its callback begins, behind one that lasts.
    bench.producer.send_callback(b"a", lambda _: gate.wait(WAIT_S))
    bench.sent()
    bench.confirm()
    while bench.producer.statistics().pending_messages:
        pass
    bench.producer.send_callback(b"b", print)
    bench.sent()
    bench.confirm()
    first = in_thread(bench.producer.send, b"c")
    while bench.producer.statistics().waiting < 1:
        pass
    bench.clock.advance(800)
    second = in_thread(bench.producer.send, b"d")
    while bench.producer.statistics().waiting < 2:
        pass
    bench.late(200)
    first.join(WAIT_S)
    assert isinstance(first.outcome[0], TimedOut)
    timer = bench.producer._timer
    assert timer.when() - client_loop().loop.time() <= 0.8
    bench.late(800)
    second.join(WAIT_S)
    assert isinstance(second.outcome[0], TimedOut)
    gate.set()


def test_send_on_the_clients_own_thread_would_wait_for_itself(scene):
    bench = scene()

    async def main():
        bench.producer.send(b"x")

    with pytest.raises(StateError, match="send_async"):
        client_loop().run(main())


def test_send_async_without_an_event_loop_says_what_to_use(scene):
    bench = scene()
    with pytest.raises(StateError, match=r"event loop; use send\(\) or send_callback"):
        bench.producer.send_async(b"x")


@pytest.mark.parametrize(("field", "told"), [("keys", "did you mean 'key'"), ("zzz", "known are")])
def test_a_field_that_no_message_has_is_told_with_the_nearest(scene, field, told):
    bench = scene()
    with pytest.raises(InvalidUse, match=f"'{field}' is no field of a message; {told}"):
        bench.producer.send(b"x", **{field: "a"})


def test_statistics_show_what_it_did_and_why_it_waits(scene):
    bench = scene(producer_name="me")
    bench.producer.send_callback(b"x")
    bench.sent()
    bench.confirm()
    bench.on_loop(lambda: None)
    found = bench.producer.statistics()
    assert (found.topic, found.name) == ("persistent://public/default/t", "me")
    assert (found.stored, found.entries, found.last_sequence_id) == (1, 1, 0)
    assert found.is_connected
    assert found.why.reason is Waits.NOTHING
    assert str(bench.producer) == (
        "producer of topic persistent://public/default/t: everything sent is confirmed"
    )
    assert repr(bench.producer) == "<Producer 'me' of persistent://public/default/t>"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"producer_name": " "}, "producer_name is blank"),
        ({"max_pending_messages": 0}, "at least 1"),
        ({"batching_max_bytes": -1}, "at least 1"),
        ({"compression": "zlib"}, "option compression is Compression.NONE or .*Compression.ZLIB"),
        ({"send_timeout_ms": 1.5}, "option send_timeout_ms is an int"),
        ({"send_timeout": 1}, "did you mean 'send_timeout_ms'"),
    ],
)
def test_wrong_options_are_told_before_anything_is_sent(options, told):
    cluster = FakeCluster(ManualClock())
    with pytest.raises((InvalidUse, TypeError, ValueError), match=told):
        Producer(cluster, parse_topic("t"), **options)
    assert cluster.broker.asked == []


def test_a_codec_that_is_missing_is_told_before_anything_is_sent(monkeypatch):
    monkeypatch.delitem(
        __import__("penstock.client.pulsar.compression", fromlist=["_CODECS"])._CODECS,
        Compression.LZ4,
    )
    with pytest.raises(InvalidUse, match="cramjam"):
        Producer(FakeCluster(ManualClock()), parse_topic("t"), compression=Compression.LZ4)
