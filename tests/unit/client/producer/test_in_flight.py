"""Permits of a producer, and the episodes of waiting for them."""

import logging

from penstock.client.producer.in_flight import InFlight
from penstock.flow.reason import Reason
from penstock.testing.clock import ManualClock


class Waiting:
    """Stands for a send."""

    def __init__(self, deadline_ms=1 << 40, is_given_up=False):
        self.deadline_ms = deadline_ms
        self.is_given_up = is_given_up
        self.topic = "t"
        self.timeout_ms = 50


def window(messages_max=1, clock=None):
    return InFlight("g", messages_max, 1000, clock or ManualClock())


def test_one_who_gets_no_permit_is_named_by_the_answer_that_frees_one():
    permits = window()
    first, second = Waiting(), Waiting()
    assert permits.take_or_wait(first, 10)
    assert not permits.take_or_wait(second, 10)
    assert (permits.waiting, permits.full) == (1, "messages")
    assert permits.give(10) == [second]
    assert (permits.waiting, permits.messages, permits.bytes) == (0, 1, 10)


def test_those_whose_time_is_up_and_those_nobody_waits_for_leave():
    permits = window()
    permits.take_or_wait(Waiting(), 10)
    late, gone, patient = Waiting(deadline_ms=5), Waiting(is_given_up=True), Waiting()
    for each in (late, gone, patient):
        permits.take_or_wait(each, 10)
    assert permits.leave_overdue(5) == ([late, gone], [])
    assert permits.waiting == 1


def test_a_large_one_that_leaves_makes_way_for_small_ones():
    permits = window(messages_max=5)
    permits.take_or_wait(Waiting(), 600)
    large, small = Waiting(deadline_ms=1), Waiting()
    permits.take_or_wait(large, 500)
    permits.take_or_wait(small, 100)
    assert permits.leave_overdue(1) == ([large], [small])


def test_since_when_somebody_waits_can_be_seen():
    clock = ManualClock()
    permits = window(clock=clock)
    permits.take_or_wait(Waiting(), 1)
    assert permits.waits_since_ms is None
    since_ms = clock.monotonic_ms()
    permits.take_or_wait(Waiting(), 1)
    clock.advance(40)
    permits.take_or_wait(Waiting(), 1)
    assert permits.waits_since_ms == since_ms


def test_held_and_released_within_a_second_is_one_episode_and_two_lines(caplog):
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    permits = window(clock=clock)
    permits.take_or_wait(Waiting(), 1)
    for _ in range(50):
        permits.take_or_wait(Waiting(), 1)
        clock.advance(10)
        permits.give(1)
    assert permits.episodes.count(Reason.PENDING) == 1
    assert [each.message for each in caplog.records] == ["sends wait for permits"]
    clock.advance(1000)
    permits.settle()
    assert [each.message for each in caplog.records][1:] == ["sends wait no more"]
    assert caplog.records[1].stalls == 50


def test_when_the_producer_stops_all_who_wait_are_sent_away():
    permits = window()
    permits.take_or_wait(Waiting(), 1)
    second = Waiting()
    permits.take_or_wait(second, 1)
    assert permits.leave_all() == [second]
    assert not permits.episodes.is_lingering


def test_the_refusal_names_the_limits():
    permits = window()
    permits.take_or_wait(Waiting(), 7)
    text = str(permits.refusal(Waiting()))
    for part in (
        "'t'",
        "1 of 1 sends",
        "7 of 1000 bytes",
        "waited 50 ms",
        "in_flight_messages_max",
    ):
        assert part in text
