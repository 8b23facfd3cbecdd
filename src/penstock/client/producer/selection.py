"""Which queue a message goes to: in turn, by its ordering key, or as the caller says.

In turn: every topic has its own counter, which starts anywhere, so that many producers do not all
begin with the first queue. A try after a failed one goes to another broker if there is one; with a
fault table brokers that are slow are passed over. Ordered: the same key gives the same queue as
long as the number of queues stays, and the one that RocketMQ's own selector by hash gives.

Not here: the queues of a topic (``client/routes.py``), how often it is tried (``attempts.py``).
"""

from collections.abc import Callable, Sequence
from typing import Final

from penstock.client.errors import InvalidMessage
from penstock.client.message import Message
from penstock.client.producer.latency import FaultTable
from penstock.model.assignment import QueueRef
from penstock.model.record import tag_hash

Selector = Callable[[Sequence[QueueRef], Message], QueueRef]
"""Chooses one of the queues a topic can be written to; the same message must get the same one."""

TOPICS_MAX: Final = 65_536
"""Counters kept; the one made first goes first, and starts anew when it is needed again."""


class QueueTurns:
    """The counters of one producer."""

    __slots__ = ("_faults", "_random", "_turns")

    def __init__(self, random: Callable[[], int], faults: FaultTable | None = None) -> None:
        self._turns: dict[str, int] = {}
        self._random = random
        self._faults = faults

    def pick(
        self, topic: str, queues: Sequence[QueueRef], avoided: Sequence[str], now_ms: int
    ) -> QueueRef:
        """The next queue; ``avoided`` are the brokers of earlier tries, the last one last."""
        turn = self._turns.get(topic)
        if turn is None:
            if len(self._turns) >= TOPICS_MAX:
                del self._turns[next(iter(self._turns))]
            turn = self._random()
        self._turns[topic] = turn + 1
        count = len(queues)
        faults = self._faults
        if not avoided and faults is None:
            return queues[turn % count]
        in_turn = [queues[(turn + step) % count] for step in range(count)]
        if faults is not None:
            fast = [queue for queue in in_turn if faults.is_available(queue.broker, now_ms)]
            # Everybody is slow: the one that is free first, rather than nobody.
            in_turn = fast or _of_broker(in_turn, faults.least_bad({q.broker for q in in_turn}))
        for queue in in_turn:
            if queue.broker not in avoided:
                return queue
        # All were tried: not the last one again, if there is a choice.
        return next((queue for queue in in_turn if queue.broker != avoided[-1]), in_turn[0])


def queue_of_key(queues: Sequence[QueueRef], key: str) -> QueueRef:
    """The queue of an ordering key, as RocketMQ's selector by hash finds it."""
    return queues[abs(tag_hash(key.encode())) % len(queues)]


def selected(selector: Selector, queues: Sequence[QueueRef], message: Message) -> QueueRef:
    """The queue a caller's function chose; whatever goes wrong in it is ``InvalidMessage``."""
    try:
        chosen: object = selector(queues, message)
    except Exception as problem:
        raise InvalidMessage(
            f"the selector failed for a message to topic {message.topic!r}: {problem!r}"
        ) from problem
    if not isinstance(chosen, QueueRef) or chosen.topic != message.topic:
        raise InvalidMessage(
            f"the selector chose {chosen!r}, which is no queue of topic {message.topic!r}"
        )
    return chosen


def _of_broker(queues: list[QueueRef], broker: str | None) -> list[QueueRef]:
    return [queue for queue in queues if queue.broker == broker]
