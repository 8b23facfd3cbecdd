"""The receiver queue: how many messages may come (permits), and what came and nobody has (inbox).

Permits are the arithmetic of FLOW (B4, B26, B28-B33). Who grants: this consumer, its receiver
queue's size when it is connected, and again what the application took. Who spends: the broker, one
for each message it sends; a batch may be larger than what is left, then the broker owes. Who stops:
``pause``; a lost connection. What wakes it: an application that takes messages, ``resume``, a
connection.

    outstanding   granted and not yet delivered; below zero when a batch was larger
    gathered      taken by the application, and not yet granted again

Invariants, of a queue of size n: ``outstanding`` never exceeds n (of size 0: the receivers that
wait); while connected and started, ``outstanding + gathered + unreceived`` is n; ``gathered`` is
below half of n unless paused, so that an application that takes is never starved. Each step says
how much FLOW is to be sent now, and 0 means none at all (B33).

The inbox is where application threads meet the client's: that one puts lists in, any thread takes
messages out, without waking the client's thread for each. What was taken is counted at the
message's source (a consumer of one partition), and that hears of it when it is worth a FLOW, or
when the bytes have fallen far enough to go on reading.

Bound: the permits of the sources that share it, and ``bytes_max`` of all inboxes of a consumer
(``InboxRoom``); who has filled it stops reading (``is_full``) until half of the bytes are gone.
Invariants: messages of one source leave in the order they came; one that was put is taken once,
given up by ``clear``, or still there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Condition, RLock
from time import monotonic
from typing import Final, Protocol

from penstock.client.pulsar.errors import StateError
from penstock.client.pulsar.message import MessageId, ReceivedMessage


class ReceiverPermits:
    """The permits of a consumer of one partition."""

    __slots__ = (
        "_is_connected", "_is_started", "gathered", "is_paused", "outstanding", "queue_size",
        "refill_at",
    )  # fmt: skip

    def __init__(self, queue_size: int) -> None:
        self.queue_size: Final = queue_size
        self.refill_at: Final = max(1, queue_size // 2)
        """Half of the queue: fewer permits are not worth a FLOW (B4, B31)."""
        self.outstanding = 0
        self.gathered = 0
        self.is_paused = False
        self._is_connected = False
        self._is_started = False

    @property
    def is_waiting_for_start(self) -> bool:
        """Subscribed, and its parent has not let it begin."""
        return self._is_connected and not self._is_started

    def connected(self, *, may_start: bool = True) -> int:
        """SUBSCRIBE succeeded: all begins at 0, here and at the broker (B26).

        ``may_start`` is False for a durable child that is connected for the first time: its parent
        starts all of them when all are there (B29).
        """
        self._is_connected = True
        self._is_started = False
        self.outstanding = self.gathered = 0
        return self.start() if may_start else 0

    def start(self) -> int:
        """The whole queue is granted (B28); nothing for a queue of 0 (B30)."""
        if not self._is_connected or self._is_started:
            return 0
        self._is_started = True
        self.gathered += self.queue_size
        return self._flow()

    def disconnected(self) -> None:
        self._is_connected = False
        self.outstanding = self.gathered = 0

    def arrived(self, messages: int) -> None:
        """The broker sent these, and charged them."""
        self.outstanding -= messages

    def taken(self, messages: int) -> int:
        """The application has them, or they were thrown away: their places are free."""
        if not self._is_connected or self.queue_size == 0:
            return 0
        self.gathered += messages
        return self._flow()

    def wanted(self, receivers: int) -> int:
        """A queue of 0 (B30): so many receivers wait for one message each."""
        if not self._is_connected or not self._is_started or self.is_paused or self.queue_size:
            return 0
        return self._grant(max(0, receivers - self.outstanding)) if receivers > 0 else 0

    def pause(self) -> None:
        """No FLOW from here on (B32)."""
        self.is_paused = True

    def resume(self) -> int:
        """What gathered meanwhile, if it is worth it."""
        self.is_paused = False
        return self._flow()

    def _flow(self) -> int:
        is_due = self.gathered >= self.refill_at
        if not is_due or self.is_paused or not self._is_connected or not self._is_started:
            return 0
        messages, self.gathered = self.gathered, 0
        return self._grant(messages)

    def _grant(self, messages: int) -> int:
        self.outstanding += messages
        return messages


# ---- inbox ---------------------------------------------------------------------------------------


def _nothing() -> None:
    """Nobody wants to know."""


class InboxSource(Protocol):
    """A consumer of one partition; what it has here is used under the inbox's lock only."""

    epoch: int
    """The how-manieth connection it has."""
    taken: int
    """Messages taken since it last heard of them."""
    taken_post_at: int
    """At so many it wants to hear of them."""
    last_taken: MessageId | None
    is_noting: bool
    """Whether it wants to hear of each message that is taken."""

    @property
    def is_durable(self) -> bool:
        """Whether the broker sends again on the next connection what was not acked."""
        ...

    def post_taken(self) -> None:
        """From any thread: it is time to look at what was taken."""
        ...

    def note_taken(self, message: ReceivedMessage) -> None:
        """From any thread, under the lock: only what costs nothing."""
        ...


