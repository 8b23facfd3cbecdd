"""Who pops: one group's hold on one topic, on the very subscription that pull offsets move.

A popped message is in flight on the group's engine subscription, with a deadline. Its receipt is
the moment of the pop and the revive number; both are the *tag* of the in-flight entry, so a receipt
is alive exactly as long as the entry carries its tag: acknowledging, changing the invisible time,
a time-out and a moved offset end it.

The consumers are passive and belong to nobody's connection: a client that goes keeps its messages
invisible until their time is up. Orderly pops have a consumer of their own, because their messages
go back to their places, while others are revived in the retry topic.

Invariants: at most one receipt of a message is alive; a queue without a stored offset gets one
before the first pop reads from it.
Not here: requests (``pop.py``), time-outs (``revive.py``), who waits (``pop_wait.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.naming import RETRY_PREFIX, wire_name
from penstock.adapters.rocketmq.offset_book import NO_OFFSET, OffsetBook
from penstock.engine.subscription.consumer import Consumer, ConsumerRefusal
from penstock.engine.subscription.subscription import Subscription
from penstock.flow.demand import Unlimited
from penstock.model.errors import AlreadyExists
from penstock.model.ids import QueueId
from penstock.wire.rocketmq.pop_handle import REVIVE_ORDERLY, PopHandle, RetryFlag

if TYPE_CHECKING:
    from penstock.engine.subscription.consumer import Delivery
    from penstock.engine.topic import Queue, Topic

INIT_MAX: Final = 1
"""``initMode``: a new group begins at the newest message, not at the oldest."""

IN_MEMORY_BYTES_MAX: Final = 64 << 20
"""A queue up to this size is young: a new group that wants the newest begins at its first message.
RocketMQ asks whether message 0 is still in the page cache."""

REVIVE_QUEUES: Final = 8
"""Normal pops are numbered 0 to 7, in turn."""

_REVIVE_BITS: Final = 10
"""Room for 999 below the time of the pop."""


def tag_of(pop_ms: int, revive_qid: int) -> int:
    """What a receipt must say, as one number."""
    return pop_ms << _REVIVE_BITS | revive_qid


def pop_retry_topic(group: str, topic: str) -> str:
    """Where messages of a topic come back that a group popped and did not acknowledge."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def retry_flag(topic: str) -> int:
    """How answers and receipts mark a message's topic."""
    return int(RetryFlag.RETRY_V1 if topic.startswith(RETRY_PREFIX) else RetryFlag.NORMAL)


