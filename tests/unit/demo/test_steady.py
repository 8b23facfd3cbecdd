import asyncio

import pytest

from penstock.demo import steady
from penstock.demo.steady import AckingConsumer, Growth, NumberedPublisher, Pace, SocketLink

SOME_ROUNDS = 20
"""More than any of these needs."""


class _Link:
    def __init__(self):
        self.is_gone = False

    def leave(self):
        self.is_gone = True


class _Publisher(NumberedPublisher):
    """Its broker answers nothing by itself."""

    def __init__(self, body_bytes=0):
        super().__init__("shop", _Link(), body_bytes)
        self.shares = []
        self.outstanding_when_sent = []

    def begin(self, pace, *, count_max=None, window=100):
        self._begin(self._publish(pace, count_max, window))
        return self

    def body(self, number):
        return self._body(number)

    async def _send(self, numbers):
        self.outstanding_when_sent.append(self.outstanding)
        self.shares.append(list(numbers))

    def _remark(self):
        return f" ({self.outstanding} open)"


class _Consumer(AckingConsumer):
    def __init__(self, *bodies):
        super().__init__("billing", _Link())
        self._in_hand.extend(bodies)
        self.acks = []

    def begin(self):
        self._begin(self._settle())
        return self

    async def ack(self, messages):
        self.acks.append(messages)
        self.bodies.extend(self._in_hand.popleft() for _ in range(messages))


@pytest.fixture
def pauses(monkeypatch):
    """What was slept; nobody really does."""
    slept = []
    yield_once = asyncio.sleep

    async def sleep(seconds):
        slept.append(seconds)
        await yield_once(0)

    monkeypatch.setattr(steady.asyncio, "sleep", sleep)
    return slept


def play(act):
    """Let actors work for some rounds of the loop, then send them home."""

    async def on_stage():
        actor = act()
        for _ in range(SOME_ROUNDS):
            await asyncio.sleep(0)
        actor.leave()
        return actor

    return asyncio.run(on_stage())


@pytest.mark.parametrize(
    ("pace", "share"),
    [(Pace(1000), 10), (Pace(30), 1), (Pace(3000, batch=20), 40), (Pace(100, batch=20), 20)],
)
def test_a_share_is_in_whole_batches_and_never_nothing(pace, share):
    assert pace.share == share


@pytest.mark.parametrize("pace", [Pace(1000), Pace(30), Pace(100, batch=20)])
def test_however_large_a_share_is_the_pace_is_what_was_asked_for(pace, pauses):
    assert asyncio.run(pace.next_share()) / pauses[0] == pytest.approx(pace.per_second)


def test_numbers_go_on_where_they_were_and_end_with_the_last_one(pauses):
    publisher = play(lambda: _Publisher().begin(Pace(300), count_max=7))
    assert publisher.shares == [[1, 2, 3], [4, 5, 6], [7]]


def test_no_more_than_the_window_is_without_an_answer(pauses):
    publisher = play(lambda: _Publisher().begin(Pace(300), window=4))
    assert publisher.shares == [[1, 2, 3], [4]]


def test_answers_of_both_kinds_make_room(pauses):
    publisher = _Publisher()
    publisher.confirmed_numbers.update({-1, -2})
    publisher.failed_numbers.add(-3)
    assert play(lambda: publisher.begin(Pace(300), window=4)).sent == 4 + 3


def test_a_batch_for_which_there_is_no_room_waits_as_a_whole(pauses):
    publisher = play(lambda: _Publisher().begin(Pace(100, batch=20), window=50))
    assert [len(each) for each in publisher.shares] == [20, 20]


def test_what_is_being_sent_counts_as_sent(pauses):
    publisher = play(lambda: _Publisher().begin(Pace(300), count_max=3))
    assert publisher.outstanding_when_sent == [3]


def test_it_is_done_when_all_is_sent_and_answered(pauses):
    publisher = _Publisher()
    assert not publisher.is_done
    play(lambda: publisher.begin(Pace(300), count_max=3))
    assert not publisher.is_done
    publisher.confirmed_numbers.update({1, 2})
    publisher.failed_numbers.add(3)
    assert publisher.is_done


def test_who_leaves_sends_nothing_more_and_its_link_goes(pauses):
    async def on_stage():
        publisher = _Publisher().begin(Pace(300))
        publisher.leave()
        for _ in range(SOME_ROUNDS):
            await asyncio.sleep(0)
        return publisher

    publisher = asyncio.run(on_stage())
    assert publisher.link.is_gone
    assert publisher.shares == []


def test_a_body_has_its_number_and_is_as_long_as_it_is_to_be():
    assert _Publisher().body(12) == b"shop 12"
    assert _Publisher(body_bytes=10).body(12) == b"shop 12   "


def test_the_ticker_tells_the_rate_since_it_asked_last():
    publisher = _Publisher()
    publisher.confirmed_numbers.update(range(50))
    assert publisher.figures(0.5) == "shop    100/s (-50 open)"
    assert publisher.figures(0.5).startswith("shop      0/s")


def test_growth_is_what_came_since_it_was_asked_last():
    growth = Growth()
    assert [growth.of(total) for total in (5, 5, 8)] == [5, 0, 3]


def test_a_consumer_acks_at_once_all_that_it_has(pauses):
    consumer = play(lambda: _Consumer(b"a", b"b").begin())
    assert consumer.acks == [2]
    assert consumer.bodies == [b"a", b"b"]
    assert consumer.link.is_gone


def test_one_whose_messages_take_a_while_acks_one_after_the_other(pauses):
    consumer = _Consumer(b"a", b"b")
    consumer.message_seconds = 3.0
    assert play(consumer.begin).acks == [1, 1]
    assert set(pauses) - {0} == {3.0}


def test_one_that_does_not_ack_keeps_what_it_has(pauses):
    consumer = _Consumer(b"a")
    consumer.is_acking = False
    play(consumer.begin)
    assert consumer.unacked == 1
    assert consumer.figures(1.0) == "billing      0/s (1 unacked)"


class _HeardLink(SocketLink):
    def __init__(self, reader, writer):
        super().__init__(reader, writer)
        self.heard = []

    def _heard(self, data):
        self.heard.append(data)


class _LostReader:
    """Something comes, then the connection is lost."""

    def __init__(self):
        self._left = [b"hello"]

    async def read(self, _most):
        if not self._left:
            raise ConnectionResetError
        return self._left.pop()


def test_a_link_whose_connection_is_lost_hears_nothing_more_and_complains_to_nobody():
    async def hear():
        link = _HeardLink(_LostReader(), None)
        await asyncio.wait_for(link._task, 5)
        return link.heard

    assert asyncio.run(hear()) == [b"hello"]
