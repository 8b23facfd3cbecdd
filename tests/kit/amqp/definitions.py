"""Definitions as one document, made in one go."""

from typing import Any

from penstock.adapters.amqp.broker import AmqpBroker
from penstock.adapters.amqp.management.definitions import export_definitions
from penstock.adapters.amqp.topology.vhost import VirtualHost


def exported(broker: AmqpBroker, vhost: VirtualHost | None = None) -> dict[str, Any]:
    """What ``GET /api/definitions`` gives."""
    steps = export_definitions(broker, vhost)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            document: dict[str, Any] = end.value
            return document
