"""The queues a push consumer owns, and their pull loops.

It is ``QueueOwner`` to rebalancing and ``PullHost`` to the pull loops; all on the client's loop.

Invariants: an owned queue has one pull loop; a queue is given up in this order: dropped, its
listener asked, persisted, forgotten, released.
Not here: which queues are ours (``rebalance.py``), the life of the consumer (``push_member.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from penstock.client.consumer.executor import ConsumeHook
from penstock.client.consumer.offsets import OffsetStore, OffsetTable
from penstock.client.consumer.ordered import BrokerLocks
from penstock.client.consumer.process_queue import AssignedQueue, ConsumeMessageService
from penstock.client.consumer.pulling import PULL_CODES, Pulled, PullLoop, PullSettings, no_route
from penstock.client.consumer.rebalance import strategy_of
from penstock.client.consumer.statistics import ConsumerStatistics, QueueFigures, QueueThresholds
from penstock.client.consumer.subscription import (
    ConsumeFrom,
    FilterHook,
    Subscriptions,
    first_offset,
)
from penstock.client.errors import ClientError
from penstock.client.instance import ClientInstance
from penstock.client.message import ReceivedMessage, received_messages
from penstock.client.options import InstanceOptions, Option
from penstock.client.routes import BrokerAddress
from penstock.client.trace import TraceOptions
from penstock.flow.thresholds import Throttle
from penstock.model.assignment import AVG, QueueRef, Strategy
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PullHeader


class PushQueues:
    """Owned queues and who pulls for them."""

    service: ConsumeMessageService
    """Set right after it is made: the service needs to know the locks of these queues."""
    locks: BrokerLocks | None = None

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        terms: PullSettings,
        *,
        subscriptions: Subscriptions,
        offsets: OffsetTable,
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
        return await first_offset(
            queue, stored, self._where, self._from_ms, self._instance.requests
        )

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

    async def readable(self, queue: QueueRef, suggested_id: int) -> BrokerAddress:
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
        answer = await self._instance.requests.pull(address, header, timeout_ms=timeout_ms)
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
            return received_messages(body, queue)
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


# ---- push options -------------------------------------------------------------------------------
# Options of a push consumer; defaults are RocketMQ's.
#
# Not here: what they do (each in the module that reads it), options of the shared instance
# (``options.py``).


RETRIES_MAX: Final = 16
QueueListener = Callable[[str, Collection[QueueRef], Collection[QueueRef]], None]
"""Gets a topic, all its queues and those owned from now on."""


class PushConsumerOptions(InstanceOptions, TraceOptions, total=False):
    """How a push consumer pulls, consumes, retries and remembers."""

    is_ordered: Annotated[
        bool,
        Option(False, "One message of a queue after the other, each queue locked at its broker."),
    ]
    is_broadcasting: Annotated[
        bool,
        Option(
            False,
            "Every member of the group gets every message; offsets are kept in a local file, and"
            " what fails is not tried again.",
        ),
    ]
    consume_from: Annotated[
        str, Option("last", "Where a group without stored offsets begins.", choices=[*ConsumeFrom])
    ]
    consume_timestamp: Annotated[
        datetime | str | int | None,
        Option(
            None,
            "Where consume_from='timestamp' begins: a datetime, yyyyMMddHHmmss in local time, or"
            " milliseconds since 1970. Default: half an hour ago.",
        ),
    ]
    consume_threads: Annotated[
        int,
        Option(20, "How many calls of the listener may run at once (threads, or coroutines).", 1),
    ]
    consume_batch: Annotated[
        int,
        Option(1, "Messages in one call of the listener; above 1 it gets a list.", 1, 1024),
    ]
    consume_timeout_ms: Annotated[
        int,
        Option(
            15 * 60_000,
            "A call that takes longer is a time-out: its messages are given back to the broker.",
            1,
        ),
    ]
    retries_max: Annotated[
        int,
        Option(
            -1,
            "How often a message is tried again before it is a dead letter; -1: 16, for ordered"
            " consumers without end.",
            -1,
        ),
    ]
    local_retry_ms: Annotated[
        int,
        Option(5_000, "When a message that could not be given back is tried again here.", 1),
    ]
    is_auto_commit: Annotated[
        bool,
        Option(True, "Ordered: success commits; else only COMMIT does, and ROLLBACK goes back."),
    ]
    suspend_ms: Annotated[
        int,
        Option(1_000, "Ordered: pause of a queue before its messages are tried again.", 10, 30_000),
    ]
    lock_renewal_ms: Annotated[
        int, Option(20_000, "Ordered: how often the broker's locks on queues are renewed.", 10)
    ]
    lock_stale_ms: Annotated[
        int,
        Option(
            30_000,
            "Ordered: nothing new is consumed under a lock that was not renewed for this long; half"
            " of the time for which brokers keep it, so that a call can end before it is lost.",
            10,
        ),
    ]
    pull_batch: Annotated[int, Option(32, "Messages asked for in one pull.", 1, 1024)]
    pull_batch_bytes: Annotated[
        int, Option(256 * 1024, "Bytes asked for in one pull; at least one message comes.", 1)
    ]
    pull_interval_ms: Annotated[int, Option(0, "Wait between two pulls of a queue.", 0, 65_535)]
    pull_suspend_ms: Annotated[
        int, Option(15_000, "How long a broker holds a pull that finds nothing.", 1)
    ]
    pull_timeout_ms: Annotated[
        int, Option(30_000, "How long the answer to a pull may take; above pull_suspend_ms.", 1)
    ]
    pull_error_wait_ms: Annotated[
        int, Option(1_000, "Wait after a pull that failed; 20 ms when the broker says busy.", 1)
    ]
    pull_threshold_messages: Annotated[
        int,
        Option(1_000, "Unsettled messages of a queue above which it is not pulled.", 1, 65_535),
    ]
    pull_threshold_bytes: Annotated[
        int, Option(100 << 20, "Bytes of unsettled messages of a queue, likewise.", 1)
    ]
    pull_threshold_span: Annotated[
        int,
        Option(
            2_000,
            "Distance of the first and last unsettled offset of a queue, likewise (not ordered).",
            1,
            65_535,
        ),
    ]
    topic_threshold_messages: Annotated[
        int, Option(-1, "pull_threshold_messages for all owned queues of a topic; -1: none.", -1)
    ]
    topic_threshold_bytes: Annotated[
        int, Option(-1, "pull_threshold_bytes for all owned queues of a topic; -1: none.", -1)
    ]
    is_subscription_posted: Annotated[
        bool, Option(False, "Send the tag expression with each pull, not only in heartbeats.")
    ]
    strategy: Annotated[
        str | Strategy,
        Option(AVG, "How queues are divided: the name of a strategy, or a function of your own."),
    ]
    queue_listener: Annotated[
        QueueListener | None, Option(None, "Called with (topic, all queues, mine) at each change.")
    ]
    offset_store: Annotated[
        OffsetStore | Any | None,
        Option(
            None,
            "Where offsets are kept: an object with read(queue) and write(offsets), plain or"
            " coroutines. Default: the broker, or a local file when broadcasting.",
        ),
    ]
    offsets_directory: Annotated[
        str | None,
        Option(None, "Where local offset files are; default ~/.penstock_offsets."),
    ]
    hooks: Annotated[
        Sequence[ConsumeHook], Option((), "Called before and after each call of the listener.")
    ]
    filters: Annotated[
        Sequence[FilterHook],
        Option((), "Each gets the messages of a pull or pop and gives those to consume."),
    ]
    is_popping: Annotated[
        bool,
        Option(
            False,
            "Let a broker divide the queues, and pop messages one by one where it has switched the"
            " group to that.",
        ),
    ]
    pop_batch: Annotated[int, Option(32, "Pop: messages asked for at once.", 1, 32)]
    pop_threshold: Annotated[
        int, Option(96, "Pop: unsettled messages of a queue above which it is not popped.", 1)
    ]
    pop_invisible_ms: Annotated[
        int,
        Option(
            60_000,
            "Pop: how long a message is kept from others; what takes longer comes again.",
            5_000,
            300_000,
        ),
    ]
    pop_poll_ms: Annotated[
        int, Option(15_000, "Pop: how long a broker holds a pop that finds nothing.", 0)
    ]
    await_termination_ms: Annotated[
        int,
        Option(
            10_000, "How long stop() waits for listeners that run, but the one that calls it.", 0
        ),
    ]


def check_options(options: PushConsumerOptions) -> None:
    """Refuse what cannot work, before anybody is asked for anything."""
    strategy_of(options["strategy"])
    if options["pull_timeout_ms"] <= options["pull_suspend_ms"]:
        raise ValueError(
            f"pull_timeout_ms is {options['pull_timeout_ms']}: brokers hold a pull for"
            f" {options['pull_suspend_ms']} (pull_suspend_ms), the answer must be waited for longer"
        )
    if options["is_popping"] and options["is_broadcasting"]:
        raise ValueError("is_popping needs a group that shares its queues, not is_broadcasting")
