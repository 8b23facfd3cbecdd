"""Law 6 through AMQP sessions: refused is never stored, confirmed always is, each answered once.

Two clients, one with confirms and one with transactions, publish to a queue that takes everything,
to one that rejects what is too much, and to nobody; the disk refuses writes now and then; in the
end the process is killed or the power is cut.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kit.amqp.peer import AmqpBench
from penstock.model.names import TopicName
from penstock.testing.storage import FaultKind
from penstock.wire.amqp.methods.basic import Ack, Nack, Return
from penstock.wire.amqp.methods.channel import (
    Close,
    ConfirmSelect,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
)
from penstock.wire.amqp.methods.queue import Declare
from penstock.wire.amqp.properties import Properties, encode_properties

QUEUES = ("plain", "small")
SMALL_MAX = 4
KEYS = st.sampled_from((*QUEUES, "nowhere"))
PROPERTIES = {mode: encode_properties(Properties(delivery_mode=mode)) for mode in (1, 2)}


class Published:
    """One publish as its client remembers it."""

    def __init__(self, body, key, mode, *, is_mandatory):
        self.body = body
        self.is_mandatory = is_mandatory
        self.is_routable = key in QUEUES
        self.is_durable = self.is_routable and mode == 2
        self.is_returned = False
        self.answer = None


class AmqpPublishing(RuleBasedStateMachine):
    """The two clients and what they know."""

    def __init__(self):
        super().__init__()
        self.bench = AmqpBench()
        self.confirming = self.bench.client()
        self.confirming.call(1, Declare(queue="plain", is_durable=True))
        small = {"x-max-length": SMALL_MAX, "x-overflow": "reject-publish"}
        self.confirming.call(1, Declare(queue="small", is_durable=True, arguments=small))
        self.confirming.call(1, ConfirmSelect())
        self.trading = self.bench.client()
        self.trading.call(1, TxSelect())
        self.publishes = []
        self.waiting = []
        self.commits = []
        self.committed, self.rolled_back = set(), set()
        self.number = 0

    def body(self):
        self.number += 1
        return b"%d" % self.number

    # What clients do.

    @rule(count=st.integers(1, 8), key=KEYS, mode=st.sampled_from((1, 2)), must=st.booleans())
    def publish(self, count, key, mode, must):
        for _ in range(count):
            each = Published(self.body(), key, mode, is_mandatory=must)
            self.publishes.append(each)
            self.confirming.publish(1, "", key, each.body, PROPERTIES[mode], is_mandatory=must)

    @precondition(lambda self: self.trading is not None)
    @rule(count=st.integers(1, 5))
    def hold(self, count):
        for _ in range(count):
            self.waiting.append(self.body())
            self.trading.publish(1, "", "plain", self.waiting[-1], PROPERTIES[2])

    @precondition(lambda self: self.trading is not None)
    @rule()
    def commit(self):
        self.trading.send(1, TxCommit())
        self.commits.append(self.waiting)
        self.waiting = []

    @precondition(lambda self: self.trading is not None)
    @rule()
    def roll_back(self):
        self.trading.send(1, TxRollback())
        self.rolled_back.update(self.waiting)
        self.waiting = []

    # What the world does.

    @rule()
    def turn(self):
        self.bench.engine.turn()

    @rule()
    def sync(self):
        self.bench.sync()

    @rule(dice=st.integers(0, 3))
    def let_the_next_write_fail(self, dice):
        if not dice:
            self.bench.storage.plan.fail_next("write", FaultKind.ENOSPC)

    @rule(ms=st.sampled_from((1, 150)))
    def wait(self, ms):
        self.bench.advance(ms)

    # What clients hear.

    @invariant()
    def hear(self):
        for heard in self.confirming.take():
            method = heard.method
            if isinstance(method, Return):
                (published,) = [each for each in self.publishes if each.body == heard.body]
                assert published.is_mandatory
                assert published.answer is None, "a return comes before its ack"
                published.is_returned = True
            else:
                self.answered(method)
        self.hear_trading()
        self.nothing_refused_is_stored()

    def answered(self, method):
        assert isinstance(method, (Ack, Nack)), method
        tag = method.delivery_tag
        tags = range(1, tag + 1) if method.is_multiple else (tag,)
        for each in tags:
            published = self.publishes[each - 1]
            if published.answer is None:
                published.answer = type(method)
            else:
                assert method.is_multiple, f"publish {each} is answered twice"
        assert self.publishes[tag - 1].answer is type(method)

    def hear_trading(self):
        if self.trading is None:
            return
        for heard in self.trading.take():
            if isinstance(heard.method, TxCommitOk):
                self.committed.update(self.commits.pop(0))
            elif isinstance(heard.method, Close):
                assert "partial tx completion" in heard.method.reply_text
                self.trading = None
                self.waiting = []
                return
            else:
                assert isinstance(heard.method, TxRollbackOk)

    def stored(self):
        topics = [self.bench.engine.topic(TopicName("", name)) for name in QUEUES]
        return {body for topic in topics for body in self.bench.bodies(topic)}

    def nothing_refused_is_stored(self):
        stored = self.stored()
        nacked = {each.body for each in self.publishes if each.answer is Nack}
        assert not nacked & stored
        assert not self.rolled_back & stored
        assert not set(self.waiting) & stored, "before its commit"

    def teardown(self):
        is_power_cut = self.number % 2
        acked = {each.body for each in self.publishes if each.answer is Ack and each.is_durable}
        if self.number % 3:
            self.bench.advance(200)  # after a refused write the next try has its time
            self.confirming.turn()
            if self.trading is not None:
                self.trading.turn()
            self.hear()
            for each in self.publishes:
                assert each.answer is not None, "at rest everything is answered"
                assert each.is_returned == (each.is_mandatory and not each.is_routable)
            assert self.trading is None or not self.commits
            acked = {e.body for e in self.publishes if e.answer is Ack and e.is_durable}
        if is_power_cut:
            self.bench.cut_power()
        else:
            self.bench.kill()
        assert acked | self.committed <= self.stored()
        self.nothing_refused_is_stored()


AmqpPublishing.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, print_blob=True
)
TestAmqpPublishing = AmqpPublishing.TestCase
