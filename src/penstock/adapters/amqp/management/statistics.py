"""What connections, channels, queues, vhosts and the broker count, and the walk that samples them.

The field names are RabbitMQ's. Every tuple is made of what the objects say at this moment, for the
views and for the sampler alike; every field of one is a whole number (rates subtract them).

Not here: the JSON around them (``views.py``), the counters of deliveries
(``adapters/amqp/statistics.py``), the samples (``engine/sampler.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.amqp.statistics import DeliveryCounters, RateKey
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
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    ready = unacked = unserved_ms = 0
    if subscription is not None:
        ready, unacked = subscription.counts()
        unserved_ms = subscription.unserved_ms
    published = sum([each.index.next_offset for each in queue.topic.queues])
    return QueueStatistics(
        ready + unacked, ready, unacked, published, unserved_ms, *_delivery_counters(queue.counters)
    )


def deleted_queue_statistics(tally: DeliveryCounters) -> QueueStatistics:
    """Those of queues that are deleted: nothing waits in them."""
    return QueueStatistics(0, 0, 0, 0, 0, *_delivery_counters(tally))


class VhostTotals(NamedTuple):
    """A vhost at one moment, or nearly so."""

    statistics: QueueStatistics
    """Of all its queues, and of those that are deleted."""
    queues: int
    consumers: int


def vhost_steps(vhost: VirtualHost) -> Generator[int, None, VhostTotals]:
    """What it adds up to, freshly looked at; a step for each queue."""
    total = list(deleted_queue_statistics(vhost.gone))
    queues = consumers = 0
    for queue in vhost.queues:
        figures = queue_statistics(queue)
        total = [sum_ + each for sum_, each in zip(total, figures, strict=True)]
        queues += 1
        consumers += queue.consumers
        yield 1
    return VhostTotals(QueueStatistics(*total), queues, consumers)


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

VHOST: Final = "amqp.vhost"
QUEUE: Final = "amqp.queue"
CONNECTION: Final = "amqp.connection"
CHANNEL: Final = "amqp.channel"
OVERVIEW: Final[RateKey] = ("amqp.overview", 0)


def vhost_key(vhost: VirtualHost) -> RateKey:
    return VHOST, vhost.name


def queue_key(queue: AmqpQueue) -> RateKey:
    return QUEUE, queue.topic.topic_id


def connection_key(connection: AmqpConnection) -> RateKey:
    return CONNECTION, connection.connection_id


def channel_key(channel: AmqpChannel) -> RateKey:
    return CHANNEL, (channel.connection.connection_id, channel.number)


# ---- walk ---------------------------------------------------------------------------------------


class AmqpWalk:
    """Samples every connection, channel and queue that AMQP knows, for the broker's sampler.

    Totals of vhosts and of the broker are the sums of what was sampled, kept on the way: only what
    moved is added.
    """

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker
        self._sampler = sampler = broker.engine.sampler
        live = broker.connections
        self._moved = sampler.stamps(lambda key: key in live)
        self._connections = sampler.table(
            CONNECTION, ConnectionStatistics._fields, lambda key: key in live
        )
        self._channels = sampler.table(CHANNEL, ChannelStatistics._fields, self._has_channel)
        # What is gone is dropped by ``_removed``.
        self._queues = sampler.table(QUEUE, QueueStatistics._fields, lambda _: True)
        vhosts = broker.vhosts
        self._vhosts = sampler.table(VHOST, QueueStatistics._fields, lambda key: key in vhosts)
        self._overview = sampler.table(OVERVIEW[0], BrokerStatistics._fields, lambda _: True)
        self._totals: dict[VirtualHost, list[int]] = {}
        # Of each queue that is sampled, by topic.
        self._counters: dict[Topic, DeliveryCounters] = {}
        broker.engine.watch_removals(self._removed)
        broker.engine.hop_rates.looks.append(self)
        sampler.add(self.steps)

    def steps(self) -> Iterator[int]:
        """Connections and channels, and the totals; queues come with the topics that moved."""
        broker, sampler = self._broker, self._sampler
        for connection in list(broker.connections.values()):
            key = connection.connection_id
            # Whatever moves on a connection comes or goes as bytes.
            if self._moved.is_moved(key, connection.received_bytes + connection.sent_bytes):
                self._connections.note(key, connection_statistics(connection), sampler.now_ms)
                for channel in list(connection.channels.values()):
                    figures = channel_statistics(channel)
                    self._channels.note((key, channel.number), figures, sampler.now_ms)
                    yield 1
            yield 1
        wholes = []
        for vhost in list(broker.vhosts.values()):
            total = QueueStatistics(*self._total(vhost))
            whole = deleted_queue_statistics(vhost.gone).plus(total)
            self._vhosts.note(vhost.name, whole, sampler.now_ms)
            wholes.append(whole)
            yield 1
        self._overview.note(OVERVIEW[1], broker_statistics(broker, wholes), sampler.now_ms)

    def stamp(self, topic: Topic) -> int:
        """What the engine does not see: that AMQP came to know it, and gets that found nothing."""
        counters = self._counters.get(topic)
        if counters is None:
            return 0 if self._queue(topic) is None else 1
        return 2 + counters.get_empty

    def look(self, topic: Topic) -> None:
        queue = self._queue(topic)
        vhost = self._broker.vhost_of(topic)
        if queue is None or vhost is None:
            return
        self._counters[topic] = queue.counters
        total = self._total(vhost)
        self._queues.still_sweeps = self._broker.engine.hop_rates.still_sweeps
        self._queues.note(topic.topic_id, queue_statistics(queue), self._sampler.now_ms, total)

    def _queue(self, topic: Topic) -> AmqpQueue | None:
        vhost = self._broker.vhost_of(topic)
        queue = None if vhost is None else vhost.queues.known(topic)
        return None if queue is None or queue.is_deleted else queue

    def _total(self, vhost: VirtualHost) -> list[int]:
        found = self._totals.get(vhost)
        if found is None:
            living = set(self._broker.vhosts.values())
            self._totals = {each: sums for each, sums in self._totals.items() if each in living}
            found = self._totals[vhost] = list(_NOTHING)
        return found

    def _removed(self, topic: Topic) -> None:
        # At once: what it counted goes on in ``gone`` of its vhost, and must not count twice.
        self._queues.drop(topic.topic_id)
        self._counters.pop(topic, None)

    def _has_channel(self, key: Hashable) -> bool:
        assert isinstance(key, tuple)
        connection = self._broker.connections.get(key[0])
        return connection is not None and key[1] in connection.channels


_NOTHING: Final = (0,) * len(QueueStatistics._fields)


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
