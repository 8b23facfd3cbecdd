"""Dealing a list out to several consumers, evenly and without asking for each message."""

from typing import Final

from penstock.engine.consumer import Consumer
from penstock.engine.pending import Delivery

BLOCK_MIN: Final = 16
"""With at least this many for each, a consumer gets neighbours instead of every k-th message: just
as even, and what it settles together stays one range."""

Shares = list[tuple[Consumer, list[Delivery]]]


def deal(
    takers: list[Consumer], deliveries: list[Delivery], *, is_plain: bool
) -> tuple[Shares, list[Delivery]]:
    """Shares in the order of the round (the last one got the last message), and what is left."""
    each = -(-len(deliveries) // len(takers))
    if (
        is_plain
        and each <= min(taker.room() for taker in takers)
        and sum(delivery.size for delivery in deliveries)
        <= min(taker.room_bytes() for taker in takers)
    ):
        return _deal_evenly(takers, deliveries), []
    return _deal_one_by_one(takers, deliveries)


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
    rooms = [(taker.room(), taker.room_bytes()) for taker in takers]
    shares: list[list[Delivery]] = [[] for _ in takers]
    turn = last = 0
    for number, delivery in enumerate(deliveries):
        for step in range(len(takers)):
            at = (turn + step) % len(takers)
            messages, size = rooms[at]
            if messages > 0 and size > 0:
                break
        else:
            return _ending_with(takers, shares, last), deliveries[number:]
        shares[at].append(delivery)
        rooms[at] = (messages - delivery.messages, size - delivery.size)
        turn, last = at + 1, at
    return _ending_with(takers, shares, last), []


def _ending_with(takers: list[Consumer], shares: list[list[Delivery]], last: int) -> Shares:
    order = [*range(last + 1, len(takers)), *range(last + 1)]
    return [(takers[at], shares[at]) for at in order if shares[at]]
