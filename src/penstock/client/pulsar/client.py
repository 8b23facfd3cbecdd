"""``Client``: where producers, consumers and readers come from, and how all of them end.

Closing goes from the application inwards: consumers, readers and table views (their last acks are
sent), then producers (what was sent is flushed), then the connections.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, Unpack

from penstock.client.loop import MachineClock, awaitable, blocking, client_loop
from penstock.client.options import resolve
from penstock.client.pulsar.connection import Connect, connect_tcp
from penstock.client.pulsar.consumer.consumer import Consumer, ListenerThread, topics_of
from penstock.client.pulsar.consumer.redelivery import retry_letter_topic
from penstock.client.pulsar.errors import InvalidUse, StateError, WouldBlock
from penstock.client.pulsar.lookup import Cluster
from penstock.client.pulsar.message import MessageId, check_text
from penstock.client.pulsar.options import ClientOptions, ConsumerOptions
from penstock.client.pulsar.producer import Producer, ProducerOptions
from penstock.client.pulsar.reader import Reader, ReaderOptions, reader_options, subscription_of
from penstock.client.pulsar.schema import Schema
from penstock.client.pulsar.table_view import TableView, TableViewOptions, table_view_options
from penstock.client.pulsar.topics import parse_topic
from penstock.model.clock import Clock

_log = logging.getLogger(__name__)

OPEN_MAX: Final = 100_000
"""Producers, consumers and readers of one client."""


class Closable(Protocol):
    """What a client made and closes with itself; both on the client's thread."""

    @property
    def is_closed_before_producers(self) -> bool:
        """True for consumers, readers and table views."""
        ...

    async def shut(self) -> None:
        """Close it; never raises because the broker is away."""
        ...


