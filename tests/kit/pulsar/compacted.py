"""Producers and consumers in memory for tests of compaction: what goes in, and what comes out."""

from __future__ import annotations

from typing import Any, Final

from kit.pulsar.bench import PulsarBench
from kit.pulsar_payload import PulsarMessage, batch_tail, single_tail
from penstock.adapters.pulsar.compaction import CompactionStatus
from penstock.adapters.pulsar.naming import parse_name
from penstock.wire.pulsar.facts import inflate
from penstock.wire.pulsar.frames import NO_ID
from penstock.wire.pulsar.names import PulsarName
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandSubscribe,
    MessageMetadata,
    SingleMessageMetadata,
)

TOPIC: Final = "persistent://public/default/orders"
NAME: Final = parse_name(TOPIC)
EARLIEST: Final = {"ledgerId": NO_ID, "entryId": NO_ID}
PATIENCE_MS: Final = 60_000

Got = tuple[str, bytes]
"""Key and payload."""


def keyed(key: str, body: bytes = b"", **more: Any) -> PulsarMessage:
    """One message as ``Till.send`` takes it."""
    return PulsarMessage(body, key, **more)


class Till:
    """A producer of the topic: what it is given is stored."""

    def __init__(self, bench: PulsarBench, topic: str = TOPIC) -> None:
        self.bench = bench
        self.client = bench.client()
        answer = self.client.call("PRODUCER", topic=topic, producer_id=1, request_id=1)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
        self.sent = 0

    def send(self, *entries: PulsarMessage | list[PulsarMessage]) -> None:
        """Messages, or lists of them: each list is a batch."""
        for each in entries:
            tail = batch_tail(*each) if isinstance(each, list) else single_tail(each)
            self.raw(tail)

    def raw(self, tail: bytes) -> None:
        """What follows SEND, as it is."""
        self.client.publish(1, self.sent, tail=tail)
        self.sent += 1
        self.bench.settle()


def compact(bench: PulsarBench, name: PulsarName = NAME) -> None:
    """From its beginning to its end."""
    bench.broker.compaction.start(name)
    finish(bench, name)


def finish(bench: PulsarBench, name: PulsarName = NAME) -> CompactionStatus:
    """Let a compaction come to its end; what became of it."""
    for _ in range(PATIENCE_MS // 100):
        found = bench.broker.compaction.status(name)
        if found.status != "RUNNING":
            return found
        bench.pass_time(100)
    raise AssertionError("the compaction does not end")


class Shelf:
    """A consumer of the topic that takes everything and says what it got."""

    def __init__(
        self,
        bench: PulsarBench,
        subscription: str = "s",
        *,
        topic: str = TOPIC,
        permits: int = 1_000,
        **fields: Any,
    ) -> None:
        self.client = bench.client()
        fields = {"read_compacted": True, "initialPosition": CommandSubscribe.Earliest, **fields}
        fields.setdefault("subType", CommandSubscribe.Exclusive)
        answer = self.client.call(
            "SUBSCRIBE", topic=topic, subscription=subscription, consumer_id=1, request_id=1,
            **fields,
        )  # fmt: skip
        assert answer.type == BaseCommand.SUCCESS, answer
        if permits:
            self.client.say("FLOW", consumer_id=1, messagePermits=permits)

    def entries(self) -> list[tuple[int, list[Got]]]:
        """(id, [(key, payload)]) of each MESSAGE since the last time."""
        found = []
        for command, tail in self.client.heard():
            assert command.type == BaseCommand.MESSAGE, command
            assert not command.message.ack_set
            found.append((command.message.message_id.entryId, opened(tail)))
        return found

    def got(self) -> list[Got]:
        """(key, payload) of each message."""
        return [each for _, messages in self.entries() for each in messages]

    def ack(self, *entries: int, kind: str = "Individual") -> None:
        """Entries by their ids."""
        topic = self.client.bench.engine.topic(NAME.topic_name)
        assert topic is not None
        ledger = topic.queues[0].incarnation
        ids = [{"ledgerId": ledger, "entryId": each} for each in entries]
        self.client.say("ACK", consumer_id=1, ack_type=kind, message_id=ids)
        self.client.bench.settle()

    def last_id(self) -> tuple[int, int]:
        """Entry and batch index of the last message there is for it."""
        answer = self.client.call("GET_LAST_MESSAGE_ID", consumer_id=1, request_id=9)
        said = answer.get_last_message_id_response
        return said.last_message_id.entryId, said.last_message_id.batch_index


def opened(tail: bytes) -> list[Got]:
    """The messages of an entry, each (key, payload)."""
    if tail.startswith(b"\x0e\x01"):
        tail = tail[6:]
    size = int.from_bytes(tail[:4], "big")
    metadata = MessageMetadata.FromString(tail[4 : 4 + size])
    payload = tail[4 + size :]
    if metadata.compression:
        size = metadata.uncompressed_size
        payload = inflate(payload, metadata.compression, size, size)
    if not metadata.HasField("num_messages_in_batch"):
        return [(metadata.partition_key, payload)]
    found = []
    for _ in range(metadata.num_messages_in_batch):
        size = int.from_bytes(payload[:4], "big")
        single = SingleMessageMetadata.FromString(payload[4 : 4 + size])
        payload = payload[4 + size :]
        found.append((single.partition_key, payload[: single.payload_size]))
        payload = payload[single.payload_size :]
    return found


def compacted(bench: PulsarBench, **fields: Any) -> list[Got]:
    """What a reader of the compacted topic gets."""
    shelf = Shelf(bench, "reader-1", durable=False, start_message_id=EARLIEST, **fields)
    found = shelf.got()
    shelf.client.vanish()
    return found
