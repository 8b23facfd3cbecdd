"""Publishes that a session waits for: from ``channel.publish`` to stored or refused.

A send is answered when it is durable. The engine gives back the very object it was given, so the
publication carries what its answer needs; the table of tokens is only there for refusals.

Invariants: each storing ends in exactly one of ``stored`` and ``refused``, unless the peer goes
first; what waits is bounded by the connection's pending limit (F9), which stops the socket.
"""

from collections.abc import Callable

from penstock.engine.connection import Channel
from penstock.engine.ports import Confirmation, Publication
from penstock.model.refusal import Refusal
from penstock.wire.rocketmq.hot_frames import SendFrame


class Sending(Publication, gc=False):
    """A plain send: answered from a template."""

    send: SendFrame | None = None
    """None: a oneway send, which nobody waits for."""
    queue_number: int = 0
    unique_key: bytes = b""


class Storing(Publication, gc=False):
    """Any other message that a request stores: batches, send-backs, half messages."""

    stored: Callable[["Storing"], None] = lambda _storing: None
    """It is durable; position, offset and store_ms are filled in."""
    refused: Callable[[Refusal], None] = lambda _refusal: None
    """It is not stored."""


AnswerSends = Callable[[list[Sending]], None]
RefuseSend = Callable[[SendFrame, Refusal], None]


class Publisher:
    """The publishing side of one session."""

    __slots__ = ("_answer", "_channel", "_refuse", "_token", "_waiting")

    def __init__(self, channel: Channel, answer: AnswerSends, refuse: RefuseSend) -> None:
        self._channel = channel
        self._answer = answer
        self._refuse = refuse
        self._token = 0
        self._waiting: dict[int, Publication] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, publications: list[Publication]) -> None:
        """Give publishes to the engine; tokens are given here."""
        token = self._token
        waiting = self._waiting
        for publication in publications:
            token += 1
            publication.token = token
            waiting[token] = publication
        self._token = token
        self._channel.publish(publications)  # the engine owns the list from now on

    def confirmed(self, confirmations: list[Confirmation]) -> None:
        """These are durable."""
        waiting = self._waiting
        sends: list[Sending] = []
        for each in confirmations:
            waiting.pop(each.token, None)
            if type(each) is Sending:
                if each.send is not None:
                    sends.append(each)
            elif isinstance(each, Storing):
                each.stored(each)
        if sends:
            self._answer(sends)

    def refused(self, refusals: list[tuple[int, Refusal]]) -> None:
        """These are not stored."""
        for token, refusal in refusals:
            each = self._waiting.pop(token, None)
            if isinstance(each, Storing):
                each.refused(refusal)
            elif isinstance(each, Sending) and each.send is not None:
                self._refuse(each.send, refusal)

    def clear(self) -> None:
        """The peer is gone: nobody waits any more."""
        self._waiting.clear()
