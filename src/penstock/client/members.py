"""What a client instance knows of its members: producers and consumers, by what they can do.

All of it is called on the client's thread. Coroutines may take their time, plain methods may not.

Not here: the instance (``instance.py``), those who implement it (``producer/``, ``consumer/``).
"""

from __future__ import annotations

from typing import Any, Protocol

from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import ConsumerData
from penstock.wire.rocketmq.headers import CheckTransactionHeader
from penstock.wire.rocketmq.stored import StoredMessage


class ConsumerMember(Protocol):
    """A consumer of one group, as the instance sees it."""

    @property
    def group(self) -> str:
        """Its consumer group."""
        ...

    def heartbeat(self) -> ConsumerData:
        """What brokers are told of it."""
        ...

    def topics(self) -> set[str]:
        """Topics whose routes are kept fresh for it, its retry topic among them."""
        ...

    async def rebalance(self) -> bool:
        """Divide the queues anew; True when they are divided, False asks for another try soon."""
        ...

    async def persist_offsets(self) -> None:
        """Store what was consumed since the last time."""
        ...

    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        """An operator moved the group (220)."""
        ...

    def consume_status(self, topic: str) -> dict[QueueRef, int]:
        """How far each of its queues is (221)."""
        ...

    def running_info(self, with_stacks: bool) -> dict[str, Any]:
        """All about it, as JSON (307); maps by queue may have ``QueueRef`` keys."""
        ...

    async def consume_directly(self, message: StoredMessage, broker: str) -> dict[str, Any]:
        """Give one message to the listener now; the outcome as JSON (309)."""
        ...

    def route_changed(self, topic: str) -> None:
        """The route of a topic of its own is new or differs; the instance rebalances by itself."""
        ...


class ProducerMember(Protocol):
    """A producer of one group, as the instance sees it."""

    @property
    def group(self) -> str:
        """Its producer group."""
        ...

    def topics(self) -> set[str]:
        """Topics whose routes are kept fresh for it."""
        ...

    def check_transaction(
        self, address: str, header: CheckTransactionHeader, message: StoredMessage
    ) -> None:
        """A broker asks what became of a half message (39)."""
        ...
