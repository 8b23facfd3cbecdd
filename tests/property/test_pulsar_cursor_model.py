"""T22: whatever consumers do, Pulsar's cursors do what the model of cursors does.

Clients walk at random: they publish messages and batches, subscribe in every way, grant permits,
ack one by one, in rows and inside batches, give back, seek, leave, lose their connections and
unsubscribe; the broker is stopped, killed and loses power on the way. After each step it is at
rest, and every MESSAGE, its ack set and count, permits, what is unacked and the mark-delete
position are compared with ``tests/kit/pulsar/cursor_model.py``.
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

from kit.pulsar.bench import PulsarBench
from kit.pulsar.consumers import KINDS, NONE, TOPIC, Publisher, Subscriber
from kit.pulsar.cursor_model import ModelConsumer, ModelSubscription, ModelTopic
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

NAMES = ("s", "t")
CLIENTS = 2
CONSUMERS_MAX = 4
"""Of one subscription."""
TAKEOVER_MS = 1_000
ENTRIES_MAX = 150
"""The model counts everything anew with each step."""
KEYS = ("a", "b", "c", "")
"""Of different slots; without a key an entry is its own."""
CHANCE = st.integers(0, 1_000)


class CursorModel(RuleBasedStateMachine):
    """One topic, two subscriptions, two connections."""

    @initialize(limit=st.sampled_from([0, 0, 4]))
    def begin(self, limit):
        self.bench = PulsarBench()
        self.limit = limit
        self.topic = ModelTopic()
        self.subscriptions = {}
        self.sought = {}
        self.pairs = []
        """(subscriber, its model, the subscription's name)"""
        self.changed_ms = dict.fromkeys(NAMES, 0)
        self.bench.broker.namespaces.set_policies(
            "public/default", max_unacked_messages_per_consumer=limit or 50_000
        )
        self.connect()

    def connect(self):
        self.clients = [self.bench.client() for _ in range(CLIENTS)]
        self.publisher = Publisher(self.clients[0])
        self.ledger = self.bench.engine.topics()[0].queues[0].incarnation

    # Comparing.

    def rest(self):
        """Compare what came with the model: who is active first, then messages in their order."""
        for subscriber, model, name in self.pairs:
            for is_active in subscriber.is_told_active():
                if is_active:
                    model.is_active = True
                else:
                    self.subscriptions[name].displace(model)
        for subscriber, model, name in self.pairs:
            for got in subscriber.messages():
                assert got.id[0] == self.ledger
                wrong = self.subscriptions[name].delivered(model, got.id[1], got.count, got.ack_set)
                assert not wrong, (name, got.id, wrong)

    def is_taking_over(self, name):
        now_ms = self.bench.clock.monotonic_ms()
        kind = self.subscriptions[name].kind
        return kind == "Failover" and now_ms < self.changed_ms[name] + TAKEOVER_MS

    @invariant()
    def nothing_is_owed_and_the_accounts_are_right(self):
        if not hasattr(self, "bench"):
            return
        self.rest()
        for name, subscription in self.subscriptions.items():
            if not self.is_taking_over(name):
                assert subscription.owed() == [], (name, subscription.kind)
        for subscriber, model, name in self.pairs:
            stats = subscriber.stats()
            permits = stats.availablePermits
            assert permits - (1 << 64 if permits >> 63 else 0) == model.permits
            assert stats.unackedMessages == self.subscriptions[name].unacked(model)
            assert stats.blockedConsumerOnUnackedMsgs == model.is_blocked
            mark = subscriber.last_id().consumer_mark_delete_position
            assert mark.entryId == self.subscriptions[name].mark_delete & NONE

    def one_of(self, at):
        """A consumer, or None."""
        return self.pairs[at % len(self.pairs)] if self.pairs else None

    def drop(self, name):
        """All consumers of a subscription are gone."""
        for pair in [each for each in self.pairs if each[2] == name]:
            self.pairs.remove(pair)
            if pair[1] in self.subscriptions[name].consumers:
                self.subscriptions[name].leave(pair[1])
        self.changed_ms[name] = self.bench.clock.monotonic_ms()
        self.forget_if_passing(name)

    def forget_if_passing(self, name):
        subscription = self.subscriptions.get(name)
        if subscription and not subscription.is_durable and not subscription.consumers:
            del self.subscriptions[name]

    # Steps.

    @rule(messages=st.integers(1, 4), key=st.sampled_from(KEYS), times=st.integers(1, 6))
    def publish(self, messages, key, times):
        """Several at once: they are dealt out in one round."""
        made = []
        for number in range(times if len(self.topic.entries) < ENTRIES_MAX else 0):
            self.bench.clock.advance(1)
            publish_ms = self.bench.clock.wall_ms()
            fields = {"publish_time": publish_ms}
            key_here = KEYS[(KEYS.index(key) + number) % len(KEYS)] if key else ""
            if key_here:
                fields["partition_key"] = key_here
            entry = self.topic.add(messages, key_here, publish_ms)
            entry.key = key_here or f"alone-{entry.first}"
            self.publisher.send(*[b"x"] * messages, **fields)
            made.append((self.ledger, entry.first))
        assert self.publisher.receipts() == made

    @rule(
        name=st.sampled_from(NAMES),
        kind=st.sampled_from(KINDS),
        at=CHANCE,
        is_early=st.booleans(),
        is_durable=st.sampled_from([True, True, True, False]),
    )
    def subscribe(self, name, kind, at, is_early, is_durable):
        subscription = self.subscriptions.get(name)
        client = self.clients[at % CLIENTS]
        others = [] if subscription is None else subscription.consumers
        if (
            others
            and kind == others[0].kind
            and (kind == "Exclusive" or len(others) == CONSUMERS_MAX)
        ):
            return
        fields = {"initialPosition": "Earliest" if is_early else "Latest"}
        if not is_durable and self.topic.entries:
            start = self.topic.entries[at % len(self.topic.entries)].first
            fields |= {"durable": False, "start": (self.ledger, start)}
        elif not is_durable:
            return
        consumer = Subscriber(
            client, TOPIC, name, kind, consumer_name=f"c{len(others)}-{at % 7}", **fields
        )
        if subscription is not None and subscription.is_durable is not is_durable:
            assert consumer.refusal()[0] is ServerError.NotAllowedError
            return
        if others and others[0].kind != kind:
            assert consumer.refusal()[0] is ServerError.ConsumerBusy
            return
        consumer.opened()
        if subscription is None:
            if not is_durable:
                start = self.sought.pop(name, start)
            else:
                start = 0 if is_early else self.topic.end
                self.sought.pop(name, None)
            subscription = ModelSubscription(self.topic, start, is_durable=is_durable)
            self.subscriptions[name] = subscription
        limit = self.limit if kind in ("Shared", "Key_Shared") and is_durable else 0
        model = ModelConsumer(kind, limit, is_active=kind != "Failover")
        subscription.consumers.append(model)
        self.pairs.append((consumer, model, name))
        self.changed_ms[name] = self.bench.clock.monotonic_ms()

    @rule(at=CHANCE, permits=st.integers(1, 8), is_for_all=st.booleans())
    def flow(self, at, permits, is_for_all):
        one = self.one_of(at)
        for subscriber, model, _ in self.pairs if is_for_all else filter(None, [one]):
            subscriber.flow(permits)
            model.grant(permits)

    @rule(at=CHANCE, which=CHANCE, several=st.integers(1, 3))
    def ack(self, at, which, several):
        """Entries that somebody has or had."""
        pair = self.one_of(at)
        if pair is None:
            return
        subscriber, _, name = pair
        subscription = self.subscriptions[name]
        known = sorted(subscription.delivered_ever)
        chosen = {known[(which + step) % len(known)] for step in range(several)} if known else set()
        subscriber.ack(*[(self.ledger, first) for first in sorted(chosen)])
        subscription.ack({at for first in chosen for at in self.topic.at(first).offsets})

    @rule(at=CHANCE, which=CHANCE, bits=st.integers(0, 15), is_upto=st.booleans())
    def ack_inside(self, at, which, bits, is_upto):
        """Some messages of an entry; cumulatively, everything before it, too."""
        pair = self.one_of(at)
        if pair is None:
            return
        subscriber, model, name = pair
        subscription = self.subscriptions[name]
        known = sorted(subscription.delivered_ever)
        if not known:
            return
        entry = self.topic.at(known[which % len(known)])
        where = {"ledgerId": self.ledger, "entryId": entry.first, "ack_set": [bits]}
        acked = {at for at in entry.offsets if not bits >> (at - entry.first) & 1}
        if is_upto and model.kind in ("Exclusive", "Failover"):
            acked |= set(range(entry.first))
        elif is_upto:
            acked = set()
        subscriber.ack(where, kind="Cumulative" if is_upto else "Individual")
        subscription.ack(acked)

    @rule(at=CHANCE, which=CHANCE, is_before=st.booleans())
    def ack_upto(self, at, which, is_before):
        """A cumulative ack; of the last message of the entry before, as clients count."""
        pair = self.one_of(at)
        if pair is None or not self.topic.entries:
            return
        subscriber, model, name = pair
        entry = self.topic.entries[which % len(self.topic.entries)]
        place, end = entry.first, entry.offsets.stop
        if is_before:
            place, end = entry.first - 1, entry.first
        subscriber.ack((self.ledger, place & NONE), kind="Cumulative")
        if model.kind in ("Exclusive", "Failover"):
            self.subscriptions[name].ack(set(range(end)))

    @rule(at=CHANCE, which=CHANCE, is_all=st.booleans())
    def redeliver(self, at, which, is_all):
        pair = self.one_of(at)
        if pair is None:
            return
        subscriber, model, name = pair
        held = self.subscriptions[name].held_by(model)
        chosen = None if is_all or not held else [held[which % len(held)]]
        subscriber.redeliver(*[(self.ledger, first) for first in chosen or ()])
        self.subscriptions[name].redeliver(model, chosen)

    @rule(at=CHANCE, which=CHANCE, how=st.sampled_from(["id", "time", "inside"]), bits=CHANCE)
    def seek(self, at, which, how, bits):
        pair = self.one_of(at)
        if pair is None or not self.topic.entries:
            return
        subscriber, _, name = pair
        entry = self.topic.entries[which % len(self.topic.entries)]
        offset, acked, fields = entry.first, set(), {}
        if how == "time":
            offset = self.topic.at_time(entry.publish_ms)
            fields["message_publish_time"] = entry.publish_ms
        elif how == "inside":
            words = bits % (1 << entry.messages)
            fields["message_id"] = {
                "ledgerId": self.ledger, "entryId": offset, "ack_set": [words],
            }  # fmt: skip
            acked = {at for at in entry.offsets if not words >> (at - offset) & 1}
        else:
            fields["message_id"] = {"ledgerId": self.ledger, "entryId": offset}
        request = subscriber.seek(**fields)
        assert subscriber.client.answer(request).type == BaseCommand.SUCCESS
        for each, _, other in self.pairs:
            assert each.is_told_closed() is (other == name)
        if self.subscriptions[name].is_durable:
            self.subscriptions[name].seek(offset, acked)
        else:
            self.sought[name] = offset
        self.drop(name)

    @rule(at=CHANCE)
    def close(self, at):
        pair = self.one_of(at)
        if pair is None:
            return
        subscriber, model, name = pair
        subscriber.close()
        self.pairs.remove(pair)
        self.subscriptions[name].leave(model)
        self.changed_ms[name] = self.bench.clock.monotonic_ms()
        self.forget_if_passing(name)

    @rule()
    def lose_a_connection(self):
        lost = self.clients[1]
        lost.vanish()
        for pair in [each for each in self.pairs if each[0].client is lost]:
            self.pairs.remove(pair)
            self.subscriptions[pair[2]].leave(pair[1])
            self.changed_ms[pair[2]] = self.bench.clock.monotonic_ms()
            self.forget_if_passing(pair[2])
        self.clients[1] = self.bench.client()

    @rule(at=CHANCE, force=st.booleans())
    def unsubscribe(self, at, force):
        pair = self.one_of(at)
        if pair is None:
            return
        subscriber, _, name = pair
        answer = subscriber.unsubscribe(force=force)
        if len(self.subscriptions[name].consumers) > 1 and not force:
            assert answer.error.error == ServerError.MetadataError
            return
        assert answer.type == BaseCommand.SUCCESS
        for each, _, other in self.pairs:
            assert each.is_told_closed() is (other == name and each is not subscriber)
        self.drop(name)
        self.subscriptions.pop(name, None)

    @rule(ms=st.sampled_from([100, TAKEOVER_MS]))
    def wait(self, ms):
        self.bench.pass_time(ms)
        for each in self.clients:
            each.say("PONG")

    @rule(how=st.sampled_from(["stop", "kill", "cut_power"]))
    def restart(self, how):
        self.bench.settle()
        self._restart(how)

    @rule(at=CHANCE, which=CHANCE, how=st.sampled_from(["kill", "cut_power"]), turns=st.booleans())
    def crash_over_an_ack(self, at, which, how, turns):
        """Whether the ack was in time or not: never half of it, and nothing else."""
        pair = self.one_of(at)
        if pair is None:
            return
        subscriber, _, name = pair
        subscription = self.subscriptions[name]
        known = sorted(subscription.delivered_ever)
        if not known or not subscription.is_durable:
            return
        first = known[which % len(known)]
        self.bench.settle()
        subscriber.client.say(
            "ACK", consumer_id=subscriber.id, ack_type="Individual",
            message_id=[{"ledgerId": self.ledger, "entryId": first}],
        )  # fmt: skip
        if turns:
            self.bench.turns()
        self._restart(how)
        topic = self.bench.engine.topics()[0]
        cursor = topic.subscriptions[f"pulsar/{name}"].cursor(topic.queues[0].queue_id)
        offsets = self.topic.at(first).offsets
        left = cursor.settled.unsettled_in(offsets.start, offsets.stop)
        before = [at for at in offsets if at not in subscription.acked]
        after = [at for start, end in left for at in range(start, end)]
        assert after in ([], before)
        if not after:
            subscription.ack(set(offsets))

    def _restart(self, how):
        getattr(self.bench, how)()
        for name in NAMES:
            if name in self.subscriptions:
                self.drop(name)
        for subscription in self.subscriptions.values():
            subscription.delivered_ever.clear()
        self.sought.clear()
        self.pairs.clear()
        self.connect()


def test_cursors_do_what_the_model_does(is_long):
    run_state_machine_as_test(
        CursorModel,
        settings=settings(
            max_examples=2_000 if is_long else 40,
            stateful_step_count=60 if is_long else 40,
            suppress_health_check=list(HealthCheck),
            deadline=None,
        ),
    )


WALK = {
    "publish": lambda chance: {
        "messages": chance.choice([1, 1, 2, 3, 4]),
        "key": chance.choice(KEYS),
        "times": chance.randint(1, 6),
    },
    "subscribe": lambda chance: {
        "name": chance.choice(NAMES),
        "kind": chance.choice(KINDS),
        "at": chance.randrange(1_000),
        "is_early": chance.random() < 0.7,
        "is_durable": chance.random() < 0.8,
    },
    "flow": lambda chance: {
        "at": chance.randrange(1_000),
        "permits": chance.randint(1, 12),
        "is_for_all": chance.random() < 0.3,
    },
    "ack": lambda chance: {
        "at": chance.randrange(1_000),
        "which": chance.randrange(1_000),
        "several": chance.randint(1, 3),
    },
    "ack_inside": lambda chance: {
        "at": chance.randrange(1_000),
        "which": chance.randrange(1_000),
        "bits": chance.randrange(16),
        "is_upto": chance.random() < 0.3,
    },
    "ack_upto": lambda chance: {
        "at": chance.randrange(1_000),
        "which": chance.randrange(1_000),
        "is_before": chance.random() < 0.5,
    },
    "redeliver": lambda chance: {
        "at": chance.randrange(1_000),
        "which": chance.randrange(1_000),
        "is_all": chance.random() < 0.3,
    },
    "seek": lambda chance: {
        "at": chance.randrange(1_000),
        "which": chance.randrange(1_000),
        "how": chance.choice(["id", "time", "inside"]),
        "bits": chance.randrange(1_000),
    },
    "close": lambda chance: {"at": chance.randrange(1_000)},
    "lose_a_connection": lambda chance: {},
    "unsubscribe": lambda chance: {
        "at": chance.randrange(1_000),
        "force": chance.random() < 0.3,
    },
    "wait": lambda chance: {"ms": chance.choice([100, TAKEOVER_MS])},
    "restart": lambda chance: {"how": chance.choice(["stop", "kill", "cut_power"])},
    "crash_over_an_ack": lambda chance: {
        "at": chance.randrange(1_000),
        "which": chance.randrange(1_000),
        "how": chance.choice(["kill", "cut_power"]),
        "turns": chance.random() < 0.5,
    },
}
"""How a long walk chooses the arguments of a step."""
OFTEN = {
    "publish": 14, "subscribe": 8, "flow": 24, "ack": 8, "ack_inside": 12, "ack_upto": 2,
    "redeliver": 10, "wait": 8,
}  # fmt: skip
"""How often it takes which; the others once."""


@pytest.mark.parametrize("number", range(4))
def test_long_walks_over_cursors(number, is_long, request):
    chance = Random(f"{request.config.getoption('--seed') or 0} {number}")
    weights = [OFTEN.get(verb, 1) for verb in WALK]
    for step in range(12_500 if is_long else 300):
        if step % 600 == 0:
            machine = CursorModel()
            machine.begin(limit=(0, 4)[number % 2])
        (verb,) = chance.choices(list(WALK), weights)
        getattr(machine, verb)(**WALK[verb](chance))
        machine.nothing_is_owed_and_the_accounts_are_right()
