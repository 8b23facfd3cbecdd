"""Queues, and what is in them.

======  ===================================  ====================================================
GET     /api/queues, /api/queues/V           queues of all protocols in the vhost's space
GET     /api/queues/V/NAME                   one, with its consumers
PUT     /api/queues/V/NAME                   declare: {"durable", "auto_delete", "arguments"}
DELETE  /api/queues/V/NAME                   ?if-empty ?if-unused
GET     /api/queues/V/NAME/bindings          those that lead to it
DELETE  /api/queues/V/NAME/contents          purge
POST    /api/queues/V/NAME/get               {"count", "ackmode", "encoding", "truncate"}
POST    /api/exchanges/V/NAME/publish        {"routing_key", "properties", "payload",
                                             "payload_encoding"}; 503 while an alarm is raised
======  ===================================  ====================================================
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.adapters.amqp.management.definitions import QueueDefinition, make_queue
from penstock.adapters.amqp.management.views import (
    binding_view,
    default_binding,
    plain_properties,
    queue_view,
)
from penstock.adapters.amqp.topology.matching import to_queue
from penstock.adapters.amqp.users import check_claims
from penstock.model.refusal import Refusal, RefusalKind
from penstock.model.steps import A_QUEUE
from penstock.server.management.request import (
    ANY,
    DURABLE_SECONDS_MAX,
    ApiContext,
    ApiError,
    ApiRequest,
    EmptyResponse,
    RouteTable,
    bad_request,
    listed,
    not_found,
    paged,
)
from penstock.wire.amqp.methods.method import short_text
from penstock.wire.amqp.origin import read_content_header
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties

if TYPE_CHECKING:
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.model.record import Record

BASE64: Final = "base64"
_PASSING: Final = frozenset(
    (RefusalKind.MEMORY_ALARM, RefusalKind.DISK_ALARM, RefusalKind.BUSY, RefusalKind.NO_BUFFER)
)
"""Refusals of a broker that cannot now: 503. Others are about this message: 400."""


class GetRequest(msgspec.Struct):
    """Body of ``.../get``."""

    count: int = 1
    ackmode: str = ""
    encoding: str = "auto"
    truncate: int | None = None
    requeue: bool = True
    """What older tools say instead of ``ackmode``."""

    @property
    def mode(self) -> str:
        if self.ackmode:
            return self.ackmode
        return "ack_requeue_true" if self.requeue else "ack_requeue_false"


class PublishRequest(msgspec.Struct):
    """Body of ``.../publish``."""

    routing_key: str
    payload: str
    payload_encoding: str = "string"
    properties: dict[str, Any] | list[Any] = {}

    @property
    def content(self) -> tuple[bytes, bytes]:
        # An empty map comes as an empty list from languages that do not tell them apart.
        given = self.properties if isinstance(self.properties, dict) else {}
        try:
            properties = msgspec.convert(given, type=Properties)
        except msgspec.ValidationError as problem:
            raise bad_request(f"properties: {problem}") from None
        if self.payload_encoding != BASE64:
            return encode_properties(properties), self.payload.encode()
        try:
            return encode_properties(properties), b64decode(self.payload, validate=True)
        except (NotBase64, ValueError):
            raise bad_request("payload is not base64") from None


async def queues(api: ApiContext, request: ApiRequest, vhost_name: str | None = None) -> Any:
    vhosts = list(api.broker.vhosts.values()) if vhost_name is None else [api.vhost(vhost_name)]
    found = await listed(each for vhost in vhosts for each in vhost.queues)
    return await paged(request, found, partial(queue_view, api.broker), _weight)


def _weight(queue: AmqpQueue) -> float:
    """A topic of another protocol may have a thousand queues, which are all looked at."""
    return 1 + A_QUEUE * len(queue.topic.queues)


async def queue(
    api: ApiContext, _request: ApiRequest, vhost_name: str, name: str
) -> dict[str, Any]:
    return queue_view(api.broker, _queue(api, vhost_name, name), is_detailed=True)


async def put_queue(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> EmptyResponse:
    vhost = api.vhost(vhost_name)
    wanted = await request.body(QueueDefinition)
    wanted.name = name
    is_new = vhost.queues.get(name) is None
    make_queue(vhost, wanted)
    await api.durable()
    return EmptyResponse(is_new)


async def delete_queue(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> EmptyResponse:
    found = _queue(api, vhost_name, name)
    if request.is_set("if-empty") and found.ready + found.unacked:
        raise bad_request(f"queue '{name}' in vhost '{vhost_name}' not empty")
    if request.is_set("if-unused") and found.consumers:
        raise bad_request(f"queue '{name}' in vhost '{vhost_name}' in use")
    api.vhost(vhost_name).queues.retire(found)
    await api.gone(found)
    await api.durable()
    return EmptyResponse()


async def queue_bindings(api: ApiContext, request: ApiRequest, vhost_name: str, name: str) -> Any:
    _queue(api, vhost_name, name)
    vhost = api.vhost(vhost_name)
    bound = [default_binding(name), *vhost.bindings.to(to_queue(name))]
    return await paged(request, bound, lambda each: binding_view(vhost, each))


async def purge(api: ApiContext, _request: ApiRequest, vhost_name: str, name: str) -> EmptyResponse:
    _queue(api, vhost_name, name).purge()
    await api.durable()
    return EmptyResponse()


async def get(
    api: ApiContext, request: ApiRequest, vhost_name: str, name: str
) -> list[dict[str, Any]]:
    found = _queue(api, vhost_name, name)
    wanted = await request.body(GetRequest)
    if wanted.count < 0 or (wanted.truncate or 0) < 0:
        raise bad_request("count and truncate are numbers from 0 on")
    taken = api.operator.get(found, wanted.count, wanted.mode)
    left = found.ready
    shown: list[dict[str, Any]] = []
    for number, delivery in enumerate(taken):
        record = api.operator.presented(found, delivery)
        view = _message(record, wanted.encoding, wanted.truncate)
        view["redelivered"] = delivery.is_redelivered
        view["message_count"] = max(0, left - number - 1) if "true" in wanted.mode else left
        shown.append(view)
    return shown


async def publish(
    api: ApiContext, request: ApiRequest, vhost_name: str, exchange: str
) -> dict[str, bool]:
    vhost = api.vhost(vhost_name)
    wanted = await request.body(PublishRequest)
    content = wanted.content
    check_claims(read_content_header(content[0]).claims, request.user)
    done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    def answer(refusal: Refusal | None) -> None:
        if not done.done():
            done.set_result(refusal)

    name = "" if exchange == "amq.default" else exchange
    is_routed = api.operator.publish(
        vhost, name, wanted.routing_key, content=content, answer=answer
    )
    if not is_routed:
        return {"routed": False}
    api.wake()
    try:
        refusal = await asyncio.wait_for(done, DURABLE_SECONDS_MAX)
    except TimeoutError:
        raise ApiError(503, "timeout", "not stored yet; it may still be") from None
    if refusal is not None:
        status = 503 if refusal.kind in _PASSING else 400
        raise ApiError(status, refusal.kind.value, f"{refusal.culprit}: {refusal.text}")
    return {"routed": True}


def _queue(api: ApiContext, vhost_name: str, name: str) -> AmqpQueue:
    found = api.vhost(vhost_name).queues.get(name)
    if found is None:
        raise not_found()
    return found


def _message(record: Record, encoding: str, length_max: int | None) -> dict[str, Any]:
    exchange, at = short_text(record.origin, 0)
    routing_key, _ = short_text(record.origin, at)
    body = record.body[:length_max]
    text: str | None = None
    if encoding != BASE64:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = None
    return {
        "payload_bytes": len(record.body),
        "payload_encoding": BASE64 if text is None else "string",
        "payload": b64encode(body).decode() if text is None else text,
        "exchange": exchange,
        "routing_key": routing_key,
        "properties": plain_properties(decode_properties(record.properties)),
    }


QUEUE_ROUTES: Final[RouteTable] = {
    ("GET", ("queues",)): queues,
    ("GET", ("queues", ANY)): queues,
    ("GET", ("queues", ANY, ANY)): queue,
    ("PUT", ("queues", ANY, ANY)): put_queue,
    ("DELETE", ("queues", ANY, ANY)): delete_queue,
    ("GET", ("queues", ANY, ANY, "bindings")): queue_bindings,
    ("DELETE", ("queues", ANY, ANY, "contents")): purge,
    ("POST", ("queues", ANY, ANY, "get")): get,
    ("POST", ("exchanges", ANY, ANY, "publish")): publish,
}
