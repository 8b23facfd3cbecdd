"""A data directory as upstream: a stopped broker's, or a copy, without any broker (``path``).

Executors read the same path, so it must be there on every machine.
Not here: reading the files (``bulk/offline.py``).
"""

from collections.abc import Iterator
from typing import Any, Final

from penstock.bulk.link import Bulk, Summary
from penstock.bulk.offline import OfflineBulk
from penstock.model.progress import BatchProgress
from penstock.spark.offsets import Position
from penstock.spark.options import SourceOptions
from penstock.spark.over_flight import as_marks, ticket
from penstock.spark.upstream import Answer, Ask, Found, Queue, Range, local_answer


class OfflineUpstream:
    """One data directory; nobody is told of progress and nothing has to be held."""

    def __init__(self, options: SourceOptions, bulk: Bulk | None = None) -> None:
        self._options: Final = options
        self._bulk: Any = bulk if bulk is not None else OfflineBulk(options.path)

    def found(self) -> Found:
        """Topics, their queues and what can be read of each."""
        options = self._options
        resolved = self._bulk.resolve(list(options.topics) or None, pattern=options.pattern or None)
        queues = [
            Queue(
                topic=topic.name,
                queue=str(each.queue),
                incarnation=each.incarnation,
                earliest=each.earliest,
                end=each.end,
                bytes=each.bytes,
            )
            for topic in resolved.topics
            for each in topic.queues
        ]
        return Found(epoch=resolved.epoch, queues=queues)

    def at_time(self, topic: str, at_ms: int) -> dict[str, int]:
        """First offsets stored at or after a time."""
        return as_marks(self._bulk.by_time(topic, at_ms)).get(topic, {})

    def poll(self, ask: Ask) -> Answer:
        """How far the next batch may go; never waits, because nothing comes."""
        return local_answer(self.found(), ask)

    def read(self, wanted: Range) -> Iterator[Any]:
        """Rows of a range."""
        batches: Iterator[Any] = self._bulk.read(ticket(wanted, self._options))
        return batches

    def summary(self) -> Summary:
        """What became of the range that was read last."""
        found: Summary = self._bulk.summary
        return found

    def keep(self, start: Position) -> str:
        """Nothing is removed here."""
        return ""

    def report(self, progress: BatchProgress, *, state: str = "running", text: str = "") -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Close the files."""
        self._bulk.close()
