"""Failover: one active consumer, the others wait with their demand until it leaves.

Active is the one of the highest priority, then of the first name, then the eldest. Joining may
displace the active one: what it has not settled goes to its successor, in order.
"""

from penstock.engine.consumer import Consumer, ConsumerRefusal
from penstock.engine.dispatch.dispatcher import TAKERS_MAX


class Failover:
    """Consumers in the order in which they become active."""

    __slots__ = ("consumers",)

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []

    @property
    def active(self) -> Consumer | None:
        """The one that gets everything."""
        return self.consumers[0] if self.consumers else None

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Everyone may wait."""
        return None

    def join(self, consumer: Consumer) -> Consumer | None:
        """Take a place in the line; the displaced active one is returned."""
        before = self.active
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: (-each.priority, each.name, each.consumer_id))
        after = self.active
        if after is before:
            return None
        self._tell(before, after)
        return before

    def leave(self, consumer: Consumer) -> None:
        """The next in line becomes active when the active one leaves."""
        was_active = consumer is self.active
        self.consumers.remove(consumer)
        if was_active:
            self._tell(None, self.active)

    def takers(self, count_max: int = TAKERS_MAX) -> list[Consumer]:
        """The active one, while it has room."""
        active = self.active
        return [active] if active is not None and active.room() > 0 else []

    def served(self, last: Consumer) -> None:
        """There is no round."""

    def park(self, offset: int, slot: int) -> None:
        """Keys play no part."""

    def released(self, slot: int) -> None:
        """Keys play no part."""

    def unpark(self) -> list[int]:
        """Nothing is parked."""
        return []

    @staticmethod
    def _tell(before: Consumer | None, after: Consumer | None) -> None:
        # A consumer of several queues hears only of its first active queue and of its last.
        if before is not None:
            before.active_lanes -= 1
            if not before.active_lanes:
                before.outlet.active_changed(before, False)
        if after is not None:
            after.active_lanes += 1
            if after.active_lanes == 1:
                after.outlet.active_changed(after, True)
