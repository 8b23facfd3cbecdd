"""A catalog in memory: rows that outlive the process, as SQLite's do.

``apply`` is atomic and durable when it returns, so after ``kill()`` or ``crash()`` the heir has
exactly what was last applied. It fails on request, before anything is changed, like a transaction
that was rolled back; or *after* it was applied, like a commit whose answer was lost.
"""

from collections.abc import Sequence

from penstock.log.catalog import Op, RowKey
from penstock.model.errors import AppendFailed


class MemoryCatalog:
    """Satisfies ``log.catalog.Catalog``."""

    def __init__(self, rows: dict[RowKey, bytes] | None = None) -> None:
        self.rows: dict[RowKey, bytes] = dict(rows or {})
        self.calls = 0
        """Transactions asked for so far, in all lives."""
        self.fail_at = 0
        """The number of the one transaction that fails, counted from 1; 0 = none."""
        self.failures = 0
        """How many of the next transactions fail."""
        self.is_answer_lost = False
        """Whether a failing transaction is nevertheless applied."""
        self.is_full = False
        """Whether the disk has no room for a transaction; that is not final (P4)."""
        self._is_dead = False

    def load(self) -> dict[RowKey, bytes]:
        """Every row."""
        return dict(self.rows)

    def apply(self, ops: Sequence[Op]) -> None:
        """All of ``ops`` or none."""
        if self._is_dead:
            raise OSError("this catalog died with its process")
        self.calls += 1
        if self.is_full:
            raise AppendFailed("the catalog's disk is full (planned)")
        if self.failures or self.calls == self.fail_at:
            self.failures = max(0, self.failures - 1)
            if self.is_answer_lost:
                self._write(ops)
            raise OSError("catalog transaction failed (planned)")
        self._write(ops)

    def close(self) -> None:
        """Nothing to give back."""

    def kill(self) -> "MemoryCatalog":
        """The catalog as the next process finds it."""
        self._is_dead = True
        heir = MemoryCatalog(self.rows)
        heir.calls, heir.fail_at = self.calls, self.fail_at
        heir.is_answer_lost = self.is_answer_lost
        return heir

    def crash(self) -> "MemoryCatalog":
        """The same after a power cut: what was applied is on disk."""
        return self.kill()

    def _write(self, ops: Sequence[Op]) -> None:
        for kind, key, body in ops:
            if body is None:
                self.rows.pop((kind, key), None)
            else:
                self.rows[kind, key] = body
