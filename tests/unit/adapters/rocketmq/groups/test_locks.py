"""Queue locks over the wire."""

import pytest

from kit.rocketmq.bench import GROUP, BenchConsumer, RocketmqBench
from penstock.engine.group.locks import LOCK_MS
from penstock.wire.rocketmq.bodies import LockBatchAnswer, decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.topic("orders", queues=4)
    return bench


def lock(consumer, *numbers, group=GROUP, tail=b""):
    body = consumer.lock_body("orders", *numbers, group=group) + tail
    answer = consumer.ask(RequestCode.LOCK_BATCH_MQ, body=body)
    assert answer.code == 0
    return [each.queue_id for each in decode_body(answer.body, LockBatchAnswer).locked]


def unlock(consumer, *numbers):
    return consumer.ask(
        RequestCode.UNLOCK_BATCH_MQ, body=consumer.lock_body("orders", *numbers)
    ).code


@pytest.fixture
def first(bench):
    return BenchConsumer.on(bench, "c1")


@pytest.fixture
def second(bench):
    return BenchConsumer.on(bench, "c2")


def test_free_queues_are_granted_and_others_queues_are_not(first, second):
    assert lock(first, 0, 1) == [0, 1]
    assert lock(second, 1, 2) == [2]


def test_ones_own_lock_is_granted_again(first):
    assert lock(first, 0) == [0]
    assert lock(first, 0) == [0]


def test_groups_do_not_hinder_each_other(first, second):
    assert lock(first, 0) == [0]
    assert lock(second, 0, group="others") == [0]


def test_a_lock_is_anybodys_after_60_s_of_silence(bench, first, second):
    assert LOCK_MS == 60_000
    lock(first, 0)
    bench.advance(60_000)
    assert lock(second, 0) == []
    bench.advance(1)
    assert lock(second, 0) == [0]


def test_asking_every_20_s_keeps_a_lock(bench, first, second):
    for _ in range(6):
        assert lock(first, 0) == [0]
        bench.advance(20_000)
    assert lock(second, 0) == []


def test_only_its_owner_gives_a_lock_back(first, second):
    lock(first, 0, 1)
    assert unlock(second, 0) == 0
    assert lock(second, 0) == []
    assert unlock(first, 0) == 0
    assert lock(second, 0, 1) == [0]


def test_a_client_that_goes_keeps_its_locks_until_they_expire(bench, first, second):
    first.heartbeat(orders="*")
    lock(first, 0)
    first.close()
    assert lock(second, 0) == []


def test_cpp_ends_its_body_with_a_newline(first):
    assert lock(first, 0, tail=b"\n") == [0]


def test_queues_of_another_broker_are_not_granted(bench, first):
    body = first.lock_body("orders", 0).replace(bench.broker.broker_name.encode(), b"elsewhere")
    answer = first.ask(RequestCode.LOCK_BATCH_MQ, body=body)
    assert answer.body == b'{"lockOKMQSet":[]}'


def test_the_granted_queues_come_back_as_they_were_named(bench, first):
    answer = first.ask(RequestCode.LOCK_BATCH_MQ, body=first.lock_body("orders", 3))
    name = bench.broker.broker_name.encode()
    assert answer.body == (
        b'{"lockOKMQSet":[{"topic":"orders","brokerName":"%b","queueId":3}]}' % name
    )


@pytest.mark.parametrize("body", [b"", b"null", b'{"mqSet":7}'])
def test_a_body_that_cannot_be_read_is_1(first, body):
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert first.ask(code, body=body).code == ResponseCode.SYSTEM_ERROR
