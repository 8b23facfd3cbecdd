"""What a running producer consists of, put together from its options.

Made on the client's thread when the producer starts, gone when it stops; the facade holds one.

Not here: the producer's states and its public methods (``producer.py``).
"""

import asyncio
import os
import secrets
from typing import Final

from penstock.client.identity import local_ip
from penstock.client.instance import ClientInstance
from penstock.client.loop import LoopThread
from penstock.client.message import Message, SendResult
from penstock.client.producer.attempts import RetryRule
from penstock.client.producer.counts import ProducerStatistics
from penstock.client.producer.encoding import Encoder
from penstock.client.producer.handing_back import AwaitedSend, CallbackThread
from penstock.client.producer.hooks import SendHook
from penstock.client.producer.in_flight import InFlight
from penstock.client.producer.latency import FaultTable
from penstock.client.producer.producer_options import ProducerOptions
from penstock.client.producer.selection import QueueTurns
from penstock.client.producer.send import Send
from penstock.client.producer.sending import Sender
from penstock.client.producer.tracing import SendTrace
from penstock.client.producer.transaction import Check, Transactions
from penstock.client.trace import Trace
from penstock.flow.reason import Reason
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import CheckTransactionHeader
from penstock.wire.rocketmq.message_id import UniqueKeys, encode_host
from penstock.wire.rocketmq.stored import StoredMessage

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""Front of the group that trace messages are sent from."""


class Machinery:
    """The parts of one running producer; what the client instance knows as its member."""

    def __init__(
        self,
        group: str,
        options: ProducerOptions,
        shared: ClientInstance,
        thread: LoopThread,
        check: Check | None,
    ) -> None:
        self.group: Final = group
        self.options: Final = options
        self.shared: Final = shared
        self.thread: Final = thread
        self.clock: Final = shared.clock
        self.keys: Final = UniqueKeys(
            _ip_of(shared.client_id), os.getpid(), self.clock, salt=secrets.randbits(32)
        )
        self.encoder: Final = self._encoder(group)
        self.faults: Final = FaultTable() if options["send_latency_fault"] else None
        self.in_flight: Final = InFlight(
            group, options["in_flight_messages_max"], options["in_flight_bytes_max"], self.clock
        )
        self.trace: Final = self._trace() if options["trace"] else None
        hooks: list[SendHook] = list(options["hooks"])
        if self.trace is not None:
            hooks.append(SendTrace(self.trace))
        self.sender: Final = Sender(
            shared,
            group,
            RetryRule(
                retries=options["retries"],
                retry_on_busy=options["retry_on_busy"],
                retry_when_not_store_ok=options["retry_another_broker_when_not_store_ok"],
            ),
            self.in_flight,
            QueueTurns(lambda: secrets.randbits(31), self.faults),
            faults=self.faults,
            hooks=hooks,
            try_timeout_ms=options["try_timeout_ms"],
            tries_max=1 + options["retries"],
            auto_create_queues=options["auto_create_queues"],
        )
        self.transactions: Final = Transactions(
            group,
            shared.calls,
            shared.routes,
            thread,
            check=check,
            hooks=hooks,
            threads=options["check_threads"],
            waiting_max=options["checks_waiting_max"],
        )
        self.callbacks: Final = CallbackThread(group, self._give_back, thread.loop.call_soon)

    def topics(self) -> set[str]:
        """Topics whose routes are kept fresh."""
        return set(self.sender.topics)

    def check_transaction(
        self, address: str, header: CheckTransactionHeader, message: StoredMessage
    ) -> None:
        """A broker asks what became of a half message."""
        self.transactions.check(address, header, message)

    async def stop(self) -> None:
        """End what is under way, within the time for it; on the client's thread."""
        await self.sender.stop(self.options["stop_timeout_ms"])
        if self.trace is not None:
            await self.trace.stop()
        if self.sender.counts.oneway:
            # What nobody answers may still wait for its connection; an answer to something sent
            # after it says that it arrived.
            await self.shared.heartbeat()
        self.sender.close()
        self.transactions.stop()

    def statistics(self) -> ProducerStatistics:
        """How it does now; from any thread."""
        counts, in_flight, now_ms = self.sender.counts, self.in_flight, self.clock.monotonic_ms()
        since_ms = in_flight.waits_since_ms
        return ProducerStatistics(
            group=self.group,
            sent=counts.sent,
            degraded=counts.degraded,
            failed=counts.failed,
            busy=counts.busy,
            oneway=counts.oneway,
            retried=counts.retried,
            in_flight_messages=in_flight.messages,
            in_flight_messages_max=self.options["in_flight_messages_max"],
            in_flight_bytes=in_flight.bytes,
            in_flight_bytes_max=self.options["in_flight_bytes_max"],
            waiting=in_flight.waiting,
            waiting_ms=0 if since_ms is None else now_ms - since_ms,
            waiting_for=in_flight.full,
            held_episodes=in_flight.episodes.count(Reason.PENDING),
            held_share=in_flight.episodes.share(now_ms),
            isolated={} if self.faults is None else self.faults.isolated(now_ms),
        )

    def _give_back(self, send: Send) -> None:
        """The callback of a send begins: its permit is free; on the callback thread."""
        if not send.has_permit:
            return
        send.has_permit = False
        admitted = self.in_flight.give(send.encoded.size_bytes)
        if admitted:
            self.thread.post(self.sender.admission.admit, admitted)

    def _encoder(self, group: str) -> Encoder:
        return Encoder(
            group,
            self.keys,
            self.clock,
            compress_bytes_min=self.options["compress_bytes_min"],
            compress_level=self.options["compress_level"],
            auto_create_queues=self.options["auto_create_queues"],
        )

    def _trace(self) -> Trace:
        encoder = self._encoder(f"{TRACE_GROUP}-{self.group}")

        async def send_trace(message: Message) -> SendResult:
            future: asyncio.Future[SendResult] = self.thread.loop.create_future()
            now_ms, timeout_ms = self.clock.monotonic_ms(), self.options["send_timeout_ms"]
            send = AwaitedSend(
                message, encoder.encode(message), now_ms, timeout_ms, now_ms + timeout_ms,
                is_unseen=True, future=future,
            )  # fmt: skip
            self.sender.begin(send)
            return await future

        return Trace(
            send_trace,
            topic=self.options["trace_topic"],
            records_max=self.options["trace_batch_max"],
        )


def _ip_of(client_id: str) -> str:
    """The address in a client id; there may be any text in its place (option ``client_ip``)."""
    text = client_id.partition("@")[0]
    try:
        encode_host(text, 0)
    except Malformed:
        return local_ip()
    return text
