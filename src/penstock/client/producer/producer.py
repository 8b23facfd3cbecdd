"""The producer: its life, and every way to send.

    with Producer("127.0.0.1:9876", "orders") as producer:
        producer.send(Message("orders", b"hello", tag="new"))

    async with Producer("127.0.0.1:9876", "orders") as producer:
        await producer.send_async(Message("orders", b"hello"))

``send`` blocks; ``send_async`` gives a future, ``send_callback`` calls back, ``send_oneway`` asks
for no answer. Each takes ``queue`` (this one and no other) or ``selector`` (a function that chooses
one), and a ``timeout_ms`` of its own. A message with an ``ordering_key`` goes to the queue of its
key. What is wrong with a message is raised at once, as ``InvalidMessage``; what goes wrong later is
a ``SendFailed`` (``BrokerBusy``: slow down), ``NoRoute``, or ``WouldBlock`` without a permit.

Threads: every method may be called from any thread but the client's own.
Not here: what happens on the client's thread (``sender.py``).
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import threading
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, TypeVar, Unpack

from penstock.client.callbacks import GRACE_S, CallbackThread, result_of, settle_future
from penstock.client.errors import InvalidMessage, StateError
from penstock.client.instance import ClientInstance, instance, local_ip
from penstock.client.loop import LoopThread, Relay, client_loop
from penstock.client.message import Message, SendResult
from penstock.client.options import InstanceOptions, Option, resolve
from penstock.client.producer.encoding import (
    EncodedMessage,
    Encoder,
    check_batch,
    check_group,
    check_message,
)
from penstock.client.producer.hooks import SendHook, SendTraceHook, TransactionState
from penstock.client.producer.selection import LatencyFaultTolerance, RoundRobin, Selector
from penstock.client.producer.send import (
    AwaitedSend,
    BlockedSend,
    CallbackSend,
    OnDone,
    Send,
)
from penstock.client.producer.sender import InFlight, ProducerStatistics, RetryPolicy, Sender
from penstock.client.producer.transaction import (
    Check,
    Execute,
    ExecuteAsync,
    TransactionResult,
    Transactions,
    state_of,
)
from penstock.client.routes import NameServerList, parse_name_servers
from penstock.client.states import Lifecycle, StartStop, State
from penstock.client.trace import TraceDispatcher, TraceOptions
from penstock.flow.reason import Reason
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import CheckTransactionHeader
from penstock.wire.rocketmq.message_id import UniqueKeys, encode_host
from penstock.wire.rocketmq.stored import StoredMessage

DEFAULT_GROUP: Final = "penstock-producers"
TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""Front of the group that trace messages are sent from."""


