"""Laws of consumption: nothing is committed past an unsettled message, one ordered reader a queue.

Several members of a group, made of the client's own parts (rebalancer, locks, caches, offsets,
services), against a small broker: a log, stored offsets and the table of locks. Members deliver,
succeed, fail, rebalance to any shares (they need not agree), lose their connection, come back,
stop, and are killed. Time passes in leaps.

What an ordered reader is promised holds for listeners that end within 20 s: no lock can keep
others out for longer than its broker does (``locks.py``).
"""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kit.client.parts import (
    QUEUES,
    LockingBroker,
    ManualRuntime,
    MemoryOffsetStore,
    OrderedMember,
    calm,
)
from penstock.client.consumer.concurrent import ConsumeMessageConcurrentlyService
from penstock.client.consumer.executor import ConsumeResult

LISTENER_MS_MAX = 20_000
MEMBERS = st.integers(0, 1)
PULL_MAX = 4
"""Messages of one pull."""
ACTIONS = st.tuples(
    st.sampled_from(["deliver", "begin", "begin", "succeed", "succeed", "fail", "persist"]),
    st.integers(0, 11),
)
"""What members do all the time, and which of those that can do it now."""


class MemberOffsets(MemoryOffsetStore):
    """The shared offsets, reached over one member's connection."""

    def __init__(self, shared):
        super().__init__()
        self.stored = shared.stored


class ConcurrentMember(OrderedMember):
    """The same with a concurrent service: no locks, calls in any order."""

    def __init__(self, runtime, broker, store, **options):
        super().__init__(runtime, broker, store, is_broadcasting=True, **options)
        self.takes_back = True
        self.service = self.queue_owner.service = ConsumeMessageConcurrentlyService(
            runtime, self.executor, self.queue_owner.offsets, self.statistics, give_back=self
        )
        self.given_back = []

    async def give_back(self, message, delay_level=0):
        if self.takes_back:
            self.given_back.append((message.queue, message.offset))
        return self.takes_back


def key_of(member, message):
    """A call by its message; a member may get the same offset twice, as two objects."""
    return member.name, message.queue, message.offset, id(message)


