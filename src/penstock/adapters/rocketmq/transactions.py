"""Transactions: half messages, their decision, and asking back for it (sheet 2.9).

A half message is stored once, for the topic it is meant for, as a record that waits for a decision
(D14): no queue shows it. COMMIT lets it go into its queue, ROLLBACK drops it; both are one record
in the log, so a crash leaves it decided or open and never both. Its bytes are those of the
committed message from the start. The broker's numbers for it, ``tranStateTableOffset`` and
``commitLogOffset``, are both its position.

A half message that stays open is asked about (39), any living client of its producer group, first
``transaction_immunity_ms`` after it was stored (or as long as it says itself), then every
``transaction_check_ms``. After ``transaction_checks_max`` questions it goes to
TRANS_CHECK_MAX_TIME_TOPIC; one older than what the broker keeps is dropped. How often was asked
survives a restart (rows of kind ``rocketmq.half``).

Who waits is what the engine says waits: a half message whose producer went before its answer is
found by the next look all the same.

Not here: making the record of a send (``send.py``), letting go and dropping (``engine/delay.py``).
"""

from __future__ import annotations

import logging
from collections import Counter
from heapq import heappop, heappush
from typing import Final

from penstock.adapters.rocketmq.broker import RemotingPeer, RocketmqBroker
from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.requests import ErrorResponse, system_error
from penstock.model.ids import ConnectionId
from penstock.model.record import Record, RecordFlag, Wire
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    fields,
    parse,
)
from penstock.wire.rocketmq.message_id import offset_message_id
from penstock.wire.rocketmq.properties import UNIQ_KEY, value_of, with_property
from penstock.wire.rocketmq.stored import (
    RocketmqFacts,
    SysFlag,
    decode_stored,
    placed,
    retopic,
    sys_flag_of,
)

logger = logging.getLogger(__name__)

CHECKS_PER_SCAN_MAX: Final = 500
"""Questions asked in one go: more would hold the loop."""

REPORT_MS: Final = 60_000
"""How often the log tells of half messages that nobody decides about."""

HALF_KIND: Final = "rocketmq.half"
MAX_CHECKS_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"

TRAN_MSG: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_IMMUNITY_DIGITS_MAX: Final = 9

NO_HALF: Final = "Find prepared transaction message failed"
WRONG_GROUP: Final = "The producer group wrong"
WRONG_STATE_OFFSET: Final = "The transaction state table offset wrong"

_TRANSACTION_BITS: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(SysFlag.TRANSACTION_ROLLBACK)
_FACTS: Final = RocketmqFacts()


def end_transaction(connection: RemotingPeer, command: Command) -> None:
    """END_TRANSACTION; usually oneway."""
    header = parse(EndTransactionHeader, command)
    if header.commit_or_rollback not in (_COMMIT, _ROLLBACK):
        connection.answer(command)  # "unknown": the producer will be asked again
        return
    broker = connection.broker
    broker.service(TransactionService).end(header)
    broker.engine.after_durable(lambda: connection.answer(command))


