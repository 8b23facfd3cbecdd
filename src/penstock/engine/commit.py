"""After the turn: the append, the sync that covers it, and everything that waits for it (D5-D8).

Who spends: a frame, bytes of the write-buffer pool (F7). Who grants: the sync that covers it. Who
stops: all appends, while a sync is older than ``sync_hold_ms`` or no buffer is free (D8); requests
then wait upstream and credit carries the pressure. What wakes them: ``synced``.

* A frame that the disk refuses is stored nowhere: its publishes are refused, what it settled is
  kept for the next frame, the store-busy clock is told (F6).
* A failed sync is final (P4): what it covered is refused, and so is everything that follows.
* Confirms leave once per channel and sync, never before the covering sync has returned (P1).

Not here: the thread that runs the sync (``server/turns.py``), files (``log/``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from penstock.engine.flow_context import FlowContext
from penstock.engine.host import HostedSubscription
from penstock.engine.ports import Confirmation, Publication, PublishChannel
from penstock.engine.publish_batch import BatchKind, PublishBatch, extra_messages
from penstock.engine.statistics import EngineCounters
from penstock.engine.topic import Queue
from penstock.flow.budgets import BufferPool
from penstock.flow.fast_fail import StoreBusy
from penstock.flow.reason import Culprit
from penstock.log.commit import SyncJob
from penstock.log.encode import Appending
from penstock.log.format import settlement_record
from penstock.log.store import Store
from penstock.model.errors import AppendFailed, LogError
from penstock.model.ids import is_transient_id
from penstock.model.refusal import Refusal, RefusalKind
from penstock.model.settlement import Settlement
from penstock.settings.load import Settings

logger = logging.getLogger(__name__)


SYNCS_KEPT: Final = 64
"""Syncs whose times are kept: some seconds of a busy disk."""


class Frame(msgspec.Struct, eq=False):
    """One turn's append, from its first batch to the sync that covers it (D1, D5).

    Everything in a frame is stored together or not at all: publishes, releases of delayed messages,
    settlements, and dead letters beside the settlements that removed their originals.
    """

    batches: list[PublishBatch[Queue]] = []
    appendings: list[Appending] = []
    """Batches' publications and everything else, in the order of the log."""
    runs: list[tuple[int, int]] = []
    """Stretches of the batch that are runs (``PublishBatch.is_run``), in order."""
    queues: dict[Queue, None] = {}
    """Queues that get a new message."""
    size: int = 0
    """Bytes of the batches."""
    end_position: int = 0
    store_bytes: int = 0
    """Bytes in the log, headers included."""
    ends: dict[Queue, int] = {}
    """After the append: queue -> end of what this frame added."""

    def add(self, batch: PublishBatch[Queue]) -> None:
        self.batches.append(batch)
        start = len(self.appendings)
        self.appendings.extend(batch.publications)
        if batch.is_run:
            self.runs.append((start, len(self.appendings)))
        self.size += batch.size

    def append(self, item: Appending, queues: tuple[Queue, ...] = ()) -> None:
        """Take something else in: a settlement, a release, a dead letter."""
        self.appendings.append(item)
        for queue in queues:
            self.queues[queue] = None


