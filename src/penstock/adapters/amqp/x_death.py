"""x-death: the headers in which a dead letter says where, why and how often it died.

    x-death                array of tables, the most recent death first, one per (queue, reason):
                           count l, reason S, queue S, time T, exchange S, routing-keys A of S,
                           original-expiration S (only if it had one)
    x-first-death-reason, -queue, -exchange     of the first death, never changed again
    x-last-death-reason, -queue, -exchange      of the latest

A death of the same (queue, reason) again is counted in the entry that is there (which keeps the
time of the first), and the entry moves to the front. A header ``x-death`` that is no array was
written by somebody else: it is begun anew, as RabbitMQ does.

Invariant: every other header stays byte for byte as it was.
Not here: where the letter goes (``burial.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.model.settlement import Cause
from penstock.wire.amqp.table import (
    EMPTY_TABLE,
    Table,
    Timestamp,
    decode_table,
    encode_value,
    join_table,
    split_table,
)

X_DEATH: Final = b"x-death"
CC: Final = b"CC"
DEATHS_MAX: Final = 64
"""Entries kept: a letter that wandered through more queues forgets the oldest (law 2)."""

REASONS: Final = {
    int(Cause.REJECTED): "rejected",
    int(Cause.EXPIRED): "expired",
    int(Cause.DROPPED_HEAD): "maxlen",
    int(Cause.DELIVERY_LIMIT): "delivery_limit",
}


class DeathNote(msgspec.Struct, frozen=True, gc=False):
    """What one death is remembered by."""

    reason: str
    queue: str
    time_s: int
    exchange: str
    routing_keys: tuple[str, ...]
    expiration: str | None = None
    """The time to live it was published with."""

    @property
    def entry(self) -> Table:
        """As a table of the array."""
        entry: Table = {
            "count": 1,
            "reason": self.reason,
            "queue": self.queue,
            "time": Timestamp(self.time_s),
            "exchange": self.exchange,
            "routing-keys": list(self.routing_keys),
        }
        if self.expiration is not None:
            entry["original-expiration"] = self.expiration
        return entry


def with_death(headers: bytes | None, note: DeathNote, *, drops_cc: bool = False) -> bytes:
    """The headers table (None = there is none) of the letter."""
    entries = split_table(headers or EMPTY_TABLE)
    deaths = _deaths(entries)
    is_first = not any(name == X_DEATH and value[:1] == b"A" for name, value in entries)
    fresh = {b"x-last-death-" + name: value for name, value in _place(note)}
    if is_first:
        fresh |= {b"x-first-death-" + name: value for name, value in _place(note)}
    fresh[X_DEATH] = encode_value(after(deaths, note))
    gone = fresh.keys() | {CC} if drops_cc else fresh.keys()
    kept = [entry for entry in entries if entry[0] not in gone]
    return join_table(kept + list(fresh.items()))


def deaths_of(headers: bytes | None) -> list[Any]:
    """What ``x-death`` holds; empty when it is not there, or no array."""
    return _deaths(split_table(headers or EMPTY_TABLE))


def after(deaths: Sequence[Any], note: DeathNote) -> list[Any]:
    """The array once ``note`` has happened, too."""
    entry = note.entry
    others: list[Any] = []
    for death in deaths:
        if is_of(death, queue=note.queue) and death.get("reason") == note.reason:
            count = death.get("count")
            entry = {**death, "count": count + 1 if isinstance(count, int) else 1}
        else:
            others.append(death)
    return [entry, *others][:DEATHS_MAX]


def is_cycle(deaths: Sequence[Any], queue: str) -> bool:
    """True when a letter with these deaths would come to ``queue`` again without any consumer.

    As RabbitMQ decides it: no death since it was last there, nor that one, was a rejection.
    """
    for death in deaths:
        if isinstance(death, dict) and death.get("reason") == "rejected":
            return False
        if is_of(death, queue=queue):
            return True
    return False


def is_of(death: Any, *, queue: str) -> bool:
    """True when this entry tells of a death in ``queue``."""
    return isinstance(death, dict) and death.get("queue") == queue


def _deaths(entries: Sequence[tuple[bytes, bytes]]) -> list[Any]:
    for name, value in entries:
        if name == X_DEATH and value[:1] == b"A":
            found = decode_table(join_table([(X_DEATH, value)]))[0]["x-death"]
            assert isinstance(found, list)
            return found
    return []


def _place(note: DeathNote) -> list[tuple[bytes, bytes]]:
    facts = {b"reason": note.reason, b"queue": note.queue, b"exchange": note.exchange}
    return [(name, encode_value(value)) for name, value in facts.items()]
