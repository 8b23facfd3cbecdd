"""The push consumer on the client's loop: its queues and pull loops, its parts, its life.

    offset store   the broker (clustering), a local file (broadcasting), or the user's own
    executor       threads for a function, an event loop for a coroutine function
    service        concurrent or ordered
    allocator      the members divide, everything (broadcasting), or the broker says (pop)

Start: register, routes, SQL92 checked by a broker, workers, heartbeat, rebalance. Stop, the other
way round: pulls end, listeners are waited for, offsets are stored, locks given back, brokers told.

Invariants: an owned queue has one pull loop; a queue is given up in this order: dropped, its
listener asked, persisted, forgotten, released.
Not here: the API of users (``push_consumer.py``), which queues are ours (``rebalance.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from penstock.client.consumer.concurrent import ConsumeMessageConcurrentlyService
from penstock.client.consumer.executor import (
    ConsumeExecutor,
    ConsumeHooks,
    CoroutineExecutor,
    Finished,
    Listener,
    ListenerInvoker,
    ResultKind,
    ThreadExecutor,
    is_coroutine_listener,
)
from penstock.client.consumer.member import GroupMember
from penstock.client.consumer.options import PushConsumerOptions
from penstock.client.consumer.ordered import (
    BrokerLocks,
    ConsumeMessageOrderlyService,
    LockTimes,
    OrderlySettings,
)
from penstock.client.consumer.pop import BrokerAllocator, PopMode, PopSettings, takes_from
from penstock.client.consumer.process_queue import AssignedQueue, ConsumeMessageService
from penstock.client.consumer.pulling import PullLoop, PullSettings
from penstock.client.consumer.rebalance import Allocator, Rebalancer
from penstock.client.consumer.send_back import DEAD_LETTER_LEVEL, InnerProducer, SendBack
from penstock.client.consumer.statistics import (
    ConsumerFigures,
    ConsumerStatistics,
    QueueFigures,
    QueueThresholds,
)
from penstock.client.consumer.subscription import (
    ConsumeFrom,
    FilterHook,
    Subscription,
    Subscriptions,
    retry_topic,
    subscription,
)
from penstock.client.errors import ClientError, NoRoute
from penstock.client.instance import ClientInstance
from penstock.client.loop import client_loop, listener_loop, relay_to
from penstock.client.message import ReceivedMessage
from penstock.client.trace import (
    ConsumeOutcome,
    TraceDispatcher,
    consume_begin_record,
    consume_end_record,
)
from penstock.flow.thresholds import Thresholds, Throttle
from penstock.model.assignment import AVG, QueueRef
from penstock.wire.rocketmq.bodies import ConsumeType, QueueAssignment
from penstock.wire.rocketmq.stored import StoredMessage

_log = logging.getLogger(__name__)

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"


class PushMember(GroupMember):
    """One push consumer: ``QueueOwner`` to rebalancing, ``PullHost`` to its pull loops."""

    kind = "push consumer"
    consume_type = ConsumeType.PASSIVELY

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        listener: Listener,
        options: PushConsumerOptions,
        subscriptions: Subscriptions,
        *,
        listener_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(instance, group, subscriptions, options)
        self._options = options
        self.pull_settings = _pull_settings(options)
        self.statistics = ConsumerStatistics()
        self.filters: Sequence[FilterHook] = tuple(options["filters"])
        self.is_paused = False
        self._thresholds = _thresholds(group, options)
        self._owned: dict[QueueRef, AssignedQueue] = {}
        self._pulls: dict[AssignedQueue, tuple[asyncio.Task[None], Throttle]] = {}
        self._trace = self._make_trace()
        executor = self._make_executor(listener, listener_loop)
        self._locks = self._make_locks()
        self.service: ConsumeMessageService = self._make_service(executor)
        self.pop = self._make_pop(executor)
        self._rebalancer = Rebalancer(
            self,
            self._make_allocator(),
            self.clock,
            heartbeat=instance.heartbeat,
            locks=self._locks,
        )

    async def start(self) -> None:
        """Begin; raises when the group is taken or a broker refuses a subscription."""
        retries = retry_topic(self.group)
        if not self.is_broadcasting:
            self.subscriptions.add(retries)
        await self._join(self.topics() - {retries})
        self.service.start()
        try:
            await self.instance.heartbeat()
            # The heartbeat made the retry topic.
            await self._refresh(self.topics() - set(self.instance.routes.topics()))
            self._is_registered = True
            # Not by the instance's timer: it may have to wait for its spacing.
            if not await self._rebalance():
                self.instance.rebalance_now()
        except BaseException:
            # Most likely somebody was tired of waiting; he does not want a consumer any more.
            await self.stop()
            raise

    async def stop(self) -> None:
        """End: nothing is pulled, consumed or owned any more when this returns."""
        await self._rebalancer.close()
        for assigned in self._owned.values():
            self._end_pull(assigned)
        wait_ms = self._options["await_termination_ms"]
        try:
            if self.pop is not None:
                await self.pop.stop(wait_ms)
            await self.service.stop(wait_ms)
            await asyncio.gather(*(self.stop_queue(queue) for queue in list(self._owned)))
            await self.offsets.persist()
            if self._trace is not None:
                await self._trace.stop()
        finally:
            await self.instance.remove_consumer(self)

    async def subscribe(self, topic: str, tags: str | Sequence[str], sql: str | None) -> None:
        """Subscribe while running, or otherwise than before."""
        wanted = subscription(topic, tags=tags, sql=sql, version=self.clock.wall_ms())
        await self._refresh([topic])
        await self._check(wanted)
        # Only now: a heartbeat or a pull must not tell brokers what none of them can compile.
        self.subscriptions.add(topic, tags=tags, sql=sql)
        await self.instance.heartbeat()
        self.instance.rebalance_now()

    async def unsubscribe(self, topic: str) -> None:
        if self.subscriptions.remove(topic):
            await self._rebalance()
            self.statistics.forget(topic)
            await self.instance.heartbeat()

    def pause(self, *, is_paused: bool) -> None:
        """Pull nothing, or pull again; what is cached is consumed in any case."""
        self.is_paused = is_paused
        if is_paused:
            return
        for assigned in self._owned.values():
            if assigned.wake is not None:
                assigned.wake()
        if self.pop is not None:
            self.pop.wake()
        self.instance.rebalance_now()

    def figures(self) -> ConsumerFigures:
        now_ms = self.clock.monotonic_ms()
        return ConsumerFigures(
            self.group,
            self.statistics.figures(now_ms),
            [self._queue_figures(*each, now_ms) for each in sorted(self._owned.items())],
            self._thresholds.held(now_ms),
            {threshold.value: count for threshold, count in self._thresholds.episodes.items()},
            None if self.pop is None else self.pop.figures(),
        )

    def _queue_figures(self, queue: QueueRef, assigned: AssignedQueue, now_ms: int) -> QueueFigures:
        return QueueFigures(
            queue,
            *assigned.cached,
            assigned.next_offset,
            self.offsets.get(queue),
            assigned.is_paused or self.is_paused,
            assigned.is_locked,
            now_ms - assigned.last_pull_ms,
            now_ms - assigned.last_consume_ms,
        )

    async def _refresh(self, topics: Collection[str]) -> None:
        await self.instance.routes.refresh(sorted(topics))

    async def _check(self, wanted: Subscription) -> None:
        try:
            await super()._check(wanted)
        except NoRoute:
            _log.warning("expression not checked: no route", extra={"topic": wanted.topic})

    # --- queues come and go ---------------------------------------------------------------------

    def owned(self) -> dict[QueueRef, AssignedQueue]:
        return self._owned

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        assigned = AssignedQueue(queue, offset, self.clock.monotonic_ms())
        self._owned[queue] = assigned
        throttle = self._thresholds.open(queue)
        gate = None if self._locks is None else self._locks.is_held
        loop = PullLoop(self, assigned, throttle, gate=gate)
        self._pulls[assigned] = (self.instance.spawn(loop.run(), f"pull {queue}"), throttle)

    async def stop_queue(self, queue: QueueRef) -> bool:
        """It is not ours any more; False: a listener still runs, ask again."""
        assigned = self._owned.get(queue)
        if assigned is None:
            return True
        assigned.drop()
        self._end_pull(assigned)
        if not await self.service.dropped(assigned):
            return False
        await self.offsets.persist([queue])
        self.offsets.forget(queue)
        await self.service.released(assigned)
        if self._owned.get(queue) is assigned:
            del self._owned[queue]
        return True

    def _end_pull(self, assigned: AssignedQueue) -> None:
        found = self._pulls.pop(assigned, None)
        if found is not None:
            task, throttle = found
            if task is not asyncio.current_task():
                task.cancel()
            self._thresholds.close(assigned.queue, throttle, self.clock.monotonic_ms())

    async def offset_moved(self, assigned: AssignedQueue, offset: int) -> None:
        """Begin anew at ``offset``: the next rebalance finds the queue dropped and makes it new."""
        assigned.drop()
        # An ordered listener may still run: what it comes to must not undo this.
        assigned.is_locked = False
        self.offsets.note(assigned.queue, offset, is_increase_only=False)
        await self.offsets.persist([assigned.queue])
        self.instance.rebalance_now()

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        self._thresholds.divide(topic, mine)
        super().assignment_changed(topic, queues, mine)

    async def rebalance(self) -> bool:
        """Divide the queues anew; a paused consumer keeps what it has, as RocketMQ's does."""
        if self.is_paused or not self._is_registered:
            return True
        return await self._rebalance()

    async def _rebalance(self) -> bool:
        topics = self.topics()
        if self.pop is not None:
            self.pop.retain_topics(topics)
        return await self._rebalancer.rebalance(topics)

    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        wanted = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        await self._rebalancer.reset_offsets(wanted, self.offsets)
        self.instance.rebalance_now()

    def _queues_of(self, topic: str) -> list[QueueRef] | None:
        found = super()._queues_of(topic)
        if found is None:
            # A retry topic is made with the first heartbeat; 30 s would be long to wait for it.
            self.instance.spawn(self.instance.routes.refresh([topic]), f"route of {topic}")
        return found

    # --- questions of operators -----------------------------------------------------------------

    def running_info(self, with_stacks: bool) -> dict[str, Any]:
        now_ms = self.clock.monotonic_ms()
        return self._running_info(
            with_stacks,
            is_ordered=self._options["is_ordered"],
            threads=self._options["consume_threads"],
            topics=self.statistics.figures(now_ms),
            held=self._thresholds.held(now_ms),
            popped=None if self.pop is None else self.pop.table(),
        )

    async def consume_directly(self, message: StoredMessage, broker: str) -> dict[str, Any]:
        queue = QueueRef(message.topic, broker, message.queue_id)
        return await self.service.consume_directly(ReceivedMessage(message, queue))

    # --- its parts, by its options --------------------------------------------------------------

    def _make_trace(self) -> TraceDispatcher | None:
        options = self._options
        if not options["trace"]:
            return None
        sender = InnerProducer(self.instance, f"{TRACE_GROUP}-{self.group}")
        return TraceDispatcher(
            sender.send, topic=options["trace_topic"], records_max=options["trace_batch_max"]
        )

    def _make_executor(
        self, listener: Listener, loop: asyncio.AbstractEventLoop | None
    ) -> ConsumeExecutor:
        """Who calls the listener; coroutines run on ``loop``, or on a thread of their own."""
        options, hooks = self._options, ConsumeHooks(self.group, self._options["hooks"])
        if self._trace is not None:
            hooks.add(ConsumeTrace(self._trace))
        invoker = ListenerInvoker(
            listener,
            hooks,
            takes_list=options["consume_batch"] > 1,
            timeout_ms=options["consume_timeout_ms"],
        )
        workers = options["consume_threads"]
        if not is_coroutine_listener(listener):
            return ThreadExecutor(client_loop(), invoker, workers, f"penstock-{self.group}")
        relay = relay_to(loop if loop is not None else listener_loop().loop)
        return CoroutineExecutor(client_loop(), invoker, workers, relay)

    def _make_locks(self) -> BrokerLocks | None:
        """Locks at the broker; ordered broadcasting needs none: nobody shares its queues."""
        options = self._options
        if not options["is_ordered"] or self.is_broadcasting:
            return None
        renewal_ms, stale_ms = options["lock_renewal_ms"], options["lock_stale_ms"]
        times = LockTimes(renewal_ms=renewal_ms, stale_ms=stale_ms, lost_ms=2 * stale_ms)
        return BrokerLocks(
            self.instance.requests, self.group, owned=self.owned, clock=self.clock, times=times
        )

    def _make_service(self, executor: ConsumeExecutor) -> ConsumeMessageService:
        options, instance = self._options, self.instance
        runtime = LoopRuntime(instance)
        back = None
        if not self.is_broadcasting:
            copies = InnerProducer(instance)
            back = SendBack(self.group, options["retries_max"], instance.requests, copies)
        if not options["is_ordered"]:
            return ConsumeMessageConcurrentlyService(
                runtime,
                executor,
                self.offsets,
                self.statistics,
                give_back=back,
                consume_batch=options["consume_batch"],
                consume_timeout_ms=options["consume_timeout_ms"],
                local_retry_ms=options["local_retry_ms"],
            )

        async def give_up(message: ReceivedMessage) -> bool:
            return back is None or await back.give_back(message, DEAD_LETTER_LEVEL)

        return ConsumeMessageOrderlyService(
            runtime,
            executor,
            self.offsets,
            self.statistics,
            give_up=give_up,
            locks=self._locks,
            lost=instance.rebalance_now,
            settings=OrderlySettings(
                batch_max=options["consume_batch"],
                suspend_ms=options["suspend_ms"],
                reconsume_max=options["retries_max"],
                is_auto_commit=options["is_auto_commit"],
            ),
        )

    def _make_pop(self, executor: ConsumeExecutor) -> PopMode | None:
        """Pop mode, where a broker may switch the group to it."""
        options = self._options
        if not options["is_popping"] or self.is_broadcasting:
            return None
        retries_max = options["retries_max"]
        return PopMode(
            self,
            self.instance.requests,
            executor,
            PopSettings(
                batch=options["pop_batch"],
                invisible_ms=options["pop_invisible_ms"],
                poll_ms=options["pop_poll_ms"],
                unacked_max=options["pop_threshold"],
                error_wait_ms=options["pull_error_wait_ms"],
                is_ordered=options["is_ordered"],
                is_from_first=options["consume_from"] == ConsumeFrom.FIRST,
            ),
            is_pulled=lambda popped: any(takes_from(popped, queue) for queue in self._owned),
            has_route=self._has_route,
            consume_batch=options["consume_batch"],
            suspend_ms=options["suspend_ms"],
            reconsume_times_max=None if retries_max < 0 else retries_max,
        )

    def _make_allocator(self) -> Allocator:
        allocator, strategy = super()._make_allocator(), self._strategy
        if self.pop is None:
            return allocator
        # A strategy of the user's own cannot be sent: AVG stands in for it.
        name = strategy if isinstance(strategy, str) else AVG

        async def ask(topic: str) -> list[QueueAssignment] | None:
            requests = self.instance.requests
            return await requests.query_assignment(topic, self.group, strategy=name)

        return BrokerAllocator(ask, self.pop, self._queues_of, allocator)

    async def _has_route(self, topic: str) -> bool:
        """Whether a topic exists, as a name server says now."""
        try:
            await self.instance.routes.look_up(topic)
        except ClientError:
            return False
        return True


