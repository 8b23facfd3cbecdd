"""Schemas of Pulsar as values: whether one is well-formed, is another one, or goes with another.

Records of Avro, JSON and protobuf (type 3) are described in Avro's language; it is read here into
``_Node``, and ``_Reading`` decides whether data written with one schema can be read with another.
A key-value schema is two schemas in one. The rest has a type and at most some bytes of its own.

The rules are those that Pulsar has, seen on a real one: names of records do not count, symbols that
an enum loses do not either, type 3 is compatible with everything that can be read at all, and of
native protobuf only the root message may not change. A field is found by name or alias, and needs a
default where it is new.

Texts come from anybody: their size, depth, number of parts and the comparisons between two of them
have bounds, and all that is wrong is an ``InvalidSchema``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Final

import msgspec

BYTES_MAX: Final = 256 * 1024
"""Of one schema."""
DEPTH_MAX: Final = 64
NODES_MAX: Final = 10_000
"""Types named or made in one schema."""
COMPARISONS_MAX: Final = 50_000
"""Of a type of one schema with a type of another: about 50 ms."""

_LENGTH: Final = Struct(">i")


class SchemaType(IntEnum):
    """As on the wire; names as Pulsar's texts have them."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


_IN_AVRO: Final = frozenset((SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO))
_UNCHECKED: Final = frozenset((SchemaType.NONE, SchemaType.STRING, SchemaType.EXTERNAL))


class InvalidSchema(ValueError):
    """It is no schema; the text says why, as Pulsar begins it."""


class Schema(msgspec.Struct, frozen=True):
    """A schema as a client says it."""

    type: SchemaType
    data: bytes = b""
    properties: dict[str, str] = {}


def identity(schema: Schema) -> bytes:
    """Equal for schemas that say the same; raises ``InvalidSchema``.

    Spaces, comments and the order of keys make no other schema, and neither do properties.
    """
    if len(schema.data) > BYTES_MAX:
        raise InvalidSchema(f"Schema of {len(schema.data)} bytes is larger than {BYTES_MAX}")
    if schema.type is SchemaType.AUTO_CONSUME:
        raise InvalidSchema("Schema AUTO_CONSUME is a client-side schema type")
    said = schema.data
    if schema.type in _IN_AVRO:
        said = _AvroText(schema).canonical
    elif schema.type is SchemaType.KEY_VALUE:
        for part in key_and_value(schema):
            identity(part)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        _root_message(schema)
    elif schema.type not in _UNCHECKED and said:
        raise InvalidSchema(
            "Invalid schema definition data for primitive schemas :length of schema data should be "
            f"zero, but {len(said)} bytes is found"
        )
    return hashlib.sha256(b"%d %s" % (schema.type, said)).digest()


# ---- strategies ---------------------------------------------------------------------------------

ALWAYS_COMPATIBLE: Final = "ALWAYS_COMPATIBLE"
ALWAYS_INCOMPATIBLE: Final = "ALWAYS_INCOMPATIBLE"
BACKWARD: Final = "BACKWARD"

