"""Arrow rows become a stage file: records of the log, column by column, without a loop (D19).

    batch -> columns checked -> topics and queues -> header, key, tag, properties, body, padding
          -> one binary column of records -> blocks by queue -> the file

A row is a neutral record (D3): key, tag, properties of RocketMQ's form, body. ``message_id`` is a
property of that name (D16). Its queue is the one that the client's producer would choose: by the
hash of its key, else one after the other; the order of a task is kept in every queue.

Room is asked for before anything is written, and waited for: that is how a broker that is short of
disk or memory, or whose topic is full, holds a task. A put counts when its file has its name, which
it gets when all of it is durable.

Invariants: nothing is written that was not granted; what is wrong with a row is said with its
number, and then nothing of the put is left. Memory: one merged batch of ``MERGE_BYTES``, its
records, and what Arrow takes to join them.

Not here: the blocks' bytes (``log/staging.py``), who grants (``engine/spark/staging.py``), the
stream the rows come from (``flight.py``).
"""

import contextlib
import difflib
import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google_crc32c import extend as crc32c_extend

from penstock.bulk.layout import HEADER, Column
from penstock.bulk.tickets import BulkError
from penstock.log.format import HEADER_VERSION, INDEX_EXPIRES, PAD_SHIFT
from penstock.log.staging import (
    BLOCK_BYTES_MAX,
    BLOCK_ROWS_MAX,
    PART_SUFFIX,
    STAGE_DIRECTORY,
    Block,
    batch_path,
    encode_block,
)
from penstock.model.ids import UNASSIGNED_OFFSET, size_text
from penstock.model.queries import (
    STAGE_TOPICS_MAX,
    AnyRequest,
    AnyResponse,
    CommitBatchRequest,
    CommitBatchResponse,
    StageDoneRequest,
    StagedTopic,
    StageRoomRequest,
    StageRoomResponse,
)
from penstock.model.record import RecordFlag, RecordKind, tag_hash
from penstock.model.spark_batch import (
    AT_LEAST_ONCE,
    BAD_REQUEST,
    GUARANTEES,
    HELD,
    NO_BODY,
    STAGE_COLUMNS,
    TOO_LARGE,
    TWO_TIMES,
    UNREACHABLE,
    StageCommand,
    StagedRows,
    StageReceipt,
)

MERGE_ROWS: Final = 20_000
MERGE_BYTES: Final = 8 << 20
"""Rows are gathered up to here before they are encoded: small batches would make small blocks."""
WAIT_MS: Final = 5_000
"""How long one question for room waits at the broker."""
HOLD_MS_MAX: Final = 600_000
RETRY_S: Final = 0.5
"""Between two tries of a write that found the disk full."""
DELAY_MS_MAX: Final = 366 * 86_400_000
"""Every hour ahead in which something is due has a file of its own."""
KEY_BYTES_MAX: Final = 65_535
HASH_COLUMN_BYTES_MAX: Final = 128
"""Longer keys are hashed one by one."""
HASH_KINDS_MAX: Final = 1024
"""So few different keys are hashed one by one as well."""
NAME_RETRIES: Final = 10
"""A directory may be removed as empty while a file is made in it."""
_STAGE: Final = re.compile(r"[0-9A-Za-z-]{1,64}")

TARGETED: Final = np.dtype([*HEADER.descr, ("queue_id", "<u4"), ("first_offset", "<u8")])
"""A record up to its origin: header and one target."""
FACTS: Final = np.dtype(
    [("length", "<u4"), ("messages", "<u4"), ("tag_hash", "<i4"), ("flags", "<u4")]
)
_FRONT: Final = TARGETED.itemsize
_EMPTY: Final = pa.scalar(b"", pa.binary())
_NAME_END: Final = pa.scalar(b"\x01", pa.binary())
_PAIR_END: Final = pa.scalar(b"\x02", pa.binary())
_ID_NAME: Final = pa.scalar(b"message_id\x01", pa.binary())
_NO_INDEX: Final = int(RecordFlag.NO_INDEX)
_DELAYED: Final = int(RecordFlag.DELAYED)


class Broker(Protocol):
    """Who grants room."""

    def ask(self, name: str, question: AnyRequest) -> AnyResponse:
        """The answer; raises ``BulkError``."""
        ...


