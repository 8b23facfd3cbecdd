"""Laws of AMQP's bytes: what is written is what is read, and the short cuts change nothing."""

import random
import struct
from decimal import Decimal
from itertools import pairwise
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.format import decode as decode_entry
from penstock.log.format import encode as encode_entry
from penstock.wire.amqp.codes import FRAME_METHOD, AmqpError
from penstock.wire.amqp.frames import (
    HEARTBEAT,
    AckRun,
    AmqpFrames,
    Command,
    ContentAssembler,
    ContentRefused,
    PublishRun,
    SettleRun,
    content_frames,
    encode_frame,
    method_frame,
)
from penstock.wire.amqp.methods import basic, decode_method
from penstock.wire.amqp.methods.method import METHODS
from penstock.wire.amqp.origin import publish_head, publish_record
from penstock.wire.amqp.parser import AmqpParser
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.serializer import (
    DeliveryEncoder,
    ack_frame,
    get_ok_frames,
    nack_frame,
    return_frames,
)
from penstock.wire.amqp.table import (
    Timestamp,
    decode_table,
    encode_table,
    join_table,
    split_table,
)

NOW_MS = 1_700_000_000_000
FRAME_MAX = 4096
SHORT = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.floats(allow_nan=False),
    st.builds(lambda n, s: Decimal(n).scaleb(-s), st.integers(0, 2**32 - 1), st.integers(0, 20)),
    SHORT,
    st.binary(max_size=20),
    st.none(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=3),
    max_leaves=4,
)
TABLES = st.dictionaries(SHORT, VALUES, max_size=4)
WIRE_TYPES = {
    "B": st.integers(0, 2**8 - 1),
    "H": st.integers(0, 2**16 - 1),
    "I": st.integers(0, 2**32 - 1),
    "Q": st.integers(0, 2**64 - 1),
    "bit": st.booleans(),
    "short": SHORT,
    "long": st.binary(max_size=40),
    "table": TABLES,
}


def methods_of(kind):
    hints = kind.__annotations__
    return st.builds(kind, **{name: WIRE_TYPES[get_args(h)[1]] for name, h in hints.items()})


PROPERTIES = st.builds(
    Properties,
    content_type=st.none() | st.sampled_from(["text/plain", "application/json"]),
    content_encoding=st.none() | SHORT,
    headers=st.none() | TABLES,
    delivery_mode=st.none() | st.integers(0, 3),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | SHORT,
    reply_to=st.none() | SHORT,
    expiration=st.none() | st.sampled_from(["0", "60000", "-1", "soon", "99999999999"]),
    message_id=st.none() | SHORT,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | SHORT,
    user_id=st.none() | SHORT,
    app_id=st.none() | SHORT,
    cluster_id=st.none() | SHORT,
)


@settings(max_examples=400)
@given(st.sampled_from(list(METHODS.values())).flatmap(methods_of))
def test_every_method_is_read_as_it_was_written(method):
    assert decode_method(method.encode()) == method


@given(TABLES)
def test_a_table_is_read_as_it_was_written(table):
    raw = encode_table(table)
    assert decode_table(raw) == (table, len(raw))
    assert join_table(split_table(raw)) == raw


@given(PROPERTIES)
def test_properties_are_read_as_they_were_written(properties):
    assert decode_properties(encode_properties(properties)) == properties


# The way in, against the general decoder.


def publish(channel, head, raw, body):
    front = method_frame(channel, basic.Publish(0, *head))
    return front + content_frames(channel, raw, body, FRAME_MAX)


BODIES = st.one_of(
    st.just(b"x" * 32), st.just(b"y" * 32), st.binary(max_size=40), st.just(bytes(9000))
)
NAMES = [("", "q"), ("ex", "a.b"), ("ex", "a.c", True), ("ex", "", False, True)]
HEADS = st.sampled_from(NAMES)


