"""The commit policy: at once when much waits, else the linger."""

import pytest

from penstock.server.commit_policy import CommitPolicy
from penstock.settings.storage import StorageSettings


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
def test_how_long_a_commit_waits_for_company(messages, byte_count, is_awaited, wait_ms):
    policy = CommitPolicy(StorageSettings())
    assert policy.wait_ms(messages, byte_count, is_awaited=is_awaited) == wait_ms


def test_without_linger_every_commit_starts_at_once():
    policy = CommitPolicy(StorageSettings(commit_linger_ms=0))
    assert policy.wait_ms(1, 1, is_awaited=False) == 0
