"""Consumer and producer groups: who is in them, how their queues are divided, how they are set up.

    ClientRegistry          heartbeats (34), good-byes (35), members that fall silent
    GroupChangeNotifier     tells members what happened to their group (40)
    query_assignment        the broker divides the queues of a topic among the members (400)
    RequestModeRegistry     whether a group reads a topic by pull or by pop (401)
    lock_queues             queue locks for ordered consumption (41, 42)
    put_group, ...          the configuration of groups: put (200), delete (207), list (201), show

Switches of a group: ``consumeEnable`` off refuses every pull (16), ``consumeBroadcastEnable`` off
those of broadcasting members, ``notifyConsumerIdsChangedEnable`` off keeps members untold.

Invariant: a refused registration changes nothing, and the client learns why.
Not here: the members (``engine/group``), configurations and offsets (``group_registry.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.rocketmq.cluster_routes import ClusterRoutes
from penstock.adapters.rocketmq.filters import FilterBitMaps, FilterCache, language_of
from penstock.adapters.rocketmq.group_registry import (
    GROUPS_MAX,
    GroupRegistry,
    OffsetRegistry,
    problem_with_group,
)
from penstock.adapters.rocketmq.name_server.routes import RouteRegistry
from penstock.adapters.rocketmq.naming import RETRY_PREFIX, retry_topic
from penstock.adapters.rocketmq.requests import ErrorResponse, no_permission, system_error
from penstock.engine.group.assignment import Assignment, ConsumeMode, ModeSetting, assign
from penstock.engine.group.membership import (
    Client,
    Group,
    GroupEvent,
    GroupEventKind,
    GroupTraits,
    TopicSubscription,
)
from penstock.model.assignment import QueueRef
from penstock.model.errors import SelectorInvalid
from penstock.model.ids import ConnectionId
from penstock.model.names import control_problem
from penstock.wire.rocketmq.bodies import (
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatchAnswer,
    LockBatchBody,
    MessageModel,
    MessageQueue,
    Perm,
    QueryAssignmentAnswer,
    QueryAssignmentBody,
    QueueAssignment,
    RequestMode,
    SetRequestModeBody,
    SubscriptionGroupConfig,
    TopicConfig,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command, Language
from penstock.wire.rocketmq.headers import (
    GroupConfigHeader,
    GroupHeader,
    GroupNameHeader,
    UnregisterHeader,
    fields,
    parse,
)

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import LockedQueue, RemotingPeer, RocketmqBroker
    from penstock.adapters.rocketmq.connection import RocketmqConnection
    from penstock.wire.rocketmq.bodies import TopicRouteData

_log = logging.getLogger(__name__)

RETRY_QUEUES_MAX: Final = 64
"""Queues of one retry topic, whatever its group's settings ask for."""

ASSIGNED_QUEUES_MAX: Final = 65_536
"""Queues of one topic on all brokers: whoever registers more at a name server is not believed."""

MODE_KIND: Final = "rocketmq.mode"
MODES: Final = {RequestMode.PULL: ConsumeMode.PULL, RequestMode.POP: ConsumeMode.POP}

_WORDS: Final = {mode: word for word, mode in MODES.items()}
INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"

_LANGUAGES: Final = {int(each): each.name for each in Language}


def heartbeat(connection: RocketmqConnection, command: Command) -> None:
    connection.broker.service(ClientRegistry).heartbeat(connection, command)


def unregister_client(connection: RocketmqConnection, command: Command) -> None:
    connection.broker.service(ClientRegistry).unregister(connection, command)


def list_members(connection: RocketmqConnection, command: Command) -> None:
    """GET_CONSUMER_LIST_BY_GROUP: the ids by which clients divide queues."""
    group = parse(GroupHeader, command).consumer_group
    ids = connection.broker.consumers.client_ids(group)
    if ids is None:
        raise system_error(f"no consumer for this group, {group}")
    connection.answer(command, body=encode_body(ConsumerList(consumer_id_list=ids)))