class Client:
    """Everything that one application does with a Pulsar cluster; any thread may use it.

    with Client("pulsar://localhost:6650") as client:
        consumer = client.subscribe("orders", "billing")

    Nothing is sent before it is needed: a wrong URL is refused at once, an absent broker when
    something is opened.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        connect: Connect = connect_tcp,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._cluster = Cluster(
            url, resolve(ClientOptions, options), clock or MachineClock(), connect=connect
        )
        self._thread: Final = client_loop()
        self._open: dict[int, Closable] = {}
        self._is_closed = False

    async def _get_topic_partitions(self, topic: str) -> list[str]:
        """Full names of a topic's partitions; the topic itself when it has none."""
        self._check_open()
        name = parse_topic(topic)
        count = await self._cluster.retried(
            lambda: self._cluster.partitions(name), f"partitions of topic {name}"
        )
        return [str(name.of_partition(n)) for n in range(count)] or [str(name)]

    get_topic_partitions = blocking(_get_topic_partitions)
    get_topic_partitions_async = awaitable(_get_topic_partitions)

    async def _create_producer(
        self, topic: str, *, schema: Schema | None = None, **options: Unpack[ProducerOptions]
    ) -> Producer:
        """A producer of a topic, connected; raises what it was refused with."""
        self._check_open()
        _check_schema(schema)
        _check_properties("properties", options.get("properties"))
        producer = Producer(
            self._cluster, parse_topic(topic), schema=schema, on_closed=self._forget, **options
        )
        self._adopt(producer)
        try:
            await producer.open()
        except BaseException:
            self._forget(producer)
            raise
        return producer

    create_producer = blocking(_create_producer)
    create_producer_async = awaitable(_create_producer)

    async def _subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription_name: str,
        *,
        schema: Schema | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer of a topic, of several, or of all that match a compiled pattern, connected.

        A pattern is ``re.compile("tenant/namespace/orders-.*")``. Raises ``InvalidUse`` for what
        cannot be right, ``Refused`` and others for what the broker says.
        """
        self._check_open()
        resolved = resolve(ConsumerOptions, options)
        _check_schema(schema)
        _check_properties("properties", resolved["properties"])
        _check_properties("subscription_properties", resolved["subscription_properties"])
        topics = topics_of(topic)
        if resolved["is_retry_enabled"] and not isinstance(topics, re.Pattern) and topics:
            policy = resolved["dead_letter_policy"]
            letters = retry_letter_topic(policy, str(topics[0].whole), subscription_name)
            topics = topics_of([*map(str, topics), letters])
        consumer = Consumer(
            self._cluster,
            topics,
            subscription_name,
            resolved,
            schema=schema,
            make_producer=self._make_letter_producer,
            on_closed=self._forget,
        )
        self._adopt(consumer)
        try:
            await consumer.open()
        except BaseException:
            await consumer.shut()
            raise
        return consumer

    subscribe = blocking(_subscribe)
    subscribe_async = awaitable(_subscribe)

    async def _create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        *,
        schema: Schema | None = None,
        **options: Unpack[ReaderOptions],
    ) -> Reader:
        """A reader of a topic that begins behind a message, or at one of the two places.

        ``MessageId.earliest`` is the first message, ``MessageId.latest`` what comes from now on.
        """
        if not isinstance(start_message_id, MessageId):
            raise InvalidUse(
                f"a reader starts at a MessageId, not {start_message_id!r}; use MessageId.earliest"
                f" or MessageId.latest for the ends of the topic"
            )
        resolved = resolve(ReaderOptions, options)
        consumer = await self._subscribe(
            topic,
            subscription_of(resolved["subscription_prefix"]),
            schema=schema,
            **reader_options(start_message_id, resolved),
        )
        is_place = start_message_id in (MessageId.earliest, MessageId.latest)
        if len(consumer.topics) > 1 and not is_place:
            await consumer.shut()
            raise InvalidUse(
                f"topic {topic} has partitions, and a message id is of one of them: start at"
                f" MessageId.earliest or MessageId.latest, or read a partition by its own name"
            )
        return Reader(consumer)

    create_reader = blocking(_create_reader)
    create_reader_async = awaitable(_create_reader)

    async def _create_table_view(
        self, topic: str, *, schema: Schema | None = None, **options: Unpack[TableViewOptions]
    ) -> TableView:
        """The newest value of each key of a topic, all that is there read already."""
        resolved = resolve(TableViewOptions, options)
        view = TableView(topic, resolved["keys_max"])
        consumer = await self._subscribe(
            topic,
            subscription_of(resolved["subscription_prefix"]),
            schema=schema,
            **table_view_options(resolved, view.take),
        )
        try:
            await view.fill(consumer, self._cluster.options["operation_timeout_ms"])
        except BaseException:
            await consumer.shut()
            raise
        return view

    create_table_view = blocking(_create_table_view)
    create_table_view_async = awaitable(_create_table_view)

    async def _make_letter_producer(self, topic: str, subscription: str | None) -> Producer:
        """For retry and dead letters: one by one, in chunks if they are large."""
        return await self._create_producer(
            topic,
            batching_enabled=False,
            chunking_enabled=True,
            initial_subscription_name=subscription,
        )

    def close(self) -> None:
        """Close everything this client made, then its connections; again does nothing.

        Listeners at work are waited for, and may ack and send; one that calls this waits for none.
        So are callbacks of sends.
        In the child of a fork it does nothing either: all of it is the parent's.
        """
        if not self._thread.is_orphan:
            ListenerThread.join_all(self._thread.run(self._end_listeners()))
            for producer in self._thread.run(self._close()):
                producer.end_callbacks()

    async def close_async(self) -> None:
        """The same for any event loop, without waiting for listeners."""
        if not self._thread.is_orphan:
            for producer in await self._thread.on(self._close()):
                await producer.end_callbacks_async()

    async def _end_listeners(self) -> list[ListenerThread]:
        """Of all consumers, before the first is closed: what they ack and send has its way out."""
        consumers = [each for each in self._open.values() if isinstance(each, Consumer)]
        return [thread for each in consumers for thread in await each.end_listeners()]

    async def _close(self) -> list[Producer]:
        """Producers that were closed, of which callbacks may still run."""
        if self._is_closed:
            return []
        self._is_closed = True
        producers = [each for each in self._open.values() if isinstance(each, Producer)]
        # Each takes itself out.
        for is_first in (True, False):
            for each in list(self._open.values()):
                if each.is_closed_before_producers is is_first:
                    try:
                        await each.shut()
                    except Exception:
                        _log.exception("closing failed", extra={"what": str(each)})
        self._open.clear()
        await self._cluster.close()
        return producers

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __str__(self) -> str:
        return f"client of {self._cluster.url}, {len(self._open)} open"

    # ---- what it made ----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateError(f"the client of {self._cluster.url} is closed; make a new one")
        if len(self._open) >= OPEN_MAX:
            raise WouldBlock(f"{OPEN_MAX} producers and consumers are open; close some")

    def _adopt(self, made: Closable) -> None:
        self._open[id(made)] = made

    def _forget(self, made: Closable) -> None:
        self._open.pop(id(made), None)


def _check_schema(schema: object) -> None:
    if schema is not None and not isinstance(schema, Schema):
        raise InvalidUse(
            f"a schema is StringSchema(), JsonSchema(...) or the like, or None for bytes, not"
            f" {schema!r}"
        )


def _check_properties(option: str, given: object) -> None:
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidUse(f"{option} have {name!r}: {value!r}; names and values are str")
        check_text(f"{option} have a name", name)
        check_text(f"{option} have {name!r}:", value)
