"""Budgets: what may be in flight, in bytes and in messages, and for whom.

``BytesPool`` is the one limit that pays for everything in flight (D22, law 2). ``UnsentLimit``
bounds deliveries that a socket has not taken, ``BufferPool`` appends that are not durable,
``PendingLimit`` publishes of a connection that are not confirmed, ``SendWindow`` what a producing
client has under way. Each section says who grants, who spends, who stops and what wakes it.

The pool:

Who spends: read-ahead, held publishes, unsynced bytes, in-flight and unsent deliveries. Who grants:
whoever is done with the bytes. Who stops: the owner whose share is full, or everybody when the pool
is. What wakes it: bytes given back; those who were refused are woken in the order they asked.

Invariants: the sum of all shares' use is the pool's use and never above its maximum; a share's own
maximum is a part of the pool, never an addition (10,000 connections of 16 MiB do not make 160 GiB);
an empty share takes one piece larger than itself as long as the pool has room, so nothing that was
accepted by size can be stuck for ever.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

IN_FLIGHT_POOL: Final = "in-flight pool"
"""What the publishers' pool is called where somebody waits for it, and among the limits."""


class Share:
    """What one owner has taken from the pool, and the most it may."""

    __slots__ = ("bytes_max", "owner", "used", "wake", "wanted")

    def __init__(self, owner: str, bytes_max: int) -> None:
        self.owner = owner
        self.bytes_max = bytes_max
        self.used = 0
        self.wanted = 0
        """Bytes refused because this share was full; 0 = it does not wait for itself."""
        self.wake: Callable[[], None] | None = None
        """Called when a refused take may succeed now; must only mark its owner as having work."""

    def fits(self, size_bytes: int) -> bool:
        """True when this share allows it; the pool must have room as well."""
        return self.used == 0 or self.used + size_bytes <= self.bytes_max


class BytesPool:
    """A number of bytes that owners take and give back."""

    __slots__ = ("_waiting", "bytes_max", "peak", "refusals", "used")

    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 1:
            raise ValueError(f"a pool of {bytes_max} bytes; it must have at least 1")
        self.bytes_max = bytes_max
        self.used = 0
        self.peak = 0
        self.refusals = 0
        # Shares refused for want of room in the pool -> bytes wanted, oldest first; bounded by
        # the number of shares.
        self._waiting: dict[Share, int] = {}

    def share(self, owner: str, bytes_max: int) -> Share:
        """A share for a new owner; never larger than the pool."""
        return Share(owner, min(bytes_max, self.bytes_max))

    def can_take(self, share: Share, size_bytes: int) -> bool:
        """True when ``take`` would succeed."""
        return self.used + size_bytes <= self.bytes_max and share.fits(size_bytes)

    def take(self, share: Share, size_bytes: int) -> bool:
        """Take bytes; False when the share or the pool is full (then ``wake`` comes later).

        More than the whole pool is refused without waiting: it would wait for ever.
        """
        if self.can_take(share, size_bytes):
            share.wanted = 0
            if self._waiting:
                self._waiting.pop(share, None)
            share.used += size_bytes
            self.used += size_bytes
            self.peak = max(self.peak, self.used)
            return True
        self.refusals += 1
        if size_bytes <= self.bytes_max:
            self._wait(share, size_bytes)
        return False

    def give(self, share: Share, size_bytes: int) -> None:
        assert 0 <= size_bytes <= share.used, "more given back than taken"
        share.used -= size_bytes
        self.used -= size_bytes
        if share.wanted and share.fits(share.wanted):
            wanted, share.wanted = share.wanted, 0
            self._waiting[share] = wanted
        if self._waiting:
            self._wake_waiting()

    def close(self, share: Share) -> None:
        """The owner is gone: everything it had comes back, and it waits for nothing."""
        self._waiting.pop(share, None)
        share.wanted = 0
        share.wake = None
        self.give(share, share.used)

    def _wait(self, share: Share, size_bytes: int) -> None:
        """Wait for oneself first: a full share must not stand in the way of the others."""
        if share.fits(size_bytes):
            share.wanted = 0
            self._waiting[share] = size_bytes
        else:
            share.wanted = size_bytes
            self._waiting.pop(share, None)

    def _wake_waiting(self) -> None:
        """Wake who fits now. Waking takes nothing: whoever comes too late waits again."""
        for share, wanted in list(self._waiting.items()):
            # The first that does not fit ends the round, or large pieces would starve behind
            # small ones. It fits at the latest when the pool is empty, so the round goes on then.
            if self.used + wanted > self.bytes_max:
                break
            if self._waiting.pop(share, None) is not None and share.wake is not None:
                share.wake()


