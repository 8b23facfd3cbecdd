"""The flow map as people read it: the sentence first, then the chain, then short tables."""

import re

import pytest

from kit.flow_answers import AT_MS, consumer, finding, flow_answer, limit, stage
from penstock.cli.flow_lines import ROWS_MAX, name_lines, narrowed, why_lines
from penstock.flow.diagnosis import diagnose
from penstock.flow.views import StageView

SENTENCE = "log is the bottleneck (the disk)."


def pressed():
    return flow_answer(
        [
            stage("connection", "shop", culprit="queue hot", share=0.125),
            stage("queue", "hot", culprit="log", share=0.24),
            stage("log", "log"),
        ],
        [finding("log", "log", SENTENCE, "connection shop", "queue hot")],
    )


def about(page, name):
    return name_lines(page, narrowed(page, name))


def cells(line):
    return re.split(r"  +", line.strip())


def test_the_sentence_is_first_and_the_chain_goes_from_who_waits_to_who_is_slow():
    assert why_lines(pressed())[:6] == [
        SENTENCE,
        "",
        "  connection shop  held for 2.5 s, 12 % of the last 10 s",
        "  -> queue hot     held for 2.5 s",
        "  -> log",
        "",
    ]


def test_held_stages_are_a_table_with_the_longest_held_first():
    head, first, second = why_lines(pressed())[6:]
    assert cells(head) == ["KIND", "NAME", "STATE", "REASON", "SINCE", "SHARE", "HELD BY"]
    assert cells(first) == ["queue", "hot", "flow", "flow", "2.5 s", "24 %", "log"]
    assert cells(second) == ["connection", "shop", "flow", "flow", "2.5 s", "12 %", "queue hot"]


@pytest.mark.parametrize(
    ("hot", "how"),
    [
        ({"share": 0.12}, "held for 12 % of the last 10 s"),
        ({"per_s": 400}, "400 messages a second"),
    ],
)
def test_when_nothing_is_held_the_busiest_stage_is_named_as_the_broker_does(hot, how):
    answer = diagnose([StageView("queue", "cold"), StageView("queue", "hot", **hot)])
    page = flow_answer([stage("queue", "cold"), stage("queue", "hot", **hot)])
    page["answer"] |= {"detail": answer.detail, "cause": answer.cause}
    assert why_lines(page) == [
        "Nothing is held back: the publishers, the network or their own limits set the pace.",
        f"The busiest stage is queue hot: {how}.",
    ]


def test_an_idle_broker_has_no_busiest_stage():
    assert len(why_lines(flow_answer([stage("queue", "cold")]))) == 1
    assert len(why_lines(flow_answer())) == 1


def test_an_alarm_is_named_with_what_to_do_next_although_nobody_waits_for_it():
    page = flow_answer(limits=[limit("free disk", "flow.disk_free_limit", 1 << 20, 1 << 30)])
    (line,) = [each for each in why_lines(page) if "alarm" in each]
    assert line == (
        "The disk alarm is raised: 1 MiB free, limit 1 GiB. "
        "Next: to see who fills the disk: penstock topics list; "
        "to ask for less, until the next start: penstock limits set --disk-free 1GiB."
    )
    page["answer"] = finding("disk", "1 MiB free, limit 1 GiB", "The disk alarm holds nobody yet.")
    assert not [each for each in why_lines(page) if "is raised" in each], "the answer says it"


def test_connections_that_an_alarm_holds_wait_beside_each_other_and_the_warned_do_not_wait():
    figures = "9 used, limit 8"
    alarm = {"reason": "memory", "culprit": figures}
    page = flow_answer(
        [
            stage("connection", "a", state="blocked", **alarm),
            stage("channel", "a/1", state="blocked", **alarm),
            stage("connection", "b", state="blocked", **alarm),
            stage("connection", "c", state="blocking", **alarm),
        ],
    )
    labels = [f"{each['kind']} {each['name']}" for each in page["stages"]]
    page["answer"] = finding("memory", figures, "The memory alarm holds 2.", *labels)
    assert why_lines(page)[2:4] == [
        "  connection a, connection b",
        f"  -> memory alarm: {figures}",
    ]
    assert "  connection c  held as soon as it publishes" in about(page, "c")


def test_another_limit_that_is_reached_names_its_setting():
    reached = limit("connections", "listeners.connections_max", 10, 10, unit="connections")
    assert why_lines(flow_answer(limits=[reached]))[-1] == (
        "A limit is reached: connections, 10 of 10. "
        "Next: `penstock settings` explains listeners.connections_max; change it with --set."
    )


