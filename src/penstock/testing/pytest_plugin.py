"""The pytest plugin: ``penstock_broker`` is a real broker for a test, on ports of its own.

Installed with the package, so a test just names the fixture::

    def test_orders_are_billed(penstock_broker):
        connection = pika.BlockingConnection(pika.URLParameters(penstock_broker.amqp_url))

``penstock_broker_scope`` (``function``, ``class``, ``module``, ``package`` or ``session``) and
``penstock_broker_flags`` (those of ``penstock up``) are set in pytest's own configuration.
pytest imports this file in every run of whoever has Penstock installed: it must stay light.
"""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, get_args

import pytest

if TYPE_CHECKING:
    from penstock.testing.running import BrokerProcess

Scope = Literal["function", "class", "module", "package", "session"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "penstock_broker_scope",
        f"how long a penstock_broker lives: {', '.join(SCOPES)}",
        default="function",
    )
    parser.addini("penstock_broker_flags", "flags of `penstock up` for penstock_broker", default="")


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    del fixture_name
    asked = config.getini("penstock_broker_scope")
    for scope in SCOPES:
        if scope == asked:
            return scope
    raise pytest.UsageError(f"penstock_broker_scope is {asked!r}; use one of {', '.join(SCOPES)}")


@pytest.fixture(scope=_scope)
def penstock_broker(request: pytest.FixtureRequest) -> "Iterator[BrokerProcess]":
    """A running broker with an empty data directory; its endpoints are free ports of 127.0.0.1."""
    from penstock.testing.running import running_broker

    flags = shlex.split(str(request.config.getini("penstock_broker_flags")))
    with running_broker(*flags) as broker:
        yield broker
