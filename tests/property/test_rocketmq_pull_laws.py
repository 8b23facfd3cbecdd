"""Laws of pulls on random walks: answered once and in time, nothing skipped, nothing unwanted.

A walk sends, pulls with and without filters and waiting, lets time pass and cuts connections. The
model is a list per queue: an answer must hold exactly the wanted messages of the stretch from the
offset that was asked for to ``nextBeginOffset``.
"""

import random

import pytest

from kit.rocketmq.bench import BenchConsumer, RocketmqBench, bodies
from penstock.settings.load import Settings
from penstock.settings.protocols import RocketmqSettings

STEPS = 250
TAGS = ("A", "B", "")
FILTERS = {
    "*": lambda tag: True,
    "A": lambda tag: tag == "A",
    "A || B": lambda tag: tag != "",
    "C": lambda tag: False,
}
SELECTORS = {
    "TAGS IS NULL": lambda tag: tag == "",
    "TAGS = 'B' OR TAGS = 'A'": lambda tag: tag != "",
}


class Walk:
    def __init__(self, seed, *, is_long):
        self.dice = random.Random(seed)
        self.bench = RocketmqBench(Settings(rocketmq=RocketmqSettings(is_long_polling=is_long)))
        self.bench.topic("orders", queues=2)
        self.producer = self.bench.client()
        self.stored = ([], [])
        self.waiting = {}
        """(consumer, opaque) -> what it asked for"""
        self.answers = 0
        self.consumers = [BenchConsumer.on(self.bench, f"c{number}") for number in range(3)]
        self.is_long = is_long

    def send(self):
        queue, tag = self.dice.randrange(2), self.dice.choice(TAGS)
        body = b"%d-%d" % (queue, len(self.stored[queue]))
        properties = {"TAGS": tag} if tag else {}
        assert self.producer.send("orders", body, queue=queue, **properties).code == 0
        self.stored[queue].append((body, tag))

    def pull(self):
        consumer = self.dice.choice(self.consumers)
        queue = self.dice.randrange(2)
        end = len(self.stored[queue])
        offset = self.dice.choice((end, end, self.dice.randrange(end + 1)))
        table, language = self.dice.choice(((FILTERS, "TAG"), (SELECTORS, "SQL92")))
        expression = self.dice.choice(list(table))
        wait_ms = self.dice.choice((0, 500, 5_000))
        opaque = consumer.start_pull(
            "orders",
            offset,
            queue=queue,
            suspend_ms=wait_ms,
            subscription=expression,
            expressionType=language,
            maxMsgNums=self.dice.choice((1, 3, 32)),
        )
        longest_ms = (wait_ms if self.is_long else 2_000) if wait_ms else 0
        until_ms = self.bench.clock.monotonic_ms() + longest_ms
        self.waiting[consumer, opaque] = (queue, offset, table[expression], until_ms)

    def cut(self):
        gone = self.dice.randrange(len(self.consumers))
        self.consumers[gone].close()
        self.waiting = {
            key: asked for key, asked in self.waiting.items() if key[0] is not self.consumers[gone]
        }
        self.consumers[gone] = BenchConsumer.on(self.bench, "again")

    def check(self):
        now_ms = self.bench.clock.monotonic_ms()
        for (consumer, opaque), asked in list(self.waiting.items()):
            answer = consumer.answer_to(opaque)
            if answer is None:
                assert now_ms < asked[3], "a pull was not answered in time"
                continue
            del self.waiting[consumer, opaque]
            self.answers += 1
            self.judge(answer, *asked[:3])

    def judge(self, answer, queue, offset, is_wanted):
        after = int(answer.ext["nextBeginOffset"])
        stretch = self.stored[queue][offset:after]
        assert bodies(answer) == [body for body, tag in stretch if is_wanted(tag)]
        assert (answer.code == 0) == bool(answer.body)
        if not stretch:
            assert answer.code == 19
            assert after == offset

    def run(self):
        steps = (self.send, self.send, self.pull, self.pull, self.pull)
        for _ in range(STEPS):
            step = self.dice.random()
            if step < 0.85:
                self.dice.choice(steps)()
            elif step < 0.97:
                self.bench.advance(self.dice.choice((1, 300, 2_000)))
            else:
                self.cut()
            self.check()
        self.bench.advance(6_000)
        self.check()
        assert not self.waiting
        assert len(self.bench.engine.pulls) == 0
        assert self.answers > STEPS // 4


@pytest.mark.parametrize("is_long", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_every_pull_is_answered_once_in_time_and_truly(seed, is_long):
    Walk(seed, is_long=is_long).run()