def test_further_findings_are_a_line_each_and_cut_off_by_number():
    page = pressed()
    page["findings"] += [finding("queue", str(number), f"Number {number}.") for number in range(5)]
    also = [each for each in why_lines(page) if each.startswith(("Also", "..."))]
    assert also == [
        "Also: Number 0.",
        "Also: Number 1.",
        "Also: Number 2.",
        "... and 2 more findings; --json has them",
    ]


def test_a_long_table_says_how_many_it_leaves_out():
    page = flow_answer([stage("queue", f"q{each}", culprit="log") for each in range(ROWS_MAX)])
    page["stages_held"] += 7
    assert why_lines(page)[-1] == "... and 7 more held stages; --json has them"


def test_undone_work_has_a_table_of_its_own():
    undone = {"what": "burials", "count": 4200, "since_ms": AT_MS - 300, "waits_for": None}
    head, row = why_lines(flow_answer([stage("subscription", "s", undone=undone)]))[-2:]
    assert cells(head) == ["UNDONE", "LEFT", "SINCE", "OF", "WAITS FOR"]
    assert cells(row) == ["burials", "4,200", "300 ms", "subscription s", "its next turn"]


def test_held_publishes_of_a_closed_channel_say_whose_they_are_and_for_whom_they_wait():
    undone = {"what": "publishes after close", "count": 2, "since_ms": AT_MS - 300}
    closed = stage(
        "channel", "shop/1", culprit="topic 'hot' is full", reason="length",
        undone={**undone, "waits_for": None},
    )  # fmt: skip
    row = cells(why_lines(flow_answer([closed]))[-1])
    assert row == ["publishes after close", "2", "300 ms", "channel shop/1", "topic 'hot' is full"]


def test_a_name_is_shown_held_or_not_with_what_is_ready_in_it():
    page = flow_answer([stage("queue", "cold"), stage("subscription", "cold/billing", ready=1234)])
    lines = about(page, "cold")
    assert lines[0] == "None of 2 stages with 'cold' in their name is held."
    assert cells(lines[-2]) == ["queue", "cold", "running", "-", "-", "0 %", "-", "-"]
    assert cells(lines[-1])[-2:] == ["1,234", "-"]


def test_a_name_that_others_wait_for_shows_who_they_are():
    assert about(pressed(), "log")[2:5] == [
        "  connection shop  held for 2.5 s, 12 % of the last 10 s",
        "  -> queue hot     held for 2.5 s",
        "  -> log",
    ]


def test_consumers_without_a_row_are_counted_behind_those_that_have_one():
    rows = [consumer(f"w{number}", unacked=5, unacked_max=5) for number in range(64)]
    many = stage("subscription", "orders/billing", consumers=rows, consumers_total=5_000)
    few = stage("subscription", "orders/audit", consumers=rows[:1])
    lines = about(flow_answer([many, few]), "orders")
    shown = sum("has to settle first" in line for line in lines)
    assert any(f"and {5_001 - shown:,} more consumers" in line for line in lines), lines


def test_consumers_of_a_subscription_say_what_they_do():
    slow = stage(
        "subscription",
        "orders/billing",
        consumers=[
            consumer("full", unacked=10, unacked_max=10),
            consumer("deaf", is_unsent_high=True),
            consumer("idle", has_demand=False),
            consumer("next", blocked_by=["inactive"], waits_for="full"),
            consumer("heir", blocked_by=["inactive"]),
            consumer("keys", blocked_by=["draining"], waits_for="old"),
            consumer("vast", unacked=10, unacked_max=10, blocked_by=["bytes"]),
            consumer("free", blocked_by=["nothing-ready"]),
            consumer("good", unacked=3, unacked_max=10),
        ],
    )
    rows = [cells(each) for each in about(flow_answer([slow]), "billing")[-9:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("full", "is at its limit: it has to settle first"),
        ("deaf", "does not read what it was sent"),
        ("idle", "does not ask for messages"),
        ("next", "stands by: another is active (for consumer full)"),
        ("heir", "is to take over in a moment"),
        ("keys", "waits until the former owner of its keys has settled (for consumer old)"),
        ("vast", "is at its limit of bytes: it has to settle first"),
        ("free", "waits: there is nothing to read for it"),
        ("good", "takes messages"),
    ]
    assert rows[0][1:4] == ["orders/billing", "10", "10"]
