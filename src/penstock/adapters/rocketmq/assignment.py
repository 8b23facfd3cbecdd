"""QUERY_ASSIGNMENT: the broker divides the queues of a topic among the members of a group.

The queues are those of every broker that has the topic, the members those who send heartbeats here
(clients send them to every broker). "Keep what you have" is an answer without a list; an empty list
means "nothing for you". The first is given whenever this broker does not know enough: an unknown
topic, group or strategy, or a name server that this broker joined and that does not answer.

Not here: the strategies (``model/assignment.py``), the modes (``mode.py``), how a joined broker
knows the queues of others (``cluster_routes.py``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.cluster_routes import ClusterRoutes
from penstock.adapters.rocketmq.mode import MODES
from penstock.adapters.rocketmq.name_server.routes import RouteBook
from penstock.engine.group.assignment import Allotment, allot
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import (
    MessageModel,
    MessageQueue,
    Perm,
    QueryAssignmentAnswer,
    QueryAssignmentBody,
    QueueAssignment,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session
    from penstock.wire.rocketmq.bodies import TopicRouteData
    from penstock.wire.rocketmq.command import Command

_log = logging.getLogger(__name__)

QUEUES_MAX: Final = 65_536
"""Queues of one topic on all brokers: whoever registers more at a name server is not believed."""

_WORDS: Final = {mode: word for word, mode in MODES.items()}


def query_assignment(session: Session, command: Command) -> None:
    """QUERY_ASSIGNMENT; a joined broker may have to ask its name server first."""
    house = session.house
    body = decode_body(command.body, QueryAssignmentBody)
    if house.settings.join:
        house.part(ClusterRoutes).ask(
            body.topic, lambda route: _divide(session, command, body, route)
        )
    else:
        route = house.part(RouteBook).route(body.topic, session.peer.local_host)
        _divide(session, command, body, route)


def queues_of(topic: str, route: TopicRouteData | None) -> list[QueueRef] | None:
    """The readable queues of a topic on all brokers; None when they are not known."""
    if route is None:
        return None
    readable = [data for data in route.queue_datas if data.perm & Perm.READ]
    if sum([data.read_queue_nums for data in readable]) > QUEUES_MAX:
        return None
    return [
        QueueRef(topic, data.broker_name, number)
        for data in readable
        for number in range(data.read_queue_nums)
    ]


def _divide(
    session: Session, command: Command, body: QueryAssignmentBody, route: TopicRouteData | None
) -> None:
    house = session.house
    topic, group = body.topic, body.consumer_group
    allotment = allot(
        body.client_id,
        queues_of(topic, route),
        house.consumers.client_ids(group) or None,
        strategy=body.strategy_name,
        setting=house.modes.get(topic, group),
        is_broadcast=body.message_model is MessageModel.BROADCASTING,
        is_balanced=house.settings.is_balancing,
    )
    if allotment.is_keep:
        _log.info(
            "no assignment",
            extra={"group": group, "topic": topic[:80], "client": body.client_id[:80],
                   "reason": allotment.reason},
        )  # fmt: skip
    session.answer(command, body=encode_body(answer_of(allotment)))


def answer_of(allotment: Allotment) -> QueryAssignmentAnswer:
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


HANDLERS: Final[dict[int, Handler]] = {RequestCode.QUERY_ASSIGNMENT: query_assignment}
