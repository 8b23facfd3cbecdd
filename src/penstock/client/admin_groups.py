"""Administration of consumer groups: settings, members, how far they are, and moving them.

Not here: topics (``admin_topics.py``), messages (``admin_messages.py``).
"""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from penstock.client.admin_session import AdminSession
from penstock.client.admin_tables import (
    GroupConnections,
    QueueProgress,
    connections,
    consume_stats,
)
from penstock.client.errors import BrokerRefused, ClientError
from penstock.client.twins import awaitable, blocking
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import RequestMode, SubscriptionGroupConfig
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.headers import ResetOffsetHeader

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
End = Literal["earliest", "latest"]

_OFFLINE: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
"""What brokers say of a group of which nobody is connected; older ones use the second."""


class GroupAdmin(AdminSession):
    """What an operator does with groups."""

    async def _groups(self) -> dict[str, SubscriptionGroupConfig]:
        """The settings of every group, by name."""
        found: dict[str, Any] = {}
        for address in await self._masters():
            found |= await self._calls.group_configs(address)
        return {
            name: msgspec.convert(found[name], SubscriptionGroupConfig, strict=False)
            for name in sorted(found)
        }

    groups = blocking(_groups)
    groups_async = awaitable(_groups)

    async def _create_group(
        self,
        group: str,
        *,
        is_enabled: bool = True,
        is_broadcast_enabled: bool = True,
        is_ordered: bool = False,
        retries_max: int = 16,
        retry_queues: int = 1,
    ) -> None:
        """Make a group, or change its settings; on every broker."""
        config = SubscriptionGroupConfig(
            group_name=group,
            consume_enable=is_enabled,
            consume_broadcast_enable=is_broadcast_enabled,
            consume_message_orderly=is_ordered,
            retry_max_times=retries_max,
            retry_queue_nums=retry_queues,
        )
        for address in await self._masters():
            await self._calls.put_group(address, config)

    create_group = blocking(_create_group)
    create_group_async = awaitable(_create_group)

    async def _delete_group(self, group: str, *, keeps_offsets: bool = False) -> None:
        """Delete a group everywhere; members that are connected make it anew."""
        for address in await self._masters():
            await self._calls.delete_group(address, group, clean_offsets=not keeps_offsets)

    delete_group = blocking(_delete_group)
    delete_group_async = awaitable(_delete_group)

    async def _connections(self, group: str) -> GroupConnections:
        """Who consumes for a group now, and what; no connections when nobody does."""
        answers = []
        for address in await self._masters():
            try:
                answers.append(await self._calls.consumer_connections(address, group))
            except BrokerRefused as refused:
                if refused.code not in _OFFLINE:
                    raise
        return connections(answers)

    connections = blocking(_connections)
    connections_async = awaitable(_connections)

    async def _producer_connections(self, group: str) -> GroupConnections:
        """Who produces for a group now; no connections when nobody does."""
        answers = []
        for address in await self._masters():
            try:
                answers.append(await self._calls.producer_connections(address, group))
            except BrokerRefused as refused:
                if refused.code not in _OFFLINE:
                    raise
        return connections(answers)

    producer_connections = blocking(_producer_connections)
    producer_connections_async = awaitable(_producer_connections)

    async def _running_info(
        self, group: str, client_id: str, *, with_stacks: bool = False
    ) -> dict[str, Any]:
        """What a consumer says of itself (queues, caches, held by which threshold), as JSON."""
        last: ClientError | None = None
        for address in await self._masters():
            try:
                return await self._calls.running_info(
                    address, group, client_id, with_stacks=with_stacks
                )
            except BrokerRefused as refused:
                last = refused
        raise last or ClientError("the name server knows no broker")

    running_info = blocking(_running_info)
    running_info_async = awaitable(_running_info)

    async def _committed(self, group: str, queue: QueueRef) -> int | None:
        """Where a group is in one queue; None when nothing is stored."""
        return await self._calls.query_offset(queue, group)

    committed = blocking(_committed)
    committed_async = awaitable(_committed)

    async def _progress(
        self, group: str, topic: str | None = None
    ) -> dict[QueueRef, QueueProgress]:
        """How far a group is in every queue of a topic, or of all it reads."""
        found = {}
        for address in await self._masters():
            found.update(await self._calls.consume_stats(address, group, topic))
        return consume_stats(found)

    progress = blocking(_progress)
    progress_async = awaitable(_progress)

    async def _lag(self, group: str, topic: str | None = None) -> int:
        """Messages that a group has still to consume."""
        return sum(each.lag for each in (await self._progress(group, topic)).values())

    lag = blocking(_lag)
    lag_async = awaitable(_lag)

    async def _reset_offsets(
        self, group: str, topic: str, to: End | datetime | int, *, is_forced: bool = True
    ) -> dict[QueueRef, int]:
        """Move a group: to an end, or to the first message stored at a time (a datetime or ms).

        Without ``is_forced`` it is only moved back. Returns the new offsets.
        """
        header = ResetOffsetHeader(
            topic=topic, group=group, timestamp=_timestamp(to), is_force=is_forced
        )
        moved: dict[QueueRef, int] = {}
        for address in await self._masters_of(topic):
            try:
                moved |= await self._calls.reset_offset(address, header)
            except BrokerRefused as refused:
                # Brokers of 4.x tell the members; with none there, the offsets are stored instead.
                if not _is_offline(refused):
                    raise
                moved |= await self._store(group, topic, address, header)
        return moved

    reset_offsets = blocking(_reset_offsets)
    reset_offsets_async = awaitable(_reset_offsets)

    async def _set_offset(self, group: str, queue: QueueRef, offset: int) -> None:
        """Move a group in one queue to an offset; its members go on there."""
        header = ResetOffsetHeader(
            topic=queue.topic, group=group, queue_id=queue.queue, offset=offset, is_force=True
        )
        address = await self._calls.master_of(queue)
        try:
            await self._calls.reset_offset(address, header)
        except BrokerRefused as refused:
            if not _is_offline(refused):
                raise
            await self._calls.update_offset(queue, group, offset, oneway=False)

    set_offset = blocking(_set_offset)
    set_offset_async = awaitable(_set_offset)

    async def _set_consume_mode(
        self, group: str, topic: str, mode: RequestMode | Literal["PULL", "POP"], *, share: int = -1
    ) -> None:
        """Have a group served by pull or by pop; with pop ``share`` members share each queue."""
        for address in await self._masters_of(topic):
            await self._calls.set_request_mode(
                address, topic, group, RequestMode(mode), share=share
            )

    set_consume_mode = blocking(_set_consume_mode)
    set_consume_mode_async = awaitable(_set_consume_mode)

    async def _store(
        self, group: str, topic: str, address: str, header: ResetOffsetHeader
    ) -> dict[QueueRef, int]:
        route = await self._routes.look_up(topic)
        moved: dict[QueueRef, int] = {}
        for queue in route.read_queues():
            if await self._calls.master_of(queue) != address:
                continue
            wanted = (
                await self._calls.max_offset(queue)
                if header.timestamp < 0
                else await self._calls.search_offset(queue, header.timestamp)
            )
            stored = await self._calls.query_offset(queue, group)
            if header.is_force or stored is None or wanted < stored:
                await self._calls.update_offset(queue, group, wanted, oneway=False)
                moved[queue] = wanted
        return moved


def _is_offline(refused: BrokerRefused) -> bool:
    """A broker that tells the members found none; 4.9 has no code of its own for that."""
    is_unknown = refused.code == ResponseCode.SYSTEM_ERROR and "consumer group" in refused.remark
    return refused.code == ResponseCode.CONSUMER_NOT_ONLINE or is_unknown


def _timestamp(to: End | datetime | int) -> int:
    """Milliseconds as brokers take them: 0 is before everything, -1 is the end."""
    if isinstance(to, datetime):
        return int(to.timestamp() * 1000)
    if isinstance(to, int):
        return to
    try:
        return {EARLIEST: 0, LATEST: -1}[to]
    except KeyError:
        raise ValueError(
            f"{to!r} is neither 'earliest', 'latest', a datetime nor milliseconds"
        ) from None
