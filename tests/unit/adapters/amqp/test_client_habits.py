"""What clients take for granted although no page says so: found by their own test suites."""

import pytest

from kit.amqp.peer import AmqpBench
from penstock.wire.amqp.methods.basic import Cancel, Consume
from penstock.wire.amqp.methods.connection import Close, CloseOk
from penstock.wire.amqp.methods.queue import Declare, Delete, DeleteOk


@pytest.fixture
def bench() -> AmqpBench:
    return AmqpBench()


@pytest.mark.parametrize("is_durable", [True, False])
def test_who_deletes_a_queue_it_consumes_hears_the_answer_before_the_cancel(
    bench: AmqpBench, is_durable: bool
) -> None:
    """amqplib closes the channel at the cancel, and a missing answer is an error to it."""
    peer = bench.client()
    peer.call(1, Declare(queue="q", is_durable=is_durable))
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    peer.send(1, Delete(queue="q"))
    peer.turn()
    assert peer.methods(1) == [DeleteOk(0), Cancel("c", is_nowait=True)]


def test_a_condition_that_is_not_met_leaves_no_answer_in_the_way(bench: AmqpBench) -> None:
    peer = bench.client()
    peer.call(1, Declare(queue="q"))
    peer.call(1, Consume(queue="q", consumer_tag="c"))
    assert peer.call(1, Delete(queue="q", if_unused=True)).reply_code == 406


def test_a_client_that_closes_amid_its_publishes_is_not_reset(bench: AmqpBench) -> None:
    """amqplib's close overtakes what it has buffered; the socket stays until the client ends it."""
    peer = bench.client()
    peer.call(1, Declare(queue="q"))
    assert peer.call(0, Close(200, "", 0, 0)) == CloseOk()
    peer.publish(1, "", "q", b"late")
    peer.turn()
    assert not peer.session.wants_close
    peer.session.eof()
    assert peer.session.wants_close


def test_a_client_that_never_ends_its_socket_is_cut_off(bench: AmqpBench) -> None:
    peer = bench.client()
    peer.call(0, Close(200, "", 0, 0))
    deadline_ms = peer.session.next_deadline_ms()
    assert deadline_ms is not None
    peer.session.due(deadline_ms - 1)
    assert not peer.session.wants_close
    peer.session.due(deadline_ms)
    assert peer.session.wants_close
