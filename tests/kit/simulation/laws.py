"""The eight laws of flow control, looked at after every step (flow-control.md section 4).

Laws 1, 2, 4 and 7 are about this moment and are checked here, 5 after each turn (``fairness.py``);
3 and 8 say what must happen in the end (``endings.py``); 6 is the ledger's.

What is compared is the engine's own books: credits, inboxes, pools and gates, read through the
objects it keeps. A law names the figure that broke it.
"""

from typing import Final

from kit.simulation.ledger import LawBroken
from kit.simulation.peers import SimConsumer
from kit.simulation.world import BATCH_MAX, BURST_MAX, World
from penstock.engine.host import Mode
from penstock.engine.topic import Queue
from penstock.flow.credit import Credit

MESSAGE_BYTES_MAX: Final = 1024
"""What one message of a simulation weighs at most, the broker's own overhead included."""

NO_LIMIT: Final = 1 << 30

PUBLISHERS_GONE_MAX: Final = 8
"""Publishers that left and whose last messages may still wait for the log."""

LIST_BYTES_MAX: Final = BURST_MAX * MESSAGE_BYTES_MAX
"""One publish list: what a connection may hold beyond its share."""


def check_step(world: World) -> None:
    """Every law that can be judged now."""
    engine = world.engine
    world.note_shortage()
    # Credits and bytes move with these three only: nothing else is on the way in.
    chain = (world.turns, world.store.durable_position, len(world.ledger.sent), world.lives)
    if chain != world.chain_checked:
        world.chain_checked = chain
        _check_bytes(world)
        for sim_topic in world.live_topics:
            for queue in sim_topic.topic.queues:
                _check_hop(queue.log_credit)
    for consumer in world.consumers:
        _check_consumer(world, consumer)
    for publisher in world.publishers:
        if publisher.reasons.keys() != publisher.connection.gate.reasons.keys():
            raise LawBroken(f"{publisher.name} was not told what its gate says (law 7)")
    if world.is_disk_well and not engine.needs_turn:
        _check_idle(world)


def _check_bytes(world: World) -> None:
    """Law 2: what is in flight is paid by the pool, beside one list per connection."""
    engine, flow = world.engine, world.settings.flow
    held_bytes = 0
    connections = engine.connections
    for connection in connections:
        held = connection.bytes_held
        held_bytes += held
        if held > flow.connection_bytes_max + LIST_BYTES_MAX:
            raise LawBroken(f"{connection.name} holds {held} bytes (law 2)")
        for channel in connection.channels.values():
            # Where the socket is read on, bytes bound what a channel is sent, not its credit.
            if not connection.options.holds_channels:
                _check_hop(channel.credit)
            for credit in channel.queue_credits.values():
                _check_hop(credit)
    if held_bytes > flow.inflight_bytes_max + len(connections) * LIST_BYTES_MAX:
        raise LawBroken(f"{held_bytes} bytes of publishes are held (law 2)")
    if engine.inflight_bytes > flow.inflight_bytes_max:
        raise LawBroken(f"the pool gave {engine.inflight_bytes} bytes (law 2)")
    buffers_bytes = world.settings.storage.unsynced_bytes_max + flow.turn_bytes_max
    if engine.unsynced_bytes > buffers_bytes + 64 * MESSAGE_BYTES_MAX:
        raise LawBroken(f"{engine.unsynced_bytes} bytes are not synced (law 2)")


def _check_hop(credit: Credit) -> None:
    """Law 1: never more than ``initial``, never more in flight than that and one list."""
    if -BURST_MAX <= credit.available <= credit.initial:
        return
    if credit.available > credit.initial or credit.in_flight > credit.initial + BURST_MAX:
        raise LawBroken(
            f"{credit.sender.label} -> {credit.receiver.label}: credit {credit.available} of "
            f"{credit.initial}, {credit.in_flight} in flight (law 1)"
        )


