"""POP_MESSAGE: the broker hands out messages of shared queues, each for a limited time (sheet 2.7).

Order of a pop: with a chance of 20 % the group's retry topic first; then the queue asked for, or
all queues of the topic from a random one on; then, if there is room and it was not looked at, the
retry topic. An orderly pop takes from one queue after the other, too, but never retries, and from a
queue only while nothing of it is out. Nothing found: the request waits (``pop_wait.py``).

Answers carry lists from which the client makes a receipt for every message. What a filter refuses
is settled and passed over; a place that retention removed is corrected by the read itself.

Not here: receipts coming back (``ack.py``, ``invisible.py``), where a group begins
(``pop_reader.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.pop_answer import PopTaken
from penstock.adapters.rocketmq.pop_checks import PopPlace, checked
from penstock.adapters.rocketmq.pop_counts import PopCounts, PopEvent, PopOutcome
from penstock.adapters.rocketmq.pop_reader import PopReader
from penstock.adapters.rocketmq.pop_wait import Poll, PollResult
from penstock.adapters.rocketmq.pops import Pops
from penstock.adapters.rocketmq.replies import Answer
from penstock.engine.subscription.subscription import PopOrder
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.headers import PopHeader, fields, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session
    from penstock.engine.filter.filters import Filter
    from penstock.engine.topic import Queue
    from penstock.wire.rocketmq.command import Command

RETRY_FIRST_PERCENT: Final = 20
"""``popFromRetryProbability``."""

BYTES_MAX: Final = 256 * 1024
"""Bytes after which an answer ends; its last message may cross the line."""

Source = tuple[PopReader, "Queue"]


class PopRequest:
    """One pop, from its arrival to its answer."""

    __slots__ = ("_command", "_counts", "_header", "_place", "_pops", "_session")

    def __init__(self, session: Session, command: Command, header: PopHeader) -> None:
        self._session = session
        self._command = command
        self._header = header
        self._pops = session.house.part(Pops)
        self._place = checked(session.house, header)
        self._counts = session.house.part(PopCounts)

    def run(self) -> None:
        """Serve it now, or let it wait."""
        place, init_mode = self._place, self._header.init_mode
        started = [place.reader.start(queue, init_mode) for queue in place.queues]
        if any(started):
            self._session.house.engine.after_durable(self._resume)
        else:
            self._go()

    def _resume(self) -> None:
        """The group's beginning is stored."""
        if self._session.is_closed or self._place.reader.subscription.is_closed:
            return
        self._place.reader.begun(self._place.queues)
        try:
            self._go()
        except Answer as answer:
            self._session.answer(self._command, answer.code, remark=answer.remark)

    def _go(self) -> None:
        if self._serve():
            return
        header = self._header
        poll = Poll(
            self._session,
            (header.topic, header.consumer_group, max(-1, header.queue_id)),
            kind=(header.order, header.exp_type, header.exp, header.attempt_id),
            look=self._serve,
            time_up=self._time_up,
        )
        result = self._pops.waits.wait(poll, born_ms=header.born_time, poll_ms=header.poll_time)
        if result is PollResult.FULL:
            self._counts.answers[PopOutcome.POLLING_FULL] += 1
            raise Answer(ResponseCode.POLLING_FULL, "POLLING_FULL")
        if result is PollResult.TIMED_OUT:
            self._time_up()
        elif result is PollResult.NOT_POLLING:
            self._counts.answers[PopOutcome.NOT_FOUND] += 1
            raise Answer(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")

    def _time_up(self) -> None:
        self._counts.answers[PopOutcome.POLLING_TIMEOUT] += 1
        self._session.answer(
            self._command, ResponseCode.POLLING_TIMEOUT, remark="NO_MESSAGE_IN_QUEUE"
        )

    def _serve(self) -> bool:
        """Take what there is and answer; False when there is nothing."""
        header, pops = self._header, self._pops
        if self._place.reader.subscription.is_closed:
            return False
        taken = PopTaken(self._session.house, is_orderly=header.order)
        rest = 0
        for reader, queue in self._sources():
            rest += self._take(reader, queue, taken)
        if not taken.messages:
            return False
        revive_qid = pops.next_revive_qid(is_orderly=header.order)
        pop_ms = pops.pop_ms(is_again=taken.has_again)
        taken.sign(pop_ms, revive_qid)
        answer = taken.answer(
            pop_ms=pop_ms, invisible_ms=header.invisible_time, revive_qid=revive_qid, rest=rest
        )
        self._counts.answers[PopOutcome.FOUND] += 1
        self._counts.messages[PopEvent.POPPED] += taken.messages
        self._session.answer(self._command, ext=fields(answer), body=taken.body(), remark="FOUND")
        return True

    def _sources(self) -> list[Source]:
        """Where to look, in order."""
        place, header = self._place, self._header
        normal: list[Source] = [(place.reader, queue) for queue in self._queues(place)]
        if header.order or place.reader.flag:
            return normal
        retry = self._pops.retry_reader(header.topic, header.consumer_group)
        if retry is None:
            return normal
        retries: list[Source] = [(retry, queue) for queue in retry.topic.queues]
        if self._session.house.random.randrange(100) < RETRY_FIRST_PERCENT:
            return retries + normal
        return normal + retries

    def _queues(self, place: PopPlace) -> list[Queue]:
        queues = place.queues
        if len(queues) < 2:
            return list(queues)
        first = self._session.house.random.randrange(len(queues))
        return [*queues[first:], *queues[:first]]

    def _take(self, reader: PopReader, queue: Queue, taken: PopTaken) -> int:
        """Add what one queue has; returns how many messages are left in it."""
        header = self._header
        reader.start(queue, header.init_mode)  # retries begin at their oldest, whatever happens
        room = header.max_msg_nums - taken.messages
        room_bytes = BYTES_MAX - taken.size
        if room <= 0 or room_bytes <= 0:
            return reader.ready(queue)
        consumer = reader.plain
        if header.order:
            if reader.is_blocked(queue, header.attempt_id):
                return reader.ready(queue)
            reader.begin_attempt(queue, header.attempt_id)
            consumer = reader.orderly
        order = PopOrder(room, room_bytes, header.invisible_time, self._wanted(reader))
        deliveries = reader.subscription.pop(consumer, queue.queue_id, order)
        if deliveries:
            taken.add(reader, queue, deliveries)
        return reader.ready(queue)

    def _wanted(self, reader: PopReader) -> Filter | None:
        place = self._place
        return place.wanted if reader is place.reader else place.wanted_again


def pop(session: Session, command: Command) -> None:
    """POP_MESSAGE."""
    PopRequest(session, command, parse(PopHeader, command)).run()


HANDLERS: Final[dict[int, Handler]] = {RequestCode.POP_MESSAGE: pop}
