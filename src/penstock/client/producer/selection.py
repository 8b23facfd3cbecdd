"""Which queue a message goes to: in turn, by its ordering key, or as the caller says.

In turn: every topic has its own counter, which starts anywhere, so that many producers do not all
begin with the first queue. A try after a failed one goes to another broker if there is one; with
``LatencyFaultTolerance`` slow brokers are passed over. Ordered: the same key gives the same queue
as long as the number of queues stays, and the one that RocketMQ's own selector by hash gives.

Not here: the queues of a topic (``client/routes.py``), how often it is tried (``sender.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from penstock.client.errors import InvalidMessage
from penstock.client.message import Message
from penstock.model.assignment import QueueRef
from penstock.model.record import tag_hash

Selector = Callable[[Sequence[QueueRef], Message], QueueRef]
"""Chooses one of the queues a topic can be written to; the same message must get the same one."""

TOPICS_MAX: Final = 65_536
"""Counters kept; the one made first goes first, and starts anew when it is needed again."""

LATENCY_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15_000)
ISOLATION_MS: Final = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
"""A try that took at least the one above isolates its broker for the one below."""

FAILED_LATENCY_MS: Final = 10_000
"""What a try that failed counts as."""

BROKERS_MAX: Final = 1024
"""Names a name server can make us remember; the one that was heard of longest ago goes first."""


class RoundRobin:
    """Queues in turn, one counter per topic; of one producer."""

    __slots__ = ("_faults", "_random", "_turns")

    def __init__(
        self, random: Callable[[], int], faults: LatencyFaultTolerance | None = None
    ) -> None:
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


def call_selector(selector: Selector, queues: Sequence[QueueRef], message: Message) -> QueueRef:
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


class LatencyFaultTolerance:
    """Slow and failing brokers are left alone for a while (part of F16).

    Each answered try tells how long a broker took; ``ISOLATION_MS`` says for how long it is then
    avoided. A failed try counts as ten seconds. Avoiding is a preference: when every broker is
    isolated, the one that is free first is taken, so a send is never refused because of this table.
    """

    __slots__ = ("_until_ms",)

    def __init__(self) -> None:
        # Fast brokers are not in it: most of the time it is empty.
        self._until_ms: dict[str, int] = {}

    def answered(self, broker: str, latency_ms: int, now_ms: int) -> None:
        isolated_ms = isolation_ms(latency_ms)
        if isolated_ms:
            self._isolate(broker, now_ms + isolated_ms)
        elif self._until_ms:
            self._until_ms.pop(broker, None)

    def failed(self, broker: str, now_ms: int) -> None:
        """A try did not come back, or came back with an error that another broker may not have."""
        self._isolate(broker, now_ms + isolation_ms(FAILED_LATENCY_MS))

    def is_available(self, broker: str, now_ms: int) -> bool:
        return self._until_ms.get(broker, now_ms) <= now_ms

    def least_bad(self, brokers: Iterable[str]) -> str | None:
        """The broker that is free first; None without any."""
        return min(brokers, key=lambda broker: self._until_ms.get(broker, 0), default=None)

    def isolated(self, now_ms: int) -> dict[str, int]:
        """For the statistics: broker -> milliseconds for which it is still avoided."""
        return {
            broker: until_ms - now_ms
            for broker, until_ms in self._until_ms.items()
            if until_ms > now_ms
        }

    def _isolate(self, broker: str, until_ms: int) -> None:
        self._until_ms.pop(broker, None)
        if len(self._until_ms) >= BROKERS_MAX:
            del self._until_ms[next(iter(self._until_ms))]
        self._until_ms[broker] = until_ms


def isolation_ms(latency_ms: int) -> int:
    """For how long a broker is avoided that took so long."""
    for least_ms, isolated_ms in zip(reversed(LATENCY_MS), reversed(ISOLATION_MS), strict=True):
        if latency_ms >= least_ms:
            return isolated_ms
    return 0
