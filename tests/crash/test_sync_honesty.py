"""T3: no confirm leaves before the sync that covers its bytes has returned."""

import dataclasses

import pytest

from kit.amqp.peer import AmqpBench
from kit.witness import SyncWitness
from penstock.engine.ports import Publication
from penstock.engine.topic import route_to
from penstock.log.segment import LOG_DIR, segment_path
from penstock.model.names import topic_name
from penstock.model.record import neutral_record
from penstock.settings.broker import StorageSettings
from penstock.settings.load import Settings
from penstock.testing.broker import in_memory_engine
from penstock.testing.outlet import RecordingOutlet
from penstock.testing.storage import MemoryStorage
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Ack, Publish
from penstock.wire.amqp.methods.channel import ConfirmSelect
from penstock.wire.amqp.methods.queue import Declare
from penstock.wire.amqp.properties import Properties, encode_properties

LIST = 50
BODY = b"x" * 100
RECORD_BYTES_MIN = 88 + 12 + len(BODY)
CONNECTIONS = 4
PERSISTENT = encode_properties(Properties(delivery_mode=2))


class Judge(RecordingOutlet):
    """Looks every confirm up in the witness's notes the moment it leaves."""

    def __init__(self, witness):
        super().__init__()
        self.witness = witness
        self.confirms = 0
        self.early = []

    def confirmed(self, channel, confirmations):
        bases = [int(name.partition(".")[0]) for name in self.witness.list(LOG_DIR)]
        for confirmation in confirmations:
            self.confirms += 1
            base = max(base for base in bases if base <= confirmation.position)
            end = confirmation.position - base + RECORD_BYTES_MIN
            if not self.witness.is_durable(segment_path(base), end):
                self.early.append(confirmation.token)


class Bench:
    """A core on a witnessed storage, with judges as its publishers."""

    def __init__(self, durability="fsync"):
        self.witness = SyncWitness(MemoryStorage())
        storage = StorageSettings(
            durability=durability, segment_bytes_max=256 * 1024, write_buffer_bytes=64 * 1024
        )
        settings = dataclasses.replace(Settings(), storage=storage)
        self.core = in_memory_engine(self.witness, settings=settings)
        self.engine = self.core.engine
        self.route = route_to(self.engine.create_topic(topic_name("t")))
        self.judges = []
        self.sent = 0
        for number in range(CONNECTIONS):
            judge = Judge(self.witness)
            judge.connection = self.engine.connect(number + 1, judge, f"p{number}")
            judge.channel = judge.connection.open_channel()
            self.judges.append(judge)

    def publish(self):
        """Every connection that may be read publishes a list, and the turn appends."""
        for judge in self.judges:
            if judge.connection.may_read:
                judge.channel.publish(
                    [
                        Publication(
                            record=neutral_record(BODY),
                            queues=(),
                            route=self.route,
                            token=self.sent + n,
                        )
                        for n in range(LIST)
                    ]
                )
                self.sent += LIST
        self.engine.turn()
        self.core.clock.advance(1)

    @property
    def early(self):
        return sum(len(judge.early) for judge in self.judges)

    @property
    def confirms(self):
        return sum(judge.confirms for judge in self.judges)


def commit_among_appends(bench):
    """Appends before, during and after the run of the sync, and before its end is told."""
    bench.publish()
    job = bench.engine.take_sync_job()
    bench.publish()
    if job is not None:
        job.run()
        bench.publish()
        bench.engine.synced(job, None)