class Workplace(RuleBasedStateMachine):
    """Members of one group and their broker, and what they do all the time."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.runtime = ManualRuntime()
        self.broker = LockingBroker(self.runtime.clock)
        self.store = MemoryOffsetStore()
        self.ends = dict.fromkeys(QUEUES, 0)
        """How many messages each queue of the broker has."""
        self.settled = {queue: set() for queue in QUEUES}
        self.names = 0
        self.members = []
        self.begun_ms = {}
        """Running calls: what ``key_of`` says of them -> when they began."""

    def teardown(self):
        self.run(self.runtime.close())
        self.loop.close()

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def new_member(self):
        self.names += 1
        part = self.runtime.part()
        member = self.make(part, MemberOffsets(self.store), f"m{self.names}")

        async def start():
            member.service.start()

        self.run(start())
        return member

    def make(self, part, store, name):
        raise NotImplementedError

    def let(self, coroutine, member):
        """Have a member do something beside."""

        async def spawn():
            member.runtime.spawn(coroutine, "rule")
            await calm()

        self.run(spawn())

    def pullable(self):
        return [
            (member, queue)
            for member in self.members
            for queue, assigned in member.queue_owner.owned().items()
            if not assigned.is_dropped
            and assigned.next_offset < self.ends[queue]
            and member.requests.is_reachable
            and self.may_pull(member, assigned)
        ]

    def may_pull(self, member, assigned):
        return True

    def deliver(self, pick):
        choices = self.pullable()
        if not choices:
            return
        member, queue = choices[pick % len(choices)]
        assigned = member.queue_owner.owned()[queue]
        offsets = range(assigned.next_offset, self.ends[queue])[: 1 + pick % PULL_MAX]
        assigned.next_offset = offsets[-1] + 1

        async def deliver():
            member.queue_owner.pulled(queue, offsets)
            await calm()

        self.run(deliver())

    def waiting(self):
        return [
            (member, at) for member in self.members for at in range(len(member.executor.waiting()))
        ]

    def begin_call(self, pick):
        choices = self.waiting()
        if not choices:
            return
        member, at = choices[pick % len(choices)]
        try:
            [message] = member.executor.begin(at)
        except IndexError:
            return
        self.check_begin(member, message)
        self.begun_ms[key_of(member, message)] = self.runtime.monotonic_ms()

    def check_begin(self, member, message):
        """What must hold when a listener is called."""

    def begun(self):
        return [(member, at) for member in self.members for at in range(len(member.executor.begun))]

    def end_call(self, pick, answer):
        choices = self.begun()
        if choices:
            member, at = choices[pick % len(choices)]
            self.end(member, at, answer)

    def end(self, member, at, answer):
        _, [message] = member.executor.begun[at]
        del self.begun_ms[key_of(member, message)]
        if answer is None:
            self.settled[message.queue].add(message.offset)

        async def finish():
            if answer == "raise":
                member.executor.finish(error=ValueError("no"), at=at)
            else:
                later = ConsumeResult.SUSPEND if self.is_ordered else ConsumeResult.LATER
                member.executor.finish(None if answer is None else later, at=at)
            await calm()

        self.run(finish())
        self.collect(member)

    def collect(self, member):
        """Messages that left the queue without success: in the broker's hands again."""

    def persist(self, pick):
        member = self.members[pick % len(self.members)]
        self.let(member.queue_owner.offsets.persist(), member)

    def end_overdue(self):
        now_ms = self.runtime.monotonic_ms()
        for member in self.members:
            for at, (_, [message]) in reversed(list(enumerate(member.executor.begun))):
                begun_ms = self.begun_ms[key_of(member, message)]
                if now_ms - begun_ms >= LISTENER_MS_MAX - 1:
                    self.end(member, at, None)

    def reach(self, member, is_reachable):
        member.requests.is_reachable = member.store.is_reachable = is_reachable


