"""Demand: what a consumer can take now, whatever its protocol calls it.

Who grants: the consumer, by prefetch (F10), permits (F11) or a pull that is held (F12). Who spends:
the dispatcher, with ``taken``. Who stops: that consumer's deliveries. What wakes it: ``wake``,
which the dispatcher hangs in and which is called when the demand goes from nothing to something.

``taken`` may be more than was available when a batch record is delivered whole; an implementation
must accept that and answer 0 until it is made up for.
Not here: limits the broker sets itself (``inflight``, ``unsent``): they apply to every demand.
"""

from collections.abc import Callable
from typing import Final, Protocol

UNLIMITED: Final = (1 << 62) - 1
"""More than any figure ever compared with it; stays a small machine integer when added to."""


class Demand(Protocol):
    """One consumer's appetite."""

    wake: Callable[[], None] | None
    """Called on the change from nothing to something; must only mark its owner as having work."""

    def available_messages(self) -> int:
        """Messages it takes now, at least 0."""
        ...

    def available_bytes(self) -> int:
        """Bytes it takes now, at least 0."""
        ...

    def taken(self, messages: int, size_bytes: int, /) -> None:
        """This much was delivered."""
        ...

    def returned(self, messages: int, size_bytes: int, /) -> None:
        """This much was settled or requeued."""
        ...


class Unlimited:
    """Takes everything: basic.consume without acks, a reader inside the broker."""

    __slots__ = ("wake",)

    def __init__(self) -> None:
        self.wake: Callable[[], None] | None = None

    def available_messages(self) -> int:
        """No limit."""
        return UNLIMITED

    def available_bytes(self) -> int:
        """No limit."""
        return UNLIMITED

    def taken(self, messages: int, size_bytes: int, /) -> None:
        """Nothing is counted."""

    def returned(self, messages: int, size_bytes: int, /) -> None:
        """Nothing is counted."""
