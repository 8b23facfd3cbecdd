"""Consumer thresholds: how much of one queue a consuming client keeps and has not settled (F15).

Who spends: the client's pull loop, with the messages it puts into a queue's cache. Who grants:
listeners, by settling. Who stops: the pull loop of that queue only, before its next pull. What
wakes it: it looks again after 50 ms, or at once when the cache has fallen to half of each limit.

Three limits of one queue: messages, bytes, and the span of offsets between the first and the last
message kept (concurrent listeners only: a stuck message must not let the others run away from the
offset that may be committed). Limits of a whole topic are divided by the queues owned.

An answer to a pull is never cut, so a cache passes its limit by at most one pull. A queue that is
held again within ``MEMORY_MS`` continues its *episode*; only the edges of episodes are told.

Not here: the cache (``client/consumer/process_queue.py``), the pull loop
(``client/consumer/pulling.py``).
"""

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

MEMORY_MS: Final = 1000
"""A queue at its limit is held and let go many times a second; that is one episode."""


class Threshold(StrEnum):
    """Which limit holds a queue; the value is what people read."""

    MESSAGES = "messages"
    BYTES = "bytes"
    SPAN = "span"


class Cached(NamedTuple):
    """What the cache of one queue holds now."""

    messages: int
    size_bytes: int
    span: int


class Thresholds(NamedTuple):
    """The limits of one queue; 0 is no limit."""

    messages_max: int = 1000
    bytes_max: int = 100 << 20
    span_max: int = 2000

    def exceeded(self, cached: Cached) -> Threshold | None:
        """The first limit that is passed; being at it is not."""
        if cached.messages > self.messages_max > 0:
            return Threshold.MESSAGES
        if cached.size_bytes > self.bytes_max > 0:
            return Threshold.BYTES
        if cached.span > self.span_max > 0:
            return Threshold.SPAN
        return None

    def is_at_half(self, cached: Cached) -> bool:
        """True when a held queue may go on without waiting for its next look."""
        return not (
            cached.messages > self.messages_max // 2 > 0
            or cached.size_bytes > self.bytes_max // 2 > 0
            or cached.span > self.span_max // 2 > 0
        )

    def divided(
        self, topic_messages_max: int, topic_bytes_max: int, queues_owned: int
    ) -> "Thresholds":
        """With the limits of a topic (0: none) shared by its queues owned, at least 1 each."""
        owned = max(1, queues_owned)
        messages_max = max(1, topic_messages_max // owned) if topic_messages_max > 0 else 0
        bytes_max = max(1, topic_bytes_max // owned) if topic_bytes_max > 0 else 0
        return self._replace(
            messages_max=messages_max or self.messages_max, bytes_max=bytes_max or self.bytes_max
        )

    def limit_of(self, threshold: Threshold) -> int:
        """The number behind a threshold."""
        return (self.messages_max, self.bytes_max, self.span_max)[_PLACE[threshold]]


_PLACE: Final = {Threshold.MESSAGES: 0, Threshold.BYTES: 1, Threshold.SPAN: 2}


class HeldEpisode(NamedTuple):
    """One time a queue was held; while it lasts, ``until_ms`` is None."""

    threshold: Threshold
    cached: Cached
    """What was cached when it began."""
    limit: int
    since_ms: int
    until_ms: int | None
    looks: int
    """How often the pull loop found it held."""


class EpisodeSink(Protocol):
    """Who hears of the edges."""

    def entered(self, name: str, episode: HeldEpisode) -> None: ...

    def ended(self, name: str, episode: HeldEpisode) -> None: ...


class Throttle:
    """The looks of one pull loop at its limits, told as episodes."""

    __slots__ = ("_episode", "_left_ms", "_sink", "episodes", "is_held", "name", "thresholds")

    def __init__(self, name: str, thresholds: Thresholds, sink: EpisodeSink | None = None) -> None:
        self.name = name
        self.thresholds = thresholds
        self.is_held = False
        self.episodes = 0
        """Episodes begun."""
        self._episode: HeldEpisode | None = None
        self._left_ms = 0
        self._sink = sink

    def look(self, cached: Cached, now_ms: int) -> Threshold | None:
        """Before a pull: which limit forbids it, None when it may be sent."""
        threshold = self.thresholds.exceeded(cached)
        if threshold is None:
            if self.is_held:
                self.is_held = False
                self._left_ms = now_ms
            elif self._episode is not None and now_ms - self._left_ms >= MEMORY_MS:
                self._end(self._left_ms)
            return None
        episode = self._episode
        if episode is not None and not self.is_held and now_ms - self._left_ms >= MEMORY_MS:
            self._end(self._left_ms)
            episode = None
        self.is_held = True
        if episode is None:
            self.episodes += 1
            limit = self.thresholds.limit_of(threshold)
            self._episode = HeldEpisode(threshold, cached, limit, now_ms, None, 1)
            if self._sink is not None:
                self._sink.entered(self.name, self._episode)
        else:
            self._episode = episode._replace(looks=episode.looks + 1)
        return threshold

    def is_free(self, cached: Cached) -> bool:
        """True when the cache has fallen so far that a held loop should look now."""
        return self.thresholds.is_at_half(cached)

    def current(self, now_ms: int) -> HeldEpisode | None:
        """The episode that lasts, or was left so shortly ago that it may go on."""
        episode = self._episode
        if episode is None or (not self.is_held and now_ms - self._left_ms >= MEMORY_MS):
            return None
        return episode

    def close(self, now_ms: int) -> None:
        """The queue is gone; what lasted ends."""
        if self._episode is not None:
            self._end(now_ms if self.is_held else self._left_ms)
        self.is_held = False

    def _end(self, until_ms: int) -> None:
        episode, self._episode = self._episode, None
        if episode is not None and self._sink is not None:
            self._sink.ended(self.name, episode._replace(until_ms=until_ms))
