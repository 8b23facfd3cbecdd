"""The exam of RocketMQ's readers: groups that do not ask, and what their clients say of it."""

import json
from itertools import count

import pytest

from kit.exam import Exam
from kit.rocketmq.bench import BenchConsumer, Popper, RocketmqBench
from penstock.adapters.rocketmq import new_groups, readers
from penstock.adapters.rocketmq.new_groups import NewGroups
from penstock.adapters.rocketmq.readers import GroupReaders
from penstock.flow.delivery import FROZEN_MS
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import response_to
from penstock.wire.rocketmq.frames import encode
from penstock.wire.rocketmq.message_id import parse_offset_message_id

TOPIC = "orders"
INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
SENT = 40


class GroupExam(Exam):
    """A group of one client, which says what a test tells it to say."""

    def __init__(self):
        super().__init__(RocketmqBench)
        self.client = self.joined("c1")
        self.info = {}
        self.answered = 0

    def joined(self, client_id):
        client = BenchConsumer.on(self.bench, client_id)
        client.heartbeat(**{TOPIC: "*"})
        return client

    def begin(self, count=SENT):
        """It has a place in the topic, and more before it than it takes."""
        self.begins()
        for _ in range(count):
            self.bench.client().send(TOPIC)
        self.client.commit(TOPIC, 0)
        self.client.pull(TOPIC)
        self.meanwhile = self.live

    def live(self):
        """Somebody looks, and the client answers what it is asked."""
        self.client.heartbeat(**{TOPIC: "*"})
        self.findings()
        self.answer_questions()

    def answer_questions(self):
        questions = [each for each in self.client.told if each.code == INFO]
        for question in questions[self.answered :]:
            body = json.dumps(self.info).encode()
            self.client.session.receive(encode(response_to(question, 0, body=body)))
        self.answered = len(questions)

    def end(self):
        self.client.commit(TOPIC, SENT)
        self.bench.settle()
        self.ok_again()


def running_info(*, is_ordered=False, failed=0, properties=(), **queue):
    """As a client of RocketMQ says it."""
    name = json.dumps({"topic": TOPIC, "brokerName": "penstock", "queueId": 0})
    row = {"commitOffset": 0, "cachedMsgCount": 0, "cachedMsgSizeInMiB": 0, **queue}
    return {
        "properties": {"PROP_CONSUMEORDERLY": str(is_ordered).lower(), **dict(properties)},
        "mqTable": {name: row},
        "statusTable": {TOPIC: {"consumeFailedTPS": failed, "consumeFailedMsgs": failed}},
    }


def held_by(threshold, limit):
    """As our client says it."""
    held = f"{TOPIC}@penstock:0 by {threshold} (limit {limit}) since 2026-11-18T12:00:00Z"
    return {"heldQueues": "1", "held": held}


@pytest.fixture
def exam():
    return GroupExam()


@pytest.mark.parametrize(
    ("threshold", "cached"),
    [
        ("messages", {"cachedMsgCount": 1_001}),
        ("bytes", {"cachedMsgSizeInMiB": 100, "cachedMsgCount": 9}),
        ("span", {"cachedMsgMinOffset": 10, "cachedMsgMaxOffset": 2_011, "cachedMsgCount": 9}),
    ],
)
def test_a_push_consumer_at_a_threshold_by_its_cached_counts(exam, threshold, cached):
    exam.begin()
    exam.info = running_info(**cached)
    found = exam.found("behind", f"threshold-{threshold}", "client/c1")
    assert "the usual limit is" in found.sentence
    assert found.path == ("topic/orders", "sub/orders/rocketmq%2Freaders", "client/c1")
    exam.end()


@pytest.mark.parametrize(
    ("threshold", "limit", "says"),
    [
        ("messages", 20, "it has 21 messages of a queue, its limit is 20."),
        ("bytes", 1 << 20, "it has 2 MiB of a queue, its limit is 1 MiB."),
        ("span", 50, "what it has of a queue is 51 offsets apart, its limit is 50."),
    ],
)
def test_penstocks_client_names_its_threshold(exam, threshold, limit, says):
    exam.begin()
    exam.info = running_info(
        properties=held_by(threshold, limit),
        cachedMsgCount=21,
        cachedMsgSizeInMiB=2,
        cachedMsgMaxOffset=51,
    )
    found = exam.found("behind", f"threshold-{threshold}", "client/c1")
    assert says in found.sentence
    exam.end()


