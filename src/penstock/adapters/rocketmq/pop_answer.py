"""What a pop took, and the answer it makes: messages, and the lists that receipts are made from.

The client pairs a message with its receipt by (retry flag, queue id) and offset, so the lists name
every message of the body, queue by queue, with ascending offsets (``wire/rocketmq/pop_handle.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.shown import shown
from penstock.log.index import IndexFlag
from penstock.model.record import Wire
from penstock.wire.rocketmq.headers import PopAnswer
from penstock.wire.rocketmq.pop_handle import (
    Place,
    format_offsets,
    format_order_counts,
    format_start_offsets,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.pop_reader import PopReader
    from penstock.engine.host import IndexEntry
    from penstock.engine.subscription.consumer import Delivery
    from penstock.engine.topic import Queue

_ROCKETMQ: Final = int(Wire.ROCKETMQ)
_RELEASED: Final = int(IndexFlag.RELEASED)


class PopTaken:
    """Messages of one answer."""

    __slots__ = (
        "_counts",
        "_house",
        "_is_orderly",
        "_offsets",
        "_parts",
        "_taken",
        "has_again",
        "messages",
        "size",
    )

    def __init__(self, house: House, *, is_orderly: bool) -> None:
        self._house = house
        self._is_orderly = is_orderly
        self._taken: list[tuple[PopReader, list[Delivery]]] = []
        self._parts: list[bytes] = []
        self._offsets: dict[Place, list[int]] = {}
        self._counts: dict[tuple[int, int, int], int] = {}
        self.messages = 0
        self.size = 0
        """Bytes, as the log counts them."""
        self.has_again = False
        """Whether a message may have been out before, so that an older receipt exists."""

    def add(self, reader: PopReader, queue: Queue, deliveries: list[Delivery]) -> None:
        """Messages of one queue."""
        deliveries.sort(key=_offset_of)
        self._taken.append((reader, deliveries))
        offsets = self._offsets.setdefault((reader.flag, queue.number), [])
        for delivery, entry in zip(deliveries, _entries(queue, deliveries), strict=True):
            record = delivery.record
            if record.wire == _ROCKETMQ and not entry[7] & _RELEASED:
                offsets.append(delivery.offset)
                self._parts.append(record.origin)
            else:
                self._add_shown(reader, queue, delivery, entry)
            if self._is_orderly:
                self._counts[reader.flag, queue.number, delivery.offset] = delivery.attempts
            self.messages += delivery.messages
            self.size += delivery.size
            self.has_again = self.has_again or delivery.is_redelivered

    def _add_shown(
        self, reader: PopReader, queue: Queue, delivery: Delivery, entry: IndexEntry
    ) -> None:
        """A message that is not its own answer; one of another protocol may be several."""
        cursor = reader.subscription.lane(queue.queue_id).cursor
        offsets = self._offsets[reader.flag, queue.number]
        messages = shown(self._house, queue, delivery.record, entry)
        for offset, data in enumerate(messages, delivery.offset):
            # Of a batch some may be acknowledged already.
            if len(messages) == 1 or not cursor.is_settled(offset):
                offsets.append(offset)
                self._parts.append(data)

    def sign(self, pop_ms: int, revive_qid: int) -> None:
        """Make the receipts valid."""
        for reader, deliveries in self._taken:
            reader.sign(deliveries, pop_ms, revive_qid)

    def answer(self, *, pop_ms: int, invisible_ms: int, revive_qid: int, rest: int) -> PopAnswer:
        """The head of the answer."""
        return PopAnswer(
            pop_time=pop_ms,
            invisible_time=invisible_ms,
            revive_qid=revive_qid,
            rest_num=rest,
            start_offset_info=format_start_offsets(
                {place: offsets[0] for place, offsets in self._offsets.items()}
            ),
            msg_offset_info=format_offsets(self._offsets),
            order_count_info=format_order_counts(self._counts) if self._is_orderly else None,
        )

    def body(self) -> bytes:
        """The messages, one behind the other."""
        return b"".join(self._parts)


def _offset_of(delivery: Delivery) -> int:
    return delivery.offset


def _entries(queue: Queue, deliveries: list[Delivery]) -> list[IndexEntry]:
    """The index entries of deliveries, which ascend; one look when there are no gaps."""
    first, last = deliveries[0].offset, deliveries[-1].offset
    if last - first + 1 == len(deliveries):
        return queue.index.entries(first, len(deliveries))
    return [queue.index.entries(delivery.offset, 1)[0] for delivery in deliveries]
