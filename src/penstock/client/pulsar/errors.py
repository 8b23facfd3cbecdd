"""Errors of the Pulsar client; the general ones are those of ``client/failures.py``.

ClientError
 +-- StateError         used after close, across a fork, or on the wrong thread
 +-- Unreachable        no connection to a broker, or it broke while an answer was awaited
 |    +-- NotPulsar     something else listens at that address
 +-- TimedOut           no answer in time
 |    +-- NothingReceived   no message in time; the text says what the consumer waits for
 +-- WouldBlock         a bound of this client is reached
 +-- InvalidUse         a name, an option, a URL or a message that cannot be right; nothing was sent
 +-- Refused            a broker answered with an error; ``code`` is Pulsar's
 +-- SchemaMismatch     a value is not what its schema says (``schema.py``)

The text says what happened, to which topic, and what to do.
"""

from typing import Final

from penstock.client.failures import ClientError, StateError, TimedOut, Unreachable, WouldBlock
from penstock.wire.pulsar.frames import ServerError

__all__ = [
    "ClientError",
    "InvalidUse",
    "NotPulsar",
    "NothingReceived",
    "Refused",
    "StateError",
    "TimedOut",
    "Unreachable",
    "WouldBlock",
    "is_worth_another_try",
]

_PERMANENT: Final = frozenset(
    (
        ServerError.AuthenticationError,
        ServerError.AuthorizationError,
        ServerError.ConsumerBusy,
        ServerError.ProducerBlockedQuotaExceededError,
        ServerError.ProducerBlockedQuotaExceededException,
        ServerError.ChecksumError,
        ServerError.TopicNotFound,
        ServerError.SubscriptionNotFound,
        ServerError.TooManyRequests,
        ServerError.TopicTerminatedError,
        ServerError.ProducerBusy,
        ServerError.InvalidTopicName,
        ServerError.IncompatibleSchema,
        ServerError.ConsumerAssignError,
        ServerError.NotAllowedError,
        ServerError.ProducerFenced,
    )
)
"""What an application hears at once when it opens a producer or a consumer for the first time."""

_ADVICE: Final = {
    ServerError.AuthenticationError: "check the token",
    ServerError.AuthorizationError: "ask for the right, or use another role",
    ServerError.ConsumerBusy: (
        "close the other consumer, or subscribe with the same type as it (shared, failover)"
    ),
    ServerError.MetadataError: "check names, or try again later: it found nothing, or cannot read",
    ServerError.ServiceNotReady: "try again later",
    ServerError.ProducerBlockedQuotaExceededError: "the backlog must be consumed first",
    ServerError.ProducerBlockedQuotaExceededException: "the backlog must be consumed first",
    ServerError.TopicNotFound: "create the topic (and its namespace), or check its name",
    ServerError.SubscriptionNotFound: "create the subscription, or check its name",
    ServerError.TooManyRequests: "slow down",
    ServerError.TopicTerminatedError: "nothing more can be published to it",
    ServerError.ProducerBusy: "use another name, or close the one that has it",
    ServerError.IncompatibleSchema: "use a schema compatible with the topic's",
    ServerError.ConsumerAssignError: "choose ranges that no other consumer has",
    ServerError.InvalidTopicName: "use 'tenant/namespace/orders', without blanks",
    ServerError.NotAllowedError: "check what the topic and its policies allow",
    ServerError.ProducerFenced: (
        "another producer has the topic or has taken it over; close that one, or use another"
        " access_mode"
    ),
}

_NEVER: Final = {
    "metadata has a max size": "shorten its properties",
    "the broker do not have": "check listener_name",
}
"""Words that tell what cannot pass where the code does not, and what to do."""


class NotPulsar(Unreachable):
    """Something listens there that does not speak Pulsar's protocol."""


class NothingReceived(TimedOut):
    """No message came in time."""

    def __init__(self, consumer: str, timeout_ms: int, why: str) -> None:
        ClientError.__init__(self, f"{consumer} received nothing within {timeout_ms} ms: {why}")
        self.address = consumer
        """Who received nothing: it may have more than one broker."""
        self.timeout_ms = timeout_ms


class InvalidUse(ClientError, ValueError):
    """What the application asks for cannot be right; nothing was sent."""


class Refused(ClientError):
    """A broker answered with an error."""

    def __init__(self, code: int, text: str, what: str) -> None:
        try:
            self.code: int = ServerError(code)
            name = f"{ServerError(code).name} ({code})"
        except ValueError:
            self.code, name = code, f"code {code}"
        advice = next((each for words, each in _NEVER.items() if words in text), None)
        if advice is None and isinstance(self.code, ServerError):
            advice = _ADVICE.get(self.code)
        hint = f"; {advice}" if advice else ""
        said = text.removesuffix(".") or "no reason given"
        super().__init__(f"{what} was refused with {name}: {said}{hint}")
        self.text = text


def is_worth_another_try(error: Exception) -> bool:
    """Whether the same request may succeed later, when it is made for the first time.

    Of a producer or consumer that was there before, everything is tried again (B18).
    """
    if isinstance(error, Refused):
        return error.code not in _PERMANENT and not any(words in error.text for words in _NEVER)
    is_away = isinstance(error, (Unreachable, TimedOut, WouldBlock, OSError))
    return is_away and not isinstance(error, NotPulsar)
