"""RocketMQ's broker on a workbench: sessions fed with bytes, time by hand, plugs to pull.

    bench = RocketmqBench()
    client = bench.client()
    answer = client.send("orders", b"body", KEYS="k1")
    bench.advance(10_000)               # engine and house alike
    bench.kill()                        # clients are gone, the log is not

What a client is told without asking (checks, notices) is in ``client.told``.

Not here: sockets (``tests/interop``).
"""

from __future__ import annotations

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.broker import House
from penstock.adapters.rocketmq.connection import Session
from penstock.adapters.rocketmq.factory import HANDLERS, open_house
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId
from penstock.testing.workbench import TURNS_MAX, Workbench
from penstock.wire.rocketmq.bodies import HeartbeatData, ProducerData, encode_body
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.frames import RemotingFrames, decode, encode
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import StoredMessage, decode_stored

BROKER_PORT = 10911


class RocketmqBench(Workbench):
    """A workbench with a house on it."""

    house: House

    def _open(self) -> None:
        super()._open()
        self.house = open_house(self.engine, self.clock, self.settings, broker_port=BROKER_PORT)

    def client(self) -> BenchClient:
        """A new connection."""
        self._connections += 1
        return BenchClient(self, self._connections)

    def stored(self, topic: str, queue: int = 0) -> list[StoredMessage]:
        """The messages that a queue of a topic shows, as they lie in the log."""
        place = self.house.topics.find(topic)
        if place is None:
            return []
        return [decode_stored(each.origin)[0] for each in self.records(place.topic, queue)]

    def advance(self, ms: int) -> None:
        """Let time pass; whatever falls due on the way is done and made durable."""
        self.settle()
        end_ms = self.clock.monotonic_ms() + ms
        for _ in range(TURNS_MAX):
            times = (self.engine.next_deadline_ms(), self.house.timers.next_deadline_ms())
            due_ms = min([each for each in times if each is not None], default=end_ms)
            now_ms = self.clock.monotonic_ms()
            self.clock.advance(max(0, min(due_ms, end_ms) - now_ms))
            now_ms = self.clock.monotonic_ms()
            self.house.timers.due(now_ms)
            self.engine.turn()
            self.settle()
            if due_ms >= end_ms:
                return
        raise InvariantBroken(f"more than {TURNS_MAX} deadlines within {ms} ms")


class BenchClient:
    """A client that speaks through memory."""

    def __init__(self, bench: RocketmqBench, number: int) -> None:
        self._bench = bench
        self._frames = RemotingFrames()
        self._opaque = 0
        self._heard: list[Command] = []
        peer = Peer("127.0.0.1", 50_000 + number, "127.0.0.1", BROKER_PORT)
        self.session = Session(ConnectionId(number), peer, bench.house, HANDLERS, lambda: None)

    def write(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        is_oneway: bool = False,
        version: int = 479,
    ) -> int:
        """Send a request and do not wait; its opaque."""
        self._opaque += 1
        flag = FLAG_ONEWAY if is_oneway else 0
        command = Command(int(code), ext or {}, body, self._opaque, flag, version=version)
        self.session.receive(encode(command))
        return self._opaque

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, version: int = 479
    ) -> Command:
        """Send a request and let the broker come to rest; its answer."""
        opaque = self.write(code, ext, body, version=version)
        self._bench.settle()
        found = [each for each in self._hear() if each.is_response and each.opaque == opaque]
        if len(found) != 1:
            raise InvariantBroken(f"request {code} has {len(found)} answers")
        self._heard.remove(found[0])
        return found[0]

    def send(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        queue: int = 0,
        group: str = "producers",
        header: dict[str, str] | None = None,
        version: int = 479,
        **properties: str,
    ) -> Command:
        """SEND_MESSAGE; the answer."""
        ext = {
            "producerGroup": group,
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(queue),
            "bornTimestamp": str(self._bench.clock.wall_ms()),
            "properties": format_properties(properties).decode(),
            **(header or {}),
        }
        return self.ask(RequestCode.SEND_MESSAGE, ext, body, version=version)

    def join_producers(self, group: str = "producers") -> None:
        """Become, or stay, a member of a producer group: a heartbeat."""
        data = HeartbeatData(
            client_id=f"client-{self.session.connection_id}",
            producer_data_set=[ProducerData(group_name=group)],
        )
        self.ask(RequestCode.HEART_BEAT, body=encode_body(data))

    def close(self) -> None:
        """Go."""
        self.session.closed("test")

    @property
    def told(self) -> list[Command]:
        """What the broker asked or said by itself so far."""
        return [each for each in self._hear() if not each.is_response]

    def _hear(self) -> list[Command]:
        for data in self.session.outgoing():
            self._frames.feed(data)
        self._heard += [decode(frame) for frame in self._frames.frames()]
        return self._heard
