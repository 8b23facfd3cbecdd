"""Topics as RocketMQ sees them: queue counts, permissions, attributes; and how they come to be.

The engine's topic is the thing itself; its RocketMQ side is a ``TopicConfig`` kept as a definition
of kind ``rocketmq.topic``. A topic that another protocol made has none and is shown with all its
queues, readable and writable. ``TBW102`` is no topic: it is the model that new ones inherit from.
Every broker has a topic with its own name and one with its cluster's (operators' tools send to
them); they are in all lists and come to be when somebody asks for them.

Invariants: an engine topic has at least max(read, write) queues, and never fewer than it had; a
topic made here keeps messages ``retention_ms`` (D11), since groups do not hold data.
Not here: requests about topics (``admin.py``), routes (``name_server/``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from penstock.adapters.rocketmq.naming import (
    DEFAULT_TOPIC,
    FORBIDDEN_TOPICS,
    PREFIXES,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    neutral_name,
    problem_with,
    wire_name,
)
from penstock.adapters.rocketmq.requests import ErrorResponse, forbidden, no_topic
from penstock.engine.broker import Engine
from penstock.engine.topic import DirectRoute, Topic, TopicPolicy
from penstock.model.clock import Clock
from penstock.model.names import control_problem
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.bodies import DataVersion, Perm, TopicConfig
from penstock.wire.rocketmq.headers import SendHeader

TOPIC_KIND: Final = "rocketmq.topic"
QUEUES_MAX: Final = 1024
"""Queues one request may give a topic; ``topics.queues_max`` holds for all together."""

FOREIGN_PREFIXES: Final = ("amq.gen-", "penstock.")
"""Other protocols' own topics: they can be named, but no list shows them (D9)."""

READ_WRITE: Final = int(Perm.READ | Perm.WRITE)


class RocketmqTopicRow(msgspec.Struct, frozen=True):
    """A definition of kind ``rocketmq.topic``.

    It speaks of one topic, not of whoever has the name after another protocol deleted that one.
    """

    topic_id: int
    config: TopicConfig


class RocketmqTopic:
    """A topic that can be sent to and read from; valid while ``topic.is_deleted`` is False."""

    __slots__ = (
        "config", "is_forbidden", "is_readable", "is_retry", "is_writable", "name", "queues",
        "routes", "topic",
    )  # fmt: skip

    def __init__(self, name: str, topic: Topic, config: TopicConfig) -> None:
        self.name = name
        """RocketMQ's spelling."""
        self.topic = topic
        self.config = config
        self.queues = max(config.read_queue_nums, config.write_queue_nums)
        """Queue numbers from 0 up to this are valid in requests."""
        self.is_retry = name.startswith(RETRY_PREFIX)
        self.is_readable = bool(config.perm & Perm.READ)
        self.is_forbidden = name in FORBIDDEN_TOPICS
        """The broker's own: nobody sends to it, whatever its permissions."""
        self.is_writable = bool(config.perm & Perm.WRITE) and not self.is_forbidden
        self.routes = tuple([DirectRoute(queue) for queue in topic.queues])


