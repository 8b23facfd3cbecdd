"""What is read as a run is what protobuf reads from the same bytes, whatever they are."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kit.pulsar_payload import PRODUCER, PUBLISH_MS, PulsarMessage, batch_tail, single_tail
from penstock.wire.pulsar.frames import (
    NO_ID,
    AckRun,
    FrameError,
    FrameParser,
    SendRun,
    check,
    encode,
    payload_frame,
)
from penstock.wire.pulsar.metadata import make_record
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, CommandAck, CommandSend, MessageIdData
from penstock.wire.pulsar.runs import RunReader

NOW_MS = 1_700_000_000_000

numbers = st.one_of(
    st.integers(0, 3), st.integers(125, 131), st.integers(16_381, 16_387), st.integers(0, NO_ID)
)
ids = st.one_of(st.integers(0, 3), st.sampled_from((127, 128, 300, 2**63, NO_ID)))
small = st.binary(max_size=20)


seldom = st.integers(0, 9).map(lambda number: number == 0)


@st.composite
def tails(draw, number):
    fields = {"sequence_id": number, "publish_time": PUBLISH_MS + draw(st.integers(0, 2))}
    if draw(seldom):
        fields["sequence_id"] = draw(numbers)
    if draw(seldom):
        fields["publish_time"] = draw(st.one_of(st.integers(0, 300), st.integers(0, NO_ID)))
    if draw(seldom):
        fields["deliver_at_time"] = draw(st.integers(-(2**63), 2**63 - 1))
    if draw(seldom):
        fields["producer_name"] = draw(st.sampled_from(("", "p", PRODUCER[:-1] + "8")))
    message = PulsarMessage(
        draw(small),
        draw(st.sampled_from(("", "", "k1", "k2", "dal", "x" * 127, "x" * 128))),
        draw(st.sampled_from(({}, {}, {"TAGS": "t"}))),
        event_ms=draw(st.sampled_from((0, 0, 5, NOW_MS, NO_ID))),
    )
    has_crc = not draw(seldom)
    if draw(st.booleans()):
        return single_tail(message, has_crc=has_crc, **fields)
    more = [message] * draw(st.integers(0, 2))
    return batch_tail(message, *more, has_crc=has_crc, **fields)


@st.composite
def sends(draw):
    """Some of one producer."""
    producer_id, number = draw(ids), draw(numbers)
    found = []
    for _ in range(draw(st.integers(1, 5))):
        said = CommandSend(producer_id=producer_id, sequence_id=number)
        if draw(seldom):
            fields = ("num_messages", "highest_sequence_id", "txnid_least_bits", "is_chunk")
            setattr(said, draw(st.sampled_from(fields)), 1)
        command = BaseCommand(type=BaseCommand.SEND, send=said).SerializeToString()
        found += payload_frame(command, draw(tails(number)))
        number = min(number + draw(st.integers(0, 2)), NO_ID)
    return b"".join(found)


@st.composite
def acks(draw):
    """Some of one consumer."""
    consumer_id, ledger_id, entry = draw(ids), draw(ids), draw(numbers)
    found = []
    for _ in range(draw(st.integers(1, 5))):
        said = CommandAck(consumer_id=consumer_id, ack_type=CommandAck.Individual)
        for _ in range(draw(st.sampled_from((1, 1, 1, 0, 2, 5)))):
            said.message_id.append(MessageIdData(ledgerId=ledger_id, entryId=entry))
            entry = min(entry + draw(st.integers(0, 2)), NO_ID)
        if draw(seldom):
            said.ack_type = CommandAck.Cumulative
        if draw(seldom) and said.message_id:
            said.message_id[0].ack_set.append(3)
        if draw(seldom):
            said.request_id = 1
        found.append(encode(BaseCommand(type=BaseCommand.ACK, ack=said)))
    return b"".join(found)


@st.composite
def streams(draw):
    """What some producers and consumers say, and sometimes a byte of it is another."""
    parts = draw(st.lists(st.one_of(sends(), acks()), min_size=1, max_size=3))
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(parts), min_size=1, max_size=4))))
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def told(frames):
    """Every command as its facts, whether it was in a run or not."""
    found = []
    for frame in frames:
        if isinstance(frame, SendRun):
            for number, record in zip(frame.sequence_ids, frame.records, strict=True):
                found.append(("send", frame.producer_id, number, facts(record)))
        elif isinstance(frame, AckRun):
            found += [("ack", frame.consumer_id, frame.ledger_id, each) for each in frame.entries]
        else:
            found += told_of(*frame)
    return found


def facts(record):
    """All of it; of a key not where it is, as the same bytes may be in several places."""
    key = record.key
    record.reshape(key_at=0)
    return record, key


def told_of(command, tail):
    send, ack = command.send, command.ack
    if (
        command.type == BaseCommand.SEND
        and check(tail)
        and tail
        and not (send.txnid_most_bits or send.txnid_least_bits or send.is_chunk)
        and not send.highest_sequence_id
    ):
        record = make_record(tail, NOW_MS)
        return [("send", send.producer_id, send.sequence_id, facts(record))]
    if (
        command.type == BaseCommand.ACK
        and ack.ack_type == CommandAck.Individual
        and not (ack.HasField("request_id") or ack.txnid_most_bits or ack.txnid_least_bits)
        and not any(each.ack_set for each in ack.message_id)
        and not tail
    ):
        return [("ack", ack.consumer_id, each.ledgerId, each.entryId) for each in ack.message_id]
    return [(command, tail)]


def feed(parser, pieces):
    """What comes of some reads, and how it ends."""
    found = []
    try:
        for piece in pieces:
            found += told(parser.feed(piece))
    except FrameError as error:
        return found + told(error.frames), str(error)
    return found, parser.held_bytes


def cut(data, places):
    edges = [0, *sorted(each % (len(data) + 1) for each in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@settings(max_examples=200)
@given(streams(), st.lists(st.integers(0, 2000), max_size=4))
@example(b"", [])
def test_a_stream_with_runs_says_what_it_says_without(data, places):
    pieces = cut(data, places)
    assert feed(FrameParser(runs=RunReader), pieces) == feed(FrameParser(), pieces)


@given(st.binary(max_size=200))
def test_garbage_is_refused_with_runs_as_without(data):
    known = b"".join(
        payload_frame(
            BaseCommand(
                type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=1)
            ).SerializeToString(),
            single_tail(b"x", sequence_id=1),
        )
    )
    for stream in (data, known * 2 + data, known[:20] + data, known + known[:30] + data):
        assert feed(FrameParser(runs=RunReader), [stream]) == feed(FrameParser(), [stream])
