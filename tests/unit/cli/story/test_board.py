"""What the board says, from pages as the broker gives them."""

from types import SimpleNamespace

import pytest

from penstock.cli.story.board import NOBODY, Board
from penstock.cli.story.job import Batch
from penstock.model.errors import PenstockError

RUNNING = {"kind": "queue", "name": "orders", "state": "running"}
QUERY = {"name": "orders-rows", "messages_per_s": 160.0, "lag_messages": 3000, "lag_seconds": 6.5}


def flow(kind="none", name="", sentence="Nothing is held back.", stages=(RUNNING,)):
    return {
        "diagnosis": {"kind": kind, "name": name, "sentence": sentence},
        "stages": list(stages),
    }


class Broker:
    def __init__(self, page, queries=()):
        self.pages = {"/api/flow": page, "/api/queries": {"queries": list(queries)}}
        self.is_silent = False

    def ask(self, method, path, order=None):
        if self.is_silent:
            raise PenstockError("no answer")
        return self.pages[path]

    def memory_bytes(self):
        return 50 << 20


@pytest.fixture
def clients():
    shop = SimpleNamespace(confirmed=set(range(7)), refused=3, outstanding=2)
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


def test_what_waits_for_a_moment_in_a_subscription_is_no_bottleneck_unless_it_is_held(clients):
    broker = Broker(flow("subscription", "billing", "10 messages are ready"))
    board = seen(broker, clients)
    assert board.sentence == NOBODY
    clients[1].held = [SimpleNamespace(threshold=SimpleNamespace(value="messages"))]
    assert board.sentence == "10 messages are ready"
    assert "1 queues held by messages > 100" in "\n".join(board.lines())


def test_a_query_is_shown_with_its_rate_its_last_batch_and_its_lag(clients):
    board = seen(Broker(flow(), [QUERY]), clients)
    line = next(each for each in board.lines() if "orders-rows" in each)
    assert "160 rows/s" in line
    assert "320 rows in 2.1 s" in line
    assert "3,000 behind (6.5 s)" in line
    assert (board.lag, board.lag_max) == (3000, 3000)


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
