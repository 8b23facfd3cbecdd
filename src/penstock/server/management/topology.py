"""Vhosts, users, policies, exchanges, bindings and definitions.

======  ==================================================  =====================================
GET     /api/vhosts, /api/vhosts/V                          vhosts; PUT makes, DELETE removes
GET     /api/users, /api/users/NAME                         users; PUT {"password", "tags"}, DELETE
POST    /api/users/bulk-delete                              {"users": [NAME, ...]}
GET     /api/permissions, /api/permissions/V/NAME           who may use which vhost: everybody each;
                                                            DELETE denies one, PUT allows it again
GET     /api/policies, /api/policies/V                      policies, and /api/operator-policies...
GET     /api/policies/V/NAME                                one, and which of its keys mean nothing
                                                            here; PUT {"pattern", "definition",
                                                            "priority", "apply-to"}, DELETE
GET     /api/exchanges, /api/exchanges/V                    exchanges
GET     /api/exchanges/V/NAME                               one; PUT declares, DELETE ?if-unused
GET     /api/exchanges/V/NAME/bindings/source, destination  its bindings
GET     /api/bindings, /api/bindings/V                      bindings, those of the default exchange
                                                            included
GET     /api/bindings/V/e/SOURCE/q|e/DEST                   those between two; POST makes one
GET     /api/bindings/V/e/SOURCE/q|e/DEST/KEY               one by its properties_key; DELETE
GET     /api/definitions, /api/definitions/V                all as one document; POST imports one,
                                                            all of it or nothing; 204, or 200 with
                                                            what of it was ignored
======  ==================================================  =====================================
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from penstock.adapters.amqp.exchange_commands import delete_exchange
from penstock.adapters.amqp.management.definitions import (
    STEPS_MAX,
    BindingDefinition,
    ExchangeDefinition,
    PolicyDefinition,
    UserDefinition,
    export_definitions,
    ignored_parts,
    import_definitions,
    make_binding,
    make_exchange,
    make_vhost,
    permission_view,
    read_definitions,
)
from penstock.adapters.amqp.management.statistics import vhost_steps
from penstock.adapters.amqp.management.views import (
    all_bindings,
    binding_view,
    exchange_view,
    policy_view,
    user_view,
    vhost_view,
)
from penstock.adapters.amqp.topology.exchange import Exchange
from penstock.adapters.amqp.topology.matching import Binding, Destination, to_exchange, to_queue
from penstock.adapters.amqp.topology.policies import Policy
from penstock.adapters.amqp.topology.vhost import DEFAULT_VHOST, VirtualHost
from penstock.adapters.amqp.users import USERS_MAX, User
from penstock.server.management.request import (
    ANY,
    QUEUES_AT_A_TIME,
    ApiContext,
    ApiError,
    ApiRequest,
    EmptyResponse,
    RouteTable,
    bad_json,
    bad_request,
    not_found,
    paged,
    reason_of,
)
from penstock.server.view import in_pieces
from penstock.wire.amqp.codes import AmqpError

_log = logging.getLogger(__name__)

OPERATOR_POLICIES: Final = "operator-policies"
IGNORED: Final = "ignored, for there is no such thing here"


async def vhosts(api: ApiContext, request: ApiRequest) -> Any:
    found = [
        (each, await in_pieces(vhost_steps(each), QUEUES_AT_A_TIME))
        for each in list(api.broker.vhosts.values())
    ]
    return await paged(
        request, found, lambda each: vhost_view(api.broker, each[0], each[1].statistics)
    )


async def vhost(api: ApiContext, _request: ApiRequest, name: str) -> dict[str, Any]:
    found = api.vhost(name)
    totals = await in_pieces(vhost_steps(found), QUEUES_AT_A_TIME)
    return vhost_view(api.broker, found, totals.statistics)


async def put_vhost(api: ApiContext, request: ApiRequest, name: str) -> EmptyResponse:
    request.check_administrator()
    is_new = name not in api.broker.vhosts
    make_vhost(api.broker, name)
    await api.durable()
    return EmptyResponse(is_new)


async def delete_vhost(api: ApiContext, request: ApiRequest, name: str) -> EmptyResponse:
    """Remove one with everything in it."""
    request.check_administrator()
    api.vhost(name)
    if name == DEFAULT_VHOST:
        raise bad_request("vhost '/' is always there")
    api.broker.drop_vhost(name)
    await api.durable()
    return EmptyResponse()


async def users(api: ApiContext, request: ApiRequest) -> Any:
    request.check_administrator()
    return await paged(request, api.broker.users.all(), user_view)


async def user(api: ApiContext, request: ApiRequest, name: str) -> dict[str, Any]:
    request.check_administrator()
    found = api.broker.users.get(name)
    if found is None:
        raise not_found()
    return user_view(found)


async def put_user(api: ApiContext, request: ApiRequest, name: str) -> EmptyResponse:
    request.check_administrator()
    wanted = await request.body(UserDefinition)
    wanted.name = name
    is_new = api.broker.users.get(name) is None
    api.broker.users.put(wanted.user)
    await api.durable()
    return EmptyResponse(is_new)


async def delete_user(api: ApiContext, request: ApiRequest, name: str) -> EmptyResponse:
    request.check_administrator()
    if not api.broker.users.delete(name):
        raise not_found()
    _disconnect_deleted(api, {name})
    await api.durable()
    return EmptyResponse()


class BulkDelete(msgspec.Struct):
    """Names of users; one that nobody has is gone already."""

    users: Annotated[list[str], msgspec.Meta(max_length=USERS_MAX)]


async def delete_users(api: ApiContext, request: ApiRequest) -> EmptyResponse:
    request.check_administrator()
    wanted = await request.body(BulkDelete)
    _disconnect_deleted(api, {name for name in wanted.users if api.broker.users.delete(name)})
    await api.durable()
    return EmptyResponse()


def _disconnect_deleted(api: ApiContext, names: set[str]) -> None:
    for connection in list(api.broker.connections.values()):
        name = connection.user.name
        if name in names:
            api.broker.close_connection(connection.connection_id, f"user '{name}' is deleted")


async def permissions(api: ApiContext, request: ApiRequest) -> Any:
    """Who may use which vhost."""
    return await _permissions(api, request, api.broker.users.all(), list(api.broker.vhosts))


async def user_permissions(api: ApiContext, request: ApiRequest, name: str) -> Any:
    found = api.broker.users.get(name)
    if found is None:
        raise not_found()
    return await _permissions(api, request, [found], list(api.broker.vhosts))


async def vhost_permissions(api: ApiContext, request: ApiRequest, vhost_name: str) -> Any:
    """Who may do something in one vhost."""
    api.vhost(vhost_name)
    return await _permissions(api, request, api.broker.users.all(), [vhost_name])


async def permission(
    api: ApiContext, _request: ApiRequest, vhost_name: str, name: str
) -> dict[str, str]:
    """What one user may do in one vhost; 404 when nothing."""
    if not api.broker.users.may_enter(_user(api, vhost_name, name), vhost_name):
        raise not_found()
    return permission_view(name, vhost_name)


async def put_permission(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> EmptyResponse:
    """Give a permission back that was taken; else accepted, because tools set what is there.

    There is no part of a permission here: whatever the patterns say, it is for everything.
    """
    request.check_administrator()
    is_new = not api.broker.users.may_enter(_user(api, vhost_name, name), vhost_name)
    api.broker.users.allow(name, vhost_name)
    await api.durable()
    return EmptyResponse(is_new)


async def delete_permission(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> EmptyResponse:
    """The user may not use the vhost any more, and its connections there end."""
    request.check_administrator()
    await permission(api, request, vhost_name, name)
    api.broker.users.deny(name, vhost_name, api.broker.vhosts)
    reason = f"user '{name}' may not use vhost '{vhost_name}' any more"
    for connection in list(api.broker.connections.values()):
        if (connection.user.name, connection.vhost.name) == (name, vhost_name):
            api.broker.close_connection(connection.connection_id, reason)
    await api.durable()
    return EmptyResponse()


def _user(api: ApiContext, vhost_name: str, name: str) -> User:
    """The user of a path that names a vhost, too; both must be there."""
    api.vhost(vhost_name)
    found = api.broker.users.get(name)
    if found is None:
        raise not_found()
    return found


async def _permissions(
    api: ApiContext, request: ApiRequest, users: list[User], vhosts: list[str]
) -> Any:
    may_enter = api.broker.users.may_enter
    pairs = [(each.name, name) for each in users for name in vhosts if may_enter(each, name)]
    return await paged(request, pairs, lambda pair: permission_view(*pair))


async def policies(api: ApiContext, request: ApiRequest, vhost_name: str | None = None) -> Any:
    """Policies of users or of operators, as the path says."""
    pairs = [
        (each, policy)
        for each in _vhosts(api, vhost_name)
        for policy in each.policies.all(is_operator=_is_operators(request))
    ]
    return await paged(request, pairs, lambda pair: _policy_row(*pair))


async def policy(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> dict[str, Any]:
    found = api.vhost(vhost_name)
    wanted = found.policies.get(name, is_operator=_is_operators(request))
    if wanted is None:
        raise not_found()
    return _policy_row(found, wanted)


async def put_policy(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> EmptyResponse:
    """Answered when it is in effect for all that lives, and would survive a crash."""
    is_operator = _check_policymaker(request)
    found = api.vhost(vhost_name)
    wanted = await request.body(PolicyDefinition)
    wanted.name = name
    is_new = found.policies.get(name, is_operator=is_operator) is None
    api.broker.put_policies(found, [(is_operator, wanted.policy)])
    await api.in_effect(found)
    await api.durable()
    return EmptyResponse(is_new)


async def delete_policy(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> EmptyResponse:
    is_operator = _check_policymaker(request)
    found = api.vhost(vhost_name)
    if not api.broker.delete_policy(found, name, is_operator=is_operator):
        raise not_found()
    await api.in_effect(found)
    await api.durable()
    return EmptyResponse()


def _policy_row(vhost: VirtualHost, policy: Policy) -> dict[str, Any]:
    return {**policy_view(vhost, policy), "ignored": policy.ignored}


def _is_operators(request: ApiRequest) -> bool:
    return request.path[0] == OPERATOR_POLICIES


def _check_policymaker(request: ApiRequest) -> bool:
    """Raise unless the user may change policies of this kind; True for those of operators."""
    if _is_operators(request):
        request.check_administrator()
        return True
    if not request.user.is_policymaker:
        raise ApiError(403, "not_authorised", "Not policymaker user")
    return False


async def exchanges(api: ApiContext, request: ApiRequest, vhost_name: str | None = None) -> Any:
    pairs = [
        (each, exchange)
        for each in _vhosts(api, vhost_name)
        for exchange in each.exchanges.values()
    ]
    return await paged(request, pairs, lambda pair: exchange_view(*pair))


async def exchange(
    api: ApiContext, _request: ApiRequest, vhost_name: str, name: str
) -> dict[str, Any]:
    found = api.vhost(vhost_name)
    return exchange_view(found, _exchange(found, name), is_detailed=True)


async def put_exchange(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> EmptyResponse:
    found = api.vhost(vhost_name)
    wanted = await request.body(ExchangeDefinition)
    wanted.name = name
    is_new = name not in found.exchanges
    make_exchange(found, wanted)
    await api.durable()
    return EmptyResponse(is_new)


async def drop_exchange(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> EmptyResponse:
    found = api.vhost(vhost_name)
    _exchange(found, name)
    delete_exchange(found, _name(name), if_unused=request.is_set("if-unused"))
    await api.durable()
    return EmptyResponse()


async def bindings_from(api: ApiContext, request: ApiRequest, vhost_name: str, name: str) -> Any:
    """Those of which an exchange is the source."""
    found = api.vhost(vhost_name)
    source = _exchange(found, name).name
    return await _binding_rows(
        request, found, [each for each in all_bindings(found) if each.source == source]
    )


async def bindings_to(api: ApiContext, request: ApiRequest, vhost_name: str, name: str) -> Any:
    """Those that lead to an exchange."""
    found = api.vhost(vhost_name)
    return await _binding_rows(
        request, found, found.bindings.to(to_exchange(_exchange(found, name).name))
    )


async def bindings(api: ApiContext, request: ApiRequest, vhost_name: str | None = None) -> Any:
    pairs = [(each, binding) for each in _vhosts(api, vhost_name) for binding in all_bindings(each)]
    return await paged(request, pairs, lambda pair: binding_view(*pair))


async def bindings_between(api: ApiContext, request: ApiRequest, *where: str) -> Any:
    """Those between an exchange and a queue or exchange."""
    found, source, destination = _binding_path(api, where)
    return await _binding_rows(request, found, _between(found, source, destination))


async def post_binding(api: ApiContext, request: ApiRequest, *where: str) -> EmptyResponse:
    found, source, destination = _binding_path(api, where)
    wanted = await request.body(BindingDefinition)
    wanted.source, wanted.destination = source, destination.name
    wanted.destination_type = destination.kind
    key = make_binding(found, wanted)
    await api.durable()
    return EmptyResponse(True, f"{quote(destination.name, safe='')}/{quote(key, safe='')}")


async def binding(api: ApiContext, _request: ApiRequest, *where: str) -> dict[str, Any]:
    """One by its properties_key."""
    found, source, destination = _binding_path(api, where[:-1])
    return binding_view(found, _binding(found, source, destination, where[-1]))


async def delete_binding(api: ApiContext, _request: ApiRequest, *where: str) -> EmptyResponse:
    found, source, destination = _binding_path(api, where[:-1])
    wanted = _binding(found, source, destination, where[-1])
    if not wanted.source:
        raise bad_request("operation not permitted on the default exchange")
    found.bindings.remove(wanted)
    await api.durable()
    return EmptyResponse()


async def export_document(
    api: ApiContext, request: ApiRequest, vhost_name: str | None = None
) -> dict[str, Any]:
    """All as one document; a long one is made and written in pieces, as an import is."""
    request.check_administrator()
    host = None if vhost_name is None else api.vhost(vhost_name)
    document = await in_pieces(export_definitions(api.broker, host), STEPS_MAX)
    return await in_pieces(_written(document), STEPS_MAX)


def _written(document: dict[str, Any]) -> Generator[int, None, dict[str, Any]]:
    """The same with each row as the JSON that it will be."""
    for part in document.values():
        if isinstance(part, list):
            for number, row in enumerate(part):
                part[number] = msgspec.Raw(msgspec.json.encode(row))
                yield 1
    return document


async def import_document(
    api: ApiContext, request: ApiRequest, vhost_name: str | None = None
) -> EmptyResponse | dict[str, Any]:
    """Make what a document defines, all of it or nothing; told is what there is nothing for.

    A long one is read, checked and made in pieces, and others have their turns in between.
    RabbitMQ's 204 when there is no such thing: tools take any 2xx for a yes.
    """
    request.check_administrator()
    host = None if vhost_name is None else api.vhost(vhost_name)
    body = await request.raw_body()
    try:
        with bad_json():
            document = await in_pieces(read_definitions(body), STEPS_MAX)
        await in_pieces(import_definitions(api.broker, document, host), STEPS_MAX)
    except AmqpError as error:
        # Whatever is missing is missing in the document: never a 404.
        raise bad_request(reason_of(error)) from None
    for each in _vhosts(api, vhost_name):
        await api.in_effect(each)
    await api.durable()
    ignored = ignored_parts(document, host)
    if not ignored:
        return EmptyResponse()
    told = "; ".join(str(each) for each in ignored)
    _log.warning(
        "definitions were imported in part", extra={"user": request.user.name, "ignored": told}
    )
    return {"ignored": ignored, "reason": f"{IGNORED}: {told}. The rest was imported."}


def _vhosts(api: ApiContext, name: str | None) -> list[VirtualHost]:
    return list(api.broker.vhosts.values()) if name is None else [api.vhost(name)]


def _exchange(vhost: VirtualHost, name: str) -> Exchange:
    found = vhost.exchanges.get(_name(name))
    if found is None:
        raise not_found()
    return found


def _name(name: str) -> str:
    """Paths cannot have an empty part: there the default exchange is called amq.default."""
    return "" if name == "amq.default" else name


def _binding_path(api: ApiContext, where: tuple[str, ...]) -> tuple[VirtualHost, str, Destination]:
    """Vhost, source and destination of a path below /api/bindings."""
    vhost_name, source, kind, name = where
    if kind not in ("q", "e"):
        raise not_found()
    destination = to_queue(name) if kind == "q" else to_exchange(name)
    return api.vhost(vhost_name), _name(source), destination


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


async def _binding_rows(request: ApiRequest, vhost: VirtualHost, found: list[Binding]) -> Any:
    return await paged(request, found, lambda each: binding_view(vhost, each))


_POLICIES: Final = ("policies", OPERATOR_POLICIES)
_BETWEEN: Final = ("bindings", ANY, "e", ANY, ANY, ANY)

TOPOLOGY_ROUTES: Final[RouteTable] = {
    ("GET", ("vhosts",)): vhosts,
    ("GET", ("vhosts", ANY)): vhost,
    ("PUT", ("vhosts", ANY)): put_vhost,
    ("DELETE", ("vhosts", ANY)): delete_vhost,
    ("GET", ("users",)): users,
    ("GET", ("users", ANY)): user,
    ("PUT", ("users", ANY)): put_user,
    ("DELETE", ("users", ANY)): delete_user,
    ("POST", ("users", "bulk-delete")): delete_users,
    ("GET", ("permissions",)): permissions,
    ("GET", ("permissions", ANY, ANY)): permission,
    ("PUT", ("permissions", ANY, ANY)): put_permission,
    ("DELETE", ("permissions", ANY, ANY)): delete_permission,
    ("GET", ("users", ANY, "permissions")): user_permissions,
    ("GET", ("vhosts", ANY, "permissions")): vhost_permissions,
    **{("GET", (kind,)): policies for kind in _POLICIES},
    **{("GET", (kind, ANY)): policies for kind in _POLICIES},
    **{("GET", (kind, ANY, ANY)): policy for kind in _POLICIES},
    **{("PUT", (kind, ANY, ANY)): put_policy for kind in _POLICIES},
    **{("DELETE", (kind, ANY, ANY)): delete_policy for kind in _POLICIES},
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
    ("GET", ("definitions",)): export_document,
    ("GET", ("definitions", ANY)): export_document,
    ("POST", ("definitions",)): import_document,
    ("POST", ("definitions", ANY)): import_document,
}
