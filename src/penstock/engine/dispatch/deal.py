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


class Rooms:
    """What several consumers may be handed, and what is left of it while a list is dealt out."""

    __slots__ = ("_own", "_shared", "_sharing", "takers")

    def __init__(self, takers: list[Consumer]) -> None:
        self.takers = takers
        self._own = [taker.rooms() for taker in takers]
        limits = [taker.shared_limits() for taker in takers]
        # What only one of them has is a part of its own room already.
        users = Counter([limit for each in limits for limit, _, _ in each])
        self._shared: dict[object, tuple[int, int]] = {
            limit: (room, size) for each in limits for limit, room, size in each if users[limit] > 1
        }
        self._sharing: list[list[object]] = [
            [limit for limit, _, _ in each if limit in self._shared] for each in limits
        ]

    def total(self) -> tuple[int, int]:
        """Messages and bytes that all of them together may be handed now."""
        own, shared = self._own, self._shared
        if not shared:
            return sum([room for room, _ in own]), sum([size for _, size in own])
        self._own, self._shared = own.copy(), shared.copy()
        messages = size_bytes = 0
        for at in range(len(own)):
            room, size = self.left(at)
            self.take(at, room, size)
            messages += room
            size_bytes += size
        self._own, self._shared = own, shared
        return messages, size_bytes

    def has_for_each(self, messages: int, size_bytes: int) -> bool:
        """Whether everybody may have that many messages, and anybody all of the bytes."""
        if messages > min([room for room, _ in self._own]):
            return False
        if size_bytes > min([size for _, size in self._own]):
            return False
        users = Counter([limit for each in self._sharing for limit in each])
        return all(users[limit] * messages <= room for limit, (room, _) in self._shared.items())

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


def deal(
    rooms: Rooms, deliveries: list[Delivery], *, is_plain: bool
) -> tuple[Shares, list[Delivery]]:
    """Shares in the order of the round (the last one got the last message), and what is left."""
    each = -(-len(deliveries) // len(rooms.takers))
    if is_plain and rooms.has_for_each(each, sum([delivery.size for delivery in deliveries])):
        return _deal_evenly(rooms.takers, deliveries), []
    return _deal_one_by_one(rooms, deliveries)


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


def _deal_one_by_one(rooms: Rooms, deliveries: list[Delivery]) -> tuple[Shares, list[Delivery]]:
    """Where rooms, sizes or batches differ: to the next in the round that still has room."""
    takers = rooms.takers
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
