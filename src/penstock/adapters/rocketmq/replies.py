"""Answers that many families give: errors of the peer in RocketMQ's codes and words.

A handler raises ``Answer`` to end a request with a code and a remark; the session sends it. The
peer reads the remark, so it says what is wrong and, where RocketMQ has words for it, in its words.

Not here: busy answers (``busy.py``).
"""

from typing import Final

from penstock.wire.rocketmq.codes import ResponseCode


class Answer(Exception):
    """The request ends here, with this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code: Final = int(code)
        self.remark: Final = remark


def unknown_code(code: int) -> Answer:
    """Nobody serves this request code."""
    return Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")


def system_error(remark: str) -> Answer:
    """What RocketMQ has no better code for."""
    return Answer(ResponseCode.SYSTEM_ERROR, remark)


def no_topic(topic: str) -> Answer:
    """A request names a topic that does not exist."""
    return Answer(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[{topic}] not exist, apply first please!",
    )


def no_route(topic: str) -> Answer:
    """The name server knows no broker with that topic."""
    return Answer(
        ResponseCode.TOPIC_NOT_EXIST,
        f"No topic route info in name server for the topic: {topic}",
    )


def forbidden(topic: str) -> Answer:
    """A send to a topic of the broker's own."""
    return no_permission(f"Sending message to topic[{topic}] is forbidden.")


def no_permission(remark: str) -> Answer:
    """A topic, group or broker does not allow it."""
    return Answer(ResponseCode.NO_PERMISSION, remark)
