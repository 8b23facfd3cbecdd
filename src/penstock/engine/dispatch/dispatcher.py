"""What every dispatch mode answers: who may join, and who takes next.

One dispatcher per queue and subscription: where clients attach to single queues, each queue has its
own set of consumers, its own active one and its own turn of the round.

Not here: how messages are dealt out and handed over (``engine/deliver.py``).
"""

from typing import Final, Protocol

from penstock.engine.consumer import Consumer, ConsumerRefusal

TAKERS_MAX: Final = 64
"""Consumers looked for in one round; ten thousand of them must not make a round expensive."""


class Dispatcher(Protocol):
    """One mode, for one queue."""

    consumers: list[Consumer]

    def refusal(self, consumer: Consumer) -> ConsumerRefusal | None:
        """Why this consumer may not join; None = it may."""
        ...

    def join(self, consumer: Consumer) -> Consumer | None:
        """Take it in; returns the consumer it displaced as the active one, if any."""
        ...

    def leave(self, consumer: Consumer) -> None:
        """It takes no more."""
        ...

    def takers(self, count_max: int = TAKERS_MAX) -> list[Consumer]:
        """Those who can take something now, in the order in which they are served.

        More than there are messages need not be found.
        """
        ...

    def served(self, last: Consumer) -> None:
        """The round ended with this one."""
        ...

    def park(self, offset: int, slot: int) -> None:
        """An entry of this key slot waits for its turn (key_shared only)."""
        ...

    def released(self, slot: int) -> None:
        """An entry of this key slot is no longer in flight (key_shared only)."""
        ...

    def unpark(self) -> list[int]:
        """Give up everything set aside for busy keys; its first offsets are the caller's now."""
        ...
