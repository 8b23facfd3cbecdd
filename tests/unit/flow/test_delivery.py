"""Why a reader is behind: consumers, nobody, and Spark queries."""

import pytest

from penstock.flow import delivery
from penstock.flow.demand import ClientCause, ClientSays, Withheld
from penstock.flow.diagnosis import diagnose, findings_of, findings_steps
from penstock.flow.progress import ProgressView
from penstock.flow.reason import Reason
from penstock.flow.views import BURIALS, ConsumerView, QueryView, StageView, UndoneView

SLOW = ConsumerView("slow", unacked=100, unacked_max=100)
UNREAD = ConsumerView("deaf", unacked=5, unacked_max=100, is_unsent_high=True)
IDLE = ConsumerView("idle", has_demand=False)
BUSY = ConsumerView("busy", unacked=5, unacked_max=100)


def kept_from(name, *reasons, **given):
    return ConsumerView(name, blocked_by=tuple(reasons), **given)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Withheld.SUBSCRIPTION, "as many unsettled as it allows"),
        (Withheld.RATE, "its dispatch rate is used up"),
        (Withheld.DELAYED_ROOM, "no room for that on disk (topics.delayed_on_disk_max)"),
        (Withheld.DRAINING, "had their keys before has settled them"),
        (Withheld.LOOK_AHEAD, "consumers of other keys"),
        (Withheld.INACTIVE, "another consumer is to take over first"),
        (Withheld.NOTHING_READY, "nobody consumes the queues they are in"),
    ],
)
def test_who_asks_and_gets_nothing_has_a_reason(reason, words):
    stage = StageView("subscription", "s", ready=5, consumers=(kept_from("c", reason),))
    found = diagnose([stage])
    assert found.kind == reason
    assert found.sentence.startswith("5 messages are ready in subscription s, but ")
    assert words in found.sentence
    assert found.sentence.endswith(" (consumer c).")


def test_consumers_are_named_and_on_whom_it_depends_and_of_many_only_some():
    waiting = [kept_from(name, Withheld.DRAINING, waits_for="old") for name in "abcd"]
    stage = StageView("subscription", "s", ready=5, consumers=tuple(waiting))
    assert diagnose([stage]).sentence.endswith(" (consumers a, b and 2 more, for consumer old).")
    alike = kept_from("a", Withheld.RATE, others=2)
    stage = StageView("subscription", "s", ready=5, consumers=(alike,))
    assert diagnose([stage]).sentence.endswith(" (consumers a and 2 more).")


def test_a_limit_of_all_goes_before_the_limits_of_some():
    waiting = kept_from("c", Withheld.SUBSCRIPTION)
    stage = StageView("subscription", "s", ready=5, consumers=(SLOW, waiting))
    assert diagnose([stage]).kind == Withheld.SUBSCRIPTION
    both = kept_from("slow", Withheld.UNSETTLED, Withheld.SUBSCRIPTION, unacked=9, unacked_max=9)
    stage = StageView("subscription", "s", ready=5, consumers=(both,))
    assert diagnose([stage]).kind == "consumer", "nobody could take more if there were no other"


def test_a_consumer_that_is_full_of_bytes_is_said_to_be_so():
    full = kept_from("c", Withheld.BYTES, unacked=3, unacked_max=3, unacked_bytes=2 << 20,
                     unacked_bytes_max=1 << 20)  # fmt: skip
    found = diagnose([StageView("subscription", "s", ready=5, consumers=(full,))])
    assert found.name == "c"
    assert found.sentence.endswith(
        "consumer c is slow: it has 2 MiB of unsettled messages, its limit is 1 MiB."
    )


def test_who_stands_by_is_not_the_reason():
    standby = kept_from("b", Withheld.INACTIVE)
    stage = StageView("subscription", "s", ready=5, consumers=(SLOW, standby))
    assert diagnose([stage]).name == "slow"
    silent = kept_from("a", Withheld.DEMAND, has_demand=False)
    stage = StageView("subscription", "s", ready=5, consumers=(silent, standby))
    assert "nobody pulls" in diagnose([stage]).sentence
    stage = StageView("subscription", "s", ready=5, consumers=(BUSY, standby))
    assert diagnose([stage]).side == "none"


