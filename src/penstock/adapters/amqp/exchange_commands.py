"""The exchange family: declare, delete, bind, unbind.

Texts and codes are RabbitMQ's: 404 for what is not there, 403 for what nobody may touch (the
default exchange, ``amq.*``), 406 for a declare that differs from what is there. Deleting or
unbinding what is not there is a success. Carriage returns and line feeds in names are dropped.

``declare_exchange`` and ``delete_exchange`` serve the management API too.
Not here: bindings as such (``topology/exchange.py``), queues (``queue_commands.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.topology.exchange import (
    ALTERNATE,
    RESERVED_PREFIX,
    Exchange,
)
from penstock.adapters.amqp.topology.matching import (
    MATCHERS,
    class_of,
    to_exchange,
)
from penstock.model.names import control_problem
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.exchange import (
    Bind,
    BindOk,
    Declare,
    DeclareOk,
    Delete,
    DeleteOk,
    Unbind,
    UnbindOk,
)

if TYPE_CHECKING:
    from penstock.adapters.amqp.channel import AmqpChannel
    from penstock.adapters.amqp.topology.limits import TopologyLimits
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.wire.amqp.methods.method import Method

_LINE_ENDS: Final = str.maketrans("", "", "\r\n")


def declare(channel: AmqpChannel, method: Declare) -> None:
    """Make an exchange, or look whether it is there."""
    vhost = channel.vhost
    name = clean_name(method.exchange)
    if method.is_passive:
        refuse_default(name)
        vhost.exchange(name)
        channel.answer_definition(DeclareOk(), is_durable=False, is_nowait=method.is_nowait)
        return
    is_new = name not in vhost.exchanges
    wanted = Exchange(
        name,
        known_kind(method.kind),
        is_durable=method.is_durable,
        is_auto_delete=method.is_auto_delete,
        is_internal=method.is_internal,
        arguments=method.arguments,
    )
    exchange = declare_exchange(vhost, wanted)
    channel.answer_definition(
        DeclareOk(), is_durable=is_new and exchange.is_durable, is_nowait=method.is_nowait
    )


def delete(channel: AmqpChannel, method: Delete) -> None:
    name = clean_name(method.exchange)
    gone = delete_exchange(channel.vhost, name, if_unused=method.if_unused)
    is_durable = gone is not None and gone.is_durable
    channel.answer_definition(DeleteOk(), is_durable=is_durable, is_nowait=method.is_nowait)


def bind(channel: AmqpChannel, method: Bind) -> None:
    """What the source gets goes on to the destination."""
    source, destination = clean_name(method.source), clean_name(method.destination)
    refuse_default(source, destination)
    binding = channel.vhost.bindings.bind(
        source, to_exchange(destination), method.routing_key, method.arguments
    )
    channel.answer_definition(BindOk(), is_durable=binding.is_durable, is_nowait=method.is_nowait)


def unbind(channel: AmqpChannel, method: Unbind) -> None:
    source, destination = clean_name(method.source), clean_name(method.destination)
    refuse_default(source, destination)
    binding = channel.vhost.bindings.unbind(
        source, to_exchange(destination), method.routing_key, method.arguments
    )
    is_durable = binding is not None and binding.is_durable
    channel.answer_definition(UnbindOk(), is_durable=is_durable, is_nowait=method.is_nowait)


COMMANDS: Final[dict[type[Method], Callable[..., None]]] = {
    Declare: declare,
    Delete: delete,
    Bind: bind,
    Unbind: unbind,
}


def declare_exchange(vhost: VirtualHost, wanted: Exchange) -> Exchange:
    """The exchange that is there and equals the wanted one, or the wanted one, made."""
    known = vhost.exchanges.get(wanted.name)
    check_exchange(vhost.limits, vhost.name, known, wanted)
    if known is not None:
        return known
    vhost.limits.check_exchanges()
    vhost.add_exchange(wanted)
    return wanted


def check_exchange(
    limits: TopologyLimits, vhost: str, known: Exchange | None, wanted: Exchange
) -> None:
    """Raise unless an exchange may be declared like this, beside the one there is of its name."""
    refuse_default(wanted.name)
    if known is not None:
        _check_equivalence(vhost, known, wanted)
        return
    if wanted.is_reserved:
        raise AmqpError(
            ReplyCode.ACCESS_REFUSED,
            f"exchange name '{wanted.name}' contains reserved prefix '{RESERVED_PREFIX}*'",
        )
    problem = control_problem("exchange", wanted.name)
    if problem is not None:
        raise _precondition(problem)
    alternate = wanted.arguments.get(ALTERNATE, "")
    if not isinstance(alternate, str):
        raise _precondition(
            f"invalid type '{class_of(alternate)}' for arg '{ALTERNATE}' in "
            f"{_spelled(vhost, wanted.name)}"
        )
    limits.check_arguments(wanted.arguments)


def delete_exchange(vhost: VirtualHost, name: str, *, if_unused: bool) -> Exchange | None:
    """Remove an exchange with its bindings; None when there is none."""
    refuse_default(name)
    if name.startswith(RESERVED_PREFIX):
        raise AmqpError(
            ReplyCode.ACCESS_REFUSED, f"deletion of system {_spelled(vhost.name, name)} not allowed"
        )
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        return None
    if if_unused and exchange.bindings:
        raise _precondition(f"{_spelled(vhost.name, name)} in use")
    vhost.bindings.drop_exchange(exchange)
    return exchange


def refuse_default(*names: str) -> None:
    """Raise 403 when one of these is the default exchange."""
    if "" in names:
        raise AmqpError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")


def known_kind(kind: str) -> str:
    """A type of exchange; raises 406 for one we do not have, as RabbitMQ 4 does."""
    if kind not in MATCHERS:
        raise _precondition(f"unknown exchange type '{kind}'")
    return kind


def clean_name(name: str) -> str:
    return name.translate(_LINE_ENDS)


def _check_equivalence(vhost: str, known: Exchange, wanted: Exchange) -> None:
    for field, current, received in (
        ("type", known.kind, wanted.kind),
        ("durable", known.is_durable, wanted.is_durable),
        ("auto_delete", known.is_auto_delete, wanted.is_auto_delete),
        ("internal", known.is_internal, wanted.is_internal),
    ):
        if current != received:
            raise _inequivalent(vhost, known, field, f"'{_word(received)}'", f"'{_word(current)}'")
    current_value, value = known.arguments.get(ALTERNATE), wanted.arguments.get(ALTERNATE)
    if current_value != value:
        raise _inequivalent(vhost, known, ALTERNATE, _value(value), _value(current_value))


def _inequivalent(
    vhost: str, exchange: Exchange, field: str, received: str, current: str
) -> AmqpError:
    return _precondition(
        f"inequivalent arg '{field}' for {_spelled(vhost, exchange.name)}: "
        f"received {received} but current is {current}"
    )


def _precondition(text: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, text)


def _spelled(vhost: str, name: str) -> str:
    return f"exchange '{name}' in vhost '{vhost}'"


def _word(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _value(value: Any) -> str:
    return "none" if value is None else f"the value '{value}' of type '{class_of(value)}'"
