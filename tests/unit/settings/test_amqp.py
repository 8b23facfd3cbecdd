"""Settings of AMQP: RabbitMQ's defaults, and what is refused."""

import pytest

from penstock.model.errors import SettingsError
from penstock.settings.amqp import AmqpSettings
from penstock.settings.load import Given, Settings, load_settings


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
