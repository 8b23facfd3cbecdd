"""Shared: everyone in turn, the highest priority that can take anything first.

A consumer without room is skipped, so a slow one holds only what it has (law 8); a lower priority
is served only while no higher one has room.
"""

from penstock.engine.consumer import Consumer, ConsumerRefusal
from penstock.engine.dispatch.dispatcher import TAKERS_MAX


class Shared:
    """Consumers by priority, each level with its own round."""

    __slots__ = ("_found_at", "_levels", "consumers")

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self._levels: list[_Level] = []
        self._found_at: dict[int, tuple[_Level, int]] = {}

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Everyone is welcome."""
        return None

    def join(self, consumer: Consumer) -> Consumer | None:
        """Behind those of its own priority; nobody is displaced."""
        self.consumers.append(consumer)
        for level in self._levels:
            if level.priority == consumer.priority:
                level.members.append(consumer)
                return None
        self._levels.append(_Level(consumer.priority, [consumer]))
        self._levels.sort(key=lambda each: -each.priority)
        return None

    def leave(self, consumer: Consumer) -> None:
        """The round goes on with the one behind it."""
        self.consumers.remove(consumer)
        self._found_at.clear()
        for level in self._levels:
            if level.priority == consumer.priority:
                at = level.members.index(consumer)
                del level.members[at]
                level.next -= at < level.next
        self._levels = [level for level in self._levels if level.members]

    def takers(self, count_max: int = TAKERS_MAX) -> list[Consumer]:
        """Those of the highest level with room, beginning behind the one served last."""
        count_max = min(count_max, TAKERS_MAX)
        self._found_at.clear()
        for level in self._levels:
            found: list[Consumer] = []
            members, count = level.members, len(level.members)
            for step in range(count):
                at = (level.next + step) % count
                consumer = members[at]
                if consumer.room() > 0:
                    found.append(consumer)
                    self._found_at[consumer.consumer_id] = (level, at)
                    if len(found) == count_max:
                        break
            if found:
                return found
        return []

    def served(self, last: Consumer) -> None:
        """The next round begins behind this one."""
        place = self._found_at.get(last.consumer_id)
        if place is not None:
            level, at = place
            level.next = (at + 1) % len(level.members)

    def park(self, offset: int, slot: int) -> None:
        """Keys play no part."""

    def released(self, slot: int) -> None:
        """Keys play no part."""

    def unpark(self) -> list[int]:
        """Nothing is parked."""
        return []


class _Level:
    __slots__ = ("members", "next", "priority")

    def __init__(self, priority: int, members: list[Consumer]) -> None:
        self.priority = priority
        self.members = members
        self.next = 0
