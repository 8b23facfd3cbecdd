"""What an operator may see and change of topics and groups, whatever protocol made them.

A group is every subscription of one name: RocketMQ's consumer group, Pulsar's subscription. Its lag
is what it has not settled: in messages, in bytes of log, and in seconds since the oldest of them
was stored. What only a protocol knows (members, pop or pull, who must be told of a reset) is asked
of its ``Desk``, which owns the subscriptions whose names begin with its prefix; for others the
engine's own view is all there is.

Called on the loop between two turns. Every listing is paged, so none of it grows with the broker.
Not here: what is shown (``admin_views.py``), HTTP (``http/admin.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from penstock.engine.broker import Engine, HopCredit
from penstock.engine.spark.views import QueryPage, query_pages
from penstock.engine.topic import Queue, Topic
from penstock.model.clock import Clock
from penstock.model.errors import AlreadyExists, NotFound, PenstockError, SettingsError
from penstock.model.names import TopicName, topic_name
from penstock.server.admin_views import (
    PAGE_ROWS_MAX,
    Desk,
    GroupView,
    Page,
    QueueLag,
    Reading,
    TopicView,
    group_view,
    idle_view,
    queue_view,
    topic_view,
)
from penstock.settings.protocols import BACKPRESSURES

QUEUES_PER_CREATE_MAX: Final = 1024


class Administration:
    """Looks at and changes one broker."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
        desks: Sequence[Desk] = (),
    ) -> None:
        self._engine = engine
        self._clock = clock
        self.wake = wake
        self._desks = desks

    def after_durable(self, callback: Callable[[], None]) -> None:
        """Call back once what was changed so far would survive a crash."""
        self._engine.after_durable(callback)
        self.wake()

    # Flow.

    def credits(self) -> dict[str, HopCredit]:
        """Credit of every hop (F1)."""
        return self._engine.credits()

    def set_credit(self, hop: str, credit: int, more: int) -> None:
        """Change the credit of a hop, on every connection and queue at once."""
        self._engine.set_credit(hop, credit, more)
        self.wake()

    # Topics.

    def topics(self, *, offset: int = 0, contains: str = "", with_hidden: bool = False) -> Page:
        """A page of topics in order of creation."""
        found = [
            topic
            for topic in self._engine.topics()
            if (with_hidden or not topic.name.is_hidden) and contains in str(topic.name)
        ]
        rows = [topic_view(topic) for topic in found[offset : offset + PAGE_ROWS_MAX]]
        return Page(len(found), offset, rows)

    def topic(self, name: str, space: str = "") -> TopicView:
        """One topic with its queues and groups."""
        topic = self._topic(name, space)
        view = topic_view(topic)
        some = list(self._readings_of(topic))[:PAGE_ROWS_MAX]
        return msgspec.structs.replace(
            view,
            each_queue=[queue_view(queue) for queue in topic.queues[:PAGE_ROWS_MAX]],
            each_group=[group_view(each, self._clock.wall_ms()) for each in some],
        )

    def create_topic(self, name: str, space: str = "", *, queues: int = 4) -> None:
        """A new durable topic."""
        if not 1 <= queues <= QUEUES_PER_CREATE_MAX:
            raise SettingsError(f"a topic has 1 to {QUEUES_PER_CREATE_MAX} queues, not {queues}")
        checked = _checked(name, space)
        if self._engine.topic(checked) is not None:
            raise AlreadyExists(f"topic '{checked}' exists; delete it first, or use another name")
        if self._desks:
            self._desks[0].create_topic(checked, queues)
        else:
            self._engine.create_topic(checked, queues=queues)

    def delete_topic(self, name: str, space: str = "") -> None:
        """A topic goes with its messages."""
        topic = self._topic(name, space)
        for desk in self._desks:
            desk.delete_topic(topic)
        if not topic.is_deleted:
            self._engine.retire_topic(topic.name)

    def set_spark_policy(self, name: str, space: str = "", **changes: str | int) -> None:
        """What Spark queries behind their bounds do to a topic's publishers (D23)."""
        topic = self._topic(name, space)
        mode = changes.get("spark_backpressure", "")
        if mode not in ("", *BACKPRESSURES):
            raise SettingsError(f"spark_backpressure is {mode!r}; use off, soft or hard")
        policy = msgspec.structs.replace(topic.policy, **changes)
        self._engine.set_policy(topic.name, policy)
        self.wake()

    # Queries.

    def queries(self) -> list[QueryPage]:
        """Every Spark query."""
        return query_pages(
            self._engine.queries, self._clock.monotonic_ms(), self._engine.queries.wall_ms
        )

    def forget_query(self, name: str) -> None:
        """A query goes with its positions; its data is not kept for it any more."""
        if name not in self._engine.queries.book.queries:
            raise NotFound(f"there is no query '{name}'; `penstock queries` shows them")
        self._engine.queries.release(name, is_final=True)
        self.wake()

    # Groups.

    def groups(self, *, offset: int = 0, contains: str = "", with_hidden: bool = False) -> Page:
        """A page of (group, topic) pairs; groups that read nothing come last, without a topic."""
        pairs = [
            reading
            for reading in self._readings()
            if (with_hidden or not reading.topic.name.is_hidden) and contains in reading.group
        ]
        seen = {(reading.desk, reading.group) for reading in pairs}
        idle = [
            (desk, group)
            for desk in self._desks
            for group in desk.group_names()
            if (desk, group) not in seen and contains in group
        ]
        rows = [
            group_view(each, self._clock.wall_ms())
            for each in pairs[offset : offset + PAGE_ROWS_MAX]
        ]
        past = max(0, offset - len(pairs))
        rows += [idle_view(*each) for each in idle[past : past + PAGE_ROWS_MAX - len(rows)]]
        return Page(len(pairs) + len(idle), offset, rows)

    def group(self, group: str) -> list[GroupView]:
        """One group on every topic it reads, queue by queue."""
        found = [reading for reading in self._readings() if reading.group == group]
        rows = [
            group_view(each, self._clock.wall_ms(), with_queues=True)
            for each in found[:PAGE_ROWS_MAX]
        ]
        rows = rows or [idle_view(desk, group) for desk in self._desks_of(group)]
        if not rows:
            raise NotFound(f"there is no group '{group}'; `penstock groups list` shows them")
        return rows

    def reset(
        self, group: str, topic: str, space: str = "", *, to: str | int, queue: int | None = None
    ) -> list[QueueLag]:
        """Move a group: ``earliest``, ``latest``, an offset, or ``time:MS`` of the wall clock."""
        found = self._topic(topic, space)
        readings = [each for each in self._readings_of(found) if each.group == group]
        if not readings:
            raise NotFound(f"group '{group}' does not read topic '{topic}'")
        if queue is not None and not 0 <= queue < len(found.queues):
            raise SettingsError(f"topic '{topic}' has queues 0 to {len(found.queues) - 1}")
        chosen = found.queues if queue is None else (found.queues[queue],)
        targets = [(each, _target(to, each)) for each in chosen]
        for reading in readings:
            for each, offset in targets:
                if reading.desk is not None:
                    reading.desk.reset(each, group, offset)
                else:
                    reading.subscription.seek(each.queue_id, offset)
        self.wake()
        return [
            lag
            for reading in readings
            for lag in group_view(reading, self._clock.wall_ms(), with_queues=True).queues
        ]

    def delete_group(self, group: str, topic: str | None = None, space: str = "") -> int:
        """A group goes, from one topic or from all; returns from how many."""
        found = [
            reading
            for reading in self._readings()
            if reading.group == group and topic in (None, reading.topic.name.name)
            and (topic is None or reading.topic.name.space == space)
        ]  # fmt: skip
        known = self._desks_of(group) if topic is None else []
        if not found and not known:
            raise NotFound(f"there is no group '{group}'" + (f" on '{topic}'" if topic else ""))
        for reading in found:
            if reading.desk is not None:
                reading.desk.forget(reading.topic, group)
            else:
                self._engine.delete_subscription(reading.topic.name, reading.subscription.name)
        for desk in known:
            desk.forget(None, group)
        self.wake()
        return len(found)

    def set_mode(
        self, group: str, topic: str, space: str = "", *, mode: str, share: int = -1
    ) -> None:
        """Pull or pop, for protocols that know the difference."""
        if mode not in ("pull", "pop"):
            raise SettingsError(f"a group reads by pull or by pop, not by {mode!r}")
        found = self._topic(topic, space)
        if not self._desks:
            raise PenstockError("no protocol of this broker knows modes; start it with --rocketmq")
        for desk in self._desks:
            desk.set_mode(found, group, mode, share)
        self.wake()

    def places(self) -> list[dict[str, str]]:
        """What this broker is to the others of its cluster, by protocol that has clusters."""
        return [desk.place() for desk in self._desks]

    # Parts.

    def _topic(self, name: str, space: str) -> Topic:
        found = self._engine.topic(TopicName(space, name))
        if found is None:
            where = f" in space '{space}'" if space else ""
            raise NotFound(f"there is no topic '{name}'{where}; `penstock topics list` shows them")
        return found

    def _readings(self) -> Iterator[Reading]:
        for topic in self._engine.topics():
            yield from self._readings_of(topic)

    def _readings_of(self, topic: Topic) -> Iterator[Reading]:
        for name, subscription in topic.subscriptions.items():
            desk = next((each for each in self._desks if name.startswith(each.prefix)), None)
            group = name.removeprefix(desk.prefix) if desk is not None else name
            yield Reading(topic, subscription, group, desk)

    def _desks_of(self, group: str) -> list[Desk]:
        return [desk for desk in self._desks if group in desk.group_names()]


def _checked(name: str, space: str) -> TopicName:
    try:
        return topic_name(name, space)
    except ValueError as problem:
        raise SettingsError(str(problem)) from None


def _target(to: str | int, queue: Queue) -> int:
    index = queue.index
    if isinstance(to, int):
        if to < 0:
            raise SettingsError(f"offset {to} is below 0")
        return min(max(to, index.min_offset), index.next_offset)
    if to == "earliest":
        return index.min_offset
    if to == "latest":
        return index.next_offset
    kind, _, text = to.partition(":")
    if kind == "time" and text.isdecimal():
        return index.search_time(int(text))
    raise SettingsError(f"cannot reset to {to!r}; use earliest, latest, an offset or time:MS")