def test_no_confirm_leaves_before_its_sync_returned_whatever_is_appended_meanwhile(is_long):
    bench = Bench()
    publishes = 1_000_000 if is_long else 100_000
    while bench.sent < publishes:
        commit_among_appends(bench)
    bench.core.settle()
    assert bench.early == 0
    assert bench.confirms == bench.sent
    assert len(bench.witness.list(LOG_DIR)) > 10 * (publishes // 100_000), "segments rolled over"
    assert bench.witness.syncs > 100


@pytest.mark.parametrize("durability", ["os", "interval:50"])
def test_the_judge_sees_confirms_that_do_not_wait_for_a_sync(durability):
    bench = Bench(durability)
    for _ in range(20):
        commit_among_appends(bench)
    assert bench.early > 0


def test_a_confirm_held_back_by_a_slow_sync_leaves_once_and_only_after_it():
    bench = Bench()
    bench.publish()
    job = bench.engine.take_sync_job()
    assert bench.confirms == 0
    job.run()
    assert bench.confirms == 0
    bench.engine.synced(job, None)
    assert bench.confirms == bench.sent
    assert bench.early == 0


class AmqpJudge(AmqpBench):
    """AMQP sessions on a witnessed storage; every ack is looked up the moment it leaves."""

    def __init__(self, durability="fsync"):
        storage = StorageSettings(
            durability=durability, segment_bytes_max=256 * 1024, write_buffer_bytes=64 * 1024
        )
        super().__init__(dataclasses.replace(Settings(), storage=storage))
        self.stored = {}
        self.early = []
        self.confirms = self.sent = 0
        self.engine.watch_appends(self.note)
        self.peers = []
        for number in range(CONNECTIONS):
            peer = self.client()
            peer.call(1, Declare(queue=f"q{number % 2}", is_durable=True))
            peer.call(1, ConfirmSelect())
            peer.number, peer.next, peer.low = number, 1, 1
            self.peers.append(peer)

    def _open(self):
        self.storage = self.witness = SyncWitness(MemoryStorage())
        super()._open()

    def note(self, batch):
        for each in batch:
            if each.record.body.startswith(b"judged"):
                self.stored[each.record.body] = each.record.position

    def publish(self):
        """Every connection that may be read publishes a list; the turn appends and may answer."""
        for peer in self.peers:
            if not peer.session.is_reading:
                continue
            method = method_frame(1, Publish(0, "", f"q{peer.number % 2}"))
            bodies = [self.body(peer, peer.next + n) for n in range(LIST)]
            peer.raw(b"".join([method + content_frames(1, PERSISTENT, b, 0) for b in bodies]))
            peer.next += LIST
            self.sent += LIST
        self.engine.turn()
        self.clock.advance(1)
        self.judge()

    def body(self, peer, number):
        return b"judged %d/%d" % (peer.number, number)

    def judge(self):
        bases = sorted(int(name.partition(".")[0]) for name in self.witness.list(LOG_DIR))
        for peer in self.peers:
            for heard in peer.take():
                assert isinstance(heard.method, Ack)
                tag = heard.method.delivery_tag
                tags = range(peer.low, tag + 1) if heard.method.is_multiple else (tag,)
                assert peer.low <= tag
                peer.low = tag + 1
                for each in tags:
                    self.confirms += 1
                    body = self.body(peer, each)
                    position = self.stored[body]
                    base = max(base for base in bases if base <= position)
                    end = position - base + 88 + 12 + len(body)
                    if not self.witness.is_durable(segment_path(base), end):
                        self.early.append(body)

    def commit_among_appends(self):
        """Appends before, during and after the run of the sync, and before its end is told."""
        self.publish()
        job = self.engine.take_sync_job()
        self.publish()
        if job is not None:
            job.run()
            self.publish()
            self.engine.synced(job, None)
            self.judge()


def test_no_amqp_ack_leaves_before_the_sync_of_its_publish_returned(is_long):
    bench = AmqpJudge()
    publishes = 500_000 if is_long else 30_000
    while bench.sent < publishes:
        bench.commit_among_appends()
    bench.settle()
    bench.judge()
    assert bench.early == []
    assert bench.confirms == bench.sent
    assert bench.witness.syncs > 20


def test_the_amqp_judge_sees_acks_that_do_not_wait_for_a_sync():
    bench = AmqpJudge("os")
    for _ in range(20):
        bench.commit_among_appends()
    assert bench.early
