"""Routes: which queues a topic has, on which brokers, at which addresses; and the name servers.

A ``Route`` is what a name server said of one topic, as lists of queues. The cache keeps one for
each topic in use; the instance's timer refreshes it, and a failed look-up keeps what was known.
``NameServers`` is a list of addresses, one of which is asked until it fails.

Invariants: ``write_queues`` names only brokers with a master (a slave takes no messages); queues
come sorted by broker and number unless an order configuration lists them; at most ``ROUTES_MAX``
topics are kept.
Not here: choosing a queue (``producer/selection.py``), dividing them (``consumer/rebalance.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from penstock.client.connection import Network, split_address
from penstock.client.errors import (
    BrokerRefused,
    ClientError,
    NoRoute,
    StateError,
    TimedOut,
    Unreachable,
    WouldBlock,
)
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import Perm, QueueData, TopicRouteData, decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Language, Malformed
from penstock.wire.rocketmq.headers import Header, TopicHeader, fields

_log = logging.getLogger(__name__)

MASTER_ID: Final = 0
DEFAULT_TOPIC: Final = "TBW102"
"""The topic whose route stands in for one that is made by its first message."""
NAME_SERVERS: Final = "(name servers)"
"""What is said to fail when no name server answers; no topic has such a name."""
ROUTES_MAX: Final = 65_536
"""Topics one instance knows."""
ROUTE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A route is read up to the size of a frame."""
QUEUES_MAX: Final = 65_536
"""Queues of one topic that are believed."""
CLIENT_VERSION: Final = 475
"""V5_3_1: new enough for everything used here; later ones are told to go away (1500) by a broker
that stops, where this one simply sees the connection close."""

CLIENT_LANGUAGE: Final = int(Language.PYTHON)
ENVIRONMENT: Final = "NAMESRV_ADDR"
"""Where RocketMQ's own clients look when they are given none."""
DEFAULT_PORT: Final = 9876

NameServerList = str | Sequence[str] | None
"""``"a:9876;b:9876"``, ``["a:9876", "b"]``; None: taken from ``NAMESRV_ADDR``."""


class Route:
    """One topic's route; immutable."""

    __slots__ = ("_read", "_write", "brokers", "data", "is_default", "topic")

    def __init__(self, topic: str, data: TopicRouteData, *, is_default: bool = False) -> None:
        self.topic: Final = topic
        self.data: Final = data
        self.is_default: Final = is_default
        """True when it is the default topic's: this one does not exist yet."""
        self.brokers: Final = {
            broker.broker_name: {
                int(number): address
                for number, address in broker.broker_addrs.items()
                if number.removeprefix("-").isdecimal() and address
            }
            for broker in data.broker_datas
        }
        """Addresses by broker name and broker id; 0 is the master."""
        by_broker = sorted(data.queue_datas, key=lambda each: each.broker_name)
        self._read = self._queues(
            (each.broker_name, each.read_queue_nums) for each in by_broker if each.perm & Perm.READ
        )
        if data.order_topic_conf:
            self._write = self._queues(_parse_order(data.order_topic_conf))
        else:
            self._write = self._queues(
                (each.broker_name, each.write_queue_nums)
                for each in by_broker
                if each.perm & Perm.WRITE and MASTER_ID in self.brokers.get(each.broker_name, {})
            )

    def write_queues(self) -> list[QueueRef]:
        """The queues that take messages now."""
        return self._write

    def read_queues(self) -> list[QueueRef]:
        """The queues that may hold messages."""
        return self._read

    @property
    def is_ordered(self) -> bool:
        """True when an order configuration fixes the queues."""
        return bool(self.data.order_topic_conf)

    def is_same_as(self, other: Route) -> bool:
        """True when nothing that users of a route see differs."""
        mine = (self._write, self._read, self.brokers, self.is_default)
        return mine == (other._write, other._read, other.brokers, other.is_default)

    def _queues(self, counts: Iterable[tuple[str, int]]) -> list[QueueRef]:
        return [
            QueueRef(self.topic, broker, number)
            for broker, count in counts
            for number in range(min(count, QUEUES_MAX))
        ]


def _parse_order(conf: str) -> list[tuple[str, int]]:
    """``brokerA:4;brokerB:4``; what cannot be read is left out."""
    found = []
    for part in conf.split(";"):
        broker, _, count = part.strip().rpartition(":")
        if broker and count.isdecimal():
            found.append((broker, int(count)))
    return found


