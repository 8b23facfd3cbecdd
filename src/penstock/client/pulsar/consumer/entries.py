"""What a MESSAGE brings, opened: checksum, compression, batches, messages in chunks.

    | 0x0e02, size, broker's metadata | 0x0e01, crc32c | size, metadata | payload |

An entry is a message, a batch of them, or a chunk of one. What cannot be read is acked with the
reason (``Corrupt.error``), as Pulsar's clients do: nobody could ever read it.

``Chunks`` puts messages together; several producers may send theirs at the same time. Bounds:
``pending_chunked_max`` messages and ``chunked_bytes_max`` bytes under way; the oldest gives way.
One whose next chunk does not come within ``chunked_expire_ms`` is given up, too. What was given up
is not acked and comes again with the next redelivery. ``INFLATED_BYTES_MAX`` of what is compressed.

A producer that lost its connection sends again what has no receipt, so that a chunk may be stored
twice. The second one is no part of any message and has to be acked at once (``take_doubles``): left
behind, such chunks could be put together later, to a message that was received before.

A shared subscription may bring chunks in another order, after a lost connection: some again, some
for the first time. Those that do not fit are strays, and are asked for again (``take_strays``).

Pure: bytes and time are arguments.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from penstock.client.pulsar.message import EntryId, MessageId, ReceivedMessage
from penstock.client.pulsar.schema import Schema
from penstock.wire.pulsar.facts import inflate
from penstock.wire.pulsar.frames import check
from penstock.wire.pulsar.metadata import Unreadable, read_metadata, read_single
from penstock.wire.pulsar.protocol_pb2 import CommandAck, MessageMetadata

INFLATED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of one entry. A batch of small messages may be compressed a hundredfold."""
BATCH_MESSAGES_MAX: Final = 1_000_000
WHOLE_MAX: Final = 10_000
"""Messages put together of which the chunks are known, until they are acked. Of the oldest only
the last chunk would be acked, and the others come again."""
TOGETHER_MAX: Final = 1_000
"""Messages put together of which copies of chunks are still known as such."""

_BROKER_METADATA: Final = b"\x0e\x02"
_SIZE: Final = Struct(">I")


class Corrupt(Exception):
    """An entry that nobody can read."""

    def __init__(self, text: str, error: CommandAck.ValidationError, messages: int = 1) -> None:
        super().__init__(text)
        self.error = error
        self.messages = messages
        """How many permits it took."""


class Encrypted(Exception):
    """An entry for which a key is needed, which this client does not have."""

    def __init__(self, messages: int) -> None:
        super().__init__(f"{messages} messages")
        self.messages = messages


class Opened(NamedTuple):
    """The payload of an entry, as its producer gave it to the client."""

    metadata: MessageMetadata
    payload: bytes
    messages: int
    """What it took of the permits, if nothing of it was acked before."""
    is_batch: bool
    is_chunk: bool


def open_entry(tail: bytes) -> Opened:
    """Raises ``Corrupt`` or ``Encrypted``. The payload of a chunk is as it came."""
    if tail.startswith(_BROKER_METADATA) and len(tail) >= 6:
        (size,) = _SIZE.unpack_from(tail, 2)
        tail = tail[6 + size :]
    if not check(tail):
        raise Corrupt("its checksum is wrong", CommandAck.ChecksumMismatch)
    try:
        metadata, at = read_metadata(tail)
    except Unreadable as problem:
        raise Corrupt(str(problem), CommandAck.BatchDeSerializeError) from None
    is_batch = metadata.HasField("num_messages_in_batch")
    messages = metadata.num_messages_in_batch if is_batch else 1
    if not 0 < messages <= BATCH_MESSAGES_MAX:
        raise Corrupt(f"a batch of {messages}", CommandAck.BatchDeSerializeError)
    if metadata.encryption_keys:
        raise Encrypted(messages)
    payload = tail[at:]
    is_chunk = metadata.num_chunks_from_msg > 1
    if metadata.compression and not is_chunk:
        payload = inflated(metadata, payload, messages)
    return Opened(metadata, payload, messages, is_batch, is_chunk)


def inflated(metadata: MessageMetadata, payload: bytes, messages: int = 1) -> bytes:
    """Raises ``Corrupt``."""
    size = metadata.uncompressed_size
    try:
        return inflate(payload, metadata.compression, size, INFLATED_BYTES_MAX)
    except ValueError as problem:
        error = CommandAck.UncompressedSizeCorruption
        if size <= INFLATED_BYTES_MAX:
            error = CommandAck.DecompressionError
        raise Corrupt(str(problem), error, messages) from None


class EntryOrigin(NamedTuple):
    """Where messages come from, for all of an entry."""

    topic: str
    entry: EntryId
    partition: int
    redelivery_count: int
    schema: Schema | None
    source: object
    epoch: int


def single_message(opened: Opened, origin: EntryOrigin, message_id: MessageId) -> ReceivedMessage:
    return ReceivedMessage(
        origin.topic,
        message_id,
        opened.payload,
        opened.metadata,
        schema=origin.schema,
        redelivery_count=origin.redelivery_count,
        source=origin.source,
        epoch=origin.epoch,
    )