_NEW_READS_OLD: Final = ("BACKWARD", "BACKWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
_OLD_READS_NEW: Final = ("FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")


def is_transitive(strategy: str) -> bool:
    """Whether all versions count, not the newest only."""
    return strategy.endswith("_TRANSITIVE")


def incompatibility(new: Schema, old: Sequence[Schema], strategy: str) -> str:
    """Why a topic with these versions, oldest first, cannot have another; empty = it can."""
    if strategy == ALWAYS_COMPATIBLE:
        return ""
    for each in old if is_transitive(strategy) else old[-1:]:
        if each.type is not new.type:
            return (
                f"Incompatible schema: exists schema type {each.type.name}, "
                f"new schema type {new.type.name}"
            )
        problem = _differs(new, each, strategy)
        if problem:
            return f"Error during schema compatibility check with strategy {strategy}: {problem}"
    return ""


def _differs(new: Schema, old: Schema, strategy: str) -> str:
    if strategy == ALWAYS_INCOMPATIBLE:
        return "no schema is compatible with another one"
    if new.type is SchemaType.KEY_VALUE:
        return _differs_in_parts(new, old, strategy)
    if new.type is SchemaType.PROTOBUF_NATIVE and _root_message(new) != _root_message(old):
        return "Protobuf root message isn't allow change!"
    if new.type in (SchemaType.JSON, SchemaType.AVRO):
        return _differs_in_avro(_AvroText(new).root, _AvroText(old).root, strategy)
    return ""


def _differs_in_avro(new: _Node, old: _Node, strategy: str) -> str:
    if strategy in _NEW_READS_OLD:
        problem = _Reading().problem(new, old)
        if problem:
            return f"the new schema cannot read what the old one writes: {problem}"
    if strategy in _OLD_READS_NEW:
        problem = _Reading().problem(old, new)
        if problem:
            return f"the old schema cannot read what the new one writes: {problem}"
    return ""


def _differs_in_parts(new: Schema, old: Schema, strategy: str) -> str:
    parts = zip(key_and_value(new), key_and_value(old), ("key", "value"), strict=True)
    for newer, older, what in parts:
        if newer.type is not older.type:
            return f"the {what} is {newer.type.name}, not {older.type.name}"
        problem = _differs(newer, older, strategy)
        if problem:
            return f"of the {what}, {problem}"
    return ""


# ---- key-value and native protobuf --------------------------------------------------------------


def key_and_value(schema: Schema) -> tuple[Schema, Schema]:
    """Each with its length before it; types are properties. Raises ``InvalidSchema``."""
    key, rest = _counted(schema.data)
    value, rest = _counted(rest)
    if rest:
        raise InvalidSchema(f"Invalid key-value schema: {len(rest)} bytes follow the value")
    return _part(schema.properties, "key", key), _part(schema.properties, "value", value)


def _counted(data: bytes) -> tuple[bytes, bytes]:
    size = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else -1
    if not 0 <= size <= len(data) - _LENGTH.size:
        raise InvalidSchema("Invalid key-value schema: key and value with their lengths are wanted")
    end = _LENGTH.size + size
    return data[_LENGTH.size : end], data[end:]


def _part(properties: Mapping[str, str], which: str, data: bytes) -> Schema:
    said = properties.get(f"{which}.schema.type", "BYTES")
    if said == "BYTES":
        return Schema(SchemaType.NONE, data)
    found = SchemaType.__members__.get(said)
    if found is None or found is SchemaType.KEY_VALUE:
        raise InvalidSchema(f"Invalid key-value schema: {said[:40]!r} is no type of a {which}")
    return Schema(found, data)


def _root_message(schema: Schema) -> str:
    try:
        said = msgspec.json.decode(schema.data)
    except _UNREADABLE as error:
        raise InvalidSchema(f"deserialize ProtobufNative Schema failed caused by {error}") from None
    root = said.get("rootMessageTypeName") if isinstance(said, dict) else None
    if not isinstance(root, str):
        raise InvalidSchema(
            "deserialize ProtobufNative Schema failed caused by no rootMessageTypeName"
        )
    return root


# ---- Avro's language ----------------------------------------------------------------------------

_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)

_PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_OWN_KEYS: Final = frozenset(
    ("type", "name", "namespace", "doc", "aliases", "fields", "symbols", "items", "values", "size")
)
"""Of a type; what else it says is a property, and makes it another schema."""
_SILENT_KEYS: Final = frozenset(("name", "type", "doc", "aliases"))
"""Of a field, apart from its name and type nothing else but comments."""


class _Field:
    """One field of a record."""

    __slots__ = ("aliases", "has_default", "name", "node")

    def __init__(self, said: dict[str, Any], node: _Node) -> None:
        self.name: Final[str] = said["name"]
        self.aliases: Final = _texts(said.get("aliases", []), "aliases")
        self.has_default: Final = "default" in said
        self.node: Final = node


