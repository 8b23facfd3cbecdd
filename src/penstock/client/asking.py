"""Asking a broker one question: the part that all calls share.

Not here: the questions (``calls*.py``).
"""

from collections.abc import Collection
from typing import Final

from penstock.client.commands import make_command
from penstock.client.errors import BrokerRefused, ClientError, Unreachable
from penstock.client.name_servers import NameServers
from penstock.client.network import Network
from penstock.client.routes import MASTER_ID, RouteCache
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Command, Malformed
from penstock.wire.rocketmq.headers import H, Header, parse

_OK: Final = frozenset((int(ResponseCode.SUCCESS),))


class Asker:
    """Sends a request to an address and reads the answer."""

    def __init__(
        self,
        network: Network,
        routes: RouteCache,
        name_servers: NameServers,
        *,
        client_id: str,
        timeout_ms: int,
    ) -> None:
        self._network = network
        self._routes = routes
        self._name_servers = name_servers
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._without_lite: set[str] = set()
        """Addresses of brokers that know no lite pulls (4.x); as many as there are brokers."""

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
        accepted: Collection[int] = _OK,
    ) -> Command:
        """The answer of a broker; one with another code than ``accepted`` is ``BrokerRefused``."""
        answer = await self._network.request(
            address, make_command(code, header, body), timeout_ms=timeout_ms or self._timeout_ms
        )
        if answer.code not in accepted:
            raise BrokerRefused(answer.code, answer.remark, address)
        return answer

    async def ask_name_server(
        self, code: int, header: Header | dict[str, str] | None = None
    ) -> Command:
        """The answer of a name server; ``BrokerRefused`` unless it is SUCCESS."""
        answer = await self._name_servers.request(
            make_command(code, header), timeout_ms=self._timeout_ms
        )
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark, self._name_servers.current)
        return answer

    def tell(
        self, address: str, code: int, header: Header | None = None, body: bytes = b""
    ) -> None:
        """A request without an answer."""
        self._network.oneway(address, make_command(code, header, body))

    async def master_of(self, queue: QueueRef) -> str:
        """Where the master of a queue listens; its route is looked up when it is not known."""
        address = self._routes.address(queue.broker, MASTER_ID)
        if address is None:
            await self._routes.look_up(queue.topic)
            address = self._routes.address(queue.broker, MASTER_ID)
        if address is None:
            raise Unreachable(queue.broker, f"no route of {queue.topic!r} names its master")
        return address


def read_header(kind: type[H], answer: Command) -> H:
    """The typed header of an answer; ``ClientError`` where a broker forgot a field."""
    try:
        return parse(kind, answer)
    except Malformed as problem:
        raise ClientError(f"the answer of a broker cannot be read: {problem}") from None
