"""A client instance: what all producers and consumers of a process share towards one cluster.

Connections, routes, heartbeats, the timers and the requests of brokers live here, once per
(process, name servers, instance name); members register and leave, and the last one to leave stops
it. All of it is on the client's thread (``loop.py``): call its methods there only.

    ClientInstance     start and stop, joining and leaving, the timers
    InstanceMembers    who is here: ``ConsumerMember``, ``ProducerMember``
    Heartbeats         every broker hears who is here
    ServerRequests     what brokers ask of the client
    RebalanceTimer     when queues are divided anew

Start order: name servers, network, timers (routes, heartbeats, offsets), rebalance; pull services
and the producer for failed messages belong to the members, which start them next. A member then
looks up its routes, sends a heartbeat and asks for a rebalance.

A stopped or failed instance is never started again; ``instance()`` makes a new one.
Invariants: at most one consumer of a group; leaving tells every broker.
Not here: what a member does (``producer/``, ``consumer/``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

from penstock.client.connection import Connect, Connection, Network, Signer
from penstock.client.errors import ClientError, GroupTaken
from penstock.client.loop import MachineClock, Tasks
from penstock.client.message import stored_messages
from penstock.client.options import InstanceOptions, pick
from penstock.client.requests import BrokerRequests, encode_tables, read_offsets
from penstock.client.routes import (
    MASTER_ID,
    ROUTES_MAX,
    NameServerList,
    NameServers,
    Route,
    RouteCache,
    parse_name_servers,
)
from penstock.client.states import Lifecycle, State
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.bodies import ConsumerData, HeartbeatData, ProducerData, decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed, response_to
from penstock.wire.rocketmq.headers import (
    CheckTransactionHeader,
    GroupHeader,
    RelayHeader,
    ResetOffsetHeader,
    parse,
)
from penstock.wire.rocketmq.properties import value_of
from penstock.wire.rocketmq.stored import StoredMessage

_log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_ROUTES_MS: Final = 10
FIRST_HEARTBEAT_MS: Final = 1_000
FIRST_PERSIST_MS: Final = 10_000
"""When the timers run for the first time, as RocketMQ's own clients do it."""
SERVER_REQUESTS_MAX: Final = 256
"""Requests of brokers worked on at a time. Direct consumption and the like run user code; a client
is no batch system."""
NEVER_MS: Final = 1 << 62

DEFAULT_NAME: Final = "DEFAULT"
_SOMEWHERE: Final = ("192.0.2.1", 9)
"""A documentation address: asking for the way there sends nothing."""

Body = bytes | None
Handler = Callable[[Connection, Command], Awaitable[Body]]


