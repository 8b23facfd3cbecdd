"""SENDs and ACKs in a row: what is read as a run, what ends one, and what is never in one."""

import pytest

from kit.pulsar_payload import PRODUCER, PUBLISH_MS, PulsarMessage, batch_tail, single_tail, tail
from penstock.wire.pulsar import runs as room
from penstock.wire.pulsar.frames import (
    NO_ID,
    AckRun,
    FrameError,
    FrameParser,
    SendRun,
    encode,
    payload_frame,
)
from penstock.wire.pulsar.metadata import make_record
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandAck,
    CommandPing,
    CommandSend,
    KeyLongValue,
    MessageIdData,
    MessageMetadata,
)
from penstock.wire.pulsar.runs import RunReader

PING = encode(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))


def parser(**options):
    return FrameParser(runs=RunReader, **options)


def send(sequence_id, data=None, producer_id=1, **fields):
    """A frame; the metadata have its sequence id unless ``data`` is given."""
    fields.setdefault("num_messages", 1)
    said = CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields)
    if data is None:
        data = single_tail(b"body", sequence_id=sequence_id)
    command = BaseCommand(type=BaseCommand.SEND, send=said).SerializeToString()
    return b"".join(payload_frame(command, data))


def ack(*entries, ledger_id=300, consumer_id=2, **fields):
    said = CommandAck(
        consumer_id=consumer_id,
        ack_type=fields.pop("ack_type", CommandAck.Individual),
        message_id=[MessageIdData(ledgerId=ledger_id, entryId=each) for each in entries],
        **fields,
    )
    return encode(BaseCommand(type=BaseCommand.ACK, ack=said))


def outline(frames):
    """Runs as the numbers in them, single frames as a type."""
    found = []
    for each in frames:
        if isinstance(each, SendRun):
            found.append(each.sequence_ids)
        elif isinstance(each, AckRun):
            found.append(each.entries)
        else:
            found.append(BaseCommand.Type.Name(each[0].type))
    return found


def read(*frames):
    return outline(parser().feed(b"".join(frames)))


# ---- SEND ---------------------------------------------------------------------------------------


def test_what_follows_the_first_send_of_a_producer_is_a_run():
    first, run = parser().feed(b"".join([send(number) for number in range(5)]))
    assert first[0].send.sequence_id == 0
    assert run.producer_id == 1
    assert run.sequence_ids == [1, 2, 3, 4]
    tails = [single_tail(b"body", sequence_id=number) for number in range(1, 5)]
    assert run.records == [make_record(each, 0) for each in tails]


def test_records_of_a_run_share_their_shape():
    _, run = parser().feed(b"".join([send(number) for number in range(5)]))
    assert len({id(each.shape) for each in run.records}) == 1


def test_records_with_keys_share_their_shape_and_have_their_own_keys():
    keys = ["aa", "bb", "st", "cc", "", "dddd", "ee"]
    messages = [PulsarMessage(b"body", key=each) for each in keys]
    _, run = parser().feed(b"".join([send(0, single_tail(each)) for each in messages]))
    assert [each.key.decode() for each in run.records] == keys[1:]
    assert len({id(each.shape) for each in run.records if each.shape.key_len == 2}) == 1


def test_payloads_of_a_run_may_have_any_length():
    tails = [single_tail(b"x" * size, sequence_id=7) for size in (3, 0, 500, 60_000, 3)]
    _, run = parser().feed(b"".join([send(7, each) for each in tails]))
    assert [each.origin for each in run.records] == tails[1:]
    assert run.records == [make_record(each, 0) for each in tails[1:]]


@pytest.mark.parametrize(
    "tails",
    [
        [single_tail(PulsarMessage(b"b", key=f"key-{n}"), sequence_id=7) for n in range(3)],
        [single_tail(PulsarMessage(b"b", properties={"TAGS": f"{n}"})) for n in range(3)],
        [single_tail(PulsarMessage(b"b", event_ms=PUBLISH_MS - n)) for n in range(3)],
        [single_tail(b"b" * 900, compression="LZ4") for n in range(3)],
        [batch_tail(b"a", b"b" * n, b"c") for n in range(3)],
        [batch_tail(PulsarMessage(b"b" * n, key=f"k{n}")) for n in range(3)],
        [single_tail(b"b", publish_time=PUBLISH_MS + n) for n in range(3)],
        [single_tail(b"b", schema_version=bytes(8)) for n in range(3)],
    ],
    ids=["keys", "tags", "event times", "compressed", "batches", "batches of one", "times",
         "schemas"],
)  # fmt: skip
def test_messages_of_a_run_may_say_much_of_themselves(tails):
    sequence_id = 7 if b"key-" in tails[0] else 0
    _, run = parser().feed(b"".join([send(sequence_id, each) for each in tails]))
    assert run.records == [make_record(each, 0) for each in tails[1:]]


