"""The event loops of the client: one thread for its own work, one for coroutine listeners.

Everything the client keeps lives on one background thread and its event loop, so nothing needs a
lock. Other threads get in by three doors: ``post`` (a call, cheap: many posts cost one wake-up),
``run`` (a coroutine, blocking) and ``on`` (a coroutine, awaitable from any event loop). ``Relay``
is the way back to an event loop of the user's: many results, one wake-up.

Threads are shared by everything in a process, are daemons, and end with it. After a fork the child
makes new ones; what was made before the fork is dead in the child, and says so when used.

Invariants: calls posted from one thread run in the order of posting; a call that raises is logged
and does not keep others from running.
Not here: what runs there (``instance.py``), worker threads for plain listeners
(``consumer/executor.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from penstock.client.failures import StateError

_log = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")

ITEMS_PER_TURN: Final = 10_000
"""Things taken, calls run, in one turn of the loop; sockets are looked at in between."""
TASKS_MAX: Final = 100_000
"""Tasks of one instance: a few for each queue, and what brokers ask."""


class Relay(Generic[T]):
    """Things handed to one event loop from any thread, many of them for one wake-up.

    ``take`` is called there with each. What ``source`` hands over in one turn of its own loop wakes
    the other loop once, at the end of the turn: waking it earlier would have both threads fight for
    the interpreter over every result.
    """

    __slots__ = ("__weakref__", "_is_woken", "_items", "_source", "_take", "loop")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[T], object],
        source: LoopThread | None = None,
    ) -> None:
        self.loop: Final = loop
        self._take = take
        self._source = source
        # Bounded by those who put: permits, places in a cache, threads that block.
        self._items: deque[T] = deque()
        self._is_woken = False

    def put(self, item: T) -> None:
        """``take(item)`` on the loop soon; dropped when the loop is closed."""
        self._items.append(item)
        if not self._is_woken:
            # Two threads may both get here: one turn too many, never one too few.
            self._is_woken = True
            source = self._source
            if source is not None and source.is_current:
                source.loop.call_soon(self._wake)
            else:
                self._wake()

    def _wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            self._is_woken = False
            self._items.clear()
            _log.debug("event loop is closed, results dropped")

    def _run(self) -> None:
        self._is_woken = False
        items, take = self._items, self._take
        for _ in range(min(len(items), ITEMS_PER_TURN)):
            item = items.popleft()
            try:
                take(item)
            except Exception:
                _log.exception("posted call failed")
        if items and not self._is_woken:
            self._is_woken = True
            self.loop.call_soon(self._run)


class CallRelay(Relay[tuple[Callable[..., object], tuple[Any, ...]]]):
    """The same for calls."""

    __slots__ = ()

    def __init__(self, loop: asyncio.AbstractEventLoop, source: LoopThread | None = None) -> None:
        super().__init__(loop, _call, source)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Run ``call(*args)`` on the loop soon; dropped when the loop is closed."""
        self.put((call, args))


def _call(posted: tuple[Callable[..., object], tuple[Any, ...]]) -> None:
    call, args = posted
    call(*args)


