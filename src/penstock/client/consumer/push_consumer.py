"""The push consumer: messages of subscribed topics are given to a listener as they come.

    def listener(message):
        print(message.body)

    with PushConsumer("127.0.0.1:9876", "printers", listener) as consumer:
        consumer.subscribe("orders", tags="paid || shipped")
        ...

The listener is a function (called on one of 20 threads) or a coroutine function (on the event loop
of ``start_async``, else on a thread of its own). Returning nothing is success; raising, or
returning ``ConsumeResult.LATER``, has the message come again after a delay that grows with each
try. With ``consume_batch`` above 1 it gets lists.

Not here: what happens inside (``push_member.py``), options (``push_options.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Unpack

from penstock import __version__
from penstock.client.consumer.concurrent import (
    DEAD_LETTER_LEVEL,
    ConsumeMessageConcurrentlyService,
    SendBack,
    outcome_body,
)
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
from penstock.client.consumer.offsets import (
    LocalFileOffsetStore,
    OffsetStore,
    OffsetTable,
    RemoteBrokerOffsetStore,
    UserOffsetStore,
    offsets_file,
)
from penstock.client.consumer.ordered import (
    BrokerLocks,
    ConsumeMessageOrderlyService,
    LockTimes,
    OrderlySettings,
)
from penstock.client.consumer.pop import BrokerAllocator, PopMode, PopSettings, asker, is_same_place
from penstock.client.consumer.process_queue import AssignedQueue, ConsumeMessageService
from penstock.client.consumer.pulling import PullSettings
from penstock.client.consumer.push_queues import PushConsumerOptions, PushQueues, check_options
from penstock.client.consumer.rebalance import (
    Allocator,
    BroadcastAllocator,
    GroupAllocator,
    Rebalancer,
    reset_offsets,
    strategy_of,
)
from penstock.client.consumer.statistics import (
    ConsumerFacts,
    ConsumerFigures,
    ConsumerStatistics,
    QueueThresholds,
    running_info,
)
from penstock.client.consumer.subscription import (
    ConsumeFrom,
    Subscription,
    Subscriptions,
    retry_topic,
    subscription,
    timestamp_ms,
)
from penstock.client.errors import BrokerRefused, ClientError, NoRoute, StateError
from penstock.client.instance import ClientInstance, MachineClock, instance, local_ip
from penstock.client.loop import (
    CallRelay,
    awaitable,
    blocking,
    client_loop,
    listener_loop,
    relay_to,
)
from penstock.client.message import Message, ReceivedMessage, SendStatus
from penstock.client.options import resolve
from penstock.client.producer.encoding import Encoder
from penstock.client.routes import NameServerList, parse_name_servers
from penstock.client.states import Lifecycle, StartStop, State
from penstock.client.trace import (
    ConsumeOutcome,
    TraceDispatcher,
    consume_begin_record,
    consume_end_record,
)
from penstock.flow.thresholds import Thresholds
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import SUBSCRIBE_ALL, ConsumerData, ConsumeType, MessageModel
from penstock.wire.rocketmq.message_id import UniqueKeys
from penstock.wire.rocketmq.stored import StoredMessage


class PushConsumer(StartStop):
    """Consumes subscribed topics as a member of a group."""

    def __init__(
        self,
        name_servers: NameServerList,
        group: str,
        listener: Listener,
        **options: Unpack[PushConsumerOptions],
    ) -> None:
        if not group:
            raise ValueError("a consumer needs a group")
        if not callable(listener):
            raise TypeError(f"a listener is a function or a coroutine function, not {listener!r}")
        self.group = group
        self._name_servers = parse_name_servers(name_servers)
        self._listener = listener
        self._options = resolve(PushConsumerOptions, options)
        check_options(self._options)
        self._life = Lifecycle(f"push consumer {group!r}")
        self._subscriptions = Subscriptions(MachineClock().wall_ms)
        self._member: PushMember | None = None

    @property
    def state(self) -> State:
        """Created, running, stopped or failed."""
        return self._life.state

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and consume; raises when that is not possible."""
        client_loop().run(self._start(None))

    def start_async(self) -> Awaitable[None]:
        """The same; a coroutine listener then runs on the event loop that is running now."""
        return client_loop().on(self._start(asyncio.get_running_loop()))

    async def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._life.begin()
        shared = instance(
            self._name_servers,
            self._options,
            is_named_by_process=not self._options["is_broadcasting"],
        )
        member = PushMember(
            shared,
            self.group,
            self._listener,
            self._options,
            self._subscriptions,
            listener_loop=loop,
        )
        await member.start()
        self._member = member
        self._life.started()

    async def _stop(self) -> None:
        """Leave the group: listeners are waited for, offsets stored, brokers told."""
        member, self._member = self._member, None
        if member is None:
            return
        self._life.state = State.STOPPING
        try:
            await member.stop()
        finally:
            self._life.state = State.STOPPED

    stop = blocking(_stop)
    stop_async = awaitable(_stop)

    # --- subscriptions ------------------------------------------------------------------------

    async def _subscribe(
        self,
        topic: str,
        *,
        tags: str | Sequence[str] = SUBSCRIBE_ALL,
        sql: str | None = None,
    ) -> None:
        """Consume a topic: all of it, messages with one of some tags, or by SQL92.

        Before the start or while running; a second time it replaces the first. A broker that
        cannot compile the expression makes this, or the start, raise ``BrokerRefused``.
        """
        self._life.check_open()
        if self._member is None:
            self._subscriptions.add(topic, tags=tags, sql=sql)
        else:
            await self._member.subscribe(topic, tags, sql)

    subscribe = blocking(_subscribe)
    subscribe_async = awaitable(_subscribe)

    async def _unsubscribe(self, topic: str) -> None:
        """Consume a topic no more; its queues are given up before this returns."""
        self._life.check_open()
        if self._member is None:
            self._subscriptions.remove(topic)
        else:
            await self._member.unsubscribe(topic)

    unsubscribe = blocking(_unsubscribe)
    unsubscribe_async = awaitable(_unsubscribe)

    # --- while it runs ------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Pull nothing more; what was pulled is still consumed."""
        self._running().pause(is_paused=True)

    pause = blocking(_pause)
    pause_async = awaitable(_pause)

    async def _resume(self) -> None:
        """Pull again."""
        self._running().pause(is_paused=False)

    resume = blocking(_resume)
    resume_async = awaitable(_resume)

    async def _statistics(self) -> ConsumerFigures:
        """Rates, results and queues, and which threshold holds which queue since when."""
        return self._running().figures()

    statistics = blocking(_statistics)
    statistics_async = awaitable(_statistics)

    async def _queues(self) -> list[QueueRef]:
        """The queues owned now."""
        return sorted(self._running().queues.owned())

    queues = blocking(_queues)
    queues_async = awaitable(_queues)

    async def _commit(self) -> None:
        """Store the offsets now, and not within the next five seconds."""
        await self._running().persist_offsets()

    commit = blocking(_commit)
    commit_async = awaitable(_commit)

    async def _extend(self, message: ReceivedMessage, invisible_ms: int) -> None:
        """Pop: keep a message that is in work from others for so long from now on."""
        pop = self._running().pop
        if pop is None:
            raise StateError(f"push consumer {self.group!r} does not pop (option is_popping)")
        await pop.extend(message, invisible_ms)

    extend = blocking(_extend)
    extend_async = awaitable(_extend)

    def _running(self) -> PushMember:
        self._life.check_running()
        if self._member is None:
            raise StateError(f"push consumer {self.group!r} is stopping")
        return self._member