def check_client_config(connection: RocketmqConnection, command: Command) -> None:
    """CHECK_CLIENT_CONFIG: would this subscription work? Asked for anything but tags."""
    data = decode_body(command.body, CheckClientBody).subscription_data
    filters = connection.broker.service(FilterCache)
    language = language_of(data.expression_type)
    refusal = filters.refusal(language)
    if refusal is not None:
        raise system_error(refusal)
    try:
        filters.build(data.sub_string, language)
    except SelectorInvalid as problem:
        raise ErrorResponse(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(problem)) from None
    connection.answer(command)


class ClientRegistry:
    """Clients that say who they are.

    A heartbeat registers every group a client produces or consumes with, what its consumers want,
    and makes ``%RETRY%group``. Bodies are read leniently: names or ordinals, missing parts rebuilt.
    Only V1 is spoken: without ``IS_SUPPORT_HEART_BEAT_V2`` in the response clients stay with it; a
    V2 body without subscriptions that comes all the same leaves them as they were.

    A client leaves by 35, by the end of its connection (at once), or by 120 s of silence, looked at
    every 10 s (sheet 2.4).
    """

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._notifier = broker.service(GroupChangeNotifier)
        self._groups = broker.service(GroupRegistry)
        self._watched: set[int] = set()
        """Connections whose end we are told of; those that live, so bounded by the listener."""
        # Producers by client id, the newest of an id, and the other way: one id per connection.
        self._producers: dict[str, int] = {}
        self._producer_ids: dict[int, str] = {}
        self.on_heard: Callable[[Group], None] = lambda _group: None
        """Told of a group whose members said what they want (``new_groups.py``)."""
        broker.timers.add(self)

    # Coming and going.

    def heartbeat(self, connection: RocketmqConnection, command: Command) -> None:
        """Register everything the client says it is."""
        data = decode_body(command.body, HeartbeatData)
        self._check_names(data)
        self._watch(connection)
        client = Client(
            data.client_id,
            int(connection.connection_id),
            _LANGUAGES.get(command.language, "OTHER"),
            command.version,
        )
        now_ms = self._broker.clock.monotonic_ms()
        refusal, maker = None, connection.peer.maker
        connection.engine_connection.name_application("rocketmq", _application(data))
        for producer in data.producer_data_set:
            heard = self._broker.producers.heartbeat(producer.group_name, client, now_ms)
            refusal = self._notifier.notify(heard) or refusal
        self._note_producer(client.connection, data.client_id)
        for consumer in data.consumer_data_set:
            is_silent = data.without_sub and data.heartbeat_fingerprint != 0
            refusal = self._consumer(consumer, client, maker, is_silent=is_silent) or refusal
        self._broker.timers.reschedule()
        if refusal is not None:
            raise system_error(refusal)
        connection.answer(command)

    def unregister(self, connection: RocketmqConnection, command: Command) -> None:
        """A client says good-bye as a producer, as a consumer, or as both."""
        header = parse(UnregisterHeader, command)
        now_ms = self._broker.clock.monotonic_ms()
        connection_id = int(connection.connection_id)
        if header.producer_group:
            self._notifier.notify(
                self._broker.producers.leave(header.producer_group, connection_id, now_ms)
            )
            self._note_producer(connection_id, "")
        if header.consumer_group:
            self._notifier.notify(
                self._broker.consumers.leave(header.consumer_group, connection_id, now_ms)
            )
        connection.answer(command)

    def disconnected(self, connection_id: int) -> None:
        """A connection is closed: its client is gone from all groups."""
        self._watched.discard(connection_id)
        now_ms = self._broker.clock.monotonic_ms()
        self._broker.producers.disconnected(connection_id, now_ms)
        self._note_producer(connection_id, "")
        self._notifier.notify(self._broker.consumers.disconnected(connection_id, now_ms))

    def producer(self, client_id: str) -> RemotingPeer | None:
        """The connection of the client of that id that produces."""
        connection_id = self._producers.get(client_id)
        if connection_id is None:
            return None
        return self._broker.connections.get(ConnectionId(connection_id))

    def _note_producer(self, connection_id: int, client_id: str) -> None:
        """It is a producer of that id, or none (any more)."""
        if not self._broker.producers.groups_of(connection_id):
            client_id = ""
        known = self._producer_ids.get(connection_id, "")
        if known != client_id:
            self._producer_ids.pop(connection_id, None)
            if self._producers.get(known) == connection_id:
                del self._producers[known]
        if client_id:
            self._producer_ids[connection_id] = client_id
            self._producers[client_id] = connection_id

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When the silent are looked for."""
        times = [self._broker.consumers.next_deadline_ms, self._broker.producers.next_deadline_ms]
        return min([at_ms for at_ms in times if at_ms is not None], default=None)

    def due(self, now_ms: int) -> None:
        self._notifier.notify(self._broker.producers.due(now_ms))
        self._notifier.notify(self._broker.consumers.due(now_ms))
        self._broker.locks.sweep(now_ms)

    # Parts.

    def _check_names(self, data: HeartbeatData) -> None:
        groups = [each.group_name for each in data.producer_data_set]
        groups += [each.group_name for each in data.consumer_data_set]
        _refuse_controls(
            self._broker,
            ("The specified client id", data.client_id),
            *[("The specified group", each) for each in groups],
        )

    def _consumer(
        self, data: ConsumerData, client: Client, maker: str, *, is_silent: bool
    ) -> str | None:
        try:
            config = self._groups.find(data.group_name, maker)
        except ErrorResponse as refused:
            return refused.remark
        if config is not None and config.retry_queue_nums > 0:
            self._make_retry_topic(config, maker)
        wanted = [
            TopicSubscription(
                each.topic,
                each.sub_string or "*",
                language_of(each.expression_type),
                each.sub_version,
            )
            for each in data.subscription_data_set
        ]
        traits = GroupTraits(
            data.message_model is MessageModel.BROADCASTING,
            str(data.consume_type),
            str(data.consume_from_where),
        )
        heard = self._broker.consumers.heartbeat(
            data.group_name,
            client,
            self._broker.clock.monotonic_ms(),
            wanted=None if is_silent else wanted,
            traits=traits,
        )
        joined = self._broker.consumers.group(data.group_name)
        if joined is not None:
            self.on_heard(joined)
        return self._notifier.notify(heard)

    def _make_retry_topic(self, config: SubscriptionGroupConfig, maker: str) -> None:
        name = retry_topic(config.group_name)
        queues = min(config.retry_queue_nums, RETRY_QUEUES_MAX)
        rmq_topic = self._broker.topics.find(name)
        if rmq_topic is None or rmq_topic.queues < queues:
            self._broker.topics.put(
                TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues),
                maker,
            )

    def _watch(self, connection: RocketmqConnection) -> None:
        connection_id = int(connection.connection_id)
        if connection_id not in self._watched:
            self._watched.add(connection_id)
            connection.on_close(lambda: self.disconnected(connection_id))


class GroupChangeNotifier:
    """What happened to a group, told to its members: NOTIFY_CONSUMER_IDS_CHANGED (40).

    Every member is told of every change, the newcomer included; clients divide the queues anew at
    once (ali-ons ignores the notice and finds out by its own timer). Broadcasting groups are never
    told, a broker or a group may be set not to tell. A client id that two connections use is a
    mistake of its owner that shows as messages consumed twice or never, so it is said in the log.
    At most one push per member for one heartbeat, leave or close.
    """

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._maps = broker.service(FilterBitMaps)
        self.counts = {kind.value: 0 for kind in GroupEventKind}
        """What happened to groups, by kind; ``changed`` counts members that were told."""
        broker.engine.counter_families.register(
            "rocketmq_group_events", "Members that came, went or were told", "kind", self.counts
        )

    def notify(self, notices: Sequence[GroupEvent]) -> str | None:
        """Pass on what happened; the text of a refusal, if there is one."""
        refusal: str | None = None
        for notice in notices:
            kind = notice.kind
            self.counts[kind.value] += 1 if kind is not GroupEventKind.CHANGED else 0
            match kind:
                case GroupEventKind.CHANGED:
                    self._changed(notice)
                case GroupEventKind.DUPLICATE:
                    _log.warning(notice.text, extra=_where(notice))
                case GroupEventKind.EXPIRED:
                    self._expired(notice)
                case GroupEventKind.REFUSED:
                    refusal = notice.text
                    _log.warning("a client was not registered: %s", notice.text)
                case GroupEventKind.JOINED | GroupEventKind.LEFT:
                    _log.info("a member %s", kind.value, extra=_where(notice))
                case GroupEventKind.WANTS:
                    self._maps.changed(notice.group, notice.topics)
                    _log.debug("a group wants something else", extra=_where(notice))
                case GroupEventKind.FORGOTTEN:
                    self._maps.forgotten(notice.group)
                    _log.debug("a group is forgotten", extra=_where(notice))
        return refusal

    def connections_of(self, group: str) -> list[RemotingPeer]:
        """The connections of a group's members that still live."""
        found = self._broker.consumers.group(group)
        if found is None:
            return []
        connections = self._broker.connections
        alive = [connections.get(ConnectionId(each)) for each in found.connections]
        return [connection for connection in alive if connection is not None]

    def _changed(self, notice: GroupEvent) -> None:
        if not self._broker.settings.is_notifying_members:
            return
        connections = self._broker.connections
        ext = fields(GroupHeader(consumer_group=notice.group))
        for connection_id in notice.audience:
            connection = connections.get(ConnectionId(connection_id))
            if connection is not None:
                code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                connection.push(Command(code, ext, flag=FLAG_ONEWAY))
                self.counts[notice.kind.value] += 1

    def _expired(self, notice: GroupEvent) -> None:
        _log.warning("a member was silent for too long", extra=_where(notice))
        connection = self._broker.connections.get(ConnectionId(notice.connection))
        if connection is not None:
            connection.wants_close = True
            connection.write()


