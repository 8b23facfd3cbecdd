"""Definitions: topics, subscriptions, bindings, users ... as rows the engine reads back (D6).

The rows live in memory; every change is also an operation for the next catalog transaction.
``sequence`` counts changes: once the store's ``definitions_durable`` reaches the number read after
a change, that change is on disk and its declare-ok may leave.

Ids are never reused (D17): a block is reserved in the catalog ahead of use, and recovery lifts the
counter above any id it meets in the log.

Not here: objects that do not survive a restart; they never enter this file.
"""

from typing import Final

import msgspec

from penstock.log.catalog import Op, RowKey
from penstock.model.ids import TRANSIENT_ID_MIN

ID_BLOCK: Final = 1024
"""Ids reserved at a time."""

DEFINITION_PREFIX: Final = "definition/"
IDS_KIND: Final = "ids"


class Definitions:
    """All definition rows and id counters; changes wait here for a transaction."""

    def __init__(self, rows: dict[RowKey, bytes]) -> None:
        self._bodies: dict[str, dict[str, bytes]] = {}
        self._next_ids: dict[str, int] = {}
        self._reserved_ids: dict[str, int] = {}
        self.ops: list[Op] = []
        """Changes that wait for a transaction."""
        self.sequence = 0
        """Number of changes so far in this process."""
        for (kind, key), body in rows.items():
            if kind.startswith(DEFINITION_PREFIX):
                self._bodies.setdefault(kind.removeprefix(DEFINITION_PREFIX), {})[key] = body
            elif kind == IDS_KIND:
                self._next_ids[key] = self._reserved_ids[key] = msgspec.json.decode(body, type=int)

    def put(self, kind: str, key: str, body: bytes) -> int:
        """Create or replace a row; returns the sequence number that makes it durable."""
        self._bodies.setdefault(kind, {})[key] = body
        return self.note((DEFINITION_PREFIX + kind, key, body))

    def delete(self, kind: str, key: str) -> int:
        """Remove a row if it is there; returns the sequence number that makes it durable."""
        if self._bodies.get(kind, {}).pop(key, None) is None:
            return self.sequence
        return self.note((DEFINITION_PREFIX + kind, key, None))

    def get(self, kind: str, key: str) -> bytes | None:
        """One row's body."""
        return self._bodies.get(kind, {}).get(key)

    def all(self, kind: str) -> dict[str, bytes]:
        """A copy of all rows of a kind, in the order they were put (by key after a restart)."""
        return dict(self._bodies.get(kind, {}))

    def new_id(self, kind: str) -> int:
        """The next id of ``kind`` ("topic", "queue", "subscription", "incarnation")."""
        identifier = self._next_ids.get(kind, 1)
        self._next_ids[kind] = identifier + 1
        if identifier + 1 > self._reserved_ids.get(kind, 0) - ID_BLOCK // 2:
            self._reserve(kind, identifier + ID_BLOCK)
        return identifier

    def new_transient_id(self, kind: str) -> int:
        """The next id of an object that a restart drops (D6); starts over with the process."""
        label = "transient " + kind
        identifier = self._next_ids.get(label, TRANSIENT_ID_MIN)
        self._next_ids[label] = identifier + 1
        return identifier

    def lift_id(self, kind: str, seen: int) -> None:
        """An id was met in the log: never hand it out again."""
        if seen < TRANSIENT_ID_MIN and seen >= self._next_ids.get(kind, 1):
            self._next_ids[kind] = seen + 1
            self._reserve(kind, seen + ID_BLOCK)

    def note(self, op: Op) -> int:
        """Add an operation to the next transaction."""
        self.ops.append(op)
        self.sequence += 1
        return self.sequence

    def take_ops(self) -> list[Op]:
        """The operations since the last call, in order."""
        ops, self.ops = self.ops, []
        return ops

    def put_back(self, ops: list[Op]) -> None:
        """Operations whose transaction did not take place go first into the next one."""
        self.ops = ops + self.ops

    def _reserve(self, kind: str, upto: int) -> None:
        self._reserved_ids[kind] = upto
        self.note((IDS_KIND, kind, msgspec.json.encode(upto)))