def batch_messages(opened: Opened, origin: EntryOrigin, left: int) -> list[ReceivedMessage]:
    """Messages of a batch; ``left`` has a bit for each that is wanted. Raises ``Corrupt``."""
    found = []
    at, payload, size = 0, opened.payload, opened.messages
    metadata, schema = opened.metadata, origin.schema
    topic, (ledger_id, entry_id), partition = origin.topic, origin.entry, origin.partition
    count, source, epoch = origin.redelivery_count, origin.source, origin.epoch
    try:
        for index in range(size):
            single, body_at = read_single(payload, at)
            at = body_at + single.payload_size
            if not left >> index & 1 or single.compacted_out:
                continue
            found.append(
                ReceivedMessage(
                    topic,
                    MessageId(ledger_id, entry_id, partition, index, size),
                    payload[body_at:at],
                    metadata,
                    single=single,
                    schema=schema,
                    redelivery_count=count,
                    source=source,
                    epoch=epoch,
                )
            )
    except Unreadable as problem:
        raise Corrupt(str(problem), CommandAck.BatchDeSerializeError, size) from None
    return found


# ---- chunks -------------------------------------------------------------------------------------


class _Pieces:
    __slots__ = ("bytes", "entries", "mark", "parts", "seen_ms")

    def __init__(self, mark: tuple[int, int, int], now_ms: int) -> None:
        self.mark = mark
        """What differs between two messages that have the same uuid: that is the producer's name
        and a number, and who has no memory of it begins to count anew."""
        self.parts: list[bytes] = []
        self.entries: list[EntryId] = []
        self.bytes = 0
        self.seen_ms = now_ms


class Chunks:
    """Messages that come in pieces, of one partition."""

    def __init__(self, *, pending_max: int, bytes_max: int, expire_ms: int) -> None:
        self._pending_max = pending_max
        self._bytes_max = bytes_max
        self._expire_ms = expire_ms
        self._pending: dict[str, _Pieces] = {}
        self._whole: dict[EntryId, list[EntryId]] = {}
        """Of messages that are put together: all entries, by that of the last chunk."""
        self._together: dict[str, tuple[tuple[int, int, int], list[EntryId]]] = {}
        self._doubles: list[EntryId] = []
        self._strays: list[EntryId] = []
        self.bytes = 0
        self.given_up = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, opened: Opened, entry: EntryId, now_ms: int) -> Opened | None:
        """The message, when this was the last piece of it; raises ``Corrupt``."""
        metadata = opened.metadata
        name, number, total = metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg
        mark = total, metadata.total_chunk_msg_size, metadata.publish_time
        pending = self._pending.get(name)
        if pending is not None and pending.mark == mark and number < len(pending.parts):
            # It came again, while the others are awaited, or was stored twice.
            if entry not in pending.entries:
                self._doubles.append(entry)
            return None
        if pending is None and name in self._together:
            known, mine = self._together[name]
            if known == mark and entry not in mine:
                self._doubles.append(entry)
                return None
        if number == 0:
            self._drop(name, is_given_up=False)
            pending = self._pending[name] = _Pieces(mark, now_ms)
        if pending is not None and mark == pending.mark and number > len(pending.parts):
            # What is between comes later: the beginning must be there then.
            self._strays.append(entry)
            return None
        if pending is None or mark != pending.mark:
            # Its beginning was given up, comes later, or is in another consumer's hands.
            self._strays += [*(pending.entries if pending is not None else ()), entry]
            self._drop(name)
            return None
        pending.parts.append(opened.payload)
        pending.entries.append(entry)
        pending.bytes += len(opened.payload)
        pending.seen_ms = now_ms
        self.bytes += len(opened.payload)
        if number + 1 < total:
            self._make_room(name)
            return None
        payload = b"".join(pending.parts)
        self._drop(name, is_given_up=False)
        if len(self._whole) >= WHOLE_MAX:
            del self._whole[next(iter(self._whole))]
        self._whole[entry] = pending.entries
        self._together.pop(name, None)
        if len(self._together) >= TOGETHER_MAX:
            del self._together[next(iter(self._together))]
        self._together[name] = mark, pending.entries
        if metadata.compression:
            payload = inflated(metadata, payload)
        return opened._replace(payload=payload, is_chunk=False)

    def take_doubles(self) -> list[EntryId]:
        """Copies of chunks that are known already, to be acked."""
        found, self._doubles = self._doubles, []
        return found

    def take_strays(self) -> list[EntryId]:
        """Chunks that came out of order, or had to give way: to be asked for again."""
        found, self._strays = self._strays, []
        return found

    def expire(self, now_ms: int) -> None:
        """Give up those whose next chunk does not come."""
        limit_ms = now_ms - self._expire_ms
        for name in [name for name, each in self._pending.items() if each.seen_ms < limit_ms]:
            self._drop(name)

    def entries_of(self, entry: EntryId) -> list[EntryId] | None:
        """All entries of the message whose last chunk is this one; None = it came in one."""
        return self._whole.get(entry)

    def settled(self, entry: EntryId) -> None:
        self._whole.pop(entry, None)

    def clear(self) -> None:
        """The connection was lost: all of it comes again."""
        self._pending.clear()
        self._strays.clear()
        self.bytes = 0

    def _make_room(self, newest: str) -> None:
        while len(self._pending) > self._pending_max or self.bytes > self._bytes_max:
            oldest = next(iter(self._pending))
            if oldest == newest:
                # Alone it is too large, and would be the next time.
                self._drop(oldest)
                break
            self._strays += self._pending[oldest].entries
            self._drop(oldest)

    def _drop(self, name: str, *, is_given_up: bool = True) -> None:
        pending = self._pending.pop(name, None)
        if pending is not None:
            self.bytes -= pending.bytes
            self.given_up += is_given_up
