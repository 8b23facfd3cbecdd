"""Calling listeners: plain functions on a pool of threads, coroutines on an event loop.

A listener returns nothing (or ``SUCCESS``) when its messages are done, and raises or returns
``LATER`` when they are to come again. An ordered one may also say ``SUSPEND``, ``COMMIT`` and
``ROLLBACK``. ``Later`` and ``Suspend`` are the same answers with a number.

The client's loop submits a ``ConsumeRequest``: batches of one queue in one deque. Workers take
batches off it one by one, so several workers may share a request, and hand results back in lists:
many calls, one wake-up of the loop. How many workers get a request depends on how long calls took
lately: a fast listener is called by one thread without switching, a slow one by all of them. Should
a call take unexpectedly long, a tick gives what is left to idle workers.

Invariants: a batch is taken by one worker; every taken batch is reported exactly once; after
``stop`` no batch is taken. Whoever raises (hook or listener) does not end a worker.
Not here: what follows from an answer (``concurrent.py``, ``ordered.py``, ``pop_settling.py``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from enum import Enum
from math import ceil
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from penstock.client.consumer.process_queue import AssignedQueue
from penstock.client.loop import CallRelay, LoopThread
from penstock.client.message import ReceivedMessage
from penstock.model.assignment import QueueRef

_log = logging.getLogger(__name__)

REPORT_MS: Final = 2.0
"""Results wait at most about this long for others to be reported with."""
SHARE_MS: Final = 1.0
"""Work for about this long is given to one worker: below it, switching threads costs more."""
TICK_S: Final = 0.02
"""How soon idle workers get what another is stuck in front of."""
FIRST_CALL_MS: Final = 1.0
"""A listener is taken for slow until it was seen."""
REMARK_CHARS_MAX: Final = 1_000
"""Of an exception's text: it goes to a terminal."""

_worker: ContextVar[tuple[Any, int] | None] = ContextVar("penstock_worker", default=None)
"""Who calls a listener, and in which slot; what the listener asks the client for carries it."""


class ConsumeResult(Enum):
    """A listener's answer; None is SUCCESS."""

    SUCCESS = "success"
    LATER = "later"
    """Concurrent: the broker gives it again after a delay that grows with each try."""
    SUSPEND = "suspend"
    """Ordered: the same messages again in a moment, nothing of this queue before."""
    COMMIT = "commit"
    """Ordered without automatic commit: everything so far is done."""
    ROLLBACK = "rollback"
    """Ordered without automatic commit: everything since the last commit again."""


class Later(NamedTuple):
    """``LATER`` with numbers."""

    delay_level: int = 0
    """1-18; 0 lets the broker choose (grows with each try); below 0: a dead letter at once."""
    done: int = 0
    """How many messages at the front of a batch are done; only the others come again."""


class Suspend(NamedTuple):
    """``SUSPEND`` with a time; 0 takes the consumer's own."""

    suspend_ms: int = 0


Answer: TypeAlias = ConsumeResult | Later | Suspend | None


class ResultKind(Enum):
    """What became of one call of a listener, for hooks and statistics."""

    SUCCESS = "success"
    TIME_OUT = "time-out"
    """It took longer than the consume time-out, whatever it returned."""
    EXCEPTION = "exception"
    LATER = "later"
    """It said so: LATER, SUSPEND or ROLLBACK."""


class Finished(msgspec.Struct, gc=False):
    """One ended call of a listener, on its way back to the client's loop."""

    messages: list[ReceivedMessage]
    answer: Answer
    error: BaseException | None
    kind: ResultKind
    spent_ms: float

    @property
    def is_success(self) -> bool:
        """True when the listener neither raised nor asked for any of its messages again."""
        return self.error is None and self.answer in (
            None,
            ConsumeResult.SUCCESS,
            ConsumeResult.COMMIT,
        )


Batch: TypeAlias = list[ReceivedMessage]
Done: TypeAlias = Callable[["ConsumeRequest", list[Finished]], None]


class ConsumeRequest:
    """Batches of one queue to be consumed, and who hears of the results, on the client's loop."""

    __slots__ = ("assigned", "batches", "done", "results")

    def __init__(self, assigned: AssignedQueue, batches: Sequence[Batch], done: Done) -> None:
        self.assigned = assigned
        self.batches: deque[Batch] = deque(batches)
        self.results: deque[Finished] = deque()
        """Ended calls nobody has heard of yet."""
        self.done = done