@pytest.mark.parametrize(
    ("consumers", "kind", "name", "word"),
    [
        ((SLOW,), "consumer", "slow", "100 unsettled"),
        ((IDLE, SLOW, UNREAD), "consumer", "slow", "is slow"),
        ((UNREAD,), "network", "deaf", "does not read"),
        ((IDLE,), "demand", "orders/billing", "nobody pulls"),
        ((), "subscription", "orders/billing", "nobody consumes"),
        ((SLOW, BUSY), "none", "", "Nothing is held back"),
    ],
)
def test_why_ready_messages_are_not_delivered(consumers, kind, name, word):
    found = diagnose([StageView("subscription", "orders/billing", ready=7, consumers=consumers)])
    assert (found.kind, found.name) == (kind, name)
    assert word in found.sentence


def test_a_subscription_with_nothing_ready_is_no_finding():
    assert findings_of([StageView("subscription", "s", consumers=(SLOW,))]) == []


def test_the_longest_backlog_comes_first():
    views = [
        StageView("subscription", "small", ready=1),
        StageView("subscription", "large", ready=1000),
    ]
    assert [each.name for each in findings_of(views)] == ["large", "small"]


def test_dead_letters_that_are_not_written_after_five_seconds_are_slow():
    def found(age_ms):
        undone = UndoneView(BURIALS, 7, 1_000, age_ms=age_ms)
        stage = StageView("subscription", "orders/a", undone=undone, id="sub/orders/a")
        return [(each.severity, each.cause, each.since_ms) for each in findings_of([stage])]

    assert found(4_000) == []
    assert found(6_000) == [("dead", "letters-slow", 1_000)]


def test_readers_are_judged_one_to_a_step(monkeypatch):
    judged = []
    judge = delivery._subscription
    monkeypatch.setattr(
        delivery, "_subscription", lambda *given: judged.append(given[0].name) or judge(*given)
    )
    unread = [StageView("subscription", f"s{number}", ready=number) for number in range(1, 1001)]
    steps, done = 0.0, 0
    for weight in findings_steps(unread):
        steps += weight
        assert len(judged) - done <= 1
        done = len(judged)
    assert done == 1000
    assert steps >= 1000 * delivery.JUDGEMENT


def query(ready=500, **changes):
    view = QueryView(**{"name": "etl", "is_limited": True, "messages_per_s": 99.6} | changes)
    return StageView("query", "etl on orders", ready=ready, query=view)


def sentences(*stages):
    return [finding.sentence for finding in findings_of(stages)]


def test_a_query_at_its_limit_is_slow_and_its_slow_part_is_named():
    assert sentences(query(slow_part="sink")) == [
        "Spark query etl is 500 messages behind at 100 messages a second: "
        "its sink is the slow part."
    ]


def test_a_query_that_keeps_up_is_not_mentioned():
    assert not sentences(query(ready=0))
    assert not sentences(query(is_limited=False))


def test_a_query_that_fell_silent_is_said_not_to_have_polled_for_so_long():
    assert sentences(query(is_alive=False, silent_ms=95_400)) == [
        "Spark query etl is 500 messages behind: it did not poll for 95 s."
    ]


def test_a_query_that_was_stopped_or_failed_is_said_to_be_so_and_why():
    def told(**changes):
        (found,) = findings_of([query(is_limited=False, **changes)])
        return found.sentence.partition("behind: ")[2], found.cause

    assert told(is_alive=False, is_stopped=True) == ("it was stopped.", "stopped")
    failure = "ValueError: no"
    for is_stopped in (True, False):
        assert told(is_alive=False, is_stopped=is_stopped, failure=failure) == (
            "it failed (ValueError: no).",
            "failed",
        )
    assert told(failure=failure) == (
        "its batch failed (ValueError: no) and is tried again.",
        "failed",
    )


def test_a_held_publisher_leads_to_the_query():
    held = StageView("channel", "c/1", "flow", Reason.SPARK, "Spark query 'etl' is behind")
    found = findings_of([held, query(is_holding=True, slow_part="read")])
    assert [each.kind for each in found] == ["query", "query"]
    assert "publishers wait for it" in found[1].sentence


# What a client says of itself


def telling(cause, name="c", *, waiting=10, limit=10, lasted_ms=12_000, **given):
    says = ClientSays(cause, waiting, limit, lasted_ms=lasted_ms)
    return ConsumerView(name, has_demand=False, says=says, **given)