def _application(data: HeartbeatData) -> str:
    """What a client is a part of, for people: what it sends as, else what it reads as."""
    sending = [each.group_name for each in data.producer_data_set]
    reading = [each.group_name for each in data.consumer_data_set]
    # A client that only reads has a producer of its own making, to give messages back.
    own = [each for each in sending if each != INNER_GROUP]
    return next(iter([*own, *reading]), "")


def _where(notice: GroupEvent) -> dict[str, object]:
    return {
        "group": notice.group,
        "client": notice.client_id,
        "connection": notice.connection,
        "topics": notice.topics,
    }


# ---- how queues are divided ---------------------------------------------------------------------


def query_assignment(connection: RocketmqConnection, command: Command) -> None:
    """QUERY_ASSIGNMENT: the broker divides the queues of a topic among the members of a group.

    The queues are those of every broker that has the topic, the members those who send heartbeats
    here (clients send them to every broker). "Keep what you have" is a response without a list; an
    empty list means "nothing for you". The first is given whenever this broker does not know
    enough: an unknown topic, group or strategy, or a name server that this broker joined
    (``cluster_routes.py``) and that does not answer.
    """
    broker = connection.broker
    body = decode_body(command.body, QueryAssignmentBody)
    if broker.settings.join:
        broker.service(ClusterRoutes).fetch(
            body.topic, lambda route: _divide(connection, command, body, route)
        )
    else:
        route = broker.service(RouteRegistry).route(body.topic, connection.peer.local_host)
        _divide(connection, command, body, route)


