"""Findings: every cause has words, and every command that is advised exists with its options."""

import shlex

import click
import pytest
from msgspec.structs import replace

from penstock.cli.main import penstock
from penstock.flow.delivery import WITHHELD_WORDS
from penstock.flow.finding import (
    CAUSE_WORDS,
    LIMIT_OPTIONS,
    Finding,
    advice_for,
    brake_advice,
    topic_argument,
)
from penstock.flow.reason import Reason
from penstock.flow.views import Ref
from penstock.model.refusal import RefusalKind

CULPRITS = [
    ("alarm/memory", "memory"),
    ("alarm/disk", "disk"),
    *[(f"limit/{setting}/topic/a%20b@space", "held") for setting in LIMIT_OPTIONS],
    ("limit/flow.pending_publishes_max/connection/1", "pending"),
    ("sub/orders/billing", "nobody"),
    ("sub/orders/billing", "drop-head"),
    ("sub/a%20b@space/billing", "subscription-unsettled"),
    ("limit/unacked_max/sub/orders/billing", "pending"),
    ("topic/orders", "letters-lost"),
    ("topic/orders", "length-limit"),
    ("query/etl", "sink"),
    ("log", "slow"),
]


@pytest.mark.parametrize(("culprit", "cause"), CULPRITS)
def test_every_command_that_is_advised_exists(culprit, cause):
    exist(advice_for(culprit, cause))


@pytest.mark.parametrize("bound", ["messages_max", "bytes_max", "age_ms_max"])
def test_every_command_against_a_query_that_holds_publishers_exists(bound):
    raised, off = brake_advice("topic/a%20b@space", f"spark_backlog_{bound}", 1 << 30)
    assert "2147483648" in raised.command
    assert off.command.endswith("--spark-backpressure off")
    exist([raised, off])


def exist(advice):
    assert advice
    for each in advice:
        assert each.why
        name, *words = shlex.split(each.command)
        assert name == "penstock"
        found, context = penstock, click.Context(penstock)
        while words and isinstance(found, click.Group):
            inner = found.get_command(context, words[0])
            assert inner is not None, each.command
            found, words = inner, words[1:]
        found.make_context("penstock", words)


def test_a_topic_is_named_as_a_shell_takes_it():
    assert topic_argument("topic/orders") == "orders"
    assert topic_argument("topic/a%20b@shop") == "'a b' --space shop"
    assert shlex.split(topic_argument("topic/it%27s%5C%20%24x")) == ["it's\\ $x"]


VERBS = (
    "buries consumes could does drops failed has held is keeps lost never publishes refuses takes "
    "wait waits was"
)


def test_every_cause_is_told_as_what_the_culprit_does():
    said = {each.split()[0] for each in CAUSE_WORDS.values()}
    assert said <= set(VERBS.split())


def told(severity, culprit, cause, **more):
    finding = Finding(culprit.kind, culprit.name, "It is so.", severity=severity, **more)
    finding = replace(finding, culprit=culprit, cause=cause)
    return "".join([each.text for each in finding.headline])


def test_a_headline_reads_as_a_sentence():
    log, host = Ref("log", "log", "log"), Ref("host", "host", "host")
    query, pool = Ref("query", "query/etl", "etl"), Ref("pool", "pool/in-flight", "in-flight pool")
    billing, orders = Ref("subscription", "sub/orders/b", "orders/b"), Ref("topic", "t", "orders")
    assert told("holding", log, "slow") == "log is the bottleneck: it is slow."
    assert told("refusing", log, "slow") == "log is slow."
    assert told("parked", log, "slow", is_felt=False) == (
        "log is waited for now and then: it is slow."
    )
    assert told("holding", host, "busy-host") == (
        "host is the bottleneck: its CPUs are taken by others."
    )
    assert told("parked", host, "busy-host") == "host has its CPUs taken by others."
    assert told("holding", query, "sink") == "etl is the bottleneck: its sink is slow."
    assert told("behind", query, "sink") == "etl has a slow sink."
    assert told("holding", pool, "room") == (
        "in-flight pool is the bottleneck: it is full, and nobody has most of it."
    )
    assert told("behind", billing, "rate") == "orders/b has used up its dispatch rate."
    assert told("refusing", orders, "quota") == (
        "orders refuses what is published: a reader is further behind than its quota."
    )
    disk = Ref("alarm", "alarm/disk", "disk alarm")
    assert told("alarm", disk, "disk") == "disk alarm is raised: too little is free."


def test_every_cause_has_words_for_the_headline():
    causes = [*Reason, *RefusalKind, *WITHHELD_WORDS]
    assert [each.value for each in causes if each.value not in CAUSE_WORDS] == []
