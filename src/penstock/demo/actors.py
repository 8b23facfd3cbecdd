"""The actors of a scene: a publisher and a consumer that speak to the engine in-process.

They keep to the manners of a real client behind a socket: a publisher sends nothing while its
connection is not read, a consumer settles what it was handed, in the next round of the loop. Until
a protocol's own client is there to play the part, this is as real as it gets without one.
"""

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from penstock.cli.remoting import RemotingClient, RemotingResponse
from penstock.demo.steady import Growth, Pace
from penstock.engine.connection import Channel, ConnectionOptions
from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import Confirmation, Publication
from penstock.engine.pull import Pull, PullResult
from penstock.engine.subscription.consumer import Consumer, Delivery
from penstock.engine.topic import DirectRoute, Topic
from penstock.flow.demand import Window
from penstock.flow.reason import Reason
from penstock.model.ids import ConnectionId
from penstock.model.record import neutral_record
from penstock.model.refusal import Refusal
from penstock.server.lifecycle import Broker
from penstock.wire.rocketmq.codes import ResponseCode

_connection_ids = itertools.count(1 << 40)
"""Far from the numbers that listeners give."""


class Actor:
    """What both have: a connection, and ears that ignore what does not concern them."""

    def __init__(self, broker: Broker, name: str, options: ConnectionOptions | None = None) -> None:
        self.name = name
        self.broker = broker
        self.connection = broker.engine.connect(
            ConnectionId(next(_connection_ids)), self, name, options
        )
        self.gates: list[str] = []
        """Every set of reasons its connection was held for, as text."""

    def leave(self) -> None:
        self.connection.close()
        self.broker.wake()

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None: ...

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        """Publishes were not stored."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...

    def cancelled(self, consumer: Consumer, cause: str) -> None: ...

    def active_changed(self, consumer: Consumer, is_active: bool) -> None: ...

    def gate_changed(self, is_open: bool, reasons: dict[Reason, str]) -> None:
        if not is_open:
            self.gates.append(", ".join(sorted(reason.value for reason in reasons)))

    def answered(self, pull: Pull, result: PullResult) -> None: ...


class EnginePublisher(Actor):
    """Publishes numbered messages at a steady pace, as far as the broker lets it."""

    def __init__(
        self, broker: Broker, name: str, topic: Topic, *, per_second: int, is_fast_failing: bool
    ) -> None:
        super().__init__(broker, name, ConnectionOptions(is_fast_failing=is_fast_failing))
        self.channel = self.connection.open_channel()
        self.sent = 0
        self.confirmed_numbers: set[int] = set()
        self.refusals: list[Refusal] = []
        self.is_stopped = False
        self._route = DirectRoute(topic.queues[0])
        self._is_fast_failing = is_fast_failing
        self._stored_growth: Final = Growth()
        self._refused_growth: Final = Growth()
        self._task = asyncio.create_task(self._publish(Pace(per_second)))

    @property
    def outstanding(self) -> int:
        """Sent and neither confirmed nor refused."""
        return self.sent - len(self.confirmed_numbers) - len(self.refusals)

    def stop(self) -> None:
        """Send nothing more; answers still come."""
        self.is_stopped = True

    def leave(self) -> None:
        self._task.cancel()
        super().leave()

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        rate = self._stored_growth.of(len(self.confirmed_numbers)) / seconds
        refused = self._refused_growth.of(len(self.refusals))
        text = f"{self.name} {rate:6,.0f}/s"
        return text + (f" refused {refused}" if self._is_fast_failing else "")

    def confirmed(self, channel: Channel, confirmations: list[Confirmation]) -> None:
        del channel
        self.confirmed_numbers.update(each.token for each in confirmations)

    def refused(self, channel: Channel, refusals: list[tuple[int, Refusal]]) -> None:
        del channel
        self.refusals += [refusal for _, refusal in refusals]

    async def _publish(self, pace: Pace) -> None:
        while True:
            share = await pace.next_share()
            if self.is_stopped:
                return
            if self._is_fast_failing:
                refusal = self.broker.engine.refuse_now()
                if refusal is not None:
                    self.sent += share
                    self.refusals += [refusal] * share
                    continue
            if self.connection.may_read:
                self._send(share)

    def _send(self, count: int) -> None:
        first = self.sent + 1
        self.sent += count
        self.channel.publish(
            [
                Publication(
                    neutral_record(b"%s %d" % (self.name.encode(), number)),
                    route=self._route,
                    token=number,
                )
                for number in range(first, first + count)
            ]
        )
        self.broker.wake()


class EngineConsumer(Actor):
    """Takes messages with a window and settles them at once."""

    def __init__(self, broker: Broker, name: str, topic: Topic, *, prefetch: int) -> None:
        super().__init__(broker, name)
        self.bodies: list[bytes] = []
        self._growth: Final = Growth()
        self.subscription = broker.engine.create_subscription(
            topic.name, name, SubscriptionOptions()
        )
        self._consumer = self.subscription.attach(self, Window(prefetch), name=name)
        broker.wake()

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        rate = self._growth.of(len(self.bodies)) / seconds
        return f"{self.name} {rate:6,.0f}/s"

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Take them, and settle them when the turn is over."""
        self.bodies += [delivery.record.body for delivery in deliveries]
        asyncio.get_running_loop().call_soon(self._settle, consumer, deliveries)

    def _settle(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        if consumer.unsent.sent_all():
            consumer.wake()
        for queue_id in {delivery.queue_id for delivery in deliveries}:
            offsets = [each.offset for each in deliveries if each.queue_id == queue_id]
            self.subscription.settle(queue_id, offsets)
        self.broker.wake()


# ---- remote actors ------------------------------------------------------------------------------
# Actors of a scene that speak RocketMQ over a real socket, from threads of their own.
#
# A sender sends at a steady pace whatever the broker answers, as an asynchronous producer does, and
# keeps what it was told: stored, or busy with which words. Nothing is sent a second time.


ANSWERS_SECONDS_MAX: Final = 6.0
"""How long a stopped sender waits for what is still under way."""


class SteadySender:
    """Sends so many messages a second and counts the answers."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], RemotingClient],
        topic: str,
        *,
        per_second: int,
        body_bytes: int,
    ) -> None:
        self.name = name
        self.sent = 0
        self.stored = 0
        self.busy: Counter[str] = Counter()
        """The word in brackets of a busy answer -> how often."""
        self.remarks: dict[str, str] = {}
        """One whole remark for each such word."""
        self.other: list[RemotingResponse] = []
        self.slowest_busy_ms = 0.0
        """The longest that a busy answer took from its send."""
        self._connect = connect
        self._topic = topic
        self._pause = 1 / per_second
        self._body = b"x" * body_bytes
        self._open: dict[int, float] = {}
        self._is_stopped = False
        self._stored_growth: Final = Growth()
        self._busy_growth: Final = Growth()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def refused(self) -> int:
        """Busy answers of all kinds."""
        return sum(self.busy.values())

    @property
    def outstanding(self) -> int:
        """Sent and not answered yet."""
        return len(self._open)

    def stop(self) -> None:
        """Send nothing more and take the answers that are still to come; blocks."""
        self._is_stopped = True
        self._thread.join(ANSWERS_SECONDS_MAX + 1)

    def leave(self) -> None:
        """The same, without waiting."""
        self._is_stopped = True

    def figures(self, seconds: float) -> str:
        """Its part of a ticker line."""
        rate = self._stored_growth.of(self.stored) / seconds
        return f"{self.name} {rate:6,.0f}/s stored, {self._busy_growth.of(self.refused)} busy"

    def _run(self) -> None:
        client = self._connect()
        try:
            due = time.monotonic()
            while not self._is_stopped:
                opaque = client.start_send(self._topic, self._body)
                self._open[opaque] = time.monotonic()
                self.sent += 1
                self._hear(client)
                due += self._pause
                time.sleep(max(0.0, due - time.monotonic()))
            until = time.monotonic() + ANSWERS_SECONDS_MAX
            while self._open and time.monotonic() < until:
                self._hear(client)
                time.sleep(0.005)
        except ConnectionError:
            return  # the scene is over

    def _hear(self, client: RemotingClient) -> None:
        for opaque, answer in client.take_answers(list(self._open)).items():
            waited_ms = (time.monotonic() - self._open.pop(opaque)) * 1000
            if answer.is_ok:
                self.stored += 1
            elif answer.code == ResponseCode.SYSTEM_BUSY:
                word = answer.remark.partition("]")[0].lstrip("[")
                self.busy[word] += 1
                self.remarks.setdefault(word, answer.remark)
                self.slowest_busy_ms = max(self.slowest_busy_ms, waited_ms)
            else:
                self.other.append(answer)
