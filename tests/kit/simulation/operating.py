"""Steps of operators and of misfortune: topics come and go, alarms, faults, death."""

from kit.simulation.consuming import hand_back
from kit.simulation.peers import Following
from kit.simulation.world import DEAD, SimTopic, World
from penstock.engine.topic import Topic
from penstock.model.names import topic_name
from penstock.testing.storage import NO_CAPACITY, FaultKind


def create_topic(world: World) -> None:
    """A new topic."""
    if len(world.live_topics) >= world.crowd.topics_max:
        return
    kind = world.rng.choice(world.kinds)
    # The last one may be on its way out still.
    if kind == "dead" and world.engine.topic(topic_name(DEAD)) is not None:
        return
    world.create_topic(kind)


def delete_topic(world: World) -> None:
    """A topic goes, with everything that hangs on it; what consumers have is refused before."""
    topics = world.live_topics
    if not topics:
        return
    sim_topic = world.rng.choice(topics)
    for consumer in world.consumers:
        if consumer.following.topic == sim_topic.label and consumer.held:
            hand_back(world, consumer, list(consumer.held), "reject")
    world.trace.note(f"delete {sim_topic.label}")
    sim_topic.is_deleted = True
    world.note_topics()
    sim_topic.may_be_back = sim_topic.kind != "transient"
    world.ledger.excuse(sim_topic.queue_ids)
    world.ledger.excuse_topic(sim_topic.label)
    engine = world.engine

    def gone(topic: Topic) -> None:
        if topic.name == sim_topic.name:
            engine.after_durable(lambda: setattr(sim_topic, "may_be_back", False))

    engine.watch_removals(gone)
    engine.retire_topic(sim_topic.name)
    forget_followers(world, sim_topic, None)
    world.readers = [r for r in world.readers if r.queue.queue_id not in sim_topic.queue_ids]


def unsubscribe(world: World) -> None:
    """A subscription goes."""
    topics = [t for t in world.live_topics if t.followings]
    if not topics:
        return
    sim_topic = world.rng.choice(topics)
    name = world.rng.choice(list(sim_topic.followings))
    world.trace.note(f"unsubscribe {name}")
    following = sim_topic.followings.pop(name)
    sim_topic.durable_followings.discard(name)
    world.engine.delete_subscription(sim_topic.name, name)
    forget_followers(world, sim_topic, following)


def forget_followers(world: World, sim_topic: SimTopic, following: Following | None) -> None:
    """Consumers of a topic, or of one of its subscriptions, are gone."""
    for consumer in list(world.consumers):
        is_hit = (
            consumer.following.topic == sim_topic.label
            if following is None
            else consumer.following is following
        )
        if is_hit:
            consumer.forget_all()
            world.consumers.remove(consumer)


def alarm(world: World) -> None:
    """Memory or disk runs short, or is well again."""
    name = world.rng.choice(("memory", "disk"))
    raise_or_clear(world, name, is_raised=world.rng.random() < 0.2)


def raise_or_clear(world: World, name: str, *, is_raised: bool) -> None:
    """Feed the probe a figure on either side of its limit."""
    plenty = 1 << 40
    bad, good = (plenty, 0) if name == "memory" else (0, plenty)
    world.engine.set_alarm(name, bad if is_raised else good)
    if name == "disk":
        world.is_disk_short = is_raised
        world.note_shortage()
    world.trace.note(f"alarm {name} {is_raised}")


def fill_disk(world: World) -> None:
    """The disk fills up, for the catalog too, or has room again."""
    is_full = world.storage.capacity_bytes == NO_CAPACITY and world.rng.random() < 0.5
    room = world.rng.randrange(2000)
    world.storage.capacity_bytes = world.storage.used_bytes + room if is_full else NO_CAPACITY
    world.catalog.is_full = is_full and room < 1000
    world.trace.note(f"disk full {is_full}")


def break_write(world: World) -> None:
    """The next write fails, wholly or half-way."""
    kind = world.rng.choice((FaultKind.EIO, FaultKind.ENOSPC, FaultKind.SHORT))
    world.storage.plan.fail_next("write", kind)
    world.trace.note(f"next write {kind.name}")


def break_sync(world: World) -> None:
    """The next sync, or catalog transaction, fails."""
    if world.rng.random() < 0.7:
        world.storage.plan.fail_next("sync", FaultKind.EIO)
    else:
        world.catalog.failures = 1
        world.catalog.is_answer_lost = world.rng.random() < 0.5
    world.trace.note("next sync fails")


def kill(world: World) -> None:
    """The process dies at once."""
    world.storage.plan.clear()
    world.restart(is_power_cut=False)


def cut_power(world: World) -> None:
    """The lights go out."""
    world.storage.plan.clear()
    world.restart(is_power_cut=True)
