"""Producers of one connection: PRODUCER, SEND and CLOSE_PRODUCER, from command to receipt.

    open        the checks of PRODUCER in their order: topic (made if allowed), what a publish would
                be told now, schema, access (``access.py``); an answer when all of it is durable
    add, flush  the SENDs of one read become records, go to the engine as one list per producer
    confirmed   durable: receipts, in the order of the SENDs
    refused     not stored: the producer is closed, the client comes again and sends again
    close       the client is done: SUCCESS when what it sent has ended

Pressure (F9, D23). The engine holds a producer's channel: receipts are withheld, nothing else
stops. What it holds too long, or cannot store, it refuses, and everything behind it: then the
client hears CLOSE_PRODUCER, once every earlier SEND has its receipt, so that nothing is sent twice
for it. It keeps what it has and creates the producer anew, and is told 7, 8 or 15 there while the
cause lasts. SEND_ERROR is for single messages only: clients drop the connection at it.

Answers that need no disk (a duplicate's receipt, SEND_ERROR) wait for the receipts of the SENDs
before them: clients hang up at a receipt that comes too early.

Invariants: every SEND of a live producer has exactly one answer, or the producer is closed; nobody
stays registered whose connection is gone. Not here: sequence ids (``dedup.py``), what is in a SEND
(``wire/pulsar/metadata.py``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, cast

import msgspec

from penstock.adapters.pulsar.access import Access, AccessMode, NameTaken
from penstock.adapters.pulsar.dedup import ProducerSequence, Verdict, is_judged, last_number
from penstock.adapters.pulsar.errors import (
    QUOTA_EXCEEDED,
    CloseConnection,
    PulsarError,
    code_of,
    topic_fenced,
)
from penstock.adapters.pulsar.naming import parse_name, subscription_name
from penstock.adapters.pulsar.ports import ClientConnection, Handler, RunHandler
from penstock.engine.host import Start, SubscriptionOptions
from penstock.engine.ports import Confirmation, Publication, Route
from penstock.engine.topic import DirectRoute, Hold
from penstock.log.encode import NO_OFFSET
from penstock.model.errors import PenstockError
from penstock.model.refusal import Refusal, RefusalKind
from penstock.wire.pulsar.frames import NO_ID, SendRun, ServerError, check, encode, signed
from penstock.wire.pulsar.hot_commands import encode_receipt, encode_receipts
from penstock.wire.pulsar.metadata import Unreadable, make_record, read_metadata
from penstock.wire.pulsar.names import InvalidTopicName, PulsarName
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandProducer,
    CommandSend,
    ConsumerWait,
)

if TYPE_CHECKING:
    from penstock.adapters.pulsar.broker import PulsarBroker
    from penstock.adapters.pulsar.topics import PulsarTopic
    from penstock.engine.connection import Channel
    from penstock.model.record import Record

logger = logging.getLogger(__name__)

PRODUCERS_MAX: Final = 10_000
"""Of one connection."""
NAME_BYTES_MAX: Final = 1_024
"""Of a producer's name, which is kept for hours where messages are deduplicated."""
CLOSED_KEPT: Final = 1_000
"""Ids of producers that we closed: SENDs that were under way to them are dropped. Clients have
stopped sending long before so many others are closed."""
LATE_MAX: Final = 10_000
"""Answers of one producer that wait for receipts before them; clients have at most some thousand
SENDs under way."""
RATE_MS: Final = 10_000
"""Rates are those of the last whole span of this length."""


