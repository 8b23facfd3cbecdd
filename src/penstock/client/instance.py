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
import contextlib
import logging
import os
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from penstock.client.calls import Calls
from penstock.client.clock import MachineClock
from penstock.client.heartbeats import Heartbeats
from penstock.client.identity import DEFAULT_NAME, client_id, local_ip, process_name
from penstock.client.members import ConsumerMember, ProducerMember
from penstock.client.membership import Membership
from penstock.client.name_servers import NameServerList, NameServers, parse_name_servers
from penstock.client.network import Connect, Network
from penstock.client.options import InstanceOptions, pick
from penstock.client.rebalance_timer import RebalanceTimer
from penstock.client.routes import ROUTES_MAX, Route, RouteCache
from penstock.client.server_requests import ServerRequests
from penstock.client.signing import Signer
from penstock.client.states import Life, State
from penstock.client.tasks import Tasks
from penstock.model.clock import Clock

_log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_ROUTES_MS: Final = 10
FIRST_HEARTBEAT_MS: Final = 1_000
FIRST_PERSIST_MS: Final = 10_000
"""When the timers run for the first time, as RocketMQ's own clients do it."""


class ClientInstance:
    """What members share; get one with ``instance()``."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        options: InstanceOptions,
        identity: str,
        *,
        clock: Clock | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.client_id: Final = identity
        self.options: Final = options
        self.clock: Final[Clock] = clock or MachineClock()
        self._life = Life(f"client {identity}")
        self._members = Membership(identity)
        timeout_ms = options["request_timeout_ms"]
        self._requests = ServerRequests(self)
        self.network: Final = Network(
            options, self.clock, self._requests.asked, signer=_signer(options), connect=connect
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
        self.heartbeats: Final = Heartbeats(self.calls, self.routes, self._members.heartbeat)
        self._tasks = Tasks()
        self._returning: set[str] = set()
        self._rebalance_due = asyncio.Event()
        self._rebalances = RebalanceTimer(
            self.clock.monotonic_ms(),
            interval_ms=options["rebalance_interval_ms"],
            spacing_ms=options["rebalance_spacing_ms"],
        )

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self._life.state

    @property
    def is_over(self) -> bool:
        """True when nobody can join any more."""
        return self._life.is_over

    async def start(self) -> None:
        """Begin to work; nothing happens when it runs already."""
        if self._life.is_running:
            return
        self._life.begin()
        options = self.options
        self.network.on_lost(self._connection_lost)
        self.routes.on_change(self._route_changed)
        self._tasks.every(
            "routes", FIRST_ROUTES_MS, options["poll_name_server_interval_ms"], self.refresh_routes
        )
        self._tasks.every(
            "heartbeats", FIRST_HEARTBEAT_MS, options["heartbeat_interval_ms"], self.heartbeat
        )
        self._tasks.every(
            "offsets",
            FIRST_PERSIST_MS,
            options["persist_interval_ms"],
            self._members.persist_offsets,
        )
        self._tasks.spawn(self._rebalance_loop(), "rebalance")
        self._life.started()
        _log.info("client started", extra={"client": self.client_id})

    async def stop(self) -> None:
        """End all work; members that did not leave are told to the brokers as gone."""
        if self.state is State.STOPPED:
            return
        was_running = self.state in (State.RUNNING, State.STOPPING)
        # First of all: whoever asks for an instance from here on gets a new one.
        self._life.state = State.STOPPED
        ended = self._tasks.close()
        if was_running:
            goodbyes = [
                *(
                    self._unregister(producer_group=group)
                    for group in self._members.producer_groups()
                ),
                *(
                    self._unregister(consumer_group=group)
                    for group in self._members.consumer_groups()
                ),
            ]
            await asyncio.gather(*goodbyes)
        self._members.clear()
        await self.network.close()
        await asyncio.gather(*ended, return_exceptions=True)
        _log.info("client stopped", extra={"client": self.client_id})

    def add_consumer(self, member: ConsumerMember) -> None:
        """Register a consumer; ``GroupTaken`` when its group has one here."""
        self._life.check_open()
        self._members.add_consumer(member)

    def add_producer(self, member: ProducerMember) -> None:
        """Register a producer; several of one group may be here, the newest hears of checks."""
        self._life.check_open()
        self._members.add_producer(member)

    async def remove_consumer(self, member: ConsumerMember) -> None:
        """A consumer leaves: every broker is told; the last member stops the instance."""
        if self._members.drop_consumer(member):
            await self._left(consumer_group=member.group)

    async def remove_producer(self, member: ProducerMember) -> None:
        """A producer leaves, likewise."""
        if self._members.drop_producer(member):
            await self._left(producer_group=member.group)

    def consumer(self, group: str) -> ConsumerMember | None:
        """The consumer of a group."""
        return self._members.consumer(group)

    def producer(self, group: str) -> ProducerMember | None:
        """The newest producer of a group."""
        return self._members.producer(group)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside; an error is logged, and ``stop`` cancels it."""
        return self._tasks.spawn(coroutine, name)

    async def sleep(self, ms: float) -> None:
        """Let time pass."""
        await asyncio.sleep(ms / 1000)

    async def heartbeat(self) -> None:
        """Tell every broker who is here, and return when all answered or failed."""
        await self.heartbeats.send_to_all()

    def heartbeat_now(self) -> None:
        """The same beside."""
        if self.state is State.RUNNING:
            self.spawn(self.heartbeats.send_to_all(), "heartbeat")

    async def refresh_routes(self) -> None:
        """Ask for the routes of all topics in use; routes nobody uses go when there are many."""
        topics = self._members.topics()
        await self.routes.refresh(sorted(topics))
        known = self.routes.topics()
        if len(known) > ROUTES_MAX // 2:
            self.routes.forget(set(known) - topics)

    def rebalance_now(self) -> None:
        """Divide queues anew as soon as the spacing allows."""
        self._rebalances.notice(self.clock.monotonic_ms())
        self._rebalance_due.set()

    def broker_version(self, broker: str) -> int:
        """The version of a broker by name; 0 while it is not known."""
        return self.heartbeats.version_of(broker)

    async def _left(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        is_last = self._members.is_empty
        if self.state is State.RUNNING:
            if is_last:
                # Said before the good-byes: a new member must not join what is about to end.
                self._life.state = State.STOPPING
            await self._unregister(producer_group=producer_group, consumer_group=consumer_group)
        if is_last:
            await self.stop()

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Tell every broker; those that do not answer in time find out by themselves."""
        timeout_ms = self.options["stop_timeout_ms"]
        if not timeout_ms:
            return
        told = [
            self.calls.unregister(
                address,
                producer_group=producer_group,
                consumer_group=consumer_group,
                timeout_ms=timeout_ms,
            )
            for address in self.network.connected()
            if self.heartbeats.is_known(address)
        ]
        for outcome in await asyncio.gather(*told, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.debug("good-bye not heard", extra={"why": str(outcome)})

    async def _rebalance_loop(self) -> None:
        while True:
            wait_ms = self._rebalances.due_ms - self.clock.monotonic_ms()
            if wait_ms > 0:
                self._rebalance_due.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_ms / 1000):
                        await self._rebalance_due.wait()
                continue
            self._rebalances.begin()
            is_balanced = await self._members.rebalance()
            self._rebalances.ended(self.clock.monotonic_ms(), is_balanced=is_balanced)

    def _route_changed(self, topic: str, _old: Route | None, new: Route) -> None:
        if self._members.route_changed(topic):
            self.rebalance_now()
        known = self.heartbeats.versions
        if any(each not in known for ids in new.brokers.values() for each in ids.values()):
            self.heartbeat_now()

    def _connection_lost(self, address: str) -> None:
        is_needed = self.heartbeats.is_known(address) and address not in self._returning
        if is_needed and self.state is State.RUNNING:
            self._returning.add(address)
            self.spawn(self._return_to(address), f"return to {address}")

    async def _return_to(self, address: str) -> None:
        """Tell a broker that we are here as soon as it is back; it forgot us when we lost it."""
        wait_ms = self.options["reconnect_wait_min_ms"]
        try:
            while self.heartbeats.is_known(address):
                await self.sleep(wait_ms)
                if await self.heartbeats.send_to(address):
                    self.rebalance_now()
                    return
                wait_ms = min(2 * wait_ms, self.options["reconnect_wait_max_ms"])
        finally:
            self._returning.discard(address)


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
    if found is None or found.is_over:
        for old, each in list(_instances.items()):
            if each.is_over or old[0] != key[0]:
                del _instances[old]
        found = _instances[key] = ClientInstance(addresses, chosen, identity, clock=clock)
    return found


def _signer(options: InstanceOptions) -> Signer | None:
    access_key, secret_key = options["access_key"], options["secret_key"]
    if not access_key or not secret_key:
        return None
    return Signer(access_key, secret_key, options["security_token"])
