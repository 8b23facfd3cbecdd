"""Which handler serves which request code: the families of requests, put together.

A family is a module with ``HANDLERS: dict[int, Handler]``; a new one is one import and one line
here. ``PARTS`` are the shared parts that must exist from the start on (``house.part``), because
they have deadlines or something to recover.
"""

from collections.abc import Callable
from typing import Final

from penstock.adapters.rocketmq import (
    ack,
    assignment,
    clients,
    groups,
    invisible,
    locks,
    lookup,
    mode,
    notification,
    offsets,
    peek,
    pop,
    pull,
    relays,
    reset_offsets,
    send,
    send_back,
    special_sends,
    stats,
    topic_admin,
    transactions,
)
from penstock.adapters.rocketmq.group_book import GroupBook
from penstock.adapters.rocketmq.house import House
from penstock.adapters.rocketmq.offset_book import OffsetBook
from penstock.adapters.rocketmq.pop_counts import PopCounts
from penstock.adapters.rocketmq.requests import Handler

HANDLERS: Final[dict[int, Handler]] = {
    **send.HANDLERS,
    **send_back.HANDLERS,
    **transactions.HANDLERS,
    **lookup.HANDLERS,
    **topic_admin.HANDLERS,
    **clients.HANDLERS,
    **groups.HANDLERS,
    **locks.HANDLERS,
    **offsets.HANDLERS,
    **pull.HANDLERS,
    **pop.HANDLERS,
    **ack.HANDLERS,
    **invisible.HANDLERS,
    **peek.HANDLERS,
    **notification.HANDLERS,
    **assignment.HANDLERS,
    **mode.HANDLERS,
    **relays.HANDLERS,
    **reset_offsets.HANDLERS,
    **stats.HANDLERS,
}
"""The broker's requests."""

PARTS: Final[tuple[Callable[[House], object], ...]] = (
    GroupBook,
    OffsetBook,
    clients.Clients,
    pull.Pulls,
    mode.Modes,
    PopCounts,
    special_sends.install,
    transactions.Transactions,
)
"""Made when the house is opened, in this order."""


def open_parts(house: House) -> None:
    """Make every part that must not wait for its first use."""
    for maker in PARTS:
        house.part(maker)
