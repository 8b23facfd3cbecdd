"""Groups that read a topic and never committed: how far they are, for the diagnosis.

A group's place in a topic is what it committed; before the first commit it has none, and once its
members left it never had one (``OffsetRegistry``). But its members are there, and may be slow,
stuck in their first message, or asleep. So as long as they are there it is noted where each queue
was first pulled from, or would be by what they said (``consumeFromWhere``), and where the next pull
begins; that gives a stage like any other group's: what it did not ask for yet is ready, what it was
given is in its hands.

Who writes: heartbeats and pulls. Who reads: the flow map. A group goes with its first commit, its
last member or its topic. Invariants: bounded (``NEW_GROUPS_MAX``, the oldest goes first); in memory
only. Not here: who the members are and what they say (``readers.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from penstock.adapters.rocketmq.group_registry import OffsetRegistry, subscription_name
from penstock.adapters.rocketmq.groups import ClientRegistry
from penstock.adapters.rocketmq.naming import wire_name
from penstock.adapters.rocketmq.readers import GroupReaders
from penstock.flow.progress import Progress
from penstock.flow.views import ConsumerView, StageView
from penstock.wire.rocketmq.bodies import ConsumeFromWhere

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker
    from penstock.engine.group.membership import Group
    from penstock.engine.topic import Queue, Topic

NEW_GROUPS_MAX: Final = 1024
"""Of a topic each; more than that at once are a fleet that starts, and the next look has them."""


class QueuePlace(msgspec.Struct):
    """How far a group is in one queue."""

    start: int
    """Where it began; nothing from there on is committed."""
    at: int
    """Where its next pull begins."""
    given: int = 0
    """Messages it was given since then."""


class NewGroup:
    """One group in one topic."""

    __slots__ = ("made_ms", "places", "progress", "taken_ms", "topic")

    def __init__(self, topic: Topic, now_ms: int, *, is_from_first: bool) -> None:
        self.topic = topic
        self.made_ms = now_ms
        self.places = {
            queue.queue_id: QueuePlace(*[_first(queue, is_from_first=is_from_first)] * 2)
            for queue in topic.queues
        }
        self.progress = Progress(now_ms)
        # It came to read: from then on it is expected to.
        self.progress.read_ms = now_ms
        self.taken_ms: int | None = None
        """When it was first given something; None = it has nothing in its hands."""

    def ready(self) -> int:
        """Messages it did not ask for yet."""
        return sum([_end(each) - self._at(each) for each in self.topic.queues])

    def given(self) -> int:
        return sum([each.given for each in self.places.values()])

    def age_ms(self, wall_ms: int) -> int:
        """Of the oldest message that it did not ask for."""
        return _oldest_ms([(each, self._at(each)) for each in self.topic.queues], wall_ms)

    def unacked_age_ms(self, wall_ms: int) -> int:
        """Of the oldest message in its hands."""
        queues = [each for each in self.topic.queues if each.queue_id in self.places]
        held = [(each, self.places[each.queue_id]) for each in queues]
        return _oldest_ms([(queue, each.start) for queue, each in held if each.given], wall_ms)

    def _at(self, queue: Queue) -> int:
        """Where its next pull begins; a queue that came later concerns it when it is pulled."""
        place = self.places.get(queue.queue_id)
        end = _end(queue)
        return end if place is None else min(end, max(place.at, queue.index.min_offset))


class NewGroups:
    """All of them."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._behind_ms = broker.all_settings.flow.behind_ms
        self._readers = broker.service(GroupReaders)
        self._found: dict[tuple[Topic, str], NewGroup] = {}
        broker.service(ClientRegistry).on_heard = self.joined
        broker.service(OffsetRegistry).pulled_by_new = self.pulled
        broker.engine.stages_beside.append(self.stages)

    def __len__(self) -> int:
        return len(self._found)

    # What happens.

    def joined(self, group: Group) -> None:
        """Members said what their group wants."""
        if group.traits.is_broadcast:
            return
        for name in list(group.wanted):
            found = self._broker.topics.find(name)
            if found is not None:
                self._of(found.topic, group)

    def pulled(self, queue: Queue, name: str, begin: int, end: int, messages: int) -> None:
        """It asked from ``begin`` on, was given so many, and goes on at ``end``."""
        group = self._broker.consumers.group(name)
        if group is None or group.is_empty or group.traits.is_broadcast:
            return
        found = self._of(queue.topic, group)
        if found is None:
            return
        now_ms = self._broker.clock.monotonic_ms()
        place = found.places.get(queue.queue_id)
        if place is None or not place.given:
            # Where it begins it decides for itself.
            place = found.places[queue.queue_id] = QueuePlace(begin, begin)
        place.at = end
        place.given += messages
        progress = found.progress
        progress.read_ms = now_ms
        if messages and found.taken_ms is None:
            found.taken_ms = progress.settled_ms = now_ms
        if now_ms >= progress.point_ms:
            ready = found.ready()
            age_ms = found.age_ms(self._broker.clock.wall_ms()) if ready else 0
            progress.moved(now_ms, age_ms, ready, self._behind_ms)

    def _of(self, topic: Topic, group: Group) -> NewGroup | None:
        key = (topic, group.name)
        found = self._found.get(key)
        if found is not None or subscription_name(group.name) in topic.subscriptions:
            return found
        now_ms = self._broker.clock.monotonic_ms()
        is_from_first = group.traits.start == ConsumeFromWhere.FIRST_OFFSET
        found = self._found[key] = NewGroup(topic, now_ms, is_from_first=is_from_first)
        while len(self._found) > NEW_GROUPS_MAX:
            del self._found[next(iter(self._found))]
        return found

    # What is seen of it.

    def stages(self) -> Iterator[StageView]:
        """Those that are still new, and have been there long enough to have begun."""
        now_ms = self._broker.clock.monotonic_ms()
        for key, found in list(self._found.items()):
            topic, name = key
            if not self._is_new(topic, name):
                self._found.pop(key, None)
            elif now_ms - found.made_ms >= self._behind_ms:
                yield self._stage(found, name, now_ms)

    def _is_new(self, topic: Topic, name: str) -> bool:
        group = self._broker.consumers.group(name)
        if group is None or group.is_empty or topic.is_deleted:
            return False
        is_wanted = not group.wanted or wire_name(topic.name) in group.wanted
        return is_wanted and subscription_name(name) not in topic.subscriptions

    def _stage(self, found: NewGroup, name: str, now_ms: int) -> StageView:
        topic, ready, given = found.topic, found.ready(), found.given()
        wall_ms = self._broker.clock.wall_ms()
        progress = found.progress.view(
            now_ms,
            age_ms=found.age_ms(wall_ms) if ready else 0,
            ready=ready,
            unacked_age_ms=found.unacked_age_ms(wall_ms),
            is_read=False,
            behind_ms=self._behind_ms,
        )
        own = subscription_name(name)
        held = ConsumerView(
            name,
            unacked=given,
            unsettled_ms=0 if found.taken_ms is None else now_ms - found.taken_ms,
            is_passive=True,
        )
        return StageView(
            kind="subscription",
            name=f"{topic.name}/{own}",
            id=f"sub/{topic.name.id_part}/{quote(own, safe='')}",
            belongs_to=topic.name.id,
            ready=ready,
            consumers=(held,) if given else (),
            progress=progress,
            group=self._readers.members(topic, name, is_behind=progress.is_behind),
        )


def _first(queue: Queue, *, is_from_first: bool) -> int:
    return queue.index.min_offset if is_from_first else _end(queue)


def _end(queue: Queue) -> int:
    return queue.visible_end(False)


def _oldest_ms(places: list[tuple[Queue, int]], wall_ms: int) -> int:
    rows = [queue.index.entries(at, 1) for queue, at in places if at < _end(queue)]
    stored = [entries[0][3] for entries in rows if entries]
    return max(0, wall_ms - min(stored)) if stored else 0