class Commits:
    """Frames between their append and the sync that covers them; callbacks that wait for one."""

    def __init__(
        self,
        store: Store,
        chain: FlowContext,
        settings: Settings,
        replies: PublisherReplies,
        durable: Callable[[Iterable[Queue]], None],
    ) -> None:
        self.buffers = BufferPool(
            settings.storage.write_buffers_max, settings.storage.write_buffer_bytes
        )
        self.busy = StoreBusy(settings.flow.store_busy_ms)
        self.failure: Refusal | None = None
        """Set for good when a sync has failed."""
        self._write_failure: Refusal | None = None
        self.failing_since_ms: int | None = None
        """Since when the disk refuses every write, or a sync has failed."""
        self.appended_messages = 0
        """Publishes appended since the start."""
        self.unsynced_messages = 0
        """Publishes appended and not durable."""
        self.append_watchers: list[Callable[[Sequence[Appending]], None]] = []
        """Called with what a frame appended, in log order, before anybody can read it."""
        self._store = store
        self._chain = chain
        self._replies = replies
        self._durable = durable
        self._sync_hold_ms = settings.storage.sync_hold_ms
        # Bounded by the buffer pool: every frame in it has unsynced bytes.
        self._frames: deque[Frame] = deque()
        self._sync_started_ms: int | None = None
        self.sync_ms: deque[int] = deque(maxlen=SYNCS_KEPT)
        """How long the last syncs took."""
        self.asked: list[Callable[[], None]] = []
        """Callbacks that wait for a turn to append something; to be looked at only."""
        self.armed: list[Callable[[], None]] = []
        """Callbacks that wait for a sync; to be looked at only."""
        self._in_job: list[Callable[[], None]] = []

    # Before the append.

    @property
    def is_held(self) -> bool:
        """True while nothing may be written (D8)."""
        return self.is_held_at(self._chain.now_ms)

    def is_held_at(self, now_ms: int) -> bool:
        """The same, for whoever knows the time."""
        started_ms = self._sync_started_ms
        if started_ms is not None and now_ms - started_ms > self._sync_hold_ms:
            return True
        return self.buffers.unsynced_bytes >= self.buffers.capacity_bytes

    @property
    def sync_since_ms(self) -> int | None:
        """When the sync under way began; None while there is none."""
        return self._sync_started_ms

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that are appended and not durable."""
        return self.buffers.unsynced_bytes

    def refuse_now(self) -> Refusal | None:
        """Why a protocol that fails fast refuses a send that comes now (F6, F7), if it does."""
        if self.failure is not None:
            return self.failure
        now_ms = self._chain.now_ms
        if self.busy.is_busy(now_ms):
            text = f"the store is busy for {self.busy.busy_ms(now_ms)} ms; nothing was stored"
            return Refusal(RefusalKind.BUSY, "store", text)
        return self.lack_of_buffers()

    def lack_of_buffers(self) -> Refusal | None:
        """That every write buffer waits for the disk, when they all do."""
        if self.buffers.free_bytes and not self.buffers.is_awaited:
            return None
        text = f"all {self.buffers.buffers} write buffers are waiting for the disk"
        return Refusal(RefusalKind.NO_BUFFER, "write buffers", text)

    def write_failure(self) -> Refusal | None:
        """That the disk refuses what is written, while it does."""
        return self._write_failure if self.busy.has_failed(self._chain.now_ms) else None

    # The append.

    def append(self, frame: Frame, wall_ms: int) -> bool:
        """Write the frame; False when the disk refused it (its publishes are refused then)."""
        store = self._store
        before = store.end_position
        try:
            frame.end_position = store.append(frame.appendings, wall_ms, frame.runs)
        except LogError as problem:
            self._refused(frame, problem)
            return False
        for watcher in self.append_watchers:
            watcher(frame.appendings)
        self.busy.append_succeeded()
        self.failing_since_ms = None
        frame.store_bytes = frame.end_position - before
        for queue in frame.queues:
            frame.ends[queue] = queue.index.staged_offset
        self.buffers.appended(frame.store_bytes)
        self._frames.append(frame)
        messages = 0
        for batch in frame.batches:
            messages += len(batch.publications)
            if batch.has_keys:
                self._note_keys(batch)
            if not batch.is_answered and is_transient(batch):
                batch.is_answered = True
                self._replies.confirm(batch.channel, batch.publications, batch.extra_messages)
        self.unsynced_messages += messages
        self.appended_messages += messages
        if store.durable_position >= frame.end_position:
            self._release()
        return True

    def appended_apart(self, before: int, queues: Iterable[Queue] = ()) -> None:
        """A frame of staged rows, or their commit, was written beside the turn's own (D19).

        ``before``: where the log ended.
        """
        end = self._store.end_position
        frame = Frame(end_position=end, store_bytes=end - before)
        for queue in queues:
            frame.ends[queue] = queue.index.staged_offset
        self.buffers.appended(frame.store_bytes)
        self._frames.append(frame)
        if self._store.durable_position >= end:
            self._release()

    def _note_keys(self, batch: PublishBatch[Queue]) -> None:
        for queue in batch.queues or ():
            topic_id = queue.topic.topic_id
            for publication in batch.publications:
                record = publication.record
                if publication.keys:
                    self._store.keys.add(
                        topic_id, publication.keys, record.position, record.store_ms
                    )

    def _refused(self, frame: Frame, problem: LogError) -> None:
        if isinstance(problem, AppendFailed):
            now_ms = self._chain.now_ms
            # After a failure that nobody wrote after it is not known how long that lasted.
            if self.failing_since_ms is None or not self.busy.has_failed(now_ms):
                self.failing_since_ms = now_ms
            self.busy.append_failed(now_ms)
            refusal = Refusal(RefusalKind.WRITE_FAILED, "disk", str(problem))
            self._write_failure = refusal
        else:
            refusal = self._fail(problem)
        for batch in frame.batches:
            self._give_back(batch)
            if not batch.is_answered:
                self._replies.refuse(batch.channel, batch.publications, refusal)
        for batch in frame.batches:
            batch.channel.stop(refusal)

    # The sync.

    def take_sync_job(self) -> SyncJob | None:
        """What is to be made durable now; None when there is nothing, or a sync is running."""
        job = self._store.take_sync_job()
        if job is not None:
            now_ms = self._chain.clock.monotonic_ms()
            self._sync_started_ms = now_ms
            self.busy.commit_started(now_ms)
            self._in_job, self.armed = self.armed, []
        return job

    def synced(self, job: SyncJob, error: Exception | None) -> None:
        """A sync has ended, well or not."""
        self._store.synced(job, error)
        if self._sync_started_ms is not None:
            self.sync_ms.append(self._chain.clock.monotonic_ms() - self._sync_started_ms)
        self._sync_started_ms = None
        self.busy.commit_ended(self._chain.journal.now_ms)
        callbacks, self._in_job = self._in_job, []
        if error is not None:
            self._fail(error)
            return
        if job.is_deferred:
            self.armed = callbacks + self.armed
            return
        self._release()
        for callback in callbacks:
            callback()

    def _release(self) -> None:
        """Let go of every frame that is durable: confirm it, show it, give back its credit."""
        frames, durable_position = self._frames, self._store.durable_position
        while frames and frames[0].end_position <= durable_position:
            frame = frames.popleft()
            self.buffers.durable(frame.store_bytes)
            for batch in frame.batches:
                self._give_back(batch)
                self.unsynced_messages -= len(batch.publications)
                if not batch.is_answered:
                    self._replies.confirm(batch.channel, batch.publications, batch.extra_messages)
            for queue, end in frame.ends.items():
                queue.synced_end = end
                if not queue.index.promised:
                    queue.durable_end = end
            self._durable(frame.ends)

    def _fail(self, error: Exception) -> Refusal:
        """A sync has failed: what it covered is unknown, and nothing may follow it (P4)."""
        if self.failure is None:
            logger.critical("a sync failed; no further publish is taken", exc_info=error)
            text = f"{error}; the message may or may not be stored"
            self.failing_since_ms = self._chain.now_ms
            self.failure = Refusal(RefusalKind.SYNC_FAILED, "disk", text)
        while self._frames:
            frame = self._frames.popleft()
            self.buffers.durable(frame.store_bytes)
            for batch in frame.batches:
                self._give_back(batch)
                self.unsynced_messages -= len(batch.publications)
                if not batch.is_answered:
                    self._replies.refuse(batch.channel, batch.publications, self.failure)
        self.asked, self.armed = [], []
        self._chain.request_turn()
        return self.failure

    def _give_back(self, batch: PublishBatch[Queue]) -> None:
        messages = len(batch.publications)
        for queue in batch.queues or ():
            queue.log_credit.processed(messages)
        batch.channel.finished(messages, batch.charge)

    # Callbacks.

    def after_durable(self, callback: Callable[[], None]) -> None:
        """Call back when all that was asked for so far is durable; never after a failed sync."""
        self.asked.append(callback)
        self._chain.request_turn()

    def arm_callbacks(self) -> None:
        """A turn has appended everything that was asked for: the next sync covers it."""
        self.armed += self.asked
        self.asked = []

    def run_idle_callbacks(self) -> None:
        """Nothing is left to sync: what waits for a sync is durable already."""
        store = self._store
        is_durable = store.definitions_durable == store.definitions.sequence
        if is_durable and not (self._frames or store.unsynced_bytes):
            callbacks, self.armed = self.armed, []
            for callback in callbacks:
                callback()

    @property
    def is_awaited(self) -> bool:
        """True when somebody waits for a definition or settlement to become durable."""
        return bool(self.armed or self.asked)


def is_transient(batch: PublishBatch[Queue]) -> bool:
    """True when its confirm does not wait for the sync (P1)."""
    if batch.kind is not BatchKind.TRANSIENT:
        for queue in batch.queues or ():
            if queue.topic.is_durable:
                return False
    return True


_REFUSERS: Final = {
    RefusalKind.BUSY: Culprit("log", "log"),
    RefusalKind.NO_BUFFER: Culprit("log", "log"),
    RefusalKind.WRITE_FAILED: Culprit("log", "log"),
    RefusalKind.SYNC_FAILED: Culprit("log", "log"),
}
"""Who says no where a refusal names no thing; of a broker that stops nobody does."""


class PublisherReplies:
    """The one place from which confirms and refusals leave the engine (F4).

    Collected while a turn or a sync is worked on, told at its end: one call per channel and kind,
    so that a protocol can make one cumulative answer of a hundred. A channel whose peer is gone is
    told nothing; what happened to its publishes is counted all the same.
    """

    def __init__(self, counters: EngineCounters, chain: FlowContext) -> None:
        self._counters = counters
        self._chain = chain
        self._confirmed: dict[PublishChannel[Queue], list[Confirmation]] = {}
        self._refused: dict[PublishChannel[Queue], list[tuple[int, Refusal]]] = {}

    def confirm(
        self, channel: PublishChannel[Queue], publications: list[Publication], extra: int = 0
    ) -> None:
        """These are stored as well as they asked for; ``extra``: messages beyond one each."""
        self._counters.confirmed += len(publications) + extra
        waiting = self._confirmed.get(channel)
        if waiting is None:
            self._confirmed[channel] = publications
        else:
            # Never into the first list: it belongs to a batch.
            self._confirmed[channel] = waiting + publications

    def refuse(
        self, channel: PublishChannel[Queue], publications: list[Publication], refusal: Refusal
    ) -> None:
        """These are not stored and never will be."""
        refused = self._counters.refused
        messages = len(publications) + extra_messages(publications)
        refused[refusal.kind] = refused.get(refusal.kind, 0) + messages
        self._note(channel, refusal, messages)
        self._tell_refused(channel, publications, refusal)

    def _note(self, channel: PublishChannel[Queue], refusal: Refusal, messages: int) -> None:
        """For the diagnosis: who refuses whom, since when."""
        kind, said = refusal.kind, refusal.culprit
        culprit = said if isinstance(said, Culprit) else _REFUSERS.get(kind)
        if culprit is not None:
            self._chain.troubles.note(
                kind.value,
                culprit,
                messages,
                self._chain.now_ms,
                text=refusal.text,
                publisher=channel.publisher,
            )

    def unroutable(self, batch: PublishBatch[Queue]) -> None:
        """No queue wants it: confirmed at once, or refused if the publisher insists on one.

        The protocol counts what becomes of those it is told of: only it knows.
        """
        channel = batch.channel
        mandatory = [each for each in batch.publications if each.is_mandatory]
        optional = [each for each in batch.publications if not each.is_mandatory]
        nobody_told = batch.publications if channel.is_closed else optional
        messages = len(nobody_told) + extra_messages(nobody_told)
        self._counters.note_unroutable(messages, is_returned=False)
        channel.note_unroutable(len(batch.publications), self._chain.now_ms)
        if mandatory:
            text = "no queue is bound for this message and it is mandatory; nothing was stored"
            refusal = Refusal(RefusalKind.NO_ROUTE, "route", text)
            self._tell_refused(channel, mandatory, refusal)
        if optional:
            self.confirm(channel, optional, extra_messages(optional))

    def _tell_refused(
        self, channel: PublishChannel[Queue], publications: list[Publication], refusal: Refusal
    ) -> None:
        self._refused.setdefault(channel, []).extend(
            [(publication.token, refusal) for publication in publications]
        )

    def flush(self) -> None:
        while self._refused or self._confirmed:
            if self._refused:
                self._flush_refused()
            confirmed, self._confirmed = self._confirmed, {}
            for channel, confirmations in confirmed.items():
                channel.confirm(confirmations)

    def _flush_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for channel, refusals in refused.items():
            channel.refuse(refusals)


class SettlementBuffer:
    """Settlements on their way into the log (D5).

    Subscriptions note that they have something to save; just before the append they are asked for
    it, so that one subscription costs one record per cause and turn, and a dead letter is in the
    same frame as the settlement that removed its original. What the disk refused is kept and goes
    first next time. Non-durable subscriptions are asked, too (they must not pile up), but nothing
    of them is stored.

    Also here: which cursors changed since they were last in a snapshot.
    """

    def __init__(self, chain: FlowContext) -> None:
        self._chain = chain
        self.noted: dict[HostedSubscription, None] = {}
        self.again: list[Settlement] = []
        """Who wants a frame, and what the disk refused; to be looked at only."""
        self.changed: dict[tuple[int, int], None] = {}
        """(subscription id, queue id) of cursors; whoever takes a snapshot removes them."""
        self.settlements = 0

    def note(self, subscription: HostedSubscription) -> None:
        """A subscription has something to save."""
        self.noted[subscription] = None
        self._chain.is_turn_requested = True

    def forget(self, subscription: HostedSubscription) -> None:
        """A subscription is gone: what it did not save yet is nobody's business any more."""
        self.noted.pop(subscription, None)
        gone = subscription.subscription_id
        self.again = [each for each in self.again if each.subscription_id != gone]
        for queue_id in subscription.queue_ids:
            self.changed.pop((gone, queue_id), None)

    def put(self, frame: Frame) -> list[Settlement]:
        """Put everything there is to save into the frame; what was taken, for ``failed``."""
        if not (self.noted or self.again):
            return []
        taken, self.again = self.again, []
        noted, self.noted = self.noted, {}
        for subscription in noted:
            settlements = subscription.take_settlements()
            if not is_transient_id(subscription.subscription_id):
                taken += settlements
        for settlement in taken:
            frame.appendings.append(Appending(settlement_record(settlement)))
        return taken

    def saved(self, taken: list[Settlement]) -> None:
        """The frame is written: remember what the next snapshot has to show."""
        self.settlements += len(taken)
        for settlement in taken:
            for part in settlement.queues:
                self.changed[settlement.subscription_id, part.queue_id] = None

    def replayed(self, settlement: Settlement) -> None:
        """Recovery applied it from the log: the next snapshot, which covers it, has to show it."""
        for part in settlement.queues:
            self.changed[settlement.subscription_id, part.queue_id] = None

    def failed(self, taken: list[Settlement]) -> None:
        """The frame was refused: the same goes into the next one."""
        self.again = taken + self.again