class ProducerCommands:
    """PRODUCER, SEND and CLOSE_PRODUCER of one connection."""

    def __init__(self, connection: ClientConnection, broker: PulsarBroker) -> None:
        self._connection: Final = connection
        self._broker: Final = broker
        self._producers: Final[dict[int, Producer]] = {}
        self._leaving: Final[dict[Producer, None]] = {}
        """Closed by the client; it waits for the end of what it sent."""
        self._closed: Final[dict[int, None]] = {}
        """Closed by us."""
        self._sending: list[Producer] = []
        self.unlogged_in_flight = 0
        """SENDs to topics without a log that have no receipt yet."""

    def handlers(self) -> Mapping[int, Handler]:
        return {
            BaseCommand.PRODUCER: self._produce,
            BaseCommand.SEND: self._send,
            BaseCommand.CLOSE_PRODUCER: self._close,
        }

    def run_handlers(self) -> Mapping[type, RunHandler]:
        return {SendRun: self._send_run}

    def flush(self) -> None:
        sending, self._sending = self._sending, []
        for producer in sending:
            producer.flush()

    def socket_drained(self) -> None:
        """Nothing is delivered here."""

    def client_waits(self, waits: Sequence[ConsumerWait]) -> None:
        """Only consumers are spoken of."""

    def goodbye(self, cause: str) -> None:
        for producer in list(self._producers.values()):
            producer.topic_closed(cause)

    def closed(self) -> None:
        # Those that wait first: otherwise they are let in only to leave.
        for producer in sorted(self._producers.values(), key=lambda each: not each.is_waiting):
            producer.connection_lost()
        for producer in list(self._leaving):
            producer.connection_lost()
        self._producers.clear()
        self._leaving.clear()
        self._sending.clear()

    def _produce(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.producer
        known = self._producers.get(asked.producer_id)
        if known is not None:
            known.asked_again(asked.request_id)
            return
        if len(self._producers) >= PRODUCERS_MAX:
            raise PulsarError(
                ServerError.TooManyRequests, f"the connection has {PRODUCERS_MAX} producers already"
            )
        producer = Producer(self._connection, self._broker, self, asked)
        self._producers[asked.producer_id] = producer
        try:
            producer.open()
        except (PulsarError, PenstockError):
            producer.connection_lost()
            self.forget(producer)
            raise

    def _send(self, command: BaseCommand, tail: bytes) -> None:
        send = command.send
        producer = self._producers.get(send.producer_id)
        if producer is not None:
            if producer.add(send, tail):
                self._sending.append(producer)
        elif send.producer_id not in self._closed:
            raise CloseConnection(f"SEND to producer {send.producer_id}, which is not there")

    def _send_run(self, run: SendRun) -> None:
        producer = self._producers.get(run.producer_id)
        if producer is not None:
            if producer.add_run(run):
                self._sending.append(producer)
        elif run.producer_id not in self._closed:
            raise CloseConnection(f"SEND to producer {run.producer_id}, which is not there")

    def _close(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.close_producer
        producer = self._producers.pop(asked.producer_id, None)
        if producer is None:
            self._connection.succeed(asked.request_id)
        else:
            self._leaving[producer] = None
            producer.close(asked.request_id)

    # For its producers.

    def forget(self, producer: Producer) -> None:
        """It is over: its id is free."""
        if self._producers.get(producer.producer_id) is producer:
            del self._producers[producer.producer_id]
        self._leaving.pop(producer, None)

    def note_closed(self, producer_id: int) -> None:
        """We closed it: its client may not know yet."""
        self._closed[producer_id] = None
        if len(self._closed) > CLOSED_KEPT:
            del self._closed[next(iter(self._closed))]

    def note_open(self, producer_id: int) -> None:
        self._closed.pop(producer_id, None)


class _State(Enum):
    OPENING = "opening"
    """It is not answered yet."""
    WAITING = "waiting"
    """For those before it (WaitForExclusive)."""
    READY = "ready"
    LEAVING = "leaving"
    """Closed by its client, SENDs are under way."""
    SHUT = "shut"
    """Closed by us, which is told once the SENDs under way have ended."""
    OVER = "over"


class SendPublication(Publication, gc=False):
    """A SEND on its way in, with what its receipt says."""

    sequence_id: int = 0
    highest_sequence_id: int = NO_ID


class Producer:
    """One producer: a ``TopicUser``, an ``access.Entrant``, a ``ports.PublishOutlet``."""

    def __init__(
        self,
        connection: ClientConnection,
        broker: PulsarBroker,
        commands: ProducerCommands,
        asked: CommandProducer,
    ) -> None:
        self.connection: Final = connection
        self.producer_id: Final = asked.producer_id
        self.name = asked.producer_name or broker.new_producer_name()
        self.mode: Final = AccessMode(asked.producer_access_mode)
        self.topic_epoch = asked.topic_epoch if asked.HasField("topic_epoch") else None
        self.connected_ms: Final = broker.clock.wall_ms()
        self.topic: PulsarTopic
        """From ``open`` on."""
        self._broker: Final = broker
        self._commands: Final = commands
        self._asked: Final = asked
        self._state = _State.OPENING
        self._has_topic = False
        self._has_probed = False
        self._access = Access(None)
        self._schema_version = b""
        self._sequence: ProducerSequence | None = None
        self._channel: Channel | None = None
        self._route: Route[object]
        self._ledger_id = 0
        self._close_request: int | None = None
        # The SENDs of this read, and what is asked once for all of them.
        self._arrived: list[Publication] = []
        self._wall_ms = 0
        self._size_max = 0
        self._judges_all = True
        """Every SEND is judged: no log, or duplicates are looked for."""
        self._token = 0
        self._pending = 0
        """SENDs that the engine has and did not answer."""
        self._late: deque[tuple[int, bytes]] = deque()
        """Answers, each behind the receipt of the SEND with this token."""
        self._rates = _Rates(broker.clock.monotonic_ms())

    def __repr__(self) -> str:
        return f"<Producer {self.name} {self.producer_id} {self._state.value}>"

    @property
    def _label(self) -> str:
        """What operators see."""
        own = self.name if self.name.isprintable() else f"{self.producer_id}"
        return f"producer {own} of {self.topic.name.topic_name}"

    # PRODUCER.

    def open(self) -> None:
        """Raises ``PulsarError`` and what the engine says of limits."""
        asked, broker = self._asked, self._broker
        if len(self.name.encode()) > NAME_BYTES_MAX:
            raise PulsarError(
                ServerError.NotAllowedError,
                f"Producer name is longer than {NAME_BYTES_MAX} bytes",
            )
        self.topic = _open_topic(broker, asked.topic, self.connection.peer.maker)
        # From now on it is told if the topic goes.
        self.topic.join(self)
        self._has_topic = True
        self._check_verdict()
        self._schema_version = broker.schemas.of_producer(
            self.topic, asked.schema if asked.HasField("schema") else None
        )
        self._check_initial_subscription()
        self._enter()

    def _check_verdict(self) -> None:
        """What every publish would be told now is told at once."""
        if not self.topic.is_persistent:
            return
        engine = self._broker.engine
        verdict = engine.verdict(self.topic.topic)
        if isinstance(verdict, Hold):
            raise PulsarError(ServerError.ProducerBlockedQuotaExceededError, QUOTA_EXCEEDED)
        if verdict is not None and verdict.kind is RefusalKind.TERMINATED:
            raise PulsarError(code_of(verdict), "Topic was already terminated")
        if verdict is not None:
            raise PulsarError(ServerError.ProducerBlockedQuotaExceededException, QUOTA_EXCEEDED)
        raised = engine.alarms.raised
        if raised and self._asked.epoch:
            # A new one is let in and waits for its receipts; one that we closed would only come to
            # be closed again.
            causes = ", ".join([f"{reason.value}: {why}" for reason, why in raised.items()])
            raise PulsarError(
                ServerError.ProducerBlockedQuotaExceededError,
                f"An alarm of the broker holds publishers ({causes})",
            )

    def _check_initial_subscription(self) -> None:
        wanted = self._initial_subscription
        if wanted and wanted not in self.topic.topic.subscriptions:
            rule = self._broker.namespaces.effective(self.topic.topic_name)
            if not rule.auto_subscription_creation.allow_auto_subscription_creation:
                raise PulsarError(
                    ServerError.NotAllowedError,
                    "Could not create the initial subscription due to the auto subscription "
                    "creation is not allowed.",
                )

    @property
    def _initial_subscription(self) -> str:
        name = self._asked.initial_subscription_name
        return subscription_name(name) if name and self.topic.is_persistent else ""

    def _enter(self) -> None:
        policies = self._broker.namespaces.effective(self.topic.topic_name)
        try:
            self._access = self._broker.access.enter(
                self.topic, self, policies.max_producers_per_topic
            )
        except NameTaken as taken:
            holder = taken.holder
            if self._has_probed or holder.connection is self.connection:
                raise
            self._has_probed = True
            holder.connection.probe(partial(self._probed, taken))
            return
        wanted = self._initial_subscription
        if wanted:
            self._subscribe(wanted)
        if policies.deduplication and self.topic.is_persistent:
            self._sequence = self._broker.deduplication.open(self.topic, self.name)
        self._broker.engine.after_durable(self._opened)

    def _probed(self, taken: NameTaken, is_alive: bool, /) -> None:
        """Whoever has its name was asked whether he is still there."""
        if self._state is not _State.OPENING:
            return
        try:
            if is_alive:
                raise taken
            taken.holder.connection_lost()
            self._enter()
        except PulsarError as error:
            self._fail(error)
        except PenstockError as error:
            self._fail(PulsarError(ServerError.MetadataError, str(error)))

    def _subscribe(self, name: str) -> None:
        """The subscription that is to see everything that it sends."""
        topic = self.topic
        found = topic.topic.subscriptions.get(name)
        if found is None or not found.reads(topic.queue.queue_id):
            options = SubscriptionOptions(start=Start.EARLIEST, whole_batches=True)
            self._broker.engine.subscribe_queue(
                topic.topic_name, name, topic.queue.queue_id, options
            )

    def _opened(self) -> None:
        """All that was made for it is durable."""
        if self._state is not _State.OPENING:
            return
        if self._access.is_waiting:
            self._state = _State.WAITING
        else:
            self._begin()
        self._say_success(self._asked.request_id)

    def _begin(self) -> None:
        """It may publish from now on."""
        self._state = _State.READY
        self._commands.note_open(self.producer_id)
        topic, broker = self.topic, self._broker
        channel = self.connection.engine_connection.open_channel(self._label)
        self._channel = channel
        self.connection.channels[channel] = self
        if topic.is_persistent:
            self._route = DirectRoute(topic.queue)
            self._ledger_id = topic.queue.incarnation
        else:
            self._route = broker.engine.non_persistent.route(topic.topic_name, topic.number)

    def promoted(self, epoch: int) -> None:
        self._access = Access(epoch)
        if self._state is _State.WAITING:
            self._broker.engine.after_durable(self._promoted_durably)

    def _promoted_durably(self) -> None:
        if self._state is _State.WAITING:
            self._begin()
            self._say_success(self._asked.request_id)

    def asked_again(self, request_id: int) -> None:
        """PRODUCER with an id that is in use."""
        if self._state is not _State.READY:
            raise PulsarError(
                ServerError.ServiceNotReady, "Producer is already present on the connection"
            )
        self._say_success(request_id)

    def _say_success(self, request_id: int) -> None:
        reply = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        said = reply.producer_success
        said.request_id = request_id
        said.producer_name = self.name
        said.last_sequence_id = self._last_sequence_id()
        said.schema_version = self._schema_version
        if self._access.epoch is not None:
            said.topic_epoch = self._access.epoch
        said.producer_ready = self._state is _State.READY
        self.connection.send(reply)

    def _last_sequence_id(self) -> int:
        sequence = self._sequence
        if sequence is None:
            return -1
        sequence.resolve(self._broker.engine.durable_position)
        return sequence.persisted

    def _fail(self, error: PulsarError) -> None:
        """It is not let in; whoever asked hears why."""
        self.connection.fail(self._asked.request_id, error)
        self._commands.forget(self)
        self.connection_lost()

    # SEND.

    def add(self, send: CommandSend, tail: bytes) -> bool:
        """A SEND came, ``flush`` follows; True for the first one of a read."""
        if not self._may_send():
            return False
        if not tail:
            raise CloseConnection("SEND without a payload")
        is_first = self._begin_read()
        if not check(tail):
            self._send_error(send, ServerError.ChecksumError, "Checksum failed on the broker")
            return False
        record = make_record(tail, self._wall_ms)
        # The usual SEND costs no more than these looks.
        is_checked = bool(
            self._judges_all
            or len(tail) > self._size_max
            or record.shape.deliver_ms
            or send.txnid_most_bits
            or send.txnid_least_bits
        )
        return self._take(send, record, is_checked=is_checked) and is_first

    def add_run(self, run: SendRun) -> bool:
        """The same for many SENDs that are like each other."""
        if not self._may_send():
            return False
        is_first = self._begin_read()
        records, numbers = run.records, run.sequence_ids
        if self._judges_all or max([len(each.origin) for each in records]) > self._size_max:
            producer_id = self.producer_id
            for record, number in zip(records, numbers, strict=True):
                send = CommandSend(producer_id=producer_id, sequence_id=number)
                self._take(send, record, is_checked=True)
            return is_first and bool(self._arrived)
        route, token = self._route, self._token + 1
        self._token += len(records)
        # By place, in the order of the fields: by name it would take twice as long.
        self._arrived += [
            SendPublication(record, (), NO_OFFSET, (), route, each, True, (), number)
            for record, each, number in zip(records, count(token), numbers, strict=False)
        ]
        return is_first

    def _may_send(self) -> bool:
        """False: it is closed, which its client will hear."""
        if self._state is _State.READY:
            return True
        if self._state is _State.SHUT:
            return False
        raise CloseConnection(f"SEND to producer {self.producer_id}, which is not ready")

    def _begin_read(self) -> bool:
        """True for the first SEND of a read."""
        if self._arrived:
            return False
        self._look_at_rules()
        return True

    def _take(self, send: CommandSend, record: Record, *, is_checked: bool) -> bool:
        """False: it is not stored, and has been answered."""
        publication = SendPublication(
            record,
            route=self._route,
            token=self._token + 1,
            is_mandatory=True,
            sequence_id=send.sequence_id,
            highest_sequence_id=send.highest_sequence_id or NO_ID,
        )
        if is_checked and not self._may_be_stored(send, publication):
            return False
        self._token += 1
        self._arrived.append(publication)
        return True

    def _look_at_rules(self) -> None:
        """What may have changed since the last read."""
        topic, broker = self.topic, self._broker
        self._wall_ms = broker.clock.wall_ms()
        self._size_max = broker.all_settings.topics.message_bytes_max
        self._judges_all = True
        if not topic.is_persistent:
            return
        size_max = topic.topic.policy.message_bytes_max
        if size_max:
            self._size_max = min(self._size_max, size_max)
        is_deduplicated = broker.namespaces.effective(topic.topic_name).deduplication
        if self._sequence is not None and self._sequence.is_forgotten:
            self._sequence = None
        if is_deduplicated and self._sequence is None:
            self._sequence = broker.deduplication.open(topic, self.name)
        self._judges_all = self._sequence is not None

    def _may_be_stored(self, send: CommandSend, publication: SendPublication) -> bool:
        """False: it has been answered."""
        record = publication.record
        not_allowed = self._forbidden(send, record)
        if not_allowed:
            self._send_error(send, ServerError.NotAllowedError, not_allowed)
            return False
        if not self.topic.is_persistent:
            commands = self._commands
            if (
                commands.unlogged_in_flight
                >= self._broker.settings.max_concurrent_non_persistent_messages
            ):
                self._send_no_id(send)
                return False
            commands.unlogged_in_flight += 1
            return True
        sequence = self._sequence
        if sequence is None or not _counts(send, record):
            return True
        number = last_number(send.sequence_id, send.highest_sequence_id)
        verdict = sequence.judge(signed(send.sequence_id), self._broker.engine.durable_position)
        if verdict is Verdict.NEW:
            if self._channel is not None:
                sequence.push(number, publication, self._channel)
            return True
        if verdict is Verdict.DUPLICATE:
            self._send_no_id(send)
        else:
            self._send_error(
                send,
                ServerError.PersistenceError,
                f"[{self.topic.name}][{self.name}]Cannot determine whether the message is a "
                "duplicate at this time",
            )
        return False

    def _forbidden(self, send: CommandSend, record: Record) -> str:
        size = len(record.origin)
        if size > self._size_max:
            return f"Message of {size} bytes is larger than the {self._size_max} allowed"
        if send.txnid_most_bits or send.txnid_least_bits:
            return "Transactions are not enabled."
        deliver_ms = record.shape.deliver_ms
        if deliver_ms and self.topic.is_persistent:
            rule = self._broker.namespaces.effective(self.topic.topic_name).delayed_delivery
            delay_ms_max = rule.max_delivery_delay_in_millis
            if delay_ms_max and deliver_ms - self._wall_ms > delay_ms_max:
                return f"Delivery is delayed by more than the {delay_ms_max} ms allowed"
        return ""

    def flush(self) -> None:
        """The SENDs of one read go on."""
        publications, self._arrived = self._arrived, []
        channel = self._channel
        if not publications or channel is None:
            return
        if not self.topic.is_persistent:
            # It goes for want of use although producers are there, and comes back.
            _ = self.topic.unlogged
        self._pending += len(publications)
        self._rates.count(publications, self._broker.clock.monotonic_ms())
        channel.publish(publications)

    # Answers.

    def confirmed(self, confirmations: list[Confirmation]) -> None:
        stored = cast("list[SendPublication]", confirmations)
        producer_id, ledger_id = self.producer_id, self._ledger_id
        numbers = [each.sequence_id for each in stored]
        # Where nothing is stored all ids are (0, 0).
        entries = [each.first_offset for each in stored] if ledger_id else [0] * len(stored)
        highest = [each.highest_sequence_id for each in stored]
        if not self._late and highest.count(NO_ID) == len(highest):
            receipts = encode_receipts(producer_id, ledger_id, numbers, entries)
        else:
            receipts = [
                encode_receipt(producer_id, number, ledger_id, entry, last)
                for number, entry, last in zip(numbers, entries, highest, strict=True)
            ]
            if self._late:
                receipts = self._with_late(stored, receipts)
        self.connection.write(b"".join(receipts))
        self._ended(len(stored))

    def refused(self, refusals: list[tuple[int, Refusal]]) -> None:
        """Nothing behind it is stored either (``stops_at_refusal``)."""
        if self._state is _State.READY:
            self._state = _State.SHUT
            refusal = refusals[0][1]
            logger.info(
                "producer closed",
                extra={
                    "producer": self.name,
                    "topic": str(self.topic.name),
                    "connection": self.connection.name,
                    "reason": refusal.text,
                },
            )
        self._ended(len(refusals))

    def _ended(self, count: int) -> None:
        self._pending -= count
        if not self.topic.is_persistent:
            self._commands.unlogged_in_flight -= count
        elif self._sequence is not None:
            self._sequence.resolve(self._broker.engine.durable_position)
        if not self._pending and not self._arrived:
            if self._state is _State.SHUT:
                self._say_closed()
            elif self._close_request is not None:
                self._finish_close(self._close_request)

    def _with_late(self, stored: list[SendPublication], receipts: list[bytes]) -> list[bytes]:
        """Receipts, and between them the answers whose turn has come."""
        late = self._late
        answers: list[bytes] = []
        for each, receipt in zip(stored, receipts, strict=True):
            answers.append(receipt)
            while late and late[0][0] <= each.token:
                answers.append(late.popleft()[1])
        return answers

    def _answer(self, command: BaseCommand) -> None:
        """Now, or behind the receipts of the SENDs before it."""
        data = encode(command)
        if not self._pending and not self._arrived:
            self.connection.write(data)
            return
        if len(self._late) >= LATE_MAX:
            raise CloseConnection(f"{LATE_MAX} answers to producer {self.producer_id} wait")
        self._late.append((self._token, data))

    def _send_error(self, send: CommandSend, code: ServerError, text: str) -> None:
        reply = BaseCommand(type=BaseCommand.SEND_ERROR)
        said = reply.send_error
        said.producer_id = self.producer_id
        said.sequence_id = send.sequence_id
        said.error = PulsarError(code, text).wire_code
        said.message = text
        self._answer(reply)

    def _send_no_id(self, send: CommandSend) -> None:
        """A receipt for what is not stored: a duplicate, or one too many without a log."""
        reply = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        said = reply.send_receipt
        said.producer_id = self.producer_id
        said.sequence_id = send.sequence_id
        said.highest_sequence_id = send.highest_sequence_id or NO_ID
        said.message_id.ledgerId = said.message_id.entryId = NO_ID
        self._answer(reply)

    # Ends.

    def close(self, request_id: int) -> None:
        """CLOSE_PRODUCER: what it sent is finished first."""
        if self._state is _State.READY and self._pending:
            self._state = _State.LEAVING
            self._close_request = request_id
        else:
            self._finish_close(request_id)

    def _finish_close(self, request_id: int) -> None:
        self._close_request = None
        self._commands.forget(self)
        self._let_go()
        self.connection.succeed(request_id)

    def topic_closed(self, cause: str) -> None:
        """Deleted, unloaded, ended, or the broker stops: the client is to come again."""
        if self._state in (_State.OPENING, _State.WAITING):
            self._fail(topic_fenced())
        elif self._state is _State.LEAVING and self._close_request is not None:
            self._finish_close(self._close_request)
        elif self._state is not _State.OVER:
            self._say_closed()

    def _say_closed(self) -> None:
        self._commands.note_closed(self.producer_id)
        self._commands.forget(self)
        self._let_go()
        reply = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        reply.close_producer.producer_id = self.producer_id
        reply.close_producer.request_id = NO_ID
        self.connection.send(reply)

    def fenced_out(self, *, was_waiting: bool) -> None:
        """Another one took over. As in Pulsar nothing is said; its next SEND will hang up."""
        if was_waiting:
            self._fail(PulsarError(ServerError.ProducerFenced, "Fenced out"))
        else:
            self._commands.forget(self)
            self._let_go()

    def connection_lost(self) -> None:
        """Everything goes back."""
        self._let_go()

    def _let_go(self) -> None:
        if self._state is _State.OVER:
            return
        self._state = _State.OVER
        channel, self._channel = self._channel, None
        if channel is not None:
            self.connection.channels.pop(channel, None)
            channel.abort()
            if not self.topic.is_persistent:
                self._commands.unlogged_in_flight -= self._pending + len(self._arrived)
        self._arrived.clear()
        self._late.clear()
        if self._sequence is not None:
            self._broker.deduplication.close(self._sequence)
        if self._has_topic:
            self._broker.access.leave(self.topic, self)
            self.topic.leave(self)

    # What operators see.

    @property
    def is_ready(self) -> bool:
        return self._state is _State.READY

    @property
    def is_waiting(self) -> bool:
        """For the producers before it."""
        return self._access.is_waiting

    def view(self) -> ProducerView:
        rates = self._rates
        rates.look(self._broker.clock.monotonic_ms())
        return ProducerView(
            name=self.name,
            producer_id=self.producer_id,
            access_mode=ACCESS_MODE_NAMES[self.mode],
            address=str(self.connection.peer),
            client_version=self.connection.client_version,
            connected_ms=self.connected_ms,
            is_encrypted=self._asked.encrypted,
            metadata={each.key: each.value for each in self._asked.metadata},
            messages=rates.messages,
            bytes=rates.bytes,
            entries=rates.entries,
            pending=self._pending,
            message_rate=rates.message_rate,
            byte_rate=rates.byte_rate,
        )


ACCESS_MODE_NAMES: Final = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


class ProducerView(msgspec.Struct, frozen=True):
    """One producer, at one moment."""

    name: str
    producer_id: int
    access_mode: str
    address: str
    client_version: str
    connected_ms: int
    """Wall time."""
    is_encrypted: bool
    """What it sends is, as it says."""
    metadata: dict[str, str]
    messages: int
    bytes: int
    entries: int
    """SENDs, each a message or a batch."""
    pending: int
    """SENDs without a receipt."""
    message_rate: float
    byte_rate: float
    """Per second."""


class _Rates:
    """What a producer sent, in all and per second."""

    __slots__ = (
        "_from_bytes", "_from_messages", "_from_ms", "byte_rate", "bytes", "entries",
        "message_rate", "messages",
    )  # fmt: skip

    def __init__(self, now_ms: int) -> None:
        self.messages = 0
        self.bytes = 0
        self.entries = 0
        self.message_rate = 0.0
        self.byte_rate = 0.0
        self._from_ms = now_ms
        self._from_messages = 0
        self._from_bytes = 0

    def count(self, publications: list[Publication], now_ms: int) -> None:
        self.look(now_ms)
        self.entries += len(publications)
        self.messages += sum([each.record.shape.messages for each in publications])
        self.bytes += sum([len(each.record.origin) for each in publications])

    def look(self, now_ms: int) -> None:
        """A span is over: its rates are told until the next one is."""
        span_ms = now_ms - self._from_ms
        if span_ms >= RATE_MS:
            self.message_rate = (self.messages - self._from_messages) * 1000 / span_ms
            self.byte_rate = (self.bytes - self._from_bytes) * 1000 / span_ms
            self._from_ms = now_ms
            self._from_messages, self._from_bytes = self.messages, self.bytes


def _open_topic(broker: PulsarBroker, text: str, maker: str) -> PulsarTopic:
    try:
        name = parse_name(text)
    except InvalidTopicName as problem:
        raise PulsarError(ServerError.InvalidTopicName, str(problem)) from None
    try:
        return broker.topics.open(name, may_create=True, maker=maker)
    except PulsarError as error:
        if error.code is ServerError.TopicNotFound and broker.namespaces.exists(name.namespace):
            raise _not_found(name) from None
        raise


def _not_found(name: PulsarName) -> PulsarError:
    """Pulsar has other words for a producer than for a consumer."""
    return PulsarError(ServerError.TopicNotFound, f"Topic not found {name}")


def _counts(send: CommandSend, record: Record) -> bool:
    """Whether its number is judged: not that of a chunk but the last."""
    if not send.is_chunk:
        return True
    try:
        return is_judged(read_metadata(record.origin)[0])
    except Unreadable:
        return True
