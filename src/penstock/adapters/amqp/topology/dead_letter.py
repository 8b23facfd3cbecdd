"""Dead lettering through exchanges: what ``x-dead-letter-exchange`` of a queue means (D13).

A message that dies in such a queue (rejected, expired, pushed out by a length limit, delivered too
often) is published anew to that exchange: the routes are those of the moment of death, its time to
live ends with its first life, ``x-death`` tells what happened. Its routing keys are its old ones,
those of CC and BCC included, or the one of ``x-dead-letter-routing-key`` (then those go, too).
``x-death`` does not tell BCC, but the dead letter keeps it for the next death.

It vanishes when the exchange is missing, when nothing is bound for it, and in every queue to which
it would come back without a consumer ever having had a say (``is_cycle``).

The engine appends a dead letter in the frame that settles its original, and bounds what waits for
the disk (``engine/dead_letter.py``). Messages of other protocols are put into AMQP's words first.
Not here: which queues match (``router.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.adapters.amqp.present import as_amqp
from penstock.adapters.amqp.topology.router import CC, COPIES_MAX, copy_keys
from penstock.engine.ports import Death
from penstock.model.record import Record, Wire
from penstock.model.settlement import Cause
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.methods.method import short_bytes
from penstock.wire.amqp.origin import (
    HEADS_KEPT,
    ContentHeader,
    PublishHead,
    read_content_header,
    record_of,
    secret_keys,
    with_secret_keys,
)
from penstock.wire.amqp.properties import edit_properties, locate_properties
from penstock.wire.amqp.serializer import names_of
from penstock.wire.amqp.table import (
    EMPTY_TABLE,
    Table,
    Timestamp,
    decode_table,
    encode_value,
    join_table,
    split_table,
)

if TYPE_CHECKING:
    from penstock.adapters.amqp.context import AmqpContext
    from penstock.adapters.amqp.topology.queue import AmqpQueue
    from penstock.adapters.amqp.topology.router import Router
    from penstock.engine.topic import Queue

DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
REMEMBERED_BYTES_MAX: Final = 1024
"""Properties up to this size are rewritten once for all messages that have the same."""
_REJECTED: Final = "rejected"


class ExchangeDeadLetterRouter:
    """Dead letters of one queue; satisfies ``engine.ports.DeadLetterRouter``."""

    def __init__(
        self,
        context: AmqpContext,
        router: Router,
        queue: str,
        *,
        exchange: str,
        routing_key: str | None,
    ) -> None:
        self._context: Final = context
        self._router: Final = router
        self._queue: Final = queue
        self._exchange: Final = exchange
        self._routing_key: Final = routing_key
        """None = those of the message."""

    def route(self, record: Record, death: Death) -> Iterable[tuple[Record, tuple[Queue, ...]]]:
        """The letter, with the queues that its exchange has for it now."""
        if record.wire != Wire.AMQP:
            record = self._translated(record)
        exchange, routing_key = names_of(record)
        raw = record.properties
        is_short = len(raw) <= REMEMBERED_BYTES_MAX
        copies, expiration = (_copies_and_ttl if is_short else _copies_and_ttl.__wrapped__)(raw)
        note = XDeath(
            REASONS[death.cause],
            self._queue,
            death.time_ms // 1000,
            exchange,
            (routing_key, *copies),
            expiration,
        )
        secret = secret_keys(record) if self._routing_key is None else ()
        keys = (*note.routing_keys, *secret) if self._routing_key is None else (self._routing_key,)
        rewrite = _rewritten if is_short else _rewritten.__wrapped__
        rewritten = rewrite(raw, note, self._routing_key is not None)
        head = letter_head(self._exchange, keys[0])
        letter = record_of(head, rewritten.header, rewritten.properties, record.body, death.time_ms)
        letter = with_secret_keys(letter, secret)
        try:
            queues = self._router.route_dead(self._exchange, keys).targets(letter)
        except AmqpError:
            return ()
        if note.reason != _REJECTED:
            deaths = rewritten.deaths
            queues = tuple([each for each in queues if not is_cycle(deaths, each.topic.name.name)])
        return ((letter, queues),) if queues else ()

    def _translated(self, record: Record) -> Record:
        engine = self._context.engine
        bytes_max = self._context.all_settings.topics.message_bytes_max
        reader, unopened = engine.facts.get(record.wire), engine.batches.why_unopened(record)
        return as_amqp(record, self._queue, reader=reader, bytes_max=bytes_max, unopened=unopened)


def dead_letter_router_of(
    context: AmqpContext, router: Router, queue: AmqpQueue
) -> ExchangeDeadLetterRouter | None:
    """Where dead letters of this queue go; None when it has no dead-letter exchange."""
    arguments = queue.in_effect
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if exchange is None:
        return None
    routing_key = arguments.get(DEAD_LETTER_KEY)
    return ExchangeDeadLetterRouter(
        context, router, queue.name, exchange=exchange, routing_key=routing_key
    )


@lru_cache(maxsize=HEADS_KEPT)
def letter_head(exchange: str, routing_key: str) -> PublishHead:
    """The publish by which a dead letter would have come."""
    names = short_bytes(exchange) + short_bytes(routing_key)
    return PublishHead(exchange, routing_key, False, False, names)


class DeadLetterProperties(NamedTuple):
    """The properties of a dead letter, rewritten from those of its original."""

    properties: bytes
    header: ContentHeader
    deaths: list[Any]
    """As ``x-death`` has them, unless a consumer rejected it: then nobody asks for a cycle."""


@lru_cache(maxsize=64)
def _rewritten(properties: bytes, note: XDeath, drops_cc: bool) -> DeadLetterProperties:
    """Messages that die together often have the same properties: rewritten once."""
    headers = with_death(_headers(properties), note, drops_cc=drops_cc)
    written = edit_properties(properties, {"headers": headers, "expiration": None})
    deaths = [] if note.reason == _REJECTED else deaths_of(headers)
    return DeadLetterProperties(written, read_content_header(written), deaths)


@lru_cache(maxsize=64)
def _copies_and_ttl(properties: bytes) -> tuple[tuple[str, ...], str | None]:
    """The routing keys of CC, and the expiration."""
    try:
        copies = copy_keys(properties, CC)[:COPIES_MAX]
    except AmqpError:
        copies = ()
    return copies, _expiration(properties)


def _headers(properties: bytes) -> bytes | None:
    span = locate_properties(properties, 0, len(properties)).spans.get("headers")
    return None if span is None else properties[span[0] : span[1]]


def _expiration(properties: bytes) -> str | None:
    span = locate_properties(properties, 0, len(properties)).spans.get("expiration")
    return None if span is None else properties[slice(*span)].decode("utf-8", "surrogateescape")


# ---- x-death ------------------------------------------------------------------------------------
# | x-death                array of tables, the most recent death first, one per (queue, reason):
# |                        count l, reason S, queue S, time T, exchange S, routing-keys A of S,
# |                        original-expiration S (only if it had one)
# | x-first-death-reason, -queue, -exchange     of the first death, never changed again
# | x-last-death-reason, -queue, -exchange      of the latest
#
# A death of the same (queue, reason) again is counted in the entry that is there (which keeps the
# time of the first), and the entry moves to the front. Entries of one (queue, reason) that a client
# wrote several times are merged, their counts added up. A header ``x-death`` that is no array was
# written by somebody else: it is begun anew, as RabbitMQ does. Every other header stays byte for
# byte as it was.

X_DEATH: Final = b"x-death"
COUNT_MAX: Final = (1 << 62) - 1
"""A count is a long, and clients can write one."""
DEATHS_MAX: Final = 64
"""Entries kept: a dead letter that went through more queues forgets the oldest (law 2)."""

REASONS: Final = {
    int(Cause.REJECTED): "rejected",
    int(Cause.EXPIRED): "expired",
    int(Cause.DROPPED_HEAD): "maxlen",
    int(Cause.DELIVERY_LIMIT): "delivery_limit",
}


class XDeath(msgspec.Struct, frozen=True, gc=False):
    """One death, as the headers tell it."""

    reason: str
    queue: str
    time_s: int
    exchange: str
    routing_keys: tuple[str, ...]
    expiration: str | None = None
    """The time to live it was published with."""

    @property
    def entry(self) -> Table:
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


def with_death(headers: bytes | None, note: XDeath, *, drops_cc: bool = False) -> bytes:
    """The headers table (None = there is none) of the letter."""
    entries = split_table(headers or EMPTY_TABLE)
    deaths = _deaths(entries)
    is_first = not any(name == X_DEATH and value[:1] == b"A" for name, value in entries)
    fresh = {b"x-last-death-" + name: value for name, value in _summary(note)}
    if is_first:
        fresh |= {b"x-first-death-" + name: value for name, value in _summary(note)}
    fresh[X_DEATH] = encode_value(_with_entry(deaths, note))
    gone = fresh.keys() | {CC} if drops_cc else fresh.keys()
    kept = [entry for entry in entries if entry[0] not in gone]
    return join_table(kept + list(fresh.items()))


def deaths_of(headers: bytes | None) -> list[Any]:
    """What ``x-death`` holds; empty when it is not there, or no array."""
    return _deaths(split_table(headers or EMPTY_TABLE))


def _with_entry(deaths: Sequence[Any], note: XDeath) -> list[Any]:
    """The array once ``note`` has happened, too."""
    entry = note.entry
    others: list[Any] = []
    for death in _merged(deaths):
        if _is_in(death, queue=note.queue) and death.get("reason") == note.reason:
            entry = {**death, "count": death["count"] + 1}
        else:
            others.append(death)
    return [entry, *others][:DEATHS_MAX]


def _merged(deaths: Sequence[Any]) -> list[Any]:
    """One entry per (queue, reason): the first, counted as often as it says or as it is there."""
    merged: list[Any] = []
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for death in deaths:
        if not isinstance(death, dict):
            merged.append(death)
            continue
        key = (str(death.get("queue")), str(death.get("reason")))
        if key not in known:
            known[key] = {**death, "count": 0}
            merged.append(known[key])
        count = death.get("count")
        count = count if isinstance(count, int) and count > 0 else 1
        known[key]["count"] = min(known[key]["count"] + count, COUNT_MAX)
    return merged


def is_cycle(deaths: Sequence[Any], queue: str) -> bool:
    """True when a letter with these deaths would come to ``queue`` again without any consumer.

    As RabbitMQ decides it: no death since it was last there, nor that one, was a rejection.
    """
    for death in deaths:
        if isinstance(death, dict) and death.get("reason") == "rejected":
            return False
        if _is_in(death, queue=queue):
            return True
    return False


def _is_in(death: Any, *, queue: str) -> bool:
    """True when this entry tells of a death in ``queue``."""
    return isinstance(death, dict) and death.get("queue") == queue


def _deaths(entries: Sequence[tuple[bytes, bytes]]) -> list[Any]:
    for name, value in entries:
        if name == X_DEATH and value[:1] == b"A":
            found = decode_table(join_table([(X_DEATH, value)]))[0]["x-death"]
            assert isinstance(found, list)
            return found
    return []


def _summary(note: XDeath) -> list[tuple[bytes, bytes]]:
    facts = {b"reason": note.reason, b"queue": note.queue, b"exchange": note.exchange}
    return [(name, encode_value(value)) for name, value in facts.items()]