class TransactionService:
    """The half messages without a decision, and the questions to their producers."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._settings = broker.settings
        # Position -> how often its producers were asked; bounded by transactions_open_max.
        self._open: dict[int, int] = {}
        self._due_checks: list[tuple[int, int]] = []
        """(when to ask next by monotonic time, position); what is closed meanwhile stays in it."""
        self._scan_ms = 0
        self._ended: Counter[str] = Counter()
        self._report_ms = 0
        self._recover()
        broker.timers.add(self)

    def __len__(self) -> int:
        return len(self._open)

    # The sender's side.

    def check_room(self) -> None:
        """Refuse a half message when too many are open."""
        if len(self._open) >= self._settings.transactions_open_max:
            raise ErrorResponse(
                ResponseCode.SYSTEM_BUSY,
                f"[FLOW_CONTROL]broker busy, start flow control for a while: {len(self._open)} "
                "half messages wait for commit or rollback",
            )

    def stored(self, record: Record) -> None:
        """A half message is durable."""
        self._add(int(record.position), record)

    def end(self, header: EndTransactionHeader) -> None:
        """Commit or roll back, if the half message is the one meant."""
        position = header.commit_log_offset
        record = self._half(position)
        if record is None:
            raise system_error(NO_HALF)
        if _group_of(record) != header.producer_group:
            raise system_error(WRONG_GROUP)
        if header.tran_state_table_offset != record.position:
            raise system_error(WRONG_STATE_OFFSET)
        engine = self._broker.engine
        if header.commit_or_rollback == _COMMIT:
            self._note_keys(position, record)
            engine.release(position)
        else:
            engine.cancel_delayed(position)
        self._close(position)

    # Asking back.

    def next_deadline_ms(self) -> int:
        """When the next question is due, or the next look at what is open."""
        times = [self._scan_ms, *[each[0] for each in self._due_checks[:1]]]
        return min([*times, self._report_ms] if self._ended else times)

    def due(self, now_ms: int) -> None:
        """Ask what is to be asked now."""
        if now_ms >= self._scan_ms:
            self._scan()
        for _ in range(CHECKS_PER_SCAN_MAX):
            if not self._due_checks or self._due_checks[0][0] > now_ms:
                break
            _, position = heappop(self._due_checks)
            if position in self._open:
                self._check(position, now_ms)
        self._report(now_ms)

    def _check(self, position: int, now_ms: int) -> None:
        broker = self._broker
        record = self._half(position)
        if record is None:
            self._close(position)
            return
        age_ms = broker.clock.wall_ms() - record.store_ms
        wait_ms = self._immunity_ms(record) - age_ms
        checks = self._open[position]
        if age_ms > self._settings.retention_ms:
            self._ended["too old, dropped"] += 1
            broker.engine.cancel_delayed(position)
            self._close(position)
        elif checks == 0 and wait_ms > 0:
            heappush(self._due_checks, (now_ms + wait_ms, position))
        elif checks >= self._settings.transaction_checks_max:
            self._give_up(position)
        else:
            self._open[position] = checks + 1
            broker.engine.define(HALF_KIND, str(position), b"%d" % (checks + 1))
            heappush(self._due_checks, (now_ms + self._settings.transaction_check_ms, position))
            self._push_check(record)

    def _push_check(self, record: Record) -> None:
        """Ask some living client of the producer group, if there is one."""
        broker = self._broker
        properties = record.properties
        name = _group_of(record)
        group = broker.producers.group(name)
        member = group.pick() if group is not None else None
        connection = (
            broker.connections.get(ConnectionId(member.connection)) if member is not None else None
        )
        if connection is None:
            self._ended["nobody of its producer group can be asked"] += 1
            return
        position = int(record.position)
        message, _ = decode_stored(record.origin)
        unique_key = value_of(properties, UNIQ_KEY).decode("utf-8", "replace") or None
        header = CheckTransactionHeader(
            topic=message.topic,
            tran_state_table_offset=position,
            commit_log_offset=position,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=offset_message_id(message.store_host, position),
            bname=broker.broker_name,
        )
        body = retopic(
            placed(record.origin, message.queue_id, position, position),
            message.topic,
            sys_flag=sys_flag_of(record.origin) & ~_TRANSACTION_BITS,
        )
        code = int(RequestCode.CHECK_TRANSACTION_STATE)
        connection.push(Command(code, fields(header), body, flag=FLAG_ONEWAY))

    def _give_up(self, position: int) -> None:
        """Asked often enough: an operator may look at it where such messages go."""
        broker = self._broker
        self._ended[f"asked often enough, now in {MAX_CHECKS_TOPIC}"] += 1
        broker.engine.release(position, to=broker.topics.ensure(MAX_CHECKS_TOPIC).topic)
        self._close(position)

    def _report(self, now_ms: int) -> None:
        """One line for all that went wrong since the last one, however many there are."""
        if not self._ended or now_ms < self._report_ms:
            return
        what = "; ".join([f"{count} {text}" for text, count in self._ended.items()])
        logger.warning(
            "half messages without a decision", extra={"count": self._ended.total(), "what": what}
        )
        self._ended.clear()
        self._report_ms = now_ms + REPORT_MS

    # What is open.

    def _half(self, position: int) -> Record | None:
        """The half message at exactly this position, if it waits for a decision."""
        engine = self._broker.engine
        located = engine.locate(position) if engine.is_undecided(position) else None
        if located is None or located.record.wire != Wire.ROCKETMQ:
            return None
        return located.record

    def _add(self, position: int, record: Record | None) -> None:
        if position in self._open:
            return
        self._open[position] = 0
        wait_ms = self._immunity_ms(record)
        heappush(self._due_checks, (self._broker.clock.monotonic_ms() + wait_ms, position))
        self._broker.timers.reschedule()

    def _close(self, position: int) -> None:
        if self._open.pop(position, 0):
            self._broker.engine.define(HALF_KIND, str(position), None)

    def _scan(self) -> None:
        """Bring what is open in line with what the engine holds."""
        self._scan_ms = self._broker.clock.monotonic_ms() + self._settings.transaction_check_ms
        waiting = self._broker.engine.undecided()
        for position in waiting:
            self._add(position, None)
        if len(self._open) > len(waiting):
            for position in self._open.keys() - set(waiting):
                self._close(position)
        if len(self._due_checks) > 2 * len(self._open) + CHECKS_PER_SCAN_MAX:
            self._due_checks = sorted(each for each in self._due_checks if each[1] in self._open)

    def _recover(self) -> None:
        engine = self._broker.engine
        self._scan()
        for key, text in engine.definitions(HALF_KIND).items():
            if int(key) in self._open:
                self._open[int(key)] = int(text)
            else:
                engine.define(HALF_KIND, key, None)

    def _immunity_ms(self, record: Record | None) -> int:
        """How long after publication nobody asks: never longer than it is kept."""
        text = b"" if record is None else value_of(record.properties, IMMUNITY)
        if text.isdigit() and len(text) <= _IMMUNITY_DIGITS_MAX:
            return min(int(text) * 1_000, self._settings.retention_ms + 1)
        return self._settings.transaction_immunity_ms

    def _note_keys(self, position: int, record: Record) -> None:
        """It can be looked up from now on; a half message that is rolled back never can."""
        engine = self._broker.engine
        located = engine.locate(position)
        for queue_id, _ in located.targets if located is not None else ():
            queue = engine.queue(queue_id)
            if queue is not None:
                engine.note_keys(queue.topic, _FACTS.keys(record), position)


# ---- the record of a half message, for ``send.py`` -----------------------------------------------


def is_half(topic: str, properties: bytes) -> bool:
    """True for a message that is to wait for its producer's decision."""
    if b"TRAN_MSG" not in properties or topic.startswith(RETRY_PREFIX):
        return False
    return value_of(properties, TRAN_MSG).lower() == b"true"


def half_properties(properties: bytes) -> bytes:
    """The properties of a half message as it is stored."""
    unique_key = value_of(properties, UNIQ_KEY)
    if not unique_key:
        return properties
    return with_property(properties, TRANSACTION_ID, unique_key.decode("utf-8", "replace"))


def committed_flag(sys_flag: int) -> int:
    """The sysFlag a half message is stored with: readers see it only once it is committed."""
    return sys_flag & ~_TRANSACTION_BITS | _COMMIT


def make_half(record: Record) -> None:
    """Let the record of a half message wait for a decision and for no time."""
    record.reshape(flags=record.flags | RecordFlag.DELAYED, deliver_ms=0)


def _group_of(record: Record) -> str:
    return value_of(record.properties, PRODUCER_GROUP).decode("utf-8", "replace")
