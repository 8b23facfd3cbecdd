"""The flow map names who waits for whom."""

import pytest

from kit.exam import Reader
from kit.workbench import Workbench
from penstock.engine.broker import EDGES_AT_ONCE
from penstock.engine.connection import Connection, ConnectionOptions
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription import subscription as subscriptions
from penstock.engine.topic import FanoutRoute, Overflow, TopicPolicy
from penstock.flow.crowd import SHOWN_MAX
from penstock.flow.demand import Window
from penstock.flow.diagnosis import diagnose, findings_of
from penstock.flow.reason import Reason
from penstock.flow.views import COMMANDS, PUBLISHES_AFTER_CLOSE, UndoneView
from penstock.log.index import QueueIndex
from penstock.model.steps import A_RECORD
from penstock.server.view import STEPS_A_PIECE
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings

KIB = 1024


@pytest.fixture
def bench():
    return Workbench()


def test_the_flow_map_names_the_disk_while_a_sync_hangs(bench):
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, b"a")
    bench.turns()
    bench.engine.take_sync_job()
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.clock.advance(50)
        bench.turns()
    found = diagnose(bench.engine.flow_map(bench.clock.monotonic_ms()).views)
    assert (found.kind, found.side) == ("log", "publish")


def test_the_flow_map_follows_the_chain_to_the_log():
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0)))
    topic, channel = bench.topic(), bench.channel()
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
    views = bench.engine.flow_map(bench.clock.monotonic_ms()).views
    held = {view.kind: view.culprit for view in views if view.is_held}
    assert held == {
        "connection": "channel c1/1",
        "channel": "queue orders",
        "queue": "log",
    }
    assert diagnose(views).kind == "log"
    bench.settle()
    bench.advance(5_000)
    views = bench.engine.flow_map(bench.clock.monotonic_ms()).views
    assert not any(view.is_held for view in views)
    edges = bench.engine.take_flow_edges()
    assert [edge.kind for edge in edges if edge.episode is None].count("queue") == 1


def test_the_flow_map_names_a_full_topic_and_an_alarm(bench):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions(sees_unsynced=True))
    channel = bench.channel()
    bench.publish(channel, topic, b"a", b"b")
    bench.settle()
    views = {view.kind: view for view in bench.engine.flow_map(bench.clock.monotonic_ms()).views}
    assert "length_max" in views["channel"].culprit
    assert views["connection"].state == "flow"
    bench.engine.set_alarm("disk", 0)
    bench.settle()
    views = {view.kind: view for view in bench.engine.flow_map(bench.clock.monotonic_ms()).views}
    assert views["connection"].state == "blocked"


BY_CHANNEL = ConnectionOptions(holds_channels=True, pending_publishes_max=10)


def test_where_channels_are_held_each_for_itself_the_held_one_is_named(bench):
    """Many producers on one socket, which is read on: the connection waits for none but it."""
    topic = bench.topic(policy=TopicPolicy(quota_bytes_max=300))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    held = bench.channel(BY_CHANNEL)
    held.connection.open_channel("other")
    for _ in range(4):
        bench.publish(held, topic, b"x" * 100)
        bench.settle()
    bench.advance(5_000)
    found = diagnose(bench.engine.flow_map(bench.clock.monotonic_ms()).views)
    assert found.kind == "limit"
    assert found.chain == (held.connection.stage.label, held.stage.label)
    assert found.sentence.startswith(f"{held.stage.label} is held by a limit (quota): backlog of ")
    assert "quota 300 (hold); subscription s has not settled it." in found.sentence
    held_names = [
        view.name
        for view in bench.engine.flow_map(bench.clock.monotonic_ms()).views
        if view.is_held
    ]
    assert held_names == [held.connection.name, held.stage.name]


