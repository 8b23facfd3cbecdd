"""Which handler serves which request code: the families of requests, put together.

A family is a module with ``HANDLERS: dict[int, Handler]``; a new one is one import and one line
here. ``PARTS`` are the shared parts that must exist from the start on (``house.part``), because
they have deadlines or something to recover.
"""

from collections.abc import Callable
from typing import Final

from penstock.adapters.rocketmq import send, topic_admin
from penstock.adapters.rocketmq.house import House
from penstock.adapters.rocketmq.requests import Handler

HANDLERS: Final[dict[int, Handler]] = {
    **send.HANDLERS,
    **topic_admin.HANDLERS,
}
"""The broker's requests."""

PARTS: Final[tuple[Callable[[House], object], ...]] = ()
"""Made when the house is opened, in this order."""


def open_parts(house: House) -> None:
    """Make every part that must not wait for its first use."""
    for maker in PARTS:
        house.part(maker)
