"""What the board says, from pages as the broker gives them."""

import io
import os
from types import SimpleNamespace

import pytest

from penstock.demo.story import board as view
from penstock.demo.story.board import NOBODY, Board, Rates, Screen
from penstock.demo.story.processes import Batch
from penstock.model.errors import PenstockError

RUNNING = {"kind": "queue", "name": "orders", "state": "running"}
QUERY = {"name": "orders-rows", "messages_per_s": 160.0, "lag_messages": 3000, "lag_seconds": 6.5}


def flow(kind="none", name="", sentence="Nothing is held back.", stages=(RUNNING,)):
    return {
        "answer": {
            "severity": "ok" if kind == "none" else "holding",
            "culprit": {"kind": kind, "id": f"{kind}/{name}", "name": name},
            "sentence": sentence,
        },
        "stages": list(stages),
    }


class Broker:
    def __init__(self, page, queries=(), sinks=()):
        spark = {"queries": list(queries), "sinks": list(sinks)}
        self.pages = {"/api/flow": page, "/api/queries": spark}
        self.is_silent = False
        self.takes_its_time = lambda: None

    def ask(self, method, path, order=None):
        if self.is_silent:
            raise PenstockError("no answer")
        self.takes_its_time()
        return self.pages[path]

    def memory_bytes(self):
        return 50 << 20


@pytest.fixture
def clients():
    shop = SimpleNamespace(confirmed=set(range(7)), refused=3, outstanding=2, last_reason="")
    billing = SimpleNamespace(numbers=[1, 2], held=[], fullest=4)
    job = SimpleNamespace(state="running", batches=[Batch("rows", 5, 320, 2100)])
    return shop, billing, job


def seen(broker, clients):
    board = Board(broker, *clients)
    board.look()
    return board


def test_without_a_bottleneck_nobody_waits(clients):
    board = seen(Broker(flow()), clients)
    assert board.sentence == NOBODY
    assert not board.is_news
    assert "all stages run" in "\n".join(board.lines())


def test_the_brokers_sentence_is_shown_and_is_news_once_in_an_act(clients):
    broker = Broker(flow("log", "log", "log is the bottleneck (the disk)"))
    board = seen(broker, clients)
    assert board.is_news
    assert "log is the bottleneck" in board.line()
    board.look()
    assert not board.is_news
    board.title = "another act"
    board.look()
    assert board.is_news


def test_queues_that_a_threshold_of_billing_holds_are_counted(clients):
    clients[1].held = [SimpleNamespace(threshold=SimpleNamespace(value="messages"))]
    board = seen(Broker(flow()), clients)
    assert "1 queues held by messages > 100" in "\n".join(board.lines())


def test_a_query_is_shown_with_its_rate_its_last_batch_and_its_lag(clients):
    board = seen(Broker(flow(), [QUERY]), clients)
    line = next(each for each in board.lines() if "orders-rows" in each)
    assert "160 rows/s" in line
    assert "320 rows in 2.1 s" in line
    assert "3,000 behind (6.5 s)" in line
    assert (board.lag, board.lag_max) == (3000, 3000)


def test_a_sink_is_shown_with_its_last_batch_once_it_has_one(clients):
    sinks = [{"sink": "large-orders", "batch": 4, "rows": 1070}]
    sinks += [{"sink": "begun", "batch": -1, "rows": 0}]
    lines = seen(Broker(flow(), [QUERY], sinks), clients).lines()
    line = next(each for each in lines if "large-orders" in each)
    assert "1,070 messages in batch 4" in line
    assert not any("begun" in each for each in lines)


def test_stages_that_are_held_are_named(clients):
    held = {"kind": "connection", "name": "shop", "state": "flow"}
    board = seen(Broker(flow("connection", "shop", "held", [RUNNING, held])), clients)
    assert "connection shop flow" in "\n".join(board.lines())


def test_a_broker_that_does_not_answer_leaves_the_last_answer_standing(clients):
    broker = Broker(flow("log", "log", "log is the bottleneck"), [QUERY])
    board = seen(broker, clients)
    broker.is_silent = True
    board.look()
    assert board.sentence == "log is the bottleneck"
    assert board.lag == 3000


def test_before_the_first_answer_there_is_a_board_all_the_same(clients):
    broker = Broker(flow())
    broker.is_silent = True
    assert NOBODY in seen(broker, clients).line()


