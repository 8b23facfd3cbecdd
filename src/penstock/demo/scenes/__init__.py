"""Scenes: short plays in which one mechanism acts and checks itself (D27).

A scene is a file named after it, here or in the folder of its protocol, with
``async def play(scene: Scene) -> None``; it publishes and consumes through the scene's actors,
orders faults, says what happens and ends with checks. To add one, write the file and give it a line
in ``SCENES``; every scene is also run as a test. Settings that its broker needs are in ``SETTINGS``
of the file.
"""

from importlib.util import find_spec
from typing import Final

SCENES: Final = {
    "store-hold": "the disk stops answering: one publisher is held, one refused, none is lied to",
    "disk-full": "disk alarm and failing writes: publishers wait, consumers drain, nothing is lost",
    "fast-failure": "RocketMQ: a send that waited 200 ms for the disk is told so, not stored",
    "store-busy": "RocketMQ: from one second of a silent disk on, sends are refused as they come",
    "buffer-pool": "RocketMQ: write buffers run out before memory does, and producers are told",
    "long-polling": "RocketMQ: a thousand pulls wait for nothing; the one send wakes the right one",
    "retry-and-dead-letter": "RocketMQ: a message fails, comes back later and later, and is buried",
    "ordered-locks": "RocketMQ: a queue has one reader at a time, and its order survives a change",
    "filter": "RocketMQ: tags and SQL92 decide at the broker what crosses the wire",
    "thresholds": "the client: a slow listener stops the pulls of its queue: number, bytes, span",
    "rebalance": "the client: eight consumers come and go, and the queues are always divided",
    "ordered": "the client: each order's steps one after the other, whoever consumes them",
    "pop": "RocketMQ: eight consumers share four queues, and one that hangs holds none of them",
    "credit-flow": "AMQP: a slow stage holds those before it, and each names the next one",
    "memory-alarm": "AMQP: connection.blocked; publishes wait, acks and declares do not",
    "disk-alarm": "AMQP: the same when the disk is nearly full, before a write fails",
    "prefetch": "AMQP: what a consumer has in hand, alone, by channel, and without any limit",
    "slow-reader": "AMQP: a consumer that does not read stops only itself, and is named",
    "pending-publishes": "AMQP: a socket rests while too many of its publishes are unconfirmed",
    "mixed-connection": "AMQP: held publishes do not stop the acks behind them; x-overflow: hold",
    "permits": "Pulsar: a consumer is sent what it asked for, and batches whole",
    "unacked-limit": "Pulsar: who does not ack is sent no more, and goes on at half",
    "backlog-quota": "Pulsar: a topic that nobody drains withholds receipts, refuses, or forgets",
    "failover": "Pulsar: one consumer is active, and when it goes the next one takes over",
    "key-shared": "Pulsar: the orders of a customer have one consumer, also when one comes or goes",
    "spark-backpressure": "a slow Spark query slows, then holds, the publishers of its topic only",
}
"""Name -> what it shows, in the order in which they are listed."""

FOLDERS: Final = ("", ".rocketmq", ".amqp", ".pulsar")


def module_of(name: str) -> str:
    """Where a scene is to be imported from."""
    file = name.replace("-", "_")
    places = [f"{__name__}{folder}.{file}" for folder in FOLDERS]
    return next(place for place in places if find_spec(place) is not None)