def test_numbers_that_need_another_byte_begin_a_new_run():
    assert read(*[send(number) for number in range(125, 131)]) == [
        "SEND", [126, 127], "SEND", [129, 130],
    ]  # fmt: skip
    assert read(*[send(number) for number in (16382, 16383, 16384, 16385)]) == [
        "SEND", [16383], "SEND", [16385],
    ]  # fmt: skip


def test_producers_are_told_apart_and_known_by_the_next_read():
    many = parser()
    many.feed(send(1) + send(1, producer_id=2))
    data = send(2) + send(2, producer_id=2) + send(3, producer_id=2) + PING + send(3)
    found = many.feed(data)
    assert outline(found) == [[2], [2, 3], "PING", [3]]
    assert [each.producer_id for each in found if isinstance(each, SendRun)] == [1, 2, 1]


@pytest.mark.parametrize(
    "odd",
    [
        send(9, txnid_least_bits=1),
        send(9, txnid_most_bits=1),
        send(9, is_chunk=True),
        send(9, highest_sequence_id=12),
        send(9, num_messages=2),
        send(9, single_tail(b"body", sequence_id=8)),
        send(9, single_tail(b"body", sequence_id=9, has_crc=False)),
        send(9, single_tail(b"body", sequence_id=9, deliver_at_time=PUBLISH_MS)),
        send(9, single_tail(PulsarMessage(b"body", event_ms=2**60), sequence_id=9)),
        send(9, single_tail(b"body", sequence_id=9, publish_time=1)),
        send(9, single_tail(b"body", sequence_id=9, producer_name=PRODUCER[:-1] + "8")),
        send(9, single_tail(b"body" * 20_000, sequence_id=9)),
        send(9, single_tail(b"body", sequence_id=9)[:-1]),
        send(9, b"\x0e\x01"),
        send(9, b""),
    ],
)
def test_a_send_that_differs_is_read_by_itself(odd):
    assert read(send(7), send(8), odd, send(10)) == ["SEND", [8], "SEND", [10]]


def test_metadata_that_cannot_be_read_are_in_no_run():
    name = PRODUCER.encode()
    front = b"\x0a%c%b\x10\x09\x18\xc0\xfb\x80\xfa\xa9\x33" % (len(name), name)
    metadata = MessageMetadata.FromString(front)
    assert metadata.publish_time > 0
    good = [send(9, tail(front, b"body")) for _ in range(2)]
    assert read(*good) == ["SEND", [9]]
    assert read(*good, send(9, tail(front + b"\x0a\xff", b"body"))) == ["SEND", [9], "SEND"]


def test_metadata_that_say_a_thing_twice_are_not_remembered():
    name = PRODUCER.encode()
    front = b"\x0a%c%b\x10\x09\x18\xc0\xfb\x80\xfa\xa9\x33" % (len(name), name)
    late = front + b"\x18\xc1\xfb\x80\xfa\xa9\x33"
    tails = [tail(front, b"body"), *[tail(late, b"body")] * 3]
    _, run = parser().feed(b"".join([send(9, each) for each in tails]))
    assert run.records == [make_record(each, 0) for each in tails[1:]]
    assert len({each.born_ms for each in run.records}) == 1


def test_a_frame_beyond_the_limit_is_refused_also_behind_a_run():
    small = parser(max_message_size=1024)
    data = send(7) + send(8) + send(9, single_tail(b"x" * 20_000, sequence_id=9))
    with pytest.raises(FrameError, match="limit 11260") as caught:
        small.feed(data)
    assert outline(caught.value.frames) == ["SEND", [8]]


def test_a_frame_that_is_cut_is_put_together_behind_its_run():
    data = b"".join([send(number) for number in range(1, 7)])
    for at in range(len(data)):
        cut = parser()
        frames = cut.feed(data[:at]) + cut.feed(data[at:])
        numbers = []
        for each in frames:
            if isinstance(each, SendRun):
                numbers += each.sequence_ids
            else:
                numbers.append(each[0].send.sequence_id)
        assert numbers == [1, 2, 3, 4, 5, 6]


