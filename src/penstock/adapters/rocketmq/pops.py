"""What all pops of a broker share: the readers by group and topic, the waiting, the numbering.

Invariants: one reader per engine subscription, forgotten with it; a message that comes again gets
a later pop time than any receipt given out before, so an old receipt never fits the new delivery.
Not here: requests (``pop.py``, ``ack.py`` ...), one reader (``pop_reader.py``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.adapters.rocketmq.offset_book import OffsetBook
from penstock.adapters.rocketmq.pop_reader import PopReader, pop_retry_topic, revive_number
from penstock.adapters.rocketmq.pop_wait import PopWaits
from penstock.adapters.rocketmq.revive import Revival

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.engine.topic import Topic


class Pops:
    """The broker's side of pop."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.waits = house.part(PopWaits)
        self.revival = Revival(house, self._retry_reader)
        self._offsets = house.part(OffsetBook)
        # Bounded by the engine's subscriptions.
        self._readers: dict[int, PopReader] = {}
        self._popped = 0
        self._last_pop_ms = 0

    def reader(self, topic: Topic, group: str) -> PopReader:
        """The group's hold on a topic, made if need be; raises ``AlreadyExists`` for no room."""
        found = self.known(topic, group)
        if found is None:
            found = PopReader(topic, group, self._offsets, self._gone)
            subscription = found.subscription
            self._readers[subscription.subscription_id] = found
            subscription.on_late = partial(self.revival.late, found)
            subscription.on_ready = partial(self._ready, found)
        return found

    def known(self, topic: Topic, group: str) -> PopReader | None:
        """The same, if the group ever popped from the topic."""
        subscription = self._offsets.subscription(topic, group)
        return None if subscription is None else self._readers.get(subscription.subscription_id)

    def retry_reader(self, topic: str, group: str) -> PopReader | None:
        """The group's hold on the retry topic of a topic, if that exists."""
        place = self.house.topics.find(pop_retry_topic(group, topic))
        return None if place is None else self._retry_reader(place.topic, group, topic)

    def pop_ms(self, *, is_again: bool) -> int:
        """The time that receipts of a pop carry; unique where a message may have an older one."""
        now_ms = self.house.clock.wall_ms()
        if is_again:
            now_ms = max(now_ms, self._last_pop_ms + 1)
        self._last_pop_ms = max(self._last_pop_ms, now_ms)
        return now_ms

    def next_revive_qid(self, *, is_orderly: bool) -> int:
        """The number of the next pop."""
        self._popped += 1
        return revive_number(self._popped, is_orderly=is_orderly)

    def _retry_reader(self, retry: Topic, group: str, origin: str) -> PopReader:
        reader = self.reader(retry, group)
        reader.origin = origin
        return reader

    def _ready(self, reader: PopReader) -> None:
        self.waits.look(reader.name, reader.group, len(reader.topic.queues))
        if reader.origin:
            origin = self.house.topics.find(reader.origin)
            queues = 0 if origin is None else len(origin.topic.queues)
            self.waits.look(reader.origin, reader.group, queues)

    def _gone(self, reader: PopReader) -> None:
        if self._readers.pop(reader.subscription.subscription_id, None) is not None:
            self.waits.dismiss(reader.name, reader.group, len(reader.topic.queues))


def forget_retries(house: House, topic: str) -> None:
    """A topic is about to be deleted: what its groups popped in vain goes with it."""
    place = house.topics.find(topic)
    if place is not None:
        for group in house.part(OffsetBook).groups_of(place.topic):
            house.topics.delete(pop_retry_topic(group, topic))
