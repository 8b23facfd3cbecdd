"""Bloom bit maps for registered SQL92 subscriptions, if they are turned on (sheet 2.8).

The selector of a group on a topic (``group#topic``) is asked once at the append; its pulls then
skip what did not match without reading it. Only registered subscriptions have maps: an expression
that comes with a pull may be another one each time. Maps never change what a pull gives, only what
it reads (``engine/filter/bit_maps.py``).

Invariant: a map is asked only with the selector it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.adapters.rocketmq.filters import Filters
from penstock.engine.filter.bit_maps import BitMaps
from penstock.engine.filter.filters import Filter, Prefilter
from penstock.engine.filter.sql92 import SqlFilter
from penstock.engine.topic import Queue

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House


def map_name(group: str, topic: str) -> str:
    """The key of a group's bits on a topic, RocketMQ's."""
    return f"{group}#{topic}"


class FilterMaps:
    """The maps of one house; without any while they are turned off."""

    def __init__(self, house: House) -> None:
        self.maps: BitMaps | None = None
        self._names: dict[str, set[str]] = {}
        """group -> topics with a registration; bounded by what groups may want."""
        if house.settings.is_bit_mapping:
            self.maps = BitMaps(house.part(Filters).properties)
            house.engine.watch_appends(self.maps.appended)

    def judge(
        self, group: str, topic: str, queue: Queue, chosen: Filter | None
    ) -> Prefilter | None:
        """What a pull of this subscription may ask before it reads; mapped from now on."""
        if self.maps is None or not isinstance(chosen, SqlFilter):
            return None
        name = map_name(group, topic)
        if self.maps.register(name, chosen.selector, (queue.queue_id,)) is None:
            return None
        self._names.setdefault(group, set()).add(topic)
        return self.maps.judge(name, queue.queue_id)

    def changed(self, group: str, topics: Iterable[str]) -> None:
        """What the group wants of these topics is no more what it was."""
        known = self._names.get(group)
        if self.maps is None or known is None:
            return
        for topic in known.intersection(topics):
            self.maps.unregister(map_name(group, topic))
            known.discard(topic)

    def forgotten(self, group: str) -> None:
        """The group is gone."""
        self.changed(group, tuple(self._names.get(group, ())))
        self._names.pop(group, None)
