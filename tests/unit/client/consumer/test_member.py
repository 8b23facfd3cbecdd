"""What every kind of consumer must bring itself."""

import inspect

import pytest

from penstock.client.consumer.lite_pull_consumer import LiteMember
from penstock.client.consumer.member import GroupMember
from penstock.client.consumer.pull_consumer import PullMember
from penstock.client.consumer.push_member import PushMember


def test_a_member_without_its_own_queues_cannot_be_made():
    assert GroupMember.__abstractmethods__ == {"owned", "rebalance", "reset_offsets"}
    with pytest.raises(TypeError, match="abstract"):
        GroupMember(None, "billing", None, {})


@pytest.mark.parametrize("kind", [PushMember, PullMember, LiteMember])
def test_every_kind_of_consumer_is_complete(kind):
    assert not inspect.isabstract(kind)
