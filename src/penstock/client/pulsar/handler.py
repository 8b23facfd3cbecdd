"""What producers and consumers share: to get a connection, to lose it, to come back (B16-B27).

A producer or a consumer of one partition is a ``Handled`` and has a ``Handler``. The handler finds
the broker, gets the connection and awaits ``opened(connection)``, in which the handled one
registers itself with the connection and sends PRODUCER or SUBSCRIBE. When that returns it is READY.
From then on the connection calls ``received(frames)`` of the handled one for all with its id, and
``connection_lost`` when it broke, which is passed on to the handler:

    class Producer:                                    # on the client's thread, all of it
        def __init__(self, cluster, topic):
            self.handler = Handler(self, cluster, topic, f"producer of topic {topic}")
        async def start(self):
            await self.handler.open()                  # raises what the first attempt ended with
        async def opened(self, connection):            # each time, also after a reconnect
            connection.add_producer(self._id, self)
            request_id = cluster.pool.next_request_id()
            answer = await connection.request(command, request_id, what)
            ...                                        # resend what has no receipt
        def forget(self, connection):                  # the opposite of add_producer
            connection.remove_producer(self._id)
        def lost(self, why): ...                       # the connection is gone; a new one will come
        def failed(self, error): ...                   # there will be none: tell who waits
        def received(self, frames):                    # CLOSE_PRODUCER: handler.closed_by_broker
            ...
        def connection_lost(self, connection, why):
            self.handler.connection_lost(connection, why)
        async def close(self):
            connection = self.handler.begin_close()    # no reconnect from here on
            ... CLOSE_PRODUCER, when there is a connection; errors of it are of no interest
            self.handler.closed()

States: UNINITIALIZED, CONNECTING, READY, CLOSING, CLOSED, FAILED. The first attempts count: those
that can never succeed, or have not within ``operation_timeout_ms``, end in FAILED and ``open``
raises. Who was READY once is never given up (B18), but for what ``is_final`` says.

Invariants: one attempt is under way at a time (B17); an attempt that succeeds after CLOSING or
CLOSED is undone (B19, B25); ``open`` completes once although it may succeed several times (B27).
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Final, Protocol

from penstock.client.pulsar.connection import Connection, FrameOwner
from penstock.client.pulsar.errors import (
    ClientError,
    StateError,
    TimedOut,
    is_worth_another_try,
)
from penstock.client.pulsar.lookup import Cluster
from penstock.wire.pulsar.names import PulsarName

_log = logging.getLogger(__name__)


class HandlerState(Enum):
    """Of one producer, or of a consumer of one partition."""

    UNINITIALIZED = "not connected yet"
    CONNECTING = "connecting"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


_MAY_CONNECT: Final = frozenset(
    (HandlerState.UNINITIALIZED, HandlerState.CONNECTING, HandlerState.READY)
)
_MAY_BECOME_READY: Final = frozenset((HandlerState.UNINITIALIZED, HandlerState.CONNECTING))


class Handled(FrameOwner, Protocol):
    """A producer, or a consumer of one partition, as its handler sees it."""

    async def opened(self, connection: Connection) -> None:
        """Register with the connection and send PRODUCER or SUBSCRIBE; raises ``ClientError``."""
        ...

    def forget(self, connection: Connection) -> None:
        """Take the registration back."""
        ...

    def lost(self, why: str) -> None:
        """The connection is gone; another will come."""
        ...

    def failed(self, error: ClientError) -> None:
        """There is no connection, and none will be looked for."""
        ...

    def is_final(self, error: ClientError) -> bool:
        """Whether one that was READY must not try again after this."""
        ...


class Handler:
    """The connection of one producer or consumer, whichever it is at the moment."""

    def __init__(
        self,
        handled: Handled,
        cluster: Cluster,
        topic: PulsarName,
        what: str,
        *,
        mandatory_stop_ms: int = 0,
    ) -> None:
        self.what: Final = what
        """Its name in sentences."""
        self.state = HandlerState.UNINITIALIZED
        self.connection: Connection | None = None
        """Set while it is being opened, too; ``ready_connection`` is not."""
        self.epoch = -1
        """Which connection of its life this is, from 0 on."""
        self.waiting_since_ms = cluster.clock.monotonic_ms()
        self.last_error: Exception | None = None
        self._handled = handled
        self._cluster = cluster
        self._topic = topic
        self._backoff = cluster.backoff(mandatory_stop_ms)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._deadline_ms = self.waiting_since_ms + cluster.options["operation_timeout_ms"]
        self.has_deadline = True
        """False while it stands in line: a producer that wants to be the only one."""

    @property
    def ready_connection(self) -> Connection | None:
        """None while it is away."""
        return self.connection if self.state is HandlerState.READY else None

    @property
    def is_over(self) -> bool:
        return self.state not in _MAY_CONNECT

    def check_usable(self) -> None:
        """Raises ``StateError`` when it was closed or has failed."""
        if self.is_over:
            why = f" ({self.last_error})" if self.state is HandlerState.FAILED else ""
            raise StateError(f"{self.what} is {self.state.value}{why}; make a new one")

    async def open(self) -> None:
        """Connect for the first time; raises what it failed with."""
        self.grab()
        # Who no longer waits does not end the attempt; closing does.
        await asyncio.shield(self._first)

    def grab(self) -> None:
        """Get a connection, unless there is one, or one is being got, or none is wanted (B17)."""
        if self.connection is not None or self._task is not None or self.is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = self._loop.create_task(self._connect(), name=f"connect {self.what}")

    def connection_lost(self, connection: Connection, why: str) -> None:
        """The connection broke."""
        if self.connection is connection:
            self._away(why)

    def closed_by_broker(self) -> None:
        """CLOSE_PRODUCER or CLOSE_CONSUMER: come back, perhaps to another broker."""
        connection = self.connection
        # Also before it is READY: this may come in the same read as the answer.
        if connection is not None and not self.is_over:
            self._handled.forget(connection)
            self._away("the broker closed it")

    def stand_in_line(self, is_in_line: bool) -> None:
        """The broker lets it wait for others; afterwards its time for opening begins anew."""
        self.has_deadline = not is_in_line
        timeout_ms = self._cluster.options["operation_timeout_ms"]
        self._deadline_ms = self._cluster.clock.monotonic_ms() + timeout_ms

    def begin_close(self) -> Connection | None:
        """From here on it stays away; the connection it has, to say good-bye on."""
        connection = self.ready_connection
        if not self.is_over:
            self.state = HandlerState.CLOSING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._opening_ended()
        return connection

    def closed(self) -> None:
        """It said good-bye, or nobody was there to hear it."""
        if self.state is not HandlerState.FAILED:
            self.state = HandlerState.CLOSED
        if self._task is None:
            self._undo()
        elif self.connection is None or not self.has_deadline:
            # In line the answer may never come.
            self._task.cancel()
        # Else PRODUCER or SUBSCRIBE is under way, and what comes of it must be undone.

    def why(self) -> str:
        """What it waits for, while it is not READY."""
        seconds = (self._cluster.clock.monotonic_ms() - self.waiting_since_ms) / 1000
        if self.state is HandlerState.CONNECTING:
            error = "" if self.last_error is None else f": {self.last_error}"
            verb = "reconnecting" if self.epoch >= 0 else "connecting"
            return f"{verb} since {seconds:.1f} s{error}"
        return f"it is {self.state.value}"

    # ---- one attempt -----------------------------------------------------------------------------

    async def _connect(self) -> None:
        if self.state is HandlerState.READY:
            self.waiting_since_ms = self._cluster.clock.monotonic_ms()
        self.state = HandlerState.CONNECTING
        try:
            connection = await self._cluster.connect(self._topic)
            if self.is_over:
                return
            self.connection = connection
            await self._handled.opened(connection)
        except asyncio.CancelledError:
            self._undo()
            # Its client was closed while it asked; whoever opened it must not wait for ever.
            self._opening_ended()
            raise
        except Exception as problem:
            self._undo()
            self._task = None
            self._attempt_failed(problem)
            return
        finally:
            self._task = None
        self._attempt_succeeded(connection)

    def _attempt_succeeded(self, connection: Connection) -> None:
        if self.state not in _MAY_BECOME_READY:
            # It was closed meanwhile, and the broker knows one that nobody has.
            self.state = HandlerState.CLOSED
            self._undo()
            connection.close(f"{self.what} was closed while it was opened")
            return
        if self.connection is not connection or connection.is_closed:
            # Lost between the answer and this turn.
            self._undo()
            self._again_later(None)
            return
        self.state = HandlerState.READY
        self.epoch += 1
        self.last_error = None
        self._backoff.reset()
        if not self._first.done():
            self._first.set_result(None)
        else:
            _log.info("reconnected", extra={"what": self.what, "to": connection.address})

    def _attempt_failed(self, problem: Exception) -> None:
        self.last_error = problem
        if self.is_over:
            return
        if not isinstance(problem, ClientError):
            _log.error("connecting failed", extra={"what": self.what}, exc_info=problem)
            problem = ClientError(f"{self.what} cannot be opened: {problem!r}")
        if self._first.done():
            if self._handled.is_final(problem):
                self._give_up(problem)
            else:
                self._again_later(problem)
            return
        if not is_worth_another_try(problem):
            self._give_up(problem)
            return
        is_late = self._cluster.clock.monotonic_ms() >= self._deadline_ms
        if is_late and self.has_deadline:
            if not isinstance(problem, TimedOut):
                timeout_ms = self._cluster.options["operation_timeout_ms"]
                problem = TimedOut(self._cluster.url, timeout_ms, self.what, detail=str(problem))
            self._give_up(problem)
            return
        self._again_later(problem)

    def _give_up(self, problem: ClientError) -> None:
        self.state = HandlerState.FAILED
        self.last_error = problem
        if not self._first.done():
            self._first.set_exception(problem)
            # Whoever opened it may have gone away.
            self._first.exception()
        self._handled.failed(problem)

    def _again_later(self, problem: Exception | None) -> None:
        wait_ms = self._backoff.next_ms()
        if not self._first.done() and self.has_deadline:
            left_ms = self._deadline_ms - self._cluster.clock.monotonic_ms()
            wait_ms = max(1, min(wait_ms, left_ms))
        extra = {"what": self.what, "wait_ms": wait_ms, "why": str(problem or "connection lost")}
        _log.debug("connects again later", extra=extra)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_ms / 1000, self.grab)

    def _away(self, why: str) -> None:
        self.connection = None
        if self.is_over:
            return
        was_ready = self.state is HandlerState.READY
        if was_ready:
            self.waiting_since_ms = self._cluster.clock.monotonic_ms()
            self.state = HandlerState.CONNECTING
            self._handled.lost(why)
        # An attempt under way hears of it by itself.
        if self._task is None:
            self._again_later(None)

    def _opening_ended(self) -> None:
        if not self._first.done():
            self._first.set_exception(StateError(f"{self.what} was closed while it was opened"))
            # Whoever opened it may have gone away.
            self._first.exception()

    def _undo(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self._handled.forget(connection)
