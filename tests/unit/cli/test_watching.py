"""Looking again and again: what a terminal, a pipe and a program see, and how it ends."""

import os
import shutil

import pytest

from penstock.cli.watching import Lines, Objects, Screen, watch
from penstock.model.errors import PenstockError


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
