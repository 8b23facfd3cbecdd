"""What connections, channels, queues, vhosts and the broker count, and the sampler of their rates.

The field names are RabbitMQ's. Every tuple is made of what the objects say at this moment, for the
views and for the sampler alike; every field of one is a whole number (``Rates`` subtracts them).

Not here: the JSON around them (``views.py``), the samples and the counters of deliveries
(``adapters/amqp/statistics.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.amqp.statistics import DeliveryCounters
from penstock.adapters.amqp.topology.queue import SUBSCRIPTION
from penstock.flow.reason import Reason

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker
    from penstock.adapters.amqp.channel import AmqpChannel
    from penstock.adapters.amqp.connection import AmqpConnection
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.engine.broker import Engine
    from penstock.engine.connection import Channel, Connection
    from penstock.engine.topic import Topic
    from penstock.flow.credit import Stage

MESSAGE_COUNTS: Final = ("messages", "messages_ready", "messages_unacknowledged")
DELIVERY_COUNTERS: Final = (
    "ack", "deliver", "deliver_get", "deliver_no_ack", "get", "get_empty", "get_no_ack",
    "redeliver",
)  # fmt: skip
"""What is counted of consumers, wherever it is shown."""
_delivery_counters: Final[Callable[[DeliveryCounters], tuple[int, ...]]] = attrgetter(
    *DELIVERY_COUNTERS
)
OVERVIEW: Final[Hashable] = "overview"


class ConnectionStatistics(NamedTuple):
    publish: int
    recv_oct: int
    send_oct: int


class ChannelStatistics(NamedTuple):
    publish: int
    confirm: int
    return_unroutable: int
    drop_unroutable: int
    ack: int
    deliver: int
    deliver_get: int
    deliver_no_ack: int
    get: int
    get_empty: int
    get_no_ack: int
    redeliver: int


class QueueStatistics(NamedTuple):
    """Of one queue, or of all queues of a vhost."""

    messages: int
    messages_ready: int
    messages_unacknowledged: int
    publish: int
    unserved_ms: int
    """Time in which messages were ready and nobody took them."""
    ack: int
    deliver: int
    deliver_get: int
    deliver_no_ack: int
    get: int
    get_empty: int
    get_no_ack: int
    redeliver: int

    def plus(self, other: QueueStatistics, sign: int = 1) -> QueueStatistics:
        """Both together, or the difference."""
        return QueueStatistics(*[mine + sign * its for mine, its in zip(self, other, strict=True)])


class BrokerStatistics(NamedTuple):
    """Of everything together; publishes are those of all protocols."""

    messages: int
    messages_ready: int
    messages_unacknowledged: int
    publish: int
    confirm: int
    return_unroutable: int
    drop_unroutable: int
    ack: int
    deliver: int
    deliver_get: int
    deliver_no_ack: int
    get: int
    get_empty: int
    get_no_ack: int
    redeliver: int
    connection_created: int
    connection_closed: int
    channel_created: int
    channel_closed: int
    queue_declared: int
    queue_created: int
    queue_deleted: int


def connection_statistics(connection: AmqpConnection) -> ConnectionStatistics:
    published = sum([channel.publisher.published for channel in connection.channels.values()])
    return ConnectionStatistics(published, connection.received_bytes, connection.sent_bytes)


def channel_statistics(channel: AmqpChannel) -> ChannelStatistics:
    publishing = channel.publisher
    confirms = publishing.confirms
    confirmed = publishing.published - confirms.outstanding if confirms is not None else 0
    return ChannelStatistics(
        publishing.published,
        confirmed,
        publishing.returned,
        publishing.dropped,
        *_delivery_counters(channel.consumers.counters),
    )


def queue_statistics(queue: AmqpQueue) -> QueueStatistics:
    ready, unacked = queue.ready, queue.unacked
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    unserved_ms = subscription.unserved_ms if subscription is not None else 0
    published = sum([each.index.next_offset for each in queue.topic.queues])
    return QueueStatistics(
        ready + unacked, ready, unacked, published, unserved_ms, *_delivery_counters(queue.counters)
    )


def deleted_queue_statistics(tally: DeliveryCounters) -> QueueStatistics:
    """Those of queues that are deleted: nothing waits in them."""
    return QueueStatistics(0, 0, 0, 0, 0, *_delivery_counters(tally))


def vhost_statistics(vhost: VirtualHost) -> QueueStatistics:
    """Those of all its queues, and what deleted ones counted."""
    whole = deleted_queue_statistics(vhost.gone)
    for queue in vhost.queues:
        whole = whole.plus(queue_statistics(queue))
    return whole


def broker_statistics(broker: AmqpBroker, vhosts: Iterable[QueueStatistics]) -> BrokerStatistics:
    """Those of all vhosts, and what publishers did."""
    whole = deleted_queue_statistics(broker.gone)
    for each in vhosts:
        whole = whole.plus(each)
    counters = broker.engine.counters
    return BrokerStatistics(
        *whole[:3],
        counters.published,
        counters.confirmed,
        counters.unroutable_returned,
        counters.unroutable_dropped,
        *whole[5:],
        **broker.context.churn,
    )


# What samples of an object are kept under.


def vhost_key(vhost: VirtualHost) -> Hashable:
    return "vhost", vhost.name


def queue_key(queue: AmqpQueue) -> Hashable:
    return "queue", queue.topic.topic_id


def connection_key(connection: AmqpConnection) -> Hashable:
    return "connection", connection.connection_id


def channel_key(channel: AmqpChannel) -> Hashable:
    return "channel", channel.connection.connection_id, channel.number


# ---- sampler ------------------------------------------------------------------------------------

SAMPLE_INTERVAL_MS: Final = 5_000
"""From sample to sample (RabbitMQ: ``collect_statistics_interval``)."""
OBJECTS_PER_STEP: Final = 100
PAUSE_MS: Final = 50


class Sampler:
    """Takes the samples that rates are made of: everything once in five seconds.

    A sweep looks at every connection, channel and queue that AMQP knows, ``OBJECTS_PER_STEP`` of
    them at a time with ``PAUSE_MS`` between, so that thousands of queues never hold up a turn: with
    more than about ten thousand objects a sweep takes longer than five seconds, and rates are means
    of that time. Totals of vhosts and of the broker are added up on the way. A task of the broker's
    timers.
    """

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker
        self._next_ms = self._began_ms = broker.clock.monotonic_ms()
        self._sweep: Iterator[None] | None = None

    def next_deadline_ms(self) -> int | None:
        return self._next_ms

    def due(self, now_ms: int) -> None:
        if self._sweep is None:
            self._sweep = self._walk()
            self._began_ms = now_ms
        for _ in range(OBJECTS_PER_STEP):
            if next(self._sweep, self) is self:
                self._sweep = None
                self._next_ms = max(self._began_ms + SAMPLE_INTERVAL_MS, now_ms + PAUSE_MS)
                return
        self._next_ms = now_ms + PAUSE_MS

    def _walk(self) -> Iterator[None]:
        """Sample everything, pausing after each object."""
        broker = self._broker
        rates, clock = broker.context.rates, broker.clock
        for connection in list(broker.connections.values()):
            rates.sample(
                connection_key(connection), connection_statistics(connection), clock.monotonic_ms()
            )
            yield
            for channel in list(connection.channels.values()):
                rates.sample(
                    channel_key(channel), channel_statistics(channel), clock.monotonic_ms()
                )
                yield
        totals = {vhost: deleted_queue_statistics(vhost.gone) for vhost in broker.vhosts.values()}
        seen: list[tuple[VirtualHost, AmqpQueue, QueueStatistics]] = []
        for topic in broker.engine.topics():
            vhost = broker.vhost_of(topic)
            queue = None if vhost is None else vhost.queues.known(topic)
            if vhost in totals and queue is not None:
                statistics = queue_statistics(queue)
                rates.sample(queue_key(queue), statistics, clock.monotonic_ms())
                totals[vhost] = totals[vhost].plus(statistics)
                seen.append((vhost, queue, statistics))
            yield
        for vhost, queue, statistics in seen:
            if queue.is_deleted:
                totals[vhost] = totals[vhost].plus(statistics, -1)
        now_ms = clock.monotonic_ms()
        for vhost, statistics in totals.items():
            rates.sample(vhost_key(vhost), statistics, now_ms)
        rates.sample(OVERVIEW, broker_statistics(broker, totals.values()), now_ms)
        rates.swept()


# ---- states -------------------------------------------------------------------------------------
# The state of a connection, channel or queue, in the words of RabbitMQ's management.
#
# | running    nothing holds it
# | flow       it waits for the next stage, or did a moment ago (queues and channels 1 s,
# |            connections 5 s: credit comes and goes many times a second, the word does not)
# | blocking   an alarm is raised, but it has published nothing, so nothing is held
# | blocked    an alarm holds what it publishes
#
# Who is to blame and since when is told by ``/api/flow``, of the same stages.


RUNNING: Final = "running"
FLOW: Final = "flow"
BLOCKING: Final = "blocking"
BLOCKED: Final = "blocked"
CONNECTION_FLOW_SHOWN_MS: Final = 5_000
"""A connection is still called in flow this long after it was (sheet 3.1)."""


def connection_state(connection: Connection, engine: Engine, now_ms: int) -> str:
    gate = connection.gate
    if gate.resources:
        return BLOCKED
    if engine.alarms.is_raised:
        return BLOCKING
    if gate.reasons or _was_in_flow(connection.stage, now_ms):
        return FLOW
    return RUNNING


def channel_state(channel: Channel | None, now_ms: int) -> str:
    """One that never published (None) has nothing to wait for."""
    if channel is None:
        return RUNNING
    return FLOW if channel.hold is not None else _state(channel.stage, now_ms)


def queue_state(topic: Topic, now_ms: int) -> str:
    """The worst of the queues that a topic is made of."""
    states = {_state(queue.stage, now_ms) for queue in topic.queues}
    return FLOW if FLOW in states else RUNNING


def _state(stage: Stage, now_ms: int) -> str:
    return FLOW if stage.episodes.reasons(now_ms) else RUNNING


def _was_in_flow(stage: Stage, now_ms: int) -> bool:
    episodes = stage.episodes
    if episodes.reasons(now_ms):
        return True
    return any(
        each.reason is Reason.FLOW and now_ms - each.until_ms < CONNECTION_FLOW_SHOWN_MS
        for each in episodes.history
    )
