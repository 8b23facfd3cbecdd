"""What one Pulsar connection is to the rooms that serve its commands, and they to it.

Commands come in groups (look-ups, producers, consumers, schemas), each with its own state for one
connection: ``CommandGroup``. A group says which commands it serves; the connection calls it, and
gives it what a group may use of a connection: ``ClientConnection``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from penstock.adapters.contract import Peer
from penstock.adapters.pulsar.errors import PulsarError
from penstock.engine.connection import Channel, Connection
from penstock.engine.ports import Confirmation
from penstock.flow.budgets import UnsentLimit
from penstock.model.ids import ConnectionId
from penstock.model.refusal import Refusal
from penstock.wire.pulsar.protocol_pb2 import BaseCommand, ConsumerWait

Handler = Callable[[BaseCommand, bytes], Iterator[int] | None]
"""Serves one command and what follows it in its frame. It answers now or later, or raises
``PulsarError`` (ERROR with the command's request id) or ``CloseConnection``. What takes long it
gives back: an iterator that does a piece of it with each step, says what that cost in commands,
and raises nothing."""

RunHandler = Callable[[Any], None]
"""Serves many commands of one type in a row: a ``frames.SendRun`` or ``AckRun``, by its type. It
answers later or raises ``CloseConnection``."""


class PublishOutlet(Protocol):
    """Who published on one channel of the engine."""

    def confirmed(self, confirmations: list[Confirmation]) -> None: ...

    def refused(self, refusals: list[tuple[int, Refusal]]) -> None: ...


class ClientConnection(Protocol):
    """One client."""

    @property
    def connection_id(self) -> ConnectionId: ...

    @property
    def peer(self) -> Peer: ...

    @property
    def name(self) -> str:
        """How operators meet it."""
        ...

    @property
    def client_version(self) -> str: ...

    @property
    def protocol_version(self) -> int:
        """What both sides speak."""
        ...

    @property
    def is_over(self) -> bool:
        """Nothing is heard or said any more."""
        ...

    @property
    def engine_connection(self) -> Connection: ...

    @property
    def channels(self) -> MutableMapping[Channel, PublishOutlet]:
        """Channels of the engine, and who is told what became of their publishes."""
        ...

    @property
    def unsent(self) -> UnsentLimit:
        """What the socket has not taken of the deliveries to all its consumers (F14)."""
        ...

    def send(self, command: BaseCommand) -> None: ...

    def write(self, data: bytes) -> None:
        """Frames that are made already."""
        ...

    def succeed(self, request_id: int) -> None: ...

    def fail(self, request_id: int, error: PulsarError) -> None: ...

    def hang_up(self, reason: str) -> None:
        """Close it, after what is said already."""
        ...

    def probe(self, answered: Callable[[bool], None]) -> None:
        """Ask whether the client is still there; told once, at the latest after some seconds.

        One that is not has been cut off by then.
        """
        ...


class CommandGroup(Protocol):
    """The commands of one concept, for one connection."""

    def handlers(self) -> Mapping[int, Handler]:
        """By the command's type."""
        ...

    def run_handlers(self) -> Mapping[type, RunHandler]:
        """By the run's type; for commands that come in runs, beside their handlers."""
        ...

    def flush(self) -> None:
        """Everything that came at once has been handed over, or another command comes."""
        ...

    def socket_drained(self) -> None:
        """The socket took all that was unsent, and deliveries were stopped for it (F14)."""
        ...

    def client_waits(self, waits: Sequence[ConsumerWait]) -> None:
        """Penstock's client says why consumers of it take no more (``ConsumerWait``)."""
        ...

    def goodbye(self, cause: str) -> None:
        """The broker stops: tell the client of everything that ends."""
        ...

    def closed(self) -> None:
        """The connection is gone; give everything back to the engine."""
        ...


class SimpleCommands:
    """A ``CommandGroup`` that answers at once: nothing gathers and nothing is delivered.

    Who has something that ends with the connection says so in ``closed``.
    """

    def run_handlers(self) -> Mapping[type, RunHandler]:
        return {}

    def flush(self) -> None: ...

    def socket_drained(self) -> None: ...

    def client_waits(self, waits: Sequence[ConsumerWait]) -> None: ...

    def goodbye(self, cause: str) -> None: ...

    def closed(self) -> None: ...