class Sender:
    """A client that sends rows of publishes much like each other, and other things between them.

    From a seed and not drawn: Hypothesis would need seconds for what this takes milliseconds.
    """

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def stream(self):
        kinds = [self.row, self.row, self.mixture, self.acks, self.others]
        return b"".join(
            piece
            for _ in range(self.chance.randint(1, 5))
            for piece in self.chance.choice(kinds)(self.chance.randint(1, 2))
        )

    def like(self):
        choice = self.chance.choice
        headers = {"trace": self.identity(), "n": choice([0, 0, 0, 1])}
        return Properties(
            content_type="text/plain",
            delivery_mode=choice([2, 2, 2, 1]),
            message_id=choice([self.identity(), "short"]),
            type=choice([None, "aa", "bb"]),
            expiration=choice([None, None, None, "5"]),
            timestamp=choice([None, None, 5, 6]),
            headers=choice([None, None, headers, {**headers, "CC": ["q"]}]),
        )

    def identity(self):
        return self.chance.randbytes(4).hex()

    def body(self):
        return self.chance.choice(
            [b"x" * 32, self.chance.randbytes(32), b"", b"short", bytes(9000)]
        )

    def row(self, channel):
        properties, size, head = self.like(), len(self.body()), self.chance.choice(NAMES)
        rows = []
        for _ in range(self.chance.randint(1, 60)):
            properties.message_id = self.identity()
            if self.chance.random() < 0.02:
                properties = self.like()
            rows.append(
                publish(channel, head, encode_properties(properties), self.chance.randbytes(size))
            )
        return rows

    def mixture(self, channel):
        choice = self.chance.choice
        return [
            publish(channel, choice(NAMES), encode_properties(self.like()), self.body())
            for _ in range(self.chance.randint(1, 8))
        ]

    def acks(self, channel):
        flags = [self.chance.random() < 0.2 for _ in range(self.chance.randint(1, 9))]
        tags = self.chance.choices(range(99), k=len(flags))
        said = [ack_frame(channel, t, is_multiple=f) for t, f in zip(tags, flags, strict=True)]
        if self.chance.random() < 0.5:
            return said
        kinds = [basic.Ack, basic.Nack, basic.Nack, basic.Reject]
        return said + [
            method_frame(channel, self.chance.choice(kinds)(t, self.chance.random() < 0.3))
            for t in self.chance.choices(range(99), k=self.chance.randint(1, 9))
        ]

    def others(self, channel):
        return [HEARTBEAT, method_frame(channel, basic.Get(queue="q"))]

    def cuts(self, size, count_max):
        return [self.chance.randint(0, size) for _ in range(self.chance.randint(0, count_max))]


def flat(events):
    found = []
    for event in events:
        if isinstance(event, PublishRun):
            found += [(event.channel, event.head, event.claims, r) for r in event.records]
        elif isinstance(event, AckRun):
            word = basic.Ack.method_id + event.is_multiple
            found += [(event.channel, tag, word) for tag in event.tags]
        elif isinstance(event, SettleRun):
            found += [(event.channel, *said) for said in zip(event.tags, event.words, strict=True)]
        elif isinstance(event, ContentRefused):
            found.append((event.channel, str(event.error)))
        else:
            assert isinstance(event, Command)
            found.append((event.channel, event.method))
    return found


def in_general(stream, message_bytes_max):
    """What the frames give one by one, and the error they end with."""
    frames = AmqpFrames(frame_max=FRAME_MAX, is_greeted=True)
    assembler = ContentAssembler(message_bytes_max=message_bytes_max)
    events = []
    frames.feed(stream)
    try:
        while found := frames.frames():
            for frame in found:
                event = assembler.take(*frame, NOW_MS)
                events += [] if event is None else [event]
    except AmqpError as problem:
        return flat(events), problem
    return flat(events), None


def in_flow(stream, cuts, message_bytes_max):
    inflow = AmqpParser(message_bytes_max=message_bytes_max, is_greeted=True)
    inflow.tune(FRAME_MAX)
    events = []
    for start, end in pairwise(sorted({0, *cuts, len(stream)})):
        events += inflow.feed(stream[start:end], NOW_MS)
        while inflow.has_more:
            events += inflow.feed(b"", NOW_MS)
    return flat(events), inflow.failure


def same(stream, cuts, message_bytes_max=1 << 20):
    general, problem = in_general(stream, message_bytes_max)
    hot, failure = in_flow(stream, cuts, message_bytes_max)
    assert hot == general
    assert str(failure) == str(problem)
    if problem is not None:
        places = [(each.code, each.channel, each.class_id) for each in (problem, failure)]
        assert places[0] == places[1]


SEEDS = st.integers(0, 2**32)


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_the_way_in_gives_what_the_general_decoder_gives_however_it_is_cut(seed):
    sender = Sender(seed)
    stream = sender.stream()
    same(stream, sender.cuts(len(stream), 12), sender.chance.choice([1 << 20, 31, 5000]))


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_the_same_when_one_octet_is_wrong(seed):
    sender = Sender(seed)
    stream = bytearray(sender.stream())
    at = sender.chance.randrange(len(stream))
    stream[at] = sender.chance.choice([0, 1, 2, 3, 8, 60, 0xCD, 0xFF])
    same_up_to_the_error(bytes(stream), sender.cuts(len(stream), 3))


