"""A table view is a topic as a map: the newest value of each key, kept up to date.

    with client.create_table_view("prices", schema=JsonSchema()) as prices:
        prices["pen"]

It reads the topic from its first message (compacted, where the topic is), and is given to the
program when everything that was there has been read. Then it follows: a message with a key puts its
value, one without a value takes the key out, one without a key is passed over.

A thread of its consumer's reads; ``listen`` calls back on it.
Bound: ``keys_max`` keys; a topic with more of them ends the view, and says so.
Invariants: the map is never seen in the middle of a message; of one key values are seen in order.
Not here: reading (``consumer/consumer.py``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, TypedDict

from penstock.client.options import Option
from penstock.client.pulsar.consumer.consumer import Consumer
from penstock.client.pulsar.errors import ClientError, StateError, TimedOut, WouldBlock
from penstock.client.pulsar.message import MessageId, ReceivedMessage
from penstock.client.pulsar.options import ConsumerOptions
from penstock.client.pulsar.why import Waits, Why

_log: Final = logging.getLogger(__name__)

LOOK_MS: Final = 5
COMPACTED_MS: Final = 1_000
"""When the broker has had nothing to send for so long, the rest was compacted away."""

OnChange = Callable[[str, Any], object]
"""Called with a key and its new value; None = it is gone."""


class TableViewOptions(TypedDict, total=False):
    """What ``Client.create_table_view`` takes as keywords."""

    subscription_prefix: Annotated[
        str, Option("table-view", "Front of the name of its subscription, which is random.")
    ]
    keys_max: Annotated[int, Option(1_000_000, "Keys that it holds; more of them end it.", 1)]
    receiver_queue_size: Annotated[
        int, Option(1_000, "Messages received ahead of the table.", 1, 1_000_000)
    ]
    is_read_compacted: Annotated[
        bool, Option(True, "Read what compaction has left, where it has run; persistent topics.")
    ]


def table_view_options(
    options: TableViewOptions, listener: Callable[[Consumer, ReceivedMessage], object]
) -> ConsumerOptions:
    """Those of the consumer below a table view."""
    return {
        "is_durable": False,
        "start_message_id": MessageId.earliest,
        "receiver_queue_size": options["receiver_queue_size"],
        "is_read_compacted": options["is_read_compacted"],
        "listener": listener,
    }


class TableView(Mapping[str, Any]):
    """The newest value of each key of a topic; ``Client.create_table_view`` makes it."""

    def __init__(self, topic: str, keys_max: int) -> None:
        self.topic: Final = topic
        self._keys_max = keys_max
        self._rows: dict[str, Any] = {}
        self._listeners: list[OnChange] = []
        # A listener may look at the table while ``for_each_and_listen`` calls it.
        self._lock = threading.RLock()
        self._waited: dict[str, MessageId] = {}
        """Where the topic and its partitions ended when the view was opened."""
        self._seen: dict[str, MessageId] = {}
        self._is_filled = threading.Event()
        self._problem: ClientError | None = None
        self._consumer: Consumer | None = None

    def __getitem__(self, key: str) -> Any:
        """Its newest value; raises ``KeyError``."""
        self._check()
        return self._rows[key]

    def __contains__(self, key: object) -> bool:
        self._check()
        return key in self._rows

    def __len__(self) -> int:
        self._check()
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        """The keys there are now."""
        self._check()
        with self._lock:
            return iter(list(self._rows))

    def snapshot(self) -> dict[str, Any]:
        """A copy of the whole table, as it is between two messages."""
        self._check()
        with self._lock:
            return dict(self._rows)

    def listen(self, on_change: OnChange) -> None:
        """Call this for every change from now on, on the thread that reads."""
        self._check()
        with self._lock:
            self._listeners.append(on_change)

    def for_each_and_listen(self, on_change: OnChange) -> None:
        """Call this for every key there is, here and now, and then for every change."""
        self._check()
        with self._lock:
            for key, value in self._rows.items():
                on_change(key, value)
            self._listeners.append(on_change)

    def why(self) -> Why:
        """What its consumer waits for."""
        return self._reading().why()

    def close(self) -> None:
        """Leave; again does nothing."""
        self._reading().close()

    async def close_async(self) -> None:
        """The same for any event loop."""
        await self._reading().close_async()

    def __enter__(self) -> TableView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> TableView:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __str__(self) -> str:
        return f"table view of {self.topic}, {len(self._rows):,} keys"

    def __repr__(self) -> str:
        return f"<{self}>"

    # ---- reading ---------------------------------------------------------------------------------

    async def fill(self, consumer: Consumer, patience_ms: int) -> None:
        """Return when everything that is there now has been read; on the client's thread.

        Raises ``TimedOut`` when nothing more of it comes within ``patience_ms``.
        """
        ends = await consumer.last_message_ids_async()
        with self._lock:
            self._consumer = consumer
            self._waited = {name: last for name, last in ends.items() if last.entry_id >= 0}
            self._look_whether_filled()
        seen, waited_ms = -1, 0
        while not self._is_filled.is_set():
            await asyncio.sleep(LOOK_MS / 1000)
            found = consumer.statistics().messages
            waited_ms = 0 if found != seen else waited_ms + LOOK_MS
            seen = found
            # What compaction took away is never seen, be it the last message of the topic.
            if waited_ms >= COMPACTED_MS and consumer.why().reason is Waits.MESSAGES:
                # A broker that only takes its time answers this behind what it still has to send.
                await consumer.last_message_ids_async()
                if consumer.statistics().messages == seen:
                    break
            if waited_ms >= patience_ms:
                raise TimedOut(consumer.what, patience_ms, f"filling of the {self}")
        self._check()

    def take(self, consumer: Consumer, message: ReceivedMessage) -> None:
        """One message, on the thread that reads."""
        if self._problem is not None:
            return
        key = message.key
        try:
            value = message.value if key is not None else None
        except ClientError as problem:
            # Its neighbours are as good as before; the old value is not true any more.
            _log.warning("value unreadable", extra={"of": str(self), "why": str(problem)})
            value = None
        with self._lock:
            if key is not None:
                self._put(key, value)
            self._seen[message.topic] = message.message_id
            if not self._is_filled.is_set():
                self._look_whether_filled()
            is_told = key is not None and self._problem is None
            listeners = list(self._listeners) if is_told else []
        for each in listeners:
            try:
                each(key or "", value)
            except Exception:
                _log.exception("listener failed", extra={"of": str(self)})
        # It may be closed at this moment.
        with suppress(StateError):
            consumer.acknowledge_cumulative(message)

    def _put(self, key: str, value: Any) -> None:
        if value is None:
            self._rows.pop(key, None)
            return
        if key not in self._rows and len(self._rows) >= self._keys_max:
            self._problem = WouldBlock(
                f"{self} would have more than keys_max={self._keys_max} keys; raise keys_max, or"
                f" read the topic with a consumer"
            )
            self._is_filled.set()
            return
        self._rows[key] = value

    def _look_whether_filled(self) -> None:
        if self._consumer is None:
            return
        nothing = MessageId.earliest
        waited = self._waited.items()
        if all(self._seen.get(name, nothing).entry >= last.entry for name, last in waited):
            self._is_filled.set()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _reading(self) -> Consumer:
        if self._consumer is None:
            raise StateError(f"{self} is not open")
        return self._consumer
