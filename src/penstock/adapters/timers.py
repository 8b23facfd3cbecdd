"""What has to happen at a time although nobody asks: member time-outs, check-backs, revivals.

A task says when it wants to be called and is called then, or a little later. Whoever brings a
deadline nearer calls ``reschedule``; a task that forgets it is still found by the next look, which
the server takes every second at the latest (``server/protocols.py``).

Not here: the clock and the loop.
"""

from collections.abc import Callable
from typing import Protocol


class Task(Protocol):
    """Something with deadlines."""

    def next_deadline_ms(self) -> int | None:
        """Monotonic time of its next deadline; None = none."""
        ...

    def due(self, now_ms: int) -> None:
        """Its deadline has passed (or not: it looks for itself)."""
        ...


class Timers:
    """The tasks of one protocol's shared state."""

    __slots__ = ("_tasks", "on_reschedule")

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self.on_reschedule: Callable[[], None] = lambda: None
        """Set by whoever drives the timers."""

    def add(self, task: Task) -> None:
        self._tasks.append(task)
        self.on_reschedule()

    def reschedule(self) -> None:
        self.on_reschedule()

    def next_deadline_ms(self) -> int | None:
        """The nearest deadline of all."""
        times = [task.next_deadline_ms() for task in self._tasks]
        return min([at_ms for at_ms in times if at_ms is not None], default=None)

    def due(self, now_ms: int) -> None:
        """Call every task whose deadline has passed."""
        for task in self._tasks:
            at_ms = task.next_deadline_ms()
            if at_ms is not None and at_ms <= now_ms:
                task.due(now_ms)