def test_a_channel_with_too_much_unconfirmed_is_shown_as_held(bench):
    topic, held = bench.topic(), bench.channel(BY_CHANNEL)
    for _ in range(3):
        bench.publish(held, topic, *[b"x"] * 10)
        bench.turns()
    found = diagnose(bench.engine.flow_map(bench.clock.monotonic_ms()).views)
    assert found.chain == (held.connection.stage.label, held.stage.label)
    assert found.name == "10 unconfirmed publishes"


def crowd(bench, count):
    """Idle connections, each with a channel that has published."""
    topic = bench.topic("crowded")
    for _ in range(count):
        bench.publish(bench.channel(), topic, b"x")
    bench.settle()
    bench.advance(5_000)


def test_idle_stages_are_counted_and_only_some_of_them_are_shown(bench):
    crowd(bench, 100)
    now_ms = bench.clock.monotonic_ms()
    everything = bench.engine.flow_map(now_ms).views
    found = bench.engine.flow_map(now_ms, 10)
    assert len(found.views) <= 12
    assert (found.stages_total, found.stages_held) == (len(everything), 0)
    assert len(everything) == 100 + 100 + 1 + 1


def test_the_diagnosis_of_a_crowd_is_that_of_all_its_stages():
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0)))
    crowd(bench, 30)
    topic, channel = bench.topic(), bench.channel()
    subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
    now_ms = bench.clock.monotonic_ms()
    everything = bench.engine.flow_map(now_ms).views
    found = bench.engine.flow_map(now_ms, 0)
    assert findings_of(found.views) == findings_of(everything)
    assert diagnose(found.views).kind == "log"
    assert found.stages_held == sum(view.is_held for view in everything) == 3
    assert found.stages_total == len(everything)
    assert len(found.views) == 4
    bench.settle()
    found = bench.engine.flow_map(bench.clock.monotonic_ms(), 0)
    assert [view.ready for view in found.views if view.kind == "subscription"] == [
        subscription.ready(topic.queues[0].queue_id)
    ]


def test_of_very_many_held_connections_each_has_its_weight_in_the_diagnosis(monkeypatch):
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0)))
    topic, channels = bench.topic(), [bench.channel() for _ in range(20)]
    while any(channel.connection.may_read for channel in channels):
        for channel in channels:
            if channel.connection.may_read:
                bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
    now_ms = bench.clock.monotonic_ms()
    everything = bench.engine.flow_map(now_ms).views
    monkeypatch.setattr("penstock.engine.flow_map.DETAILS_MAX", 0)
    found = bench.engine.flow_map(now_ms, 0)
    assert len(found.views) == 1 + 2, "one connection for all, their queue, the log"
    told, exact = diagnose(found.views), diagnose(everything)
    assert told.kind == exact.kind == "log"
    assert told.waiters_total == exact.waiters_total == 20
    assert found.stages_held == sum(view.is_held for view in everything) == 41
    assert found.stages_total == len(everything) == 42


def test_an_alarm_counts_the_connections_it_would_hold_and_says_so(bench):
    bench.topic("orders")
    for _ in range(50):
        bench.channel()
    bench.engine.set_alarm("disk", 0)
    found = bench.engine.flow_map(bench.clock.monotonic_ms(), 10)
    assert found.stages_held == 50
    assert found.stages_total == 102
    assert "holds nobody yet" in diagnose(found.views).sentence


class Commands:
    """What an adapter puts off, as it would say it."""

    def view(self):
        return UndoneView(COMMANDS, 7, 40, "channel c1/1")


def test_what_a_connection_puts_off_is_shown_however_many_others_are_idle(bench):
    busy = bench.channel().connection
    crowd(bench, 30)
    now_ms = bench.clock.monotonic_ms()
    assert bench.engine.flow_map(now_ms, 0).stages_held == 0
    busy.undone = Commands()
    found = bench.engine.flow_map(now_ms, 0)
    shown = [view for view in found.views if view.undone is not None]
    assert [(view.label, view.undone.count, view.state) for view in shown] == [
        ("connection c1", 7, "running")
    ]
    assert found.stages_held == 0
    assert diagnose(found.views).kind != "connection"
    busy.undone = None
    views = bench.engine.flow_map(now_ms).views
    assert all(view.undone is None for view in views)


