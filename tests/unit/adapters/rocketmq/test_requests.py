"""Busy answers: each of RocketMQ's words at its moment, before anything is stored (sheet 2.1)."""

from dataclasses import replace

import msgspec
import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.requests import busy_remark, refusal_response
from penstock.engine.topic import TopicPolicy
from penstock.flow.fast_fail import Busy, BusyCause
from penstock.model.refusal import Refusal, RefusalKind
from penstock.settings.broker import StorageSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.frames import decode

KIB = 1024


@pytest.fixture
def bench():
    return RocketmqBench()


def ext(topic="orders", queue=0):
    return {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": str(queue)}


def write(client, topic="orders", body=b"x"):
    return client.write(RequestCode.SEND_MESSAGE_V2, ext(topic), body)


def answers(client):
    found = [decode(each) for each in client.session.outgoing()]
    return {each.opaque: each for each in found}


def slow_disk(bench, client, ms):
    """A commit has been running for this long; the topics exist and the first send waits for it."""
    for topic in ("orders", "bills"):
        client.send(topic)
    write(client)
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(ms)
    bench.turns()
    return job


def end(bench, job):
    job.run()
    bench.engine.synced(job, None)
    bench.settle()


def test_a_send_that_comes_while_the_store_is_busy_is_rejected(bench):
    client = bench.client()
    job = slow_disk(bench, client, 1001)
    opaque = write(client, body=b"late")
    answer = answers(client)[opaque]
    assert answer.code == 2
    assert answer.remark.startswith(
        "[REJECTREQUEST]system busy, start flow control for a while: the store is busy for 1001 ms"
    )
    end(bench, job)
    assert [each.body for each in bench.stored("orders")] == [b"body", b"x"]
    assert client.send("orders").code == 0


def test_at_the_limit_the_store_is_not_busy_yet(bench):
    client = bench.client()
    job = slow_disk(bench, client, 1000)
    opaque = write(client)
    assert opaque not in answers(client)
    end(bench, job)
    assert answers(client)[opaque].code == 0


def test_a_send_back_is_rejected_like_a_send(bench):
    client = bench.client()
    slow_disk(bench, client, 1001)
    back = {"offset": "0", "group": "g", "delayLevel": "0"}
    opaque = client.write(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    answer = answers(client)[opaque]
    assert (answer.code, answer.remark[:15]) == (2, "[REJECTREQUEST]")


def test_sends_that_wait_are_drained_when_the_store_becomes_busy(bench):
    client = bench.client()
    job = slow_disk(bench, client, 900)
    first, second = write(client), write(client, "bills")
    bench.clock.advance(101)
    bench.engine.turn()
    found = answers(client)
    assert found[first].code == found[second].code == 2
    assert found[first].remark == (
        "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, "
        "period in queue: 101ms, size of queue: 2"
    )
    end(bench, job)
    assert len(bench.stored("orders")) == 2
    assert len(bench.stored("bills")) == 1


def test_a_send_waits_200_ms_at_most(bench):
    client = bench.client()
    job = slow_disk(bench, client, 500)
    opaque = write(client)
    bench.clock.advance(199)
    bench.engine.turn()
    assert opaque not in answers(client)
    bench.clock.advance(1)
    bench.engine.turn()
    answer = answers(client)[opaque]
    assert answer.code == 2
    assert answer.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        "period in queue: 200ms, size of queue: 1"
    )
    end(bench, job)
    assert len(bench.stored("orders")) == 2


def test_the_wait_for_the_disk_after_storing_is_no_age(bench):
    client = bench.client()
    client.send("orders")
    opaque = write(client)
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.clock.advance(5000)
    bench.turns()
    assert opaque not in answers(client)
    end(bench, job)
    assert answers(client)[opaque].code == 0


def test_the_10001st_waiting_send_is_overload(bench):
    client = bench.client()
    job = slow_disk(bench, client, 500)
    for _ in range(10_000):
        write(client)
    assert answers(client) == {}
    answer_to = write(client)
    answer = answers(client)[answer_to]
    assert (answer.code, answer.remark) == (
        2,
        "[OVERLOAD]system busy, start flow control for a while",
    )
    end(bench, job)


def test_a_noisy_topic_does_not_make_others_busy():
    # Room for 40 sends a turn: the quiet topic's comes in with the first of the noisy one.
    bench = RocketmqBench(Settings(flow=FlowSettings(turn_messages_max=40)))
    noisy, quiet = bench.client(), bench.client()
    job = slow_disk(bench, noisy, 500)
    for _ in range(1000):
        write(noisy)
    opaque = write(quiet, "bills")
    job.run()
    bench.engine.synced(job, None)
    for _ in range(2):
        bench.engine.turn()
        bench.sync()
    assert answers(quiet)[opaque].code == 0
    assert len(bench.stored("orders")) < 100


def test_one_oneway_send_that_is_too_late_is_not_answered(bench):
    client = bench.client()
    slow_disk(bench, client, 500)
    client.write(RequestCode.SEND_MESSAGE_V2, ext(), b"x", is_oneway=True)
    bench.clock.advance(300)
    bench.engine.turn()
    assert answers(client) == {}
    bench.settle()
    assert len(bench.stored("orders")) == 2


def test_without_a_free_buffer_sends_are_rejected():
    storage = StorageSettings(write_buffers_max=1, write_buffer_bytes=64 * KIB)
    bench = RocketmqBench(Settings(storage=storage))
    client = bench.client()
    client.send("orders")
    write(client, body=b"x" * 64 * KIB)
    bench.turns()
    opaque = write(client)
    answer = answers(client)[opaque]
    assert answer.code == 2
    assert answer.remark.startswith("[REJECTREQUEST]system busy")
    assert "all 1 write buffers are waiting for the disk" in answer.remark
    bench.settle()
    assert client.send("orders").code == 0
    assert len(bench.stored("orders")) == 3


def test_the_store_is_asked_again_at_the_moment_of_storing():
    refusal = Refusal(RefusalKind.BUSY, "store", "the store is busy for 1200 ms")
    code, remark = refusal_response(refusal)
    assert code == 2
    assert remark.startswith("[PC_SYNCHRONIZED]broker busy, start flow control for a while")


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        (RefusalKind.MEMORY_ALARM, 2, "start flow control for a while"),
        (RefusalKind.RATE, 2, "start flow control for a while"),
        (RefusalKind.QUOTA, 2, "start flow control for a while"),
        (RefusalKind.LENGTH_LIMIT, 2, "start flow control for a while"),
        (RefusalKind.HELD_TOO_LONG, 2, "start flow control for a while"),
        (RefusalKind.DISK_ALARM, 14, "service not available now. "),
        (RefusalKind.WRITE_FAILED, 14, "service not available now. "),
        (RefusalKind.SYNC_FAILED, 14, "service not available now. "),
        (RefusalKind.CLOSING, 14, "service not available now. "),
        (RefusalKind.TOO_LARGE, 13, ""),
        (RefusalKind.TERMINATED, 16, ""),
    ],
)
def test_every_refusal_has_a_code_and_says_what(kind, code, words):
    found, remark = refusal_response(Refusal(kind, "disk", "the reason and what to do"))
    assert found == code
    assert words in remark
    assert remark.endswith("the reason and what to do")


