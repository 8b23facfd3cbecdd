"""Requests of operators: topics, groups, statistics, single messages, questions to clients.

They go to the address of a broker that the caller chose; what only name servers know has none.

Not here: the facade (``admin.py``).
"""

from typing import Any, Final

from penstock.client.calls_pop import PopCalls
from penstock.client.errors import ClientError
from penstock.client.message import stored_messages
from penstock.client.queue_tables import read_offsets, read_table
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import (
    Cluster,
    SubscriptionGroupConfig,
    TopicList,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import (
    ConsumeStatsHeader,
    CreateTopicHeader,
    GroupConfigHeader,
    GroupHeader,
    GroupNameHeader,
    ProducerGroupHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
    TopicHeader,
    ViewMessageHeader,
)
from penstock.wire.rocketmq.stored import StoredMessage

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Statistics of a large cluster are read up to the size of a frame."""

_FOUND_OR_NOT: Final = frozenset((int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)))


class AdminCalls(PopCalls):
    """The requests of an operator."""

    async def cluster(self) -> Cluster:
        """GET_BROKER_CLUSTER_INFO: all brokers that the name server knows."""
        answer = await self.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_body(answer.body, Cluster, bytes_max=ANSWER_BYTES_MAX)

    async def topic_list(self) -> list[str]:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        answer = await self.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return decode_body(answer.body, TopicList, bytes_max=ANSWER_BYTES_MAX).topic_list

    async def create_topic(self, address: str, header: CreateTopicHeader) -> None:
        """UPDATE_AND_CREATE_TOPIC at one broker."""
        await self.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(self, address: str, topic: str) -> None:
        """DELETE_TOPIC_IN_BROKER."""
        await self.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=topic))

    async def delete_topic_route(self, topic: str) -> None:
        """DELETE_TOPIC_IN_NAMESRV, at every name server."""
        for address in self._name_servers.addresses:
            header = TopicHeader(topic=topic)
            await self.ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def put_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP at one broker."""
        await self.ask(
            address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config)
        )

    async def delete_group(self, address: str, group: str, *, clean_offsets: bool) -> None:
        """DELETE_SUBSCRIPTIONGROUP at one broker."""
        header = GroupNameHeader(
            group_name=group, clean_offset=clean_offsets, remove_offset=clean_offsets
        )
        await self.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_config(self, address: str, group: str) -> SubscriptionGroupConfig:
        """GET_SUBSCRIPTIONGROUP_CONFIG."""
        answer = await self.ask(
            address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupConfigHeader(group=group)
        )
        return decode_body(answer.body, SubscriptionGroupConfig)

    async def group_configs(self, address: str) -> dict[str, Any]:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: the JSON object of each group, by name."""
        answer = await self.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table: dict[str, Any] = _json(answer).get("subscriptionGroupTable", {})
        return table

    async def topic_stats(self, address: str, topic: str) -> dict[QueueRef, dict[str, int]]:
        """GET_TOPIC_STATS_INFO: minOffset, maxOffset, lastUpdateTimestamp of each queue."""
        answer = await self.ask(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=topic))
        return read_table(_json(answer).get("offsetTable", {}))

    async def consume_stats(
        self, address: str, group: str, topic: str | None = None
    ) -> dict[QueueRef, dict[str, int]]:
        """GET_CONSUME_STATS: brokerOffset, consumerOffset, lastTimestamp of each queue."""
        header = ConsumeStatsHeader(consumer_group=group, topic=topic)
        answer = await self.ask(address, RequestCode.GET_CONSUME_STATS, header)
        return read_table(_json(answer).get("offsetTable", {}))

    async def consumer_connections(self, address: str, group: str) -> dict[str, Any]:
        """GET_CONSUMER_CONNECTION_LIST as JSON."""
        answer = await self.ask(
            address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(consumer_group=group)
        )
        return _json(answer)

    async def producer_connections(self, address: str, group: str) -> dict[str, Any]:
        """GET_PRODUCER_CONNECTION_LIST as JSON."""
        header = ProducerGroupHeader(producer_group=group)
        return _json(await self.ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header))

    async def reset_offset(self, address: str, header: ResetOffsetHeader) -> dict[QueueRef, int]:
        """INVOKE_BROKER_TO_RESET_OFFSET; the new offsets."""
        answer = await self.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return read_offsets(_json(answer).get("offsetTable", {}))

    async def view_message(self, address: str, commit_log_offset: int, topic: str) -> StoredMessage:
        """VIEW_MESSAGE_BY_ID."""
        header = ViewMessageHeader(offset=commit_log_offset, topic=topic or None)
        answer = await self.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        found = stored_messages(answer.body)
        if not found:
            raise ClientError(f"{address} answered with no message at {commit_log_offset}")
        return found[0]

    async def query_messages(self, address: str, header: QueryMessageHeader) -> list[StoredMessage]:
        """QUERY_MESSAGE by key or unique key; brokers compare hashes, so check the key again."""
        answer = await self.ask(address, RequestCode.QUERY_MESSAGE, header, accepted=_FOUND_OR_NOT)
        return stored_messages(answer.body)

    async def running_info(
        self, address: str, group: str, client_id: str, *, with_stacks: bool = False
    ) -> dict[str, Any]:
        """GET_CONSUMER_RUNNING_INFO, passed on by a broker; as JSON."""
        header = {
            "consumerGroup": group,
            "clientId": client_id,
            "jstackEnable": "true" if with_stacks else "false",
        }
        return _json(await self.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header))

    async def consume_directly(
        self, address: str, group: str, client_id: str, offset_message_id: str, topic: str
    ) -> dict[str, Any]:
        """CONSUME_MESSAGE_DIRECTLY, passed on by a broker; the outcome as JSON."""
        header = {
            "consumerGroup": group,
            "clientId": client_id,
            "msgId": offset_message_id,
            "topic": topic,
        }
        return _json(await self.ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header))


def _json(answer: Command) -> dict[str, Any]:
    return decode_body(answer.body, dict[str, Any], bytes_max=ANSWER_BYTES_MAX)
