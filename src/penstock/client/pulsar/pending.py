"""What was sent and has no receipt: who waits for it, in which order it goes out again, how much.

A ``Send`` is one message and the one who hears of its end: a thread that blocks, a future, or a
callback. The end comes on the client's thread, which must not run a user's code nor wait for it:
blocked threads are woken, futures settled through a relay to their loop (many results, one
wake-up), and callbacks run one after the other on a thread of the producer's own.

A ``PendingEntry`` is one frame on its way, with the sends in it. ``UnconfirmedEntries`` are those
of one partition, in order: after a reconnect all of them go out again as they are, with their
sequence ids, so that a broker that deduplicates stores none of them twice.

``SendRoom`` bounds what a producer has not been answered, in messages and bytes
(``flow.budgets.SendWindow``). Who finds no room waits for it in a queue, or is refused; who waits
for longer than his time-out is told so.

Invariants: a send ends exactly once; entries end in the order in which they were sent, but for
those the broker says are duplicates; what is waited for is bounded by ``WAITING_MAX``.
Not here: bytes (``encoding.py``), the connection (``partition_producer.py``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from penstock.client.callbacks import CallbackThread, settle_future
from penstock.client.loop import Relay
from penstock.client.pulsar.encoding import Content, Pieces
from penstock.client.pulsar.errors import ClientError, TimedOut, WouldBlock
from penstock.client.pulsar.message import MessageId
from penstock.flow.budgets import SendWindow
from penstock.model.clock import Clock

_log: Final = logging.getLogger(__name__)

Outcome = MessageId | ClientError
OnDone = Callable[[MessageId | ClientError], object]

WAITING_MAX: Final = 100_000
"""Sends that wait for room, all together: futures that nobody awaits can be many."""
NEVER_MS: Final = 2**62


class Send(msgspec.Struct, eq=False):
    """One message on its way; nobody hears the end of this one, the subclasses tell it."""

    content: Content
    size_bytes: int
    deadline_ms: int
    """Monotonic; ``NEVER_MS`` = it may take as long as it takes."""
    partition: int = -1
    """The one its sender chose; -1 = the producer chooses."""
    outcome: Outcome | None = None
    keeps_room: bool = False
    """True when the callback's thread gives its room back."""
    admitted: threading.Event | None = None
    """Set when it has room, or gets none: its caller blocks until then."""

    def done(self, outcome: Outcome) -> None:
        """It is over; called once, on the client's thread."""

    def is_late(self, now_ms: int) -> bool:
        """Whether its time is up, or nobody waits for it any more."""
        return self.deadline_ms <= now_ms