def test_every_kind_of_refusal_has_a_code():
    for kind in RefusalKind:
        assert refusal_response(Refusal(kind, "c", "t"))[0] in (1, 2, 13, 14, 16)


def test_a_class_without_room_says_overload():
    busy = Busy(RefusalKind.BUSY, "send", "", BusyCause.OVERLOAD, "send", 0, 10_000)
    assert busy_remark(busy) == "[OVERLOAD]system busy, start flow control for a while"


def test_a_memory_alarm_refuses_sends_at_once_with_2(bench):
    client = bench.client()
    client.send("orders")
    bench.engine.set_alarm("disk", 1 << 40)
    bench.engine.set_alarm_limits(memory_bytes=1000, disk_free_bytes=1000)
    bench.engine.set_alarm("memory", 2000)
    answer = client.send("orders")
    assert answer.code == 2
    assert "memory" in answer.remark
    bench.engine.set_alarm("memory", 10)
    assert client.send("orders").code == 0
    assert len(bench.stored("orders")) == 2


def test_a_disk_alarm_is_14(bench):
    client = bench.client()
    client.send("orders")
    bench.engine.set_alarm("memory", 1)
    bench.engine.set_alarm_limits(memory_bytes=1 << 40, disk_free_bytes=1000)
    bench.engine.set_alarm("disk", 10)
    answer = client.send("orders")
    assert answer.code == 14
    assert answer.remark.startswith("service not available now. ")
    assert len(bench.stored("orders")) == 1


def test_a_topics_rate_limit_refuses_with_2_and_leaves_others_alone(bench):
    client = bench.client()
    client.send("bills")
    client.send("orders")
    topic = bench.broker.topics.find("orders").topic
    policy = replace_policy(topic.policy, publish_messages_per_s=1)
    bench.engine.set_policy(topic.name, policy)
    codes = [client.send("orders").code for _ in range(5)]
    assert codes[0] == 0
    assert 2 in codes
    assert client.send("bills").code == 0
    assert len(bench.stored("orders")) == 1 + codes.count(0)


def replace_policy(policy: TopicPolicy, **changes) -> TopicPolicy:
    return msgspec.structs.replace(policy, **changes)


def test_a_connection_holds_at_most_its_share_of_unanswered_sends():
    settings = Settings()
    rocketmq = replace(settings.rocketmq, pending_sends_max=10)
    bench = RocketmqBench(replace(settings, rocketmq=rocketmq))
    client = bench.client()
    client.send("orders")
    for _ in range(10):
        write(client)
    bench.turns()
    assert not client.session.is_reading
    bench.settle()
    assert client.session.is_reading
    assert len(answers(client)) == 10


def test_every_way_of_being_refused_is_counted(bench):
    client = bench.client()
    job = slow_disk(bench, client, 500)
    write(client)
    waiting = bench.engine.request_queue
    bench.clock.advance(150)
    bench.engine.turn()
    (send,) = [each for each in waiting.statistics() if each.request_class == "send"]
    assert (send.waiting, send.age_ms, send.age_ms_max, send.capacity) == (1, 150, 200, 10_000)
    bench.clock.advance(50)
    bench.engine.turn()
    bench.clock.advance(400)
    bench.engine.turn()
    write(client)
    write(client)
    (send,) = [each for each in waiting.statistics() if each.request_class == "send"]
    assert (send.waiting, send.age_ms) == (0, 0)
    assert send.refused == {"overload": 0, "age": 1, "store": 0, "busy": 2}
    end(bench, job)
