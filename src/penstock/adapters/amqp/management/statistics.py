"""The figures of connections, channels, queues, vhosts and the house that have rates.

Every one is made of what the objects say at this moment, for the views and for the sampler alike.

Not here: field names around them (``client_views.py``, ``topology_views.py``), samples
(``rates.py``).
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

LEVELS: Final = ("messages", "messages_ready", "messages_unacknowledged")
HANDED: Final = (
    "ack", "deliver", "deliver_get", "deliver_no_ack", "get", "get_empty", "get_no_ack",
    "redeliver",
)  # fmt: skip
"""What is counted of consumers, wherever it is shown."""
_handed: Final[Callable[[DeliveryCounters], tuple[int, ...]]] = attrgetter(*HANDED)
OVERVIEW: Final[Hashable] = "overview"


class ConnectionFigures(NamedTuple):
    """Of one connection."""

    publish: int
    recv_oct: int
    send_oct: int


class ChannelFigures(NamedTuple):
    """Of one channel."""

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


class QueueFigures(NamedTuple):
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

    def plus(self, other: QueueFigures, sign: int = 1) -> QueueFigures:
        """Both together, or the difference."""
        return QueueFigures(*[mine + sign * its for mine, its in zip(self, other, strict=True)])


class BrokerFigures(NamedTuple):
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


def connection_figures(connection: AmqpConnection) -> ConnectionFigures:
    published = sum([channel.publisher.published for channel in connection.channels.values()])
    return ConnectionFigures(published, connection.received_bytes, connection.sent_bytes)


def channel_figures(channel: AmqpChannel) -> ChannelFigures:
    publishing = channel.publisher
    confirms = publishing.confirms
    confirmed = publishing.published - confirms.outstanding if confirms is not None else 0
    return ChannelFigures(
        publishing.published,
        confirmed,
        publishing.returned,
        publishing.dropped,
        *_handed(channel.consumers.counters),
    )


def queue_figures(queue: AmqpQueue) -> QueueFigures:
    ready, unacked = queue.ready, queue.unacked
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    unserved_ms = subscription.unserved_ms if subscription is not None else 0
    published = sum([each.index.next_offset for each in queue.topic.queues])
    return QueueFigures(
        ready + unacked, ready, unacked, published, unserved_ms, *_handed(queue.counters)
    )


def gone_figures(tally: DeliveryCounters) -> QueueFigures:
    """Those of queues that are deleted: nothing waits in them."""
    return QueueFigures(0, 0, 0, 0, 0, *_handed(tally))


def vhost_figures(vhost: VirtualHost) -> QueueFigures:
    """Those of all its queues, and what deleted ones counted."""
    whole = gone_figures(vhost.gone)
    for queue in vhost.queues:
        whole = whole.plus(queue_figures(queue))
    return whole


def broker_figures(broker: AmqpBroker, vhosts: Iterable[QueueFigures]) -> BrokerFigures:
    """Those of all vhosts, and what publishers did."""
    whole = gone_figures(broker.gone)
    for each in vhosts:
        whole = whole.plus(each)
    counters = broker.engine.counters
    returned, dropped = (
        broker.context.undelivered.get(each, 0) for each in ("returned", "unroutable")
    )
    return BrokerFigures(
        *whole[:3],
        # The engine never sees what AMQP finds no queue for.
        counters.published + returned + dropped,
        counters.confirmed,
        returned,
        dropped,
        *whole[5:],
        **broker.context.churn,
    )


def vhost_key(vhost: VirtualHost) -> Hashable:
    """What its samples are kept under."""
    return "vhost", vhost.name


def queue_key(queue: AmqpQueue) -> Hashable:
    """What its samples are kept under."""
    return "queue", queue.topic.topic_id


def connection_key(connection: AmqpConnection) -> Hashable:
    """What its samples are kept under."""
    return "connection", connection.connection_id


def channel_key(channel: AmqpChannel) -> Hashable:
    """What its samples are kept under."""
    return "channel", channel.connection.connection_id, channel.number


# ---- sampler ------------------------------------------------------------------------------------
# Takes the samples that rates are made of: everything once in five seconds, a little at a time.
#
# A sweep looks at every connection, channel and queue that is known to AMQP, ``OBJECTS_A_STEP`` of
# them at a time with ``PAUSE_MS`` between, so that thousands of queues never hold up a turn: with
# more than about ten thousand objects a sweep takes longer than five seconds, and rates are means
# of that time. Totals of vhosts and of the house are added up on the way.
#
# Not here: the samples (``rates.py``), the clock that calls (``server/opening.py``).


STEP_MS: Final = 5_000
"""From sample to sample (RabbitMQ: ``collect_statistics_interval``)."""
OBJECTS_A_STEP: Final = 100
PAUSE_MS: Final = 50


class Sampler:
    """A task of the house's timers."""

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker
        self._next_ms = self._began_ms = broker.clock.monotonic_ms()
        self._sweep: Iterator[None] | None = None

    def next_deadline_ms(self) -> int | None:
        """The next step, or the next sweep."""
        return self._next_ms

    def due(self, now_ms: int) -> None:
        if self._sweep is None:
            self._sweep = self._walk()
            self._began_ms = now_ms
        for _ in range(OBJECTS_A_STEP):
            if next(self._sweep, self) is self:
                self._sweep = None
                self._next_ms = max(self._began_ms + STEP_MS, now_ms + PAUSE_MS)
                return
        self._next_ms = now_ms + PAUSE_MS

    def _walk(self) -> Iterator[None]:
        """Sample everything, pausing after each object."""
        broker = self._broker
        rates, clock = broker.context.rates, broker.clock
        for connection in list(broker.connections.values()):
            rates.sample(
                connection_key(connection), connection_figures(connection), clock.monotonic_ms()
            )
            yield
            for channel in list(connection.channels.values()):
                rates.sample(channel_key(channel), channel_figures(channel), clock.monotonic_ms())
                yield
        totals = {vhost: gone_figures(vhost.gone) for vhost in broker.vhosts.values()}
        seen: list[tuple[VirtualHost, AmqpQueue, QueueFigures]] = []
        for topic in broker.engine.topics():
            vhost = broker.vhost_of(topic)
            queue = None if vhost is None else vhost.queues.known(topic)
            if vhost in totals and queue is not None:
                figures = queue_figures(queue)
                rates.sample(queue_key(queue), figures, clock.monotonic_ms())
                totals[vhost] = totals[vhost].plus(figures)
                seen.append((vhost, queue, figures))
            yield
        for vhost, queue, figures in seen:
            if queue.is_deleted:
                totals[vhost] = totals[vhost].plus(figures, -1)
        now_ms = clock.monotonic_ms()
        for vhost, figures in totals.items():
            rates.sample(vhost_key(vhost), figures, now_ms)
        rates.sample(OVERVIEW, broker_figures(broker, totals.values()), now_ms)
        rates.swept()


# ---- states -------------------------------------------------------------------------------------
# The word for how a connection, channel or queue fares, as RabbitMQ's management shows it.
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
CONNECTION_MEMORY_MS: Final = 5_000
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
    """How a channel fares; one that never published has nothing to wait for."""
    if channel is None:
        return RUNNING
    return FLOW if channel.hold is not None else _state(channel.stage, now_ms)


def queue_state(topic: Topic, now_ms: int) -> str:
    """How a queue fares: as the worst of the queues it is made of."""
    states = {_state(queue.stage, now_ms) for queue in topic.queues}
    return FLOW if FLOW in states else RUNNING


def _state(stage: Stage, now_ms: int) -> str:
    return FLOW if stage.episodes.reasons(now_ms) else RUNNING


def _was_in_flow(stage: Stage, now_ms: int) -> bool:
    episodes = stage.episodes
    if episodes.reasons(now_ms):
        return True
    return any(
        each.reason is Reason.FLOW and now_ms - each.until_ms < CONNECTION_MEMORY_MS
        for each in episodes.history
    )