class _Node:
    """One type."""

    __slots__ = ("aliases", "fields", "kind", "name", "parts", "size")

    def __init__(self, kind: str, name: str = "") -> None:
        self.kind: Final = kind
        self.name: Final = name
        """With its namespace; empty for what has none."""
        self.aliases: list[str] = []
        self.fields: dict[str, _Field] = {}
        self.parts: list[_Node] = []
        """Branches of a union; the one type in an array or a map."""
        self.size = 0

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def spelt(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


class _AvroText:
    """A schema in Avro's language, read."""

    def __init__(self, schema: Schema) -> None:
        self._named: dict[str, _Node] = {}
        self._count = 0
        try:
            said = msgspec.json.decode(schema.data)
            if schema.type is SchemaType.JSON and _is_json_schema(said):
                # What clients before 2.0 described JSON by. Nothing is known of its rules.
                self.root, form = _Node("object"), said
            else:
                self.root, form = self._type(said, "", 0)
            self.canonical: Final = msgspec.json.encode(form, order="deterministic")
        except _UNREADABLE as error:
            raise InvalidSchema(
                f"Invalid schema definition data for {schema.type.name} schema caused by {error}"
            ) from None

    def _type(self, said: object, space: str, depth: int) -> tuple[_Node, object]:
        """The type, and what it says without what does not count."""
        self._count += 1
        if depth > DEPTH_MAX or self._count > NODES_MAX:
            raise ValueError(f"it has more than {NODES_MAX} types or {DEPTH_MAX} in each other")
        if isinstance(said, str):
            return self._known(said, space)
        if isinstance(said, list):
            return self._union(said, space, depth)
        if not isinstance(said, dict):
            raise ValueError(f"No type: {_short(said)}")
        kind = said.get("type")
        if isinstance(kind, dict | list):
            return self._type(kind, space, depth + 1)
        if kind in _NAMED:
            return self._definition(said, kind, space, depth)
        if kind in ("array", "map"):
            return self._collection(said, kind, space, depth)
        if not isinstance(kind, str):
            raise ValueError(f"No type: {_short(said)}")
        node, form = self._known(kind, space)
        properties = _properties(said)
        return node, {"type": form, **properties} if properties else form

    def _known(self, name: str, space: str) -> tuple[_Node, object]:
        if name in _PRIMITIVES:
            return _Node(name), name
        full = _full_name(name, space)
        node = self._named.get(full)
        if node is None:
            raise ValueError(f"Undefined name: {_short(name)}")
        return node, full

    def _union(self, said: list[object], space: str, depth: int) -> tuple[_Node, object]:
        node, forms = _Node("union"), []
        seen: set[str] = set()
        for each in said:
            part, form = self._type(each, space, depth + 1)
            if part.kind == "union" or part.spelt in seen:
                raise ValueError(f"Duplicate or nested in union: {part.spelt}")
            seen.add(part.spelt)
            node.parts.append(part)
            forms.append(form)
        return node, forms

    def _collection(
        self, said: dict[str, Any], kind: str, space: str, depth: int
    ) -> tuple[_Node, object]:
        key = "items" if kind == "array" else "values"
        if key not in said:
            raise ValueError(f"No {key} type: {_short(said)}")
        node = _Node(kind)
        part, form = self._type(said[key], space, depth + 1)
        node.parts.append(part)
        return node, {"type": kind, key: form, **_properties(said)}

    def _definition(
        self, said: dict[str, Any], kind: str, space: str, depth: int
    ) -> tuple[_Node, object]:
        full = _full_name(_name(said), _namespace(said, space))
        if full in self._named:
            raise ValueError(f"Can't redefine: {full}")
        node = self._named[full] = _Node(kind, full)
        node.aliases = _texts(said.get("aliases", []), "aliases")
        form = {"type": kind, "name": full, **_properties(said)}
        if kind == "enum":
            symbols = _texts(said.get("symbols"), "symbols")
            if len(set(symbols)) != len(symbols):
                raise ValueError(f"Duplicate enum symbol in {full}")
            form["symbols"] = symbols
        elif kind == "fixed":
            size = said.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise ValueError(f"Invalid or no size: {_short(said)}")
            form["size"] = node.size = size
        else:
            form["fields"] = self._fields(said, node, depth)
        return node, form

    def _fields(self, said: dict[str, Any], node: _Node, depth: int) -> list[object]:
        fields = said.get("fields")
        if not isinstance(fields, list):
            raise ValueError(f"Record has no fields: {_short(said)}")
        forms: list[object] = []
        for each in fields:
            if not isinstance(each, dict) or "type" not in each:
                raise ValueError(f"Invalid field or no field type: {_short(each)}")
            name = _name(each)
            if name in node.fields:
                raise ValueError(f"Duplicate field {name} in record {node.name}")
            part, form = self._type(each["type"], node.name.rpartition(".")[0], depth + 1)
            node.fields[name] = _Field(each, part)
            others = {key: each[key] for key in each if key not in _SILENT_KEYS}
            forms.append({"name": name, "type": form, **others})
        return forms


def _is_json_schema(said: object) -> bool:
    return isinstance(said, dict) and said.get("type") == "object"


def _properties(said: dict[str, Any]) -> dict[str, Any]:
    return {key: said[key] for key in said if key not in _OWN_KEYS}


def _name(said: dict[str, Any]) -> str:
    name = said.get("name")
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"Illegal or no name: {_short(name)}")
    return name


