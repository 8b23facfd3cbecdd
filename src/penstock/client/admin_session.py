"""What every part of ``Admin`` shares: connections of its own, and which brokers there are.

An administrator is no member of any group: it sends no heartbeats and keeps no routes fresh, so it
has a network of its own that is there from ``start`` to ``stop`` and costs nothing in between.

Not here: what it does (``admin_topics.py``, ``admin_groups.py``, ``admin_messages.py``).
"""

from collections.abc import Iterable
from typing import Self, Unpack

from penstock.client.calls import Calls
from penstock.client.errors import NoRoute, StateError
from penstock.client.identity import client_id, local_ip, process_name
from penstock.client.instance import ClientInstance
from penstock.client.name_servers import NameServerList, parse_name_servers
from penstock.client.options import InstanceOptions, resolve
from penstock.client.routes import MASTER_ID, RouteCache
from penstock.client.twins import awaitable, blocking


class AdminSession:
    """Start, stop, and the way to the brokers."""

    def __init__(self, name_servers: NameServerList, **options: Unpack[InstanceOptions]) -> None:
        self._addresses = parse_name_servers(name_servers)
        self._options = resolve(InstanceOptions, options)
        self._instance: ClientInstance | None = None
        self._is_stopped = False

    async def _start(self) -> None:
        """Be ready; nothing is sent before the first question."""
        if self._instance is not None or self._is_stopped:
            raise StateError("this Admin was started before; make a new one")
        ip = self._options["client_ip"] or local_ip()
        identity = client_id(ip, f"admin-{process_name()}", self._options["unit_name"])
        self._instance = ClientInstance(self._addresses, self._options, identity)

    start = blocking(_start)
    start_async = awaitable(_start)

    async def _stop(self) -> None:
        """Close the connections."""
        self._is_stopped = True
        found, self._instance = self._instance, None
        if found is not None:
            await found.network.close()

    stop = blocking(_stop)
    stop_async = awaitable(_stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_async()

    @property
    def _running(self) -> ClientInstance:
        if self._instance is None:
            raise StateError("this Admin does not run; use it in a with statement, or start() it")
        return self._instance

    @property
    def _calls(self) -> Calls:
        return self._running.calls

    @property
    def _routes(self) -> RouteCache:
        return self._running.routes

    async def _all_brokers(self) -> dict[str, dict[int, str]]:
        cluster = await self._calls.cluster()
        return {
            name: {int(number): address for number, address in data.broker_addrs.items()}
            for name, data in sorted(cluster.broker_addr_table.items())
        }

    async def _masters(self, brokers: Iterable[str] | None = None) -> list[str]:
        """Addresses of all masters, or of those of the brokers named."""
        known = await self._all_brokers()
        if brokers is None:
            return [each[MASTER_ID] for each in known.values() if MASTER_ID in each]
        wanted = [brokers] if isinstance(brokers, str) else list(brokers)
        missing = [name for name in wanted if MASTER_ID not in known.get(name, {})]
        if missing:
            raise ValueError(
                f"no master of {', '.join(missing)}; the name server knows {', '.join(known)}"
            )
        return [known[name][MASTER_ID] for name in wanted]

    async def _masters_of(self, topic: str) -> dict[str, str]:
        """Names of the brokers that have a topic, by the address of their master."""
        route = await self._routes.look_up(topic)
        found = {
            addresses[MASTER_ID]: name
            for name, addresses in route.brokers.items()
            if MASTER_ID in addresses
        }
        if not found:
            raise NoRoute(topic, "none of its brokers has a master now")
        return found
