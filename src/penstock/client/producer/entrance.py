"""Where sends come in, on the caller's thread: checked, encoded, given a permit, handed over.

Synchronous sends need no permit: a thread that blocks has one message under way. All others take
one here, before anything is queued for the client's thread, so that queue is bounded, too.

Not here: what happens next (``sending.py``), how the end gets back (``handing_back.py``).
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.client.errors import InvalidMessage, StateError
from penstock.client.loop import relay_to
from penstock.client.message import Message, SendResult
from penstock.client.producer.batch import check_batch
from penstock.client.producer.checking import check_message
from penstock.client.producer.encoding import Encoded
from penstock.client.producer.handing_back import GRACE_S, Blocked, OnDone, settle_future
from penstock.client.producer.machinery import Machinery
from penstock.client.producer.selection import Selector
from penstock.client.producer.send import Done, Outcome, Send
from penstock.model.assignment import QueueRef


class Aim(NamedTuple):
    """Where a message goes, if its sender says so, and how long that may take."""

    queue: QueueRef | None = None
    selector: Selector | None = None
    timeout_ms: int | None = None
    is_half: bool = False
    is_oneway: bool = False


class Entrance:
    """The way into one running producer; from any thread."""

    def __init__(self, machinery: Machinery) -> None:
        self._machinery: Final = machinery
        self._thread: Final = machinery.thread
        self._begin: Final = machinery.sender.begin
        self._clock: Final = machinery.clock
        self._encode: Final = machinery.encoder.encode
        self._take_or_wait: Final = machinery.in_flight.take_or_wait
        self._bytes_max: Final = machinery.options["message_bytes_max"]
        self._last_relay: tuple[asyncio.AbstractEventLoop | None, Callable[..., None]] = (
            None,
            _unheard,
        )
        self._timeout_ms: Final = machinery.options["send_timeout_ms"]

    def encoded(self, message: Message) -> Encoded:
        """One message, checked."""
        check_message(message, self._bytes_max)
        return self._encode(message)

    def encoded_half(self, message: Message) -> Encoded:
        """The first part of a transaction."""
        check_message(message, self._bytes_max)
        if message.delay_level or message.delay_ms or message.deliver_at_ms:
            raise InvalidMessage("a message of a transaction cannot be delayed; the commit decides")
        return self._encode(message, is_half=True)

    def encoded_batch(self, messages: Sequence[Message]) -> Encoded:
        """Several messages as one."""
        for message in messages:
            check_message(message, self._bytes_max)
        check_batch(messages, self._bytes_max)
        return self._machinery.encoder.encode_batch(messages)

    def blocking(self, messages: Sequence[Message], encoded: Encoded, aim: Aim) -> SendResult:
        """Send and wait."""
        if self._thread.is_current:
            raise StateError("send() on the client's own thread would wait for itself; send_async")
        blocked = Blocked()
        send = self._made(messages, encoded, aim, blocked.settle)
        self._thread.post(self._begin, send)
        return blocked.result(send.timeout_ms)

    def future(
        self, messages: Sequence[Message], encoded: Encoded, aim: Aim
    ) -> "asyncio.Future[SendResult]":
        """Send; the future belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SendResult] = loop.create_future()
        # Nearly always the loop of the send before; a pair, so that threads never see half of it.
        known, post = self._last_relay
        if known is not loop:
            post = relay_to(loop).post
            self._last_relay = (loop, post)

        def done(outcome: Outcome) -> None:
            post(settle_future, future, outcome)

        send = self._made(messages, encoded, aim, done)
        send.watched = future.cancelled
        self._enter(send)
        return future

    def callback(self, message: Message, aim: Aim, on_done: OnDone) -> None:
        """Send; ``on_done`` runs on the thread for callbacks."""
        callbacks = self._machinery.callbacks
        callbacks.start()

        def done(outcome: Outcome) -> None:
            callbacks.put(send, on_done, outcome)

        send = self._made((message,), self.encoded(message), aim, done)
        send.keeps_permit = True
        self._enter_or_block(send)

    def oneway(self, message: Message, aim: Aim) -> None:
        """Send, and that is all."""
        send = self._made((message,), self.encoded(message), aim._replace(is_oneway=True), _unheard)
        self._enter_or_block(send)

    def _made(self, messages: Sequence[Message], encoded: Encoded, aim: Aim, done: Done) -> Send:
        timeout_ms = self._timeout_ms if aim.timeout_ms is None else aim.timeout_ms
        if timeout_ms <= 0:
            raise ValueError(f"timeout_ms is {timeout_ms}; at least 1 is needed")
        send = Send.of(messages, encoded, self._clock.monotonic_ms(), timeout_ms, done)
        send.is_half = aim.is_half
        send.is_oneway = aim.is_oneway
        send.selector = aim.selector
        if aim.queue is not None:
            if aim.queue.topic != encoded.topic or aim.selector is not None:
                raise InvalidMessage(
                    f"queue {aim.queue} does not fit topic {encoded.topic!r}"
                    if aim.selector is None
                    else "give a queue or a selector, not both"
                )
            send.pinned = aim.queue
        return send

    def _enter(self, send: Send) -> bool:
        """False: it waits for a permit."""
        if self._take_or_wait(send, send.encoded.size_bytes):
            send.has_permit = True
            self._thread.post(self._begin, send)
            return True
        self._thread.post(self._machinery.sender.watch)
        return False

    def _enter_or_block(self, send: Send) -> None:
        if self._machinery.in_flight.take(send.encoded.size_bytes):
            send.has_permit = True
            self._thread.post(self._begin, send)
            return
        send.entered = entered = threading.Event()
        if self._enter(send) or self._thread.is_current or self._machinery.callbacks.is_current:
            return
        entered.wait(send.timeout_ms / 1000 + GRACE_S)


def _unheard(*_: object) -> None:
    """Nobody asked; the producer's counts tell."""
