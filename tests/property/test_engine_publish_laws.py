"""Laws 3 to 7 where publishers meet them: the engine's journey in, on a disk that fails on command.

Counted in turns and rounds, never in time.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.topic import DirectRoute, FanoutRoute, KeyRoute, Overflow, TopicPolicy
from penstock.flow.demand import Window
from penstock.flow.quota import QuotaPolicy
from penstock.model.names import topic_name
from penstock.model.record import RecordFlag, neutral_record
from penstock.model.refusal import RefusalKind
from penstock.settings.broker import StorageSettings
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.testing.outlet import RecordingOutlet
from penstock.testing.storage import FaultKind

KIB = 1024
ROUNDS_MAX = 200

SMALL = Settings(
    flow=FlowSettings(
        reader_channel_credit=8,
        reader_channel_more=4,
        channel_queue_credit=6,
        channel_queue_more=3,
        queue_log_credit=20,
        queue_log_more=5,
        connection_bytes_max=32 * KIB,
        inflight_bytes_max=64 * KIB,
        pending_publishes_max=12,
        turn_messages_max=16,
        turn_channel_messages_max=8,
        turn_bytes_max=8 * KIB,
        hold_ms_max=500,
    ),
    storage=StorageSettings(write_buffers_max=1, write_buffer_bytes=64 * KIB),
)


@settings(max_examples=25, deadline=None)
@given(
    floods=st.integers(1, 40),
    burst=st.integers(1, 30),
    size=st.sampled_from((1, 600, 3000)),
    shares_queue=st.booleans(),
    data=st.data(),
)
def test_law_5_a_quiet_publish_is_appended_within_two_turns(
    floods, burst, size, shares_queue, data
):
    bench = Workbench(SMALL)
    busy, calm = bench.topic("busy"), bench.topic("calm")
    target = busy if shares_queue else calm
    flooders = [bench.channel() for _ in range(floods)]
    quiet = bench.channel(outlet=RecordingOutlet())
    for _ in range(6):
        for channel in flooders:
            while channel.connection.may_read:
                bench.publish(channel, busy, *[b"f" * size] * burst)
        for _ in range(data.draw(st.integers(1, 3))):
            bench.engine.turn()
            bench.sync()
    for channel in flooders:
        if channel.connection.may_read:
            bench.publish(channel, busy, *[b"f" * size] * burst)
    publication = Publication(
        neutral_record(b"quiet"), route=DirectRoute(target.queues[0]), token=10**6
    )
    quiet.publish([publication])
    for _ in range(2):
        bench.engine.turn()
        bench.sync()
        for channel in flooders:
            if channel.connection.may_read:
                bench.publish(channel, busy, *[b"f" * size] * burst)
    assert publication.position >= 0


class Publishing(RuleBasedStateMachine):
    """Publishers of all kinds against topics of all kinds and a disk with bad days."""

    @initialize()
    def begin(self):
        self.bench = Workbench(SMALL)
        self.token = 0
        self.sent = {}
        self.answers = {}
        self.outlets = []
        self.channels = []
        self.readers = []
        self.job = None
        for name, policy in (
            ("plain", TopicPolicy()),
            ("lanes", TopicPolicy()),
            ("reject", TopicPolicy(length_max=5, overflow=Overflow.REJECT)),
            ("hold", TopicPolicy(length_max=5, overflow=Overflow.HOLD)),
            ("quota", TopicPolicy(quota_bytes_max=2000, quota_policy=QuotaPolicy.HOLD)),
            ("rate", TopicPolicy(publish_messages_per_s=20)),
        ):
            topic = self.bench.topic(name, policy, queues=2 if name == "lanes" else 1)
            reader = self.bench.engine.create_subscription(
                topic.name, "r", SubscriptionOptions(sees_unsynced=True)
            )
            outlet = RecordingOutlet()
            reader.attach(outlet, Window(0), name="c")
            self.readers.append((reader, outlet))
        self.bench.settle()

    def topics(self):
        return self.bench.engine.topics()

    @rule()
    def connect(self):
        if len(self.channels) < 4:
            outlet = RecordingOutlet()
            self.outlets.append(outlet)
            self.channels.append(self.bench.channel(outlet=outlet))

    @precondition(lambda self: self.channels)
    @rule(
        who=st.integers(0, 3),
        what=st.integers(0, 8),
        count=st.integers(1, 10),
        size=st.sampled_from((0, 100, 3000)),
        manner=st.sampled_from(("plain", "plain", "transient", "key")),
    )
    def publish(self, who, what, count, size, manner):
        channel = self.channels[who % len(self.channels)]
        if not channel.connection.may_read:
            return
        topics = self.topics()
        if what == 7:
            route = FanoutRoute((topics[0].queues[0], topics[1].queues[0], topics[1].queues[1]))
        elif what == 8:
            route = FanoutRoute(tuple([topics[each].queues[0] for each in (0, 2, 3)]))
        elif what == 1:
            route = KeyRoute(topics[1])
        else:
            route = DirectRoute(topics[what % len(topics)].queues[0])
        publications = []
        for _ in range(count):
            body = b"%d:" % self.token + b"x" * size
            record = neutral_record(body, key=b"k%d" % (self.token % 3))
            if manner == "transient":
                record.reshape(flags=record.flags | RecordFlag.TRANSIENT)
            publications.append(Publication(record, route=route, token=self.token))
            self.sent[self.token] = body
            self.token += 1
        channel.publish(publications)

    @rule()
    def turn(self):
        self.bench.engine.turn()

    @rule()
    def start_sync(self):
        if self.job is None:
            self.job = self.bench.engine.take_sync_job()

    @rule()
    def end_sync(self):
        if self.job is not None:
            job, self.job = self.job, None
            self.bench.finish(job)

    @rule(ms=st.sampled_from((1, 50, 120, 600)))
    def wait(self, ms):
        self.bench.clock.advance(ms)

    @rule(kind=st.sampled_from((FaultKind.ENOSPC, FaultKind.SHORT, FaultKind.EIO)))
    def break_next_write(self, kind):
        # Only the log's own writes: a commit may run later and must not meet the fault.
        if self.job is None:
            self.bench.storage.plan.fail_next("write", kind)
            self.bench.engine.turn()
            self.bench.storage.plan.clear()

    @rule(name=st.sampled_from(("memory", "disk")), is_raised=st.booleans())
    def alarm(self, name, is_raised):
        plenty = 1 << 50
        bad, good = (plenty, 0) if name == "memory" else (0, plenty)
        self.bench.engine.set_alarm(name, bad if is_raised else good)

    @rule(which=st.integers(0, 5))
    def settle_some(self, which):
        reader, outlet = self.readers[which]
        outlet.settle_all(reader)

    @precondition(lambda self: self.channels)
    @rule(who=st.integers(0, 3), is_polite=st.booleans())
    def disconnect(self, who, is_polite):
        channel = self.channels.pop(who % len(self.channels))
        connection = channel.connection
        connection.close() if is_polite else connection.abort()
        assert channel.connection.gate.is_open

    @invariant()
    def every_answer_is_given_once(self):
        for outlet in getattr(self, "outlets", ()):
            told = [(token, None) for token in outlet.confirmed_tokens] + outlet.refusals
            for token, refusal in told:
                assert token not in self.answers, "two answers to one publish"
                self.answers[token] = refusal
            outlet.clear()

    @invariant()
    def limits_hold(self):
        """Laws 1 and 2: no hop, no share, no pool beyond its limit plus one list."""
        if not hasattr(self, "bench"):
            return
        flow = SMALL.flow
        engine = self.bench.engine
        assert engine.statistics().inflight_bytes <= flow.inflight_bytes_max
        for channel in self.channels:
            if not channel.connection.holds and not engine.statistics().is_memory_alarmed:
                assert channel.credit.in_flight <= flow.reader_channel_credit + 10
        for topic in self.topics():
            for queue in topic.queues:
                assert queue.log_credit.in_flight <= flow.queue_log_credit + 10
        for channel in self.channels:
            for credit in channel.queue_credits.values():
                assert credit.in_flight <= flow.channel_queue_credit + 10

    @invariant()
    def no_wake_up_is_lost(self):
        """Law 4: when no turn is wanted, a turn moves nothing."""
        if not hasattr(self, "bench") or self.bench.engine.needs_turn:
            return
        due_ms = self.bench.engine.next_deadline_ms()
        if due_ms is not None and due_ms <= self.bench.clock.monotonic_ms():
            return
        before = self.fingerprint()
        self.bench.engine.turn()
        assert self.fingerprint() == before

    def fingerprint(self):
        store = self.bench.store
        return (
            store.end_position,
            [channel.inbox_messages for channel in self.channels],
            [queue.inbox.messages for topic in self.topics() for queue in topic.queues],
            [list(channel.connection.gate.reasons) for channel in self.channels],
            [len(outlet.events) for outlet in self.outlets],
            [len(outlet.events) for _, outlet in self.readers],
        )

    def teardown(self):
        """Laws 3, 6 and 7 from whatever state was reached."""
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        self.end_sync()
        self.alarm("memory", is_raised=False)
        self.alarm("disk", is_raised=False)
        for _ in range(ROUNDS_MAX):
            bench.turns()
            bench.sync()
            for reader, outlet in self.readers:
                outlet.settle_all(reader)
            bench.clock.advance(20)
            bench.engine.turn()
            if all(channel.connection.gate.is_open for channel in self.channels):
                idle = all(not channel.inbox for channel in self.channels)
                # What a closed connection left may be held yet, but not for ever.
                idle &= bench.engine.statistics().inflight_bytes == 0
                if idle and not bench.engine.needs_turn and not bench.store.unsynced_bytes:
                    break
        for channel in self.channels:
            assert channel.connection.gate.is_open, "law 3: a gate stays closed"
            assert channel.connection.bytes_held == 0
        assert bench.engine.statistics().inflight_bytes == 0
        self.every_answer_is_given_once()
        stored = self.stored()
        for token, refusal in self.answers.items():
            if refusal is None:
                assert self.sent[token] in stored, "law 6: confirmed and not stored"
            elif refusal.kind is RefusalKind.LENGTH_LIMIT:
                # A full queue refuses for itself: others of a fan-out may have it.
                assert self.sent[token] not in self.stored(refusal.culprit), "law 6: by its queue"
            elif refusal.kind is not RefusalKind.SYNC_FAILED:
                assert self.sent[token] not in stored, "law 6: refused and stored"
        connected = {id(channel.connection.outlet) for channel in self.channels}
        if len(connected) == len(self.outlets):
            assert len(self.answers) == len(self.sent), "a publish was never answered"

    def stored(self, name=""):
        found = set()
        for topic in self.topics():
            for queue in topic.queues if name in ("", str(topic.name)) else ():
                entries = queue.index.entries(0, 10**6)
                records = self.bench.store.read([(entry[0], entry[4]) for entry in entries])
                found.update(record.body for record in records)
        return found


Publishing.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
TestPublishing = Publishing.TestCase


@settings(max_examples=25, deadline=None)
@given(
    lists=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    cut=st.integers(0, 11),
    is_power_cut=st.booleans(),
)
def test_law_6_what_was_confirmed_before_a_crash_is_there_after_it(lists, cut, is_power_cut):
    bench = Workbench()
    topic, channel = bench.topic(), bench.channel()
    for number, count in enumerate(lists):
        bench.publish(channel, topic, *[b"%d/%d" % (number, each) for each in range(count)])
        bench.engine.turn()
        if number == cut:
            break
        if number % 2:
            bench.sync()
    confirmed = {event_body(each) for each in confirmations(bench)}
    if is_power_cut:
        bench.cut_power()
    else:
        bench.kill()
    topic = bench.engine.topic(topic_name("orders"))
    entries = topic.queues[0].index.entries(0, 10_000) if topic else []
    stored = {record.body for record in bench.store.read([(e[0], e[4]) for e in entries])}
    assert confirmed <= stored


def confirmations(bench):
    return [each for event in bench.outlet.events for each in getattr(event, "confirmations", ())]


def event_body(confirmation):
    return confirmation.record.body
