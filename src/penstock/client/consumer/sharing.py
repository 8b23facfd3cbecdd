"""Which queues of a topic are this consumer's: asked anew at every rebalance.

Members of a group do not talk to each other. Each asks a broker who the members are, and divides
the same sorted queues among the same sorted ids by the same rule; so all come to one result as soon
as all know the same members. Until then two of them may believe they own a queue: a concurrent
group then reads some messages twice, an ordered one is kept apart by locks (``locks.py``).

None as a share is "cannot say": no route, no member list, a strategy that raised. The caller keeps
what it has; a name server that is away must not stop consumption.

Not here: what follows from a share (``rebalance.py``), sharing by the broker's word (pop).
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.client.errors import ClientError
from penstock.model.assignment import (
    CONFIG,
    MACHINE_ROOM,
    MACHINE_ROOM_NEARBY,
    STRATEGIES,
    QueueRef,
    Strategy,
)

_log = logging.getLogger(__name__)

RETRY_PREFIX: Final = "%RETRY%"

QueuesOf = Callable[[str], Sequence[QueueRef] | None]
"""The readable queues of a topic by the last route known; None without a route."""

MembersOf = Callable[[str], Awaitable[Sequence[str]]]
"""The client ids of the group, asked of a broker of this topic; raises ``ClientError``."""

_MADE_BY: Final = {
    CONFIG: "fixed(queues)",
    MACHINE_ROOM: "machine_room(rooms)",
    MACHINE_ROOM_NEARBY: "machine_room_nearby(inner, queue_room, member_room)",
}


class Share(NamedTuple):
    """A topic's queues, and which of them are ours."""

    queues: list[QueueRef]
    mine: list[QueueRef]
    is_known_member: bool = True
    """False when the broker does not know us (yet): we get nothing, and ask again soon."""


class Sharing(Protocol):
    """A way to find out."""

    async def share(self, topic: str) -> Share | None:
        """What is ours now; None keeps what there is."""
        ...


def strategy_of(chosen: str | Strategy) -> Strategy:
    """The strategy with this name, or the caller's own function."""
    if not isinstance(chosen, str):
        return chosen
    found = STRATEGIES.get(chosen)
    if found is not None:
        return found
    maker = _MADE_BY.get(chosen)
    if maker is not None:
        raise ValueError(
            f"allocation {chosen!r} needs its own settings: give penstock.client.{maker}"
        )
    raise ValueError(
        f"allocation {chosen!r} is not known; one of {', '.join(STRATEGIES)}, or a function "
        "(own id, queues, members) -> queues"
    )


class DividedSharing:
    """Clustering: the group's members divide the queues."""

    def __init__(
        self, client_id: str, strategy: Strategy, queues_of: QueuesOf, members_of: MembersOf
    ) -> None:
        self._client_id = client_id
        self._strategy = strategy
        self._queues_of = queues_of
        self._members_of = members_of

    async def share(self, topic: str) -> Share | None:
        """Our part of the topic among the members a broker knows now."""
        queues = _sorted_queues(self._queues_of, topic)
        if queues is None:
            return None
        try:
            members = sorted(await self._members_of(topic))
        except ClientError as problem:
            _log.warning("members not known", extra={"topic": topic, "error": str(problem)})
            return None
        if self._client_id not in members:
            return Share(queues, [], is_known_member=False)
        try:
            chosen = self._strategy(self._client_id, queues, members)
        except Exception:
            # Often the user's own function; whatever it raises, queues in work stay in work.
            _log.exception("allocation failed", extra={"topic": topic, "members": len(members)})
            return None
        # A fixed list may name queues of several topics: each is taken with its own.
        return Share(queues, [queue for queue in chosen if queue.topic == topic])


class WholeSharing:
    """Broadcasting: every member reads every queue."""

    def __init__(self, queues_of: QueuesOf) -> None:
        self._queues_of = queues_of

    async def share(self, topic: str) -> Share | None:
        """All queues of the topic."""
        queues = _sorted_queues(self._queues_of, topic)
        return None if queues is None else Share(queues, queues)


def _sorted_queues(queues_of: QueuesOf, topic: str) -> list[QueueRef] | None:
    queues = queues_of(topic)
    if queues:
        return sorted(queues)
    # A retry topic is made by the broker with the first heartbeat: its absence is no news.
    if not topic.startswith(RETRY_PREFIX):
        _log.warning("topic has no queues to read", extra={"topic": topic})
    return None