def default_route(topic: str, data: TopicRouteData, queues: int) -> Route:
    """A route for a topic that its first message will make, from that of the default topic."""
    queue_datas = [
        QueueData(
            broker_name=each.broker_name,
            read_queue_nums=min(queues, each.read_queue_nums),
            write_queue_nums=min(queues, each.write_queue_nums),
            perm=each.perm,
            topic_sys_flag=each.topic_sys_flag,
        )
        for each in data.queue_datas
    ]
    made = TopicRouteData(queue_datas=queue_datas, broker_datas=data.broker_datas)
    return Route(topic, made, is_default=True)


class BrokerAddress(NamedTuple):
    """Where to read from."""

    address: str
    broker_id: int

    @property
    def is_slave(self) -> bool:
        """True when nothing may be committed through it."""
        return self.broker_id != MASTER_ID


RouteListener = Callable[[str, Route | None, Route], None]


class RouteCache:
    """The routes of one instance, and the addresses of all brokers they name."""

    def __init__(self, name_servers: NameServers, *, timeout_ms: int) -> None:
        self._name_servers = name_servers
        self._timeout_ms = timeout_ms
        self._routes: dict[str, Route] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._lookups: dict[tuple[str, int], asyncio.Task[Route]] = {}
        self._listeners: list[RouteListener] = []
        self._failing: set[str] = set()

    def on_change(self, listener: RouteListener) -> None:
        """Call ``listener(topic, old, new)`` when a route is new or differs from what was known."""
        self._listeners.append(listener)

    def get(self, topic: str) -> Route | None:
        """What is known, without asking."""
        return self._routes.get(topic)

    def topics(self) -> list[str]:
        return list(self._routes)

    async def look_up(self, topic: str, *, default_queues: int = 0) -> Route:
        """Ask a name server now; raises ``NoRoute`` where it knows none.

        With ``default_queues`` (a producer's default_topic_queues) a topic that does not exist
        gets a route made from the default topic's; ``is_default`` says so. Several who ask for
        one topic at a time get one answer.
        """
        key = (topic, default_queues)
        task = self._lookups.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(topic, default_queues))
            self._lookups[key] = task
            task.add_done_callback(lambda _: self._lookups.pop(key, None))
        # Shielded: the one who asked first may be cancelled, the others still wait.
        return await asyncio.shield(task)

    async def get_or_look_up(self, topic: str, *, default_queues: int = 0) -> Route:
        """What is known, else what a name server says; a stand-in is asked for anew."""
        found = self._routes.get(topic)
        if found is not None and not (found.is_default and not default_queues):
            return found
        return await self.look_up(topic, default_queues=default_queues)

    async def refresh(self, topics: Iterable[str]) -> None:
        """Ask for all of these; what cannot be had keeps what was known, and is logged once."""
        for topic in topics:
            known = self._routes.get(topic)
            default_queues = 0
            if known is not None and known.is_default:
                default_queues = max((each.queue + 1 for each in known.write_queues()), default=0)
            try:
                await self.look_up(topic, default_queues=default_queues)
                self._failing.discard(topic)
            except (Unreachable, TimedOut) as problem:
                # The next topic would wait just as long: a hundred would take minutes.
                self._log_failure(True, NAME_SERVERS, problem)
                return
            except ClientError as problem:
                self._log_failure(known is not None, topic, problem)
            self._failing.discard(NAME_SERVERS)

    def forget(self, topics: Iterable[str]) -> None:
        """Nobody uses these topics any more."""
        for topic in topics:
            self._routes.pop(topic, None)
            self._failing.discard(topic)
        self._gather_brokers()

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        """Where a broker listens; None when no route names it."""
        return self._brokers.get(broker, {}).get(broker_id)

    def readable(self, broker: str, suggested_id: int = MASTER_ID) -> BrokerAddress | None:
        """Where to read of a broker: the suggested one, else the master, else any slave."""
        known = self._brokers.get(broker)
        if not known:
            return None
        for number in (suggested_id, MASTER_ID, *sorted(known)):
            if number in known:
                return BrokerAddress(known[number], number)
        return None

    def brokers(self) -> dict[str, dict[int, str]]:
        """Addresses of all brokers, by name and id; a copy."""
        return {name: dict(known) for name, known in self._brokers.items()}

    def broker_at(self, address: str) -> str | None:
        for name, known in self._brokers.items():
            if address in known.values():
                return name
        return None

    def put(self, route: Route) -> None:
        """Take a route for true; listeners hear of a difference."""
        old = self._routes.get(route.topic)
        if old is not None and old.is_same_as(route):
            return
        if old is None and len(self._routes) >= ROUTES_MAX:
            raise WouldBlock(f"{ROUTES_MAX} topics are known already; stop some producers")
        self._routes[route.topic] = route
        self._gather_brokers()
        for listener in self._listeners:
            listener(route.topic, old, route)

    async def _ask(self, topic: str, default_queues: int) -> Route:
        data = await self._data(topic)
        if data is not None:
            route = Route(topic, data)
        else:
            stand_in = await self._data(DEFAULT_TOPIC) if default_queues else None
            if stand_in is None:
                raise NoRoute(topic)
            route = default_route(topic, stand_in, default_queues)
        self.put(route)
        return self._routes[topic]

    async def _data(self, topic: str) -> TopicRouteData | None:
        header = TopicHeader(topic=topic, accept_standard_json_only=True)
        answer = await self._name_servers.request(
            make_command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header), timeout_ms=self._timeout_ms
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark, self._name_servers.current)
        try:
            return decode_body(answer.body, TopicRouteData, bytes_max=ROUTE_BYTES_MAX)
        except Malformed as problem:
            raise NoRoute(topic, f"the answer cannot be read: {problem}") from None

    def _log_failure(self, is_news: bool, what: str, problem: ClientError) -> None:
        if what not in self._failing:
            self._failing.add(what)
            # A topic that never was there is its user's to report, not the timer's.
            level = logging.WARNING if is_news else logging.DEBUG
            _log.log(level, "no new route", extra={"topic": what, "why": str(problem)})

    def _gather_brokers(self) -> None:
        found: dict[str, dict[int, str]] = {}
        for route in self._routes.values():
            for name, addresses in route.brokers.items():
                found.setdefault(name, {}).update(addresses)
        self._brokers = found


