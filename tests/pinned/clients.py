"""Clients of a ``PinBench``: the helpers of ``penstock.testing`` with their bytes on its lines."""

from types import SimpleNamespace

from kit.amqp.peer import AmqpPeer
from kit.rocketmq.bench import BenchClient, BenchConsumer, Popper


class Wired:
    """Stands for a session: what it is given goes through the bench and is written down."""

    def __init__(self, bench, name):
        self.bench, self.name = bench, name
        self.connection_id = 0

    def receive(self, data):
        self.bench.feed(self.name, bytes(data))

    def outgoing(self):
        data = self.bench.heard.pop(self.name, b"")
        return [data] if data else []

    def flushed(self, unsent_bytes):
        pass

    def closed(self, reason):
        self.bench.hang_up(self.name)


def amqp_peer(bench, number=1):
    peer = AmqpPeer(bench, number, "127.0.0.1")
    peer.session = Wired(bench, f"a{number}")
    return peer


def amqp_client(bench, number=1, **handshake):
    peer = amqp_peer(bench, number)
    peer.handshake(**{"heartbeat": 0, **handshake})
    peer.open(1)
    return peer


def rocketmq_client(bench, number=1, kind=BenchClient, wire="r"):
    side = SimpleNamespace(
        broker=bench.rocketmq, clock=bench.clock, settle=bench.settle, advance=bench.pass_time
    )
    client = kind(side) if kind is Popper else kind(side, number)
    client.session.closed("replaced")
    client.session = Wired(bench, f"{wire}{number}")
    if kind is BenchConsumer:
        client.client_id = f"consumer-{number}"
    return client
