"""What all RocketMQ connections of a broker share.

One ``RocketmqBroker`` per process, made when the listeners are open: engine, clock, settings, the
broker's name and addresses, topics, groups, queue locks, request modes, and every live connection.
Everything else that requests share is a service: ``broker.service(PopService)`` makes it on first
use and gives the same object ever after. So this module knows none of them, and a service with
deadlines adds itself to ``broker.timers``.

The store host (D20) is written into the catalog once and never changes: message ids contain it.

Not here: one connection (``connection.py``), which handler serves which request (``factory.py``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol, TypeVar

from penstock.adapters.client_log import ClientLog
from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq.naming import reply_topic
from penstock.adapters.rocketmq.remoting import FirstRequests
from penstock.adapters.rocketmq.topics import TopicRegistry
from penstock.adapters.timers import Timers
from penstock.engine.broker import Engine
from penstock.engine.group.assignment import ConsumeModeRegistry
from penstock.engine.group.locks import QueueLocks
from penstock.engine.group.membership import Membership
from penstock.engine.group.switches import GroupSwitchRegistry
from penstock.model.clock import Clock
from penstock.model.ids import ConnectionId
from penstock.settings.describe import describe
from penstock.settings.load import Settings
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.message_id import UniqueKeys, encode_host, host_hex

logger = logging.getLogger(__name__)

LOCALHOST: Final = "127.0.0.1"
STORE_HOST_KIND: Final = "rocketmq.store_host"

LockedQueue = tuple[str, int]
"""Topic (RocketMQ's spelling) and queue number."""

CLUSTER_TOPIC_QUEUES: Final = 16
BROKER_TOPIC_QUEUES: Final = 1
REPLY_TOPIC_QUEUES: Final = 1
"""RocketMQ's figures for the topics named after its cluster and itself, and that of replies."""

ClientResponse = Callable[[Command | None], None]
"""Gets the client's response to a request of ours, or None when there will be none."""

ServiceT = TypeVar("ServiceT")


class RemotingPeer(Protocol):
    """What services may do with a live connection (``connection.RocketmqConnection``)."""

    wants_close: bool
    is_closed: bool

    @property
    def broker(self) -> RocketmqBroker: ...

    @property
    def connection_id(self) -> ConnectionId: ...

    @property
    def name(self) -> str: ...

    @property
    def peer(self) -> Peer: ...

    @property
    def born_host(self) -> bytes: ...

    def answer(
        self,
        request: Command,
        code: int = 0,
        *,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> None: ...

    def write(self, *frames: bytes) -> None: ...

    def push(self, command: Command, on_response: ClientResponse | None = None) -> None: ...

    def forget(self, command: Command) -> None: ...

    @property
    def is_taking(self) -> bool: ...


class RocketmqBroker:
    """Shared state of the broker listener and the name server."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        settings: Settings,
        *,
        broker_port: int,
        name_server: str = "",
    ) -> None:
        self.engine: Final = engine
        self.clock: Final = clock
        self.all_settings: Final = settings
        self.settings: Final = settings.rocketmq
        self.broker_name: Final = self.settings.broker_name or settings.broker.name
        self.cluster: Final = self.settings.cluster
        self.broker_port: Final = broker_port
        """Where the broker listens; 0 when that listener is off."""
        self.name_server: Final = self.settings.join or name_server
        """``host:port`` of the name server that knows this broker; empty when there is none."""
        self.opened_ms: Final = clock.monotonic_ms()
        self.first_requests: Final = FirstRequests(self.settings.strangers_bytes_max)
        self.timers: Final = Timers()
        self.client_log: Final = ClientLog(clock, logger)
        self.timers.add(self.client_log)
        self.connections: Final[dict[ConnectionId, RemotingPeer]] = {}
        """Broker connections that live."""
        self.switches: Final = GroupSwitchRegistry()
        self.consumers: Final = Membership(
            is_notified=lambda group: self.switches.get(group).is_notified
        )
        self.producers: Final = Membership()
        self.locks: Final[QueueLocks[LockedQueue]] = QueueLocks(self.settings.queue_lock_ms)
        self.modes: Final = ConsumeModeRegistry()
        self.random: Final = Random()
        """Picks queues; guards nothing."""
        self.store_host: Final = self._store_host()
        """ip and port as stored messages carry them (D20)."""
        self.store_host_hex: Final = host_hex(self.store_host)
        self.unique_keys: Final = UniqueKeys(
            LOCALHOST, os.getpid(), clock, salt=int.from_bytes(self.store_host[:4], "big")
        )
        self.topics: Final = TopicRegistry(
            engine,
            self.settings,
            clock,
            {
                self.cluster: CLUSTER_TOPIC_QUEUES,
                self.broker_name: BROKER_TOPIC_QUEUES,
                reply_topic(self.cluster): REPLY_TOPIC_QUEUES,
            },
        )
        self._services: dict[object, Any] = {}

    def service(self, kind: Callable[[RocketmqBroker], ServiceT]) -> ServiceT:
        """The one object of this class: ``kind(broker)``, made on first use."""
        found: ServiceT | None = self._services.get(kind)
        if found is None:
            found = self._services[kind] = kind(self)
        return found

    def address_for(self, local_host: str) -> str:
        """``ip:port`` of this broker as a client should dial it that reached ``local_host``."""
        host = self.settings.advertise or local_host
        if host in ("::1", "::", "0.0.0.0"):
            host = LOCALHOST
        host = host.removeprefix("::ffff:")
        return f"[{host}]:{self.broker_port}" if ":" in host else f"{host}:{self.broker_port}"

    @property
    def address(self) -> str:
        """``ip:port`` of this broker where no client says how it came here."""
        return self.address_for(LOCALHOST)

    def settings_text(self, named: Mapping[str, object]) -> bytes:
        """Lines of ``name=value`` as Java's property files have them: these, then all of ours."""
        rows = [*named.items()]
        rows += [(each.key, each.value) for each in describe(self.all_settings)]
        return "".join([f"{name}={_property(value)}\n" for name, value in rows]).encode()

    def _store_host(self) -> bytes:
        key = "host"
        known = self.engine.definitions(STORE_HOST_KIND).get(key)
        if known is not None:
            return known
        host = encode_host(self.settings.advertise or LOCALHOST, self.broker_port)
        self.engine.define(STORE_HOST_KIND, key, host)
        return host


def _property(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace("\\", "\\\\").replace("\n", "\\n")
