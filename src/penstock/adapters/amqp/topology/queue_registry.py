"""The queues of one virtual host: making, finding, restoring and deleting them.

A durable queue is a topic, its subscription ``amqp`` and a row ``amqp.queue`` here, all in one
transaction. Transient, exclusive and server-named queues are topics that never enter the catalog
(D6). Topics of other protocols in the vhost's space are found by name as well (D9, D10).

Whoever removes a topic (a client here, another protocol, ``x-expires``), the engine tells the
broker, so there is one way out: ``removed``. Consumers were told by then.

Invariants: a name has at most one queue; an exclusive queue is in ``_exclusive`` under its
connection; a queue's bindings go with it.
Not here: the commands of clients (``amqp/queue_commands.py``), one queue (``queue.py``).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.adapters.amqp.topology.dead_letter import dead_letter_router_of
from penstock.adapters.amqp.topology.queue import (
    QUORUM,
    SUBSCRIPTION,
    AmqpQueue,
    QueueArguments,
    QueueUser,
    no_queue,
    read_arguments,
    resource_of,
)
from penstock.model.errors import AlreadyExists
from penstock.model.names import TopicName, topic_name
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.table import decode_table, encode_table

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.topology.limits import TopologyLimits
    from penstock.adapters.amqp.topology.policies import PolicyTable
    from penstock.adapters.amqp.topology.router import Router
    from penstock.engine.topic import Topic, TopicPolicy
    from penstock.model.ids import ConnectionId

_log = logging.getLogger(__name__)

QUEUE_KIND: Final = "amqp.queue"
GENERATED_PREFIX: Final = "amq.gen-"
GENERATED_BYTES: Final = 16
"""Random bytes of a server's name: 22 characters."""


class QueueRow(msgspec.Struct, frozen=True, array_like=True):
    """A durable queue in the catalog; its key is vhost NUL name."""

    arguments: bytes
    is_auto_delete: bool = False


class Declaration(msgspec.Struct, frozen=True):
    """What a client asks for."""

    name: str
    is_durable: bool = False
    is_exclusive: bool = False
    is_auto_delete: bool = False
    arguments: dict[str, Any] = {}