def queues_of(topic: str, route: TopicRouteData | None) -> list[QueueRef] | None:
    """The readable queues of a topic on all brokers; None when they are not known."""
    if route is None:
        return None
    readable = [data for data in route.queue_datas if data.perm & Perm.READ]
    if sum([data.read_queue_nums for data in readable]) > ASSIGNED_QUEUES_MAX:
        return None
    return [
        QueueRef(topic, data.broker_name, number)
        for data in readable
        for number in range(data.read_queue_nums)
    ]


def _divide(
    connection: RocketmqConnection,
    command: Command,
    body: QueryAssignmentBody,
    route: TopicRouteData | None,
) -> None:
    broker = connection.broker
    topic, group = body.topic, body.consumer_group
    allotment = assign(
        body.client_id,
        queues_of(topic, route),
        broker.consumers.client_ids(group) or None,
        strategy=body.strategy_name,
        setting=broker.modes.get(topic, group),
        is_broadcast=body.message_model is MessageModel.BROADCASTING,
        is_balanced=broker.settings.is_balancing,
    )
    if allotment.is_keep:
        _log.info(
            "no assignment",
            extra={"group": group, "topic": topic[:80], "client": body.client_id[:80],
                   "reason": allotment.reason},
        )  # fmt: skip
    connection.answer(command, body=encode_body(assignment_answer(allotment)))


