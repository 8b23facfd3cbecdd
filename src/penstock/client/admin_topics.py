"""Administration of topics: list, create, delete, routes and statistics.

A topic is made and deleted on the master of every broker that the name server knows, and in the
name servers' routes, so that nothing of it is left behind where nobody looks.

Not here: groups (``admin_groups.py``), messages (``admin_messages.py``).
"""

from collections.abc import Iterable, Mapping

from penstock.client.admin_session import AdminSession
from penstock.client.admin_tables import QueueStats, topic_stats
from penstock.client.errors import NoRoute
from penstock.client.routes import Route
from penstock.client.twins import awaitable, blocking
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import Perm
from penstock.wire.rocketmq.headers import CreateTopicHeader

READ_WRITE = int(Perm.READ | Perm.WRITE)


class TopicAdmin(AdminSession):
    """What an operator does with topics."""

    async def _topics(self) -> list[str]:
        """Names of all topics that the name server knows, internal ones too; sorted."""
        return sorted(await self._calls.topic_list())

    topics = blocking(_topics)
    topics_async = awaitable(_topics)

    async def _brokers(self) -> dict[str, dict[int, str]]:
        """Addresses of all brokers by name and broker id; 0 is a master."""
        return await self._all_brokers()

    brokers = blocking(_brokers)
    brokers_async = awaitable(_brokers)

    async def _create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: int = READ_WRITE,
        is_ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Make a topic, or change it; on every broker, or on those named."""
        header = CreateTopicHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues if read_queues is None else read_queues,
            write_queue_nums=queues,
            perm=perm,
            order=is_ordered,
            attributes=_attributes(attributes),
        )
        for address in await self._masters(brokers):
            await self._calls.create_topic(address, header)

    create_topic = blocking(_create_topic)
    create_topic_async = awaitable(_create_topic)

    async def _delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages, everywhere."""
        for address in await self._masters():
            await self._calls.delete_topic(address, topic)
        await self._calls.delete_topic_route(topic)
        self._routes.forget([topic])

    delete_topic = blocking(_delete_topic)
    delete_topic_async = awaitable(_delete_topic)

    async def _route(self, topic: str) -> Route | None:
        """Where the queues of a topic are; None when the name server knows no such topic."""
        try:
            return await self._routes.look_up(topic)
        except NoRoute:
            return None

    route = blocking(_route)
    route_async = awaitable(_route)

    async def _topic_stats(self, topic: str) -> dict[QueueRef, QueueStats]:
        """First and next offset of every queue, and when it changed last."""
        found = {}
        for address in await self._masters_of(topic):
            found.update(await self._calls.topic_stats(address, topic))
        return topic_stats(found)

    topic_stats = blocking(_topic_stats)
    topic_stats_async = awaitable(_topic_stats)

    async def _offsets_at(self, topic: str, at_ms: int) -> dict[QueueRef, int]:
        """In every queue the offset of the first message stored at a wall time or later."""
        route = await self._routes.look_up(topic)
        return {each: await self._calls.search_offset(each, at_ms) for each in route.read_queues()}

    offsets_at = blocking(_offsets_at)
    offsets_at_async = awaitable(_offsets_at)


def _attributes(given: Mapping[str, str] | None) -> str | None:
    """``+name=value,+name=value``, as brokers read changes of attributes."""
    if not given:
        return None
    return ",".join(f"+{name}={value}" for name, value in given.items())
