"""Prefetch: how many unsettled deliveries a consumer, or a whole channel, may have (F10).

Who grants: the client, once, with ``basic.qos``. Who spends: the dispatcher. Who stops: the
consumer at its own window; all consumers of the channel at the shared one. What wakes it: a
settlement; when it opens the shared window, every consumer that was refused because of it is woken,
not only the one whose message was settled (no lost wake-up, law 4).

A ``Window`` is one consumer's (global=0); a ``ChannelWindow`` is shared (global=1) and counts from
the start, so that setting it later also counts what is already unsettled. 0 = unlimited. Both
apply. Not here: bytes (no client can ask for them; ``inflight`` bounds them anyway).
"""

from collections.abc import Callable

from penstock.flow.demand import UNLIMITED


class ChannelWindow:
    """The window all consumers of one channel share."""

    __slots__ = ("_starved", "count", "unsettled")

    def __init__(self, count: int = 0) -> None:
        self.count = count
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
        """This consumer is gone."""
        self._starved.pop(window, None)

    def _wake_starved(self) -> None:
        if self.available_messages() <= 0:
            return
        starved = list(self._starved)
        self._starved.clear()
        for window in starved:
            if window.wake is not None:
                window.wake()


class Window:
    """One consumer's window, inside the window of its channel if it has one."""

    __slots__ = ("channel", "count", "unsettled", "wake")

    def __init__(self, count: int = 0, channel: ChannelWindow | None = None) -> None:
        self.count = count
        self.channel = channel
        self.unsettled = 0
        self.wake: Callable[[], None] | None = None

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
        """Delivered."""
        self.unsettled += messages
        if self.channel is not None:
            self.channel.unsettled += messages

    def returned(self, messages: int, _size_bytes: int = 0, /) -> None:
        """Settled or requeued."""
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
