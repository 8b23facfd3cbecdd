"""Actors of a scene that speak RocketMQ over a real socket, from threads of their own.

A sender sends at a steady pace whatever the broker answers, as an asynchronous producer does, and
keeps what it was told: stored, or busy with which words. Nothing is sent a second time.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from penstock.cli.remoting import Answer, RemotingClient
from penstock.wire.rocketmq.codes import ResponseCode

ANSWERS_SECONDS_MAX: Final = 6.0
"""How long a stopped sender waits for what is still under way."""


class SteadySender:
    """Sends so many messages a second and counts the answers."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], RemotingClient],
        topic: str,
        *,
        per_second: int,
        body_bytes: int,
    ) -> None:
        self.name = name
        self.sent = 0
        self.stored = 0
        self.busy: Counter[str] = Counter()
        """The word in brackets of a busy answer -> how often."""
        self.remarks: dict[str, str] = {}
        """One whole remark for each such word."""
        self.other: list[Answer] = []
        self.slowest_busy_ms = 0.0
        """The longest that a busy answer took from its send."""
        self._connect = connect
        self._topic = topic
        self._pause = 1 / per_second
        self._body = b"x" * body_bytes
        self._open: dict[int, float] = {}
        self._is_stopped = False
        self._last = (0, 0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def refused(self) -> int:
        """Busy answers of all kinds."""
        return sum(self.busy.values())

    @property
    def outstanding(self) -> int:
        """Sent and not answered yet."""
        return len(self._open)

    def stop(self) -> None:
        """Send nothing more and take the answers that are still to come; blocks."""
        self._is_stopped = True
        self._thread.join(ANSWERS_SECONDS_MAX + 1)

    def leave(self) -> None:
        """The same, without waiting."""
        self._is_stopped = True

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        stored, refused = self.stored, self.refused
        rate = (stored - self._last[0]) / seconds
        text = f"{self.name} {rate:6,.0f}/s stored, {refused - self._last[1]} busy"
        self._last = (stored, refused)
        return text

    def _run(self) -> None:
        client = self._connect()
        try:
            due = time.monotonic()
            while not self._is_stopped:
                opaque = client.start_send(self._topic, self._body)
                self._open[opaque] = time.monotonic()
                self.sent += 1
                self._hear(client)
                due += self._pause
                time.sleep(max(0.0, due - time.monotonic()))
            until = time.monotonic() + ANSWERS_SECONDS_MAX
            while self._open and time.monotonic() < until:
                self._hear(client)
                time.sleep(0.005)
        except ConnectionError:
            return  # the scene is over

    def _hear(self, client: RemotingClient) -> None:
        for opaque, answer in client.take_answers(list(self._open)).items():
            waited_ms = (time.monotonic() - self._open.pop(opaque)) * 1000
            if answer.is_ok:
                self.stored += 1
            elif answer.code == ResponseCode.SYSTEM_BUSY:
                word = answer.remark.partition("]")[0].lstrip("[")
                self.busy[word] += 1
                self.remarks.setdefault(word, answer.remark)
                self.slowest_busy_ms = max(self.slowest_busy_ms, waited_ms)
            else:
                self.other.append(answer)
