"""Which broker serves a topic, how many partitions it has, which topics there are (B9, B11, B15).

``Cluster`` is all that producers, consumers and readers of one client share: its options, clock and
connections, and these questions. Equal questions asked at the same time are asked once. A look-up
is followed through redirects, ``REDIRECTS_MAX`` of them. Of several addresses in the service URL
the next is tried when one cannot be reached.

Bound: ``concurrent_lookups_max`` questions under way; more of them wait.
Not here: when to ask again after a failure (``handler.py``; ``Cluster.retried`` for questions that
an application waits for).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from penstock.client.pulsar.backoff import Backoff
from penstock.client.pulsar.connection import (
    Connect,
    Connection,
    ConnectionPool,
    addresses_of,
    connect_tcp,
    shielded,
)
from penstock.client.pulsar.errors import (
    ClientError,
    Refused,
    StateError,
    TimedOut,
    Unreachable,
    is_worth_another_try,
)
from penstock.client.pulsar.options import ClientOptions
from penstock.model.clock import Clock
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.names import PulsarName
from penstock.wire.pulsar.protocol_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

T = TypeVar("T")
About = TypeVar("About")

REDIRECTS_MAX: Final = 20
PARTITIONS_MAX: Final = 65_536
"""More cannot be believed."""
TOPICS_MAX: Final = 1_000_000
"""Of one namespace: what a frame can hold."""


class Cluster:
    """What everything of one client shares; lives on the client's thread."""

    def __init__(
        self, url: str, options: ClientOptions, clock: Clock, *, connect: Connect = connect_tcp
    ) -> None:
        self.url: Final = url
        self.options: Final = options
        self.clock: Final = clock
        self.pool: Final = ConnectionPool(options, clock, connect=connect)
        self._addresses = addresses_of(url)
        self._at = 0
        self._asked: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._turns = asyncio.Semaphore(options["concurrent_lookups_max"])
        self._consumer_id = -1
        self._producer_id = -1

    def next_consumer_id(self) -> int:
        self._consumer_id += 1
        return self._consumer_id

    def next_producer_id(self) -> int:
        self._producer_id += 1
        return self._producer_id

    def backoff(self, mandatory_stop_ms: int = 0) -> Backoff:
        return Backoff(
            self.clock,
            initial_ms=self.options["backoff_initial_ms"],
            max_ms=self.options["backoff_max_ms"],
            mandatory_stop_ms=mandatory_stop_ms,
        )

    async def connect(self, topic: PulsarName) -> Connection:
        """A connection to the broker that serves the topic; raises ``ClientError``."""
        address, proxied_to = await self._shared("broker", topic, self._look_up)
        return await self.pool.get(address, proxied_to)

    async def partitions(self, topic: PulsarName) -> int:
        """How many the topic has; 0 = it is not partitioned. Asked anew each time."""
        if topic.partition >= 0:
            return 0
        return await self._shared("partitions", topic, self._ask_partitions)

    async def topics(self, namespace: str, domain: str) -> list[str]:
        """Full names of a namespace's topics; ``domain`` is persistent, non-persistent or all."""
        return await self._shared("topics", (namespace, domain), self._ask_topics)

    async def ask(self, command: BaseCommand, request_id: int, what: str) -> BaseCommand:
        """A question that any broker can answer."""
        connection = await self._any()
        return await connection.request(command, request_id, what)

    async def retried(self, ask: Callable[[], Awaitable[T]], what: str) -> T:
        """The answer; asked again while it may come, within the operation's time."""
        timeout_ms = self.options["operation_timeout_ms"]
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        backoff = self.backoff()
        while True:
            try:
                return await ask()
            except ClientError as problem:
                left_ms = deadline_ms - self.clock.monotonic_ms()
                if isinstance(problem, StateError) or not is_worth_another_try(problem):
                    raise
                if left_ms <= 0:
                    if isinstance(problem, TimedOut):
                        raise
                    raise TimedOut(self.url, timeout_ms, what, detail=str(problem)) from problem
            # Once more when the time is up, and not long before it.
            await asyncio.sleep(min(backoff.next_ms(), left_ms) / 1000)

    async def close(self) -> None:
        for task in list(self._asked.values()):
            task.cancel()
        await self.pool.close()

    # ---- asking ----------------------------------------------------------------------------------

    async def _shared(
        self, kind: str, about: About, ask: Callable[[About], Coroutine[Any, Any, T]]
    ) -> T:
        key = (kind, str(about))
        task = self._asked.get(key)
        if task is None:
            if self.pool.is_closed:
                raise StateError("the client is closed; make a new one")
            task = asyncio.get_running_loop().create_task(self._in_turn(ask, about))
            self._asked[key] = task
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        found: T = await shielded(task)
        return found

    async def _in_turn(self, ask: Callable[[About], Coroutine[Any, Any, T]], about: About) -> T:
        async with self._turns:
            return await ask(about)

    async def _any(self) -> Connection:
        """A connection to one of the brokers of the service URL."""
        problem: ClientError | None = None
        for _ in self._addresses:
            at = self._at
            address = self._addresses[at % len(self._addresses)]
            try:
                return await self.pool.get(address)
            except Unreachable as error:
                problem = error
                # Of many who found it away at once, the first goes on to the next.
                self._at = max(self._at, at + 1)
        raise problem or Unreachable(self.url, "no address")

    async def _look_up(self, topic: PulsarName) -> tuple[str, str]:
        """(where to connect to, the broker behind the proxy there or nothing)."""
        connection = await self._any()
        is_authoritative = False
        for _ in range(REDIRECTS_MAX):
            answer = await self._ask_broker(connection, topic, is_authoritative)
            url = answer.brokerServiceUrl
            if answer.response == CommandLookupTopicResponse.Failed or not url:
                raise Refused(answer.error, answer.message, f"look-up of topic {topic}")
            address = addresses_of(url)[0]
            if answer.response == CommandLookupTopicResponse.Connect:
                if answer.proxy_through_service_url and address != connection.address:
                    return connection.address, address
                return address, ""
            connection = await self.pool.get(address)
            is_authoritative = answer.authoritative
        raise Refused(
            ServerError.ServiceNotReady,
            f"redirected more than {REDIRECTS_MAX} times",
            f"look-up of topic {topic}",
        )

    async def _ask_broker(
        self, connection: Connection, topic: PulsarName, is_authoritative: bool
    ) -> CommandLookupTopicResponse:
        request_id = self.pool.next_request_id()
        command = BaseCommand(type=BaseCommand.LOOKUP)
        asked = command.lookup_topic
        asked.topic, asked.request_id = str(topic), request_id
        asked.authoritative = is_authoritative
        asked.advertised_listener_name = self.options["listener_name"] or ""
        answer = await connection.request(command, request_id, f"look-up of topic {topic}")
        return answer.lookup_topic_response

    async def _ask_partitions(self, topic: PulsarName) -> int:
        request_id = self.pool.next_request_id()
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        asked = command.partition_metadata
        asked.topic, asked.request_id = str(topic), request_id
        what = f"partitions of topic {topic}"
        answer = (await self.ask(command, request_id, what)).partition_metadata_response
        if answer.response == CommandPartitionedTopicMetadataResponse.Failed:
            raise Refused(answer.error, answer.message, what)
        if answer.partitions > PARTITIONS_MAX:
            raise Refused(ServerError.MetadataError, f"{answer.partitions} of them", what)
        return answer.partitions

    async def _ask_topics(self, where: tuple[str, str]) -> list[str]:
        namespace, domain = where
        request_id = self.pool.next_request_id()
        command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
        asked = command.get_topics_of_namespace
        asked.request_id, asked.namespace = request_id, namespace
        asked.mode = _MODES[domain]
        what = f"topics of namespace {namespace}"
        answer = (await self.ask(command, request_id, what)).get_topics_of_namespace_response
        return list(answer.topics)[:TOPICS_MAX]


ALL_TOPICS: Final = "all"
_MODES: Final = {
    "persistent": CommandGetTopicsOfNamespace.PERSISTENT,
    "non-persistent": CommandGetTopicsOfNamespace.NON_PERSISTENT,
    ALL_TOPICS: CommandGetTopicsOfNamespace.ALL,
}
