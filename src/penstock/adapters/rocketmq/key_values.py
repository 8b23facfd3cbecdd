"""Key-value configuration of the name server, kept in the catalog: namespace, key, value.

Invariant: at most ``ENTRIES_MAX`` entries of ``ENTRY_BYTES_MAX`` each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.replies import system_error

if TYPE_CHECKING:
    from penstock.engine.broker import Engine

KIND: Final = "rocketmq.kv"
ENTRIES_MAX: Final = 1000
ENTRY_BYTES_MAX: Final = 16 * 1024
_SEPARATOR: Final = "\x1f"


class KeyValues:
    """All namespaces."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._count = 0
        self._tables: dict[str, dict[str, str]] = {}
        for name, value in engine.definitions(KIND).items():
            namespace, _, key = name.partition(_SEPARATOR)
            self._tables.setdefault(namespace, {})[key] = value.decode()
            self._count += 1

    def get(self, namespace: str, key: str) -> str | None:
        """A value."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str]:
        """All of a namespace."""
        return dict(self._tables.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; raises ``Answer`` when there is no room."""
        is_new = self.get(namespace, key) is None
        packed = value.encode()
        if is_new and self._count >= ENTRIES_MAX:
            raise system_error(f"there are {ENTRIES_MAX} entries already; delete some")
        if len(packed) + len(namespace) + len(key) > ENTRY_BYTES_MAX:
            raise system_error(f"an entry has at most {ENTRY_BYTES_MAX} bytes")
        self._count += is_new
        self._tables.setdefault(namespace, {})[key] = value
        self._engine.define(KIND, f"{namespace}{_SEPARATOR}{key}", packed)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a value."""
        if self._tables.get(namespace, {}).pop(key, None) is not None:
            self._count -= 1
            self._engine.define(KIND, f"{namespace}{_SEPARATOR}{key}", None)