class StageWriter:
    """One put: rows in, a durable file out, or nothing."""

    def __init__(
        self,
        directory: Path,
        command: StageCommand,
        broker: Broker,
        *,
        maker: str = "",
        hold_ms_max: int = HOLD_MS_MAX,
        is_cancelled: Callable[[], bool] = lambda: False,
        encoders: AbstractContextManager[object] | None = None,
    ) -> None:
        """``encoders``: held while rows are encoded, so that not too many are at a time."""
        _check_command(command)
        # Rows that are visible as each task ends are a batch of their own for each.
        is_own = command.guarantee == AT_LEAST_ONCE
        self._query = f"{command.query}~{command.stage}" if is_own else command.query
        self._spark_query = command.spark_query or command.query
        self._command = command
        self._broker = broker
        self._maker = maker
        self._hold_s_max = hold_ms_max / 1000
        self._is_cancelled = is_cancelled
        self._root = directory
        self._batch = directory / batch_path(command.sink, self._query, command.batch)
        self._part = self._batch / (command.name + PART_SUFFIX)
        self._fd = -1
        self._has_made_directory = False
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._encoders = encoders or contextlib.nullcontext()
        self._encoder = RowEncoder(command, self._topics)
        self._rows = self._size = self._crc = self._granted = 0

    # Rows in

    def add(self, batch: pa.RecordBatch) -> None:
        """The next rows."""
        if not self._rows and not self._waiting:
            self._encoder.check(batch.schema)
        for piece in _pieces(batch):
            self._waiting.append(piece)
            self._waiting_rows += piece.num_rows
            self._waiting_bytes += piece.nbytes
            if self._waiting_rows >= MERGE_ROWS or self._waiting_bytes >= MERGE_BYTES:
                self._encode()

    def finish(self, rows: int) -> StageReceipt:
        """Everything is there, ``rows`` in all: make it durable and give it its name."""
        self._encode()
        if rows != self._rows:
            raise BulkError(
                BAD_REQUEST, f"the put has {self._rows} rows and says that it has {rows}; try again"
            )
        command = self._command
        receipt = StageReceipt(
            name=command.name, rows=rows, bytes=self._size, crc=self._crc,
            is_committed=command.guarantee == AT_LEAST_ONCE,
        )  # fmt: skip
        if not rows:
            return receipt
        os.fdatasync(self._fd)
        os.rename(self._part, self._batch / command.name)
        self._close()
        self._sync_names()
        self._say_done(self._size)
        if command.guarantee == AT_LEAST_ONCE:
            self._commit(rows)
        return receipt

    def drop(self) -> None:
        """The put broke: nothing of it is left."""
        if self._fd >= 0:
            self._close()
            with contextlib.suppress(OSError):
                self._part.unlink()
        with contextlib.suppress(BulkError):
            self._say_done(0)

    # Room

    def _topics(self, names: list[str]) -> list[StagedTopic]:
        """Where rows of these topics go; waits while one of them takes nothing."""
        return self._room(names, 0).topics

    def _room(self, topics: list[str], size: int) -> StageRoomResponse:
        """Ask until there is room; a refusal says what it waited for."""
        command, began = self._command, time.monotonic()
        while True:
            left_ms = int((self._hold_s_max - (time.monotonic() - began)) * 1000)
            answer = self._broker.ask(
                "stage_room",
                StageRoomRequest(
                    sink=command.sink,
                    query=self._query,
                    batch=command.batch,
                    name=command.name,
                    topics=topics,
                    bytes=size,
                    wait_ms=max(0, min(WAIT_MS, left_ms)),
                    maker=self._maker,
                    spark_query=self._spark_query,
                    passing=list(command.passing),
                ),
            )
            assert isinstance(answer, StageRoomResponse)
            if not answer.held:
                self._granted += size
                self._encoder.wall_ms = answer.wall_ms
                return answer
            self._check_patience(began, answer.held)

    def _check_patience(self, began: float, held: str) -> None:
        waited_s = time.monotonic() - began
        if self._is_cancelled():
            raise BulkError(UNREACHABLE, "whoever put the rows has left")
        if waited_s >= self._hold_s_max:
            raise BulkError(
                HELD,
                f"a put of batch {self._command.batch} to sink '{self._command.sink}' waited "
                f"{waited_s:.0f} s (spark.stage_hold_ms_max): {held}",
            )

    def _say_done(self, size: int) -> None:
        command = self._command
        if self._granted:
            self._granted = 0
            self._broker.ask(
                "stage_done",
                StageDoneRequest(
                    sink=command.sink,
                    query=self._query,
                    batch=command.batch,
                    name=command.name,
                    bytes=size,
                ),
            )

    def _commit(self, rows: int) -> None:
        """At least once: the rows are visible when the put ends."""
        command, began = self._command, time.monotonic()
        while True:
            answer = self._broker.ask(
                "commit_batch",
                CommitBatchRequest(
                    sink=command.sink,
                    query=self._query,
                    batch=command.batch,
                    stages=[StagedRows(name=command.name, rows=rows)],
                    is_streaming=False,
                    is_single=True,
                    maker=self._maker,
                    wait_ms=WAIT_MS,
                    spark_query=self._spark_query,
                    passing=list(command.passing),
                ),
            )
            assert isinstance(answer, CommitBatchResponse)
            if not answer.held:
                return
            self._check_patience(began, answer.held)

    # The file

    def _encode(self) -> None:
        """What was gathered becomes blocks, and they are written."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        for batch in table.to_batches():
            self._encoder.learn(batch)
            with self._encoders:
                blocks = self._encoder.blocks(batch, self._rows)
            self._room([], sum(block.size_bytes for block in blocks))
            for block in blocks:
                self._write(encode_block(block))
            self._rows += batch.num_rows

    def _write(self, pieces: Sequence[bytes]) -> None:
        """One block; a disk that is full is waited for, and the file cut back to what it had."""
        if self._fd < 0:
            self._fd = self._opened()
        size, began = sum(map(len, pieces)), time.monotonic()
        while True:
            try:
                if os.writev(self._fd, pieces) == size:
                    break
                problem = "it is full"
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise BulkError(UNREACHABLE, f"a stage file: {error.strerror}") from None
                problem = error.strerror or "it is full"
            os.ftruncate(self._fd, self._size)
            self._check_patience(began, f"the disk takes no more: {problem}")
            time.sleep(RETRY_S)
        self._size += size
        for piece in pieces:
            self._crc = crc32c_extend(self._crc, piece)

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        for _ in range(NAME_RETRIES):
            if not self._batch.exists():
                self._has_made_directory = True
                self._batch.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileNotFoundError):
                return os.open(self._part, flags, 0o640)
        raise BulkError(UNREACHABLE, f"{self._batch} cannot be made; try again")

    def _sync_names(self) -> None:
        """The file's name, and those of the directories above it, if we made one."""
        directory = self._batch
        while True:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            if directory == self._root or not self._has_made_directory:
                return
            directory = directory.parent

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1
        # Arrow would keep what the largest put took; whole pages only, so it costs little.
        pa.default_memory_pool().release_unused()


