"""WATCH_TOPIC_LIST: clients that subscribe by pattern hear of topics that come and go.

All watchers of a namespace share one list of its names, made anew when something changed there and
told as a difference, of which each watcher gets what its pattern matches. Changes that come close
together are told together: the list is made at most once in ``PAUSE_MS``, and more rarely where
making it takes long. A topic is told once it is durable.

Patterns that ``NamePattern`` does not understand are refused; clients then ask for the list from
time to time, as they do beside watching in any case. Only topics with a log are watched, as in
Pulsar. Bounds: ``WATCHERS_MAX`` of a connection; names, by the topics there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from penstock.adapters.pulsar.errors import CloseConnection, PulsarError
from penstock.adapters.pulsar.naming import (
    PATTERN_LENGTH_MAX,
    NamePattern,
    is_namespace,
    pulsar_name,
    topics_hash,
    without_domain,
)
from penstock.adapters.pulsar.ports import SimpleCommands
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

if TYPE_CHECKING:
    from penstock.adapters.pulsar.ports import ClientConnection, Handler
    from penstock.adapters.pulsar.topics import PulsarTopics
    from penstock.engine.broker import Engine
    from penstock.model.clock import Clock
    from penstock.model.names import TopicName

WATCHERS_MAX: Final = 100
"""Of one connection."""
PAUSE_MS: Final = 200
SHARE: Final = 20
"""Making lists takes at most this part of the time."""


class TopicWatches:
    """Who watches which namespace; a task of the timers."""

    def __init__(self, engine: Engine, clock: Clock, topics: PulsarTopics) -> None:
        self._engine: Final = engine
        self._clock: Final = clock
        self._topics: Final = topics
        self._watched: Final[dict[str, _Namespace]] = {}
        self._changed: Final[dict[str, None]] = {}
        """Namespaces of which something is to be told."""
        self._next_ms = 0
        engine.watch_creations(lambda topic: self.changed(topic.name))
        engine.watch_removals(lambda topic: self.changed(topic.name))
        topics.watch_growth(lambda name: self.changed(name.topic_name))

    def add(self, watcher: TopicWatcher) -> list[str]:
        """The names that it matches now, sorted; it hears what changes from now on."""
        found = self._watched.get(watcher.namespace)
        if found is None:
            found = _Namespace(self._names(watcher.namespace))
            self._watched[watcher.namespace] = found
        found.watchers[watcher] = None
        return watcher.matching(found.names)

    def remove(self, watcher: TopicWatcher) -> None:
        found = self._watched.get(watcher.namespace)
        if found is not None:
            found.watchers.pop(watcher, None)
            if not found.watchers:
                del self._watched[watcher.namespace]

    def changed(self, name: TopicName) -> None:
        """A topic came, went or grew."""
        spelt = pulsar_name(name)
        if spelt is not None and spelt.namespace in self._watched:
            self._engine.after_durable(lambda: self._tell(spelt.namespace))

    def next_deadline_ms(self) -> int | None:
        return self._next_ms if self._changed else None

    def due(self, now_ms: int) -> None:
        if now_ms < self._next_ms:
            return
        for namespace in list(self._changed):
            found = self._watched.get(namespace)
            if found is not None:
                found.renew(self._names(namespace))
        self._changed.clear()
        took_ms = self._clock.monotonic_ms() - now_ms
        self._next_ms = now_ms + max(PAUSE_MS, SHARE * took_ms)

    def _tell(self, namespace: str) -> None:
        self._changed[namespace] = None
        self.due(self._clock.monotonic_ms())

    def _names(self, namespace: str) -> dict[str, None]:
        return dict.fromkeys([str(name) for name in self._topics.names(namespace)])


class _Namespace:
    """A namespace that is watched."""

    __slots__ = ("names", "watchers")

    def __init__(self, names: dict[str, None]) -> None:
        self.names = names
        """Sorted."""
        self.watchers: Final[dict[TopicWatcher, None]] = {}

    def renew(self, names: dict[str, None]) -> None:
        before, self.names = self.names, names
        come = [name for name in names if name not in before]
        gone = [name for name in before if name not in names]
        if come or gone:
            for watcher in self.watchers:
                watcher.tell(come, gone, names)


class TopicWatcher:
    """One watcher of one connection."""

    __slots__ = ("_connection", "_pattern", "namespace", "watcher_id")

    def __init__(
        self, connection: ClientConnection, watcher_id: int, namespace: str, pattern: NamePattern
    ) -> None:
        self.namespace: Final = namespace
        self.watcher_id: Final = watcher_id
        self._connection = connection
        self._pattern = pattern

    def matching(self, names: Mapping[str, None] | list[str]) -> list[str]:
        return [name for name in names if self._pattern.matches(name)]

    def tell(self, come: list[str], gone: list[str], names: Mapping[str, None]) -> None:
        come, gone = self.matching(come), self.matching(gone)
        if come or gone:
            update = BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE)
            said = update.watch_topic_update
            said.watcher_id = self.watcher_id
            said.new_topics.extend(come)
            said.deleted_topics.extend(gone)
            said.topics_hash = topics_hash(self.matching(names))
            self._connection.send(update)


# ---- commands -----------------------------------------------------------------------------------


class WatchBroker(Protocol):
    """What all connections share, as far as it is used here."""

    @property
    def watches(self) -> TopicWatches: ...


class WatchCommands(SimpleCommands):
    """WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE of one connection."""

    def __init__(self, connection: ClientConnection, broker: WatchBroker) -> None:
        self._connection: Final = connection
        self._watches: Final = broker.watches
        self._watchers: Final[dict[int, TopicWatcher]] = {}

    def handlers(self) -> Mapping[int, Handler]:
        return {
            BaseCommand.WATCH_TOPIC_LIST: self._watch,
            BaseCommand.WATCH_TOPIC_LIST_CLOSE: self._close,
        }

    def closed(self) -> None:
        for watcher in self._watchers.values():
            self._watches.remove(watcher)
        self._watchers.clear()

    def _watch(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.watch_topic_list
        if not is_namespace(asked.namespace):
            raise CloseConnection(f"{asked.namespace[:80]!r} is no namespace")
        if len(without_domain(asked.topics_pattern)) > PATTERN_LENGTH_MAX:
            raise _not_allowed(f"Pattern longer than maximum: {PATTERN_LENGTH_MAX}")
        pattern = NamePattern(asked.topics_pattern)
        if not pattern.is_understood:
            raise _not_allowed("only text, '.' and '.*' are matched here; ask for the list instead")
        self._end(asked.watcher_id)
        if len(self._watchers) >= WATCHERS_MAX:
            raise _not_allowed(f"the connection has {WATCHERS_MAX} watchers already")
        watcher = TopicWatcher(self._connection, asked.watcher_id, asked.namespace, pattern)
        self._watchers[asked.watcher_id] = watcher
        names = self._watches.add(watcher)
        reply = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
        said = reply.watch_topic_list_success
        said.request_id = asked.request_id
        said.watcher_id = asked.watcher_id
        said.topics_hash = topics_hash(names)
        if said.topics_hash != asked.topics_hash:
            said.topic.extend(names)
        self._connection.send(reply)

    def _close(self, command: BaseCommand, _tail: bytes) -> None:
        asked = command.watch_topic_list_close
        self._end(asked.watcher_id)
        self._connection.succeed(asked.request_id)

    def _end(self, watcher_id: int) -> None:
        watcher = self._watchers.pop(watcher_id, None)
        if watcher is not None:
            self._watches.remove(watcher)


def _not_allowed(text: str) -> PulsarError:
    return PulsarError(ServerError.NotAllowedError, f"Unable to create topic list watcher: {text}")
