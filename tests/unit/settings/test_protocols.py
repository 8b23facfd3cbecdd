"""Settings of AMQP: RabbitMQ's defaults, and what is refused."""

import pytest

from penstock.model.errors import SettingsError
from penstock.settings.load import Given, Settings, load_settings
from penstock.settings.protocols import AmqpSettings, RocketmqSettings


def test_defaults_are_rabbitmqs():
    amqp = Settings().amqp
    assert (amqp.channel_max, amqp.frame_max, amqp.heartbeat_s) == (2047, 131_072, 60)
    assert amqp.server_product == "RabbitMQ"
    assert amqp.consumer_timeout_ms == 30 * 60 * 1000
    assert amqp.message_bytes_max == 128 << 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("channel_max", 0),
        ("channel_max", 65_536),
        ("frame_max", 4095),
        ("heartbeat_s", -1),
        ("close_ms_max", 0),
        ("message_bytes_max", 0),
        ("consumer_timeout_ms", -1),
        ("answers_held_bytes_max", 0),
        ("content_ms_max", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(name, value):
    with pytest.raises(SettingsError, match=f"amqp.{name} is {value}"):
        AmqpSettings(**{name: value})


def test_it_is_a_part_of_all_settings():
    settings = load_settings([Given("amqp.heartbeat_s", "5", "flag --set")])
    assert settings.amqp.heartbeat_s == 5
    assert settings.origin("amqp.heartbeat_s") == "flag --set"


# ---- rocketmq -----------------------------------------------------------------------------------
# Settings of RocketMQ: what is refused, and what follows from joining.


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
