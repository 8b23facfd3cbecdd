"""What tests of the AMQP adapter do again and again: declare, put, count, be refused.

    answer = declared(peer, "orders", is_durable=True)
    put(peer, "orders", b"a", b"b")
    assert ready(peer, "orders") == 2

All of them speak on channel 1, and fail when the broker answers something else than they ask for.

Not here: the client that speaks (``amqp_peer.py``).
"""

from __future__ import annotations

from typing import Any, Final

from penstock.adapters.amqp.topology.queue import AmqpQueue
from penstock.engine.topic import Topic
from penstock.model.names import TopicName
from penstock.testing.amqp_peer import AmqpBench, AmqpPeer
from penstock.wire.amqp.methods.channel import Close, CloseOk
from penstock.wire.amqp.methods.connection import Close as CloseConnection
from penstock.wire.amqp.methods.method import Method
from penstock.wire.amqp.methods.queue import Declare, DeclareOk
from penstock.wire.amqp.properties import Properties, encode_properties

PERSISTENT: Final = encode_properties(Properties(delivery_mode=2))
FAR_ABOVE: Final = 1 << 50
"""More memory than there is."""


def declared(peer: AmqpPeer, name: str = "q", **bits: Any) -> DeclareOk:
    """Declare a queue; the answer."""
    answer = peer.call(1, Declare(queue=name, **bits))
    assert isinstance(answer, DeclareOk), answer
    return answer


def durable_topic(peer: AmqpPeer, name: str = "q", **arguments: Any) -> Topic:
    """Declare a durable queue with these arguments; its topic."""
    declared(peer, name, is_durable=True, arguments=arguments)
    topic = peer.bench.engine.topic(TopicName("", name))
    assert topic is not None
    return topic


def put(peer: AmqpPeer, name: str, *bodies: bytes, properties: bytes = PERSISTENT) -> None:
    """Publish to a queue, and let the broker come to rest."""
    for body in bodies:
        peer.publish(1, "", name, body, properties)
    peer.turn()


def ready(peer: AmqpPeer, name: str = "q") -> int:
    """How many messages wait in a queue, as a passive declare tells it."""
    return declared(peer, name, is_passive=True).messages


def refused(peer: AmqpPeer, method: Method) -> tuple[int, str]:
    """Code and text of the close that a method earns; the channel is opened anew."""
    answer = peer.call(1, method)
    assert isinstance(answer, Close), answer
    peer.send(1, CloseOk())
    peer.open(1)
    return answer.reply_code, answer.reply_text


def cut_off(method: Method | None) -> tuple[int, str]:
    """Code and text of what must be the end of a connection."""
    assert isinstance(method, CloseConnection), method
    return method.reply_code, method.reply_text


def queue_of(bench: AmqpBench, name: str = "q") -> AmqpQueue | None:
    """A queue of vhost ``/`` as the broker has it."""
    return bench.house.vhosts["/"].queues.get(name)


def alarm(bench: AmqpBench, is_raised: bool) -> None:
    """Raise or clear the memory alarm."""
    bench.engine.set_alarm("memory", FAR_ABOVE if is_raised else 0)
    bench.settle()
