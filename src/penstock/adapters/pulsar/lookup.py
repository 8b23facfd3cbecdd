"""Where a topic is, how many partitions it has, and which topics there are.

One broker serves all: a look-up names the address that the client dialled, so that it stays on the
connection it has. An unknown listener's name fails in the words by which clients know that trying
again is no use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.adapters.pulsar.broker import PulsarBroker
from penstock.adapters.pulsar.errors import CloseConnection, PulsarError, namespace_missing
from penstock.adapters.pulsar.naming import (
    PATTERN_LENGTH_MAX,
    NamePattern,
    is_namespace,
    parse_name,
    topics_hash,
)
from penstock.adapters.pulsar.ports import ClientConnection, Handler, SimpleCommands
from penstock.adapters.pulsar.topics import Listed
from penstock.model.errors import AlreadyExists
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.names import InvalidTopicName, PulsarName
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

_LISTED: Final[dict[int, Listed]] = {
    CommandGetTopicsOfNamespace.PERSISTENT: "persistent",
    CommandGetTopicsOfNamespace.NON_PERSISTENT: "non-persistent",
    CommandGetTopicsOfNamespace.ALL: "all",
}


class LookupCommands(SimpleCommands):
    """LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE of one connection."""

    def __init__(self, connection: ClientConnection, broker: PulsarBroker) -> None:
        self._connection = connection
        self._broker = broker

    def handlers(self) -> Mapping[int, Handler]:
        return {
            BaseCommand.LOOKUP: self._look_up,
            BaseCommand.PARTITIONED_METADATA: self._partitions,
            BaseCommand.GET_TOPICS_OF_NAMESPACE: self._topics,
        }

    def _look_up(self, command: BaseCommand, tail: bytes) -> None:
        asked = command.lookup_topic
        reply = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
        found = reply.lookup_topic_response
        found.request_id = asked.request_id
        try:
            self._check(asked.topic)
            listener = asked.advertised_listener_name
            if listener:
                raise PulsarError(
                    ServerError.ServiceNotReady, f"the broker do not have {listener} listener"
                )
        except PulsarError as error:
            found.response = CommandLookupTopicResponse.Failed
            found.error = error.wire_code
            found.message = error.text
        else:
            found.response = CommandLookupTopicResponse.Connect
            found.authoritative = True
            found.brokerServiceUrl = f"pulsar://{self._broker.dialled(self._connection.peer)}"
            # The client stays on the address it has, whichever of our names that is.
            found.proxy_through_service_url = True
        self._connection.send(reply)

    def _partitions(self, command: BaseCommand, tail: bytes) -> None:
        asked = command.partition_metadata
        reply = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
        found = reply.partition_metadata_response
        found.request_id = asked.request_id
        was_there = True
        try:
            name = self._check(asked.topic)
            was_there = self._broker.topics.partitions(name) is not None
            partitions = self._made_or_found(name, asked.metadata_auto_creation_enabled)
        except PulsarError as error:
            found.response = CommandPartitionedTopicMetadataResponse.Failed
            found.error = error.wire_code
            found.message = error.text
        else:
            found.response = CommandPartitionedTopicMetadataResponse.Success
            found.partitions = partitions
        if was_there or not found.partitions:
            self._connection.send(reply)
        else:
            # Asking has made it: it must be there after a crash, too.
            self._broker.engine.after_durable(lambda: self._connection.send(reply))

    def _made_or_found(self, name: PulsarName, may_create: bool) -> int:
        try:
            partitions = self._broker.topics.partitions_for(
                name, may_create=may_create, maker=self._connection.peer.maker
            )
        except AlreadyExists as error:
            raise PulsarError(ServerError.NotAllowedError, str(error)) from None
        if partitions is None:
            raise PulsarError(ServerError.TopicNotFound, "")
        return partitions

    def _topics(self, command: BaseCommand, tail: bytes) -> None:
        asked = command.get_topics_of_namespace
        if not is_namespace(asked.namespace):
            raise CloseConnection(f"{asked.namespace[:80]!r} is no namespace")
        names = [
            str(name) for name in self._broker.topics.names(asked.namespace, _LISTED[asked.mode])
        ]
        reply = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        found = reply.get_topics_of_namespace_response
        found.request_id = asked.request_id
        if asked.topics_pattern:
            pattern = NamePattern(asked.topics_pattern)
            is_short = len(asked.topics_pattern) <= PATTERN_LENGTH_MAX
            found.filtered = is_short and pattern.is_understood
            if found.filtered:
                names = [name for name in names if pattern.matches(name)]
        found.topics_hash = topics_hash(names)
        found.changed = not asked.topics_hash or asked.topics_hash != found.topics_hash
        if found.changed:
            found.topics.extend(names)
        self._connection.send(reply)

    def _check(self, text: str) -> PulsarName:
        """A topic's name, in a namespace that is there."""
        try:
            name = parse_name(text)
        except InvalidTopicName as problem:
            raise PulsarError(ServerError.InvalidTopicName, str(problem)) from None
        if not self._broker.namespaces.exists(name.namespace):
            raise namespace_missing()
        return name