# ---- push member --------------------------------------------------------------------------------
# A push consumer on the client's loop: its parts put together, its life, its word to brokers.
#
# Start: register, routes, SQL92 checked by a broker, workers, heartbeat, rebalance. Stop, the other
# way round: pulls end, listeners are waited for, offsets are stored, locks given back, brokers
# told.
#
# Not here: the API of users (``push_consumer.py``), which parts are used (``push_parts.py``), its
# queues (``push_queues.py``).


_log = logging.getLogger(__name__)


class PushMember:
    """One push consumer, as the instance knows it."""

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
        self.instance = instance
        self.group = group
        self.subscriptions = subscriptions
        self._clock = instance.clock
        self._options = options
        self._where = ConsumeFrom(options["consume_from"])
        self._started_ms = self._clock.wall_ms()
        self._is_member = False
        """Brokers have heard of it: before, they would not count it among the members."""
        self._statistics = ConsumerStatistics()
        self._offsets = OffsetTable(offset_store(instance, group, options))
        self.queues = PushQueues(
            instance,
            group,
            pull_terms(options),
            subscriptions=subscriptions,
            offsets=self._offsets,
            statistics=self._statistics,
            thresholds=thresholds(group, options),
            where=self._where,
            from_ms=timestamp_ms(options["consume_timestamp"], self._started_ms),
            pull_timeout_ms=options["pull_timeout_ms"],
            filters=tuple(options["filters"]),
            queue_listener=options["queue_listener"],
        )
        self.queues.locks = broker_locks(instance, group, options, self.queues.owned)
        self._trace = trace(instance, group, options)
        hooks = ConsumeHooks(group, options["hooks"])
        if self._trace is not None:
            hooks.add(ConsumeTrace(self._trace))
        executor = make_executor(group, listener, options, hooks, listener_loop)
        self._service = consume_service(self.queues, instance, executor, options)
        self.queues.service = self._service
        self.pop = pop_mode(self.queues, instance, executor, options)
        self._rebalancer = Rebalancer(
            self.queues,
            self._sharing(),
            self._clock,
            heartbeat=instance.heartbeat,
            locks=self.queues.locks,
        )

    async def start(self) -> None:
        """Begin; raises when the group is taken or a broker refuses a subscription."""
        if not self._options["is_broadcasting"]:
            self.subscriptions.add(retry_topic(self.group))
        self.instance.add_consumer(self)
        try:
            await self.instance.start()
            await self._refresh(self.topics() - {retry_topic(self.group)})
            for each in self.subscriptions.all():
                await self._check(each)
        except BaseException:
            await self.instance.remove_consumer(self)
            raise
        self._service.start()
        try:
            await self.instance.heartbeat()
            # The heartbeat made the retry topic.
            await self._refresh(self.topics() - set(self.instance.routes.topics()))
            self._is_member = True
            # Not by the instance's timer: it may have to wait for its spacing.
            if not await self._divide():
                self.instance.rebalance_now()
        except BaseException:
            # Most likely somebody was tired of waiting; he does not want a consumer any more.
            await self.stop()
            raise

    async def stop(self) -> None:
        """End: nothing is pulled, consumed or owned any more when this returns."""
        await self._rebalancer.close()
        self.queues.end_pulls()
        wait_ms = self._options["await_termination_ms"]
        try:
            if self.pop is not None:
                await self.pop.stop(wait_ms)
            await self._service.stop(wait_ms)
            await self.queues.stop_all()
            await self._offsets.persist()
            if self._trace is not None:
                await self._trace.stop()
        finally:
            await self.instance.remove_consumer(self)

    async def _refresh(self, topics: Collection[str]) -> None:
        await self.instance.routes.refresh(sorted(topics))

    async def subscribe(self, topic: str, tags: str | Sequence[str], sql: str | None) -> None:
        """Subscribe while running, or otherwise than before."""
        wanted = subscription(topic, tags=tags, sql=sql, version=self._clock.wall_ms())
        await self._refresh([topic])
        await self._check(wanted)
        # Only now: a heartbeat or a pull must not tell brokers what none of them can compile.
        self.subscriptions.add(topic, tags=tags, sql=sql)
        await self.instance.heartbeat()
        self.instance.rebalance_now()

    async def unsubscribe(self, topic: str) -> None:
        """Give up the queues of a topic."""
        if self.subscriptions.remove(topic):
            await self._divide()
            self._statistics.forget(topic)
            await self.instance.heartbeat()

    def pause(self, *, is_paused: bool) -> None:
        """Pull nothing, or pull again."""
        self.queues.pause(is_paused=is_paused)
        if not is_paused:
            if self.pop is not None:
                self.pop.wake()
            self.instance.rebalance_now()

    def figures(self) -> ConsumerFigures:
        """What it did and has."""
        now_ms = self._clock.monotonic_ms()
        thresholds = self.queues.thresholds
        return ConsumerFigures(
            self.group,
            self._statistics.figures(now_ms),
            self.queues.figures(now_ms),
            thresholds.held(now_ms),
            {threshold.value: count for threshold, count in thresholds.episodes.items()},
            None if self.pop is None else self.pop.figures(),
        )

    async def _check(self, wanted: Subscription) -> None:
        """A broker compiles an expression now, so that a mistake is seen at once."""
        if not wanted.is_sql:
            return
        try:
            await self.instance.requests.check_client(self.group, wanted.data)
        except NoRoute:
            _log.warning("expression not checked: no route", extra={"topic": wanted.topic})

    def _sharing(self) -> Allocator:
        options = self._options
        if options["is_broadcasting"]:
            return BroadcastAllocator(self._queues_of)
        strategy = options["strategy"]
        members_of = partial(self.instance.requests.consumers_of, self.group)
        divided = GroupAllocator(
            self.instance.client_id, strategy_of(strategy), self._queues_of, members_of
        )
        if self.pop is None:
            return divided
        ask = asker(self.instance.requests, self.group, strategy)
        return BrokerAllocator(ask, self.pop, self._queues_of, divided)

    async def _divide(self) -> bool:
        topics = self.topics()
        if self.pop is not None:
            self.pop.retain_topics(topics)
        return await self._rebalancer.rebalance(topics)

    def _queues_of(self, topic: str) -> list[QueueRef] | None:
        route = self.instance.routes.get(topic)
        if route is None:
            # A retry topic is made with the first heartbeat; 30 s would be long to wait for it.
            self.instance.spawn(self.instance.routes.refresh([topic]), f"route of {topic}")
            return None
        return route.read_queues()

    # --- what the instance asks -----------------------------------------------------------------

    def heartbeat(self) -> ConsumerData:
        """What brokers are told."""
        is_broadcasting = self._options["is_broadcasting"]
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.PASSIVELY,
            message_model=(
                MessageModel.BROADCASTING if is_broadcasting else MessageModel.CLUSTERING
            ),
            consume_from_where=self._where.wire,
            subscription_data_set=[each.data for each in self.subscriptions.all()],
        )

    def topics(self) -> set[str]:
        """Subscribed topics, the retry topic among them."""
        return self.subscriptions.topics()

    def route_changed(self, topic: str) -> None:
        """The instance rebalances by itself."""

    async def rebalance(self) -> bool:
        """Divide the queues anew; a paused consumer keeps what it has, as RocketMQ's does."""
        if self.queues.is_paused or not self._is_member:
            return True
        return await self._divide()

    async def persist_offsets(self) -> None:
        """Store what was settled since the last time."""
        await self._offsets.persist()

    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        """An operator moved the group."""
        wanted = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        await reset_offsets(
            wanted, owned=self.queues.owned, rebalancer=self._rebalancer, offsets=self._offsets
        )
        self.instance.rebalance_now()

    def consume_status(self, topic: str) -> dict[QueueRef, int]:
        """How far each queue is."""
        return self._offsets.snapshot(topic)

    def running_info(self, with_stacks: bool) -> dict[str, Any]:
        """All about it, for ``mqadmin`` and its like."""
        now_ms = self._clock.monotonic_ms()
        return running_info(
            ConsumerFacts(
                ";".join(self.instance.name_servers.addresses),
                self._options["is_ordered"],
                self._options["is_broadcasting"],
                self._options["consume_threads"],
                self._started_ms,
                __version__,
            ),
            subscriptions=[each.data for each in self.subscriptions.all()],
            owned=self.queues.owned(),
            committed=self._offsets.snapshot(),
            topics=self._statistics.figures(now_ms),
            held=self.queues.thresholds.held(now_ms),
            popped=None if self.pop is None else self.pop.table(),
            clock=self._clock,
            with_stacks=with_stacks,
        )

    async def consume_directly(self, message: StoredMessage, broker: str) -> dict[str, Any]:
        """Give one message to the listener now."""
        queue = QueueRef(message.topic, broker, message.queue_id)
        outcome = await self._service.consume_directly(ReceivedMessage(message, queue))
        return outcome_body(outcome)


