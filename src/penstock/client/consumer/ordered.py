"""Ordered consumption: the messages of a queue one after the other, by one member of the group.

Three locks see to that. The broker's (``BrokerLocks``) keeps other members out; the queue lock (one
task for each queue, whichever object of that queue) keeps our own threads out; the consume lock (a
task that is not over) keeps a queue from being unlocked while its listener runs.

    take from the front --> listener --> SUCCESS: commit   (without auto commit: on COMMIT)
                                         SUSPEND, raised: the same again, after ``suspend_ms``
                                         ROLLBACK: all since the last commit again

A message that has failed ``reconsume_max`` times goes to the group's dead letters, and the queue
goes on. Broadcasting needs no broker's lock, and a message given up is only logged.

Invariants: at most one listener call per queue; a call begins only while the lock is held; an
offset is noted only under a lock that cannot have been another member's since.
Not here: how listeners are called (``executor.py``), the broker's side of locks
(``engine/group/locks.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from penstock.client.consumer.executor import (
    ConsumeExecutor,
    ConsumeRequest,
    ConsumeResult,
    Finished,
    Later,
    Suspend,
    direct_result,
)
from penstock.client.consumer.offsets import OffsetTable
from penstock.client.consumer.process_queue import AssignedQueue, Pauses, Runtime
from penstock.client.consumer.statistics import ConsumerStatistics, name_of
from penstock.client.errors import ClientError, StateError
from penstock.client.message import ReceivedMessage
from penstock.client.requests import BrokerRequests
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock

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
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000
"""RocketMQ's bounds of a suspension."""


class OrderlySettings(NamedTuple):
    """The options of ordered consumption."""

    batch_max: int = 1
    suspend_ms: int = 1_000
    reconsume_max: int = -1
    is_auto_commit: bool = True

    @property
    def reconsume_limit(self) -> int:
        return RECONSUME_MAX if self.reconsume_max < 0 else self.reconsume_max


GiveUp = Callable[[ReceivedMessage], Awaitable[bool]]
"""Make it a dead letter; False when that failed."""


