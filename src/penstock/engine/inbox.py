"""The inbox of a queue: one lane per channel, newcomers first, then everybody in turn (law 5).

A channel that had nothing here is a newcomer: its first parcel goes before those of channels that
have more than was taken so far. So a quiet publisher is not behind the flood of a thousand others,
however little the log takes at a time; and a flood is behind itself.

A parcel for several queues is the same object in a lane of each. Its channel put it there in the
same order everywhere, so the oldest parcel of a channel is always at the head of its lanes.

Bound: the credit of each channel towards the queue, and the connections' byte shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.engine.parcel import Parcel

if TYPE_CHECKING:
    from penstock.engine.connection import Channel


class Inbox:
    """Parcels that wait for the log."""

    __slots__ = ("_fresh", "_lanes", "_old", "messages")

    def __init__(self) -> None:
        # Mostly of one parcel, and never long: a list is made faster than a deque.
        self._lanes: dict[Channel, list[Parcel]] = {}
        self._fresh: dict[Channel, None] = {}
        self._old: dict[Channel, None] = {}
        self.messages = 0
        """Publishes in all lanes."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[Parcel]:
        for lane in self._lanes.values():
            yield from lane

    def put(self, parcel: Parcel) -> None:
        """A channel routed a parcel here."""
        channel = parcel.channel
        lane = self._lanes.get(channel)
        if lane is None:
            self._lanes[channel] = [parcel]
            self._fresh[channel] = None
        else:
            lane.append(parcel)
        self.messages += len(parcel.publications)

    def is_head(self, parcel: Parcel) -> bool:
        """True when it is here and nothing of its channel is before it."""
        lane = self._lanes.get(parcel.channel)
        return lane is not None and lane[0] is parcel

    def newcomers(self) -> list[Parcel]:
        """The first parcels of channels that had nothing here before."""
        return [self._lanes[channel][0] for channel in self._fresh]

    def heads(self) -> list[Parcel]:
        """The first parcel of every channel, in the order of service."""
        return [self._lanes[channel][0] for channel in (*self._fresh, *self._old)]

    def take(self, parcel: Parcel) -> None:
        """Take out the head of a lane; its channel is last in turn then."""
        channel = parcel.channel
        lane = self._lanes[channel]
        self.messages -= len(parcel.publications)
        if channel in self._fresh:
            del self._fresh[channel]
        else:
            del self._old[channel]
        if len(lane) > 1:
            del lane[0]
            self._old[channel] = None
        else:
            del self._lanes[channel]

    def clear(self) -> None:
        """Forget everything."""
        self._lanes.clear()
        self._fresh.clear()
        self._old.clear()
        self.messages = 0
