"""Law 5, counted in turns: beside any flood, a quiet peer is served within two turns.

A turn counts for a waiting publish only when its queue could be taken from as the turn began: while
the disk is behind, an alarm is raised or the topic is full, everybody waits and nobody is unfair.
"""

from typing import Final

from penstock.engine.host import Mode
from penstock.engine.topic import Queue
from penstock.testing.simulation.ledger import LawBroken
from penstock.testing.simulation.peers import SimConsumer
from penstock.testing.simulation.world import World

FAIR_TURNS: Final = 2


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
    if consumer is None or consumer.is_passive or consumer.room() <= 0:
        return False
    # Who of these gets a message depends on more than room: the active one, the owner of the key.
    if peer.following.mode in (Mode.FAILOVER, Mode.SINGLE_ACTIVE, Mode.KEY_SHARED):
        return False
    subscription = peer.subscription
    if not any(map(subscription.ready, peer.following.start)):
        return False
    return not subscription.statistics().is_blocked