def remove_parts(directory: Path) -> int:
    """At the start of the Flight process: what the one before was writing is nobody's; how many."""
    removed = 0
    # Not by a glob: the broker may remove directories meanwhile.
    for place, _, names in os.walk(directory / STAGE_DIRECTORY):
        for name in names:
            if name.endswith(PART_SUFFIX):
                with contextlib.suppress(OSError):
                    os.unlink(f"{place}/{name}")
                    removed += 1
    return removed


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in pieces that are not too large to be encoded at once."""
    count = max(1, -(-batch.nbytes // MERGE_BYTES), -(-batch.num_rows // MERGE_ROWS))
    rows = max(1, -(-batch.num_rows // count))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def _check_command(command: StageCommand) -> None:
    is_named = command.sink and command.query and _STAGE.fullmatch(command.stage)
    is_numbered = command.batch >= 0 and 0 <= command.partition < 10**10
    if not (is_named and is_numbered and command.guarantee in GUARANTEES):
        raise BulkError(
            BAD_REQUEST,
            "a put names sink, query, batch, partition and a stage of letters, digits and '-' that "
            f"nobody else uses; guarantee is one of {', '.join(GUARANTEES)}",
        )


# ---- rows ---------------------------------------------------------------------------------------


class _Target(NamedTuple):
    """A topic as rows see it."""

    queues: Column
    """Ids."""
    message_bytes_max: int


class RowEncoder:
    """Rows of one put to blocks; knows where the next row without a key goes."""

    def __init__(
        self, command: StageCommand, resolve: Callable[[list[str]], list[StagedTopic]]
    ) -> None:
        self._default = command.topic
        self._resolve = resolve
        self._targets: dict[str, _Target] = {}
        # Tasks begin with different queues, or the first would get most of many small batches.
        self._turn = command.partition
        self.wall_ms = 0
        """By the broker's clock, as of its last word."""

    def check(self, schema: pa.Schema) -> None:
        """Raise for columns that are none of a message, with what to do."""
        for field in schema:
            _check_column(field)
        if "body" not in schema.names:
            raise BulkError(BAD_REQUEST, NO_BODY)
        if "topic" not in schema.names and not self._default:
            raise BulkError(
                BAD_REQUEST, "to which topic? Name one in the put, or give each row its own column"
            )
        if {"delay_ms", "deliver_at"} <= set(schema.names):
            raise BulkError(BAD_REQUEST, TWO_TIMES)
        if len(set(schema.names)) != len(schema.names):
            raise BulkError(BAD_REQUEST, "two columns have the same name; rename one")

    def learn(self, batch: pa.RecordBatch) -> None:
        """Find out where rows of topics go that come for the first time; may take long."""
        names = [self._default] if self._default else []
        if "topic" in batch.schema.names:
            names += [name for name in pc.unique(batch.column("topic")).to_pylist() if name]
        missing = [name for name in dict.fromkeys(names) if name not in self._targets]
        count = len(self._targets) + len(missing)
        if count > STAGE_TOPICS_MAX:
            raise BulkError(
                BAD_REQUEST,
                f"one task writes to {count} topics, limit {STAGE_TOPICS_MAX}; partition the rows "
                "by topic",
            )
        if missing:
            for topic in self._resolve(missing):
                queues = np.array(topic.queues, np.uint32)
                self._targets[topic.name] = _Target(queues, topic.message_bytes_max)

    def blocks(self, batch: pa.RecordBatch, first_row: int) -> list[Block]:
        """The rows by queue, in their order; ``first_row`` is the number of the first."""
        rows = _Rows(batch, first_row)
        topics = self._topics(batch, rows)
        times = self._times(rows)
        key, tag, body = rows.text("key"), rows.text("tag"), rows.body()
        properties = _properties(rows)
        parts = (key, tag, properties, body)
        sizes = [_lengths(part) for part in parts]
        origin = sizes[0] + sizes[1] + sizes[2] + sizes[3]
        _check_sizes(rows, sizes[0], sizes[1], origin, topics)
        header = np.zeros(len(rows), TARGETED)
        length = (_FRONT + origin + 7) & -8
        pad = length - _FRONT - origin
        _fill(header, length, pad, sizes, times)
        header["born_ms"] = self.wall_ms
        header["queue_id"] = self._queues(key, sizes[0], topics)
        records = _joined(header, parts, pad)
        facts = np.zeros(len(rows), FACTS)
        facts["length"], facts["messages"] = length, 1
        facts["tag_hash"] = java_hash(tag, sizes[1]) if sizes[1].any() else 0
        facts["flags"] = np.where(times.expire > 0, INDEX_EXPIRES, 0)
        return _blocks(records, header, facts)

    def _topics(self, batch: pa.RecordBatch, rows: "_Rows") -> list[tuple[_Target, Column | None]]:
        """Which topics the rows are for, and which rows each has; None = all of them."""
        if "topic" not in batch.schema.names:
            return [(self._targets[self._default], None)]
        named = pc.fill_null(rows.text("topic").cast(pa.string()), "")
        if self._default:
            named = pc.if_else(pc.equal(named, ""), self._default, named)
        coded = named.dictionary_encode()
        names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)
        if "" in names:
            row = int(np.flatnonzero(codes == names.index(""))[0])
            raise rows.wrong(row, "topic", "it has none; name a topic in the put for such rows")
        if len(names) == 1:
            return [(self._targets[names[0]], None)]
        return [(self._targets[name], codes == number) for number, name in enumerate(names)]

    def _queues(
        self, key: pa.Array, key_len: Column, topics: list[tuple[_Target, Column | None]]
    ) -> Column:
        """The queue of each row."""
        has_key = key_len > 0
        numbers = np.zeros(len(key_len), np.int64)
        if has_key.any() and any(len(target.queues) > 1 for target, _ in topics):
            numbers = np.abs(java_hash(key, key_len).astype(np.int64))
        plain = int((~has_key).sum())
        if plain:
            numbers[~has_key] = self._turn + np.arange(plain)
            self._turn += plain
        if topics[0][1] is None:
            queues = topics[0][0].queues
            found: Column = queues[numbers % len(queues)]
            return found
        found = np.zeros(len(key_len), np.uint32)
        for target, mine in topics:
            found[mine] = target.queues[numbers[mine] % len(target.queues)]
        return found

    def _times(self, rows: "_Rows") -> "_Times":
        """When each expires and is delivered, in milliseconds; 0 = never, and at once."""
        expire = rows.moment("expire")
        # A moment before 1970 is over, too; 0 would mean "never".
        expire = np.where(rows.is_given("expire"), np.maximum(expire, 1), 0)
        deliver = rows.moment("deliver_at")
        delay = rows.moment("delay_ms")
        deliver = np.where(delay > 0, self.wall_ms + delay, deliver)
        deliver = np.where(deliver > self.wall_ms, deliver, 0)
        too_late = deliver > self.wall_ms + DELAY_MS_MAX
        if too_late.any():
            name = "deliver_at" if rows.has("deliver_at") else "delay_ms"
            days = DELAY_MS_MAX // 86_400_000
            row = int(np.flatnonzero(too_late)[0])
            raise rows.wrong(row, name, f"it is more than {days} days ahead")
        return _Times(expire, deliver)