def batches_of(messages: Sequence[ReceivedMessage], size: int) -> list[list[ReceivedMessage]]:
    """The messages in parts for one call each."""
    if size == 1:
        return [[message] for message in messages]
    return [list(messages[at : at + size]) for at in range(0, len(messages), size)]


class Running(NamedTuple):
    """A call of a listener that has not ended."""

    request: ConsumeRequest
    batch: Batch
    since_s: float
    """``time.perf_counter``."""


class ConsumeExecutor(ABC):
    """Workers that call one listener; on the client's loop but for ``_run`` and ``_consume``.

    Here is decided how many workers get a request at once, and who gets what is left later.
    """

    def __init__(self, home: LoopThread, invoker: ListenerInvoker, workers: int) -> None:
        self.invoker = invoker
        self.workers = workers
        self.is_stopping = False
        # Bare tuples: making a named one for each message would cost as much as calling a listener.
        self.slots: list[tuple[ConsumeRequest, Batch, float] | None] = [None] * workers
        self.home = home
        self._call_ms = FIRST_CALL_MS
        self._open: deque[ConsumeRequest] = deque()
        self._is_ticking = False
        self._to_exit = workers
        self._all_exited = asyncio.Event()

    @abstractmethod
    def start(self) -> None:
        """Start the workers."""

    @abstractmethod
    def submit(self, request: ConsumeRequest) -> None:
        """Have it consumed."""

    @abstractmethod
    async def stop(self, wait_ms: int) -> bool:
        """Take nothing more; True when all calls ended within ``wait_ms``.

        A listener that stops its own consumer is not waited for.
        """

    def running(self) -> list[Running]:
        return [Running(*each) for each in self.slots if each is not None]

    def current_call(self) -> Running | None:
        """The call in which the running coroutine was asked for; None outside of listeners."""
        worker = _worker.get()
        call = self.slots[worker[1]] if worker is not None and worker[0] is self else None
        return None if call is None else Running(*call)

    @abstractmethod
    def _offer(self, request: ConsumeRequest) -> None:
        """Give it to one more worker."""

    def _workers_for(self, request: ConsumeRequest) -> int:
        """As many as its batches are worth, by the moving average of how long a call takes."""
        count = len(request.batches)
        self._open.append(request)
        if not self._is_ticking:
            self._tick_later()
        return min(count, self.workers, max(1, ceil(self._call_ms * count / SHARE_MS)))

    def _report(self, request: ConsumeRequest) -> None:
        """Results are there; on the client's loop."""
        results = request.results
        finished = [results.popleft() for _ in range(len(results))]
        if finished:
            latest = sum([each.spent_ms for each in finished]) / len(finished)
            self._call_ms += (latest - self._call_ms) * 0.2
            request.done(request, finished)

    def _exited(self) -> None:
        """A worker has ended, or is not to be waited for."""
        self._to_exit -= 1
        if self._to_exit <= 0:
            self._all_exited.set()

    async def _wait(self, wait_ms: int) -> bool:
        """True when all workers ended in time, but for the one that asks."""
        if self.current_call() is not None:
            self._exited()
        try:
            await asyncio.wait_for(self._all_exited.wait(), wait_ms / 1000)
        except TimeoutError:
            return False
        return True

    def _tick_later(self) -> None:
        self._is_ticking = True
        self.home.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """Give idle workers what waits, and collect what a worker in a long call did before."""
        self._is_ticking = False
        busy = self.running()
        for running in busy:
            self._report(running.request)
        waiting = [
            request for request in self._open if request.batches and not request.assigned.is_dropped
        ]
        self._open = deque(waiting)
        if self.is_stopping or not (waiting or busy):
            return
        for request, _ in zip(waiting, range(self.workers - len(busy)), strict=False):
            self._offer(request)
        self._tick_later()


