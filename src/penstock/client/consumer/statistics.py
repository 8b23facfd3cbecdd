"""What a consumer did lately: rates, durations and result kinds by topic, and the queues it has.

Figures are kept in slices of a second for the last minute, so a rate is that of now and not that of
the whole life; totals are of the whole life. Everything is counted per list, not per message.

Not here: who is held by a limit (``thresholds.py``), the broker's view of it (``running_info.py``).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.client.consumer.pop_figures import PopFigures
from penstock.client.consumer.results import Finished, ResultKind
from penstock.client.consumer.thresholds import HeldQueue
from penstock.model.assignment import QueueRef

WINDOW_S: Final = 60
_SUCCESS: Final = ResultKind.SUCCESS


class Window:
    """A number of things and their sum over the last minute."""

    __slots__ = ("_slices", "count", "total")

    def __init__(self) -> None:
        self._slices: deque[tuple[int, int, float]] = deque()
        self.count = 0
        self.total = 0.0

    def add(self, count: int, value: float, now_ms: int) -> None:
        """So many things happened, together worth ``value``."""
        self.count += count
        self.total += value
        second = now_ms // 1000
        if self._slices and self._slices[-1][0] == second:
            _, before, worth = self._slices[-1]
            self._slices[-1] = (second, before + count, worth + value)
            return
        self._slices.append((second, count, value))
        self._forget(second)

    def per_second(self, now_ms: int) -> float:
        """Things per second over the last minute, or since the first when that is shorter."""
        self._forget(now_ms // 1000)
        if not self._slices:
            return 0.0
        seconds = now_ms // 1000 - self._slices[0][0] + 1
        return sum(count for _, count, _ in self._slices) / seconds

    def average(self, now_ms: int) -> float:
        """Mean worth of one thing over the last minute."""
        self._forget(now_ms // 1000)
        count = sum(count for _, count, _ in self._slices)
        return sum(worth for _, _, worth in self._slices) / count if count else 0.0

    def recent(self, now_ms: int) -> int:
        """Things of the last minute."""
        self._forget(now_ms // 1000)
        return sum(count for _, count, _ in self._slices)

    def _forget(self, second: int) -> None:
        while self._slices and self._slices[0][0] <= second - WINDOW_S:
            self._slices.popleft()


class TopicFigures(NamedTuple):
    """One topic, now."""

    pulled: int
    """Messages pulled since the start."""
    pulled_per_s: float
    pull_ms: float
    """Mean time of a pull that found something."""
    results: Mapping[ResultKind, int]
    """Messages by what became of them, since the start."""
    consumed_per_s: float
    failed_per_s: float
    failed_recently: int
    """Messages that failed within the last minute."""
    consume_ms: float
    """Mean time of a call of the listener."""
    sent_back: int
    """Messages given back to the broker for a later try."""
    retried_locally: int
    """Messages tried again here, because they could not be given back."""


class QueueFigures(NamedTuple):
    """One owned queue, now."""

    queue: QueueRef
    cached_messages: int
    cached_bytes: int
    span: int
    next_offset: int
    committed: int | None
    """What this consumer knows to be settled; None before anything was."""
    is_paused: bool
    is_locked: bool
    pulled_ms_ago: int
    consumed_ms_ago: int


class ConsumerFigures(msgspec.Struct, frozen=True):
    """What ``consumer.statistics()`` returns."""

    group: str
    topics: Mapping[str, TopicFigures]
    queues: Sequence[QueueFigures]
    held: Sequence[HeldQueue]
    """Queues that are not pulled because of a threshold: which, by what, since when."""
    threshold_episodes: Mapping[str, int]
    """How often each threshold began to hold a queue, since the start."""
    pop: PopFigures | None = None
    """Pop mode; None for a consumer that does not pop."""

    @property
    def cached_messages(self) -> int:
        """Messages in all caches."""
        return sum(each.cached_messages for each in self.queues)

    @property
    def cached_bytes(self) -> int:
        """Bytes of bodies in all caches."""
        return sum(each.cached_bytes for each in self.queues)


class TopicStatistics:
    """Counters of one topic."""

    __slots__ = (
        "_calls",
        "_consumed",
        "_failed",
        "_pulled",
        "_pulls",
        "results",
        "retried",
        "sent",
    )

    def __init__(self) -> None:
        self._pulls = Window()
        self._pulled = Window()
        self._calls = Window()
        self._consumed = Window()
        self._failed = Window()
        self.results: dict[ResultKind, int] = dict.fromkeys(ResultKind, 0)
        self.sent = 0
        self.retried = 0

    def pulled(self, messages: int, spent_ms: float, now_ms: int) -> None:
        """A pull brought messages."""
        self._pulls.add(1, spent_ms, now_ms)
        self._pulled.add(messages, 0.0, now_ms)

    def finished(self, calls: Sequence[Finished], now_ms: int) -> None:
        """Calls of the listener ended."""
        consumed = failed = succeeded = 0
        spent_ms = 0.0
        for call in calls:
            count = len(call.messages)
            spent_ms += call.spent_ms
            if call.kind is _SUCCESS:
                succeeded += count
                continue
            self.results[call.kind] += count
            if call.is_success:
                consumed += count
            else:
                failed += count
        self.results[_SUCCESS] += succeeded
        consumed += succeeded
        self._calls.add(len(calls), spent_ms, now_ms)
        if consumed:
            self._consumed.add(consumed, 0.0, now_ms)
        if failed:
            self._failed.add(failed, 0.0, now_ms)

    def figures(self, now_ms: int) -> TopicFigures:
        """As it is now."""
        return TopicFigures(
            pulled=self._pulled.count,
            pulled_per_s=self._pulled.per_second(now_ms),
            pull_ms=self._pulls.average(now_ms),
            results=dict(self.results),
            consumed_per_s=self._consumed.per_second(now_ms),
            failed_per_s=self._failed.per_second(now_ms),
            failed_recently=self._failed.recent(now_ms),
            consume_ms=self._calls.average(now_ms),
            sent_back=self.sent,
            retried_locally=self.retried,
        )


class ConsumerStatistics:
    """Counters of a consumer, by topic; retries count for the retry topic."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicStatistics] = {}

    def topic(self, name: str) -> TopicStatistics:
        """The counters of a topic."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicStatistics()
        return found

    def forget(self, name: str) -> None:
        """The topic is not subscribed any more."""
        self._topics.pop(name, None)

    def figures(self, now_ms: int) -> dict[str, TopicFigures]:
        """All topics, now."""
        return {name: each.figures(now_ms) for name, each in self._topics.items()}
