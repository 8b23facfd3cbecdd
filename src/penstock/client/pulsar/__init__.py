"""A Pulsar client in pure Python, for Penstock and for Apache Pulsar 2.10 and later.

    from penstock.client.pulsar import Client

    with Client("pulsar://localhost:6650") as client:
        consumer = client.subscribe("orders", "billing")
        message = consumer.receive()
        consumer.acknowledge(message)

Plain names block and may be called from any thread; twins that end in ``_async`` are awaitable from
any event loop. Everything else in this package is an implementation detail.
"""

from penstock.client.pulsar.client import Client
from penstock.client.pulsar.errors import (
    ClientError,
    InvalidUse,
    Refused,
    StateError,
    TimedOut,
    Undecodable,
    Unreachable,
    WouldBlock,
)
from penstock.client.pulsar.message import Message, MessageId, ReceivedMessage

__all__ = [
    "Client",
    "ClientError",
    "InvalidUse",
    "Message",
    "MessageId",
    "ReceivedMessage",
    "Refused",
    "StateError",
    "TimedOut",
    "Undecodable",
    "Unreachable",
    "WouldBlock",
]