class Group(Workplace):
    """What happens to them."""

    @initialize()
    def begin(self):
        self.members = [self.new_member() for _ in range(2)]
        self.ends = dict.fromkeys(QUEUES, 5)
        self.agree(QUEUES)

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 5))
    def publish(self, queue, count):
        self.ends[queue] += count

    @rule(who=MEMBERS, mine=st.sets(st.sampled_from(QUEUES), min_size=1))
    def take(self, who, mine):
        """A member believes these to be its own; another may believe the same."""
        member = self.members[who]
        self.let(member.rebalance(*sorted(mine)), member)

    @rule(split=st.permutations(QUEUES))
    def agree(self, split):
        for member, queue in zip(self.members, split, strict=True):
            self.let(member.rebalance(queue), member)

    @rule(who=MEMBERS)
    def hand_over(self, who):
        """One leaves everything to the other."""
        giver, taker = self.members[who], self.members[1 - who]
        self.let(giver.rebalance(), giver)
        self.let(taker.rebalance(*QUEUES), taker)

    @rule(actions=st.lists(ACTIONS, min_size=3, max_size=12))
    def work(self, actions):
        for action, pick in actions:
            match action:
                case "deliver":
                    self.deliver(pick)
                case "begin":
                    self.begin_call(pick)
                case "succeed":
                    self.end_call(pick, None)
                case "fail":
                    self.end_call(pick, "raise" if pick % 2 else "later")
                case "persist":
                    self.persist(pick)

    @rule(actions=st.lists(ACTIONS, min_size=3, max_size=12))
    def work_more(self, actions):
        self.work(actions)

    @rule(ms=st.sampled_from([100, 500, 1_000, 5_000, 15_000, 31_000, 61_000]))
    def pass_time(self, ms):
        """Listeners end within 20 s, whatever happens."""
        until_ms = self.runtime.monotonic_ms() + ms
        while True:
            ends = [each + LISTENER_MS_MAX - 1 for each in self.begun_ms.values()]
            next_ms = min([*ends, until_ms])
            self.run(self.runtime.advance(max(0, next_ms - self.runtime.monotonic_ms())))
            for member in self.members:
                self.collect(member)
            if next_ms >= until_ms:
                return
            self.end_overdue()

    @rule(who=MEMBERS, is_reachable=st.booleans())
    def connection(self, who, is_reachable):
        self.reach(self.members[who], is_reachable)

    @rule(who=MEMBERS, ms=st.sampled_from([31_000, 59_000, 61_000]))
    def overtake(self, who, ms):
        """The dangerous one: a member without connection, and another that takes its queues."""
        cut_off, other = self.members[who], self.members[1 - who]
        self.reach(other, True)
        self.let(cut_off.rebalance(*QUEUES), cut_off)
        self.deliver(0)
        self.deliver(1)
        self.reach(cut_off, False)
        self.pass_time(ms)
        self.let(other.rebalance(*QUEUES), other)
        for pick in range(4):
            self.deliver(pick)
            self.begin_call(pick)

    @rule(who=MEMBERS)
    def push_out(self, who):
        """The other dangerous one: a queue changes hands while its listener runs."""
        giver = self.members[who]
        self.let(giver.rebalance(*QUEUES), giver)
        for pick in range(4):
            self.deliver(pick)
            self.begin_call(pick)
        self.hand_over(who)
        self.pass_time(1_000)
        self.hand_over(who)
        for pick in range(4):
            self.deliver(pick)
            self.begin_call(pick)

    @rule(who=MEMBERS)
    def kill(self, who):
        member = self.members[who]
        self.reach(member, False)
        member.runtime.kill()
        for key in [each for each in self.begun_ms if each[0] == member.name]:
            del self.begun_ms[key]
        self.run(calm())
        self.members[who] = self.new_member()

    @rule(who=MEMBERS, queue=st.sampled_from(QUEUES), back=st.integers(0, 3))
    def reset(self, who, queue, back):
        """An operator moves the group back; forward would be passing over on purpose."""
        member = self.members[who]
        offset = max(0, self.store.stored.get(queue, 0) - back)
        self.let(member.reset({queue: offset}), member)

    @invariant()
    def nothing_is_committed_past_an_unsettled_message(self):
        for queue, offset in self.store.stored.items():
            missing = set(range(offset)) - self.settled[queue]
            assert not missing, f"{queue} is committed up to {offset} without {missing}"


class OrderedGroup(Group):
    is_ordered = True

    def make(self, part, store, name):
        return OrderedMember(part, self.broker, store, name=name, reconsume_max=2)

    def may_pull(self, member, assigned):
        return member.locks.is_held(assigned)

    def check_begin(self, member, message):
        others = [key for key in self.begun_ms if key[1] == message.queue]
        assert not others, f"{member.name} begins with {message.queue} while {others} work on it"
        missing = set(range(message.offset)) - self.settled[message.queue]
        assert not missing, f"{message.queue} goes on at {message.offset} without {missing}"

    def collect(self, member):
        for queue, offset in member.buried:
            self.settled[queue].add(offset)


class ConcurrentGroup(Group):
    is_ordered = False

    def make(self, part, store, name):
        return ConcurrentMember(part, self.broker, store, name=name)

    @rule(who=MEMBERS, takes_back=st.booleans())
    def broker_takes_back(self, who, takes_back):
        self.members[who].takes_back = takes_back

    def collect(self, member):
        for queue, offset in member.given_back:
            self.settled[queue].add(offset)


@pytest.mark.parametrize("group", [OrderedGroup, ConcurrentGroup])
def test_no_interleaving_commits_past_an_unsettled_message_or_has_two_ordered_readers(
    group, is_long
):
    examples = 2_000 if is_long else 40
    run_state_machine_as_test(
        group, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )
