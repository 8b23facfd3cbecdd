"""Hostile Pulsar peers (T11, T12): whatever a connection hears, it answers or hangs up, and lives.

Commands are well framed and wrong inside: every type there is, with fields of any value, in any
order, for producers and consumers that are there and that are not; then frames with bytes changed,
cut and joined. A well-behaved client works beside them. ``--long`` runs a hundred times as many.
"""

import gc
import random
import struct
import tracemalloc

import pytest
from google.protobuf.descriptor import FieldDescriptor

from kit.pulsar.bench import PulsarBench, message_tail
from kit.pulsar.consumers import KINDS, Publisher, Subscriber
from kit.pulsar_payload import COMPRESSIONS, batch_tail, numbered_messages
from penstock.adapters.pulsar.naming import parse_name
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.wire.pulsar.frames import ServerError, encode, payload_frame
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

SEEDS = 6
COMMANDS = 500
GROWTH_BYTES_MAX = 8 << 20
NUMBERS = (0, 1, 2, 3, 7, 1000, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (
    "", "t", "there", "persistent://public/default/there", "persistent://public/default/lanes",
    "persistent://public/default/lanes-partition-1", "lanes-partition-9", "s", "u", "-partition-0",
    "non-persistent://public/default/passing", "per://x", "persistent://no/where/x", "a/b", "/",
    "://", "persistent://public/default/" + "x" * 3_000, "\u00fc\U0001f4a9", "\0", "x" * 300,
    "public/default", "public", ".*", "persistent://public/default/.*", "pulsar.dedup",
)  # fmt: skip
BYTES = (b"", b"x", b"\xff\xfe", bytes(8), bytes(300), b'{"type":"record"}', b'{"type":')
SERVED = frozenset(
    (
        "CONNECT", "SUBSCRIBE", "PRODUCER", "SEND", "ACK", "FLOW", "UNSUBSCRIBE", "CLOSE_PRODUCER",
        "CLOSE_CONSUMER", "PING", "PONG", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "LOOKUP", "SEEK",
        "PARTITIONED_METADATA", "CONSUMER_STATS", "GET_LAST_MESSAGE_ID", "GET_TOPICS_OF_NAMESPACE",
        "GET_SCHEMA", "GET_OR_CREATE_SCHEMA", "AUTH_RESPONSE", "TC_CLIENT_CONNECT_REQUEST",
        "WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_CLOSE",
    )
)  # fmt: skip
"""What clients may send: all other types are a broker's, or unknown."""
LIVELY = [*sorted(SERVED - {"CONNECT", "AUTH_RESPONSE"}), *["SUBSCRIBE", "PRODUCER", "FLOW"] * 2]
"""Those that do not always end the connection; most often those on which the others depend."""


def any_number(rng, kind):
    number = rng.choice(NUMBERS)
    signed = {
        FieldDescriptor.TYPE_INT32: 32, FieldDescriptor.TYPE_INT64: 64,
    }.get(kind)  # fmt: skip
    if signed:
        number %= 1 << signed
        return number - (1 << signed) if number >> (signed - 1) else number
    return number % (1 << 32) if kind == FieldDescriptor.TYPE_UINT32 else number


def any_value(rng, field, depth):
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice(BYTES)
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return rng.choice((0.0, -1.0, 1e300))
    return any_number(rng, field.type)


def fill(rng, message, depth=0):
    """Any values; ids mostly those of a few producers and consumers."""
    # Most of those that open something must get far.
    sparse = rng.choice((0.5, 0.9, 0.95))
    for field in message.DESCRIPTOR.fields:
        is_needed = field.is_required
        if not is_needed and rng.random() < sparse:
            continue
        if field.is_repeated:
            for _ in range(rng.randrange(3)):
                if field.message_type is not None:
                    fill(rng, getattr(message, field.name).add(), depth + 1)
                else:
                    getattr(message, field.name).append(any_value(rng, field, depth))
        elif field.message_type is not None:
            if depth < 3:
                part = getattr(message, field.name)
                part.SetInParent()
                fill(rng, part, depth + 1)
        elif field.name in ("producer_id", "consumer_id", "watcher_id"):
            setattr(message, field.name, rng.choice((1, 2, 3, 3, rng.choice(NUMBERS))))
        elif field.name == "messagePermits":
            setattr(message, field.name, rng.choice((1, 2, 5, 1000, 1000, rng.choice((0, 2**31)))))
        elif field.name in ("ledgerId", "entryId"):
            setattr(message, field.name, rng.choice((0, 1, 2, 5, rng.choice(NUMBERS))))
        elif field.name == "topic" and rng.random() < 0.6:
            setattr(message, field.name, "persistent://public/default/there")
        else:
            setattr(message, field.name, any_value(rng, field, depth))
    return message


def hostile(rng, kinds=LIVELY, request_id=None):
    """A command that no client would send."""
    kind = rng.choice(kinds)
    made = BaseCommand(type=kind)
    number = BaseCommand.Type.Value(kind)
    part = getattr(made, BaseCommand.DESCRIPTOR.fields_by_number[number].name)
    part.SetInParent()
    fill(rng, part)
    if request_id is not None and "request_id" in part.DESCRIPTOR.fields_by_name:
        part.request_id = request_id
    return made


def any_tail(rng):
    choice = rng.randrange(6)
    if choice == 0:
        return message_tail(rng.randrange(9), b"x")
    if choice == 1:
        return batch_tail(*numbered_messages(5), compression=rng.choice(COMPRESSIONS))
    if choice == 2:
        return message_tail(0, b"x", num_messages_in_batch=rng.choice((0, -1, 5, 2**31 - 1)))
    if choice == 3:
        return message_tail(
            0, b"x", deliver_at_time=rng.choice((-1, 2**63 - 1)), event_time=2**64 - 1,
            chunk_id=5, num_chunks_from_msg=2, uuid="u", partition_key="k",
        )  # fmt: skip
    if choice == 4:
        return rng.randbytes(rng.randrange(60))
    return b"\x0e\x01" + rng.randbytes(rng.randrange(30))


def framed(rng, command):
    if command.type == BaseCommand.SEND and rng.random() < 0.95:
        return b"".join(payload_frame(command.SerializeToString(), any_tail(rng)))
    return encode(command)


def dearly_set():
    """A broker with small limits: more of them are met."""
    return Settings(
        pulsar=PulsarSettings(max_producers_per_topic=3, max_consumers_per_subscription=3)
    )


@pytest.fixture
def bench():
    bench = PulsarBench(dearly_set())
    client = bench.client()
    client.call("PARTITIONED_METADATA", topic="there", request_id=1)
    Publisher(client, "there").publish_all(5, messages=2)
    Subscriber(client, "there", "s").opened()
    bench.broker.topics.create(parse_name("lanes"), 3)
    client.vanish()
    return bench


def request_of(command):
    for _, part in command.ListFields():
        found = getattr(part, "request_id", None)
        if found is not None:
            return found
    return None


def peer(bench, rng):
    """A client that begins as a good one, mostly: what follows then meets something alive."""
    client = bench.client()
    if rng.random() < 0.7:
        kind = rng.choice(KINDS)
        client.say("PRODUCER", topic="there", producer_id=1, request_id=0)
        client.say(
            "SUBSCRIBE", topic="there", subscription=f"s{kind}", subType=kind, consumer_id=2,
            request_id=0, initialPosition="Earliest",
        )  # fmt: skip
        bench.settle()
        client.say("FLOW", consumer_id=2, messagePermits=20)
        client.publish(1, 0, b"x", b"y")
    return client


class Honest:
    """A client that does what clients do, beside the others."""

    def __init__(self, bench):
        self.client = bench.client()
        self.publisher = Publisher(self.client, "honest")
        self.consumer = Subscriber(self.client, "honest", "mine").opened().flow(1_000_000)

    def works(self):
        self.client.say("PONG")
        sent = self.publisher.publish(b"honest")
        assert self.consumer.ids() == [sent]
        self.consumer.acked(sent)


@pytest.mark.parametrize("number", range(SEEDS))
def test_no_command_breaks_the_broker_and_none_is_answered_twice(bench, number, is_long):
    rng = random.Random(number)
    honest = Honest(bench)
    client = peer(bench, rng)
    answered, closed, codes, heard = {}, 0, set(), set()
    for request in range(1, COMMANDS * (100 if is_long else 1)):
        command = hostile(rng, request_id=request)
        client.raw(framed(rng, command))
        for each in client.commands():
            found = request_of(each)
            heard.add(each.type)
            if each.type in (BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER):
                continue
            if each.type == BaseCommand.ERROR:
                codes.add(ServerError(each.error.error))
            if found and each.type != BaseCommand.ACK_RESPONSE:
                answered[found] = answered.get(found, 0) + 1
        if client.is_closed:
            client.vanish()
            client = peer(bench, rng)
            closed += 1
        if request % 100 == 0:
            bench.pass_time(6_000)
            client.say("PONG")
            honest.works()
    # A producer that waited for its turn is told twice.
    assert max(answered.values()) <= 2
    assert len(answered) > COMMANDS // 5
    assert len(codes) >= 4
    assert heard >= {BaseCommand.SUCCESS, BaseCommand.PRODUCER_SUCCESS, BaseCommand.MESSAGE}
    assert closed
    honest.works()


@pytest.mark.parametrize("number", range(SEEDS))
def test_peers_that_leave_give_everything_back(bench, number, is_long):
    """Producers, consumers, waiting ones and watchers, whatever state they were in."""
    rng = random.Random(1_000 + number)
    for _ in range(20 * (100 if is_long else 1)):
        clients = [peer(bench, rng) for _ in range(3)]
        for step in range(60):
            client = rng.choice(clients)
            if not client.is_closed:
                client.raw(framed(rng, hostile(rng)))
            if step % 20 == 0:
                bench.settle()
        for client in clients:
            client.vanish()
        bench.settle()
        broker = bench.broker
        assert not broker.topics._used
        assert not broker.subscriptions._used
        assert not broker.connections
    for topic in bench.engine.topics():
        assert all(not each.consumers for each in topic.subscriptions.values())
    Honest(bench).works()


@pytest.mark.parametrize("kind", sorted(set(BaseCommand.Type.keys()) - SERVED))
def test_a_command_that_is_not_for_brokers_ends_its_connection_without_a_word(bench, kind):
    client = bench.client()
    client.raw(framed(random.Random(kind), hostile(random.Random(kind), [kind])))

    assert client.is_closed
    assert client.commands() == []


@pytest.mark.parametrize("kind", sorted(SERVED - {"CONNECT", "PING", "PONG"}))
def test_nothing_but_signs_of_life_is_served_before_connect(bench, kind):
    stranger = bench.stranger()
    stranger.raw(framed(random.Random(kind), hostile(random.Random(kind), [kind])))

    assert stranger.is_closed
    assert stranger.commands() == []
    assert not bench.broker.connections


@pytest.mark.parametrize("size", [0, 1, 3, 2**31 - 1, 2**31, 2**32 - 1, 5 * 2**20 + 10 * 2**10])
def test_lengths_that_cannot_be_end_the_connection_before_anything_is_allocated(bench, size):
    client = bench.client()
    tracemalloc.start()
    try:
        client.raw(struct.pack(">I", size))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert client.is_closed
    assert peak < 64 << 10
    Honest(bench).works()


def test_garbage_costs_its_connection_and_no_memory(bench, is_long):
    rng = random.Random(1)
    honest = Honest(bench)

    def round_of(count):
        for _ in range(count):
            client = bench.client()
            data = bytearray(
                b"".join([framed(rng, hostile(rng)) for _ in range(rng.randint(1, 4))])
            )
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            at = rng.randrange(len(data))
            client.raw(bytes(data[:at]))
            if not client.is_closed:
                client.raw(bytes(data[at:]))
            client.vanish()
        bench.clients.clear()
        gc.collect()

    round_of(200)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        round_of(300 * (100 if is_long else 1))
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < GROWTH_BYTES_MAX
    assert list(bench.broker.connections.values()) == [honest.client.connection]
    honest.works()


def test_frames_that_dribble_in_are_served_all_the_same(bench):
    rng = random.Random(5)
    whole, dribbling = bench.client(), bench.client()
    for _ in range(60):
        data = framed(rng, hostile(rng, ["LOOKUP", "PARTITIONED_METADATA", "GET_SCHEMA", "PING"]))
        whole.raw(data)
        for at in range(len(data)):
            dribbling.raw(data[at : at + 1])

        assert [each.SerializeToString() for each in dribbling.commands()] == [
            each.SerializeToString() for each in whole.commands()
        ]
