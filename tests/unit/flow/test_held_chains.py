"""Who is to blame when several stages are held: by how long and how often they were."""

from penstock.flow.diagnosis import findings_of
from penstock.flow.held_chains import held_chains
from penstock.flow.reason import Reason
from penstock.flow.views import ConsumerView, StageView

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
    return held_chains(views)[0].kind


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
    assert [each.kind for each in held_chains(views)] == ["channel", "log"]


def test_whoever_is_waited_for_does_not_weigh_a_second_time():
    slow = [held("connection", "a", "queue hot", 0.5), StageView("queue", "hot")]
    # Three stages, but one publisher who waits.
    deep = chain((0.3, 5), (0.3, 5), (0.3, 5))
    assert [each.kind for each in held_chains([*slow, *deep])] == ["queue", "log"]


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
    found = held_chains(views)[0]
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
    assert held_chains(views)[0].name == "orders"


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
    found = held_chains([short_of_room("connection d"), keeper, LOG])[0]
    assert (found.kind, found.chain) == ("log", ("connection c", "connection d"))
    found = held_chains([short_of_room("connection d"), StageView("connection", "d"), LOG])[0]
    assert (found.kind, found.name) == ("connection", "d")
    assert "most of the in-flight pool" in found.sentence


def test_who_lacks_room_does_not_wait_for_its_own_channel():
    views = [short_of_room("connection gone"), StageView("channel", "c/1"), LOG]
    found = held_chains(views)[0]
    assert (found.kind, found.name) == ("limit", "connection gone")
    assert "(room)" in found.sentence