class _Times(NamedTuple):
    expire: Column
    deliver: Column


class _Rows:
    """The columns of a batch, as they are needed; what is missing is empty."""

    def __init__(self, batch: pa.RecordBatch, first_row: int) -> None:
        self._batch = batch
        self._first_row = first_row

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def has(self, name: str) -> bool:
        return name in self._batch.schema.names

    def column(self, name: str) -> pa.Array:
        return self._batch.column(name)

    def wrong(self, row: int, name: str, why: str) -> BulkError:
        """What is wrong with a row, by its number in the put."""
        return BulkError(BAD_REQUEST, f"row {self._first_row + row}, column {name}: {why}")

    def text(self, name: str) -> pa.Array:
        """A column of text as its bytes."""
        if not self.has(name):
            return _empty(len(self))
        return _filled(_as_binary(self.column(name)))

    def body(self) -> pa.Array:
        column = self.column("body")
        if column.null_count:
            row = pc.index(column.is_null(), True).as_py()
            raise self.wrong(row, "body", "it is null; filter such rows out, or make it empty")
        return _filled(_as_binary(column))

    def is_given(self, name: str) -> Column:
        """Which rows have a value."""
        if not self.has(name):
            return np.zeros(len(self), np.bool_)
        found: Column = self.column(name).is_valid().to_numpy(zero_copy_only=False)
        return found

    def moment(self, name: str) -> Column:
        """A column of times, or of durations, in milliseconds; 0 where there is none."""
        if not self.has(name):
            return np.zeros(len(self), np.int64)
        column = self.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
        column = pc.fill_null(column.cast(pa.int64()), 0)
        found: Column = column.to_numpy(zero_copy_only=False)
        return found


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_integer(kind))


