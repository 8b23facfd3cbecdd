"""What becomes of a row that cannot be processed: it is tried again later, or it is dead.

A *letter* is a message to one of two topics. A row whose ``map`` raises goes to the flow's own
hidden topic, with a delay, and comes back from there as if it were read for the first time; after
``max_attempts`` tries it goes to the dead letters. A body that cannot be decoded goes there at
once: trying again would not help.

Every letter carries the message as it was (key, tag, properties, body) and four properties:

    penstock.flow           whose letter it is
    penstock.cause          what went wrong, in one line
    penstock.attempts       how often it was tried
    penstock.origin         topic/queue/offset of the first time

They are believed only on the flow's own topic: anybody may send properties.

Limits of the two topics do not hold the flow that writes letters there: what it cannot process must
not stop what it can. Only flows may say so (``FlowSink``, ``TableOptions``), not all who write.

Not here: how letters reach the broker (``table_sink.py``, Spark's sink), which rows these are
(``query.py``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

PREFIX: Final = "penstock."
FLOW: Final = "penstock.flow"
CAUSE: Final = "penstock.cause"
ATTEMPTS: Final = "penstock.attempts"
ORIGIN: Final = "penstock.origin"
NAMES: Final = (FLOW, CAUSE, ATTEMPTS, ORIGIN)
CAUSE_CHARACTERS_MAX: Final = 500
LETTER: Final = "_letter"
"""The column that tells letters from rows: null in a row."""
LETTER_DDL: Final = (
    "struct<topic:string,key:string,tag:string,properties:map<string,string>,body:binary,"
    "delay_ms:bigint>"
)
LETTER_FIELDS: Final = ("topic", "key", "tag", "properties", "body", "delay_ms")


class Origin(NamedTuple):
    """Where a message was stored first."""

    topic: str
    queue: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue}/{self.offset}"


def origin(text: str) -> Origin | None:
    """The opposite of ``str``; a topic's name may hold slashes."""
    topic, _, offset = text.rpartition("/")
    topic, _, queue = topic.rpartition("/")
    if not topic or not queue.isdecimal() or not offset.isdecimal():
        return None
    return Origin(topic, int(queue), int(offset))


def cause_of(error: BaseException) -> str:
    """One line: the kind of error and what it says."""
    said = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {said}"[:CAUSE_CHARACTERS_MAX] if said else type(error).__name__
    )


class Postmaster(NamedTuple):
    """Makes the letters of one flow."""

    flow: str
    dead_topic: str
    retry_topic: str = ""
    max_attempts: int = 1
    delays_ms: tuple[int, ...] = ()
    """Before the second try, the third and so on; the last one for all that follow."""

    def letter(
        self, row: Mapping[str, Any], cause: str, *, is_final: bool = False
    ) -> dict[str, Any]:
        """The letter for a message (``query.py``) that failed once more."""
        attempts = int(row["_attempts"]) + 1
        is_dead = is_final or attempts >= self.max_attempts
        own = {
            FLOW: self.flow,
            CAUSE: cause,
            ATTEMPTS: str(attempts),
            ORIGIN: str(Origin(row["topic"], row["queue"], row["offset"])),
        }
        kept = [(name, value) for name, value in row["properties"] or () if name not in own]
        return {
            "topic": self.dead_topic if is_dead else self.retry_topic,
            "key": row["key"],
            "tag": row["tag"],
            "properties": [*kept, *own.items()],
            "body": row["body"],
            "delay_ms": None if is_dead else self._delay_ms(attempts),
        }

    def _delay_ms(self, attempts: int) -> int:
        return self.delays_ms[min(attempts, len(self.delays_ms)) - 1]


Row = dict[str, Any]
RowFunction = Callable[[Row], Row | Sequence[Row] | None]
HIDDEN: Final = ("_attempts", "_bad")
"""Columns of a row that a function is not shown."""


class RowMapper:
    """A function of one row, applied to Arrow batches: rows and letters come out."""

    def __init__(self, function: RowFunction, schema: pa.Schema, postmaster: Postmaster) -> None:
        """``schema`` is what comes out; its last column is ``LETTER``."""
        self._function: Final = function
        self._schema: Final = schema
        self._values: Final = pa.schema(list(schema)[:-1])
        self._postmaster: Final = postmaster

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield from self._mapped(batch)

    def _mapped(self, batch: Any) -> Iterator[Any]:
        rows: list[Row] = []
        causes: list[Row] = []
        """The rows that ``rows`` were made of, for a letter if one does not fit."""
        letters: list[Row] = []
        for given in batch.to_pylist(maps_as_pydicts=None):
            if given["_bad"]:
                letters.append(self._postmaster.letter(given, given["_bad"], is_final=True))
                continue
            try:
                made = self._function(shown(given))
                found = [made] if isinstance(made, dict) else list(made or ())
                _check_rows(found, self._values)
            except Exception as error:  # whatever a user's function raises is about this row
                letters.append(self._postmaster.letter(given, cause_of(error)))
                continue
            rows += found
            causes += [given] * len(found)
        if rows:
            yield from self._fitted(rows, causes, letters)
        if letters:
            yield self._as_letters(letters)

    def _fitted(self, rows: list[Row], causes: list[Row], letters: list[Row]) -> Iterator[Any]:
        """The rows as Arrow; those whose values are of another type become letters."""
        try:
            values = pa.RecordBatch.from_pylist(rows, self._values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            yield from self._one_by_one(rows, causes, letters)
            return
        yield self._with_letters(values)

    def _one_by_one(self, rows: list[Row], causes: list[Row], letters: list[Row]) -> Iterator[Any]:
        """All rows of a message or none: a message that is tried again must not be there twice."""
        bad: dict[int, str] = {}
        for row, cause in zip(rows, causes, strict=True):
            try:
                pa.RecordBatch.from_pylist([row], self._values)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                bad.setdefault(id(cause), cause_of(error))
        failed = {id(each): each for each in causes if id(each) in bad}
        letters += [self._postmaster.letter(each, bad[id(each)]) for each in failed.values()]
        good = [row for row, each in zip(rows, causes, strict=True) if id(each) not in bad]
        if good:
            yield self._with_letters(pa.RecordBatch.from_pylist(good, self._values))

    def _with_letters(self, values: Any) -> Any:
        none = pa.nulls(values.num_rows, self._schema.field(LETTER).type)
        return pa.RecordBatch.from_arrays([*values.columns, none], schema=self._schema)

    def _as_letters(self, letters: list[Row]) -> Any:
        kind = self._schema.field(LETTER).type
        nulls = [pa.nulls(len(letters), each.type) for each in self._values]
        return pa.RecordBatch.from_arrays([*nulls, pa.array(letters, kind)], schema=self._schema)


def shown(row: Row) -> Row:
    """A row as a function gets it: without our own columns, properties as a dict."""
    found = {name: value for name, value in row.items() if name not in HIDDEN}
    if "properties" in found:
        found["properties"] = dict(found["properties"] or ())
    return found


def _check_rows(rows: Sequence[Any], schema: Any) -> None:
    known = set(schema.names)
    for row in rows:
        if not isinstance(row, dict):
            raise TypeError(
                f"a map function returns dicts, a list of them or None, not {row!r:.80}"
            )
        unknown = row.keys() - known
        if unknown:
            raise KeyError(f"there is no column {sorted(unknown)[0]!r} in output")
