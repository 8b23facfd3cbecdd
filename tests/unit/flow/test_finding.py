"""Findings: every cause has words, and every command that is advised exists with its options."""

import shlex

import click
import pytest

from penstock.cli.main import penstock
from penstock.flow.delivery import WITHHELD_WORDS
from penstock.flow.finding import (
    CAUSE_WORDS,
    LIMIT_OPTIONS,
    advice_for,
    brake_advice,
    topic_argument,
)
from penstock.flow.reason import Reason
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


def test_every_cause_has_words_for_the_headline():
    causes = [*Reason, *RefusalKind, *WITHHELD_WORDS]
    assert [each.value for each in causes if each.value not in CAUSE_WORDS] == []
