"""Connections: CONNECT, requests, life signs, and when reading stops; no sockets."""

import asyncio

import pytest

from kit.client.pulsar_consumer import TYPES, ConsumerBench, scene, until
from penstock.client.pulsar.connection import KeepAlive, addresses_of
from penstock.client.pulsar.errors import (
    InvalidUse,
    NotPulsar,
    Refused,
    StateError,
    TimedOut,
    Unreachable,
    WouldBlock,
)
from penstock.client.pulsar.message import MessageId
from penstock.client.pulsar.topics import parse_topic
from penstock.wire.pulsar import protocol_pb2 as pb
from penstock.wire.pulsar.frames import NO_ID, ServerError

ID = pb.MessageIdData(ledgerId=7, entryId=1)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("pulsar://h", ["h:6650"]),
        ("pulsar://h:1/", ["h:1"]),
        ("pulsar://a:1,b", ["a:1", "b:6650"]),
        ("pulsar://[::1]:7", ["[::1]:7"]),
        ("pulsar://[::1]", ["[::1]:6650"]),
    ],
)
def test_addresses_of_a_service_url(url, found):
    assert addresses_of(url) == found


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6650", "http://h", "pulsar://", "pulsar://h:x", "pulsar://a b:1", None, 5],
)
def test_what_is_no_service_url_is_refused_with_an_example(url):
    with pytest.raises(InvalidUse, match="host:"):
        addresses_of(url)


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_that_cannot_be_is_refused(port):
    with pytest.raises(InvalidUse, match=r"1\.\.65535"):
        addresses_of(f"pulsar://h:{port}")


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
def test_a_name_that_no_host_can_have_is_refused(host):
    with pytest.raises(InvalidUse, match="cannot be the name of a host"):
        addresses_of(f"pulsar://{host}:6650")


def test_a_topic_in_the_url_is_told_where_it_belongs():
    with pytest.raises(InvalidUse, match="a topic is named when something is opened"):
        addresses_of("pulsar://h:6650/orders")


def test_tls_is_not_spoken_and_says_so():
    with pytest.raises(InvalidUse, match="TLS"):
        addresses_of("pulsar+ssl://h:6651")


def test_a_ping_goes_out_in_each_interval_and_two_without_an_answer_are_the_end():
    life = KeepAlive(30_000)
    assert [life.tick(is_reading=True) for _ in range(6)] == [
        False,
        False,
        True,
        False,
        False,
        None,
    ]
    life = KeepAlive(30_000)
    for _ in range(4):
        life.heard()
        assert [life.tick(is_reading=True) for _ in range(3)] == [False, False, True]


def test_while_reading_is_stopped_silence_means_nothing_and_the_broker_hears_more_of_us():
    life = KeepAlive(30_000)
    assert [life.tick(is_reading=False) for _ in range(9)] == [True] * 9
    assert [life.tick(is_reading=True) for _ in range(3)] == [False, False, True]


@scene
async def test_a_ping_is_answered(bench):
    await bench.subscribe()
    bench.broker.say(TYPES.PING)
    await until(lambda: bench.broker.all(TYPES.PONG))


@scene
async def test_a_silent_broker_is_given_up_and_dialled_again(bench):
    await bench.client.close_async()
    bench.client = bench.make_client(keep_alive_interval_ms=15)
    await bench.subscribe()
    bench.broker.is_silent = True
    await until(lambda: bench.broker.transports[0].is_closed)
    assert bench.broker.all(TYPES.PING)
    # What it did not take would keep the socket for minutes.
    assert bench.broker.transports[0].is_aborted
    bench.broker.is_silent = False
    await until(lambda: len(bench.broker.transports) >= 2)


@scene
async def test_all_share_one_connection_and_equal_questions_are_asked_once(bench):
    await asyncio.gather(*[bench.subscribe("t", f"s{n}") for n in range(5)])
    assert len(bench.broker.transports) == 1
    assert len(bench.broker.all(TYPES.LOOKUP)) < 5
    assert len({each.consumer_id for each in bench.broker.subscribes}) == 5


@scene
async def test_a_request_without_an_answer_times_out_and_a_late_answer_is_ignored(bench):
    await bench.client.close_async()
    bench.client = bench.make_client(operation_timeout_ms=20)
    consumer = await bench.subscribe()
    bench.broker.held.add(TYPES.GET_LAST_MESSAGE_ID)
    with pytest.raises(TimedOut, match="last message id"):
        await consumer.last_message_id_async()
    bench.broker.release(TYPES.GET_LAST_MESSAGE_ID)
    await bench.settle()
    assert consumer.is_connected


@scene
async def test_what_the_socket_does_not_take_is_bounded(bench):
    await bench.client.close_async()
    bench.client = bench.make_client(unsent_bytes_max=1_000)
    consumer = await bench.subscribe()
    connection = bench.broker.transports[-1].connection
    connection.pause_writing()
    connection.write(bytes(1_001))
    with pytest.raises(WouldBlock, match=r"1001 bytes .* limits .* 1000 \(unsent_bytes_max\)"):
        await consumer.last_message_id_async()
    connection._out.clear()
    connection._out_bytes = 0
    connection.resume_writing()
    assert await consumer.last_message_id_async()