def _check_consumer(world: World, peer: SimConsumer) -> None:
    consumer = peer.consumer
    if consumer is None or consumer.inflight.messages == 0:
        return
    flow = world.settings.flow
    # Who takes by itself (pop) is bound by the subscription's limit only.
    limit = flow.unacked_subscription_max if consumer.is_passive else flow.unacked_consumer_max
    if peer.unacked_max is not None:
        limit = peer.unacked_max or NO_LIMIT
    if consumer.inflight.messages > limit + BURST_MAX + BATCH_MAX:
        raise LawBroken(f"{peer.name} has {consumer.inflight.messages} in flight (law 2)")
    if consumer.inflight.bytes > flow.unacked_consumer_bytes_max + 4 * MESSAGE_BYTES_MAX:
        raise LawBroken(f"{peer.name} has {consumer.inflight.bytes} bytes in flight (law 2)")


def _check_idle(world: World) -> None:
    """Law 4: an engine that asks for no turn has nothing it could move now."""
    engine = world.engine
    idle = ""
    if not engine.is_failed:
        for publisher in world.publishers:
            channel = publisher.channel
            if channel.inbox and channel.hold is None and not channel.is_waiting:
                idle = f"{publisher.name} has publishes and credit"
        if not engine.log_is_held and engine.free_buffers > 0:
            for sim_topic in world.live_topics:
                for queue in sim_topic.topic.queues:
                    if queue.inbox and not queue.stage.is_blocked:
                        idle = f"{queue.name} has batches and credit"
    # While the log is held, dead letters that wait for it may hold up deliveries, too.
    for consumer in [] if engine.log_is_held else world.consumers:
        if is_starved(consumer):
            idle = f"{consumer.name} has room and its subscription has messages"
    if idle:
        deadline_ms = engine.next_deadline_ms()
        if deadline_ms is None or deadline_ms > world.clock.monotonic_ms():
            raise LawBroken(f"{idle}, and no turn is asked for (law 4)")


# ---- fairness -----------------------------------------------------------------------------------
# Law 5, counted in turns: beside any flood, a quiet peer is served within two turns.
#
# A turn counts for a waiting publish only when its queue could be taken from as the turn began:
# while the disk is behind, an alarm is raised or the topic is full, everybody waits and nobody is
# unfair.


FAIR_TURNS: Final = 2

CHOOSY: Final = frozenset((Mode.FAILOVER, Mode.SINGLE_ACTIVE, Mode.KEY_SHARED))


def check_turn(world: World, free_before: set[Queue]) -> None:
    """Law 5, after a turn; ``free_before`` are the queues that could take when it began."""
    _check_publishers(world, free_before)
    # One consumer with room is enough to call its subscription served or not.
    hungry = {each.following.name: each for each in world.consumers if is_starved(each)}
    for consumer in world.consumers:
        if consumer.following.name not in hungry:
            consumer.following.hungry = (0, 0)
    for consumer in hungry.values():
        _check_served(world, consumer)


def _check_served(world: World, starved: SimConsumer) -> None:
    """A subscription with messages and a consumer with room gets something every other turn."""
    following = starved.following
    turns, before = following.hungry
    statistics = starved.subscription.statistics()
    # Records that are gone or not due yet are stepped over: that is progress, too.
    progress = following.received_count + statistics.delayed + statistics.skipped
    progress += statistics.settled + sum(map(starved.subscription.low_mark, following.start))
    is_excused = world.engine.log_is_held or not world.is_disk_well
    if progress != before or is_excused:
        following.hungry = (0, progress)
    elif turns >= FAIR_TURNS:
        raise LawBroken(
            f"{starved.name} has room and {following.name} has messages for {turns} turns (law 5)"
        )
    else:
        following.hungry = (turns + 1, progress)


def _check_publishers(world: World, free_before: set[Queue]) -> None:
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


def is_starved(peer: SimConsumer) -> bool:
    """True when it has room and its subscription has something for it."""
    consumer = peer.consumer
    if consumer is None or consumer.is_passive or consumer.available_messages() <= 0:
        return False
    # Who of the choosy gets a message depends on more than room: the active one, a key's owner.
    reads = peer.reads
    if CHOOSY.intersection(map(peer.following.mode_in, reads)):
        return False
    subscription = peer.subscription
    if not any(map(subscription.ready, reads)):
        return False
    return not subscription.statistics().is_blocked
