"""Steps and laws of topics without a log; only in runs that ask for them (``simulate``).

Its publishers and consumers are peers of their own: nothing they say concerns the ledger, for
nothing is kept. What must hold: for every subscription each message is handed out once or counted
as dropped; each publish is answered once, and says that it is stored nowhere; nobody gets more than
its permits, but for the rest of one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kit.simulation.ledger import LawBroken
from kit.simulation.peers import Peer
from kit.simulation.world import BATCH_MAX, World
from penstock.engine.host import Mode
from penstock.engine.non_persistent import NonPersistentSubscription, NonPersistentTopic
from penstock.engine.ports import Publication
from penstock.engine.subscription.consumer import Consumer
from penstock.flow.demand import Permits
from penstock.model.ids import ConnectionId
from penstock.model.names import NON_PERSISTENT, topic_name
from penstock.model.record import neutral_record

if TYPE_CHECKING:
    from penstock.engine.connection import Channel
    from penstock.engine.ports import Confirmation
    from penstock.engine.subscription.consumer import Delivery
    from penstock.model.refusal import Refusal

NAME: Final = topic_name("direct", "", NON_PERSISTENT)
MODES: Final = (Mode.EXCLUSIVE, Mode.FAILOVER, Mode.SHARED, Mode.KEY_SHARED)
CONSUMERS_MAX: Final = 6


class DirectPublisher(Peer):
    """Publishes to the topic without a log, and to nothing else."""

    def __init__(self, world: World) -> None:
        super().__init__(world.fresh("dp"), world.ledger, world.trace)
        world.names += 1
        connection = world.engine.connect(ConnectionId(world.names), self, self.name)
        self.channel = connection.open_channel()
        self.pending: set[int] = set()
        self.next_number = 0

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        for each in confirmations:
            self._answered(each.token)
            if each.offset != -1 or each.position != -1:
                raise LawBroken(f"{self.name}: {each.token} was stored without a log")

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        for token, _ in refusals:
            self._answered(token)

    def _answered(self, token: int) -> None:
        if token not in self.pending:
            raise LawBroken(f"{self.name} got an answer for unknown token {token}")
        self.pending.remove(token)


class DirectConsumer(Peer):
    """Counts what it gets; its socket takes it when it wants to."""

    def __init__(
        self, world: World, subscription: NonPersistentSubscription, counted: list[int]
    ) -> None:
        super().__init__(world.fresh("dc"), world.ledger, world.trace)
        self._world = world
        self._counted = counted
        self.permits = Permits(world.rng.randrange(10))
        self.last: dict[str, int] = {}
        attached = subscription.attach(self, self.permits, name=self.name)
        self.consumer = attached if isinstance(attached, Consumer) else None
        self.subscription = subscription

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        for each in deliveries:
            publisher, _, number = each.record.body.decode().partition(":")
            if int(number) <= self.last.get(publisher, -1):
                raise LawBroken(f"{self.name} got {publisher}:{number} out of order")
            self.last[publisher] = int(number)
        self._counted[0] += sum(each.messages for each in deliveries)
        self._world.direct_messages += len(deliveries)
        if self.permits.permits <= -BATCH_MAX:
            raise LawBroken(f"{self.name} has {self.permits.permits} permits left (F11)")
        self.trace.note(f"{self.name} gets {len(deliveries)}")


class DirectCrowd:
    """One topic, a subscription of each type, and who uses them; ends with the process."""

    def __init__(self, world: World) -> None:
        self.publisher = DirectPublisher(world)
        self.begin(world)

    def begin(self, world: World) -> None:
        """With a new topic; also when the old one was unused for too long and went."""
        self.topic: NonPersistentTopic = world.engine.non_persistent.create(NAME)
        self.delivered = {mode.value: [0] for mode in MODES}
        """Subscription -> [messages handed out]."""
        self.consumers: list[DirectConsumer] = []
        for mode in MODES:
            self.topic.subscribe(mode.value, mode)


def _crowd(world: World) -> DirectCrowd:
    crowd = world.direct
    if not isinstance(crowd, DirectCrowd):
        crowd = world.direct = DirectCrowd(world)
    elif world.engine.non_persistent.get(NAME) is not crowd.topic:
        crowd.begin(world)
    return crowd


def publish(world: World) -> None:
    crowd = _crowd(world)
    publisher, rng = crowd.publisher, world.rng
    if not publisher.channel.connection.may_read:
        return
    route = world.engine.non_persistent.route(NAME)
    publications = []
    for _ in range(rng.randint(1, world.crowd.burst_max)):
        number = publisher.next_number
        publisher.next_number += 1
        record = neutral_record(
            b"%s:%d" % (publisher.name.encode(), number), key=b"k%d" % (number % 4)
        )
        record.reshape(messages=rng.randint(1, BATCH_MAX))
        publisher.pending.add(number)
        publications.append(Publication(record=record, route=route, token=number))
    world.trace.note(f"{publisher.name} publishes {len(publications)} directly")
    publisher.channel.publish(publications)


def attach(world: World) -> None:
    crowd = _crowd(world)
    if len(crowd.consumers) < CONSUMERS_MAX:
        mode = world.rng.choice(MODES)
        subscription = crowd.topic.subscriptions[mode.value]
        consumer = DirectConsumer(world, subscription, crowd.delivered[mode.value])
        world.trace.note(f"{consumer.name} attaches {mode.value} {consumer.consumer is not None}")
        if consumer.consumer is not None:
            crowd.consumers.append(consumer)


def detach(world: World) -> None:
    crowd = _crowd(world)
    if crowd.consumers:
        gone = crowd.consumers.pop(world.rng.randrange(len(crowd.consumers)))
        world.trace.note(f"{gone.name} detaches")
        assert gone.consumer is not None
        gone.subscription.detach(gone.consumer)


def take(world: World) -> None:
    """A socket takes what it was sent, and its peer grants more."""
    crowd = _crowd(world)
    if crowd.consumers:
        taker = world.rng.choice(crowd.consumers)
        assert taker.consumer is not None
        unsent = taker.consumer.unsent
        taker.consumer.sent(unsent.messages, unsent.bytes)
        taker.permits.add(world.rng.randint(1, 12))
        world.trace.note(f"{taker.name} takes all, permits {taker.permits.permits}")


STEPS: Final[tuple[tuple[float, Callable[[World], None]], ...]] = (
    (6, publish),
    (6, take),
    (1, attach),
    (0.7, detach),
)


def check(world: World) -> None:
    """Every message, for every subscription: handed out once, or counted as dropped."""
    crowd = world.direct
    if not isinstance(crowd, DirectCrowd):
        return
    for name, subscription in crowd.topic.subscriptions.items():
        found = crowd.delivered[name][0] + subscription.dropped_messages
        if found != crowd.topic.published_messages:
            raise LawBroken(
                f"{name}: {crowd.topic.published_messages} published directly, {found} handed out "
                "or dropped"
            )


def unanswered(world: World) -> str:
    """A publish that nobody answered, if there is one."""
    crowd = world.direct
    if isinstance(crowd, DirectCrowd) and crowd.publisher.pending:
        return f"{crowd.publisher.name}:{min(crowd.publisher.pending)}"
    return ""
