"""NOTIFICATION: wait until there is something to pop, without popping it (sheet 1.8).

Proxies use it to hold many clients with one request. It waits in the same table as pops do, and is
answered with ``hasMsg`` either way; a full table says so instead of waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.pop_checks import readable
from penstock.adapters.rocketmq.pop_wait import Poll, PollResult
from penstock.adapters.rocketmq.pops import Pops
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.headers import NotificationAnswer, NotificationHeader, fields, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.pop_reader import PopReader
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session
    from penstock.engine.topic import Queue
    from penstock.wire.rocketmq.command import Command


def notification(session: Session, command: Command) -> None:
    """NOTIFICATION."""
    header = parse(NotificationHeader, command)
    place = readable(session.house, header)
    pops = session.house.part(Pops)

    def say(has_msg: bool, *, is_full: bool = False) -> None:
        answer = NotificationAnswer(has_msg=has_msg, polling_full=is_full)
        session.answer(command, ext=fields(answer))

    def look() -> bool:
        has_msg = any(_has_ready(header, place.reader, each) for each in place.queues)
        if not has_msg and not header.order and not place.reader.flag:
            retry = pops.retry_reader(header.topic, header.consumer_group)
            if retry is not None:
                has_msg = any(_has_ready(header, retry, each) for each in retry.topic.queues)
        if has_msg:
            say(True)
        return has_msg

    if look():
        return
    poll = Poll(
        session,
        (header.topic, header.consumer_group, max(-1, header.queue_id)),
        kind=("notification", header.order, header.attempt_id),
        look=look,
        time_up=lambda: say(False),
    )
    result = pops.waits.wait(poll, born_ms=header.born_time, poll_ms=header.poll_time)
    if result is not PollResult.HELD:
        say(False, is_full=result is PollResult.FULL)


def _has_ready(header: NotificationHeader, reader: PopReader, queue: Queue) -> bool:
    """Whether a pop of this kind would find something."""
    if header.order and reader.is_blocked(queue, header.attempt_id):
        return False
    return reader.waiting(queue) > 0


HANDLERS: Final[dict[int, Handler]] = {RequestCode.NOTIFICATION: notification}
