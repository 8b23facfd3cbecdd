"""When turns and syncs begin: apart while much comes in small pieces, at once for who waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.pacing import (
    AT_ONCE_MAX,
    AT_ONCE_MIN,
    EXPECTED_MAX,
    EXPECTED_MIN,
    PACE_MAX_US,
    SLACK_US,
    SYNC_MEMORY,
    SYNC_TIMES,
    TURN_COMPANY_MIN,
    TURN_TIMES,
    Pacing,
)
from penstock.settings.broker import StorageSettings

# ---- turns: they keep their distance while messages come fast enough for company ----------------

ENOUGH = TURN_COMPANY_MIN * 1000 / PACE_MAX_US
"""Messages per millisecond that are just worth waiting for the longest pace."""


class Turning:
    def __init__(self):
        self.now_us = 1_000_000
        self.pacing = Pacing(StorageSettings(), lambda: self.now_us * 1000)

    def turn(self, took_us):
        self.pacing.turn_began()
        self.now_us += took_us
        self.pacing.turn_ended()

    def wait_us(self, messages_per_ms):
        self.pacing.messages_per_ms = messages_per_ms
        return self.pacing.turn_wait_us()

    def learn(self, took_us):
        for _ in range(100):
            self.turn(took_us)


@pytest.fixture
def turning():
    return Turning()


def test_until_turns_are_known_nobody_waits(turning):
    turning.pacing.turn_began()
    assert turning.wait_us(100.0) == 0


def test_turns_as_long_as_the_longest_pace_keep_it(turning):
    turning.learn(PACE_MAX_US)
    turning.pacing.turn_began()
    turning.now_us += 600
    assert turning.wait_us(ENOUGH) == PACE_MAX_US - 600
    assert turning.pacing.turn_left_us == PACE_MAX_US - 600


def test_the_loop_rests_in_proportion_to_its_work(turning):
    turning.learn(300)
    assert turning.wait_us(100.0) == pytest.approx(TURN_TIMES * 300 - 300, abs=1)


def test_turns_that_get_longer_get_further_apart_up_to_the_longest_pace(turning):
    turning.learn(100)
    short = turning.pacing.turn_left_us
    turning.learn(200)
    assert turning.pacing.turn_left_us > short
    turning.learn(50_000)
    turning.pacing.turn_began()
    assert turning.pacing.turn_left_us == PACE_MAX_US


def test_one_turn_that_hung_is_soon_forgotten(turning):
    turning.learn(200)
    turning.turn(50_000)
    turning.pacing.turn_began()
    assert turning.pacing.turn_left_us < TURN_TIMES * 200 * 1.5


def test_fewer_messages_than_are_worth_it_never_wait(turning):
    turning.learn(PACE_MAX_US)
    turning.pacing.turn_began()
    assert turning.wait_us(ENOUGH * 0.99) == 0
    assert turning.wait_us(0) == 0


def test_a_short_pace_needs_a_higher_rate_to_be_worth_it(turning):
    turning.learn(100)
    turning.pacing.turn_began()
    assert turning.wait_us(ENOUGH) == 0
    assert turning.wait_us(ENOUGH * PACE_MAX_US / (TURN_TIMES * 100) * 1.1) > 0


def test_who_waits_for_each_answer_is_not_kept_waiting_for_a_stream_that_is_over(turning):
    turning.learn(PACE_MAX_US)
    for now_ms in range(100):
        turning.pacing.appended(10 * now_ms, now_ms)
    turning.pacing.turn_began()
    assert turning.pacing.turn_wait_us() > 0
    for now_ms in range(100, 150):  # turns that append nothing: gets, say
        turning.pacing.appended(990, now_ms)
    assert turning.pacing.turn_wait_us() == 0


def test_turns_that_append_nothing_between_others_do_not_change_what_a_stream_is_taken_for(turning):
    total = 0
    for now_ms in range(1000):
        total += 12 * (now_ms % 3 == 0)
        turning.pacing.appended(total, now_ms)
    assert turning.pacing.messages_per_ms == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("late_us", [0, 1, 10_000])
def test_a_turn_later_than_the_pace_runs_at_once(turning, late_us):
    turning.learn(PACE_MAX_US)
    turning.pacing.turn_began()
    turning.now_us += PACE_MAX_US + late_us
    assert turning.wait_us(100.0) == 0
    assert turning.pacing.turn_left_us == -late_us


def test_the_first_turn_of_a_process_does_not_wait(turning):
    assert turning.wait_us(100.0) == 0


@pytest.mark.parametrize("turn_us", [50, 300, 600])
def test_one_client_that_waits_for_each_answer_is_never_paced(turning, turn_us):
    turning.learn(turn_us)
    turning.turn(turn_us)
    turning.now_us += 200  # a quick sync; then the confirm goes out, and the next one comes
    turning.now_us += turn_us // 6
    assert turning.wait_us(100.0) == 0


# ---- linger: at once when much waits or nobody else will come -----------------------------------


class Fed(Pacing):
    """One that is told what is new instead of what is there."""

    def __init__(self, **settings):
        super().__init__(StorageSettings(**settings))
        self.total = 0

    def brought(self, messages, now_ms):
        self.total += messages
        self.appended(self.total, now_ms)


@pytest.fixture
def fed():
    return Fed()


@pytest.fixture
def busy(fed):
    """One that has seen 20 messages in every one of the last milliseconds."""
    for now_ms in range(1000, 1020):
        fed.brought(20, now_ms)
    return fed


@pytest.mark.parametrize(
    ("messages", "byte_count", "is_small"),
    [(1, 100, True), (199, 65535, True), (200, 100, False), (1, 65536, False)],
)
def test_much_by_number_or_by_bytes_is_not_little(fed, messages, byte_count, is_small):
    assert fed.is_small(messages, byte_count) == is_small


def test_little_waits_for_company_that_is_expected(busy):
    assert busy.linger_ms == 1


def test_a_lonely_publisher_does_not_wait_for_company_that_never_comes(fed):
    for now_ms in range(1000, 1020):
        fed.brought(1, now_ms)
    assert fed.linger_ms == 0


def test_after_a_pause_nobody_is_expected(busy):
    busy.brought(10, 5000)
    assert busy.linger_ms == 0


def test_turns_within_one_millisecond_are_a_high_rate_and_no_division_by_zero(fed):
    for _ in range(20):
        fed.brought(10, 1000)
    assert fed.linger_ms == 1


def test_without_linger_every_commit_starts_at_once():
    fed = Fed(commit_linger_ms=0)
    fed.brought(1000, 1)
    assert fed.linger_ms == 0


@pytest.mark.parametrize("pause_ms", [0, 100, 3_600_000, 10**9])
def test_the_rate_is_known_within_some_milliseconds_however_long_the_pause(fed, pause_ms):
    fed.brought(1, 1000)
    for now_ms in range(1000 + pause_ms, 1015 + pause_ms):
        fed.brought(4, now_ms)
    assert 2.8 < fed.messages_per_ms < 4.5


@given(st.lists(st.integers(0, 5), min_size=1), st.integers(1, 50))
def test_a_steady_rate_is_seen_as_it_is_however_it_is_cut(gaps_ms, per_ms):
    fed = Fed()
    now_ms = 1000
    for gap_ms in [*gaps_ms * 50, 1]:
        now_ms += gap_ms
        fed.brought(per_ms * gap_ms, now_ms)
    if sum(gaps_ms) > 1:  # fifty times that is five times the memory and more
        assert fed.messages_per_ms == pytest.approx(per_ms, rel=0.01)


# ---- syncs: apart at middling rates, and at once for those who wait for each of them -------------


DISTANCE_US = StorageSettings().commit_distance_us
LEAST = EXPECTED_MIN * 1001 / DISTANCE_US
MOST = EXPECTED_MAX * 999 / DISTANCE_US
"""Messages per millisecond between which syncs keep their distance."""


class Syncing:
    def __init__(self, **settings):
        self.now_us = 1_000_000
        self.pacing = Pacing(StorageSettings(**settings), lambda: self.now_us * 1000)
        self.total = 0
        for _ in range(100):
            self.pacing.sync_ended(1)

    def left_us(self, messages_per_ms):
        self.pacing.messages_per_ms = messages_per_ms
        return self.pacing.sync_wait_us()

    def bring(self):
        self.total += 1
        self.pacing.appended(self.total, self.now_us // 1000)

    def wait(self, us):
        self.now_us += us

    def stream(self):
        """A sync, and messages that go on coming until the next one may begin."""
        self.pacing.sync_began()
        while self.left_us(LEAST):
            self.wait(800)
            self.bring()

    def in_vain(self):
        """A sync that waits for company while nobody comes."""
        self.wait(300)
        self.bring()
        assert self.left_us(LEAST)
        self.wait(DISTANCE_US)
        self.pacing.sync_began()

    def rest(self):
        """How many syncs begin at once."""
        for count in range(1000):
            self.wait(300)
            self.bring()
            if self.left_us(LEAST):
                return count
            self.pacing.sync_began()
        raise AssertionError("it is never tried again")


@pytest.fixture
def syncing():
    syncing = Syncing()
    syncing.pacing.sync_began()
    return syncing


def test_a_sync_right_behind_another_waits_for_the_rest_of_the_distance(syncing):
    syncing.wait(500)
    assert syncing.left_us(LEAST) == DISTANCE_US - 500
    assert syncing.left_us(MOST) == DISTANCE_US - 500


@pytest.mark.parametrize("rate", [0.0, LEAST * 0.99, MOST * 1.01, 500.0])
def test_who_is_slow_is_not_kept_waiting_and_who_is_fast_needs_no_help(syncing, rate):
    assert syncing.left_us(rate) == 0


def test_a_moment_before_its_time_a_sync_may_begin(syncing):
    syncing.wait(DISTANCE_US - SLACK_US)
    assert syncing.left_us(LEAST) == 0
    syncing.wait(10 * DISTANCE_US)
    assert syncing.left_us(LEAST) == 0


def test_the_first_sync_of_a_process_does_not_wait():
    assert Syncing().left_us(LEAST) == 0


def test_a_stream_keeps_the_distance_for_good(syncing):
    for _ in range(1000):
        syncing.stream()
    syncing.pacing.sync_began()
    assert syncing.left_us(LEAST)
    assert syncing.pacing.syncs_delayed == 1000


def test_when_nobody_comes_while_a_sync_waits_syncs_begin_at_once_for_a_while(syncing):
    """Clients that wait for their confirms before they go on: all of them wait for this sync."""
    syncing.in_vain()
    assert syncing.rest() == AT_ONCE_MIN
    syncing.pacing.sync_began()
    assert syncing.rest() == 2 * AT_ONCE_MIN


def test_company_makes_good_for_all_that_was_in_vain(syncing):
    for _ in range(3):
        syncing.in_vain()
        syncing.rest()
        syncing.pacing.sync_began()
        syncing.rest()
        syncing.bring()
        syncing.pacing.sync_began()
    syncing.in_vain()
    assert syncing.rest() == AT_ONCE_MIN


def test_clients_that_always_wait_for_us_are_hardly_ever_kept(syncing):
    syncing.in_vain()
    for _ in range(10):
        rest = syncing.rest()
        syncing.pacing.sync_began()
    assert rest == AT_ONCE_MAX


def test_a_sync_that_did_not_wait_says_nothing_of_who_comes(syncing):
    for _ in range(10):
        syncing.bring()
        syncing.wait(10 * DISTANCE_US)
        syncing.pacing.sync_began()
    assert syncing.left_us(LEAST)


def test_the_distance_is_some_times_what_syncs_take(syncing):
    for _ in range(100):
        syncing.pacing.sync_ended(0.0005)
    assert syncing.left_us(LEAST) == pytest.approx(SYNC_TIMES * 500, abs=2)


def test_one_sync_that_hung_does_not_make_a_disk_slow(syncing):
    for _ in range(100):
        syncing.pacing.sync_ended(0.0001)
    syncing.pacing.sync_ended(60)
    took_us = SYNC_MEMORY * 100 + (1 - SYNC_MEMORY) * DISTANCE_US
    assert syncing.left_us(LEAST) == pytest.approx(SYNC_TIMES * took_us, abs=2)
    assert syncing.left_us(LEAST) < DISTANCE_US


def test_without_a_distance_every_sync_begins_at_once():
    syncing = Syncing(commit_distance_us=0)
    syncing.pacing.sync_began()
    assert syncing.left_us(LEAST) == 0
    assert syncing.left_us(0.0) == 0
