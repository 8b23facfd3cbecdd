"""Demand: what a consumer can take now, whatever its protocol calls it.

Who grants: the consumer, by prefetch (F10), permits (F11) or a pull that is held (F12). Who spends:
the dispatcher, with ``taken``. Who stops: that consumer's deliveries. What wakes it: ``wake``,
which the dispatcher hangs in and which is called when the demand goes from nothing to something.

``taken`` may be more than was available when a batch record is delivered whole; an implementation
must accept that and answer 0 until it is made up for.
``Window`` and ``ChannelWindow`` are AMQP's prefetch, ``Permits`` Pulsar's; ``InflightLimit`` is
what the broker itself allows to be unsettled, whatever the demand.
"""

from collections.abc import Callable
from enum import StrEnum
from operator import attrgetter
from typing import Final, Protocol

import msgspec

UNLIMITED: Final = (1 << 62) - 1
"""More than any figure ever compared with it; stays a small machine integer when added to."""


class Withheld(StrEnum):
    """Why a consumer gets nothing now; there may be several reasons at once."""

    DEMAND = "demand"
    """It asks for nothing: no permits, a full window. Permits kept aside were asked for."""
    UNSETTLED = "unsettled"
    """It has as many messages unsettled as it may (F13)."""
    BYTES = "bytes"
    """It has as many bytes unsettled as it may (F13)."""
    UNSENT = "unsent"
    """Its socket does not take what it was sent (F14), or all sockets together do not (D22)."""
    INACTIVE = "inactive"
    """Another one is active, or is to take over."""
    SUBSCRIPTION = "subscription-unsettled"
    """All consumers together have as many unsettled as the subscription may (F13)."""
    RATE = "rate"
    """The dispatch rate of the topic or the subscription is used up (F8)."""
    DELAYED_ROOM = "delayed-room"
    """What is next may have to be put aside until its time, and there is no room for it (D14)."""
    DRAINING = "draining"
    """Its keys wait until the one who had them before has settled them."""
    LOOK_AHEAD = "look-ahead"
    """Too much is parked for the keys of others; nothing is read beyond it."""
    NOTHING_READY = "nothing-ready"
    """There is nothing to read for it."""


class ClientCause(StrEnum):
    """Why a client does not take more, in its own words."""

    NOT_RECEIVED = "not-received"
    """Its application takes nothing out of its receiver queue."""
    QUEUE_BYTES = "queue-bytes"
    """Its receiver queue has as many bytes as it may, so that it does not read its connection."""
    LISTENERS = "listeners-busy"
    """All threads of its listener are busy."""
    PAUSED = "paused"
    LETTERS = "letters-wait"
    """What it sends to a retry-letter or dead-letter topic gets no receipt."""
    STARTING = "starting"
    """Other partitions or topics of the same consumer are not subscribed yet."""
    UNACKED = "unacked"
    """Its application has everything that came, and acks nothing of it."""


class ClientSays(msgspec.Struct, frozen=True):
    """What a client said last of one of its consumers; few clients say anything."""

    cause: ClientCause
    waiting: int = 0
    """Messages in its receiver queue; of letters how many."""
    limit: int = 0
    """Of that queue, in messages or bytes; of a listener how many threads."""
    since_ms: int = 0
    lasted_ms: int = 0
    """For how long now, filled in for who looks."""


class Demand(Protocol):
    """One consumer's appetite."""

    wake: Callable[[], None] | None
    """Called on the change from nothing to something; must only mark its owner as having work."""

    def available_messages(self) -> int:
        """Messages it takes now, at least 0."""
        ...

    def available_bytes(self) -> int:
        """Bytes it takes now, at least 0."""
        ...

    def taken(self, messages: int, size_bytes: int, /) -> None: ...

    def returned(self, messages: int, size_bytes: int, /) -> None:
        """This much was settled or requeued."""
        ...