class NameServers:
    """The name servers of one instance: one is asked until it fails, then the next.

    Each client begins at another one, so that many clients spread. Any answer will do: name servers
    know the same, or nearly so.
    """

    def __init__(
        self, addresses: Sequence[str], network: Network, *, start_at: int | None = None
    ) -> None:
        self.addresses: Final = tuple(addresses)
        self._network = network
        first = random.randrange(len(addresses)) if start_at is None else start_at
        self._current = first % len(self.addresses)

    @property
    def current(self) -> str:
        return self.addresses[self._current]

    async def request(self, command: Command, *, timeout_ms: int) -> Command:
        """The answer of the first that gives one, whatever its code; the last error otherwise."""
        last: ClientError | None = None
        for _ in self.addresses:
            address = self.current
            try:
                return await self._network.request(address, command, timeout_ms=timeout_ms)
            except (Unreachable, TimedOut, WouldBlock) as problem:
                last = problem
                # Somebody else may have moved on meanwhile; skipping one would leave it out.
                if self.current == address:
                    self._current = (self._current + 1) % len(self.addresses)
        raise last or StateError("there are no name servers")


def parse_name_servers(given: NameServerList) -> tuple[str, ...]:
    """The addresses, in order and without repetition; a missing port is 9876."""
    if given is None:
        given = os.environ.get(ENVIRONMENT, "")
    parts = given.replace(",", ";").split(";") if isinstance(given, str) else given
    found = dict.fromkeys(_complete(part.strip()) for part in parts if part.strip())
    if not found:
        raise StateError(f"no name server is given; pass name_servers, or set {ENVIRONMENT}")
    return tuple(found)


def _complete(address: str) -> str:
    is_bare_v6 = address.count(":") > 1 and not address.startswith("[")
    if is_bare_v6:
        address = f"[{address}]"
    if address.rpartition("]")[2].startswith(":") or (
        ":" in address and not is_bare_v6 and not address.endswith("]")
    ):
        try:
            split_address(address)
        except ValueError as problem:
            raise StateError(f"name server {problem}") from None
        return address
    return f"{address}:{DEFAULT_PORT}"


def make_command(
    code: int,
    header: Header | dict[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """A request; its opaque is filled in when it is sent."""
    ext = {} if header is None else fields(header) if isinstance(header, Header) else header
    return Command(int(code), ext, body, language=CLIENT_LANGUAGE, version=CLIENT_VERSION)
