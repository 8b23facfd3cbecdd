"""Steps of publishers: connect, publish lists of all kinds, leave."""

from typing import Final

from kit.batches import batch
from kit.simulation.ledger import Sent
from kit.simulation.operating import create_topic
from kit.simulation.peers import SimPublisher
from kit.simulation.world import BATCH_MAX, SimTopic, World
from penstock.engine.connection import ConnectionOptions
from penstock.engine.ports import Publication
from penstock.engine.topic import route_to
from penstock.model.record import Record, RecordFlag, neutral_record

FLOOD_LISTS: Final = 4
"""Lists that a flooding publisher sends in a row, unless its gate closes."""


def publish(world: World) -> None:
    """Somebody publishes a list; who is not to be read waits."""
    rng = world.rng
    topics = world.live_topics
    if not topics:
        create_topic(world)
        return
    if not world.publishers or rng.random() < 0.1:
        connect_publisher(world)
    publisher = rng.choice(world.publishers)
    # A quiet one has at most one publish on its way; what it could not say it says later.
    is_busy = publisher.is_quiet and (publisher.waiting or publisher.channel.inbox)
    if is_busy or not publisher.connection.may_read:
        return
    sim_topic = rng.choice(topics)
    if publisher.is_quiet:
        _publish_list(world, publisher, sim_topic, 1)
        return
    for _ in range(FLOOD_LISTS if publisher.is_flood else 1):
        if publisher.connection.may_read:
            count = rng.randint(1, rng.randint(1, world.crowd.burst_max))
            _publish_list(world, publisher, sim_topic, count)


def _publish_list(world: World, publisher: SimPublisher, sim_topic: SimTopic, count: int) -> None:
    route = route_to(sim_topic.topic)
    publications = []
    for _ in range(count):
        sent, record = _message(world, publisher, sim_topic)
        publications.append(
            Publication(record=record, queues=(), route=route, token=publisher.next_number)
        )
        publisher.pending[publisher.next_number] = sent
        publisher.next_number += 1
    world.trace.note(f"{publisher.name} publishes {count} to {sim_topic.label}")
    if publisher.is_quiet and len(sim_topic.topic.queues) == 1:
        publication = publications[0]
        publisher.waiting[publication.token] = (publication, sim_topic.topic.queues[0], 0)
    publisher.channel.publish(publications)


def _message(world: World, publisher: SimPublisher, sim_topic: SimTopic) -> tuple[Sent, Record]:
    rng = world.rng
    ledger = world.ledger
    if world.has_batches and rng.random() < 0.3:
        return _batch(world, publisher, sim_topic)
    sent = ledger.send(publisher.name, publisher.next_number, sim_topic.label, rng.randrange(120))
    key = b"k%d" % rng.randrange(4) if rng.random() < 0.5 else b""
    record = neutral_record(sent.body, key=key)
    sent.may_vanish = sim_topic.kind in ("short", "short partitioned", "transient")
    # A key picks the lane: without one the same publisher's messages spread over all of them.
    chance = rng.random()
    if chance < 0.04:
        record.reshape(flags=RecordFlag.TRANSIENT)
        sent.may_vanish = sent.is_transient = True
    elif chance < 0.08:
        record.reshape(expire_ms=world.engine.clock.wall_ms() + rng.randrange(1, 3000))
        sent.may_vanish = True
    elif chance < 0.12:
        deliver_ms = world.engine.clock.wall_ms() + rng.randrange(1, 1500)
        record.reshape(flags=RecordFlag.DELAYED, deliver_ms=deliver_ms)
        sent.is_ordered = False
    elif chance < 0.16:
        record.reshape(messages=rng.randint(2, BATCH_MAX))
    return sent, record


def _batch(world: World, publisher: SimPublisher, sim_topic: SimTopic) -> tuple[Sent, Record]:
    """Several messages that were sent as one."""
    rng = world.rng
    number = publisher.next_number
    sent = world.ledger.send(publisher.name, number, sim_topic.label, rng.randrange(60))
    sent.batch = rng.randint(2, BATCH_MAX)
    sent.may_vanish = sim_topic.kind in ("short", "short partitioned", "transient")
    return sent, batch(*sent.bodies)


def connect_publisher(world: World) -> None:
    """A new publisher as most protocols hold them."""
    welcome(world, None)


def welcome(world: World, options: ConnectionOptions | None) -> None:
    """A new publisher: one in four is quiet, one in four floods."""
    if len(world.publishers) >= world.crowd.publishers_max:
        return
    temper = world.rng.random()
    publisher = SimPublisher(world.fresh("p"), world.ledger, world.trace, is_quiet=temper < 0.25)
    publisher.is_flood = temper > 0.75
    publisher.connection = world.engine.connect(
        world.connect(publisher), publisher, publisher.name, options
    )
    publisher.channel = publisher.connection.open_channel()
    world.publishers.append(publisher)
    world.trace.note(f"{publisher.name} connects")


def disconnect_publisher(world: World) -> None:
    """A publisher's connection breaks."""
    if world.publishers:
        publisher = world.publishers.pop(world.rng.randrange(len(world.publishers)))
        world.trace.note(f"{publisher.name} leaves")
        publisher.gone()
        publisher.connection.abort()
