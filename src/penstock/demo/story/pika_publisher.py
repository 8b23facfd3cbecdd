"""Orders sent by AMQP, with pika as anybody would use it: confirms, one connection, a window.

pika's connection belongs to the thread that runs its loop; orders are handed over to it. A publish
that the broker holds has no answer for so long, and the window fills: then the shop uses
another publisher. An ack is a confirm, a nack a refusal; when the connection breaks, what is open
is unknown.

pika is an extra (``penstock-broker[demo]``): look whether it is there first.
"""

import contextlib
import threading
from collections import deque
from typing import Any, Final

import pika
from pika.adapters.select_connection import SelectConnection

from penstock.demo.story import TOPIC
from penstock.demo.story.shop import OnFate, SendOutcome
from penstock.model.errors import PenstockError

WINDOW: Final = 500
"""Orders without an answer; what a publisher with confirms should have, too."""
OPEN_S_MAX: Final = 15.0
ANSWERS_S_MAX: Final = 25.0
"""Longer than the broker holds anything (``flow.hold_ms_max``)."""


class PikaPublisher:
    """Uses pika."""

    name = "amqp"
    title = "AMQP (pika)"

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self._lock = threading.Lock()
        self._open: dict[int, OnFate] = {}
        """Publish number -> whom to tell; bounded by the window."""
        self._waiting: deque[tuple[str, bytes, OnFate]] = deque()
        """On the way to the loop's thread."""
        self._is_over = False
        self._promised = 0
        self._number = 0
        self._channel: Any = None
        self._is_ready = threading.Event()
        self._is_idle = threading.Event()
        self._trouble = ""
        self._connection = SelectConnection(
            pika.ConnectionParameters(host.strip("[]"), int(port)),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._lost,
            on_close_callback=self._lost,
        )
        self._thread = threading.Thread(target=self._run, name="amqp publisher", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(OPEN_S_MAX) or self._trouble:
            raise PenstockError(f"the AMQP till does not open: {self._trouble or 'no answer'}")

    @property
    def has_room(self) -> bool:
        """True while its window is not full."""
        return self._promised < WINDOW

    def send(self, key: str, body: bytes, on_fate: OnFate) -> None:
        with self._lock:
            self._promised += 1
            is_over = self._is_over
            if not is_over:
                self._waiting.append((key, body, on_fate))
        if is_over:
            self._tell(on_fate, SendOutcome.UNKNOWN, self._trouble)
        else:
            # If the loop is over by now, ``_run`` has answered in its place.
            with contextlib.suppress(Exception):
                self._connection.ioloop.add_callback_threadsafe(self._publish)

    def close(self) -> None:
        """Wait for answers under way and leave."""
        if self._promised:
            self._is_idle.wait(ANSWERS_S_MAX)
        with contextlib.suppress(Exception):
            self._connection.ioloop.add_callback_threadsafe(self._connection.close)
        self._thread.join(OPEN_S_MAX)

    # In the loop's thread.

    def _run(self) -> None:
        self._connection.ioloop.start()
        # Nobody publishes any more; what is on the way is not forgotten.
        with self._lock:
            self._is_over = True
        while self._waiting:
            self._tell(self._waiting.popleft()[2], SendOutcome.UNKNOWN, self._trouble)
        self._connection.ioloop.close()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._lost)
        channel.confirm_delivery(
            ack_nack_callback=self._answered, callback=lambda _frame: self._is_ready.set()
        )

    def _publish(self) -> None:
        """The next order; called once for each."""
        key, body, on_fate = self._waiting.popleft()
        if self._channel is None or not self._channel.is_open:
            self._tell(on_fate, SendOutcome.UNKNOWN, self._trouble)
            return
        # In the book before it is sent: the answer cannot come first.
        self._number += 1
        self._open[self._number] = on_fate
        # The topic is the queue; its key is a header, as the default exchange has none (D16).
        properties = pika.BasicProperties(delivery_mode=2, type="new", headers={"key": key})
        self._channel.basic_publish("", TOPIC, body, properties)

    def _answered(self, frame: Any) -> None:
        method = frame.method
        is_ack = isinstance(method, pika.spec.Basic.Ack)
        tag = method.delivery_tag
        numbers = [each for each in self._open if each <= tag] if method.multiple else [tag]
        for number in numbers:
            fate, reason = (
                (SendOutcome.CONFIRMED, "") if is_ack else (SendOutcome.REFUSED, "basic.nack")
            )
            self._tell(self._open.pop(number), fate, reason)

    def _lost(self, _source: Any, reason: object) -> None:
        """Connection or channel is gone, by our wish or not."""
        self._trouble = str(reason)
        self._is_ready.set()
        for number in list(self._open):
            self._tell(self._open.pop(number), SendOutcome.UNKNOWN, self._trouble)
        if self._connection.is_closed:
            self._connection.ioloop.stop()

    def _tell(self, on_fate: OnFate, fate: SendOutcome, reason: str) -> None:
        on_fate(fate, reason)
        with self._lock:
            self._promised -= 1
            if not self._promised:
                self._is_idle.set()
            else:
                self._is_idle.clear()
