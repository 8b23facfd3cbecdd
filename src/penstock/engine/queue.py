"""A queue: one ordered lane of a topic over the log, and the last stage before it.

It owns the credit towards the log and the inbox of parcels that channels routed to it.

Invariants: offsets below ``durable_end`` survive a crash; ``durable_end <= index.next_offset``.
Not here: who reads (``subscription.py``), where entries are kept (``log/index.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.inbox import Inbox
from penstock.flow.credit import Credit, Stage
from penstock.log.index import QueueIndex
from penstock.model.ids import QueueId

if TYPE_CHECKING:
    from penstock.engine.topic import Topic


class Queue:
    """One lane of a topic."""

    __slots__ = (
        "durable_end",
        "inbox",
        "index",
        "is_deleted",
        "log_credit",
        "number",
        "queue_id",
        "stage",
        "target",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        number: int,
        index: QueueIndex,
        *,
        stage: Stage,
        log_credit: Credit,
    ) -> None:
        self.topic = topic
        self.number = number
        self.index = index
        self.target = (index,)
        """Itself as the targets of a record that goes nowhere else: one object for all of them."""
        self.queue_id = QueueId(index.queue_id)
        self.stage = stage
        self.log_credit = log_credit
        self.inbox = Inbox()
        self.durable_end: int = index.next_offset
        self.is_deleted = False

    def __repr__(self) -> str:
        return f"<Queue {self.name} {self.queue_id}>"

    @property
    def name(self) -> str:
        """What people and other stages call it."""
        return self.stage.name

    @property
    def incarnation(self) -> int:
        """Unlike its number, never used again when a topic of that name is made anew (D4)."""
        return self.index.incarnation

    def visible_end(self, sees_unsynced: bool) -> int:
        """First offset a reader may not have yet: appended, or durable (D7)."""
        return self.index.next_offset if sees_unsynced else self.durable_end
