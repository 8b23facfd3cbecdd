"""What RocketMQ's operators ask of a broker as a whole: how it does, how it is set, who uses it.

    broker_runtime, broker_stats        numbers (28, 315)
    broker_config, update_config        settings (26); changing them (25) waits for users
    broker_consume_stats, ...           every group's lag (317), every producer (328)
    topic_groups, group_topics, ...     who reads a topic (300), what a group reads (343, 345)
    consume_queue                       entries of a queue's index (321)
    nothing_to_clean                    expired files go by themselves (306, 316, 329)

Numbers have RocketMQ's names. One that Penstock does not have is left out, never made up: tools
show it as empty. Rates are means since the last question that is at least ``RATE_MS_MIN`` old, or
since the start: nobody keeps them while nobody asks.

Bounds: an answer has at most ``ROWS_MAX`` rows; whoever wants more is told what to ask instead.
Not here: one topic, message, group or client (``admin.py``), codes nobody serves (``requests.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.rocketmq.admin import (
    lag_rows,
    stored_since,
    subscription_data,
)
from penstock.adapters.rocketmq.group_registry import GroupRegistry, OffsetRegistry
from penstock.adapters.rocketmq.naming import SYSTEM_TOPICS, reply_topic, wire_name
from penstock.adapters.rocketmq.offsets import table_body
from penstock.adapters.rocketmq.requests import ErrorResponse, no_change, system_error
from penstock.model.ids import ConnectionId
from penstock.wire.rocketmq.bodies import KeyValueTable, TopicList, encode_body
from penstock.wire.rocketmq.command import OUR_VERSION, Command
from penstock.wire.rocketmq.headers import (
    ConsumeQueueHeader,
    GroupConfigHeader,
    GroupTopicHeader,
    OrderedHeader,
    StatisticsHeader,
    TopicHeader,
    parse,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection
    from penstock.engine.topic import Topic
    from penstock.wire.rocketmq.bodies import SubscriptionData

ROWS_MAX: Final = 4_000
"""Queues of groups, or producers, in one answer: some 50 ms of the loop."""
OLDEST_QUEUES_MAX: Final = 256
"""Queues looked at for the age of the oldest message; with more of them it is not told."""
ENTRIES_MAX: Final = 1_024
"""Messages of a queue in one answer."""

RATE_MS_MIN: Final = 10_000
SAMPLES_MAX: Final = 2

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
_WINDOWS_MS: Final = {"statsMinute": 60_000, "statsHour": 3_600_000, "statsDay": 86_400_000}

VERSION_NAME: Final = "V5_3_3"
"""What ``OUR_VERSION`` is called."""

CLEANED: Final = "nothing to do: what is expired or belongs to no topic goes by itself"


# ---- numbers ------------------------------------------------------------------------------------


def broker_runtime(connection: RocketmqConnection, command: Command) -> None:
    """GET_BROKER_RUNTIME_INFO: a table of texts, for ``clusterList`` and ``brokerStatus``."""
    found = connection.broker.service(BrokerStatistics).table()
    connection.answer(command, body=encode_body(KeyValueTable(table=found)))


class BrokerStatistics:
    """Totals since the start, and rates between two questions."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        # (monotonic ms, messages in, messages out)
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES_MAX)
        self._samples.append((broker.opened_ms, 0, 0))

    def table(self) -> dict[str, str]:
        broker, engine = self._broker, self._broker.engine
        counters, clock = engine.counters, broker.clock
        now_ms = clock.monotonic_ms()
        put, got = counters.published, engine.pulls.given_messages
        put_rate, get_rate = self._rates(now_ms, put, got)
        found = {
            "brokerVersionDesc": VERSION_NAME,
            "brokerVersion": str(OUR_VERSION),
            "brokerActive": "true",
            "bootTimestamp": str(clock.wall_ms() - (now_ms - broker.opened_ms)),
            "runtime": _duration(now_ms - broker.opened_ms),
            "putTps": put_rate,
            "getFoundTps": get_rate,
            "getTransferredTps": get_rate,
            "putMessageTimesTotal": str(put),
            "putMessageFailedTimes": str(sum(counters.refused.values())),
            "putMessageSizeTotal": str(counters.bytes_in),
            "putMessageAverageSize": f"{counters.bytes_in / max(1, put):.1f}",
            # Counted since the start; no marks are set at midnight.
            "msgPutTotalYesterdayMorning": "0",
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalTodayNow": str(put),
            "msgGetTotalYesterdayMorning": "0",
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalTodayNow": str(got),
            "dispatchBehindBytes": "0",
            "pageCacheLockTimeMills": "0",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": str(engine.delayed_records),
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "commitLogMaxOffset": str(engine.durable_position),
            "startAcceptSendRequestTimeStamp": "0",
        }
        oldest_ms = _oldest_ms(broker)
        if oldest_ms is not None:
            found["earliestMessageTimeStamp"] = str(oldest_ms)
        return found | _waiting(broker)

    def _rates(self, now_ms: int, put: int, got: int) -> tuple[str, str]:
        """Messages in and out per second since the question before."""
        newest = self._samples[-1]
        begin_ms, put_before, got_before = (
            newest if now_ms - newest[0] >= RATE_MS_MIN else self._samples[0]
        )
        if now_ms - newest[0] >= RATE_MS_MIN:
            self._samples.append((now_ms, put, got))
        seconds = max(1, now_ms - begin_ms) / 1_000
        return f"{(put - put_before) / seconds:.2f}", f"{(got - got_before) / seconds:.2f}"


