"""Vhosts, users, exchanges, bindings and definitions.

======  ==================================================  =====================================
GET     /api/vhosts, /api/vhosts/V                          vhosts; PUT makes, DELETE removes
GET     /api/users, /api/users/NAME                         users; PUT {"password", "tags"}, DELETE
GET     /api/permissions                                    everybody may do everything
GET     /api/exchanges, /api/exchanges/V                    exchanges
GET     /api/exchanges/V/NAME                               one; PUT declares, DELETE ?if-unused
GET     /api/exchanges/V/NAME/bindings/source, destination  its bindings
GET     /api/bindings, /api/bindings/V                      bindings, those of the default exchange
                                                            included
GET     /api/bindings/V/e/SOURCE/q|e/DEST                   those between two; POST makes one
GET     /api/bindings/V/e/SOURCE/q|e/DEST/KEY               one by its properties_key; DELETE
GET     /api/definitions, /api/definitions/V                all as one document; POST imports one,
                                                            all of it or nothing
======  ==================================================  =====================================
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from penstock.adapters.amqp.exchange_commands import delete_exchange
from penstock.adapters.amqp.management.definitions import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    UserDefinition,
    exported,
    import_definitions,
    make_binding,
    make_exchange,
    make_vhost,
    permission_view,
)
from penstock.adapters.amqp.management.views import (
    all_bindings,
    binding_view,
    exchange_view,
    user_view,
    vhost_view,
)
from penstock.adapters.amqp.topology.exchange import Exchange
from penstock.adapters.amqp.topology.matching import Binding, Destination, to_exchange, to_queue
from penstock.adapters.amqp.topology.vhost import DEFAULT_VHOST, VirtualHost
from penstock.server.management.asked import (
    ANY,
    Asked,
    Done,
    Place,
    Table,
    bad_request,
    not_found,
    paged,
    reason_of,
)
from penstock.wire.amqp.codes import AmqpError


async def vhosts(place: Place, asked: Asked) -> Any:
    broker = place.broker
    return await paged(asked, broker.vhosts.values(), lambda each: vhost_view(broker, each))


async def vhost(place: Place, _asked: Asked, name: str) -> dict[str, Any]:
    return vhost_view(place.broker, place.vhost(name))


async def put_vhost(place: Place, asked: Asked, name: str) -> Done:
    asked.administrator()
    is_new = name not in place.broker.vhosts
    make_vhost(place.broker, name)
    await place.durable()
    return Done(is_new)


async def delete_vhost(place: Place, asked: Asked, name: str) -> Done:
    """Remove one with everything in it."""
    asked.administrator()
    place.vhost(name)
    if name == DEFAULT_VHOST:
        raise bad_request("vhost '/' is always there")
    place.broker.drop_vhost(name)
    await place.durable()
    return Done()


async def users(place: Place, asked: Asked) -> Any:
    asked.administrator()
    return await paged(asked, place.broker.users.all(), user_view)


async def user(place: Place, asked: Asked, name: str) -> dict[str, Any]:
    asked.administrator()
    found = place.broker.users.get(name)
    if found is None:
        raise not_found()
    return user_view(found)


async def put_user(place: Place, asked: Asked, name: str) -> Done:
    asked.administrator()
    wanted = await asked.body(UserDefinition)
    wanted.name = name
    is_new = place.broker.users.get(name) is None
    place.broker.users.put(wanted.user)
    await place.durable()
    return Done(is_new)


async def delete_user(place: Place, asked: Asked, name: str) -> Done:
    asked.administrator()
    if not place.broker.users.delete(name):
        raise not_found()
    for connection in list(place.broker.connections.values()):
        if connection.user.name == name:
            place.broker.close_connection(connection.connection_id, f"user '{name}' is deleted")
    await place.durable()
    return Done()


async def permissions(place: Place, asked: Asked) -> Any:
    """Who may do what: everybody everything."""
    return await _permissions(place, asked, [each.name for each in place.broker.users.all()])


async def user_permissions(place: Place, asked: Asked, name: str) -> Any:
    if place.broker.users.get(name) is None:
        raise not_found()
    return await _permissions(place, asked, [name])


async def vhost_permissions(place: Place, asked: Asked, vhost_name: str) -> Any:
    """Who may do something in one vhost."""
    place.vhost(vhost_name)
    pairs = [(each.name, vhost_name) for each in place.broker.users.all()]
    return await paged(asked, pairs, lambda pair: permission_view(*pair))


async def permission(place: Place, _asked: Asked, vhost_name: str, name: str) -> dict[str, str]:
    """What one user may do in one vhost."""
    place.vhost(vhost_name)
    if place.broker.users.get(name) is None:
        raise not_found()
    return permission_view(name, vhost_name)


async def put_permission(place: Place, asked: Asked, vhost_name: str, name: str) -> Done:
    """Accepted, because tools set it; there is nothing to grant."""
    asked.administrator()
    await permission(place, asked, vhost_name, name)
    return Done()


async def delete_permission(place: Place, asked: Asked, vhost_name: str, name: str) -> Done:
    """Refused: saying yes would be a lie."""
    asked.administrator()
    await permission(place, asked, vhost_name, name)
    raise bad_request("every user may use every vhost; delete the user instead")


async def _permissions(place: Place, asked: Asked, users: list[str]) -> Any:
    pairs = [(name, vhost_name) for name in users for vhost_name in place.broker.vhosts]
    return await paged(asked, pairs, lambda pair: permission_view(*pair))


async def exchanges(place: Place, asked: Asked, vhost_name: str | None = None) -> Any:
    pairs = [
        (each, exchange)
        for each in _vhosts(place, vhost_name)
        for exchange in each.exchanges.values()
    ]
    return await paged(asked, pairs, lambda pair: exchange_view(*pair))


async def exchange(place: Place, _asked: Asked, vhost_name: str, name: str) -> dict[str, Any]:
    found = place.vhost(vhost_name)
    return exchange_view(found, _exchange(found, name), is_detailed=True)


async def put_exchange(place: Place, asked: Asked, vhost_name: str, name: str) -> Done:
    found = place.vhost(vhost_name)
    wanted = await asked.body(ExchangeDefinition)
    wanted.name = name
    is_new = name not in found.exchanges
    make_exchange(found, wanted)
    await place.durable()
    return Done(is_new)


async def drop_exchange(place: Place, asked: Asked, vhost_name: str, name: str) -> Done:
    found = place.vhost(vhost_name)
    _exchange(found, name)
    delete_exchange(found, _name(name), if_unused=asked.is_set("if-unused"))
    await place.durable()
    return Done()


async def bindings_from(place: Place, asked: Asked, vhost_name: str, name: str) -> Any:
    """Those of which an exchange is the source."""
    found = place.vhost(vhost_name)
    source = _exchange(found, name).name
    return await _shown(
        asked, found, [each for each in all_bindings(found) if each.source == source]
    )


async def bindings_to(place: Place, asked: Asked, vhost_name: str, name: str) -> Any:
    """Those that lead to an exchange."""
    found = place.vhost(vhost_name)
    return await _shown(asked, found, found.bindings.to(to_exchange(_exchange(found, name).name)))


async def bindings(place: Place, asked: Asked, vhost_name: str | None = None) -> Any:
    pairs = [
        (each, binding) for each in _vhosts(place, vhost_name) for binding in all_bindings(each)
    ]
    return await paged(asked, pairs, lambda pair: binding_view(*pair))


async def bindings_between(place: Place, asked: Asked, *where: str) -> Any:
    """Those between an exchange and a queue or exchange."""
    found, source, destination = _way(place, where)
    return await _shown(asked, found, _between(found, source, destination))


async def post_binding(place: Place, asked: Asked, *where: str) -> Done:
    found, source, destination = _way(place, where)
    wanted = await asked.body(BindingDefinition)
    wanted.source, wanted.destination = source, destination.name
    wanted.destination_type = destination.kind
    key = make_binding(found, wanted)
    await place.durable()
    return Done(True, f"{quote(destination.name, safe='')}/{quote(key, safe='')}")


async def binding(place: Place, _asked: Asked, *where: str) -> dict[str, Any]:
    """One by its properties_key."""
    found, source, destination = _way(place, where[:-1])
    return binding_view(found, _binding(found, source, destination, where[-1]))


async def delete_binding(place: Place, _asked: Asked, *where: str) -> Done:
    found, source, destination = _way(place, where[:-1])
    wanted = _binding(found, source, destination, where[-1])
    if not wanted.source:
        raise bad_request("operation not permitted on the default exchange")
    found.bindings.remove(wanted)
    await place.durable()
    return Done()


async def export(place: Place, asked: Asked, vhost_name: str | None = None) -> dict[str, Any]:
    asked.administrator()
    return exported(place.broker, None if vhost_name is None else place.vhost(vhost_name))


async def take_in(place: Place, asked: Asked, vhost_name: str | None = None) -> Done:
    """Make what a document defines, all of it or nothing."""
    asked.administrator()
    host = None if vhost_name is None else place.vhost(vhost_name)
    document = await asked.body(Definitions)
    try:
        import_definitions(place.broker, document, host)
    except AmqpError as error:
        # Whatever is missing is missing in the document: never a 404.
        raise bad_request(reason_of(error)) from None
    await place.durable()
    return Done()


def _vhosts(place: Place, name: str | None) -> list[VirtualHost]:
    return list(place.broker.vhosts.values()) if name is None else [place.vhost(name)]


def _exchange(vhost: VirtualHost, name: str) -> Exchange:
    found = vhost.exchanges.get(_name(name))
    if found is None:
        raise not_found()
    return found


def _name(name: str) -> str:
    """Paths cannot have an empty part: there the default exchange is called amq.default."""
    return "" if name == "amq.default" else name


def _way(place: Place, where: tuple[str, ...]) -> tuple[VirtualHost, str, Destination]:
    """Vhost, source and destination of a path below /api/bindings."""
    vhost_name, source, kind, name = where
    if kind not in ("q", "e"):
        raise not_found()
    destination = to_queue(name) if kind == "q" else to_exchange(name)
    return place.vhost(vhost_name), _name(source), destination


def _between(vhost: VirtualHost, source: str, destination: Destination) -> list[Binding]:
    return [
        each
        for each in all_bindings(vhost)
        if each.source == source and each.destination == destination
    ]


def _binding(vhost: VirtualHost, source: str, destination: Destination, key: str) -> Binding:
    found = _between(vhost, source, destination)
    for each in found:
        if each.properties_key == key:
            return each
    for each in found:
        # Some tools take the routing key as it is.
        if each.routing_key == key and not each.arguments:
            return each
    raise not_found()


async def _shown(asked: Asked, vhost: VirtualHost, found: list[Binding]) -> Any:
    return await paged(asked, found, lambda each: binding_view(vhost, each))


_BETWEEN: Final = ("bindings", ANY, "e", ANY, ANY, ANY)

TABLE: Final[Table] = {
    ("GET", ("vhosts",)): vhosts,
    ("GET", ("vhosts", ANY)): vhost,
    ("PUT", ("vhosts", ANY)): put_vhost,
    ("DELETE", ("vhosts", ANY)): delete_vhost,
    ("GET", ("users",)): users,
    ("GET", ("users", ANY)): user,
    ("PUT", ("users", ANY)): put_user,
    ("DELETE", ("users", ANY)): delete_user,
    ("GET", ("permissions",)): permissions,
    ("GET", ("permissions", ANY, ANY)): permission,
    ("PUT", ("permissions", ANY, ANY)): put_permission,
    ("DELETE", ("permissions", ANY, ANY)): delete_permission,
    ("GET", ("users", ANY, "permissions")): user_permissions,
    ("GET", ("vhosts", ANY, "permissions")): vhost_permissions,
    ("GET", ("exchanges",)): exchanges,
    ("GET", ("exchanges", ANY)): exchanges,
    ("GET", ("exchanges", ANY, ANY)): exchange,
    ("PUT", ("exchanges", ANY, ANY)): put_exchange,
    ("DELETE", ("exchanges", ANY, ANY)): drop_exchange,
    ("GET", ("exchanges", ANY, ANY, "bindings", "source")): bindings_from,
    ("GET", ("exchanges", ANY, ANY, "bindings", "destination")): bindings_to,
    ("GET", ("bindings",)): bindings,
    ("GET", ("bindings", ANY)): bindings,
    ("GET", _BETWEEN): bindings_between,
    ("POST", _BETWEEN): post_binding,
    ("GET", (*_BETWEEN, ANY)): binding,
    ("DELETE", (*_BETWEEN, ANY)): delete_binding,
    ("GET", ("definitions",)): export,
    ("GET", ("definitions", ANY)): export,
    ("POST", ("definitions",)): take_in,
    ("POST", ("definitions", ANY)): take_in,
}
