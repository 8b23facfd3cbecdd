"""The reading half of a lite pull consumer: background pulls, the cache, poll, seek, commit.

``poll`` first takes the call itself as word that everything handed out before is done, and stores
that when the interval of automatic commits has passed; then it hands out messages of one queue, or
waits for some. What it hands out is not stored before the next poll, or the user's own commit.

One pull loop per queue. Before each pull, in this order: dropped, the loop ends; paused, look again
in 1 s; the cache of all queues full, then that of this one: 50 ms. After a pull: flow control by
the broker (215) waits 20 ms, any other failure ``pull_error_wait_ms``; an answer, whatever it
brought, is followed at once.

Who spends: the answers to pulls, put into the cache. Who grants: ``poll``, which takes messages
out. Who stops: the loop of one queue by its own limits (messages, bytes, span), all of them by the
limit of the whole cache. What wakes a held loop: 50 ms, or a poll that made room.

Invariants: one pull per queue is under way; a seek abandons it, so the next one begins at the new
offset at once and not after a long poll.
Not here: which queues are ours (``lite_pull_consumer.py``), the request itself (``pulling.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.options import LitePullOptions
from penstock.client.consumer.process_queue import AssignedQueue, Pauses, ProcessQueue
from penstock.client.consumer.pulling import (
    BUSY_WAIT_MS,
    HELD_WAIT_MS,
    PAUSED_WAIT_MS,
    PullResult,
    PullStatus,
    log_move,
)
from penstock.client.consumer.statistics import HeldQueue, QueueThresholds
from penstock.client.errors import BrokerRefused, ClientError, StateError
from penstock.client.message import ReceivedMessage
from penstock.flow.thresholds import Cached, Thresholds, Throttle
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.codes import ResponseCode

_log = logging.getLogger(__name__)

Pull = Callable[["LiteQueue", int], Awaitable[PullResult]]
"""Pull from an offset, waiting for messages; raises ``ClientError``."""


class LiteReader:
    """Pulls the queues of one lite pull consumer, and hands out what was pulled."""

    def __init__(
        self,
        group: str,
        options: LitePullOptions,
        offsets: OffsetTable,
        clock: Clock,
        *,
        pull: Pull,
    ) -> None:
        self.offsets = offsets
        self.cache = LiteCache()
        self._group = group
        self._clock = clock
        self._pull = pull
        self._batch = options["pull_batch"]
        self._error_wait_ms = options["pull_error_wait_ms"]
        self._thresholds = QueueThresholds(
            group,
            Thresholds(
                options["pull_threshold_messages"],
                options["pull_threshold_bytes"],
                options["pull_threshold_span"],
            ),
        )
        whole = Thresholds(options["pull_threshold_all"], 0, 0)
        self._whole = Throttle("all queues", whole, self._thresholds)
        self._throttles: dict[LiteQueue, Throttle] = {}
        self._loops: dict[LiteQueue, asyncio.Task[None]] = {}
        self._pauses = Pauses()
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

    def open(self, ref: QueueRef, offset: int) -> LiteQueue:
        """A queue is ours: pull it."""
        queue = LiteQueue(ref, offset, self._clock.monotonic_ms())
        self.cache.add(queue)
        self._throttles[queue] = self._thresholds.open(ref)
        self._start_loop(queue)
        return queue

    async def close(self, ref: QueueRef) -> None:
        """A queue is not ours any more: what is done of it is stored, the rest forgotten."""
        queue = self.cache.drop(ref)
        if queue is None:
            return
        self._end_pulls(queue)
        if self._auto.is_on:
            self.offsets.note(ref, queue.settled, is_increase_only=False)
        await self.offsets.persist([ref])
        self.offsets.forget(ref)

    def restart(self, topic: str) -> None:
        """Other messages of a topic are wanted: pulls under way ask for the wrong ones."""
        for ref, queue in self.cache.queues.items():
            if ref.topic == topic:
                self._restart_loop(queue)

    def end_pulls(self) -> None:
        """Nothing is pulled any more; marks stay for the last commit."""
        for queue in self.cache.queues.values():
            self._end_pulls(queue)
        self._is_ended = True
        self._arrival.set()

    def owned(self, ref: QueueRef) -> LiteQueue:
        """The queue; raises ``StateError`` when it is not ours."""
        queue = self.cache.queues.get(ref)
        if queue is None:
            known = ", ".join(map(str, self.cache.queues)) or "none"
            raise StateError(f"{ref} is not read by consumer {self._group!r} now; it reads {known}")
        return queue

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
        self.took(messages[0].queue)
        return messages

    async def store(self, *, is_user: bool, held: Mapping[QueueRef, int] | None = None) -> None:
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
        self.owned(ref)
        self._restart_loop(self.cache.seek(ref, offset))

    def pause(self, refs: Iterable[QueueRef]) -> None:
        self.cache.pause([self.owned(ref).queue for ref in refs])

    def resume(self, refs: Iterable[QueueRef]) -> None:
        queues = [self.owned(ref) for ref in refs]
        self.cache.resume([queue.queue for queue in queues])
        for queue in queues:
            self.wake(queue)
        self._arrival.set()

    def figures(self) -> LiteFigures:
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
            {limit.value: count for limit, count in self._thresholds.episodes.items()},
            self._polled,
        )

    def held(self, now_ms: int) -> list[HeldQueue]:
        """Which limit holds which queue since when; the limit of all queues holds each of them."""
        found = self._thresholds.held(now_ms)
        whole = self._whole.current(now_ms)
        if whole is not None:
            found += [
                HeldQueue(
                    ref,
                    whole.threshold,
                    whole.limit,
                    whole.since_ms,
                    now_ms - whole.since_ms,
                    whole.cached,
                )
                for ref in self.cache.queues
            ]
        return sorted(found, key=lambda each: each.since_ms)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._commits.add(task)
        task.add_done_callback(self._committed)

    def _committed(self, task: asyncio.Task[None]) -> None:
        self._commits.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("automatic commit failed", exc_info=task.exception())

    # --- the pull loops --------------------------------------------------------------------------

    def wake(self, queue: LiteQueue | None = None) -> None:
        """Something was resumed, or taken out: look now instead of later."""
        for each in [queue] if queue is not None else list(self._throttles):
            self._pauses.cut(each)

    def took(self, ref: QueueRef) -> None:
        """A poll took messages of this queue; it may have made room."""
        if self._whole.is_held and self._whole.is_free(self._all()):
            self.wake()
        queue = self.cache.queues.get(ref)
        throttle = None if queue is None else self._throttles.get(queue)
        if queue is None or throttle is None or not throttle.is_held:
            return
        if throttle.is_free(queue.cached):
            self.wake(queue)

    def look(self, queue: LiteQueue, now_ms: int) -> int:
        """How long to wait before the next pull; 0: pull now."""
        # Set first: a queue that is held is not one whose loop has died.
        queue.last_pull_ms = now_ms
        if queue.is_paused:
            return PAUSED_WAIT_MS
        if self._whole.look(self._all(), now_ms) is not None:
            return HELD_WAIT_MS
        throttle = self._throttles[queue]
        return 0 if throttle.look(queue.cached, now_ms) is None else HELD_WAIT_MS

    def answered(self, queue: LiteQueue, epoch: int, result: PullResult) -> None:
        if queue.is_dropped or queue.epoch != epoch:
            return
        queue.min_offset, queue.max_offset = result.min_offset, result.max_offset
        if result.status is PullStatus.OFFSET_MOVED:
            span = range(result.min_offset, result.max_offset + 1)
            log_move(queue.queue, queue.next_offset, result.next_offset, span)
            if result.next_offset < queue.next_offset:
                self.cache.seek(queue.queue, result.next_offset)
                return
        self.cache.put(queue, epoch, result.messages, result.next_offset)
        if result.messages:
            self._arrival.set()

    def delay_after(self, problem: ClientError) -> int:
        """How long to wait after a pull that failed."""
        is_flow = isinstance(problem, BrokerRefused) and problem.code == ResponseCode.FLOW_CONTROL
        return BUSY_WAIT_MS if is_flow else self._error_wait_ms

    def _start_loop(self, queue: LiteQueue) -> None:
        name = f"lite-pull {queue.queue}"
        self._loops[queue] = asyncio.get_running_loop().create_task(self._run(queue), name=name)

    def _restart_loop(self, queue: LiteQueue) -> None:
        """Abandon the pull under way: a seek, or another subscription."""
        loop = self._loops.pop(queue, None)
        if loop is not None:
            loop.cancel()
            self._start_loop(queue)

    def _end_pulls(self, queue: LiteQueue) -> None:
        loop = self._loops.pop(queue, None)
        if loop is not None:
            loop.cancel()
        throttle = self._throttles.pop(queue, None)
        if throttle is not None:
            self._thresholds.close(queue.queue, throttle, self._clock.monotonic_ms())

    async def _run(self, queue: LiteQueue) -> None:
        while not queue.is_dropped:
            wait_ms = self.look(queue, self._clock.monotonic_ms())
            if wait_ms:
                await self._pauses.pause(queue, wait_ms)
                continue
            epoch = queue.epoch
            try:
                self.answered(queue, epoch, await self._pull(queue, queue.next_offset))
            except ClientError as problem:
                _log.warning("pull failed", extra={"queue": queue.queue, "error": str(problem)})
                await self._pauses.pause(queue, self.delay_after(problem))
            except Exception:
                # A loop that dies leaves its queue unread, and nobody would notice.
                _log.exception("pull failed", extra={"queue": queue.queue})
                await self._pauses.pause(queue, self._error_wait_ms)

    def _all(self) -> Cached:
        return Cached(self.cache.count, 0, 0)


class AutoCommit:
    """When offsets are stored by themselves."""

    __slots__ = ("_due_ms", "interval_ms", "is_on")

    def __init__(self, interval_ms: int, now_ms: int, *, is_on: bool) -> None:
        self.interval_ms: Final = interval_ms
        self.is_on: Final = is_on
        self._due_ms = now_ms + interval_ms

    def is_due(self, now_ms: int) -> bool:
        if not self.is_on or now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + self.interval_ms
        return True


class LiteCache:
    """What was pulled and not yet handed out: one queue after the other, so that none waits behind.

    ``seek`` moves all marks and empties the queue's cache; a pull that was under way then belongs
    to an older ``epoch`` and is not put in.

    Invariants: within one epoch messages leave in offset order, each once; ``settled`` and
    ``position`` only grow; messages of a paused queue stay.
    """

    def __init__(self) -> None:
        self.queues: dict[QueueRef, LiteQueue] = {}
        self.count = 0
        """Cached messages of all queues."""
        self._ready: deque[LiteQueue] = deque()

    @property
    def has_messages(self) -> bool:
        """True when ``take`` would find something."""
        return bool(self._ready)

    def add(self, queue: LiteQueue) -> None:
        self.queues[queue.queue] = queue

    def drop(self, queue: QueueRef) -> LiteQueue | None:
        """A queue is not ours any more; what is cached of it is forgotten."""
        dropped = self.queues.pop(queue, None)
        if dropped is not None:
            dropped.drop()
            self._empty(dropped)
        return dropped

    def put(
        self, queue: LiteQueue, epoch: int, messages: Sequence[ReceivedMessage], next_offset: int
    ) -> bool:
        """An answer came; False when it is of no use any more (dropped, or a seek since)."""
        if queue.is_dropped or queue.epoch != epoch:
            return False
        queue.process_queue.put(messages)
        queue.next_offset = next_offset
        self.count += len(messages)
        self._offer(queue)
        return True

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """The next messages of one queue; none when nothing is ready."""
        if not self._ready:
            return []
        queue = self._ready.popleft()
        queue._is_ready = False
        messages = queue.process_queue.take(count_max)
        queue.process_queue.commit_taken()
        self.count -= len(messages)
        self._offer(queue)
        return messages

    def settle(self) -> None:
        """The user asks for more: what was handed out so far is done."""
        for queue in self.queues.values():
            queue.settled = queue.position

    def seek(self, queue: QueueRef, offset: int) -> LiteQueue:
        """Go on there; KeyError when the queue is not ours."""
        sought = self.queues[queue]
        self._empty(sought)
        sought.epoch += 1
        sought.next_offset = sought.settled = offset
        return sought

    def pause(self, queues: Iterable[QueueRef]) -> None:
        """Neither pull nor hand out; KeyError when one is not ours, then none is paused."""
        for each in [self.queues[queue] for queue in queues]:
            each.is_paused = True
            if each._is_ready:
                self._ready.remove(each)
                each._is_ready = False

    def resume(self, queues: Iterable[QueueRef]) -> None:
        """Go on where it was paused; KeyError when one is not ours, then none is resumed."""
        for each in [self.queues[queue] for queue in queues]:
            each.is_paused = False
            self._offer(each)

    def progress(
        self, *, is_user: bool, held: Mapping[QueueRef, int] | None = None
    ) -> dict[QueueRef, int]:
        """How far each queue may be committed.

        ``is_user``: the user says that all handed out is done; else only what was settled.
        ``held``: offsets from which on messages were handed to an iterator, but not to the user.
        """
        found: dict[QueueRef, int] = {}
        for ref, queue in self.queues.items():
            offset = queue.position if is_user else queue.settled
            found[ref] = min(offset, held[ref]) if held and ref in held else offset
        return found

    def _offer(self, queue: LiteQueue) -> None:
        if not queue._is_ready and not queue.is_paused and queue.process_queue.count:
            queue._is_ready = True
            self._ready.append(queue)

    def _empty(self, queue: LiteQueue) -> None:
        self.count -= queue.process_queue.count
        # A new one: the highest offset ever pulled means nothing after a seek back.
        queue.process_queue = ProcessQueue()
        if queue._is_ready:
            self._ready.remove(queue)
            queue._is_ready = False


class LiteQueue(AssignedQueue):
    """One queue of a lite pull consumer, with three marks: settled <= position <= next_offset.

        settled       everything before it was handed out by an *earlier* poll: done, by the user's
                      own asking for more; this is what an automatic commit may store
        position      the next message that ``take`` hands out
        next_offset   where the next pull begins

    Messages the broker's filter left out lie between ``position`` and the next cached one: they are
    nobody's, so ``position`` passes them.
    """

    __slots__ = ("_is_ready", "epoch", "max_offset", "min_offset", "settled")

    def __init__(self, queue: QueueRef, offset: int, now_ms: int) -> None:
        super().__init__(queue, offset, now_ms)
        self.epoch = 0
        """Grows with each seek."""
        self.settled = offset
        self.min_offset = -1
        self.max_offset = -1
        """As the last answer said; -1 before the first one."""
        self._is_ready = False

    @property
    def position(self) -> int:
        """The offset of the next message to hand out, or behind what was passed over."""
        lowest = self.process_queue.lowest
        return self.next_offset if lowest is None else lowest

    @property
    def lag(self) -> int | None:
        """Messages the broker has and the user has not; None before the first answer."""
        return None if self.max_offset < 0 else max(0, self.max_offset - self.position)


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