def _is_properties(kind: pa.DataType) -> bool:
    return _is_bytes(kind) or bool(
        pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)
    )


_TEXT: Final = ("text (string)", _is_text)
_MOMENT: Final = ("a timestamp, or milliseconds since 1970 (long)", _is_time)
_KINDS: Final[dict[str, tuple[str, Callable[[pa.DataType], bool]]]] = {
    "topic": _TEXT,
    "key": _TEXT,
    "tag": _TEXT,
    "properties": ("a map of text to text, or RocketMQ's bytes of one (binary)", _is_properties),
    "body": ("binary, or text", lambda kind: _is_bytes(kind) or _is_text(kind)),
    "message_id": _TEXT,
    "expire": _MOMENT,
    "delay_ms": ("milliseconds (long)", pa.types.is_integer),
    "deliver_at": _MOMENT,
}
assert tuple(_KINDS) == STAGE_COLUMNS


def _check_column(field: pa.Field) -> None:
    known = _KINDS.get(field.name)
    if known is None:
        close = difflib.get_close_matches(field.name, STAGE_COLUMNS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(STAGE_COLUMNS)}."
        raise BulkError(
            BAD_REQUEST,
            f"column {field.name!r} is none of a message; {hint} Leave it out, or put it into the "
            "body: to_json(struct(*)) as body",
        )
    what, is_right = known
    if not is_right(field.type):
        raise BulkError(
            BAD_REQUEST, f"column {field.name} is {field.type}, but must be {what}; cast it"
        )


