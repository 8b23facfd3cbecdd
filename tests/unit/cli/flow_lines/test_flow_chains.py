"""Chains from who waits to who is slow, and the page of one name."""

import pytest

from kit.flow_answers import consumer, finding, flow_answer, stage
from penstock.cli.flow_lines import chain_of_finding, chain_of_stage, label_of, narrowed
from penstock.model.errors import NotFound

FULL = "topic 'orders' holds 3 messages, limit 3 (length_max)"


def chain(first, *others):
    return chain_of_stage(first, {label_of(each): each for each in (first, *others)})


def pressed():
    """A connection that waits for its channel, that for a queue, and somebody who runs."""
    return flow_answer(
        [
            stage("connection", "amqp-1", culprit="channel amqp-1/1"),
            stage("channel", "amqp-1/1", culprit="queue hot"),
            stage("queue", "hot"),
            stage("queue", "cold"),
            stage("subscription", "cold/billing", consumers=[consumer("clerk")]),
        ],
        [finding("queue", "hot", "queue hot is slow.", "connection amqp-1", "channel amqp-1/1")],
    )


NOBODY = {"cause": "nobody"}


@pytest.mark.parametrize(
    ("found", "end"),
    [
        (finding("queue", "hot", "", "connection a"), "queue hot"),
        (finding("limit", FULL, "", "connection a"), FULL),
        (finding("memory", "9 used", "", "connection a"), "memory alarm: 9 used"),
        (finding("consumer", "c", "", "subscription s", side="delivery"), "consumer c"),
        (
            finding("network", "c", "", "subscription s", side="delivery"),
            "the network, or consumer c",
        ),
        (
            {**finding("subscription", "s", "", "subscription s", side="delivery"), **NOBODY},
            "nobody: it has no consumer",
        ),
        (finding("query", "q", "", "query q", side="delivery"), "query q"),
        (finding("log", "log", "", "log"), "log"),
    ],
)
def test_the_chain_of_a_finding_ends_at_who_is_slow(found, end):
    assert chain_of_finding(found)[-1] == end
    assert len(chain_of_finding(found)) == (1 if end in found["chain"] else 2)


def test_nothing_found_has_no_chain():
    assert chain_of_finding(flow_answer()["answer"]) == []


def test_a_stage_is_followed_to_the_first_that_runs():
    waits = stage("connection", "a", culprit="channel a/1")
    between = stage("channel", "a/1", culprit="log")
    assert chain(waits, between, stage("log", "log")) == ["connection a", "channel a/1", "log"]


def test_a_stage_that_runs_waits_for_nobody():
    assert chain(stage("queue", "hot", downstream=["log"]), stage("log", "log")) == ["queue hot"]


def test_without_a_culprit_the_held_link_leads_on():
    waits = stage("channel", "a/1", reason="flow", downstream=["queue x", "queue y"])
    held = stage("queue", "y", culprit="log")
    assert chain(waits, stage("queue", "x"), held)[1:] == ["queue y", "log"]


def test_of_several_links_that_run_none_is_blamed():
    waits = stage("channel", "a/1", reason="flow", downstream=["queue x", "queue y"])
    assert chain(waits, stage("queue", "x"), stage("queue", "y")) == ["channel a/1"]


def test_stages_that_wait_for_each_other_are_walked_once():
    ring = stage("queue", "x", culprit="queue y"), stage("queue", "y", culprit="queue x")
    assert chain(*ring) == ["queue x", "queue y"]


def test_undone_work_that_waits_is_followed_although_its_stage_runs():
    undone = {"what": "commands", "count": 4, "since_ms": 1, "waits_for": "channel a/1"}
    waits = stage("connection", "a", undone=undone)
    assert chain(waits, stage("channel", "a/1")) == ["connection a", "channel a/1"]


@pytest.mark.parametrize("name", ["amqp-1", "connection amqp-1", "hot"])
def test_a_name_has_the_chain_that_it_begins_or_ends(name):
    page = narrowed(pressed(), name)
    assert page["chains"] == [["connection amqp-1", "channel amqp-1/1", "queue hot"]]
    assert page["answer"]["sentence"] == "queue hot is slow."


def test_what_the_broker_says_of_whom_it_waits_for_concerns_it():
    page = flow_answer(
        [stage("connection", "a", culprit="log"), stage("queue", "hot", culprit="log")],
        [
            finding("log", "log", "log is slow.", "connection a"),
            finding("consumer", "c", "c is slow.", "subscription cold/x", side="delivery"),
        ],
    )
    assert [each["sentence"] for each in narrowed(page, "hot")["findings"]] == ["log is slow."]


