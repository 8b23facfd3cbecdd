"""Admission: may this publish in now? Asked by the channel before anything is stored (law 6).

Three answers: yes; no (a refusal, told to the publisher); not yet (a hold, bounded by
``hold_ms_max``, D23). A publish for several queues is admitted to all of them or to none.

Whether "not yet" may be said depends on the connection: a protocol that fails fast is refused at
once where another one would be held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.engine.hold import Hold
from penstock.engine.limits import TopicLimits, too_large
from penstock.engine.parcel import Parcel
from penstock.engine.ports import Publication
from penstock.engine.topic import Overflow
from penstock.flow.alarms import AlarmBoard
from penstock.flow.reason import Reason
from penstock.model.clock import Clock
from penstock.model.record import Record
from penstock.model.refusal import Refusal, RefusalKind
from penstock.settings.load import Settings

if TYPE_CHECKING:
    from penstock.engine.connection import Channel
    from penstock.engine.queue import Queue

BuryRefused = Callable[["Queue", Record], None]
"""Makes a dead letter of a publish that a length limit refused."""


class Ruling(msgspec.Struct):
    """What admission says about a parcel that is not simply let in."""

    admitted: Parcel | None = None
    refused: list[tuple[Publication, Refusal]] = msgspec.field(default_factory=list)
    hold: Hold | None = None
    rest: Parcel | None = None
    """What is held; set exactly when ``hold`` is."""


class Admission:
    """The limits of topics, the alarms, and everybody's patience."""

    def __init__(
        self, clock: Clock, settings: Settings, alarms: AlarmBoard, bury_refused: BuryRefused
    ) -> None:
        self._clock = clock
        self._flow = settings.flow
        self._busy_hold_ms_max = settings.spark.busy_hold_ms_max
        self._message_bytes_max = settings.topics.message_bytes_max
        self._alarms = alarms
        self._bury_refused = bury_refused
        self._turn = 0

    def begin(self, turn: int) -> Hold | None:
        """A turn begins, figures of earlier ones are old.

        Returns what a raised alarm means for every channel that publishes (F3).
        """
        self._turn = turn
        if not self._alarms.is_raised:
            return None
        reason, culprit = next(iter(self._alarms.raised.items()))
        return Hold(reason, culprit)

    def judge(self, parcel: Parcel) -> Ruling | None:
        """None = let all of it in."""
        queues = parcel.queues or ()
        # If all of them together are not too large, none of them is.
        is_free = parcel.size <= self._message_bytes_max
        for queue in queues:
            if queue.topic.limits is not None:
                is_free = False
        if is_free:
            return None
        limited = [limits for queue in queues if (limits := queue.topic.limits) is not None]
        return self._rule(parcel, queues, limited)

    def patience(self, channel: Channel, hold: Hold, parcel: Parcel) -> Refusal | None:
        """The refusal for a held parcel that may not wait (any longer); None = let it wait."""
        is_fast_failing = channel.connection.options.is_fast_failing
        if is_fast_failing and hold.reason is not Reason.SPARK:
            return hold.refusal
        held_ms_max = self._held_ms_max(channel, hold)
        waited_ms = self._clock.monotonic_ms() - parcel.arrived_ms
        if held_ms_max and waited_ms >= held_ms_max:
            setting = "spark.busy_hold_ms_max" if is_fast_failing else "flow.hold_ms_max"
            return hold.overdue(waited_ms, setting)
        return None

    def deadlines(self, channel: Channel) -> Iterator[int]:
        """When a held channel must be looked at again: the hold passes, or patience ends."""
        if channel.hold is None or not channel.inbox:
            return
        if channel.hold.until_ms is not None:
            yield channel.hold.until_ms
        held_ms_max = self._held_ms_max(channel, channel.hold)
        if held_ms_max:
            yield channel.inbox[0].arrived_ms + held_ms_max

    def _rule(
        self, parcel: Parcel, queues: tuple[Queue, ...], limited: list[TopicLimits]
    ) -> Ruling:
        ruling = Ruling()
        now_ms = self._clock.monotonic_ms()
        wall_ms = self._clock.wall_ms()
        for limits in limited:
            limits.begin(self._turn, wall_ms)
        admitted: list[Publication] = []
        for number, publication in enumerate(parcel.publications):
            answer = self._judge_one(publication.record, queues, limited, now_ms)
            if isinstance(answer, Hold):
                ruling.hold = answer
                ruling.rest = parcel.part(parcel.publications[number:], queues)
                break
            if answer is None:
                admitted.append(publication)
                for limits in limited:
                    limits.admit(publication.record, now_ms)
            else:
                ruling.refused.append((publication, answer))
                if answer.kind is RefusalKind.LENGTH_LIMIT:
                    self._bury(publication.record, queues, now_ms)
        if admitted:
            ruling.admitted = parcel.part(admitted, queues)
        return ruling

    def _judge_one(
        self,
        record: Record,
        queues: tuple[Queue, ...],
        limited: list[TopicLimits],
        now_ms: int,
    ) -> Refusal | Hold | None:
        size = len(record.origin)
        if size > self._message_bytes_max:
            return too_large(queues[0].topic, size, self._message_bytes_max)
        answers = [limits.judge(record, now_ms) for limits in limited]
        for answer in answers:
            if isinstance(answer, Refusal):
                return answer
        return next((answer for answer in answers if answer is not None), None)

    def _bury(self, record: Record, queues: tuple[Queue, ...], now_ms: int) -> None:
        """Dead letters of those that are full; the others refuse nothing by themselves."""
        for queue in queues:
            topic = queue.topic
            if topic.policy.overflow is Overflow.REJECT_DEAD_LETTER and topic.limits is not None:
                answer = topic.limits.judge(record, now_ms)
                if isinstance(answer, Refusal) and answer.kind is RefusalKind.LENGTH_LIMIT:
                    self._bury_refused(queue, record)

    def _held_ms_max(self, channel: Channel, hold: Hold) -> int:
        options = channel.connection.options
        if hold.reason.is_resource:
            given, default = options.alarm_hold_ms_max, self._flow.alarm_hold_ms_max
        elif options.is_fast_failing:
            # Only Spark's holds come here: a moment's wait paces a sender, a refusal makes it spin.
            return max(1, min(self._busy_hold_ms_max, self._flow.hold_ms_max))
        else:
            given, default = options.hold_ms_max, self._flow.hold_ms_max
        return default if given is None else given
