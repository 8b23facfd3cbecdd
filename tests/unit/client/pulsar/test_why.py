"""What a broker is told of why a consumer takes no more, and when."""

from itertools import pairwise

import pytest

from penstock.client.pulsar.why import RUNNING, Standstill, WaitTeller
from penstock.wire.pulsar.protocol_pb2 import CommandPing, CommandPong, ConsumerWait

FULL = Standstill(ConsumerWait.NOT_RECEIVED, 10, 10, moved="first")


@pytest.fixture
def teller():
    return WaitTeller()


def test_what_runs_is_not_worth_a_word(teller):
    assert [teller.look(RUNNING, ms) for ms in (0, 1_000)] == [None, None]
    assert teller.is_done


def test_a_standstill_is_told_when_it_is_found_twice_and_then_not_again(teller):
    assert teller.look(FULL, 5_000) is None
    assert not teller.is_done
    told = teller.look(FULL, 6_000)
    assert (told.cause, told.waiting, told.limit) == (ConsumerWait.NOT_RECEIVED, 10, 10)
    assert told.lasted_ms == 1_000
    assert [teller.look(FULL, ms) for ms in (7_000, 8_000)] == [None, None]


def test_what_is_over_within_a_second_is_not_told(teller):
    teller.look(FULL, 0)
    assert teller.look(RUNNING, 1_000) is None
    assert teller.is_done


def test_each_step_of_the_application_begins_the_time_anew(teller):
    teller.look(FULL, 0)
    teller.look(FULL, 9_000)
    slow = Standstill(ConsumerWait.NOT_RECEIVED, 10, 10, moved="second")
    assert teller.look(slow, 10_000).lasted_ms == 0
    assert teller.look(slow, 11_000) is None


def test_of_one_that_moves_all_the_time_the_broker_hears_before_it_could_think_it_stands(teller):
    told = []
    for second in range(20):
        now_ms = second * 1_000
        slow = Standstill(ConsumerWait.NOT_RECEIVED, 10, 10, moved=second)
        said = teller.look(slow, now_ms)
        if said is not None:
            told.append(now_ms)
            assert said.lasted_ms == 0
    assert told[0] == 1_000
    assert len(told) <= 6
    assert all(later - earlier < 5_000 for earlier, later in pairwise(told))


def test_another_cause_is_told_a_second_later(teller):
    teller.look(FULL, 0)
    teller.look(FULL, 1_000)
    paused = Standstill(ConsumerWait.PAUSED, 10)
    assert teller.look(paused, 2_000) is None
    assert teller.look(paused, 3_000).lasted_ms == 1_000


def test_that_it_goes_on_again_is_told_at_once(teller):
    teller.look(FULL, 0)
    teller.look(FULL, 1_000)
    assert teller.look(RUNNING, 2_000).cause == ConsumerWait.NOTHING
    assert teller.is_done


def test_a_new_connection_knows_nothing(teller):
    teller.look(FULL, 0)
    teller.look(FULL, 1_000)
    teller.forget()
    assert teller.look(FULL, 2_000) is None
    assert teller.look(FULL, 3_000).cause == ConsumerWait.NOT_RECEIVED


def test_who_does_not_know_these_fields_skips_them():
    ping = CommandPing(waits=[ConsumerWait(consumer_id=1, cause=ConsumerWait.PAUSED)])
    # A message without any field, as Pulsar's own PING is.
    assert CommandPong.FromString(ping.SerializeToString()).IsInitialized()