def test_penstocks_client_that_no_threshold_holds_only_does_not_ask(exam):
    exam.begin()
    exam.info = running_info(properties={"heldQueues": "0", "held": ""}, cachedMsgCount=SENT // 3)
    exam.found("behind", "does-not-ask", "client/c1")
    exam.end()


@pytest.mark.parametrize("properties", [{"heldQueues": "0", "held": ""}, {}])
def test_a_push_consumer_that_has_taken_what_there_is_and_does_not_come_round_to_it_is_slow(
    exam, properties
):
    exam.begin()
    exam.info = running_info(properties=properties, cachedMsgCount=SENT)
    found = exam.found("behind", "slow-consumer", "client/c1")
    assert f"it has {SENT} messages that it has not settled" in found.sentence
    exam.end()


def test_a_pull_consumer_that_stopped_pulling_and_one_that_only_does_not_ask(exam):
    exam.begin()
    exam.found("behind", "does-not-ask", "client/c1")
    exam.found("behind", "stopped-pulling", "client/c1", within_ms=32_000)
    exam.end()


def test_members_that_read_everything_each_keep_their_own_accounts(exam):
    exam.client.heartbeat(model="BROADCASTING", **{TOPIC: "*"})
    for _ in range(SENT):
        exam.bench.client().send(TOPIC)
    exam.client.pull(TOPIC)
    exam.bench.advance(20_000)
    exam.ok()


def test_a_group_whose_last_member_left_has_nobody(exam):
    exam.begin()
    exam.client.close()
    exam.meanwhile = None
    exam.found("behind", "nobody", "sub/orders/rocketmq%2Freaders")
    exam.joined("c2").commit(TOPIC, SENT)
    exam.ok_again()


def test_an_ordered_queue_whose_first_message_fails_is_stuck(exam):
    exam.begin()
    exam.info = running_info(is_ordered=True, failed=3, transactionMsgCount=1)
    found = exam.found("behind", "ordered-stuck", "client/c1", within_ms=FROZEN_MS + 10_000)
    assert "queue 0 of orders stands still" in found.sentence
    exam.end()


def test_an_ordered_queue_that_fails_nothing_is_slow(exam):
    exam.begin()
    exam.info = running_info(is_ordered=True, transactionMsgCount=1)
    exam.found("behind", "ordered-slow", "client/c1", within_ms=FROZEN_MS + 10_000)
    exam.end()


def test_an_ordered_queue_whose_offset_moves_is_not_stuck(exam):
    exam.begin()
    for second in range(24):
        exam.info = running_info(
            is_ordered=True, failed=1, commitOffset=second, transactionMsgCount=1
        )
        exam.pass_ms(1_000)
    exam.now("behind", "does-not-ask", "client/c1")
    exam.end()


def test_an_ordered_queue_whose_owner_is_gone_with_the_lock(exam):
    gone = exam.joined("c2")
    gone.ask(RequestCode.LOCK_BATCH_MQ, body=gone.lock_body(TOPIC, 0))
    exam.begin()
    gone.close()
    exam.found("behind", "lock-owner-gone", "client/c2")
    exam.end()


def test_a_pop_consumer_that_never_acks(exam):
    popper = Popper(exam.bench, TOPIC, "g")
    exam.client.heartbeat("g", **{TOPIC: "*"})
    exam.begins()
    for _ in range(5):
        exam.bench.client().send(TOPIC)
    popped = popper.pop(queue=0).messages
    assert len(popped) == 5
    exam.pass_ms(25_000)
    exam.ok()
    found = exam.found("behind", "never-acks", "client/c1", within_ms=32_000)
    assert "have 5 messages" in found.sentence
    assert exam.now_ms - found.since_ms == 33_500, "when it took them"
    for each in popped:
        popper.ack(each)
    exam.ok_again()


def test_a_pop_consumer_that_acks_is_ok_whatever_came_before(exam):
    popper = Popper(exam.bench, TOPIC, "g")
    exam.client.heartbeat("g", **{TOPIC: "*"})
    for _ in range(5):
        exam.bench.client().send(TOPIC)
    for each in popper.pop(queue=0).messages:
        popper.ack(each)
    # Nothing was settled for minutes, and there was nothing to settle.
    for _ in range(5):
        exam.bench.advance(20_000)
        exam.client.heartbeat("g", **{TOPIC: "*"})
    exam.bench.client().send(TOPIC)
    popped = popper.pop(queue=0).messages
    exam.bench.advance(10_000)
    exam.ok()
    popper.ack(popped[0])
    exam.ok()


# Groups that never committed: they have no place in the topic yet.


READER = "sub/orders/rocketmq%2Freaders"


def sent(exam, count=SENT):
    for _ in range(count):
        exam.bench.client().send(TOPIC)


def joined(exam):
    """Its topic is there when the client comes, and it says that it lives."""
    sent(exam, 1)
    exam.client.heartbeat(**{TOPIC: "*"})
    exam.meanwhile = exam.live


def test_a_new_group_that_pulls_and_goes_no_further_does_not_ask(exam):
    joined(exam)
    exam.begins()
    sent(exam)
    exam.client.pull(TOPIC, 1)
    found = exam.found("behind", "does-not-ask", "client/c1")
    assert found.path == ("topic/orders", READER, "client/c1")
    assert f"{SENT - 32} messages are ready in subscription orders/rocketmq/readers" in (
        found.sentence
    )
    exam.client.commit(TOPIC, 1 + SENT)
    exam.ok_again()


def test_a_new_group_says_which_threshold_holds_it(exam):
    joined(exam)
    exam.begins()
    exam.info = running_info(properties=held_by("messages", 20), cachedMsgCount=32)
    sent(exam)
    exam.client.pull(TOPIC, 1)
    exam.found("behind", "threshold-messages", "client/c1")
    exam.client.commit(TOPIC, 1 + SENT)
    exam.ok_again()


def test_a_new_group_that_takes_everything_and_commits_nothing_never_acks(exam):
    joined(exam)
    exam.begins()
    sent(exam, 5)
    exam.client.pull(TOPIC, 1)
    exam.pass_ms(29_000)
    exam.ok()
    found = exam.found("behind", "never-acks", "client/c1", within_ms=32_000)
    assert "have 5 messages" in found.sentence
    exam.client.commit(TOPIC, 6)
    exam.ok_again()


def test_a_new_group_that_starts_and_does_not_pull(exam):
    joined(exam)
    exam.begins()
    sent(exam)
    found = exam.found("behind", "does-not-ask", "client/c1")
    assert f"{SENT} messages are ready" in found.sentence, "those from before are not its own"
    exam.found("behind", "stopped-pulling", "client/c1", within_ms=32_000)
    exam.client.pull(TOPIC, 1)
    exam.client.pull(TOPIC, 33)
    exam.client.commit(TOPIC, 1 + SENT)
    exam.ok_again()


def test_a_new_group_that_commits_late_is_ok_in_every_look(exam):
    """Clients say how far they are after ten seconds for the first time."""
    joined(exam)
    for second in range(12):
        sent(exam, 5)
        exam.client.pull(TOPIC, 1 + 5 * second)
        exam.pass_ms(1_000)
        exam.ok()
    exam.client.commit(TOPIC, 61)
    exam.ok_again()


def test_a_new_group_that_drains_what_is_old_is_ok_in_every_look(exam):
    sent(exam, 400)
    exam.bench.advance(600_000)
    exam.client = exam.joined("c2")
    for step in range(12):
        exam.client.pull(TOPIC, 32 * step)
        exam.bench.advance(1_000)
        exam.ok()
    exam.client.commit(TOPIC, 400)
    exam.ok_again()


def test_a_new_group_whose_members_go_has_no_place_and_nothing_is_said_of_it(exam):
    joined(exam)
    exam.begins()
    sent(exam)
    exam.client.pull(TOPIC, 1)
    exam.found("behind", "does-not-ask", "client/c1")
    exam.meanwhile = None
    exam.client.close()
    exam.ok_again()


def test_new_groups_are_bounded(exam, monkeypatch):
    monkeypatch.setattr(new_groups, "NEW_GROUPS_MAX", 3)
    sent(exam, 1)
    for number in range(8):
        exam.client.heartbeat(f"group-{number}", **{TOPIC: "*"})
    assert len(exam.bench.broker.service(NewGroups)) == 3


# Dead letters.

DEAD = "topic/%25DLQ%25readers"


def gives_up(exam, producer):
    """One more message of the topic is given up by the group."""

    ends = count(1)

    def give_up():
        _, position = parse_offset_message_id(producer.send(TOPIC).ext["msgId"])
        ext = {"offset": str(position), "group": "readers", "delayLevel": "-1"}
        assert exam.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0
        exam.client.commit(TOPIC, next(ends))
        exam.bench.settle()

    return give_up


def test_dead_letters_of_a_group_that_nobody_reads(exam):
    exam.begins()
    exam.meanwhile = gives_up(exam, exam.bench.client())
    found = exam.found("dead", "dead-letters", DEAD, waiting=["topic/orders"])
    assert "%DLQ%readers has more and more dead letters" in found.sentence
    exam.meanwhile = None
    exam.ok_again()


def test_dead_letters_of_a_group_that_somebody_reads_are_no_finding(exam):
    give_up = gives_up(exam, exam.bench.client())
    undertaker = exam.joined("c9")
    give_up()
    undertaker.heartbeat("undertakers", **{"%DLQ%readers": "*"})
    for number in range(12):
        give_up()
        undertaker.pull("%DLQ%readers", number, group="undertakers")
        undertaker.commit("%DLQ%readers", number, group="undertakers")
        exam.bench.advance(500)
        exam.ok()


# Producers.


def test_sends_that_are_told_busy_because_a_sync_takes_too_long(exam):
    producer = exam.bench.client()
    producer.send(TOPIC)
    exam.begins()
    exam.bench.publish(exam.bench.channel(), exam.bench.topic("other"), b"x")
    exam.bench.turns()
    job = exam.bench.engine.take_sync_job()
    # Those of the first second still wait; whoever sends later is told at once.
    exam.pass_ms(1_500)
    exam.meanwhile = lambda: producer.send(TOPIC)
    waiting = [producer.session.engine_connection.stage.id]
    found = exam.found("refusing", "slow", "log", waiting=waiting)
    assert "the store is busy" in found.sentence
    exam.found("refusing", "hung", "log", waiting=waiting, within_ms=7_000)
    exam.bench.finish(job)
    exam.bench.settle()
    exam.ok_again()


# How clients are asked.


def test_a_client_is_asked_only_when_its_group_is_behind_and_at_most_every_5_s(exam):
    exam.begin()
    exam.pass_ms(4_000)
    assert INFO not in exam.client.told_codes()
    exam.meanwhile = None
    for _ in range(200):
        exam.bench.advance(100)
        exam.findings()
    asked = exam.client.told_codes().count(INFO)
    assert 2 <= asked <= 4
    exam.end()
    exam.meanwhile = exam.live
    exam.pass_ms(10_000)
    assert exam.client.told_codes().count(INFO) == asked


@pytest.mark.parametrize("body", [b"", b"nonsense", b'{"mqTable": 5}', b'{"mqTable": {"x": {}}}'])
def test_what_a_client_says_may_be_nonsense(exam, body):
    exam.begin()
    exam.pass_ms(7_000)
    (question,) = [each for each in exam.client.told if each.code == INFO][-1:]
    exam.client.session.receive(encode(response_to(question, 0, body=body)))
    exam.now("behind", "does-not-ask", "client/c1")
    exam.end()


def test_a_client_that_does_not_answer_is_judged_without(exam):
    exam.begin()
    exam.meanwhile = lambda: (exam.client.heartbeat(**{TOPIC: "*"}), exam.findings())
    exam.found("behind", "does-not-ask", "client/c1")
    exam.found("behind", "stopped-pulling", "client/c1", within_ms=32_000)
    exam.end()


def test_what_a_client_said_is_old_after_a_while(exam):
    exam.begin()
    exam.info = running_info(cachedMsgCount=5_000)
    exam.found("behind", "threshold-messages", "client/c1")
    exam.bench.advance(readers.OLD_MS + 1_000)
    exam.now("behind", "stopped-pulling", "client/c1")
    exam.end()


def test_answers_are_bounded(exam, monkeypatch):
    monkeypatch.setattr(readers, "ANSWERS_MAX", 3)
    for number in range(8):
        exam.joined(f"m{number}")
    exam.begin()
    exam.pass_ms(8_000)
    assert len(exam.bench.broker.service(GroupReaders)) == 3
    exam.end()
