"""A queue as AMQP sees it: the face of a topic with its subscription ``amqp`` (D10, D11).

A topic that another protocol made has a face, too, as soon as somebody asks for it by name. Its
subscription is made when a client declares the queue or wants messages of it, and begins at the
end: a publisher alone changes nothing for the topic.

Invariants: ``owner`` is set exactly for exclusive queues; a deleted queue stays deleted, a new one
of the same name is another object.
Not here: making, finding and deleting queues (``queue_book.py``), what arguments mean
(``queue_arguments.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.adapters.amqp.equivalence import CLASSIC, QUEUE_TYPE, check_arguments, check_flag
from penstock.adapters.amqp.queue_arguments import KNOWN, QueueArguments
from penstock.adapters.amqp.tally import Tally
from penstock.engine.host import Start, SubscriptionOptions
from penstock.wire.amqp.codes import AmqpError, ReplyCode

if TYPE_CHECKING:
    from penstock.adapters.amqp.vhost import VirtualHost
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Topic
    from penstock.model.ids import ConnectionId

SUBSCRIPTION: Final = "amqp"
"""Every AMQP consumer of a topic reads through this one (D11)."""


class Client(Protocol):
    """Who asks; a session."""

    @property
    def connection_id(self) -> ConnectionId:
        """Exclusive queues belong to a connection."""
        ...


class AmqpQueue:
    """One queue of a virtual host."""

    __slots__ = (
        "arguments",
        "consumers",
        "exclusive_consumer",
        "had_consumer",
        "is_auto_delete",
        "is_deleted",
        "is_durable",
        "is_foreign",
        "name",
        "on_gone",
        "owner",
        "settings",
        "tally",
        "topic",
        "vhost",
    )

    def __init__(
        self,
        vhost: VirtualHost,
        topic: Topic,
        *,
        arguments: dict[str, Any] | None = None,
        settings: QueueArguments | None = None,
        owner: ConnectionId | None = None,
        is_auto_delete: bool = False,
        is_foreign: bool = False,
    ) -> None:
        self.vhost: Final = vhost
        self.topic: Final = topic
        self.name: Final = topic.name.name
        self.arguments: Final[dict[str, Any]] = arguments or {}
        """As they were declared, those without a meaning included."""
        self.settings: Final = settings or QueueArguments()
        """What they mean."""
        self.is_durable: Final = topic.is_durable
        self.owner: Final = owner
        """The connection that may use it, if it is exclusive."""
        self.is_auto_delete: Final = is_auto_delete
        self.is_foreign: Final = is_foreign
        """True when another protocol made the topic."""
        self.tally: Final = Tally()
        """What its consumers were given and acknowledged."""
        self.is_deleted = False
        self.on_gone: list[Callable[[], None]] = []
        """Called once when it is gone: of those who wait for that, one each."""
        self.consumers = 0
        """Those that client commands made and did not end yet."""
        self.had_consumer = False
        self.exclusive_consumer = False
        """True while one consumer asked to be the only one."""

    def __repr__(self) -> str:
        return f"<AmqpQueue {self.name!r} in {self.vhost.name!r}>"

    @property
    def resource(self) -> str:
        """What texts call it."""
        return resource_of(self.name, self.vhost.name)

    @property
    def kind(self) -> str:
        """``classic`` or ``quorum``."""
        return self.settings.kind

    @property
    def is_leaving(self) -> bool:
        """True while it is to go and has dead to bury first."""
        return self.topic.is_leaving and not self.is_deleted

    @property
    def is_exclusive(self) -> bool:
        """True when one connection has it for itself."""
        return self.owner is not None

    @property
    def subscription(self) -> Subscription:
        """The reader behind all its consumers; made now if this is the first who wants one."""
        found = self.topic.subscriptions.get(SUBSCRIPTION)
        if found is not None:
            return found
        options = SubscriptionOptions(
            mode=self.settings.mode,
            is_durable=self.is_durable,
            sees_unsynced=True,
            start=Start.LATEST if self.is_foreign else Start.EARLIEST,
            delivery_limit=self.settings.delivery_limit,
        )
        engine = self.vhost.house.engine
        return engine.create_subscription(self.topic.name, SUBSCRIPTION, options)

    @property
    def ready(self) -> int:
        """Messages that wait for a consumer."""
        found = self.topic.subscriptions.get(SUBSCRIPTION)
        if found is None:
            return 0
        return sum(found.ready(queue.queue_id) for queue in self.topic.queues)

    @property
    def unacked(self) -> int:
        """Messages that consumers have and did not settle yet."""
        found = self.topic.subscriptions.get(SUBSCRIPTION)
        if found is None:
            return 0
        return sum(found.unacked(queue.queue_id) for queue in self.topic.queues)

    def purge(self) -> int:
        """Drop every ready message; how many those were."""
        subscription = self.subscription
        return sum(subscription.purge(queue.queue_id) for queue in self.topic.queues)

    def touch(self) -> None:
        """Somebody declared it or got from it: ``x-expires`` counts from now."""
        self.topic.touch(self.vhost.house.clock.monotonic_ms())

    def check_access(self, client: Client) -> None:
        """405 when it is another connection's."""
        if self.owner is not None and self.owner != client.connection_id:
            raise self.locked()

    def check_declared_again(
        self, *, is_durable: bool, owner: ConnectionId | None, is_auto_delete: bool,
        arguments: dict[str, Any],
    ) -> None:  # fmt: skip
        """405 or 406 unless a second declaration says the same as the first."""
        if self.is_foreign:
            # What another protocol made has no arguments of ours, and is nobody's own (D10).
            if owner is not None:
                raise self.locked()
            check_foreign(self.resource, arguments)
            return
        if self.owner != owner:
            raise self.locked()
        check_flag(self.resource, "durable", self.is_durable, is_durable)
        check_flag(self.resource, "auto_delete", self.is_auto_delete, is_auto_delete)
        check_arguments(self.resource, self.arguments, arguments, KNOWN[self.kind])

    def locked(self) -> AmqpError:
        """The error of whoever may not use it."""
        text = (
            f"cannot obtain exclusive access to locked {self.resource}. It could be originally "
            "declared on another connection or the exclusive property value does not match that "
            "of the original declaration."
        )
        return AmqpError(ReplyCode.RESOURCE_LOCKED, text)


def check_foreign(resource: str, arguments: dict[str, Any]) -> None:
    """406 unless a declaration suits a topic that another protocol made."""
    check_arguments(resource, {}, arguments, KNOWN[CLASSIC])
    for name, value in arguments.items():
        if name.startswith("x-") and name != QUEUE_TYPE:
            text = (
                f"inequivalent arg '{name}' for {resource}: received '{value}' but "
                "current is none; another protocol made this topic"
            )
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)


def resource_of(name: str, vhost: str) -> str:
    """What texts call a queue."""
    return f"queue '{name}' in vhost '{vhost}'"


def no_queue(name: str, vhost: str) -> AmqpError:
    """404 for a queue that does not exist."""
    return AmqpError(ReplyCode.NOT_FOUND, f"no {resource_of(name, vhost)}")