class PopReader:
    """One group on one topic."""

    __slots__ = (
        "_attempts",
        "_offsets",
        "_on_gone",
        "_started",
        "_starting",
        "flag",
        "group",
        "name",
        "orderly",
        "origin",
        "plain",
        "subscription",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        group: str,
        offsets: OffsetBook,
        on_gone: Callable[[PopReader], None],
    ) -> None:
        self.topic = topic
        self.name = wire_name(topic.name)
        """RocketMQ's spelling of the topic."""
        self.group = group
        self.flag = retry_flag(self.name)
        self.origin = ""
        """The topic whose retries these are, for a pop retry topic."""
        self.subscription: Subscription = offsets.opened(topic, group)
        self._offsets = offsets
        self._on_gone = on_gone
        # Queues whose offset is stored; and who had the last orderly pop of a queue.
        self._started: set[int] = set()
        self._starting: set[int] = set()
        self._attempts: dict[int, str] = {}
        self.plain = self._attach("pop")
        self.orderly = self._attach("pop-orderly")

    # Taking.

    def start(self, queue: Queue, init_mode: int) -> bool:
        """Choose where the group begins in a queue, if it has no offset there; stored at once.

        True until ``begun``: nothing may be given out before the choice is durable, or a crash
        would choose again, and perhaps a later place.
        """
        # Pops follow a reset at once; nobody has to be told of it later.
        self._offsets.take_reset(queue, self.group)
        if queue.queue_id in self._started:
            return queue.queue_id in self._starting
        is_new = self._offsets.committed(queue, self.group) == NO_OFFSET
        if is_new:
            self._offsets.commit(queue, self.group, self._first(queue, init_mode), "pop")
            self._starting.add(queue.queue_id)
        self._started.add(queue.queue_id)
        return is_new

    def begun(self, queues: Sequence[Queue]) -> None:
        """What was chosen for these is durable."""
        self._starting.difference_update(queue.queue_id for queue in queues)

    def _first(self, queue: Queue, init_mode: int) -> int:
        lowest, end = queue.index.min_offset, queue.visible_end(False)
        if init_mode != INIT_MAX or self.flag:
            return lowest
        if lowest <= 0 and queue.index.bytes_between(0, end) <= IN_MEMORY_BYTES_MAX:
            return 0
        return max(0, end - 1)

    def is_blocked(self, queue: Queue, attempt_id: str | None) -> bool:
        """Whether order forbids a pop now: something of the queue is out, with another attempt."""
        if not self.subscription.unacked(queue.queue_id):
            return False
        return not attempt_id or self._attempts.get(queue.queue_id) != attempt_id

    def begin_attempt(self, queue: Queue, attempt_id: str | None) -> None:
        """An orderly pop comes: what the same attempt got before goes back, uncounted."""
        queue_id = queue.queue_id
        if self.subscription.unacked(queue_id):
            entries = self.subscription.lane(queue_id).pending.entries
            self.subscription.requeue(queue_id, list(entries), count=False)
        if attempt_id:
            self._attempts[queue_id] = attempt_id
        else:
            self._attempts.pop(queue_id, None)

    def ready(self, queue: Queue) -> int:
        """Messages of a queue that wait to be popped."""
        return self.subscription.ready(queue.queue_id)

    def waiting(self, queue: Queue) -> int:
        """The same, also for a queue the group has no offset in yet: nothing is decided by it."""
        if self._offsets.committed(queue, self.group) == NO_OFFSET:
            return queue.visible_end(False) - queue.index.min_offset
        return self.ready(queue)

    def next_offset(self, queue: Queue) -> int:
        """What a pop would give first."""
        if self._offsets.committed(queue, self.group) == NO_OFFSET:
            return queue.index.min_offset
        lane = self.subscription.lane(queue.queue_id)
        again = lane.redelivery.again
        return min(again[0], lane.next_offset) if again else lane.next_offset

    def sign(self, deliveries: list[Delivery], pop_ms: int, revive_qid: int) -> None:
        """Make the receipts of what was just taken of one queue valid."""
        offsets = [delivery.offset for delivery in deliveries]
        self.subscription.tag(deliveries[0].queue_id, offsets, tag_of(pop_ms, revive_qid))

    # Receipts.

    def is_alive(self, queue: Queue, offset: int, handle: PopHandle) -> bool:
        """Whether the message is still out under this very receipt."""
        held = self.subscription.held(queue.queue_id, offset)
        return held is not None and held.tag == tag_of(handle.pop_time, handle.revive_qid)

    def popped_ms(self, queue_id: QueueId, offset: int) -> int:
        """When a message that is out was popped."""
        held = self.subscription.held(queue_id, offset)
        return 0 if held is None else held.tag >> _REVIVE_BITS

    def settle(self, queue: Queue, offsets: list[int]) -> int:
        """Done."""
        return self.subscription.settle(queue.queue_id, offsets)

    def extend(self, queue: Queue, offset: int, *, deadline_ms: int, tag: int) -> None:
        """Another time, another receipt."""
        queue_id = queue.queue_id
        held = self.subscription.held(queue_id, offset)
        assert held is not None, "the receipt was looked at before"
        held.tag = tag
        self.subscription.extend(queue_id, offset, deadline_ms)

    def split_late(self, queue_id: QueueId, offsets: list[int]) -> tuple[list[int], list[int]]:
        """Of entries whose time is up: those popped in order, and the others."""
        orderly: list[int] = []
        others: list[int] = []
        for offset in offsets:
            held = self.subscription.held(queue_id, offset)
            if held is not None and held.consumer_id == self.orderly.consumer_id:
                orderly.append(offset)
            else:
                others.append(offset)
        return orderly, others

    def still_late(self, queue_id: QueueId, offsets: list[int], now_ms: int) -> list[int]:
        """Of entries that were late: those nobody acknowledged or gave more time since."""
        if self.subscription.is_closed:
            return []
        found = [(offset, self.subscription.held(queue_id, offset)) for offset in offsets]
        return [offset for offset, held in found if held and 0 < held.deadline_ms <= now_ms]

    # What the engine calls: nothing is pushed.

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Passive consumers are never chosen."""

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Nor is there anybody to take turns with."""

    def cancelled(self, consumer: Consumer, cause: str) -> None:
        """The topic or the group's offsets were deleted."""
        self._on_gone(self)

    def _attach(self, name: str) -> Consumer:
        found = self.subscription.attach(self, Unlimited(), name=name, is_passive=True)
        if isinstance(found, ConsumerRefusal):
            raise AlreadyExists(found.text)
        return found


def revive_number(counter: int, *, is_orderly: bool) -> int:
    """The ``reviveQid`` of the n-th pop."""
    return REVIVE_ORDERLY if is_orderly else counter % REVIVE_QUEUES
