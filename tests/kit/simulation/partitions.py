"""Steps of clients that subscribe partition by partition, as Pulsar's do.

Queues of a topic are subscribed and unsubscribed one by one, topics grow, consumers bring a type of
their own to the queues they read, wait for each other's place, give back what they hold, have their
limits changed, and acknowledge batches in part. What each subscription must read, and how, is kept
in its ``Following``; a crash may undo what the broker did not call durable yet, and nothing else.
"""

from functools import partial
from typing import Final

from kit.simulation.committing import turn
from kit.simulation.consuming import hand_back
from kit.simulation.ledger import LawBroken, Place
from kit.simulation.operating import forget_followers
from kit.simulation.peers import Following, SimConsumer
from kit.simulation.publishing import welcome
from kit.simulation.world import SimTopic, World, kept_from
from penstock.engine.connection import ConnectionOptions
from penstock.engine.host import FailoverRule, Mode, Start, SubscriptionOptions
from penstock.engine.subscription.consumer import Consumer, RefusalReason
from penstock.flow.demand import Permits
from penstock.model.ids import QueueId

KINDS: Final = ("partitioned", "partitioned", "partitioned", "short partitioned", "limited", "dead")
"""Of topics."""

QUEUES_MAX: Final = 5
"""Partitions that a topic grows to."""

TURNS_MAX: Final = 500
"""An engine that wants more turns in a row than this is spinning: a turn moves a message or more,
and there are not so many."""

MODES: Final = (Mode.EXCLUSIVE, Mode.FAILOVER, Mode.FAILOVER, Mode.SHARED, Mode.KEY_SHARED)

RULES: Final = (
    FailoverRule(),
    FailoverRule(takeover_ms=100, is_by_partition=True),
    FailoverRule(takeover_ms=300, is_by_partition=True),
    FailoverRule(takeover_ms=100, ring_name="t"),
)


# ---- queues -------------------------------------------------------------------------------------


def subscribe_queue(world: World) -> None:
    """A subscription reads one queue more, or is made with its first."""
    rng = world.rng
    if not world.live_topics:
        return
    sim_topic = rng.choice(world.live_topics)
    followings = list(sim_topic.followings.values())
    is_new = not followings or (len(followings) < world.crowd.followings_max and rng.random() < 0.3)
    following = _new_following(world, sim_topic) if is_new else rng.choice(followings)
    unread = [each for each in sim_topic.queue_ids if each not in following.start]
    if not unread:
        return
    queue_id = rng.choice(unread)
    queue = sim_topic.topic.queues[sim_topic.queue_ids.index(queue_id)]
    start = rng.choice((Start.EARLIEST, Start.LATEST))
    options = SubscriptionOptions(
        sees_unsynced=not following.sees_offsets,
        whole_batches=following.sees_batches,
        start=start,
        delivery_limit=3 if sim_topic.kind == "limited" else 0,
    )
    kept = kept_from(world, sim_topic, queue)
    subscription = world.engine.subscribe_queue(sim_topic.name, following.name, queue_id, options)
    sim_topic.followings[following.name] = following
    following.start[queue_id] = max(kept, subscription.low_mark(queue_id))
    following.loose_queues.discard(queue_id)
    _join_whole(world, following, queue_id)
    _changing(world, following, queue_id, is_read=True)
    if is_new:
        world.engine.after_durable(lambda: _made(sim_topic, following))
    world.trace.note(f"{following.name} reads {queue_id} from {start.value}")


def _new_following(world: World, sim_topic: SimTopic) -> Following:
    return Following(
        sim_topic.label,
        world.fresh("s"),
        # Most see only what is durable, as Pulsar's do.
        sees_offsets=world.rng.random() < 0.8,
        sees_batches=world.rng.random() < 0.6,
        start={},
        is_loose=sim_topic.kind == "dead",
        is_dropping=sim_topic.kind == "short partitioned",
    )


def _made(sim_topic: SimTopic, following: Following) -> None:
    if sim_topic.followings.get(following.name) is following:
        sim_topic.durable_followings.add(following.name)


def _changing(world: World, following: Following, queue_id: QueueId, *, is_read: bool) -> None:
    """Whether it reads the queue is on its way to the disk."""
    following.changes += 1
    following.told.pop(queue_id, None)
    world.engine.after_durable(partial(_told, following, queue_id, is_read, following.changes))


def _told(following: Following, queue_id: QueueId, is_read: bool, change: int) -> None:
    """The broker says that it is durable; later changes of the same queue speak for themselves."""
    if change == following.changes or (queue_id in following.start) is is_read:
        following.told[queue_id] = is_read


def _join_whole(world: World, following: Following, queue_id: QueueId) -> None:
    """Who reads the whole subscription reads its new queue, in the way it reads the others."""
    for consumer in _takers(world, following):
        if not consumer.queue_ids and consumer.mode is not None:
            following.modes[queue_id] = consumer.mode


