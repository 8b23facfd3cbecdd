"""How a sender hears the end."""

import asyncio
import threading

import pytest

from penstock.client.errors import ClientError, StateError
from penstock.client.loop import Relay
from penstock.client.message import Message, SendResult, SendStatus
from penstock.client.producer import send as send_module
from penstock.client.producer.encoding import Encoder
from penstock.client.producer.send import (
    AwaitedSend,
    BlockedSend,
    CallbackSend,
    CallbackThread,
    settle_future,
)
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.message_id import UniqueKeys

RESULT = SendResult(SendStatus.SEND_OK, "id", "offset-id", QueueRef("t", "a", 0), 1)


def made(kind, **more):
    """A send that ends in one of the three ways."""
    message = Message("t", b"x")
    clock = ManualClock()
    encoded = Encoder("g", UniqueKeys("10.0.0.1", 7, clock), clock).encode(message)
    return kind(message, encoded, 0, 1000, 1000, **more)


def blocked():
    lock = threading.Lock()
    lock.acquire()
    return made(BlockedSend, lock=lock)


def called(thread, on_done):
    return made(CallbackSend, on_done=on_done, thread=thread)


def test_a_blocked_thread_gets_the_result():
    send = blocked()
    threading.Thread(target=send.done, args=(RESULT,)).start()
    assert send.result() is RESULT


def test_a_blocked_thread_gets_the_error_raised():
    send = blocked()
    send.done(ClientError("no"))
    with pytest.raises(ClientError, match="no"):
        send.result()


def test_a_client_that_does_not_answer_at_all_does_not_block_for_ever(monkeypatch):
    monkeypatch.setattr(send_module, "GRACE_S", -0.999)
    with pytest.raises(StateError, match="forked"):
        blocked().result()


def test_a_future_is_settled_unless_it_was_cancelled():
    async def look():
        loop = asyncio.get_running_loop()
        good, bad, gone = loop.create_future(), loop.create_future(), loop.create_future()
        gone.cancel()
        assert made(AwaitedSend, future=gone).is_cancelled
        made(AwaitedSend, future=good).done(RESULT)
        made(AwaitedSend, future=bad).done(ClientError("no"))
        made(AwaitedSend, future=gone).done(RESULT)
        assert await good is RESULT
        with pytest.raises(ClientError):
            await bad

    asyncio.run(look())


def test_a_future_of_another_loop_is_settled_there():
    async def look():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        send = made(AwaitedSend, future=future, relay=Relay(loop, settle_future))
        threading.Thread(target=send.done, args=(RESULT,)).start()
        assert await future is RESULT

    asyncio.run(look())


class Turn:
    """What is to happen at the end of a turn of the loop."""

    def __init__(self):
        self.calls = []

    def end(self):
        while self.calls:
            self.calls.pop(0)()


def test_callbacks_run_in_order_each_after_its_permit_is_free_and_errors_stay_inside(caplog):
    happened, turn = [], Turn()
    thread = CallbackThread("g", lambda send: happened.append("permit"), turn.calls.append)
    thread.start()

    def fail(outcome):
        happened.append("fails")
        raise RuntimeError("user code")

    called(thread, fail).done(RESULT)
    called(thread, happened.append).done(RESULT)
    assert len(turn.calls) == 1
    turn.end()
    thread.stop(5000)
    assert happened == ["permit", "fails", "permit", RESULT]
    assert "send callback failed" in caplog.text


def test_a_callback_may_stop_its_own_thread():
    turn = Turn()
    thread = CallbackThread("g", lambda send: None, turn.calls.append)
    thread.start()
    was_current = []

    def stop(outcome):
        was_current.append(thread.is_current)
        thread.stop(5000)

    called(thread, stop).done(RESULT)
    turn.end()
    thread._thread.join(5)
    assert was_current == [True]
    assert not thread.is_current


def test_without_a_callback_there_is_no_thread():
    thread = CallbackThread("g", lambda send: None, print)
    thread.stop(5000)
    assert thread._thread is None