@pytest.mark.parametrize("whose", ["channel", "connection"])
def test_publishes_that_are_held_after_a_polite_close_are_shown_with_whose_they_are(bench, whose):
    topic = bench.topic(policy=TopicPolicy(length_max=1, overflow=Overflow.HOLD))
    bench.engine.create_subscription(topic.name, "s", SubscriptionOptions(sees_unsynced=True))
    channel = bench.channel()
    sent_ms = bench.clock.monotonic_ms()
    bench.publish(channel, topic, b"a", b"b", b"c")
    bench.settle()
    (channel if whose == "channel" else channel.connection).close()
    bench.advance(700)
    found = bench.engine.flow_map(bench.clock.monotonic_ms())
    (view,) = [each for each in found.views if each.kind == "channel"]
    assert (view.label, view.state, view.reason) == ("channel c1/1", "flow", Reason.HELD)
    assert view.culprit
    assert view.since_ms == sent_ms
    assert view.undone == UndoneView(PUBLISHES_AFTER_CLOSE, 2, sent_ms)
    assert found.stages_total == len(found.views)
    waiting = {"channel": "connection c1", "connection": "channel c1/1"}
    assert diagnose(found.views).chain == (waiting[whose],)
    bench.engine.delete_topic(topic.name)
    bench.settle()
    views = bench.engine.flow_map(bench.clock.monotonic_ms()).views
    assert not [each for each in views if each.kind == "channel"]


def test_what_an_alarm_holds_after_a_close_is_shown_and_only_so_many_closely(bench, monkeypatch):
    monkeypatch.setattr("penstock.engine.flow_map.DETAILS_MAX", 2)
    topic = bench.topic()
    bench.engine.set_alarm("disk", 0)
    for _ in range(3):
        channel = bench.channel()
        bench.publish(channel, topic, b"x")
        bench.settle()
        channel.connection.close()
    found = bench.engine.flow_map(bench.clock.monotonic_ms())
    shown = [each for each in found.views if each.undone is not None]
    assert [(each.label, each.state, each.undone.count) for each in shown] == [
        ("channel c1/1", "blocked", 1),
        ("channel c2/1", "blocked", 1),
    ]
    assert found.stages_total == len(found.views) + 1
    assert found.stages_held == 3


# ---- very many ----------------------------------------------------------------------------------


def looked_at(steps):
    """(pieces of a page, the most that one of them was) when it is made in pieces of 60 steps."""
    pieces, left, most = 1, 60.0, 0.0
    for each in steps:
        most = max(most, each)
        left -= each
        if left <= 0:
            pieces, left = pieces + 1, 60.0
    return pieces, most


def test_a_map_of_very_many_queues_is_made_in_many_small_steps(bench):
    for number in range(1_000):
        topic = bench.topic(f"t{number}")
        bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    pieces, most = looked_at(bench.engine.flow_map_steps(bench.clock.monotonic_ms(), 30))
    assert pieces >= 10
    assert most <= 2.0, "no step is more than one view of a stage"


def noted(monkeypatch, where, name):
    """How often a function of a module was called, so far."""
    calls, function = [], getattr(where, name)
    monkeypatch.setattr(where, name, lambda *given: calls.append(name) or function(*given))
    return calls


def most_in_a_piece(steps, calls):
    """Of those calls, in pieces of a page (``STEPS_A_PIECE``); and what comes of the steps."""
    most = left = before = 0
    while True:
        try:
            left -= next(steps)
        except StopIteration as end:
            return max(most, len(calls) - before), end.value
        if left <= 0:
            most, before, left = max(most, len(calls) - before), len(calls), STEPS_A_PIECE


def with_workers(bench, count):
    """A queue with messages enough that many consumers have one each, and more wait."""
    topic = bench.topic("orders")
    options = SubscriptionOptions(sees_unsynced=True)
    subscription = bench.engine.create_subscription(topic.name, "billing", options)
    workers = [Reader(bench, subscription, Window(1), f"w{number}") for number in range(count)]
    for _ in range(2):
        bench.publish(bench.channel(), topic, *[b"x"] * count)
        bench.settle()
    return topic, workers


