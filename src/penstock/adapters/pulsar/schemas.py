"""Schemas of topics: who may bring one, which version it gets, and who may ask for it.

A topic has a list of schemas, numbered from 0; its partitions share it. A schema that is there
already has its old number, a new one must go with those before it (``schema_compatibility.py``, by
the strategy of the topic's policies). Producers bring schemas, and the first consumer of a topic
that nobody uses yet; other consumers must only be able to read what the newest describes.

Each version is a row of the catalog and goes with its topic; those of topics without a log live as
long as these do. Deleting the schemas of a topic takes a number, too: messages carry the numbers of
old ones, which must not come to mean others.

Bounds: ``BYTES_MAX`` of one schema, ``VERSIONS_MAX`` and ``TOPIC_BYTES_MAX`` of a topic,
``ALL_BYTES_MAX`` of all together; whoever would exceed them is refused like one whose schema does
not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from penstock.adapters.pulsar.errors import PulsarError
from penstock.adapters.pulsar.naming import parse_name, pulsar_name
from penstock.adapters.pulsar.ports import SimpleCommands
from penstock.adapters.pulsar.schema_compatibility import (
    ALWAYS_COMPATIBLE,
    BACKWARD,
    InvalidSchema,
    Schema,
    SchemaType,
    identity,
    incompatibility,
    is_transitive,
)
from penstock.model.ids import TopicId
from penstock.model.names import NON_PERSISTENT, TopicName
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.names import InvalidTopicName, PulsarName
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, KeyValue
from penstock.wire.pulsar.protocol_pb2 import Schema as WireSchema

if TYPE_CHECKING:
    from penstock.adapters.pulsar.namespaces import Namespaces
    from penstock.adapters.pulsar.ports import ClientConnection, Handler
    from penstock.adapters.pulsar.topics import PulsarTopic, PulsarTopics
    from penstock.engine.broker import Engine
    from penstock.engine.topic import Topic
    from penstock.model.clock import Clock

SCHEMA_KIND: Final = "pulsar.schema"

VERSIONS_MAX: Final = 1_000
TOPIC_BYTES_MAX: Final = 1 << 20
"""Of all versions of a topic: a transitive strategy reads them all for each new one."""
ALL_BYTES_MAX: Final = 64 << 20
ROW_BYTES: Final = 200
"""What a version takes beside what it says."""

NO_VERSION: Final = b""
"""What a producer without a schema is told."""


class SchemaVersion(msgspec.Struct, frozen=True):
    """A row of kind ``pulsar.schema``; its key is ``topic id/number``."""

    number: int
    schema: Schema
    identity: bytes
    created_ms: int
    """Wall time."""
    is_deletion: bool = False
    """Those before it do not count any more."""

    @property
    def wire(self) -> bytes:
        """As messages carry it."""
        return self.number.to_bytes(8, "big")

    @property
    def size(self) -> int:
        properties = self.schema.properties.items()
        return ROW_BYTES + len(self.schema.data) + sum([len(k) + len(v) for k, v in properties])


class _TopicSchemas:
    """The versions of one topic since the last deletion, oldest first, their numbers in a row."""

    __slots__ = ("deletion", "size", "topic_id", "versions")

    def __init__(self, topic_id: int) -> None:
        self.topic_id: Final = topic_id
        self.versions: Final[list[SchemaVersion]] = []
        self.deletion: SchemaVersion | None = None
        self.size = 0

    @property
    def rows(self) -> list[SchemaVersion]:
        return self.versions if self.deletion is None else [self.deletion, *self.versions]

    @property
    def next_number(self) -> int:
        rows = self.rows
        return rows[-1].number + 1 if rows else 0

    def add(self, version: SchemaVersion) -> None:
        if version.is_deletion:
            self.versions.clear()
            self.deletion = version
            self.size = 0
        else:
            self.versions.append(version)
        self.size += version.size


class SchemaRegistry:
    """The schemas of all topics."""

    def __init__(self, engine: Engine, clock: Clock, namespaces: Namespaces) -> None:
        self._engine: Final = engine
        self._clock: Final = clock
        self._namespaces: Final = namespaces
        self._topics: Final[dict[TopicName, _TopicSchemas]] = {}
        self._size = 0
        self._restore()
        engine.watch_removals(self._removed)

    # Looking.

    def versions(self, name: TopicName) -> list[SchemaVersion]:
        """Of the engine's topic, oldest first."""
        found = self._topics.get(name)
        if found is None or found.topic_id != self._topic_id(name):
            return []
        return list(found.versions)

    def version(self, name: TopicName, number: int | None = None) -> SchemaVersion | None:
        """One of them, the newest if none is named."""
        versions = self.versions(name)
        if not versions or number is None:
            return versions[-1] if versions else None
        at = number - versions[0].number
        return versions[at] if 0 <= at < len(versions) else None

    def find(self, name: TopicName, schema: Schema) -> SchemaVersion | None:
        """The version that says the same; raises ``PulsarError`` for what is no schema."""
        wanted = _identity(schema)
        return next((each for each in self.versions(name) if each.identity == wanted), None)

    def problem(self, name: TopicName, schema: Schema) -> str:
        """Why a topic cannot have this schema as its next one; empty = it can."""
        strategy = self._namespaces.effective(name).schema_compatibility_strategy
        return incompatibility(schema, [each.schema for each in self.versions(name)], strategy)

    # Bringing one. Durable once ``Engine.after_durable`` calls back.

    def of_producer(self, topic: PulsarTopic, said: WireSchema | None) -> bytes:
        """What PRODUCER is told: the version of its schema. Raises ``PulsarError``."""
        if said is not None:
            return self.put(topic.topic_name, schema_of(said)).wire
        rules = self._namespaces.effective(topic.topic_name)
        if rules.schema_validation_enforced and self.versions(topic.topic_name):
            raise _incompatible(
                "Producers cannot connect or send message without a schema to topics with a schema "
                "when SchemaValidationEnforced is enabled"
            )
        return NO_VERSION

    def of_consumer(self, topic: PulsarTopic, said: WireSchema | None, *, is_idle: bool) -> None:
        """SUBSCRIBE with a schema; raises ``PulsarError`` when it could not read what comes.

        ``is_idle``: nobody else uses the topic, and nothing is in it.
        """
        if said is None or said.type == WireSchema.AutoConsume:
            return
        schema = schema_of(said)
        name = topic.topic_name
        versions = self.versions(name)
        if not versions:
            if not is_idle:
                raise _incompatible(
                    "Failed to add schema to an active topic with empty(BYTES) schema: "
                    f"new schema type {schema.type.name}"
                )
            self.put(name, schema)
            return
        _identity(schema)
        strategy = self._namespaces.effective(name).schema_compatibility_strategy
        if strategy != ALWAYS_COMPATIBLE and not is_transitive(strategy):
            strategy = BACKWARD
        problem = incompatibility(schema, [each.schema for each in versions], strategy)
        if problem:
            raise _incompatible(problem)

    def put(
        self, name: TopicName, schema: Schema, *, is_by_operator: bool = False
    ) -> SchemaVersion:
        """Its version, which is a new one if it has none yet; raises ``PulsarError``.

        Operators bring schemas also where clients may not.
        """
        known = self.find(name, schema)
        if known is not None:
            return known
        rules = self._namespaces.effective(name)
        if not rules.is_allow_auto_update_schema and not is_by_operator:
            raise _incompatible("Schema not found and schema auto updating is disabled.")
        problem = self.problem(name, schema)
        if problem:
            raise _incompatible(problem)
        return self._add(name, schema, _identity(schema))

    def delete(self, name: TopicName) -> SchemaVersion | None:
        """The topic has no schema any more; the number that this took, if it had one."""
        found = self._topics.get(name)
        if found is None or not self.versions(name):
            return None
        version = SchemaVersion(
            found.next_number, Schema(SchemaType.NONE), b"", self._clock.wall_ms(), is_deletion=True
        )
        for each in found.rows:
            self._save(name, found, each, is_there=False)
        self._size -= found.size
        found.add(version)
        self._size += found.size
        self._save(name, found, version)
        return version

    def forget(self, name: TopicName) -> int:
        """All versions of a topic go; how many there were."""
        found = self._topics.pop(name, None)
        if found is None:
            return 0
        self._size -= found.size
        for each in found.rows:
            self._save(name, found, each, is_there=False)
        return len(found.versions)

    # Parts.

    def _add(self, name: TopicName, schema: Schema, wanted: bytes) -> SchemaVersion:
        topic_id = self._topic_id(name)
        found = self._topics.get(name)
        if found is None or found.topic_id != topic_id:
            self.forget(name)
            found = _TopicSchemas(topic_id)
        version = SchemaVersion(found.next_number, schema, wanted, self._clock.wall_ms())
        if len(found.versions) >= VERSIONS_MAX or found.size + version.size > TOPIC_BYTES_MAX:
            raise _incompatible(
                f"The topic has {len(found.versions)} schemas of {found.size} bytes together; "
                f"{VERSIONS_MAX} of {TOPIC_BYTES_MAX} bytes are allowed"
            )
        if self._size + version.size > ALL_BYTES_MAX:
            self._forget_gone()
        if self._size + version.size > ALL_BYTES_MAX:
            raise _incompatible(
                f"The schemas of all topics have {self._size} bytes; {ALL_BYTES_MAX} are allowed: "
                "delete topics that nobody needs"
            )
        self._topics[name] = found
        found.add(version)
        self._size += version.size
        self._save(name, found, version)
        return version

    def _save(
        self, name: TopicName, of: _TopicSchemas, version: SchemaVersion, *, is_there: bool = True
    ) -> None:
        if name.domain != NON_PERSISTENT:
            row = msgspec.msgpack.encode(version) if is_there else None
            self._engine.define(SCHEMA_KIND, f"{of.topic_id}/{version.number}", row)

    def _topic_id(self, name: TopicName) -> int:
        """What tells a topic from the next one of its name; 0 = there is none."""
        if name.domain == NON_PERSISTENT:
            unlogged = self._engine.non_persistent.get(name)
            return 0 if unlogged is None else unlogged.queue_ids[0]
        topic = self._engine.topic(name)
        return 0 if topic is None else topic.topic_id

    def _forget_gone(self) -> None:
        """Topics without a log go without a word."""
        for name, found in list(self._topics.items()):
            if found.topic_id != self._topic_id(name):
                self.forget(name)

    def _removed(self, topic: Topic) -> None:
        self.forget(topic.name)

    def _restore(self) -> None:
        names = {topic.topic_id: topic.name for topic in self._engine.topics()}
        rows: list[tuple[TopicId, SchemaVersion]] = []
        for key, body in self._engine.definitions(SCHEMA_KIND).items():
            topic_id = TopicId(int(key.partition("/")[0]))
            if topic_id in names:
                rows.append((topic_id, msgspec.msgpack.decode(body, type=SchemaVersion)))
            else:
                self._engine.define(SCHEMA_KIND, key, None)
        for topic_id, version in sorted(rows, key=lambda row: row[1].number):
            found = self._topics.setdefault(names[topic_id], _TopicSchemas(topic_id))
            found.add(version)
        self._size = sum([each.size for each in self._topics.values()])


