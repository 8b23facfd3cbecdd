"""A client instance: what all producers and consumers of a process share towards one cluster.

Connections, routes, heartbeats, the timers and the requests of brokers live here, once per
(process, name servers, instance name); members register and leave, and the last one to leave stops
it. All of it is on the client's thread (``loop.py``): call its methods there only.

Start order: name servers, network, timers (routes, heartbeats, offsets), rebalance; pull services
and the producer for failed messages belong to the members, which start them next. A member then
looks up its routes, sends a heartbeat and asks for a rebalance.

States: created -> running -> stopped, or failed when it could not start. A stopped or failed
instance is never started again; ``instance()`` makes a new one.

Invariants: at most one consumer and one producer of a group; leaving tells every broker.
Not here: answers to brokers (``server_requests.py``), what a member does (``members.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from penstock.client.calls import Calls
from penstock.client.clock import MachineClock
from penstock.client.errors import ClientError, GroupTaken, StateError
from penstock.client.heartbeats import Heartbeats
from penstock.client.identity import DEFAULT_NAME, client_id, local_ip, process_name
from penstock.client.members import ConsumerMember, ProducerMember
from penstock.client.name_servers import NameServerList, NameServers, parse_name_servers
from penstock.client.network import Network
from penstock.client.options import InstanceOptions, pick
from penstock.client.rebalance_timer import RebalanceTimer
from penstock.client.routes import ROUTES_MAX, Route, RouteCache
from penstock.client.server_requests import ServerRequests
from penstock.client.signing import Signer
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import HeartbeatData, ProducerData

_log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_ROUTES_MS: Final = 10
FIRST_HEARTBEAT_MS: Final = 1_000
FIRST_PERSIST_MS: Final = 10_000
"""When the timers run for the first time, as RocketMQ's own clients do it."""
TASKS_MAX: Final = 100_000
"""Tasks of one instance: a few for each queue, and what brokers ask."""


class State(Enum):
    """Of an instance, and of every producer and consumer."""

    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


class ClientInstance:
    """What members share; get one with ``instance()``."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        options: InstanceOptions,
        identity: str,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.client_id: Final = identity
        self.options: Final = options
        self.clock: Final[Clock] = clock or MachineClock()
        self.state = State.CREATED
        timeout_ms = options["request_timeout_ms"]
        self._requests = ServerRequests(self)
        self.network: Final = Network(
            options, self.clock, self._requests.asked, signer=_signer(options)
        )
        self.name_servers: Final = NameServers(addresses, self.network)
        self.routes: Final = RouteCache(self.name_servers, timeout_ms=timeout_ms)
        self.calls: Final = Calls(
            self.network,
            self.routes,
            self.name_servers,
            client_id=identity,
            timeout_ms=timeout_ms,
        )
        self.heartbeats: Final = Heartbeats(self.calls, self.routes, self._heartbeat_data)
        self._loop = asyncio.get_running_loop()
        self._consumers: dict[str, ConsumerMember] = {}
        self._producers: dict[str, ProducerMember] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: list[asyncio.Task[Any]] = []
        self._returning: set[str] = set()
        self._rebalance_due = asyncio.Event()
        self._rebalances = RebalanceTimer(
            self.clock.monotonic_ms(),
            interval_ms=options["rebalance_interval_ms"],
            spacing_ms=options["rebalance_spacing_ms"],
        )

    async def start(self) -> None:
        """Begin to work; nothing happens when it runs already."""
        if self.state is State.RUNNING:
            return
        raise NotImplementedError

    async def stop(self) -> None:
        """End all work; members that did not leave are told to the brokers as gone."""
        raise NotImplementedError

    def add_consumer(self, member: ConsumerMember) -> None:
        """Register a consumer; ``GroupTaken`` when its group has one here."""
        raise NotImplementedError

    def add_producer(self, member: ProducerMember) -> None:
        """Register a producer; ``GroupTaken`` when its group has one here."""
        raise NotImplementedError

    async def remove_consumer(self, member: ConsumerMember) -> None:
        """A consumer leaves: every broker is told; the last member stops the instance."""
        raise NotImplementedError

    async def remove_producer(self, member: ProducerMember) -> None:
        """A producer leaves, likewise."""
        raise NotImplementedError

    def consumer(self, group: str) -> ConsumerMember | None:
        """The consumer of a group."""
        return self._consumers.get(group)

    def producer(self, group: str) -> ProducerMember | None:
        """The producer of a group."""
        return self._producers.get(group)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside; an error is logged, and ``stop`` cancels it."""
        raise NotImplementedError

    async def sleep(self, ms: float) -> None:
        """Let time pass."""
        await asyncio.sleep(ms / 1000)

    async def heartbeat(self) -> None:
        """Tell every broker who is here, and return when all answered or failed."""
        await self.heartbeats.send_to_all()

    def heartbeat_now(self) -> None:
        """The same beside."""
        self.spawn(self.heartbeats.send_to_all(), "heartbeat")

    def rebalance_now(self) -> None:
        """Divide queues anew as soon as the spacing allows."""
        raise NotImplementedError

    def broker_version(self, broker: str) -> int:
        """The version of a broker by name; 0 while it is not known."""
        return self.heartbeats.version_of(broker)

    def _heartbeat_data(self) -> HeartbeatData | None:
        if not self._consumers and not self._producers:
            return None
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
            consumer_data_set=[each.heartbeat() for each in self._consumers.values()],
        )


_instances: Final[dict[tuple[int, tuple[str, ...], str], ClientInstance]] = {}
"""By process, name servers and client id; touched on the client's thread only."""


def instance(
    name_servers: NameServerList,
    options: Mapping[str, object],
    *,
    is_named_by_process: bool = True,
    clock: Clock | None = None,
) -> ClientInstance:
    """The instance for these name servers and this name, made when there is none.

    Call it on the client's thread. ``options`` are a member's; those of ``InstanceOptions`` are
    picked out. An instance called DEFAULT is named after the process, unless that is switched off:
    broadcasting consumers keep their offsets in a file that is named after the client id.
    """
    chosen = pick(InstanceOptions, options)
    addresses = parse_name_servers(name_servers)
    name = chosen["instance_name"]
    if name == DEFAULT_NAME and is_named_by_process:
        name = process_name()
    identity = client_id(chosen["client_ip"] or local_ip(), name, chosen["unit_name"])
    key = (os.getpid(), addresses, identity)
    found = _instances.get(key)
    if found is None or found.state in (State.STOPPED, State.FAILED):
        found = _instances[key] = ClientInstance(addresses, chosen, identity, clock=clock)
    return found


def _signer(options: InstanceOptions) -> Signer | None:
    access_key, secret_key = options["access_key"], options["secret_key"]
    if not access_key or not secret_key:
        return None
    return Signer(access_key, secret_key, options["security_token"])


_UNUSED: Final[tuple[Callable[..., object] | type | int, ...]] = (
    ROUTES_MAX,
    Route,
    ClientError,
    GroupTaken,
    StateError,
)
