"""The broker listener: opens the broker, makes connections, says which handler serves which code.

What RocketMQ's ``BrokerController`` wires together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.adapters.contract import Peer
from penstock.adapters.rocketmq import admin, broker_admin, groups, offsets
from penstock.adapters.rocketmq.broker import RocketmqBroker
from penstock.adapters.rocketmq.connection import Handler, RocketmqConnection, serve_send
from penstock.adapters.rocketmq.delay import recall_message
from penstock.adapters.rocketmq.group_registry import GroupRegistry, OffsetRegistry
from penstock.adapters.rocketmq.name_server.server import NAME_SERVER
from penstock.adapters.rocketmq.new_groups import NewGroups
from penstock.adapters.rocketmq.pop import ack, processor
from penstock.adapters.rocketmq.pop.service import PopStatistics
from penstock.adapters.rocketmq.pull import PullProcessor, pull_message
from penstock.adapters.rocketmq.readers import GroupReaders
from penstock.adapters.rocketmq.reply import reply_message
from penstock.adapters.rocketmq.retry import send_back
from penstock.adapters.rocketmq.transactions import TransactionService, end_transaction
from penstock.adapters.timers import Timers
from penstock.model.clock import Clock
from penstock.model.errors import InvariantBroken
from penstock.model.ids import ConnectionId
from penstock.settings.load import Settings
from penstock.wire.rocketmq.codes import RequestCode

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

BROKER: Final = "rocketmq_broker"
VIP: Final = "rocketmq_vip"
VIP_DISTANCE: Final = 2
"""The VIP channel is this far below the broker's port; clients compute it themselves."""

HANDLERS: Final[dict[int, Handler]] = {
    # Sends that take the general way; the plain ones never come here (``connection.receive``).
    RequestCode.SEND_MESSAGE: serve_send,
    RequestCode.SEND_MESSAGE_V2: serve_send,
    RequestCode.SEND_BATCH_MESSAGE: serve_send,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.SEND_REPLY_MESSAGE: reply_message,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply_message,
    RequestCode.RECALL_MESSAGE: recall_message,
    # Pull and its offsets.
    RequestCode.PULL_MESSAGE: pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull_message,
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_offset,
    RequestCode.GET_MAX_OFFSET: offsets.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.get_min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset_by_time,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.reset_offset,
    # Pop.
    RequestCode.POP_MESSAGE: processor.pop,
    RequestCode.PEEK_MESSAGE: processor.peek,
    RequestCode.NOTIFICATION: processor.notification,
    RequestCode.ACK_MESSAGE: ack.ack,
    RequestCode.BATCH_ACK_MESSAGE: ack.batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ack.change_invisible,
    # Clients and groups.
    RequestCode.HEART_BEAT: groups.heartbeat,
    RequestCode.UNREGISTER_CLIENT: groups.unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: groups.list_members,
    RequestCode.CHECK_CLIENT_CONFIG: groups.check_client_config,
    RequestCode.QUERY_ASSIGNMENT: groups.query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: groups.set_request_mode,
    RequestCode.LOCK_BATCH_MQ: groups.lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: groups.unlock_queues,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.put_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.remove_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.list_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.show_group,
    # Operators' tools.
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin.put_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
    admin.GET_ALL_TOPIC_CONFIG: admin.list_topics,
    RequestCode.GET_TOPIC_CONFIG: admin.show_topic,
    RequestCode.VIEW_MESSAGE_BY_ID: admin.view_message,
    RequestCode.QUERY_MESSAGE: admin.query_message,
    RequestCode.GET_TOPIC_STATS_INFO: admin.topic_stats,
    RequestCode.GET_CONSUME_STATS: admin.consume_stats,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: admin.consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: admin.producer_connections,
    RequestCode.GET_CONSUMER_RUNNING_INFO: admin.consumer_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: admin.consume_directly,
    # The same about the broker as a whole.
    RequestCode.GET_BROKER_RUNTIME_INFO: broker_admin.broker_runtime,
    RequestCode.VIEW_BROKER_STATS_DATA: broker_admin.broker_stats,
    RequestCode.GET_BROKER_CONFIG: broker_admin.broker_config,
    RequestCode.UPDATE_BROKER_CONFIG: broker_admin.update_config,
    RequestCode.GET_BROKER_CONSUME_STATS: broker_admin.broker_consume_stats,
    RequestCode.GET_ALL_PRODUCER_INFO: broker_admin.all_producers,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: broker_admin.topic_groups,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: broker_admin.group_topics,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: broker_admin.group_subscription,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: broker_admin.system_topics,
    RequestCode.QUERY_CONSUME_QUEUE: broker_admin.consume_queue,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: broker_admin.nothing_to_clean,
    RequestCode.CLEAN_UNUSED_TOPIC: broker_admin.nothing_to_clean,
    RequestCode.DELETE_EXPIRED_COMMITLOG: broker_admin.nothing_to_clean,
}

STARTED_SERVICES: Final[tuple[Callable[[RocketmqBroker], object], ...]] = (
    GroupRegistry,
    OffsetRegistry,
    groups.ClientRegistry,
    PullProcessor,
    groups.RequestModeRegistry,
    PopStatistics,
    TransactionService,
    GroupReaders,
    NewGroups,
)
"""Made when the broker is opened, in this order: they have deadlines, statistics, or something to
recover. All others wait for their first use (``broker.service``)."""


def open_broker(
    engine: Engine,
    clock: Clock,
    settings: Settings,
    *,
    broker_port: int = 10911,
    name_server: str = "",
) -> RocketmqBroker:
    """A broker with everything in it; tests use it directly."""
    broker = RocketmqBroker(
        engine, clock, settings, broker_port=broker_port, name_server=name_server
    )
    for kind in STARTED_SERVICES:
        broker.service(kind)
    return broker


class RocketmqStartup:
    """Opens the broker once the ports are known; shared by the factories of both listeners."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker: RocketmqBroker | None = None

    def open(self, engine: Engine, clock: Clock, endpoints: Mapping[str, str]) -> Timers:
        """The listeners are open, nobody is connected yet; what has to be driven from now on."""
        port = int(endpoints.get(BROKER, ":0").rpartition(":")[2])
        names = endpoints.get(NAME_SERVER, "")
        self._broker = open_broker(
            engine, clock, self._settings, broker_port=port, name_server=names
        )
        return self._broker.timers

    @property
    def broker(self) -> RocketmqBroker:
        if self._broker is None:
            raise InvariantBroken("a RocketMQ client came before the broker was open")
        return self._broker


class BrokerFactory:
    """Makes broker connections; satisfies ``adapters.contract.AdapterFactory``."""

    def __init__(self, startup: RocketmqStartup, protocol: str = BROKER) -> None:
        self._startup = startup
        self.protocol = protocol

    def make(
        self,
        connection_id: ConnectionId,
        peer: Peer,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
    ) -> RocketmqConnection:
        del engine, clock
        return RocketmqConnection(connection_id, peer, self._startup.broker, HANDLERS, wake)
