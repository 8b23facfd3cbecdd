"""Clients that say who they are: heartbeats (34), good-byes (35), member lists (38), checks (46).

A heartbeat registers every group a client produces or consumes with, what its consumers want, and
makes ``%RETRY%group``. Bodies are read leniently: names or ordinals, missing parts rebuilt. Only V1
is spoken: without ``IS_SUPPORT_HEART_BEAT_V2`` in the answer clients stay with it; a V2 body
without subscriptions that comes all the same leaves them as they were.

A client leaves by 35, by the end of its connection (at once), or by 120 s of silence, looked at
every 10 s (sheet 2.4).

Invariant: a refused registration changes nothing, and the client learns why.
Not here: the members (``engine/group``), what they are told (``notices.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.filters import Filters, language_of
from penstock.adapters.rocketmq.group_book import GroupBook
from penstock.adapters.rocketmq.naming import retry_topic
from penstock.adapters.rocketmq.notices import Notices
from penstock.adapters.rocketmq.replies import Answer, system_error
from penstock.adapters.rocketmq.requests import Handler
from penstock.engine.group.membership import Client, Traits, Wanted
from penstock.model.errors import SelectorInvalid
from penstock.wire.rocketmq.bodies import (
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    MessageModel,
    SubscriptionGroupConfig,
    TopicConfig,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command, Language
from penstock.wire.rocketmq.headers import GroupHeader, UnregisterHeader, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session

RETRY_QUEUES_MAX: Final = 64
"""Queues of one retry topic, whatever its group's settings ask for."""

_LANGUAGES: Final = {int(each): each.name for each in Language}


class Clients:
    """Registers clients, and looks for the silent ones."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._notices = house.part(Notices)
        self._groups = house.part(GroupBook)
        self._watched: set[int] = set()
        """Connections whose end we are told of; those that live, so bounded by the listener."""
        house.timers.add(self)

    # Coming and going.

    def heartbeat(self, session: Session, command: Command) -> None:
        """Register everything the client says it is."""
        data = decode_body(command.body, HeartbeatData)
        self._watch(session)
        client = Client(
            data.client_id,
            int(session.connection_id),
            _LANGUAGES.get(command.language, "OTHER"),
            command.version,
        )
        now_ms = self._house.clock.monotonic_ms()
        refusal = None
        for producer in data.producer_data_set:
            heard = self._house.producers.heartbeat(producer.group_name, client, now_ms)
            refusal = self._notices.tell(heard) or refusal
        for consumer in data.consumer_data_set:
            is_silent = data.without_sub and data.heartbeat_fingerprint != 0
            refusal = self._consumer(consumer, client, is_silent=is_silent) or refusal
        self._house.timers.stir()
        if refusal is not None:
            raise system_error(refusal)
        session.answer(command)

    def unregister(self, session: Session, command: Command) -> None:
        """A client says good-bye as a producer, as a consumer, or as both."""
        header = parse(UnregisterHeader, command)
        now_ms = self._house.clock.monotonic_ms()
        connection = int(session.connection_id)
        if header.producer_group:
            self._notices.tell(
                self._house.producers.leave(header.producer_group, connection, now_ms)
            )
        if header.consumer_group:
            self._notices.tell(
                self._house.consumers.leave(header.consumer_group, connection, now_ms)
            )
        session.answer(command)

    def disconnected(self, connection: int) -> None:
        """A connection is closed: its client is gone from all groups."""
        self._watched.discard(connection)
        now_ms = self._house.clock.monotonic_ms()
        self._house.producers.disconnected(connection, now_ms)
        self._notices.tell(self._house.consumers.disconnected(connection, now_ms))

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When the silent are looked for."""
        times = [self._house.consumers.next_deadline_ms, self._house.producers.next_deadline_ms]
        return min([at_ms for at_ms in times if at_ms is not None], default=None)

    def due(self, now_ms: int) -> None:
        """Look for the silent."""
        self._notices.tell(self._house.producers.due(now_ms))
        self._notices.tell(self._house.consumers.due(now_ms))
        self._house.locks.sweep(now_ms)

    # Parts.

    def _consumer(self, data: ConsumerData, client: Client, *, is_silent: bool) -> str | None:
        config = self._groups.find(data.group_name)
        if config is not None and config.retry_queue_nums > 0:
            self._make_retry_topic(config)
        wanted = [
            Wanted(
                each.topic,
                each.sub_string or "*",
                language_of(each.expression_type),
                each.sub_version,
            )
            for each in data.subscription_data_set
        ]
        traits = Traits(
            data.message_model is MessageModel.BROADCASTING,
            str(data.consume_type),
            str(data.consume_from_where),
        )
        heard = self._house.consumers.heartbeat(
            data.group_name,
            client,
            self._house.clock.monotonic_ms(),
            wanted=None if is_silent else wanted,
            traits=traits,
        )
        return self._notices.tell(heard)

    def _make_retry_topic(self, config: SubscriptionGroupConfig) -> None:
        name = retry_topic(config.group_name)
        queues = min(config.retry_queue_nums, RETRY_QUEUES_MAX)
        place = self._house.topics.find(name)
        if place is None or place.queues < queues:
            self._house.topics.put(
                TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
            )

    def _watch(self, session: Session) -> None:
        connection = int(session.connection_id)
        if connection not in self._watched:
            self._watched.add(connection)
            session.on_close(lambda: self.disconnected(connection))


def _heartbeat(session: Session, command: Command) -> None:
    session.house.part(Clients).heartbeat(session, command)


def _unregister(session: Session, command: Command) -> None:
    session.house.part(Clients).unregister(session, command)


def _list_members(session: Session, command: Command) -> None:
    """GET_CONSUMER_LIST_BY_GROUP: the ids by which clients divide queues."""
    group = parse(GroupHeader, command).consumer_group
    ids = session.house.consumers.client_ids(group)
    if ids is None:
        raise system_error(f"no consumer for this group, {group}")
    session.answer(command, body=encode_body(ConsumerList(consumer_id_list=ids)))


def _check_config(session: Session, command: Command) -> None:
    """CHECK_CLIENT_CONFIG: would this subscription work? Asked for anything but tags."""
    data = decode_body(command.body, CheckClientBody).subscription_data
    filters = session.house.part(Filters)
    language = language_of(data.expression_type)
    refusal = filters.refusal(language)
    if refusal is not None:
        raise system_error(refusal)
    try:
        filters.build(data.sub_string, language)
    except SelectorInvalid as problem:
        raise Answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(problem)) from None
    session.answer(command)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _list_members,
    RequestCode.CHECK_CLIENT_CONFIG: _check_config,
}