def test_only_stages_of_that_name_stay():
    page = narrowed(pressed(), "cold")
    assert [label_of(each) for each in page["stages"]] == [
        "queue cold",
        "subscription cold/billing",
    ]
    assert (page["contains"], page["chains"], page["findings"]) == ("cold", [], [])
    assert page["answer"]["sentence"] == "None of 2 stages with 'cold' in their name is held."


def test_a_consumer_is_found_with_its_subscription():
    page = narrowed(pressed(), "clerk")
    assert [each["name"] for each in page["stages"]] == ["cold/billing"]
    sentence = "consumer clerk in subscription cold/billing takes messages."
    assert page["answer"]["sentence"] == sentence


def test_a_name_that_several_consumers_have_says_what_some_of_them_do():
    crew = [consumer(f"clerk {number}", blocked_by=["nothing-ready"]) for number in range(5)]
    page = flow_answer([stage("subscription", "orders/s", consumers=crew)])
    said = narrowed(page, "clerk")["answer"]["sentence"]
    assert said.startswith("consumer clerk 0 in subscription orders/s waits: there is nothing to ")
    assert said.count("consumer clerk") == 3
    assert said.endswith("; and 2 more.")


def test_a_finding_that_names_the_consumer_is_not_said_twice():
    slow = stage("subscription", "orders/s", consumers=[consumer("clerk", unacked=1)])
    found = finding("consumer", "clerk", "clerk is slow.", "subscription orders/s", side="delivery")
    page = narrowed(flow_answer([slow], [found]), "clerk")
    assert [each["sentence"] for each in page["findings"]] == ["clerk is slow."]


@pytest.mark.parametrize("name", ["cold", "clerk", "cold/billing"])
def test_what_is_said_of_a_name_has_the_fields_of_a_finding(name):
    answer = narrowed(pressed(), name)["answer"]
    assert answer.keys() == finding("queue", "hot", "").keys()
    assert answer["severity"] == "ok"


def test_one_word_is_looked_for_in_names_and_not_in_kinds():
    with pytest.raises(NotFound):
        narrowed(pressed(), "subscription")


def test_events_of_others_are_left_out():
    page = pressed()
    page["events"] = [{"kind": "queue", "name": "hot"}, {"kind": "queue", "name": "cold"}]
    assert narrowed(page, "hot")["events"] == [{"kind": "queue", "name": "hot"}]


def test_who_waits_for_a_limit_of_the_name_is_shown_once_with_its_channel():
    page = flow_answer(
        [
            stage("connection", "a", reason="held", culprit=FULL, downstream=["channel a/1"]),
            stage("channel", "a/1", reason="held", culprit=FULL),
            stage("queue", "orders"),
        ]
    )
    found = narrowed(page, "orders")
    assert found["chains"] == [["connection a", FULL]]
    assert found["answer"]["sentence"] == f"connection a waits for {FULL}."


def test_a_connection_that_an_alarm_only_warns_would_wait():
    warned = stage("connection", "a", state="blocking", reason="disk", culprit="1 B free")
    sentence = narrowed(flow_answer([warned]), "a")["answer"]["sentence"]
    assert sentence == "connection a would wait, if it published, for disk alarm: 1 B free."


def test_an_unknown_name_is_told_in_three_parts():
    page = pressed()
    page["stages_left_out"] = 1200
    with pytest.raises(NotFound) as error:
        narrowed(page, "cald")
    what, why, following = str(error.value).split("; ")
    assert what == "nothing that is listed has 'cald' in its name"
    assert why == "5 stages were looked at, and 1,200 stages that run are not listed"
    assert following.startswith("try `penstock why 'cold'`")


@pytest.mark.parametrize(
    ("left_out", "what", "looked"),
    [
        (0, "no connection, queue, subscription or consumer has", "were looked at"),
        (4936, "nothing that is listed has", "were looked at, and 4,936 consumers are not listed"),
    ],
)
def test_a_consumer_without_a_row_is_not_said_to_be_none(left_out, what, looked):
    shown = [consumer(f"w{number}") for number in range(64)]
    crowd = stage("subscription", "orders/s", consumers=shown, consumers_total=64 + left_out)
    with pytest.raises(NotFound) as error:
        narrowed(flow_answer([crowd, stage("log", "log")]), "w4000")
    said, why, _ = str(error.value).split("; ")
    assert said == f"{what} 'w4000' in its name"
    assert why == f"2 stages {looked}"
