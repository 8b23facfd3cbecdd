"""SENDs and ACKs in a row, read without protobuf: nearly all that busy clients send.

The SENDs of one producer differ in few bytes: sequence id, publish time, checksum, key, payload;
its ACKs in the entry. So the first one is read by protobuf, and a ``struct`` is made of where its
parts lie. Those that follow are taken apart by it, and whatever is not equal to the first, byte for
byte, or does not look as expected ends the run and is read by protobuf again:

    SEND   | total | size, SEND, producer | sequence id | rest, 0x0e01 | crc | metadata size |
           | name | sequence id | publish time | key | other metadata | payload |
    ACK    | total, size, ACK, consumer, ledger | entry | rest |

An ACK of many ids, as clients that group them send it, is taken apart the same way, id by id.

Measured: ``benchmarks/README.md``, "An entry in our own Python": a SEND and its ACK are read in 1.8
us instead of 9.8.

Invariants: what a run says is what protobuf reads from the same bytes (``tests/property``); a SEND
in a run has a right checksum, readable metadata, no delay, no transaction, is no chunk and has no
``highest_sequence_id``.
Bounds: ``LAYOUTS_KEPT`` of a connection, ``SHAPES_KNOWN`` of a layout.
Not here: single frames (``frames.py``), records of other SENDs (``metadata.py``).
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

import google_crc32c

from penstock.model.record import Record, Shape
from penstock.wire.pulsar.frames import CHECKSUM_BYTES, CHECKSUM_MAGIC, AckRun, Run, SendRun
from penstock.wire.pulsar.hot_commands import varint
from penstock.wire.pulsar.metadata import (
    Unreadable,
    is_batch_of_one,
    metadata_span,
    octets,
    parse_metadata,
    record_of,
)
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, CommandAck, MessageMetadata

LAYOUTS_KEPT: Final = 256
"""Of one connection; then it begins anew. One for each producer or consumer and length of ids."""
SHAPES_KNOWN: Final = 256
"""Of one producer: one for each length of a payload, if nothing else varies."""
MISSES: Final = 2
"""In a row: then the producer or consumer is not what it was. One may be an exception."""
TRIES: Final = 64
"""Who does not fit is looked at again after so many commands."""
REST_BYTES_MAX: Final = 64
"""Of metadata that are remembered: size and compression of a batch, the version of a schema."""
FRAME_BYTES_MAX: Final = 64 * 1024
"""Larger ones are not read here: their bytes cost more than their commands."""

_KEY_AT: Final = 4
_KEY_END: Final = 15
"""Size, type and length of a command, and the id of its producer or consumer, if that is short."""
_NUMBER_BYTES_MAX: Final = 9
"""Of a sequence id or an entry: 63 bits, so that nothing is cut off."""
_SIZE: Final = Struct(">I")
_SEND_MARK: Final = b"\x08\x06\x32"
_ACK_MARK: Final = b"\x08\x0a\x52"
_UNKNOWN_MS: Final = -1
_LOW: Final = 0x7F
_MORE: Final = 0x80
_KEY_MARK: Final = b"\x32"
_TIME_MARK: Final = 0x18
_TIME_BYTES: Final = 6
"""Of a publish time between 2004 and 2109."""
_NUMBER: Final = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
_ACK_FRONT: Final = re.compile(
    _ACK_MARK + rb"(" + _NUMBER + rb")\x08(" + _NUMBER + rb")\x10\x00(?=(\x1a.\x08"
    rb"(" + _NUMBER + rb")\x10)(" + _NUMBER + rb"))",
    re.DOTALL,
)
"""An individual ACK up to its first id."""


class RunReader:
    """Finds runs in the bytes of one connection; a ``frames.RunSource``."""

    __slots__ = ("_bytes_max", "_layouts")

    def __init__(self, frame_bytes_max: int) -> None:
        self._bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX)
        self._layouts: dict[bytes, _SendLayout | _AckLayout | _Unfit] = {}

    def read(self, data: bytes, at: int, end: int) -> tuple[Run, int] | None:
        """The run that begins at ``at``, and where it ends; None = the frame there is in none."""
        layout = self._layouts.get(data[at + _KEY_AT : at + _KEY_END])
        return None if layout is None else layout.read(data, at, end)

    def read_command(self, data: bytes) -> Run | None:
        """The run that a single command is, here without its frame; None = it is none."""
        return _read_ack(data) if data.startswith(_ACK_MARK) else None

    def learn(self, command: BaseCommand, data: bytes, at: int, stop: int) -> None:
        """A frame that was in no run, and the command in it: the next ones may be like it."""
        if command.type == BaseCommand.ACK and len(command.ack.message_id) != 1:
            return
        key = data[at + _KEY_AT : at + _KEY_END]
        known = self._layouts.get(key)
        if known is not None:
            known.misses += 1
            if known.misses % TRIES != MISSES:
                return
        elif len(self._layouts) >= LAYOUTS_KEPT:
            self._layouts.clear()
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        raw = data[at + 8 : at + 8 + size]
        layout: _SendLayout | _AckLayout | None = None
        # Then every field is there once, and in its place.
        if command.SerializePartialToString() == raw:
            if command.type == BaseCommand.SEND:
                tail = data[at + 8 + size : stop]
                layout = _send_layout(command, raw, tail, self._bytes_max)
            elif stop == at + 8 + size:
                layout = _ack_layout(command, raw)
        self._layouts[key] = _Unfit() if layout is None else layout
        if known is not None:
            self._layouts[key].misses = known.misses


class _Unfit:
    """No layout: the command has more in it than a run may."""

    __slots__ = ("misses",)

    def __init__(self) -> None:
        self.misses = 0

    def read(self, data: bytes, at: int, end: int) -> None:
        return None


# ---- SEND ---------------------------------------------------------------------------------------


def _send_layout(
    command: BaseCommand, raw: bytes, tail: bytes, frame_bytes_max: int
) -> _SendLayout | None:
    send = command.send
    number = varint(send.sequence_id)
    if (
        send.txnid_most_bits
        or send.txnid_least_bits
        or send.highest_sequence_id
        or send.is_chunk
        or len(number) > _NUMBER_BYTES_MAX
        or not tail.startswith(CHECKSUM_MAGIC)
    ):
        return None
    try:
        begin, end = metadata_span(tail)
        name = octets(parse_metadata(tail[begin:end]).producer_name)
    except Unreadable:
        return None
    front = _SEND_MARK + varint(send.ByteSize()) + b"\x08" + varint(send.producer_id) + b"\x10"
    name = b"\x0a" + varint(len(name)) + name + b"\x10"
    if not raw.startswith(front + number) or not tail.startswith(name + number, begin):
        return None
    middle = raw[len(front) + len(number) :] + CHECKSUM_MAGIC
    front = _SIZE.pack(len(raw)) + front
    return _SendLayout(send.producer_id, (front, middle, name), len(number), frame_bytes_max)


class _SendLayout:
    """Where the parts of a producer's SENDs lie."""

    __slots__ = (
        "_base", "_bytes_max", "_front", "_high", "_is_long", "_metadata_at", "_middle", "_name",
        "_producer_id", "_shapes", "_size", "_tail_at", "_time", "_time_ms", "_unpack", "misses",
    )  # fmt: skip

    def __init__(
        self,
        producer_id: int,
        parts: tuple[bytes, bytes, bytes],
        number_len: int,
        frame_bytes_max: int,
    ) -> None:
        """``parts``: what is before the number, behind it, and before the metadata's number."""
        self.misses = 0
        self._producer_id = producer_id
        self._bytes_max = frame_bytes_max
        self._front, self._middle, self._name = front, middle, name = parts
        number = f"B{number_len - 1}s"
        layout = Struct(
            f">I{len(front)}s{number}{len(middle)}sII{len(name)}s{number}B{_TIME_BYTES}s"
        )
        self._unpack = layout.unpack_from
        # Up to the metadata that may vary. From the beginning of the frame, as the other two.
        self._size = layout.size
        self._tail_at = 4 + len(front) + number_len + len(middle) - len(CHECKSUM_MAGIC)
        self._metadata_at = self._tail_at + CHECKSUM_BYTES + 4
        # All but the lowest seven bits of the last number, as bytes and with its mark taken off.
        self._is_long = number_len > 1
        self._high: object = None
        self._base = 0
        self._time: object = None
        self._time_ms = 0
        self._shapes: dict[tuple[bytes, int, int], Shape] = {}

    def read(self, data: bytes, at: int, end: int) -> tuple[Run, int] | None:
        unpack, size = self._unpack, self._size
        front, middle, name, is_long = self._front, self._middle, self._name, self._is_long
        tail_at, metadata_at, bytes_max = self._tail_at, self._metadata_at, self._bytes_max
        shapes = self._shapes
        numbers: list[int] = []
        records: list[Record] = []
        while end - at >= size:
            (total, its_front, low, high, its_middle, crc, metadata_size, its_name, low_again,
             high_again, mark, time) = unpack(data, at)  # fmt: skip
            stop = at + 4 + total
            body_at = at + metadata_at + metadata_size
            if (
                its_front != front
                or its_middle != middle
                or its_name != name
                or low != low_again
                or high != high_again
                or (low > _LOW) is not is_long
                or mark != _TIME_MARK
                or stop > end
                or total > bytes_max
                or not at + size <= body_at <= stop
                or (high != self._high and not self._rebase(high))
                or (time != self._time and not self._read_time(time))
            ):
                break
            tail = data[at + tail_at : stop]
            if google_crc32c.value(tail[CHECKSUM_BYTES:]) != crc:
                break
            rest = data[at + size : body_at]
            key_len = 0
            if rest.startswith(_KEY_MARK):
                key_len, rest = _without_key(rest)
            shape = shapes.get((rest, key_len, stop - body_at))
            if shape is not None:
                records.append(Record(tail, shape, self._time_ms))
            else:
                record = self._read_odd(tail, rest, key_len)
                if record is None:
                    break
                records.append(record)
            numbers.append(self._base + low)
            at = stop
        if not records:
            return None
        self.misses = 0
        return SendRun(self._producer_id, numbers, records), at

    def _rebase(self, high: object) -> bool:
        """False if these bytes are not the rest of one number."""
        assert isinstance(high, bytes)
        found = _number(high) if self._is_long else 0
        if found is None:
            return False
        self._high = high
        self._base = (found << 7) - _MORE if self._is_long else 0
        return True

    def _read_time(self, time: object) -> bool:
        """False if these bytes are not one number, or not one that is believed."""
        assert isinstance(time, bytes)
        found = _number(time)
        if not found:
            return False
        self._time, self._time_ms = time, found
        return True

    def _read_odd(self, tail: bytes, rest: bytes, key_len: int) -> Record | None:
        """With metadata that are not known; None = it does not belong here."""
        at, end = metadata_span(tail)
        raw = tail[at:end]
        try:
            metadata = parse_metadata(raw)
        except Unreadable:
            return None
        record = record_of(tail, metadata, (at, end), _UNKNOWN_MS)
        if record.shape.deliver_ms or record.born_ms == _UNKNOWN_MS:
            return None
        if (
            len(rest) <= REST_BYTES_MAX
            and (key_len > 0) is metadata.HasField("partition_key")
            and not _is_own(metadata)
            and metadata.SerializeToString() == raw
        ):
            if key_len:
                # Here, wherever else the same bytes are: one shape for all keys so long.
                record.reshape(key_at=self._size - self._tail_at + 2, key_len=key_len)
            if len(self._shapes) >= SHAPES_KNOWN:
                self._shapes.clear()
            self._shapes[rest, key_len, len(tail) - end] = record.shape
        return record


