"""What a lite pull consumer has pulled and not yet handed out, and how far its user has come.

The background pulls put messages in; ``take`` hands them out, one queue after the other, so that no
queue waits behind a longer one. Each queue has three marks:

    settled <= position <= next_offset
    settled       everything before it was handed out by an *earlier* poll: done, by the user's own
                  asking for more; this is what an automatic commit may store
    position      the next message that ``take`` hands out
    next_offset   where the next pull begins

``seek`` moves all three and empties the queue's cache; a pull that was under way then belongs to an
older ``epoch`` and is not put in. Messages the broker's filter left out lie between ``position``
and the next cached one: they are nobody's, so ``position`` passes them.

Invariants: within one epoch messages leave in offset order, each once; ``settled`` and ``position``
only grow; messages of a paused queue stay.
Not here: pulling (``lite_pulling.py``), limits (``flow/thresholds.py``), where offsets are kept
(``offsets/``).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.process_queue import ProcessQueue
from penstock.client.message import ReceivedMessage
from penstock.flow.thresholds import Cached
from penstock.model.assignment import QueueRef


class LiteQueue(AssignedQueue):
    """One queue of a lite pull consumer."""

    __slots__ = ("_is_ready", "epoch", "max_offset", "min_offset", "settled")

    def __init__(self, queue: QueueRef, offset: int, now_ms: int) -> None:
        super().__init__(queue, offset, now_ms)
        self.epoch = 0
        """Grows with each seek."""
        self.settled = offset
        self.min_offset = -1
        self.max_offset = -1
        """As the last answer said; -1 before the first one."""
        self._is_ready = False

    @property
    def position(self) -> int:
        """The offset of the next message to hand out, or behind what was passed over."""
        lowest = self.process_queue.lowest
        return self.next_offset if lowest is None else lowest

    @property
    def cached(self) -> Cached:
        """What the limits look at."""
        process_queue = self.process_queue
        return Cached(process_queue.count, process_queue.size_bytes, process_queue.span)

    @property
    def lag(self) -> int | None:
        """Messages the broker has and the user has not; None before the first answer."""
        return None if self.max_offset < 0 else max(0, self.max_offset - self.position)


class LiteCache:
    """The queues of one lite pull consumer."""

    def __init__(self) -> None:
        self.queues: dict[QueueRef, LiteQueue] = {}
        self.count = 0
        """Cached messages of all queues."""
        self._ready: deque[LiteQueue] = deque()

    @property
    def has_messages(self) -> bool:
        """True when ``take`` would find something."""
        return bool(self._ready)

    def add(self, queue: LiteQueue) -> None:
        """A queue is ours."""
        self.queues[queue.queue] = queue

    def drop(self, queue: QueueRef) -> LiteQueue | None:
        """A queue is not ours any more; what is cached of it is forgotten."""
        dropped = self.queues.pop(queue, None)
        if dropped is not None:
            dropped.drop()
            self._empty(dropped)
        return dropped

    def put(
        self, queue: LiteQueue, epoch: int, messages: Sequence[ReceivedMessage], next_offset: int
    ) -> bool:
        """An answer came; False when it is of no use any more (dropped, or a seek since)."""
        if queue.is_dropped or queue.epoch != epoch:
            return False
        queue.process_queue.put(messages)
        queue.next_offset = next_offset
        self.count += len(messages)
        self._offer(queue)
        return True

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """The next messages of one queue; none when nothing is ready."""
        if not self._ready:
            return []
        queue = self._ready.popleft()
        queue._is_ready = False
        messages = queue.process_queue.take(count_max)
        queue.process_queue.commit_taken()
        self.count -= len(messages)
        self._offer(queue)
        return messages

    def settle(self) -> None:
        """The user asks for more: what was handed out so far is done."""
        for queue in self.queues.values():
            queue.settled = queue.position

    def seek(self, queue: QueueRef, offset: int) -> LiteQueue:
        """Go on there; KeyError when the queue is not ours."""
        sought = self.queues[queue]
        self._empty(sought)
        sought.epoch += 1
        sought.next_offset = sought.settled = offset
        return sought

    def pause(self, queues: Iterable[QueueRef]) -> None:
        """Neither pull nor hand out; KeyError when one is not ours, then none is paused."""
        for each in [self.queues[queue] for queue in queues]:
            each.is_paused = True
            if each._is_ready:
                self._ready.remove(each)
                each._is_ready = False

    def resume(self, queues: Iterable[QueueRef]) -> None:
        """Go on where it was paused; KeyError when one is not ours, then none is resumed."""
        for each in [self.queues[queue] for queue in queues]:
            each.is_paused = False
            self._offer(each)

    def progress(
        self, *, is_user: bool, held: Mapping[QueueRef, int] | None = None
    ) -> dict[QueueRef, int]:
        """How far each queue may be committed.

        ``is_user``: the user says that all handed out is done; else only what was settled.
        ``held``: offsets from which on messages were handed to an iterator, but not to the user.
        """
        found: dict[QueueRef, int] = {}
        for ref, queue in self.queues.items():
            offset = queue.position if is_user else queue.settled
            found[ref] = min(offset, held[ref]) if held and ref in held else offset
        return found

    def _offer(self, queue: LiteQueue) -> None:
        if not queue._is_ready and not queue.is_paused and queue.process_queue.count:
            queue._is_ready = True
            self._ready.append(queue)

    def _empty(self, queue: LiteQueue) -> None:
        self.count -= queue.process_queue.count
        # A new one: the highest offset ever pulled means nothing after a seek back.
        queue.process_queue = ProcessQueue()
        if queue._is_ready:
            self._ready.remove(queue)
            queue._is_ready = False