class Unlimited:
    """Takes everything: basic.get, a reader inside the broker."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None

    def available_messages(self) -> int:
        return UNLIMITED

    def available_bytes(self) -> int:
        return UNLIMITED

    def taken(self, messages: int, size_bytes: int, /) -> None: ...

    def returned(self, messages: int, size_bytes: int, /) -> None: ...


# ---- prefetch -----------------------------------------------------------------------------------
# Prefetch: how many unsettled deliveries a consumer, or a whole channel, may have (F10).
#
# Who grants: the client, once, with ``basic.qos``. Who spends: the dispatcher. Who stops: the
# consumer at its own window; all consumers of the channel at the shared one. What wakes it: a
# settlement; when it opens the shared window, every consumer that was refused because of it is
# woken, not only the one whose message was settled (no lost wake-up, law 4), in the order in which
# they were served last: so queues take turns (law 5).
#
# A ``Window`` is one consumer's (global=0); a ``ChannelWindow`` is shared (global=1) and counts
# from the start, so that setting it later also counts what is already unsettled. 0 = unlimited.
# Both apply. Not here: bytes (no client can ask for them; ``InflightLimit`` bounds them anyway).


class ChannelWindow:
    """The window all consumers of one channel share."""

    __slots__ = ("_starved", "count", "served", "unsettled")

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.served = 0
        """How often one of its consumers was given something."""
        self.unsettled = 0
        """Delivered to its consumers, who add to it themselves, and not settled."""
        # Asked and got nothing since the window closed: bounded by the consumers of the channel.
        self._starved: dict[Window, None] = {}

    def available_messages(self) -> int:
        """Messages the channel takes now."""
        return max(0, self.count - self.unsettled) if self.count else UNLIMITED

    def resize(self, count: int) -> None:
        """basic.qos global=1: counts at once, also what is already unsettled."""
        self.count = count
        self._wake_starved()

    def returned(self, messages: int) -> None:
        """Settled or requeued by one of its consumers."""
        self.unsettled -= messages
        assert self.unsettled >= 0, "more settled on the channel than delivered"
        if self._starved:
            self._wake_starved()

    def starve(self, window: "Window") -> None:
        """This consumer found the shared window shut and wants to hear when it opens."""
        self._starved[window] = None

    def forget(self, window: "Window") -> None:
        self._starved.pop(window, None)

    def _wake_starved(self) -> None:
        if self.available_messages() <= 0:
            return
        # Whoever is woken first may take all there is.
        starved = sorted(self._starved, key=attrgetter("served"))
        self._starved.clear()
        for window in starved:
            if window.wake is not None:
                window.wake()


class Window:
    """One consumer's window, inside the window of its channel if it has one."""

    __slots__ = ("channel", "count", "served", "unsettled", "wake")

    def __init__(self, count: int = 0, channel: ChannelWindow | None = None) -> None:
        self.count = count
        self.channel = channel
        self.unsettled = 0
        self.served = 0
        """When it was given something last, in the channel's counting."""
        self.wake: Callable[[], None] | None = None

    @property
    def window(self) -> int:
        """What binds it, its own window or the channel's; 0 = neither."""
        shared = self.channel.count if self.channel is not None else 0
        return min(self.count, shared) if self.count and shared else self.count or shared

    def available_messages(self) -> int:
        """Messages it takes now: the smaller of its own window and the channel's."""
        own = max(0, self.count - self.unsettled) if self.count else UNLIMITED
        channel = self.channel
        if channel is None or not channel.count or own == 0:
            return own
        shared = channel.available_messages()
        if shared == 0:
            channel.starve(self)
        return min(own, shared)

    def available_bytes(self) -> int:
        """Prefetch counts messages only."""
        return UNLIMITED

    def taken(self, messages: int, _size_bytes: int = 0, /) -> None:
        self.unsettled += messages
        channel = self.channel
        if channel is not None:
            channel.unsettled += messages
            self.served = channel.served = channel.served + 1

    def returned(self, messages: int, _size_bytes: int = 0, /) -> None:
        was_shut = self.unsettled >= self.count > 0
        self.unsettled -= messages
        assert self.unsettled >= 0, "more settled than delivered"
        if was_shut and self.unsettled < self.count and self.wake is not None:
            self.wake()
        if self.channel is not None:
            self.channel.returned(messages)

    def resize(self, count: int) -> None:
        """A new window for what is unsettled now."""
        was_shut = self.unsettled >= self.count > 0
        self.count = count
        if was_shut and self.available_messages() > 0 and self.wake is not None:
            self.wake()

    def close(self) -> None:
        """The consumer is gone; what it has unsettled still counts on the channel until settled."""
        self.wake = None
        if self.channel is not None:
            self.channel.forget(self)


# ---- permits ------------------------------------------------------------------------------------
# Permits: a consumer says how many more messages it will take (F11).
#
# Who grants: the client, with each FLOW, additively. Who spends: the dispatcher, one per message.
# Who stops: that consumer, at zero or below. What wakes it: a grant that makes the permits
# positive.
#
# A batch is never split, so permits may go negative; the next grants make up for it. Availability
# is always this consumer's own figure: a total over several consumers can be negative while one of
# them still has credit, a stall Pulsar's users know well. Grants that arrive while the consumer is
# blocked on unsettled messages are kept aside and added when it is unblocked. Settling returns
# nothing: the client grants anew. Permits die with the consumer.


PERMITS_MAX: Final = (1 << 31) - 1
"""No receiver queue is larger; what a peer grants beyond it is dropped, not remembered."""


