"""The commit policy: at once when much waits or nobody else will come, else the linger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.commit_policy import CommitPolicy
from penstock.settings.broker import StorageSettings


class Fed(CommitPolicy):
    """A policy that is told what is new instead of what is there."""

    def __init__(self, **settings):
        super().__init__(StorageSettings(**settings))
        self.total = 0

    def appended(self, messages, now_ms):
        self.total += messages
        self.reached(self.total, now_ms)


@pytest.fixture
def policy():
    return Fed()


@pytest.fixture
def busy_policy(policy):
    """A policy that has seen 20 messages in every one of the last milliseconds."""
    for now_ms in range(1000, 1020):
        policy.appended(20, now_ms)
    return policy


@pytest.mark.parametrize(
    ("messages", "byte_count", "is_little"),
    [(1, 100, True), (199, 65535, True), (200, 100, False), (1, 65536, False)],
)
def test_much_by_number_or_by_bytes_is_not_little(policy, messages, byte_count, is_little):
    assert policy.is_little(messages, byte_count) == is_little


def test_little_waits_for_company_that_is_expected(busy_policy):
    assert busy_policy.linger_ms == 1


def test_a_lonely_publisher_does_not_wait_for_company_that_never_comes(policy):
    for now_ms in range(1000, 1020):
        policy.appended(1, now_ms)
    assert policy.linger_ms == 0


def test_after_a_pause_nobody_is_expected(busy_policy):
    busy_policy.appended(10, 5000)
    assert busy_policy.linger_ms == 0


def test_turns_within_one_millisecond_are_a_high_rate_and_no_division_by_zero(policy):
    for _ in range(20):
        policy.appended(10, 1000)
    assert policy.linger_ms == 1


def test_without_linger_every_commit_starts_at_once():
    policy = Fed(commit_linger_ms=0)
    policy.appended(1000, 1)
    assert policy.linger_ms == 0


@pytest.mark.parametrize("pause_ms", [0, 100, 3_600_000, 10**9])
def test_the_rate_is_known_within_some_milliseconds_however_long_the_pause(policy, pause_ms):
    policy.appended(1, 1000)
    for now_ms in range(1000 + pause_ms, 1015 + pause_ms):
        policy.appended(4, now_ms)
    assert 2.8 < policy.messages_per_ms < 4.5


@given(st.lists(st.integers(0, 5), min_size=1), st.integers(1, 50))
def test_a_steady_rate_is_seen_as_it_is_however_it_is_cut(gaps_ms, per_ms):
    policy = Fed()
    now_ms = 1000
    for gap_ms in [*gaps_ms * 50, 1]:
        now_ms += gap_ms
        policy.appended(per_ms * gap_ms, now_ms)
    if sum(gaps_ms) > 1:  # fifty times that is five times the memory and more
        assert policy.messages_per_ms == pytest.approx(per_ms, rel=0.01)
