"""The queues a push consumer owns, and their pull loops.

It is ``QueueKeeper`` to rebalancing and ``PullHost`` to the pull loops; all on the client's loop.

Invariants: an owned queue has one pull loop; a queue is given up in this order: dropped, its
listener asked, persisted, forgotten, released.
Not here: which queues are ours (``rebalance.py``), the life of the consumer (``push_member.py``).
"""

import asyncio
from collections.abc import Collection, Sequence

from penstock.client.consumer.assigned import AssignedQueue, ConsumeService
from penstock.client.consumer.consume_from import ConsumeFrom, first_offset
from penstock.client.consumer.locks import BrokerLocks
from penstock.client.consumer.offsets.table import Offsets
from penstock.client.consumer.pull_result import PULL_CODES
from penstock.client.consumer.pulling import Pulled, PullLoop, PullTerms, no_route
from penstock.client.consumer.push_options import QueueListener
from penstock.client.consumer.statistics import ConsumerStatistics, QueueFigures
from penstock.client.consumer.subscription import FilterHook, Subscriptions
from penstock.client.consumer.thresholds import QueueThresholds
from penstock.client.errors import ClientError
from penstock.client.instance import ClientInstance
from penstock.client.message import ReceivedMessage, received
from penstock.client.routes import Found
from penstock.flow.thresholds import Throttle
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PullHeader


class PushQueues:
    """Owned queues and who pulls for them."""

    service: ConsumeService
    """Set right after it is made: the service needs to know the locks of these queues."""
    locks: BrokerLocks | None = None

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        terms: PullTerms,
        *,
        subscriptions: Subscriptions,
        offsets: Offsets,
        statistics: ConsumerStatistics,
        thresholds: QueueThresholds,
        where: ConsumeFrom,
        from_ms: int,
        pull_timeout_ms: int,
        filters: Sequence[FilterHook] = (),
        queue_listener: QueueListener | None = None,
    ) -> None:
        self.clock = instance.clock
        self.group = group
        self.terms = terms
        self.subscriptions = subscriptions
        self.offsets = offsets
        self.statistics = statistics
        self.thresholds = thresholds
        self.filters = filters
        self.is_paused = False
        self._instance = instance
        self._where = where
        self._from_ms = from_ms
        self._pull_timeout_ms = pull_timeout_ms
        self._queue_listener = queue_listener
        self._owned: dict[QueueRef, AssignedQueue] = {}
        self._pulls: dict[AssignedQueue, tuple[asyncio.Task[None], Throttle]] = {}
        self._telling = asyncio.Lock()

    def pause(self, *, is_paused: bool) -> None:
        """Pull nothing, or pull again; what is cached is consumed in any case."""
        self.is_paused = is_paused
        if not is_paused:
            for assigned in self._owned.values():
                if assigned.wake is not None:
                    assigned.wake()

    def end_pulls(self) -> None:
        """Pull nothing ever again; queues stay owned."""
        for assigned in self._owned.values():
            self._end_pull(assigned)

    async def stop_all(self) -> None:
        """Give up every queue."""
        await asyncio.gather(*(self.stop_queue(queue) for queue in list(self._owned)))

    def figures(self, now_ms: int) -> list[QueueFigures]:
        """The owned queues, now."""
        return [
            QueueFigures(
                queue,
                each.process_queue.count,
                each.process_queue.size_bytes,
                each.process_queue.span,
                each.next_offset,
                self.offsets.get(queue),
                each.is_paused or self.is_paused,
                each.is_locked,
                now_ms - each.last_pull_ms,
                now_ms - each.last_consume_ms,
            )
            for queue, each in sorted(self._owned.items())
        ]

    # --- rebalancing's view ---------------------------------------------------------------------

    def owned(self) -> dict[QueueRef, AssignedQueue]:
        """The queues owned now."""
        return self._owned

    async def first_offset(self, queue: QueueRef) -> int | None:
        """Where to begin with a queue: the stored offset, or what ``consume_from`` says."""
        self.offsets.forget(queue)
        stored = await self.offsets.read(queue)
        return await first_offset(queue, stored, self._where, self._from_ms, self._instance.calls)

    async def start_queue(self, queue: QueueRef, offset: int) -> None:
        """It is ours: pull."""
        assigned = AssignedQueue(queue, offset, self.clock.monotonic_ms())
        self._owned[queue] = assigned
        throttle = self.thresholds.open(queue)
        loop = PullLoop(self, assigned, throttle, gate=self._gate if self.locks else None)
        self._pulls[assigned] = (self._instance.spawn(loop.run(), f"pull {queue}"), throttle)

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

    def assignment_changed(
        self, topic: str, queues: Collection[QueueRef], mine: Collection[QueueRef]
    ) -> None:
        """Divide limits anew, tell brokers and whoever wants to know."""
        self.thresholds.divide(topic, mine)
        self.subscriptions.renew(topic)
        if self._queue_listener is not None:
            self._instance.spawn(self._tell(topic, list(queues), list(mine)), "queue listener")

    async def _tell(self, topic: str, queues: list[QueueRef], mine: list[QueueRef]) -> None:
        """On a thread, since it is a user's; one after the other, since order matters."""
        listener = self._queue_listener
        async with self._telling:
            if listener is not None:
                await asyncio.to_thread(listener, topic, queues, mine)

    def _end_pull(self, assigned: AssignedQueue) -> None:
        found = self._pulls.pop(assigned, None)
        if found is not None:
            task, throttle = found
            if task is not asyncio.current_task():
                task.cancel()
            self.thresholds.close(assigned.queue, throttle, self.clock.monotonic_ms())

    # --- the pull loops' view -------------------------------------------------------------------

    async def _gate(self, assigned: AssignedQueue) -> bool:
        return self.locks is None or self.locks.is_held(assigned)

    async def readable(self, queue: QueueRef, suggested_id: int) -> Found:
        """Where to pull."""
        routes = self._instance.routes
        found = routes.readable(queue.broker, suggested_id)
        if found is None:
            await routes.look_up(queue.topic)
            found = routes.readable(queue.broker, suggested_id)
        if found is None:
            raise no_route(queue)
        return found

    async def pull(self, address: str, header: PullHeader, queue: QueueRef) -> Pulled:
        """One pull."""
        timeout_ms = self._pull_timeout_ms
        answer = await self._instance.calls.pull(address, header, timeout_ms=timeout_ms)
        said = answer.header
        return Pulled(
            PULL_CODES[answer.code],
            said.next_begin_offset,
            said.suggest_which_broker_id,
            answer.body,
        )

    def read(self, body: bytes, queue: QueueRef) -> list[ReceivedMessage]:
        """The messages of an answer."""
        try:
            return received(body, queue)
        except Malformed as problem:
            raise ClientError(f"messages of {queue} cannot be read: {problem}") from problem

    async def heartbeat_now(self) -> None:
        """Tell brokers the subscriptions."""
        await self._instance.heartbeat()

    async def offset_moved(self, assigned: AssignedQueue, offset: int) -> None:
        """Begin anew at ``offset``: the next rebalance finds the queue dropped and makes it new."""
        assigned.drop()
        # An ordered listener may still run: what it comes to must not undo this.
        assigned.is_locked = False
        self.offsets.note(assigned.queue, offset, is_increase_only=False)
        await self.offsets.persist([assigned.queue])
        self._instance.rebalance_now()