# ---- push parts ---------------------------------------------------------------------------------
# The parts of a push consumer, chosen and put together by its options.
#
# | store      remote (clustering), a local file (broadcasting), or the user's own
# | listening  threads for a function, an event loop for a coroutine function
# | service    concurrent or ordered
# | sharing    divided among the members, everything (broadcasting), or by the broker (pop)
#
# Not here: what the parts do, and their life (``push_member.py``).


TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"


class LoopRuntime:
    """Time and tasks of the client's loop, for the services."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._loop = asyncio.get_running_loop()

    def monotonic_ms(self) -> int:
        """Now."""
        return self._instance.clock.monotonic_ms()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run it by itself; its errors are logged."""
        return self._instance.spawn(coroutine, name)

    def later(self, delay_ms: int, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call it after a while."""
        return self._loop.call_later(delay_ms / 1000, call, *args)


def offset_store(instance: ClientInstance, group: str, options: PushConsumerOptions) -> OffsetStore:
    """Where this consumer's offsets are kept."""
    own = options["offset_store"]
    if own is not None:
        return UserOffsetStore(own)
    if options["is_broadcasting"]:
        directory = options["offsets_directory"]
        return LocalFileOffsetStore(offsets_file(directory, instance.client_id, group))
    return RemoteBrokerOffsetStore(instance.requests, group)


def make_executor(
    group: str,
    listener: Listener,
    options: PushConsumerOptions,
    hooks: ConsumeHooks,
    loop: asyncio.AbstractEventLoop | None,
) -> ConsumeExecutor:
    """Who calls the listener; coroutines run on ``loop``, or on a thread of their own."""
    caller = ListenerInvoker(
        listener,
        hooks,
        takes_list=options["consume_batch"] > 1,
        timeout_ms=options["consume_timeout_ms"],
    )
    workers = options["consume_threads"]
    if not is_coroutine_listener(listener):
        return ThreadExecutor(client_loop(), caller, workers, f"penstock-{group}")
    relay: CallRelay = relay_to(loop if loop is not None else listener_loop().loop)
    return CoroutineExecutor(client_loop(), caller, workers, relay)


def thresholds(group: str, options: PushConsumerOptions) -> QueueThresholds:
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


def pull_terms(options: PushConsumerOptions) -> PullSettings:
    """The options of the pull loops."""
    return PullSettings(
        batch=options["pull_batch"],
        batch_bytes=options["pull_batch_bytes"],
        interval_ms=options["pull_interval_ms"],
        suspend_ms=options["pull_suspend_ms"],
        error_wait_ms=options["pull_error_wait_ms"],
        is_subscription_posted=options["is_subscription_posted"],
        is_broadcasting=options["is_broadcasting"],
    )


def pop_mode(
    queues: PushQueues,
    instance: ClientInstance,
    executor: ConsumeExecutor,
    options: PushConsumerOptions,
) -> PopMode | None:
    """The places to pop from, where a broker may switch the group to pop."""
    if not options["is_popping"] or options["is_broadcasting"]:
        return None
    terms = PopSettings(
        batch=options["pop_batch"],
        invisible_ms=options["pop_invisible_ms"],
        poll_ms=options["pop_poll_ms"],
        unacked_max=options["pop_threshold"],
        error_wait_ms=options["pull_error_wait_ms"],
        is_ordered=options["is_ordered"],
        is_from_first=options["consume_from"] == ConsumeFrom.FIRST,
    )
    retries_max = options["retries_max"]
    return PopMode(
        queues,
        instance.requests,
        executor,
        terms,
        is_pulled=lambda place: any(is_same_place(place, each) for each in queues.owned()),
        has_route=lambda topic: has_route(instance, topic),
        consume_batch=options["consume_batch"],
        suspend_ms=options["suspend_ms"],
        reconsume_times_max=None if retries_max < 0 else retries_max,
    )


async def has_route(instance: ClientInstance, topic: str) -> bool:
    """Whether a topic exists, as a name server says now."""
    try:
        await instance.routes.look_up(topic)
    except ClientError:
        return False
    return True


def trace(
    instance: ClientInstance, group: str, options: PushConsumerOptions
) -> TraceDispatcher | None:
    """Where traces go, if any are wanted."""
    if not options["trace"]:
        return None
    sender = InnerProducer(instance, f"{TRACE_GROUP}-{group}")
    return TraceDispatcher(
        sender.send, topic=options["trace_topic"], records_max=options["trace_batch_max"]
    )


def broker_locks(
    instance: ClientInstance,
    group: str,
    options: PushConsumerOptions,
    owned: Callable[[], Mapping[QueueRef, AssignedQueue]],
) -> BrokerLocks | None:
    """Locks at the broker; ordered broadcasting needs none: nobody shares its queues."""
    if not options["is_ordered"] or options["is_broadcasting"]:
        return None
    renewal_ms, stale_ms = options["lock_renewal_ms"], options["lock_stale_ms"]
    terms = LockTimes(renewal_ms=renewal_ms, stale_ms=stale_ms, lost_ms=2 * stale_ms)
    return BrokerLocks(instance.requests, group, owned=owned, clock=instance.clock, terms=terms)


def consume_service(
    queues: PushQueues,
    instance: ClientInstance,
    executor: ConsumeExecutor,
    options: PushConsumerOptions,
) -> ConsumeMessageService:
    """Who sees to it that pulled messages are consumed."""
    group, offsets, statistics = queues.group, queues.offsets, queues.statistics
    runtime, sender = LoopRuntime(instance), InnerProducer(instance)
    back = SendBack(group, options["retries_max"], instance.requests, sender)
    if not options["is_ordered"]:
        return ConsumeMessageConcurrentlyService(
            runtime,
            executor,
            offsets,
            statistics,
            give_back=None if options["is_broadcasting"] else back,
            consume_batch=options["consume_batch"],
            consume_timeout_ms=options["consume_timeout_ms"],
            local_retry_ms=options["local_retry_ms"],
        )

    async def give_up(message: ReceivedMessage) -> bool:
        if options["is_broadcasting"]:
            return True
        return await back.give_back(message, DEAD_LETTER_LEVEL)

    return ConsumeMessageOrderlyService(
        runtime,
        executor,
        offsets,
        statistics,
        give_up=give_up,
        locks=queues.locks,
        lost=instance.rebalance_now,
        terms=OrderlySettings(
            batch_max=options["consume_batch"],
            suspend_ms=options["suspend_ms"],
            reconsume_max=options["retries_max"],
            is_auto_commit=options["is_auto_commit"],
        ),
    )


# ---- plain sender -------------------------------------------------------------------------------
# Sends what a consumer itself has to send: copies for the retry topic, message traces.
#
# One try to one queue of the topic; whoever calls it knows what to do when that fails.
#
# Not here: producers of users (``producer/``).


GROUP: Final = "CLIENT_INNER_PRODUCER"
TIMEOUT_MS: Final = 3_000
DEFAULT_QUEUES: Final = 4
_STORED: Final = frozenset(status.value for status in SendStatus)


class InnerProducer:
    """Sends single messages; on the client's loop."""

    def __init__(self, instance: ClientInstance, group: str = GROUP) -> None:
        self._instance = instance
        keys = UniqueKeys(local_ip(), os.getpid(), instance.clock, salt=id(self))
        self._encoder = Encoder(group, keys, instance.clock)

    async def send(self, message: Message) -> None:
        """Store it at some broker of its topic; raises ``ClientError`` when that failed."""
        route = await self._instance.routes.get_or_look_up(
            message.topic, default_queues=DEFAULT_QUEUES
        )
        queues = route.write_queues()
        if not queues:
            raise NoRoute(message.topic, "no queue of it takes messages")
        queue = random.choice(queues)
        address = await self._instance.requests.master_of(queue)
        command = self._encoder.encode(message).command(queue)
        answer = await self._instance.network.request(address, command, timeout_ms=TIMEOUT_MS)
        if answer.code not in _STORED:
            raise BrokerRefused(answer.code, answer.remark, address)


# ---- tracing ------------------------------------------------------------------------------------
# The consume hook of message trace: two records for each message a listener was called with.


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
