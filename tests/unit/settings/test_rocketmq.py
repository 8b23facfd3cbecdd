"""Settings of RocketMQ: what is refused, and what follows from joining."""

import pytest

from penstock.model.errors import SettingsError
from penstock.settings.load import Given, load_settings
from penstock.settings.rocketmq import RocketmqSettings


@pytest.mark.parametrize("join", ["9876", "host", "host:", ":9876", "host:0", "host:70000", "h:x"])
def test_a_name_server_needs_host_and_port(join):
    with pytest.raises(SettingsError, match=r"rocketmq\.join.*as 10\.0\.0\.5:9876"):
        RocketmqSettings(join=join)


@pytest.mark.parametrize("join", ["10.0.0.5:9876", "names.example:9876", "[::1]:9876"])
def test_good_name_servers(join):
    assert RocketmqSettings(join=join).join == join


@pytest.mark.parametrize("address", ["localhost", "::1", "1.2.3"])
def test_ids_carry_an_ipv4_address_only(address):
    with pytest.raises(SettingsError, match=r"rocketmq\.advertise"):
        RocketmqSettings(advertise=address)


@pytest.mark.parametrize(
    "values",
    [{"invalid_parameter_code": 2}, {"properties_bytes_max": 32_768}, {"default_topic_queues": 0}],
)
def test_values_that_the_protocol_does_not_have_are_refused(values):
    with pytest.raises(SettingsError, match=next(iter(values))):
        RocketmqSettings(**values)


def test_a_broker_that_joins_runs_no_name_server():
    settings = load_settings([Given("rocketmq.join", "10.0.0.5:9876", "flag --join")])
    assert settings.listeners.port("rocketmq") is None
    assert settings.listeners.port("rocketmq_broker") == 10911
    assert settings.origin("listeners.rocketmq") == "follows rocketmq.join"


def test_a_name_server_that_was_asked_for_stays():
    settings = load_settings(
        [
            Given("rocketmq.join", "10.0.0.5:9876", "flag --join"),
            Given("listeners.rocketmq", "9877", "flag --rocketmq"),
        ]
    )
    assert settings.listeners.port("rocketmq") == 9877
