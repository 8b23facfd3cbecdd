"""What the values of messages are, as bytes and as the broker's registry knows it.

    BytesSchema()              bytes as they are; the registry hears nothing
    StringSchema()             text, UTF-8
    JsonSchema(Order)          a dataclass, msgspec.Struct or TypedDict; its record is registered
    JsonSchema()               any JSON value; the registry hears nothing
    RawSchema("AVRO", text)    bytes that the program makes itself, registered as what they are

The registry's text of a JSON schema is an Avro record, as Pulsar's other clients write it: every
field of the class in its order, optional ones as a union with null.

Invariant: ``decode(encode(value))`` is the value, up to what JSON can tell apart.
Not here: the broker's judgement of two schemas (``adapters/pulsar`` has its own).
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from typing import (
    Any,
    Final,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    runtime_checkable,
)

import msgspec

from penstock.client.pulsar.errors import ClientError
from penstock.wire.pulsar import protocol_pb2 as pb


class SchemaMismatch(ClientError, ValueError):
    """A value does not fit its schema, or a body cannot be read as it says."""


@runtime_checkable
class Schema(Protocol):
    """What a producer or consumer takes as ``schema``."""

    def encode(self, value: Any) -> bytes:
        """The body of a message; raises ``SchemaMismatch``."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value of a body; raises ``SchemaMismatch``."""
        ...

    def to_wire(self) -> pb.Schema | None:
        """What the registry is told; None = nothing."""
        ...


class BytesSchema(Schema):
    """Bytes as they are: the default."""

    def encode(self, value: Any) -> bytes:
        return as_bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data

    def to_wire(self) -> None:
        return None

    def __repr__(self) -> str:
        return "BytesSchema()"


class StringSchema(Schema):
    """Text."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise SchemaMismatch(f"StringSchema takes a str, not {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as problem:
            raise SchemaMismatch(f"text that cannot be UTF-8: {problem.reason}") from None

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as problem:
            raise SchemaMismatch(f"a body of {len(data)} bytes is no text: {problem}") from None

    def to_wire(self) -> pb.Schema:
        return pb.Schema(name="String", type=pb.Schema.String, schema_data=b"")

    def __repr__(self) -> str:
        return "StringSchema()"


class JsonSchema(Schema):
    """JSON: values of one class, which the registry is told, or whatever JSON has."""

    def __init__(
        self,
        kind: type | None = None,
        *,
        definition: str | Mapping[str, Any] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """``definition`` is the registry's text, if it shall not be made of the class."""
        self.kind: Final = kind
        self._properties = dict(properties or {})
        self._encoder = msgspec.json.Encoder()
        try:
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind or Any)
        except TypeError as problem:
            raise SchemaMismatch(f"JsonSchema cannot read {kind!r}: {problem}") from None
        if definition is None and kind is not None:
            definition = avro_record(kind)
        if isinstance(definition, Mapping):
            definition = json.dumps(definition)
        self.definition: Final[str | None] = definition

    def encode(self, value: Any) -> bytes:
        kind = self.kind
        if kind is not None and not is_typeddict(kind) and not isinstance(value, kind):
            raise SchemaMismatch(
                f"JsonSchema({kind.__name__}) takes a {kind.__name__}, not {type(value).__name__}"
            )
        try:
            return self._encoder.encode(value)
        except (TypeError, ValueError) as problem:
            raise SchemaMismatch(f"a value that is no JSON: {problem}") from None

    def decode(self, data: bytes) -> Any:
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as problem:
            raise SchemaMismatch(
                f"a body of {len(data)} bytes is not what {self!r} reads: {problem}"
            ) from None

    def to_wire(self) -> pb.Schema | None:
        if self.definition is None:
            return None
        return registered("JSON", self.definition, self._properties)

    def __repr__(self) -> str:
        return f"JsonSchema({'' if self.kind is None else self.kind.__name__})"


class RawSchema(Schema):
    """Bytes that are made and read by the program, with a name in the registry."""

    def __init__(
        self,
        kind: str,
        definition: str | bytes = b"",
        *,
        name: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """``kind`` is Pulsar's name: AVRO, PROTOBUF, PROTOBUF_NATIVE, KEY_VALUE, INT32 ..."""
        self.kind: Final = kind
        self._wire = registered(kind, definition, properties or {}, name)

    def encode(self, value: Any) -> bytes:
        return as_bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data

    def to_wire(self) -> pb.Schema:
        return self._wire

    def __repr__(self) -> str:
        return f"RawSchema({self.kind!r})"


KINDS: Final = dict(zip(map(str.upper, pb.Schema.Type.keys()), pb.Schema.Type.keys(), strict=True))


def registered(
    kind: str, definition: str | bytes, properties: Mapping[str, str], name: str = ""
) -> pb.Schema:
    """A schema as PRODUCER and SUBSCRIBE carry it."""
    found_kind = KINDS.get(kind.upper().replace("_", ""))
    if found_kind is None:
        listed = ", ".join(sorted(KINDS))
        raise SchemaMismatch(f"{kind!r} is no type of schema; known are {listed}")
    data = definition.encode() if isinstance(definition, str) else definition
    found = pb.Schema(name=name or kind, type=found_kind, schema_data=data)
    for key, value in properties.items():
        found.properties.add(key=key, value=value)
    return found


def as_bytes(value: Any) -> bytes:
    """A body that is given as bytes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise SchemaMismatch(
        f"a message without a schema is bytes, not {type(value).__name__}; encode it, or give the"
        f" producer a schema (StringSchema, JsonSchema)"
    )


# ---- Avro's text of a class ---------------------------------------------------------------------

_SIMPLE: Final[dict[Any, str]] = {
    str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes",
}  # fmt: skip


def avro_record(kind: type) -> dict[str, Any]:
    """The record of a class with annotated fields."""
    hints = get_type_hints(kind)
    if not hints:
        raise SchemaMismatch(
            f"JsonSchema({kind.__name__}) needs a class with annotated fields (a dataclass, a"
            f" msgspec.Struct, a TypedDict), or its definition="
        )
    defaults = _defaults(kind)
    fields = []
    for name, hint in hints.items():
        field: dict[str, Any] = {"name": name, "type": _avro(hint)}
        if isinstance(field["type"], list):
            field["default"] = None
        elif name in defaults and isinstance(defaults[name], (str, int, float, bool)):
            field["default"] = defaults[name]
        fields.append(field)
    return {"type": "record", "name": kind.__name__, "fields": fields}


def _avro(hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = [_avro(each) for each in args if each is not type(None)]
        return ["null", *inner] if type(None) in args else inner
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin in (list, tuple, set, frozenset):
        return {"type": "array", "items": _avro(args[0]) if args else "string"}
    if origin in (dict, Mapping):
        return {"type": "map", "values": _avro(args[1]) if args else "string"}
    if isinstance(hint, type) and get_type_hints(hint):
        return avro_record(hint)
    raise SchemaMismatch(
        f"a field of type {hint} has no name in Avro; give JsonSchema its definition="
    )


def _defaults(kind: type) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return {each.name: each.default for each in dataclasses.fields(kind)}
    if issubclass(kind, msgspec.Struct):
        return {each.name: each.default for each in msgspec.structs.fields(kind)}
    return {}