class QueueRegistry:
    """All queues of one virtual host, by name."""

    def __init__(
        self,
        context: AmqpContext,
        vhost: str,
        space: str,
        router: Router,
        *,
        policies: PolicyTable,
        limits: TopologyLimits,
        on_removed: Callable[[AmqpQueue], None],
    ) -> None:
        self._context: Final = context
        self._engine: Final = context.engine
        self._vhost: Final = vhost
        self._space: Final = space
        self._router: Final = router
        self._policies: Final = policies
        self._limits: Final = limits
        self._on_removed: Final = on_removed
        """A queue is not here any more; called before those who wait for that."""
        self._queues: Final[dict[str, AmqpQueue]] = {}
        self._exclusive: Final[dict[ConnectionId, dict[str, AmqpQueue]]] = {}
        self._restore()

    # Finding.

    def get(self, name: str) -> AmqpQueue | None:
        """The queue of that name, whoever made its topic."""
        found = self._queues.get(name)
        if found is None:
            topic = self._engine.topic(TopicName(self._space, name))
            if topic is not None:
                found = self._add(AmqpQueue(self._context, self._vhost, topic, is_foreign=True))
        return found

    def known(self, topic: Topic) -> AmqpQueue | None:
        """The queue that a topic is, if anybody here asked for it already."""
        found = self._queues.get(topic.name.name)
        return found if found is not None and found.topic is topic else None

    def find(self, name: str, client: QueueUser) -> AmqpQueue:
        """The same for a client; raises 404, or 405 when it is another connection's."""
        found = self.get(name)
        if found is None:
            raise no_queue(name, self._vhost)
        found.check_access(client)
        return found

    def __iter__(self) -> Iterator[AmqpQueue]:
        """Everything worth listing: hidden topics of other protocols stay hidden (D9)."""
        for topic in self._engine.topics():
            if topic.name.space == self._space:
                found = self.get(topic.name.name)
                if found is not None and not (found.is_foreign and topic.name.is_hidden):
                    yield found

    @property
    def living(self) -> Iterable[AmqpQueue]:
        """Those that somebody here asked for already."""
        return self._queues.values()

    # Policies.

    def apply_policies(self, queues: Iterable[AmqpQueue]) -> None:
        """What is in effect for these queues may have changed; it is so when this returns.

        Never stored with the topic: after a restart it follows from arguments and policies again.
        Topics of other protocols have none: nobody who made them would expect it.
        """
        now_ms = self._context.clock.monotonic_ms()
        changes: list[tuple[Topic, TopicPolicy]] = []
        for queue in queues:
            if queue.is_deleted or not queue.takes_policies:
                continue
            before, topic = queue.in_effect, queue.topic
            wanted = queue.set_policy(self._policies.effective(queue.kind, queue.name))
            if queue.in_effect is not before:
                topic.dead_letter_router = dead_letter_router_of(self._context, self._router, queue)
            if wanted != topic.own_policy:
                if wanted.expires_ms != topic.own_policy.expires_ms:
                    # As RabbitMQ does: a new time counts from the moment it is in effect.
                    topic.touch(now_ms)
                changes.append((topic, wanted))
        if changes:
            self._engine.apply_policies(changes)

    # Making.

    def declare(self, wanted: Declaration, client: QueueUser) -> AmqpQueue:
        """The queue, made now or there already and equivalent; raises 403, 405 or 406."""
        churn = self._context.churn
        churn["queue_declared"] += 1
        owner = client.connection_id if wanted.is_exclusive else None
        # An exclusive queue ends with its connection, whatever it says about durability.
        is_durable = wanted.is_durable and owner is None
        found = self.get(wanted.name) if wanted.name else None
        if found is not None:
            found.check_declared_again(
                is_durable=is_durable,
                owner=owner,
                is_auto_delete=wanted.is_auto_delete,
                arguments=wanted.arguments,
            )
            if found.is_foreign:
                # From now on its messages wait for consumers of ours, too.
                assert found.subscription is not None
            return found
        name = wanted.name or self._generated()
        settings = check_declaration(self._limits, self._vhost, wanted, name)
        topic = self._make_topic(name, settings, is_durable=is_durable, maker=client.maker)
        queue = AmqpQueue(
            self._context,
            self._vhost,
            topic,
            arguments=wanted.arguments,
            settings=settings,
            owner=owner,
            is_auto_delete=wanted.is_auto_delete,
        )
        assert queue.subscription is not None
        self.apply_policies((queue,))
        if is_durable:
            row = QueueRow(encode_table(wanted.arguments), wanted.is_auto_delete)
            self._engine.define(QUEUE_KIND, self._key(name), msgspec.msgpack.encode(row))
        churn["queue_created"] += 1
        return self._add(queue)

    def _make_topic(
        self, name: str, settings: QueueArguments, *, is_durable: bool, maker: str
    ) -> Topic:
        try:
            return self._engine.create_topic(
                topic_name(name, self._space),
                policy=settings.policy,
                is_durable=is_durable,
                maker=maker,
            )
        except (AlreadyExists, ValueError) as problem:
            text = f"cannot declare {resource_of(name, self._vhost)}: {problem}"
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, text) from None

    def _generated(self) -> str:
        while True:
            name = GENERATED_PREFIX + secrets.token_urlsafe(GENERATED_BYTES)
            if self.get(name) is None:
                return name

    # Consumers and connections come and go.

    def consumer_added(self, queue: AmqpQueue) -> None:
        queue.consumers += 1
        queue.had_consumer = True

    def consumer_removed(self, queue: AmqpQueue) -> None:
        """One less; the last one takes an auto-delete queue with it."""
        queue.consumers -= 1
        if queue.is_auto_delete and not queue.consumers and not queue.is_deleted:
            self.retire(queue, "auto-delete")

    def connection_closed(self, connection_id: ConnectionId) -> None:
        for queue in list(self._exclusive.get(connection_id, {}).values()):
            self.retire(queue, "exclusive owner gone")

    # Deleting.

    def delete(self, queue: AmqpQueue, cause: str = "deleted") -> int:
        """The queue goes at once, its consumers are told; how many ready messages went with it.

        What another protocol made stays: only our subscription and bindings of it go.
        """
        if queue.is_deleted:
            return 0
        count = queue.ready
        if not queue.is_foreign:
            self._engine.delete_topic(queue.topic.name, cause)
            return count
        self._forget(queue)
        if SUBSCRIPTION in queue.topic.subscriptions:
            self._engine.delete_subscription(queue.topic.name, SUBSCRIPTION, cause)
        return count

    def retire(self, queue: AmqpQueue, cause: str = "deleted") -> int:
        """The same once its dead letters are stored; until then it is there, ``is_deleting``."""
        if queue.is_foreign or queue.is_deleted or queue.is_deleting:
            return self.delete(queue, cause) if queue.is_foreign else 0
        count = queue.ready
        self._engine.retire_topic(queue.topic.name, cause)
        return count

    def leaving(self, name: str) -> AmqpQueue | None:
        """The queue of that name if it is being deleted and not gone yet."""
        queue = self._queues.get(name)
        return queue if queue is not None and queue.is_deleting else None

    def drop_all(self) -> None:
        """The vhost goes, and every queue in it that is ours."""
        for queue in list(self._queues.values()):
            self.delete(queue, "vhost deleted")

    def removed(self, topic: Topic) -> None:
        """A topic of this vhost's space is gone."""
        queue = self._queues.get(topic.name.name)
        if queue is not None and queue.topic is topic:
            self._forget(queue)

    def _forget(self, queue: AmqpQueue) -> None:
        queue.is_deleted = True
        del self._queues[queue.name]
        if queue.owner is not None:
            owned = self._exclusive[queue.owner]
            del owned[queue.name]
            if not owned:
                del self._exclusive[queue.owner]
        self._context.churn["queue_deleted"] += not queue.is_foreign
        if queue.is_durable and not queue.is_foreign:
            self._engine.define(QUEUE_KIND, self._key(queue.name), None)
        self._on_removed(queue)
        for callback in queue.on_gone:
            callback()

    def _add(self, queue: AmqpQueue) -> AmqpQueue:
        self._queues[queue.name] = queue
        if queue.owner is not None:
            self._exclusive.setdefault(queue.owner, {})[queue.name] = queue
        if not queue.is_foreign:
            queue.topic.dead_letter_router = dead_letter_router_of(
                self._context, self._router, queue
            )
            self._router.forget()
        return queue

    # Rows.

    def _restore(self) -> None:
        """Durable queues as the catalog has them."""
        prefix = self._key("")
        for key, body in self._engine.definitions(QUEUE_KIND).items():
            if not key.startswith(prefix):
                continue
            name = key.removeprefix(prefix)
            topic = self._engine.topic(TopicName(self._space, name))
            if topic is None:
                # A catalog repaired by hand: the row alone means nothing.
                self._engine.define(QUEUE_KIND, key, None)
                continue
            row = msgspec.msgpack.decode(body, type=QueueRow)
            arguments = decode_table(row.arguments)[0]
            settings = self._settings_of(name, arguments)
            self._add(
                AmqpQueue(
                    self._context,
                    self._vhost,
                    topic,
                    arguments=arguments,
                    settings=settings,
                    is_auto_delete=row.is_auto_delete,
                )
            )
        self.apply_policies(self._queues.values())

    def _settings_of(self, name: str, arguments: dict[str, Any]) -> QueueArguments | None:
        try:
            return read_arguments(resource_of(name, self._vhost), arguments)
        except AmqpError as problem:
            # Another version accepted it; its limits are in the topic's policy and hold.
            _log.warning("arguments of a stored queue", extra={"queue": name, "why": str(problem)})
            return None

    def _key(self, name: str) -> str:
        return f"{self._vhost}\0{name}"


def check_declaration(
    limits: TopologyLimits, vhost: str, wanted: Declaration, name: str
) -> QueueArguments:
    """What a new queue's arguments mean; raises unless there can be such a queue."""
    resource = resource_of(name, vhost)
    found = read_arguments(resource, wanted.arguments)
    limits.check_arguments(wanted.arguments)
    if found.kind == QUORUM:
        _check_quorum(wanted, resource)
    return found


def _check_quorum(wanted: Declaration, resource: str) -> None:
    """406 for what a replicated queue cannot be."""
    problem = ""
    if not wanted.name:
        text = "Cannot declare a server-named queue for type quorum"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
    if wanted.is_auto_delete:
        problem = "auto-delete"
    elif wanted.is_exclusive:
        problem = "exclusive-owner"
    elif not wanted.is_durable:
        problem = "non-durable"
    if problem:
        text = f"invalid property '{problem}' for {resource}"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, text)
