"""Names of topics and subscriptions that a user gives, checked before anything is sent (B13)."""

from __future__ import annotations

from typing import Final

from penstock.client.pulsar.errors import InvalidUse
from penstock.client.pulsar.message import check_text
from penstock.wire.pulsar.names import InvalidTopicName, PulsarName, parse_topic_name

NAME_CHARACTERS_MAX: Final = 1024


def parse_topic(text: str) -> PulsarName:
    """A topic's name, short or full; raises ``InvalidUse``."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidUse(f"topic {text!r} is no name; use 'orders' or 'persistent://t/n/orders'")
    check_text("topic", text)
    try:
        if len(text) <= NAME_CHARACTERS_MAX:
            return parse_topic_name(text)
    except InvalidTopicName:
        pass
    raise InvalidUse(
        f"topic {text[:200]!r} is no name; use 'orders', 'tenant/namespace/orders' or"
        " 'persistent://tenant/namespace/orders' (or non-persistent://), without blanks"
    )


def check_subscription(name: str) -> None:
    """Raises ``InvalidUse``."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidUse("a subscription needs a name; give subscription_name='...'")
    check_text("subscription", name)
    if name.startswith("pulsar.repl") or name == "pulsar.dedup":
        raise InvalidUse(f"subscription {name!r} is a name that Pulsar keeps; use another one")
