"""T21: whatever clients do, queues do what the model of queues does.

A client with a publishing channel and two consuming ones walks at random over queues of every
kind; after each step the broker is at rest, and every delivery, order, mark, confirm, count, death
and reason is compared with ``tests/kit/amqp/queue_model.py``. The broker is stopped and killed on
the way; time passes by a manual clock.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kit.amqp.peer import AmqpBench
from kit.amqp.queue_model import Heard, ModelConsumer, ModelMessage, ModelQueue
from kit.amqp.queue_model import QueueModel as Model
from penstock.wire.amqp.methods.basic import (
    Ack,
    Cancel,
    CancelOk,
    Consume,
    ConsumeOk,
    Deliver,
    Get,
    GetEmpty,
    Nack,
    Qos,
    QosOk,
    Recover,
    RecoverOk,
    Reject,
)
from penstock.wire.amqp.methods.channel import Close, CloseOk, ConfirmSelect, ConfirmSelectOk
from penstock.wire.amqp.methods.queue import Declare, DeclareOk, Purge, PurgeOk
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties

PUBLISHING = 1
CONSUMING = (2, 3)
ARGUMENTS = {
    "plain": {},
    "short": {"x-max-length": 3},
    "light": {"x-max-length-bytes": 12},
    "strict": {"x-max-length": 2, "x-overflow": "reject-publish"},
    "brief": {"x-message-ttl": 100},
    "ranked": {"x-max-priority": 2},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 1},
}
RULES = {
    "plain": {},
    "short": {"length_max": 3},
    "light": {"bytes_max": 12},
    "strict": {"length_max": 2, "is_rejecting": True},
    "brief": {"ttl_ms": 100},
    "ranked": {"priority_max": 2},
    "quorum": {"delivery_limit": 1},
}
"""The same for the model."""
WHICH = st.integers(0, 5)
"""One of the two queues of a walk, or (a third of the time) where their dead go."""
CHANNELS = st.sampled_from(CONSUMING)


def model_queues(names):
    for name in names:
        grave = ModelQueue(f"dead.{name}")
        yield ModelQueue(name, grave, **RULES[name])
        yield grave


class AmqpQueues(RuleBasedStateMachine):
    @initialize(names=st.lists(st.sampled_from(sorted(ARGUMENTS)), min_size=2, max_size=2))
    def begin(self, names):
        self.bench = AmqpBench()
        self.names = [*names, *names, *[f"dead.{name}" for name in names]]
        self.model = Model(model_queues(dict.fromkeys(names)), CONSUMING)
        self.numbers = 0
        self.tags = 0
        self.confirms = 0
        self.connect()

    def connect(self):
        self.client = self.bench.client()
        self.confirms = 0
        assert isinstance(self.client.call(PUBLISHING, ConfirmSelect()), ConfirmSelectOk)
        for channel in CONSUMING:
            self.client.open(channel)
        for name in dict.fromkeys(self.names[:2]):
            self.declare(f"dead.{name}", {})
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"dead.{name}"}
            self.declare(name, {**ARGUMENTS[name], **letters})
        self.rest()

    def declare(self, name, arguments):
        method = Declare(queue=name, is_durable=True, arguments=arguments)
        assert isinstance(self.client.call(PUBLISHING, method), DeclareOk)

    # What the client hears.

    def rest(self):
        """Let the broker come to rest at this moment, and compare what it did."""
        self.client.turn()
        self.bench.advance(0)
        self.client.turn()
        heard = [
            self.delivery(each, each.method.consumer_tag)
            for each in self.client.received
            if isinstance(each.method, Deliver)
        ]
        self.client.received = [
            each for each in self.client.received if not isinstance(each.method, Deliver)
        ]
        self.model.accept(heard, self.bench.clock.wall_ms())

    def delivery(self, each, consumer):
        properties = decode_properties(each.properties)
        deaths = (properties.headers or {}).get("x-death", [])
        return Heard(
            each.channel,
            consumer,
            each.method.delivery_tag,
            int(each.body.split(b".")[0]),
            each.method.is_redelivered,
            deaths[0]["reason"] if deaths else "",
        )

    def answers(self):
        """What confirms say of the publishes since the last look."""
        said = {}
        for each in self.client.take():
            method = each.method
            assert isinstance(method, Ack | Nack), method
            first = self.confirms + 1 if method.is_multiple else method.delivery_tag
            for number in range(first, method.delivery_tag + 1):
                said.setdefault(number, isinstance(method, Ack))
        self.confirms += len(said)
        return [said[number] for number in sorted(said)]

    # What it does.

    @rule(
        which=WHICH,
        sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
        lives_ms=st.sampled_from([None, None, None, 0, 50, 500]),
        priority=st.integers(0, 4),
        is_persistent=st.booleans(),
    )
    def publish(self, *, which, sizes, lives_ms, priority, is_persistent):
        name = self.names[which]
        now_ms = self.bench.clock.wall_ms()
        queue = self.model.queues[name]
        lives = [each for each in (lives_ms, queue.ttl_ms) if each is not None]
        properties = encode_properties(
            Properties(
                delivery_mode=2 if is_persistent else None,
                priority=priority or None,
                expiration=None if lives_ms is None else str(lives_ms),
            )
        )
        messages = []
        for size in sizes:
            self.numbers += 1
            body = b"%d." % self.numbers + b"x" * size
            expire_ms = now_ms + min(lives) if lives else None
            message = ModelMessage(
                self.numbers, 0, len(body), priority, expire_ms, is_persistent=is_persistent
            )
            message.is_brief = expire_ms == now_ms
            messages.append(message)
            self.client.publish(PUBLISHING, "", name, body, properties)
        expected = self.model.publish(name, messages)
        self.rest()
        assert self.answers() == expected

    @rule(channel=CHANNELS, which=WHICH, prefetch=st.integers(0, 3), is_no_ack=st.booleans())
    def consume(self, channel, which, prefetch, is_no_ack):
        name = self.names[which]
        if len(self.model.channels[channel].consumers) >= 3:
            return
        self.tags += 1
        tag = f"c{self.tags}"
        assert isinstance(self.client.call(channel, Qos(prefetch_count=prefetch)), QosOk)
        consumer = ModelConsumer(self.model.queues[name], prefetch, is_no_ack)
        self.model.channels[channel].consumers[tag] = consumer
        method = Consume(queue=name, consumer_tag=tag, is_no_ack=is_no_ack)
        assert isinstance(self.client.call(channel, method), ConsumeOk)
        self.rest()

    @rule(channel=CHANNELS, at=st.integers(0, 2))
    def cancel(self, channel, at):
        state = self.model.channels[channel]
        if not state.consumers:
            return
        tag = sorted(state.consumers)[at % len(state.consumers)]
        state.cancelled.append(state.consumers.pop(tag))
        assert isinstance(self.client.call(channel, Cancel(tag)), CancelOk)
        self.rest()

    @rule(channel=CHANNELS, which=WHICH, is_no_ack=st.booleans())
    def get(self, channel, which, is_no_ack):
        name = self.names[which]
        self.client.send(channel, Get(queue=name, is_no_ack=is_no_ack))
        self.client.turn()
        # What it finds expired may go to who consumes the dead, in the same turn: ``rest`` looks.
        said = self.client.take()
        (answer,) = [each for each in said if not isinstance(each.method, Deliver)]
        self.client.received = [each for each in said if each is not answer]
        if isinstance(answer.method, GetEmpty):
            left, heard = 0, None
        else:
            left, heard = answer.method.messages, self.delivery(answer, "")
        assert self.model.get(channel, name, heard, is_no_ack=is_no_ack) == left
        self.rest()

    @rule(channel=CHANNELS, which=WHICH, times=st.integers(1, 3))
    def bounce(self, channel, which, times):
        """Take and give back: whatever is at the head, again and again."""
        for _ in range(times):
            self.get(channel, which, False)
            tag = max(self.model.channels[channel].unacked, default=None)
            if tag is not None:
                self.model.requeue(self.model.channels[channel].take(tag, is_multiple=False))
                self.client.send(channel, Nack(tag, False, True))
                self.rest()

    def chosen(self, channel, at):
        tags = sorted(self.model.channels[channel].unacked)
        return tags[at % len(tags)] if tags else None

    @rule(
        channel=CHANNELS,
        at=st.integers(0, 20),
        verdict=st.sampled_from(["ack", "back", "back", "dead"]),
        is_multiple=st.booleans(),
        is_nack=st.booleans(),
    )
    def settle(self, *, channel, at, verdict, is_multiple, is_nack):
        tag = self.chosen(channel, at)
        if tag is None:
            return
        is_back = verdict == "back"
        is_multiple = is_multiple and (verdict == "ack" or is_nack)
        taken = self.model.channels[channel].take(tag, is_multiple=is_multiple)
        if verdict == "ack":
            self.client.send(channel, Ack(tag, is_multiple))
        else:
            (self.model.requeue if is_back else self.model.reject)(taken)
            word = Nack(tag, is_multiple, is_back) if is_nack else Reject(tag, is_back)
            self.client.send(channel, word)
        self.rest()

    @rule(channel=CHANNELS, is_closing=st.booleans())
    def give_back_all(self, channel, is_closing):
        state = self.model.channels[channel]
        if is_closing:
            self.model.requeue(state.take_all())
            self.model.channels[channel] = type(state)()
            assert isinstance(self.client.call(channel, Close()), CloseOk)
            self.client.open(channel)
        else:
            self.model.requeue(state.take(max(state.unacked, default=0), is_multiple=True))
            assert isinstance(self.client.call(channel, Recover(is_requeue=True)), RecoverOk)
        self.rest()

    @rule(which=WHICH)
    def purge(self, which):
        name = self.names[which]
        queue = self.model.queues[name]
        expected, queue.ready = len(queue.ready), []
        assert self.client.call(PUBLISHING, Purge(queue=name)) == PurgeOk(expected)
        self.rest()

    @rule(ms=st.sampled_from([1, 60, 600]))
    def wait(self, ms):
        self.bench.advance(ms)
        self.rest()

    @rule(is_clean=st.booleans())
    def restart(self, is_clean):
        if is_clean:
            self.bench.stop()
        else:
            self.bench.kill()
        self.model.restart(is_clean=is_clean)
        self.connect()

    @invariant()
    def counts_are_right(self):
        if not hasattr(self, "model"):
            return
        queues = self.bench.broker.vhosts["/"].queues
        for name, expected in self.model.queues.items():
            queue = queues.get(name)
            assert queue.ready == len(expected.ready), name
            assert queue.unacked == expected.unacked, name


@pytest.mark.parametrize("machine", [AmqpQueues])
def test_queues_do_what_the_model_of_queues_does(machine, is_long):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=2_000 if is_long else 60,
            stateful_step_count=60 if is_long else 30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


WALK = {
    "publish": lambda chance: {
        "which": chance.randrange(6),
        "sizes": [chance.randint(1, 8) for _ in range(chance.randint(1, 4))],
        "lives_ms": chance.choice([None, None, None, None, 0, 50, 500]),
        "priority": chance.randint(0, 4),
        "is_persistent": chance.random() < 0.7,
    },
    "consume": lambda chance: {
        "channel": chance.choice(CONSUMING),
        "which": chance.randrange(6),
        "prefetch": chance.randint(0, 3),
        "is_no_ack": chance.random() < 0.2,
    },
    "cancel": lambda chance: {"channel": chance.choice(CONSUMING), "at": chance.randrange(3)},
    "get": lambda chance: {
        "channel": chance.choice(CONSUMING),
        "which": chance.randrange(6),
        "is_no_ack": chance.random() < 0.3,
    },
    "bounce": lambda chance: {
        "channel": chance.choice(CONSUMING),
        "which": chance.randrange(6),
        "times": chance.randint(1, 3),
    },
    "settle": lambda chance: {
        "channel": chance.choice(CONSUMING),
        "at": chance.randrange(20),
        "verdict": chance.choice(["ack", "ack", "back", "dead"]),
        "is_multiple": chance.random() < 0.3,
        "is_nack": chance.random() < 0.5,
    },
    "give_back_all": lambda chance: {
        "channel": chance.choice(CONSUMING),
        "is_closing": chance.random() < 0.5,
    },
    "purge": lambda chance: {"which": chance.randrange(6)},
    "wait": lambda chance: {"ms": chance.choice([1, 60, 600])},
    "restart": lambda chance: {"is_clean": chance.random() < 0.5},
}
"""How a long walk chooses the arguments of a step."""
OFTEN = {"publish": 8, "settle": 10, "consume": 3, "get": 3, "bounce": 2, "cancel": 2, "wait": 2}
"""How often it takes which; the others once."""


@pytest.mark.parametrize("number", range(7))
def test_long_walks_over_busy_queues(number, is_long, request):
    chance = Random(f"{request.config.getoption('--seed') or 0} {number}")
    machine = AmqpQueues()
    others = sorted(set(ARGUMENTS) - {sorted(ARGUMENTS)[number]})
    machine.begin(names=[sorted(ARGUMENTS)[number], chance.choice(others)])
    weights = [OFTEN.get(verb, 1) for verb in WALK]
    for _ in range(10_000 if is_long else 400):
        (verb,) = chance.choices(list(WALK), weights)
        getattr(machine, verb)(**WALK[verb](chance))
        machine.counts_are_right()
