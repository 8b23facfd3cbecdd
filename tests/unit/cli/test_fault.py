"""``penstock fault``: where it looks for the broker and what it says when there is none."""

import json

import pytest
from click.testing import CliRunner

from penstock.cli.fault import command
from penstock.model.errors import NotFound, PenstockError, SettingsError


def run(*arguments):
    return CliRunner().invoke(command, arguments, catch_exceptions=True)


def test_without_a_ready_broker_it_says_how_to_start_one(tmp_path):
    result = run("clear", "--data", str(tmp_path))
    assert isinstance(result.exception, NotFound)
    assert "penstock up" in str(result.exception)


def test_a_broker_without_http_cannot_be_told(tmp_path):
    (tmp_path / "ready.json").write_text(json.dumps({"pid": 1, "endpoints": {}}))
    result = run("clear", "--data", str(tmp_path))
    assert "no HTTP port" in str(result.exception)


@pytest.mark.parametrize("endpoint", ["here", "host:port", ":80"])
def test_an_endpoint_that_is_none_is_refused(endpoint):
    assert isinstance(run("clear", "--endpoint", endpoint).exception, SettingsError)


def test_a_broker_that_does_not_answer_is_named():
    result = run("clear", "--endpoint", "127.0.0.1:1")
    assert isinstance(result.exception, PenstockError)
    assert "127.0.0.1:1" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [("store-hold",), ("store-hold", "--ms", "-1"), ("write-error", "--error", "epipe"), ("disk",)],
)
def test_a_verb_without_its_figures_is_a_usage_error(arguments):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "order"),
    [
        (("store-hold", "--ms", "3s"), {"fault": "store-hold", "ms": 3000}),
        (("sync-delay", "--ms", "20"), {"fault": "sync-delay", "ms": 20}),
        (("memory", "--bytes", "2GiB"), {"fault": "memory", "bytes": 2 << 30}),
        (("disk", "--bytes", "100MB"), {"fault": "disk", "bytes": 100_000_000}),
    ],
)
def test_amounts_have_units(arguments, order, monkeypatch):
    sent = []

    def send(method, path, given, *, at):
        sent.append(given)
        return 200, {"done": "yes"}

    monkeypatch.setattr("penstock.cli.fault.send", send)
    result = run(*arguments, "--endpoint", "127.0.0.1:1")
    assert (result.exit_code, sent) == (0, [order]), result.output


def test_an_amount_that_is_none_says_what_it_takes():
    result = run("store-hold", "--ms", "soon")
    assert result.exit_code == 2
    assert "10s, 5min" in result.output
