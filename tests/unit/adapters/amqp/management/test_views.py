"""Field values in JSON's types."""

from decimal import Decimal

from penstock.adapters.amqp.management.views import plain, plain_properties
from penstock.wire.amqp.properties import Properties
from penstock.wire.amqp.table import Timestamp


def test_every_type_of_value_has_a_json_form() -> None:
    table = {
        "text": "a",
        "broken": "\udcff",
        "bytes": b"\xff\x00",
        "decimal": Decimal("1.5"),
        "time": Timestamp(7),
        "deep": [{"a": (None, True, 2.5)}],
    }
    assert plain(table) == {
        "text": "a",
        "broken": "\ufffd",
        "bytes": "\ufffd\x00",
        "decimal": 1.5,
        "time": 7,
        "deep": [{"a": [None, True, 2.5]}],
    }
    assert type(plain(Timestamp(7))) is int


def test_only_properties_that_are_there_are_shown() -> None:
    assert plain_properties(Properties(priority=0, headers={"a": 1})) == {
        "priority": 0,
        "headers": {"a": 1},
    }
