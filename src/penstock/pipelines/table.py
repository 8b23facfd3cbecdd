"""A directory of Parquet files that any reader sees exactly once, whoever is killed on the way.

DuckDB, Polars, pandas and Spark read what is in a directory; so a file may be in it only when its
batch is decided, and nothing but Parquet may be in it at all. What a batch writes lies beside the
table until then, on the same file system:

    out/orders/date=2026-01-31/0001-000000012-00000-000-1f2e3d4c.parquet    the table
    out/.orders.penstock/staged/WRITER/BATCH/UUID/000.parquet               not decided yet
    out/.orders.penstock/batches/WRITER/000000012.prepared | .json          decided | published
    out/.orders.penstock/writers.json                                       who wrote here

The steps of a batch, in this order; after a crash at any point the batch is done again, finds how
far it came, and goes on from there:

    1. tasks write files under ``staged`` and sync them
    2. ``prepare`` names those that count. From here on the batch is decided: another attempt at it,
       with other rows perhaps, changes nothing
    3. retries and dead letters are published (by whoever calls; idempotent by batch)
    4. ``publish`` renames the files into the table
    5. ``done``: remembered, and what else was staged for it is removed

Readers see whole files, and of a batch that is being published some of them for a moment; never a
row twice. A writer is one checkpoint of one flow; its batches are numbered, and only the last one
can come again: an earlier number means that the checkpoint was rewound, which is refused.

Invariants: nothing below ``staged`` is ever read; a published file is never changed, only replaced
(``compaction.py``) under the table's lock.
Not here: what is in the files and Delta's log (``table_sink.py``).
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.model.errors import PenstockError

VERSION: Final = 1
BATCHES_KEPT: Final = 100
"""Of each writer: the last decides, the others tell people what came when."""
WRITERS_MAX: Final = 1000
PLACE_ADVICE: Final = "give a directory of yours, whose parent is yours, too"
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What a partition directory is called whose value is null; every reader knows it."""
_SAFE: Final = " !\"$&'()+,-.;<>@[]_`|~"
"""Characters that stay as they are in the name of a partition; the rest is percent-encoded."""


class TableError(PenstockError):
    """A table that cannot be written to as it is."""


@contextlib.contextmanager
def told(path: Path | str, advice: str = "mend the place and run on") -> Iterator[None]:
    """What the file system says about a table's place, as a sentence about the table."""
    try:
        yield
    except ConnectionError:
        raise  # an OSError by its class only
    except OSError as problem:
        at = f" ({problem.filename})" if problem.filename else ""
        raise TableError(
            f"table {path} cannot be written: {problem.strerror or problem}{at}; {advice}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class StagedFile:
    """A file that a task wrote: where it lies, and where it belongs."""

    staged: str
    """Relative to the control directory."""
    path: str
    """Relative to the table."""
    rows: int
    bytes: int
    values: dict[str, str | None] = field(default_factory=dict)
    """Partition columns and their values, as text."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a batch consists of, once it is decided."""

    writer: str
    batch: int
    files: tuple[StagedFile, ...] = ()
    letters: tuple[str, ...] = ()
    """What retries and dead letters were staged as, in the words of whoever publishes them."""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)