def _check_sizes(
    rows: _Rows,
    key_len: Column,
    tag_len: Column,
    origin: Column,
    topics: Sequence[tuple[_Target, Column | None]],
) -> None:
    for name, lengths in (("key", key_len), ("tag", tag_len)):
        if int(lengths.max(initial=0)) > KEY_BYTES_MAX:
            row = int(np.argmax(lengths))
            raise rows.wrong(row, name, f"it has {int(lengths[row])} bytes, limit {KEY_BYTES_MAX}")
    for target, mine in topics:
        sizes = origin if mine is None else np.where(mine, origin, 0)
        row = int(np.argmax(sizes))
        if int(sizes[row]) > target.message_bytes_max:
            wrong = rows.wrong(
                row,
                "body",
                f"the message has {size_text(int(sizes[row]))}, limit "
                f"{size_text(target.message_bytes_max)} (message_bytes_max); make it smaller, or "
                "keep what is large elsewhere and send its address",
            )
            raise BulkError(TOO_LARGE, str(wrong))


def _fill(
    header: Column, length: Column, pad: Column, sizes: Sequence[Column], times: _Times
) -> None:
    key_len, tag_len, props_len, body_len = sizes
    header["len"], header["kind"], header["targets"] = length, int(RecordKind.MESSAGE), 1
    header["header_version"], header["messages"] = HEADER_VERSION, 1
    delayed = np.where(times.deliver > 0, _DELAYED, 0)
    header["flags"] = _NO_INDEX | delayed | pad << PAD_SHIFT
    header["expire_ms"], header["deliver_ms"] = times.expire, times.deliver
    header["key_len"], header["tag_len"], header["tag_at"] = key_len, tag_len, key_len
    header["props_at"], header["props_len"] = key_len + tag_len, props_len
    header["body_at"], header["body_len"] = key_len + tag_len + props_len, body_len
    header["first_offset"] = UNASSIGNED_OFFSET


# ---- columns to bytes ---------------------------------------------------------------------------


def _as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _filled(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, _EMPTY) if column.null_count else column


def _empty(count: int) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(np.zeros(count + 1, np.int32)), pa.py_buffer(b"")]
    )


def _lengths(column: pa.Array) -> Column:
    found: Column = pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _offsets(column: pa.Array) -> Column:
    """Where each value begins in the buffer of values, and where the last one ends."""
    found: Column = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
    return found


def _joined(header: Column, parts: Sequence[pa.Array], pad: Column) -> pa.Array:
    """One binary value for each row: all of its record."""
    count = len(header)
    fronts = pa.Array.from_buffers(
        pa.binary(),
        count,
        [
            None,
            pa.py_buffer(np.arange(0, (count + 1) * _FRONT, _FRONT, dtype=np.int32)),
            pa.py_buffer(header.view(np.uint8)),
        ],
    )
    pad_ends = np.zeros(count + 1, np.int32)
    np.cumsum(pad, out=pad_ends[1:])
    pads = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(pad_ends), pa.py_buffer(bytes(int(pad_ends[-1])))]
    )
    return pc.binary_join_element_wise(fronts, *parts, pads, _EMPTY)


def _blocks(records: pa.Array, header: Column, facts: Column) -> list[Block]:
    """Records by queue, delayed ones apart, in blocks that are not too large."""
    queues, deliver = header["queue_id"], header["deliver_ms"]
    is_delayed = deliver > 0
    groups = queues.astype(np.int64) * 2 + is_delayed
    if len(groups) and groups.min() != groups.max():
        order = np.argsort(groups, kind="stable")
        records, facts, groups = records.take(pa.array(order)), facts[order], groups[order]
        deliver = deliver[order]
    offsets, data = _offsets(records), memoryview(records.buffers()[2])
    borders = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    made: list[Block] = []
    for start, end in pairwise(borders):
        queue_id, delayed = divmod(int(groups[start]), 2)
        for first, last in _cuts(offsets, start, end):
            times = deliver[first:last].astype("<i8").tobytes() if delayed else b""
            made.append(
                Block(
                    queue_id,
                    bool(delayed),
                    last - first,
                    facts[first:last].tobytes(),
                    times,
                    bytes(data[int(offsets[first]) : int(offsets[last])]),
                )
            )
    return made


