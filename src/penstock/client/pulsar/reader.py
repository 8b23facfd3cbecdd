"""A reader goes through a topic from any place, and leaves no trace at the broker.

    with client.create_reader("orders", MessageId.earliest) as reader:
        while reader.has_message_available():
            print(reader.read_next().value)

It is a consumer of a subscription of its own that is not durable: nobody shares it, and it ends
with the reader. What was read is acknowledged by and by, so that the broker knows how far it is;
after a reconnect the reader goes on behind the last message it handed out. ``MessageId.earliest``
and ``MessageId.latest`` are places; any other id is the last one that is not read again, unless
``is_start_inclusive``.

Threads: every method may be called from any thread but the client's own.
Not here: what a consumer does (``consumer/consumer.py``).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Annotated, Final, TypedDict

from penstock.client.loop import awaitable, blocking, client_loop
from penstock.client.options import Option
from penstock.client.pulsar.consumer.consumer import Consumer, ConsumerStatistics
from penstock.client.pulsar.errors import StateError
from penstock.client.pulsar.message import MessageId, ReceivedMessage
from penstock.client.pulsar.options import ConsumerOptions
from penstock.client.pulsar.why import Why


class ReaderOptions(TypedDict, total=False):
    """What ``Client.create_reader`` takes as keywords."""

    reader_name: Annotated[
        str | None, Option(None, "What the broker calls it; a random name by default.")
    ]
    subscription_prefix: Annotated[
        str, Option("reader", "Front of the name of its subscription, which is random.")
    ]
    is_start_inclusive: Annotated[
        bool, Option(False, "Whether the message with the start id is read, too.")
    ]
    start_rollback_s: Annotated[
        int, Option(0, "Begin with messages published this long ago, whatever the start id.", 0)
    ]
    receiver_queue_size: Annotated[
        int, Option(1_000, "Messages received ahead of the application.", 0, 1_000_000)
    ]
    receiver_queue_bytes_max: Annotated[
        int, Option(64 * 1024 * 1024, "Bytes received ahead of the application.", 1)
    ]
    is_read_compacted: Annotated[bool, Option(False, "Read the newest value of each key only.")]
    properties: Annotated[
        Mapping[str, str] | None, Option(None, "What the broker shows of this reader.")
    ]


def reader_options(start: MessageId, options: ReaderOptions) -> ConsumerOptions:
    """Those of the consumer below a reader."""
    return {
        "is_durable": False,
        "start_message_id": start,
        "consumer_name": options["reader_name"],
        "is_start_inclusive": options["is_start_inclusive"],
        "start_rollback_s": options["start_rollback_s"],
        "receiver_queue_size": options["receiver_queue_size"],
        "receiver_queue_bytes_max": options["receiver_queue_bytes_max"],
        "is_read_compacted": options["is_read_compacted"],
        "properties": options["properties"],
    }


def subscription_of(prefix: str) -> str:
    """A name that nobody else has."""
    return f"{prefix}-{secrets.token_hex(5)}"


class Reader:
    """Reads a topic; ``Client.create_reader`` makes it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer: Final = consumer
        self._thread: Final = client_loop()

    def read_next(self, timeout_ms: int | None = None) -> ReceivedMessage:
        """The next message; waits for it, or raises ``NothingReceived`` when the time is up."""
        message = self._consumer.receive(timeout_ms)
        self._consumer.acknowledge_cumulative(message)
        return message

    async def read_next_async(self, timeout_ms: int | None = None) -> ReceivedMessage:
        """The same for any event loop."""
        message = await self._consumer.receive_async(timeout_ms)
        await self._consumer.acknowledge_cumulative_async(message)
        return message

    def __iter__(self) -> Reader:
        """Messages without end: until the reader is closed."""
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            return self.read_next()
        except StateError:
            raise StopIteration from None

    async def _has_message_available(self) -> bool:
        """Whether ``read_next`` would give a message that is there already."""
        if self._consumer.statistics().queued:
            return True
        found = await asyncio.gather(*[part.has_more() for part in self._consumer.parts()])
        return any(found)

    has_message_available = blocking(_has_message_available)
    has_message_available_async = awaitable(_has_message_available)

    async def _seek(self, target: MessageId | int) -> None:
        """Go to a message, or to a wall time in milliseconds."""
        await self._consumer.seek_async(target)

    seek = blocking(_seek)
    seek_async = awaitable(_seek)

    async def _last_message_ids(self) -> dict[str, MessageId]:
        """Of each topic or partition: the id of its last message; (-1, -1) when it is empty."""
        return await self._consumer.last_message_ids_async()

    last_message_ids = blocking(_last_message_ids)
    last_message_ids_async = awaitable(_last_message_ids)

    @property
    def topics(self) -> list[str]:
        """Full names of the topic or its partitions."""
        return self._consumer.topics

    @property
    def name(self) -> str:
        """What the broker calls it."""
        return self._consumer.name

    @property
    def is_connected(self) -> bool:
        """True while all partitions are."""
        return self._consumer.is_connected

    def why(self) -> Why:
        """What it waits for now, in one sentence."""
        return self._consumer.why()

    def statistics(self) -> ConsumerStatistics:
        """Those of its consumer."""
        return self._consumer.statistics()

    def close(self) -> None:
        """Leave; again does nothing."""
        self._consumer.close()

    async def close_async(self) -> None:
        """The same for any event loop."""
        await self._consumer.close_async()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __str__(self) -> str:
        return f"reader {self.name!r} of {', '.join(self.topics)}: {self.why()}"

    def __repr__(self) -> str:
        return f"<{self}>"
