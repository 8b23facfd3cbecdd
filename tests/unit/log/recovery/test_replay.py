"""A start gives back what the running store knew, from the end of the log or from all of it."""

import random

import pytest

from penstock.log.format import release_record, settlement_record
from penstock.model.record import RecordFlag, neutral_record
from penstock.model.settlement import Cause, QueueSettlement, Settlement

KIB = 1024
FAR_MS = 1 << 60


class Life:
    """A store under a random load, and what it knows about itself."""

    def __init__(self, make_box, seed):
        self.rng = random.Random(seed)
        self.box = make_box(
            segment_bytes_max=64 * KIB,
            index_file_entries_max=16,
            index_tail_bytes_max=self.rng.choice((1, 64)) * KIB,
            settled_keep_ms=0,
            snapshot_interval_ms=0,
        )
        self.pending = {}
        self.settlements = []
        self.next_queue = 1
        self.create()

    def queues(self, count=1):
        return self.rng.sample(self.box.store.queues(), min(count, len(self.box.store.queues())))

    def create(self):
        self.box.queue(self.next_queue)
        self.next_queue += 1

    def drop(self):
        if len(self.box.store.queues()) > 2:
            self.box.store.drop_queue(self.queues()[0].queue_id)

    def append(self):
        pairs = []
        for _ in range(self.rng.randint(1, 20)):
            record = neutral_record(bytes(self.rng.randrange(1500)))
            record.reshape(messages=self.rng.choice((1, 1, 1, 5)))
            record.reshape(flags=self.rng.choice((0, 0, int(RecordFlag.TRANSIENT))))
            record.reshape(expire_ms=self.rng.choice((0, 0, 99)))
            pairs.append((record, self.queues(self.rng.choice((1, 1, 2)))))
        self.box.append_records(*pairs)

    def delay(self):
        record = neutral_record(bytes(self.rng.randrange(500)))
        record.reshape(flags=int(RecordFlag.DELAYED))
        record.reshape(deliver_ms=self.rng.randrange(20_000_000))
        self.box.append_records((record, self.queues()))
        self.pending[record.position] = record

    def release(self):
        if self.pending:
            record = self.pending.pop(self.rng.choice(list(self.pending)))
            length = {due[1]: due[2] for due in self.box.store.delayed.pending(record.deliver_ms)}
            queues = self.queues(self.rng.choice((0, 1, 2)))
            self.box.append_records((release_record(record, length[record.position]), queues))

    def settle(self):
        (index,) = self.queues()
        part = QueueSettlement(index.queue_id, self.rng.randint(0, index.next_offset))
        settlement = Settlement(7, int(Cause.ACKED), [part])
        self.box.append_records((settlement_record(settlement), ()))
        self.settlements.append((self.box.store.end_position, settlement))

    def commit(self):
        self.box.commit()

    def snapshot(self):
        if self.box.store.is_snapshot_due():
            self.box.store.offer_snapshot(self.box.store.end_position, [])

    def sweep(self):
        self.box.clock.advance(10)
        needs = {
            index.queue_id: self.rng.randint(index.min_offset, index.next_offset)
            for index in self.box.store.queues()
        }
        list(self.box.store.sweep(needs.get, self.box.clock.wall_ms()))

    def kill(self):
        self.box.commit()
        # A trim since the last snapshot is forgotten: what it hid is seen again, and not needed.
        lowest = {index.queue_id: index.min_offset for index in self.box.store.queues()}
        before = self.knowledge(lowest)
        if self.rng.random() < 0.4:
            for name in self.box.storage.list("index")[:1]:
                self.box.storage.remove(f"index/{name}")
        covered = self.box.store.snapshot_position
        self.box.kill()
        assert self.knowledge(lowest) == before
        assert self.box.recovered.settlements == [s for end, s in self.settlements if end > covered]
        self.settlements = [each for each in self.settlements if each[0] > covered]

    def knowledge(self, lowest):
        store = self.box.store
        queues = {}
        for index in store.queues():
            entries = index.entries(lowest[index.queue_id], 10**6)
            # Holes in the middle are entries of removed segments; a rebuild does not know them.
            alive = [entry for entry in entries if store._parts.segments.find(entry[0])]
            queues[index.queue_id] = (
                index.next_offset,
                index.incarnation,
                [(*entry[:2], *entry[3:]) for entry in alive],
            )
        uses = {}
        for segment in store._parts.segments:
            use = store._retention._use(segment.base)
            ends = {}
            for queue_id, end in use.ends():
                if end > lowest.get(queue_id, FAR_MS):
                    ends[queue_id] = max(end, ends.get(queue_id, 0))
            origins = {base for base in use.origins if store._parts.segments.find(base)}
            uses[segment.base] = (use.delayed, ends, origins)
        pending = {
            due[1]
            for hour in list(store.delayed._hours.values())
            for due in store.delayed._pending(hour)
        }
        assert pending == set(self.pending)
        return queues, uses, pending

    def step(self):
        verbs = {
            self.append: 40, self.delay: 10, self.release: 8, self.settle: 10, self.commit: 20,
            self.snapshot: 5, self.sweep: 4, self.kill: 4, self.create: 2, self.drop: 1,
        }  # fmt: skip
        self.rng.choices(list(verbs), list(verbs.values()))[0]()


@pytest.mark.parametrize("seed", range(40))
def test_a_killed_store_knows_everything_again(make_box, seed, chosen_seed):
    life = Life(make_box, seed if chosen_seed is None else chosen_seed)
    for _ in range(120):
        life.step()
    life.kill()


def test_settled_offsets_are_not_given_out_again_though_their_records_are_lost(make_box):
    box = make_box()
    box.queue()
    settlement = Settlement(7, int(Cause.ACKED), [QueueSettlement(1, 5, [(7, 9)])])
    box.append_records((settlement_record(settlement), ()))
    box.commit()
    box.kill()
    (appending,) = box.append(b"x")
    assert appending.first_offsets == (9,)