def _waiting(broker: RocketmqBroker) -> dict[str, str]:
    """What RocketMQ's thread pools are, our classes of requests are (F5)."""
    pools = {"send": "send", "pull": "pull", "ack": "ack", "admin": "query"}
    found = {}
    for each in broker.engine.request_queue.statistics():
        if each.request_class == "end-transaction":
            found["EndTransactionQueueSize"] = str(each.waiting)
            found["EndTransactionThreadPoolQueueCapacity"] = str(each.capacity)
        elif each.request_class in pools:
            name = f"{pools[each.request_class]}ThreadPoolQueue"
            found[f"{name}Size"] = str(each.waiting)
            found[f"{name}Capacity"] = str(each.capacity)
            found[f"{name}HeadWaitTimeMills"] = str(each.age_ms)
    return found


def _oldest_ms(broker: RocketmqBroker) -> int | None:
    """When the oldest message was stored; None for none, and where looking would take long."""
    queues = [queue for topic in broker.engine.topics() for queue in topic.queues]
    if len(queues) > OLDEST_QUEUES_MAX:
        return None
    firsts = [queue.index.entries(queue.index.min_offset, 1) for queue in queues]
    return min([each[0][3] for each in firsts if each], default=None)


def _duration(ms: int) -> str:
    minutes, seconds = divmod(ms // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def broker_stats(connection: RocketmqConnection, command: Command) -> None:
    """VIEW_BROKER_STATS_DATA, asked by ``statsAll``: how many messages a topic got."""
    header = parse(StatisticsHeader, command)
    broker = connection.broker
    rmq_topic = broker.topics.find(header.stats_key)
    if header.stats_name != TOPIC_PUT_NUMS or rmq_topic is None:
        raise system_error(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
    now_ms = broker.clock.wall_ms()
    found = {}
    for name, window_ms in _WINDOWS_MS.items():
        count = sum([stored_since(each, now_ms - window_ms) for each in rmq_topic.topic.queues])
        found[name] = {"sum": count, "tps": count * 1_000 / window_ms, "avgpt": 1.0}
    connection.answer(command, body=encode_body(found))


# ---- settings -----------------------------------------------------------------------------------


def broker_config(connection: RocketmqConnection, command: Command) -> None:
    """GET_BROKER_CONFIG: every setting of ours, and RocketMQ's names for those that it has, too."""
    broker = connection.broker
    version = encode_body({"counter": 0, "stateVersion": 0, "timestamp": 0}).decode()
    connection.answer(
        command, ext={"version": version}, body=broker.settings_text(config_names(broker))
    )


def update_config(connection: RocketmqConnection, command: Command) -> None:
    """UPDATE_BROKER_CONFIG is refused."""
    del connection
    raise no_change(command)


def config_names(broker: RocketmqBroker) -> dict[str, object]:
    """Settings that mean the same in RocketMQ, under its names and in its units."""
    settings = broker.settings
    is_synced = broker.all_settings.storage.durability == "fsync"
    return {
        "brokerClusterName": broker.cluster,
        "brokerName": broker.broker_name,
        "brokerId": 0,
        "brokerIP1": settings.advertise or "127.0.0.1",
        "brokerRole": "ASYNC_MASTER",
        "listenPort": broker.broker_port,
        "namesrvAddr": broker.name_server,
        "brokerPermission": 6 if settings.is_readable else 2,
        "flushDiskType": "SYNC_FLUSH" if is_synced else "ASYNC_FLUSH",
        "fileReservedTime": settings.retention_ms // 3_600_000,
        "maxMessageSize": settings.body_bytes_max,
        "autoCreateTopicEnable": settings.is_auto_creating,
        "defaultTopicQueueNums": settings.default_topic_queues,
        "autoCreateSubscriptionGroup": settings.is_auto_creating_groups,
        "notifyConsumerIdsChangedEnable": settings.is_notifying_members,
        "longPollingEnable": settings.is_long_polling,
        "shortPollingTimeMills": settings.short_polling_ms,
        "registerNameServerPeriod": settings.register_ms,
        "transactionTimeOut": settings.transaction_immunity_ms,
        "transactionCheckInterval": settings.transaction_check_ms,
        "transactionCheckMax": settings.transaction_checks_max,
        "storeReplyMessageEnable": settings.is_storing_replies,
        "recallMessageEnable": True,
        "timerMaxDelaySec": settings.timer_ms_max // 1_000,
    }


# ---- groups and producers -----------------------------------------------------------------------


def broker_consume_stats(connection: RocketmqConnection, command: Command) -> None:
    """GET_BROKER_CONSUME_STATS: how far every group is in everything it reads."""
    broker = connection.broker
    is_ordered = parse(OrderedHeader, command).is_order
    known = broker.service(GroupRegistry).all()
    found: dict[str, list[msgspec.Raw]] = {name: [] for name in known}
    behind = count = 0
    for topic, group in _readings(broker):
        config = broker.topics.config(wire_name(topic.name))
        if group not in known or (is_ordered and not (config and config.order)):
            continue
        count += len(topic.queues)
        if count > ROWS_MAX:
            raise _too_many("queues of groups", "ask for one group (consumerProgress -g GROUP)")
        rows = lag_rows(broker, topic, group)
        behind += sum([row["brokerOffset"] - row["consumerOffset"] for row in rows.values()])
        found[group].append(msgspec.Raw(table_body("offsetTable", rows, consumeTps=0.0)))
    body = {
        "consumeStatsList": [{group: stats} for group, stats in found.items()],
        "brokerAddr": broker.address_for(connection.peer.local_host),
        "totalDiff": behind,
        "totalInflightDiff": 0,
    }
    connection.answer(command, body=encode_body(body))


def _readings(broker: RocketmqBroker) -> Iterable[tuple[Topic, str]]:
    offsets = broker.service(OffsetRegistry)
    for topic in broker.engine.topics():
        for group in offsets.groups_of(topic):
            yield topic, group


def all_producers(connection: RocketmqConnection, command: Command) -> None:
    """GET_ALL_PRODUCER_INFO: every producer group with its clients."""
    broker = connection.broker
    wall_ms = broker.clock.wall_ms() - broker.clock.monotonic_ms()
    found: dict[str, list[dict[str, object]]] = {}
    count = 0
    for group in broker.producers:
        count += len(group.members)
        if count > ROWS_MAX:
            raise _too_many("producers", "ask for one group (producerConnection -g GROUP -t TOPIC)")
        for member in group.members.values():
            peer = broker.connections.get(ConnectionId(member.connection))
            row: dict[str, object] = {
                "clientId": member.client_id,
                "remoteIP": f"/{peer.peer}" if peer is not None else "",
                "language": member.client.language,
                "version": member.client.version,
                "lastUpdateTimestamp": wall_ms + member.seen_ms,
            }
            found.setdefault(group.name, []).append(row)
    connection.answer(command, body=encode_body({"data": found}))


def topic_groups(connection: RocketmqConnection, command: Command) -> None:
    """QUERY_TOPIC_CONSUME_BY_WHO: groups with members that read it, or with offsets in it."""
    broker = connection.broker
    name = parse(TopicHeader, command).topic
    rmq_topic = broker.topics.find(name)
    found = broker.consumers.groups_wanting(name)
    if rmq_topic is not None:
        found += broker.service(OffsetRegistry).groups_of(rmq_topic.topic)
    connection.answer(command, body=encode_body({"groupList": sorted(set(found))}))


def group_topics(connection: RocketmqConnection, command: Command) -> None:
    """QUERY_TOPICS_BY_CONSUMER: the topics that a group has offsets in."""
    broker = connection.broker
    group = parse(GroupConfigHeader, command).group
    names = [wire_name(each.name) for each in broker.service(OffsetRegistry).topics_of(group)]
    address = broker.address_for(connection.peer.local_host)
    connection.answer(command, body=encode_body(TopicList(topic_list=names, broker_addr=address)))


def group_subscription(connection: RocketmqConnection, command: Command) -> None:
    """QUERY_SUBSCRIPTION_BY_CONSUMER: what its living members want of a topic; may be nothing."""
    header = parse(GroupTopicHeader, command)
    body = {
        "group": header.group,
        "topic": header.topic,
        "subscriptionData": _wanted(connection.broker, header.group, header.topic),
    }
    connection.answer(command, body=encode_body(body))


def system_topics(connection: RocketmqConnection, command: Command) -> None:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER: those that are no user's."""
    broker = connection.broker
    own = [broker.cluster, broker.broker_name, reply_topic(broker.cluster)]
    names = [*own, *sorted(SYSTEM_TOPICS)]
    connection.answer(command, body=encode_body(TopicList(topic_list=names)))


def _wanted(broker: RocketmqBroker, group: str, topic: str) -> SubscriptionData | None:
    wanted = broker.consumers.wanted(group, topic)
    return None if wanted is None else subscription_data(topic, wanted)


def _too_many(what: str, instead: str) -> ErrorResponse:
    return system_error(f"more than {ROWS_MAX} {what}: too many for one answer; {instead}")


# ---- queues and files ---------------------------------------------------------------------------


def consume_queue(connection: RocketmqConnection, command: Command) -> None:
    """QUERY_CONSUME_QUEUE: what the index of a queue says about messages from an offset on."""
    header = parse(ConsumeQueueHeader, command)
    broker = connection.broker
    rmq_topic = broker.topics.find(header.topic)
    queues = rmq_topic.topic.queues if rmq_topic is not None else ()
    if not 0 <= header.queue_id < len(queues):
        raise system_error(f"{header.queue_id}@{header.topic} is not exist!")
    queue = queues[header.queue_id]
    group = header.consumer_group or ""
    wanted = _wanted(broker, group, header.topic)
    end = queue.visible_end(False)
    body: dict[str, object] = {
        "maxQueueIndex": end,
        "minQueueIndex": queue.index.min_offset,
        "subscriptionData": wanted,
        "filterData": None,
        "queueData": [],
    }
    if group and wanted is None:
        body["filterData"] = f"{group}@{header.topic} is not online!"
    first = max(header.index, queue.index.min_offset)
    stop = min(first + min(max(0, header.count), ENTRIES_MAX), end)
    rows: list[dict[str, object]] = []
    for position, offset, _, _, length, messages, tag_hash, _ in queue.index.entries(
        first, max(0, stop - first)
    ):
        for number in range(max(0, first - offset), min(messages, stop - offset)):
            row: dict[str, object] = {
                "physicOffset": position + number,
                "physicSize": length,
                "tagsCode": tag_hash,
                "eval": False,
            }
            rows.append(row)
    body["queueData"] = rows
    remark = None
    if not rows:
        remark = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
    connection.answer(command, body=encode_body(body), remark=remark)


def nothing_to_clean(connection: RocketmqConnection, command: Command) -> None:
    """CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC, DELETE_EXPIRED_COMMITLOG.

    An index goes with its topic and a segment when nobody needs it any more (``log/retention.py``).
    """
    connection.answer(command, remark=CLEANED)
