"""The diagnosis: who is slow, in one sentence."""

import pytest
from msgspec.structs import replace

from penstock.flow.delivery import LOOK
from penstock.flow.diagnosis import diagnose, findings_of, held_chains
from penstock.flow.reason import Reason
from penstock.flow.views import ConsumerView, StageView
from penstock.model.steps import finished


def chains(views):
    return finished(held_chains(views))


def chain_views(connection="running", channel="running", queue="running", *, with_culprits):
    """The three stages of the table in flow-control.md section 3, and the log after them."""
    states = {"connection c1": connection, "channel c1/1": channel, "queue orders": queue}
    labels = [*states, "log main"]
    views = []
    for (label, state), following in zip(states.items(), labels[1:], strict=True):
        kind, name = label.split(" ")
        held = state == "flow"
        views.append(
            StageView(
                kind,
                name,
                state,
                Reason.FLOW if held else None,
                following if held and with_culprits else "",
                share=0.5 if held else 0.0,
                downstream=(following,),
            )
        )
    return [*views, StageView("log", "main")]


@pytest.mark.parametrize("with_culprits", [True, False])
@pytest.mark.parametrize(
    ("states", "kind", "name", "word"),
    [
        (("running", "running", "running"), "none", "", "publishers"),
        (("flow", "running", "running"), "channel", "c1/1", "routing"),
        (("flow", "flow", "running"), "queue", "orders", "hot queue"),
        (("flow", "flow", "flow"), "log", "main", "disk"),
        (("running", "running", "flow"), "log", "main", "disk"),
        (("running", "flow", "flow"), "log", "main", "disk"),
    ],
)
def test_the_bottleneck_is_the_first_stage_not_held_after_the_last_that_is(
    states, kind, name, word, with_culprits
):
    found = diagnose(chain_views(*states, with_culprits=with_culprits))
    assert (found.kind, found.name) == (kind, name)
    assert word in found.sentence


def test_when_nobody_waits_the_busiest_stage_is_named_by_what_held_it_lately_or_goes_through_it():
    log, hot = StageView("log", "log", per_s=900.0), StageView("queue", "hot", per_s=600.4)
    cold = StageView("queue", "cold", per_s=0.4)
    found = diagnose([log, hot, cold])
    assert (found.severity, found.culprit.id, found.cause) == ("ok", "queue hot", "busiest")
    assert found.detail == "The busiest stage is queue hot: 600 messages a second."
    found = diagnose([log, hot, replace(cold, share=0.12)])
    assert found.culprit.id == "queue cold"
    assert found.detail == "The busiest stage is queue cold: held for 12 % of the last 10 s."
    found = diagnose([log, cold])
    assert (found.culprit.id, found.detail) == ("", "")


def test_who_waits_all_the_time_since_it_began_is_not_said_to_wait_for_a_part_of_it():
    held = StageView("connection", "c1", "flow", Reason.FLOW, "log main", share=0.03, stalls=1)
    views = [held, StageView("log", "main")]
    assert diagnose(views).sentence.endswith("connection c1 waits for it.")
    often = replace(held, stalls=2)
    assert diagnose([often, views[1]]).sentence.endswith(" waits for it 3 % of the last 10 s.")


def test_the_whole_chain_is_shown_upstream_first():
    found = diagnose(chain_views("flow", "flow", "flow", with_culprits=True))
    assert found.chain == ("connection c1", "channel c1/1", "queue orders")
    assert found.sentence == (
        "log main is the bottleneck (the disk): connection c1 -> channel c1/1 -> queue orders "
        "wait for it 50 % of the last 10 s."
    )


@pytest.mark.parametrize("waits_for", ["channel/1/1", "log"])
def test_a_connection_waits_since_its_channel_did(waits_for):
    channel = StageView(
        "channel", "c1/1", "flow", Reason.FLOW, id="channel/1/1", waits_for="log",
        belongs_to="connection/1", since_ms=100, share=0.5,
    )  # fmt: skip
    connection = StageView("connection", "c1", id="connection/1")
    log = StageView("log", "main", id="log")
    assert diagnose([connection, channel, log]).since_ms == 100
    held = replace(
        connection, state="flow", reason=Reason.FLOW, waits_for=waits_for, since_ms=300, share=0.5
    )
    found = diagnose([held, channel, log])
    assert ([each.id for each in found.waiters], found.since_ms) == (["connection/1"], 100)