class Producer(StartStop):
    """Sends messages; make as few as you can, they are shared by threads and loops."""

    def __init__(
        self,
        name_servers: NameServerList = None,
        group: str = DEFAULT_GROUP,
        *,
        transaction_check: Check | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_group(group)
        self.group: Final = group
        self._life: Final = Lifecycle(f"producer {group!r}")
        self._name_servers: Final = parse_name_servers(name_servers)
        self._options: Final = resolve(ProducerOptions, options)
        self._check: Final = transaction_check
        self._running: RunningProducer | None = None
        """From ``start`` on, also after ``stop``: statistics can still be read."""

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self._life.state

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the cluster; connections are made when they are needed."""
        client_loop().run(self._start(None))

    async def start_async(self) -> None:
        """The same; a ``transaction_check`` that is a coroutine then runs on this event loop."""
        await client_loop().on(self._start(asyncio.get_running_loop()))

    def stop(self) -> None:
        """Wait for sends under way, up to ``stop_timeout_ms``, and leave."""
        if self._running is not None:
            self._running.thread.run(self._stop())
            self._running.callbacks.stop(self._options["stop_timeout_ms"])

    async def stop_async(self) -> None:
        """The same."""
        running = self._running
        if running is not None:
            await running.thread.on(self._stop())
            await running.callbacks.stop_async(self._options["stop_timeout_ms"])

    # --- one message --------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        *,
        queue: QueueRef | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait until it is stored."""
        running = self._check_running()
        encoded = running.encode(message)
        return running.send_and_wait(message, encoded, SendOptions(queue, selector, timeout_ms))

    def send_async(
        self,
        message: Message,
        *,
        queue: QueueRef | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send; await the future for the result. Many at a time are fine: permits bound them."""
        running = self._check_running()
        options = DEFAULTS
        if queue is not None or selector is not None or timeout_ms is not None:
            options = SendOptions(queue, selector, timeout_ms)
        return running.send_future(message, running.encode(message), options)

    def send_callback(
        self,
        message: Message,
        on_done: OnDone,
        *,
        queue: QueueRef | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send; ``on_done`` gets the result or the error, on a thread for callbacks.

        Blocks while there is no permit, except on that thread itself.
        """
        self._check_running().send_callback(
            message, SendOptions(queue, selector, timeout_ms), on_done
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: QueueRef | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send and do not ask what became of it; it may be lost without a word."""
        self._check_running().send_oneway(message, SendOptions(queue, selector, timeout_ms))

    # --- several messages ---------------------------------------------------------------------

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: QueueRef | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request; see ``split_batch`` for long lists."""
        running = self._check_running()
        encoded = running.encode_batch(messages)
        return running.send_and_wait(
            messages[0], encoded, SendOptions(queue, None, timeout_ms), messages
        )

    def send_batch_async(
        self,
        messages: Sequence[Message],
        *,
        queue: QueueRef | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """The same; await the future for the result."""
        running = self._check_running()
        encoded = running.encode_batch(messages)
        return running.send_future(
            messages[0], encoded, SendOptions(queue, None, timeout_ms), messages
        )

    # --- transactions -------------------------------------------------------------------------

    def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Store a half message, run ``execute(message)`` here, and tell the broker what it said.

        ``execute`` returns a ``TransactionState``. When it raises, the transaction stays open (the
        broker will ask ``transaction_check``) and the error is raised here.
        """
        running = self._check_running()
        half = running.encode_half(message)
        result = running.send_and_wait(
            message, half, SendOptions(timeout_ms=timeout_ms, is_half=True)
        )
        state = TransactionState.UNKNOWN if result.is_ok else TransactionState.ROLLBACK
        try:
            if result.is_ok:
                state = state_of(execute(message))
        finally:
            self._end_transaction(message, result, state)
        return TransactionResult(result, state)

    async def send_in_transaction_async(
        self, message: Message, execute: ExecuteAsync, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """The same; ``execute`` may be a coroutine function."""
        running = self._check_running()
        half = running.encode_half(message)
        options = SendOptions(timeout_ms=timeout_ms, is_half=True)
        result = await running.send_future(message, half, options)
        state = TransactionState.UNKNOWN if result.is_ok else TransactionState.ROLLBACK
        try:
            if result.is_ok:
                said = execute(message)
                state = state_of(await said if inspect.isawaitable(said) else said)
        finally:
            self._end_transaction(message, result, state)
        return TransactionResult(result, state)

    # --- what it shows ------------------------------------------------------------------------

    def queues(self, topic: str) -> list[QueueRef]:
        """The queues that messages of a topic may go to now."""
        return client_loop().run(self._queues(topic))

    async def queues_async(self, topic: str) -> list[QueueRef]:
        """The same."""
        return await client_loop().on(self._queues(topic))

    def statistics(self) -> ProducerStatistics:
        """Counts, what is in flight, who waits for a permit and since when, who is avoided."""
        if self._running is None:
            raise StateError(f"producer {self.group!r} has not been started")
        return self._running.statistics()

    # --- inside -------------------------------------------------------------------------------

    async def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._life.begin()
        shared = instance(self._name_servers, self._options)
        running = RunningProducer(self.group, self._options, shared, client_loop(), self._check)
        running.transactions.listener_loop = loop
        await shared.start()
        shared.add_producer(running)
        self._running = running
        self._life.started()

    async def _stop(self) -> None:
        running = self._running
        if running is None or not self._life.is_running:
            return
        self._life.state = State.STOPPING
        try:
            await running.stop()
        finally:
            self._life.state = State.STOPPED
            await running.shared.remove_producer(running)

    async def _queues(self, topic: str) -> list[QueueRef]:
        route = await self._check_running().shared.routes.get_or_look_up(
            topic, default_queues=self._options["auto_create_queues"]
        )
        return list(route.write_queues())

    def _check_running(self) -> RunningProducer:
        if self._life.state is not State.RUNNING:
            self._life.check_running()
        assert self._running is not None, "it runs"
        return self._running

    def _end_transaction(
        self, message: Message, result: SendResult, state: TransactionState
    ) -> None:
        if self._running is not None:
            self._running.thread.post(self._running.transactions.end, message, result, state)


class ProducerOptions(InstanceOptions, TraceOptions, total=False):
    """What ``Producer`` takes as keywords.

    Defaults are RocketMQ's, except where the meaning says otherwise.
    """

    send_timeout_ms: Annotated[
        int, Option(3000, "How long one send may take: permit, route and all tries together.", 1)
    ]
    try_timeout_ms: Annotated[
        int,
        Option(
            0,
            "How long one try may take while others may follow; 0: as long as the send. Less than"
            " a third of send_timeout_ms lets a send get away from a broker that hangs.",
            0,
        ),
    ]
    retries: Annotated[
        int, Option(2, "Tries after the first one, each with another broker if there is one.", 0)
    ]
    retry_on_busy: Annotated[
        bool,
        Option(
            False,
            "Try another broker when one is under flow control (code 2). RocketMQ's 5.x client"
            " does for synchronous sends; off, the sender hears of it at once and slows down.",
        ),
    ]
    retry_another_broker_when_not_store_ok: Annotated[
        bool,
        Option(False, "Try another broker when a message was stored, but not as well as wanted."),
    ]
    send_latency_fault: Annotated[
        bool, Option(False, "Avoid brokers that were slow or failed, for up to 30 s.")
    ]
    in_flight_messages_max: Annotated[
        int, Option(1024, "Asynchronous sends not answered yet; the next one waits (F16).", 1)
    ]
    in_flight_bytes_max: Annotated[
        int, Option(100 * 1024 * 1024, "The same in bytes of their bodies (F16).", 1)
    ]
    message_bytes_max: Annotated[
        int,
        Option(4 * 1024 * 1024, "Largest body and largest batch; brokers have a limit, too.", 1),
    ]
    compress_bytes_min: Annotated[
        int, Option(4096, "Bodies of at least this size are compressed with zlib.", 1)
    ]
    compress_level: Annotated[int, Option(5, "zlib's level.", 1, 9)]
    auto_create_queues: Annotated[
        int, Option(4, "Queues per broker of a topic that is made by sending to it.", 1)
    ]
    check_threads: Annotated[
        int, Option(1, "Threads on which a transaction_check that is a plain function runs.", 1)
    ]
    checks_waiting_max: Annotated[
        int,
        Option(2000, "Questions about transactions that wait; more are left to the next round.", 1),
    ]
    hooks: Annotated[Sequence[SendHook], Option((), "Who sees every send before and after it.")]


class SendOptions(NamedTuple):
    """Where a message goes, if its sender says so, and how long that may take."""

    queue: QueueRef | None = None
    selector: Selector | None = None
    timeout_ms: int | None = None
    is_half: bool = False


DEFAULTS: Final = SendOptions()

S = TypeVar("S", bound=Send)


class RunningProducer:
    """A producer between start and stop: its parts, and the way of a send on the caller's thread.

    Messages are checked, encoded and given a permit by whoever sends them, then handed to the
    client's thread (``Sender.begin``). Synchronous sends need no permit: a thread that blocks has
    one message under way. All others take one here, before anything is queued for the client's
    thread, so that queue is bounded, too.

    Made on the client's thread; it is what the client instance knows as its member.
    """

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
        self.faults: Final = LatencyFaultTolerance() if options["send_latency_fault"] else None
        self.in_flight: Final = InFlight(
            group, options["in_flight_messages_max"], options["in_flight_bytes_max"], self.clock
        )
        self.trace: Final = self._trace() if options["trace"] else None
        hooks: list[SendHook] = list(options["hooks"])
        if self.trace is not None:
            hooks.append(SendTraceHook(self.trace))
        self.sender: Final = Sender(
            shared,
            group,
            RetryPolicy(
                retries=options["retries"],
                retry_on_busy=options["retry_on_busy"],
                retry_when_not_store_ok=options["retry_another_broker_when_not_store_ok"],
            ),
            self.in_flight,
            RoundRobin(lambda: secrets.randbits(31), self.faults),
            faults=self.faults,
            hooks=hooks,
            try_timeout_ms=options["try_timeout_ms"],
            auto_create_queues=options["auto_create_queues"],
        )
        self.transactions: Final = Transactions(
            group,
            shared.requests,
            shared.routes,
            thread,
            check=check,
            hooks=hooks,
            threads=options["check_threads"],
            waiting_max=options["checks_waiting_max"],
        )
        self.callbacks: Final = CallbackThread(group, self._call_back, thread.loop.call_soon)
        # What every send needs, looked up once.
        self._begin: Final = Relay(thread.loop, self.sender.begin).put
        self._now_ms: Final = self.clock.monotonic_ms
        self._take_or_wait: Final = self.in_flight.take_or_wait
        self._bytes_max: Final = options["message_bytes_max"]
        self._timeout_ms: Final = options["send_timeout_ms"]
        self._result_relay: Relay[AwaitedSend] | None = None
        """To the event loop of the last send, which nearly always is that of the next one."""

    # --- a send comes in, on the caller's thread --------------------------------------------------

    def encode(self, message: Message) -> EncodedMessage:
        check_message(message, self._bytes_max)
        return self.encoder.encode(message)

    def encode_half(self, message: Message) -> EncodedMessage:
        check_message(message, self._bytes_max)
        if message.delay_level or message.delay_ms or message.deliver_at_ms:
            raise InvalidMessage("a message of a transaction cannot be delayed; the commit decides")
        return self.encoder.encode(message, is_half=True)

    def encode_batch(self, messages: Sequence[Message]) -> EncodedMessage:
        for message in messages:
            check_message(message, self._bytes_max)
        check_batch(messages, self._bytes_max)
        return self.encoder.encode_batch(messages)

    def send_and_wait(
        self,
        message: Message,
        encoded: EncodedMessage,
        options: SendOptions,
        batch: Sequence[Message] = (),
    ) -> SendResult:
        """Send and wait; ``batch`` is all that ``encoded`` holds, when that is more than one."""
        if self.thread.is_current:
            raise StateError("send() on the client's own thread would wait for itself; send_async")
        started_ms, timeout_ms = self._times(options)
        lock = threading.Lock()
        lock.acquire()
        send = BlockedSend(
            message, encoded, started_ms, timeout_ms, started_ms + timeout_ms, batch=batch,
            lock=lock,
        )  # fmt: skip
        self._begin(_with_options(send, options))
        return result_of(send, send.timeout_ms)

    def send_future(
        self,
        message: Message,
        encoded: EncodedMessage,
        options: SendOptions,
        batch: Sequence[Message] = (),
    ) -> asyncio.Future[SendResult]:
        """Send; the future belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SendResult] = loop.create_future()
        relay = self._result_relay
        if relay is None or relay.loop is not loop:
            self._result_relay = relay = Relay(loop, settle_future, self.thread)
        started_ms, timeout_ms = self._times(options)
        send = AwaitedSend(
            message, encoded, started_ms, timeout_ms, started_ms + timeout_ms, batch=batch,
            future=future, relay=relay,
        )  # fmt: skip
        self._admit(send if options is DEFAULTS else _with_options(send, options))
        return future

    def send_callback(self, message: Message, options: SendOptions, on_done: OnDone) -> None:
        """Send; ``on_done`` runs on the thread for callbacks."""
        encoded = self.encode(message)
        callbacks = self.callbacks
        callbacks.start()
        started_ms, timeout_ms = self._times(options)
        send = CallbackSend(
            message, encoded, started_ms, timeout_ms, started_ms + timeout_ms, keeps_permit=True,
            on_done=on_done, thread=callbacks,
        )  # fmt: skip
        self._admit_or_block(_with_options(send, options))

    def send_oneway(self, message: Message, options: SendOptions) -> None:
        """Send, and that is all."""
        encoded = self.encode(message)
        started_ms, timeout_ms = self._times(options)
        send = Send(
            message, encoded, started_ms, timeout_ms, started_ms + timeout_ms, is_oneway=True
        )
        self._admit_or_block(_with_options(send, options))

    def _times(self, options: SendOptions) -> tuple[int, int]:
        """(now, time-out)."""
        self.thread.check_alive()
        timeout_ms = self._timeout_ms if options.timeout_ms is None else options.timeout_ms
        if timeout_ms <= 0:
            raise ValueError(f"timeout_ms is {timeout_ms}; at least 1 is needed")
        return self._now_ms(), timeout_ms

    def _admit(self, send: Send) -> bool:
        """False: it waits for a permit."""
        if self._take_or_wait(send, send.encoded.size_bytes):
            send.has_permit = True
            self._begin(send)
            return True
        self.thread.post(self.sender.start_timer)
        return False

    def _admit_or_block(self, send: Send) -> None:
        if self.in_flight.take(send.encoded.size_bytes):
            send.has_permit = True
            self._begin(send)
            return
        send.admitted = admitted = threading.Event()
        if self._admit(send) or self.thread.is_current or self.callbacks.is_current:
            return
        admitted.wait(send.timeout_ms / 1000 + GRACE_S)

    # --- what the client instance asks, on the client's thread ------------------------------------

    def topics(self) -> set[str]:
        return set(self.sender.topics)

    def check_transaction(
        self, address: str, header: CheckTransactionHeader, message: StoredMessage
    ) -> None:
        self.transactions.check(address, header, message)

    async def stop(self) -> None:
        """End what is under way, within the time for it; on the client's thread."""
        await self.sender.stop(self.options["stop_timeout_ms"])
        if self.trace is not None:
            await self.trace.stop()
        if self.sender.counters.oneway:
            # What nobody answers may still wait for its connection; an answer to something sent
            # after it says that it arrived.
            await self.shared.heartbeat()
        self.sender.close()
        self.transactions.stop()

    def statistics(self) -> ProducerStatistics:
        """How it does now; from any thread."""
        counters, in_flight, now_ms = (
            self.sender.counters,
            self.in_flight,
            self.clock.monotonic_ms(),
        )
        since_ms = in_flight.waits_since_ms
        return ProducerStatistics(
            group=self.group,
            sent=counters.sent,
            degraded=counters.degraded,
            failed=counters.failed,
            busy=counters.busy,
            oneway=counters.oneway,
            retried=counters.retried,
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

    def _call_back(self, ended: list[CallbackSend]) -> None:
        """On the thread for callbacks."""
        for send in ended:
            self._give_back(send)
            send.call()

    def _give_back(self, send: Send) -> None:
        """The callback of a send begins: its permit is free; on the callback thread."""
        if not send.has_permit:
            return
        send.has_permit = False
        admitted = self.in_flight.give(send.encoded.size_bytes)
        if admitted:
            self.thread.post(self.sender.admit, admitted)

    def _encoder(self, group: str) -> Encoder:
        return Encoder(
            group,
            self.keys,
            self.clock,
            compress_bytes_min=self.options["compress_bytes_min"],
            compress_level=self.options["compress_level"],
            auto_create_queues=self.options["auto_create_queues"],
        )

    def _trace(self) -> TraceDispatcher:
        encoder = self._encoder(f"{TRACE_GROUP}-{self.group}")

        async def send_trace(message: Message) -> SendResult:
            future: asyncio.Future[SendResult] = self.thread.loop.create_future()
            now_ms, timeout_ms = self.clock.monotonic_ms(), self.options["send_timeout_ms"]
            send = AwaitedSend(
                message, encoder.encode(message), now_ms, timeout_ms, now_ms + timeout_ms,
                is_internal=True, future=future,
            )  # fmt: skip
            self.sender.begin(send)
            return await future

        return TraceDispatcher(
            send_trace,
            topic=self.options["trace_topic"],
            records_max=self.options["trace_batch_max"],
        )


def _with_options(send: S, options: SendOptions) -> S:
    """The same send, with all that its sender said."""
    queue = options.queue
    if queue is not None:
        if options.selector is not None:
            raise InvalidMessage("give a queue or a selector, not both")
        if queue.topic != send.topic:
            raise InvalidMessage(f"queue {queue} does not fit topic {send.topic!r}")
    send.pinned = queue
    send.selector = options.selector
    send.is_half = options.is_half
    return send


def _ip_of(client_id: str) -> str:
    """The address in a client id; there may be any text in its place (option ``client_ip``)."""
    text = client_id.partition("@")[0]
    try:
        encode_host(text, 0)
    except Malformed:
        return local_ip()
    return text
