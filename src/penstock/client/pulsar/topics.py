"""Names of topics and subscriptions, checked before anything is sent.

A topic is ``persistent://tenant/namespace/local`` in full; ``orders`` is short for
``persistent://public/default/orders`` and ``tenant/namespace/orders`` for the same elsewhere. A
partition of it is a topic whose name ends in ``-partition-<n>`` (B13).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.client.pulsar.errors import InvalidUse

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"
DEFAULT_NAMESPACE: Final = "public/default"
NAME_CHARACTERS_MAX: Final = 1024

_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
_PART: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_BLANK: Final = re.compile(r"\s")


class Topic(NamedTuple):
    """A topic's name; ``str()`` is the full one."""

    domain: str
    namespace: str
    """``tenant/namespace``."""
    local: str

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local}"

    @property
    def is_persistent(self) -> bool:
        return self.domain == PERSISTENT

    @property
    def partition(self) -> int:
        """Its number at the end of the name; -1 when there is none."""
        found = _PARTITION.fullmatch(self.local)
        return -1 if found is None else int(found[2])

    @property
    def whole(self) -> Topic:
        """The topic of which it is a partition, or itself."""
        found = _PARTITION.fullmatch(self.local)
        return self if found is None else self._replace(local=found[1])

    def partition_at(self, number: int) -> Topic:
        return self._replace(local=f"{self.local}-partition-{number}")


def parse_topic(text: str) -> Topic:
    """A topic's name, short or full; raises ``InvalidUse``."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidUse(f"topic {text!r} is no name; use 'orders' or 'persistent://t/n/orders'")
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = PERSISTENT, text if "/" in text else f"{DEFAULT_NAMESPACE}/{text}"
    *namespace, local = rest.split("/", 3 if rest.count("/") > 2 else 2)
    if domain not in (PERSISTENT, NON_PERSISTENT):
        raise InvalidUse(f"topic {text!r} is in no domain that exists; use persistent://")
    is_good = (
        len(namespace) in (2, 3)
        and all(map(_PART.fullmatch, namespace))
        and bool(local)
        and not _BLANK.search(local)
        and len(text) <= NAME_CHARACTERS_MAX
    )
    if not is_good:
        raise InvalidUse(
            f"topic {text[:200]!r} is no name; use 'orders', 'tenant/namespace/orders' or"
            " 'persistent://tenant/namespace/orders', without blanks"
        )
    return Topic(domain, "/".join(namespace), local)


def check_subscription(name: str) -> None:
    """Raises ``InvalidUse``."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidUse("a subscription needs a name; give subscription_name='...'")
    if name.startswith("pulsar.repl") or name == "pulsar.dedup":
        raise InvalidUse(f"subscription {name!r} is a name that Pulsar keeps; use another one")
