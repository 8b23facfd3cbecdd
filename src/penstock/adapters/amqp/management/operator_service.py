"""What an operator does with messages: publish one, look at some.

A publish goes the way of every other, through a connection of its own that fails at once instead of
waiting: while an alarm is raised or a queue is full, it is refused with the reason. The answer
comes when the message is as safe as it asked to be.

``get`` takes messages as basic.get does and gives them back, or settles them, before anything else
happens, so nothing stays in flight. What is given back is flagged redelivered, as in RabbitMQ.

Bound: ``PENDING_MAX`` publishes wait for their answer.
Not here: JSON and HTTP (``server/management``).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from penstock.adapters.amqp.present import as_amqp
from penstock.adapters.amqp.topology.router import with_copies
from penstock.engine.connection import ConnectionOptions
from penstock.engine.ports import Publication
from penstock.engine.subscription.consumer import Consumer
from penstock.flow.demand import Unlimited
from penstock.model.ids import ConnectionId
from penstock.model.record import Record, Wire
from penstock.model.refusal import Refusal, RefusalKind
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods.method import short_bytes
from penstock.wire.amqp.origin import PublishHead, publish_record

if TYPE_CHECKING:
    from penstock.adapters.amqp.broker import AmqpBroker
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.vhost import VirtualHost
    from penstock.engine.connection import Channel
    from penstock.engine.pull import Pull, PullResult
    from penstock.engine.subscription.consumer import Delivery
    from penstock.flow.reason import Reason

CONNECTION_ID: Final = ConnectionId((1 << 62) + 1)
"""Far from those of sockets."""
PENDING_MAX: Final = 1000
GET_MAX: Final = 1000
"""Messages of one call."""
ACK_MODES: Final = (
    "ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false",
)  # fmt: skip

Answer = Callable[[Refusal | None], None]
"""Told None when the message is stored, else why not."""


class OperatorService:
    """Publishes and gets on behalf of an operator; one per broker, with a connection of its own."""

    def __init__(self, broker: AmqpBroker) -> None:
        self._broker = broker
        self._channel: Channel | None = None
        self._answers: dict[int, Answer] = {}
        self._last_token = 0

    def publish(
        self, vhost: VirtualHost, exchange: str, routing_key: str, *, content: tuple[bytes, bytes],
        answer: Answer,
    ) -> bool:  # fmt: skip
        """Publish (properties, body); False when there is no queue for it and nobody will answer.

        Raises ``AmqpError`` for an exchange that is not there or not open to publishers.
        """
        now_ms = self._broker.clock.wall_ms()
        head = PublishHead(
            exchange, routing_key, False, False, short_bytes(exchange) + short_bytes(routing_key)
        )
        record, keys = with_copies(head, publish_record(head, *content, now_ms), now_ms)
        route = vhost.router.route_all(exchange, keys)
        if route.is_empty or not route.targets(record):
            return False
        if len(self._answers) >= PENDING_MAX:
            answer(
                Refusal(RefusalKind.BUSY, "http", f"{PENDING_MAX} publishes wait; try again later")
            )
            return True
        self._last_token += 1
        self._answers[self._last_token] = answer
        self._open().publish([Publication(record, route=route, token=self._last_token)])
        return True

    def get(self, queue: AmqpQueue, count: int, mode: str) -> list[Delivery]:
        """Up to ``count`` messages, settled or given back as ``mode`` says."""
        if queue.is_exclusive:
            raise queue.locked()
        if mode not in ACK_MODES:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"ackmode {mode!r} is not known")
        subscription = queue.subscription
        consumer = subscription.attach(
            _NullOutlet(), Unlimited(), name="an operator's look", is_passive=True
        )
        if not isinstance(consumer, Consumer):
            raise AmqpError(ReplyCode.NOT_ALLOWED, consumer.text)
        queue.touch()
        try:
            taken = subscription.take(consumer, min(count, GET_MAX))
            again = sum([each.is_redelivered for each in taken])
            queue.counters.got(len(taken), again, is_no_ack=mode == "ack_requeue_false")
            for queue_id, same in groupby(taken, attrgetter("queue_id")):
                # All of a batch: what is settled in part comes back as a whole.
                offsets = [
                    each.offset + number for each in same for number in range(each.record.messages)
                ]
                if mode.endswith("requeue_true"):
                    subscription.requeue(queue_id, offsets, count=False)
                elif mode.startswith("ack"):
                    subscription.settle(queue_id, offsets)
                else:
                    subscription.reject(queue_id, offsets)
        finally:
            subscription.detach(consumer)
        return taken

    def presented(self, queue: AmqpQueue, delivery: Delivery) -> Record:
        """A message as an AMQP client would see it."""
        record = delivery.record
        if record.shape.wire == Wire.AMQP:
            return record
        engine = self._broker.engine
        bytes_max = self._broker.all_settings.topics.message_bytes_max
        reader, unopened = engine.facts.get(record.wire), engine.batches.why_unopened(record)
        return as_amqp(record, queue.name, reader=reader, bytes_max=bytes_max, unopened=unopened)

    def _open(self) -> Channel:
        if self._channel is None:
            options = ConnectionOptions(pending_publishes_max=0, is_fast_failing=True)
            connection = self._broker.engine.connect(CONNECTION_ID, self, "amqp-http", options)
            self._channel = connection.open_channel("1")
        return self._channel

    # Callbacks of the engine.

    def confirmed(self, _channel: Channel, confirmations: list[Publication]) -> None:
        for each in confirmations:
            self._answer(each.token, None)

    def refused(self, _channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        for token, refusal in refusals:
            self._answer(token, refusal)

    def _answer(self, token: int, refusal: Refusal | None) -> None:
        answer = self._answers.pop(token, None)
        if answer is not None:
            answer(refusal)

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        """There is no socket to stop."""

    def answered(self, pull: Pull, result: PullResult) -> None: ...


class _NullOutlet:
    """The outlet of a consumer that is gone before anything could be delivered to it."""

    def deliver(self, consumer: Any, deliveries: Any) -> None: ...

    def cancelled(self, consumer: Any, cause: str) -> None: ...

    def active_changed(self, consumer: Any, is_active: bool) -> None: ...
