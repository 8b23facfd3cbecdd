"""Deliveries that nobody settles for half an hour cost their channel."""

from kit.amqp.peer import AmqpBench, AmqpPeer
from penstock.adapters.amqp import broker
from penstock.adapters.amqp.broker import ConsumerTimeouts
from penstock.adapters.amqp.consumer import ChannelConsumers
from penstock.settings.load import Settings
from penstock.settings.protocols import AmqpSettings
from penstock.wire.amqp.methods import channel
from penstock.wire.amqp.methods.basic import Ack, Consume
from penstock.wire.amqp.methods.queue import Declare


def with_one_delivery(bench: AmqpBench) -> AmqpPeer:
    peer = bench.client(heartbeat=0)
    peer.call(1, Declare(queue="q"))
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    peer.publish(1, "", "q", b"one")
    peer.turn()
    peer.take()
    return peer


def wait(bench: AmqpBench, ms: int) -> None:
    bench.clock.advance(ms)
    bench.broker.timers.due(bench.clock.monotonic_ms())


def test_too_long_costs_the_channel_and_requeues() -> None:
    bench = AmqpBench()
    peer = with_one_delivery(bench)
    limit_ms = bench.settings.amqp.consumer_timeout_ms
    wait(bench, limit_ms - 1)
    assert peer.take() == []
    wait(bench, 60_000)
    close = peer.answer(1)
    assert isinstance(close, channel.Close)
    assert close.reply_code == 406
    assert close.reply_text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value "
        f"used: {limit_ms} ms."
    )
    queue = bench.broker.vhosts["/"].queues.get("q")
    assert queue is not None
    assert (queue.ready, queue.unacked) == (1, 0)


def test_only_the_oldest_counts() -> None:
    bench = AmqpBench()
    peer = with_one_delivery(bench)
    limit_ms = bench.settings.amqp.consumer_timeout_ms
    wait(bench, limit_ms // 2)
    peer.publish(1, "", "q", b"two")
    peer.turn()
    peer.take()
    peer.send(1, Ack(1))
    wait(bench, limit_ms // 2 + 60_000)
    assert peer.take() == []
    assert peer.session.channels[1].consumers.unacked_count == 1


def test_zero_means_never() -> None:
    bench = AmqpBench(Settings(amqp=AmqpSettings(consumer_timeout_ms=0)))
    peer = with_one_delivery(bench)
    assert ConsumerTimeouts(bench.broker).next_deadline_ms() is None
    wait(bench, 1 << 40)
    assert peer.take() == []


def test_of_very_many_channels_so_many_are_looked_at_in_one_go(monkeypatch) -> None:
    monkeypatch.setattr(broker, "LOOK_CHANNELS", 2)
    bench = AmqpBench()
    peer = with_one_delivery(bench)
    for number in range(2, 6):
        peer.call(number, channel.Open())
    looked: list[int] = []
    monkeypatch.setattr(
        ChannelConsumers, "due", lambda self, _now_ms: looked.append(self.channel.number)
    )
    timeouts = ConsumerTimeouts(bench.broker)
    pieces = []
    at_ms = timeouts.next_deadline_ms()
    while len(looked) < 5:
        before = len(looked)
        timeouts.due(at_ms)
        pieces.append(len(looked) - before)
        assert timeouts.next_deadline_ms() > at_ms
        at_ms = timeouts.next_deadline_ms()
    assert pieces == [2, 2, 1]
    assert looked == [1, 2, 3, 4, 5]
    assert at_ms == bench.clock.monotonic_ms() + 2 * broker.LOOK_MS