def _namespace(said: dict[str, Any], outer: str) -> str:
    space = said.get("namespace", outer)
    return space if isinstance(space, str) else outer


def _full_name(name: str, space: str) -> str:
    return f"{space}.{name}" if space and "." not in name else name


def _texts(said: object, what: str) -> list[str]:
    if not isinstance(said, list) or not all(isinstance(each, str) for each in said):
        raise ValueError(f"{what} are no list of texts: {_short(said)}")
    return said


def _short(said: object) -> str:
    return repr(said)[:80] if isinstance(said, str) else type(said).__name__


# ---- reading what another schema wrote ----------------------------------------------------------

_WIDENED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What is written -> what it may be read as."""


class _Reading:
    """Whether one schema reads what another writes; each two types are compared once.

    Types may be part of themselves: what is being asked counts as true until it is not. When it
    turns out false, what was said meanwhile is asked again.
    """

    def __init__(self) -> None:
        self._problems: dict[tuple[_Node, _Node], str] = {}
        self._asked: dict[tuple[_Node, _Node], bool] = {}
        """False while it is being found out."""
        self._assumed: set[tuple[_Node, _Node]] = set()
        self._is_stale = True
        self._count = 0

    def problem(self, reader: _Node, writer: _Node) -> str:
        """Empty = it can."""
        found = ""
        while self._is_stale:
            self._is_stale = False
            self._asked.clear()
            self._assumed.clear()
            found = self._problem(reader, writer)
        return found

    def _problem(self, reader: _Node, writer: _Node) -> str:
        pair = (reader, writer)
        if pair in self._problems:
            return self._problems[pair]
        is_answered = self._asked.get(pair)
        if is_answered is not None:
            if not is_answered:
                self._assumed.add(pair)
            return ""
        self._count += 1
        if self._count > COMPARISONS_MAX:
            return f"it takes more than {COMPARISONS_MAX} comparisons to say"
        self._asked[pair] = False
        found = self._compare(reader, writer)
        self._asked[pair] = True
        if found:
            self._problems[pair] = found
            self._is_stale = self._is_stale or pair in self._assumed
        return found

    def _compare(self, reader: _Node, writer: _Node) -> str:
        if writer.kind == "union":
            return self._first([(reader, branch) for branch in writer.parts])
        if reader.kind == "union":
            is_one = any(not self._problem(branch, writer) for branch in reader.parts)
            return "" if is_one else f"{writer.spelt} is none of the types of a union"
        if reader.kind != writer.kind:
            is_wider = reader.kind in _WIDENED.get(writer.kind, ())
            return "" if is_wider else f"{writer.spelt} cannot be read as {reader.spelt}"
        if reader.kind in ("array", "map"):
            return self._problem(reader.parts[0], writer.parts[0])
        if reader.kind in ("enum", "fixed"):
            return _other_name(reader, writer)
        return self._compare_fields(reader, writer)

    def _compare_fields(self, reader: _Node, writer: _Node) -> str:
        for field in reader.fields.values():
            written = next(
                (writer.fields[name] for name in (field.name, *field.aliases)
                 if name in writer.fields), None,
            )  # fmt: skip
            if written is not None:
                problem = self._problem(field.node, written.node)
                if problem:
                    return f"field {field.name}: {problem}"
            elif not field.has_default:
                return f"field {field.name} is not written and has no default"
        return ""

    def _first(self, pairs: list[tuple[_Node, _Node]]) -> str:
        for reader, writer in pairs:
            problem = self._problem(reader, writer)
            if problem:
                return problem
        return ""


def _other_name(reader: _Node, writer: _Node) -> str:
    names = (reader.short_name, *reader.aliases)
    if writer.short_name not in names and writer.name not in names:
        return f"{writer.spelt} cannot be read as {reader.spelt}"
    if reader.size != writer.size:
        return f"{writer.spelt} has {writer.size} bytes, not {reader.size}"
    return ""
