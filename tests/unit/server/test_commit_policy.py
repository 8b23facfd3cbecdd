"""The commit policy: at once when much waits or nobody else will come, else the linger."""

import pytest

from penstock.server.commit_policy import CommitPolicy
from penstock.settings.storage import StorageSettings


@pytest.fixture
def busy_policy():
    """A policy that has seen 20 messages in every one of the last milliseconds."""
    policy = CommitPolicy(StorageSettings())
    for now_ms in range(1000, 1020):
        policy.started(20, now_ms)
    return policy


@pytest.mark.parametrize(
    ("messages", "byte_count", "is_awaited", "wait_ms"),
    [
        (1, 100, False, 1),
        (199, 65535, False, 1),
        (200, 100, False, 0),
        (1, 65536, False, 0),
        (0, 0, True, 0),
    ],
)
def test_much_never_waits_and_little_waits_for_company(
    busy_policy, messages, byte_count, is_awaited, wait_ms
):
    assert busy_policy.wait_ms(messages, byte_count, is_awaited=is_awaited) == wait_ms


def test_a_lonely_publisher_does_not_wait_for_company_that_never_comes():
    policy = CommitPolicy(StorageSettings())
    for now_ms in range(1000, 1020):
        policy.started(1, now_ms)
    assert policy.wait_ms(1, 100, is_awaited=False) == 0


def test_after_a_pause_nobody_is_expected(busy_policy):
    busy_policy.started(10, 5000)
    assert busy_policy.wait_ms(1, 100, is_awaited=False) == 0


def test_commits_within_one_millisecond_are_a_high_rate_and_no_division_by_zero():
    policy = CommitPolicy(StorageSettings())
    for _ in range(20):
        policy.started(10, 1000)
    assert policy.wait_ms(1, 100, is_awaited=False) == 1


def test_without_linger_every_commit_starts_at_once(busy_policy):
    policy = CommitPolicy(StorageSettings(commit_linger_ms=0))
    policy.started(1000, 1)
    assert policy.wait_ms(1, 1, is_awaited=False) == 0