class BlockedSend(Send, kw_only=True):
    """A thread waits for the end."""

    lock: threading.Lock
    """Held until then."""

    def done(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.lock.release()


class AwaitedSend(Send, kw_only=True):
    """A future gets the end."""

    future: asyncio.Future[MessageId]
    relay: Relay[AwaitedSend] | None = None
    """To the future's loop; None when that is the client's own."""

    def done(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.relay is None:
            settle_future(self)
        else:
            self.relay.put(self)


class CallbackSend(Send, kw_only=True):
    """A callback gets the end."""

    on_done: OnDone
    thread: CallbackThread[CallbackSend]

    def done(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.thread.put(self)

    def call(self) -> None:
        """On the thread for callbacks; an error of the callback stays here."""
        if self.outcome is None:
            return
        try:
            self.on_done(self.outcome)
        except Exception:
            _log.exception("send callback failed", extra={"callback": repr(self.on_done)})


class FlushMark(Send, kw_only=True):
    """Nothing to send: it stands in line behind all sends that were made before it."""

    future: asyncio.Future[None]
    has_room: bool = True

    def done(self, outcome: Outcome) -> None:
        self.pass_by()

    def pass_by(self) -> None:
        """Whatever was before it was begun, or has ended."""
        if not self.future.done():
            self.future.set_result(None)


# ---- entries ------------------------------------------------------------------------------------


class PendingEntry(msgspec.Struct, eq=False):
    """One frame without a receipt."""

    sequence_id: int
    """What its receipt will name."""
    last_sequence_id: int
    pieces: Pieces
    sends: Sequence[Send]
    """None in any chunk but the last."""
    sent_ms: int
    deadline_ms: int
    first_chunk: list[MessageId] | None = None
    """Shared by the chunks of one message: where its first one is, once that is known."""
    number: int = 0
    """How many were sent before it; set when it is added."""
    size_bytes: int = 0
    """Of its frame; set likewise."""

    def end(self, ledger_id: int, entry_id: int, partition: int) -> None:
        """It is stored there."""
        sends = self.sends
        chunks = self.first_chunk
        if chunks is not None:
            here = MessageId(ledger_id, entry_id, partition)
            if not chunks:
                chunks.append(here)
            for send in sends:
                send.done(MessageId(ledger_id, entry_id, partition, first_chunk=chunks[0]))
        elif len(sends) == 1:
            sends[0].done(MessageId(ledger_id, entry_id, partition))
        else:
            size = len(sends)
            for index, send in enumerate(sends):
                send.done(MessageId(ledger_id, entry_id, partition, index, size))

    def fail(self, error: ClientError) -> None:
        """It will not be heard of again."""
        for send in self.sends:
            send.done(error)


class ReceiptOutOfOrder(ClientError):
    """A broker confirmed an entry while an earlier one was not confirmed."""


class UnconfirmedEntries:
    """The entries of one partition without a receipt, in the order in which they were sent."""

    __slots__ = ("_count", "_entries", "bytes", "messages")

    def __init__(self) -> None:
        # Bounded by the room that their sends have taken.
        self._entries: deque[PendingEntry] = deque()
        self._count = 0
        self.messages = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PendingEntry]:
        """As they go out again."""
        return iter(self._entries)

    @property
    def oldest(self) -> PendingEntry | None:
        """Any thread may ask: what is there may be gone when it is looked at."""
        try:
            return self._entries[0]
        except IndexError:
            return None

    @property
    def newest(self) -> PendingEntry | None:
        return self._entries[-1] if self._entries else None

    def add(self, entry: PendingEntry) -> None:
        entry.number = self._count
        self._count += 1
        self._entries.append(entry)
        self.messages += len(entry.sends)
        entry.size_bytes = size = entry.pieces.size_bytes
        self.bytes += size

    def confirmed(self, sequence_id: int, *, is_duplicate: bool) -> PendingEntry | None:
        """The entry of a receipt, which is over; None = nobody waits for it any more.

        Receipts come in the order of sending, but that of a duplicate may come before others. Any
        other one that is early means that an answer was lost: ``ReceiptOutOfOrder``.
        """
        entries = self._entries
        if not entries:
            return None
        if entries[0].sequence_id == sequence_id:
            return self._over(entries.popleft())
        for entry in entries:
            if entry.sequence_id == sequence_id:
                break
        else:
            return None
        if not is_duplicate:
            raise ReceiptOutOfOrder(
                f"the broker confirmed {sequence_id} before {entries[0].sequence_id}"
            )
        entries.remove(entry)
        return self._over(entry)

    def refused(self, sequence_id: int) -> PendingEntry | None:
        """The entry that the broker would not store; None = nobody waits for it any more."""
        for entry in self._entries:
            if entry.sequence_id == sequence_id:
                self._entries.remove(entry)
                return self._over(entry)
        return None

    def expire(self, now_ms: int) -> list[PendingEntry]:
        """Those whose time is up; what is behind them stays in order."""
        found = []
        while self._entries and self._entries[0].deadline_ms <= now_ms:
            found.append(self._over(self._entries.popleft()))
        return found

    def drain(self) -> list[PendingEntry]:
        """All of them: nothing will be heard any more."""
        found = list(self._entries)
        self._entries.clear()
        self.messages = self.bytes = 0
        return found

    def _over(self, entry: PendingEntry) -> PendingEntry:
        self.messages -= len(entry.sends)
        self.bytes -= entry.size_bytes
        return entry


# ---- room ---------------------------------------------------------------------------------------


class SendRoom:
    """The bound of one producer, and who waits for room; any thread.

    Callers take, the client's thread and that of callbacks give back; a lock is between them. Who
    has room is handed to ``begin`` under that lock, so that messages are sent in the order in which
    they got room.
    """

    def __init__(
        self,
        messages_max: int,
        bytes_max: int,
        clock: Clock,
        begin: Callable[[Send], object],
        *,
        blocks: bool,
        what: str,
    ) -> None:
        self._window: SendWindow[Send] = SendWindow(messages_max, bytes_max)
        self._clock = clock
        self._begin = begin
        self._blocks = blocks
        self._what = what
        self._lock = threading.Lock()
        self.refusals = 0

    def take_or_wait(self, send: Send, *, holds_caller: bool = False) -> bool:
        """True: it has room and was begun. False: it waits, and will be begun or be late.

        ``holds_caller``: then it has an event that is set when its wait is over. Raises
        ``WouldBlock`` when it is refused instead.
        """
        with self._lock:
            window = self._window
            if window.take(send.size_bytes):
                self._begin(send)
                return True
            if not self._blocks or window.waiting >= WAITING_MAX:
                self.refusals += 1
                raise self._refusal()
            if holds_caller:
                send.admitted = threading.Event()
            window.wait(send, send.size_bytes, self._clock.monotonic_ms())
            return False

    def line_up(self, mark: FlushMark) -> None:
        """Begin it behind all who wait; it needs no room, but gets some if it waits for it."""
        with self._lock:
            mark.has_room = bool(self._window.waiting)
            if mark.has_room:
                self._window.wait(mark, 0, self._clock.monotonic_ms())
            else:
                self._begin(mark)

    def give(self, messages: int, size_bytes: int) -> None:
        """Sends are over: those who wait for their room are begun."""
        with self._lock:
            self._start(self._window.give(size_bytes, messages))

    def expire(self, now_ms: int) -> list[Send]:
        """Those who waited for too long; they leave."""
        with self._lock:
            late = [each for each in self._window.waiters() if each.is_late(now_ms)]
            if late:
                self._start(self._window.forget(late))
            return late

    def drain(self) -> list[Send]:
        """The producer is closed: everybody who waited."""
        with self._lock:
            return self._window.forget_all()

    def grow(self, messages_max: int) -> None:
        """More partitions have more room; who waits finds it with the next receipt."""
        with self._lock:
            self._window.messages_max = messages_max

    @property
    def messages(self) -> int:
        """Not answered yet."""
        return self._window.messages

    @property
    def bytes(self) -> int:
        return self._window.bytes

    @property
    def messages_max(self) -> int:
        return self._window.messages_max

    @property
    def waiting(self) -> int:
        """Sends that wait for room."""
        return self._window.waiting

    @property
    def waits_since_ms(self) -> int | None:
        """Since when the first of them has been waiting (monotonic)."""
        with self._lock:
            return self._window.waits_since_ms

    def usage(self) -> str:
        """How full it is, in words."""
        window = self._window
        return (
            f"{window.messages:,} of {window.messages_max:,} messages and {window.bytes:,} of"
            f" {window.bytes_max:,} bytes are not confirmed"
        )

    def _start(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self._begin(send)
            if send.admitted is not None:
                send.admitted.set()

    def _refusal(self) -> WouldBlock:
        return WouldBlock(
            f"{self._what} is full: {self.usage()} (max_pending_messages, max_pending_bytes);"
            f" wait for receipts, or open it with block_if_queue_full=True"
        )


def too_late(what: str, timeout_ms: int, detail: str) -> TimedOut:
    """What a send is told whose time is up; it may have been stored."""
    return TimedOut(f"the broker ({detail})", timeout_ms, f"a message of the {what}")