def assignment_answer(allotment: Assignment) -> QueryAssignmentAnswer:
    """The answer as clients read it."""
    if allotment.queues is None:
        return QueryAssignmentAnswer(message_queue_assignments=None)
    word = _WORDS[allotment.mode]
    return QueryAssignmentAnswer(
        message_queue_assignments=[
            QueueAssignment(
                message_queue=MessageQueue(
                    topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue
                ),
                mode=word,
            )
            for queue in allotment.queues
        ]
    )


class _ModeRow(msgspec.Struct, frozen=True):
    topic: str
    group: str
    mode: ConsumeMode
    share: int


class RequestModeRegistry:
    """How groups read topics, by pull or by pop; kept in ``broker.modes`` and in the catalog.

    A group switches between both without losing its place, because pops and pull offsets move the
    same subscription. Members notice with their next QUERY_ASSIGNMENT. Retry topics are always
    pulled, so their mode cannot be set.
    """

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._engine = broker.engine
        self._modes = broker.modes
        for key, body in broker.engine.definitions(MODE_KIND).items():
            try:
                row = msgspec.json.decode(body, type=_ModeRow)
            except msgspec.DecodeError as problem:
                _log.error("a mode cannot be read", extra={"key": key, "problem": str(problem)})
                continue
            self._modes.set(row.topic, row.group, ModeSetting(row.mode, row.share))

    def set(self, topic: str, group: str, setting: ModeSetting) -> None:
        """Change the mode of a group on a topic; raises ``ErrorResponse``."""
        if topic.startswith(RETRY_PREFIX):
            raise no_permission("retry topic is not allowed to set mode")
        if not topic or not group:
            raise system_error("a mode needs a topic and a consumer group")
        _refuse_controls(
            self._broker, ("The specified topic", topic), ("The specified group", group)
        )
        if not self._modes.set(topic, group, setting):
            raise system_error(
                f"{self._modes.settings_max} modes are set already; reset one of them first"
            )
        row = _ModeRow(topic, group, setting.mode, setting.share)
        # No name has a separator of this kind.
        self._engine.define(MODE_KIND, f"{topic}@{group}", msgspec.json.encode(row))
        _log.info(
            "a group's mode was set",
            extra={"topic": topic, "group": group, "mode": setting.mode.value},
        )

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, and all groups' modes on it."""
        self._forget([group for name, group, _ in self._modes.items() if name == topic], topic)

    def forget_group(self, group: str) -> None:
        for topic in [topic for topic, name, _ in self._modes.items() if name == group]:
            self._forget([group], topic)

    def _forget(self, groups: list[str], topic: str) -> None:
        for group in groups:
            self._modes.remove(topic, group)
            self._engine.define(MODE_KIND, f"{topic}@{group}", None)


def set_request_mode(connection: RocketmqConnection, command: Command) -> None:
    """SET_MESSAGE_REQUEST_MODE; answered once it would survive a crash."""
    body = decode_body(command.body, SetRequestModeBody)
    setting = ModeSetting(MODES[body.mode], body.pop_share_queue_num)
    connection.broker.service(RequestModeRegistry).set(body.topic, body.consumer_group, setting)
    connection.broker.engine.after_durable(lambda: connection.answer(command))


