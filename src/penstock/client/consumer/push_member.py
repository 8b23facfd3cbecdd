"""A push consumer on the client's loop: its parts put together, its life, its word to brokers.

Start: register, routes, SQL92 checked by a broker, workers, heartbeat, rebalance. Stop, the other
way round: pulls end, listeners are waited for, offsets are stored, locks given back, brokers told.

Not here: the API of users (``push_consumer.py``), which parts are used (``push_parts.py``), its
queues (``push_queues.py``).
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from penstock import __version__
from penstock.client.consumer import push_parts as parts
from penstock.client.consumer.caller import Listener
from penstock.client.consumer.consume_from import ConsumeFrom, timestamp_ms
from penstock.client.consumer.direct_consume import outcome_body
from penstock.client.consumer.hooks import Hooks
from penstock.client.consumer.offsets.table import Offsets
from penstock.client.consumer.pop_sharing import BrokerSharing, asker
from penstock.client.consumer.push_options import PushConsumerOptions
from penstock.client.consumer.push_queues import PushQueues
from penstock.client.consumer.rebalance import Rebalancer
from penstock.client.consumer.reset import reset_offsets
from penstock.client.consumer.running_info import ConsumerFacts, running_info
from penstock.client.consumer.sharing import DividedSharing, Sharing, WholeSharing, strategy_of
from penstock.client.consumer.statistics import ConsumerFigures, ConsumerStatistics
from penstock.client.consumer.subscription import (
    Subscription,
    Subscriptions,
    retry_topic,
    subscription,
)
from penstock.client.consumer.tracing import ConsumeTrace
from penstock.client.errors import NoRoute
from penstock.client.instance import ClientInstance
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import (
    ConsumerData,
    ConsumeType,
    MessageModel,
)
from penstock.wire.rocketmq.stored import StoredMessage

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
        self._offsets = Offsets(parts.offset_store(instance, group, options))
        self.queues = PushQueues(
            instance,
            group,
            parts.pull_terms(options),
            subscriptions=subscriptions,
            offsets=self._offsets,
            statistics=self._statistics,
            thresholds=parts.thresholds(group, options),
            where=self._where,
            from_ms=timestamp_ms(options["consume_timestamp"], self._started_ms),
            pull_timeout_ms=options["pull_timeout_ms"],
            filters=tuple(options["filters"]),
            queue_listener=options["queue_listener"],
        )
        self.queues.locks = parts.broker_locks(instance, group, options, self.queues.owned)
        self._trace = parts.trace(instance, group, options)
        hooks = Hooks(group, options["hooks"])
        if self._trace is not None:
            hooks.add(ConsumeTrace(self._trace))
        listening = parts.listening(group, listener, options, hooks, listener_loop)
        self._service = parts.consume_service(self.queues, instance, listening, options)
        self.queues.service = self._service
        self.pop = parts.pop_mode(self.queues, instance, listening, options)
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
            await self.instance.calls.check_client(self.group, wanted.data)
        except NoRoute:
            _log.warning("expression not checked: no route", extra={"topic": wanted.topic})

    def _sharing(self) -> Sharing:
        options = self._options
        if options["is_broadcasting"]:
            return WholeSharing(self._queues_of)
        strategy = options["strategy"]
        members_of = partial(self.instance.calls.consumers_of, self.group)
        divided = DividedSharing(
            self.instance.client_id, strategy_of(strategy), self._queues_of, members_of
        )
        if self.pop is None:
            return divided
        ask = asker(self.instance.calls, self.group, strategy)
        return BrokerSharing(ask, self.pop, self._queues_of, divided)

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
