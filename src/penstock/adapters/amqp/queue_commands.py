"""The queue family: declare, bind, unbind, purge, delete.

Texts and codes are RabbitMQ's. An empty name means the queue declared last on the channel, except
in a declaration, where it asks for a name of ours. Carriage returns and line feeds in names are
dropped. Deleting or unbinding what is not there is a success. What concerns a durable queue is
answered when the catalog has it (D6).

Not here: the queues (``topology/queue_registry.py``), bindings as such (``topology/exchange.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.direct_reply import is_pseudo_queue
from penstock.adapters.amqp.exchange_commands import clean_name, refuse_default
from penstock.adapters.amqp.topology.exchange import RESERVED_PREFIX
from penstock.adapters.amqp.topology.matching import to_queue
from penstock.adapters.amqp.topology.queue import AmqpQueue, no_queue
from penstock.adapters.amqp.topology.queue_registry import Declaration
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.queue import (
    Bind,
    BindOk,
    Declare,
    DeclareOk,
    Delete,
    DeleteOk,
    Purge,
    PurgeOk,
    Unbind,
    UnbindOk,
)

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import AmqpChannel
    from penstock.wire.amqp.methods.method import Method


def declare(channel: AmqpChannel, method: Declare) -> None:
    """Make a queue, or look whether it is there."""
    name = clean_name(method.queue)
    if is_pseudo_queue(name):
        _look_for_reply_queue(channel, name, is_nowait=method.is_nowait)
        return
    book = channel.vhost.queues
    if method.is_passive:
        queue = book.find(name, channel.connection)
    else:
        refuse_reserved(name)
        wanted = Declaration(
            name,
            method.is_durable,
            method.is_exclusive,
            method.is_auto_delete,
            method.arguments,
        )
        queue = book.declare(wanted, channel.connection)
    queue.touch()
    channel.last_queue = queue.name
    answer = DeclareOk(queue.name, queue.ready, queue.consumers)
    # Who only looks changes nothing that could be lost.
    is_durable = queue.is_durable and not method.is_passive
    channel.answer_definition(answer, is_durable=is_durable, is_nowait=method.is_nowait)


def bind(channel: AmqpChannel, method: Bind) -> None:
    """What the exchange routes by this key goes to the queue."""
    name, exchange, key = _ends(channel, method)
    refuse_default(exchange)
    channel.vhost.exchange(exchange)
    channel.vhost.queues.find(name, channel.connection)
    binding = channel.vhost.bindings.bind(exchange, to_queue(name), key, method.arguments)
    channel.answer_definition(BindOk(), is_durable=binding.is_durable, is_nowait=method.is_nowait)


def unbind(channel: AmqpChannel, method: Unbind) -> None:
    name, exchange, key = _ends(channel, method)
    refuse_default(exchange)
    queue = channel.vhost.queues.get(name)
    if queue is not None:
        queue.check_access(channel.connection)
    binding = channel.vhost.bindings.unbind(exchange, to_queue(name), key, method.arguments)
    is_durable = binding is not None and binding.is_durable
    channel.answer_definition(UnbindOk(), is_durable=is_durable)


def purge(channel: AmqpChannel, method: Purge) -> None:
    queue = channel.vhost.queues.find(named(channel, method.queue), channel.connection)
    channel.answer_definition(
        PurgeOk(queue.purge()), is_durable=queue.is_durable, is_nowait=method.is_nowait
    )


def delete(channel: AmqpChannel, method: Delete) -> None:
    """Remove a queue; its consumers on this channel hear of that after the answer."""
    queue = channel.vhost.queues.get(named(channel, method.queue))
    if queue is None:
        channel.answer_definition(DeleteOk(0), is_durable=False, is_nowait=method.is_nowait)
        return
    queue.check_access(channel.connection)
    _check_conditions(queue, if_unused=method.if_unused, if_empty=method.if_empty)
    later = _nobody if method.is_nowait else channel.answer_later()
    answer = DeleteOk(channel.vhost.queues.retire(queue))
    if queue.is_deleted:
        _deleted(channel, queue, partial(later, answer))
    else:
        # Many wait for their dead letters: what the peer says next is heard when they have them.
        queue.on_gone.append(partial(_deleted, channel, queue, partial(later, answer)))
        channel.connection.wait_for_deletion(queue)


def _deleted(channel: AmqpChannel, queue: AmqpQueue, say: Callable[[], None]) -> None:
    if queue.is_durable:
        channel.context.engine.after_durable(say)
    else:
        say()


def _nobody(_answer: Method | None) -> None: ...


COMMANDS: Final[dict[type[Method], Callable[..., None]]] = {
    Declare: declare,
    Bind: bind,
    Unbind: unbind,
    Purge: purge,
    Delete: delete,
}


def named(channel: AmqpChannel, name: str) -> str:
    """The name a command means; raises 404 for an empty one when nothing was declared yet."""
    found = clean_name(name) or channel.last_queue
    if not found:
        raise AmqpError(ReplyCode.NOT_FOUND, "no previously declared queue")
    return found


def _check_conditions(queue: AmqpQueue, *, if_unused: bool, if_empty: bool) -> None:
    if if_unused and queue.consumers:
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"{queue.resource} in use")
    if if_empty and queue.ready:
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"{queue.resource} not empty")


def refuse_reserved(name: str) -> None:
    """403 for names that only the server gives."""
    if name.startswith(RESERVED_PREFIX):
        text = f"queue name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'"
        raise AmqpError(ReplyCode.ACCESS_REFUSED, text)


def _ends(channel: AmqpChannel, method: Bind | Unbind) -> tuple[str, str, str]:
    """Queue, exchange and key; with neither queue nor key given both are the last queue's name."""
    name = named(channel, method.queue)
    key = method.routing_key
    if not method.queue and not key:
        key = channel.last_queue
    return name, clean_name(method.exchange), key


def _look_for_reply_queue(channel: AmqpChannel, name: str, *, is_nowait: bool) -> None:
    """Direct reply-to has no queue to declare: it is there, or it is not."""
    if not channel.publisher.direct_reply.exists(name):
        raise no_queue(name, channel.vhost.name)
    channel.last_queue = name
    if not is_nowait:
        channel.answer(DeclareOk(name, 0, 1))