class ThreadExecutor(ConsumeExecutor):
    """Plain functions, on threads of their own."""

    def __init__(self, home: LoopThread, invoker: ListenerInvoker, workers: int, name: str) -> None:
        super().__init__(home, invoker, workers)
        self._name = name
        self._requests: SimpleQueue[ConsumeRequest | None] = SimpleQueue()

    def start(self) -> None:
        for slot in range(self.workers):
            name = f"{self._name}-{slot}"
            threading.Thread(target=self._run, args=(slot,), name=name, daemon=True).start()

    def submit(self, request: ConsumeRequest) -> None:
        for _ in range(self._workers_for(request)):
            self._requests.put(request)

    def _offer(self, request: ConsumeRequest) -> None:
        self._requests.put(request)

    async def stop(self, wait_ms: int) -> bool:
        """Take nothing more; True when all calls ended within ``wait_ms``."""
        self.is_stopping = True
        for _ in range(self.workers):
            self._requests.put(None)
        return await self._wait(wait_ms)

    def _run(self, slot: int) -> None:
        _worker.set((self, slot))
        get = self._requests.get
        while (request := get()) is not None:
            try:
                self._consume(slot, request)
            except Exception:
                _log.exception("worker failed", extra={"worker": self._name})
            self.slots[slot] = None
        self.home.post(self._exited)

    def _consume(self, slot: int, request: ConsumeRequest) -> None:
        take, call, results = request.batches.popleft, self.invoker.call, request.results
        assigned, slots = request.assigned, self.slots
        now_s = reported_s = time.perf_counter()
        while not (self.is_stopping or assigned.is_dropped):
            try:
                batch = take()
            except IndexError:
                break
            slots[slot] = (request, batch, now_s)
            finished, now_s = call(request, batch, now_s)
            # Before its result is there: nobody may find a call running that has ended.
            slots[slot] = None
            results.append(finished)
            if (now_s - reported_s) * 1000 >= REPORT_MS:
                self.home.post(self._report, request)
                reported_s = now_s
        if results:
            self.home.post(self._report, request)


class CoroutineExecutor(ConsumeExecutor):
    """Coroutine functions, on an event loop of the user's or on the listeners' thread."""

    def __init__(
        self, home: LoopThread, invoker: ListenerInvoker, workers: int, relay: CallRelay
    ) -> None:
        super().__init__(home, invoker, workers)
        self._relay = relay
        self._requests: asyncio.Queue[ConsumeRequest | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._relay.post(self._start)

    def submit(self, request: ConsumeRequest) -> None:
        self._relay.post(self._put, request, self._workers_for(request))

    def _offer(self, request: ConsumeRequest) -> None:
        self._relay.post(self._put, request, 1)

    async def stop(self, wait_ms: int) -> bool:
        """Take nothing more; True when all calls ended in time, the others are cancelled."""
        self.is_stopping = True
        self._relay.post(self._put, None, self.workers)
        if await self._wait(wait_ms):
            return True
        self._relay.post(self._cancel)
        return False

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(slot)) for slot in range(self.workers)]

    def _put(self, request: ConsumeRequest | None, times: int) -> None:
        for _ in range(times):
            self._requests.put_nowait(request)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _run(self, slot: int) -> None:
        _worker.set((self, slot))
        try:
            while (request := await self._requests.get()) is not None:
                await self._consume(slot, request)
        finally:
            self.slots[slot] = None
            self.home.post(self._exited)

    async def _consume(self, slot: int, request: ConsumeRequest) -> None:
        assigned, batches, results = request.assigned, request.batches, request.results
        now_s = reported_s = time.perf_counter()
        while not (self.is_stopping or assigned.is_dropped):
            try:
                batch = batches.popleft()
            except IndexError:
                break
            self.slots[slot] = (request, batch, now_s)
            finished, now_s = await self.invoker.call_async(request, batch, now_s)
            self.slots[slot] = None
            results.append(finished)
            if (now_s - reported_s) * 1000 >= REPORT_MS:
                self.home.post(self._report, request)
                reported_s = now_s
        if results:
            self.home.post(self._report, request)


Listener: TypeAlias = Callable[[Any], Answer | Awaitable[Answer]]
"""Gets one message, or a list where ``consume_batch`` is above 1."""

_SUCCESS: Final = ResultKind.SUCCESS