def unsubscribe_queue(world: World) -> None:
    """A subscription reads one queue less, and goes with its last."""
    choices = _followings(world)
    if not choices:
        return
    sim_topic, following = world.rng.choice(choices)
    queue_id = world.rng.choice(list(following.start))
    world.trace.note(f"{following.name} leaves {queue_id}")
    world.engine.unsubscribe_queue(sim_topic.name, following.name, queue_id)
    if list(following.start) == [queue_id]:
        del sim_topic.followings[following.name]
        sim_topic.durable_followings.discard(following.name)
        forget_followers(world, sim_topic, following)
        return
    del following.start[queue_id]
    following.begin_anew(queue_id)
    following.seen = {value: at for value, at in following.seen.items() if at != queue_id}
    for consumer in _takers(world, following):
        consumer.forget([place for place in consumer.held if place[0] == queue_id])
        # Who named it does not read it when it is subscribed again; who reads all of them does.
        consumer.queue_ids = tuple(each for each in consumer.queue_ids if each != queue_id)
        if consumer.consumer is None:
            world.consumers.remove(consumer)
    _changing(world, following, queue_id, is_read=False)


def grow(world: World) -> None:
    """A topic gets a queue more: it joins who reads all of them, and nobody else."""
    topics = [each for each in world.live_topics if 1 < len(each.queue_ids) < QUEUES_MAX]
    if not topics:
        return
    sim_topic = world.rng.choice(topics)
    engine, queues = world.engine, len(sim_topic.queue_ids) + 1
    engine.grow_topic(sim_topic.name, queues)
    queue_id = sim_topic.topic.queues[-1].queue_id
    world.ledger.topics[queue_id] = sim_topic.label
    for following in sim_topic.followings.values():
        is_whole = following.start.keys() >= set(sim_topic.queue_ids)
        if sim_topic.topic.subscriptions[following.name].reads(queue_id) is not is_whole:
            raise LawBroken(f"{following.name} reads the new queue {queue_id}: {not is_whole}")
        if is_whole:
            following.start[queue_id] = 0
            _join_whole(world, following, queue_id)
        _changing(world, following, queue_id, is_read=is_whole)
    sim_topic.queue_ids = (*sim_topic.queue_ids, queue_id)

    def told() -> None:
        sim_topic.queues_told = max(sim_topic.queues_told, queues)

    engine.after_durable(told)
    world.trace.note(f"{sim_topic.label} grows to {queues}")


# ---- consumers ----------------------------------------------------------------------------------


def attach(world: World) -> None:
    """A consumer brings its type to all queues of a subscription, or to some."""
    choices = _followings(world)
    if len(world.consumers) >= world.crowd.consumers_max or not choices:
        return
    rng = world.rng
    sim_topic, following = rng.choice(choices)
    consumer = SimConsumer(world.fresh("c"), world.ledger, world.trace, following)
    consumer.subscription = sim_topic.topic.subscriptions[following.name]
    consumer.now_ms = world.clock.monotonic_ms()
    if rng.random() < 0.5:
        read = list(following.start)
        consumer.queue_ids = tuple(rng.sample(read, rng.randint(1, len(read))))
    consumer.mode = mode = rng.choice(MODES)
    consumer.permits = Permits(rng.randint(1, 10))
    consumer.is_stuck = rng.random() < 0.1
    consumer.is_slow = rng.random() < 0.2
    consumer.unacked_max = rng.choice((None, 0, 4))
    expected = _refusal(world, consumer, mode)
    attached = consumer.subscription.attach(
        consumer,
        consumer.permits,
        name=consumer.name,
        mode=mode,
        failover=rng.choice(RULES),
        priority=rng.randrange(2),
        queue_ids=consumer.queue_ids,
        unacked_max=consumer.unacked_max,
    )
    refused = None if isinstance(attached, Consumer) else attached.reason
    world.trace.note(f"{consumer.name} {mode.value} on {following.name} {refused}")
    if refused is not expected:
        raise LawBroken(f"{consumer.name} was answered {refused}, not {expected}")
    if isinstance(attached, Consumer):
        consumer.consumer = attached
        world.consumers.append(consumer)
        following.modes.update(dict.fromkeys(consumer.reads, mode))


def _refusal(world: World, newcomer: SimConsumer, mode: Mode) -> RefusalReason | None:
    """What it must be told: another type is for a queue that nobody is attached to."""
    following = newcomer.following
    taken = {queue_id for each in _takers(world, following) for queue_id in each.reads}
    # Of several queues that would refuse it, the first of the subscription speaks.
    for queue_id in newcomer.subscription.queue_ids:
        if queue_id in newcomer.reads and queue_id in taken:
            if following.modes[queue_id] is not mode:
                return RefusalReason.MODE
            if mode is Mode.EXCLUSIVE:
                return RefusalReason.BUSY
    return None


