"""Pops that wait: who is woken by what, when the time is up, and how many may wait."""

import pytest

from kit.rocketmq.bench import Popper, RocketmqBench
from penstock.adapters.rocketmq.pop.processor import PopRequest
from penstock.adapters.rocketmq.pop.service import PopLongPolling
from penstock.wire.rocketmq.bodies import TopicConfig
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode


@pytest.fixture
def bench():
    bench = RocketmqBench()
    bench.broker.topics.put(TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4))
    bench.settle()
    return bench


@pytest.fixture
def popper(bench):
    return Popper(bench)


def fill(bench, *bodies, queue=0):
    client = bench.client()
    for body in bodies:
        assert client.send("orders", body, queue=queue).code == 0


def test_a_pop_that_finds_nothing_waits_and_is_woken_by_an_arrival(bench, popper):
    opaque = popper.start_pop()
    bench.settle()
    assert popper.heard(opaque) is None
    fill(bench, b"a", queue=2)
    assert popper.heard(opaque).bodies == [b"a"]
    assert len(bench.broker.service(PopLongPolling)) == 0


def test_a_pop_of_one_queue_is_woken_by_that_queue_only(bench, popper):
    opaque = popper.start_pop(1)
    fill(bench, b"a", queue=2)
    assert popper.heard(opaque) is None
    fill(bench, b"b", queue=1)
    assert popper.heard(opaque).bodies == [b"b"]


def test_a_waiting_pop_is_woken_by_a_revival(bench, popper):
    fill(bench, b"a")
    popper.pop(invisible_time=1000)
    opaque = popper.start_pop()
    bench.advance(1000)
    (again,) = popper.heard(opaque).messages
    assert again.body == b"a"
    assert again.message.topic == "%RETRY%g_orders"


def test_of_two_that_wait_the_older_one_is_served_and_the_other_keeps_waiting(bench, popper):
    other = Popper(bench)
    first, second = popper.start_pop(messages=1), other.start_pop(messages=1)
    fill(bench, b"a")
    assert popper.heard(first).bodies == [b"a"]
    assert other.heard(second) is None
    fill(bench, b"b")
    assert other.heard(second).bodies == [b"b"]


def test_one_arrival_of_many_serves_everybody_who_waits(bench, popper):
    other = Popper(bench)
    first, second = popper.start_pop(messages=1), other.start_pop(messages=1)
    channel = bench.client()
    for body in (b"a", b"b"):
        ext = {"producerGroup": "p", "topic": "orders", "queueId": "0", "bornTimestamp": "0",
               "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "sysFlag": "0",
               "flag": "0", "properties": ""}  # fmt: skip
        channel.write(RequestCode.SEND_MESSAGE, ext, body)
    bench.settle()
    assert popper.heard(first).bodies == [b"a"]
    assert other.heard(second).bodies == [b"b"]


def test_when_the_time_of_a_waiting_pop_is_up_it_is_210(bench, popper):
    opaque = popper.start_pop(poll_time=15_000)
    bench.advance(14_999)
    assert popper.heard(opaque) is None
    bench.advance(1)
    assert popper.heard(opaque).code == ResponseCode.POLLING_TIMEOUT


def test_the_time_a_request_spent_on_its_way_counts(bench, popper):
    late = str(bench.clock.wall_ms() - 20_000)
    assert popper.pop(poll_time=15_000, born_time=late).code == ResponseCode.POLLING_TIMEOUT
    ahead = popper.start_pop(poll_time=1_000, born_time=bench.clock.wall_ms() + 60_000)
    bench.advance(1_000)
    assert popper.heard(ahead).code == ResponseCode.POLLING_TIMEOUT


def test_a_pop_that_does_not_poll_is_answered_19_at_once(popper):
    assert popper.pop(poll_time=0).code == ResponseCode.PULL_NOT_FOUND


def test_beyond_1024_that_wait_for_one_key_it_is_209(bench, popper):
    bench.broker.service(PopLongPolling)._held.per_key_max = 2
    popper.start_pop()
    popper.start_pop()
    opaque = popper.start_pop()
    bench.settle()
    assert popper.heard(opaque).code == ResponseCode.POLLING_FULL
    assert popper.heard(popper.start_pop(1)) is None


def test_the_limits_of_waiting_are_those_of_rocketmq(bench):
    held = bench.broker.service(PopLongPolling)._held
    assert (held.total_max, held.per_key_max) == (100_000, 1_024)


def test_beyond_the_global_limit_it_is_209(bench, popper):
    bench.broker.service(PopLongPolling)._held.total_max = 1
    popper.start_pop(1)
    assert popper.pop(2, poll_time=1000).code == ResponseCode.POLLING_FULL


def test_a_closed_connection_waits_no_more_and_takes_nothing(bench, popper):
    popper.start_pop()
    bench.settle()
    popper.close()
    assert len(bench.broker.service(PopLongPolling)) == 0
    fill(bench, b"a")
    assert Popper(bench).pop().bodies == [b"a"]


def test_where_one_found_nothing_others_of_its_kind_do_not_look(bench, popper, monkeypatch):
    looks = []
    serve = PopRequest._serve
    monkeypatch.setattr(PopRequest, "_serve", lambda self: looks.append(1) or serve(self))
    fill(bench, b"a", b"b")
    (first,) = popper.pop(0, messages=1, order=True).messages
    waiting = [Popper(bench) for _ in range(20)]
    opaques = [each.start_pop(0, messages=1, order=True) for each in waiting]
    bench.settle()
    looks.clear()
    fill(bench, b"c")
    assert 0 < len(looks) < 10
    popper.ack(first)
    answers = [each.heard(opaque) for each, opaque in zip(waiting, opaques, strict=True)]
    assert answers[0].bodies == [b"b"]
    assert answers[1:] == [None] * 19


def test_who_waits_for_a_topic_that_is_deleted_is_answered(bench, popper):
    opaques = [popper.start_pop(queue) for queue in (-1, 2)]
    bench.settle()
    bench.broker.topics.delete("orders")
    assert [popper.heard(each).code for each in opaques] == [ResponseCode.POLLING_TIMEOUT] * 2
    bench.advance(60_000)
    assert len(bench.broker.service(PopLongPolling)) == 0