class ConsumeMessageOrderlyService:
    """Consumes the messages of a queue one after the other.

    A queue with messages has one task, which takes from the front of its cache, awaits the listener
    and settles; it ends when the cache is empty, the queue dropped or the consumer stopping.
    """

    def __init__(
        self,
        runtime: Runtime,
        executor: ConsumeExecutor,
        offsets: OffsetTable,
        statistics: ConsumerStatistics,
        *,
        give_up: GiveUp,
        locks: BrokerLocks | None,
        lost: Callable[[], None],
        settings: OrderlySettings | None = None,
    ) -> None:
        self._runtime = runtime
        self._executor = executor
        self._calls = ListenerCalls(executor)
        self._offsets = offsets
        self._statistics = statistics
        self._give_up = give_up
        self._locks = locks
        """None: broadcasting."""
        self._lost = lost
        """Called when a lock is another member's now: rebalance soon."""
        self._settings = settings or OrderlySettings()
        self._pauses = Pauses(runtime.later)
        self._at_work: dict[QueueRef, AssignedQueue] = {}
        self._ends: dict[QueueRef, asyncio.Future[None]] = {}
        """Done when the task of a queue is over."""
        self._waiting: dict[QueueRef, AssignedQueue] = {}
        self._dropped_ms: dict[AssignedQueue, int] = {}
        self._is_stopping = False

    def start(self) -> None:
        """Start the workers, and begin to renew locks."""
        self._executor.start()
        if self._locks is not None:
            self._runtime.spawn(self._renew(self._locks), "renew queue locks")
            self._runtime.spawn(self._sweep(), "withdraw late calls")

    async def stop(self, wait_ms: int) -> None:
        """Begin no more calls; wait for those that run. Locks are given back by ``released``."""
        self._is_stopping = True
        self._calls.withdraw_all()
        self._pauses.cut_all()
        until_ms = self._runtime.monotonic_ms() + wait_ms
        current = self._executor.current_call()
        own = None if current is None else current.request.assigned.queue
        for end in [end for queue, end in self._ends.items() if queue != own]:
            await self._pauses.until(end, max(0, until_ms - self._runtime.monotonic_ms()))
        await self._executor.stop(max(0, until_ms - self._runtime.monotonic_ms()))
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
        times = self._locks.times
        since_ms = self._dropped_ms.setdefault(assigned, self._runtime.monotonic_ms())
        is_working = self._at_work.get(assigned.queue) is assigned
        is_due = may_unlock(is_working, self._runtime.monotonic_ms() - since_ms, times)
        if is_working and not is_due:
            self._calls.withdraw(assigned)
            self._pauses.cut(assigned)
            is_working = not await self._pauses.until(
                self._ends[assigned.queue], times.drop_wait_ms
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

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """One message now, outside of any order, at an operator's wish."""
        assigned = AssignedQueue(message.queue, message.offset, self._runtime.monotonic_ms())
        finished = await self._calls.call(assigned, [message])
        if finished is None:
            raise StateError("the consumer is stopping")
        return direct_result(
            finished, is_ordered=True, is_auto_commit=self._settings.is_auto_commit
        )

    async def _run(self, assigned: AssignedQueue) -> None:
        """The one task of a queue; at its end the next object of the queue gets its turn."""
        queue = assigned.queue
        try:
            await self._consume(assigned)
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

    async def _consume(self, assigned: AssignedQueue) -> None:
        cache, batch_max = assigned.process_queue, self._settings.batch_max
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
        match action_of(finished, self._settings.is_auto_commit):
            case OrderlyAction.COMMIT:
                cache.commit_taken()
            case OrderlyAction.KEEP:
                return 0
            case OrderlyAction.ROLL_BACK:
                cache.roll_back()
                wait_ms = suspend_ms(finished, self._settings.suspend_ms)
            case OrderlyAction.AGAIN:
                given_up = await self._count_failures(finished.messages)
                cache.put_back(finished.messages)
                cache.settle(given_up)
                if len(given_up) < len(finished.messages):
                    wait_ms = suspend_ms(finished, self._settings.suspend_ms)
        if cache.commit_offset >= 0 and self._may_note(assigned):
            self._offsets.note(assigned.queue, cache.commit_offset)
        if assigned.wake is not None:
            assigned.wake()
        return wait_ms

    async def _count_failures(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Count a failure of each; those that failed too often and are dead letters now."""
        given_up = []
        for message in messages:
            if message.reconsume_times >= self._settings.reconsume_limit and await self._give_up(
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
        wait_ms = locks.times.first_renewal_ms
        while not self._is_stopping:
            await self._pauses.pause(self, wait_ms)
            if not self._is_stopping and await locks.renew():
                self._lost()
            wait_ms = locks.times.renewal_ms

    def _may_note(self, assigned: AssignedQueue) -> bool:
        """A dropped queue may still note what ends before it is unlocked; a lost one may not."""
        if self._locks is None:
            return not assigned.is_dropped
        age_ms = self._runtime.monotonic_ms() - assigned.last_locked_ms
        return assigned.is_locked and age_ms <= self._locks.times.lost_ms


def _log_exception(finished: Finished) -> None:
    first = finished.messages[0]
    _log.warning(
        "ordered listener raised; its queue waits a moment",
        extra={"message_id": first.message_id, "queue": name_of(first.queue)},
        exc_info=finished.error,
    )


class OrderlyAction(Enum):
    """What follows from the answer of a listener.

        answer            auto commit   without
        None, SUCCESS     COMMIT        KEEP        taken, not committed yet
        COMMIT            COMMIT        COMMIT
        SUSPEND, LATER    AGAIN         AGAIN       these messages, after a moment
        ROLLBACK          AGAIN         ROLL_BACK   everything since the last commit
        an exception      AGAIN         AGAIN

    RocketMQ takes a ROLLBACK under auto commit for a success (with a warning). Here it is what it
    says as far as it can be: nothing a listener did not accept is committed.
    """

    COMMIT = auto()
    KEEP = auto()
    AGAIN = auto()
    ROLL_BACK = auto()


def action_of(finished: Finished, is_auto_commit: bool) -> OrderlyAction:
    answer = finished.answer
    if finished.error is not None or isinstance(answer, (Suspend, Later)):
        return OrderlyAction.AGAIN
    if answer is ConsumeResult.SUSPEND or answer is ConsumeResult.LATER:
        return OrderlyAction.AGAIN
    if answer is ConsumeResult.ROLLBACK:
        return OrderlyAction.AGAIN if is_auto_commit else OrderlyAction.ROLL_BACK
    if is_auto_commit or answer is ConsumeResult.COMMIT:
        return OrderlyAction.COMMIT
    return OrderlyAction.KEEP


def suspend_ms(finished: Finished, default_ms: int) -> int:
    """How long the queue waits: what the listener said, or the consumer's own; within bounds."""
    answer = finished.answer
    wanted = answer.suspend_ms if isinstance(answer, Suspend) else 0
    return min(max(wanted or default_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)


class _Guarded(deque[list[ReceivedMessage]]):
    """Batches that a worker gets only while they may begin."""

    def __init__(self, batch: list[ReceivedMessage], may_begin: Callable[[], bool]) -> None:
        super().__init__([batch])
        self.may_begin = may_begin

    def popleft(self) -> list[ReceivedMessage]:
        """For workers, on their threads."""
        if not self.may_begin():
            raise IndexError("not now")
        return super().popleft()

    def withdraw(self) -> bool:
        """Take it away from them; False when a worker was faster."""
        try:
            super().popleft()
        except IndexError:
            return False
        return True


class ListenerCalls:
    """One call of the listener at a time for each queue, awaited.

    A call that no worker has taken can be withdrawn; it then never happens. Workers do not take
    calls of a dropped queue, nor those that may not begin any more when their turn comes (a lock
    that went stale while all workers were busy); without withdrawing nobody would ever hear of
    them.

    Invariants: every call ends exactly once, with what became of it or with None (withdrawn); a
    call begins only while ``may_begin`` says so, asked by the worker right before.
    """

    def __init__(self, executor: ConsumeExecutor) -> None:
        self._executor = executor
        self._open: dict[ConsumeRequest, asyncio.Future[Finished | None]] = {}

    async def call(
        self,
        assigned: AssignedQueue,
        messages: list[ReceivedMessage],
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Finished | None:
        """What the listener made of these messages; None when it was not called."""
        request = ConsumeRequest(assigned, (), self._finished)
        request.batches = _Guarded(messages, may_begin)
        ended: asyncio.Future[Finished | None] = asyncio.get_running_loop().create_future()
        self._open[request] = ended
        self._executor.submit(request)
        try:
            return await ended
        finally:
            self._open.pop(request, None)

    def withdraw(self, assigned: AssignedQueue) -> None:
        """Take back a call of this queue that no worker has taken."""
        for request in [each for each in self._open if each.assigned is assigned]:
            self._withdraw(request)

    def withdraw_all(self) -> None:
        """The same for every queue."""
        for request in list(self._open):
            self._withdraw(request)

    def withdraw_late(self) -> None:
        """Take back what may not begin any more."""
        for request in list(self._open):
            if isinstance(request.batches, _Guarded) and not request.batches.may_begin():
                self._withdraw(request)

    def _withdraw(self, request: ConsumeRequest) -> None:
        # Workers take from the same deque: whoever gets the batch decides.
        if isinstance(request.batches, _Guarded) and request.batches.withdraw():
            self._end(request, None)

    def _finished(self, request: ConsumeRequest, finished: list[Finished]) -> None:
        self._end(request, finished[0])

    def _end(self, request: ConsumeRequest, finished: Finished | None) -> None:
        ended = self._open.get(request)
        if ended is not None and not ended.done():
            ended.set_result(finished)


class LockTimes(NamedTuple):
    """The times of a lock's life."""

    first_renewal_ms: int = 1_000
    renewal_ms: int = 20_000
    stale_ms: int = 30_000
    """Our own lock is not trusted any more this long after we asked for it."""
    lost_ms: int = 60_000
    """The broker may have given it to another member and got it back: what a broker keeps it."""
    drop_wait_ms: int = 500
    """How long one rebalance waits for the listener of a dropped queue."""
    drop_forced_ms: int = 20_000
    """A dropped queue is unlocked after this although its listener still runs."""


TIMES: Final = LockTimes()


class BrokerLocks:
    """The broker's lock on each queue of an ordered consumer: asked for, renewed, lost, given back.

        free --acquire--> held --renewed every 20 s--> held
                           | no answer for 30 s: stale, nothing new begins; renewed: held again
                           | refused, or silent for as long as a broker keeps a lock: lost
                           | dropped: let go when no listener runs, at the latest 20 s later

    The broker gives a lock to somebody else after 60 s of silence; we stop beginning after 30 s,
    counted from the moment we asked and not from the answer. So a listener may run for 30 s after
    its lock went stale, and for 20 s after its queue was dropped, before another member can begin.

    A lost lock was another member's in the meantime: what is cached is out of date. The queue is
    dropped, and the next rebalance makes it anew if it can have the lock.

    Invariant: work begins only between a grant and ``stale_ms`` after it was asked for.
    """

    def __init__(
        self,
        requests: BrokerRequests,
        group: str,
        *,
        owned: Callable[[], Mapping[QueueRef, AssignedQueue]],
        clock: Clock,
        times: LockTimes = TIMES,
    ) -> None:
        self._requests = requests
        self._group = group
        self._owned = owned
        self._clock = clock
        self.times = times

    def is_held(self, assigned: AssignedQueue) -> bool:
        """True while work on the queue may begin."""
        return is_held(assigned, self._clock.monotonic_ms(), self.times)

    async def acquire(self, queues: Collection[QueueRef]) -> dict[QueueRef, int]:
        """Ask for queues not owned yet; the granted ones, and when they were asked for."""
        asked_ms = self._clock.monotonic_ms()
        answers = await asyncio.gather(*(self._ask(*each) for each in by_broker(queues)))
        return {queue: asked_ms for granted in answers if granted for queue in granted}

    def granted(self, assigned: AssignedQueue, asked_ms: int) -> None:
        """A queue was made under this grant."""
        note_grant(assigned, asked_ms, self.times)

    async def renew(self, queues: Collection[AssignedQueue] | None = None) -> list[QueueRef]:
        """Ask again for owned queues, all unless told which; returns those lost to others."""
        chosen = self._owned().values() if queues is None else queues
        asked = {each.queue: each for each in chosen if not each.is_dropped}
        asked_ms = self._clock.monotonic_ms()
        lost: list[QueueRef] = []

        async def renew_at(broker: str, wanted: list[QueueRef]) -> None:
            granted = await self._ask(broker, wanted)
            if granted is None:
                # No answer is no refusal: the lock goes stale by itself if this goes on.
                return
            for queue in wanted:
                assigned = asked[queue]
                if assigned.is_dropped:
                    continue
                if queue not in granted:
                    note_refusal(assigned)
                elif note_grant(assigned, asked_ms, self.times):
                    continue
                lost.append(queue)

        await asyncio.gather(*(renew_at(*each) for each in by_broker(asked)))
        if lost:
            _log.warning("locks lost to other members", extra={"queues": lost})
        return lost

    async def give_back(self, queues: Collection[QueueRef]) -> None:
        """Unlock; a broker that cannot be told forgets the lock after 60 s."""
        await asyncio.gather(*(self._unlock(*each) for each in by_broker(queues)))

    async def _ask(self, broker: str, queues: list[QueueRef]) -> Collection[QueueRef] | None:
        try:
            return await self._requests.lock(broker, self._group, queues)
        except ClientError as problem:
            _log.warning("locks not asked for", extra={"broker": broker, "error": str(problem)})
            return None

    async def _unlock(self, broker: str, queues: list[QueueRef]) -> None:
        try:
            await self._requests.unlock(broker, self._group, queues)
        except ClientError as problem:
            _log.info("locks not given back", extra={"broker": broker, "error": str(problem)})


def is_held(assigned: AssignedQueue, now_ms: int, times: LockTimes = TIMES) -> bool:
    """True while work may begin under the lock."""
    return assigned.is_locked and now_ms - assigned.last_locked_ms <= times.stale_ms


def note_grant(assigned: AssignedQueue, asked_ms: int, times: LockTimes = TIMES) -> bool:
    """A grant asked for at ``asked_ms``; False: the lock was lost in between, and the queue."""
    if assigned.is_dropped:
        return False
    if assigned.is_locked and asked_ms - assigned.last_locked_ms > times.lost_ms:
        note_refusal(assigned)
        return False
    assigned.is_locked = True
    # Answers may overtake each other: the later question counts.
    assigned.last_locked_ms = max(assigned.last_locked_ms, asked_ms)
    return True


def note_refusal(assigned: AssignedQueue) -> None:
    """Another member has it: this object of the queue is over."""
    assigned.is_locked = False
    assigned.drop()


def may_unlock(is_working: bool, dropped_for_ms: int, times: LockTimes = TIMES) -> bool:
    """Whether a dropped queue may be unlocked now."""
    return not is_working or dropped_for_ms >= times.drop_forced_ms


def by_broker(queues: Iterable[QueueRef]) -> list[tuple[str, list[QueueRef]]]:
    """Queues in groups of one request each."""
    groups: dict[str, list[QueueRef]] = {}
    for queue in queues:
        groups.setdefault(queue.broker, []).append(queue)
    return list(groups.items())
