"""Fast failure: every request leaves once, in time, in order, and served in turn."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.flow.fast_fail import BusyCause, FastFailQueues, RequestClass

CAPACITY, AGE_MS = 12, 200


class SendQueue(RuleBasedStateMachine):
    """One class of requests beside a model that keeps them in a plain list."""

    @initialize()
    def start(self):
        self.queues = FastFailQueues((RequestClass("send", AGE_MS, CAPACITY),))
        self.waiting = []
        self.now_ms = self.number = 0

    @rule(key=st.sampled_from("abcd"), n=st.integers(1, 4))
    def offer(self, key, n):
        for _ in range(n):
            self.number += 1
            refusal = self.queues.offer("send", key, self.number, self.now_ms)
            if len(self.waiting) >= CAPACITY:
                assert (refusal.cause, refusal.queued) == (BusyCause.OVERLOAD, CAPACITY)
            else:
                assert refusal is None
                self.waiting.append((self.number, key, self.now_ms))

    @rule(n=st.integers(1, 10))
    def take(self, n):
        keys_before = {key for _, key, _ in self.waiting}
        taken = self.queues.take("send", n)
        assert len(taken) == min(n, len(self.waiting))
        served = [next(each for each in self.waiting if each[0] == one) for one in taken]
        for key in keys_before:
            mine = [number for number, of, _ in self.waiting if of == key]
            got = [number for number, of, _ in served if of == key]
            assert got == mine[: len(got)]
            # Fair: whoever waited and got less than another had nothing more to be served.
            others = [sum(of == other for _, of, _ in served) for other in keys_before]
            assert len(got) == len(mine) or len(got) >= max(others) - 1
        self.waiting = [each for each in self.waiting if each[0] not in taken]

    @rule(ms=st.integers(0, 150))
    def sweep(self, ms):
        self.now_ms += ms
        refused = self.queues.sweep(self.now_ms)
        late = [(one, at) for one, _, at in self.waiting if self.now_ms - at >= AGE_MS]
        assert [(one, busy.waited_ms) for one, busy in refused] == [
            (one, self.now_ms - at) for one, at in late
        ]
        gone = {one for one, _ in late}
        self.waiting = [each for each in self.waiting if each[0] not in gone]

    @rule()
    def the_store_is_busy(self):
        drained = self.queues.drain("send", self.now_ms)
        assert [one for one, _ in drained] == [one for one, _, _ in self.waiting]
        assert all(busy.cause is BusyCause.STORE for _, busy in drained)
        self.waiting = []

    @invariant()
    def the_counts_are_right(self):
        if not hasattr(self, "queues"):
            return
        assert self.queues.count("send") == len(self.waiting) <= CAPACITY
        oldest = min((at for _, _, at in self.waiting), default=None)
        expected = None if oldest is None else oldest + AGE_MS
        assert self.queues.next_deadline_ms == expected
        assert self.queues.is_empty == (not self.waiting)


TestSendQueue = SendQueue.TestCase
TestSendQueue.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
