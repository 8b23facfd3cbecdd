"""Back-off: doubled, bounded, a little random, and a mandatory stop where one is wanted."""

from penstock.client.pulsar.backoff import Backoff
from penstock.testing.clock import ManualClock


def waits(backoff, count):
    return [backoff.next_ms() for _ in range(count)]


def test_it_doubles_from_100_ms_to_60_s():
    backoff = Backoff(ManualClock(), random=lambda: 0.0)
    assert waits(backoff, 5) == [100, 200, 400, 800, 1600]
    assert waits(backoff, 6)[-1] == 60_000


def test_success_begins_it_anew():
    backoff = Backoff(ManualClock(), random=lambda: 0.0)
    waits(backoff, 4)
    backoff.reset()
    assert waits(backoff, 2) == [100, 200]


def test_up_to_a_tenth_is_taken_off_but_never_below_the_first_wait():
    backoff = Backoff(ManualClock(), random=lambda: 1.0)
    assert waits(backoff, 3) == [100, 180, 360]


def test_a_mandatory_stop_is_met_once_and_then_it_goes_on_as_before():
    clock = ManualClock()
    backoff = Backoff(clock, mandatory_stop_ms=1_000, random=lambda: 0.0)
    seen = []
    for _ in range(5):
        seen.append(backoff.next_ms())
        clock.advance(seen[-1])
    assert seen == [100, 200, 400, 300, 1600]


def test_without_a_mandatory_stop_there_is_none():
    clock = ManualClock()
    backoff = Backoff(clock, random=lambda: 0.0)
    seen = []
    for _ in range(5):
        seen.append(backoff.next_ms())
        clock.advance(seen[-1])
    assert seen == [100, 200, 400, 800, 1600]
