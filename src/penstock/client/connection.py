"""One connection to a broker or name server: frames out, answers matched by opaque, frames in.

A ``Connection`` exists before it is connected: requests are taken at once and written when the
socket is there, or fail together when dialling failed. What is asked for in one turn of the loop is
written at once. Deadlines are watched by one timer (``pending.py``).

Bounds: ``pending.REQUESTS_MAX`` requests under way, ``UNSENT_BYTES_MAX`` bytes not yet taken by
the socket; past them a request fails with ``WouldBlock``, before anything is sent.
Invariant: every ``done`` is called exactly once, never from inside ``send``.
Not here: which connection to use and when to dial (``network.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from penstock.client.errors import ClientError, TimedOut, Unreachable, WouldBlock
from penstock.client.pending import NEVER_MS, Done, PendingRequests
from penstock.model.clock import Clock
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.frames import RemotingFrames, decode_answer, encode

_log = logging.getLogger(__name__)

UNSENT_BYTES_MAX: Final = 128 * 1024 * 1024
"""Above what a producer lets be under way (100 MiB), so that its own limit is met first."""
WRITE_BUFFER_BYTES: Final = 1024 * 1024
"""What the transport may hold before frames are kept here."""
SILENT_MS_MAX: Final = 10_000
"""A connection on which a request timed out and nothing came for this long is taken for dead."""
LOOK_MS_MIN: Final = 5
"""Least time between two looks at the deadlines."""

Asked = Callable[["Connection", Command], None]


class Connection(asyncio.Protocol):
    """One connection, dialled or not yet."""

    def __init__(
        self, address: str, clock: Clock, asked: Asked, lost: Callable[[Connection, str], None]
    ) -> None:
        self.address: Final = address
        self.is_over = False
        self.pending: Final = PendingRequests()
        self._asked = asked
        self._lost = lost
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._frames = RemotingFrames()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_due = False
        self._is_held = True
        """No socket yet, or it takes no more for now."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self._heard_ms = clock.monotonic_ms()

    @property
    def is_connected(self) -> bool:
        """True between dialling and the end."""
        return self._transport is not None and not self.is_over

    @property
    def was_connected(self) -> bool:
        """True once dialling succeeded, also after the end."""
        return self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the operating system has not taken yet."""
        transport = self._transport
        return self._out_bytes + (0 if transport is None else transport.get_write_buffer_size())

    def send(self, opaque: int, frame: bytes, timeout_ms: int, done: Done) -> None:
        """Send a request; ``done`` gets the answer or the error, in a later turn."""
        pending = self.pending
        if self.is_over or pending.is_full or self._out_bytes > UNSENT_BYTES_MAX:
            self._loop.call_soon(done, self._refusal())
            return
        if pending.add(opaque, self._clock.monotonic_ms(), timeout_ms, done):
            self._watch()
        self.write(frame)

    def write(self, frame: bytes) -> None:
        """Send a frame that no answer is expected for."""
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._is_flush_due and not self._is_held:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    @property
    def can_write(self) -> bool:
        """False when a frame more would pass a bound."""
        return not self.is_over and self._out_bytes <= UNSENT_BYTES_MAX

    def answer(self, command: Command) -> None:
        """Send the response to a request of the peer."""
        if self.can_write:
            self.write(encode(command))

    def close(self, why: str) -> None:
        """Hang up (or stop dialling); whoever waits for an answer gets ``Unreachable``."""
        if self.is_over:
            return
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            # What was written goes out first: a last good-bye is not lost.
            if self._out and not self._is_held:
                self._transport.write(b"".join(self._out))
            self._transport.close()
        self._out.clear()
        self._out_bytes = 0
        error = Unreachable(self.address, why)
        for done in self.pending.drain():
            self._settle(done, error)
        self._lost(self, why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there: send what waited for it."""
        self._transport = cast("asyncio.WriteTransport", transport)
        if self.is_over:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._heard_ms = self._clock.monotonic_ms()
        self._is_held = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer hung up, or the network broke."""
        self.close(f"the connection was closed{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self._is_held = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_held = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Hand answers to those who wait, requests to the handler."""
        self._heard_ms = self._clock.monotonic_ms()
        self._frames.feed(data)
        take = self.pending.take
        try:
            for frame in self._frames.frames():
                command = decode_answer(frame)
                if command.flag & 1:
                    done = take(command.opaque)
                    if done is None:
                        continue
                    try:
                        done(command)
                    except Exception:
                        self._failed()
                else:
                    self._ask(command)
        except Malformed as problem:
            self.close(f"it does not speak RocketMQ's protocol: {problem}")

    def _flush(self) -> None:
        self._is_flush_due = False
        out = self._out
        if not out or self._transport is None or self.is_over:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        self._transport.write(data)

    def _watch(self) -> None:
        due_ms = self.pending.next_look_ms
        if due_ms >= self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        wait_ms = max(due_ms - self._clock.monotonic_ms(), LOOK_MS_MIN)
        self._timer = self._loop.call_later(wait_ms / 1000, self.look)

    def look(self) -> None:
        """End the requests whose time is up; the timer calls it."""
        self._timer, self._timer_ms = None, NEVER_MS
        now_ms = self._clock.monotonic_ms()
        over = self.pending.expire(now_ms)
        for timeout_ms, done in over:
            self._settle(done, TimedOut(self.address, timeout_ms))
        if over and now_ms - self._heard_ms >= SILENT_MS_MAX:
            self.close(f"nothing came for {now_ms - self._heard_ms} ms and a request timed out")
        elif len(self.pending) and not self.is_over:
            self._watch()

    def _settle(self, done: Done, end: Command | ClientError) -> None:
        try:
            done(end)
        except Exception:
            self._failed()

    def _failed(self) -> None:
        _log.exception("handling the end of a request failed", extra={"peer": self.address})

    def _ask(self, command: Command) -> None:
        try:
            self._asked(self, command)
        except Exception:
            _log.exception("handling a request failed", extra={"peer": self.address})

    def _refusal(self) -> ClientError:
        if self.is_over:
            return Unreachable(self.address, "the connection was closed")
        return WouldBlock(
            f"{len(self.pending)} requests and {self.unsent_bytes} bytes are on their way to"
            f" {self.address}, limits {self.pending.requests_max} and {UNSENT_BYTES_MAX};"
            f" wait for answers"
        )