class Table:
    """One directory and its control directory beside it; made when they are first written to."""

    def __init__(self, path: Path | str) -> None:
        self.path: Final = Path(path)
        self.control: Final = self.path.parent / f".{self.path.name}.penstock"

    def check_place(self) -> None:
        """Say whether ``open`` would work, as far as a look without a touch can tell."""
        with told(self.path, PLACE_ADVICE):
            for place in (self.path, self.path.parent):
                there = next(each for each in (place, *place.parents) if _exists(each))
                if not there.is_dir():
                    raise NotADirectoryError(0, "this is no directory", str(there))
                if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
                    raise PermissionError(0, "this is not yours to write to", str(there))

    def open(self) -> None:
        """Make the directories, or say why this place cannot be a table."""
        with told(self.path, PLACE_ADVICE):
            self.path.mkdir(parents=True, exist_ok=True)
            (self.control / "staged").mkdir(parents=True, exist_ok=True)
            (self.control / "batches").mkdir(exist_ok=True)
            probe = self.control / f"probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
            if not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True):
                raise PermissionError(0, "this is not yours to write to", str(self.path))
        if os.stat(self.path).st_dev != os.stat(self.control).st_dev:
            raise TableError(
                f"table {self.path} is the root of a file system, and what is not published yet"
                f" must lie beside it on the same one; give a directory in it: {self.path}/rows"
            )
        self._recover()

    def _recover(self) -> None:
        """Remove what a compaction left that was killed: it never is a part of the table."""
        with contextlib.suppress(BlockingIOError), self.compacting():
            shutil.rmtree(self.control / "exchange", ignore_errors=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else publishes or replaces files meanwhile, in any process of this machine."""
        with (self.control / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def compacting(self) -> Iterator[None]:
        """The one compaction of the table; raises ``BlockingIOError`` while there is another."""
        with (self.control / "compact.lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    # A batch.

    def staging(self, writer: str, batch: int, attempt: str) -> Path:
        """A directory for the files of one task; ``attempt`` is never used twice."""
        place = self.control / "staged" / writer / f"{batch:09d}" / attempt
        place.mkdir(parents=True, exist_ok=True)
        return place

    def last_done(self, writer: str) -> int:
        """The last batch that was published; -1 = none."""
        return max((number for number, _ in self._batches(writer, ".json")), default=-1)

    def prepared(self, writer: str) -> Batch | None:
        """The batch that is decided and not published yet."""
        found = max(self._batches(writer, ".prepared"), default=None)
        return None if found is None else read_batch(found[1])

    def check(self, writer: str, batch: int) -> bool:
        """True when the batch is published already; raises for one that came before the last."""
        last = self.last_done(writer)
        if batch < last:
            raise TableError(
                f"batch {batch} comes for table {self.path}, which has batch {last} of this"
                " checkpoint: the checkpoint was rewound (restored from a copy, or parts of it"
                " deleted); put the newest one back, or begin anew with --reset"
            )
        return batch == last

    def prepare(self, batch: Batch) -> None:
        """Decide the batch: these files and letters, and no others, are it."""
        place = self._batch_path(batch.writer, batch.batch, ".prepared")
        place.parent.mkdir(parents=True, exist_ok=True)
        write_durably(place, json.dumps({"version": VERSION, **asdict(batch)}))

    def withdraw(self, batch: Batch) -> None:
        """It was decided, but none of it is to be seen: as if it had never been prepared."""
        self._batch_path(batch.writer, batch.batch, ".prepared").unlink(missing_ok=True)
        for each in batch.files:
            (self.control / each.staged).unlink(missing_ok=True)

    def publish(self, batch: Batch) -> None:
        """Rename the files into the table; those that are there already stay."""
        with self.locked():
            made: set[Path] = set()
            for each in batch.files:
                staged, place = self.control / each.staged, self.path / each.path
                made |= _make_directory(place.parent, self.path)
                try:
                    staged.rename(place)
                except FileNotFoundError:
                    if not place.exists():
                        raise TableError(
                            f"file {each.path} of batch {batch.batch} is neither in table"
                            f" {self.path} nor staged for it: somebody deleted it; its rows are"
                            " in the topic still, begin anew with --reset"
                        ) from None
                made.add(place.parent)
            for directory in made:
                sync_directory(directory)

    def done(self, batch: Batch) -> None:
        """The batch is published; forget what else was staged up to it."""
        before = self._batch_path(batch.writer, batch.batch, ".prepared")
        before.rename(self._batch_path(batch.writer, batch.batch, ".json"))
        sync_directory(before.parent)
        self._remove_staged(batch.writer, batch.batch)
        known = sorted(self._batches(batch.writer, ".json"))
        for _, path in known[:-BATCHES_KEPT]:
            path.unlink(missing_ok=True)

    def clean(self, writer: str) -> int:
        """Remove what an uncommitted batch left; how many files. Only while nobody writes."""
        prepared = self.prepared(writer)
        kept = {each.staged for each in prepared.files} if prepared else set[str]()
        removed = 0
        place = self.control / "staged" / writer
        for path in [each for each in place.rglob("*") if each.is_file()]:
            if str(path.relative_to(self.control)) not in kept:
                path.unlink()
                removed += 1
        if not kept:
            shutil.rmtree(place, ignore_errors=True)
        return removed

    # Who writes.

    def writers(self) -> dict[str, dict[str, Any]]:
        """Everybody who ever wrote here, by id: generation, flow, its state, schema."""
        try:
            found = json.loads((self.control / "writers.json").read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError:
            raise TableError(f"{self.control / 'writers.json'} is damaged") from None
        return found if isinstance(found, dict) else {}

    def register(self, writer: str, **facts: Any) -> int:
        """Note a writer; its generation, which its files are named with: 1, 2, ..."""
        with self.locked():
            known = self.writers()
            if writer not in known and len(known) >= WRITERS_MAX:
                raise TableError(f"table {self.path} had {WRITERS_MAX} writers; begin another one")
            last = max((each["generation"] for each in known.values()), default=0)
            generation = int(known.get(writer, {}).get("generation", last + 1))
            known[writer] = {**known.get(writer, {}), **facts, "generation": generation}
            write_durably(self.control / "writers.json", json.dumps(known, indent=1))
            return generation

    def undecided_paths(self) -> set[str]:
        """Files of batches that are being published: nobody else may touch them.

        Of files that were there before this was asked it names all that are.
        """
        found = set[str]()
        for path in (self.control / "batches").glob("*/*.prepared"):
            # It may be done, or withdrawn, by now.
            with contextlib.suppress(FileNotFoundError):
                found |= {each.path for each in read_batch(path).files}
        return found

    def files(self) -> list[Path]:
        """Every published file, relative to the table, in the order in which rows came."""
        found = (each.relative_to(self.path) for each in self.path.rglob("*.parquet"))
        return sorted(found, key=lambda each: (each.name, str(each)))

    # Private.

    def _batch_path(self, writer: str, batch: int, suffix: str) -> Path:
        return self.control / "batches" / writer / f"{batch:09d}{suffix}"

    def _batches(self, writer: str, suffix: str) -> list[tuple[int, Path]]:
        place = self.control / "batches" / writer
        return [(int(each.stem), each) for each in place.glob(f"*{suffix}")]

    def _remove_staged(self, writer: str, upto: int) -> None:
        place = self.control / "staged" / writer
        for each in place.glob("*"):
            if int(each.name) <= upto:
                shutil.rmtree(each, ignore_errors=True)


def _exists(path: Path) -> bool:
    """Whether there is something that one may look at; ``Path.exists`` raises where one may not."""
    try:
        return path.exists()
    except PermissionError:
        return False


def read_batch(path: Path) -> Batch:
    data = json.loads(path.read_text("utf-8"))
    if data.pop("version", None) != VERSION:
        raise TableError(f"{path} was written by another version of Penstock; finish it with that")
    files = tuple(StagedFile(**each) for each in data.pop("files"))
    return Batch(files=files, letters=tuple(data.pop("letters")), **data)


def file_name(generation: int, batch: int, task: int, number: int, attempt: str) -> str:
    """Sorted by name, files are in the order in which their rows came."""
    return f"{generation:04d}-{batch:09d}-{task:05d}-{number:03d}-{attempt[:8]}.parquet"


def partition_path(values: Iterable[tuple[str, str | None]]) -> str:
    """``topic=orders/date=2026-01-31``, as every reader of such directories understands it."""
    parts = [
        f"{quote(name, safe=_SAFE)}={NO_VALUE if value is None else quote(value, safe=_SAFE)}"
        for name, value in values
    ]
    return "/".join(parts)


def partition_values(path: str | Path) -> dict[str, str | None]:
    """The opposite: what the directories above a file say."""
    found: dict[str, str | None] = {}
    for part in Path(path).parent.parts:
        name, is_one, value = part.partition("=")
        if is_one:
            found[unquote(name)] = None if value == NO_VALUE else unquote(value)
    return found


def write_durably(path: Path, text: str) -> None:
    """All of it or nothing, also after a power cut."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make_directory(path: Path, root: Path) -> set[Path]:
    """The directories in which something new is, so that they are synced."""
    missing = [each for each in (path, *path.parents) if root in each.parents and not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return {each.parent for each in missing}
