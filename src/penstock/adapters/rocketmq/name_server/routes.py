"""Which brokers there are and which of them has a topic (sheet 1.5), and key-value configuration.

The broker of this process is in it by itself; others register every 30 s and leave it when they say
so, when their connection ends, or after ``broker_silence_ms_max``. The order of entries is stable
(this broker, then by name), because ali-ons compares routes as text.

Invariants: a broker name is one entry, whatever its addresses; brokers and what each registers are
bounded. Not here: requests (``server.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.rocketmq.naming import RETRY_PREFIX
from penstock.adapters.rocketmq.requests import system_error
from penstock.wire.rocketmq.bodies import (
    MASTER,
    BrokerData,
    Cluster,
    DataVersion,
    Perm,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker

BROKERS_MAX: Final = 1000
TOPICS_MAX: Final = 100_000
"""Topics of one broker: one registration has some 40,000, but several may add up."""
ADDRESSES_MAX: Final = 16
"""Addresses of one broker name: a master and its slaves."""

GROUP_KIND: Final = "rocketmq.group"
"""Definitions of consumer groups: their retry topics are made when somebody asks for the route."""

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

KV_KIND: Final = "rocketmq.kv"
KV_ENTRIES_MAX: Final = 1000
KV_ENTRY_BYTES_MAX: Final = 16 * 1024
_SEPARATOR: Final = "\x1f"


class RegisteredBroker(msgspec.Struct):
    """A broker of another process."""

    name: str
    cluster: str
    addresses: dict[str, str] = msgspec.field(default_factory=dict)
    owners: dict[str, object] = msgspec.field(default_factory=dict)
    """Broker id -> the connection it registers over."""
    topics: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    version: DataVersion = msgspec.field(default_factory=DataVersion)
    heard_ms: int = 0
    silence_ms_max: int = 0
    is_wiped: bool = False
    """Its topics are shown without permission to write."""


class RouteRegistry:
    """Routes over all brokers (RocketMQ's ``RouteInfo``): this one, and those that registered."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._kv_config = broker.service(KvConfig)
        self._others: dict[str, RegisteredBroker] = {}
        self._is_local_wiped = False
        broker.timers.add(self)

    def route(self, topic: str, local_host: str) -> TopicRouteData | None:
        """Who has this topic, for a client that reached us as ``local_host``."""
        self._make_on_lookup(topic)
        queues: list[QueueData] = []
        brokers: list[BrokerData] = []
        for broker, config, is_wiped in self._holders(topic, local_host):
            queues.append(
                QueueData(
                    broker_name=broker.broker_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm & ~int(Perm.WRITE) if is_wiped else config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )
            )
            brokers.append(broker)
        if not queues:
            return None
        order = self._kv_config.get(ORDER_NAMESPACE, topic)
        return TopicRouteData(order_topic_conf=order, queue_datas=queues, broker_datas=brokers)

    def cluster(self, local_host: str) -> Cluster:
        """All brokers and their clusters."""
        brokers = {each.broker_name: each for each in self._brokers(local_host)}
        clusters: dict[str, list[str]] = {}
        for name, broker in brokers.items():
            clusters.setdefault(broker.cluster, []).append(name)
        return Cluster(broker_addr_table=brokers, cluster_addr_table=clusters)

    def topics(self, cluster: str | None = None) -> list[str]:
        """Every topic of every broker (of a cluster)."""
        found: dict[str, None] = {}
        if self._has_local and cluster in (None, self._broker.cluster):
            found.update(dict.fromkeys(self._broker.topics.configs()))
        for other in self._sorted():
            if cluster in (None, other.cluster):
                found.update(dict.fromkeys(other.topics))
        return list(found)

    # Other brokers.

    def broker(self, name: str) -> RegisteredBroker | None:
        return self._others.get(name)

    def register(
        self, name: str, cluster: str, broker_id: str, address: str, *, owner: object = None
    ) -> RegisteredBroker:
        """A broker registers; raises ``ErrorResponse`` when that cannot be.

        ``owner`` is the connection it came over: with its end the address goes.
        """
        if name == self._broker.broker_name and self._has_local:
            raise system_error(
                f"broker name {name} is this broker's own; give the other one another --broker-name"
            )
        broker = self._others.get(name)
        if broker is None:
            if len(self._others) >= BROKERS_MAX:
                raise system_error(f"there are {BROKERS_MAX} brokers already")
            broker = self._others[name] = RegisteredBroker(name, cluster)
        broker.cluster = cluster
        # An address that comes back under another id is a slave that became master, or the reverse.
        for known in [each for each, at in broker.addresses.items() if at == address]:
            del broker.addresses[known]
        if broker_id not in broker.addresses and len(broker.addresses) >= ADDRESSES_MAX:
            raise system_error(f"broker {name} has {ADDRESSES_MAX} addresses already")
        broker.addresses[broker_id] = address
        broker.owners[broker_id] = owner
        return self.touch(broker)

    def update_topics(
        self, broker: RegisteredBroker, table: TopicConfigTable, *, is_complete: bool
    ) -> None:
        """What a broker registered: all its topics, or some."""
        topics = {} if is_complete else dict(broker.topics)
        topics |= table.topic_config_table
        if len(topics) > TOPICS_MAX:
            raise system_error(f"broker {broker.name} has {len(topics)} topics, limit {TOPICS_MAX}")
        broker.topics = topics
        broker.version = table.data_version

    def connection_closed(self, owner: object) -> None:
        """A connection ended: what came over it, and over no newer one, goes."""
        for name, broker in list(self._others.items()):
            for broker_id, each in list(broker.owners.items()):
                if each is owner:
                    self.unregister(name, broker_id)

    def touch(self, broker: RegisteredBroker, silence_ms_max: int = 0) -> RegisteredBroker:
        broker.heard_ms = self._broker.clock.monotonic_ms()
        usual_ms = self._broker.settings.broker_silence_ms_max
        broker.silence_ms_max = silence_ms_max if silence_ms_max > 0 else usual_ms
        self._broker.timers.reschedule()
        return broker

    def unregister(self, name: str, broker_id: str) -> None:
        """One address of a broker goes, with the last one the broker."""
        broker = self._others.get(name)
        if broker is not None:
            broker.addresses.pop(broker_id, None)
            broker.owners.pop(broker_id, None)
            if not broker.addresses:
                del self._others[name]

    def set_wiped(self, name: str, is_wiped: bool) -> int:
        """Show a broker's topics with or without permission to write; how many it has."""
        if name == self._broker.broker_name and self._has_local:
            self._is_local_wiped = is_wiped
            return len(self._broker.topics.configs())
        broker = self._others.get(name)
        if broker is None:
            return 0
        broker.is_wiped = is_wiped
        return len(broker.topics)

    def forget_topic(self, topic: str, cluster: str = "") -> None:
        """Other brokers' entries of a topic go; they come back with their next registration."""
        for broker in self._others.values():
            if cluster in ("", broker.cluster):
                broker.topics.pop(topic, None)

    # Deadlines (``timers.Task``).

    def next_deadline_ms(self) -> int | None:
        """When the next broker was silent for too long."""
        return min(
            [each.heard_ms + each.silence_ms_max for each in self._others.values()], default=None
        )

    def due(self, now_ms: int) -> None:
        """Brokers that were silent for too long leave the routes."""
        for name, broker in list(self._others.items()):
            if now_ms >= broker.heard_ms + broker.silence_ms_max:
                del self._others[name]

    @property
    def _has_local(self) -> bool:
        return bool(self._broker.broker_port)

    def _sorted(self) -> list[RegisteredBroker]:
        return [self._others[name] for name in sorted(self._others)]

    def _local(self, local_host: str) -> BrokerData:
        return BrokerData(
            cluster=self._broker.cluster,
            broker_name=self._broker.broker_name,
            broker_addrs={MASTER: self._broker.address_for(local_host)},
        )

    def _brokers(self, local_host: str) -> Iterator[BrokerData]:
        if self._has_local:
            yield self._local(local_host)
        for other in self._sorted():
            yield _data(other)

    def _holders(
        self, topic: str, local_host: str
    ) -> Iterator[tuple[BrokerData, TopicConfig, bool]]:
        config = self._broker.topics.config(topic) if self._has_local else None
        if config is not None:
            yield self._local(local_host), config, self._is_local_wiped
        for other in self._sorted():
            if topic in other.topics:
                yield _data(other), other.topics[topic], other.is_wiped

    def _make_on_lookup(self, topic: str) -> None:
        """Make what the broker is willing to have before anybody sends to it."""
        broker = self._broker
        if not self._has_local or broker.topics.config(topic) is not None:
            return
        if topic.startswith(RETRY_PREFIX):
            group = topic.removeprefix(RETRY_PREFIX)
            if group in broker.engine.definitions(GROUP_KIND) or broker.consumers.group(group):
                broker.topics.ensure(topic)
        elif broker.settings.is_creating_on_lookup and broker.topics.problem_with(topic) is None:
            broker.topics.ensure(topic, queues=broker.settings.default_topic_queues)


def _data(broker: RegisteredBroker) -> BrokerData:
    return BrokerData(
        cluster=broker.cluster, broker_name=broker.name, broker_addrs=dict(broker.addresses)
    )


class KvConfig:
    """Key-value configuration, kept in the catalog: namespace, key, value."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._engine = engine = broker.engine
        self._count = 0
        self._tables: dict[str, dict[str, str]] = {}
        for name, value in engine.definitions(KV_KIND).items():
            namespace, _, key = name.partition(_SEPARATOR)
            self._tables.setdefault(namespace, {})[key] = value.decode()
            self._count += 1

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str]:
        return dict(self._tables.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; raises ``ErrorResponse`` when there is no room."""
        is_new = self.get(namespace, key) is None
        packed = value.encode()
        if is_new and self._count >= KV_ENTRIES_MAX:
            raise system_error(f"there are {KV_ENTRIES_MAX} entries already; delete some")
        if len(packed) + len(namespace) + len(key) > KV_ENTRY_BYTES_MAX:
            raise system_error(f"an entry has at most {KV_ENTRY_BYTES_MAX} bytes")
        self._count += is_new
        self._tables.setdefault(namespace, {})[key] = value
        self._engine.define(KV_KIND, f"{namespace}{_SEPARATOR}{key}", packed)

    def delete(self, namespace: str, key: str) -> None:
        if self._tables.get(namespace, {}).pop(key, None) is not None:
            self._count -= 1
            self._engine.define(KV_KIND, f"{namespace}{_SEPARATOR}{key}", None)
