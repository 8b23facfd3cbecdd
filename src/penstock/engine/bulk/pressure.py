"""Back-pressure of queries on the publishers of their topics, brought to the gate (F18, D23).

A topic without a query, or with queries within their bounds, has no brake and costs a publish
nothing. Soft: the brake is hung into the topic's limits while the bound is passed. Hard: as long as
a query that lives reads the topic, because "at the bound" must be exact. Only queries that were
heard of within ``spark.alive_ms_max`` and whose lease holds count: no dead query holds publishers.

Not here: the arithmetic (``flow/spark_brake.py``), what holding means (``admission.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.engine.hold import Hold
from penstock.engine.limits import TopicLimits, needs_limits
from penstock.flow.reason import Reason
from penstock.flow.spark_brake import Backlog, BacklogBound, Backpressure, Brake

if TYPE_CHECKING:
    from penstock.engine.topic import Topic, TopicPolicy
    from penstock.settings.protocols import SparkSettings

Backlogs = Callable[["Topic"], list[Backlog]]


class TopicPressure:
    """The brake of one topic; satisfies ``limits.SparkPressure``."""

    __slots__ = ("_backlogs", "_now", "_policy", "brake", "topic")

    def __init__(
        self, topic: Topic, brake: Brake, backlogs: Backlogs, now: Callable[[], int]
    ) -> None:
        self.topic = topic
        self.brake = brake
        self._backlogs = backlogs
        self._now = now
        self._policy = topic.policy

    @property
    def is_stale(self) -> bool:
        """True when the policy it was made by is not the topic's any more."""
        return self._policy is not self.topic.policy

    def look(self) -> bool:
        """Fresh figures; True when the brake was put on or let go."""
        return self.brake.look(self._backlogs(self.topic), self._now())

    def begin(self, arriving: int, arriving_bytes: int) -> None:
        """Fresh figures for this turn."""
        self.look()
        self.brake.count(arriving, arriving_bytes)

    def judge(self, messages: int, size_bytes: int, now_ms: int) -> Hold | None:
        """Why the publish waits."""
        held = self.brake.judge(messages, size_bytes, now_ms)
        return Hold(Reason.SPARK, held.culprit, held.until_ms) if held is not None else None

    def admit(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """The publish is on its way in."""
        self.brake.admit(messages, size_bytes, now_ms)


class Pressures:
    """The brakes of all topics that queries read."""

    __slots__ = ("_backlogs", "_now", "_settings", "by_topic")

    def __init__(self, settings: SparkSettings, backlogs: Backlogs, now: Callable[[], int]) -> None:
        self._settings = settings
        self._backlogs = backlogs
        self._now = now
        self.by_topic: dict[Topic, TopicPressure] = {}

    def look(self, topics: set[Topic]) -> bool:
        """Fresh figures for the topics that living queries read; True when a brake changed."""
        is_changed = False
        for topic in [each for each in self.by_topic if each not in topics or each.is_deleted]:
            is_changed |= self._detach(self.by_topic.pop(topic))
        for topic in topics:
            pressure = self.by_topic.get(topic)
            if pressure is None or pressure.is_stale:
                if pressure is not None:
                    self._detach(pressure)
                pressure = self.by_topic[topic] = self._made(topic)
            is_changed |= pressure.look()
            brake = pressure.brake
            if brake.is_on or (brake.mode is Backpressure.HARD and brake.bound.is_set):
                self._attach(pressure)
            else:
                is_changed |= self._detach(pressure)
        return is_changed

    def held(self, topic: Topic, query: str) -> str | None:
        """Why publishers of a topic wait because of a query, if they do."""
        pressure = self.by_topic.get(topic)
        if pressure is None or not pressure.brake.is_on or pressure.brake.query != query:
            return None
        return pressure.brake.explain()

    def _made(self, topic: Topic) -> TopicPressure:
        mode, bound = self.rule(topic.policy)
        brake = Brake(str(topic.name), mode, bound, self._now())
        return TopicPressure(topic, brake, self._backlogs, self._now)

    def rule(self, policy: TopicPolicy) -> tuple[Backpressure, BacklogBound]:
        """What holds for a topic with this policy: its own words, else the settings'."""
        own = self._settings
        bound = BacklogBound(
            _given(policy.spark_backlog_messages_max, own.backlog_messages_max),
            _given(policy.spark_backlog_bytes_max, own.backlog_bytes_max),
            _given(policy.spark_backlog_age_ms_max, own.backlog_age_ms_max),
        )
        return Backpressure(policy.spark_backpressure or own.backpressure), bound

    def _attach(self, pressure: TopicPressure) -> None:
        topic = pressure.topic
        if topic.limits is None:
            topic.limits = TopicLimits(topic, self._now())
        topic.limits.spark = pressure

    def _detach(self, pressure: TopicPressure) -> bool:
        topic = pressure.topic
        if topic.limits is None or topic.limits.spark is not pressure:
            return False
        topic.limits.spark = None
        if not needs_limits(topic.policy):
            topic.limits = None
        return True


def _given(value: int, default: int) -> int:
    return default if value < 0 else value