def schema_of(said: WireSchema) -> Schema:
    properties = {each.key: each.value for each in said.properties}
    return Schema(SchemaType(said.type), said.schema_data, properties)


def _identity(schema: Schema) -> bytes:
    try:
        return identity(schema)
    except InvalidSchema as problem:
        raise _incompatible(str(problem)) from None


def _incompatible(text: str) -> PulsarError:
    return PulsarError(ServerError.IncompatibleSchema, text)


def wire_schema(name: TopicName, schema: Schema) -> WireSchema:
    """As answers have it: its name is the topic's."""
    spelt = pulsar_name(name)
    return WireSchema(
        name="" if spelt is None else f"{spelt.namespace}/{spelt.local}",
        type=WireSchema.Type.Name(schema.type),
        schema_data=schema.data,
        properties=[KeyValue(key=key, value=value) for key, value in schema.properties.items()],
    )


# ---- commands -----------------------------------------------------------------------------------


class SchemaBroker(Protocol):
    """What all connections share, as far as it is used here."""

    @property
    def engine(self) -> Engine: ...

    @property
    def topics(self) -> PulsarTopics: ...

    @property
    def schemas(self) -> SchemaRegistry: ...


class SchemaCommands(SimpleCommands):
    """GET_SCHEMA and GET_OR_CREATE_SCHEMA of one connection. Both fail in answers of their own."""

    def __init__(self, connection: ClientConnection, broker: SchemaBroker) -> None:
        self._connection = connection
        self._broker = broker

    def handlers(self) -> Mapping[int, Handler]:
        return {
            BaseCommand.GET_SCHEMA: self._get,
            BaseCommand.GET_OR_CREATE_SCHEMA: self._get_or_create,
        }

    def _get(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.get_schema
        reply = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
        said = reply.get_schema_response
        said.request_id = asked.request_id
        try:
            if asked.HasField("schema_version") and not asked.schema_version:
                raise _incompatible("Empty schema version")
            name = self._find(asked.topic)
            number = int.from_bytes(asked.schema_version, "big") if asked.schema_version else None
            found = None if name is None else self._broker.schemas.version(name, number)
            if name is None or found is None:
                raise PulsarError(
                    ServerError.TopicNotFound, f"Topic not found or no-schema {asked.topic}"
                )
        except PulsarError as error:
            said.error_code = error.wire_code
            said.error_message = error.text
        else:
            said.schema.CopyFrom(wire_schema(name, found.schema))
            said.schema_version = found.wire
        self._connection.send(reply)

    def _get_or_create(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.get_or_create_schema
        reply = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
        said = reply.get_or_create_schema_response
        said.request_id = asked.request_id
        try:
            name = self._find(asked.topic)
            if name is None:
                raise PulsarError(ServerError.TopicNotFound, f"Topic not found {asked.topic}")
            found = self._broker.schemas.put(name, schema_of(asked.schema))
        except PulsarError as error:
            said.error_code = error.wire_code
            said.error_message = error.text
            self._connection.send(reply)
            return
        said.schema_version = found.wire
        self._broker.engine.after_durable(lambda: self._connection.send(reply))

    def _find(self, text: str) -> TopicName | None:
        """The engine's topic of a topic, a partitioned one or a partition."""
        try:
            return _whole(self._broker.topics, parse_name(text))
        except InvalidTopicName as problem:
            raise PulsarError(ServerError.InvalidTopicName, str(problem)) from None


def _whole(topics: PulsarTopics, name: PulsarName) -> TopicName | None:
    if topics.partitions(name) is not None:
        return name.topic_name
    address = topics.address(name)
    return None if address is None else address[0]
