"""Law of basic.qos: no consumer and no channel ever has more unsettled than it was allowed.

A client with two channels, a few consumers and any order of publishes, acks, qos, gets, cancels and
closes. After every step what the client counts itself is compared with every limit, and at the end
nothing is lost: acked, ready and unacked messages together are those that were published.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.amqp.peer import AmqpBench
from penstock.wire.amqp.methods.basic import Ack, Cancel, Consume, Deliver, Get, GetOk, Nack, Qos
from penstock.wire.amqp.methods.queue import Declare

CHANNELS = st.sampled_from((1, 2))
QUEUES = ("q0", "q1")


class PrefetchLaw(RuleBasedStateMachine):
    """What the client believes, beside what the broker does."""

    @initialize()
    def connect(self) -> None:
        self.bench = AmqpBench()
        self.peer = self.bench.client()
        self.peer.open(2)
        for name in QUEUES:
            self.peer.call(1, Declare(queue=name))
        # Channel -> tag of each unsettled delivery -> consumer ("" = get).
        self.held: dict[int, dict[int, str]] = {1: {}, 2: {}}
        self.windows: dict[str, int] = {}
        self.next_window = {1: 0, 2: 0}
        self.channel_window = {1: 0, 2: 0}
        self.over: dict[object, int] = {}
        self.made = 0
        self.published = 0
        self.settled = 0

    @rule(count=st.integers(1, 12), queue=st.sampled_from(QUEUES))
    def publish(self, count: int, queue: str) -> None:
        for _ in range(count):
            self.peer.publish(1, "", queue, b"x")
        self.published += count
        self._listen()

    @rule(channel=CHANNELS, count=st.integers(0, 5))
    def limit_consumers(self, channel: int, count: int) -> None:
        self.next_window[channel] = count
        self.channel_window[channel] = 0
        self.peer.call(channel, Qos(0, count, False))
        self._listen()

    @rule(channel=CHANNELS, count=st.integers(0, 6))
    def limit_channel(self, channel: int, count: int) -> None:
        self.channel_window[channel] = count
        # What was out before the limit came is out.
        self.over[channel] = self._pushed(channel)
        self.peer.call(channel, Qos(0, count, True))
        self._listen()

    @precondition(lambda self: len(self.windows) < 6)
    @rule(channel=CHANNELS, queue=st.sampled_from(QUEUES))
    def consume(self, channel: int, queue: str) -> None:
        self.made += 1
        tag = f"{channel}:{self.made}"
        self.windows[tag] = self.next_window[channel]
        self.peer.call(channel, Consume(queue=queue, consumer_tag=tag))
        self._listen()

    @precondition(lambda self: bool(self.windows))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(sorted(self.windows)))
        del self.windows[tag]
        self.peer.call(int(tag[0]), Cancel(tag))
        self._listen()

    @rule(channel=CHANNELS, queue=st.sampled_from(QUEUES))
    def get(self, channel: int, queue: str) -> None:
        answer = self.peer.call(channel, Get(queue=queue))
        if isinstance(answer, GetOk):
            self.held[channel][answer.delivery_tag] = ""
        self._listen()

    @rule(data=st.data(), channel=CHANNELS, is_multiple=st.booleans(), is_ack=st.booleans())
    def settle(self, data: st.DataObject, channel: int, is_multiple: bool, is_ack: bool) -> None:
        held = self.held[channel]
        if not held:
            return
        tag = data.draw(st.sampled_from(sorted(held)))
        gone = [each for each in held if each == tag or (is_multiple and each < tag)]
        for each in gone:
            del held[each]
        self.settled += len(gone) if is_ack else 0
        verdict = Ack(tag, is_multiple) if is_ack else Nack(tag, is_multiple, is_requeue=True)
        self.peer.send(channel, verdict)
        self._listen()

    @invariant()
    def nobody_has_more_than_allowed(self) -> None:
        for tag, count in self.windows.items():
            held = [each for each in self.held[int(tag[0])].values() if each == tag]
            assert not count or len(held) <= count, tag
        for channel, count in self.channel_window.items():
            self.over[channel] = min(self.over.get(channel, 0), self._pushed(channel))
            assert not count or self._pushed(channel) <= max(count, self.over[channel])

    @invariant()
    def nothing_is_lost(self) -> None:
        queues = [self.bench.broker.vhosts["/"].queues.get(name) for name in QUEUES]
        ready = sum(queue.ready for queue in queues if queue is not None)
        unacked = sum(queue.unacked for queue in queues if queue is not None)
        assert unacked == sum(len(held) for held in self.held.values())
        assert self.published == self.settled + ready + unacked

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """A queue with messages has no consumer that could take one."""
        for name in QUEUES:
            queue = self.bench.broker.vhosts["/"].queues.get(name)
            assert queue is not None
            if queue.ready:
                takers = [each for each in queue.subscription.consumers if not each.is_passive]
                assert all(each.available_messages() == 0 for each in takers)

    def _pushed(self, channel: int) -> int:
        return sum(1 for tag in self.held[channel].values() if tag)

    def _listen(self) -> None:
        self.peer.turn()
        for heard in self.peer.take():
            assert isinstance(heard.method, Deliver), heard
            method = heard.method
            self.held[heard.channel][method.delivery_tag] = method.consumer_tag


TestPrefetchLaw = PrefetchLaw.TestCase
TestPrefetchLaw.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
