"""Credits of the hops, changed while messages are under way."""

import pytest

from kit.workbench import Workbench
from penstock.engine.broker import HOPS, HopCredit
from penstock.flow.reason import Reason
from penstock.model.errors import SettingsError
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings


def held_bench():
    """A connection in flow, because the log's sync does not come."""
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0)))
    topic, channel = bench.topic(), bench.channel()
    while channel.connection.may_read:
        bench.publish(channel, topic, *[b"x"] * 100)
        bench.turns()
    assert channel.connection.gate.reasons == {Reason.FLOW: "log"}
    return bench, topic, channel


def test_the_defaults_are_shown():
    shown = Workbench().engine.credits()
    assert tuple(shown) == HOPS
    assert shown["queue_log"] == HopCredit(4000, 800)


def test_more_credit_frees_who_waits():
    bench, topic, channel = held_bench()
    bench.engine.set_credit("queue_log", 40_000, 800)
    bench.turns()
    assert channel.connection.gate.is_open
    assert topic.queues[0].log_credit.initial == 40_000
    bench.settle()
    assert topic.queues[0].log_credit.in_flight == 0


def test_less_credit_holds_at_once_and_nothing_is_lost():
    bench = Workbench(Settings(flow=FlowSettings(pending_publishes_max=0)))
    topic, channel = bench.topic(), bench.channel()
    bench.publish(channel, topic, *[b"x"] * 100)
    bench.turns()
    assert not topic.queues[0].stage.is_blocked
    bench.engine.set_credit("queue_log", 50, 10)
    assert topic.queues[0].stage.is_blocked
    bench.settle()
    assert not topic.queues[0].stage.is_blocked
    assert len(bench.outlet.confirmed_tokens) == 100


@pytest.mark.parametrize("hop", HOPS)
def test_later_channels_and_queues_get_the_new_credit(hop):
    bench = Workbench()
    bench.publish(bench.channel(), bench.topic("old"), b"x")
    bench.engine.set_credit(hop, 20, 7)
    channel, topic = bench.channel(), bench.topic("new")
    bench.publish(channel, topic, b"x")
    bench.turns()
    found = {
        "reader_channel": channel.credit,
        "channel_queue": channel.credit_to(topic.queues[0]),
        "queue_log": topic.queues[0].log_credit,
    }[hop]
    assert (found.initial, found.more) == (20, 7)
    assert bench.engine.credits()[hop] == HopCredit(20, 7)


@pytest.mark.parametrize(
    ("hop", "credit", "more", "text"),
    [
        ("nowhere", 1, 1, "there is no hop 'nowhere'"),
        ("queue_log", 10, 11, "more must be between 1 and credit"),
        ("queue_log", 10, 0, "more must be between 1 and credit"),
    ],
)
def test_senseless_credits_change_nothing(hop, credit, more, text):
    bench = Workbench()
    before = bench.engine.credits()
    with pytest.raises(SettingsError, match=text):
        bench.engine.set_credit(hop, credit, more)
    assert bench.engine.credits() == before
