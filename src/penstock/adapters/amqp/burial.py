"""Dead lettering through exchanges: what ``x-dead-letter-exchange`` of a queue means (D13).

A message that dies in such a queue (rejected, expired, pushed out by a length limit, delivered too
often) is published anew to that exchange: the routes are those of the moment of death, its time to
live ends with its first life, ``x-death`` tells what happened. Its routing keys are its old ones,
those of CC and BCC included, or the one of ``x-dead-letter-routing-key`` (then those go, too).
``x-death`` does not tell BCC, but the letter keeps it for the next death.

It vanishes when the exchange is missing, when nothing is bound for it, and in every queue to which
it would come back without a consumer ever having had a say (``x_death.is_cycle``).

The engine appends a letter in the frame that settles its original, and bounds what waits for the
disk (``engine/dead_letter.py``). Messages of other protocols are put into AMQP's words first.

Not here: the headers (``x_death.py``), which queues match (``router.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.adapters.amqp.copies import CC, COPIES_MAX, copy_keys
from penstock.adapters.amqp.present import as_amqp
from penstock.adapters.amqp.x_death import REASONS, DeathNote, deaths_of, is_cycle, with_death
from penstock.engine.ports import Death
from penstock.model.record import Record, Wire
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.methods.method import short_bytes
from penstock.wire.amqp.origin import (
    HEADS_KEPT,
    PublishHead,
    Reading,
    examine,
    record_of,
    secret_keys,
    with_secret_keys,
)
from penstock.wire.amqp.properties import edit_properties, walk
from penstock.wire.amqp.serializer import names_of

if TYPE_CHECKING:
    from penstock.adapters.amqp.queue import AmqpQueue
    from penstock.adapters.amqp.vhost import VirtualHost
    from penstock.engine.topic import Queue

DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
REMEMBERED_BYTES_MAX: Final = 1024
"""Properties up to this size are made into a letter's once for all that have the same."""
_REJECTED: Final = "rejected"


class ExchangeGraves:
    """The graves of one queue; satisfies ``engine.ports.Graves``."""

    def __init__(
        self, vhost: VirtualHost, queue: str, exchange: str, routing_key: str | None
    ) -> None:
        self._vhost = vhost
        self._queue = queue
        self._exchange = exchange
        self._routing_key = routing_key

    def letters(self, record: Record, death: Death) -> Iterable[tuple[Record, tuple[Queue, ...]]]:
        """The letter, with the queues that its exchange has for it now."""
        if record.wire != Wire.AMQP:
            record = self._translated(record)
        exchange, routing_key = names_of(record)
        raw = record.properties
        is_short = len(raw) <= REMEMBERED_BYTES_MAX
        copies, expiration = (_life if is_short else _life.__wrapped__)(raw)
        note = DeathNote(
            REASONS[death.cause],
            self._queue,
            death.time_ms // 1000,
            exchange,
            (routing_key, *copies),
            expiration,
        )
        secret = secret_keys(record) if self._routing_key is None else ()
        keys = (*note.routing_keys, *secret) if self._routing_key is None else (self._routing_key,)
        bury = _buried if is_short else _buried.__wrapped__
        buried = bury(raw, note, self._routing_key is not None)
        head = letter_head(self._exchange, keys[0])
        letter = record_of(head, buried.reading, buried.properties, record.body, death.time_ms)
        letter = with_secret_keys(letter, secret)
        try:
            queues = self._vhost.router.route_dead(self._exchange, keys).targets(letter)
        except AmqpError:
            return ()
        if note.reason != _REJECTED:
            deaths = buried.deaths
            queues = tuple([each for each in queues if not is_cycle(deaths, each.topic.name.name)])
        return ((letter, queues),) if queues else ()

    def _translated(self, record: Record) -> Record:
        house = self._vhost.house
        bytes_max = house.all_settings.topics.message_bytes_max
        reader = house.engine.facts.get(record.wire)
        return as_amqp(record, self._queue, reader=reader, bytes_max=bytes_max)


def graves_for(vhost: VirtualHost, queue: AmqpQueue) -> ExchangeGraves | None:
    """Where the dead of this queue go; None when it has no dead-letter exchange."""
    exchange = queue.arguments.get(DEAD_LETTER_EXCHANGE)
    if exchange is None:
        return None
    return ExchangeGraves(vhost, queue.name, exchange, queue.arguments.get(DEAD_LETTER_KEY))


@lru_cache(maxsize=HEADS_KEPT)
def letter_head(exchange: str, routing_key: str) -> PublishHead:
    """The publish by which a letter would have come."""
    names = short_bytes(exchange) + short_bytes(routing_key)
    return PublishHead(exchange, routing_key, False, False, names)


class Buried(NamedTuple):
    """What a letter has instead of the properties of the living."""

    properties: bytes
    reading: Reading
    deaths: list[Any]
    """As ``x-death`` has them, unless a consumer refused it: then nobody asks."""


@lru_cache(maxsize=64)
def _buried(properties: bytes, note: DeathNote, drops_cc: bool) -> Buried:
    """The properties of a letter. Those who die together often have the same: made once."""
    headers = with_death(_headers(properties), note, drops_cc=drops_cc)
    written = edit_properties(properties, {"headers": headers, "expiration": None})
    deaths = [] if note.reason == _REJECTED else deaths_of(headers)
    return Buried(written, examine(written), deaths)


@lru_cache(maxsize=64)
def _life(properties: bytes) -> tuple[tuple[str, ...], str | None]:
    """Further routing keys, and how long it was to live."""
    try:
        copies = copy_keys(properties, CC)[:COPIES_MAX]
    except AmqpError:
        copies = ()
    return copies, _expiration(properties)


def _headers(properties: bytes) -> bytes | None:
    span = walk(properties, 0, len(properties)).spans.get("headers")
    return None if span is None else properties[span[0] : span[1]]


def _expiration(properties: bytes) -> str | None:
    span = walk(properties, 0, len(properties)).spans.get("expiration")
    return None if span is None else properties[slice(*span)].decode("utf-8", "surrogateescape")
