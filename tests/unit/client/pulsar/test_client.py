"""The client: what it makes, what it refuses, and in which order it ends."""

import asyncio
import threading

import pytest

from kit.client.pulsar_consumer import TYPES, scene, until
from penstock.client.pulsar import (
    AccessMode,
    Client,
    InvalidUse,
    MessageId,
    StateError,
    SubscriptionType,
    TimedOut,
)
from penstock.wire.pulsar import protocol_pb2 as pb

SHARED = {"subscription_type": SubscriptionType.SHARED}


class Made:
    def __init__(self, name, order, *, is_first):
        self.name = name
        self.order = order
        self.is_closed_before_producers = is_first

    async def shut(self):
        self.order.append(self.name)
        if self.name == "broken":
            raise RuntimeError("it does not close")


def test_a_wrong_url_or_option_is_refused_at_once():
    with pytest.raises(InvalidUse, match="pulsar://host"):
        Client("localhost:6650")
    with pytest.raises(TypeError, match="did you mean 'operation_timeout_ms'"):
        Client("pulsar://h", operation_timeout=3)
    with pytest.raises(ValueError, match="at least 1"):
        Client("pulsar://h", connection_timeout_ms=0)


@scene
async def test_a_producer_asks_for_partitions_then_for_its_broker(bench):
    producer = await bench.client.create_producer_async("t")
    kinds = [each.type for each in bench.broker.commands]
    assert kinds == [
        TYPES.CONNECT, TYPES.PARTITIONED_METADATA, TYPES.LOOKUP, TYPES.PRODUCER,
    ]  # fmt: skip
    assert producer.name == "made-by-broker"


@scene
async def test_a_producer_has_properties_of_text_and_a_schema_that_is_one(bench):
    for options, told in (
        ({"properties": {"a": 1}}, "names and values are str"),
        ({"schema": "json"}, "a schema is"),
    ):
        with pytest.raises(InvalidUse, match=told):
            await bench.client.create_producer_async("t", **options)
    assert bench.broker.commands == []


@scene
async def test_consumers_are_closed_before_producers_and_one_that_fails_keeps_nobody(bench):
    order = []
    made = [
        Made("producer", order, is_first=False),
        Made("broken", order, is_first=True),
        Made("consumer", order, is_first=True),
    ]
    for each in made:
        bench.client._adopt(each)
    await bench.client.close_async()
    assert order == ["broken", "consumer", "producer"]
    await bench.client.close_async()
    assert order == ["broken", "consumer", "producer"]


@scene
async def test_partitions_of_a_topic_are_full_names(bench):
    bench.broker.partitions["persistent://public/default/t"] = 2
    found = await bench.client.get_topic_partitions_async("t")
    assert found == [f"persistent://public/default/t-partition-{n}" for n in range(2)]
    assert await bench.client.get_topic_partitions_async("u") == ["persistent://public/default/u"]
    await bench.client.close_async()
    with pytest.raises(StateError, match="closed"):
        await bench.client.get_topic_partitions_async("t")


@scene
async def test_a_consumer_that_was_closed_is_forgotten(bench):
    consumer = await bench.subscribe()
    assert "1 open" in str(bench.client)
    await consumer.close_async()
    await consumer.close_async()
    assert "0 open" in str(bench.client)


