"""F15: when a queue's cache forbids the next pull, and how that is told."""

import pytest

from penstock.flow.thresholds import MEMORY_MS, Cached, Threshold, Thresholds, Throttle

LIMITS = Thresholds(messages_max=1000, bytes_max=100, span_max=2000)


class Edges:
    """Writes edges down."""

    def __init__(self):
        self.seen = []

    def entered(self, name, episode):
        self.seen.append(("entered", name, episode))

    def ended(self, name, episode):
        self.seen.append(("ended", name, episode))


@pytest.mark.parametrize(
    ("cached", "threshold"),
    [
        (Cached(0, 0, 0), None),
        (Cached(1000, 100, 2000), None),
        (Cached(1001, 0, 0), Threshold.MESSAGES),
        (Cached(1, 101, 0), Threshold.BYTES),
        (Cached(2, 0, 2001), Threshold.SPAN),
        (Cached(1001, 101, 2001), Threshold.MESSAGES),
    ],
)
def test_a_limit_holds_when_it_is_passed_and_not_when_it_is_reached(cached, threshold):
    assert LIMITS.exceeded(cached) is threshold


def test_zero_is_no_limit():
    assert Thresholds(0, 0, 0).exceeded(Cached(10**9, 10**9, 10**9)) is None


def test_limits_of_a_topic_are_divided_by_the_queues_owned_and_at_least_one():
    assert LIMITS.divided(1000, 64, 4) == Thresholds(250, 16, 2000)
    assert LIMITS.divided(3, 2, 8) == Thresholds(1, 1, 2000)
    assert LIMITS.divided(500, 0, 0) == Thresholds(500, 100, 2000)


def test_without_limits_of_a_topic_those_of_a_queue_hold():
    assert LIMITS.divided(0, 0, 3) == LIMITS


def test_a_held_queue_is_free_again_at_half_of_every_limit():
    throttle = Throttle("q", LIMITS)
    assert not throttle.is_free(Cached(501, 0, 0))
    assert not throttle.is_free(Cached(0, 51, 0))
    assert not throttle.is_free(Cached(0, 0, 1001))
    assert throttle.is_free(Cached(500, 50, 1000))


def test_an_episode_is_told_twice_however_often_the_loop_looked():
    edges = Edges()
    throttle = Throttle("q", LIMITS, edges)
    for at_ms in range(0, 500, 50):
        assert throttle.look(Cached(1001, 0, 0), at_ms) is Threshold.MESSAGES
    assert throttle.look(Cached(1, 0, 0), 500) is None
    assert throttle.look(Cached(1, 0, 0), 500 + MEMORY_MS) is None
    (_, _, begun), (_, _, over) = edges.seen
    assert (begun.threshold, begun.limit, begun.since_ms) == (Threshold.MESSAGES, 1000, 0)
    assert begun.cached == Cached(1001, 0, 0)
    assert (over.since_ms, over.until_ms, over.looks) == (0, 500, 10)
    assert throttle.episodes == 1


def test_a_queue_held_again_within_the_memory_continues_its_episode():
    edges = Edges()
    throttle = Throttle("q", LIMITS, edges)
    throttle.look(Cached(1001, 0, 0), 0)
    throttle.look(Cached(900, 0, 0), 50)
    throttle.look(Cached(1001, 0, 0), 50 + MEMORY_MS - 1)
    assert [edge for edge, _, _ in edges.seen] == ["entered"]
    assert throttle.current(50 + MEMORY_MS).since_ms == 0


def test_a_queue_held_after_the_memory_begins_another_episode():
    edges = Edges()
    throttle = Throttle("q", LIMITS, edges)
    throttle.look(Cached(1001, 0, 0), 0)
    throttle.look(Cached(900, 0, 0), 50)
    throttle.look(Cached(2, 0, 9999), 50 + MEMORY_MS)
    assert [(edge, each.threshold.value) for edge, _, each in edges.seen] == [
        ("entered", "messages"),
        ("ended", "messages"),
        ("entered", "span"),
    ]


def test_the_current_episode_is_shown_until_the_memory_is_over():
    throttle = Throttle("q", LIMITS)
    assert throttle.current(0) is None
    throttle.look(Cached(1001, 0, 0), 10)
    assert throttle.current(5000).since_ms == 10
    throttle.look(Cached(0, 0, 0), 5000)
    assert throttle.current(5000 + MEMORY_MS - 1).since_ms == 10
    assert throttle.current(5000 + MEMORY_MS) is None


def test_a_queue_that_is_given_up_ends_its_episode():
    edges = Edges()
    throttle = Throttle("q", LIMITS, edges)
    throttle.look(Cached(1001, 0, 0), 10)
    throttle.close(70)
    throttle.close(80)
    assert [edge for edge, _, _ in edges.seen] == ["entered", "ended"]
    assert edges.seen[-1][2].until_ms == 70
    assert not throttle.is_held