class ClientInstance:
    """What members share (RocketMQ's ``MQClientInstance``); get one with ``instance()``."""

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
        self._life = Lifecycle(f"client {identity}")
        self._members = InstanceMembers(identity)
        timeout_ms = options["request_timeout_ms"]
        self._server_requests = ServerRequests(self)
        self.network: Final = Network(
            options,
            self.clock,
            self._server_requests.handle,
            signer=_signer(options),
            connect=connect,
        )
        self.name_servers: Final = NameServers(addresses, self.network)
        self.routes: Final = RouteCache(self.name_servers, timeout_ms=timeout_ms)
        self.requests: Final = BrokerRequests(
            self.network,
            self.routes,
            self.name_servers,
            client_id=identity,
            timeout_ms=timeout_ms,
        )
        self.heartbeats: Final = Heartbeats(self.requests, self.routes, self._members.heartbeat)
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
        return self._life.state

    @property
    def is_over(self) -> bool:
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
            members = self._members
            await asyncio.gather(
                *(self._unregister(producer_group=group) for group in members.producer_groups()),
                *(self._unregister(consumer_group=group) for group in members.consumer_groups()),
            )
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
        return self._members.consumer(group)

    def producer(self, group: str) -> ProducerMember | None:
        return self._members.producer(group)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine beside; an error is logged, and ``stop`` cancels it."""
        return self._tasks.spawn(coroutine, name)

    async def sleep(self, ms: float) -> None:
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
            self.requests.unregister(
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


class InstanceMembers:
    """The members of one instance, and what is asked of all of them at once.

    One consumer per group; several producers may share one, the newest answers for it.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._consumers: dict[str, ConsumerMember] = {}
        self._producers: dict[str, list[ProducerMember]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._consumers and not self._producers

    def consumer(self, group: str) -> ConsumerMember | None:
        return self._consumers.get(group)

    def producer(self, group: str) -> ProducerMember | None:
        members = self._producers.get(group)
        return members[-1] if members else None

    def consumer_groups(self) -> list[str]:
        return list(self._consumers)

    def producer_groups(self) -> list[str]:
        return list(self._producers)

    def add_consumer(self, member: ConsumerMember) -> None:
        """Raises ``GroupTaken`` when its group has one."""
        if member.group in self._consumers:
            raise GroupTaken(member.group, "consumer", self._client_id)
        self._consumers[member.group] = member

    def add_producer(self, member: ProducerMember) -> None:
        self._producers.setdefault(member.group, []).append(member)

    def drop_consumer(self, member: ConsumerMember) -> bool:
        """True when it was here: brokers must be told."""
        if self._consumers.get(member.group) is not member:
            return False
        del self._consumers[member.group]
        return True

    def drop_producer(self, member: ProducerMember) -> bool:
        """True when it was the last of its group: brokers must be told."""
        members = self._producers.get(member.group, [])
        if member not in members:
            return False
        members.remove(member)
        if members:
            return False
        del self._producers[member.group]
        return True

    def clear(self) -> None:
        self._consumers.clear()
        self._producers.clear()

    def topics(self) -> set[str]:
        found: set[str] = set()
        for consumer in self._consumers.values():
            found |= consumer.topics()
        for members in self._producers.values():
            for producer in members:
                found |= producer.topics()
        return found

    def heartbeat(self) -> HeartbeatData | None:
        """What brokers are told; None when nobody is here."""
        if self.is_empty:
            return None
        return HeartbeatData(
            client_id=self._client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
            consumer_data_set=[each.heartbeat() for each in self._consumers.values()],
        )

    def route_changed(self, topic: str) -> bool:
        """Tell consumers of the topic; True when there are any."""
        concerned = [each for each in self._consumers.values() if topic in each.topics()]
        for member in concerned:
            member.route_changed(topic)
        return bool(concerned)

    async def rebalance(self) -> bool:
        """Have all consumers divide their queues; True when all did."""
        outcomes = await self._gather(lambda member: member.rebalance())
        for group, outcome in outcomes.items():
            if isinstance(outcome, Exception):
                _log.error("rebalance failed", extra={"group": group}, exc_info=outcome)
        return all(outcome is True for outcome in outcomes.values())

    async def persist_offsets(self) -> None:
        """Have all consumers store their offsets."""
        outcomes = await self._gather(lambda member: member.persist_offsets())
        for group, outcome in outcomes.items():
            if isinstance(outcome, Exception):
                _log.warning("offsets not stored", extra={"group": group, "why": repr(outcome)})

    async def _gather(
        self, call: Callable[[ConsumerMember], Awaitable[object]]
    ) -> dict[str, object]:
        """What each consumer returned or raised, by group; all at once."""
        groups = list(self._consumers)
        asked = [call(each) for each in self._consumers.values()]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        return dict(zip(groups, outcomes, strict=True))


class ConsumerMember(Protocol):
    """A consumer of one group, as the instance sees it; called on the client's thread.

    Coroutines may take their time, plain methods may not.
    """

    @property
    def group(self) -> str:
        """Its consumer group."""

    def heartbeat(self) -> ConsumerData:
        """What brokers are told of it."""

    def topics(self) -> set[str]:
        """Topics whose routes are kept fresh for it, its retry topic among them."""

    async def rebalance(self) -> bool:
        """Divide the queues anew; True when they are divided, False asks for another try soon."""

    async def persist_offsets(self) -> None:
        """Store what was consumed since the last time."""

    async def reset_offsets(self, topic: str, offsets: dict[QueueRef, int]) -> None:
        """An operator moved the group (220)."""

    def consume_status(self, topic: str) -> dict[QueueRef, int]:
        """How far each of its queues is (221)."""

    def running_info(self, with_stacks: bool) -> dict[str, Any]:
        """All about it, as JSON (307); maps by queue may have ``QueueRef`` keys."""

    async def consume_directly(self, message: StoredMessage, broker: str) -> dict[str, Any]:
        """Give one message to the listener now; the outcome as JSON (309)."""

    def route_changed(self, topic: str) -> None:
        """The route of a topic of its own is new or differs; the instance rebalances by itself."""


class ProducerMember(Protocol):
    """A producer of one group, as the instance sees it."""

    @property
    def group(self) -> str:
        """Its producer group."""

    def topics(self) -> set[str]:
        """Topics whose routes are kept fresh for it."""

    def check_transaction(
        self, address: str, header: CheckTransactionHeader, message: StoredMessage
    ) -> None:
        """A broker asks what became of a half message (39)."""


class Heartbeats:
    """Every broker of every route hears who this client is, and says which version it is.

    All brokers are told at the same time, so that a dead one delays nobody. Without consumers only
    masters are told. What members say is read when the heartbeat is sent, never before.
    """

    def __init__(
        self, calls: BrokerRequests, routes: RouteCache, compose: Callable[[], HeartbeatData | None]
    ) -> None:
        self._calls = calls
        self._routes = routes
        self._compose = compose
        self._lock = asyncio.Lock()
        self._failing: set[str] = set()
        self.versions: Final[dict[str, int]] = {}
        """Of each broker address that answered; brokers in no route are forgotten."""

    def version_of(self, broker: str) -> int:
        """The version a broker said; 0 while it is not known."""
        address = self._routes.address(broker)
        return 0 if address is None else self.versions.get(address, 0)

    async def send_to_all(self) -> None:
        """Tell every broker now; failures are logged, once in a row."""
        async with self._lock:
            data = self._compose()
            if data is None:
                return
            addresses = self.addresses(masters_only=not data.consumer_data_set)
            for gone in set(self.versions) - set(self._all_addresses()):
                del self.versions[gone]
            self._failing &= set(addresses)
            await asyncio.gather(*(self.send_to(address) for address in addresses))

    async def send_to(self, address: str) -> bool:
        """Tell one broker; True when it heard."""
        # Read here, in the step that sends: a member that left meanwhile is not told as present.
        data = self._compose()
        if data is None:
            return False
        try:
            self.versions[address] = await self._calls.heartbeat(address, data)
        except ClientError as problem:
            if address not in self._failing:
                self._failing.add(address)
                _log.warning("heartbeat failed", extra={"to": address, "why": str(problem)})
            return False
        self._failing.discard(address)
        return True

    def addresses(self, *, masters_only: bool) -> list[str]:
        brokers = self._routes.brokers().values()
        found = (
            address
            for known in brokers
            for number, address in known.items()
            if number == MASTER_ID or not masters_only
        )
        return list(dict.fromkeys(found))

    def is_known(self, address: str) -> bool:
        return address in self._all_addresses()

    def _all_addresses(self) -> list[str]:
        return self.addresses(masters_only=False)


class ServerRequests:
    """What brokers ask of a client, and what it answers.

    | 39 check a transaction, 40 divide the queues anew, 220 reset and 221 tell offsets,
    | 307 running info, 309 consume this message now

    Answers go back on the connection the request came from; what is not known is answered with code
    3, what fails with code 1 and a sentence. Requests marked oneway are never answered.
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._under_way = 0
        self._handlers: dict[int, Handler] = {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consume_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def handle(self, connection: Connection, command: Command) -> None:
        code = command.code
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._members_changed(command)
            return
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            self._check_transaction(connection, command)
            return
        handler = self._handlers.get(code)
        if handler is None:
            refuse(
                connection,
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {code} not supported",
            )
        elif self._under_way >= SERVER_REQUESTS_MAX:
            text = f"{SERVER_REQUESTS_MAX} requests are under way in this client; ask again later"
            refuse(connection, command, ResponseCode.SYSTEM_BUSY, text)
        else:
            self._under_way += 1
            self._instance.spawn(self._work(handler, connection, command), f"request {code}")

    async def _work(self, handler: Handler, connection: Connection, command: Command) -> None:
        try:
            body = await handler(connection, command)
        except (Malformed, NoSuchMember) as problem:
            refuse(connection, command, ResponseCode.SYSTEM_ERROR, str(problem))
        except Exception as problem:
            _log.exception("a broker's request failed", extra={"code": command.code})
            text = f"{type(problem).__name__}: {problem}"
            refuse(connection, command, ResponseCode.SYSTEM_ERROR, text)
        else:
            if not command.is_oneway:
                connection.answer(response_to(command, ResponseCode.SUCCESS, body=body or b""))
        finally:
            self._under_way -= 1

    def _members_changed(self, command: Command) -> None:
        group = parse(GroupHeader, command).consumer_group
        _log.debug("group changed", extra={"group": group})
        if self._instance.consumer(group) is not None:
            self._instance.rebalance_now()

    def _check_transaction(self, connection: Connection, command: Command) -> None:
        header = parse(CheckTransactionHeader, command)
        messages = stored_messages(command.body)
        if not messages:
            raise Malformed("a transaction check without a message")
        group = value_of(messages[0].properties, "PGROUP").decode("utf-8", "replace")
        producer = self._instance.producer(group)
        if producer is None:
            _log.warning("transaction check for a group without a producer", extra={"group": group})
            return
        producer.check_transaction(connection.address, header, messages[0])

    async def _reset_offsets(self, _: Connection, command: Command) -> Body:
        header = parse(ResetOffsetHeader, command)
        body = decode_body(command.body, dict[str, Any])
        offsets = read_offsets(body.get("offsetTable", {}))
        await self._consumer(header.group).reset_offsets(header.topic, offsets)
        return None

    async def _consume_status(self, _: Connection, command: Command) -> Body:
        header = parse(ResetOffsetHeader, command)
        status = self._consumer(header.group).consume_status(header.topic)
        return encode_tables({"messageQueueTable": status, "consumerTable": {}})

    async def _running_info(self, _: Connection, command: Command) -> Body:
        header = parse(RelayHeader, command)
        with_stacks = command.ext.get("jstackEnable") == "true"
        return encode_tables(self._consumer(header.consumer_group).running_info(with_stacks))

    async def _consume_directly(self, connection: Connection, command: Command) -> Body:
        header = parse(RelayHeader, command)
        messages = stored_messages(command.body)
        if not messages:
            raise Malformed("asked to consume a message, but there is none")
        broker = command.ext.get("brokerName") or self._instance.routes.broker_at(
            connection.address
        )
        member = self._consumer(header.consumer_group)
        return encode_tables(await member.consume_directly(messages[0], broker or ""))

    def _consumer(self, group: str) -> ConsumerMember:
        found = self._instance.consumer(group)
        if found is None:
            raise NoSuchMember(
                f"client {self._instance.client_id} has no consumer of group {group!r}"
            )
        return found


class NoSuchMember(Exception):
    """The group that was asked for has no member here."""


def refuse(connection: Connection, command: Command, code: int, text: str) -> None:
    """Answer with an error, unless nobody waits for an answer."""
    if not command.is_oneway:
        connection.answer(response_to(command, code, remark=text))


class RebalanceTimer:
    """When queues are divided anew: by the clock, on notice, soon again while it does not come out.

    Pure: time comes in as monotonic milliseconds. However many notices come, there is at least
    ``spacing_ms`` between the end of one rebalance and the start of the next; none is forgotten.
    """

    __slots__ = ("_interval_ms", "_last_ms", "_spacing_ms", "due_ms")

    def __init__(self, now_ms: int, *, interval_ms: int, spacing_ms: int) -> None:
        self._interval_ms = interval_ms
        self._spacing_ms = spacing_ms
        self._last_ms: int | None = None
        self.due_ms = now_ms + interval_ms
        """When the next rebalance begins."""

    def notice(self, now_ms: int) -> int:
        """Something changed; when to rebalance: now, or when the spacing allows."""
        earliest_ms = now_ms
        if self._last_ms is not None:
            earliest_ms = max(now_ms, self._last_ms + self._spacing_ms)
        self.due_ms = min(self.due_ms, earliest_ms)
        return self.due_ms

    def begin(self) -> None:
        """A rebalance begins; notices from here on ask for another one."""
        self.due_ms = NEVER_MS

    def ended(self, now_ms: int, *, is_balanced: bool) -> None:
        is_noticed = self.due_ms < NEVER_MS
        self._last_ms = now_ms
        wait_ms = self._interval_ms if is_balanced and not is_noticed else self._spacing_ms
        self.due_ms = now_ms + wait_ms


_names: Final[dict[int, str]] = {}


def process_name() -> str:
    """``pid#nanoseconds`` of this process: always the same within it, and new after a fork.

    Two processes of one machine, and a process and its successor of the same pid, must differ.
    """
    pid = os.getpid()
    if pid not in _names:
        _names.clear()
        _names[pid] = f"{pid}#{time.monotonic_ns()}"
    return _names[pid]


def local_ip() -> str:
    """The address by which others see this machine, as far as it can tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def client_id(ip: str, instance_name: str, unit_name: str | None = None) -> str:
    """``ip@instance[@unit]``: brokers tell members of a group apart by it, and sort them by it."""
    return f"{ip}@{instance_name}@{unit_name}" if unit_name else f"{ip}@{instance_name}"
