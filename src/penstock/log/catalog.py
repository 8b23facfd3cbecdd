"""The catalog: small durable rows beside the log (D5, D6).

A row is (kind, key) -> body. Definitions, cursor snapshots and the state of side files are all
rows, so one transaction moves them together. ``apply`` is atomic and durable when it returns; it is
called by the commit thread, ``load`` only at open.

SQLite runs in WAL mode with ``synchronous=FULL``: one sync per transaction (the rollback journal
needs three and a directory sync), and a commit is on disk when it returns. Every row carries its
own crc32c, because SQLite checks the structure of its pages but not what is in them.

Not here: what the rows mean (``definitions.py``, ``snapshot.py``).
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from google_crc32c import value as crc32c

from penstock.model.errors import AppendFailed, LogCorrupt

CATALOG_NAME: Final = "catalog.db"

RowKey = tuple[str, str]
"""(kind, key)."""

Op = tuple[str, str, bytes | None]
"""(kind, key, body): put the row, or delete it when the body is ``None``."""


class Catalog(Protocol):
    """Durable rows; the only implementations are SQLite and the simulator's."""

    def load(self) -> dict[RowKey, bytes]:
        """Every row; raises ``LogCorrupt`` when they cannot be trusted."""
        ...

    def apply(self, ops: Sequence[Op]) -> None:
        """Make all of ``ops`` durable, in order, or none of them (then raise).

        ``AppendFailed`` says that the disk is full and the same call may work later.
        """
        ...

    def close(self) -> None:
        """No more calls follow."""
        ...


class SqliteCatalog:
    """The catalog of a real data directory: one SQLite file, one connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def load(self) -> dict[RowKey, bytes]:
        """Every row, after SQLite's own check of the file and ours of each row."""
        try:
            return self._checked_rows(self._connect())
        except sqlite3.DatabaseError as problem:
            raise self._damaged(str(problem)) from problem

    def apply(self, ops: Sequence[Op]) -> None:
        """One SQLite transaction."""
        connection = self._connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
            for kind, key, body in ops:
                if body is None:
                    connection.execute("DELETE FROM rows WHERE kind = ? AND key = ?", (kind, key))
                else:
                    connection.execute(
                        "INSERT OR REPLACE INTO rows (kind, key, body, crc) VALUES (?, ?, ?, ?)",
                        (kind, key, body, _row_crc(kind, key, body)),
                    )
            connection.execute("COMMIT")
        except Exception as problem:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise AppendFailed(f"no room for {self._path}; nothing was stored") from problem
            raise

    def close(self) -> None:
        """Close the file; SQLite folds its write-ahead file into it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            # The commit thread applies, the thread that opened loads; never both at once.
            connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS rows (kind TEXT NOT NULL, key TEXT NOT NULL,"
                    " body BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (kind, key))"
                    " WITHOUT ROWID"
                )
            except sqlite3.DatabaseError:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _checked_rows(self, connection: sqlite3.Connection) -> dict[RowKey, bytes]:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise self._damaged(verdict)
        rows: dict[RowKey, bytes] = {}
        for kind, key, body, crc in connection.execute("SELECT kind, key, body, crc FROM rows"):
            if crc != _row_crc(kind, key, body):
                raise self._damaged(f"row {kind} {key} fails its checksum")
            rows[kind, key] = body
        return rows

    def _damaged(self, detail: str) -> LogCorrupt:
        self.close()
        return LogCorrupt(
            f"{self._path} is damaged ({detail}); put back a copy of catalog.db from a backup of"
            " this data directory, or start with an empty directory: the log itself was not touched"
        )


def _row_crc(kind: str, key: str, body: bytes) -> int:
    return int(crc32c(b"%b\0%b\0%b" % (kind.encode(), key.encode(), body)))
