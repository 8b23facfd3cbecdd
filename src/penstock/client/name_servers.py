"""The name servers: a list of addresses, one of which is asked until it fails.

Each client begins at another one, so that many clients spread; a failure moves on to the next. Any
answer will do: name servers know the same, or nearly so.

Not here: what is asked (``routes.py``, ``calls_admin.py``).
"""

import os
import random
from collections.abc import Sequence
from typing import Final

from penstock.client.errors import ClientError, StateError, TimedOut, Unreachable, WouldBlock
from penstock.client.network import Network, split_address
from penstock.wire.rocketmq.command import Command

ENVIRONMENT: Final = "NAMESRV_ADDR"
"""Where RocketMQ's own clients look when they are given none."""
DEFAULT_PORT: Final = 9876

NameServerList = str | Sequence[str] | None
"""``"a:9876;b:9876"``, ``["a:9876", "b"]``; None: taken from ``NAMESRV_ADDR``."""


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


class NameServers:
    """The name servers of one instance."""

    def __init__(
        self, addresses: Sequence[str], network: Network, *, start_at: int | None = None
    ) -> None:
        self.addresses: Final = tuple(addresses)
        self._network = network
        first = random.randrange(len(addresses)) if start_at is None else start_at
        self._current = first % len(self.addresses)

    @property
    def current(self) -> str:
        """The one that is asked first."""
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
