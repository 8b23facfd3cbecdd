"""An exchange: a name, a type, and the bindings of which it is the source.

``PREDECLARED`` are there in every vhost without being made: the default exchange ``""``, to which
every queue is bound by its name, and ``amq.*``. They are durable and nobody may delete them.

Not here: making and deleting (``exchanges.py``), following bindings (``router.py``).
"""

from __future__ import annotations

from typing import Any, Final

from penstock.adapters.amqp.binding import Binding, BindingKey
from penstock.adapters.amqp.matching import MATCHERS, Matcher

DEFAULT_EXCHANGE: Final = ""
RESERVED_PREFIX: Final = "amq."
ALTERNATE: Final = "alternate-exchange"
PREDECLARED: Final = (
    (DEFAULT_EXCHANGE, "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


class Exchange:
    """One exchange of a vhost."""

    __slots__ = (
        "alternate",
        "arguments",
        "bindings",
        "is_auto_delete",
        "is_durable",
        "is_internal",
        "kind",
        "matcher",
        "name",
        "was_bound",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        is_durable: bool = False,
        is_auto_delete: bool = False,
        is_internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.is_durable: Final = is_durable
        self.is_auto_delete: Final = is_auto_delete
        """Goes with the last binding of which it is the source, once it had one."""
        self.is_internal: Final = is_internal
        """Only other exchanges may publish to it."""
        self.arguments: Final[dict[str, Any]] = arguments or {}
        alternate = self.arguments.get(ALTERNATE)
        self.alternate: Final = alternate if isinstance(alternate, str) else None
        """The exchange that gets what this one has no binding for."""
        self.matcher: Final[Matcher] = MATCHERS[kind]()
        self.bindings: Final[dict[BindingKey, Binding]] = {}
        """Those of which it is the source; changed by ``Bindings`` only."""
        self.was_bound = False

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.kind}>"

    @property
    def is_reserved(self) -> bool:
        """True for the default exchange and ``amq.*``."""
        return not self.name or self.name.startswith(RESERVED_PREFIX)

    @property
    def is_done(self) -> bool:
        """True when it is to be deleted because nothing is bound to it any more."""
        return self.is_auto_delete and self.was_bound and not self.bindings


def predeclared() -> dict[str, Exchange]:
    """The exchanges every vhost begins with."""
    return {name: Exchange(name, kind, is_durable=True) for name, kind in PREDECLARED}
