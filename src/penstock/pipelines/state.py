"""What a flow keeps between runs, in a directory of its own: who it is, and how far it came.

    penstock-pipelines/orders/flow.json      its id, and what the checkpoint was made for
    penstock-pipelines/orders/schema.json    an inferred schema, kept for good
    penstock-pipelines/orders/checkpoint/    Spark's
    penstock-pipelines/orders/pause          while it is there, the source offers nothing more
    penstock-pipelines/orders/lock           held by the one process that runs the flow

The id lives as long as the checkpoint: tables and dead letters know a flow's batches by it. A flow
whose SQL, schema or target changed does not silently go on with an old checkpoint; whoever runs it
decides (``--reset``, another name, or ``--accept-change``).

Pure but for the files, and a word to the broker when a checkpoint goes; no Spark.
"""

import contextlib
import fcntl
import itertools
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import BulkError
from penstock.model.errors import PenstockError
from penstock.pipelines.figures import parsed, rows_between
from penstock.pipelines.flow_file import Flow
from penstock.pipelines.table import Table, write_durably
from penstock.spark.options import PAUSED, ROCKETMQ

VERSION: Final = 1
FORGET_S: Final = 2.0


class NotYet(PenstockError):
    """What a flow needs is not there yet, and will be: its topic, or a first message."""


class StateError(PenstockError):
    """A flow cannot go on from where it was."""


class Plan(NamedTuple):
    """A batch that Spark has begun and not done: its range is written down and stays the same."""

    batch: int
    rows: int
    checkpoint: str
    """The id by which the source's broker knows the query."""