def _cuts(offsets: Column, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Rows of a block after the other."""
    while start < end:
        room = int(offsets[start]) + BLOCK_BYTES_MAX
        last = int(np.searchsorted(offsets[: end + 1], room, "right")) - 1
        last = max(start + 1, min(last, start + BLOCK_ROWS_MAX, end))
        yield start, last
        start = last


def _properties(rows: _Rows) -> pa.Array:
    """The properties of each row as RocketMQ writes them, the id among them."""
    found = _empty(len(rows))
    if rows.has("properties"):
        column = rows.column("properties")
        if pa.types.is_map(column.type):
            found = _map_properties(rows, column)
        else:
            found = _filled(_as_binary(column))
    if rows.has("message_id"):
        found = pc.binary_join_element_wise(found, _ids(rows), _EMPTY)
    return found


def _ids(rows: _Rows) -> pa.Array:
    ids = rows.text("message_id")
    _check_bytes(rows, "message_id", ids, b"\x02")
    pairs = pc.binary_join_element_wise(_ID_NAME, ids, _PAIR_END, _EMPTY)
    return pc.if_else(pc.equal(pc.binary_length(ids), 0), _EMPTY, pairs)


def _map_properties(rows: _Rows, column: Any) -> pa.Array:
    """``name 01 value 02`` of every pair with a name and a value, row by row."""
    names, values = _filled(_as_binary(column.keys)), _filled(_as_binary(column.items))
    ends = column.offsets.to_numpy(zero_copy_only=False)[1:]
    _check_bytes(rows, "properties", names, b"\x01", ends)
    _check_bytes(rows, "properties", names, b"\x02", ends)
    _check_bytes(rows, "properties", values, b"\x02", ends)
    pairs = pc.binary_join_element_wise(names, _NAME_END, values, _PAIR_END, _EMPTY)
    is_said = pc.and_(
        pc.greater(pc.binary_length(names), 0), pc.greater(pc.binary_length(values), 0)
    )
    lists = pa.ListArray.from_arrays(column.offsets, pc.if_else(is_said, pairs, _EMPTY))
    joined = pc.binary_join(lists, _EMPTY)
    if column.null_count:
        joined = pc.if_else(column.is_null(), _EMPTY, joined)
    return _filled(joined)


def _check_bytes(
    rows: _Rows, name: str, column: pa.Array, wrong: bytes, ends: Column | None = None
) -> None:
    """Raise when a text has a byte that ends one; ``ends`` of rows, if they have several texts."""
    found = pc.index(pc.greater_equal(pc.find_substring(column, wrong), 0), True).as_py()
    if found >= 0:
        row = found if ends is None else int(np.searchsorted(ends, found, "right"))
        raise rows.wrong(row, name, f"byte {wrong[0]} would end a name or value; remove it")


def java_hash(column: pa.Array, lengths: Column) -> Column:
    """Java's ``String.hashCode`` of each value (``model.record.tag_hash``)."""
    coded = column.dictionary_encode()
    kinds = coded.dictionary
    is_short = int(lengths.max(initial=0)) <= HASH_COLUMN_BYTES_MAX
    if (
        len(kinds) > HASH_KINDS_MAX
        and is_short
        and pc.all(pc.string_is_ascii(_utf8(kinds))).as_py()
    ):
        hashes = _ascii_hashes(kinds)
    else:
        hashes = np.array([tag_hash(each) for each in kinds.to_pylist()], np.int32)
    found: Column = hashes[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _ascii_hashes(texts: pa.Array) -> Column:
    """One character of all texts after the other."""
    starts, sizes = _offsets(texts)[:-1].astype(np.int64), _lengths(texts)
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    value = np.zeros(len(texts), np.uint32)
    for at in range(int(sizes.max())):
        goes_on = sizes > at
        value[goes_on] = value[goes_on] * np.uint32(31) + data[starts[goes_on] + at]
    return value.view(np.int32)


def _utf8(column: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers(), offset=column.offset)