@scene
async def test_a_request_ends_with_its_connection(bench):
    consumer = await bench.subscribe()
    bench.broker.held.add(TYPES.GET_LAST_MESSAGE_ID)
    task = asyncio.ensure_future(consumer.last_message_id_async())
    await until(lambda: bench.broker.waiting)
    bench.broker.cut()
    with pytest.raises(Unreachable):
        await task


@scene
async def test_something_else_at_the_port_is_told_at_once(bench):
    bench.broker.told = lambda transport, command: transport.answer(b"AMQP\x00\x00\x09\x01")
    with pytest.raises(NotPulsar, match="6650"):
        await bench.subscribe()


@pytest.mark.parametrize("other", ["HTTP", "AMQP"])
def test_a_protocol_that_is_easily_told_is_named(other):
    @scene
    async def play(bench):
        bench.broker.told = lambda transport, command: transport.answer(other.encode() + bytes(9))
        with pytest.raises(NotPulsar, match=f"it speaks {other}; .*6650"):
            await bench.subscribe()

    play()


@scene
async def test_who_hangs_up_before_connected_may_be_something_else(bench):
    bench.broker.told = lambda transport, command: transport.connection.connection_lost(None)
    await bench.client.close_async()
    bench.client = bench.make_client(operation_timeout_ms=1)
    with pytest.raises((TimedOut, Unreachable), match=r"before it said CONNECTED.*6650"):
        await asyncio.gather(bench.subscribe(), _time_passes(bench))


@scene
async def test_a_broker_that_does_not_know_who_this_is_is_told_at_once(bench):
    bench.broker.refusals[TYPES.CONNECT] = [(ServerError.AuthenticationError, "Failed")]
    with pytest.raises(Refused, match="check the token"):
        await bench.subscribe()


@scene
async def test_the_next_address_is_tried_when_one_does_not_answer(bench):
    tried = []
    real = bench.broker.connect

    async def connect(connection, host, port):
        tried.append(host)
        if host == "away":
            raise OSError("refused")
        await real(connection, host, port)

    bench.broker.connect = connect
    await bench.client.close_async()
    client = ConsumerBench.make_client.__get__(bench)()
    client._cluster._addresses = ["away:1", "broker:6650"]
    bench.client = client
    await bench.subscribe()
    assert tried == ["away", "broker"]


@scene
async def test_many_who_find_one_address_away_at_once_all_find_the_next(bench):
    real = bench.broker.connect

    async def connect(connection, host, port):
        if host == "away":
            await bench.settle()
            raise OSError("refused")
        await real(connection, host, port)

    bench.broker.connect = connect
    await bench.client.close_async()
    client = ConsumerBench.make_client.__get__(bench)()
    client._cluster._addresses = ["away:1", "broker:6650"]
    bench.client = client
    names = [parse_topic(f"t{n}") for n in range(6)]
    found = await asyncio.gather(*[client._cluster.connect(name) for name in names])
    assert {each.address for each in found} == {"broker:6650"}


@pytest.mark.parametrize("kind", ["CONNECT", "PARTITIONED_METADATA", "LOOKUP", "SUBSCRIBE"])
@pytest.mark.parametrize("what", ["subscribe_async", "create_producer_async"])
def test_who_opens_something_while_the_client_is_closed_is_told_so(kind, what):
    @scene
    async def play(bench):
        command = getattr(TYPES, kind)
        names = ("t",)
        if what == "subscribe_async":
            names = ("t", "s")
        elif kind == "SUBSCRIBE":
            command = TYPES.PRODUCER
        bench.broker.held.add(command)
        opening = asyncio.ensure_future(getattr(bench.client, what)(*names))
        await until(lambda: bench.broker.waiting)
        await bench.client.close_async()
        with pytest.raises((StateError, Unreachable), match="closed"):
            await opening

    play()


@scene
async def test_an_absent_broker_is_waited_for_no_longer_than_an_operation_may_take(bench):
    await bench.client.close_async()
    bench.client = bench.make_client(operation_timeout_ms=1)
    bench.broker.is_away = True
    bench.clock.advance(0)
    with pytest.raises(TimedOut, match=r"1 ms: .*nobody is there; is a broker running there\?"):
        await asyncio.gather(bench.subscribe(), _time_passes(bench))


@scene
async def test_a_broker_that_comes_at_the_last_moment_of_an_operation_is_found(bench):
    tried = []
    real = bench.broker.connect

    async def connect(connection, host, port):
        tried.append(host)
        if len(tried) == 1:
            bench.clock.advance(59_999)
            raise OSError("not yet")
        await real(connection, host, port)

    await bench.client.close_async()
    bench.broker.connect = connect
    bench.client = bench.make_client(
        operation_timeout_ms=60_000, backoff_initial_ms=10_000, backoff_max_ms=10_000
    )
    assert (await bench.subscribe()).is_connected
    assert len(tried) == 2


