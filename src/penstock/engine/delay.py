"""Topic-level delay: stored now, given an offset later (D14).

A delayed record is in the log and named by no index. Due soon, it is armed here by monotonic time,
so a jump of the wall clock neither frees it early nor keeps it (T19); due later, it rests in the
store's hour files under its wall time. When its time comes a *release* record gives it its offsets,
in the frame of that turn; the body is not copied.

A record that waits for a decision and not for a time (a transaction) is delayed to ``NEVER_MS`` and
let go by ``release`` or ``cancel``. The same path serves both.

Invariants: a record is released at most once; memory holds at most half of
``delayed_in_memory_max`` armed records (the latest go back to their files, and the files' horizon
with them; the other half is for single subscriptions); a release that the disk refused is tried
again.
Not here: the files (``log/delayed.py``), delays of one subscription (``subscription/cursor.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from penstock.engine.commit import Frame
from penstock.engine.flow_context import FlowContext
from penstock.engine.publish_batch import BatchKind, PublishBatch
from penstock.log.delayed import Due
from penstock.log.encode import Appending
from penstock.log.format import record_length, release_record
from penstock.log.store import Store
from penstock.model.record import Record, RecordFlag

if TYPE_CHECKING:
    from penstock.engine.topic import Queue

NEVER_MS: Final = 1 << 53
"""Deliver time of a record that waits for a decision: beyond every clock."""

RETRY_MS: Final = 100
"""A release that the disk refused is tried again after this long."""

_DELAYED: Final = int(RecordFlag.DELAYED)

Armed = tuple[int, int, int, int]
"""(due by monotonic time, deliver_ms, position, length)"""


class Delays:
    """Everything stored that has no offset yet, as far as it is due soon."""

    def __init__(
        self, store: Store, chain: FlowContext, queue_of: Callable[[int], Queue | None]
    ) -> None:
        self._store = store
        self._chain = chain
        self._queue_of = queue_of
        self._horizon_ms = chain.topics.delay_horizon_ms
        self._armed_max = max(2, chain.topics.delayed_in_memory_max // 2)
        self._armed: list[Armed] = []
        self._positions: set[int] = set()
        # Records that wait for a decision: position -> length; bounded like the armed ones.
        self._undecided: dict[int, int] = {}
        # Asked for and not yet in a frame: (position, length, is it let go or dropped).
        self.asked: list[tuple[int, int, bool]] = []
        """Decisions that want a frame; to be looked at only."""
        # Let go into other queues than they were stored for; until the release is stored.
        self._elsewhere: dict[int, tuple[Queue, ...]] = {}
        self._moved: list[int] = []
        self._refill_ms = 0
        self.released = 0

    # On the way in.

    def judge(self, batch: PublishBatch[Queue]) -> None:
        """Decide for each message of a timed batch whether it is delayed for the whole topic."""
        wall_ms = self._chain.clock.wall_ms()
        is_delaying = any(queue.topic.policy.is_delaying for queue in batch.queues or ())
        for publication in batch.publications:
            record = publication.record
            if record.flags & _DELAYED and record.deliver_ms == 0:
                record.reshape(deliver_ms=NEVER_MS)
            if not (is_delaying or record.flags & _DELAYED):
                continue
            if record.deliver_ms > wall_ms:
                record.reshape(flags=record.flags | _DELAYED)
            else:
                record.reshape(flags=record.flags & ~_DELAYED)

    def stored(self, frame: Frame) -> None:
        """Arm what the frame delayed and what is due before the files give anything out again."""
        if self._moved:
            for position in self._moved:
                self._elsewhere.pop(position, None)
            self._moved.clear()
        for batch in frame.batches:
            if batch.kind is not BatchKind.TIMED:
                continue
            for publication in batch.publications:
                record = publication.record
                if record.flags & _DELAYED:
                    length = record_length(record, len(publication.queues))
                    self._keep((record.deliver_ms, int(record.position), length))

    def restore(self, undecided: Sequence[Due]) -> None:
        """After a restart: the records that still wait for a decision."""
        for due in undecided:
            self._keep(due)

    def committed(self, delayed: Sequence[Due]) -> None:
        """Staged rows that wait for their time, from their commit on (D19)."""
        horizon_ms = self._store.delayed.horizon_ms
        soon = [due for due in delayed if due[0] < horizon_ms]
        if soon:
            self._arm(soon)

    # Decisions.

    def is_undecided(self, position: int) -> bool:
        """True while the record at ``position`` waits for a decision."""
        return position in self._undecided

    @property
    def undecided(self) -> list[int]:
        """Positions of the records that wait for a decision, oldest first."""
        return sorted(self._undecided)

    def release(self, position: int, queues: tuple[Queue, ...] | None = None) -> bool:
        """Let a delayed record go now; False when there is none (any more) at that position.

        With ``queues`` it appears there and not where it was stored for.
        """
        is_found = self._decide(position, is_let_go=True)
        if is_found and queues is not None:
            self._elsewhere[position] = queues
        return is_found

    def cancel(self, position: int) -> bool:
        """Drop a delayed record, also one that rests in the files: it never gets an offset."""
        return self._decide(position, is_let_go=False) or self._cancel_resting(position)

    # The turn.

    def due(self, frame: Frame, count_max: int, now_ms: int) -> list[Armed]:
        """Put release records of what is due into the frame; what was taken, for ``failed``."""
        taken: list[Armed] = []
        if not self.asked and now_ms < self.next_deadline_ms():
            return taken
        self._refill(now_ms)
        asked, self.asked = self.asked[:count_max], self.asked[count_max:]
        for position, length, is_let_go in asked:
            self._append(frame, position, length, is_let_go=is_let_go)
            taken.append((now_ms, NEVER_MS if is_let_go else -NEVER_MS, position, length))
        while self._armed and self._armed[0][0] <= now_ms and len(taken) < count_max:
            armed = heappop(self._armed)
            if armed[2] in self._positions:
                self._positions.discard(armed[2])
                self._append(frame, armed[2], armed[3], is_let_go=True)
                taken.append(armed)
        return taken

    def failed(self, taken: list[Armed]) -> None:
        """The frame was refused: try again a little later."""
        self._moved.clear()
        retry_ms = self._chain.now_ms + RETRY_MS
        for _, deliver_ms, position, length in taken:
            if deliver_ms == -NEVER_MS:
                self.asked.append((position, length, False))
            else:
                heappush(self._armed, (retry_ms, deliver_ms, position, length))
                self._positions.add(position)

    def next_deadline_ms(self) -> int:
        """When the next release is due, or the files are to be looked at."""
        return min(self._refill_ms, self._armed[0][0]) if self._armed else self._refill_ms

    @property
    def waiting(self) -> int:
        return len(self._positions) + len(self._undecided)

    def _keep(self, due: Due) -> None:
        deliver_ms, position, length = due
        if deliver_ms >= NEVER_MS:
            self._undecided[position] = length
        elif deliver_ms < self._store.delayed.horizon_ms:
            self._arm([due])

    def _arm(self, found: Sequence[Due]) -> None:
        # The distance in wall time now is the distance in monotonic time from now on.
        shift_ms = self._chain.now_ms - self._chain.clock.wall_ms()
        # A decision that is in no frame yet is not known to the files.
        asked = {position for position, _, _ in self.asked}
        for deliver_ms, position, length in found:
            if position not in asked:
                heappush(self._armed, (deliver_ms + shift_ms, deliver_ms, position, length))
                self._positions.add(position)
        if len(self._positions) > self._armed_max:
            self._send_back()

    def _send_back(self) -> None:
        """Too many are armed: all but the first rest in the files again.

        Only those due in the very same millisecond cannot be told apart by time and stay.
        """
        alive = sorted(armed for armed in self._armed if armed[2] in self._positions)
        cut_ms = max(alive[self._armed_max // 2][1], alive[0][1] + 1)
        self._armed = [armed for armed in alive if armed[1] < cut_ms]
        heapify(self._armed)
        self._positions = {armed[2] for armed in self._armed}
        self._store.delayed.horizon_ms = min(cut_ms, self._store.delayed.horizon_ms)
        self._look_before_horizon()

    def _refill(self, now_ms: int) -> None:
        """Take the next stretch out of the files, well before its first record is due."""
        if now_ms < self._refill_ms:
            return
        self._refill_ms = now_ms + max(1, self._horizon_ms // 2)
        wall_ms = self._chain.clock.wall_ms()
        if len(self._positions) < self._armed_max // 2:
            self._arm(self._store.delayed.due(wall_ms + self._horizon_ms))
        self._look_before_horizon()

    def _look_before_horizon(self) -> None:
        """Records sent back to the files may be due before the ordinary next look."""
        ahead_ms = self._store.delayed.horizon_ms - self._chain.clock.wall_ms()
        soon_ms = self._chain.now_ms + max(RETRY_MS, ahead_ms // 2)
        self._refill_ms = min(self._refill_ms, soon_ms)

    def _decide(self, position: int, *, is_let_go: bool) -> bool:
        if position in self._positions:
            armed = next(each for each in self._armed if each[2] == position)
            self._positions.discard(position)
            length = armed[3]
        elif position in self._undecided:
            length = self._undecided.pop(position)
        else:
            return False
        self.asked.append((position, length, is_let_go))
        self._chain.request_turn()
        return True

    def _cancel_resting(self, position: int) -> bool:
        """The same for a record that is due later than what the files have given out."""
        located = self._store.locate(position)
        if located is None or any(asked[0] == position for asked in self.asked):
            return False
        record, files = located.record, self._store.delayed
        is_resting = record.flags & _DELAYED and files.horizon_ms <= record.deliver_ms < NEVER_MS
        if not is_resting or not files.is_pending(record.deliver_ms, position):
            return False
        length = record_length(record, len(located.targets))
        self.asked.append((position, length, False))
        self._chain.request_turn()
        return True

    def _append(self, frame: Frame, position: int, length: int, *, is_let_go: bool) -> None:
        located = self._store.locate(position)
        if located is None:
            return
        queues: tuple[Queue, ...] = ()
        if is_let_go and position in self._elsewhere:
            queues = tuple([each for each in self._elsewhere[position] if not each.is_deleted])
            self._moved.append(position)
        elif is_let_go:
            found = [self._queue_of(queue_id) for queue_id, _ in located.targets]
            queues = tuple([queue for queue in found if queue is not None])
        record: Record = release_record(located.record, length)
        frame.append(Appending(record, tuple([queue.index for queue in queues])), queues)
        self.released += 1
