"""Sends that are not simply stored: to a retry topic, delayed; what becomes of them."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.group_registry import GroupRegistry
from penstock.wire.rocketmq.codes import ResponseCode

RETRY, DLQ = "%RETRY%readers", "%DLQ%readers"
HOUR_MS = 3_600_000


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def client(bench):
    return bench.client()


def sent_to_retry(client, body=b"again", *, times=0, times_max=None, **properties):
    header = {"reconsumeTimes": str(times)}
    if times_max is not None:
        header["maxReconsumeTimes"] = str(times_max)
    return client.send(RETRY, body, header=header, **properties)


def test_a_client_may_send_to_the_retry_topic(bench, client):
    assert sent_to_retry(client, DELAY="1").code == 0
    assert bench.stored(RETRY) == []
    bench.advance(1_000)
    assert [each.body for each in bench.stored(RETRY)] == [b"again"]


def test_ali_ons_sends_there_without_delay(bench, client):
    assert sent_to_retry(client, times=3, times_max=17, DELAY="0").code == 0
    (message,) = bench.stored(RETRY)
    assert message.reconsume_times == 3


@pytest.mark.parametrize(("times", "is_dead"), [(15, False), (16, False), (17, True)])
def test_more_tries_than_the_group_allows_make_a_dead_letter(bench, client, times, is_dead):
    assert sent_to_retry(client, times=times).code == 0
    assert (len(bench.stored(RETRY)), len(bench.stored(DLQ))) == ((0, 1) if is_dead else (1, 0))


def test_the_clients_own_maximum_counts_there_too(bench, client):
    sent_to_retry(client, times=3, times_max=2, DELAY="5")
    (dead,) = bench.stored(DLQ)
    assert dead.reconsume_times == 3
    assert "DELAY" not in dead.property_map()


def test_a_group_that_holds_a_queue_gives_up_at_once(bench, client):
    now_ms = bench.clock.monotonic_ms()
    bench.broker.locks.lock("readers", [("orders", 0)], "someone", now_ms)
    sent_to_retry(client, b"ordered", DELAY="5")
    assert [each.body for each in bench.stored(DLQ)] == [b"ordered"]
    bench.clock.advance(60_001)
    sent_to_retry(client, b"unordered")
    assert [each.body for each in bench.stored(RETRY)] == [b"unordered"]


def test_the_lock_of_another_group_does_not_matter(bench, client):
    bench.broker.locks.lock("others", [("orders", 0)], "someone", bench.clock.monotonic_ms())
    sent_to_retry(client)
    assert (len(bench.stored(RETRY)), len(bench.stored(DLQ))) == (1, 0)


def test_a_delay_that_is_no_number_is_refused_and_nothing_is_stored(bench, client):
    answer = client.send("orders", b"body", DELAY="soon")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    far = client.send("orders", b"body", TIMER_DELAY_SEC=str(4 * 86_400))
    assert far.code == ResponseCode.MESSAGE_ILLEGAL
    bench.advance(HOUR_MS)
    assert bench.stored("orders") == []


def test_an_unknown_group_is_told_when_groups_are_not_made(bench, client):
    client.send("orders", b"body")
    bench.broker.service(GroupRegistry).is_auto_creating = False
    assert sent_to_retry(client).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
