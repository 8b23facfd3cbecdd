"""The client that tests drive sessions with."""

import pytest

from kit.amqp.peer import AmqpBench
from penstock.wire.amqp.methods.basic import Consume, ConsumeOk, Get, GetOk
from penstock.wire.amqp.methods.connection import OpenOk
from penstock.wire.amqp.methods.queue import Declare, DeclareOk


@pytest.fixture
def bench():
    return AmqpBench()


def test_a_call_gives_the_answer_and_leaves_the_rest_to_be_heard(bench):
    peer = bench.client()
    assert peer.call(1, Declare(0, "q")) == DeclareOk("q", 0, 0)
    peer.publish(1, "", "q", b"one")
    assert peer.call(1, Consume(0, "q", "c", is_no_ack=True)) == ConsumeOk("c")
    assert peer.bodies() == [b"one"]
    assert len(peer.take()) == 1
    assert peer.take() == []


def test_a_content_of_several_frames_is_put_together(bench):
    peer = bench.peer()
    assert peer.handshake(frame_max=4096) == OpenOk()
    peer.open(1)
    peer.call(1, Declare(0, "q"))
    body = bytes(range(256)) * 40
    peer.publish(1, "", "q", body)
    peer.turn()
    peer.send(1, Get(0, "q", is_no_ack=True))
    peer.turn()
    method, _, got = peer.answer_with_content(1)
    assert isinstance(method, GetOk)
    assert got == body


def test_silence_is_a_failure_of_the_test(bench):
    peer = bench.client()
    with pytest.raises(AssertionError, match="nothing was answered on channel 1"):
        peer.answer(1)


def test_durable_queues_survive_a_stop_and_a_kill(bench):
    bench.client().call(1, Declare(0, "kept", is_durable=True))
    for end in (bench.stop, bench.kill):
        end()
        assert bench.client().call(1, Declare(0, "kept", is_passive=True)) == DeclareOk(
            "kept", 0, 0
        )
