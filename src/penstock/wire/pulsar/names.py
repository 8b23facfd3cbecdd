"""A Pulsar topic's name, as it stands on the wire: what is a name, and what its parts are.

A topic is spelt ``persistent://tenant/namespace/local``; ``orders`` is short for
``persistent://public/default/orders``, and ``tenant/namespace/orders`` for the same elsewhere; old
names have a cluster in the namespace. A partition of it is a topic whose name ends in
``-partition-<n>``. ``public/default`` is our space ``""``, any other namespace the space of the
same text (D9).

Not here: limits of what the broker keeps, and which of our topics a name means
(``adapters/pulsar``); what a client's user is told (``client/pulsar/topics.py``).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.model.names import NON_PERSISTENT, PERSISTENT, Domain, TopicName

DEFAULT_NAMESPACE: Final = "public/default"
"""Space ``""`` of the broker (D9): topics that every protocol sees by their plain names."""
PARTITION: Final = "-partition-"
NAMESPACE_PARTS: Final = (2, 3)
"""``tenant/namespace``, and with the cluster in it as old names have it."""

_PARTITION_NAME: Final = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
_BLANK: Final = re.compile(r"\s")
_NAMESPACE_PART: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_SHORT_SLASHES: Final = 2
"""Of ``tenant/namespace/local``."""


class InvalidTopicName(ValueError):
    """What a client calls a topic is no name; the text is what Pulsar says of it."""


class PulsarName(NamedTuple):
    """A topic as Pulsar's clients name it; ``str()`` is the full name they put on the wire."""

    domain: Domain
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
        """The number at its end; -1 when there is none."""
        found = _PARTITION_NAME.fullmatch(self.local)
        return -1 if found is None else int(found[2])

    @property
    def whole(self) -> PulsarName:
        """The topic of which it is a partition; itself when its name says nothing of that."""
        found = _PARTITION_NAME.fullmatch(self.local)
        return self if found is None else self._replace(local=found[1])

    def of_partition(self, number: int) -> PulsarName:
        return self._replace(local=f"{self.local}{PARTITION}{number}")

    @property
    def topic_name(self) -> TopicName:
        """The name as it stands, in the neutral form."""
        return TopicName(space_of(self.namespace), self.local, self.domain)


def parse_topic_name(text: str) -> PulsarName:
    """A name from the wire; short and old forms are understood. Raises ``InvalidTopicName``."""
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = PERSISTENT, text
        if "/" not in rest:
            rest = f"{DEFAULT_NAMESPACE}/{rest}"
        elif rest.count("/") != _SHORT_SLASHES:
            raise InvalidTopicName(
                f"Invalid topic name: Invalid short topic name '{text[:300]}', it should be in the "
                "format of <tenant>/<namespace>/<topic> or <topic>"
            )
    if domain not in (PERSISTENT, NON_PERSISTENT):
        raise InvalidTopicName(f"Invalid topic name: Invalid topic domain: '{domain}'")
    parts = rest.split("/", 3)
    *namespace, local = parts
    if len(namespace) not in NAMESPACE_PARTS or not all(map(_NAMESPACE_PART.fullmatch, namespace)):
        raise InvalidTopicName(f"Invalid topic name: {text[:300]}")
    if not local or _BLANK.search(local):
        raise InvalidTopicName(f"Invalid topic name: {text[:300]}")
    return PulsarName(_domain(domain), "/".join(namespace), local)


def _domain(text: str) -> Domain:
    return NON_PERSISTENT if text == NON_PERSISTENT else PERSISTENT


def space_of(namespace: str) -> str:
    return "" if namespace == DEFAULT_NAMESPACE else namespace
