"""Corrected offsets as events: a reader asked for what is not there and was sent elsewhere.

It means lost or repeated messages for somebody, so it is said three times: a line in the log, a
counter by reason, and a message in the topic OFFSET_MOVED_EVENT with the group as tag and key, as
RocketMQ does it. A client that asks wrongly again and again is counted each time, but writes at
most ``EVENTS_PER_S`` messages.

Not here: what is wrong with an offset (``pull_status.py``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.naming import OFFSET_MOVED_TOPIC, wire_name
from penstock.adapters.rocketmq.storing import Storing
from penstock.engine.topic import Queue
from penstock.flow.rate import TokenBucket
from penstock.wire.rocketmq.bodies import Body, MessageQueue, TopicConfig, encode_body
from penstock.wire.rocketmq.properties import KEYS, TAGS, format_properties
from penstock.wire.rocketmq.stored import stored_record

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session
    from penstock.adapters.rocketmq.topics import Place

_log = logging.getLogger(__name__)

EVENTS_PER_S: Final = 10
EVENTS_BURST: Final = 100


class OffsetMovedEvent(Body, gc=False, kw_only=True, rename="camel"):
    """The body of such a message."""

    consumer_group: str
    message_queue: MessageQueue
    offset_request: int
    offset_new: int


class OffsetEvents:
    """Tells of corrected offsets."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._bucket = TokenBucket(EVENTS_PER_S, EVENTS_BURST)
        self.counts: dict[str, int] = {}
        """Corrections by status."""
        house.engine.tallies.show(
            "rocketmq_offset_moves", "Offsets of readers that were corrected", "status", self.counts
        )
        self.unwritten = 0
        """Corrections that got no message: too many, or nobody wants them."""

    def moved(
        self, session: Session, group: str, queue: Queue, move: tuple[int, int], status: str
    ) -> None:
        """A reader asked for offset ``move[0]`` and goes on at ``move[1]``."""
        self.counts[status] = self.counts.get(status, 0) + 1
        topic = wire_name(queue.topic.name)
        _log.warning(
            "PULL_OFFSET_MOVED:correction offset",
            extra={
                "topic": topic,
                "queue": queue.number,
                "group": group,
                "from": move[0],
                "to": move[1],
                "status": status,
                "peer": session.name,
            },
        )
        house = self._house
        is_wanted = house.settings.is_telling_offset_moves and topic != OFFSET_MOVED_TOPIC
        if not is_wanted or not self._bucket.take(1, house.clock.monotonic_ms()):
            self.unwritten += 1
            return
        event = OffsetMovedEvent(
            consumer_group=group,
            message_queue=MessageQueue(
                topic=topic, broker_name=house.broker_name, queue_id=queue.number
            ),
            offset_request=move[0],
            offset_new=move[1],
        )
        place = self._place()
        record = stored_record(
            OFFSET_MOVED_TOPIC,
            0,
            encode_body(event),
            format_properties({TAGS: group, KEYS: group}),
            born_ms=house.clock.wall_ms(),
            born_host=house.store_host,
            store_host=house.store_host,
        )
        keys = (group.encode(),)
        session.sends.store([Storing(record, route=place.routes[0], keys=keys)])

    def _place(self) -> Place:
        found = self._house.topics.find(OFFSET_MOVED_TOPIC)
        if found is None:
            config = TopicConfig(
                topic_name=OFFSET_MOVED_TOPIC, read_queue_nums=1, write_queue_nums=1
            )
            found = self._house.topics.put(config)
        return found
