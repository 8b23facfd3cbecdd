"""Nothing that the diagnosis remembers (episodes, progress, troubles) keeps what is closed."""

import gc

import pytest

from kit.workbench import Workbench
from penstock.engine.connection import Channel, Connection
from penstock.engine.host import SubscriptionOptions
from penstock.engine.subscription.consumer import Consumer
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import FanoutRoute, Overflow, Queue, TopicPolicy
from penstock.flow import episodes, progress
from penstock.flow.credit import Credit, Stage
from penstock.flow.demand import Window
from penstock.flow.diagnosis import findings_of
from penstock.flow.episodes import Episodes
from penstock.flow.progress import Progress
from penstock.flow.reason import Culprit, Reason

KINDS = (Connection, Channel, Stage, Credit, Queue, Subscription, Consumer, Episodes, Progress)


class Silent:
    """A peer that remembers nothing, so that it keeps nothing."""

    def __getattr__(self, name):
        return lambda *_: None


def alive():
    found = [type(each) for each in gc.get_objects()]
    return {kind.__name__: found.count(kind) for kind in KINDS}


def stall(bench, name, overflow):
    """A topic at its limit, with a publisher that waits, is refused or loses, and a slow reader."""
    topic = bench.topic(name, TopicPolicy(length_max=2, overflow=overflow))
    options = SubscriptionOptions(sees_unsynced=True)
    subscription = bench.engine.create_subscription(topic.name, "billing", options)
    subscription.attach(Silent(), Window(1), name="slow")
    channel = bench.channel(outlet=Silent())
    bench.publish(channel, topic, *[b"x"] * 9)
    bench.publish(channel, FanoutRoute(()), b"x")
    bench.settle()
    bench.advance(6000)
    found = bench.engine.flow_map(bench.clock.monotonic_ms())
    blamed = {each.culprit.id for each in findings_of(found.views, found.troubles, found.alarms)}
    assert any(name in each or each.startswith(("consumer/", "channel/")) for each in blamed)
    channel.connection.close()
    bench.settle()
    bench.engine.delete_topic(topic.name)
    bench.settle()
    # A topic and its queues hold each other; whoever else held one would hold it still.
    topic.queues, topic.limits = (), None


@pytest.mark.parametrize("overflow", [Overflow.HOLD, Overflow.REJECT, Overflow.DROP_HEAD])
def test_what_is_closed_in_the_midst_of_an_episode_goes_without_the_collector(overflow):
    bench = Workbench()
    stall(bench, "first", overflow)
    bench.advance(5000)
    gc.collect()
    before = alive()
    gc.disable()
    try:
        for number in range(4):
            stall(bench, f"t{number}", overflow)
        after = alive()
    finally:
        gc.enable()
    assert after == before
    assert not bench.engine.flow_map(bench.clock.monotonic_ms()).stages_held


def test_an_episode_ends_with_its_stage_and_the_journal_forgets_it():
    journal = episodes.Journal()
    stage = Stage("connection", "c1", journal)
    stage.block(Stage("log", "log", journal))
    assert journal.open
    stage.close()
    assert not journal.open
    assert [each.episode and each.episode.ended for each in journal.take_edges()] == [
        None,
        "connection-lost",
    ]


def test_each_table_of_the_past_has_a_bound():
    journal = episodes.Journal()
    held = journal.episodes("queue", "q")
    for now_ms in range(0, 10_000_000, 2_000):
        journal.tick(now_ms)
        held.entered(Reason.FLOW, "log", now_ms)
        held.left(Reason.FLOW, now_ms + 1)
    assert len(held.history) == episodes.HISTORY_MAX
    assert len(journal.take_edges()) == episodes.EDGES_MAX
    assert journal.edges_dropped > 0
    past = Progress(0)
    for now_ms in range(0, 1_000_000, 1_000):
        past.moved(now_ms, 10, 1, 5)
    assert len(past._points) == progress.POINTS_MAX
    troubles = progress.Troubles()
    for number in range(progress.TROUBLES_MAX + 50):
        for publisher in [*range(progress.PUBLISHERS_MAX + 5)] * 2:
            who = Culprit(f"p{publisher}", f"connection/{publisher}")
            troubles.note("length-limit", Culprit("t", f"topic/{number}"), 1, 0, publisher=who)
    found = troubles.now(0)
    assert len(found) == progress.TROUBLES_MAX
    assert troubles.dropped == 50 * 2 * (progress.PUBLISHERS_MAX + 5)
    assert {len(each.publishers) for _, each in found} == {progress.PUBLISHERS_MAX}
    assert {each.publishers_left_out for _, each in found} == {5}