# ---- unsent -------------------------------------------------------------------------------------
# Unsent limit: deliveries made for a connection that its socket has not taken yet (F14).
#
# Who spends: the dispatcher. Who grants: the socket, by taking bytes. Who stops: deliveries to this
# connection only; a peer that does not read never slows another one. What wakes it: both figures
# back at half (RabbitMQ gives back 50 of 200 at a time for the same reason).
#
# Ten thousand connections, each within its limit, are gigabytes: so all of them together draw on
# one ``UnsentPool``, a part of the in-flight pool that publishers cannot use up (D22). While it is
# short, a connection gets one message at a time and only when its socket has taken the one before;
# nobody stands still because of others (law 8), and deliveries never wait for publishers (law 3).


class Waiter(Protocol):
    """Somebody who stopped because the pool is short."""

    def wake(self) -> None: ...


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


# ---- buffer pool --------------------------------------------------------------------------------
# Write-buffer pool: how much may be appended and not yet durable (F7, D8).
#
# Who spends: an append, its bytes. Who grants: a sync, by making them durable. Who stops: further
# appends; by protocol they are then refused (fast) or held (credit). What wakes it: that sync.
#
# RocketMQ borrows whole buffers; here a "buffer" is ``buffer_bytes`` of unsynced log, so the
# figures an operator knows (5 buffers of 16 MiB) mean the same without memory being set apart for
# them. Invariant: an empty pool takes anything, so a message larger than the whole pool is not
# stuck.


class BufferPool:
    """Unsynced bytes, counted in buffers."""

    __slots__ = ("buffer_bytes", "buffers", "capacity_bytes", "is_awaited", "unsynced_bytes")

    def __init__(self, buffers: int, buffer_bytes: int) -> None:
        self.unsynced_bytes = 0
        self.is_awaited = False
        """True while something that was taken in waits for room: newcomers would only join it."""
        self.resize(buffers, buffer_bytes)

    def resize(self, buffers: int, buffer_bytes: int) -> None:
        """New figures; what is unsynced stays counted."""
        if buffers < 1 or buffer_bytes < 1:
            raise ValueError(f"{buffers} buffers of {buffer_bytes} bytes: at least 1 of 1 byte")
        self.buffers = buffers
        self.buffer_bytes = buffer_bytes
        self.capacity_bytes = buffers * buffer_bytes

    def appended(self, size_bytes: int) -> None:
        """Written to the log, not durable yet."""
        self.unsynced_bytes += size_bytes

    def durable(self, size_bytes: int) -> None:
        """A sync covered this much (or the append was taken back)."""
        self.unsynced_bytes -= size_bytes
        self.is_awaited = False  # whoever still finds no room says so again
        assert self.unsynced_bytes >= 0, "more bytes synced than appended"

    @property
    def free_buffers(self) -> int:
        """Buffers with nothing unsynced in them."""
        used = -(-self.unsynced_bytes // self.buffer_bytes)
        return max(0, self.buffers - used)

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.unsynced_bytes)

    def can_take(self, size_bytes: int, waiting: int = 0) -> bool:
        """True when that much fits beside what is unsynced and ``waiting`` bytes before it."""
        used = self.unsynced_bytes + waiting
        return used == 0 or used + size_bytes <= self.capacity_bytes


# ---- pending ------------------------------------------------------------------------------------
# Pending publishes of one connection: sent to us and not yet confirmed by us (F9).
#
# Who spends: the connection, one per publish. Who grants: the log, by becoming durable. Who stops:
# the connection, when the limit is reached. What wakes it: the count falling to half, so that it
# does not stop and start with every single confirm.