class FlowState:
    """The directory of one flow."""

    def __init__(self, directory: Path, flow: Flow) -> None:
        self.path: Final = directory / flow.name
        self.flow: Final = flow
        self.id = ""
        """Made with the checkpoint; empty before ``open``."""
        self.is_new = False

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def pause_file(self) -> Path:
        return self.path / "pause"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process runs a flow."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("a+")
        except OSError as problem:
            raise StateError(
                f"flow '{self.flow.name}': {self.path} cannot be written ({problem.strerror});"
                " choose another place with --state"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise StateError(
                    f"flow '{self.flow.name}' is run by process {file.read().strip() or '?'}"
                    f" already ({self.path})"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def open(self, *, is_accepted: bool = False) -> None:
        """Go on from what is there, or begin; raises when the flow is not the same any more."""
        known = self._read("flow.json")
        now = self.flow.fingerprint()
        self.pause_file.unlink(missing_ok=True)
        if known is None:
            if self.checkpoint.exists():
                raise StateError(
                    f"flow '{self.flow.name}': {self.checkpoint} is a checkpoint of another"
                    f" program; {self._advice()}"
                )
            self.is_new = True
            self.id = uuid.uuid4().hex
        else:
            self.id = str(known["id"])
            changed = [part for part, digest in now.items() if known["parts"].get(part) != digest]
            if changed and self.checkpoint.exists() and not is_accepted:
                raise StateError(
                    f"flow '{self.flow.name}': its {', '.join(changed)} changed since its"
                    f" checkpoint was made; {self._advice()}"
                )
            self.is_new = not self.checkpoint.exists()
        made = {"version": VERSION, "id": self.id, "parts": now, "opened": int(time.time())}
        write_durably(self.path / "flow.json", json.dumps(made, indent=1))

    def check_target(self) -> None:
        """A table that this flow filled from another state would get all rows again."""
        if not self.is_new or not self.flow.target.is_table:
            return
        table = Table(self.flow.target.place)
        for writer, facts in table.writers().items():
            if facts.get("flow") == self.flow.name and writer != self.id and not facts.get("left"):
                raise StateError(
                    f"flow '{self.flow.name}' would begin anew, and table {table.path} has rows of"
                    f" it already, written with the state in {facts.get('state')}; run it with"
                    " that (--state), or say --reset to begin anew and keep those rows"
                )

    def reset(self) -> None:
        """Forget everything: the next run begins as the first did."""
        self.forget_at_broker()
        known = None
        with contextlib.suppress(StateError):  # it may be damaged
            known = self._read("flow.json")
        if known is not None and self.flow.target.is_table:
            table = Table(self.flow.target.place)
            writer = str(known["id"])
            if writer in table.writers():
                # Somebody decided it: it is no mistake when the rows come again.
                table.register(writer, left=True)
                undone = table.prepared(writer)
                if undone is not None:
                    table.withdraw(undone)
                table.clean(writer)
        for name in ("checkpoint", "flow.json", "schema.json", "files.json", "pause"):
            place = self.path / name
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)

    # An inferred schema.

    def pinned_schema(self) -> str:
        """Empty = none was inferred yet."""
        found = self._read("schema.json")
        return "" if found is None else str(found["ddl"])

    def pin_schema(self, ddl: str) -> None:
        write_durably(self.path / "schema.json", json.dumps({"ddl": ddl}, indent=1))

    # What Spark has written.

    @property
    def spark_id(self) -> str:
        """Spark's id of the query; empty before its first start."""
        found = self._read("checkpoint/metadata")
        return "" if found is None else str(found.get("id", ""))

    @property
    def source_id(self) -> str:
        """The id by which the source's broker knows the query; empty before its first batch."""
        planned = self._batches("offsets")
        return _checkpoint_of(self._ends(max(planned))) if planned else ""

    def plan(self) -> Plan | None:
        """The batch that was begun and not done; None when there is none."""
        planned, done = self._batches("offsets"), self._batches("commits")
        last = max(planned, default=-1)
        if last < 0 or last in done:
            return None
        ends, begins = self._ends(last), self._ends(last - 1) if last - 1 in planned else []
        pairs = itertools.zip_longest(begins[: len(ends)], ends)
        rows = sum(rows_between(begin, end) for begin, end in pairs)
        return Plan(last, rows, _checkpoint_of(ends))

    def forget(self, plan: Plan) -> None:
        """As if Spark had been killed before it wrote the batch down: it begins another one."""
        for name in (f"{plan.batch}", f".{plan.batch}.crc"):
            (self.checkpoint / "offsets" / name).unlink(missing_ok=True)

    def forget_at_broker(self) -> None:
        """The query that this checkpoint was needs nothing any more.

        If nobody hears it, its lease ends by itself.
        """
        source, known = self.flow.source, self.source_id
        if known and not source.archive and not source.endpoint.startswith(ROCKETMQ):
            with (
                contextlib.suppress(BulkError),
                BulkClient(source.endpoint, patience_s=FORGET_S) as client,
            ):
                client.release(source.subscription, checkpoint=known, is_final=True)

    def _batches(self, log: str) -> set[int]:
        return {int(each.name) for each in (self.checkpoint / log).glob("[0-9]*")}

    def _ends(self, batch: int) -> list[str]:
        """Of each source, in Spark's file: a version, what belongs to the batch, the sources."""
        text = (self.checkpoint / "offsets" / str(batch)).read_text("utf-8")
        return text.splitlines()[2:]

    # Coming to rest.

    def pause(self) -> None:
        self.pause_file.touch()

    @property
    def is_paused(self) -> bool:
        """True once the source rests: every batch is in the commit log."""
        try:
            return self.pause_file.read_text("utf-8") == PAUSED
        except OSError:
            return False

    # Private.

    def _advice(self) -> str:
        source = self.flow.source
        where = "the first row" if source.archive else source.starting
        return (
            f"--reset begins anew at {where} (rows that are in the target stay,"
            " and come again), another name of the flow does so beside it, --accept-change goes on"
            " from where it was"
        )

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads((self.path / name).read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StateError(f"{self.path / name} is damaged; --reset begins anew")
        return found


def _checkpoint_of(ends: Sequence[str]) -> str:
    return next((str(parsed(each).get("checkpoint", "")) for each in ends), "")


# ---- an inferred schema -------------------------------------------------------------------------
# The schema of JSON bodies, inferred from the first of them, in Spark's DDL.
#
# Inferred once and kept: a schema that changed with every start would give one table different
# columns. Fields that come later are counted (``query.py``), not read.
#
# | long and double are double, whatever else does not agree is text; null alone says nothing
# | an object is a struct in the order in which its fields were seen, an empty one is text


FIELDS_MAX: Final = 1000
"""Of one object: more are keys that somebody made up as data."""
DEPTH_MAX: Final = 32
LONG_MAX: Final = 2**63
PLAIN: Final = {type(None): "", bool: "boolean", float: "double"}

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Kind = str | dict[str, Any] | list[Any]
"""Spark's name of a plain type, fields of a struct, or [element] of an array; "" = only nulls."""


def infer(bodies: Iterable[bytes]) -> str:
    """The DDL of objects like these; what is no JSON object is left out."""
    found: Kind = ""
    for body in bodies:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found = merged(found, kind_of(value))
    if not isinstance(found, dict) or not found:
        raise NotYet(
            "no message yet has a JSON object to infer the schema from; publish some, or give"
            ' decode = { format = "json", schema = "id long, ..." }'
        )
    return ", ".join(f"{_quoted(name)} {_ddl(kind)}" for name, kind in found.items())


def kind_of(value: Any, depth: int = 0) -> Kind:
    if type(value) in PLAIN:
        return PLAIN[type(value)]
    if isinstance(value, int):
        return "long" if -LONG_MAX <= value < LONG_MAX else "string"
    if isinstance(value, dict) and 0 < len(value) <= FIELDS_MAX and depth < DEPTH_MAX:
        return {name: kind_of(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list) and depth < DEPTH_MAX:
        found: Kind = ""
        for each in value:
            found = merged(found, kind_of(each, depth + 1))
        return [found]
    return "string"


def merged(one: Kind, other: Kind) -> Kind:
    """The kind that holds both."""
    if other in (one, ""):
        return one
    if one == "":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys((*one, *other))
        if len(names) > FIELDS_MAX:
            return "string"
        return {name: merged(one.get(name, ""), other.get(name, "")) for name in names}
    if isinstance(one, list) and isinstance(other, list):
        return [merged(one[0], other[0])]
    return "double" if {str(one), str(other)} == {"long", "double"} else "string"


def _ddl(kind: Kind) -> str:
    if isinstance(kind, dict):
        fields = ", ".join(f"{_quoted(name)}: {_ddl(each)}" for name, each in kind.items())
        return f"struct<{fields}>"
    if isinstance(kind, list):
        return f"array<{_ddl(kind[0])}>"
    return kind or "string"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
