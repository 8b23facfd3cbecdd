"""The pop loops: one per assigned place, one pop under way in each.

Who spends: answers to pops, as messages without a result. Who grants: results of the listener. Who
stops: the loop of one place, above ``unacked_max``. What wakes it: results that bring it down to
half, or 50 ms.

    before a pop   paused 1 s; above the limit 50 ms; no subscription, or the same queues are still
                   being pulled (the group was switched a moment ago): wait
    answer         messages: consume them, pop again at once
                   nothing (19, 210): pop again at once
                   too many wait at the broker (209), any error: ``error_wait_ms``
                   flow control (215): 20 ms

Messages whose tag only looked right to the broker, and those that a filter hook does not want, are
acknowledged unseen. An answer that comes
after its place was dropped is handed back, so that nobody has to wait for its invisible time.

Not here: results (``pop_service.py``), which places there are (``pop_sharing.py``).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.client.calls_pop import Popped
from penstock.client.consumer.pauses import Pauses
from penstock.client.consumer.pop_queue import PoppedMessage, PopQueue, new_attempt
from penstock.client.consumer.pop_receipts import receipts
from penstock.client.consumer.pop_service import RETURN_MS, PopService
from penstock.client.consumer.pop_settling import Settling
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.subscription import (
    FilterHook,
    Subscription,
    Subscriptions,
    wanted_of,
)
from penstock.client.errors import BrokerRefused, ClientError
from penstock.client.message import stored_messages
from penstock.flow.thresholds import Throttle
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PopHeader

_log = logging.getLogger(__name__)

PAUSED_LOOK_MS: Final = 1_000
HELD_LOOK_MS: Final = 50
BUSY_WAIT_MS: Final = 20
ANSWER_MS: Final = 10_000
"""How long an answer may take beyond the time the broker holds the pop."""


class PopTerms(NamedTuple):
    """The options of popping."""

    batch: int = 32
    invisible_ms: int = 60_000
    poll_ms: int = 15_000
    unacked_max: int = 96
    error_wait_ms: int = 1_000
    is_ordered: bool = False
    is_from_first: bool = False
    """Where a new group begins: at the oldest message, or at the newest."""


class PopRequests(Protocol):
    """The requests that are needed here; ``Calls`` has them."""

    async def master_of(self, queue: QueueRef) -> str:
        """Where the master of a queue listens."""
        ...

    async def pop(self, address: str, header: PopHeader, *, timeout_ms: int) -> Popped:
        """POP_MESSAGE."""
        ...


class PopHost(NamedTuple):
    """What the loops of one consumer share."""

    group: str
    terms: PopTerms
    calls: PopRequests
    clock: Clock
    subscriptions: Subscriptions
    service: PopService
    settling: Settling
    statistics: ConsumerStatistics
    filters: Sequence[FilterHook]
    is_paused: Callable[[], bool]
    is_pulled: Callable[[QueueRef], bool]
    """True while this client still pulls of that place."""


class PopLoop:
    """Pops from one place until it is dropped."""

    def __init__(
        self, host: PopHost, queue: PopQueue, throttle: Throttle, pauses: Pauses | None = None
    ) -> None:
        self._host = host
        self.queue = queue
        self.throttle = throttle
        self._pauses = pauses or Pauses()
        self._is_failing = False

    async def run(self) -> None:
        """Until dropped or cancelled."""
        while not self.queue.is_dropped:
            try:
                wait_ms = await self.step()
            except Exception:
                # A loop that dies leaves its place unread, and nobody would notice.
                _log.exception("pop failed", extra={"queue": self.queue.queue})
                wait_ms = self._host.terms.error_wait_ms
            if wait_ms and not self.queue.is_dropped:
                self.queue.wake = self._look_free if self.throttle.is_held else None
                await self._pauses.pause(self, wait_ms)
                self.queue.wake = None

    async def step(self) -> int:
        """One round of checks and, if they allow it, one pop; returns how long to wait then."""
        now_ms = self._host.clock.monotonic_ms()
        subscription = self._host.subscriptions.get(self.queue.queue.topic)
        wait_ms = self._hold_ms(subscription, now_ms)
        if wait_ms or subscription is None:
            return wait_ms
        try:
            popped = await self._pop(subscription)
        except ClientError as problem:
            if isinstance(problem, BrokerRefused) and problem.code == ResponseCode.FLOW_CONTROL:
                return BUSY_WAIT_MS
            return self._failed(problem)
        return self._answered(popped, subscription, now_ms)

    def _hold_ms(self, subscription: Subscription | None, now_ms: int) -> int:
        host, queue = self._host, self.queue
        queue.last_pull_ms = now_ms
        if host.is_paused() or queue.is_paused:
            return PAUSED_LOOK_MS
        if self.throttle.look(queue.cached, now_ms) is not None:
            return HELD_LOOK_MS
        if subscription is None:
            return host.terms.error_wait_ms
        return HELD_LOOK_MS if host.is_pulled(queue.queue) else 0

    async def _pop(self, subscription: Subscription) -> Popped:
        host, terms = self._host, self._host.terms
        ref = self.queue.queue
        header = PopHeader(
            consumer_group=host.group,
            topic=ref.topic,
            queue_id=ref.queue,
            max_msg_nums=terms.batch,
            invisible_time=terms.invisible_ms,
            poll_time=terms.poll_ms,
            born_time=host.clock.wall_ms(),
            init_mode=0 if terms.is_from_first else 1,
            exp_type=subscription.data.expression_type,
            exp=subscription.data.sub_string,
            order=terms.is_ordered,
            attempt_id=self.queue.attempt_id if terms.is_ordered else None,
        )
        address = await host.calls.master_of(ref)
        return await host.calls.pop(address, header, timeout_ms=terms.poll_ms + ANSWER_MS)

    def _answered(self, popped: Popped, subscription: Subscription, asked_ms: int) -> int:
        host, queue = self._host, self.queue
        self._is_failing = False
        queue.attempt_id = new_attempt()
        if popped.code == ResponseCode.POLLING_FULL:
            _log.warning("too many pops wait at the broker", extra={"queue": queue.queue})
            return host.terms.error_wait_ms
        if popped.header is None:
            # A broker that does not hold pops would be asked without a pause.
            return 0 if host.terms.poll_ms else HELD_LOOK_MS
        try:
            messages = self._messages(popped)
        except Malformed as problem:
            return self._failed(ClientError(f"the answer to a pop cannot be read: {problem}"))
        if queue.is_dropped:
            host.settling.give_back(messages, RETURN_MS)
            return 0
        now_ms = host.clock.monotonic_ms()
        host.statistics.topic(queue.queue.topic).pulled(len(messages), now_ms - asked_ms, now_ms)
        chosen = set(map(id, wanted_of([*messages], subscription, host.filters)))
        if len(chosen) < len(messages):
            host.settling.ack([each for each in messages if id(each) not in chosen])
        if chosen:
            host.service.submit(queue, [each for each in messages if id(each) in chosen])
        return 0

    def _messages(self, popped: Popped) -> list[PoppedMessage]:
        assert popped.header is not None
        ref = self.queue.queue
        stored = stored_messages(popped.body)
        real_topics = [each.topic for each in stored]
        deadline_ms = self._host.clock.monotonic_ms() + popped.header.invisible_time
        return [
            PoppedMessage(
                each.message,
                QueueRef(topic, ref.broker, each.handle.queue_id),
                each.handle,
                each.text,
                popped_from=self.queue,
                deadline_ms=deadline_ms,
            )
            for topic, each in zip(
                real_topics, receipts(popped.header, stored, ref.topic, ref.broker), strict=True
            )
        ]

    def _failed(self, problem: ClientError) -> int:
        """Log the first of a row. The attempt id stays: what was lost is asked for again."""
        if not self._is_failing and not self.queue.is_dropped:
            _log.warning("pop failed", extra={"queue": self.queue.queue, "why": str(problem)})
        self._is_failing = True
        return self._host.terms.error_wait_ms

    def _look_free(self) -> None:
        if self.throttle.is_free(self.queue.cached):
            self.wake()

    def wake(self) -> None:
        """Look now instead of later."""
        self._pauses.cut(self)


def start_loop(loop: PopLoop) -> "asyncio.Task[None]":
    """Run a loop beside."""
    return asyncio.get_running_loop().create_task(loop.run(), name=f"pop {loop.queue.queue}")
