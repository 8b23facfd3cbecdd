"""Background pulls of a lite pull consumer: one loop per queue, held by limits of its own.

Who spends: the answers to pulls, put into the cache. Who grants: ``poll()``, which takes messages
out. Who stops: the loop of one queue by its own limits (messages, bytes, span), all of them by the
limit of the whole cache. What wakes a held loop: 50 ms, or a poll that made room.

Before each pull, in this order: dropped, the loop ends; paused, look again in 1 s; the cache of all
queues full, then that of this one: 50 ms. After a pull: flow control by the broker (215) waits 20
ms, any other failure ``exception_delay_ms``; an answer, whatever it brought, is followed at once.

Invariants: one pull per queue is under way; a seek abandons it, so the next one begins at the new
offset at once and not after a long poll.
Not here: marks and messages (``lite_cache.py``), the request itself (``lite_pull_consumer.py``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.client.consumer.lite_cache import LiteCache, LiteQueue
from penstock.client.consumer.pauses import Pauses
from penstock.client.consumer.pull_result import PullResult, PullStatus
from penstock.client.consumer.thresholds import HeldQueue, QueueThresholds
from penstock.client.errors import BrokerRefused, ClientError
from penstock.flow.thresholds import Cached, Thresholds, Throttle
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.codes import ResponseCode

_log = logging.getLogger(__name__)

PAUSED_WAIT_MS: Final = 1_000
HELD_WAIT_MS: Final = 50
FLOW_CONTROL_WAIT_MS: Final = 20
"""RocketMQ's waits: paused by the user, over a limit, the broker is under flow control."""

Pull = Callable[[LiteQueue, int], Awaitable[PullResult]]
"""Pull from an offset, waiting for messages; raises ``ClientError``."""


class LitePulling:
    """The pull loops of one consumer."""

    def __init__(
        self,
        cache: LiteCache,
        limits: QueueThresholds,
        clock: Clock,
        *,
        pull: Pull,
        messages_max: int,
        exception_delay_ms: int,
        arrived: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._limits = limits
        self._clock = clock
        self._pull = pull
        self._exception_delay_ms = exception_delay_ms
        self._arrived = arrived
        self._pauses = Pauses()
        self._throttles: dict[LiteQueue, Throttle] = {}
        self._loops: dict[LiteQueue, asyncio.Task[None]] = {}
        self._whole = Throttle("all queues", Thresholds(messages_max, 0, 0), limits)

    def start(self, queue: LiteQueue) -> None:
        """Pull this queue from now on."""
        self._throttles[queue] = self._limits.open(queue.queue)
        self._begin(queue)

    def stop(self, queue: LiteQueue) -> None:
        """Pull it no more."""
        loop = self._loops.pop(queue, None)
        if loop is not None:
            loop.cancel()
        throttle = self._throttles.pop(queue, None)
        if throttle is not None:
            self._limits.close(queue.queue, throttle, self._clock.monotonic_ms())

    def restart(self, queue: LiteQueue) -> None:
        """A seek: abandon the pull under way."""
        loop = self._loops.pop(queue, None)
        if loop is not None:
            loop.cancel()
            self._begin(queue)

    def wake(self, queue: LiteQueue | None = None) -> None:
        """Something was resumed, or taken out: look now instead of later."""
        for each in [queue] if queue is not None else list(self._throttles):
            self._pauses.cut(each)

    def took(self, ref: QueueRef) -> None:
        """A poll took messages of this queue; it may have made room."""
        if self._whole.is_held and self._whole.is_free(self._all()):
            self.wake()
        queue = self._cache.queues.get(ref)
        throttle = None if queue is None else self._throttles.get(queue)
        if queue is None or throttle is None or not throttle.is_held:
            return
        if throttle.is_free(queue.cached):
            self.wake(queue)

    def held(self, now_ms: int) -> list[HeldQueue]:
        """Which limit holds which queue since when; the limit of all queues holds each of them."""
        found = self._limits.held(now_ms)
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
                for ref in self._cache.queues
            ]
        return sorted(found, key=lambda each: each.since_ms)

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
        """Put an answer where it belongs."""
        if queue.is_dropped or queue.epoch != epoch:
            return
        queue.min_offset, queue.max_offset = result.min_offset, result.max_offset
        if result.status is PullStatus.OFFSET_MOVED:
            _log.warning(
                "offset is outside the queue",
                extra={
                    "queue": queue.queue,
                    "offset": queue.next_offset,
                    "next": result.next_offset,
                },
            )
            if result.next_offset < queue.next_offset:
                self._cache.seek(queue.queue, result.next_offset)
                return
        self._cache.put(queue, epoch, result.messages, result.next_offset)
        if result.messages:
            self._arrived()

    def delay_after(self, problem: ClientError) -> int:
        """How long to wait after a pull that failed."""
        is_flow = isinstance(problem, BrokerRefused) and problem.code == ResponseCode.FLOW_CONTROL
        return FLOW_CONTROL_WAIT_MS if is_flow else self._exception_delay_ms

    def _begin(self, queue: LiteQueue) -> None:
        name = f"lite-pull {queue.queue}"
        self._loops[queue] = asyncio.get_running_loop().create_task(self._run(queue), name=name)

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
                await self._pauses.pause(queue, self._exception_delay_ms)

    def _all(self) -> Cached:
        return Cached(self._cache.count, 0, 0)
