"""Steps of consumers and readers: subscribe, attach, settle, give back, pull, seek, leave."""

from functools import partial
from typing import Final

from kit.simulation.ledger import Place
from kit.simulation.peers import Following, SimConsumer, SimReader
from kit.simulation.world import SimTopic, World, kept_from
from penstock.engine.host import Mode, Start, SubscriptionOptions
from penstock.engine.pull import Pull
from penstock.engine.subscription.consumer import Consumer
from penstock.flow.demand import Permits, Unlimited, Window
from penstock.model.ids import QueueId

APPETITES: Final = ("window", "window", "permits", "pop", "auto")
"""How a consumer asks for messages."""

FAR_AHEAD: Final = 1000
"""Reserved deliveries that no run makes between two syncs."""


def act(world: World) -> None:
    """A consumer settles, gives back, refuses or grants."""
    if not world.consumers:
        attach(world)
        return
    consumer = world.rng.choice(world.consumers)
    consumer.now_ms = world.clock.monotonic_ms()
    if consumer.visibility_ms and consumer.consumer is not None:
        deliveries = consumer.subscription.take(consumer.consumer, world.rng.randint(1, 8))
        if deliveries:
            consumer.deliver(consumer.consumer, deliveries)
    if consumer.is_stuck:
        return
    places = consumer.choose(world.rng, 8)
    if places:
        chance = world.rng.random()
        verb = "settle" if chance < 0.85 else "requeue" if chance < 0.95 else "reject"
        hand_back(world, consumer, places, verb)


def grant(world: World) -> None:
    """A consumer asks for more, its socket takes what lay there, or it needs more time."""
    if not world.consumers:
        return
    consumer = world.rng.choice(world.consumers)
    consumer.now_ms = now_ms = world.clock.monotonic_ms()
    consumer.flush()
    if consumer.permits is not None:
        consumer.permits.add(world.rng.randint(1, 8))
    if consumer.visibility_ms:
        consumer.give_up_overdue()
        for place in list(consumer.held)[:1]:
            deadline_ms = now_ms + 2 * consumer.visibility_ms
            if consumer.subscription.extend(QueueId(place[0]), place[1], deadline_ms):
                consumer.held[place] = deadline_ms
    world.trace.note(f"{consumer.name} asks for more")


def hand_back(
    world: World,
    consumer: SimConsumer,
    places: list[tuple[int, int]],
    verb: str,
    *,
    delay_ms: int | None = None,
) -> None:
    """Settle, requeue or reject what a consumer holds."""
    by_queue: dict[QueueId, list[int]] = {}
    for queue_id, offset in places:
        by_queue.setdefault(QueueId(queue_id), []).append(offset)
    consumer.forget(places)
    for queue_id, firsts in by_queue.items():
        offsets = [
            offset + more
            for offset in firsts
            for more in range(consumer.following.messages.get((queue_id, offset), 1))
        ]
        world.trace.note(f"{consumer.name} {verb} {queue_id}@{offsets[0]} x{len(offsets)}")
        subscription = consumer.subscription
        if verb == "requeue":
            later_ms = world.rng.choice((0, 0, 50)) if delay_ms is None else delay_ms
            subscription.requeue(queue_id, offsets, delay_ms=later_ms, count=True)
        else:
            if verb == "settle":
                subscription.settle(queue_id, offsets)
            else:
                subscription.reject(queue_id, offsets)
            following, places = consumer.following, [(queue_id, offset) for offset in firsts]
            following.settled.update(places)
            if world.rng.random() < 0.3:
                world.engine.after_durable(partial(_receipted, following, places))


def _receipted(following: Following, places: list[Place]) -> None:
    """The broker says that these acks are durable; a seek in between makes that worthless."""
    following.receipted.update(place for place in places if place in following.settled)


def subscribe(world: World) -> None:
    """A new subscription of some topic."""
    topics = [t for t in world.live_topics if len(t.followings) < world.crowd.followings_max]
    if not topics:
        return
    rng = world.rng
    sim_topic = rng.choice(topics)
    is_durable = sim_topic.kind != "transient" and rng.random() < 0.8
    options = SubscriptionOptions(
        mode=rng.choice(tuple(Mode)),
        is_durable=is_durable,
        sees_unsynced=rng.random() < 0.5,
        start=rng.choice((Start.EARLIEST, Start.LATEST)),
        delivery_limit=3 if sim_topic.kind == "limited" else 0,
    )
    name = world.fresh("s")
    kept = {q.queue_id: kept_from(world, sim_topic, q) for q in sim_topic.topic.queues}
    subscription = world.engine.create_subscription(sim_topic.name, name, options)
    following = Following(
        sim_topic.label,
        name,
        sees_offsets=not options.sees_unsynced,
        start={q: max(kept[q], subscription.low_mark(q)) for q in sim_topic.queue_ids},
        is_loose=sim_topic.kind == "dead",
        mode=options.mode,
        is_dropping=sim_topic.kind == "short",
        is_flagged=not is_durable,
    )
    sim_topic.followings[name] = following
    if is_durable:
        world.engine.after_durable(lambda: _now_durable(world, sim_topic, following))
    world.trace.note(f"subscribe {name} to {sim_topic.label} {options.mode.value}")