def same_up_to_the_error(stream, cuts):
    """A frame that ends wrongly hides frames that came with it from the general decoder."""
    general, problem = in_general(stream, 1 << 20)
    hot, failure = in_flow(stream, cuts, 1 << 20)
    assert (failure is None) == (problem is None)
    assert hot[: len(general)] == general
    if problem is None:
        assert hot == general


def test_one_byte_at_a_time_gives_the_same():
    raw = encode_properties(Properties(delivery_mode=2, message_id="m"))
    stream = b"".join(publish(1, ("e", "k"), raw, b"body%d" % n) for n in range(5))
    same(stream, range(len(stream)))


# The way out.


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from([0, 256, 4096, 131072]))
def test_deliveries_carry_names_properties_and_bodies_as_they_came(seed, frame_max):
    sender = Sender(seed)
    published = in_general(sender.stream(), 1 << 20)[0]
    messages = [each for each in published if len(each) == 4]
    records = [record for *_, record in messages]
    flags = [sender.chance.random() < 0.5 for _ in records]
    encoded = DeliveryEncoder(3, "ctag", frame_max).encode(records, 77, flags)
    assert read_contents(encoded, frame_max) == [
        (
            basic.Deliver("ctag", 77 + number, flags[number], head.exchange, head.routing_key),
            record.properties,
            record.body,
        )
        for number, (_, head, _, record) in enumerate(messages)
    ]


def test_deliveries_of_an_empty_body_have_no_body_frame():
    record = record_of(("", "q"), bytes(2), b"")
    encoded = DeliveryEncoder(1, "c", 4096).encode([record], 1)
    assert read_contents(encoded, 4096) == [(basic.Deliver("c", 1, False, "", "q"), bytes(2), b"")]


@given(HEADS, PROPERTIES, BODIES)
def test_get_ok_and_return_carry_the_same(head, properties, body):
    record = record_of(head, encode_properties(properties), body)
    raw = get_ok_frames(1, record, 5, is_redelivered=True, messages=9, frame_max=4096)
    raw += return_frames(1, record, 312, "NO_ROUTE", 4096)
    contents = [encode_properties(properties), body]
    assert read_contents(raw, 4096) == [
        (basic.GetOk(5, True, head[0], head[1], 9), *contents),
        (basic.Return(312, "NO_ROUTE", head[0], head[1]), *contents),
    ]


def record_of(head, raw, body):
    payload = basic.Publish(0, *head).encode()
    return publish_record(publish_head(payload), raw, body, NOW_MS)


def read_contents(data, frame_max):
    """(method, properties, body) of each content; frames are no larger than negotiated."""
    frames = AmqpFrames(frame_max=131_072, is_greeted=True)
    frames.feed(data)
    found = []
    for kind, _, payload in frames.frames():
        is_body = kind == 3
        assert not is_body or not frame_max or len(payload) + 8 <= frame_max
        if kind == FRAME_METHOD:
            method = decode_method(payload)
        elif kind == 2:
            (size,) = struct.unpack_from(">Q", payload, 4)
            found.append((method, payload[12:], b""))
        else:
            found[-1] = (*found[-1][:2], found[-1][2] + payload)
            assert len(found[-1][2]) <= size
    return found


# In the log.


@given(HEADS, PROPERTIES, BODIES)
def test_a_record_survives_the_log_and_its_spans_point_at_what_they_name(head, properties, body):
    raw = encode_properties(properties)
    record = record_of(head, raw, body)
    assert record.body == body
    assert record.properties == raw
    assert record.tag == (properties.type or "").encode()
    if head[0]:
        assert record.key == head[1].encode()
    stored = decode_entry(encode_entry(record, [(7, 3)], 64, NOW_MS), 0, 64)[0]
    assert (stored.origin, stored.shape) == (record.origin, record.shape)


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1), st.booleans(), st.booleans())
def test_short_acks_and_nacks_are_those_of_the_table(channel, tag, many, requeue):
    ack = encode_frame(FRAME_METHOD, channel, basic.Ack(tag, many).encode())
    nack = encode_frame(FRAME_METHOD, channel, basic.Nack(tag, many, requeue).encode())
    assert ack_frame(channel, tag, is_multiple=many) == ack
    assert nack_frame(channel, tag, is_multiple=many, is_requeue=requeue) == nack