def _pull_settings(options: PushConsumerOptions) -> PullSettings:
    return PullSettings(
        batch=options["pull_batch"],
        batch_bytes=options["pull_batch_bytes"],
        interval_ms=options["pull_interval_ms"],
        suspend_ms=options["pull_suspend_ms"],
        timeout_ms=options["pull_timeout_ms"],
        error_wait_ms=options["pull_error_wait_ms"],
        is_subscription_posted=options["is_subscription_posted"],
        is_broadcasting=options["is_broadcasting"],
    )


def _thresholds(group: str, options: PushConsumerOptions) -> QueueThresholds:
    """The limits of each queue; an ordered queue has no span."""
    return QueueThresholds(
        group,
        Thresholds(
            options["pull_threshold_messages"],
            options["pull_threshold_bytes"],
            0 if options["is_ordered"] else options["pull_threshold_span"],
        ),
        topic_messages_max=max(0, options["topic_threshold_messages"]),
        topic_bytes_max=max(0, options["topic_threshold_bytes"]),
    )


class LoopRuntime:
    """Time and tasks of the client's loop, for the services (``Runtime``)."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._loop = asyncio.get_running_loop()

    def monotonic_ms(self) -> int:
        return self._instance.clock.monotonic_ms()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._instance.spawn(coroutine, name)

    def later(self, delay_ms: int, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, call, *args)


OUTCOMES: Final = {
    ResultKind.SUCCESS: ConsumeOutcome.SUCCESS,
    ResultKind.TIME_OUT: ConsumeOutcome.TIME_OUT,
    ResultKind.EXCEPTION: ConsumeOutcome.EXCEPTION,
    ResultKind.LATER: ConsumeOutcome.LATER,
}


class ConsumeTrace:
    """Records every call of a listener: what it got, and how it ended."""

    def __init__(self, trace: TraceDispatcher) -> None:
        self._trace = trace

    def before(self, group: str, queue: QueueRef, messages: Sequence[ReceivedMessage]) -> object:
        """One record per message; returns the request id."""
        request_id = os.urandom(16).hex().upper()
        at_ms = time.time_ns() // 1_000_000
        self._trace.record(
            *[
                consume_begin_record(
                    at_ms=at_ms,
                    group=group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=" ".join(message.keys),
                )
                for message in self._traced(messages)
            ]
        )
        return request_id

    def after(self, group: str, queue: QueueRef, finished: Finished, context: object) -> None:
        """One record per message, with the request id of ``before``."""
        outcome = OUTCOMES[finished.kind]
        cost_ms = int(finished.spent_ms / max(len(finished.messages), 1))
        at_ms = time.time_ns() // 1_000_000
        self._trace.record(
            *[
                consume_end_record(
                    at_ms=at_ms,
                    group=group,
                    request_id=str(context),
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    keys=" ".join(message.keys),
                    outcome=outcome,
                )
                for message in self._traced(finished.messages)
            ]
        )

    def _traced(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        return [
            each
            for each in messages
            if each.topic != self._trace.topic and each.property_value("TRACE_ON") != "false"
        ]