def _now_durable(world: World, sim_topic: SimTopic, following: Following) -> None:
    """The broker says that a subscription, its start and its delivered mark are on disk."""
    if sim_topic.followings.get(following.name) is following:
        sim_topic.durable_followings.add(following.name)
        following.is_flagged = world.settings.topics.delivered_reserve >= FAR_AHEAD


def attach(world: World) -> None:
    """A new consumer of some subscription: window, permits, pop or unlimited; perhaps stuck."""
    if len(world.consumers) >= world.crowd.consumers_max:
        return
    rng = world.rng
    choices = [
        (sim_topic, following)
        for sim_topic in world.live_topics
        for following in sim_topic.followings.values()
    ]
    if not choices or rng.random() < 0.2:
        subscribe(world)
        return
    sim_topic, following = rng.choice(choices)
    subscription = sim_topic.topic.subscriptions[following.name]
    consumer = SimConsumer(world.fresh("c"), world.ledger, world.trace, following)
    consumer.subscription = subscription
    consumer.now_ms = world.clock.monotonic_ms()
    appetite = rng.choice(APPETITES)
    if appetite == "pop" and following.mode is Mode.KEY_SHARED:
        appetite = "window"
    demand: Window | Permits | Unlimited = Window(rng.choice((1, 4, 20)))
    if appetite == "permits":
        demand = consumer.permits = Permits(rng.randint(1, 10))
    elif appetite == "auto":
        demand = Unlimited()
    elif appetite == "pop":
        consumer.visibility_ms = rng.choice((50, 500))
    consumer.is_stuck = appetite != "auto" and rng.random() < 0.15
    consumer.is_slow = rng.random() < 0.2
    attached = subscription.attach(
        consumer,
        demand,
        name=consumer.name,
        priority=rng.randrange(2),
        is_auto_settled=appetite == "auto",
        is_passive=appetite == "pop",
        visibility_ms=consumer.visibility_ms,
    )
    world.trace.note(f"{consumer.name} {appetite} on {following.name}")
    if isinstance(attached, Consumer):
        consumer.consumer = attached
        world.consumers.append(consumer)


def detach(world: World) -> None:
    """A consumer leaves; what it held goes back."""
    if world.consumers:
        leave(world, world.consumers[world.rng.randrange(len(world.consumers))])


def leave(world: World, consumer: SimConsumer) -> None:
    """This consumer leaves."""
    world.trace.note(f"{consumer.name} leaves")
    world.consumers.remove(consumer)
    consumer.forget_all()
    if consumer.consumer is not None:
        consumer.subscription.detach(consumer.consumer)


def read(world: World) -> None:
    """A reader with visible offsets pulls, and may wait for more."""
    rng = world.rng
    if len(world.readers) < world.crowd.readers_max and rng.random() < 0.2:
        topics = [t for t in world.live_topics if t.kind != "transient"]
        if topics:
            reader = SimReader(world.fresh("r"), world.ledger, world.trace)
            reader.queue = rng.choice(rng.choice(topics).topic.queues)
            reader.offset = reader.queue.index.min_offset
            world.readers.append(reader)
    if not world.readers:
        return
    reader = rng.choice(world.readers)
    if reader.is_waiting or reader.queue.is_deleted:
        return
    deadline_ms = world.clock.monotonic_ms() + 200 if rng.random() < 0.5 else 0
    pull = Pull(
        outlet=reader,
        queue=reader.queue,
        offset=reader.offset,
        messages_max=rng.randint(1, 16),
        deadline_ms=deadline_ms,
    )
    result = world.engine.pulls.pull(pull)
    if result is None:
        reader.is_waiting = True
    else:
        reader.take(result)


def move(world: World) -> None:
    """Somebody seeks or purges."""
    choices = [
        (sim_topic, following)
        for sim_topic in world.live_topics
        for following in sim_topic.followings.values()
    ]
    if not choices:
        return
    sim_topic, following = world.rng.choice(choices)
    queue = world.rng.choice(sim_topic.topic.queues)
    subscription = sim_topic.topic.subscriptions[following.name]
    if world.rng.random() < 0.5:
        # What is in flight stays with its consumers; the rest is settled unseen.
        following.is_loose = True
        subscription.purge(queue.queue_id)
    else:
        low, high = queue.index.min_offset, queue.visible_end(False)
        following.sought(queue.queue_id)
        subscription.seek(queue.queue_id, world.rng.randint(low, max(low, high)))
    world.trace.note(f"move {following.name} in {queue.queue_id}")
