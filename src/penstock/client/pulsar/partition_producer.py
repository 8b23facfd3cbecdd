"""A producer of one partition: it numbers messages, batches them, sends them, hears of them.

It is what a ``Handler`` keeps connected (``handler.py``): ``opened`` sends PRODUCER and then, in
order, everything that has no receipt. What is sent while there is no connection waits among it.

What the broker says:

    SEND_RECEIPT     the entry is stored; a duplicate's has the id (-1, -1)
    SEND_ERROR       damaged or not allowed: that entry fails. Anything else: the connection is
                     closed, and everything goes out again on the next one
    CLOSE_PRODUCER   come back, perhaps to another broker; what has no receipt goes out again there

Opening it again may be refused because the backlog is over its quota: with
``producer_request_hold`` it is tried again until there is room, with ``producer_exception`` what
waits fails at once, and it is tried again as well. A producer that was fenced, or whose topic is
terminated, is over.

Threads: all of it on the client's.
Not here: who chooses the partition, the bound of what has no receipt (``producer.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from penstock.client.pulsar.batching import BatchContainer, Batching, SequenceIds
from penstock.client.pulsar.compression import Compression
from penstock.client.pulsar.connection import Connection
from penstock.client.pulsar.encoding import SendEncoder
from penstock.client.pulsar.errors import ClientError, Refused, StateError, TimedOut
from penstock.client.pulsar.handler import Handler, HandlerState
from penstock.client.pulsar.lookup import Cluster
from penstock.client.pulsar.message import MessageId
from penstock.client.pulsar.pending import (
    PendingEntry,
    ReceiptOutOfOrder,
    Send,
    UnconfirmedEntries,
    too_late,
)
from penstock.client.pulsar.routing import BatchLimits
from penstock.client.pulsar.why import Waits, Why
from penstock.wire.pulsar import protocol_pb2 as pb
from penstock.wire.pulsar.frames import NO_ID, Frame, ServerError, signed
from penstock.wire.pulsar.names import PulsarName
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

_log: Final = logging.getLogger(__name__)

_RECEIPT: Final = int(BaseCommand.SEND_RECEIPT)
_SEND_ERROR: Final = int(BaseCommand.SEND_ERROR)
_CLOSE: Final = int(BaseCommand.CLOSE_PRODUCER)

_ENTRY_ERRORS: Final = frozenset((ServerError.ChecksumError, ServerError.NotAllowedError))
"""What is wrong with one entry only."""
_FINAL_ERRORS: Final = frozenset(
    (
        ServerError.ProducerFenced,
        ServerError.TopicTerminatedError,
        ServerError.IncompatibleSchema,
    )
)
QUOTA_ERRORS: Final = frozenset(
    (
        ServerError.ProducerBlockedQuotaExceededError,
        ServerError.ProducerBlockedQuotaExceededException,
    )
)
STOP_BEFORE_TIMEOUT_MS: Final = 100
"""The last attempt to reconnect is made so long before sends begin to time out (B16)."""


class AccessMode(Enum):
    """Who else may produce to the topic; the values are Pulsar's."""

    SHARED = 0
    EXCLUSIVE = 1
    """The only one; refused while another is there."""
    WAIT_FOR_EXCLUSIVE = 2
    """The only one; waits in line for it."""
    EXCLUSIVE_WITH_FENCING = 3
    """The only one; whoever is there must go."""


_WIRE_MODES: Final = {
    AccessMode.SHARED: pb.Shared,
    AccessMode.EXCLUSIVE: pb.Exclusive,
    AccessMode.WAIT_FOR_EXCLUSIVE: pb.WaitForExclusive,
    AccessMode.EXCLUSIVE_WITH_FENCING: pb.ExclusiveWithFencing,
}


class PartitionOptions(NamedTuple):
    """What all partitions of a producer have in common."""

    producer_name: str | None
    access_mode: AccessMode
    send_timeout_ms: int
    limits: BatchLimits | None
    """None = nothing is batched."""
    batching: Batching
    compression: Compression
    chunk_bytes_max: int
    """0 = the broker's limit; -1 = nothing is cut into chunks."""
    initial_sequence_id: int | None
    properties: Mapping[str, str]
    initial_subscription_name: str | None
    schema: pb.Schema | None


class PartitionCounters:
    """What happened so far; the client's thread counts, any thread looks."""

    __slots__ = (
        "batches",
        "bytes",
        "chunks",
        "duplicates",
        "entries",
        "failed",
        "resent",
        "stored",
    )

    def __init__(self) -> None:
        self.stored = 0
        self.failed = 0
        self.bytes = 0
        """Of frames, sent for the first time."""
        self.entries = 0
        self.batches = 0
        self.chunks = 0
        self.resent = 0
        self.duplicates = 0