def test_an_alarm_is_named_once_before_everything_else():
    blocked = [
        StageView("connection", f"c{n}", "blocked", Reason.DISK, "disk: 1 bytes free", share=0.9)
        for n in range(40)
    ]
    idle = StageView("connection", "idle", "blocking", Reason.DISK, "disk: 1 bytes free")
    found = findings_of([*blocked, idle, *chain_views("flow", "flow", "flow", with_culprits=True)])
    assert [each.kind for each in found] == ["disk", "log"]
    assert "holds 40 publishing connections: disk: 1 bytes free" in found[0].sentence
    assert len(found[0].chain) <= 16


def test_an_alarm_that_holds_nobody_yet_says_so():
    found = diagnose([StageView("connection", "c", "blocking", Reason.MEMORY, "memory")])
    assert found.kind == "memory"
    assert "nobody yet" in found.sentence


def test_the_heaviest_of_several_chains_comes_first():
    views = [
        StageView("channel", "a", "flow", Reason.FLOW, "queue cold", share=0.1),
        StageView("channel", "b", "flow", Reason.FLOW, "queue hot", share=0.3),
        StageView("channel", "c", "flow", Reason.FLOW, "queue hot", share=0.3),
        StageView("queue", "cold"),
        StageView("queue", "hot"),
    ]
    assert [each.name for each in findings_of(views)] == ["hot", "cold"]


@pytest.mark.parametrize("reason", [Reason.RATE, Reason.QUOTA, Reason.PENDING, Reason.HELD])
def test_a_limit_is_a_bottleneck_by_itself(reason):
    views = [
        StageView("connection", "c", "flow", Reason.FLOW, "channel 1", share=0.2),
        StageView("channel", "1", "flow", reason, "topic orders at 100/s", share=0.2),
    ]
    found = diagnose(views)
    assert (found.kind, found.name, found.side) == ("limit", "topic orders at 100/s", "publish")
    assert reason.value in found.sentence


def test_a_culprit_outside_the_chain_is_named_as_it_is():
    found = diagnose([StageView("queue", "q", "flow", Reason.FLOW, "query 7", share=1.0)])
    assert (found.kind, found.name) == ("external", "query 7")
    assert "queue q waits for query 7 100 % of the last 10 s" in found.sentence


def test_a_held_stage_that_names_nobody_still_gives_an_answer():
    found = diagnose([StageView("queue", "q", "flow", Reason.FLOW, downstream=("log x",))])
    assert found.kind == "unknown"
    assert "what comes after queue q" in found.sentence


def test_stages_that_wait_for_each_other_are_told_and_end_the_walk():
    views = [
        StageView("queue", "a", "flow", Reason.FLOW, "queue b"),
        StageView("queue", "b", "flow", Reason.FLOW, "queue a"),
    ]
    found = diagnose(views)
    assert found.kind == "ring"
    assert "wait for each other" in found.sentence


@pytest.mark.parametrize(
    ("held_ms", "share", "said"),
    [
        (400, 0.02, "now and then"),
        (3_000, 0.29, "for 3 s"),
        (3_000, 0.15, "50 % of the last 3 s"),
        (60_000, 0.97, "for 60 s"),
        (60_000, 0.5, "50 % of the last 10 s"),
    ],
)
def test_how_much_of_the_time_it_waits_is_of_the_time_since_it_began(held_ms, share, said):
    often = {"stalls": 40, "share": share, "held_ms": held_ms}
    views = [StageView("connection", "c", "flow", Reason.FLOW, "log", **often), LOG]
    assert diagnose(views).sentence.endswith(f" waits for it {said}.")


def test_a_dispatch_limit_belongs_to_the_delivery_side():
    found = diagnose([StageView("subscription", "s", "flow", Reason.RATE, "10/s", ready=3)])
    assert found.side == "delivery"


def test_a_log_that_turns_senders_away_is_blamed_although_nobody_is_held():
    busy = StageView("log", "log", refusing="the store is busy for 1200 ms")
    finding = diagnose([busy])
    assert (finding.kind, finding.side) == ("log", "publish")
    assert finding.sentence == (
        "log is the bottleneck (the disk): the store is busy for 1200 ms; "
        "sends that do not wait are refused as they come."
    )


