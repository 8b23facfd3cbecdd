"""Half messages: seen once when committed, never when rolled back, asked about until decided."""

import random

import pytest

from penstock.adapters.rocketmq import transactions
from penstock.adapters.rocketmq.transactions import (
    MAX_CHECKS_TOPIC,
    NO_HALF,
    WRONG_GROUP,
    WRONG_STATE_OFFSET,
    Transactions,
    is_half,
)
from penstock.settings.load import Settings
from penstock.settings.rocketmq import RocketmqSettings
from penstock.testing.faults import FaultKind
from penstock.testing.rocketmq_bench import RocketmqBench
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import decode_stored

DEFAULTS = RocketmqSettings()
CHECK_MS = DEFAULTS.transaction_check_ms
IMMUNITY_MS = DEFAULTS.transaction_immunity_ms
CHECKS_MAX = DEFAULTS.transaction_checks_max

COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"
HOUR_MS = 3_600_000


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def producer(bench):
    client = bench.client()
    client.join_producers()
    return client


def send_half(client, body=b"half", **properties):
    answer = client.send("orders", body, TRAN_MSG="true", PGROUP="producers", **properties)
    assert answer.code == 0
    return answer


def ending(answer, decision, **changes):
    _, position = parse_offset_message_id(answer.ext["msgId"])
    return {
        "producerGroup": "producers",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(position),
        "commitOrRollback": decision,
        "fromTransactionCheck": "false",
        "msgId": answer.ext["transactionId"],
        **changes,
    }


def end(client, answer, decision, **changes):
    return client.ask(RequestCode.END_TRANSACTION, ending(answer, decision, **changes))


def bodies(bench, topic="orders"):
    return [message.body for message in bench.stored(topic)]


def still_open(bench):
    return len(bench.house.part(Transactions))


def live(bench, client, ms):
    """Let time pass while a client says every 30 s that it lives."""
    while ms > 0:
        client.join_producers()
        bench.advance(min(ms, CHECK_MS))
        ms -= CHECK_MS


def checks(client):
    return [each for each in client.told if each.code == RequestCode.CHECK_TRANSACTION_STATE]


def test_the_constants_are_rocketmqs():
    assert (CHECK_MS, IMMUNITY_MS, CHECKS_MAX) == (30_000, 6_000, 15)


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
    send_half(producer)
    assert bodies(bench) == []
    assert still_open(bench) == 1


def test_commit_shows_the_message_once(bench, producer):
    answer = send_half(producer, UNIQ_KEY="U1", KEYS="k")
    assert end(producer, answer, COMMIT).code == 0
    (message,) = bench.stored("orders")
    assert (message.topic, message.body) == ("orders", b"half")
    assert message.sys_flag & 0xC == 0x8
    assert message.property_map()["__transactionId__"] == "U1"
    assert message.property_map()["PGROUP"] == "producers"
    assert still_open(bench) == 0


def test_rollback_shows_nothing_ever(bench, producer):
    answer = send_half(producer, UNIQ_KEY="U1")
    assert end(producer, answer, ROLLBACK).code == 0
    bench.advance(HOUR_MS)
    assert (bodies(bench), still_open(bench), checks(producer)) == ([], 0, [])


def test_unknown_leaves_it_open(bench, producer):
    answer = send_half(producer)
    assert end(producer, answer, UNKNOWN).code == 0
    assert (bodies(bench), still_open(bench)) == ([], 1)


def test_a_oneway_end_is_obeyed_and_not_answered(bench, producer):
    answer = send_half(producer)
    producer.write(RequestCode.END_TRANSACTION, ending(answer, COMMIT), is_oneway=True)
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
    answer = send_half(producer)
    refused = end(producer, answer, decision, **{name: value})
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert still_open(bench) == 1
    assert end(producer, answer, COMMIT).code == 0
    assert bodies(bench) == [b"half"]


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
def test_the_first_decision_holds(bench, producer, first, second):
    answer = send_half(producer)
    end(producer, answer, first)
    late = end(producer, answer, second)
    assert (late.code, late.remark) == (ResponseCode.SYSTEM_ERROR, NO_HALF)
    assert bodies(bench) == ([b"half"] if first == COMMIT else [])


def test_an_ordinary_message_cannot_be_ended(bench, producer):
    answer = producer.send("orders", b"plain", PGROUP="producers")
    assert end(producer, answer, ROLLBACK).remark == NO_HALF
    assert bodies(bench) == [b"plain"]


def test_a_delay_does_not_hold_a_half_message(bench, producer):
    answer = send_half(producer, DELAY="3")
    end(producer, answer, COMMIT)
    (message,) = bench.stored("orders")
    assert "DELAY" not in message.property_map()


