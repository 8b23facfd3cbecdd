"""Messages that were received and not handed out: where application threads meet the client's.

The client's thread puts lists in; any thread takes messages out, without waking the client's thread
for each: what was taken is counted at the message's source (a consumer of one partition), and that
hears of it when it is worth a FLOW, or when the bytes have fallen far enough to go on reading.

Bound: the permits of the sources that share it, and ``bytes_max``; who has filled it stops reading
(``is_full``) until half of the bytes are gone.
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

from penstock.client.pulsar.message import MessageId, ReceivedMessage


def _nothing() -> None:
    """Nobody wants to know."""


class Source(Protocol):
    """A consumer of one partition; what it has here is used under the inbox's lock only."""

    epoch: int
    """The how-manieth connection it has."""
    taken: int
    """Messages taken since it last heard of them."""
    taken_post_at: int
    """At so many it wants to hear of them."""
    last_taken: MessageId | None

    def post_taken(self) -> None:
        """From any thread: it is time to look at what was taken."""
        ...

    def note_taken(self, message: ReceivedMessage) -> None:
        """From any thread, under the lock: only what costs nothing."""
        ...


class Inbox:
    """A queue between one thread and many, bounded by those who fill it."""

    def __init__(
        self,
        bytes_max: int,
        *,
        on_room: Callable[[], None] = _nothing,
        on_wait: Callable[[], None] = _nothing,
        lock: RLock | None = None,
    ) -> None:
        """``on_room``: reading may go on; ``on_wait``: somebody waits. From any thread, locked."""
        self.bytes_max: Final = bytes_max
        self._on_room = on_room
        self._on_wait = on_wait
        self.bytes = 0
        self.receivers = 0
        """Those who wait for a message, threads and coroutines."""
        self.closed_why: Exception | None = None
        self._messages: deque[ReceivedMessage] = deque()
        self._ready = Condition(lock)
        self._futures: deque[asyncio.Future[ReceivedMessage]] = deque()
        """Coroutines of the client's thread that wait; bounded by the application's tasks."""
        self._is_full = False

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        """More bytes than allowed, and not yet down to half of them again."""
        return self._is_full

    # ---- the client's thread ---------------------------------------------------------------------

    def put(self, messages: list[ReceivedMessage]) -> None:
        with self._ready:
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
            self.bytes += sum([len(each.data) for each in rest])
            if self.bytes >= self.bytes_max:
                self._is_full = True
            if self.receivers:
                self._ready.notify_all()

    def clear(self, source: Source, up_to_epoch: int | None = None) -> list[ReceivedMessage]:
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
                self.bytes -= sum([len(each.data) for each in gone])
                if self._is_full:
                    self._review_full()
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
                self._put_back(waiter.result())
            raise
        finally:
            with self._ready:
                self.receivers -= 1
                if waiter in self._futures:
                    self._futures.remove(waiter)

    def close(self, why: Exception) -> None:
        """Whoever waits gets this error, whoever comes later, too."""
        with self._ready:
            self.closed_why = why
            self._messages.clear()
            self.bytes = 0
            self._is_full = False
            waiting, self._futures = self._futures, deque()
            self._ready.notify_all()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(why)

    # ---- any thread ------------------------------------------------------------------------------

    def take(self) -> ReceivedMessage | None:
        """The next message, if there is one; raises when the consumer was closed."""
        with self._ready:
            return self._pop()

    def take_within(self, timeout_s: float | None) -> ReceivedMessage | None:
        """The next message; None when the time is up. Blocks its thread."""
        with self._ready:
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

    def pop_many(self, messages_max: int, bytes_max: int) -> list[ReceivedMessage]:
        """What is there of that, without waiting."""
        with self._ready:
            return self._pop_many(messages_max, bytes_max)

    def has_batch(self, messages_max: int, bytes_max: int) -> bool:
        with self._ready:
            return self._is_batch(messages_max, bytes_max)

    # ---- under the lock --------------------------------------------------------------------------

    def _is_answerable(self) -> bool:
        return bool(self._messages) or self.closed_why is not None

    def _is_batch(self, messages_max: int, bytes_max: int) -> bool:
        has_enough = len(self._messages) >= messages_max or self.bytes >= bytes_max
        return has_enough or self.closed_why is not None

    def _pop(self) -> ReceivedMessage | None:
        if not self._messages:
            if self.closed_why is not None:
                raise self.closed_why
            return None
        message = self._messages.popleft()
        self.bytes -= len(message.data)
        if self._is_full:
            self._review_full()
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
            raise self.closed_why
        return found

    def _count(self, message: ReceivedMessage) -> None:
        source: Source = message.source
        source.last_taken = message.message_id
        source.note_taken(message)
        source.taken += 1
        if source.taken >= source.taken_post_at:
            source.post_taken()

    def _review_full(self) -> None:
        if self.bytes * 2 <= self.bytes_max:
            self._is_full = False
            self._on_room()

    def _put_back(self, message: ReceivedMessage) -> None:
        """Whoever waited for it is gone; of a lost connection it comes again by itself."""
        with self._ready:
            source: Source = message.source
            if message.epoch != source.epoch or self.closed_why is not None:
                return
            source.taken -= 1
            self._messages.appendleft(message)
            self.bytes += len(message.data)
            if self.receivers:
                self._ready.notify_all()
