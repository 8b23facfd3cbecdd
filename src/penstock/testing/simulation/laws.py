"""The eight laws of flow control, looked at after every step (flow-control.md section 4).

Laws 1, 2, 4, 5 and 7 are about this moment and are checked here; 3 and 8 say what must happen in
the end and are checked by ``endings.py``; 6 is the ledger's. Turns are counted, never time.

What is compared is the engine's own books: credits, inboxes, pools and gates, read through the
objects it keeps. A law names the figure that broke it.
"""

from typing import Final

from penstock.engine.connection import Channel, Connection
from penstock.engine.queue import Queue
from penstock.engine.subscription_options import Mode
from penstock.flow.credit import Credit
from penstock.testing.simulation.ledger import LawBroken
from penstock.testing.simulation.peers import SimConsumer, SimPublisher
from penstock.testing.simulation.publishing import BURST_MAX
from penstock.testing.simulation.world import World

MESSAGE_BYTES_MAX: Final = 1024
"""What one message of a simulation weighs at most, the broker's own overhead included."""

PUBLISHERS_GONE_MAX: Final = 8
"""Publishers that left and whose last messages may still wait for the log."""

FAIR_TURNS: Final = 2
"""Law 5: turns within which a quiet peer is served."""


def check_step(world: World) -> None:
    """Every law that can be judged now."""
    engine = world.engine
    flow = world.settings.flow
    held_bytes = 0
    for connection in engine.connections:
        held_bytes += connection.bytes_held
        _check_connection(connection, flow.connection_bytes_max)
    # Law 2: what is in flight is paid by the pool, beside one list per connection.
    lists_bytes = len(engine.connections) * BURST_MAX * MESSAGE_BYTES_MAX
    if held_bytes > flow.inflight_bytes_max + lists_bytes:
        raise LawBroken(f"{held_bytes} bytes of publishes are held (law 2)")
    if engine.inflight_bytes > flow.inflight_bytes_max:
        raise LawBroken(f"the pool gave {engine.inflight_bytes} bytes (law 2)")
    buffers_bytes = world.settings.storage.unsynced_bytes_max + flow.turn_bytes_max
    if engine.unsynced_bytes > buffers_bytes + 64 * MESSAGE_BYTES_MAX:
        raise LawBroken(f"{engine.unsynced_bytes} bytes are not synced (law 2)")
    for sim_topic in world.live_topics:
        for queue in sim_topic.topic.queues:
            _check_hop(queue.log_credit, flow.turn_channel_messages_max)
            # Each channel is bounded by its own hop; those that closed drain what they had.
            hops = len(world.publishers) + PUBLISHERS_GONE_MAX
            if queue.inbox.messages > hops * (flow.channel_queue_credit + BURST_MAX):
                raise LawBroken(f"{queue.inbox.messages} in the inbox of {queue.name} (law 2)")
    for consumer in world.consumers:
        _check_consumer(world, consumer)
    for publisher in world.publishers:
        if publisher.reasons.keys() != publisher.connection.gate.reasons.keys():
            raise LawBroken(f"{publisher.name} was not told what its gate says (law 7)")
    if not engine.needs_turn:
        _check_idle(world)


def check_turn(world: World, free_before: set[Queue]) -> None:
    """Law 5, after a turn; ``free_before`` are the queues that could take when it began."""
    for publisher in world.publishers:
        for token, (publication, queue, turns) in list(publisher.waiting.items()):
            if publication.record.position >= 0:
                del publisher.waiting[token]
            elif queue in free_before and publisher.connection.gate.is_open:
                if turns + 1 > FAIR_TURNS:
                    raise LawBroken(
                        f"{publisher.name}:{token} waits for its append since {turns + 1} turns "
                        "in which it could be taken (law 5)"
                    )
                publisher.waiting[token] = (publication, queue, turns + 1)


def free_queues(world: World) -> set[Queue]:
    """Queues that the log would take from now."""
    engine = world.engine
    if engine.log_is_held or engine.is_failed:
        return set()
    return {
        queue
        for sim_topic in world.live_topics
        for queue in sim_topic.topic.queues
        if not queue.stage.is_blocked and sim_topic.topic.limits is None
    }


def _check_connection(connection: Connection, bytes_max: int) -> None:
    if connection.bytes_held > bytes_max + BURST_MAX * MESSAGE_BYTES_MAX:
        raise LawBroken(f"{connection.name} holds {connection.bytes_held} bytes (law 2)")
    for channel in connection.channels.values():
        _check_hop(channel.credit, BURST_MAX)
        for credit in channel.queue_credits.values():
            _check_hop(credit, BURST_MAX)


def _check_hop(credit: Credit, batch_max: int) -> None:
    if credit.available > credit.initial:
        raise LawBroken(
            f"{credit.sender.label} -> {credit.receiver.label}: credit {credit.available} of "
            f"{credit.initial} (law 1)"
        )
    if credit.in_flight > credit.initial + batch_max:
        raise LawBroken(
            f"{credit.sender.label} -> {credit.receiver.label}: {credit.in_flight} in flight, "
            f"credit {credit.initial} (law 1)"
        )


def _check_consumer(world: World, peer: SimConsumer) -> None:
    consumer = peer.consumer
    if consumer is None:
        return
    flow = world.settings.flow
    # Who takes by itself (pop) is bound by the subscription's limit only.
    limit = flow.unacked_subscription_max if consumer.is_passive else flow.unacked_consumer_max
    if consumer.inflight.messages > limit + BURST_MAX:
        raise LawBroken(f"{peer.name} has {consumer.inflight.messages} in flight (law 2)")
    if consumer.inflight.bytes > flow.unacked_consumer_bytes_max + 4 * MESSAGE_BYTES_MAX:
        raise LawBroken(f"{peer.name} has {consumer.inflight.bytes} bytes in flight (law 2)")


def _check_idle(world: World) -> None:
    """Law 4: an engine that asks for no turn has nothing it could move now."""
    engine = world.engine
    deadline_ms = engine.next_deadline_ms()
    if deadline_ms is not None and deadline_ms <= world.clock.monotonic_ms():
        return
    if not engine.is_failed:
        for publisher in world.publishers:
            _check_channel(publisher, publisher.channel)
        if not engine.log_is_held:
            for sim_topic in world.live_topics:
                for queue in sim_topic.topic.queues:
                    _check_queue(world, queue)
    for consumer in world.consumers:
        _check_starved(consumer)


def _check_channel(publisher: SimPublisher, channel: Channel) -> None:
    if channel.inbox and channel.hold is None and not channel.stage.is_blocked:
        raise LawBroken(f"{publisher.name} has publishes and credit, and no turn is asked (law 4)")


def _check_queue(world: World, queue: Queue) -> None:
    if not queue.inbox or queue.stage.is_blocked:
        return
    if world.engine.free_buffers > 0:
        raise LawBroken(f"{queue.name} has parcels and credit, and no turn is asked (law 4)")


def _check_starved(peer: SimConsumer) -> None:
    consumer = peer.consumer
    if consumer is None or consumer.is_passive or not consumer.is_attached:
        return
    if consumer.room() <= 0 or peer.following.mode in (Mode.FAILOVER, Mode.KEY_SHARED):
        return
    statistics = peer.subscription.statistics()
    if statistics.ready and not statistics.is_blocked:
        raise LawBroken(f"{peer.name} has room, its subscription has messages (law 4)")