def test_too_many_open_half_messages_are_refused():
    bench = RocketmqBench(Settings(rocketmq=RocketmqSettings(transactions_open_max=2)))
    producer = bench.client()
    first = send_half(producer)
    send_half(producer)
    refused = producer.send("orders", b"x", TRAN_MSG="true", PGROUP="producers")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    end(producer, first, ROLLBACK)
    send_half(producer)


def test_a_half_message_that_the_disk_refuses_is_told_and_not_open(bench, producer):
    producer.send("orders", b"warm-up")
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    answer = producer.send("orders", b"half", TRAN_MSG="true", PGROUP="producers")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (still_open(bench), bench.engine.undecided()) == (0, [])


def test_a_commit_that_the_disk_refuses_is_done_later(bench, producer):
    answer = send_half(producer)
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    opaque = producer.write(RequestCode.END_TRANSACTION, ending(answer, COMMIT))
    bench.settle()
    assert [each for each in producer._hear() if each.opaque == opaque] == []
    assert bodies(bench) == []
    bench.advance(1_000)
    assert [each.code for each in producer._hear() if each.opaque == opaque] == [0]
    assert bodies(bench) == [b"half"]


# Asking back.


def test_the_first_question_comes_after_six_seconds_and_then_every_thirty(bench, producer):
    send_half(producer)
    bench.advance(IMMUNITY_MS - 1)
    assert checks(producer) == []
    bench.advance(1)
    assert len(checks(producer)) == 1
    bench.advance(CHECK_MS - 1)
    assert len(checks(producer)) == 1
    bench.advance(1)
    assert len(checks(producer)) == 2


@pytest.mark.parametrize(("text", "first_ms"), [("60", 60_000), ("1", 1_000), ("x", IMMUNITY_MS)])
def test_a_message_may_say_when_it_is_first_asked_about(bench, producer, text, first_ms):
    send_half(producer, CHECK_IMMUNITY_TIME_IN_SECONDS=text)
    bench.advance(first_ms - 1)
    assert checks(producer) == []
    bench.advance(1)
    assert len(checks(producer)) == 1


def test_what_a_question_says(bench, producer):
    answer = send_half(producer, UNIQ_KEY="U1", KEYS="k")
    bench.advance(IMMUNITY_MS)
    (check,) = checks(producer)
    _, position = parse_offset_message_id(answer.ext["msgId"])
    assert check.is_oneway
    assert check.ext == {
        "topic": "orders",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(position),
        "msgId": "U1",
        "transactionId": "U1",
        "offsetMsgId": answer.ext["msgId"],
        "bname": bench.house.broker_name,
    }
    message, _ = decode_stored(check.body)
    assert (message.topic, message.body) == ("orders", b"half")
    assert (message.queue_offset, message.commit_log_offset) == (position, position)
    assert message.sys_flag & 0xC == 0
    assert message.property_map()["PGROUP"] == "producers"


def test_the_answer_to_a_question_decides(bench, producer):
    send_half(producer)
    bench.advance(IMMUNITY_MS)
    (check,) = checks(producer)
    ext = {
        "producerGroup": "producers",
        "tranStateTableOffset": check.ext["tranStateTableOffset"],
        "commitLogOffset": check.ext["commitLogOffset"],
        "commitOrRollback": COMMIT,
        "fromTransactionCheck": "true",
    }
    assert producer.ask(RequestCode.END_TRANSACTION, ext).code == 0
    bench.advance(HOUR_MS)
    assert bodies(bench) == [b"half"]
    assert len(checks(producer)) == 1


def test_any_living_client_of_the_group_is_asked(bench, producer):
    send_half(producer)
    producer.close()
    other, stranger = bench.client(), bench.client()
    other.join_producers()
    stranger.join_producers("strangers")
    bench.advance(IMMUNITY_MS)
    assert (len(checks(other)), len(checks(stranger))) == (1, 0)


def test_after_fifteen_questions_it_is_given_up(bench, producer):
    answer = send_half(producer)
    live(bench, producer, IMMUNITY_MS + (CHECKS_MAX - 1) * CHECK_MS)
    assert len(checks(producer)) == CHECKS_MAX
    assert bench.stored(MAX_CHECKS_TOPIC) == []
    live(bench, producer, CHECK_MS)
    assert len(checks(producer)) == CHECKS_MAX
    assert bodies(bench, MAX_CHECKS_TOPIC) == [b"half"]
    assert bodies(bench) == []
    assert end(producer, answer, COMMIT).remark == NO_HALF
    assert bench.engine.definitions(transactions.HALF_KIND) == {}