def _without_key(rest: bytes) -> tuple[int, bytes]:
    """The length of the key that metadata begin with, and what follows it; 0 = it is not there."""
    key_len = rest[1] if len(rest) > 1 else 0
    if 0 < key_len <= _LOW and 2 + key_len <= len(rest):
        return key_len, rest[2 + key_len :]
    return 0, rest


def _is_own(metadata: MessageMetadata) -> bool:
    """Whether the next message will hardly have the same, or what counts is in its payload."""
    return bool(
        is_batch_of_one(metadata)
        or metadata.properties
        or metadata.HasField("ordering_key")
        or metadata.HasField("event_time")
    )


# ---- ACK ----------------------------------------------------------------------------------------


def _ack_layout(command: BaseCommand, raw: bytes) -> _AckLayout | None:
    ack = command.ack
    if (
        ack.ack_type != CommandAck.Individual
        or ack.HasField("request_id")
        or ack.txnid_most_bits
        or ack.txnid_least_bits
        or len(ack.message_id) != 1
        or ack.message_id[0].ack_set
    ):
        return None
    found = ack.message_id[0]
    entry = varint(found.entryId)
    front = b"".join((
        _ACK_MARK, varint(ack.ByteSize()), b"\x08", varint(ack.consumer_id), b"\x10\x00\x1a",
        varint(found.ByteSize()), b"\x08", varint(found.ledgerId), b"\x10",
    ))  # fmt: skip
    if len(entry) > _NUMBER_BYTES_MAX or not raw.startswith(front + entry):
        return None
    rest = raw[len(front) + len(entry) :]
    front = _SIZE.pack(len(raw) + 4) + _SIZE.pack(len(raw)) + front
    return _AckLayout((ack.consumer_id, found.ledgerId), front, rest, len(entry))


