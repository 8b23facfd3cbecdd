"""Exclusive: one consumer per queue; a second is refused, with a value and not an error."""

from penstock.engine.consumer import Consumer, ConsumerRefusal, RefusalReason
from penstock.engine.dispatch.dispatcher import TAKERS_MAX


class Exclusive:
    """At most one consumer."""

    __slots__ = ("consumers",)

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Only the first is welcome."""
        if not self.consumers:
            return None
        owner = self.consumers[0].name
        return ConsumerRefusal(
            RefusalReason.BUSY,
            f"consumer {owner!r} has exclusive use of the subscription; "
            f"{consumer.name!r} may come when it has left",
        )

    def join(self, consumer: Consumer) -> Consumer | None:
        """Nobody is ever displaced."""
        self.consumers.append(consumer)
        return None

    def leave(self, consumer: Consumer) -> None:
        """The place is free."""
        self.consumers.remove(consumer)

    def takers(self, count_max: int = TAKERS_MAX) -> list[Consumer]:
        """The one, while it has room."""
        return [consumer for consumer in self.consumers if consumer.room() > 0]

    def served(self, last: Consumer) -> None:
        """There is no round."""

    def park(self, offset: int, slot: int) -> None:
        """Keys play no part."""

    def released(self, slot: int) -> None:
        """Keys play no part."""

    def unpark(self) -> list[int]:
        """Nothing is parked."""
        return []
