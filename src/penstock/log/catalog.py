"""The catalog: small durable rows beside the log (D5, D6).

A row is (kind, key) -> body. Definitions, cursor snapshots and the state of side files are all
rows, so one transaction moves them together. ``apply`` is atomic and durable when it returns; it is
called by the commit thread, ``load`` only at open.

SQLite runs in WAL mode with ``synchronous=FULL``: one sync per transaction (the rollback journal
needs three and a directory sync), and a commit is on disk when it returns. Every row carries its
own crc32c, because SQLite checks the structure of its pages but not what is in them.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
from google_crc32c import value as crc32c

from penstock.log.format import CursorState, encode_cursor
from penstock.model.errors import AppendFailed, LogCorrupt
from penstock.model.ids import TRANSIENT_ID_MIN, LogPosition
from penstock.settings.broker import StorageSettings

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

    def close(self) -> None: ...


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


# ---- definitions --------------------------------------------------------------------------------
# Definitions: topics, subscriptions, bindings, users ... as rows the engine reads back (D6).
#
# The rows live in memory; every change is also an operation for the next catalog transaction.
# ``sequence`` counts changes: once the store's ``definitions_durable`` reaches the number read
# after a change, that change is on disk and its declare-ok may leave.
#
# Ids are never reused (D17): a block is reserved in the catalog ahead of use, and recovery lifts
# the counter above any id it meets in the log.


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


# ---- snapshot -----------------------------------------------------------------------------------
# Snapshots: from which position on recovery has to read the log (D5).
#
# A snapshot at position P is a set of catalog rows (cursors, queues, side files, segments) that
# hold exactly what the log says up to P. It is captured in the loop in one go, but written only
# when the log is durable up to P and the side files it describes are on file. So rows never run
# ahead of the log, whatever moment a crash picks.
#
# ``due`` is also true only when something happened since the last one, and the more queues changed
# the longer it waits: writing 50,000 rows every second would be all the commit thread does. It
# waits longer, too, while little was written: confirms stand behind a snapshot for some
# milliseconds, and a few MiB are read again in no time.


CURSOR_KIND: Final = "cursor"
META_KIND: Final = "meta"
SNAPSHOT_KEY: Final = "snapshot"
RUN_KEY: Final = "run"
DIRTY_QUEUES_PER_MS: Final = 2
PATIENCE: Final = 10
"""How many intervals a snapshot of little waits at most."""


class SnapshotRow(msgspec.Struct, frozen=True):
    """The meta row that makes a snapshot: where it stands."""

    position: int
    index_ms: int = 0
    """Largest store time of any index entry: entries never go back in time (D4)."""


class RunRow(msgspec.Struct, frozen=True):
    """The meta row about the process that has the directory, or had it last."""

    is_clean: bool
    boot_id: str
    durability: str
    epoch: int


class Snapshots:
    """The last durable snapshot and the one on its way."""

    def __init__(self, position: int, settings: StorageSettings) -> None:
        self.position = LogPosition(position)
        """Recovery would begin here."""
        self._interval_ms = settings.snapshot_interval_ms
        self._bytes_min = settings.snapshot_bytes_min
        self._taken_ms: int | None = None
        self._ops: list[Op] = []
        self._steps_needed = 0
        self._pending: LogPosition | None = None
        self._is_in_job = False
        self._discarded: set[tuple[str, str]] = set()

    def is_due(self, now_ms: int, dirty_queues: int, end: int | None) -> bool:
        """True when enough time has gone by for a log that ends there; ``now_ms`` is monotonic.

        Without an end a small one does not wait longer than a large one.
        """
        if self._pending is not None:
            return False
        if self._taken_ms is None:
            return True
        wait_ms = self._interval_ms + dirty_queues // DIRTY_QUEUES_PER_MS
        if end is not None and end - self.position < self._bytes_min:
            wait_ms *= PATIENCE
        return now_ms - self._taken_ms >= wait_ms

    @property
    def is_pending(self) -> bool:
        """True from the capture until its rows are durable."""
        return self._pending is not None

    @property
    def pending_position(self) -> LogPosition | None:
        """Where the snapshot on its way stands."""
        return self._pending

    def capture(self, position: LogPosition, ops: list[Op], *, steps: int, now_ms: int) -> None:
        """Keep the rows of a snapshot until they may be written, after ``steps`` are done."""
        assert self._pending is None, "one snapshot at a time"
        self._pending = position
        self._ops = ops
        self._steps_needed = steps
        self._taken_ms = now_ms

    def is_ready(self, synced: int, steps_done: int) -> bool:
        """True when the rows may be written: the log is durable that far, the files are there."""
        return (
            self._pending is not None
            and not self._is_in_job
            and synced >= self._pending
            and steps_done >= self._steps_needed
        )

    def take_ops(self, synced: int, steps_done: int) -> list[Op]:
        """The rows if they may be written now, without those discarded since; else none."""
        if self._pending is None or not self.is_ready(synced, steps_done):
            return []
        self._is_in_job = True
        if self._discarded:
            self._ops = [op for op in self._ops if (op[0], op[1]) not in self._discarded]
        return self._ops

    def discard(self, kind: str, key: str) -> None:
        """A row of the snapshot on its way is about something that was deleted since."""
        if self._pending is not None:
            self._discarded.add((kind, key))

    def written(self) -> None:
        assert self._pending is not None
        self.position, self._pending = self._pending, None
        self._ops = []
        self._discarded.clear()
        self._is_in_job = False

    def deferred(self) -> None:
        """The transaction did not take place: the same rows go into a later one."""
        self._is_in_job = False


def cursor_op(state: CursorState) -> Op:
    return (CURSOR_KIND, cursor_key(state.subscription_id, state.queue_id), encode_cursor(state))


def cursor_key(subscription_id: int, queue_id: int) -> str:
    return f"{subscription_id}/{queue_id}"


def meta_op(key: str, row: SnapshotRow | RunRow) -> Op:
    return (META_KIND, key, msgspec.json.encode(row))
