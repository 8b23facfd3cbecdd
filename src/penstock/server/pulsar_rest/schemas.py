"""Schemas of topics over REST: looked at, brought by an operator, tried, deleted.

The partitions of a topic share its schemas. Whoever brings one for a topic that is not there makes
the topic, if clients may: schemas are kept with their topics here.

The schema of a key-value pair is binary on the wire, and one JSON object of the two here.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import msgspec
from starlette.responses import Response

from penstock.adapters.pulsar.schema_compatibility import (
    InvalidSchema,
    Schema,
    SchemaType,
    identity,
    key_and_value,
)
from penstock.adapters.pulsar.schemas import SchemaVersion
from penstock.model.names import PERSISTENT, TopicName
from penstock.server.pulsar_rest.request import (
    ANY,
    Handler,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    of_topic,
    streamed,
    to_number,
)
from penstock.server.pulsar_rest.topics import make_topic
from penstock.wire.pulsar.names import PulsarName

NO_VERSION: Final = -1
"""Of a schema that the topic does not have."""
BYTES: Final = "BYTES"
"""Another name for no schema."""

_LENGTH: Final = Struct(">i")
_STRUCTURED: Final = (SchemaType.JSON, SchemaType.AVRO, SchemaType.PROTOBUF)
"""Their data are JSON."""


class GivenSchema(msgspec.Struct, frozen=True):
    """As it comes."""

    type: str
    schema: str = ""
    properties: dict[str, str] = {}


# ---- looking ------------------------------------------------------------------------------------


async def newest(api: RestContext, _request: RestRequest, name: PulsarName) -> dict[str, Any]:
    return _shown(_version(api, name, None))


async def one(
    api: RestContext, _request: RestRequest, name: PulsarName, number: str
) -> dict[str, Any]:
    return _shown(_version(api, name, to_number("the version", number)))


async def every(api: RestContext, _request: RestRequest, name: PulsarName) -> Response:
    topic = _known(api, name)
    versions = [] if topic is None else api.broker.schemas.versions(topic)
    return streamed({"getSchemaResponses": [_shown(each) for each in versions]})


async def number_of(api: RestContext, request: RestRequest, name: PulsarName) -> dict[str, int]:
    """The version of a schema that the topic has already; -1 = it has not."""
    schema = await _given(request)
    topic = _known(api, name)
    found = None if topic is None else api.broker.schemas.find(topic, schema)
    return {"version": NO_VERSION if found is None else found.number}


async def compatibility(api: RestContext, request: RestRequest, name: PulsarName) -> Response:
    """Whether a schema could be the topic's next one."""
    schema = await _given(request)
    topic = _known(api, name) or name.topic_name
    answer = {
        "schemaCompatibilityStrategy": (
            api.broker.namespaces.effective(topic).schema_compatibility_strategy
        ),
        "compatibility": not api.broker.schemas.problem(topic, schema),
    }
    return Response(msgspec.json.encode(answer), 202, media_type="application/json")


def _known(api: RestContext, name: PulsarName) -> TopicName | None:
    """The engine's topic, also for a partition's name."""
    topics = api.broker.topics
    if topics.partitions(name) is not None:
        return name.topic_name
    address = topics.address(name)
    return None if address is None else address[0]


def _version(api: RestContext, name: PulsarName, number: int | None) -> SchemaVersion:
    topic = _known(api, name)
    found = None if topic is None else api.broker.schemas.version(topic, number)
    if found is None:
        raise RestError(404, "Schema not found")
    return found


# ---- changing -----------------------------------------------------------------------------------


async def put(api: RestContext, request: RestRequest, name: PulsarName) -> dict[str, Any]:
    """409 when it does not go with those before it, 422 when it is none."""
    schema = await _given(request)
    make_topic(api, request, name)
    topic = _known(api, name)
    assert topic is not None, "a topic that was made is not there"
    found = api.broker.schemas.put(topic, schema, is_by_operator=True)
    await api.durable()
    return {"version": {"version": found.number}}


async def delete(api: RestContext, request: RestRequest, name: PulsarName) -> dict[str, int]:
    """By force as if there had never been any: numbers begin anew."""
    topic = _known(api, name)
    if topic is None:
        raise RestError(404, "Schema not found")
    if request.is_set("force"):
        api.broker.schemas.forget(topic)
        number = NO_VERSION
    else:
        deletion = api.broker.schemas.delete(topic)
        if deletion is None:
            raise RestError(404, "Schema not found")
        number = deletion.number
    await api.durable()
    return {"version": number}


# ---- a schema in JSON ---------------------------------------------------------------------------


def _shown(version: SchemaVersion) -> dict[str, Any]:
    schema = version.schema
    data = schema.data
    if schema.type is SchemaType.KEY_VALUE:
        key, value = [_part(each) for each in key_and_value(schema)]
        data = b'{"key":%s,"value":%s}' % (key, value)
    return {
        "version": version.number,
        "type": schema.type.name,
        "timestamp": version.created_ms,
        "data": data.decode("utf-8", "replace"),
        "properties": schema.properties,
    }


def _part(schema: Schema) -> bytes:
    """A key's or a value's, in an object of both: JSON as it is, an empty text for other types."""
    return schema.data if schema.type in _STRUCTURED and schema.data else b'""'


async def _given(request: RestRequest) -> Schema:
    """400 for another type, 422 for what is no schema of its type."""
    given = await request.json(GivenSchema)
    kind = SchemaType.NONE if given.type == BYTES else SchemaType.__members__.get(given.type)
    if kind is None:
        raise RestError(400, f"{given.type[:40]!r} is no type of a schema")
    data = given.schema.encode()
    if kind is SchemaType.KEY_VALUE:
        data = _packed(data)
    schema = Schema(kind, data, given.properties)
    try:
        identity(schema)
    except InvalidSchema as problem:
        raise RestError(422, str(problem)) from None
    return schema


class _Pair(msgspec.Struct, frozen=True):
    key: msgspec.Raw = msgspec.Raw(b'""')
    value: msgspec.Raw = msgspec.Raw(b'""')


def _packed(data: bytes) -> bytes:
    """Key and value with their lengths, as the wire has them."""
    try:
        pair = msgspec.json.decode(data, type=_Pair)
    except msgspec.MsgspecError as problem:
        raise RestError(422, f"Invalid key-value schema: {problem}") from None
    found = b""
    for raw in (bytes(pair.key), bytes(pair.value)):
        part = b"" if raw == b'""' else raw
        found += _LENGTH.pack(len(part)) + part
    return found


_HANDLERS: Final[dict[tuple[str, tuple[str, ...]], Handler]] = {
    ("GET", ("schema",)): newest,
    ("GET", ("schema", ANY)): one,
    ("GET", ("schemas",)): every,
    ("POST", ("schema",)): put,
    ("DELETE", ("schema",)): delete,
    ("POST", ("version",)): number_of,
    ("POST", ("compatibility",)): compatibility,
}

SCHEMA_ROUTES: Final[RouteTable] = {
    (method, ("schemas", ANY, ANY, ANY, *more)): of_topic(handler, PERSISTENT)
    for (method, more), handler in _HANDLERS.items()
}
