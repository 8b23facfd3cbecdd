"""How a sender hears the end."""

import asyncio
import threading

import pytest

from penstock.client.callbacks import CallbackThread, result_of, settle_future
from penstock.client.errors import ClientError
from penstock.client.loop import Relay
from penstock.client.message import Message, SendResult, SendStatus
from penstock.client.producer.encoding import Encoder
from penstock.client.producer.send import (
    AwaitedSend,
    BlockedSend,
    CallbackSend,
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
    assert result_of(send, 1000) is RESULT


def test_a_blocked_thread_gets_the_error_raised():
    send = blocked()
    send.done(ClientError("no"))
    with pytest.raises(ClientError, match="no"):
        result_of(send, 1000)


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


def test_a_send_with_a_callback_goes_to_its_thread_and_errors_stay_inside(caplog):
    ended, heard = [], []
    thread = CallbackThread("g", print, print)
    thread.put = ended.append

    def fail(outcome):
        heard.append(outcome)
        raise RuntimeError("user code")

    send = called(thread, fail)
    send.call()
    assert heard == [], "it has not ended"
    send.done(RESULT)
    assert ended == [send]
    send.call()
    assert heard == [RESULT]
    assert "send callback failed" in caplog.text