class InboxRoom:
    """The bytes of all inboxes of a consumer; under their lock.

    Of several inboxes one may get everything: a bound for each would be a part of what was meant.
    """

    __slots__ = ("_on_room", "bytes", "bytes_max", "is_full")

    def __init__(self, bytes_max: int, on_room: Callable[[], None] = _nothing) -> None:
        """``on_room``: reading may go on; from any thread, locked."""
        self.bytes_max: Final = bytes_max
        self.bytes = 0
        self.is_full = False
        """More bytes than allowed, and not yet down to half of them again."""
        self._on_room = on_room

    def take(self, size: int) -> None:
        self.bytes += size
        if self.bytes >= self.bytes_max:
            self.is_full = True

    def give(self, size: int) -> None:
        self.bytes -= size
        if self.is_full and self.bytes * 2 <= self.bytes_max:
            self.is_full = False
            self._on_room()


class MessageInbox:
    """A queue between one thread and many, bounded by those who fill it."""

    def __init__(
        self,
        room: InboxRoom,
        *,
        on_wait: Callable[[], None] = _nothing,
        lock: RLock | None = None,
    ) -> None:
        """``on_wait``: somebody waits; from any thread, locked."""
        self.room: Final = room
        self._on_wait = on_wait
        self.bytes = 0
        self.receivers = 0
        """Those who wait for a message, threads and coroutines."""
        self.closed_why: str | None = None
        self._messages: deque[ReceivedMessage] = deque()
        self._lock = RLock() if lock is None else lock
        self._ready = Condition(self._lock)
        self._futures: deque[asyncio.Future[ReceivedMessage]] = deque()
        """Coroutines of the client's thread that wait; bounded by the application's tasks."""

    def __len__(self) -> int:
        return len(self._messages)

    # ---- the client's thread ---------------------------------------------------------------------

    def put(self, messages: list[ReceivedMessage]) -> None:
        with self._ready:
            if self.closed_why is not None:
                return
            at = 0
            while self._futures and at < len(messages):
                waiter = self._futures.popleft()
                if not waiter.done():
                    message = messages[at]
                    at += 1
                    self._count(message)
                    waiter.set_result(message)
            rest = messages[at:] if at else messages
            if not rest:
                return
            self._messages.extend(rest)
            size = sum([len(each.data) for each in rest])
            self.bytes += size
            self.room.take(size)
            if self.receivers:
                self._ready.notify_all()

    def clear(self, source: InboxSource, up_to_epoch: int | None = None) -> list[ReceivedMessage]:
        """Take back all of one source, up to one of its connections if that is named; in order."""
        with self._ready:
            gone = [
                each
                for each in self._messages
                if each.source is source and (up_to_epoch is None or each.epoch <= up_to_epoch)
            ]
            if gone:
                lost = {id(each) for each in gone}
                self._messages = deque([each for each in self._messages if id(each) not in lost])
                size = sum([len(each.data) for each in gone])
                self.bytes -= size
                self.room.give(size)
            return gone

    async def wait(self) -> ReceivedMessage:
        """The next message, for a coroutine of the client's thread."""
        message = self.take()
        if message is not None:
            return message
        waiter: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        with self._ready:
            self._futures.append(waiter)
            self.receivers += 1
            self._on_wait()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.put_back(waiter.result())
            raise
        finally:
            with self._ready:
                self.receivers -= 1
                if waiter in self._futures:
                    self._futures.remove(waiter)

    def put_back(self, message: ReceivedMessage) -> None:
        """Whoever waited for it is gone; what the broker sends again by itself is not kept."""
        with self._ready:
            source: InboxSource = message.source
            comes_again = source.is_durable and message.epoch != source.epoch
            if comes_again or self.closed_why is not None:
                return
            source.taken -= 1
            while self._futures:
                waiter = self._futures.popleft()
                if not waiter.done():
                    self._count(message)
                    waiter.set_result(message)
                    return
            self._messages.appendleft(message)
            self.bytes += len(message.data)
            self.room.take(len(message.data))
            if self.receivers:
                self._ready.notify_all()

    def close(self, why: str) -> None:
        """Whoever waits gets a ``StateError``, whoever comes later, too."""
        with self._ready:
            self.closed_why = why
            self._messages.clear()
            self.room.give(self.bytes)
            self.bytes = 0
            waiting, self._futures = self._futures, deque()
            self._ready.notify_all()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(StateError(why))

    # ---- any thread ------------------------------------------------------------------------------

    def take(self) -> ReceivedMessage | None:
        """The next message, if there is one; raises when the consumer was closed."""
        with self._lock:
            return self._pop()

    def take_within(self, timeout_s: float | None) -> ReceivedMessage | None:
        """The next message; None when the time is up. Blocks its thread."""
        with self._lock:
            message = self._pop()
            if message is not None:
                return message
            self.receivers += 1
            self._on_wait()
            try:
                self._ready.wait_for(self._is_answerable, timeout_s)
                return self._pop()
            finally:
                self.receivers -= 1

    def take_many(
        self, messages_max: int, bytes_max: int, timeout_s: float | None
    ) -> list[ReceivedMessage]:
        """Messages up to a number, or to so many bytes, or as many as come in time."""
        end = None if timeout_s is None else monotonic() + timeout_s
        with self._ready:
            self.receivers += 1
            self._on_wait()
            try:
                while not self._is_batch(messages_max, bytes_max):
                    left = None if end is None else end - monotonic()
                    if left is not None and left <= 0:
                        break
                    self._ready.wait(left)
                return self._pop_many(messages_max, bytes_max)
            finally:
                self.receivers -= 1

    # ---- under the lock --------------------------------------------------------------------------

    def _is_answerable(self) -> bool:
        return bool(self._messages) or self.closed_why is not None

    def _is_batch(self, messages_max: int, bytes_max: int) -> bool:
        has_enough = len(self._messages) >= messages_max or self.bytes >= bytes_max
        return has_enough or self.closed_why is not None

    def _pop(self) -> ReceivedMessage | None:
        if not self._messages:
            if self.closed_why is not None:
                raise StateError(self.closed_why)
            return None
        message = self._messages.popleft()
        size = len(message.data)
        self.bytes -= size
        self.room.give(size)
        self._count(message)
        return message

    def _pop_many(self, messages_max: int, bytes_max: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        size = 0
        while len(found) < messages_max and self._messages:
            size += len(self._messages[0].data)
            if found and size > bytes_max:
                break
            message = self._pop()
            if message is not None:
                found.append(message)
        if not found and self.closed_why is not None:
            raise StateError(self.closed_why)
        return found

    def _count(self, message: ReceivedMessage) -> None:
        source: InboxSource = message.source
        source.last_taken = message.message_id
        if source.is_noting:
            source.note_taken(message)
        source.taken += 1
        if source.taken >= source.taken_post_at:
            source.post_taken()
