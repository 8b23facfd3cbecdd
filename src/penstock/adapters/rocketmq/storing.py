"""Publishes that a session waits for: from ``channel.publish`` to stored or refused.

A send is answered when it is durable. The engine gives back the very object it was given, so the
publication carries what its answer needs; the table of tokens is only there for refusals.

Invariants: each storing ends in exactly one of ``stored`` and ``refused``, unless the peer goes
first; what waits is bounded by the connection's pending limit (F9), which stops the socket.

Sends to a topic whose publishers may be held for a Spark query (F18) go through a channel of their
own, so that other topics of the connection do not wait with it. Sends that are in flight at the
same time have no promised order in RocketMQ.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.engine.connection import Channel
from penstock.engine.ports import Confirmation, Publication
from penstock.engine.topic import DirectRoute
from penstock.model.refusal import Refusal
from penstock.wire.rocketmq.frames import SendFrame

if TYPE_CHECKING:
    from penstock.engine.topic import Topic


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


SIDES_MAX: Final = 64
"""Topics with a channel of their own; those beyond it wait with one another."""

AnswerSends = Callable[[list[Sending]], None]
RefuseSend = Callable[[SendFrame, Refusal], None]


class Publisher:
    """The publishing side of one session."""

    __slots__ = ("_answer", "_channel", "_refuse", "_sides", "_token", "_waiting")

    def __init__(self, channel: Channel, answer: AnswerSends, refuse: RefuseSend) -> None:
        self._channel = channel
        self._answer = answer
        self._refuse = refuse
        self._token = 0
        self._waiting: dict[int, Publication] = {}
        self._sides: dict[Topic, Channel] = {}

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
        # The engine owns the list from now on.
        self._channel_for(publications).publish(publications)

    def _channel_for(self, publications: list[Publication]) -> Channel:
        route = publications[0].route if publications else None
        topic = route.queue.topic if isinstance(route, DirectRoute) else None
        if topic is None or (topic.limits is None and not self._sides):
            return self._channel
        side = self._sides.get(topic)
        is_braked = topic.limits is not None and topic.limits.spark is not None
        if side is None:
            if not is_braked or len(self._sides) >= SIDES_MAX:
                return self._channel
            side = self._sides[topic] = self._channel.connection.open_channel(str(topic.name))
        elif not is_braked and not side.inbox:
            self._sides.pop(topic).close()
            return self._channel
        return side

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