def test_a_log_that_others_already_wait_for_is_blamed_once():
    busy = StageView("log", "log", refusing="the store is busy for 1200 ms")
    queue = StageView("queue", "q", "flow", Reason.FLOW, "log", 0, 0.5, ("log",))
    assert [each.kind for each in findings_of([queue, busy])] == ["log"]


def test_a_log_for_which_only_queues_wait_refuses_and_when_publishers_do_it_holds():
    busy = StageView("log", "log", refusing="the store is busy for 1200 ms")
    queue = StageView("queue", "q", "flow", Reason.FLOW, "log", share=0.8)
    (found,) = findings_of([queue, busy])
    assert (found.severity, found.waiters_total) == ("refusing", 0)
    publisher = StageView("connection", "c", "flow", Reason.FLOW, "queue q", share=0.8)
    (found,) = findings_of([publisher, queue, busy])
    assert (found.severity, found.waiters_total) == ("holding", 1)


LOG = StageView("log", "log")


def held(kind, name, culprit, recent, stalls=1):
    return StageView(
        kind, name, "flow", Reason.FLOW, culprit, share=recent, recent=recent, stalls=stalls
    )


def chain(connection, channel, queue):
    """(recent, stalls) of each; None = it runs."""
    names = [("connection", "c"), ("channel", "c/1"), ("queue", "orders")]
    culprits = ["channel c/1", "queue orders", "log"]
    views = []
    for (kind, name), culprit, figures in zip(
        names, culprits, (connection, channel, queue), strict=True
    ):
        views.append(
            StageView(kind, name) if figures is None else held(kind, name, culprit, *figures)
        )
    return [*views, LOG]


def blamed(views):
    return chains(views)[0].kind


def test_one_slow_sync_is_not_why_a_channel_is_behind_all_the_time():
    assert blamed(chain((0.9, 30), (0.1, 2), (0.08, 2))) == "channel"
    assert blamed(chain((0.9, 30), (0.8, 30), (0.08, 2))) == "queue"


def test_a_disk_for_which_everybody_waits_most_of_the_time_is_blamed():
    assert blamed(chain((0.9, 5), (0.8, 5), (0.7, 5))) == "log"


def test_a_stage_that_waits_again_and_again_counts_however_short_it_is():
    assert blamed(chain((0.9, 30), (0.2, 200), None)) == "queue"
    assert blamed(chain((0.9, 30), (0.2, 200), (0.05, 15))) == "queue"
    # A few stalls are an accident, even if the one before had no more of them.
    assert blamed(chain((0.9, 3), (0.2, 3), None)) == "channel"


def test_a_queue_that_waits_for_the_log_while_its_channel_does_not_is_not_the_cause():
    assert blamed(chain((0.5, 9), (0.05, 2), (0.5, 9))) == "channel"


def test_where_figures_tell_nothing_states_decide():
    assert blamed(chain((0.0, 0), (0.0, 0), (0.0, 0))) == "log"


def test_fifty_queues_that_wait_for_the_log_wait_once():
    queues = [held("queue", f"q{number}", "log", 0.1) for number in range(50)]
    views = [held("connection", "c", "channel c/1", 0.6), StageView("channel", "c/1"), *queues, LOG]
    assert [each.kind for each in chains(views)] == ["channel", "log"]


def test_whoever_is_waited_for_does_not_weigh_a_second_time():
    slow = [held("connection", "a", "queue hot", 0.5), StageView("queue", "hot")]
    # Three stages, but one publisher who waits.
    deep = chain((0.3, 5), (0.3, 5), (0.3, 5))
    assert [each.kind for each in chains([*slow, *deep])] == ["queue", "log"]


def test_something_beside_the_chain_is_named_and_not_what_comes_next():
    views = [
        held("connection", "c", "channel c/1", 0.5),
        held("channel", "c/1", "queue orders", 0.5),
        StageView(
            "queue", "orders", "flow", Reason.FLOW, "fault queue-delay", share=0.5,
            downstream=("log",),
        ),
        LOG,
    ]  # fmt: skip
    found = chains(views)[0]
    assert (found.kind, found.name) == ("external", "fault queue-delay")
    assert found.chain == ("connection c", "channel c/1", "queue orders")


def test_a_stage_that_is_not_in_view_is_looked_for_downstream():
    views = [
        StageView(
            "channel", "c/1", "flow", Reason.FLOW, "queue gone", share=0.5,
            downstream=("queue orders",),
        ),
        StageView("queue", "orders"),
    ]  # fmt: skip
    assert chains(views)[0].name == "orders"


