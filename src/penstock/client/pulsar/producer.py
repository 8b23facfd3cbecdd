"""The producer: every way to send, over all partitions of a topic.

    with Client("pulsar://localhost:6650") as client:
        with client.create_producer("orders") as producer:
            producer.send(b"hello", key="4711")

    async with await client.create_producer_async("orders") as producer:
        await producer.send_async(b"hello")

``send`` blocks until the message is stored and gives its id; ``send_async`` gives a future,
``send_callback`` calls back. Each takes a value and the fields of a ``Message`` as keywords, or a
``Message``. What is wrong with a message is raised at once, as ``InvalidUse`` or
``SchemaMismatch``; what goes wrong later is a ``TimedOut``, ``Refused`` or ``StateError``.

A send takes room in the producer's bound of messages and bytes without a receipt, and waits for it
when there is none (or is refused with ``WouldBlock``, ``block_if_queue_full=False``); the wait
counts towards ``send_timeout_ms``. ``send`` and ``send_async`` stand in line; ``send_callback``
blocks its caller until there is room.

Threads: every method may be called from any thread but the client's own.
Not here: one partition (``partition_producer.py``), routing (``routing.py``).
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypedDict, Unpack

import msgspec

from penstock.client.callbacks import GRACE_S, CallbackThread, result_of, settle_future
from penstock.client.loop import LoopThread, Relay, awaitable, blocking, client_loop
from penstock.client.options import Option, resolve
from penstock.client.pulsar.batching import Batching
from penstock.client.pulsar.compression import Compression, check
from penstock.client.pulsar.encoding import Content, content_of
from penstock.client.pulsar.errors import ClientError, InvalidUse, StateError
from penstock.client.pulsar.handler import HandlerState
from penstock.client.pulsar.lookup import Cluster
from penstock.client.pulsar.message import Message, MessageId
from penstock.client.pulsar.partition_producer import (
    AccessMode,
    PartitionOptions,
    PartitionProducer,
)
from penstock.client.pulsar.pending import (
    NEVER_MS,
    AwaitedSend,
    BlockedSend,
    CallbackSend,
    FlushMark,
    OnDone,
    Send,
    SendRoom,
    too_late,
)
from penstock.client.pulsar.routing import (
    BatchLimits,
    Choose,
    Hashing,
    PartitionRouter,
    Routing,
    chosen_by,
)
from penstock.client.pulsar.schema import BytesSchema, Schema
from penstock.client.pulsar.why import Waits, Why
from penstock.wire.pulsar.names import PulsarName

_log: Final = logging.getLogger(__name__)


class MessageFields(TypedDict, total=False):
    """What ``send`` takes beside a value; ``Message`` says what each means."""

    key: str | bytes | None
    ordering_key: bytes | None
    properties: Mapping[str, str] | None
    event_time_ms: int | None
    deliver_at_ms: int | None
    deliver_after_ms: int | None
    sequence_id: int | None
    replicate_to: Sequence[str]


MESSAGE_FIELDS: Final = frozenset(MessageFields.__annotations__)


class ProducerOptions(TypedDict, total=False):
    """What ``Client.create_producer`` takes as keywords.

    Defaults are those of Pulsar's Java client, except where the meaning says otherwise.
    """

    producer_name: Annotated[
        str | None,
        Option(
            None,
            "One producer of the topic at a time may have it, and deduplication goes by it; the"
            " broker makes one by default.",
        ),
    ]
    access_mode: Annotated[AccessMode, Option(AccessMode.SHARED, "Who else may produce.")]
    send_timeout_ms: Annotated[
        int,
        Option(30_000, "How long a send may take, the wait for room included; 0: as it takes.", 0),
    ]
    max_pending_messages: Annotated[
        int, Option(1_000, "Messages without a receipt, for each partition.", 1)
    ]
    max_pending_messages_across_partitions: Annotated[
        int, Option(50_000, "The same for all partitions together.", 1)
    ]
    max_pending_bytes: Annotated[
        int, Option(64 * 1024 * 1024, "Bytes without a receipt, all partitions together.", 1)
    ]
    block_if_queue_full: Annotated[
        bool,
        Option(
            True,
            "A send that finds no room waits for it; else it is refused with WouldBlock. Java's"
            " client refuses by default.",
        ),
    ]
    batching_enabled: Annotated[bool, Option(True, "Messages leave in batches.")]
    batching_type: Annotated[
        Batching, Option(Batching.DEFAULT, "KEY: one batch for each key, for key-shared consumers.")
    ]
    batching_max_messages: Annotated[int, Option(1_000, "A batch of so many leaves.", 1)]
    batching_max_bytes: Annotated[int, Option(128 * 1024, "A batch of so many bytes leaves.", 1)]
    batching_max_publish_delay_ms: Annotated[
        float, Option(1, "A batch that began so long ago leaves.", 0)
    ]
    chunking_enabled: Annotated[
        bool, Option(False, "Messages larger than the broker takes are sent in chunks.")
    ]
    chunk_bytes_max: Annotated[
        int, Option(0, "Smaller chunks than the broker would take; 0: as large as possible.", 0)
    ]
    compression: Annotated[Compression, Option(Compression.NONE, "Of batches and large messages.")]
    routing: Annotated[
        Routing | Choose,
        Option(
            Routing.ROUND_ROBIN,
            "Where messages without a key go; a function `choose(message, partitions)` decides for"
            " all messages.",
        ),
    ]
    hashing: Annotated[Hashing, Option(Hashing.JAVA_STRING, "How a key becomes a partition.")]
    initial_sequence_id: Annotated[
        int | None,
        Option(
            None,
            "The last id used; the first message has the next one. By default the"
            " broker's memory of this producer's name.",
            0,
        ),
    ]
    properties: Annotated[
        Mapping[str, str] | None, Option(None, "Shown with the producer in statistics.")
    ]
    initial_subscription_name: Annotated[
        str | None, Option(None, "A subscription that is made together with the topic.")
    ]
    partitions_check_interval_ms: Annotated[
        int, Option(60_000, "How often it is asked for new partitions; 0: never.", 0)
    ]


class ProducerStatistics(msgspec.Struct, frozen=True):
    """How a producer does now."""

    topic: str
    name: str
    stored: int
    """Messages confirmed."""
    failed: int
    refused: int
    """Sends that found no room and were refused."""
    entries: int
    """SENDs, batches counted as one."""
    batches: int
    chunks: int
    bytes: int
    """Of SENDs."""
    resent: int
    """Entries sent again after a reconnect."""
    duplicates: int
    """Messages that the broker had already."""
    pending_messages: int
    pending_bytes: int
    waiting: int
    """Sends that wait for room."""
    last_sequence_id: int
    is_connected: bool
    why: Why


class Producer:
    """Sends messages to one topic; make as few as you can, they are shared by threads and loops.

    ``Client.create_producer`` makes it.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: PulsarName,
        *,
        schema: Schema | None = None,
        on_closed: Callable[[Producer], object] = lambda _: None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._options: Final = resolve(ProducerOptions, options)
        self.topic: Final = str(topic)
        self._topic = topic
        self._cluster = cluster
        self._clock = cluster.clock
        self._schema: Final[Schema] = BytesSchema() if schema is None else schema
        self._is_plain: Final = isinstance(self._schema, BytesSchema)
        self._on_closed = on_closed
        self._thread: Final[LoopThread] = client_loop()
        self._partitions: list[PartitionProducer] = []
        self._shared_options: Final = self._partition_options()
        self._what = f"producer of topic {topic}"
        self._room = SendRoom(
            self._options["max_pending_messages"],
            self._options["max_pending_bytes"],
            self._clock,
            Relay(self._thread.loop, self._arrived).put,
            blocks=self._options["block_if_queue_full"],
            what=self._what,
        )
        routing = self._options["routing"]
        self._choose: Final = None if isinstance(routing, Routing) else routing
        self._router: Final = PartitionRouter(
            routing if isinstance(routing, Routing) else Routing.ROUND_ROBIN,
            self._options["hashing"],
            limits=self._shared_options.limits,
        )
        self._timeout_ms: Final = self._options["send_timeout_ms"]
        self._arrivals: list[Send] = []
        """Of this turn; begun together at its end."""
        self._marks = 0
        """Flushes that wait for their place in line."""
        self._callbacks: Final = CallbackThread(
            topic.local, self._call_back, self._thread.loop.call_soon
        )
        self._timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._check_task: asyncio.Task[None] | None = None
        self._result_relay: Relay[AwaitedSend] | None = None
        """To the event loop of the last send, which nearly always is that of the next one."""
        self._state = HandlerState.UNINITIALIZED

    # ---- sending ---------------------------------------------------------------------------------

    def send(self, value: Any, **fields: Unpack[MessageFields]) -> MessageId:
        """Send and wait until it is stored."""
        if self._thread.is_current:
            raise StateError("send() on the client's own thread would wait for itself; send_async")
        content, partition = self._check(value, fields)
        lock = threading.Lock()
        lock.acquire()
        send = BlockedSend(content, content.size_bytes, self._deadline_ms(), partition, lock=lock)
        self._admit(send)
        return result_of(send, self._timeout_ms or None)

    def send_async(self, value: Any, **fields: Unpack[MessageFields]) -> asyncio.Future[MessageId]:
        """Send; await the future for the id. Many at a time are fine: the bound holds them."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise StateError(
                "send_async() needs a running event loop; use send() or send_callback()"
            ) from None
        content, partition = self._check(value, fields)
        future: asyncio.Future[MessageId] = loop.create_future()
        relay = self._result_relay
        if relay is None or relay.loop is not loop:
            self._result_relay = relay = Relay(loop, settle_future, self._thread)
        send = AwaitedSend(
            content, content.size_bytes, self._deadline_ms(), partition, future=future, relay=relay
        )
        self._admit(send)
        return future

    def send_callback(
        self, value: Any, on_done: OnDone | None = None, **fields: Unpack[MessageFields]
    ) -> None:
        """Send; ``on_done`` gets the id or the error, on a thread for callbacks.

        Blocks while there is no room, except on that thread itself. Without ``on_done`` nobody
        hears of it; ``flush`` waits for it.
        """
        content, partition = self._check(value, fields)
        size_bytes, deadline_ms = content.size_bytes, self._deadline_ms()
        send: Send
        if on_done is None:
            send = Send(content, size_bytes, deadline_ms, partition)
        else:
            self._callbacks.start()
            send = CallbackSend(
                content, size_bytes, deadline_ms, partition, keeps_room=True, on_done=on_done,
                thread=self._callbacks,
            )  # fmt: skip
        if self._room.take_or_wait(send, holds_caller=True):
            return
        self._watch_if_nobody_does()
        if not self._callbacks.is_current and not self._thread.is_current:
            assert send.admitted is not None, "it waits"
            send.admitted.wait(self._timeout_ms / 1000 + GRACE_S if self._timeout_ms else None)

    async def _flush(self) -> None:
        """Send what gathers and return when everything sent before has ended, well or not."""
        self._check_open()
        await self._all_begun()
        await asyncio.gather(*(each.flush() for each in list(self._partitions)))

    flush = blocking(_flush)
    flush_async = awaitable(_flush)

    def close(self) -> None:
        """Flush, say good-bye to the broker, and end; again does nothing."""
        if self._thread.is_orphan:
            # It is the parent's, and stays there.
            return
        self._thread.run(self.shut())
        self.end_callbacks()

    async def close_async(self) -> None:
        """The same."""
        if self._thread.is_orphan:
            return
        await self._thread.on(self.shut())
        await self.end_callbacks_async()

    def end_callbacks(self) -> None:
        """When it was shut: return when they have run; not on the client's thread."""
        self._callbacks.stop(self._cluster.options["operation_timeout_ms"])

    async def end_callbacks_async(self) -> None:
        """The same for any event loop."""
        await self._callbacks.stop_async(self._cluster.options["operation_timeout_ms"])

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    # ---- what it shows ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its own, or the one the broker made."""
        return self._partitions[0].name if self._partitions else ""

    @property
    def partitions(self) -> int:
        """Of its topic; 0 when it has none."""
        first = self._partitions[0] if self._partitions else None
        is_plain = first is None or first.partition < 0 or first.topic == self._topic
        return 0 if is_plain else len(self._partitions)

    @property
    def last_sequence_id(self) -> int:
        """The highest one that was confirmed; -1 when there is none."""
        return max((each.last_sequence_id for each in self._partitions), default=-1)

    @property
    def is_connected(self) -> bool:
        """True when every partition is."""
        found = [each.handler.ready_connection is not None for each in self._partitions]
        return bool(found) and all(found)

    def why(self) -> Why:
        """What it waits for now, in one sentence."""
        if self._state in (HandlerState.CLOSING, HandlerState.CLOSED):
            return Why(Waits.CLOSED, f"{self._what} is {self._state.value}")
        reasons = [each.why() for each in self._partitions]
        worst = max(reasons, key=_weight, default=Why(Waits.CONNECTION, "it is being opened"))
        since_ms = self._room.waits_since_ms
        if since_ms is None:
            return worst
        lasted_ms = self._clock.monotonic_ms() - since_ms
        text = (
            f"sends that wait for room: {self._room.waiting:,}, the first since"
            f" {lasted_ms / 1000:.1f} s; {self._room.usage()}; {worst.text}"
        )
        reason = worst.reason if worst.reason is not Waits.NOTHING else Waits.RECEIPTS
        return Why(reason, text, lasted_ms)

    def statistics(self) -> ProducerStatistics:
        """Counts since it was opened, and what it waits for."""
        counters = [each.counters for each in list(self._partitions)]
        return ProducerStatistics(
            topic=self.topic,
            name=self.name,
            stored=sum(each.stored for each in counters),
            failed=sum(each.failed for each in counters),
            refused=self._room.refusals,
            entries=sum(each.entries for each in counters),
            batches=sum(each.batches for each in counters),
            chunks=sum(each.chunks for each in counters),
            bytes=sum(each.bytes for each in counters),
            resent=sum(each.resent for each in counters),
            duplicates=sum(each.duplicates for each in counters),
            pending_messages=self._room.messages,
            pending_bytes=self._room.bytes,
            waiting=self._room.waiting,
            last_sequence_id=self.last_sequence_id,
            is_connected=self.is_connected,
            why=self.why(),
        )

    def __str__(self) -> str:
        return f"{self._what}: {self.why()}"

    def __repr__(self) -> str:
        return f"<Producer {self.name!r} of {self.topic}>"

    # ---- its life, on the client's thread --------------------------------------------------------

    @property
    def is_closed_before_producers(self) -> bool:
        """For its client, which closes it last."""
        return False

    async def open(self) -> None:
        """Open all partitions; raises what the first one failed with."""
        count = await self._cluster.retried(
            lambda: self._cluster.partitions(self._topic), f"partitions of topic {self.topic}"
        )
        topics = [self._topic.of_partition(n) for n in range(count)] or [self._topic]
        self._partitions = [self._partition(topic) for topic in topics]
        self._room.grow(self._messages_max())
        try:
            await asyncio.gather(*(each.handler.open() for each in self._partitions))
        except BaseException:
            await self._close_partitions()
            raise
        self._state = HandlerState.READY
        if count and self._options["partitions_check_interval_ms"]:
            self._check_later()

    async def shut(self) -> None:
        """Close it; never raises because the broker is away."""
        if self._state in (HandlerState.CLOSING, HandlerState.CLOSED):
            return
        self._state = HandlerState.CLOSING
        try:
            self._begin_arrivals()
            timeout_ms = self._timeout_ms or self._cluster.options["operation_timeout_ms"]
            connected = [each for each in self._partitions if each.handler.ready_connection]
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    if len(connected) == len(self._partitions):
                        await self._all_begun()
                    await asyncio.gather(*(each.flush() for each in connected))
            except TimeoutError:
                _log.warning("producer closed with messages unconfirmed", extra=self._told())
        finally:
            await self._close_partitions()

    async def _all_begun(self) -> None:
        """Return when everything sent before was begun, or has ended for want of room."""
        mark = FlushMark(
            Content(b""), 0, self._deadline_ms(), future=self._thread.loop.create_future()
        )
        self._marks += 1
        self._room.line_up(mark)
        if self._room.waiting:
            self._watch_if_nobody_does()
        await mark.future

    async def _close_partitions(self) -> None:
        for timer in (self._timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        if self._check_task is not None:
            self._check_task.cancel()
        await asyncio.gather(*(each.close() for each in self._partitions))
        for send in self._room.drain():
            self._refuse_waiter(send, StateError(f"{self._what} was closed"))
        self._state = HandlerState.CLOSED
        self._on_closed(self)

    def _partition(self, topic: PulsarName) -> PartitionProducer:
        return PartitionProducer(self._cluster, topic, self._shared_options, self._over)

    def _partition_options(self) -> PartitionOptions:
        options = self._options
        check(options["compression"])
        limits = None
        if options["batching_enabled"]:
            limits = BatchLimits(
                options["batching_max_messages"],
                options["batching_max_bytes"],
                options["batching_max_publish_delay_ms"],
            )
        name = options["producer_name"]
        if name is not None and not name.strip():
            raise InvalidUse("producer_name is blank; give a name, or none")
        chunk_bytes_max = options["chunk_bytes_max"] if options["chunking_enabled"] else -1
        return PartitionOptions(
            producer_name=name,
            access_mode=options["access_mode"],
            send_timeout_ms=options["send_timeout_ms"],
            limits=limits,
            batching=options["batching_type"],
            compression=options["compression"],
            chunk_bytes_max=chunk_bytes_max,
            initial_sequence_id=options["initial_sequence_id"],
            properties=options["properties"] or {},
            initial_subscription_name=options["initial_subscription_name"],
            schema=self._schema.to_wire(),
        )

    def _messages_max(self) -> int:
        each = self._options["max_pending_messages"]
        most = self._options["max_pending_messages_across_partitions"]
        return max(1, min(each * len(self._partitions), most))

    # ---- one send, on its caller's thread --------------------------------------------------------

    def _check(self, value: Any, fields: MessageFields) -> tuple[Content, int]:
        """What is sent, and the partition that a function of the user's chose for it, or -1."""
        if self._state is not HandlerState.READY:
            self._check_open()
        self._thread.check_alive()
        choose = self._choose
        if not fields and self._is_plain and choose is None and value.__class__ is bytes:
            return Content(value), -1
        if isinstance(value, Message):
            if fields:
                raise InvalidUse("give a Message or its fields, not both")
            message = value
        else:
            if not fields.keys() <= MESSAGE_FIELDS:
                raise InvalidUse(_unknown_field(fields))
            message = Message(value, **fields)
        payload = b"" if message.value is None else self._schema.encode(message.value)
        content = content_of(message, payload, self._clock.wall_ms())
        if choose is None:
            return content, -1
        return content, chosen_by(choose, message, len(self._partitions))

    def _deadline_ms(self) -> int:
        timeout_ms = self._timeout_ms
        return self._clock.monotonic_ms() + timeout_ms if timeout_ms else NEVER_MS

    def _admit(self, send: Send) -> None:
        if not self._room.take_or_wait(send):
            self._watch_if_nobody_does()

    def _watch_if_nobody_does(self) -> None:
        # Who waits for room waits for others, whose time is watched; if not yet, then soon.
        if self._timer is None:
            self._thread.post(self._watch_time)

    def _check_open(self) -> None:
        if self._state is not HandlerState.READY:
            raise StateError(f"{self._what} is {self._state.value}; make a new one")

    # ---- on the client's thread ------------------------------------------------------------------

    def _arrived(self, send: Send) -> None:
        arrivals = self._arrivals
        arrivals.append(send)
        if len(arrivals) == 1:
            self._thread.loop.call_soon(self._begin_arrivals)

    def _begin_arrivals(self) -> None:
        arrivals = self._arrivals
        if not arrivals:
            return
        self._arrivals = []
        if self._marks:
            arrivals = self._pass_marks(arrivals)
        partitions = self._partitions
        if self._state is HandlerState.CLOSED:
            for send in arrivals:
                send.done(StateError(f"{self._what} was closed"))
            self._over(arrivals)
            return
        if len(partitions) == 1:
            partitions[0].begin(arrivals)
        else:
            self._spread(arrivals)
        if self._timer is None:
            self._watch_time()

    def _pass_marks(self, arrivals: Sequence[Send]) -> list[Send]:
        """Those that are to be sent; whoever flushes goes on when they were."""
        marks = [each for each in arrivals if isinstance(each, FlushMark)]
        self._marks -= len(marks)
        for mark in marks:
            mark.pass_by()
        kept = sum([mark.has_room for mark in marks])
        if kept:
            self._room.give(kept, 0)
        return [each for each in arrivals if not isinstance(each, FlushMark)]

    def _spread(self, sends: Sequence[Send]) -> None:
        count, now_ms, choose = (
            len(self._partitions),
            self._clock.monotonic_ms(),
            self._router.choose,
        )
        lists: dict[int, list[Send]] = {}
        for send in sends:
            at = send.partition
            if not 0 <= at < count:
                at = choose(send.content.key, send.size_bytes, count, now_ms)
            found = lists.get(at)
            if found is None:
                lists[at] = [send]
            else:
                found.append(send)
        for at, mine in lists.items():
            self._partitions[at].begin(mine)

    def _over(self, sends: Sequence[Send]) -> None:
        """These have ended: their room is for others; of callbacks when those begin."""
        freed = [send.size_bytes for send in sends if not send.keeps_room]
        if freed:
            self._room.give(len(freed), sum(freed))

    def _call_back(self, ended: list[CallbackSend]) -> None:
        """On the thread for callbacks."""
        self._give_back(ended)
        for send in ended:
            send.call()

    def _give_back(self, sends: Sequence[Send]) -> None:
        """The callbacks of these begin; on the thread for callbacks."""
        kept = [send.size_bytes for send in sends if send.keeps_room]
        if kept:
            self._room.give(len(kept), sum(kept))

    def _refuse_waiter(self, send: Send, error: ClientError) -> None:
        """One that had no room, and gets none."""
        send.keeps_room = False
        self._marks -= isinstance(send, FlushMark)
        send.done(error)
        if send.admitted is not None:
            send.admitted.set()

    def _watch_time(self) -> None:
        """Look again when the first send that waits may be late."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._timeout_ms or self._state is HandlerState.CLOSED:
            return
        deadlines = [each.deadline_ms for each in self._partitions if each.deadline_ms is not None]
        since_ms = self._room.waits_since_ms
        if since_ms is not None:
            # Slow callbacks may hold all the room while no partition has anything.
            deadlines.append(since_ms + self._timeout_ms)
        if not deadlines:
            return
        wait_ms = max(min(deadlines) - self._clock.monotonic_ms(), 1)
        self._timer = self._thread.loop.call_later(wait_ms / 1000, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        for each in self._partitions:
            each.expire(now_ms)
        for send in self._room.expire(now_ms):
            self._refuse_waiter(send, too_late(self._what, self._timeout_ms, self._room.usage()))
        self._watch_time()

    # ---- more partitions -------------------------------------------------------------------------

    def _check_later(self) -> None:
        interval_ms = self._options["partitions_check_interval_ms"]
        loop = self._thread.loop

        def look() -> None:
            self._check_task = loop.create_task(self._look_for_partitions())

        self._check_timer = loop.call_later(interval_ms / 1000, look)

    async def _look_for_partitions(self) -> None:
        try:
            count = await self._cluster.partitions(self._topic)
            if count > len(self._partitions):
                fresh = [
                    self._partition(self._topic.of_partition(n))
                    for n in range(len(self._partitions), count)
                ]
                await self._open_all(fresh)
                self._partitions += fresh
                self._room.grow(self._messages_max())
        except ClientError as problem:
            _log.info("no new partitions", extra={**self._told(), "why": str(problem)})
        if self._state is HandlerState.READY:
            self._check_later()

    @staticmethod
    async def _open_all(partitions: Sequence[PartitionProducer]) -> None:
        """All of them or none: what was opened would block the name of the next attempt."""
        try:
            await asyncio.gather(*(each.handler.open() for each in partitions))
        except BaseException:
            await asyncio.gather(*(each.close() for each in partitions))
            raise

    def _told(self) -> dict[str, object]:
        return {"topic": self.topic, "pending": self._room.messages}


def _unknown_field(fields: MessageFields) -> str:
    name = next(each for each in fields if each not in MESSAGE_FIELDS)
    near = difflib.get_close_matches(name, MESSAGE_FIELDS, n=1)
    hint = (
        f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(MESSAGE_FIELDS))}"
    )
    return f"{name!r} is no field of a message; {hint}"


_ORDER: Final = (
    Waits.NOTHING, Waits.BATCH, Waits.RECEIPTS, Waits.TURN, Waits.CONNECTION, Waits.QUOTA,
    Waits.CLOSED,
)  # fmt: skip


def _weight(why: Why) -> tuple[int, int]:
    return _ORDER.index(why.reason), why.lasted_ms
