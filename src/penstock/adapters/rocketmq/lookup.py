"""Messages by id (33) and by key (12), and what a position stands for (sheet 1.7, 2.9).

A commitLogOffset is a position, plus the number of the message in its batch or of the target in its
fan-out (D4). Only what is durable is found (D7); half messages are found by id, and by key once
they are committed.

The key index answers with what may have the key; the real keys are compared here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.replies import Answer, system_error
from penstock.adapters.rocketmq.shown import shown_at
from penstock.model.record import Record, Wire
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import QueryMessageHeader, ViewMessageHeader, parse
from penstock.wire.rocketmq.stored import RocketmqFacts

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session

QUERY_MAX: Final = 32
"""Messages one query answers with."""
CANDIDATES_MAX: Final = 256
"""Entries of the key index that one query looks at: their hashes may lie."""

NOT_FOUND: Final = "can not find message, maybe time range not correct"

_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_FACTS: Final = RocketmqFacts()


def view_message(session: Session, command: Command) -> None:
    """VIEW_MESSAGE_BY_ID."""
    header = parse(ViewMessageHeader, command)
    body = shown_at(session.house, header.offset)
    if body is None:
        raise system_error(f"can not find message by the offset, {header.offset}")
    session.answer(command, body=body)


def query_message(session: Session, command: Command) -> None:
    """QUERY_MESSAGE."""
    header = parse(QueryMessageHeader, command)
    house = session.house
    place = house.topics.require(header.topic)
    count_max = QUERY_MAX if header.unique_key_query else min(max(1, header.max_num), QUERY_MAX)
    key = header.key.encode()
    positions = house.engine.positions_of(
        place.topic,
        key,
        begin_ms=header.begin_timestamp,
        end_ms=header.end_timestamp,
        count_max=CANDIDATES_MAX,
    )
    found: list[bytes] = []
    last_ms = 0
    for position in positions:
        located = house.engine.locate(position)
        if located is None or not _has_key(house, located.record, key):
            continue
        body = shown_at(house, position)
        if body is not None:
            found.append(body)
            last_ms = max(last_ms, located.record.store_ms)
        if len(found) == count_max:
            break
    if not found:
        raise Answer(ResponseCode.QUERY_NOT_FOUND, NOT_FOUND)
    ext = {
        "indexLastUpdateTimestamp": str(last_ms),
        "indexLastUpdatePhyoffset": str(max(positions)),
    }
    session.answer(command, ext=ext, body=b"".join(found))


def _has_key(house: House, record: Record, key: bytes) -> bool:
    if record.wire == _ROCKETMQ:
        return key in _FACTS.keys(record)
    reader = house.engine.facts.get(record.wire)
    return reader is None or key in reader.keys(record)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_MESSAGE: query_message,
}
