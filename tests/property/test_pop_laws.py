"""Laws of pop under any interleaving of pops, acknowledgements, changes, time-outs and restarts.

* A message is acknowledged at most once, and after that nobody sees it again. In order a pop begins
  at the first message of its queue that is not acknowledged and leaves out none behind it, as in
  RocketMQ: what was acknowledged behind that one is forgotten, and only that comes again.
* While a receipt is alive nobody else gets the message; a receipt that was replaced, ran out or
  is of an earlier process does nothing.
* In the end every message was acknowledged: none is lost, whatever came back where.
"""

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.rocketmq.bench import Popped, Popper, RocketmqBench, is_void
from penstock.wire.rocketmq.bodies import TopicConfig

QUEUES = 2
VISIBILITIES_MS = (10, 100, 1000)


@dataclass
class Alive:
    """The one receipt of a message that counts."""

    popped: Popped
    until_ms: int


class World:
    """A broker, and what its clients believe."""

    def __init__(self, *, is_orderly):
        self.bench = RocketmqBench()
        self.bench.broker.topics.put(
            TopicConfig(topic_name="orders", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        )
        self.bench.settle()
        self.is_orderly = is_orderly
        self.sent = 0
        self.lanes: list[list[bytes]] = [[] for _ in range(QUEUES)]
        """What was sent, by queue."""
        self.acked: set[bytes] = set()
        self.unsure: set[bytes] = set()
        """Acknowledged right before a crash: either way is right."""
        self.alive: dict[bytes, Alive] = {}
        self.void: list[Popped] = []
        self._connect()

    def _connect(self):
        # A restart takes a while; receipts are told apart by time.
        self.bench.clock.advance(1000)
        self.bench.broker.random.seed(self.sent)
        self.producer = self.bench.client()
        self.poppers = [Popper(self.bench), Popper(self.bench)]

    @property
    def now_ms(self):
        return self.bench.clock.monotonic_ms()

    def send(self, a, b):
        assert self.producer.send("orders", b"%d" % self.sent, queue=a % QUEUES).code == 0
        self.lanes[a % QUEUES].append(b"%d" % self.sent)
        self.sent += 1

    def pop(self, a, b):
        visibility_ms = VISIBILITIES_MS[b % 3]
        answer = self.poppers[a % 2].pop(
            a % (QUEUES + 1) - 1,
            1 + b % 5,
            invisible_time=visibility_ms,
            order=self.is_orderly,
            attempt_id=f"attempt-{a % 3}",
        )
        if self.is_orderly:
            self._renew(answer)
            self._check_order(answer)
        for popped in answer.messages:
            body = popped.body
            assert body not in self.acked, f"{body} was acknowledged and came again"
            before = self.alive.pop(body, None)
            if before is not None:
                assert before.until_ms <= self.now_ms, f"{body} is out twice"
                self.void.append(before.popped)
            self.alive[body] = Alive(popped, self.now_ms + visibility_ms)

    def _renew(self, answer):
        """The same orderly attempt asks again: all that it had of these queues is void."""
        queues = {popped.handle.queue_id for popped in answer.messages}
        for body, receipt in list(self.alive.items()):
            if receipt.popped.handle.queue_id in queues:
                self.void.append(self.alive.pop(body).popped)

    def _check_order(self, answer):
        for queue_id, lane in enumerate(self.lanes):
            got = [each.body for each in answer.messages if each.handle.queue_id == queue_id]
            if got:
                # Of those that are unsure, any may be the first.
                waiting = [body for body in lane if body not in self.acked]
                assert waiting, f"{got} came again, and nothing before it is unacknowledged"
                sure = next((body for body in waiting if body not in self.unsure), waiting[-1])
                firsts = waiting[: waiting.index(sure) + 1]
                assert got[0] in firsts, f"{got[0]} came before {firsts}"
                start = lane.index(got[0])
                assert got == lane[start : start + len(got)], f"{got} has gaps: {lane}"
                self.acked -= set(lane[start:])

    def ack(self, a, b):
        if not self.alive:
            return
        body = sorted(self.alive)[a % len(self.alive)]
        receipt = self.alive.pop(body)
        popper = self.poppers[b % 2]
        answer = popper.ack_all([receipt.popped]) if b % 5 == 0 else popper.ack(receipt.popped)
        if receipt.until_ms > self.now_ms:
            assert not is_void(answer), f"the living receipt of {body} was taken for void"
            assert answer.code == 0
            self.acked.add(body)
        elif b % 5 == 0:
            # A batch does not say which of it counted.
            self.unsure.add(body)
        elif is_void(answer):
            self.void.append(receipt.popped)
        else:
            self.acked.add(body)

    def ack_void(self, a, b):
        if self.void:
            popped = self.void[a % len(self.void)]
            assert is_void(self.poppers[b % 2].ack(popped))
            changed = self.poppers[b % 2].change(popped, 1000)
            assert not isinstance(changed, Popped)

    def change(self, a, b):
        if not self.alive:
            return
        body = sorted(self.alive)[a % len(self.alive)]
        receipt = self.alive[body]
        visibility_ms = (0, *VISIBILITIES_MS)[b % 4]
        changed = self.poppers[b % 2].change(receipt.popped, visibility_ms)
        if isinstance(changed, Popped):
            self.void.append(receipt.popped)
            self.alive[body] = Alive(changed, self.now_ms + visibility_ms)
        else:
            assert receipt.until_ms <= self.now_ms, f"the living receipt of {body} was refused"
            self.void.append(self.alive.pop(body).popped)

    def wait(self, a, b):
        self.bench.advance((1, 10, 100, 1000)[a % 4])

    def crash(self, a, b):
        """A kill or a power cut, perhaps in the middle of a time-out or an acknowledgement."""
        if a % 3 == 1:
            self.bench.clock.advance(VISIBILITIES_MS[b % 3])
            self.bench.engine.turn()
        elif a % 3 == 2 and self.alive:
            body = sorted(self.alive)[b % len(self.alive)]
            self.poppers[0].start_ack(self.alive[body].popped)
            self.unsure.add(body)
            for _ in range(b % 3):
                self.bench.engine.turn()
        (self.bench.kill, self.bench.cut_power)[b % 2]()
        self.void += [receipt.popped for receipt in self.alive.values()]
        self.alive.clear()
        self._connect()

    def stop(self, a, b):
        self.bench.stop()
        self.void += [receipt.popped for receipt in self.alive.values()]
        self.alive.clear()
        self._connect()

    def drain(self):
        """Everything comes sooner or later, and is acknowledged."""
        self.bench.advance(2 * max(VISIBILITIES_MS))
        for _ in range(10 * self.sent + 10):
            found = self.poppers[0].pop(order=self.is_orderly, invisible_time=60_000)
            if found.code:
                break
            if self.is_orderly:
                self._check_order(found)
            for popped in found.messages:
                assert popped.body not in self.acked, f"{popped.body} came again"
                assert self.poppers[0].ack(popped).code == 0
                self.acked.add(popped.body)
        missing = {b"%d" % number for number in range(self.sent)} - self.acked - self.unsure
        assert not missing, f"lost: {sorted(missing)}"


OPERATIONS = {
    "send": 6,
    "pop": 6,
    "ack": 3,
    "ack_void": 3,
    "change": 2,
    "wait": 3,
    "crash": 1,
    "stop": 0.5,
}
"""What a walk does, and how often."""

STEPS = 60


def walk(seed, *, is_orderly):
    dice = Random(seed)
    world = World(is_orderly=is_orderly)
    for name in dice.choices(list(OPERATIONS), list(OPERATIONS.values()), k=STEPS):
        getattr(world, name)(dice.randrange(60), dice.randrange(60))
    world.drain()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_message_is_acknowledged_once_or_visible_again(seed):
    walk(seed, is_orderly=False)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_same_holds_in_order(seed):
    walk(seed, is_orderly=True)
