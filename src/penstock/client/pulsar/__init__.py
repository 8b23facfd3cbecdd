"""A Pulsar client in pure Python, for Penstock and for Apache Pulsar 2.10 and later.

    from penstock.client.pulsar import Client

    with Client("pulsar://localhost:6650") as client:
        consumer = client.subscribe("orders", "billing")
        message = consumer.receive()
        consumer.acknowledge(message)

Plain names block and may be called from any thread; twins that end in ``_async`` are awaitable from
any event loop. Everything else in this package is an implementation detail.
"""

from penstock.client.pulsar.batching import Batching
from penstock.client.pulsar.client import Client
from penstock.client.pulsar.compression import Compression
from penstock.client.pulsar.consumer.consumer import Consumer, ConsumerStatistics
from penstock.client.pulsar.errors import (
    ClientError,
    InvalidUse,
    NothingReceived,
    NotPulsar,
    Refused,
    StateError,
    TimedOut,
    Unreachable,
    WouldBlock,
)
from penstock.client.pulsar.message import Message, MessageId, ReceivedMessage
from penstock.client.pulsar.options import (
    DeadLetterPolicy,
    InitialPosition,
    RedeliveryBackoff,
    SubscriptionType,
)
from penstock.client.pulsar.partition_producer import AccessMode
from penstock.client.pulsar.producer import Producer, ProducerStatistics
from penstock.client.pulsar.reader import Reader
from penstock.client.pulsar.routing import Hashing, Routing
from penstock.client.pulsar.schema import (
    BytesSchema,
    JsonSchema,
    RawSchema,
    Schema,
    SchemaMismatch,
    StringSchema,
)
from penstock.client.pulsar.table_view import TableView
from penstock.client.pulsar.why import Waits, Why

__all__ = [
    "AccessMode",
    "Batching",
    "BytesSchema",
    "Client",
    "ClientError",
    "Compression",
    "Consumer",
    "ConsumerStatistics",
    "DeadLetterPolicy",
    "Hashing",
    "InitialPosition",
    "InvalidUse",
    "JsonSchema",
    "Message",
    "MessageId",
    "NotPulsar",
    "NothingReceived",
    "Producer",
    "ProducerStatistics",
    "RawSchema",
    "Reader",
    "ReceivedMessage",
    "RedeliveryBackoff",
    "Refused",
    "Routing",
    "Schema",
    "SchemaMismatch",
    "StateError",
    "StringSchema",
    "SubscriptionType",
    "TableView",
    "TimedOut",
    "Unreachable",
    "Waits",
    "Why",
    "WouldBlock",
]
