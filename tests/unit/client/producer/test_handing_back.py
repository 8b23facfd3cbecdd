"""How a sender hears the end."""

import asyncio
import threading

import pytest

from penstock.client.errors import ClientError, StateError
from penstock.client.message import SendResult, SendStatus
from penstock.client.producer import handing_back
from penstock.client.producer.handing_back import Blocked, CallbackThread, settle_future
from penstock.model.assignment import QueueRef

RESULT = SendResult(SendStatus.SEND_OK, "id", "offset-id", QueueRef("t", "a", 0), 1)


def test_a_blocked_thread_gets_the_result():
    blocked = Blocked()
    threading.Thread(target=blocked.settle, args=(RESULT,)).start()
    assert blocked.result(1000) is RESULT


def test_a_blocked_thread_gets_the_error_raised():
    blocked = Blocked()
    blocked.settle(ClientError("no"))
    with pytest.raises(ClientError, match="no"):
        blocked.result(1000)


def test_a_client_that_does_not_answer_at_all_does_not_block_for_ever(monkeypatch):
    monkeypatch.setattr(handing_back, "GRACE_S", 0.0)
    with pytest.raises(StateError, match="forked"):
        Blocked().result(1)


def test_a_future_is_settled_unless_it_was_cancelled():
    async def look():
        loop = asyncio.get_running_loop()
        good, bad, gone = loop.create_future(), loop.create_future(), loop.create_future()
        gone.cancel()
        settle_future(good, RESULT)
        settle_future(bad, ClientError("no"))
        settle_future(gone, RESULT)
        assert await good is RESULT
        with pytest.raises(ClientError):
            await bad

    asyncio.run(look())


class Ended:
    """Stands for a send."""

    topic = "t"


def test_callbacks_run_in_order_each_after_its_permit_is_free_and_errors_stay_inside(caplog):
    happened = []
    thread = CallbackThread("g", lambda send: happened.append("permit"))
    thread.start()

    def fail(outcome):
        happened.append("fails")
        raise RuntimeError("user code")

    thread.put(Ended(), fail, RESULT)
    thread.put(Ended(), happened.append, RESULT)
    thread.stop(5000)
    assert happened == ["permit", "fails", "permit", RESULT]
    assert "send callback failed" in caplog.text


def test_a_callback_may_stop_its_own_thread():
    thread = CallbackThread("g", lambda send: None)
    thread.start()
    was_current = []

    def stop(outcome):
        was_current.append(thread.is_current)
        thread.stop(5000)

    thread.put(Ended(), stop, RESULT)
    thread._thread.join(5)
    assert was_current == [True]
    assert not thread.is_current


def test_without_a_callback_there_is_no_thread():
    thread = CallbackThread("g", lambda send: None)
    thread.stop(5000)
    assert thread._thread is None