def test_it_counts_when_nobody_can_be_asked(bench, producer):
    send_half(producer)
    producer.close()
    bench.advance(IMMUNITY_MS + CHECKS_MAX * CHECK_MS)
    assert bodies(bench, MAX_CHECKS_TOPIC) == [b"half"]


def test_what_is_older_than_the_broker_keeps_is_dropped(bench, producer):
    send_half(producer, CHECK_IMMUNITY_TIME_IN_SECONDS=str(100 * 3_600))
    bench.clock.advance(bench.house.settings.retention_ms)
    bench.advance(0)
    assert still_open(bench) == 1
    bench.advance(1)
    assert (bodies(bench), bodies(bench, MAX_CHECKS_TOPIC)) == ([], [])
    assert (still_open(bench), bench.engine.undecided()) == (0, [])


def test_a_half_message_whose_producer_went_unanswered_is_found(bench, producer):
    producer.send("orders", b"warm-up")
    ext = {
        "producerGroup": "producers",
        "topic": "orders",
        "queueId": "0",
        "properties": format_properties({"TRAN_MSG": "true", "PGROUP": "producers"}).decode(),
    }
    producer.write(RequestCode.SEND_MESSAGE, ext, b"half")
    producer.close()
    bench.settle()
    assert still_open(bench) == 0
    assert len(bench.engine.undecided()) == 1
    bench.advance(CHECK_MS)
    assert still_open(bench) == 1


# Restarts.


@pytest.mark.parametrize("plug", ["kill", "cut_power", "stop"])
def test_an_open_half_message_survives_a_restart(bench, producer, plug):
    answer = send_half(producer)
    getattr(bench, plug)()
    again = bench.client()
    again.join_producers()
    assert (bodies(bench), still_open(bench)) == ([], 1)
    bench.advance(IMMUNITY_MS)
    assert len(checks(again)) == 1
    assert end(again, answer, COMMIT).code == 0
    assert bodies(bench) == [b"half"]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("plug", ["kill", "cut_power", "stop"])
def test_a_decision_survives_a_restart(bench, producer, decision, plug):
    answer = send_half(producer)
    end(producer, answer, decision)
    getattr(bench, plug)()
    again = bench.client()
    assert end(again, answer, COMMIT).remark == NO_HALF
    bench.advance(HOUR_MS)
    assert bodies(bench) == ([b"half"] if decision == COMMIT else [])


def test_when_to_ask_first_survives_a_restart(bench, producer):
    send_half(producer, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    bench.advance(10_000)
    bench.kill()
    again = bench.client()
    live(bench, again, 49_999)
    assert checks(again) == []
    bench.advance(1)
    assert len(checks(again)) == 1


def test_how_often_was_asked_survives_a_restart(bench, producer):
    send_half(producer)
    live(bench, producer, IMMUNITY_MS + 9 * CHECK_MS)
    assert len(checks(producer)) == 10
    bench.kill()
    again = bench.client()
    live(bench, again, 10 * CHECK_MS)
    assert len(checks(again)) == CHECKS_MAX - 10
    assert bodies(bench, MAX_CHECKS_TOPIC) == [b"half"]


def test_rows_of_half_messages_that_are_gone_are_swept(bench):
    bench.engine.define(transactions.HALF_KIND, "12345", b"3")
    bench.settle()
    bench.kill()
    bench.settle()
    assert bench.engine.definitions(transactions.HALF_KIND) == {}


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_or_doubled_whenever_the_plug_is_pulled(seed):
    dice = random.Random(seed)
    bench = RocketmqBench(seed=seed)
    client = bench.client()
    answers, decided, doubted = {}, {}, set()
    for number in range(30):
        body = b"%d" % number
        answers[body] = send_half(client, body)
        pick = dice.choice(sorted(answers.keys() - decided.keys() - doubted))
        decision = dice.choice([COMMIT, ROLLBACK])
        if dice.random() < 0.5:
            assert end(client, answers[pick], decision).code == 0
            decided[pick] = decision
        elif dice.random() < 0.5:
            client.write(RequestCode.END_TRANSACTION, ending(answers[pick], decision))
            doubted.add(pick)  # the plug may come before it is durable
        if dice.random() < 0.3:
            getattr(bench, dice.choice(["kill", "cut_power"]))()
            client = bench.client()
    for body in sorted(answers.keys() - decided.keys()):
        answer = end(client, answers[body], COMMIT)
        if answer.code == 0:
            decided[body] = COMMIT
        else:
            assert body in doubted
    shown = bodies(bench)
    assert len(shown) == len(set(shown))
    assert {body for body, each in decided.items() if each == COMMIT} <= set(shown)
    assert not {body for body, each in decided.items() if each == ROLLBACK} & set(shown)
    assert bench.engine.undecided() == []
