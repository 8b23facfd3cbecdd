"""Which protocols a broker speaks, by its settings."""

import pytest

from penstock.model.record import Wire
from penstock.server.protocols import built_in, readers
from penstock.settings.broker import ListenerSettings
from penstock.settings.load import Settings


def names(**ports):
    found = built_in(Settings(listeners=ListenerSettings(**ports)))
    return [each.factory.protocol for each in found]


def test_amqp_listens_on_its_port():
    (amqp,) = [each for each in built_in(Settings()) if each.factory.protocol == "amqp"]
    assert amqp.port == 5672
    assert amqp.open is not None


@pytest.mark.parametrize(
    ("off", "left"),
    [
        ("amqp", {"rocketmq", "rocketmq_broker"}),
        ("rocketmq", {"amqp", "rocketmq_broker"}),
    ],
)
def test_what_is_off_is_not_there(off, left):
    assert set(names(**{off: "off"})) == left


def test_stored_bytes_of_both_wires_are_read_whoever_listens():
    assert set(readers()) >= {int(Wire.AMQP), int(Wire.ROCKETMQ)}
