"""Dead lettering through exchanges: what ``x-dead-letter-exchange`` of a queue means (D13).

A message that dies in such a queue (rejected, expired, pushed out by a length limit, delivered too
often) is published anew to that exchange: the routes are those of the moment of death, its time to
live ends with its first life, ``x-death`` tells what happened. Its routing keys are its old ones,
CC included, or the one of ``x-dead-letter-routing-key`` (then CC goes, too).

It vanishes when the exchange is missing, when nothing is bound for it, and in every queue to which
it would come back without a consumer ever having had a say (``x_death.is_cycle``).

The engine appends a letter in the frame that settles its original, and bounds what waits for the
disk (``engine/dead_letter.py``). Messages of other protocols are put into AMQP's words first.

Not here: the headers (``x_death.py``), which queues match (``router.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.adapters.amqp.copies import CC, COPIES_MAX, copy_keys
from penstock.adapters.amqp.present import as_amqp
from penstock.adapters.amqp.x_death import REASONS, DeathNote, deaths_of, is_cycle, with_death
from penstock.engine.ports import Death
from penstock.model.record import Record, Wire
from penstock.wire.amqp.codes import AmqpError
from penstock.wire.amqp.deliveries import names_of
from penstock.wire.amqp.method import short_bytes
from penstock.wire.amqp.origin import HEADS_KEPT, PublishHead, publish_record
from penstock.wire.amqp.properties import edit_properties, walk

if TYPE_CHECKING:
    from penstock.adapters.amqp.queue import AmqpQueue
    from penstock.adapters.amqp.vhost import VirtualHost
    from penstock.engine.queue import Queue

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
        try:
            copies = copy_keys(record.properties, CC)[:COPIES_MAX]
        except AmqpError:
            copies = ()
        note = DeathNote(
            REASONS[death.cause],
            self._queue,
            death.time_ms // 1000,
            exchange,
            (routing_key, *copies),
            _expiration(record.properties),
        )
        keys = note.routing_keys if self._routing_key is None else (self._routing_key,)
        letter = self._letter(record, note, keys[0], death.time_ms)
        try:
            queues = self._vhost.router.route_dead(self._exchange, keys).targets(letter)
        except AmqpError:
            return ()
        if note.reason != _REJECTED:
            deaths = deaths_of(_headers(letter.properties))
            queues = tuple([each for each in queues if not is_cycle(deaths, each.topic.name.name)])
        return ((letter, queues),) if queues else ()

    def _translated(self, record: Record) -> Record:
        house = self._vhost.house
        bytes_max = house.all_settings.topics.message_bytes_max
        reader = house.engine.facts.get(record.wire)
        return as_amqp(record, self._queue, reader=reader, bytes_max=bytes_max)

    def _letter(self, record: Record, note: DeathNote, key: str, now_ms: int) -> Record:
        raw = record.properties
        bury = _buried if len(raw) <= REMEMBERED_BYTES_MAX else _buried.__wrapped__
        properties = bury(raw, note, self._routing_key is not None)
        return publish_record(letter_head(self._exchange, key), properties, record.body, now_ms)


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


@lru_cache(maxsize=64)
def _buried(properties: bytes, note: DeathNote, drops_cc: bool) -> bytes:
    """The properties of a letter. Those who die together often have the same: made once."""
    headers = with_death(_headers(properties), note, drops_cc=drops_cc)
    return edit_properties(properties, {"headers": headers, "expiration": None})


def _headers(properties: bytes) -> bytes | None:
    span = walk(properties, 0, len(properties)).spans.get("headers")
    return None if span is None else properties[span[0] : span[1]]


def _expiration(properties: bytes) -> str | None:
    span = walk(properties, 0, len(properties)).spans.get("expiration")
    return None if span is None else properties[slice(*span)].decode("utf-8", "surrogateescape")
