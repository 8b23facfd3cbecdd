"""``penstock limits``: what it asks, what it shows, and what it does not take."""

import json

import pytest
from click.testing import CliRunner

from penstock.cli.limits import command

LIMITS = {
    "memory": {
        "limit_bytes": 2 << 30, "now_bytes": 1 << 30, "total_bytes": 4 << 30, "is_raised": False,
        "setting": "flow.memory_limit",
    },
    "disk": {
        "limit_bytes": 1 << 30, "now_bytes": 1 << 20, "total_bytes": 9 << 30, "is_raised": True,
        "setting": "flow.disk_free_limit",
    },
}  # fmt: skip
CREDITS = {"queue_log": {"credit": 4000, "more": 500}}


@pytest.fixture
def sent(monkeypatch):
    found = []

    def asked(method, path, order=None, **where):
        assert where["endpoint"] == "127.0.0.1:1"
        if method != "GET":
            found.append((method, path, order))
        return LIMITS if path == "/api/flow/limits" else CREDITS

    monkeypatch.setattr("penstock.cli.limits.asked", asked)
    return found


def run(*arguments):
    return CliRunner().invoke(command, [*arguments, "--endpoint", "127.0.0.1:1"])


def test_limits_are_shown_beside_what_is_used_and_free(sent):
    lines = run("show").output.splitlines()
    assert "memory" in lines[1]
    assert "1 GiB used" in lines[1]
    assert "yes" in lines[2]
    assert "4,000" in lines[-1]


def test_the_same_as_json(sent):
    assert json.loads(run("show", "--json").output) == {"limits": LIMITS, "credits": CREDITS}


def test_what_is_not_named_is_not_changed(sent):
    result = run("set", "--memory", "2GiB")
    assert result.exit_code == 0, result.output
    assert sent == [("PUT", "/api/flow/limits", {"memory": "2GiB"})]
    assert "next start" in result.output


def test_limits_and_credit_are_changed_by_one_verb(sent):
    run("set", "--disk-free", "auto", "--hop", "queue_log", "--credit", "9", "--more", "3")
    assert sent == [
        ("PUT", "/api/flow/limits", {"disk": "auto"}),
        ("PUT", "/api/flow/credit", {"hop": "queue_log", "credit": 9, "more": 3}),
    ]


@pytest.mark.parametrize("arguments", [(), ("--hop", "queue_log"), ("--credit", "5")])
def test_half_an_order_is_a_usage_error(sent, arguments):
    assert run("set", *arguments).exit_code == 2
    assert sent == []