class _AckLayout:
    """Where the entry of a consumer's ACKs lies."""

    __slots__ = ("_front", "_ids", "_is_long", "_layout", "_rest", "misses")

    def __init__(self, ids: tuple[int, int], front: bytes, rest: bytes, entry_len: int) -> None:
        self.misses = 0
        self._ids = ids
        self._front, self._rest = front, rest
        self._is_long = entry_len > 1
        self._layout: Final = Struct(f">{len(front)}sB{entry_len - 1}s{len(rest)}s")

    def read(self, data: bytes, at: int, end: int) -> tuple[Run, int] | None:
        front, rest, is_long, size = self._front, self._rest, self._is_long, self._layout.size
        last: bytes | None = None
        base = 0
        entries: list[int] = []
        whole = at + (end - at) // size * size
        for its_front, low, high, its_rest in self._layout.iter_unpack(memoryview(data)[at:whole]):
            if its_front != front or its_rest != rest or (low > _LOW) is not is_long:
                break
            if high != last:
                found = _number(high) if is_long else 0
                if found is None:
                    break
                last = high
                base = (found << 7) - _MORE if is_long else 0
            entries.append(base + low)
        if not entries:
            return None
        self.misses = 0
        consumer_id, ledger_id = self._ids
        return AckRun(consumer_id, ledger_id, entries), at + len(entries) * size


