"""Who sent hears the end: a thread that waits; lists of callbacks in order, on their own thread."""

import asyncio
import threading

import pytest

from penstock.client import callbacks
from penstock.client.callbacks import CallbackThread, result_of
from penstock.client.failures import StateError


class Turn:
    """What is to happen at the end of a turn of the loop."""

    def __init__(self):
        self.calls = []

    def end(self):
        while self.calls:
            self.calls.pop(0)()


@pytest.fixture
def turn():
    return Turn()


class Unanswered:
    """A send of which nothing is heard."""

    outcome = None

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()


def test_a_client_that_does_not_answer_at_all_does_not_block_for_ever(monkeypatch):
    monkeypatch.setattr(callbacks, "GRACE_S", 0)
    with pytest.raises(StateError, match="forked"):
        result_of(Unanswered(), 1)


def test_what_ended_in_one_turn_is_one_list_and_lists_keep_their_order(turn):
    ran = []
    thread = CallbackThread(
        "g", lambda ended: ran.append((ended, thread.is_current)), turn.calls.append
    )
    thread.start()
    for number in range(3):
        thread.put(number)
    assert len(turn.calls) == 1
    turn.end()
    thread.put(3)
    turn.end()
    thread.stop(5000)
    assert ran == [([0, 1, 2], True), ([3], True)]


def test_it_is_started_once(turn):
    thread = CallbackThread("g", print, turn.calls.append)
    thread.start()
    first = thread._thread
    thread.start()
    assert thread._thread is first
    assert first.name == "penstock-callbacks-g"
    thread.stop(5000)
    assert not first.is_alive()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_may_stop_its_own_thread(turn, is_async):
    was_current = []

    def stop(ended):
        if is_async:
            asyncio.run(thread.stop_async(60_000))
        else:
            thread.stop(60_000)
        was_current.append(thread.is_current)

    thread = CallbackThread("g", stop, turn.calls.append)
    thread.start()
    thread.put(1)
    turn.end()
    thread._thread.join(5)
    assert was_current == [True]
    assert not thread.is_current


def test_without_a_callback_there_is_no_thread():
    thread = CallbackThread("g", print, print)
    thread.stop(5000)
    assert thread._thread is None


def test_what_ends_after_it_was_stopped_is_run_and_leaves_no_thread(turn):
    ran = []
    thread = CallbackThread("g", ran.append, turn.calls.append)
    thread.start()
    first = thread._thread
    thread.stop(5000)
    assert not first.is_alive()
    for number in range(2):
        thread.put(number)
        turn.end()
        thread._thread.join(5)
        assert ran == [[each] for each in range(number + 1)]
        assert not thread._thread.is_alive()


def test_who_sends_while_it_is_stopped_starts_no_thread_that_nobody_stops(turn):
    ran = []
    thread = CallbackThread("g", ran.append, turn.calls.append)
    thread.stop(5000)
    thread.start()
    assert thread._thread is None
    thread.put(1)
    turn.end()
    thread._thread.join(5)
    assert ran == [[1]]
