"""Revival: messages whose invisible time ended without an acknowledgement (sheet 2.7).

They go to the pop retry topic of their group and topic, queue 0, with one attempt more and the time
of their first pop kept; a message of the retry topic goes to its end again. Copy and settlement are
one frame (D5), so nothing is lost and nothing comes twice through a crash; a retry topic that was
made for it is waited for, because a frame must not name a queue that a crash would forget. What is
gone meanwhile is skipped. Messages popped in order go back to their places instead: a retry would
overtake.

Where no retry topic can be made (too many queues, a name too long) the message goes back to its
place as well: late and out of the usual way, but not lost.

Not here: when the time is up (the engine's deadline on the in-flight entry).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.naming import wire_name
from penstock.adapters.rocketmq.pop_counts import PopCounts, PopEvent
from penstock.adapters.rocketmq.pop_reader import PopReader, pop_retry_topic
from penstock.adapters.rocketmq.shown import shown
from penstock.model.errors import PenstockError
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import PROPERTIES_BYTES_MAX, value_of, with_property
from penstock.wire.rocketmq.stored import decode_stored, record_of, topic_field

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.engine.topic import Queue, Topic
    from penstock.model.ids import QueueId
    from penstock.model.record import Record

_log = logging.getLogger(__name__)

FIRST_POP_TIME: Final = "1ST_POP_TIME"

RetryReader = Callable[["Topic", str, str], PopReader]
"""(retry topic, group, topic) -> the group's hold on the retry topic."""


class Revival:
    """Takes what is late."""

    def __init__(self, house: House, retry_reader: RetryReader) -> None:
        self._house = house
        self._retry_reader = retry_reader
        # Retry topics (by id) whose definition is durable; and who waits for that of others.
        self._known: set[int] = set()
        self._postponed: dict[int, list[tuple[PopReader, QueueId, list[int]]]] = {}
        self._counts = house.part(PopCounts).messages

    def late(self, reader: PopReader, queue_id: QueueId, offsets: list[int]) -> None:
        """The time of these is up."""
        orderly, others = reader.split_late(queue_id, offsets)
        if orderly:
            self._return(reader, queue_id, orderly)
        if not others:
            return
        queue = next(each for each in reader.topic.queues if each.queue_id == queue_id)
        try:
            target = self._target(reader)
        except (PenstockError, Malformed) as problem:
            _log.warning(
                "no pop retry topic; late messages go back to their places",
                extra={"group": reader.group, "topic": reader.name, "problem": str(problem)},
            )
            self._return(reader, queue_id, others)
            return
        if target.topic.topic_id in self._known:
            self._revive(reader, queue, others, target)
        else:
            self._postpone(target.topic, (reader, queue_id, others))

    def _postpone(self, retry: Topic, late: tuple[PopReader, QueueId, list[int]]) -> None:
        waiting = self._postponed.get(retry.topic_id)
        if waiting is not None:
            waiting.append(late)
            return
        waiting = self._postponed[retry.topic_id] = [late]

        def durable() -> None:
            self._known.add(retry.topic_id)
            del self._postponed[retry.topic_id]
            for reader, queue_id, offsets in waiting:
                still = reader.still_late(queue_id, offsets, self._house.clock.monotonic_ms())
                if still:
                    self.late(reader, queue_id, still)

        self._house.engine.after_durable(durable)

    def _revive(self, reader: PopReader, queue: Queue, offsets: list[int], target: Queue) -> None:
        queue_id = queue.queue_id
        popped_ms = {offset: reader.popped_ms(queue_id, offset) for offset in offsets}

        def rewrite(
            record: Record, unsettled: list[int], attempts: int
        ) -> list[tuple[Record, Queue]]:
            entry = queue.index.entries(unsettled[0], 1)[0]
            try:
                return [
                    (retried(data, target, popped_ms[entry[1]], attempts + 1), target)
                    for offset, data in enumerate(
                        shown(self._house, queue, record, entry), entry[1]
                    )
                    if offset in unsettled
                ]
            except Malformed as problem:
                # No client could read it either; keeping it would bring it back for ever.
                _log.error(
                    "a message that cannot be read is not revived",
                    extra={"queue": queue.name, "offset": entry[1], "problem": str(problem)},
                )
                return []

        moved = reader.subscription.move(queue_id, offsets, rewrite)
        self._counts[PopEvent.REVIVED] += moved

    def _return(self, reader: PopReader, queue_id: QueueId, offsets: list[int]) -> None:
        returned = reader.subscription.requeue(queue_id, offsets, count=True)
        self._counts[PopEvent.RETURNED] += returned

    def _target(self, reader: PopReader) -> Queue:
        if reader.flag:
            return reader.topic.queues[0]
        name = pop_retry_topic(reader.group, reader.name)
        topic_field(name)
        place = self._house.topics.ensure(name)
        self._retry_reader(place.topic, reader.group, reader.name)
        return place.topic.queues[0]


def retried(data: bytes, target: Queue, popped_ms: int, attempts: int) -> Record:
    """A stored message as it goes to the retry topic."""
    message, _ = decode_stored(data)
    properties = message.properties
    if not value_of(properties, FIRST_POP_TIME):
        properties = with_property(properties, FIRST_POP_TIME, str(popped_ms))
    if len(properties) <= PROPERTIES_BYTES_MAX:
        message.properties = properties
    message.topic = wire_name(target.topic.name)
    message.queue_id = target.number
    message.reconsume_times += attempts
    return record_of(message)