class PendingLimit:
    """A count with a ceiling; 0 = no ceiling."""

    __slots__ = ("count", "is_held", "pending_max")

    def __init__(self, pending_max: int) -> None:
        self.pending_max = pending_max
        self.count = 0
        self.is_held = False

    def add(self, n: int = 1) -> bool:
        """Publishes came in; True while held."""
        self.count += n
        if self.count >= self.pending_max > 0:
            self.is_held = True
        return self.is_held

    def done(self, n: int = 1) -> bool:
        """Publishes were confirmed or refused; True when this let the connection go on."""
        self.count -= n
        assert self.count >= 0, "more publishes confirmed than came in"
        if self.is_held and self.count <= self.pending_max // 2:
            self.is_held = False
            return True
        return False


# ---- send window --------------------------------------------------------------------------------
# Send window: how much a producing client may have in flight, by number and by bytes (F16).
#
# Who spends: the caller of a send, before the message is encoded. Who grants: the broker, by
# answering (or the send's deadline). Who stops: the caller alone, at the first of the two ceilings;
# it waits for a permit within its own deadline. What wakes it: the answer that makes room, first
# come, first served, so that a large message is not overtaken for ever by small ones.
#
# Invariants: nobody passes while somebody waits; at most one message beyond ``bytes_max`` is in
# flight, and only when it is the only one: a message larger than the window is slow, never stuck.


W = TypeVar("W")


class SendWindow(Generic[W]):
    """Two counts with ceilings and a queue of those who wait; ``W`` is whatever the owner wakes."""

    __slots__ = ("_waiting", "bytes", "bytes_max", "messages", "messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        if messages_max < 1 or bytes_max < 1:
            raise ValueError(f"a window of {messages_max} messages, {bytes_max} bytes; at least 1")
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        # Bounded by the callers: each waits in one place.
        self._waiting: OrderedDict[W, tuple[int, int]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many stand in the queue."""
        return len(self._waiting)

    @property
    def waits_since_ms(self) -> int | None:
        """Since when the first of them has been waiting."""
        for _, since_ms in self._waiting.values():
            return since_ms
        return None

    @property
    def full(self) -> str:
        """Which ceiling the first waiter waits for: ``messages``, ``bytes`` or nothing."""
        for size_bytes, _ in self._waiting.values():
            return "messages" if self.messages >= self.messages_max else self._bytes(size_bytes)
        return ""

    def take(self, size_bytes: int) -> bool:
        """A permit, if there is one now and nobody waits for it."""
        if self._waiting or not self._has_room(size_bytes):
            return False
        self.messages += 1
        self.bytes += size_bytes
        return True

    def wait(self, waiter: W, size_bytes: int, now_ms: int) -> None:
        """Stand in the queue; ``give`` hands the permit over."""
        self._waiting[waiter] = (size_bytes, now_ms)

    def give(self, size_bytes: int, messages: int = 1) -> list[W]:
        """Messages are answered; those who hold a permit by this, in the order they came."""
        self.messages -= messages
        self.bytes -= size_bytes
        assert self.messages >= 0, "more messages answered than sent"
        assert self.bytes >= 0, "more bytes answered than sent"
        return self._admit() if self._waiting else []

    def waiters(self) -> list[W]:
        """Those who wait, first come first."""
        return list(self._waiting)

    def forget(self, waiters: Iterable[W]) -> list[W]:
        """These wait no more; those who hold a permit by this.

        Who leaves may have been too large for the room that those behind fit into.
        """
        for waiter in waiters:
            self._waiting.pop(waiter, None)
        return self._admit()

    def forget_all(self) -> list[W]:
        """The producer stops: everybody who waited, without a permit."""
        waiters = list(self._waiting)
        self._waiting.clear()
        return waiters

    def _admit(self) -> list[W]:
        admitted: list[W] = []
        while self._waiting:
            waiter = next(iter(self._waiting))
            size_bytes, _ = self._waiting[waiter]
            if not self._has_room(size_bytes):
                break
            del self._waiting[waiter]
            self.messages += 1
            self.bytes += size_bytes
            admitted.append(waiter)
        return admitted

    def _has_room(self, size_bytes: int) -> bool:
        if self.messages >= self.messages_max:
            return False
        return not self.messages or self.bytes + size_bytes <= self.bytes_max

    def _bytes(self, size_bytes: int) -> str:
        return "" if self._has_room(size_bytes) else "bytes"
