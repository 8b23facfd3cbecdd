"""Laws of our Pulsar producer, whatever happens to its connection.

Messages are sent, batched or not; receipts come or do not; connections are cut and come back; time
runs out. The broker deduplicates by sequence id. Then every send ends exactly once, what the broker
stored is in the order of sending and without doubles, and whoever was told an id finds his message.
"""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.client.pulsar_producer import ProducerBench, SentEntry, until
from penstock.client.pulsar.batching import Batching
from penstock.client.pulsar.errors import TimedOut
from penstock.client.pulsar.message import MessageId
from penstock.client.pulsar.routing import BatchLimits

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 9), st.integers(0, 2)),
        st.tuples(st.just("receive"), st.integers(1, 5)),
        st.tuples(st.just("confirm"), st.integers(1, 5)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("cut")),
        st.tuples(st.just("wait"), st.integers(1, 400)),
    ),
    max_size=40,
)
TIMEOUT_MS = 1000


class Dedup:
    """A broker that stores what it receives once, and confirms it later, or never."""

    def __init__(self, bench: ProducerBench) -> None:
        self.bench = bench
        self.stored: list[bytes] = []
        self.last_sequence_id = -1
        self._answers: list[tuple[int, bool]] = []

    def receive(self, count: int | None = None) -> None:
        """The next SENDs arrive."""
        connection = self.bench.broker.connection
        for sent in connection.sends[:count]:
            self._answers.append((sent.sequence_id, self._store(sent)))
        del connection.sends[:count]

    def confirm(self, count: int | None = None) -> None:
        """The next receipts leave."""
        for sequence_id, is_duplicate in self._answers[:count]:
            self.bench.broker.confirm_one(sequence_id, is_duplicate=is_duplicate)
        del self._answers[:count]

    def cut(self) -> None:
        """What was on its way is lost, in both directions."""
        self._answers.clear()
        self.bench.cut()

    def _store(self, sent: SentEntry) -> bool:
        """True if it had it already."""
        if sent.sequence_id <= self.last_sequence_id:
            return True
        highest = sent.metadata.highest_sequence_id
        self.last_sequence_id = max(sent.sequence_id, highest)
        self.stored += sent.payloads
        return False


async def play(steps: list[tuple], limits: BatchLimits | None, batching: Batching) -> None:
    bench = ProducerBench()
    producer = await bench.partition(producer_name="me", limits=limits, batching=batching)
    broker, sends = Dedup(bench), []
    for kind, *details in steps:
        if kind == "send":
            count, key = details
            fresh = [
                bench.send(b"%d" % n, key=f"k{key}") for n in range(len(sends), len(sends) + count)
            ]
            for each in fresh:
                each.deadline_ms = bench.clock.monotonic_ms() + TIMEOUT_MS
            sends += fresh
            producer.begin(fresh)
        elif kind == "flush":
            producer.send_batches()
        elif kind == "wait":
            bench.clock.advance(details[0])
            producer.expire(bench.clock.monotonic_ms())
        elif kind == "cut":
            broker.cut()
            await until(lambda: producer.handler.ready_connection is not None)
        else:
            getattr(broker, kind)(details[0])
    producer.send_batches()
    broker.receive()
    broker.confirm()

    assert all(each.outcome is not None for each in sends)
    assert len(bench.over) == len(sends)
    assert len(producer.pending) == 0
    assert producer.pending.bytes == 0
    assert len(set(broker.stored)) == len(broker.stored)
    confirmed = {b"%d" % n for n, each in enumerate(sends) if isinstance(each.outcome, MessageId)}
    late = {b"%d" % n for n, each in enumerate(sends) if isinstance(each.outcome, TimedOut)}
    assert confirmed | late == {b"%d" % n for n in range(len(sends))}
    assert confirmed <= set(broker.stored)
    of_key: dict[str, list[int]] = {}
    for body in broker.stored:
        of_key.setdefault(sends[int(body)].content.key, []).append(int(body))
    if batching is Batching.DEFAULT:
        of_key = {"all": [int(body) for body in broker.stored]}
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_alone_every_send_ends_once_and_nothing_is_stored_twice_or_out_of_order(steps):
    asyncio.run(play(steps, None, Batching.DEFAULT))


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_in_batches_every_send_ends_once_and_nothing_is_stored_twice_or_out_of_order(steps):
    asyncio.run(play(steps, BatchLimits(5, 1000, 10_000), Batching.DEFAULT))


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_in_batches_by_key_the_order_of_each_key_holds(steps):
    asyncio.run(play(steps, BatchLimits(5, 1000, 10_000), Batching.KEY))