# ---- view ---------------------------------------------------------------------------------------
# What the story's screen writes, to a terminal and to anything else.


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


@pytest.fixture
def watched(clients, monkeypatch):
    """A board that looks at given seconds, and is told who is to blame then."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(view, "time", clock)
    broker = Broker(flow())
    board = Board(broker, *clients)

    def look(at, *found, answered=None):
        severity = "behind" if found else "ok"
        findings = [
            {"severity": severity, "culprit": {"id": each}, "sentence": ""} for each in found
        ]
        page = broker.pages["/api/flow"]
        page["findings"], page["answer"] = findings, [*findings, {"severity": "ok"}][0]
        clock.now = at
        broker.takes_its_time = lambda: setattr(clock, "now", answered or at)
        board.look()

    def over(at):
        clock.now = at
        board.over()

    look(-1.0, "log")
    clock.now = 0.0
    board.watch()
    return SimpleNamespace(board=board, look=look, over=over, shop=clients[0], broker=broker)


def test_who_is_named_from_the_promised_time_to_the_end_is_right(watched):
    watched.look(1)
    for at in (2, 3, 4):
        watched.look(at, "log", "query/b")
    watched.over(5)
    watched.look(6, "log")
    watched.look(7)
    assert watched.board.named("log", 2) == (True, "log from 2.0 s on, in 4 looks")


def test_what_was_asked_before_the_promised_time_or_answered_behind_the_end_proves_nothing(watched):
    watched.look(1.9, answered=2.5)
    watched.look(3, "log")
    watched.look(4.9, answered=5.5)
    watched.over(5)
    assert watched.board.named("log", 2) == (True, "log from 3.0 s on, in 1 looks")


def test_a_broker_that_does_not_answer_was_not_looked_at(watched):
    watched.look(1)
    watched.look(2, "log")
    watched.broker.is_silent = True
    watched.look(3)
    assert not watched.board.is_watched(2)
    watched.broker.is_silent = False
    watched.look(4, "log")
    assert watched.board.is_watched(2)
    watched.over(5)
    assert watched.board.named("log", 2) == (True, "log from 2.0 s on, in 2 looks")


def test_a_machine_whose_cpus_others_have_is_slow(watched):
    watched.look(1, "query/a")
    assert not watched.board.is_machine_slow
    watched.look(2, "query/a", "host")
    assert watched.board.is_machine_slow


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ([(1, "log"), (2,), (3, "log")], "nobody after 2.0 s"),
        ([(1, "log"), (2, "query/a", "log"), (3, "log")], "query/a after 2.0 s"),
        ([(1, "query/a"), (2, "log")], "query/a after 1.0 s"),
        ([(2, "log"), (3, "query/a")], "query/a after 3.0 s"),
        ([(2, "log"), (6, "query/a")], "query/a after 6.0 s"),
        ([(1, "log")], "nobody looked in time"),
        ([], "nobody looked in time"),
    ],
)
def test_a_look_that_misses_it_or_names_another_one_is_told(watched, looks, said):
    for at, *found in looks:
        if at > 5:
            watched.over(5)
        watched.look(at, *found)
    assert watched.board.named("log", 2) == (False, said)


@pytest.mark.parametrize(
    ("told", "beside", "is_right"),
    [
        ("broker busy, period in queue: 201ms", ["client/c"], True),
        ("broker busy, period in queue: 201ms", [], False),
        ("Spark query 'orders' is behind", ["client/c"], False),
    ],
)
def test_the_disk_may_be_named_first_when_the_shop_was_told_so(watched, told, beside, is_right):
    watched.look(1, "client/c")
    watched.shop.refused, watched.shop.last_reason = 4, told
    watched.look(2, "log", *beside)
    watched.look(3, "client/c")
    assert watched.board.named("client/", 1)[0] is is_right


@pytest.mark.parametrize(("beside", "is_right"), [(["client/c"], True), ([], False)])
def test_others_may_be_named_first_when_the_cpus_are_taken(watched, beside, is_right):
    watched.look(1, "client/c")
    watched.look(2, "query/a", *beside, "host")
    watched.look(3, "client/c")
    assert watched.board.named("client/", 1)[0] is is_right