async def _time_passes(bench):
    for _ in range(50):
        bench.clock.advance(10)
        await asyncio.sleep(0.001)


@scene
async def test_frames_for_who_was_closed_are_dropped(bench):
    consumer = await bench.subscribe()
    number = bench.part(consumer).consumer_id
    await consumer.close_async()
    bench.broker.deliver(b"x", consumer_id=number)
    bench.broker.say(TYPES.CLOSE_CONSUMER, consumer_id=99, request_id=NO_ID)
    await bench.settle()
    assert not bench.broker.transports[-1].is_closed


@scene
async def test_a_closed_client_leaves_no_connection(bench):
    await bench.subscribe()
    await bench.client.close_async()
    assert all(each.is_closed for each in bench.broker.transports)
    kinds = [each.type for each in bench.broker.commands]
    assert kinds[-1] == TYPES.CLOSE_CONSUMER


# ---- reading ------------------------------------------------------------------------------------


@scene
async def test_a_receipt_is_heard_although_a_consumer_with_a_full_queue_had_stopped_reading(bench):
    consumer = await bench.subscribe(receiver_queue_bytes_max=100)
    producer = await bench.client.create_producer_async("out", batching_enabled=False)
    await bench.settle()
    for _ in range(4):
        bench.broker.deliver(bytes(30), consumer_id=bench.part(consumer).consumer_id)
        await bench.settle(3)
    transport = bench.broker.transports[-1]
    assert not transport.is_reading
    sending = producer.send_async(b"x")
    await until(lambda: bench.broker.all(TYPES.SEND))
    bench.broker.say(TYPES.SEND_RECEIPT, producer_id=0, sequence_id=0, message_id=ID)
    assert await asyncio.wait_for(sending, 5) == MessageId(7, 1)
    await until(lambda: not transport.is_reading)


class Late:
    """A consumer that is full, and for which a thread begins to wait while reading is stopped."""

    holds_reading = True

    def __init__(self, connection):
        self.connection = connection
        self.waits = self.has_told = False

    @property
    def awaits_answer(self):
        waited, self.waits = self.waits, True
        if not waited:
            self.has_told = not self.connection.is_reading
        return waited

    def received(self, frames): ...

    def connection_lost(self, connection, why): ...


@scene
async def test_who_begins_to_wait_just_while_reading_is_stopped_is_not_kept_waiting(bench):
    await bench.subscribe()
    await bench.settle()
    transport = bench.broker.transports[-1]
    late = Late(transport.connection)
    transport.connection.add_consumer(99, late)
    bench.broker.deliver(b"x", consumer_id=99)
    await until(lambda: late.waits)
    assert not late.has_told
    assert transport.is_reading
    assert transport.connection.is_reading


class Idle:
    """A consumer with room; it counts how often it is asked."""

    awaits_answer = False

    def __init__(self):
        self.asked = 0

    @property
    def holds_reading(self):
        self.asked += 1
        return False

    def received(self, frames): ...

    def connection_lost(self, connection, why): ...


@scene
async def test_of_thousands_on_a_connection_only_those_are_asked_for_room_that_got_something(bench):
    consumer = await bench.subscribe(receiver_queue_size=2)
    await bench.settle()
    transport = bench.broker.transports[-1]
    idle = Idle()
    transport.connection.add_consumer(99, idle)
    for _ in range(4):
        bench.broker.deliver(b"x", consumer_id=bench.part(consumer).consumer_id)
    await bench.receive(consumer, 4)
    await consumer.last_message_id_async()
    await bench.settle()
    assert idle.asked == 0
    bench.broker.deliver(b"x", consumer_id=99)
    await until(lambda: idle.asked == 1)


@scene
async def test_a_read_for_many_consumers_is_reviewed_once(bench):
    name = "persistent://public/default/t"
    bench.broker.partitions[name] = 20
    consumer = await bench.subscribe("t")
    await bench.settle()
    connection = bench.broker.transports[-1].connection
    reviews = []
    review = connection.review_reading
    connection.review_reading = lambda: reviews.append(review())
    with bench.broker.one_read():
        for part in list(consumer._parts.values()):
            bench.broker.deliver(b"x", consumer_id=part.consumer_id)
    await bench.settle()
    assert consumer.statistics().queued == 20
    assert len(reviews) == 1


@scene
async def test_reading_that_many_partitions_stopped_goes_on_with_one_review(bench):
    bench.broker.partitions["persistent://public/default/t"] = 20
    consumer = await bench.subscribe("t", receiver_queue_bytes_max=10)
    await bench.settle()
    transport = bench.broker.transports[-1]
    with bench.broker.one_read():
        for part in list(consumer._parts.values()):
            bench.broker.deliver(b"x", consumer_id=part.consumer_id)
    await until(lambda: not transport.is_reading)
    reviews = []
    review = transport.connection.review_reading
    transport.connection.review_reading = lambda: reviews.append(review())
    await bench.receive(consumer, 20)
    await until(lambda: transport.is_reading)
    assert len(reviews) <= 2
