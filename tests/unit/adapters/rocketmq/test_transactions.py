"""Half messages: seen once when committed, never when rolled back, asked about until decided."""

import pytest

from kit.rocketmq.bench import COMMIT, ROLLBACK, UNKNOWN, BenchProducer, RocketmqBench
from penstock.adapters.rocketmq.transactions import (
    NO_HALF,
    WRONG_GROUP,
    WRONG_STATE_OFFSET,
    TransactionService,
    is_half,
)
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings
from penstock.testing.storage import FaultKind
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.properties import format_properties

DEFAULTS = RocketmqSettings()
CHECK_MS = DEFAULTS.transaction_check_ms
IMMUNITY_MS = DEFAULTS.transaction_immunity_ms
CHECKS_MAX = DEFAULTS.transaction_checks_max

HOUR_MS = 3_600_000


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def producer(bench):
    return BenchProducer.on(bench)


def bodies(bench, topic="orders"):
    return [message.body for message in bench.stored(topic)]


def still_open(bench):
    return len(bench.broker.service(TransactionService))


@pytest.mark.parametrize(
    ("topic", "pairs", "expected"),
    [
        ("orders", {"TRAN_MSG": "true"}, True),
        ("orders", {"TRAN_MSG": "TRUE"}, True),
        ("orders", {"TRAN_MSG": "false"}, False),
        ("orders", {"X": "TRAN_MSG"}, False),
        ("orders", {}, False),
        ("%RETRY%g", {"TRAN_MSG": "true"}, False),
    ],
)
def test_what_is_a_half_message(topic, pairs, expected):
    assert is_half(topic, format_properties(pairs)) is expected


# The decision.


def test_a_half_message_is_shown_to_nobody(bench, producer):
    producer.send_half()
    assert bodies(bench) == []
    assert still_open(bench) == 1


def test_commit_shows_the_message_once(bench, producer):
    answer = producer.send_half(UNIQ_KEY="U1", KEYS="k")
    assert producer.end(answer, COMMIT).code == 0
    (message,) = bench.stored("orders")
    assert (message.topic, message.body) == ("orders", b"half")
    assert message.sys_flag & 0xC == 0x8
    assert message.property_map()["__transactionId__"] == "U1"
    assert message.property_map()["PGROUP"] == "producers"
    assert still_open(bench) == 0


def test_rollback_shows_nothing_ever(bench, producer):
    answer = producer.send_half(UNIQ_KEY="U1")
    assert producer.end(answer, ROLLBACK).code == 0
    bench.advance(HOUR_MS)
    assert (bodies(bench), still_open(bench), producer.checks) == ([], 0, [])


def test_unknown_leaves_it_open(bench, producer):
    answer = producer.send_half()
    assert producer.end(answer, UNKNOWN).code == 0
    assert (bodies(bench), still_open(bench)) == ([], 1)


def test_a_oneway_end_is_obeyed_and_not_answered(bench, producer):
    answer = producer.send_half()
    producer.write(RequestCode.END_TRANSACTION, producer.ending(answer, COMMIT), is_oneway=True)
    bench.settle()
    assert bodies(bench) == [b"half"]
    assert producer.session.outgoing() == []


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize(
    "wrong",
    [
        ("producerGroup", "others", WRONG_GROUP),
        ("tranStateTableOffset", "1", WRONG_STATE_OFFSET),
        ("commitLogOffset", "1", NO_HALF),
        ("commitLogOffset", "-1", NO_HALF),
    ],
)
def test_an_end_that_does_not_fit_changes_nothing(bench, producer, decision, wrong):
    name, value, remark = wrong
    answer = producer.send_half()
    refused = producer.end(answer, decision, **{name: value})
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert still_open(bench) == 1
    assert producer.end(answer, COMMIT).code == 0
    assert bodies(bench) == [b"half"]


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
def test_the_first_decision_holds(bench, producer, first, second):
    answer = producer.send_half()
    producer.end(answer, first)
    late = producer.end(answer, second)
    assert (late.code, late.remark) == (ResponseCode.SYSTEM_ERROR, NO_HALF)
    assert bodies(bench) == ([b"half"] if first == COMMIT else [])


def test_an_ordinary_message_cannot_be_ended(bench, producer):
    answer = producer.send("orders", b"plain", PGROUP="producers")
    assert producer.end(answer, ROLLBACK).remark == NO_HALF
    assert bodies(bench) == [b"plain"]


def test_a_delay_does_not_hold_a_half_message(bench, producer):
    answer = producer.send_half(DELAY="3")
    producer.end(answer, COMMIT)
    (message,) = bench.stored("orders")
    assert "DELAY" not in message.property_map()


def test_too_many_open_half_messages_are_refused():
    bench = RocketmqBench(Settings(rocketmq=RocketmqSettings(transactions_open_max=2)))
    producer = BenchProducer.on(bench)
    first = producer.send_half()
    producer.send_half()
    refused = producer.send("orders", b"x", TRAN_MSG="true", PGROUP="producers")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    producer.end(first, ROLLBACK)
    producer.send_half()


def test_a_half_message_that_the_disk_refuses_is_told_and_not_open(bench, producer):
    producer.send("orders", b"warm-up")
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    answer = producer.send("orders", b"half", TRAN_MSG="true", PGROUP="producers")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (still_open(bench), bench.engine.undecided()) == (0, [])


def test_a_commit_that_the_disk_refuses_is_done_later(bench, producer):
    answer = producer.send_half()
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    opaque = producer.write(RequestCode.END_TRANSACTION, producer.ending(answer, COMMIT))
    bench.settle()
    assert [each for each in producer._hear() if each.opaque == opaque] == []
    assert bodies(bench) == []
    bench.advance(1_000)
    assert [each.code for each in producer._hear() if each.opaque == opaque] == [0]
    assert bodies(bench) == [b"half"]