def told(*consumers):
    return diagnose([StageView("subscription", "s", ready=5, consumers=consumers)])


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (
            ClientCause.NOT_RECEIVED,
            "the application of consumer c has not taken 10 messages out of its receiver queue "
            "for 12 s",
        ),
        (
            ClientCause.QUEUE_BYTES,
            "consumer c does not read what it was sent: 10 messages wait for its application for "
            "12 s, and its receiver queue has as many bytes as it may (10 B)",
        ),
        (
            ClientCause.LISTENERS,
            "consumer c is busy: its listener (threads: 10) took nothing for 12 s, and 10 messages "
            "wait for it",
        ),
        (ClientCause.PAUSED, "consumer c is paused by its application, for 12 s"),
        (
            ClientCause.LETTERS,
            "consumer c waits for its retry-letter or dead-letter topic: 10 of its messages got no "
            "receipt for 12 s",
        ),
        (
            ClientCause.STARTING,
            "consumer c has not begun: other partitions or topics of it are not subscribed yet, "
            "for 12 s",
        ),
    ],
)
def test_a_client_that_says_why_it_takes_no_more_is_believed(cause, words):
    found = told(telling(cause))
    assert found.sentence == f"5 messages are ready in subscription s; {words}."
    assert (found.severity, found.cause) == ("behind", cause)
    assert (found.culprit.kind, found.culprit.name) == ("consumer", "c")
    assert "".join([part.text for part in found.headline]).startswith("c ")
    assert found.headline[1].text != f" {cause}.", "words for people"


def test_an_application_that_takes_now_and_then_is_slow():
    found = told(telling(ClientCause.NOT_RECEIVED, lasted_ms=900))
    assert found.cause == "slow-consumer"
    assert (
        "c is slow: 10 messages wait in its receiver queue for its application." in found.sentence
    )
    found = told(telling(ClientCause.LISTENERS, lasted_ms=900))
    assert found.sentence.endswith("wait in its receiver queue for its listener.")


def test_a_queue_of_0_that_nobody_asks():
    found = told(telling(ClientCause.NOT_RECEIVED, waiting=0, limit=0))
    assert "the application of consumer c has not asked for a message for 12 s." in found.sentence


def test_what_an_application_holds_beside_what_waits_is_said():
    found = told(telling(ClientCause.NOT_RECEIVED, unacked=25, unacked_max=25))
    assert found.sentence.endswith(" for 12 s; it holds 15 more, unacked.")


@pytest.mark.parametrize(
    ("unsettled_ms", "cause", "words"),
    [(12_000, "slow-consumer", "is slow"), (40_000, "never-acks", "never acks")],
)
def test_an_application_that_holds_everything_and_acks_nothing(unsettled_ms, cause, words):
    held = telling(ClientCause.UNACKED, unacked=1_000, unacked_max=1_000, unsettled_ms=unsettled_ms)
    found = told(held)
    assert found.cause == cause
    assert found.sentence.endswith(
        f"consumer c {words}: its application holds 1,000 messages and has acked none for "
        f"{unsettled_ms // 1000} s."
    )


def test_who_is_paused_on_purpose_is_named_when_nobody_else_is_to_blame():
    paused = telling(ClientCause.PAUSED, "paused", unacked=100, unacked_max=100)
    assert told(paused, SLOW).name == "slow"
    assert told(paused, UNREAD).name == "deaf"
    still = telling(ClientCause.NOT_RECEIVED, "still")
    assert told(paused, SLOW, still).name == "still"
    assert told(paused, IDLE).cause == "paused"


def test_of_several_the_one_that_does_least_is_named():
    moving = telling(ClientCause.NOT_RECEIVED, "moving", waiting=900, lasted_ms=100)
    still = telling(ClientCause.NOT_RECEIVED, "still", waiting=3)
    assert told(moving, still).name == "still"


def test_who_settles_slowly_is_named_before_one_that_is_paused():
    paused = telling(ClientCause.PAUSED, "paused")
    holder = ConsumerView("holder", has_demand=False, unacked=3, has_settled=True)
    assert told(paused, holder).name == "holder"


def test_messages_that_all_lie_in_a_receiver_queue_while_none_is_ready():
    progress = ProgressView(unacked_since_ms=5, unacked_age_ms=40_000)
    full = telling(ClientCause.NOT_RECEIVED, waiting=100, unacked=100, unacked_max=50_000)
    stage = StageView("subscription", "s", consumers=(full,), progress=progress)
    found = diagnose([stage])
    assert (found.cause, found.since_ms) == ("not-received", 5)
    assert found.sentence.startswith("subscription s has unsettled messages, the oldest 40 s old; ")
    assert "has not taken 100 messages out of its receiver queue" in found.sentence


def test_a_consumer_that_takes_more_makes_what_others_say_unimportant():
    assert told(telling(ClientCause.PAUSED), BUSY).severity == "ok"
