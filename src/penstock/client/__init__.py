"""A RocketMQ client in pure Python, for Penstock and for Apache RocketMQ 4.9 and 5.x.

    from penstock.client import Message, Producer

    with Producer("127.0.0.1:9876", "orders") as producer:
        producer.send(Message("orders", b"hello"))

Plain names block and may be called from any thread; twins that end in ``_async`` are awaitable from
any event loop. Everything else in this package is an implementation detail.
"""

from penstock.client.admin import (
    Admin,
    ClientConnection,
    GroupConnections,
    QueueProgress,
    QueueStats,
)
from penstock.client.consumer.executor import (
    ConsumeHook,
    ConsumeResult,
    Finished,
    Later,
    ResultKind,
    Suspend,
)
from penstock.client.consumer.lite_pull_consumer import LitePullConsumer
from penstock.client.consumer.lite_reader import LiteFigures, LiteQueueFigures
from penstock.client.consumer.pull_consumer import PullConsumer
from penstock.client.consumer.pulling import PullResult, PullStatus
from penstock.client.consumer.push_consumer import PushConsumer
from penstock.client.consumer.statistics import (
    ConsumerFigures,
    PopFigures,
    QueueFigures,
    TopicFigures,
)
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
from penstock.client.producer.encoding import split_batch
from penstock.client.producer.hooks import (
    EndContext,
    SendContext,
    SendHook,
    SendKind,
    TransactionState,
)
from penstock.client.producer.producer import Producer
from penstock.client.producer.sender import ProducerStatistics
from penstock.client.producer.transaction import TransactionResult
from penstock.client.states import State
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
    "EndContext",
    "Finished",
    "GroupConnections",
    "GroupTaken",
    "InvalidMessage",
    "Later",
    "LiteFigures",
    "LitePullConsumer",
    "LiteQueueFigures",
    "Message",
    "NoRoute",
    "PopFigures",
    "Producer",
    "ProducerStatistics",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueFigures",
    "QueueProgress",
    "QueueRef",
    "QueueStats",
    "ReceivedMessage",
    "ResultKind",
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendKind",
    "SendResult",
    "SendStatus",
    "State",
    "StateError",
    "Suspend",
    "TimedOut",
    "TopicFigures",
    "TransactionResult",
    "TransactionState",
    "Unreachable",
    "WouldBlock",
    "split_batch",
]
