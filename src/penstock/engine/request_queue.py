"""Requests that fail fast: run now, wait a little, or be refused (F5, F6, D24).

A protocol that answers "busy" rather than late gives its requests in here. While the log takes
what it gets and the turn has room, a request is run at once. Else it waits in its class, round
robin by key (topic), and leaves in one of three ways: run, refused because it waited too long, or
refused because the store is busy. A refused request was never run, so nothing of it is stored.

Not here: queues and ages (``flow/fast_fail.py``), the protocol's words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final, Protocol

from penstock.engine.commit import Commits
from penstock.engine.flow_context import FlowContext
from penstock.flow.fast_fail import REQUEST_CLASSES, Busy, FastFailQueues, RequestClassStatistics
from penstock.flow.reason import Culprit
from penstock.model.refusal import Refusal

STORING: Final = frozenset(("send", "end-transaction"))
"""Classes that write to the log: only they have to wait for it."""

LOG: Final = Culprit("log", "log")

EXTRA_WORK_MAX: Final = 250
"""Steps of work beyond the usual (words of selectors that were compiled) after which no further
request of the class is run in a turn: with the last one's some milliseconds."""


class Request(Protocol):
    """Something a peer asked for."""

    def run(self) -> None: ...

    def refuse(self, busy: Busy) -> None:
        """It is not served; the numbers are for the answer."""
        ...

    @property
    def publisher(self) -> Culprit:
        """Who asked, for the diagnosis."""
        ...


class RequestQueue:
    """Requests between decoding and the engine.

    It runs them in order within a class and topic, never later than their class allows. It is no
    long polling: a pull that waits for messages is held elsewhere (``pull.py``).
    """

    def __init__(self, chain: FlowContext, commits: Commits) -> None:
        self._chain = chain
        self._commits = commits
        self._queues: FastFailQueues[Request] = FastFailQueues(REQUEST_CLASSES)
        self._ran = 0
        self._running = ""
        """The class of the request that is run, or was the last one."""
        self._extra_work: Counter[str] = Counter()
        """By class, in this turn."""
        # (class, kind of refusal) -> how many: both sets are small and ours.
        self._refused_early: Counter[tuple[str, str]] = Counter()
        self.is_used = False
        """False while nothing waits: spares several looks per turn."""

    def submit(self, class_name: str, key: Hashable, request: Request) -> None:
        """Run a request now, let it wait, or refuse it because its class is full."""
        if not self._queues.count(class_name) and self._may_run(class_name):
            self._run(class_name, request)
            return
        self.is_used = True
        busy = self._queues.offer(class_name, key, request, self._chain.now_ms)
        if busy is not None:
            self._refuse(request, busy)
        self._chain.request_turn()

    def admit(self, class_name: str, count: int) -> bool:
        """True when so many requests may be run now, as a list: none of their class waits.

        They are counted as run; else each has to ``submit``.
        """
        if self._queues.count(class_name) or not self._may_run(class_name):
            return False
        self._ran += count
        return True

    def charge(self, steps: int) -> None:
        """The request that is run makes so much work; others of its class may have to wait."""
        self._extra_work[self._running] += steps

    def count_refused(
        self, class_name: str, refusal: Refusal, publisher: Culprit, count: int = 1
    ) -> None:
        """Requests were refused before they came here (``Engine.refuse_now``); only counted."""
        self._refused_early[class_name, refusal.kind.value] += count
        self._note(class_name, refusal, publisher, count)

    def _refuse(self, request: Request, busy: Busy) -> None:
        self._note(busy.request_class, busy, request.publisher, 1)
        request.refuse(busy)

    def _note(self, class_name: str, refusal: Refusal, publisher: Culprit, count: int) -> None:
        """For the diagnosis: what is stored waits for the log, everything else for its class."""
        culprit = LOG if class_name in STORING else _class_culprit(class_name)
        self._chain.troubles.note(
            refusal.kind.value,
            culprit,
            count,
            self._chain.now_ms,
            text=refusal.text,
            publisher=publisher,
        )

    def statistics(self) -> tuple[RequestClassStatistics, ...]:
        """Every class, for observers."""
        now_ms = self._chain.now_ms
        found = []
        for each in REQUEST_CLASSES:
            refused = {
                cause.value: count for cause, count in self._queues.refused(each.name).items()
            }
            for (class_name, kind), count in self._refused_early.items():
                if class_name == each.name:
                    refused[kind] = count
            found.append(
                RequestClassStatistics(
                    request_class=each.name,
                    waiting=self._queues.count(each.name),
                    age_ms=self._queues.age_ms(each.name, now_ms),
                    age_ms_max=each.age_ms_max,
                    capacity=each.capacity,
                    refused=refused,
                )
            )
        return tuple(found)

    def turn(self) -> None:
        """Refuse what waited too long; run what the log can take."""
        self._ran = 0
        if self.is_used:
            self._turn()
        if self._extra_work:
            # Last: what was run as it arrived counts in the turn after it.
            self._extra_work.clear()

    def _turn(self) -> None:
        now_ms = self._chain.now_ms
        refused = self._queues.sweep(now_ms)
        if self._commits.busy.is_busy(now_ms):
            for class_name in sorted(STORING):
                refused += self._queues.drain(class_name, now_ms)
        for request, busy in refused:
            self._refuse(request, busy)
        for request_class in REQUEST_CLASSES:
            while self._queues.count(request_class.name) and self._may_run(request_class.name):
                for request in self._queues.take(request_class.name, 1):
                    self._run(request_class.name, request)
        self.is_used = not self._queues.is_empty

    @property
    def queues(self) -> FastFailQueues[Request]:
        """Counts and ages, for observers."""
        return self._queues

    @property
    def can_move(self) -> bool:
        """True when something waits that could be run in the next turn."""
        return self.is_used and any(
            self._queues.count(each.name) and self._is_free(each.name) for each in REQUEST_CLASSES
        )

    def next_deadline_ms(self) -> int | None:
        """When a waiting request becomes too old, or the store counts as busy."""
        if not self.is_used:
            return None
        times = [self._queues.next_deadline_ms]
        busy_ms = self._commits.busy.next_deadline_ms()
        # It counts as busy after that moment, not at it; once it is, only the disk ends it.
        if busy_ms is not None and busy_ms + 1 > self._chain.now_ms:
            times.append(busy_ms + 1)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def _run(self, class_name: str, request: Request) -> None:
        self._ran += 1
        self._running = class_name
        request.run()

    def _may_run(self, class_name: str) -> bool:
        if self._extra_work and self._extra_work[class_name] >= EXTRA_WORK_MAX:
            return False
        return self._ran < self._chain.flow.turn_messages_max and self._is_free(class_name)

    def _is_free(self, class_name: str) -> bool:
        return class_name not in STORING or not self._commits.is_held


def _class_culprit(class_name: str) -> Culprit:
    return Culprit(f"{class_name} requests", f"requests/{class_name}")
