"""A producer's sender on a bench: a network that answers when the test says so, time by hand.

    bench = ProducerBench("a", "b")          # inside a running event loop
    bench.send()
    bench.network.next().answer(2, "busy")
    bench.ended                              # results and errors, in order

Not here: sockets and threads (``tests/interop/client``).
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from penstock.client.connection import Done, Network
from penstock.client.errors import ClientError, NoRoute
from penstock.client.instance import ClientInstance
from penstock.client.message import Message
from penstock.client.producer.encoding import Encoder
from penstock.client.producer.hooks import SendHook
from penstock.client.producer.selection import LatencyFaultTolerance, RoundRobin
from penstock.client.producer.send import Outcome, Send
from penstock.client.producer.sender import InFlight, RetryPolicy, Sender
from penstock.client.routes import Route, RouteCache
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.bodies import BrokerData, QueueData, TopicRouteData
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frames import decode, send_of
from penstock.wire.rocketmq.message_id import UniqueKeys

STORED: Final = (0, 10, 11, 12)
OFFSET_ID: Final = f"7F0000010000000A{9:016X}"


class HeardSend(Send, kw_only=True):
    """Calls a function with the end."""

    hear: Callable[[Outcome], object]
    is_cancelled: bool = False

    def done(self, outcome: Outcome) -> None:
        """It is over."""
        self.hear(outcome)


class HeldRequest:
    """A request that waits for the test's answer."""

    def __init__(self, address: str, frame: bytes, timeout_ms: int, done: Done) -> None:
        self.address = address
        self.send = send_of(decode(frame))
        self.queue = self.send.header.queue_id
        self.timeout_ms = timeout_ms
        self._done = done

    def answer(
        self, code: int = 0, remark: str | None = None, *, ext: dict[str, str] | None = None
    ) -> None:
        """The broker says something; ``ext`` of a stored message is made up."""
        if ext is None:
            stored = {"msgId": OFFSET_ID, "queueId": str(self.queue), "queueOffset": "4"}
            ext = stored if code in STORED else {}
        self._done(Command(code, ext, remark=remark))

    def fail(self, error: ClientError) -> None:
        """It did not get through."""
        self._done(error)


class HeldNetwork:
    """Keeps requests until the test answers them."""

    is_signing = False

    def __init__(self) -> None:
        self.requests: list[HeldRequest] = []
        self.oneways: list[tuple[str, Command]] = []
        self._opaque = 0

    def next_opaque(self) -> int:
        """As a network does."""
        self._opaque += 1
        return self._opaque

    def start_frame(
        self, address: str, opaque: int, frame: bytes, timeout_ms: int, done: Done
    ) -> None:
        """As a network does; ``opaque`` is in the frame."""
        self.requests.append(HeldRequest(address, frame, timeout_ms, done))

    def oneway_frame(self, address: str, frame: bytes) -> None:
        """As a network does."""
        self.oneways.append((address, decode(frame)))

    def next(self) -> HeldRequest:
        """The request that waits longest."""
        return self.requests.pop(0)


class HandRoutes:
    """Routes of two brokers for every topic but those that begin with ``no``."""

    def __init__(self) -> None:
        self.known: dict[str, Route] = {}
        self.asked: list[tuple[str, int]] = []
        self.refreshed: list[str] = []
        self.can_answer = asyncio.Event()
        self.can_answer.set()

    def get(self, topic: str) -> Route | None:
        """What is known."""
        return self.known.get(topic)

    def address(self, broker: str, broker_id: int = 0) -> str | None:
        """Every broker has one."""
        return f"{broker}:{1 + broker_id}"

    async def look_up(self, topic: str, *, default_queues: int = 0) -> Route:
        """As soon as ``can_answer`` is set."""
        self.asked.append((topic, default_queues))
        await self.can_answer.wait()
        if topic.startswith("no"):
            raise NoRoute(topic)
        self.known[topic] = made_route(topic, "a", "b")
        return self.known[topic]

    async def refresh(self, topics: list[str]) -> None:
        """Only noted."""
        self.refreshed += topics


def made_route(topic: str, *brokers: str, queues: int = 2) -> Route:
    """A topic with so many queues on each of these brokers."""
    return Route(
        topic,
        TopicRouteData(
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=6)
                for name in brokers
            ],
            broker_datas=[
                BrokerData(cluster="c", broker_name=name, broker_addrs={"0": f"{name}:1"})
                for name in brokers
            ],
        ),
    )


class ProducerBench:
    """What a sender needs, and what it did; topic ``t`` is known."""

    def __init__(
        self,
        *brokers: str,
        rule: RetryPolicy | None = None,
        messages_max: int = 10,
        faults: LatencyFaultTolerance | None = None,
        hooks: tuple[SendHook, ...] = (),
        try_timeout_ms: int = 0,
        auto_create_queues: int = 4,
    ) -> None:
        self.clock: Final = ManualClock()
        self.held: Final = HeldNetwork()
        self.hand_routes: Final = HandRoutes()
        self.hand_routes.known["t"] = made_route("t", *(brokers or ("a", "b")))
        self.heartbeats = 0
        self.ended: list[Outcome] = []
        self.in_flight: Final = InFlight("g", messages_max, 1000, self.clock)
        self.encoder: Final = Encoder("g", UniqueKeys("10.0.0.1", 7, self.clock), self.clock)
        self.sender: Final = Sender(
            cast("ClientInstance", self),
            "g",
            rule or RetryPolicy(retries=2),
            self.in_flight,
            RoundRobin(lambda: 0, faults),
            faults=faults,
            hooks=hooks,
            try_timeout_ms=try_timeout_ms,
            auto_create_queues=auto_create_queues,
        )

    @property
    def network(self) -> Network:
        """What the sender is given for a network."""
        return cast("Network", self.held)

    @property
    def routes(self) -> RouteCache:
        """What the sender is given for routes."""
        return cast("RouteCache", self.hand_routes)

    def heartbeat_now(self) -> None:
        """Counted."""
        self.heartbeats += 1

    def made(self, message: Message | None = None, *, timeout_ms: int = 3000) -> Send:
        """A send that has not begun."""
        if message is None:
            message = Message("t", b"x")
        encoded = self.encoder.encode(message)
        now_ms = self.clock.monotonic_ms()
        return HeardSend(
            message, encoded, now_ms, timeout_ms, now_ms + timeout_ms, hear=self.ended.append
        )

    def send(self, message: Message | None = None, *, timeout_ms: int = 3000) -> Send:
        """Begin a send that needs no permit."""
        send = self.made(message, timeout_ms=timeout_ms)
        self.sender.begin(send)
        return send

    def enter(self, message: Message | None = None, *, timeout_ms: int = 3000) -> Send:
        """Begin a send that needs a permit, or let it wait."""
        send = self.made(message, timeout_ms=timeout_ms)
        if self.in_flight.take_or_wait(send, send.encoded.size_bytes):
            send.has_permit = True
            self.sender.begin(send)
        else:
            self.sender.start_timer()
        return send

    async def settle(self) -> None:
        """Let everything that is ready run."""
        for _ in range(5):
            await asyncio.sleep(0)
