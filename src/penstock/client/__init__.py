"""A RocketMQ client in pure Python, for Penstock and for Apache RocketMQ 4.9 and 5.x.

    from penstock.client import Message, Producer

    with Producer("127.0.0.1:9876", "orders") as producer:
        producer.send(Message("orders", b"hello"))

Plain names block and may be called from any thread; twins that end in ``_async`` are awaitable from
any event loop. Everything else in this package is an implementation detail.
"""

from penstock.client.admin import Admin
from penstock.client.admin_tables import (
    ClientConnection,
    GroupConnections,
    QueueProgress,
    QueueStats,
)
from penstock.client.consumer.hooks import ConsumeHook
from penstock.client.consumer.push_consumer import PushConsumer
from penstock.client.consumer.results import ConsumeResult, Finished, Later, ResultKind, Suspend
from penstock.client.consumer.statistics import ConsumerFigures, QueueFigures, TopicFigures
from penstock.client.errors import (
    Attempt,
    BodyUnreadable,
    BrokerBusy,
    BrokerRefused,
    ClientError,
    GroupTaken,
    InvalidMessage,
    NoRoute,
    SendFailed,
    StateError,
    TimedOut,
    Unreachable,
    WouldBlock,
)
from penstock.client.message import Message, ReceivedMessage, SendResult, SendStatus
from penstock.model.assignment import QueueRef

__all__ = [
    "Admin",
    "Attempt",
    "BodyUnreadable",
    "BrokerBusy",
    "BrokerRefused",
    "ClientConnection",
    "ClientError",
    "ConsumeHook",
    "ConsumeResult",
    "ConsumerFigures",
    "Finished",
    "GroupConnections",
    "GroupTaken",
    "InvalidMessage",
    "Later",
    "Message",
    "NoRoute",
    "PushConsumer",
    "QueueFigures",
    "QueueProgress",
    "QueueRef",
    "QueueStats",
    "ReceivedMessage",
    "ResultKind",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "StateError",
    "Suspend",
    "TimedOut",
    "TopicFigures",
    "Unreachable",
    "WouldBlock",
]
