"""Batches opened: single messages for readers that do not take what a producer sent as one (D16).

A batch is one record of several messages, with an offset and a position for each (D4). Pulsar's
consumers want it whole. For everybody else each message of it is a delivery, with a record and an
index entry of its own, so that nobody above has to know that there was a batch: prefetch, filters,
dead letters, expiry and redelivery go by message.

How the bytes are read is the protocol's (``ports.BatchCodec``). What cannot be opened (no codec,
encrypted, unknown compression, corrupt, too large) stays one record that covers all its offsets;
``why_unopened`` tells why, and adapters show it as the property ``UNOPENED``. A chunk of a larger
message is no batch: it is a message like any other, with the properties its producer gave it.

Bounds: a batch is opened to at most ``topics.message_bytes_max``, its messages' own weight
included; the last ones are kept, ``OPENED_BYTES_MAX`` of them, and always the very last.
Not here: which messages of it are still wanted (``subscription/pick.py``, ``pull.py``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from penstock.engine.ports import BatchCodec
from penstock.log.index import IndexEntry
from penstock.model.ids import LogPosition
from penstock.model.record import Record, RecordFlag, tag_hash

UNOPENED: Final = "penstock.unopened"
"""Property of a batch that is shown as one message: why it could not be opened."""

OPENED_BYTES_MAX: Final = 32 << 20
"""Opened batches that are kept: a consumer with a prefetch of 1 opens each once, not every time."""

MESSAGE_BYTES: Final = 256
"""What a record weighs beside its bytes."""

UNOPENED_MAX: Final = 1_000
"""Reasons that are kept."""

_TRANSIENT: Final = int(RecordFlag.TRANSIENT)


class Batches:
    """Opens batch records by the codecs of their wires, and keeps the last ones."""

    __slots__ = ("_bytes", "_bytes_max", "_codecs", "_opened", "_unopened")

    def __init__(self, readers: Mapping[int, object], bytes_max: int) -> None:
        """``readers``: by wire; those that are codecs are found among them."""
        self._codecs = {
            wire: reader for wire, reader in readers.items() if isinstance(reader, BatchCodec)
        }
        self._bytes_max = bytes_max
        # Position -> (messages, what they weigh), the last used last.
        self._opened: OrderedDict[int, tuple[list[Record], int]] = OrderedDict()
        self._unopened: OrderedDict[int, str] = OrderedDict()
        self._bytes = 0

    def open(self, record: Record) -> list[Record] | None:
        """The messages of a stored batch, each a record by itself; None = it cannot be opened."""
        position = record.position
        if (kept := self._opened.get(position)) is not None:
            self._opened.move_to_end(position)
            return kept[0]
        if position in self._unopened:
            return None
        codec = self._codecs.get(record.wire)
        found = opened_batch(record, codec, self._bytes_max)
        if isinstance(found, str):
            self._unopened[position] = found
            if len(self._unopened) > UNOPENED_MAX:
                self._unopened.popitem(last=False)
            return None
        self._keep(position, found)
        return found

    def why_unopened(self, record: Record) -> str:
        """Why this batch is shown as one message; empty when it is none, or can be opened."""
        if record.messages == 1 or self.open(record) is not None:
            return ""
        return self._unopened[record.position]

    def messages(
        self, entry: IndexEntry, record: Record, start: int, end: int
    ) -> list[tuple[IndexEntry, Record]]:
        """What of an entry lies in [start, end), message by message, each with its own entry.

        One that cannot be opened is itself, all of it.
        """
        opened = self.open(record) if entry[5] > 1 else None
        if opened is None:
            return [(entry, record)]
        position, first, before, store_ms, length, count, _, flags = entry
        share, rest = divmod(length, count)
        low, high = max(0, start - first), min(count, end - first)
        return [
            (
                (
                    position + number,
                    first + number,
                    before + share * number + min(number, rest),
                    store_ms,
                    share + (number < rest),
                    1,
                    tag_hash(message.tag) if message.shape.tag_len else 0,
                    flags,
                ),
                message,
            )
            for number, message in enumerate(opened[low:high], low)
        ]

    def _keep(self, position: int, found: list[Record]) -> None:
        weight = sum([len(message.origin) for message in found]) + MESSAGE_BYTES * len(found)
        self._opened[position] = (found, weight)
        self._bytes += weight
        while self._bytes > OPENED_BYTES_MAX and len(self._opened) > 1:
            _, (_, lightened) = self._opened.popitem(last=False)
            self._bytes -= lightened


def opened_batch(record: Record, codec: BatchCodec | None, bytes_max: int) -> list[Record] | str:
    """The messages of a stored batch, each a record by itself, or why it cannot be opened."""
    count = record.messages
    if codec is None:
        return "its protocol's batches cannot be read"
    if count * MESSAGE_BYTES > bytes_max:
        return f"{count} messages are more than topics.message_bytes_max has room for"
    found = codec.open_batch(record, bytes_max)
    if isinstance(found, str):
        return found
    if len(found) != count:
        return f"{len(found)} messages are in it and {count} were announced"
    shape = record.shape
    flags = shape.flags & _TRANSIENT
    for number, message in enumerate(found):
        own = message.shape
        if flags or shape.expire_ms or shape.deliver_ms:
            message.shape = replace(
                own,
                flags=own.flags | flags,
                expire_ms=own.expire_ms or shape.expire_ms,
                deliver_ms=own.deliver_ms or shape.deliver_ms,
            )
        message.position = LogPosition(record.position + number)
        message.store_ms = record.store_ms
        message.born_ms = message.born_ms or record.born_ms
    return found