def test_very_many_consumers_of_a_queue_are_looked_at_some_in_a_piece(bench, monkeypatch):
    with_workers(bench, 1_000)
    bench.advance(7_000)
    calls = noted(monkeypatch, subscriptions, "consumer_view")
    most, found = most_in_a_piece(
        bench.engine.flow_map_steps(bench.clock.monotonic_ms(), 60), calls
    )
    assert len(calls) >= 1_000, "the judgement is about all of them"
    assert most <= STEPS_A_PIECE / subscriptions.A_CONSUMER + 1
    (view,) = [each for each in found.views if each.kind == "subscription"]
    assert len(view.consumers) == SHOWN_MAX
    assert view.consumers_left_out == 1_000 - SHOWN_MAX


def test_one_that_never_acks_is_found_and_shown_among_hundreds(bench):
    topic, workers = with_workers(bench, 300)
    channel = bench.channel()
    for _ in range(8):
        for each in (*workers[:200], *workers[201:]):
            each.ack()
        bench.publish(channel, topic, *[b"x"] * 450)
        bench.settle()
        bench.advance(5_000)
    found = bench.engine.flow_map(bench.clock.monotonic_ms())
    (finding,) = findings_of(found.views)
    assert (finding.cause, finding.culprit.name) == ("never-acks", "w200")
    (view,) = [each for each in found.views if each.kind == "subscription"]
    assert finding.culprit.id in {each.id for each in view.consumers}
    assert view.consumers_left_out + len(view.consumers) == 300


def test_a_topic_of_very_many_queues_is_looked_at_some_in_a_piece(bench, monkeypatch):
    topic = bench.topic("wide", queues=1_000)
    options = SubscriptionOptions(sees_unsynced=True)
    subscription = bench.engine.create_subscription(topic.name, "s", options)
    Reader(bench, subscription, Window(1), "w")
    for at in range(0, 1_000, 100):
        route = FanoutRoute(tuple(topic.queues[at : at + 100]))
        bench.publish(bench.channel(), route, b"x")
        bench.settle()
    bench.advance(7_000)
    calls = noted(monkeypatch, QueueIndex, "entries")
    most, found = most_in_a_piece(
        bench.engine.flow_map_steps(bench.clock.monotonic_ms(), 60), calls
    )
    assert len(calls) >= 1_000
    assert most <= STEPS_A_PIECE / A_RECORD + 1
    (view,) = [each for each in found.views if each.kind == "subscription"]
    assert (view.ready, view.consumers[0].unacked, view.progress.age_ms >= 7_000) == (999, 1, True)


def test_what_goes_while_a_map_is_made_does_not_end_it(bench):
    names = []
    for number in range(20):
        topic = bench.topic(f"t{number}", queues=3)
        names.append(topic.name)
        subscription = bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
        Reader(bench, subscription, Window(1), "w")
        bench.publish(bench.channel(), FanoutRoute(tuple(topic.queues)), b"x")
        bench.settle()
    connections = [bench.channel().connection for _ in range(20)]
    for number, _ in enumerate(bench.engine.flow_map_steps(bench.clock.monotonic_ms(), 10)):
        if number % 3 == 0 and names:
            bench.engine.delete_topic(names.pop())
            connections.pop().close()
            bench.settle()


def test_the_log_connections_and_readers_are_shown_beside_very_many_queues(bench):
    crowd(bench, 5)
    for number in range(300):
        topic = bench.topic(f"t{number}")
        bench.engine.create_subscription(topic.name, "s", SubscriptionOptions())
    found = bench.engine.flow_map(bench.clock.monotonic_ms(), 60)
    kinds = [view.kind for view in found.views]
    assert {kind: kinds.count(kind) for kind in ("log", "connection", "channel")} == {
        "log": 1,
        "connection": 5,
        "channel": 5,
    }
    assert kinds.count("queue") >= 20
    assert kinds.count("subscription") >= 10
    assert len(found.views) <= 80


