"""Unsent limit: deliveries made for a connection that its socket has not taken yet (F14).

Who spends: the dispatcher. Who grants: the socket, by taking bytes. Who stops: deliveries to this
connection only; a peer that does not read never slows another one. What wakes it: both figures back
at half (RabbitMQ gives back 50 of 200 at a time for the same reason).

Ten thousand connections, each within its limit, are gigabytes: so all of them together draw on one
``UnsentPool``, a part of the in-flight pool that publishers cannot use up (D22). While it is short,
a connection gets one message at a time and only when its socket has taken the one before; nobody
stands still because of others (law 8), and deliveries never wait for publishers (law 3).

Not here: whether the peer settles what it was sent (``inflight``).
"""

from typing import Protocol


class Waiter(Protocol):
    """Somebody who stopped because the pool is short."""

    def wake(self) -> None:
        """There is room again."""
        ...


class UnsentPool:
    """Bytes that all sockets together have not taken; short from its maximum down to half."""

    __slots__ = ("_waiting", "bytes", "bytes_max", "is_short")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self.is_short = False
        # Bounded by the number of consumers.
        self._waiting: dict[Waiter, None] = {}

    def add(self, size_bytes: int) -> None:
        """Handed to some connection."""
        self.bytes += size_bytes
        if self.bytes >= self.bytes_max:
            self.is_short = True

    def give(self, size_bytes: int) -> None:
        """Taken by its socket, or gone with it."""
        self.bytes -= size_bytes
        assert self.bytes >= 0, "more bytes given back than were unsent"
        if self.is_short and self.bytes <= self.bytes_max // 2:
            self.is_short = False
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                waiter.wake()

    def wait(self, waiter: Waiter) -> None:
        """Wake it when the pool is short no more."""
        self._waiting[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        """It is gone."""
        self._waiting.pop(waiter, None)


class UnsentLimit:
    """Messages or bytes, whichever is reached first; 0 = no ceiling."""

    __slots__ = ("bytes", "bytes_max", "is_held", "messages", "messages_max", "pool")

    def __init__(self, messages_max: int, bytes_max: int, pool: UnsentPool | None = None) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        self.is_held = False
        self.pool = pool

    def queued(self, messages: int, size_bytes: int) -> bool:
        """Handed to the connection; True while held."""
        self.messages += messages
        self.bytes += size_bytes
        if self.pool is not None:
            self.pool.add(size_bytes)
        if self.messages >= self.messages_max > 0 or self.bytes >= self.bytes_max > 0:
            self.is_held = True
        return self.is_held

    def sent(self, messages: int, size_bytes: int) -> bool:
        """Taken by the socket; True when this let deliveries go on."""
        self.messages -= messages
        self.bytes -= size_bytes
        assert self.messages >= 0, "more messages sent than queued"
        assert self.bytes >= 0, "more bytes sent than queued"
        is_freed = False
        if self.pool is not None:
            is_freed = self.pool.is_short and not self.messages
            self.pool.give(size_bytes)
        if not self.is_held:
            return is_freed
        # Without a ceiling a figure never holds anything back, however large it is.
        is_low = (not self.messages_max or self.messages <= self.messages_max // 2) and (
            not self.bytes_max or self.bytes <= self.bytes_max // 2
        )
        self.is_held = not is_low
        return is_low

    def sent_all(self) -> bool:
        """The socket has nothing left to take; True when this let deliveries go on."""
        return self.sent(self.messages, self.bytes)

    def close(self) -> None:
        """The connection is gone: what its socket did not take weighs no more."""
        if self.pool is not None:
            self.pool.give(self.bytes)
            self.pool = None
