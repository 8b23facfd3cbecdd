"""What the story's screen writes, to a terminal and to anything else."""

import io
import os

from penstock.cli.story import view
from penstock.cli.story.view import Rates, Screen


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_its_board_drawn_over_itself(monkeypatch):
    monkeypatch.setattr(view.shutil, "get_terminal_size", lambda: os.terminal_size((21, 10)))
    out = Terminal()
    screen = Screen(out)
    screen.show(["a" * 50, "b"], "plain")
    screen.show(["c", "d"], "plain")
    first, second = out.getvalue().split("\x1b[2A\r\x1b[J")
    assert first == "a" * 20 + "\nb\n"
    assert second == "c\nd\n"


def test_a_colored_line_is_cut_by_what_is_seen_of_it(monkeypatch):
    monkeypatch.setattr(view.shutil, "get_terminal_size", lambda: os.terminal_size((21, 10)))
    out = Terminal()
    Screen(out).show(["\x1b[36mshort\x1b[0m", "\x1b[36m" + "l" * 30 + "\x1b[0m"], "plain")
    assert out.getvalue() == "\x1b[36mshort\x1b[0m\n" + "l" * 20 + "\n"


def test_narration_stays_above_the_board():
    out = Terminal()
    screen = Screen(out)
    screen.show(["board"], "plain")
    screen.say("something happened")
    screen.show(["board"], "plain")
    assert out.getvalue() == "board\n\x1b[1A\r\x1b[J    0 s  something happened\nboard\n"


def test_a_log_gets_one_plain_line_now_and_then_and_news_at_once():
    out = io.StringIO()
    screen = Screen(out)
    for plain, is_news in (("one", False), ("two", False), ("three", True), ("four", False)):
        screen.show(["board"], plain, is_news=is_news)
    assert out.getvalue() == "    0 s  one\n    0 s  three\n"
    assert "\x1b" not in out.getvalue()


def test_a_silent_screen_writes_nothing():
    out = Terminal()
    screen = Screen(out, is_silent=True)
    screen.say("x")
    screen.show(["x"], "x", is_news=True)
    screen.end(["x"])
    assert out.getvalue() == ""


def test_a_board_is_due_again_after_a_moment():
    screen = Screen(io.StringIO())
    assert screen.is_due
    screen.show([], "")
    assert not screen.is_due


def test_rates_are_those_since_the_last_look(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(view.time, "monotonic", lambda: now[0])
    rates = Rates()
    assert rates.of("orders", 100) == 0
    now[0] = 12.0
    assert rates.of("orders", 150) == 25
