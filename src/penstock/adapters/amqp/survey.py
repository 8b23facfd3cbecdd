"""Whether a document of definitions can be made as a whole, found out without making anything.

Every part is judged by the same rules as a client's declaration, against what is there and what the
document itself has before it: vhosts, then exchanges, queues and bindings. Limits are those that
hold when all of it is made. The first part that cannot be is an error that names it.

Invariant: after a survey that raises nothing, making the document raises nothing.
Not here: making (``definitions.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.binding import Binding, BindingKey
from penstock.adapters.amqp.document import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
)
from penstock.adapters.amqp.equivalence import check_arguments as check_same_arguments
from penstock.adapters.amqp.equivalence import check_flag
from penstock.adapters.amqp.exchange import PREDECLARED, Exchange, predeclared
from penstock.adapters.amqp.exchanges import check_exchange
from penstock.adapters.amqp.matching import MATCHERS
from penstock.adapters.amqp.queue import check_foreign, no_queue, resource_of
from penstock.adapters.amqp.queue_arguments import KNOWN
from penstock.adapters.amqp.queue_book import Declaration, checked
from penstock.adapters.amqp.topology_bounds import (
    check_arguments,
    check_bindings,
    check_exchanges,
    check_vhosts,
)
from penstock.adapters.amqp.vhost import space_of
from penstock.model.names import TopicName, topic_name
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.method import short_bytes

if TYPE_CHECKING:
    from penstock.adapters.amqp.house import House
    from penstock.adapters.amqp.vhost import VirtualHost
    from penstock.engine.topic import Topic

VHOST_NAME_BYTES_MAX: Final = 255


def survey(house: House, document: Definitions, vhost: VirtualHost | None = None) -> None:
    """Raise ``AmqpError`` or ``ValueError`` unless all of it can be made."""
    _Survey(house, vhost).check(document)


def check_vhost_name(name: str) -> None:
    """Raise unless a vhost may have this name."""
    if not name or len(name.encode()) > VHOST_NAME_BYTES_MAX or not name.isprintable():
        raise ValueError(f"vhost name {name[:40]!r}: 1 to 255 bytes without control characters")


def check_source(wanted: BindingDefinition) -> None:
    """Raise for a binding of the default exchange, and for a key no client could say."""
    if not wanted.source:
        raise AmqpError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
    short_bytes(wanted.routing_key)


class _Survey:
    """One document's."""

    def __init__(self, house: House, vhost: VirtualHost | None) -> None:
        self._house = house
        self._vhost = vhost
        """The only one there is a talk of; None = every part names its own."""
        self._new_vhosts: set[str] = set()
        self._given = predeclared()
        """What a vhost begins with."""
        self._exchanges: dict[tuple[str, str], Exchange] = {}
        self._queues: dict[tuple[str, str], Declaration] = {}
        self._bindings: set[tuple[str, BindingKey]] = set()

    def check(self, document: Definitions) -> None:
        """All of it."""
        house = self._house
        if self._vhost is None:
            users = house.users
            new_users = {each.name for each in document.users if users.get(each.name) is None}
            for user in document.users:
                users.check(user.user, len(new_users))
            for vhost in document.vhosts:
                check_vhost_name(vhost.name)
            self._new_vhosts = {each.name for each in document.vhosts}.difference(house.vhosts)
        check_vhosts(house, len(self._new_vhosts))
        for exchange in document.exchanges:
            self._exchange(self._place(exchange.vhost), exchange)
        check_exchanges(house, len(self._exchanges) + len(PREDECLARED) * len(self._new_vhosts))
        new_topics = sum([self._queue(self._place(each.vhost), each) for each in document.queues])
        self._check_queues(new_topics)
        for binding in document.bindings:
            self._binding(self._place(binding.vhost), binding)
        check_bindings(house, len(self._bindings))

    def _place(self, named: str) -> str:
        """The name of the vhost that a part is in."""
        if self._vhost is not None:
            return self._vhost.name
        if named not in self._house.vhosts and named not in self._new_vhosts:
            raise AmqpError(ReplyCode.NOT_FOUND, f"no vhost '{named}'")
        return named

    def _exchange(self, vhost: str, wanted: ExchangeDefinition) -> None:
        exchange = wanted.exchange
        known = self._exchange_there(vhost, exchange.name)
        check_exchange(self._house, vhost, known, exchange)
        if known is None:
            self._exchanges[vhost, exchange.name] = exchange

    def _queue(self, vhost: str, wanted: QueueDefinition) -> int:
        """How many queues of the engine it adds."""
        declaration = wanted.declaration
        name = declaration.name
        topic_name(name, space_of(vhost))
        resource = resource_of(name, vhost)
        first = self._queues.get((vhost, name))
        if first is not None:
            settings = checked(self._house, vhost, first, name)
            check_flag(resource, "durable", first.is_durable, declaration.is_durable)
            check_flag(resource, "auto_delete", first.is_auto_delete, declaration.is_auto_delete)
            check_same_arguments(
                resource, first.arguments, declaration.arguments, KNOWN[settings.kind]
            )
            return 0
        topic = self._topic(vhost, name)
        if topic is not None:
            self._check_there(vhost, topic, declaration)
            return 0
        settings = checked(self._house, vhost, declaration, name)
        self._queues[vhost, name] = declaration
        return settings.policy.max_priority + 1

    def _check_there(self, vhost: str, topic: Topic, wanted: Declaration) -> None:
        """Raise unless a declaration equals what is there already."""
        there = self._house.vhosts.get(vhost)
        queue = None if there is None else there.queues.get(wanted.name)
        if queue is None:
            # The vhost is to be made: what is in its space is another protocol's.
            check_foreign(resource_of(topic.name.name, vhost), wanted.arguments)
            return
        queue.check_declared_again(
            is_durable=wanted.is_durable,
            owner=None,
            is_auto_delete=wanted.is_auto_delete,
            arguments=wanted.arguments,
        )

    def _check_queues(self, more: int) -> None:
        engine, limit = self._house.engine, self._house.all_settings.topics.queues_max
        there = sum([len(topic.queues) for topic in engine.topics()]) if more else 0
        if more and there + more > limit:
            text = f"there are {there} queues, {more} more make more than {limit} "
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"{text}(topics.queues_max)")

    def _binding(self, vhost: str, wanted: BindingDefinition) -> None:
        target = wanted.target
        if not wanted.is_implied:
            check_source(wanted)
        if target.is_queue:
            if (vhost, target.name) not in self._queues and not self._topic(vhost, target.name):
                raise no_queue(target.name, vhost)
        elif self._exchange_there(vhost, target.name) is None:
            raise _no_exchange(target.name, vhost)
        if wanted.is_implied:
            return
        source = self._exchange_there(vhost, wanted.source)
        if source is None:
            raise _no_exchange(wanted.source, vhost)
        binding = Binding(wanted.source, target, wanted.routing_key, dict(wanted.arguments))
        check_arguments(self._house, binding.arguments)
        # Whether its arguments make sense is told by whoever matches with them.
        MATCHERS[source.kind]().add(binding)
        if binding.key not in source.bindings:
            self._bindings.add((vhost, binding.key))

    def _exchange_there(self, vhost: str, name: str) -> Exchange | None:
        """What has this name now, or has it before this part of the document is made."""
        planned = self._exchanges.get((vhost, name))
        if planned is not None:
            return planned
        there = self._house.vhosts.get(vhost)
        return (self._given if there is None else there.exchanges).get(name)

    def _topic(self, vhost: str, name: str) -> Topic | None:
        return self._house.engine.topic(TopicName(space_of(vhost), name))


def _no_exchange(name: str, vhost: str) -> AmqpError:
    return AmqpError(ReplyCode.NOT_FOUND, f"no exchange '{name}' in vhost '{vhost}'")
