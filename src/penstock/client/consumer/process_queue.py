"""The cache of one assigned queue: what was pulled and is not yet settled.

Messages come in pull order (offsets grow) and leave in any order. The offset to commit is the
lowest one that is not settled, or one behind the last pulled when all are: so a crash may repeat
messages, and never loses one.

An ordered service works from the front instead: ``take`` moves messages to the taken ones,
``commit_taken`` settles them, ``put_back`` returns them to the front.

Invariants: ``count`` and ``size_bytes`` are those of waiting and taken messages together; taken
offsets are below waiting ones; ``commit_offset`` never passes an unsettled message and never goes
back. Everything here runs on the client's loop: no locks.

Not here: limits (``penstock.flow.thresholds``), where offsets are kept (``offsets/``).
"""

from collections import deque
from collections.abc import Iterable, Sequence

from penstock.client.message import ReceivedMessage

NOTHING_PULLED = -1


class ProcessQueue:
    """The pulled and unsettled messages of one queue."""

    __slots__ = ("_order", "_taken", "_waiting", "highest_pulled", "size_bytes")

    def __init__(self) -> None:
        self._waiting: dict[int, ReceivedMessage] = {}
        # Offsets in pull order; those settled since are skipped when they come to the front. A
        # dict alone would walk over its holes at each look at its first key.
        self._order: deque[int] = deque()
        self._taken: dict[int, ReceivedMessage] = {}
        self.size_bytes = 0
        self.highest_pulled = NOTHING_PULLED

    def __contains__(self, offset: int) -> bool:
        return offset in self._waiting or offset in self._taken

    @property
    def count(self) -> int:
        """Unsettled messages."""
        return len(self._waiting) + len(self._taken)

    @property
    def taken_count(self) -> int:
        """Messages an ordered service has taken and not committed."""
        return len(self._taken)

    def taken_offsets(self) -> list[int]:
        """Those of the messages an ordered service has taken and not committed."""
        return list(self._taken)

    @property
    def lowest(self) -> int | None:
        """The lowest unsettled offset; None when there is none."""
        if self._taken:
            return next(iter(self._taken))
        order, waiting = self._order, self._waiting
        while order:
            if order[0] in waiting:
                return order[0]
            order.popleft()
        return None

    @property
    def span(self) -> int:
        """Last minus first unsettled offset, as RocketMQ counts it."""
        lowest = self.lowest
        return 0 if lowest is None else self._highest_unsettled() - lowest

    @property
    def commit_offset(self) -> int:
        """What may be committed now: where a new owner has to begin; -1 before the first pull."""
        lowest = self.lowest
        if lowest is not None:
            return lowest
        return self.highest_pulled + 1 if self.highest_pulled >= 0 else NOTHING_PULLED

    def put(self, messages: Sequence[ReceivedMessage]) -> None:
        """Pulled: they wait; offsets continue those pulled before."""
        if not messages:
            return
        offsets = [message.stored.queue_offset for message in messages]
        self._waiting.update(zip(offsets, messages, strict=True))
        self._order.extend(offsets)
        self.size_bytes += sum([len(message.stored.body) for message in messages])
        self.highest_pulled = max(self.highest_pulled, offsets[-1])

    def reached(self, next_offset: int) -> None:
        """Pulls went on to here: what lies before and was not put is not wanted (filtered)."""
        self.highest_pulled = max(self.highest_pulled, next_offset - 1)

    def settle(self, messages: Iterable[ReceivedMessage]) -> int:
        """Done (or given back to the broker): forget them. Returns how many were still here."""
        pop = self._waiting.pop
        settled = 0
        for message in messages:
            stored = message.stored
            if pop(stored.queue_offset, None) is not None:
                self.size_bytes -= len(stored.body)
                settled += 1
        return settled

    def unsettled(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those of ``messages`` that are still to be settled here."""
        waiting = self._waiting
        return [message for message in messages if waiting.get(message.offset) is message]

    def waiting(self) -> list[ReceivedMessage]:
        """The messages not taken, in no promised order."""
        return list(self._waiting.values())

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """Ordered: the next messages from the front; they stay unsettled until committed."""
        order, waiting = self._order, self._waiting
        taken: list[ReceivedMessage] = []
        while order and len(taken) < count_max:
            message = waiting.pop(order.popleft(), None)
            if message is not None:
                taken.append(message)
        self._taken.update((message.offset, message) for message in taken)
        return taken

    def put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Ordered: these taken messages (the last ones taken) come again, from the front."""
        for message in reversed(messages):
            if self._taken.pop(message.offset, None) is not None:
                self._waiting[message.offset] = message
                self._order.appendleft(message.offset)

    def roll_back(self) -> None:
        """Ordered: every taken message comes again."""
        self.put_back(list(self._taken.values()))

    def commit_taken(self) -> int:
        """Ordered: the taken messages are done; returns what may be committed now."""
        self.size_bytes -= sum([message.stored_bytes for message in self._taken.values()])
        self._taken.clear()
        return self.commit_offset

    def clear(self) -> None:
        """The queue is not ours any more: forget all messages."""
        self._waiting.clear()
        self._taken.clear()
        self._order.clear()
        self.size_bytes = 0
        # Nobody knows what became of them: nothing may be committed on the strength of this.
        self.highest_pulled = NOTHING_PULLED

    def _highest_unsettled(self) -> int:
        order, waiting = self._order, self._waiting
        while order and order[-1] not in waiting:
            order.pop()
        return order[-1] if order else next(reversed(self._taken))
