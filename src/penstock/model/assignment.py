"""Which queues a member of a group reads: the strategies of dividing, as pure functions.

Every member of a group divides the same queues among the same members by the same rule, and takes
its own part; nobody has to tell anybody. So the rules are fixed to the last detail: queues are
sorted by (topic, broker, number), members by their id.

A strategy is called with (own id, queues, members). Nothing to divide, nobody to divide among or no
own id is a ``ValueError``; an own id that is not among the members gets nothing.

Invariant: AVG, AVG_BY_CIRCLE and CONSISTENT_HASH give every queue to exactly one member.
Not here: who the members are (``engine/group/membership.py``), the broker's own use of it
(``engine/group/assignment.py``).
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

AVG: Final = "AVG"
AVG_BY_CIRCLE: Final = "AVG_BY_CIRCLE"
CONSISTENT_HASH: Final = "CONSISTENT_HASH"
CONFIG: Final = "CONFIG"
MACHINE_ROOM: Final = "MACHINE_ROOM"
MACHINE_ROOM_NEARBY: Final = "MACHINE_ROOM_NEARBY"
"""Followed by ``-`` and the name of the inner strategy."""

RING_POINTS: Final = 10
"""Points of one member on the ring of consistent hashing."""

ALL_QUEUES: Final = -1
"""Queue number that stands for every queue of a broker, where members share them."""


class QueueRef(NamedTuple):
    """A queue as members of a group know it, on whichever broker it is."""

    topic: str
    broker: str
    queue: int

    @property
    def ring_key(self) -> str:
        """Its name on the ring; spelled as clients of every language spell it, or they disagree."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.queue}]"


Strategy = Callable[[str, Sequence[QueueRef], Sequence[str]], list[QueueRef]]


def average(me: str, queues: Sequence[QueueRef], members: Sequence[str]) -> list[QueueRef]:
    """AVG: contiguous blocks; the first members get one more when it does not come out even."""
    parts = _parts(me, queues, members)
    if parts is None:
        return []
    index, ordered, everybody = parts
    size, rest = divmod(len(ordered), len(everybody))
    start = index * size + min(index, rest)
    return ordered[start : start + size + (index < rest)]


def average_by_circle(
    me: str, queues: Sequence[QueueRef], members: Sequence[str]
) -> list[QueueRef]:
    """AVG_BY_CIRCLE: dealt out like cards."""
    parts = _parts(me, queues, members)
    if parts is None:
        return []
    index, ordered, everybody = parts
    return ordered[index :: len(everybody)]


def consistent_hash(
    me: str, queues: Sequence[QueueRef], members: Sequence[str], *, points: int = RING_POINTS
) -> list[QueueRef]:
    """CONSISTENT_HASH: few queues change hands when a member comes or goes."""
    parts = _parts(me, queues, members)
    if parts is None:
        return []
    _, ordered, everybody = parts
    # Sorted members and "the later wins" decide the rare case of two points in one place.
    owners: dict[int, str] = {}
    made: dict[str, int] = {}
    for member in everybody:
        first = made.get(member, 0)
        made[member] = first + points
        for point in range(first, first + points):
            owners[_ring_place(f"{member}-{point}")] = member
    ring = sorted(owners)
    return [queue for queue in ordered if _owner(owners, ring, queue.ring_key) == me]


def fixed(queues: Iterable[QueueRef]) -> Strategy:
    """CONFIG: always these, unchecked."""
    chosen = list(queues)
    return lambda _me, _queues, _members: list(chosen)


def machine_room(rooms: Iterable[str]) -> Strategy:
    """MACHINE_ROOM: only queues of brokers called ``room@name`` in these rooms, in blocks."""
    wanted = frozenset(rooms)

    def strategy(me: str, queues: Sequence[QueueRef], members: Sequence[str]) -> list[QueueRef]:
        parts = _parts(me, queues, members)
        if parts is None:
            return []
        index, ordered, everybody = parts
        near = [queue for queue in ordered if _room_of(queue.broker) in wanted]
        size, rest = divmod(len(near), len(everybody))
        mine = near[size * index : size * index + size]
        return [*mine, near[index + size * len(everybody)]] if index < rest else mine

    return strategy


