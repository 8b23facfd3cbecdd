"""``penstock why``: what it asks, what it prints, and how it fails."""

import json

import pytest
from click.testing import CliRunner

from penstock.cli import why
from penstock.cli.main import exit_code, main
from penstock.model.errors import NotFound, PenstockError, SettingsError
from penstock.testing.flow_answers import finding, flow_answer, stage

SENTENCE = "queue hot is the bottleneck."
AT = ("--endpoint", "127.0.0.1:15672")


@pytest.fixture
def answer(monkeypatch):
    """What the broker says; a test may change it."""
    page = flow_answer(
        [stage("connection", "shop", culprit="queue hot"), stage("queue", "hot")],
        [finding("queue", "hot", SENTENCE, "connection shop")],
    )
    said = {"status": 200, "page": page}

    def send(method, path, *, at):
        assert (method, path, at) == ("GET", "/api/flow", ("127.0.0.1", 15672))
        return said["status"], said["page"]

    monkeypatch.setattr(why, "send", send)
    return said


def run(*arguments):
    return CliRunner().invoke(why.command, arguments)


@pytest.mark.usefixtures("answer")
def test_the_answer_is_the_first_line():
    result = run(*AT)
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == SENTENCE


@pytest.mark.usefixtures("answer")
def test_a_name_narrows_it():
    lines = run("hot", *AT).output.splitlines()
    assert "  -> queue hot" in lines
    assert [line.split()[:2] for line in lines[-1:]] == [["queue", "hot"]]


def test_json_is_what_the_broker_said(answer):
    assert json.loads(run("--json", *AT).output) == answer["page"]


@pytest.mark.usefixtures("answer")
def test_json_of_a_name_has_the_same_shape():
    page = json.loads(run("hot", "--json", *AT).output)
    assert [each["name"] for each in page["stages"]] == ["hot"]
    assert page["chains"] == [["connection shop", "queue hot"]]
    assert page["diagnosis"]["sentence"] == SENTENCE


@pytest.mark.usefixtures("answer")
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_watched_without_a_terminal_it_is_a_line_each_time(monkeypatch, flags):
    def twice(look, shown):
        for _ in range(2):
            shown.show(look())

    monkeypatch.setattr(why, "watch", twice)
    lines = run("--watch", *flags, *AT).output.splitlines()
    assert len(lines) == 2
    assert all(SENTENCE in line for line in lines)


def test_a_name_cannot_move_the_cursor(answer):
    answer["page"]["stages"][0]["name"] = "shop\x1b[2J\n"
    assert "shop?[2J?" in run(*AT).output


@pytest.mark.parametrize(
    ("status", "page"), [(404, {"error": "Object Not Found"}), (200, []), (200, {})]
)
def test_somebody_else_at_that_port_is_told_in_three_parts(answer, status, page):
    answer.update(status=status, page=page)
    what, reason, following = str(run(*AT).exception).split("; ")
    assert what.startswith(f"what answers at 127.0.0.1:15672 has no flow map (status {status}")
    assert reason.startswith("it is no Penstock")
    assert "`penstock why --endpoint 127.0.0.1:15672`" in following


def test_without_a_broker_it_says_how_to_start_one(tmp_path):
    error = run("--data", str(tmp_path)).exception
    assert isinstance(error, NotFound)
    assert f"`penstock up --data {tmp_path}`" in str(error)


def test_a_broker_that_does_not_answer_ends_with_the_code_of_other_verbs(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["why", "--endpoint", "127.0.0.1:1"])
    assert ended.value.code == exit_code(PenstockError()) == 1
    said = capsys.readouterr().err
    assert said.startswith("penstock: no broker answers at 127.0.0.1:1")
    assert "`penstock up`" in said


def test_an_endpoint_that_is_none_is_wrong_usage():
    assert exit_code(run("--endpoint", "here").exception) == 2
    assert isinstance(run("--endpoint", "here").exception, SettingsError)


@pytest.mark.usefixtures("answer")
def test_an_unknown_name_is_an_error():
    assert isinstance(run("nobody", *AT).exception, NotFound)
