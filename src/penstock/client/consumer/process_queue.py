"""A queue this consumer owns, and its cache: what was pulled and is not yet settled.

Rebalancing decides which queues are ours; their owner makes an ``AssignedQueue`` for each, pulls
for it and hands messages to its ``ConsumeMessageService``. A queue that comes back is a new object:
results of the old one find ``is_dropped`` and change nothing.

Everything here runs on the client's loop: no locks.
Not here: limits (``penstock.flow.thresholds``), where offsets are kept (``offsets.py``), the
broker's locks on ordered queues (``ordered.py``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

from penstock.client.message import ReceivedMessage
from penstock.flow.thresholds import Cached
from penstock.model.assignment import QueueRef

PULL_IDLE_MS_MAX: Final = 120_000
"""A queue whose pull loop has not run this long is dropped and made anew at the next rebalance."""
NOTHING_PULLED: Final = -1


class AssignedQueue:
    """One owned queue, once dropped never pulled nor committed again.

    All times are monotonic milliseconds, 0 is never.
    """

    __slots__ = (
        "broker_id",
        "is_dropped",
        "is_locked",
        "is_paused",
        "last_consume_ms",
        "last_locked_ms",
        "last_pull_ms",
        "next_offset",
        "process_queue",
        "queue",
        "unlock_tries",
        "wake",
    )

    def __init__(self, queue: QueueRef, next_offset: int, now_ms: int) -> None:
        self.queue = queue
        self.process_queue = ProcessQueue()
        self.next_offset = next_offset
        """Where the next pull begins."""
        self.broker_id = 0
        """The broker of this name to pull from, as the last answer suggested; 0 is the master."""
        self.is_dropped = False
        self.is_paused = False
        self.is_locked = False
        self.last_locked_ms = 0
        self.unlock_tries = 0
        self.last_pull_ms = now_ms
        """Set before the thresholds are looked at: a throttled queue is not an idle one."""
        self.last_consume_ms = now_ms
        self.wake: Callable[[], None] | None = None
        """Set while the pull loop waits for room: call it after settling."""

    @property
    def cached(self) -> Cached:
        """What the thresholds are compared with."""
        cache = self.process_queue
        return Cached(cache.count, cache.size_bytes, cache.span)

    def is_idle(self, now_ms: int) -> bool:
        """True when its pull loop must have died."""
        return now_ms - self.last_pull_ms > PULL_IDLE_MS_MAX

    def drop(self) -> None:
        """Not ours any more; whoever holds it finds this out by itself."""
        self.is_dropped = True


class ProcessQueue:
    """The pulled and unsettled messages of one queue.

    Messages come in pull order (offsets grow) and leave in any order. The offset to commit is the
    lowest one that is not settled, or one behind the last pulled when all are: so a crash may
    repeat messages, and never loses one. An ordered service works from the front instead: ``take``
    moves messages to the taken ones, ``commit_taken`` settles them, ``put_back`` returns them.

    Invariants: ``count`` and ``size_bytes`` are those of waiting and taken messages together; taken
    offsets are below waiting ones; ``commit_offset`` never passes an unsettled message and never
    goes back.
    """

    __slots__ = ("_order", "_taken", "_waiting", "highest_pulled", "size_bytes")

    def __init__(self) -> None:
        self._waiting: dict[int, ReceivedMessage] = {}
        # Offsets in pull order; those settled since are skipped when they come to the front. A
        # dict alone would walk over its holes at each look at its first key.
        self._order: deque[int] = deque()
        self._taken: dict[int, ReceivedMessage] = {}
        self.size_bytes = 0
        self.highest_pulled = NOTHING_PULLED

    @property
    def count(self) -> int:
        return len(self._waiting) + len(self._taken)

    def taken_offsets(self) -> list[int]:
        """Those of the messages an ordered service has taken and not committed."""
        return list(self._taken)

    @property
    def lowest(self) -> int | None:
        if self._taken:
            return next(iter(self._taken))
        order, waiting = self._order, self._waiting
        while order:
            if order[0] in waiting:
                return order[0]
            order.popleft()
        return None

    @property
    def span(self) -> int:
        """Last minus first unsettled offset, as RocketMQ counts it."""
        lowest = self.lowest
        return 0 if lowest is None else self._highest_unsettled() - lowest

    @property
    def commit_offset(self) -> int:
        """What may be committed now: where a new owner has to begin; -1 before the first pull."""
        lowest = self.lowest
        if lowest is not None:
            return lowest
        return self.highest_pulled + 1 if self.highest_pulled >= 0 else NOTHING_PULLED

    def put(self, messages: Sequence[ReceivedMessage]) -> None:
        """Pulled: they wait; offsets continue those pulled before."""
        if not messages:
            return
        offsets = [message.stored.queue_offset for message in messages]
        self._waiting.update(zip(offsets, messages, strict=True))
        self._order.extend(offsets)
        self.size_bytes += sum([len(message.stored.body) for message in messages])
        self.highest_pulled = max(self.highest_pulled, offsets[-1])

    def reached(self, next_offset: int) -> None:
        """Pulls went on to here: what lies before and was not put is not wanted (filtered)."""
        self.highest_pulled = max(self.highest_pulled, next_offset - 1)

    def settle(self, messages: Iterable[ReceivedMessage]) -> int:
        """Done (or given back to the broker): forget them. Returns how many were still here."""
        pop = self._waiting.pop
        settled = 0
        for message in messages:
            stored = message.stored
            if pop(stored.queue_offset, None) is not None:
                self.size_bytes -= len(stored.body)
                settled += 1
        return settled

    def unsettled(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those of ``messages`` that are still to be settled here."""
        waiting = self._waiting
        return [message for message in messages if waiting.get(message.offset) is message]

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """Ordered: the next messages from the front; they stay unsettled until committed."""
        order, waiting = self._order, self._waiting
        taken: list[ReceivedMessage] = []
        while order and len(taken) < count_max:
            message = waiting.pop(order.popleft(), None)
            if message is not None:
                taken.append(message)
        self._taken.update((message.offset, message) for message in taken)
        return taken

    def put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Ordered: these taken messages (the last ones taken) come again, from the front."""
        for message in reversed(messages):
            if self._taken.pop(message.offset, None) is not None:
                self._waiting[message.offset] = message
                self._order.appendleft(message.offset)

    def roll_back(self) -> None:
        """Ordered: every taken message comes again."""
        self.put_back(list(self._taken.values()))

    def commit_taken(self) -> int:
        """Ordered: the taken messages are done; returns what may be committed now."""
        self.size_bytes -= sum([message.stored_bytes for message in self._taken.values()])
        self._taken.clear()
        return self.commit_offset

    def _highest_unsettled(self) -> int:
        order, waiting = self._order, self._waiting
        while order and order[-1] not in waiting:
            order.pop()
        return order[-1] if order else next(reversed(self._taken))


class ConsumeMessageService(Protocol):
    """Gives pulled messages to the listener and sees to what comes of it: concurrent or ordered."""

    def start(self) -> None:
        """Begin; called on the client's loop."""
        ...

    async def stop(self, wait_ms: int) -> None:
        """Take no new messages; return when the listeners ended, or after ``wait_ms``."""
        ...

    def submit(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Consume these; they are in the queue's cache already."""
        ...

    async def dropped(self, assigned: AssignedQueue) -> bool:
        """The queue is being given up; False when that must wait (ordered: a listener runs)."""
        ...

    async def released(self, assigned: AssignedQueue) -> None:
        """After ``dropped`` and the last persist: the next owner may begin (ordered: unlock)."""
        ...

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """Call the listener with one message now, whoever owns its queue (request 309)."""
        ...


class Runtime(Protocol):
    """Time and tasks of a consume service: the client's loop, or a test's own."""

    def monotonic_ms(self) -> int: ...

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> object:
        """Run it by itself; its errors are logged."""
        ...

    def later(self, delay_ms: int, call: Callable[..., object], *args: Any) -> Any:
        """Call it after a while; returns something with ``cancel``."""
        ...


Later = Callable[..., Any]
"""``Runtime.later``: (delay_ms, call, *args) -> something with ``cancel``."""


def later_on_loop(delay_ms: int, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_ms / 1000, call, *args)


class Pauses:
    """Waits that can be cut short; a key waits at most once at a time."""

    def __init__(self, later: Later = later_on_loop) -> None:
        self._later = later
        self._waiting: dict[Hashable, asyncio.Future[bool]] = {}

    async def pause(self, key: Hashable, ms: int) -> bool:
        """Wait; True when the time is up, False when cut short."""
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[key] = ended
        timer = self._later(ms, _end, ended, True)
        try:
            return await ended
        finally:
            timer.cancel()
            self._waiting.pop(key, None)

    async def until(self, done: asyncio.Future[None], ms: int) -> bool:
        """Wait for ``done``, at most ``ms``; True when it is done."""
        if not done.done():
            key = object()
            done.add_done_callback(lambda _: self.cut(key))
            await self.pause(key, ms)
        return done.done()

    def cut(self, key: Hashable) -> None:
        """Let it go on at once, if it waits."""
        ended = self._waiting.get(key)
        if ended is not None:
            _end(ended, False)

    def cut_all(self) -> None:
        """Let everybody go on."""
        for key in list(self._waiting):
            self.cut(key)


def _end(ended: asyncio.Future[bool], is_time_up: bool) -> None:
    if not ended.done():
        ended.set_result(is_time_up)
