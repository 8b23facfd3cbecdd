"""``penstock why``: what it asks, what it prints, and how it fails."""

import json
import os
import shutil

import pytest
from click.testing import CliRunner

from kit.flow_answers import finding, flow_answer, stage
from penstock.cli import why
from penstock.cli.main import exit_code, main
from penstock.cli.why import Lines, Objects, Screen, watch
from penstock.model.errors import NotFound, PenstockError, SettingsError

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
    assert page["answer"]["sentence"] == SENTENCE
    assert page["diagnosis"] == page["answer"], "for one release more"


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
    assert "shop\\x1b[2J\\n" in run(*AT).output


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


# ---- watching -----------------------------------------------------------------------------------
# Looking again and again: what a terminal, a pipe and a program see, and how it ends.


class Waits:
    """Lets so many looks pass, then somebody presses Ctrl-C; nobody really waits."""

    def __init__(self, count):
        self.seconds = []
        self._count = count

    def __call__(self, seconds):
        self.seconds.append(seconds)
        if len(self.seconds) == self._count:
            raise KeyboardInterrupt


@pytest.fixture
def window(monkeypatch):
    def resize(columns, rows):
        size = os.terminal_size((columns, rows))
        monkeypatch.setattr(shutil, "get_terminal_size", lambda: size)

    return resize


def looks(*answers):
    left = list(answers)

    def look():
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


def test_it_looks_every_second_until_it_is_interrupted(capsys):
    wait = Waits(2)
    watch(looks(["one", "table"], ["two"]), Lines(), wait)
    assert wait.seconds == [1.0, 1.0]
    assert [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()] == ["one", "two"]


def test_an_interrupted_look_ends_it_too():
    def look():
        raise KeyboardInterrupt

    watch(look, Lines(), Waits(1))


def test_a_first_look_that_fails_ends_it():
    with pytest.raises(PenstockError):
        watch(looks(PenstockError("gone")), Lines(), Waits(1))


def test_a_later_look_that_fails_is_told_and_the_next_one_comes(capsys):
    watch(looks(["one"], PenstockError("gone"), ["two"]), Lines(), Waits(3))
    said = [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert said == ["one", "penstock: gone", "two"]


def test_for_programs_only_answers_are_on_the_output(capsys):
    watch(looks(["{}"], PenstockError("gone"), ["[]"]), Objects(), Waits(3))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("{}\n[]\n", "penstock: gone\n")


def shown(capsys, *all_lines):
    screen = Screen()
    for lines in all_lines:
        screen.show(lines)
    return capsys.readouterr().out


@pytest.fixture
def colours(monkeypatch):
    """click leaves escapes in only for a terminal."""
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)


@pytest.mark.usefixtures("colours")
def test_a_screen_is_cleared_once_and_then_written_over(capsys, window):
    window(80, 24)
    out = shown(capsys, ["one", "more"], ["two"])
    assert out.count("\x1b[2J") == 1
    assert out.count("\x1b[H") == 2
    assert out.endswith("\x1b[Htwo\x1b[K\n\x1b[J")


def test_a_screen_never_scrolls(capsys, window):
    window(40, 5)
    out = shown(capsys, [f"line {each}" for each in range(9)])
    assert out.splitlines() == [
        "line 0", "line 1", "line 2", "... 6 more lines; the window is full",
    ]  # fmt: skip


def test_a_sentence_is_wrapped_and_a_table_is_cut(capsys, window):
    window(16, 24)
    out = shown(capsys, ["the log is the bottleneck", "", "KIND   NAME   STATE"])
    assert out.splitlines() == ["the log is the", "  bottleneck", "", "KIND   NAME   ST"]


def test_a_screen_shows_a_failure_in_the_place_of_the_answer(capsys, window):
    window(80, 24)
    Screen().failed("penstock: gone")
    assert "penstock: gone" in capsys.readouterr().out