def swept(bench):
    """A window passes, with one sweep in it."""
    sampler = bench.engine.sampler
    bench.advance(max(0, sampler.next_deadline_ms() - bench.clock.monotonic_ms()))
    sweeps = sampler.sweeps
    while sampler.sweeps == sweeps:
        sampler.due(bench.clock.monotonic_ms())


def test_the_busiest_are_shown_among_very_many_with_the_rates_of_their_hops(bench):
    topics = [bench.topic(f"t{number}") for number in range(200)]
    idle = [bench.channel() for _ in range(100)]
    channel = bench.channel()
    bench.publish(channel, topics[150], b"first")
    bench.settle()
    swept(bench)
    bench.publish(channel, topics[150], *[b"x"] * 20)
    bench.settle()
    swept(bench)
    found = bench.engine.flow_map(bench.clock.monotonic_ms(), 30)
    shown = {view.id: view for view in found.views if view.per_s}
    queue = topics[150].queues[0].stage.id
    assert set(shown) == {"log", queue, channel.stage.id, channel.connection.stage.id}
    assert {view.per_s for view in shown.values()} == {4.0}
    assert shown[channel.connection.stage.id].hops == ((channel.stage.id, 4.0),)
    assert shown[channel.stage.id].hops == ((queue, 4.0),)
    assert shown[queue].hops == (("log", 4.0),)
    assert found.stages_total == 1 + len(topics) + 2 * (len(idle) + 1)


def test_of_very_many_that_lie_ready_those_that_were_read_are_looked_at_first(bench, monkeypatch):
    monkeypatch.setattr("penstock.engine.flow_map.READERS_MAX", 3)
    channel = bench.channel()
    for number in range(10):
        topic = bench.topic(f"t{number}")
        subscription = bench.engine.create_subscription(
            topic.name, "s", SubscriptionOptions(sees_unsynced=True)
        )
        if number == 6:
            subscription.note_read()
        bench.publish(channel, topic, *[b"x"] * (1 + number))
    bench.settle()
    found = bench.engine.flow_map(bench.clock.monotonic_ms(), 0)
    shown = {view.name for view in found.views if view.kind == "subscription"}
    assert shown == {"t6/s", "t9/s", "t8/s"}
    assert found.readers_left_out == 7


def test_troubles_that_were_not_noted_are_counted(bench):
    bench.engine._chain.troubles.dropped = 5
    assert bench.engine.flow_map(bench.clock.monotonic_ms()).troubles_dropped == 5


class NoRoom:
    """What each connection asks for itself: nobody in particular is in its way."""

    culprit = ""


def test_who_has_most_of_the_pool_is_looked_for_once_however_many_lack_room(bench, monkeypatch):
    looked_at = []
    held = property(lambda connection: looked_at.append(connection) or 0)
    connections = [bench.connect() for _ in range(20)]
    for each in connections:
        each.wait_for_room(NoRoom())
    monkeypatch.setattr(Connection, "bytes_held", held)
    found = bench.engine.flow_map(bench.clock.monotonic_ms())
    assert found.stages_held == 20
    assert len(looked_at) <= 3 * 20, "for itself, and once for all"


def test_of_thousands_that_an_alarm_holds_some_are_told_at_once_and_all_in_the_end(bench):
    topic = bench.topic()
    bench.engine.set_alarm("memory", 1 << 60)
    for _ in range(2 * EDGES_AT_ONCE):
        bench.publish(bench.channel(), topic, b"x")
    bench.turns()
    told = [bench.engine.take_flow_edges() for _ in range(3)]
    assert [len(each) for each in told] == [EDGES_AT_ONCE, EDGES_AT_ONCE, 0]
    assert len({edge.stage_id for edges in told for edge in edges}) == 2 * EDGES_AT_ONCE
