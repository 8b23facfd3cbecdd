"""The reading half of a lite pull consumer: poll, seek, pause, commit.

``poll`` first takes the call itself as word that everything handed out before is done, and stores
that when the interval of automatic commits has passed; then it hands out messages of one queue, or
waits for some. What it hands out is not stored before the next poll, or the user's own commit.

Not here: marks and messages (``lite_cache.py``), pulls (``lite_pulling.py``), which queues are ours
(``lite_member.py``).
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.client.consumer.lite_cache import LiteCache, LiteQueue
from penstock.client.consumer.lite_pulling import LitePulling, Pull
from penstock.client.consumer.offsets.table import Offsets
from penstock.client.consumer.pull_options import LitePullOptions
from penstock.client.consumer.thresholds import HeldQueue, QueueThresholds
from penstock.client.errors import StateError
from penstock.client.message import ReceivedMessage
from penstock.flow.thresholds import Thresholds
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock

_log = logging.getLogger(__name__)


class LiteQueueFigures(NamedTuple):
    """One queue of a lite pull consumer, now."""

    queue: QueueRef
    cached_messages: int
    cached_bytes: int
    span: int
    position: int
    """The next offset that poll gives."""
    committed: int | None
    """What was stored for it, or is to be with the next round."""
    lag: int | None
    """Messages the broker has and poll has not given; None before the first answer."""
    is_paused: bool
    pulled_ms_ago: int


class LiteFigures(msgspec.Struct, frozen=True):
    """What ``LitePullConsumer.statistics()`` returns."""

    group: str
    queues: Sequence[LiteQueueFigures]
    held: Sequence[HeldQueue]
    """Queues that are not pulled because of a limit: which, by what, since when."""
    threshold_episodes: Mapping[str, int]
    """How often each limit began to hold a queue, since the start."""
    polled: int
    """Messages handed out since the start."""

    @property
    def cached_messages(self) -> int:
        """Messages pulled and not handed out."""
        return sum(each.cached_messages for each in self.queues)

    @property
    def cached_bytes(self) -> int:
        """Their bytes."""
        return sum(each.cached_bytes for each in self.queues)


class AutoCommit:
    """When offsets are stored by themselves."""

    __slots__ = ("_due_ms", "interval_ms", "is_on")

    def __init__(self, interval_ms: int, now_ms: int, *, is_on: bool) -> None:
        self.interval_ms: Final = interval_ms
        self.is_on: Final = is_on
        self._due_ms = now_ms + interval_ms

    def is_due(self, now_ms: int) -> bool:
        """True once per interval."""
        if not self.is_on or now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + self.interval_ms
        return True


class LiteReader:
    """Hands out what was pulled, and keeps account of it."""

    def __init__(
        self, group: str, options: LitePullOptions, offsets: Offsets, clock: Clock, *, pull: Pull
    ) -> None:
        self.offsets = offsets
        self.cache = LiteCache()
        self._group = group
        self._clock = clock
        self._batch = options["pull_batch"]
        self._limits = QueueThresholds(
            group,
            Thresholds(
                options["pull_threshold_messages"],
                options["pull_threshold_bytes"],
                options["pull_threshold_span"],
            ),
        )
        self._pulling = LitePulling(
            self.cache,
            self._limits,
            clock,
            pull=pull,
            messages_max=options["pull_threshold_all"],
            exception_delay_ms=options["pull_error_wait_ms"],
            arrived=self._arrived,
        )
        self._auto = AutoCommit(
            options["auto_commit_interval_ms"],
            clock.monotonic_ms(),
            is_on=options["is_auto_commit"],
        )
        self._arrival = asyncio.Event()
        self._commits: set[asyncio.Task[None]] = set()
        self._polled = 0
        self._is_ended = False

    # --- queues come and go ---------------------------------------------------------------------

    def open(self, ref: QueueRef, offset: int) -> None:
        """A queue is ours: pull it."""
        queue = LiteQueue(ref, offset, self._clock.monotonic_ms())
        self.cache.add(queue)
        self._pulling.start(queue)

    async def close(self, ref: QueueRef) -> None:
        """A queue is not ours any more: what is done of it is stored, the rest forgotten."""
        queue = self.cache.drop(ref)
        if queue is None:
            return
        self._pulling.stop(queue)
        if self._auto.is_on:
            self.offsets.note(ref, queue.settled, is_increase_only=False)
        await self.offsets.persist([ref])
        self.offsets.forget(ref)

    def restart(self, topic: str) -> None:
        """Other messages of a topic are wanted: pulls under way ask for the wrong ones."""
        for ref, queue in self.cache.queues.items():
            if ref.topic == topic:
                self._pulling.restart(queue)

    def end_pulls(self) -> None:
        """Nothing is pulled any more; marks stay for the last commit."""
        for queue in self.cache.queues.values():
            self._pulling.stop(queue)
        self._is_ended = True
        self._arrival.set()

    # --- what users do --------------------------------------------------------------------------

    async def poll(self, timeout_ms: int, count: int | None = None) -> list[ReceivedMessage]:
        """The next messages of one queue; none when none come in time."""
        now_ms = self._clock.monotonic_ms()
        self.cache.settle()
        if self._auto.is_due(now_ms):
            self._spawn(self.store(is_user=False))
        until_ms = now_ms + timeout_ms
        while not self.cache.has_messages:
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0 or self._is_ended:
                return []
            self._arrival.clear()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._arrival.wait()
            except TimeoutError:
                return []
        messages = self.cache.take(count or self._batch)
        self._polled += len(messages)
        self._pulling.took(messages[0].queue)
        return messages

    async def store(self, *, is_user: bool, held: Mapping[QueueRef, int] | None = None) -> None:
        """Store how far the user has come."""
        for ref, offset in self.cache.progress(is_user=is_user, held=held).items():
            self.offsets.note(ref, offset, is_increase_only=False)
        await self.offsets.persist()

    async def stop(self, *, is_clean: bool, held: Mapping[QueueRef, int]) -> None:
        """The last commit: all handed out when the user ended in peace, else what was settled."""
        if self._auto.is_on:
            await self.store(is_user=is_clean, held=held)
        else:
            await self.offsets.persist()
        if self._commits:
            await asyncio.wait(self._commits)

    def seek(self, ref: QueueRef, offset: int) -> None:
        """Go on there."""
        self.owned(ref)
        queue = self.cache.seek(ref, offset)
        self._pulling.restart(queue)

    def pause(self, refs: Iterable[QueueRef]) -> None:
        """Neither pull nor hand out."""
        self.cache.pause([self.owned(ref).queue for ref in refs])

    def resume(self, refs: Iterable[QueueRef]) -> None:
        """Go on."""
        queues = [self.owned(ref) for ref in refs]
        self.cache.resume([queue.queue for queue in queues])
        for queue in queues:
            self._pulling.wake(queue)
        self._arrived()

    def owned(self, ref: QueueRef) -> LiteQueue:
        """The queue, if it is ours."""
        queue = self.cache.queues.get(ref)
        if queue is None:
            known = ", ".join(map(str, self.cache.queues)) or "none"
            raise StateError(f"{ref} is not read by consumer {self._group!r} now; it reads {known}")
        return queue

    def figures(self) -> LiteFigures:
        """As it is now."""
        now_ms = self._clock.monotonic_ms()
        return LiteFigures(
            self._group,
            [
                LiteQueueFigures(
                    ref,
                    *queue.cached,
                    position=queue.position,
                    committed=self.offsets.get(ref),
                    lag=queue.lag,
                    is_paused=queue.is_paused,
                    pulled_ms_ago=now_ms - queue.last_pull_ms,
                )
                for ref, queue in sorted(self.cache.queues.items())
            ],
            self.held(now_ms),
            {limit.value: count for limit, count in self._limits.episodes.items()},
            self._polled,
        )

    def held(self, now_ms: int) -> list[HeldQueue]:
        """Which limit holds which queue since when."""
        return self._pulling.held(now_ms)

    def _arrived(self) -> None:
        self._arrival.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._commits.add(task)
        task.add_done_callback(self._committed)

    def _committed(self, task: asyncio.Task[None]) -> None:
        self._commits.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("automatic commit failed", exc_info=task.exception())
