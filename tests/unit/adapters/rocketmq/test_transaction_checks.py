"""Half messages that nobody decides: asked about, given up, and open over restarts."""

import random

import pytest

from kit.rocketmq.bench import COMMIT, ROLLBACK, BenchProducer, RocketmqBench, position_of
from penstock.adapters.rocketmq import transactions
from penstock.adapters.rocketmq.transactions import (
    MAX_CHECKS_TOPIC,
    NO_HALF,
    TransactionService,
)
from penstock.settings.protocols import RocketmqSettings
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import decode_stored

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


def test_the_constants_are_rocketmqs():
    assert (CHECK_MS, IMMUNITY_MS, CHECKS_MAX) == (30_000, 6_000, 15)


def test_the_first_question_comes_after_six_seconds_and_then_every_thirty(bench, producer):
    producer.send_half()
    bench.advance(IMMUNITY_MS - 1)
    assert producer.checks == []
    bench.advance(1)
    assert len(producer.checks) == 1
    bench.advance(CHECK_MS - 1)
    assert len(producer.checks) == 1
    bench.advance(1)
    assert len(producer.checks) == 2


@pytest.mark.parametrize(("text", "first_ms"), [("60", 60_000), ("1", 1_000), ("x", IMMUNITY_MS)])
def test_a_message_may_say_when_it_is_first_asked_about(bench, producer, text, first_ms):
    producer.send_half(CHECK_IMMUNITY_TIME_IN_SECONDS=text)
    bench.advance(first_ms - 1)
    assert producer.checks == []
    bench.advance(1)
    assert len(producer.checks) == 1


def test_what_a_question_says(bench, producer):
    answer = producer.send_half(UNIQ_KEY="U1", KEYS="k")
    bench.advance(IMMUNITY_MS)
    (check,) = producer.checks
    position = position_of(answer)
    assert check.is_oneway
    assert check.ext == {
        "topic": "orders",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(position),
        "msgId": "U1",
        "transactionId": "U1",
        "offsetMsgId": answer.ext["msgId"],
        "bname": bench.broker.broker_name,
    }
    message, _ = decode_stored(check.body)
    assert (message.topic, message.body) == ("orders", b"half")
    assert (message.queue_offset, message.commit_log_offset) == (position, position)
    assert message.sys_flag & 0xC == 0
    assert message.property_map()["PGROUP"] == "producers"


def test_the_answer_to_a_question_decides(bench, producer):
    producer.send_half()
    bench.advance(IMMUNITY_MS)
    (check,) = producer.checks
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
    assert len(producer.checks) == 1


def test_any_living_client_of_the_group_is_asked(bench, producer):
    producer.send_half()
    producer.close()
    other, stranger = BenchProducer.on(bench), BenchProducer.on(bench, "strangers")
    bench.advance(IMMUNITY_MS)
    assert (len(other.checks), len(stranger.checks)) == (1, 0)


def test_after_fifteen_questions_it_is_given_up(bench, producer):
    answer = producer.send_half()
    producer.live(IMMUNITY_MS + (CHECKS_MAX - 1) * CHECK_MS)
    assert len(producer.checks) == CHECKS_MAX
    assert bench.stored(MAX_CHECKS_TOPIC) == []
    producer.live(CHECK_MS)
    assert len(producer.checks) == CHECKS_MAX
    assert bodies(bench, MAX_CHECKS_TOPIC) == [b"half"]
    assert bodies(bench) == []
    assert producer.end(answer, COMMIT).remark == NO_HALF
    assert bench.engine.definitions(transactions.HALF_KIND) == {}


def test_it_counts_when_nobody_can_be_asked(bench, producer):
    producer.send_half()
    producer.close()
    bench.advance(IMMUNITY_MS + CHECKS_MAX * CHECK_MS)
    assert bodies(bench, MAX_CHECKS_TOPIC) == [b"half"]


def test_what_is_older_than_the_broker_keeps_is_dropped(bench, producer):
    producer.send_half(CHECK_IMMUNITY_TIME_IN_SECONDS=str(100 * 3_600))
    bench.clock.advance(bench.broker.settings.retention_ms)
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
    answer = producer.send_half()
    getattr(bench, plug)()
    again = BenchProducer.on(bench)
    assert (bodies(bench), still_open(bench)) == ([], 1)
    bench.advance(IMMUNITY_MS)
    assert len(again.checks) == 1
    assert again.end(answer, COMMIT).code == 0
    assert bodies(bench) == [b"half"]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("plug", ["kill", "cut_power", "stop"])
def test_a_decision_survives_a_restart(bench, producer, decision, plug):
    answer = producer.send_half()
    producer.end(answer, decision)
    getattr(bench, plug)()
    again = BenchProducer.on(bench)
    assert again.end(answer, COMMIT).remark == NO_HALF
    bench.advance(HOUR_MS)
    assert bodies(bench) == ([b"half"] if decision == COMMIT else [])


def test_when_to_ask_first_survives_a_restart(bench, producer):
    producer.send_half(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    bench.advance(10_000)
    bench.kill()
    again = BenchProducer.on(bench)
    again.live(49_999)
    assert again.checks == []
    bench.advance(1)
    assert len(again.checks) == 1


def test_how_often_was_asked_survives_a_restart(bench, producer):
    producer.send_half()
    producer.live(IMMUNITY_MS + 9 * CHECK_MS)
    assert len(producer.checks) == 10
    bench.kill()
    again = BenchProducer.on(bench)
    again.live(10 * CHECK_MS)
    assert len(again.checks) == CHECKS_MAX - 10
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
    client = BenchProducer.on(bench)
    answers, decided, doubted = {}, {}, set()
    for number in range(30):
        body = b"%d" % number
        answers[body] = client.send_half(body)
        pick = dice.choice(sorted(answers.keys() - decided.keys() - doubted))
        decision = dice.choice([COMMIT, ROLLBACK])
        if dice.random() < 0.5:
            assert client.end(answers[pick], decision).code == 0
            decided[pick] = decision
        elif dice.random() < 0.5:
            client.write(RequestCode.END_TRANSACTION, client.ending(answers[pick], decision))
            doubted.add(pick)  # the plug may come before it is durable
        if dice.random() < 0.3:
            getattr(bench, dice.choice(["kill", "cut_power"]))()
            client = BenchProducer.on(bench)
    for body in sorted(answers.keys() - decided.keys()):
        answer = client.end(answers[body], COMMIT)
        if answer.code == 0:
            decided[body] = COMMIT
        else:
            assert body in doubted
    shown = bodies(bench)
    assert len(shown) == len(set(shown))
    assert {body for body, each in decided.items() if each == COMMIT} <= set(shown)
    assert not {body for body, each in decided.items() if each == ROLLBACK} & set(shown)
    assert bench.engine.undecided() == []


def test_however_many_are_undecided_the_log_has_one_line_a_minute(bench, producer, caplog):
    for _ in range(20):
        producer.send_half()
        bench.advance(100)
    producer.close()
    bench.advance(IMMUNITY_MS + transactions.REPORT_MS)
    lines = [each for each in caplog.records if "half messages" in each.message]
    assert len(lines) == 2, "at once, and a minute later"
    assert lines[1].count > 19
    assert "nobody of its producer group can be asked" in lines[1].what
