"""Dealing a list out to several consumers, evenly and without asking for each message.

Invariant: what consumers have a limit for together (the window of their channel, the backlog of
their connection's socket) is counted once, however many of them are in the round.
"""

from collections import Counter
from typing import Final

from penstock.engine.consumer import Consumer
from penstock.engine.pending import Delivery

BLOCK_MIN: Final = 16
"""With at least this many for each, a consumer gets neighbours instead of every k-th message: just
as even, and what it settles together stays one range."""

Shares = list[tuple[Consumer, list[Delivery]]]


def total_room(takers: list[Consumer]) -> tuple[int, int]:
    """Messages and bytes that all of them together may be handed now."""
    if not takers:
        return 0, 0
    rooms = _Rooms(takers)
    messages = size_bytes = 0
    for at in range(len(takers)):
        room, size = rooms.left(at)
        rooms.take(at, room, size)
        messages += room
        size_bytes += size
    return messages, size_bytes


def deal(
    takers: list[Consumer], deliveries: list[Delivery], *, is_plain: bool
) -> tuple[Shares, list[Delivery]]:
    """Shares in the order of the round (the last one got the last message), and what is left."""
    each = -(-len(deliveries) // len(takers))
    size = sum(delivery.size for delivery in deliveries)
    if is_plain and _is_roomy(takers, each, size):
        return _deal_evenly(takers, deliveries), []
    return _deal_one_by_one(takers, deliveries)


def _is_roomy(takers: list[Consumer], each: int, size: int) -> bool:
    """Whether everybody may have that many messages, and anybody all of the bytes."""
    rooms = [taker.rooms() for taker in takers]
    if each > min([messages for messages, _ in rooms]):
        return False
    if size > min([room_bytes for _, room_bytes in rooms]):
        return False
    limits = [limit for taker in takers for limit in taker.shared_limits()]
    return all(each * count <= limit[1] for limit, count in Counter(limits).items())


class _Rooms:
    """What each of them may still be handed, while a list is dealt out."""

    __slots__ = ("_own", "_shared", "_sharing")

    def __init__(self, takers: list[Consumer]) -> None:
        self._own = [taker.rooms() for taker in takers]
        self._shared: dict[object, tuple[int, int]] = {}
        self._sharing: list[list[object]] = []
        for taker in takers:
            limits = taker.shared_limits()
            self._sharing.append([limit for limit, _, _ in limits])
            self._shared.update({limit: (room, size) for limit, room, size in limits})

    def left(self, at: int) -> tuple[int, int]:
        """Messages and bytes for this one."""
        room, size = self._own[at]
        for limit in self._sharing[at]:
            shared_room, shared_size = self._shared[limit]
            room, size = min(room, shared_room), min(size, shared_size)
        return max(room, 0), max(size, 0)

    def take(self, at: int, messages: int, size: int) -> None:
        """It is handed this much."""
        room, room_size = self._own[at]
        self._own[at] = (room - messages, room_size - size)
        for limit in self._sharing[at]:
            room, room_size = self._shared[limit]
            self._shared[limit] = (room - messages, room_size - size)


def _deal_evenly(takers: list[Consumer], deliveries: list[Delivery]) -> Shares:
    count, many = len(deliveries), len(takers)
    if count >= BLOCK_MIN * many:
        base, extra = divmod(count, many)
        shares: Shares = []
        at = 0
        for number, taker in enumerate(takers):
            end = at + base + (number < extra)
            shares.append((taker, deliveries[at:end]))
            at = end
        # The first ``extra`` got one more: the next round begins behind them.
        return shares[extra:] + shares[:extra]
    served = takers[:count]
    shares = [(taker, deliveries[number::many]) for number, taker in enumerate(served)]
    behind = count % len(served)
    return shares[behind:] + shares[:behind]


def _deal_one_by_one(
    takers: list[Consumer], deliveries: list[Delivery]
) -> tuple[Shares, list[Delivery]]:
    """Where rooms, sizes or batches differ: to the next in the round that still has room."""
    rooms = _Rooms(takers)
    shares: list[list[Delivery]] = [[] for _ in takers]
    turn = last = 0
    for number, delivery in enumerate(deliveries):
        for step in range(len(takers)):
            at = (turn + step) % len(takers)
            messages, size = rooms.left(at)
            if messages > 0 and size > 0:
                break
        else:
            return _ending_with(takers, shares, last), deliveries[number:]
        shares[at].append(delivery)
        rooms.take(at, delivery.messages, delivery.size)
        turn, last = at + 1, at
    return _ending_with(takers, shares, last), []


def _ending_with(takers: list[Consumer], shares: list[list[Delivery]], last: int) -> Shares:
    order = [*range(last + 1, len(takers)), *range(last + 1)]
    return [(takers[at], shares[at]) for at in order if shares[at]]