class ListenerInvoker:
    """One call of a listener: argument, time, hooks, and what its answer means."""

    def __init__(
        self, listener: Listener, hooks: ConsumeHooks, *, takes_list: bool, timeout_ms: float
    ) -> None:
        self.listener = listener
        self.takes_list = takes_list
        self._hooks = hooks
        self._timeout_ms = timeout_ms

    def call(
        self, request: ConsumeRequest, batch: Batch, started_s: float
    ) -> tuple[Finished, float]:
        """Call it now; returns what became of it and when that was."""
        contexts = self._hooks.before(request.assigned.queue, batch) if self._hooks.all else None
        try:
            answer: Any = self.listener(batch if self.takes_list else batch[0])
            error: BaseException | None = None
        except BaseException as problem:
            answer, error = None, problem
        ended_s = time.perf_counter()
        finished = self._finished(batch, answer, error, (ended_s - started_s) * 1000)
        if contexts is not None:
            self._hooks.after(request.assigned.queue, finished, contexts)
        return finished, ended_s

    async def call_async(
        self, request: ConsumeRequest, batch: Batch, started_s: float
    ) -> tuple[Finished, float]:
        """The same for a coroutine function."""
        contexts = self._hooks.before(request.assigned.queue, batch) if self._hooks.all else None
        try:
            listener: Any = self.listener
            answer: Any = await listener(batch if self.takes_list else batch[0])
            error: BaseException | None = None
        except asyncio.CancelledError:
            raise
        except BaseException as problem:
            answer, error = None, problem
        ended_s = time.perf_counter()
        finished = self._finished(batch, answer, error, (ended_s - started_s) * 1000)
        if contexts is not None:
            self._hooks.after(request.assigned.queue, finished, contexts)
        return finished, ended_s

    def _finished(
        self, batch: Batch, answer: Any, error: BaseException | None, spent_ms: float
    ) -> Finished:
        # The usual call first: the checks below cost as much as a fast listener.
        if error is None and answer is None and spent_ms < self._timeout_ms:
            return Finished(batch, None, None, _SUCCESS, spent_ms)
        if error is None and not isinstance(answer, (ConsumeResult, Later, Suspend, type(None))):
            error = TypeError(
                f"the listener returned {answer!r}; return None or SUCCESS when the messages are"
                f" done, LATER when they are to come again"
            )
            answer = None
        if error is not None:
            kind = ResultKind.EXCEPTION
        elif spent_ms >= self._timeout_ms:
            kind = ResultKind.TIME_OUT
        elif answer in (None, ConsumeResult.SUCCESS, ConsumeResult.COMMIT):
            kind = ResultKind.SUCCESS
        else:
            kind = ResultKind.LATER
        return Finished(batch, answer, error, kind, spent_ms)


def is_coroutine_listener(listener: Listener) -> bool:
    """True for a coroutine function, or an object whose call is one."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        type(listener).__call__
    )


class ConsumeHook(Protocol):
    """Called before and after each call of the listener, on its thread or loop.

    A slow hook slows consumption and nothing else; one that raises is logged and changes nothing.
    """

    def before(self, group: str, queue: QueueRef, messages: Sequence[ReceivedMessage]) -> object:
        """Before the listener; what it returns comes back in ``after``."""
        ...

    def after(self, group: str, queue: QueueRef, finished: Finished, context: object) -> None:
        """After the listener, with what became of it."""
        ...


class ConsumeHooks:
    """The hooks of one consumer, in the order they were added."""

    def __init__(self, group: str, hooks: Sequence[ConsumeHook] = ()) -> None:
        self._group = group
        self.all = list(hooks)

    def add(self, hook: ConsumeHook) -> None:
        self.all.append(hook)

    def before(self, queue: QueueRef, messages: Sequence[ReceivedMessage]) -> list[object]:
        contexts: list[object] = []
        for hook in self.all:
            try:
                contexts.append(hook.before(self._group, queue, messages))
            except Exception:
                _log.exception("consume hook failed before", extra={"group": self._group})
                contexts.append(None)
        return contexts

    def after(self, queue: QueueRef, finished: Finished, contexts: list[object]) -> None:
        for hook, context in zip(self.all, contexts, strict=False):
            try:
                hook.after(self._group, queue, finished, context)
            except Exception:
                _log.exception("consume hook failed after", extra={"group": self._group})


_DIRECT_RESULTS: Final = {
    None: "CR_SUCCESS",
    ConsumeResult.SUCCESS: "CR_SUCCESS",
    ConsumeResult.LATER: "CR_LATER",
    ConsumeResult.SUSPEND: "CR_LATER",
    ConsumeResult.COMMIT: "CR_COMMIT",
    ConsumeResult.ROLLBACK: "CR_ROLLBACK",
}


def direct_result(
    finished: Finished, *, is_ordered: bool, is_auto_commit: bool = True
) -> dict[str, Any]:
    """What a call on an operator's order (request 309) came to, in RocketMQ's words.

    Nothing is settled, committed or sent back by such a call.
    """
    error, answer = finished.error, finished.answer
    remark = None
    if error is not None:
        result = "CR_THROW_EXCEPTION"
        remark = f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]
    elif isinstance(answer, (Later, Suspend)):
        result = "CR_LATER"
    else:
        result = _DIRECT_RESULTS[answer]
    return {
        "order": is_ordered,
        "autoCommit": is_auto_commit,
        "consumeResult": result,
        "remark": remark,
        "spentTimeMills": int(finished.spent_ms),  # RocketMQ's spelling
    }
