"""The publishing side of one session: sends in lists, answered when they are durable.

All sends of one read are checked and published as one list, if nobody waits in their class and the
log takes what it gets; else each waits by itself, so that F5's ages, order and fairness hold.

Not here: what is checked and stored (``send.py``), token and confirm (``storing.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.adapters.rocketmq.busy import refusal_answer, waited_remark
from penstock.adapters.rocketmq.classes import SEND
from penstock.adapters.rocketmq.replies import Answer
from penstock.adapters.rocketmq.send import Sender
from penstock.adapters.rocketmq.storing import Publisher, Sending, Storing
from penstock.engine.ports import Confirmation, Publication, Route
from penstock.flow.fast_fail import Busy
from penstock.model.errors import PenstockError
from penstock.model.refusal import Refusal
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import FLAG_RESPONSE, Command, Malformed
from penstock.wire.rocketmq.frames import SendFrame, encode, send_answer

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.session import Session


class SendDesk:
    """Sends of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._house = session.house
        self._waiting = session.house.engine.waiting
        self._arrived: list[SendFrame] = []
        # By route: order matters within a queue only, and the engine moves runs of one queue.
        self._checked: dict[Route | None, list[Publication]] = {}
        self._publisher = Publisher(session.channel, self._answer, self._refuse)
        self._sender = Sender(session, self)

    def __len__(self) -> int:
        """Publishes that wait for the disk."""
        return len(self._publisher)

    # For the session.

    def add(self, send: SendFrame) -> None:
        """A send came; ``flush`` follows before the read is over."""
        self._arrived.append(send)

    def flush(self) -> None:
        """Publish what came, or let it wait."""
        if not self._arrived:
            return
        sends, self._arrived = self._arrived, []
        refusal = self._house.engine.refuse_now()
        if refusal is not None:
            code, remark = refusal_answer(refusal, is_arrival=True)
            self._waiting.turned_away(SEND, refusal, len(sends))
            for send in sends:
                self.end(send, code, remark)
        elif self._waiting.admit(SEND, len(sends)):
            self._run(sends)
        else:
            for send in sends:
                self._waiting.submit(SEND, send.header.topic, _WaitingSend(self, send))

    def confirmed(self, confirmations: list[Confirmation]) -> None:
        """Durable."""
        self._publisher.confirmed(confirmations)

    def refused(self, refusals: list[tuple[int, Refusal]]) -> None:
        """Not stored."""
        self._publisher.refused(refusals)

    def clear(self) -> None:
        """The peer is gone."""
        self._publisher.clear()

    # For the families.

    def store(self, storings: list[Storing]) -> None:
        """Publish messages; each calls back when it is durable or refused."""
        self._publisher.put(list(storings))

    def run(self, send: SendFrame) -> None:
        """Check and publish one send that has waited, or came in a general frame."""
        refusal = self._house.engine.refuse_now()
        if refusal is not None:
            self._refuse(send, refusal)
        elif not self._session.is_closed:
            self._run([send])

    def end(self, send: SendFrame, code: int, remark: str) -> None:
        """Answer a send that is not stored."""
        if not send.is_oneway and not self._session.is_closed:
            command = Command(
                code, {}, b"", send.opaque, FLAG_RESPONSE, remark, serialization=send.serialization
            )
            self._session.write(encode(command))

    def publish(self) -> None:
        """Hand over what is checked so far; ``_run`` calls it at its end."""
        checked = self._checked
        if checked:
            self._checked = {}
            for run in checked.values():
                self._publisher.put(run)

    def _run(self, sends: list[SendFrame]) -> None:
        prepare = self._sender.prepare
        for send in sends:  # the dictionary is another one after each ``publish``
            try:
                sending = prepare(send)
            except Answer as answer:
                self.end(send, answer.code, answer.remark)
            except (Malformed, PenstockError) as problem:
                self.end(send, ResponseCode.SYSTEM_ERROR, str(problem))
            else:
                if sending is not None:
                    run = self._checked.get(sending.route)
                    if run is None:
                        self._checked[sending.route] = [sending]
                    else:
                        run.append(sending)
        self.publish()

    def _answer(self, sendings: list[Sending]) -> None:
        host_hex = self._house.store_host_hex
        self._session.write(
            *[
                send_answer(
                    each.send,
                    each.record.position,
                    each.first_offset,
                    host_hex=host_hex,
                    queue_id=each.queue_number,
                    unique_key=each.unique_key,
                )
                for each in sendings
                if each.send is not None
            ]
        )

    def _refuse(self, send: SendFrame, refusal: Refusal) -> None:
        code, remark = refusal_answer(refusal)
        self.end(send, code, remark)


class _WaitingSend:
    """A send in the waiting room; satisfies ``engine.waiting.Request``."""

    __slots__ = ("_desk", "_send")

    def __init__(self, desk: SendDesk, send: SendFrame) -> None:
        self._desk = desk
        self._send = send

    def run(self) -> None:
        self._desk.run(self._send)

    def refuse(self, busy: Busy) -> None:
        self._desk.end(self._send, ResponseCode.SYSTEM_BUSY, waited_remark(busy))