def test_who_never_fits_is_looked_at_now_and_then_only(monkeypatch):
    looks = []
    make = room._send_layout
    monkeypatch.setattr(room, "_send_layout", lambda *asked: looks.append(1) or make(*asked))
    unfit = send(1, is_chunk=True)
    parser().feed(unfit * (room.TRIES * 2 + 2))
    assert len(looks) == 3


def test_a_producer_that_comes_back_with_another_name_is_learnt_anew():
    again = parser()
    again.feed(send(7) + send(8))
    other = [send(number, single_tail(b"b", sequence_id=number, producer_name="other"))
             for number in (7, 8, 9)]  # fmt: skip
    assert outline(again.feed(b"".join(other))) == ["SEND", "SEND", [9]]


def test_layouts_and_shapes_are_bounded(monkeypatch):
    monkeypatch.setattr(room, "LAYOUTS_KEPT", 4)
    monkeypatch.setattr(room, "SHAPES_KNOWN", 4)
    source = RunReader(room.FRAME_BYTES_MAX)
    bounded = FrameParser(runs=lambda _limit: source)
    for number in range(10):
        bounded.feed(send(1, producer_id=number) * 2)
        assert len(source._layouts) <= 4
    bounded.feed(b"".join([send(1, single_tail(b"x" * each, sequence_id=1)) for each in range(20)]))
    assert all(len(each._shapes) <= 4 for each in source._layouts.values())


# ---- ACK ----------------------------------------------------------------------------------------


def test_acks_of_one_entry_each_are_a_run_behind_the_first():
    first, run = parser().feed(ack(300) + ack(301) + ack(299) + ack(16383))
    assert first[0].ack.message_id[0].entryId == 300
    assert run == AckRun(2, 300, [301, 299, 16383])


def test_an_ack_of_many_entries_is_a_run_of_its_own():
    assert parser().feed(ack(*range(130, 330))) == [AckRun(2, 300, list(range(130, 330)))]
    assert parser().feed(ack(1, 2, 3, consumer_id=500)) == [AckRun(500, 300, [1, 2, 3])]
    assert parser().feed(ack(2**40, 2**40 + 1, ledger_id=2**50)) == [
        AckRun(2, 2**50, [2**40, 2**40 + 1])
    ]


@pytest.mark.parametrize(
    "odd",
    [
        ack(130, request_id=4),
        ack(130, 131, request_id=4),
        ack(130, ack_type=CommandAck.Cumulative),
        ack(130, 131, ack_type=CommandAck.Cumulative),
        ack(130, txnid_least_bits=1),
        ack(130, 131, txnid_most_bits=1),
        ack(100, 130),
        ack(130, 100),
        ack(),
        ack(NO_ID),
        ack(130, 131, properties=[KeyLongValue(key="k", value=1)]),
    ],
)
def test_other_acks_are_read_by_themselves(odd):
    assert read(odd, odd) == ["ACK", "ACK"]


def test_ids_with_more_in_them_are_read_by_themselves():
    def id_with(**fields):
        ids = [MessageIdData(ledgerId=1, entryId=each, **fields) for each in (200, 201)]
        said = CommandAck(consumer_id=2, ack_type=CommandAck.Individual, message_id=ids)
        return encode(BaseCommand(type=BaseCommand.ACK, ack=said))

    assert read(id_with(ack_set=[3])) == ["ACK"]
    assert read(id_with(partition=2)) == ["ACK"]


def test_ids_of_several_ledgers_are_read_by_themselves():
    ids = [MessageIdData(ledgerId=each, entryId=200) for each in (300, 301)]
    said = CommandAck(consumer_id=2, ack_type=CommandAck.Individual, message_id=ids)
    assert read(encode(BaseCommand(type=BaseCommand.ACK, ack=said))) == ["ACK"]


def test_an_ack_with_something_behind_it_is_no_run():
    command = ack(300, 301)[8:]
    assert read(b"".join(payload_frame(command, b"tail"))) == ["ACK"]
    single = ack(300)[8:]
    with_tail = b"".join(payload_frame(single, b"tail"))
    assert read(ack(300), with_tail, ack(301), ack(302)) == ["ACK", "ACK", [301, 302]]
    assert read(with_tail, ack(301), ack(302)) == ["ACK"] * 3
