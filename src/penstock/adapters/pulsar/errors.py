"""What a Pulsar client is told when something cannot be: a code and a text (sheet, 1.5).

Codes decide what clients do (fail at once, try again, give up), so they are Pulsar's to the letter;
texts are where clients or people look at them. Errors of a peer's bytes have no answer: the
connection is closed (``FrameError``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from penstock.model.refusal import RefusalKind
from penstock.wire.pulsar.frames import ServerError

if TYPE_CHECKING:
    from penstock.model.refusal import Refusal
    from penstock.wire.pulsar import protocol_pb2
    from penstock.wire.pulsar.names import PulsarName


class PulsarError(Exception):
    """A command fails; the connection and everything else on it go on."""

    def __init__(self, code: ServerError, text: str) -> None:
        super().__init__(text)
        self.code: Final = code
        self.text: Final = text

    @property
    def wire_code(self) -> protocol_pb2.ServerError:
        """The code as a field of a command takes it."""
        return cast("protocol_pb2.ServerError", int(self.code))


class CloseConnection(Exception):
    """The peer broke the protocol in a way that Pulsar answers by hanging up."""


def topic_missing(name: PulsarName) -> PulsarError:
    return PulsarError(ServerError.TopicNotFound, f"Topic {name} does not exist")


def partitions_only(name: PulsarName) -> PulsarError:
    """It is partitioned, and only its partitions can be used."""
    return PulsarError(
        ServerError.NotAllowedError, f"Found partitioned metadata for non-partitioned topic: {name}"
    )


def namespace_missing() -> PulsarError:
    return PulsarError(ServerError.TopicNotFound, "Namespace not found")


def namespace_unserved(name: PulsarName) -> PulsarError:
    """Whoever wants to use a topic has looked it up: then its namespace was there."""
    return PulsarError(
        ServerError.ServiceNotReady,
        f"Namespace {name.namespace} for topic {name} not served by this instance. "
        "Please redo the lookup.",
    )


def topic_fenced() -> PulsarError:
    return PulsarError(ServerError.ServiceNotReady, "Topic is temporarily unavailable")


QUOTA_EXCEEDED: Final = "Cannot create producer on topic with backlog quota exceeded"

_REFUSED: Final = {
    RefusalKind.TERMINATED: ServerError.TopicTerminatedError,
    RefusalKind.TOO_LARGE: ServerError.NotAllowedError,
    RefusalKind.NO_ROUTE: ServerError.TopicNotFound,
    RefusalKind.WRITE_FAILED: ServerError.PersistenceError,
    RefusalKind.SYNC_FAILED: ServerError.PersistenceError,
    RefusalKind.CLOSING: ServerError.ServiceNotReady,
}


def code_of(refusal: Refusal) -> ServerError:
    """What a producer is told whose publishes are refused so.

    Whatever passes (an alarm, a rate, a hold that took too long) is Pulsar's "held by quota": old
    producers keep what they have to send and come back.
    """
    return _REFUSED.get(refusal.kind, ServerError.ProducerBlockedQuotaExceededError)