class PartitionProducer:
    """One partition of a topic, or a topic without any."""

    def __init__(
        self,
        cluster: Cluster,
        topic: PulsarName,
        options: PartitionOptions,
        on_over: Callable[[Sequence[Send]], object],
    ) -> None:
        """``on_over`` hears of sends that are over, to give their room back."""
        self.topic: Final = topic
        self.partition: Final = topic.partition
        self.counters: Final = PartitionCounters()
        self.pending: Final = UnconfirmedEntries()
        self.last_sequence_id = -1
        """The highest one that was confirmed; -1 = none."""
        self.name = options.producer_name or ""
        self.is_in_line = False
        """True while another producer is the only one."""
        self._options = options
        self._on_over = on_over
        self._cluster = cluster
        self._clock = cluster.clock
        self._id = cluster.next_producer_id()
        self._topic_epoch: int | None = None
        self._encoder = SendEncoder(self._id, options.compression)
        self._encoder.chunk_bytes_max = options.chunk_bytes_max
        self._ids = SequenceIds()
        self._is_numbered = False
        """True once it is known where its sequence ids begin."""
        self._batch = BatchContainer(options.limits or BatchLimits(1, 1, 0), options.batching)
        self._batch_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        stop_ms = options.send_timeout_ms - STOP_BEFORE_TIMEOUT_MS
        self.handler: Final = Handler(
            self, cluster, topic, f"producer of topic {topic}", mandatory_stop_ms=max(stop_ms, 0)
        )

    # ---- what the connection and its handler ask -------------------------------------------------

    @property
    def holds_reading(self) -> bool:
        return False

    @property
    def awaits_answer(self) -> bool:
        return len(self.pending) > 0

    async def opened(self, connection: Connection) -> None:
        """PRODUCER, and then everything that has no receipt, in order."""
        connection.add_producer(self._id, self)
        request_id = self._cluster.pool.next_request_id()
        command = self._command(request_id)
        try:
            answer = await connection.request(
                command, request_id, self.handler.what, on_queued=self._queued
            )
        except (TimedOut, asyncio.CancelledError):
            # It may succeed yet: a producer that nobody has would keep its name from others.
            connection.send(self._goodbye())
            raise
        finally:
            if self.is_in_line:
                self.is_in_line = False
                self.handler.stand_in_line(False)
        said = answer.producer_success
        self.name = self._encoder.name = said.producer_name
        self._encoder.schema_version = said.schema_version
        self._encoder.max_message_size = connection.max_message_size
        if said.HasField("topic_epoch"):
            self._topic_epoch = said.topic_epoch
        if not self._is_numbered:
            self._is_numbered = True
            start = self._options.initial_sequence_id
            self._ids.last_sent = said.last_sequence_id if start is None else start
            self.last_sequence_id = said.last_sequence_id
        if self.handler.connection is not connection:
            # The broker closed it with the same read.
            return
        for entry in self.pending:
            connection.write(*entry.pieces)
            self.counters.resent += 1

    def forget(self, connection: Connection) -> None:
        connection.remove_producer(self._id)

    def lost(self, why: str) -> None:
        _log.info(
            "producer lost its connection",
            extra={"topic": str(self.topic), "why": why, "pending": len(self.pending)},
        )

    def failed(self, error: ClientError) -> None:
        """It is over: nothing of what waits will be confirmed."""
        self._fail_all(error)

    def is_final(self, error: ClientError) -> bool:
        if not isinstance(error, Refused):
            return False
        if error.code == ServerError.ProducerBlockedQuotaExceededException:
            # The policy is that producers hear of it; the next attempt may find room.
            self._fail_all(error)
        return error.code in _FINAL_ERRORS

    def connection_lost(self, connection: Connection, why: str) -> None:
        self.handler.connection_lost(connection, why)

    def received(self, frames: list[Frame]) -> None:
        over: list[Send] = []
        try:
            for command, _ in frames:
                kind = command.type
                if kind == _RECEIPT:
                    self._receipt(command.send_receipt, over)
                elif kind == _SEND_ERROR:
                    self._send_error(command.send_error, over)
                elif kind == _CLOSE:
                    self.handler.closed_by_broker()
        except ReceiptOutOfOrder as problem:
            self._hang_up(str(problem))
        finally:
            self._over(over)

    # ---- messages --------------------------------------------------------------------------------

    def begin(self, sends: Sequence[Send]) -> None:
        """Send these, in this order."""
        if self.handler.is_over:
            self._end(sends, self._what_ended_it())
            return
        batch, limits = self._batch, self._options.limits
        for send in sends:
            if limits is None or not batch.takes(send):
                self.send_batches()
                self._send_alone(send)
                continue
            if not batch.has_room(send):
                self.send_batches()
            batch.add(send)
            if batch.is_full:
                self.send_batches()
        if limits is not None and not batch.is_empty and self._batch_timer is None:
            self._batch_timer = self._loop.call_later(limits.delay_ms / 1000, self._batch_due)

    def send_batches(self) -> None:
        """What gathered leaves now."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        for group in self._batch.take():
            for numbered in self._ids.number(group):
                self._send_batch(numbered, numbered.sequence_ids)

    def expire(self, now_ms: int) -> None:
        """Fail those whose time is up."""
        why = str(self.why())
        late = [send for entry in self.pending.expire(now_ms) for send in entry.sends]
        late += self._batch.expire(now_ms)
        if late:
            self._end(late, too_late(self.handler.what, self._options.send_timeout_ms, why))
        self._look_at_flushes()

    @property
    def deadline_ms(self) -> int | None:
        """When the first of them is late; None when nothing waits."""
        oldest = self.pending.oldest
        if oldest is not None:
            return oldest.deadline_ms
        first = self._batch.oldest
        return None if first is None else first.deadline_ms

    async def flush(self) -> None:
        """Return when everything sent before has ended, well or not."""
        self.send_batches()
        newest = self.pending.newest
        if newest is not None:
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append((newest.number, future))
            await future

    async def close(self) -> None:
        """Say good-bye; who still waits is told that it is over. Call ``flush`` before."""
        connection = self.handler.begin_close()
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        if connection is not None:
            command = self._goodbye()
            request_id = command.close_producer.request_id
            try:
                await connection.request(command, request_id, f"closing {self.handler.what}")
            except ClientError as problem:
                _log.debug("closing was not heard", extra={"why": str(problem)})
        self.handler.closed()
        self._fail_all(StateError(f"{self.handler.what} was closed before this was confirmed"))

    def why(self) -> Why:
        """What it waits for now."""
        handler = self.handler
        if handler.is_over:
            return Why(Waits.CLOSED, f"{handler.what} is {handler.state.value}")
        now_ms = self._clock.monotonic_ms()
        if handler.ready_connection is None:
            lasted_ms = now_ms - handler.waiting_since_ms
            if self.is_in_line:
                return Why(Waits.TURN, "another producer is the only one of the topic", lasted_ms)
            error = handler.last_error
            is_quota = isinstance(error, Refused) and error.code in QUOTA_ERRORS
            return Why(Waits.QUOTA if is_quota else Waits.CONNECTION, handler.why(), lasted_ms)
        oldest = self.pending.oldest
        if oldest is not None:
            lasted_ms = now_ms - oldest.sent_ms
            return Why(
                Waits.RECEIPTS,
                f"messages without a receipt: {self.pending.messages:,}, the oldest since"
                f" {lasted_ms / 1000:.1f} s",
                lasted_ms,
            )
        if not self._batch.is_empty:
            return Why(Waits.BATCH, f"messages that gather for a batch: {self._batch.messages:,}")
        return Why(Waits.NOTHING, "everything sent is confirmed")

    # ---- inside ----------------------------------------------------------------------------------

    def _what_ended_it(self) -> ClientError:
        handler = self.handler
        if handler.state is HandlerState.FAILED and isinstance(handler.last_error, ClientError):
            return handler.last_error
        return StateError(f"{handler.what} is {handler.state.value}; make a new one")

    def _command(self, request_id: int) -> BaseCommand:
        options = self._options
        command = BaseCommand(type=BaseCommand.PRODUCER)
        asked = command.producer
        asked.topic = str(self.topic)
        asked.producer_id = self._id
        asked.request_id = request_id
        if self.name:
            asked.producer_name = self.name
        asked.user_provided_producer_name = options.producer_name is not None
        asked.epoch = self.handler.epoch + 1
        asked.producer_access_mode = _WIRE_MODES[options.access_mode]
        if self._topic_epoch is not None:
            asked.topic_epoch = self._topic_epoch
        for name, value in options.properties.items():
            asked.metadata.add(key=name, value=value)
        if options.schema is not None:
            asked.schema.CopyFrom(options.schema)
        if options.initial_subscription_name is not None:
            asked.initial_subscription_name = options.initial_subscription_name
        return command

    def _goodbye(self) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = self._id
        command.close_producer.request_id = self._cluster.pool.next_request_id()
        return command

    def _queued(self) -> None:
        self.is_in_line = True
        self.handler.stand_in_line(True)

    def _batch_due(self) -> None:
        self._batch_timer = None
        self.send_batches()

    def _send_alone(self, send: Send) -> None:
        self._submit_alone(send, self._ids.next_for(send.content))

    def _submit_alone(self, send: Send, sequence_id: int) -> None:
        try:
            frames = self._encoder.alone(send.content, sequence_id, self._clock.wall_ms())
        except Exception as problem:
            self._end((send,), self._not_encoded(problem))
            return
        now_ms = self._clock.monotonic_ms()
        if len(frames) == 1:
            self._submit(
                PendingEntry(sequence_id, sequence_id, frames[0], (send,), now_ms, send.deadline_ms)
            )
            return
        self.counters.chunks += len(frames)
        *others, last = frames
        first_chunk: list[MessageId] = []
        for pieces in others:
            self._submit(
                PendingEntry(
                    sequence_id, sequence_id, pieces, (), now_ms, send.deadline_ms, first_chunk
                )
            )
        self._submit(
            PendingEntry(
                sequence_id, sequence_id, last, (send,), now_ms, send.deadline_ms, first_chunk
            )
        )

    def _send_batch(self, sends: list[Send], sequence_ids: list[int]) -> None:
        first = sequence_ids[0]
        if len(sends) == 1:
            self._submit_alone(sends[0], first)
            return
        contents = [send.content for send in sends]
        try:
            pieces = self._encoder.batch(contents, sequence_ids, self._clock.wall_ms())
        except Exception as problem:
            self._end(sends, self._not_encoded(problem))
            return
        if pieces is None:
            half = len(sends) // 2
            self._send_batch(sends[:half], sequence_ids[:half])
            self._send_batch(sends[half:], sequence_ids[half:])
            return
        self.counters.batches += 1
        now_ms = self._clock.monotonic_ms()
        self._submit(
            PendingEntry(first, sequence_ids[-1], pieces, sends, now_ms, sends[0].deadline_ms)
        )

    def _not_encoded(self, problem: Exception) -> ClientError:
        """Whatever was raised: who waits for these must hear of it, and others must go out."""
        if isinstance(problem, ClientError):
            return problem
        _log.error("encoding failed", extra={"topic": str(self.topic)}, exc_info=problem)
        return ClientError(f"a message of the {self.handler.what} cannot be sent: {problem!r}")

    def _submit(self, entry: PendingEntry) -> None:
        self.pending.add(entry)
        self.counters.entries += 1
        self.counters.bytes += entry.size_bytes
        connection = self.handler.ready_connection
        if connection is not None:
            connection.write(*entry.pieces)
            if not connection.is_reading:
                # A consumer with a full queue stopped it: the receipt must be heard all the same.
                connection.review_reading()

    def _receipt(self, receipt: pb.CommandSendReceipt, over: list[Send]) -> None:
        found = receipt.message_id
        is_duplicate = found.ledgerId == NO_ID and found.entryId == NO_ID
        entry = self.pending.confirmed(receipt.sequence_id, is_duplicate=is_duplicate)
        if entry is None:
            return
        entry.end(signed(found.ledgerId), signed(found.entryId), self.partition)
        self.last_sequence_id = max(self.last_sequence_id, entry.last_sequence_id)
        self.counters.stored += len(entry.sends)
        self.counters.duplicates += len(entry.sends) if is_duplicate else 0
        over += entry.sends

    def _send_error(self, said: pb.CommandSendError, over: list[Send]) -> None:
        error = Refused(said.error, said.message, f"a message of {self.handler.what}")
        if error.code not in _ENTRY_ERRORS:
            self._hang_up(str(error))
            return
        entry = self.pending.refused(said.sequence_id)
        if entry is not None:
            entry.fail(error)
            self.counters.failed += len(entry.sends)
            over += entry.sends

    def _hang_up(self, why: str) -> None:
        """Everything without a receipt goes out again on the next connection."""
        connection = self.handler.connection
        if connection is not None:
            connection.close(why)

    def _fail_all(self, error: ClientError) -> None:
        waiting = [send for entry in self.pending.drain() for send in entry.sends]
        waiting += [send for group in self._batch.take() for send in group]
        self._end(waiting, error)
        self._look_at_flushes()

    def _end(self, sends: Sequence[Send], error: ClientError) -> None:
        for send in sends:
            send.done(error)
        self.counters.failed += len(sends)
        self._over(sends)

    def _over(self, sends: Sequence[Send]) -> None:
        if sends:
            self._on_over(sends)
        if self._flushes:
            self._look_at_flushes()

    def _look_at_flushes(self) -> None:
        oldest = self.pending.oldest
        kept = []
        for number, future in self._flushes:
            if oldest is not None and oldest.number <= number:
                kept.append((number, future))
            elif not future.done():
                future.set_result(None)
        self._flushes = kept
