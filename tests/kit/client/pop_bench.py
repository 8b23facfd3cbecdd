"""Pop mode between a broker and a listener of a test's own: no network, no threads.

bench = PopBench()
await bench.pop(found(b"a"))
bench.listening.consume()
assert bench.broker.settled == [10]
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from penstock.client.consumer.executor import (
    Answer,
    ConsumeExecutor,
    ConsumeRequest,
    Finished,
    ResultKind,
    Running,
)
from penstock.client.consumer.pop import PopMode, PopSettings
from penstock.client.consumer.pop_settling import PopProcessQueue
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.subscription import FilterHook, Subscriptions
from penstock.client.errors import BrokerRefused
from penstock.client.requests import BrokerRequests, Popped
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.bodies import BatchAckBody
from penstock.wire.rocketmq.headers import (
    AckHeader,
    ChangeInvisibleAnswer,
    ChangeInvisibleHeader,
    PopAnswer,
    PopHeader,
    SendBackHeader,
)
from penstock.wire.rocketmq.stored import StoredMessage, encode_stored

PLACE = QueueRef("t", "b", -1)


class PopConsumerFake:
    """What pop mode needs of a push consumer."""

    def __init__(self, tags: str = "*") -> None:
        self.group = "g"
        self.manual_clock = ManualClock()
        self.clock: Clock = self.manual_clock
        self.subscriptions = Subscriptions(self.clock.wall_ms)
        self.subscriptions.add("t", tags=tags)
        self.statistics = ConsumerStatistics()
        self.filters: Sequence[FilterHook] = ()
        self.is_paused = False


class PopBroker:
    """Answers pops from a list, or makes them wait; remembers everything else."""

    def __init__(self) -> None:
        self.answers: list[Popped | Exception] = []
        self.pops: list[PopHeader] = []
        self.acks: list[AckHeader] = []
        self.batches: list[BatchAckBody] = []
        self.changes: list[ChangeInvisibleHeader] = []
        self.sent_back: list[SendBackHeader] = []
        self.refuses_batches = False
        self.held: asyncio.Future[Popped] | None = None

    async def master_of(self, queue: QueueRef) -> str:
        """An address."""
        return f"address-of-{queue.broker}"

    async def pop(self, address: str, header: PopHeader, *, timeout_ms: int) -> Popped:
        """The next answer; without one it waits."""
        self.pops.append(header)
        if not self.answers:
            self.held = asyncio.get_running_loop().create_future()
            return await self.held
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ack(self, address: str, header: AckHeader) -> None:
        """Remember it."""
        self.acks.append(header)

    async def batch_ack(self, address: str, body: BatchAckBody) -> None:
        """Remember it, or know nothing of it."""
        if self.refuses_batches:
            raise BrokerRefused(3, "request type 200151 not supported", address)
        self.batches.append(body)

    async def change_invisible(
        self, address: str, header: ChangeInvisibleHeader
    ) -> ChangeInvisibleAnswer:
        """Remember it; a new receipt."""
        self.changes.append(header)
        return ChangeInvisibleAnswer(
            pop_time=2000, invisible_time=header.invisible_time, revive_qid=7
        )

    async def send_back(self, address: str, header: SendBackHeader) -> None:
        """Remember it."""
        self.sent_back.append(header)

    @property
    def settled(self) -> list[int]:
        """Offsets acknowledged so far, in both ways."""
        shared = [offset for body in self.batches for ack in body.acks for offset in ack.offsets()]
        return sorted(shared + [each.offset for each in self.acks])


class ManualExecutor:
    """Keeps works until the test consumes them."""

    def __init__(self) -> None:
        self.works: list[ConsumeRequest] = []

    def start(self) -> None:
        """Nothing to start."""

    async def stop(self, wait_ms: int) -> bool:
        """Nothing to stop."""
        return True

    def current_call(self) -> Running | None:
        """Nobody."""
        return None

    def running(self) -> list[Running]:
        """No call lasts."""
        return []

    def submit(self, work: ConsumeRequest) -> None:
        """Keep it."""
        self.works.append(work)

    def consume(
        self,
        answer: Answer = None,
        *,
        error: BaseException | None = None,
        batches: int | None = None,
    ) -> list[bytes]:
        """Call the listener for what waits now; a list of bodies."""
        seen: list[bytes] = []
        for work in list(self.works):
            while work.batches and batches != 0:
                batch = work.batches.popleft()
                seen += [message.body for message in batch]
                kind = ResultKind.SUCCESS if answer is None and not error else ResultKind.LATER
                work.done(work, [Finished(batch, answer, error, kind, 1.0)])
                batches = None if batches is None else batches - 1
        self.works = [work for work in self.works if work.batches]
        return seen


def found(
    *bodies: bytes,
    queue: int = 0,
    start: int = 10,
    invisible_ms: int = 60_000,
    topic: str = "t",
    revive: int = 3,
    **more: Any,
) -> Popped:
    """The answer to a pop that found these messages, at offsets from ``start`` on."""
    flag = 1 if topic.startswith("%RETRY%") else 0
    stored = [
        StoredMessage(topic=topic, body=body, queue_id=queue, queue_offset=start + n, **more)
        for n, body in enumerate(bodies)
    ]
    header = PopAnswer(
        pop_time=1000,
        invisible_time=invisible_ms,
        revive_qid=revive,
        start_offset_info=f"{flag} {queue} {start}",
        msg_offset_info=f"{flag} {queue} " + ",".join(str(start + n) for n in range(len(bodies))),
    )
    return Popped(0, header, b"".join(map(encode_stored, stored)))


def nothing(code: int = 19) -> Popped:
    """The answer to a pop that found nothing."""
    return Popped(code, None, b"")


async def turns(count: int = 20) -> None:
    """Let everything that can run, run."""
    for _ in range(count):
        await asyncio.sleep(0)


class PopBench:
    """Pop mode between a broker and a listener."""

    def __init__(
        self, *, tags: str = "*", terms: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self.consumer = PopConsumerFake(tags)
        self.clock = self.consumer.manual_clock
        self.broker = PopBroker()
        self.executor = ManualExecutor()
        self.mode = PopMode(
            self.consumer,
            cast("BrokerRequests", self.broker),
            cast("ConsumeExecutor", self.executor),
            PopSettings(**(terms or {})),
            **more,
        )

    async def pop(self, *answers: Popped | Exception) -> None:
        """Answer pops, one after the other."""
        self.broker.answers += answers
        if not self.mode.queues():
            self.mode.retain("t", [PLACE])
        elif self.broker.held is not None and not self.broker.held.done():
            answer = self.broker.answers.pop(0)
            assert isinstance(answer, Popped)
            self.broker.held.set_result(answer)
        await turns()

    @property
    def place(self) -> PopProcessQueue:
        """Where it pops from."""
        return self.mode.queues()[PLACE]
