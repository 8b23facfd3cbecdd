"""What listeners are given to do: batches of one queue, and who hears of the results.

Not here: who calls (``listening.py``), and how (``caller.py``).
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.results import Finished
from penstock.client.message import ReceivedMessage

Batch: TypeAlias = list[ReceivedMessage]
Done: TypeAlias = Callable[["Work", list[Finished]], None]


class Work:
    """Batches of one queue to be consumed, and who hears of the results, on the client's loop."""

    __slots__ = ("assigned", "batches", "done", "results")

    def __init__(self, assigned: AssignedQueue, batches: Sequence[Batch], done: Done) -> None:
        self.assigned = assigned
        self.batches: deque[Batch] = deque(batches)
        self.results: deque[Finished] = deque()
        """Ended calls nobody has heard of yet."""
        self.done = done


class Running(NamedTuple):
    """A call of a listener that has not ended."""

    work: Work
    batch: Batch
    since_s: float
    """``time.perf_counter``."""
