"""Sharing by the broker's word: which queues of a topic to pull, which to pop.

The queues to pull are the share that rebalancing gets; the places to pop from go to ``PopPlaces``
on the way. A broker that cannot say (no answer, or "keep") leaves both as they are. One that does
not know the question (before 5.0) is not asked again: the members divide the queues themselves.

Not here: the difference to what there is (``pop_assignment.py``), the pops (``pop.py``).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from penstock.client.consumer.pop_assignment import assigned
from penstock.client.consumer.sharing import QueuesOf, Share, Sharing
from penstock.client.errors import BrokerRefused, ClientError
from penstock.model.assignment import AVG, QueueRef, Strategy
from penstock.wire.rocketmq.bodies import QueueAssignment, RequestMode
from penstock.wire.rocketmq.codes import ResponseCode

_log = logging.getLogger(__name__)

AskAssignment = Callable[[str], Awaitable[Sequence[QueueAssignment] | None]]
"""What a broker says of a topic; None is "keep"."""


class PopPlaces(Protocol):
    """Who pops."""

    def retain(self, topic: str, places: Collection[QueueRef]) -> bool:
        """Pop from these places of a topic, and from no others; True when that is a change."""
        ...

    async def mode_seen(self, topic: str, mode: RequestMode | None) -> None:
        """How the broker has a topic read now."""
        ...


class BrokerSharing:
    """A broker divides the queues, and says how to read them."""

    def __init__(
        self, ask: AskAssignment, places: PopPlaces, queues_of: QueuesOf, divided: Sharing
    ) -> None:
        self._ask = ask
        self._places = places
        self._queues_of = queues_of
        self._divided = divided
        self._is_known = True

    async def share(self, topic: str) -> Share | None:
        """The queues of a topic to pull; None keeps what there is."""
        if not self._is_known:
            return await self._divided.share(topic)
        try:
            answer = await self._ask(topic)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                _kept(topic, refusal)
                return None
            _log.warning("brokers here do not assign queues, members do", extra={"topic": topic})
            self._is_known = False
            return await self._divided.share(topic)
        except ClientError as problem:
            _kept(topic, problem)
            return None
        if answer is None:
            return None
        wanted = assigned(topic, answer)
        self._places.retain(topic, wanted.pop)
        await self._places.mode_seen(topic, wanted.mode)
        queues = sorted(self._queues_of(topic) or wanted.pull | wanted.pop)
        return Share(queues, sorted(wanted.pull))


class AssignmentCalls(Protocol):
    """Who asks a broker; ``Calls`` does."""

    async def query_assignment(
        self, topic: str, group: str, *, strategy: str
    ) -> Sequence[QueueAssignment] | None:
        """QUERY_ASSIGNMENT; None is "keep"."""
        ...


def asker(calls: AssignmentCalls, group: str, strategy: str | Strategy) -> AskAssignment:
    """Ask for a group; a strategy of the user's own cannot be sent, AVG stands in for it."""
    name = strategy if isinstance(strategy, str) else AVG

    async def ask(topic: str) -> Sequence[QueueAssignment] | None:
        return await calls.query_assignment(topic, group, strategy=name)

    return ask


def _kept(topic: str, problem: ClientError) -> None:
    _log.warning("assignment not known", extra={"topic": topic, "error": str(problem)})
