"""Ordered consumption: the messages of a queue one after the other, by one member of the group.

Three locks see to that. The broker's (``locks.py``) keeps other members out; the queue lock (one
task for each queue, whichever object of that queue) keeps our own threads out; the consume lock (a
task that is not over) keeps a queue from being unlocked while its listener runs.

    take from the front --> listener --> SUCCESS: commit   (without auto commit: on COMMIT)
                                         SUSPEND, raised: the same again, after ``suspend_ms``
                                         ROLLBACK: all since the last commit again

A message that has failed ``reconsume_max`` times goes to the group's dead letters, and the queue
goes on. Broadcasting needs no broker's lock, and a message given up is only logged.

Invariants: at most one listener call per queue; a call begins only while the lock is held; an
offset is noted only under a lock that cannot have been another member's since.
Not here: how listeners are called (``listening.py``), what follows from an answer
(``ordered_next.py``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from penstock.client.consumer.assigned import AssignedQueue, DirectOutcome
from penstock.client.consumer.concurrent import Runtime
from penstock.client.consumer.direct_consume import direct_outcome
from penstock.client.consumer.listener_calls import ListenerCalls
from penstock.client.consumer.listening import Listening
from penstock.client.consumer.locks import BrokerLocks, may_let_go
from penstock.client.consumer.offsets.table import Offsets
from penstock.client.consumer.ordered_next import Next, judge, suspend_ms
from penstock.client.consumer.pauses import Pauses
from penstock.client.consumer.results import Finished
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.thresholds import name_of
from penstock.client.errors import StateError
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)

CONTINUOUS_MS_MAX: Final = 60_000
"""A queue that never runs dry lets others have the threads once in this time ..."""
YIELD_MS: Final = 10
"""... for a moment; also the wait before a lock that was lost for want of renewal is tried."""
UNLOCKED_WAIT_MS: Final = 3_000
"""Until the lock is tried again when the broker did not answer."""
SWEEP_MS: Final = 1_000
"""How soon a call is seen that may not begin any more."""
RECONSUME_MAX: Final = 2**31 - 1
"""What -1 means here: order is worth more than progress."""


class OrderedTerms(NamedTuple):
    """The options of ordered consumption."""

    batch_max: int = 1
    suspend_ms: int = 1_000
    reconsume_max: int = -1
    is_auto_commit: bool = True

    @property
    def reconsume_limit(self) -> int:
        """How often a message is tried again."""
        return RECONSUME_MAX if self.reconsume_max < 0 else self.reconsume_max


GiveUp = Callable[[ReceivedMessage], Awaitable[bool]]
"""Make it a dead letter; False when that failed."""


class OrderedService:
    """The consume service of an ordered listener."""

    def __init__(
        self,
        runtime: Runtime,
        listening: Listening,
        offsets: Offsets,
        statistics: ConsumerStatistics,
        *,
        give_up: GiveUp,
        locks: BrokerLocks | None,
        lost: Callable[[], None],
        terms: OrderedTerms | None = None,
    ) -> None:
        self._runtime = runtime
        self._listening = listening
        self._calls = ListenerCalls(listening)
        self._offsets = offsets
        self._statistics = statistics
        self._give_up = give_up
        self._locks = locks
        """None: broadcasting."""
        self._lost = lost
        """Called when a lock is another member's now: rebalance soon."""
        self._terms = terms or OrderedTerms()
        self._pauses = Pauses(runtime.later)
        self._at_work: dict[QueueRef, AssignedQueue] = {}
        self._ends: dict[QueueRef, asyncio.Future[None]] = {}
        """Done when the task of a queue is over."""
        self._waiting: dict[QueueRef, AssignedQueue] = {}
        self._dropped_ms: dict[AssignedQueue, int] = {}
        self._is_stopping = False

    def start(self) -> None:
        """Start the workers, and begin to renew locks."""
        self._listening.start()
        if self._locks is not None:
            self._runtime.spawn(self._renew(self._locks), "renew queue locks")
            self._runtime.spawn(self._sweep(), "withdraw late calls")

    async def stop(self, wait_ms: int) -> None:
        """Begin no more calls; wait for those that run. Locks are given back by ``released``."""
        self._is_stopping = True
        self._calls.withdraw_all()
        self._pauses.cut_all()
        until_ms = self._runtime.monotonic_ms() + wait_ms
        asking = self._listening.asking()
        own = None if asking is None else asking.work.assigned.queue
        for end in [end for queue, end in self._ends.items() if queue != own]:
            await self._pauses.until(end, max(0, until_ms - self._runtime.monotonic_ms()))
        await self._listening.stop(max(0, until_ms - self._runtime.monotonic_ms()))
        if self._at_work:
            _log.warning("listeners still run", extra={"queues": list(self._at_work)})

    def submit(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Messages were put into the queue's cache: see that somebody works on it."""
        if self._is_stopping or assigned.is_dropped:
            return
        queue = assigned.queue
        if queue not in self._at_work:
            self._at_work[queue] = assigned
            self._ends[queue] = asyncio.get_running_loop().create_future()
            self._runtime.spawn(self._run(assigned), f"ordered {name_of(queue)}")
        elif self._at_work[queue] is not assigned:
            # The listener of an earlier object of this queue still runs: after it, us.
            self._waiting[queue] = assigned

    async def dropped(self, assigned: AssignedQueue) -> bool:
        """True when no listener runs any more, or has been run for too long."""
        if self._locks is None:
            return True
        terms = self._locks.terms
        since_ms = self._dropped_ms.setdefault(assigned, self._runtime.monotonic_ms())
        is_working = self._at_work.get(assigned.queue) is assigned
        is_due = may_let_go(is_working, self._runtime.monotonic_ms() - since_ms, terms)
        if is_working and not is_due:
            self._calls.withdraw(assigned)
            self._pauses.cut(assigned)
            is_working = not await self._pauses.until(
                self._ends[assigned.queue], terms.drop_wait_ms
            )
            is_due = not is_working
        if not is_due:
            assigned.unlock_tries += 1
            return False
        if is_working:
            _log.warning("unlocked with a listener at work", extra={"queue": assigned.queue})
        if not self._may_note(assigned):
            # Another member goes on by now: our older offset must not overwrite its own.
            self._offsets.forget(assigned.queue)
        assigned.is_locked = False
        self._dropped_ms.pop(assigned, None)
        return True

    async def released(self, assigned: AssignedQueue) -> None:
        """The offset is stored: let another member have the queue."""
        assigned.is_locked = False
        if self._locks is None:
            return
        if self._is_stopping and self._at_work.get(assigned.queue) is assigned:
            # Its listener runs beyond the end: the broker keeps others out a while longer.
            return
        await self._locks.give_back([assigned.queue])

    async def consume_directly(self, message: ReceivedMessage) -> DirectOutcome:
        """One message now, outside of any order, at an operator's wish."""
        assigned = AssignedQueue(message.queue, message.offset, self._runtime.monotonic_ms())
        finished = await self._calls.call(assigned, [message])
        if finished is None:
            raise StateError("the consumer is stopping")
        return direct_outcome(finished, is_ordered=True, is_auto_commit=self._terms.is_auto_commit)

    async def _run(self, assigned: AssignedQueue) -> None:
        """The one task of a queue; at its end the next object of the queue gets its turn."""
        queue = assigned.queue
        try:
            await self._work(assigned)
        except Exception:
            # An error of ours, not of the listener: messages taken may not be forgotten with it.
            _log.exception("queue is made anew", extra={"queue": name_of(queue)})
            assigned.drop()
            self._lost()
        finally:
            del self._at_work[queue]
            self._ends.pop(queue).set_result(None)
            successor = self._waiting.pop(queue, None)
            if successor is not None:
                self.submit(successor, ())

    async def _work(self, assigned: AssignedQueue) -> None:
        cache, batch_max = assigned.process_queue, self._terms.batch_max
        begun_ms = self._runtime.monotonic_ms()
        while not (assigned.is_dropped or self._is_stopping):
            if self._locks is not None and not self._locks.is_held(assigned):
                await self._regain(assigned, self._locks)
                continue
            now_ms = self._runtime.monotonic_ms()
            if now_ms - begun_ms > CONTINUOUS_MS_MAX:
                await self._pauses.pause(assigned, YIELD_MS)
                begun_ms = self._runtime.monotonic_ms()
                continue
            messages = cache.take(batch_max)
            if not messages:
                return
            assigned.last_consume_ms = now_ms
            finished = await self._calls.call(assigned, messages, self._may_begin(assigned))
            if finished is None:
                cache.put_back(messages)
                continue
            wait_ms = await self._settle(assigned, finished)
            if wait_ms and not (assigned.is_dropped or self._is_stopping):
                await self._pauses.pause(assigned, wait_ms)

    async def _settle(self, assigned: AssignedQueue, finished: Finished) -> int:
        """See to what came of a call; returns how long the queue has to wait now."""
        cache, wait_ms = assigned.process_queue, 0
        now_ms = self._runtime.monotonic_ms()
        self._statistics.topic(assigned.queue.topic).finished([finished], now_ms)
        if finished.error is not None:
            _log_exception(finished)
        match judge(finished, self._terms.is_auto_commit):
            case Next.COMMIT:
                cache.commit_taken()
            case Next.KEEP:
                return 0
            case Next.ROLL_BACK:
                cache.roll_back()
                wait_ms = suspend_ms(finished, self._terms.suspend_ms)
            case Next.AGAIN:
                given_up = await self._over(finished.messages)
                cache.put_back(finished.messages)
                cache.settle(given_up)
                if len(given_up) < len(finished.messages):
                    wait_ms = suspend_ms(finished, self._terms.suspend_ms)
        if cache.commit_offset >= 0 and self._may_note(assigned):
            self._offsets.note(assigned.queue, cache.commit_offset)
        if assigned.wake is not None:
            assigned.wake()
        return wait_ms

    async def _over(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Count a failure of each; those that failed too often and are dead letters now."""
        given_up = []
        for message in messages:
            if message.reconsume_times >= self._terms.reconsume_limit and await self._give_up(
                message
            ):
                given_up.append(message)
            else:
                message.reconsume_times += 1
        return given_up

    async def _regain(self, assigned: AssignedQueue, locks: BrokerLocks) -> None:
        """The lock went stale for want of renewals: ask at once, and not too often."""
        lost = await locks.renew([assigned])
        if lost:
            self._lost()
        elif not assigned.is_dropped:
            wait_ms = YIELD_MS if locks.is_held(assigned) else UNLOCKED_WAIT_MS
            await self._pauses.pause(assigned, wait_ms)

    def _may_begin(self, assigned: AssignedQueue) -> Callable[[], bool]:
        """Asked on a worker's thread: the lock may have gone stale while all were busy."""
        locks = self._locks
        return (lambda: True) if locks is None else (lambda: locks.is_held(assigned))

    async def _sweep(self) -> None:
        """Calls whose lock went stale before a worker took them: their queues try to regain it."""
        while not self._is_stopping:
            await self._pauses.pause(self._calls, SWEEP_MS)
            self._calls.withdraw_late()

    async def _renew(self, locks: BrokerLocks) -> None:
        wait_ms = locks.terms.first_renewal_ms
        while not self._is_stopping:
            await self._pauses.pause(self, wait_ms)
            if not self._is_stopping and await locks.renew():
                self._lost()
            wait_ms = locks.terms.renewal_ms

    def _may_note(self, assigned: AssignedQueue) -> bool:
        """A dropped queue may still note what ends before it is unlocked; a lost one may not."""
        if self._locks is None:
            return not assigned.is_dropped
        age_ms = self._runtime.monotonic_ms() - assigned.last_locked_ms
        return assigned.is_locked and age_ms <= self._locks.terms.lost_ms


def _log_exception(finished: Finished) -> None:
    first = finished.messages[0]
    _log.warning(
        "ordered listener raised; its queue waits a moment",
        extra={"message_id": first.message_id, "queue": name_of(first.queue)},
        exc_info=finished.error,
    )
