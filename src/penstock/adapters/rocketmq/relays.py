"""Questions to a client through the broker: running info (307), consume this message (309).

The request goes on to the client as it is (309 with the message as its body), and the client's
answer goes back to whoever asked. A client that does not answer within 10 s ends it with 207, one
that is not here with 1 (sheet 1.9).

Invariants: a relayed question is answered exactly once, unless the asker goes first; those that
wait are bounded by ``RELAYS_MAX``.
Not here: what the answers mean.
"""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.replies import Answer, system_error
from penstock.adapters.rocketmq.requests import Handler
from penstock.adapters.rocketmq.shown import shown_at
from penstock.model.ids import ConnectionId
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.message_id import parse_offset_message_id

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session

_log = logging.getLogger(__name__)

RELAY_MS: Final = 10_000
"""How long a client may take to answer."""

RELAYS_MAX: Final = 1_000
"""Questions that wait for clients."""


class Relay:
    """One question on its way."""

    __slots__ = ("asker", "client", "command", "is_over", "passed_on", "who")

    def __init__(self, asker: Session, command: Command, client: Session, who: str) -> None:
        self.asker = asker
        self.command = command
        self.client = client
        self.who = who
        self.passed_on = Command(command.code, dict(command.ext), command.body)
        self.is_over = False

    def answered(self, answer: Command | None) -> None:
        """The client said something, or is gone."""
        if self.is_over:
            return
        self.is_over = True
        if answer is None:
            text = f"The Consumer {self.who} not online"
            self.asker.answer(self.command, ResponseCode.SYSTEM_ERROR, remark=text)
            return
        self.asker.answer(
            self.command, answer.code, ext=answer.ext, body=answer.body, remark=answer.remark
        )

    def timed_out(self) -> None:
        """The client took too long."""
        if not self.is_over:
            self.is_over = True
            self.client.forget(self.passed_on)
            text = f"consumer {self.who} Timeout: no answer within {RELAY_MS} ms"
            self.asker.answer(self.command, ResponseCode.CONSUME_MSG_TIMEOUT, remark=text)


class Relays:
    """The questions that wait."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._tickets = 0
        self._waiting: list[tuple[int, int, Relay]] = []
        house.timers.add(self)

    def __len__(self) -> int:
        return sum(not relay.is_over for _, _, relay in self._waiting)

    def pass_on(self, session: Session, command: Command, body: bytes | None = None) -> None:
        """Ask the client that the request names."""
        group = command.ext.get("consumerGroup", "")
        client_id = command.ext.get("clientId", "")
        who = f"<{group}> <{client_id}>"
        relay = Relay(session, command, self._client(group, client_id, who), who)
        if body is not None:
            relay.passed_on.body = body
            relay.passed_on.ext["brokerName"] = self._house.broker_name
        self._tidy()
        if len(self._waiting) >= RELAYS_MAX:
            raise system_error(f"{RELAYS_MAX} questions wait for clients already; ask again later")
        self._tickets += 1
        deadline_ms = self._house.clock.monotonic_ms() + RELAY_MS
        heapq.heappush(self._waiting, (deadline_ms, self._tickets, relay))
        self._house.timers.stir()
        relay.client.push(relay.passed_on, relay.answered)

    def next_deadline_ms(self) -> int | None:
        """When the oldest question was not answered in time."""
        self._tidy()
        return self._waiting[0][0] if self._waiting else None

    def due(self, now_ms: int) -> None:
        """Give up on clients that do not answer."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            heapq.heappop(self._waiting)[2].timed_out()

    def _tidy(self) -> None:
        while self._waiting and self._waiting[0][2].is_over:
            heapq.heappop(self._waiting)

    def _client(self, group: str, client_id: str, who: str) -> Session:
        found = self._house.consumers.group(group)
        member = None if found is None else found.by_client_id(client_id)
        session = (
            None if member is None else self._house.sessions.get(ConnectionId(member.connection))
        )
        if session is None:
            raise system_error(f"The Consumer {who} not online")
        return session


def _running_info(session: Session, command: Command) -> None:
    session.house.part(Relays).pass_on(session, command)


def _consume_directly(session: Session, command: Command) -> None:
    house = session.house
    text = command.ext.get("msgId", "")
    try:
        _, position = parse_offset_message_id(text)
    except Malformed as problem:
        raise system_error(f"msgId {text[:80]!r} is not an offset id: {problem}") from None
    body = shown_at(house, position)
    if body is None:
        raise Answer(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {position}")
    house.part(Relays).pass_on(session, command, body)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: _running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
}
