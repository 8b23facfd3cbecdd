"""Errors of the RocketMQ client; the general ones are those of ``failures.py``.

ClientError
 +-- StateError        started twice, not running, used across a fork or on the wrong thread
 |    +-- GroupTaken   a second member of a group in one instance
 +-- NoRoute           no name server knows the topic
 +-- Unreachable       no connection to an address, or it broke while an answer was awaited
 +-- TimedOut          no answer in time; whether the request was carried out is not known
 +-- WouldBlock        a bound of this client is reached (requests or bytes on their way)
 +-- BrokerRefused     a broker or name server answered with an error code
 +-- InvalidMessage    a message cannot be sent as it is; nothing was sent
 +-- BodyUnreadable    a received body cannot be decompressed here
 +-- SendFailed        a send failed after all its tries; ``attempts`` tells each
      +-- BrokerBusy   ... because the broker is under flow control: slow down, then try again

The text says what happened, to which topic or address, and what to do.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.client.failures import ClientError, StateError, TimedOut, Unreachable, WouldBlock
from penstock.wire.rocketmq.codes import ResponseCode

__all__ = [
    "Attempt",
    "BodyUnreadable",
    "BrokerBusy",
    "BrokerRefused",
    "ClientError",
    "GroupTaken",
    "InvalidMessage",
    "NoRoute",
    "SendFailed",
    "StateError",
    "TimedOut",
    "Unreachable",
    "WouldBlock",
    "name_of_code",
]


class GroupTaken(StateError):
    """The instance has a member of this group already."""

    def __init__(self, group: str, kind: str, client_id: str) -> None:
        super().__init__(
            f"{kind} group {group!r} has a member in client {client_id} already; use another group"
            f" or another instance_name"
        )
        self.group = group


class NoRoute(ClientError):
    """No name server knows where the topic is."""

    def __init__(self, topic: str, detail: str = "") -> None:
        super().__init__(
            f"topic {topic!r} has no route{': ' + detail if detail else ''}; create it, or send to"
            f" it where topics are made automatically"
        )
        self.topic = topic


class BrokerRefused(ClientError):
    """A broker or name server answered with an error code."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        super().__init__(f"{address} refused with {name_of_code(code)}: {remark or 'no reason'}")
        self.code = code
        self.remark = remark or ""
        self.address = address


class InvalidMessage(ClientError):
    """A message cannot be sent as it is."""


class BodyUnreadable(ClientError):
    """A received body cannot be decompressed: damaged, too large, or the library is missing."""


class Attempt(NamedTuple):
    """One try of a send."""

    broker: str
    """Name of the broker; empty when none was found."""
    queue_id: int
    cost_ms: int
    error: Exception | None
    """None when it was stored, but not as well as wanted (see ``detail``)."""
    detail: str = ""


class SendFailed(ClientError):
    """A send failed after all its tries."""

    def __init__(self, text: str, attempts: Sequence[Attempt] = ()) -> None:
        super().__init__(text)
        self.attempts = list(attempts)


class BrokerBusy(SendFailed):
    """The broker is under flow control and said so before it stored anything."""

    def __init__(self, broker: str, reason: str, attempts: Sequence[Attempt] = ()) -> None:
        super().__init__(f"broker {broker} is busy: {reason}; slow down and try again", attempts)
        self.broker = broker
        self.reason = reason


def name_of_code(code: int) -> str:
    """A response code with the name RocketMQ gives it."""
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
