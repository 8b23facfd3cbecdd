"""Producers and consumers of a client on the Pulsar bench, with what a test wants to say of them.

``Publisher`` sends and gives back the ids it was told; ``Subscriber`` is one SUBSCRIBE and what
came of it. Of what its client heard a subscriber takes only what is its own: several on one client
do not disturb each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kit.pulsar.bench import PulsarClient, message_tail
from penstock.wire.pulsar.frames import Frame, ServerError
from penstock.wire.pulsar.metadata import read_metadata
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

TOPIC = "persistent://public/default/orders"
NONE = 2**64 - 1
EARLIEST = (NONE, NONE)
LATEST = (2**63 - 1, 2**63 - 1)
KINDS = ("Exclusive", "Failover", "Shared", "Key_Shared")

Id = tuple[int, int]


def as_id(where: Id | dict[str, Any]) -> dict[str, Any]:
    """``MessageIdData``: from (ledger, entry), or with further fields as it is."""
    return where if isinstance(where, dict) else {"ledgerId": where[0], "entryId": where[1]}


@dataclass(frozen=True)
class Got:
    """One MESSAGE."""

    id: Id
    count: int
    """Redelivery count."""
    ack_set: list[int]
    epoch: int | None
    tail: bytes

    @property
    def metadata(self) -> Any:
        return read_metadata(self.tail)[0]

    @property
    def payload(self) -> bytes:
        """Of a batch: of all of it."""
        return self.tail[read_metadata(self.tail)[1] :]


class Publisher:
    """A producer that is ready."""

    def __init__(self, client: PulsarClient, topic: str = TOPIC, producer_id: int = 900) -> None:
        self.client = client
        self.producer_id = producer_id
        self._next = 0
        client.heard_of(BaseCommand.PRODUCER_SUCCESS)
        client.say("PRODUCER", topic=topic, producer_id=producer_id, request_id=producer_id)
        assert client.heard_of(BaseCommand.PRODUCER_SUCCESS), client.commands()

    def send(self, *bodies: bytes, **metadata: Any) -> None:
        """One entry: a message, or a batch of several."""
        tail = message_tail(self._next, *bodies, **metadata)
        self.client.publish(self.producer_id, self._next, *bodies, tail=tail)
        self._next += 1

    def publish(self, *bodies: bytes, **metadata: Any) -> Id:
        """The same, and its id."""
        self.send(*(bodies or (b"x",)), **metadata)
        return self.receipts()[-1]

    def publish_all(self, entries: int, messages: int = 1, **metadata: Any) -> list[Id]:
        """So many entries of so many messages; their ids."""
        for _ in range(entries):
            self.send(*[b"x"] * messages, **metadata)
        return self.receipts()

    def receipts(self) -> list[Id]:
        """The ids of all receipts that came."""
        found = self.client.heard_of(BaseCommand.SEND_RECEIPT)
        ids = [each.send_receipt.message_id for each, _ in found]
        return [(each.ledgerId, each.entryId) for each in ids]


class Subscriber:
    """One SUBSCRIBE."""

    def __init__(
        self,
        client: PulsarClient,
        topic: str = TOPIC,
        subscription: str = "s",
        kind: str = "Shared",
        *,
        consumer_id: int | None = None,
        **fields: Any,
    ) -> None:
        self.client = client
        self.id = client.new_id() if consumer_id is None else consumer_id
        self.request = client.new_id()
        if "start" in fields:
            fields["start_message_id"] = as_id(fields.pop("start"))
        client.say(
            "SUBSCRIBE",
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=self.id,
            request_id=self.request,
            **fields,
        )

    # The answer.

    def answers(self) -> list[BaseCommand]:
        """SUCCESS and ERROR for its request, so far."""
        found = self.client.take(
            lambda each: (
                (each.type == BaseCommand.SUCCESS and each.success.request_id == self.request)
                or (each.type == BaseCommand.ERROR and each.error.request_id == self.request)
            )
        )
        return [command for command, _ in found]

    def opened(self) -> Subscriber:
        """It was told SUCCESS."""
        answers = self.answers()
        assert [each.type for each in answers] == [BaseCommand.SUCCESS], answers
        return self

    def refusal(self) -> tuple[ServerError, str]:
        """It was told why not."""
        (answer,) = self.answers()
        assert answer.type == BaseCommand.ERROR, answer
        return ServerError(answer.error.error), answer.error.message

    # What it says.

    def flow(self, permits: int) -> Subscriber:
        self.client.say("FLOW", consumer_id=self.id, messagePermits=permits)
        return self

    def says(self, cause: str, **fields: Any) -> None:
        """Penstock's client tells why it takes no more."""
        self.client.say("PING", waits=[{"consumer_id": self.id, "cause": cause, **fields}])

    def ack(self, *ids: Id | dict[str, Any], kind: str = "Individual", **fields: Any) -> None:
        self.client.say(
            "ACK",
            consumer_id=self.id,
            ack_type=kind,
            message_id=[as_id(each) for each in ids],
            **fields,
        )
        self.client.bench.settle()

    def acked(self, *ids: Id | dict[str, Any], kind: str = "Individual") -> Any:
        """ACK with a request id, and its ACK_RESPONSE."""
        request = self.client.new_id()
        self.ack(*ids, kind=kind, request_id=request)
        (found,) = self.client.heard_of(BaseCommand.ACK_RESPONSE)
        assert found[0].ack_response.request_id == request
        return found[0].ack_response

    def redeliver(self, *ids: Id, **fields: Any) -> None:
        self.client.say(
            "REDELIVER_UNACKNOWLEDGED_MESSAGES",
            consumer_id=self.id,
            message_ids=[as_id(each) for each in ids],
            **fields,
        )

    def seek(self, to: Id | None = None, **fields: Any) -> int:
        """Its request id."""
        request = self.client.new_id()
        if to is not None:
            fields["message_id"] = as_id(to)
        self.client.say("SEEK", consumer_id=self.id, request_id=request, **fields)
        return request

    def close(self) -> None:
        request = self.client.new_id()
        self.client.say("CLOSE_CONSUMER", consumer_id=self.id, request_id=request)
        assert self.client.answer(request).type == BaseCommand.SUCCESS

    def unsubscribe(self, **fields: Any) -> BaseCommand:
        request = self.client.new_id()
        self.client.say("UNSUBSCRIBE", consumer_id=self.id, request_id=request, **fields)
        return self.client.answer(request)

    # What it hears.

    def messages(self) -> list[Got]:
        """Every MESSAGE for it since it was last asked."""
        found = self.client.take(
            lambda each: each.type == BaseCommand.MESSAGE and each.message.consumer_id == self.id
        )
        return [_got(each) for each in found]

    def ids(self) -> list[Id]:
        """Of the same only the ids."""
        return [each.id for each in self.messages()]

    def is_told_active(self) -> list[bool]:
        """Its ACTIVE_CONSUMER_CHANGEs since it was last asked."""
        found = self.client.take(
            lambda each: (
                each.type == BaseCommand.ACTIVE_CONSUMER_CHANGE
                and each.active_consumer_change.consumer_id == self.id
            )
        )
        return [each.active_consumer_change.is_active for each, _ in found]

    def is_told_closed(self) -> bool:
        """A CLOSE_CONSUMER of the broker's came for it."""
        found = self.client.take(
            lambda each: (
                each.type == BaseCommand.CLOSE_CONSUMER
                and each.close_consumer.consumer_id == self.id
            )
        )
        assert all(each.close_consumer.request_id == NONE for each, _ in found)
        return bool(found)

    def stats(self) -> Any:
        self.client.bench.settle()
        request = self.client.new_id()
        self.client.say("CONSUMER_STATS", consumer_id=self.id, request_id=request)
        (found,) = self.client.take(
            lambda each: (
                each.type == BaseCommand.CONSUMER_STATS_RESPONSE
                and each.consumer_stats_response.request_id == request
            )
        )
        return found[0].consumer_stats_response

    @property
    def permits(self) -> int:
        """What the broker counts, below zero as it does."""
        found: int = self.stats().availablePermits
        return found - (1 << 64) if found >> 63 else found

    @property
    def unacked(self) -> int:
        found: int = self.stats().unackedMessages
        return found

    def last_id(self) -> Any:
        """GET_LAST_MESSAGE_ID's answer."""
        request = self.client.new_id()
        self.client.say("GET_LAST_MESSAGE_ID", consumer_id=self.id, request_id=request)
        (found,) = self.client.heard_of(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        return found[0].get_last_message_id_response


def _got(frame: Frame) -> Got:
    message = frame[0].message
    return Got(
        (message.message_id.ledgerId, message.message_id.entryId),
        message.redelivery_count,
        list(message.ack_set),
        message.consumer_epoch if message.HasField("consumer_epoch") else None,
        frame[1],
    )