def _read_ack(raw: bytes) -> AckRun | None:
    """An ACK of several ids that are equally long, all in one ledger; None = it is another one."""
    found = _ACK_FRONT.match(raw)
    if found is None:
        return None
    size, consumer, front, ledger, entry = found.groups()
    begin, end = found.end(), len(raw)
    stride = len(front) + len(entry)
    if (
        end - begin == stride
        or (end - begin) % stride
        or front[1] != stride - 2
        or _number(size) != end - found.end(1)
    ):
        return None
    layout = Struct(f"{len(front)}sB{len(entry) - 1}s")
    fronts, lows, highs = zip(*layout.iter_unpack(memoryview(raw)[begin:]), strict=True)
    if fronts.count(front) != len(fronts):
        return None
    if len(entry) == 1:
        is_right, entries = max(lows) <= _LOW, list(lows)
    else:
        bases = {high: _number(high) for high in set(highs)}
        is_right = min(lows) > _LOW and None not in bases.values()
        shifted = {high: ((base or 0) << 7) - _MORE for high, base in bases.items()}
        entries = [shifted[high] + low for low, high in zip(lows, highs, strict=True)]
    return AckRun(_number(consumer) or 0, _number(ledger) or 0, entries) if is_right else None


def _number(data: bytes) -> int | None:
    """A number in protobuf's form, of at most 63 bits; None if the bytes are not exactly one."""
    found = shift = 0
    for each in data[:-1]:
        if each < _MORE:
            return None
        found |= (each & _LOW) << shift
        shift += 7
    last = data[-1]
    return None if last >= _MORE else found | last << shift
