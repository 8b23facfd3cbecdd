"""Requests about topics to the broker: make, change, delete, list (sheet 1.7).

Not here: the same questions to the name server (``name_server/``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import TopicHeader, parse

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.requests import Handler
    from penstock.adapters.rocketmq.session import Session


def delete_topic(session: Session, command: Command) -> None:
    """DELETE_TOPIC_IN_BROKER; answered once it is durable."""
    header = parse(TopicHeader, command)
    session.house.topics.delete(header.topic)
    session.house.engine.after_durable(lambda: session.answer(command))


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
}
