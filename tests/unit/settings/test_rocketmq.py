"""Settings of RocketMQ that would stop everything are refused by name."""

import pytest

from penstock.model.errors import SettingsError
from penstock.settings.rocketmq import AT_LEAST_ONE, RocketmqSettings


@pytest.mark.parametrize("name", AT_LEAST_ONE)
@pytest.mark.parametrize("value", [0, -1])
def test_what_must_be_at_least_one(name, value):
    with pytest.raises(SettingsError, match=f"rocketmq.{name} is {value}; it must be 1 or more"):
        RocketmqSettings(**{name: value})
    assert getattr(RocketmqSettings(**{name: 1}), name) == 1