@scene
async def test_a_producer_that_is_given_up_in_line_takes_nobody_s_connection_along(bench):
    other = await bench.subscribe("other")
    bench.broker.held.add(TYPES.PRODUCER)
    creating = asyncio.ensure_future(
        bench.client.create_producer_async("t", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    )
    await until(lambda: bench.broker.waiting)
    number = bench.broker.all(TYPES.PRODUCER)[0].request_id
    bench.broker.say(
        TYPES.PRODUCER_SUCCESS, request_id=number, producer_name="p", producer_ready=False
    )
    await bench.settle()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await until(lambda: bench.broker.all(TYPES.CLOSE_PRODUCER))
    connection = bench.broker.transports[-1].connection
    assert connection._requests == {}
    bench.broker.say(TYPES.PRODUCER_SUCCESS, request_id=number, producer_name="p")
    await bench.settle()
    assert not connection.is_closed
    assert other.is_connected
    assert "1 open" in str(bench.client)


@scene
async def test_a_client_that_is_closed_waits_for_callbacks_and_leaves_no_thread(bench):
    producer = await bench.client.create_producer_async("t", batching_enabled=False)
    begun, go, heard = threading.Event(), threading.Event(), []

    def on_done(outcome):
        begun.set()
        go.wait(10)
        heard.append(outcome)

    producer.send_callback(b"x", on_done)
    await until(lambda: bench.broker.all(TYPES.SEND))
    thread = producer._callbacks._thread
    message_id = pb.MessageIdData(ledgerId=7, entryId=1)
    bench.broker.say(TYPES.SEND_RECEIPT, producer_id=0, sequence_id=0, message_id=message_id)
    await until(begun.is_set)
    closing = asyncio.ensure_future(bench.client.close_async())
    await until(lambda: bench.broker.transports[-1].is_closed)
    assert not closing.done()
    go.set()
    await closing
    assert heard == [MessageId(7, 1)]
    assert not thread.is_alive()


@pytest.mark.parametrize("closes", ["client", "producer"])
def test_a_send_that_is_closed_with_its_client_or_producer_is_called_back(closes):
    @scene
    async def play(bench):
        producer = await bench.client.create_producer_async(
            "t", batching_enabled=False, send_timeout_ms=1
        )
        heard = []
        producer.send_callback(b"x", heard.append)
        await (bench.client if closes == "client" else producer).close_async()
        (error,) = heard
        assert isinstance(error, (StateError, TimedOut))

    play()


@scene
async def test_a_client_that_is_closed_waits_for_listeners_which_can_ack_and_send(bench):
    begun, go, ended = threading.Event(), threading.Event(), []
    producer = await bench.client.create_producer_async("t", batching_enabled=False)

    def listener(consumer, message):
        begun.set()
        go.wait(10)
        producer.send_callback(message.data, ended.append)
        consumer.acknowledge(message)

    consumer = await bench.subscribe(listener=listener)
    await bench.settle()
    for body in (b"0", b"1"):
        bench.broker.deliver(body)
    await until(begun.is_set)
    closing = asyncio.ensure_future(asyncio.to_thread(bench.client.close))
    await until(lambda: consumer.inboxes[0].closed_why is not None)
    await bench.settle()
    assert not closing.done()
    assert bench.broker.all(TYPES.CLOSE_CONSUMER) == []
    go.set()
    await until(lambda: bench.broker.all(TYPES.SEND))
    message_id = pb.MessageIdData(ledgerId=7, entryId=1)
    bench.broker.say(TYPES.SEND_RECEIPT, producer_id=0, sequence_id=0, message_id=message_id)
    await closing
    assert bench.broker.acks == [[(7, 0)]]
    assert ended == [MessageId(7, 1)]


@scene
async def test_listeners_may_close_their_client_all_at_once(bench):
    together, closed = threading.Barrier(4, timeout=5), []

    def listener(consumer, message):
        together.wait()
        bench.client.close()
        closed.append(message.data)

    for name in ("a", "b"):
        await bench.subscribe("t", name, listener=listener, listener_threads=2, **SHARED)
        await bench.settle()
        for body in (b"0", b"1"):
            bench.broker.deliver(body)
    await until(lambda: len(closed) == 4)


@pytest.mark.parametrize("closes", ["client", "producer"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_may_close_what_called_it(closes, is_async):
    @scene
    async def play(bench):
        producer = await bench.client.create_producer_async("t", batching_enabled=False)
        it = bench.client if closes == "client" else producer
        closed = threading.Event()

        def on_done(outcome):
            if is_async:
                asyncio.run(it.close_async())
            else:
                it.close()
            closed.set()

        producer.send_callback(b"x", on_done)
        await until(lambda: bench.broker.all(TYPES.SEND))
        message_id = pb.MessageIdData(ledgerId=7, entryId=1)
        bench.broker.say(TYPES.SEND_RECEIPT, producer_id=0, sequence_id=0, message_id=message_id)
        await until(closed.is_set)

    play()