class LoopThread:
    """A daemon thread with an event loop; started when made."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.loop: Final = asyncio.new_event_loop()
        self._relay = CallRelay(self.loop)
        self._is_orphan = False
        """True in the child of a fork: the thread is not there."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.get_ident() == self._thread.ident and not self._is_orphan

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Run ``call(*args)`` on this thread soon; from any thread, cheap."""
        self.check_alive()
        self._relay.post(call, *args)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine here and wait for its result; from any other thread."""
        problem = None
        if self._is_orphan:
            problem = self._forked()
        elif self.is_current:
            problem = StateError(
                f"a blocking call on thread {self.name} would wait for itself; use the _async twin"
            )
        if problem is not None:
            coroutine.close()
            raise problem
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise StateError("the client was stopped while this call ran") from None
        except BaseException:
            # Time is up or the user pressed ctrl-c: nobody will take the result.
            future.cancel()
            raise

    def on(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run a coroutine here; await the result on whichever event loop is running."""
        if self._is_orphan:
            coroutine.close()
            raise self._forked()
        if self.is_current:
            return self.loop.create_task(coroutine)
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def orphan(self) -> None:
        """The process forked, and this is the child."""
        self._is_orphan = True

    @property
    def is_orphan(self) -> bool:
        """True in the child of a fork: what lives here is the parent's, and not to be touched."""
        return self._is_orphan

    def check_alive(self) -> None:
        """Raise ``StateError`` in the child of a fork."""
        if self._is_orphan:
            raise self._forked()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _forked(self) -> StateError:
        return StateError(
            f"this client was made before the process forked; make a new one in process"
            f" {os.getpid()}"
        )


class _Shared:
    """What is shared by a process, and made anew in the child of a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads: dict[str, LoopThread] = {}
        # By id, and weak: a relay holds its loop, and whoever uses a relay holds that.
        self.relays: WeakValueDictionary[int, CallRelay] = WeakValueDictionary()
        self.orphans: list[LoopThread] = []
        """Kept, or the garbage collector would close what the parent still uses."""

    def after_fork(self) -> None:
        """A thread that is not here may hold the old lock."""
        orphans = [*self.orphans, *self.threads.values()]
        for each in orphans:
            each.orphan()
        self.lock = threading.Lock()
        self.threads = {}
        self.relays = WeakValueDictionary()
        self.orphans = orphans


_shared: Final = _Shared()


def client_loop() -> LoopThread:
    """The thread of all client work in this process."""
    return _thread("penstock-client")


def listener_loop() -> LoopThread:
    """The thread of coroutine listeners of consumers that were started without an event loop."""
    return _thread("penstock-listeners")


def relay_to(loop: asyncio.AbstractEventLoop) -> CallRelay:
    """The relay to an event loop, one for all that hand results to it; keep it as long as used."""
    found = _shared.relays.get(id(loop))
    if found is None or found.loop is not loop:
        source = client_loop()
        with _shared.lock:
            found = _shared.relays.get(id(loop))
            if found is None or found.loop is not loop:
                found = _shared.relays[id(loop)] = CallRelay(loop, source)
    return found


def _thread(name: str) -> LoopThread:
    found = _shared.threads.get(name)
    if found is None:
        with _shared.lock:
            found = _shared.threads.get(name)
            if found is None:
                found = _shared.threads[name] = LoopThread(name)
    return found


os.register_at_fork(after_in_child=_shared.after_fork)


class Tasks:
    """Coroutines that run beside their owner, on its loop: none fails unseen, all end together.

    An event loop holds its tasks only weakly, and keeps an error to itself until somebody looks;
    here both are seen to. Timers are tasks that repeat.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside; an error is logged."""
        if self._is_closed or len(self._tasks) >= TASKS_MAX:
            coroutine.close()
            why = "the client was stopped" if self._is_closed else f"{TASKS_MAX} tasks run already"
            raise StateError(f"{name} cannot run: {why}")
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def every(
        self, name: str, first_ms: int, interval_ms: int, call: Callable[[], Awaitable[object]]
    ) -> None:
        """Await ``call()`` again and again; an error is logged, and the next time comes."""

        async def repeat() -> None:
            await asyncio.sleep(min(first_ms, interval_ms) / 1000)
            while True:
                try:
                    await call()
                except Exception:
                    _log.exception("timer failed", extra={"timer": name})
                await asyncio.sleep(interval_ms / 1000)

        self.spawn(repeat(), name)

    def close(self) -> list[asyncio.Task[Any]]:
        """Cancel all but the one that calls; those cancelled, to be awaited."""
        self._is_closed = True
        current = asyncio.current_task()
        ended = [task for task in self._tasks if task is not current]
        for task in ended:
            task.cancel()
        return ended

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("task failed", extra={"task": task.get_name()}, exc_info=task.exception())


def blocking(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """A method that runs the coroutine on the client's loop and waits for it.

        async def _topics(self) -> list[str]: ...
        topics = blocking(_topics)
        topics_async = awaitable(_topics)

    Both keep signature, documentation and types of the coroutine. What has a ``_thread`` lives
    on that one, and is dead with it in the child of a fork.
    """

    @wraps(call)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _home(self).run(call(self, *args, **kwargs))

    return run


def awaitable(
    call: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Awaitable[T]]:
    """A method whose result is awaited on whichever event loop is running."""

    @wraps(call)
    def start(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return _home(self).on(call(self, *args, **kwargs))

    return start


def _home(owner: object) -> LoopThread:
    thread = getattr(owner, "_thread", None)
    return thread if isinstance(thread, LoopThread) else client_loop()


class MachineClock:
    """Both kinds of time from the operating system; satisfies ``model.clock.Clock``."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
