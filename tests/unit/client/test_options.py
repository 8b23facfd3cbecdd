"""Options: defaults, types, ranges and misspelled names."""

from typing import Annotated, TypedDict

import pytest

from penstock.client.options import InstanceOptions, Option, describe, pick, resolve


class Tried(TypedDict, total=False):
    wait_ms: Annotated[int, Option(3000, "How long.", minimum=1, maximum=10_000)]
    share: Annotated[float, Option(0.5, "How much.", minimum=0)]
    name: Annotated[str | None, Option(None, "Who.")]
    mode: Annotated[str, Option("PULL", "Which.", choices=("PULL", "POP"))]
    is_on: Annotated[bool, Option(False, "Whether.")]


class Wider(Tried, total=False):
    more: Annotated[int, Option(1, "More.")]


def test_what_is_not_given_has_its_default():
    assert resolve(Tried, {"wait_ms": 5}) == {
        "wait_ms": 5, "share": 0.5, "name": None, "mode": "PULL", "is_on": False,
    }  # fmt: skip


def test_an_unknown_name_is_refused_with_the_nearest_known_one():
    with pytest.raises(
        TypeError, match="'wait_msec' is no option of Tried; did you mean 'wait_ms'"
    ):
        resolve(Tried, {"wait_msec": 5})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"wait_ms": 0}, ValueError),
        ({"wait_ms": 10_001}, ValueError),
        ({"wait_ms": "5"}, TypeError),
        ({"wait_ms": True}, TypeError),
        ({"wait_ms": None}, TypeError),
        ({"name": 5}, TypeError),
        ({"mode": "PUSH"}, ValueError),
        ({"is_on": 1}, TypeError),
    ],
)
def test_a_wrong_value_is_refused_by_name(given, error):
    with pytest.raises(error, match=f"option {next(iter(given))}"):
        resolve(Tried, given)


def test_a_whole_number_is_a_fraction_and_none_is_none():
    assert resolve(Tried, {"share": 1, "name": "x"})["share"] == 1
    assert resolve(Tried, {"name": None})["name"] is None


def test_options_are_inherited_and_described_parents_first():
    assert [each.name for each in describe(Wider)][-1] == "more"
    assert resolve(Wider, {"wait_ms": 7})["wait_ms"] == 7


def test_picking_takes_only_what_the_smaller_set_knows():
    assert pick(Tried, {"wait_ms": 9, "more": 3})["wait_ms"] == 9


def test_every_instance_option_says_what_it_means():
    assert all(len(each.option.meaning) > 10 for each in describe(InstanceOptions))