def machine_room_nearby(
    inner: Strategy, queue_room: Callable[[QueueRef], str], member_room: Callable[[str], str]
) -> Strategy:
    """MACHINE_ROOM_NEARBY: own room's queues among own room's members; orphaned rooms among all."""

    def strategy(me: str, queues: Sequence[QueueRef], members: Sequence[str]) -> list[QueueRef]:
        parts = _parts(me, queues, members)
        if parts is None:
            return []
        _, ordered, everybody = parts
        queues_by_room: dict[str, list[QueueRef]] = {}
        for queue in ordered:
            queues_by_room.setdefault(_known_room(queue_room(queue), queue), []).append(queue)
        members_by_room: dict[str, list[str]] = {}
        for member in everybody:
            members_by_room.setdefault(_known_room(member_room(member), member), []).append(member)
        my_room = member_room(me)
        mine = queues_by_room.pop(my_room, [])
        taken = inner(me, mine, members_by_room[my_room]) if mine else []
        for room in sorted(queues_by_room):
            if room not in members_by_room:
                taken += inner(me, queues_by_room[room], everybody)
        return taken

    return strategy


def pop_share(
    strategy: Strategy, me: str, queues: Sequence[QueueRef], members: Sequence[str], share: int
) -> list[QueueRef]:
    """What a member takes when the broker hands out messages, not queues: a queue may be shared.

    ``share`` is how many members after this one it helps; 0 and below, or all others: everybody
    takes from every queue, which is one ``ALL_QUEUES`` for each broker.
    """
    everybody = sorted(members)
    if share <= 0 or share >= len(everybody) - 1:
        places = {(queue.topic, queue.broker): None for queue in sorted(queues)}
        return [QueueRef(topic, broker, ALL_QUEUES) for topic, broker in places]
    if len(everybody) > len(queues):
        parts = _parts(me, queues, members)
        return [] if parts is None else [parts[1][parts[0] % len(queues)]]
    taken = dict.fromkeys(strategy(me, queues, everybody))
    if me in everybody:
        index = everybody.index(me)
        for step in range(1, share + 1):
            helped = everybody[(index + step) % len(everybody)]
            taken.update(dict.fromkeys(strategy(helped, queues, everybody)))
    return list(taken)


STRATEGIES: Final[dict[str, Strategy]] = {
    AVG: average,
    AVG_BY_CIRCLE: average_by_circle,
    CONSISTENT_HASH: consistent_hash,
}
"""Those that need nothing but their name; the others are made with their configuration."""


def _parts(
    me: str, queues: Sequence[QueueRef], members: Sequence[str]
) -> tuple[int, list[QueueRef], list[str]] | None:
    """(own index, sorted queues, sorted members); None when the own id is not among them."""
    if not me:
        raise ValueError("a member without an id cannot be given queues")
    if not queues:
        raise ValueError("there are no queues to divide; does the topic exist?")
    if not members:
        raise ValueError("there are no members to divide queues among")
    if me not in members:
        return None
    everybody = sorted(members)
    return everybody.index(me), sorted(queues), everybody


def _ring_place(key: str) -> int:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _owner(owners: dict[int, str], ring: list[int], key: str) -> str:
    at = bisect_left(ring, _ring_place(key))
    return owners[ring[at % len(ring)]]


def _room_of(broker: str) -> str | None:
    room, separator, name = broker.partition("@")
    return room if separator and name and "@" not in name else None


def _known_room(room: str, whose: object) -> str:
    if not room:
        raise ValueError(f"the machine room of {whose} is not known")
    return room