class TopicRegistry:
    """All topics of this broker, by RocketMQ's names."""

    def __init__(
        self,
        engine: Engine,
        settings: RocketmqSettings,
        clock: Clock,
        own: Mapping[str, int] | None = None,
    ) -> None:
        self._own = {
            name: queues for name, queues in (own or {}).items() if problem_with(name) is None
        }
        """Topics that every broker has, by their queues; made when somebody asks for them."""
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._topics: dict[str, RocketmqTopic] = {}
        """Only topics that exist: bounded by ``topics.queues_max``."""
        self._configs: dict[str, RocketmqTopicRow] = {}
        for name, body in engine.definitions(TOPIC_KIND).items():
            self._configs[name] = msgspec.json.decode(body, type=RocketmqTopicRow)
        self.version = DataVersion(timestamp=clock.wall_ms())
        """Changes whenever a topic does: name servers compare it."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change; set by a broker that joined a name server."""

    # Looking.

    def find(self, name: str) -> RocketmqTopic | None:
        """The topic of that name, if there is one."""
        rmq_topic = self._topics.get(name)
        if rmq_topic is not None and not rmq_topic.topic.is_deleted:
            return rmq_topic
        topic = self._engine.topic(neutral_name(name))
        if topic is None:
            self._topics.pop(name, None)
            return self.put(self._own_config(name)) if name in self._own else None
        rmq_topic = self._topics[name] = RocketmqTopic(name, topic, self._config(name, topic))
        return rmq_topic

    def require(self, name: str) -> RocketmqTopic:
        """The topic of that name; raises ``ErrorResponse`` 17."""
        rmq_topic = self.find(name)
        if rmq_topic is None:
            raise no_topic(name)
        return rmq_topic

    @property
    def model(self) -> TopicConfig:
        queues = self._settings.default_topic_queues
        inherit = int(Perm.INHERIT) if self._settings.is_auto_creating else 0
        return TopicConfig(
            topic_name=DEFAULT_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=READ_WRITE | inherit,
        )

    def config(self, name: str) -> TopicConfig | None:
        """What is known of a topic, TBW102 included."""
        if name == DEFAULT_TOPIC:
            return self.model
        rmq_topic = self.find(name)
        return None if rmq_topic is None else rmq_topic.config

    def configs(self) -> dict[str, TopicConfig]:
        """Every topic and TBW102, in order of creation."""
        found = {DEFAULT_TOPIC: self.model} if self._settings.is_auto_creating else {}
        found.update({name: self._own_config(name) for name in self._own})
        for topic in self._engine.topics():
            if not topic.name.name.startswith(FOREIGN_PREFIXES):
                name = wire_name(topic.name)
                found[name] = self._config(name, topic)
        return found

    # Making and changing.

    def for_send(self, header: SendHeader, maker: str) -> RocketmqTopic:
        """The topic a send names, made if that is allowed; raises ``ErrorResponse``."""
        name = header.topic
        self.check_name(name)
        if name in FORBIDDEN_TOPICS:
            raise forbidden(name)
        rmq_topic = self.find(name)
        if rmq_topic is None:
            rmq_topic = self._inherited(header, maker)
        if rmq_topic is None:
            if not name.startswith(PREFIXES):
                raise no_topic(name)
            rmq_topic = self.ensure(name, maker=maker)
        return rmq_topic

    def for_group(self, name: str, queues: int = 1) -> RocketmqTopic:
        """A retry or dead-letter topic, made if need be; raises ``ErrorResponse`` for its name."""
        self.check_name(name)
        return self.ensure(name, queues=queues)

    def ensure(
        self, name: str, *, queues: int = 1, perm: int = READ_WRITE, maker: str = ""
    ) -> RocketmqTopic:
        """The topic of that name, made if there is none: for topics the broker itself needs."""
        rmq_topic = self.find(name)
        if rmq_topic is None:
            rmq_topic = self.put(
                TopicConfig(
                    topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
                ),
                maker,
            )
        return rmq_topic

    def put(self, config: TopicConfig, maker: str = "") -> RocketmqTopic:
        """Make a topic, or change what RocketMQ says about one."""
        name = config.topic_name
        queues = max(1, config.read_queue_nums, config.write_queue_nums)
        neutral = neutral_name(name)
        topic = self._engine.topic(neutral)
        if topic is None:
            policy = TopicPolicy(retention_ms=self._settings.retention_ms)
            topic = self._engine.create_topic(neutral, queues=queues, policy=policy, maker=maker)
        elif len(topic.queues) < queues:
            topic = self._engine.grow_topic(neutral, queues)
        row = self._configs[name] = RocketmqTopicRow(topic.topic_id, config)
        self._engine.define(TOPIC_KIND, name, msgspec.json.encode(row))
        self._changed()
        rmq_topic = self._topics[name] = RocketmqTopic(name, topic, config)
        return rmq_topic

    def delete(self, name: str) -> bool:
        """A topic goes with its messages; False when there is none."""
        rmq_topic = self.find(name)
        if rmq_topic is None:
            return False
        self._engine.delete_topic(rmq_topic.topic.name)
        if self._configs.pop(name, None) is not None:
            self._engine.define(TOPIC_KIND, name, None)
        self._topics.pop(name, None)
        self._changed()
        return True

    def check_name(self, name: str) -> None:
        """Raise ``ErrorResponse`` unless a client may name a topic so."""
        problem = self.problem_with(name)
        if problem is not None:
            raise ErrorResponse(self._settings.invalid_parameter_code, problem)

    def problem_with(self, name: str) -> str | None:
        """What is wrong with a name in a request; None when it will do, or is there already."""
        problem = problem_with(name)
        if problem is not None or "%" not in name:
            return problem
        # "%1B" is a way to write a control character that no rule of RocketMQ's forbids.
        neutral = neutral_name(name)
        if self._engine.topic(neutral) is not None:
            return None
        return control_problem("The specified topic", str(neutral))

    def _inherited(self, header: SendHeader, maker: str) -> RocketmqTopic | None:
        """A new topic after the model the send names, if that one lets itself be inherited."""
        model = self.config(header.default_topic)
        if model is None or not model.perm & Perm.INHERIT:
            return None
        if header.topic.startswith(PREFIXES):
            return None
        queues = max(1, min(header.default_topic_queue_nums, model.write_queue_nums))
        return self.put(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=model.perm & ~int(Perm.INHERIT),
                topic_sys_flag=1 if header.unit_mode else 0,
            ),
            maker,
        )

    def _own_config(self, name: str) -> TopicConfig:
        queues = self._own[name]
        is_model = self._settings.is_auto_creating and not name.endswith(REPLY_SUFFIX)
        inherit = int(Perm.INHERIT) if is_model else 0
        return TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=READ_WRITE | inherit,
        )

    def _config(self, name: str, topic: Topic) -> TopicConfig:
        row = self._configs.get(name)
        if row is not None and row.topic_id == topic.topic_id:
            return row.config
        queues = len(topic.queues)
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)

    def _changed(self) -> None:
        self.version = DataVersion(
            timestamp=self._clock.wall_ms(), counter=self.version.counter + 1
        )
        self.on_change()
