"""A data directory on disk with topics and records in it, made without a broker: for bulk reads.

Not here: what reads it (``penstock.bulk``).
"""

from pathlib import Path

import msgspec

from penstock.engine.registry import TOPIC_KIND, TopicRow
from penstock.engine.topic import TopicPolicy
from penstock.log.catalog import CATALOG_NAME, SqliteCatalog
from penstock.log.encode import Appending
from penstock.log.format import release_record
from penstock.log.index import QueueIndex
from penstock.log.storage import DiskStorage
from penstock.log.store import Store
from penstock.model.record import Record
from penstock.settings.broker import StorageSettings
from penstock.testing.clock import ManualClock

STORE_MS = 1_700_000_000_000


class BulkData:
    """Appends records to queues of a real store."""

    def __init__(self, directory: Path, settings: StorageSettings | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.store, self.recovered = Store.open(
            DiskStorage(directory),
            SqliteCatalog(directory / CATALOG_NAME),
            settings or StorageSettings(),
            ManualClock(),
        )
        self.queues: dict[tuple[str, int], QueueIndex] = {}
        self.store_ms = STORE_MS

    def topic(self, name: str, queues: int = 1, *, space: str = "") -> list[QueueIndex]:
        """A new topic."""
        definitions = self.store.definitions
        ids = [definitions.new_id("queue") for _ in range(queues)]
        made = [self.store.create_queue(i, definitions.new_id("incarnation")) for i in ids]
        for number, index in enumerate(made):
            self.queues[name, number] = index
        row = TopicRow(definitions.new_id("topic"), space, name, ids, TopicPolicy())
        definitions.put(TOPIC_KIND, str(row.topic_id), msgspec.json.encode(row))
        return made

    def append(self, *placed: tuple[Record, tuple[QueueIndex, ...]]) -> list[Appending]:
        """One frame of records, each to its queues."""
        batch = [Appending(record, queues) for record, queues in placed]
        self.store.append(batch, self.store_ms)
        self.store_ms += 1
        return batch

    def release(self, record: Record, length: int, *queues: QueueIndex) -> None:
        """Give a delayed record its offsets."""
        self.append((release_record(record, length), queues))

    def commit(self) -> None:
        """Make durable what was appended, without a snapshot."""
        while (job := self.store.take_sync_job()) is not None:
            job.run()
            self.store.synced(job, None)

    def snapshot(self) -> None:
        """Make durable everything, index files too."""
        self.store.offer_snapshot(self.store.end_position, [])
        self.commit()

    def close(self) -> None:
        """Stop in order."""
        self.store.close()