class Permits:
    """One consumer's permits."""

    __slots__ = ("aside", "granted_ms", "is_blocked", "permits", "permits_max", "wake")

    def __init__(self, permits: int = 0, *, permits_max: int = PERMITS_MAX) -> None:
        self.permits = permits
        self.permits_max = permits_max
        self.aside = 0
        """Granted while blocked, not counted yet."""
        self.is_blocked = False
        self.granted_ms: int | None = None
        """When the last grant came (monotonic); None = never, or nobody said when."""
        self.wake: Callable[[], None] | None = None

    def add(self, n: int, now_ms: int | None = None) -> None:
        if n <= 0:
            raise ValueError(f"a grant of {n} permits; it must be at least 1")
        self.granted_ms = now_ms
        if self.is_blocked:
            self.aside = min(self.aside + n, self.permits_max)
            return
        self._grant(n)

    def available_messages(self) -> int:
        return 0 if self.is_blocked or self.permits < 0 else self.permits

    def available_bytes(self) -> int:
        """Permits count messages only."""
        return UNLIMITED

    def taken(self, messages: int, _size_bytes: int = 0, /) -> None:
        """Delivered; a whole batch counts even where fewer permits were left."""
        self.permits -= messages

    def returned(self, messages: int, _size_bytes: int = 0, /) -> None: ...

    def block(self) -> None:
        """The consumer has too many unsettled messages (F13)."""
        self.is_blocked = True

    def unblock(self) -> None:
        """It has settled enough: what was kept aside counts now."""
        if not self.is_blocked:
            return
        self.is_blocked = False
        aside, self.aside = self.aside, 0
        was_available = self.permits > 0
        self.permits = min(self.permits + aside, self.permits_max)
        # Being unblocked is itself the change from nothing to something.
        if (was_available or self.permits > 0) and self.wake is not None:
            self.wake()

    def _grant(self, n: int) -> None:
        was_available = self.permits > 0
        self.permits = min(self.permits + n, self.permits_max)
        if not was_available and self.permits > 0 and self.wake is not None:
            self.wake()


# ---- inflight -----------------------------------------------------------------------------------
# In-flight limits: delivered and not yet settled, by number and by bytes (F13).
#
# Who spends: the dispatcher, with each delivery. Who grants: whoever settles or requeues. Who
# stops: that consumer (or that subscription) only. What wakes it: the count *and* the bytes that
# stopped it being back at half, as Pulsar resumes, so that it does not stop and start with every
# single ack.
#
# One object per consumer and one per subscription. A delivery is never split, so the last one may
# cross the limit. Not here: which messages they are (``engine/subscription/consumer.py``).


class InflightLimit:
    """Two counts with ceilings; 0 = no ceiling."""

    __slots__ = (
        "bytes",
        "bytes_max",
        "is_blocked",
        "is_held_by_bytes",
        "is_held_by_messages",
        "messages",
        "messages_max",
    )

    def __init__(self, messages_max: int, bytes_max: int = 0) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.messages = 0
        self.bytes = 0
        self.is_held_by_messages = False
        self.is_held_by_bytes = False
        self.is_blocked = False
        """True from reaching a ceiling until half of it."""

    def available(self) -> tuple[int, int]:
        """Messages and bytes that may be delivered now; ``UNLIMITED`` without a ceiling."""
        if self.is_blocked:
            return 0, 0
        return (
            self.messages_max - self.messages if self.messages_max else UNLIMITED,
            self.bytes_max - self.bytes if self.bytes_max else UNLIMITED,
        )

    def add(self, messages: int, size_bytes: int = 0) -> bool:
        """Delivered; True while blocked."""
        self.messages += messages
        self.bytes += size_bytes
        if self.messages >= self.messages_max > 0:
            self.is_held_by_messages = self.is_blocked = True
        if self.bytes >= self.bytes_max > 0:
            self.is_held_by_bytes = self.is_blocked = True
        return self.is_blocked

    def remove(self, messages: int, size_bytes: int = 0) -> bool:
        """Settled or requeued; True when this unblocked."""
        self.messages -= messages
        self.bytes -= size_bytes
        assert self.messages >= 0, "more messages settled than delivered"
        assert self.bytes >= 0, "more bytes settled than delivered"
        if not self.is_blocked:
            return False
        if self.messages <= self.messages_max // 2:
            self.is_held_by_messages = False
        if self.bytes <= self.bytes_max // 2:
            self.is_held_by_bytes = False
        self.is_blocked = self.is_held_by_messages or self.is_held_by_bytes
        return not self.is_blocked

    def resize(self, messages_max: int, bytes_max: int) -> bool:
        """New ceilings for what is in flight now; True when this unblocked."""
        was_blocked = self.is_blocked
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.is_held_by_messages = self.messages >= messages_max > 0
        self.is_held_by_bytes = self.bytes >= bytes_max > 0
        self.is_blocked = self.is_held_by_messages or self.is_held_by_bytes
        return was_blocked and not self.is_blocked

    def resume(self) -> bool:
        """Go on without waiting for half, if it is below the ceilings; True when this unblocked."""
        return self.resize(self.messages_max, self.bytes_max)
