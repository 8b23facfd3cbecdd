"""Acks, gathered into few commands, and what is left of batches that are acked piece by piece.

An entry is acked at the broker when all of its messages are. Until then what is left of it is kept
here, as the wire has it: a set of bits, 1 for each message that is not acked. With batch-index acks
the broker hears of each piece, otherwise of the whole only. A cumulative ack inside a batch acks
the entries before it and, with batch-index acks, the part of this one.

Acks are gathered for a time and up to a number, and sent together (``AckGroup.flush``). They
survive a lost connection: after it the broker may send again what waits here to be acked, and
``is_acked`` knows that.

Pure: no socket, no clock. Bounds: ``BATCHES_MAX`` batches in pieces, ``PENDING_MAX`` acks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.client.pulsar.message import EntryId, MessageId
from penstock.wire.pulsar.frames import NO_ID
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, CommandAck, MessageIdData

BATCHES_MAX: Final = 100_000
"""Batches in pieces. The oldest is forgotten: then it is acked by all of its messages again."""
PENDING_MAX: Final = 1_000_000
"""Acks that wait for a connection. More are dropped: their messages come again."""
IDS_PER_COMMAND: Final = 1_000
WORD_BITS: Final = 64


class AckGroup:
    """What a consumer of one partition acked, and the broker has not heard yet."""

    def __init__(self, *, has_batch_index_acks: bool) -> None:
        self._has_index_acks = has_batch_index_acks
        self._left: dict[EntryId, int] = {}
        """Of batches in pieces: bits of the messages that are not acked."""
        self._sizes: dict[EntryId, int] = {}
        self._entries: dict[EntryId, None] = {}
        """Whole entries to be acked, in the order of their acks."""
        self._pieces: dict[EntryId, None] = {}
        """Batches of which the broker is to hear what is left."""
        self._cumulative: MessageId | None = None
        self._is_cumulative_due = False
        self.dropped = 0

    def __len__(self) -> int:
        """Acks that are to be sent."""
        return len(self._entries) + len(self._pieces) + self._is_cumulative_due

    @property
    def cumulative(self) -> MessageId | None:
        """Up to where everything was acked, as far as the application said."""
        return self._cumulative

    def add(self, message_id: MessageId, bits: int = 0) -> bool:
        """Ack one message, or those of its batch with a bit; True when its entry is done with."""
        entry = message_id.entry
        if message_id.batch_index < 0 or message_id.batch_size <= 1:
            self._add_entry(entry)
            return True
        left = self._left.get(entry)
        if left is None:
            left = (1 << message_id.batch_size) - 1
        left &= ~(bits or 1 << message_id.batch_index)
        if not left:
            self._add_entry(entry)
            return True
        self._keep(entry, message_id.batch_size, left)
        if self._has_index_acks:
            self._pieces[entry] = None
        return False

    def add_entries(self, entries: Iterable[EntryId]) -> None:
        """Ack whole entries: chunks of a message, batches nobody can read."""
        for entry in entries:
            self._add_entry(entry)

    def add_cumulative(self, message_id: MessageId) -> None:
        """Ack everything up to this message."""
        if self._cumulative is not None and message_id.position <= self._cumulative.position:
            return
        self._cumulative = message_id
        self._is_cumulative_due = True
        last = message_id.entry
        for entry in [each for each in self._left if each < last]:
            self._forget(entry)
        for entry in [each for each in self._entries if each < last]:
            del self._entries[entry]
        if message_id.batch_index >= 0 and message_id.batch_size > 1:
            left = (1 << message_id.batch_size) - (1 << (message_id.batch_index + 1))
            self._left[last] = self._left.get(last, left) & left
            self._sizes[last] = message_id.batch_size
            if not left:
                self._forget(last)
            elif not self._left[last]:
                # The rest was acked one by one, of which the broker may not know.
                self._add_entry(last)

    def arrived(self, entry: EntryId, size: int, ack_set: Iterable[int]) -> int:
        """A batch came: bits of its messages that are to be handed out."""
        left = (1 << size) - 1
        bits = bits_of(ack_set)
        if bits is not None:
            left &= bits
        known = self._left.get(entry)
        return left if known is None else left & known

    def handed_out(self, entry: EntryId, size: int, bits: int) -> None:
        """A batch came and only these of it are handed out: with them it is done with."""
        left = self._left.get(entry, (1 << size) - 1) & bits
        if left:
            self._keep(entry, size, left)
        else:
            self._add_entry(entry)

    def is_acked(self, entry: EntryId, batch_index: int = -1) -> bool:
        """Whether it was acked already, so that it need not be handed out again."""
        if entry in self._entries:
            return True
        upto = self._cumulative
        if upto is None:
            return False
        if batch_index < 0 or upto.batch_index < 0:
            whole = upto.batch_index < 0 or upto.batch_index == upto.batch_size - 1
            return entry < upto.entry or (entry == upto.entry and whole)
        return (*entry, batch_index) <= upto.position

    def reconnected(self) -> None:
        """The broker begins anew with what it knows; only what waits to be sent is known better.

        More must not be remembered: somebody may have moved the subscription meanwhile.
        """
        for entry in [each for each in self._left if each not in self._pieces]:
            self._forget(entry)
        if not self._is_cumulative_due:
            self._cumulative = None

    def reset(self) -> None:
        """The subscription was moved: what was acked before means nothing."""
        self._left.clear()
        self._sizes.clear()
        self._entries.clear()
        self._pieces.clear()
        self._cumulative = None
        self._is_cumulative_due = False

    # ---- commands --------------------------------------------------------------------------------

    def flush(self, consumer_id: int) -> list[BaseCommand]:
        """ACKs of all that was gathered; it is sent now."""
        commands = []
        if self._is_cumulative_due and self._cumulative is not None:
            self._is_cumulative_due = False
            found = self._cumulative_id(self._cumulative)
            if found is not None:
                commands.append(ack_command(consumer_id, [found], is_cumulative=True))
        ids = [entry_id(entry) for entry in self._entries]
        for entry in self._pieces:
            data = entry_id(entry)
            data.ack_set.extend(words_of(self._left[entry], self._sizes[entry]))
            ids.append(data)
        self._entries.clear()
        self._pieces.clear()
        pieces = [ids[at : at + IDS_PER_COMMAND] for at in range(0, len(ids), IDS_PER_COMMAND)]
        return commands + [ack_command(consumer_id, piece) for piece in pieces]

    def _cumulative_id(self, message_id: MessageId) -> MessageIdData | None:
        is_inside = 0 <= message_id.batch_index < message_id.batch_size - 1
        if not is_inside:
            return entry_id(message_id.entry)
        if self._has_index_acks:
            data = entry_id(message_id.entry)
            left = (1 << message_id.batch_size) - (1 << (message_id.batch_index + 1))
            data.ack_set.extend(words_of(left, message_id.batch_size))
            return data
        # The batch comes again as a whole, should it come again: so only what is before it.
        before = message_id.ledger_id, message_id.entry_id - 1
        return entry_id(before) if message_id.entry_id > 0 else None

    def _keep(self, entry: EntryId, size: int, left: int) -> None:
        if entry not in self._left and len(self._left) >= BATCHES_MAX:
            self._forget(next(iter(self._left)))
        self._left[entry] = left
        self._sizes[entry] = size

    def _add_entry(self, entry: EntryId) -> None:
        self._forget(entry)
        if len(self._entries) >= PENDING_MAX:
            self.dropped += 1
            return
        self._entries[entry] = None

    def _forget(self, entry: EntryId) -> None:
        self._left.pop(entry, None)
        self._sizes.pop(entry, None)
        self._pieces.pop(entry, None)


def ack_command(
    consumer_id: int, ids: list[MessageIdData], *, is_cumulative: bool = False
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACK)
    ack = command.ack
    ack.consumer_id = consumer_id
    ack.ack_type = CommandAck.Cumulative if is_cumulative else CommandAck.Individual
    ack.message_id.extend(ids)
    return command


def entry_id(entry: EntryId) -> MessageIdData:
    return MessageIdData(ledgerId=entry[0] & NO_ID, entryId=entry[1] & NO_ID)


def bits_of(ack_set: Iterable[int]) -> int | None:
    """A set of the wire as a number; None when there is none."""
    found = None
    for at, word in enumerate(ack_set):
        found = (found or 0) | (word & NO_ID) << (WORD_BITS * at)
    return found


def words_of(bits: int, size: int) -> list[int]:
    """The opposite: signed words of 64 bits."""
    words = []
    for at in range(0, size, WORD_BITS):
        word = bits >> at & NO_ID
        words.append(word - 2**WORD_BITS if word >= 2 ** (WORD_BITS - 1) else word)
    return words
