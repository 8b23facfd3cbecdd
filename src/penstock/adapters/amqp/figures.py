"""The figures of connections, channels, queues, vhosts and the house that have rates.

Every one is made of what the objects say at this moment, for the views and for the sampler alike.

Not here: field names around them (``client_views.py``, ``topology_views.py``), samples
(``rates.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.adapters.amqp.queue import SUBSCRIPTION
from penstock.adapters.amqp.tally import Tally

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import ChannelState
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.queue import AmqpQueue
    from penstock.adapters.amqp.session import Session
    from penstock.adapters.amqp.vhost import VirtualHost

LEVELS: Final = ("messages", "messages_ready", "messages_unacknowledged")
HANDED: Final = (
    "ack", "deliver", "deliver_get", "deliver_no_ack", "get", "get_empty", "get_no_ack",
    "redeliver",
)  # fmt: skip
"""What is counted of consumers, wherever it is shown."""
_handed: Final[Callable[[Tally], tuple[int, ...]]] = attrgetter(*HANDED)
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


class HouseFigures(NamedTuple):
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


def connection_figures(session: Session) -> ConnectionFigures:
    """A connection's."""
    published = sum([channel.publishing.published for channel in session.channels.values()])
    return ConnectionFigures(published, session.received_bytes, session.sent_bytes)


def channel_figures(channel: ChannelState) -> ChannelFigures:
    """A channel's."""
    publishing = channel.publishing
    confirms = publishing.confirms
    confirmed = publishing.published - confirms.outstanding if confirms is not None else 0
    return ChannelFigures(
        publishing.published,
        confirmed,
        publishing.returned,
        publishing.dropped,
        *_handed(channel.consuming.tally),
    )


def queue_figures(queue: AmqpQueue) -> QueueFigures:
    """A queue's."""
    ready, unacked = queue.ready, queue.unacked
    subscription = queue.topic.subscriptions.get(SUBSCRIPTION)
    unserved_ms = subscription.unserved_ms if subscription is not None else 0
    published = sum([each.index.next_offset for each in queue.topic.queues])
    return QueueFigures(
        ready + unacked, ready, unacked, published, unserved_ms, *_handed(queue.tally)
    )


def gone_figures(tally: Tally) -> QueueFigures:
    """Those of queues that are deleted: nothing waits in them."""
    return QueueFigures(0, 0, 0, 0, 0, *_handed(tally))


def vhost_figures(vhost: VirtualHost) -> QueueFigures:
    """Those of all its queues, and what deleted ones counted."""
    whole = gone_figures(vhost.gone)
    for queue in vhost.queues:
        whole = whole.plus(queue_figures(queue))
    return whole


def house_figures(house: House, vhosts: Iterable[QueueFigures]) -> HouseFigures:
    """Those of all vhosts, and what publishers did."""
    whole = gone_figures(house.gone)
    for each in vhosts:
        whole = whole.plus(each)
    counters = house.engine.counters
    returned, dropped = (house.undelivered.get(each, 0) for each in ("returned", "unroutable"))
    return HouseFigures(
        *whole[:3],
        # The engine never sees what AMQP finds no queue for.
        counters.published + returned + dropped,
        counters.confirmed,
        returned,
        dropped,
        *whole[5:],
        **house.churn,
    )


def vhost_key(vhost: VirtualHost) -> Hashable:
    """What its samples are kept under."""
    return "vhost", vhost.name


def queue_key(queue: AmqpQueue) -> Hashable:
    """What its samples are kept under."""
    return "queue", queue.topic.topic_id


def connection_key(session: Session) -> Hashable:
    """What its samples are kept under."""
    return "connection", session.connection_id


def channel_key(channel: ChannelState) -> Hashable:
    """What its samples are kept under."""
    return "channel", channel.session.connection_id, channel.number