def act(world: World) -> None:
    """A consumer acknowledges, in part perhaps, or gives back."""
    if not world.consumers:
        attach(world)
        return
    consumer = world.rng.choice(world.consumers)
    consumer.now_ms = world.clock.monotonic_ms()
    places = [] if consumer.is_stuck else consumer.choose(world.rng, 8)
    chance = world.rng.random()
    if not places:
        return
    if chance < 0.3:
        _settle_parts(world, consumer, places)
    elif chance < 0.85:
        hand_back(world, consumer, places, "settle")
    elif chance < 0.97:
        redeliver(world, consumer, places)
    elif owned := [place for place in places if _owns(consumer, place)]:
        hand_back(world, consumer, owned, "reject")


def _owns(consumer: SimConsumer, place: Place) -> bool:
    """Whether it still has it: of a failover's queue another may be active already, untold."""
    entry = consumer.subscription.in_flight(QueueId(place[0]), place[1])
    assert consumer.consumer is not None, "a consumer that is gone has nothing"
    return entry is not None and entry.consumer_id == consumer.consumer.consumer_id


def _settle_parts(world: World, consumer: SimConsumer, places: list[Place]) -> None:
    """Of each batch some messages, never all: as a client that acknowledges single ones."""
    following = consumer.following
    for place in places:
        messages = following.messages.get(place, 1)
        if messages == 1 or not _owns(consumer, place):
            continue
        start = place[1] + world.rng.randrange(messages - 1)
        offsets = range(start, start + world.rng.randint(1, messages - 1 - (start - place[1])))
        settled = following.parts.setdefault(place, set())
        settled.update(offsets)
        world.trace.note(f"{consumer.name} settles {offsets} of {place}")
        consumer.subscription.settle_ranges(QueueId(place[0]), [(offsets.start, offsets.stop)])
        if world.rng.random() < 0.5:
            world.engine.after_durable(partial(_receipted, following, place, set(offsets)))


def _receipted(following: Following, place: Place, offsets: set[int]) -> None:
    """The broker says that these are durable; an unsubscribe in between makes that worthless."""
    if offsets <= following.parts.get(place, set()):
        following.receipted_parts.setdefault(place, set()).update(offsets)


def redeliver(world: World, consumer: SimConsumer, places: list[Place]) -> None:
    """It wants again what it holds: everything, or some of one queue."""
    assert consumer.consumer is not None, "a consumer that is gone asks for nothing"
    if world.rng.random() < 0.5:
        consumer.forget_all()
        consumer.subscription.redeliver(consumer.consumer)
        world.trace.note(f"{consumer.name} redeliver all")
        return
    queue_id = QueueId(places[0][0])
    some = [place for place in places if place[0] == queue_id]
    consumer.forget(some)
    offsets = [offset for _, offset in some]
    consumer.subscription.redeliver(consumer.consumer, queue_id, offsets)
    world.trace.note(f"{consumer.name} redeliver {queue_id}@{offsets}")


def limit_unacked(world: World) -> None:
    """Another limit of unacked messages, for a consumer or for a subscription."""
    if not world.consumers:
        return
    rng, flow = world.rng, world.settings.flow
    consumer = rng.choice(world.consumers)
    limit = rng.choice((0, 2, 8, 30))
    world.trace.note(f"{consumer.name} limit {limit}")
    if rng.random() < 0.3:
        consumer.subscription.limit_unacked(limit)
    elif consumer.consumer is not None:
        before = flow.unacked_consumer_max if consumer.unacked_max is None else consumer.unacked_max
        consumer.unacked_max = max(before, limit) if before and limit else 0
        consumer.consumer.limit_unacked(limit, flow.unacked_consumer_bytes_max)


def _takers(world: World, following: Following) -> list[SimConsumer]:
    return [each for each in world.consumers if each.following is following]


def _followings(world: World) -> list[tuple[SimTopic, Following]]:
    return [
        (sim_topic, following)
        for sim_topic in world.live_topics
        for following in sim_topic.followings.values()
    ]


# ---- publishers and the engine ------------------------------------------------------------------


def connect_publisher(world: World) -> None:
    """A publisher whose channels are held one by one, or as others are."""
    welcome(world, ConnectionOptions(holds_channels=world.rng.random() < 0.7))


def rest(world: World) -> None:
    """Turns until none is wanted: there is an end to them (law 4 turned round)."""
    for _ in range(TURNS_MAX):
        if not world.engine.needs_turn:
            return
        turn(world)
    raise LawBroken(f"the engine still wants turns after {TURNS_MAX}, and nothing moves")
