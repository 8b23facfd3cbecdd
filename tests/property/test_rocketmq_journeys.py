"""T22 for retries, delays and transactions: random journeys against a model, plugs pulled between.

The model knows of each message what was promised when its answer came: where it must be at the end,
how often, and not before when. What was on its way when the plug was pulled may be there or not,
once at most.
"""

import random
from collections import Counter

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.adapters.rocketmq.delay import LEVELS_MS
from penstock.adapters.rocketmq.transactions import MAX_CHECKS_TOPIC
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.message_id import parse_offset_message_id
from penstock.wire.rocketmq.properties import format_properties

RETRY, DLQ = "%RETRY%readers", "%DLQ%readers"
TOPICS = ("orders", RETRY, DLQ, MAX_CHECKS_TOPIC)
PLUGS = ("kill", "cut_power", "stop")
STEPS = 150
SEEDS = range(8)
SEEDS_LONG = range(340)
HOUR_MS = 3_600_000


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        seeds = SEEDS_LONG if metafunc.config.getoption("--long") else SEEDS
        metafunc.parametrize("seed", seeds)


class Journeys:
    """A broker, a client and the model."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.bench = RocketmqBench(seed=seed)
        self.client = self.bench.client()
        self.count = 0
        self.owed = Counter()
        """(topic, body) that must be there at the end, and how often."""
        self.doubted = Counter()
        """(topic, body) that may be there beyond that."""
        self.not_before = {}
        self.halves = {}
        """Body -> position of half messages that nobody decided."""
        self.stored = []
        """(body, position) of what can be sent back."""

    def step(self):
        does = (
            [self.send_plain] * 2
            + [self.send_delayed] * 4
            + [self.send_half] * 4
            + [self.end_half] * 4
            + [self.send_back] * 4
            + [self.pass_time] * 3
            + [self.pull_plug]
        )
        self.dice.choice(does)()
        self.check_order_of_time()

    def new_body(self):
        self.count += 1
        return b"%d" % self.count

    def send_plain(self):
        body = self.new_body()
        answer = self.client.send("orders", body)
        assert answer.code == 0
        self.owed["orders", body] += 1
        self.stored.append((body, position_of(answer)))

    def send_delayed(self):
        body = self.new_body()
        now_ms = self.bench.clock.wall_ms()
        if self.dice.random() < 0.5:
            level = self.dice.randint(1, 4)
            due_ms = now_ms + LEVELS_MS[level - 1]
            properties = {"DELAY": str(level)}
        else:
            due_ms = now_ms + self.dice.randint(1, 20_000)
            properties = {"TIMER_DELIVER_MS": str(due_ms)}
        if self.dice.random() < 0.2:
            self.fire("orders", body, properties)
            return
        assert self.client.send("orders", body, **properties).code == 0
        self.owed["orders", body] += 1
        self.not_before[body] = due_ms

    def send_half(self):
        body = self.new_body()
        properties = {"TRAN_MSG": "true", "PGROUP": "producers"}
        answer = self.client.send("orders", body, **properties)
        assert answer.code == 0
        self.halves[body] = position_of(answer)

    def end_half(self):
        if not self.halves:
            return
        body = self.dice.choice(list(self.halves))
        position = self.halves[body]
        decision = self.dice.choice(["8", "12"])
        ext = {
            "producerGroup": "producers",
            "tranStateTableOffset": str(position),
            "commitLogOffset": str(position),
            "commitOrRollback": decision,
        }
        if self.dice.random() < 0.2:
            self.client.write(RequestCode.END_TRANSACTION, ext, is_oneway=True)
            self.pull_plug()
            if self.bench.engine.is_undecided(position):
                return  # it never came: the decision is still to be made
            decided = decision == "8"
        else:
            answer = self.client.ask(RequestCode.END_TRANSACTION, ext)
            if answer.code != 0:
                # Nobody decided in time: given up.
                assert not self.bench.engine.is_undecided(position)
                self.owed[MAX_CHECKS_TOPIC, body] += 1
                del self.halves[body]
                return
            decided = decision == "8"
        del self.halves[body]
        if decided:
            self.owed["orders", body] += 1

    def send_back(self):
        if not self.stored:
            return
        body, position = self.dice.choice(self.stored)
        level = self.dice.choice([-1, 1, 2])
        ext = {"offset": str(position), "group": "readers", "delayLevel": str(level)}
        topic = DLQ if level < 0 else RETRY
        if self.dice.random() < 0.2:
            self.client.write(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
            self.doubted[topic, body] += 1
            self.pull_plug()
            return
        assert self.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0
        self.owed[topic, body] += 1

    def fire(self, topic, body, properties):
        """Send, and do not wait for what comes of it."""
        ext = {
            "producerGroup": "producers",
            "topic": topic,
            "defaultTopic": "TBW102",
            "queueId": "0",
            "properties": format_properties(properties).decode(),
        }
        self.client.write(RequestCode.SEND_MESSAGE, ext, body)
        self.doubted[topic, body] += 1
        if self.dice.random() < 0.5:
            self.bench.engine.turn()
        self.pull_plug()

    def pass_time(self):
        self.bench.advance(self.dice.choice([1, 500, 1_000, 5_000, 12_000]))

    def pull_plug(self):
        getattr(self.bench, self.dice.choice(PLUGS))()
        self.client = self.bench.client()

    def seen(self):
        return Counter(
            (topic, message.body) for topic in TOPICS for message in self.bench.stored(topic)
        )

    def check_order_of_time(self):
        now_ms = self.bench.clock.wall_ms()
        for _, body in self.seen():
            assert self.not_before.get(body, 0) <= now_ms, "delivered early"

    def end(self):
        self.bench.advance(HOUR_MS)
        for body in self.halves:
            self.owed[MAX_CHECKS_TOPIC, body] += 1
        seen = self.seen()
        lost = self.owed - seen
        assert not lost, "lost"
        extra = seen - self.owed - self.doubted
        assert not extra, "invented or doubled"
        assert self.bench.engine.undecided() == []


def position_of(answer):
    return parse_offset_message_id(answer.ext["msgId"])[1]


def test_every_journey_ends_where_it_was_promised_to_end(seed):
    journeys = Journeys(seed)
    for _ in range(STEPS):
        journeys.step()
    journeys.end()


def test_the_model_would_notice(monkeypatch):
    """A broker that forgets to drop what is rolled back is found out."""
    found = 0
    for seed in SEEDS:
        journeys = Journeys(seed)
        engine_kind = type(journeys.bench.engine)
        with monkeypatch.context() as broken:
            broken.setattr(engine_kind, "cancel_delayed", engine_kind.release)
            try:
                for _ in range(STEPS):
                    journeys.step()
                journeys.end()
            except AssertionError:
                found += 1
    assert found == len(SEEDS)


@pytest.mark.parametrize("plug", PLUGS)
def test_pulling_the_plug_again_and_again_changes_nothing(plug):
    journeys = Journeys(1)
    journeys.send_delayed()
    journeys.send_half()
    journeys.send_plain()
    for _ in range(5):
        getattr(journeys.bench, plug)()
    journeys.client = journeys.bench.client()
    journeys.end()
