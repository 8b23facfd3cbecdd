"""Where sends come in, on the caller's thread: checked, encoded, given a permit, handed over.

Synchronous sends need no permit: a thread that blocks has one message under way. All others take
one here, before anything is queued for the client's thread, so that queue is bounded, too.

Not here: what happens next (``sending.py``), how the end gets back (``handing_back.py``).
"""

import asyncio
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.client.errors import InvalidMessage, StateError
from penstock.client.loop import Relay
from penstock.client.message import Message, SendResult
from penstock.client.producer.batch import check_batch
from penstock.client.producer.checking import check_message
from penstock.client.producer.encoding import Encoded
from penstock.client.producer.handing_back import (
    GRACE_S,
    AwaitedSend,
    BlockedSend,
    CalledSend,
    OnDone,
    settle,
)
from penstock.client.producer.machinery import Machinery
from penstock.client.producer.selection import Selector
from penstock.client.producer.send import Send
from penstock.model.assignment import QueueRef


class Aim(NamedTuple):
    """Where a message goes, if its sender says so, and how long that may take."""

    queue: QueueRef | None = None
    selector: Selector | None = None
    timeout_ms: int | None = None
    is_half: bool = False


ANYWHERE: Final = Aim()

S = TypeVar("S", bound=Send)


class Entrance:
    """The way into one running producer; from any thread."""

    def __init__(self, machinery: Machinery) -> None:
        self._machinery: Final = machinery
        self._thread: Final = machinery.thread
        self._begin: Final = Relay(machinery.thread.loop, machinery.sender.begin).put
        self._now_ms: Final = machinery.clock.monotonic_ms
        self._encode: Final = machinery.encoder.encode
        self._take_or_wait: Final = machinery.in_flight.take_or_wait
        self._bytes_max: Final = machinery.options["message_bytes_max"]
        self._timeout_ms: Final = machinery.options["send_timeout_ms"]
        self._way_home: Relay[AwaitedSend] | None = None
        """To the event loop of the last send, which nearly always is that of the next one."""

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

    def blocking(
        self, message: Message, encoded: Encoded, aim: Aim, batch: Sequence[Message] = ()
    ) -> SendResult:
        """Send and wait; ``batch`` is all that ``encoded`` holds, when that is more than one."""
        if self._thread.is_current:
            raise StateError("send() on the client's own thread would wait for itself; send_async")
        started_ms, timeout_ms = self._times(aim)
        lock = threading.Lock()
        lock.acquire()
        send = BlockedSend(
            message, encoded, started_ms, timeout_ms, started_ms + timeout_ms, batch=batch,
            lock=lock,
        )  # fmt: skip
        self._begin(_aimed(send, aim))
        return send.result()

    def future(
        self, message: Message, encoded: Encoded, aim: Aim, batch: Sequence[Message] = ()
    ) -> "asyncio.Future[SendResult]":
        """Send; the future belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SendResult] = loop.create_future()
        relay = self._way_home
        if relay is None or relay.loop is not loop:
            self._way_home = relay = Relay(loop, settle, self._thread)
        started_ms, timeout_ms = self._times(aim)
        send = AwaitedSend(
            message, encoded, started_ms, timeout_ms, started_ms + timeout_ms, batch=batch,
            future=future, relay=relay,
        )  # fmt: skip
        self._enter(send if aim is ANYWHERE else _aimed(send, aim))
        return future

    def callback(self, message: Message, aim: Aim, on_done: OnDone) -> None:
        """Send; ``on_done`` runs on the thread for callbacks."""
        encoded = self.encoded(message)
        callbacks = self._machinery.callbacks
        callbacks.start()
        started_ms, timeout_ms = self._times(aim)
        send = CalledSend(
            message, encoded, started_ms, timeout_ms, started_ms + timeout_ms, keeps_permit=True,
            on_done=on_done, thread=callbacks,
        )  # fmt: skip
        self._enter_or_block(_aimed(send, aim))

    def oneway(self, message: Message, aim: Aim) -> None:
        """Send, and that is all."""
        encoded = self.encoded(message)
        started_ms, timeout_ms = self._times(aim)
        send = Send(
            message, encoded, started_ms, timeout_ms, started_ms + timeout_ms, is_oneway=True
        )
        self._enter_or_block(_aimed(send, aim))

    def _times(self, aim: Aim) -> tuple[int, int]:
        """(now, time-out)."""
        self._thread.check_alive()
        timeout_ms = self._timeout_ms if aim.timeout_ms is None else aim.timeout_ms
        if timeout_ms <= 0:
            raise ValueError(f"timeout_ms is {timeout_ms}; at least 1 is needed")
        return self._now_ms(), timeout_ms

    def _enter(self, send: Send) -> bool:
        """False: it waits for a permit."""
        if self._take_or_wait(send, send.encoded.size_bytes):
            send.has_permit = True
            self._begin(send)
            return True
        self._thread.post(self._machinery.sender.watch)
        return False

    def _enter_or_block(self, send: Send) -> None:
        if self._machinery.in_flight.take(send.encoded.size_bytes):
            send.has_permit = True
            self._begin(send)
            return
        send.entered = entered = threading.Event()
        if self._enter(send) or self._thread.is_current or self._machinery.callbacks.is_current:
            return
        entered.wait(send.timeout_ms / 1000 + GRACE_S)


def _aimed(send: S, aim: Aim) -> S:
    """The same send, with all that its sender said."""
    queue = aim.queue
    if queue is not None:
        if aim.selector is not None:
            raise InvalidMessage("give a queue or a selector, not both")
        if queue.topic != send.topic:
            raise InvalidMessage(f"queue {queue} does not fit topic {send.topic!r}")
    send.pinned = queue
    send.selector = aim.selector
    send.is_half = aim.is_half
    return send
