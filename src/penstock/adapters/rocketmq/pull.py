"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): read from an offset, or wait for something new.

An answer is a header and the stored messages one behind the other, as they lie in the log. A pull
that finds nothing new (19) waits if it may: until a message arrives that its filter wants, or its
time is up; then it is answered with whatever there is, and not held again. The offset a consumer
commits with its pull counts once, when the pull comes in (sheet 2.2).

What counts as "on disk" (smaller answers, so that a reader far behind does not hold the loop):
messages more than ``rocketmq.resident_bytes`` behind the end of the log, for which the page cache
is as unlikely as for RocketMQ's 40 % of memory. Sizes are those of log records. There is no second
copy of a broker, so ``suggestWhichBrokerId`` is always 0.

Invariants: a pull is answered exactly once; nothing that is not durable is shown (D7).
Not here: checks (``pull_checks.py``), statuses (``pull_status.py``), short polling (``pull_hold``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.offset_book import OffsetBook
from penstock.adapters.rocketmq.offset_events import OffsetEvents
from penstock.adapters.rocketmq.pull_checks import PullChecks
from penstock.adapters.rocketmq.pull_hold import Held, ShortHolds
from penstock.adapters.rocketmq.pull_status import Outcome, Status, outcome, reset_outcome
from penstock.adapters.rocketmq.requests import Handler
from penstock.adapters.rocketmq.shown import shown
from penstock.engine.pull import Pull, PullResult
from penstock.engine.topic import Queue
from penstock.log.index import IndexFlag
from penstock.model.record import Wire
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.frames import pull_answer_head
from penstock.wire.rocketmq.headers import PullAnswer, PullFlag, PullHeader, fields, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session

_COMMIT: Final = int(PullFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullFlag.SUSPEND)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_RELEASED: Final = int(IndexFlag.RELEASED)


class Pulls:
    """Serves pulls."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._settings = house.settings
        self._offsets = house.part(OffsetBook)
        self._events = house.part(OffsetEvents)
        self._checks = PullChecks(house)
        self._short = ShortHolds(house)
        self._token = 0
        self.counts: dict[str, int] = dict.fromkeys(Status, 0)
        """Answers by status."""
        house.engine.tallies.show(
            "rocketmq_pulls", "Answers to pulls, by RocketMQ's status", "status", self.counts
        )
        self.messages = 0
        """Messages given out."""

    def serve(self, session: Session, command: Command) -> None:
        """Answer a pull, now or later."""
        header = parse(PullHeader, command)
        queue, chosen, judge = self._checks.check(header, str(session.peer))
        group = header.consumer_group
        reset = self._offsets.take_reset(queue, group)
        if reset is not None:
            nothing = (queue.index.min_offset, queue.visible_end(False))
            self._write(session, command, reset_outcome(reset), nothing, [])
            return
        pull = self._pull(session, header, queue)
        pull.filter, pull.prefilter = chosen, judge
        may_wait = bool(header.sys_flag & _SUSPEND) and not command.is_oneway
        if may_wait and self._settings.is_long_polling:
            wait_ms = min(header.suspend_timeout_millis, self._settings.suspend_ms_max)
            pull.deadline_ms = self._house.clock.monotonic_ms() + wait_ms

        def answered(pull: Pull, result: PullResult) -> None:
            self._answer(session, command, group, queue, pull=pull, result=result)

        if header.sys_flag & _COMMIT:
            self._offsets.commit(queue, group, header.commit_offset, session.name)
        result = self._house.engine.pulls.pull(pull)
        if result is None:
            session.await_pull(pull.token, answered)
            return
        if may_wait and not self._settings.is_long_polling:
            wait_ms = self._settings.short_polling_ms
            deadline_ms = self._house.clock.monotonic_ms() + wait_ms
            held = Held(session, queue, pull, deadline_ms, answered)
            if outcome(pull, result).code == _NOT_FOUND and self._short.hold(held):
                return
        answered(pull, result)

    def _pull(self, session: Session, header: PullHeader, queue: Queue) -> Pull:
        self._token += 1
        settings = self._settings
        messages_max, bytes_max = settings.pull_messages_max, settings.pull_bytes_max
        if self._is_on_disk(queue, header.queue_offset):
            messages_max = settings.pull_disk_messages_max
            bytes_max = settings.pull_disk_bytes_max
        if header.max_msg_bytes is not None and header.max_msg_bytes > 0:
            bytes_max = min(bytes_max, header.max_msg_bytes)
        return Pull(
            session,
            queue,
            header.queue_offset,
            messages_max=min(header.max_msg_nums, messages_max),
            bytes_max=bytes_max,
            token=self._token,
        )

    def _is_on_disk(self, queue: Queue, offset: int) -> bool:
        cold_end = self._house.engine.log_end - self._settings.resident_bytes
        if cold_end <= 0:
            return False
        found = queue.index.entries(offset, 1) if offset >= 0 else []
        return bool(found) and found[0][0] < cold_end

    def _answer(
        self,
        session: Session,
        command: Command,
        group: str,
        queue: Queue,
        *,
        pull: Pull,
        result: PullResult,
    ) -> None:
        if session.is_closed:
            return
        end = outcome(pull, result)
        if end.code == _MOVED:
            move = (pull.offset, end.next_offset)
            self._events.moved(session, group, queue, move, end.status)
        body = self._body(queue, pull, result) if result.records else []
        self._write(session, command, end, (result.min_offset, result.max_offset), body)

    def _body(self, queue: Queue, pull: Pull, result: PullResult) -> list[bytes]:
        """The messages, one behind the other."""
        messages: list[bytes] = []
        for record, entry in zip(result.records, result.entries, strict=True):
            if record.wire == _ROCKETMQ and not entry[7] & _RELEASED:
                messages.append(record.origin)
            else:
                found = shown(self._house, queue, record, entry)
                # A batch of another protocol may begin below the offset that was asked for.
                messages += found[max(0, pull.offset - entry[1]) :] or found
        self.messages += len(messages)
        return messages

    def _write(
        self,
        session: Session,
        command: Command,
        end: Outcome,
        span: tuple[int, int],
        body: list[bytes],
    ) -> None:
        self.counts[end.status] += 1
        if command.is_oneway:
            return
        if command.serialization:
            answer = PullAnswer(
                next_begin_offset=end.next_offset, min_offset=span[0], max_offset=span[1]
            )
            session.answer(
                command, end.code, ext=fields(answer), body=b"".join(body), remark=end.status
            )
            return
        head = pull_answer_head(
            command.opaque,
            end.next_offset,
            *span,
            body_bytes=sum(map(len, body)),
            code=end.code,
            remark=end.status,
        )
        session.write(head, *body)


def _pull(session: Session, command: Command) -> None:
    session.house.part(Pulls).serve(session, command)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
}
