"""Rows that wait beside the log for their commit: whose they are, what room they take, their end.

Who grants: ``full`` and ``charge``, to a put before it writes. Who spends: the put; ``ended`` says
what it really took. Who stops: one that finds no room waits, one that is too large for itself is
refused. What wakes it: a batch that is committed, aborted, or that nobody committed in time.

A batch has its rows in puts, one for each task that wrote some of it. Of batches that together fill
the room, one may always go on: else each could wait for the others' end (law 3). A batch that is
done again, because Spark was killed behind its puts, has them twice; before it is called too large,
puts go that another one of the same task has replaced.

Invariants: ``size_bytes`` is the sum of all puts; batches, puts of a batch, and all puts are
bounded; a batch without a put is none.

Not here: who waits and for what else, and what a commit makes of it (``staging.py``); the files
(``log/staging.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.engine.spark.query import QueryOutlet, QueryRefused
from penstock.engine.topic import Hold
from penstock.flow.reason import Culprit, Reason
from penstock.flow.reserve import Reserve
from penstock.log.staging import SinkKey, batch_key, batch_path
from penstock.model.ids import size_text
from penstock.model.spark_batch import BAD_REQUEST, TOO_LARGE, UNREACHABLE

if TYPE_CHECKING:
    from penstock.engine.flow_context import FlowContext
    from penstock.model.queries import StageRoomRequest
    from penstock.settings.protocols import SparkSettings

_log = logging.getLogger(__name__)

BATCHES_MAX: Final = 10_000
PUTS_MAX: Final = 10_000
"""Of one batch, and named by one commit."""
ALL_PUTS_MAX: Final = 100_000
"""Of all batches."""
PASSING_MS: Final = 60_000
"""The batch that may pass the room for staged rows loses that when no put of it came for so long,
and another one needs it."""
OLDER_MAX: Final = 32
"""Older batches of a query that end with one commit: usually there is none."""


class StageRoom:
    """What is staged, by batch and put."""

    def __init__(
        self,
        spark: SparkSettings,
        chain: FlowContext,
        found: Mapping[str, Mapping[str, int]],
        *,
        remove: Callable[[str], None],
        remove_puts: Callable[[str, Sequence[str]], None],
    ) -> None:
        """``found``: what a restart finds, bytes by path of a batch and name of a put.

        ``remove``: the files of a batch go, ``remove_puts``: some of them.
        """
        self._spark = spark
        self._chain = chain
        self._remove = remove
        self._remove_puts = remove_puts
        self.batches: dict[str, StagedBatch] = {}
        """By path, the oldest first; to be looked at only."""
        self.size_bytes = 0
        """Of all staged rows."""
        self._put_count = 0
        self._open: dict[tuple[str, str], QueryOutlet] = {}
        """Puts under way, by path of the batch and name: who writes them."""
        self._reserve = Reserve(chain.topics.reserve_percent)
        self._passing: StagedBatch | None = None
        """The one that may pass the room."""
        for path, puts in found.items():
            if path.rpartition("/")[2].isdecimal():
                batch = self.batches[path] = StagedBatch(path, chain.now_ms)
                # Without a put there is none, and its directory would stay for good.
                batch.puts = dict(puts) or {"": 0}
                self.size_bytes += batch.size_bytes
                self._put_count += len(puts)

    # Room.

    def check_batch(self, request: StageRoomRequest) -> None:
        """Refuse a put whose batch may never be as large as with it."""
        batch = self.batches.get(_path(request))
        limit = self._spark.stage_batch_bytes_max
        if batch is not None and batch.size_bytes + request.bytes > limit:
            self._drop_replaced(batch, request.name)
        staged = batch.size_bytes if batch is not None else 0
        if staged + request.bytes > limit:
            raise QueryRefused(
                TOO_LARGE,
                f"batch {request.batch} of sink '{request.sink}' has more than "
                f"{size_text(limit)} of rows (spark.stage_batch_bytes_max): make batches smaller "
                "with the source's maxRowsPerTrigger (max_rows of a pipeline), write a table in "
                "parts, or raise that setting. Spark keeps the range of a batch that it began: a "
                f"query of your own begins a smaller one when offsets/{request.batch} is deleted "
                "from its checkpoint",
            )

    def _drop_replaced(self, batch: StagedBatch, name: str) -> None:
        """Puts go whose task has put again, or does so now under ``name``.

        A commit names one put of a task. Were it the older of two, which only speculation can bring
        about, the batch would be written once more; refused it would never be there.
        """
        newest = {_task(each): each for each in (*batch.puts, name)}
        lost = [
            each
            for each in batch.puts
            if each != newest[_task(each)] and each != name and (batch.path, each) not in self._open
        ]
        if lost:
            _log.info(
                "a batch is written again: puts that it had before go",
                extra={"batch": batch.path, "puts": len(lost)},
            )
            self._remove_puts(batch.path, self.forget(batch.path, lost))

    def full(self, request: StageRoomRequest) -> Hold | None:
        """Held while staged rows have no room; one batch may always go on."""
        limit = self._spark.stage_bytes_max
        if self.size_bytes + request.bytes <= limit:
            return None
        batch, passing = self.batches.get(_path(request)), self._passing
        if passing is not None and self._chain.now_ms - passing.wrote_ms > PASSING_MS:
            passing = None
        if batch is not None and passing in (None, batch):
            self._passing = batch
            return None
        return Hold(
            Reason.STAGE,
            Culprit(
                f"{size_text(self.size_bytes)} of rows are staged and not committed, limit "
                f"{size_text(limit)} (spark.stage_bytes_max)",
                "limit/spark.stage_bytes_max",
            ),
        )

    def charge(self, request: StageRoomRequest, outlet: QueryOutlet) -> None:
        """A put begins, or goes on: ``outlet`` may write so many bytes."""
        batch = self._batch_of(request)
        if request.name not in batch.puts:
            if len(batch.puts) >= PUTS_MAX or self._put_count >= ALL_PUTS_MAX:
                raise QueryRefused(
                    BAD_REQUEST,
                    f"batch {request.batch} of sink '{request.sink}' has {len(batch.puts)} puts, "
                    f"all batches {self._put_count}, and no more may be (limits {PUTS_MAX} and "
                    f"{ALL_PUTS_MAX}); write with fewer partitions",
                )
            self._put_count += 1
        self._open[batch.path, request.name] = outlet
        batch.puts[request.name] = batch.puts.get(request.name, 0) + request.bytes
        batch.wrote_ms = self._chain.now_ms
        self.size_bytes += request.bytes

    def _batch_of(self, request: StageRoomRequest) -> StagedBatch:
        path = _path(request)
        batch = self.batches.get(path)
        if batch is None:
            count, maker = len(self.batches), request.maker
            problem = self._reserve.refusal(maker, count, BATCHES_MAX)
            if count >= BATCHES_MAX or problem is not None:
                why = problem or f"{count} batches are staged and not committed"
                raise QueryRefused(UNREACHABLE, f"no more staged batches now: {why}")
            self._reserve.made(maker)
            key = (request.sink, request.query)
            batch = self.batches[path] = StagedBatch(path, self._chain.now_ms, key)
        return batch

    def ended(self, path: str, name: str, size: int) -> None:
        """A put takes so much in the end; nothing = it is gone.

        Also of one whose batch has ended: its file must end, too.
        """
        self._open.pop((path, name), None)
        batch = self.batches.get(path)
        if batch is None:
            if not size:
                return
            batch = self.batches[path] = StagedBatch(path, self._chain.now_ms)
        if name not in batch.puts:
            self._put_count += 1
        self.size_bytes += size - batch.puts.get(name, 0)
        batch.wrote_ms = self._chain.now_ms
        batch.puts[name] = size
        if not size:
            self._forget_put(batch, name)
        self._chain.request_turn()

    def keep(self, path: str) -> None:
        """Somebody wants a batch: its time begins anew."""
        batch = self.batches.get(path)
        if batch is not None:
            batch.wrote_ms = self._chain.now_ms

    # Ends.

    def disconnected(self, outlet: QueryOutlet) -> None:
        """What it was writing is dropped."""
        for path, name in [key for key, writer in self._open.items() if writer is outlet]:
            self.ended(path, name, 0)

    def forget(self, path: str, names: Sequence[str]) -> list[str]:
        """Puts of a batch are gone; those of them that may have files."""
        batch = self.batches.get(path)
        known = [each for each in names if batch is None or each in batch.puts]
        if batch is not None:
            for name in known:
                self.size_bytes -= batch.puts.get(name, 0)
                self._forget_put(batch, name)
        return known

    def _forget_put(self, batch: StagedBatch, name: str) -> None:
        if batch.puts.pop(name, None) is not None and name:
            self._put_count -= 1
        if not batch.puts:
            self.batches.pop(batch.path, None)
            if self._passing is batch:
                self._passing = None

    def drop(self, path: str) -> None:
        """All staged rows of a batch go."""
        batch = self.batches.pop(path, None)
        if batch is not None:
            self.size_bytes -= batch.size_bytes
            self._put_count -= sum(1 for name in batch.puts if name)
            if self._passing is batch:
                self._passing = None
        self._remove(path)
        self._chain.request_turn()

    def drop_older(self, path: str) -> None:
        """Batches before this one, of the same sink and query, go."""
        parent, _, number = path.rpartition("/")
        older = (
            each.path
            for each in self.batches.values()
            if each.parent == parent and each.number < int(number)
        )
        for each in list(islice(older, OLDER_MAX)):
            self.drop(each)

    def expire(self, now_ms: int, committing: Collection[str]) -> int:
        """Batches that nobody committed in time go; how many."""
        count = 0
        for batch in list(self.batches.values()):
            age_ms = now_ms - batch.wrote_ms
            if age_ms >= self._spark.stage_ms_max and batch.path not in committing:
                count += 1
                extra = {"batch": batch.path, "bytes": batch.size_bytes, "age_ms": age_ms}
                _log.warning("staged rows that nobody committed are dropped", extra=extra)
                self.drop(batch.path)
        return count


class StagedBatch:
    """Staged rows of one batch."""

    __slots__ = ("key", "number", "parent", "path", "puts", "wrote_ms")

    def __init__(self, path: str, wrote_ms: int, key: SinkKey | None = None) -> None:
        self.path: Final = path
        self.parent, _, number = path.rpartition("/")
        self.number = int(number)
        self.key: Final = key or batch_key(path)
        """After a restart with long names cut, for people."""
        self.puts: dict[str, int] = {}
        """Bytes of each by its name; the oldest first."""
        self.wrote_ms = wrote_ms

    @property
    def size_bytes(self) -> int:
        return sum(self.puts.values())


def _path(request: StageRoomRequest) -> str:
    return batch_path(request.sink, request.query, request.batch)


def _task(name: str) -> str:
    """A put is called ``<partition>.<uuid>``."""
    return name.partition(".")[0]
