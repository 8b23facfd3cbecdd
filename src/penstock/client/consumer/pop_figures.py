"""What pop mode did and has, for ``consumer.statistics()``.

Not here: counting (``pop_settling.py``, ``pop_service.py``).
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.consumer.thresholds import HeldQueue
from penstock.model.assignment import QueueRef


class PopFigures(NamedTuple):
    """Pop mode, now."""

    unacked: Mapping[QueueRef, int]
    """Popped and not yet settled messages by place (queue -1: all queues of the broker)."""
    popped: int
    acked: int
    given_back: int
    buried: int
    too_late: int
    """Results that came after the invisible time, and were ignored."""
    lost: int
    """Settlements that did not reach the broker: these messages come again."""
    held: list[HeldQueue]
    """Places that are not popped because of the limit: which, since when."""
