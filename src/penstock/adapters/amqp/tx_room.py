"""Room for what transactions hold until their commit.

Who spends: a channel in tx mode, for every publish and settlement that waits. Who grants: its
commit, rollback or end. Who stops: nobody waits here: a transaction that does not fit is refused,
since reading on is the only way to its commit. What wakes it: nothing has to.

Invariant: all transactions together have at most a quarter of the publishers' pool, so that those
who keep theirs open for hours do not stop anybody else; one connection has at most its byte share.
"""

from __future__ import annotations

from typing import Final

from penstock.flow.budgets import BytesPool
from penstock.model.ids import ConnectionId

POOL_PART: Final = 4
"""Transactions get one of so many parts of the pool."""


class TxRoom:
    """What the open transactions of a broker weigh."""

    def __init__(self, pool: BytesPool, connection_bytes_max: int) -> None:
        self._pool: Final = pool
        self._share: Final = pool.share("transactions", pool.bytes_max // POOL_PART)
        self._connection_bytes_max: Final = connection_bytes_max
        # Bounded by the number of connections: who holds nothing is not in it.
        self._held: Final[dict[ConnectionId, int]] = {}

    @property
    def bytes(self) -> int:
        """All of it."""
        return self._share.used

    def take(self, connection: ConnectionId, size_bytes: int) -> bool:
        """Hold more; False when it does not fit, then nothing is held."""
        held = self._held.get(connection, 0) + size_bytes
        if held > self._connection_bytes_max or not self._fits(size_bytes):
            return False
        self._pool.take(self._share, size_bytes)
        self._held[connection] = held
        return True

    def give(self, connection: ConnectionId, size_bytes: int) -> None:
        """Hold less."""
        if size_bytes:
            self._pool.give(self._share, size_bytes)
            self._held[connection] -= size_bytes
            if not self._held[connection]:
                del self._held[connection]

    def _fits(self, size_bytes: int) -> bool:
        is_within = self._share.used + size_bytes <= self._share.bytes_max
        # Asked first: a share that was refused would stand in line for what it does not want.
        return is_within and self._pool.can_take(self._share, size_bytes)