def test_a_sync_that_holds_no_publisher_comes_after_a_slow_consumer():
    slow = ConsumerView("slow", unacked=100, unacked_max=100)
    ready = StageView("subscription", "orders/amqp", ready=7, consumers=(slow,))
    queue = held("queue", "orders", "log", 0.1)
    assert [each.kind for each in findings_of([queue, ready, LOG])] == ["consumer", "log"]
    # Unless the queue stands still most of the time: then confirms are late, at least.
    queue = held("queue", "orders", "log", 0.9)
    assert [each.kind for each in findings_of([queue, ready, LOG])] == ["log", "consumer"]
    waiting = held("connection", "c", "queue orders", 0.1)
    queue = held("queue", "orders", "log", 0.1)
    found = findings_of([waiting, queue, ready, LOG])
    assert [each.kind for each in found] == ["log", "consumer"]


def short_of_room(culprit):
    return StageView("connection", "c", "flow", Reason.ROOM, culprit, downstream=("channel c/1",))


def test_who_lacks_room_waits_for_the_one_who_has_it_and_for_whom_that_one_waits():
    keeper = held("connection", "d", "log", 0.9)
    found = chains([short_of_room("connection d"), keeper, LOG])[0]
    assert (found.kind, found.chain) == ("log", ("connection c", "connection d"))
    found = chains([short_of_room("connection d"), StageView("connection", "d"), LOG])[0]
    assert (found.kind, found.name) == ("connection", "d")
    assert "most of the in-flight pool" in found.sentence


def test_who_lacks_room_does_not_wait_for_its_own_channel():
    views = [short_of_room("connection gone"), StageView("channel", "c/1"), LOG]
    found = chains(views)[0]
    assert (found.kind, found.name) == ("limit", "connection gone")
    assert "(room)" in found.sentence


def test_sinks_that_an_alarm_holds_are_counted_beside_connections():
    sink = StageView("sink", "out of query q", "blocked", Reason.DISK, "1 B free, limit 2 B")
    [finding] = findings_of([sink])
    assert finding.sentence == "The disk alarm holds 1 sink of Spark: 1 B free, limit 2 B."
    held = StageView("connection", "c1", "blocked", Reason.DISK, "1 B free, limit 2 B")
    [finding] = findings_of([held, sink, sink])
    assert "holds 1 publishing connection and 2 sinks of Spark" in finding.sentence


def test_a_sink_that_waits_for_a_full_topic_names_its_limit():
    words = "topic 'orders' holds 5 messages, limit 5 (length_max)"
    sink = StageView("sink", "out of query q", "flow", Reason.HELD, words, share=0.4, recent=1.0)
    [finding] = findings_of([sink])
    assert finding.chain == ("sink out of query q",)
    assert words in finding.sentence


def test_a_queue_that_waits_for_a_sync_now_and_then_is_no_answer():
    queue = StageView(
        "queue",
        "orders",
        "flow",
        Reason.FLOW,
        "log",
        share=0.02,
        id="queue/orders/0",
        waits_for="log",
    )
    log = StageView("log", "log", id="log")
    (found,) = findings_of([queue, log])
    assert (found.severity, found.culprit.id) == ("parked", "log")
    assert diagnose([queue, log]).severity == "ok"


def test_chains_are_walked_one_to_a_step_however_many_wait():
    waiting = [held("connection", f"c{number}", "log", 1.0) for number in range(500)]
    steps = list(held_chains([*waiting, LOG]))
    # One look at all of them, a walk or two for each that waits, and what is said of their end.
    assert len(steps) >= 2 * len(waiting)
    assert max(steps) <= 1 + 2 * LOOK * len(waiting)


def test_credit_that_lacked_for_less_than_a_hundredth_of_the_time_is_no_answer():
    waited = StageView(
        "connection", "flood", "flow", Reason.FLOW, "log", share=0.004, recent=0.02, stalls=9
    )
    passed = replace(waited, is_stalled=False)
    log = StageView("log", "log")
    assert diagnose([waited, log]).culprit.name == "log", "it waits now"
    assert diagnose([passed, log]).severity == "ok"
    assert [each.severity for each in findings_of([passed, log])] == ["parked"]
    assert diagnose([replace(passed, stalls=40), log]).culprit.name == "log", "again and again"
