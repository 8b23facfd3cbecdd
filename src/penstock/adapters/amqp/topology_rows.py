"""Durable exchanges and bindings as rows of the catalog (D6).

A row's key begins with the vhost and NUL; its body is msgpack, in which arguments are an AMQP
table, so that every type of value comes back as it was. An exchange is written when it is durable,
a binding when both of its ends are. ``Engine.define`` puts the row into the next transaction; an
answer that must not leave before goes through ``ChannelState.answer_when_durable``.

Not here: queues (``queue_book.py``), users (``users.py``), vhosts (``house.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.amqp.binding import Binding, Destination
from penstock.adapters.amqp.exchange import Exchange
from penstock.wire.amqp.table import decode_table, encode_table

if TYPE_CHECKING:
    from penstock.adapters.amqp.vhost import VirtualHost

EXCHANGE_KIND: Final = "amqp.exchange"
BINDING_KIND: Final = "amqp.binding"
_NUL: Final = "\0"


class ExchangeRow(msgspec.Struct, array_like=True):
    """One exchange."""

    name: str
    kind: str
    is_auto_delete: bool
    is_internal: bool
    arguments: bytes


class BindingRow(msgspec.Struct, array_like=True):
    """One binding."""

    source: str
    is_queue: bool
    destination: str
    routing_key: str
    arguments: bytes


def put_exchange(vhost: VirtualHost, exchange: Exchange) -> None:
    """Keep it."""
    row = ExchangeRow(
        exchange.name,
        exchange.kind,
        exchange.is_auto_delete,
        exchange.is_internal,
        encode_table(exchange.arguments),
    )
    key = _exchange_key(vhost, exchange)
    vhost.house.engine.define(EXCHANGE_KIND, key, msgspec.msgpack.encode(row))


def delete_exchange(vhost: VirtualHost, exchange: Exchange) -> None:
    """Keep it no longer."""
    vhost.house.engine.define(EXCHANGE_KIND, _exchange_key(vhost, exchange), None)


def put_binding(vhost: VirtualHost, binding: Binding) -> None:
    """Keep it."""
    row = BindingRow(
        binding.source,
        binding.destination.is_queue,
        binding.destination.name,
        binding.routing_key,
        encode_table(binding.arguments),
    )
    vhost.house.engine.define(
        BINDING_KIND, _binding_key(vhost, binding), msgspec.msgpack.encode(row)
    )


def delete_binding(vhost: VirtualHost, binding: Binding) -> None:
    """Keep it no longer."""
    vhost.house.engine.define(BINDING_KIND, _binding_key(vhost, binding), None)


def stored_exchanges(vhost: VirtualHost) -> Iterator[Exchange]:
    """Those of a vhost."""
    for body in _bodies(vhost, EXCHANGE_KIND):
        row = msgspec.msgpack.decode(body, type=ExchangeRow)
        yield Exchange(
            row.name,
            row.kind,
            is_durable=True,
            is_auto_delete=row.is_auto_delete,
            is_internal=row.is_internal,
            arguments=decode_table(row.arguments)[0],
        )


def stored_bindings(vhost: VirtualHost) -> Iterator[Binding]:
    """Those of a vhost."""
    for body in _bodies(vhost, BINDING_KIND):
        row = msgspec.msgpack.decode(body, type=BindingRow)
        yield Binding(
            row.source,
            Destination(row.is_queue, row.destination),
            row.routing_key,
            decode_table(row.arguments)[0],
            is_durable=True,
        )


def _exchange_key(vhost: VirtualHost, exchange: Exchange) -> str:
    return _NUL.join((vhost.name, exchange.name))


def _binding_key(vhost: VirtualHost, binding: Binding) -> str:
    source, destination, routing_key, fingerprint = binding.key
    return _NUL.join(
        (vhost.name, source, destination.kind, destination.name, routing_key, fingerprint)
    )


def _bodies(vhost: VirtualHost, kind: str) -> list[bytes]:
    prefix = vhost.name + _NUL
    rows = vhost.house.engine.definitions(kind)
    return [body for key, body in rows.items() if key.startswith(prefix)]
