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

Not here: what happens inside (``push_member.py``), options (``options.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Unpack

from penstock.client.consumer.executor import Listener
from penstock.client.consumer.options import PushConsumerOptions, check_options
from penstock.client.consumer.push_member import PushMember
from penstock.client.consumer.statistics import ConsumerFigures
from penstock.client.consumer.subscription import Subscriptions
from penstock.client.errors import StateError
from penstock.client.instance import instance
from penstock.client.loop import MachineClock, awaitable, blocking, client_loop
from penstock.client.message import ReceivedMessage
from penstock.client.options import resolve
from penstock.client.routes import NameServerList, parse_name_servers
from penstock.client.states import Lifecycle, StartStop, State
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import SUBSCRIBE_ALL


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
        return sorted(self._running().owned())

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
