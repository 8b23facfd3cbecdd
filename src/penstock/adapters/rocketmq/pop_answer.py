"""What a pop took, and the answer it makes: messages, and the lists that receipts are made from.

The client pairs a message with its receipt by (retry flag, queue id) and offset, so the lists name
every message of the body, queue by queue, with ascending offsets (``wire/rocketmq/pop_handle.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.adapters.rocketmq.shown import shown
from penstock.wire.rocketmq.pop_handle import (
    Place,
    format_offsets,
    format_order_counts,
    format_start_offsets,
)
from penstock.wire.rocketmq.pop_headers import PopAnswer

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.pop_reader import PopReader
    from penstock.engine.pending import Delivery
    from penstock.engine.queue import Queue


class PopTaken:
    """Messages of one answer."""

    __slots__ = (
        "_counts",
        "_house",
        "_offsets",
        "_parts",
        "_taken",
        "has_again",
        "messages",
        "size",
    )

    def __init__(self, house: House) -> None:
        self._house = house
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
        self._taken.append((reader, deliveries))
        offsets = self._offsets.setdefault((reader.flag, queue.number), [])
        for delivery in sorted(deliveries, key=lambda each: each.offset):
            entry = queue.index.entries(delivery.offset, 1)[0]
            cursor = reader.subscription.lane(queue.queue_id).cursor
            messages = shown(self._house, queue, delivery.record, entry)
            for offset, data in enumerate(messages, delivery.offset):
                # Of a batch some may be acknowledged already.
                if len(messages) == 1 or not cursor.is_settled(offset):
                    offsets.append(offset)
                    self._parts.append(data)
                    self._counts[reader.flag, queue.number, offset] = delivery.attempts
            self.messages += delivery.messages
            self.size += delivery.size
            self.has_again = self.has_again or delivery.is_redelivered

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
            order_count_info=format_order_counts(self._counts),
        )

    def body(self) -> bytes:
        """The messages, one behind the other."""
        return b"".join(self._parts)
