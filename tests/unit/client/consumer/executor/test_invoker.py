"""One call of a listener: what its answer means, what it is given."""

import pytest

from kit.client.parts import received_message
from penstock.client.consumer.executor import (
    ConsumeHooks,
    ConsumeRequest,
    ConsumeResult,
    Later,
    ListenerInvoker,
    ResultKind,
    Suspend,
    is_coroutine_listener,
)
from penstock.client.consumer.process_queue import AssignedQueue
from penstock.model.assignment import QueueRef

QUEUE = QueueRef("t", "b", 0)


def caller(listener, *, takes_list=False, timeout_ms=60_000):
    return ListenerInvoker(
        listener, ConsumeHooks("g"), takes_list=takes_list, timeout_ms=timeout_ms
    )


def one_call(listener, **options):
    work = ConsumeRequest(
        AssignedQueue(QUEUE, 0, 0), [[received_message(QUEUE, 0)]], lambda *_: None
    )
    finished, _ = caller(listener, **options).call(work, work.batches[0], 0.0)
    return finished


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, ResultKind.SUCCESS),
        (ConsumeResult.SUCCESS, ResultKind.SUCCESS),
        (ConsumeResult.COMMIT, ResultKind.SUCCESS),
        (ConsumeResult.LATER, ResultKind.LATER),
        (ConsumeResult.SUSPEND, ResultKind.LATER),
        (ConsumeResult.ROLLBACK, ResultKind.LATER),
        (Later(3), ResultKind.LATER),
        (Suspend(50), ResultKind.LATER),
    ],
)
def test_what_an_answer_means(answer, kind):
    finished = one_call(lambda _: answer, timeout_ms=float("inf"))
    assert (finished.kind, finished.answer, finished.error) == (kind, answer, None)
    assert finished.is_success == (kind is ResultKind.SUCCESS)


def test_an_answer_nobody_knows_is_a_mistake_and_no_success():
    finished = one_call(lambda _: True, timeout_ms=float("inf"))
    assert finished.kind is ResultKind.EXCEPTION
    assert "returned True" in str(finished.error)
    assert not finished.is_success


def test_raising_is_failing_even_with_system_exit():
    def listener(_):
        raise SystemExit

    assert one_call(listener, timeout_ms=float("inf")).kind is ResultKind.EXCEPTION


def test_a_call_longer_than_the_limit_is_a_time_out_whatever_it_says():
    assert one_call(lambda _: None, timeout_ms=0).kind is ResultKind.TIME_OUT
    assert one_call(lambda _: ConsumeResult.LATER, timeout_ms=0).kind is ResultKind.TIME_OUT


def test_a_listener_for_batches_gets_a_list():
    got = []
    one_call(got.append, takes_list=True)
    one_call(got.append)
    assert [type(each).__name__ for each in got] == ["list", "ReceivedMessage"]


def test_a_coroutine_listener_is_known_by_its_function_or_its_call():
    async def coroutine(_): ...

    class Callable:
        async def __call__(self, _): ...

    class Plain:
        def __call__(self, _): ...

    assert is_coroutine_listener(coroutine)
    assert is_coroutine_listener(Callable())
    assert not is_coroutine_listener(Plain())
    assert not is_coroutine_listener(print)