def lock_queues(connection: RocketmqConnection, command: Command) -> None:
    """LOCK_BATCH_MQ (sheet 2.4): a queue is granted when it is free, the client's own, or stale.

    Stale: its holder has been silent for more than 60 s; clients renew every 20 s. The response
    names the queues that were granted, others are simply missing. Queues that this broker does not
    have are not granted: a client that waits for them would otherwise hold what nobody serves.
    """
    broker = connection.broker
    body = decode_body(command.body, LockBatchBody)
    asked = _ours(broker, body)
    granted = broker.locks.lock(
        body.consumer_group, list(asked), body.client_id, broker.clock.monotonic_ms()
    )
    answer = LockBatchAnswer(locked=[asked[key] for key in granted])
    connection.answer(command, body=encode_body(answer))


def unlock_queues(connection: RocketmqConnection, command: Command) -> None:
    broker = connection.broker
    body = decode_body(command.body, LockBatchBody)
    broker.locks.unlock(body.consumer_group, list(_ours(broker, body)), body.client_id)
    connection.answer(command)


def _ours(broker: RocketmqBroker, body: LockBatchBody) -> dict[LockedQueue, MessageQueue]:
    """The queues that are on this broker."""
    found: dict[LockedQueue, MessageQueue] = {}
    for each in body.mq_set:
        if each.broker_name in ("", broker.broker_name):
            found[each.topic, each.queue_id] = each
    return found


def _refuse_controls(broker: RocketmqBroker, *named: tuple[str, str]) -> None:
    """Raise ``ErrorResponse`` for the first of these (what, name) that has a control character."""
    for what, name in named:
        problem = control_problem(what, name)
        if problem is not None:
            raise ErrorResponse(broker.settings.invalid_parameter_code, problem)


# ---- configuration; changes are answered once they are durable ----------------------------------


def delete_group(broker: RocketmqBroker, group: str, *, is_forgetting: bool) -> bool:
    """Forget a group, and its offsets if ``is_forgetting``; False when nobody knew it.

    Members that are still there stay members, and their next heartbeat makes the group anew.
    """
    is_known = broker.service(GroupRegistry).delete(group)
    broker.locks.forget(group)
    broker.service(RequestModeRegistry).forget_group(group)
    if is_forgetting:
        offsets = broker.service(OffsetRegistry)
        for topic in offsets.topics_of(group):
            offsets.forget(topic, group)
    return is_known


def put_group(connection: RocketmqConnection, command: Command) -> None:
    config = decode_body(command.body, SubscriptionGroupConfig)
    problem = problem_with_group(config.group_name)
    if problem is not None:
        raise ErrorResponse(connection.broker.settings.invalid_parameter_code, problem)
    if not connection.broker.service(GroupRegistry).put(config):
        raise system_error(f"there are {GROUPS_MAX} groups; delete one first")
    connection.broker.engine.after_durable(lambda: connection.answer(command))


def remove_group(connection: RocketmqConnection, command: Command) -> None:
    header = parse(GroupNameHeader, command)
    is_forgetting = header.clean_offset or header.remove_offset
    delete_group(connection.broker, header.group_name, is_forgetting=is_forgetting)
    connection.broker.engine.after_durable(lambda: connection.answer(command))


def list_groups(connection: RocketmqConnection, command: Command) -> None:
    table = connection.broker.service(GroupRegistry).all()
    body = {
        "dataVersion": {"stateVersion": 0, "timestamp": 0, "counter": len(table)},
        "subscriptionGroupTable": table,
    }
    connection.answer(command, body=encode_body(body))


def show_group(connection: RocketmqConnection, command: Command) -> None:
    group = parse(GroupConfigHeader, command).group
    config = connection.broker.service(GroupRegistry).get(group)
    if config is None:
        raise ErrorResponse(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"No group in this broker. group: {group}",
        )
    connection.answer(command, body=encode_body(config))
