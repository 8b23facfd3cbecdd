"""What all RocketMQ connections of a broker share.

One per process, made when the listeners are open: engine, clock, settings, the broker's name and
addresses, topics, groups, locks, modes, and every session. A family of requests keeps its own
shared state in a class that takes the house: ``broker.part(Pops)`` makes it on first use and gives
the same object ever after; a part with deadlines adds itself to ``broker.timers``.

The store host (D20) is written into the catalog once and never changes: message ids contain it.

Not here: one connection (``session.py``), which request goes where (``families.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.adapters.rocketmq.requests import system_error
from penstock.adapters.rocketmq.send import Special
from penstock.adapters.rocketmq.topics import TopicRegistry
from penstock.adapters.timers import Timers
from penstock.engine.broker import Engine
from penstock.engine.group.assignment import ConsumeModes
from penstock.engine.group.locks import QueueLocks
from penstock.engine.group.membership import Membership
from penstock.engine.group.switches import SwitchBoard
from penstock.model.clock import Clock
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings
from penstock.wire.rocketmq.message_id import UniqueKeys, encode_host, host_hex

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.connection import RocketmqConnection

LOCALHOST: Final = "127.0.0.1"
STORE_HOST_KIND: Final = "rocketmq.store_host"

LockedQueue = tuple[str, int]
"""Topic (RocketMQ's spelling) and queue number."""

PartT = TypeVar("PartT")


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
        self.timers: Final = Timers()
        self.sessions: Final[dict[ConnectionId, RocketmqConnection]] = {}
        """Broker connections that live."""
        self.switches: Final = SwitchBoard()
        self.consumers: Final = Membership(
            is_notified=lambda group: self.switches.get(group).is_notified
        )
        self.producers: Final = Membership()
        self.locks: Final[QueueLocks[LockedQueue]] = QueueLocks(self.settings.queue_lock_ms)
        self.modes: Final = ConsumeModes()
        self.random: Final = Random()
        """Picks queues; guards nothing."""
        self.specials: Final[list[Special]] = []
        """Ways of storing a send that are not the plain one, asked in order (``draft.py``)."""
        self.store_host: Final = self._store_host()
        """ip and port as stored messages carry them (D20)."""
        self.store_host_hex: Final = host_hex(self.store_host)
        self.unique_keys: Final = UniqueKeys(
            LOCALHOST, os.getpid(), clock, salt=int.from_bytes(self.store_host[:4], "big")
        )
        self.topics: Final = TopicRegistry(self)
        self.key_values: Final = KeyValues(engine)
        self._parts: dict[object, Any] = {}

    def part(self, kind: Callable[[RocketmqBroker], PartT]) -> PartT:
        """The one object of this class: ``kind(broker)``, made on first use."""
        found: PartT | None = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind(self)
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

    def _store_host(self) -> bytes:
        key = "host"
        known = self.engine.definitions(STORE_HOST_KIND).get(key)
        if known is not None:
            return known
        host = encode_host(self.settings.advertise or LOCALHOST, self.broker_port)
        self.engine.define(STORE_HOST_KIND, key, host)
        return host


# ---- key values ---------------------------------------------------------------------------------
# Key-value configuration of the name server, kept in the catalog: namespace, key, value.
#
# Invariant: at most ``ENTRIES_MAX`` entries of ``ENTRY_BYTES_MAX`` each.


KIND: Final = "rocketmq.kv"
ENTRIES_MAX: Final = 1000
ENTRY_BYTES_MAX: Final = 16 * 1024
_SEPARATOR: Final = "\x1f"


class KeyValues:
    """All namespaces."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0
        self._tables: dict[str, dict[str, str]] = {}
        for name, value in engine.definitions(KIND).items():
            namespace, _, key = name.partition(_SEPARATOR)
            self._tables.setdefault(namespace, {})[key] = value.decode()
            self._count += 1

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str]:
        return dict(self._tables.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; raises ``Answer`` when there is no room."""
        is_new = self.get(namespace, key) is None
        packed = value.encode()
        if is_new and self._count >= ENTRIES_MAX:
            raise system_error(f"there are {ENTRIES_MAX} entries already; delete some")
        if len(packed) + len(namespace) + len(key) > ENTRY_BYTES_MAX:
            raise system_error(f"an entry has at most {ENTRY_BYTES_MAX} bytes")
        self._count += is_new
        self._tables.setdefault(namespace, {})[key] = value
        self._engine.define(KIND, f"{namespace}{_SEPARATOR}{key}", packed)

    def delete(self, namespace: str, key: str) -> None:
        if self._tables.get(namespace, {}).pop(key, None) is not None:
            self._count -= 1
            self._engine.define(KIND, f"{namespace}{_SEPARATOR}{key}", None)
