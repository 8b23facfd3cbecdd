"""What comes next in a queue: first what waits to be delivered again, then the unread.

Index entries are read in chunks, records in one call for the chunk, and nothing is looked at one by
one that the index can say of all of them. A chunk is *plain* when its entries cover exactly as
many offsets as there are entries, from the first one on: no batch, no hole. What cannot be
delivered is dealt with here: settled with its cause (expired, corrupt, unwanted, gone) or put aside
(delayed), never blocking what is behind it.

A subscription that does not take whole batches is given their messages: entries and records of a
batch are replaced by those of its messages (``engine/batch.py``) before anything is looked at, so
that the unread may begin in the midst of a batch, and nothing below knows.

A message expires at the head of its subscription only: either it is about to be delivered, or it
has been the next one for long enough. Whichever comes first of its own ``expire_ms`` and the
topic's time to live counts. The moment is wall time in the record and becomes monotonic when it is
armed (D14). Consumers that wait get a message, however short its life (``offered_upto``); for
one that asks, and so comes after it was published, its time may be up (``is_strict``: basic.get).

Invariant: an offset that leaves ``redelivery.ready`` or the unread here is afterwards in a returned
delivery, settled, or delayed.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from math import ceil
from typing import Final, TypeGuard

import msgspec

from penstock.engine.host import Host, IndexEntry, SubscriptionOptions
from penstock.engine.subscription.consumer import Delivery
from penstock.engine.subscription.cursor import QueueCursor
from penstock.flow.views import EXPIRIES, UndoneView
from penstock.log.index import IndexFlag
from penstock.model.record import Record
from penstock.model.settlement import Cause

CHUNK_ENTRIES_MAX: Final = 512
"""Entries looked at in one go: enough to spread the cost of a call, few enough to hold."""

CHUNK_BYTES_MAX: Final = 1 << 20
"""Bytes read in one go; the first entry is read whatever its size."""

MEAN_OVER: Final = 4
"""Chunks that the mean size of batches is taken over, about: a producer may change its batches."""

# As plain numbers: an enum's ``&`` costs more than all else that is done for an entry.
_TRANSIENT: Final = int(IndexFlag.TRANSIENT)
_DEFERRED: Final = int(IndexFlag.DEFERRED)
_EXPIRES: Final = int(IndexFlag.EXPIRES)


Message = tuple[IndexEntry, Record | None]
"""What is delivered as one: an entry and its record, or those of one message of a batch."""


class Picked(msgspec.Struct, gc=False):
    """What one look at a queue gave."""

    deliveries: list[Delivery]
    moved: int = 0
    """Messages that left the queue's backlog: picked, settled or delayed; 0 = nothing is ready."""
    left_over: list[int] = []
    """First offsets that were too much."""
    is_plain: bool = False
    """True when every delivery is a single message that was never delivered before."""
    sizes: list[int] = []
    """Of a plain one: the sizes of its deliveries, if they are at hand as a list."""


class Picker:
    """Takes what is next in a queue, for one subscription, and drops what is not to be delivered.

    It neither knows consumers nor puts anything in flight: a returned delivery is its caller's.
    """

    __slots__ = (
        "_batches", "_host", "_is_opening", "_is_owner", "dead_letters", "filter", "is_strict",
        "lost", "skipped",
    )  # fmt: skip

    def __init__(self, host: Host, options: SubscriptionOptions) -> None:
        self._host = host
        self._batches = host.batches
        self._is_opening = not options.whole_batches
        self.filter = options.filter
        self._is_owner = options.holds_data
        self.is_strict = False
        """True while somebody asks outside the round to whom no message is new."""
        self.dead_letters = 0
        self.lost = 0
        """Records that could not be read (P7)."""
        self.skipped = 0
        """Offsets that no longer exist: removed by retention, or transient before a restart."""

    def pick(
        self, cursor: QueueCursor, messages_max: int, bytes_max: int, *, is_reading: bool = True
    ) -> Picked:
        """About as much as asked for; one batch may cross the line. ``is_reading``: also unread.

        Three ways, the cheapest that fits: what waits for redelivery is looked at one by one; a
        fresh chunk (nothing of it was ever settled or delivered, nothing of it depends on time or
        content) is made column by column; any other chunk is sifted. What ``filter`` refuses is
        settled; whoever asks with another one sets it for the time.
        """
        redelivery = cursor.redelivery
        bytes_max = min(bytes_max, CHUNK_BYTES_MAX)
        if redelivery.ready:
            offsets = redelivery.pop(min(messages_max, CHUNK_ENTRIES_MAX))
            picked = self.pick_at(cursor, offsets, messages_max, bytes_max)
            redelivery.add_all(picked.left_over)
            return picked
        if redelivery.budget.is_full:
            messages_max = min(messages_max, redelivery.look_max)
        if not is_reading or messages_max <= 0:
            return Picked([])
        start, settled = cursor.next_offset, cursor.settled
        is_fresh = (
            self.filter is None
            and cursor.flagged_below <= start
            and not cursor.queue.topic.policy.message_ttl_ms
            and (settled.ends[-1] if settled.ends else settled.low_mark) <= start
            and not redelivery.counts
        )
        if is_fresh and (plain := self._plain(cursor, messages_max, bytes_max)) is not None:
            return plain
        return self._unread(cursor, messages_max, bytes_max, is_fresh=is_fresh)

    def pick_at(
        self, cursor: QueueCursor, offsets: list[int], messages_max: int, bytes_max: int
    ) -> Picked:
        """What is at these offsets, ascending; ``left_over`` is what was too much."""
        found = entries_at(cursor, offsets)
        records: list[Record | None] | None = None
        entries = list({entry[1]: entry for entry in found.values()}.values())
        if self._is_opening and any(entry[5] > 1 for entry in entries):
            opened = self._messages_at(found)
            entries = [entry for entry, _ in opened.values()]
            records = [record for _, record in opened.values()]
        wanted = _cut(entries, messages_max, bytes_max, cursor.end)
        moved = sum(entry[5] for entry in wanted)
        for offset in offsets:
            if offset not in found:
                self.skip_missing(cursor, offset, offset + 1)
                moved += 1
        if records is None:
            picked = self._sift(cursor, wanted, is_fresh=False, moved=moved)
        else:
            records = records[: len(wanted)]
            picked = self._examined(cursor, wanted, records, is_fresh=False, moved=moved)
        picked.left_over = [entry[1] for entry in entries[len(wanted) :]]
        return picked

    def messages_at(
        self, cursor: QueueCursor, offsets: list[int]
    ) -> tuple[dict[int, Message], list[int]]:
        """What is at these offsets, by first offset, and those at which nothing is any more."""
        found = entries_at(cursor, offsets)
        gone = [offset for offset in offsets if offset not in found]
        return self._messages_at(found), gone

    def _messages_at(self, found: dict[int, IndexEntry]) -> dict[int, Message]:
        entries = list({entry[1]: entry for entry in found.values()}.values())
        read = self._host.read([(entry[0], entry[4]) for entry in entries])
        records = {entry[1]: record for entry, record in zip(entries, read, strict=True)}
        messages: dict[int, Message] = {}
        for offset, entry in found.items():
            record = records[entry[1]]
            for message in self._opened(entry, record, offset, offset + 1):
                messages[message[0][1]] = message
        return messages

    def _opened(
        self, entry: IndexEntry, record: Record | None, start: int, end: int
    ) -> Sequence[Message]:
        """What of an entry lies in [start, end): messages, if it is to be opened and can be."""
        if entry[5] == 1 or not self._is_opening:
            return [(entry, record)]
        if record is None:
            # Others of it may be in somebody's hands: only what was asked for is lost here.
            start, end = max(start, entry[1]), min(end, entry[1] + entry[5])
            return [((entry[0], start, *entry[2:5], end - start, *entry[6:]), None)]
        return self._batches.messages(entry, record, start, end)

    def _unread(
        self, cursor: QueueCursor, messages_max: int, bytes_max: int, *, is_fresh: bool
    ) -> Picked:
        """``is_fresh``: nothing of it was ever settled, delivered or is to be looked at."""
        index = cursor.index
        start = cursor.next_offset
        end = cursor.end
        if start < index.min_offset and start < end:
            self.skip_missing(cursor, start, min(index.min_offset, end))
            start = cursor.next_offset = min(index.min_offset, end)
        count = min(messages_max, end - start, CHUNK_ENTRIES_MAX)
        if count <= 0:
            return Picked([])
        if cursor.messages_per_entry > 1:
            entries = _batches(cursor, start, (count, messages_max), bytes_max)
        else:
            entries = index.entries(start, count)
        if not entries or entries[0][1] >= end:
            self.skip_missing(cursor, start, end)
            cursor.next_offset = end
            return Picked([], end - start)
        first, last = entries[0], entries[-1]
        is_plain = first[1] == start and last[1] + last[5] - start == len(entries)
        if not is_plain or last[2] + last[4] - first[2] > bytes_max or last[1] >= end:
            entries = _cut(entries, messages_max, bytes_max, end)
            last = entries[-1]
            is_plain = first[1] == start and last[1] + last[5] - start == len(entries)
            if not is_plain:
                self._fill_holes(cursor, start, entries)
                if self._is_opening and any(entry[5] > 1 for entry in entries):
                    return self._unread_messages(cursor, entries, messages_max, is_fresh=is_fresh)
        if not is_plain or cursor.messages_per_entry > 1:
            _learn_batches(cursor, entries)
        cursor.next_offset = last[1] + last[5]
        moved = cursor.next_offset - start
        return self._sift(cursor, entries, is_fresh=is_fresh and is_plain, moved=moved)

    def _unread_messages(
        self, cursor: QueueCursor, entries: list[IndexEntry], messages_max: int, *, is_fresh: bool
    ) -> Picked:
        """Batches among the unread, message by message; the last of them may be left midway."""
        start, last = cursor.next_offset, entries[-1]
        _learn_batches(cursor, entries)
        room = messages_max - sum([entry[5] for entry in entries[:-1]])
        end = max(last[1], start) + room
        wanted = entries if self.filter is None else self._wanted(cursor, entries)
        read = self._host.read([(entry[0], entry[4]) for entry in wanted])
        messages = [
            message
            for entry, record in zip(wanted, read, strict=True)
            for message in self._opened(entry, record, start, end)
        ]
        if last[5] > 1:
            last = messages[-1][0]
        cursor.next_offset = last[1] + last[5]
        moved = cursor.next_offset - start
        is_fresh = is_fresh and messages[0][0][1] == start and moved == len(messages)
        opened = [entry for entry, _ in messages]
        records = [record for _, record in messages]
        return self._examined(cursor, opened, records, is_fresh=is_fresh, moved=moved)

    def _plain(self, cursor: QueueCursor, messages_max: int, bytes_max: int) -> Picked | None:
        """The common chunk, without a loop of ours: single messages, never seen, all at hand."""
        start = cursor.next_offset
        count = min(messages_max, cursor.end - start, CHUNK_ENTRIES_MAX)
        columns = cursor.index.plain_run(start, count) if count > 0 else None
        if columns is None or sum(columns[1]) > bytes_max:
            return None
        positions, lengths = columns
        records = self._host.recent(positions)
        if records is None:
            return None
        count = len(records)
        cursor.next_offset = end = start + count
        queue_id = cursor.queue_id
        if count == 1:
            # By itself: setting up the iterators below costs several times as much.
            deliveries = [Delivery(records[0], queue_id, start, lengths[0])]
        else:
            deliveries = list(map(Delivery, records, repeat(queue_id), range(start, end), lengths))
        return Picked(deliveries, count, is_plain=True, sizes=lengths)

    def _sift(
        self, cursor: QueueCursor, entries: list[IndexEntry], *, is_fresh: bool, moved: int
    ) -> Picked:
        """Read the records and keep what can be delivered."""
        if self.filter is not None:
            entries = self._wanted(cursor, entries)
        if not entries:
            return Picked([], moved)
        positions, _, _, _, lengths, _, _, _ = zip(*entries, strict=True)
        records = self._host.read(list(zip(positions, lengths, strict=True)))
        return self._examined(cursor, entries, records, is_fresh=is_fresh, moved=moved)

    def _examined(
        self,
        cursor: QueueCursor,
        entries: list[IndexEntry],
        records: list[Record | None],
        *,
        is_fresh: bool,
        moved: int,
    ) -> Picked:
        """Of entries and their records what can be delivered."""
        if not entries:
            return Picked([], moved)
        _, firsts, _, _, lengths, _, _, flags = zip(*entries, strict=True)
        # The common chunk is told by two looks at whole columns and made without a loop of ours.
        if is_fresh and not any(flags) and _is_whole(records):
            made = map(Delivery, records, repeat(cursor.queue_id), firsts, lengths)
            return Picked(list(made), moved, is_plain=True)
        now_ms = self._host.clock.wall_ms()
        deliveries: list[Delivery] = []
        for entry, record in zip(entries, records, strict=True):
            delivery = self._examine(cursor, entry, record, now_ms)
            if delivery is not None:
                deliveries.append(delivery)
        return Picked(deliveries, moved)

    def _examine(
        self, cursor: QueueCursor, entry: IndexEntry, record: Record | None, now_ms: int
    ) -> Delivery | None:
        """One entry that needs a look; None when it is not to be delivered now."""
        offset, span = entry[1], entry[5]
        unsettled = span - cursor.settled.settled_in(offset, offset + span)
        if not unsettled:
            cursor.redelivery.counts.pop(offset, None)
        elif entry[7] & _TRANSIENT and entry[0] < self._host.transient_floor:
            self.skip_missing(cursor, offset, offset + span)
        elif record is None:
            self.lost += unsettled
            self._drop(cursor, Cause.CORRUPT, offset, span)
        elif self._is_expired(cursor, entry, record, now_ms):
            self.dead_letter(cursor, entry, record, Cause.EXPIRED)
        elif self.filter is not None and not self.filter.matches_record(record):
            self._drop(cursor, Cause.ACKED, offset, span)
        elif (
            cursor.honours_delay
            and entry[7] & _DEFERRED
            and (record.deliver_ms > now_ms + cursor.delay_slack_ms)
        ):
            due_ms = self._host.clock.monotonic_ms() + record.deliver_ms - now_ms
            cursor.redelivery.delay(offset, due_ms, unsettled)
        else:
            attempts = cursor.redelivery.counts.get(offset, -1)
            is_redelivered = attempts >= 0 or offset < cursor.flagged_below
            return Delivery(
                record,
                cursor.queue_id,
                offset,
                entry[4],
                max(attempts, 0),
                is_redelivered,
                unsettled,
            )
        return None

    def dead_letter(
        self, cursor: QueueCursor, entry: IndexEntry, record: Record | None, cause: Cause
    ) -> None:
        """A dead letter if there is a target for it; settled in the same frame.

        A subscription that only looks on (D11) settles it: its dead letter is others' to write.
        """
        offset = entry[1]
        if record is None:
            self.lost += 1
            cause = Cause.CORRUPT
        elif self._is_owner:
            attempts = cursor.redelivery.counts.get(offset, 0)
            self.dead_letters += 1
            self._host.dead_letter(cursor.queue, offset, record, cause, attempts)
        self._drop(cursor, cause, offset, entry[5])

    def expire_head(self, cursor: QueueCursor, entries_max: int) -> int:
        """Settle what is expired at the head, whether or not anybody consumes; returns entries."""
        dropped = 0
        now_ms = self._host.clock.wall_ms()
        while dropped < entries_max:
            entry = _expiring_head(cursor)
            if entry is None:
                break
            entry, record = self._read_head(cursor, entry)
            if record is not None and not self._is_expired(cursor, entry, record, now_ms):
                break
            if cursor.redelivery.ready:
                cursor.redelivery.pop(1)
            else:
                self._fill_holes(cursor, cursor.next_offset, [entry])
                cursor.next_offset = entry[1] + entry[5]
            self._examine(cursor, entry, record, now_ms)
            dropped += 1
        cursor.head_offset = -1
        self.watch_head(cursor)
        return dropped

    def watch_head(self, cursor: QueueCursor) -> None:
        """Learn when the message at the head expires, once per head."""
        head = cursor.head
        if head == cursor.head_offset:
            return
        entry = _expiring_head(cursor)
        record: Record | None = None
        if entry is not None:
            entry, record = self._read_head(cursor, entry)
        cursor.head_offset = head if head < cursor.end else -1
        cursor.head_deadline_ms = 0
        if entry is not None and record is not None:
            clock = self._host.clock
            expire_ms = expires_ms(entry, record, cursor.queue.topic.policy.message_ttl_ms)
            if expire_ms:
                left_ms = max(0, expire_ms + 1 - clock.wall_ms())
                cursor.head_deadline_ms = clock.monotonic_ms() + left_ms

    def _read_head(self, cursor: QueueCursor, entry: IndexEntry) -> Message:
        """The message at the head, of the entry that holds it."""
        record = self._host.read([(entry[0], entry[4])])[0]
        head = max(cursor.head, entry[1])
        return self._opened(entry, record, head, head + 1)[0]

    def _is_expired(
        self, cursor: QueueCursor, entry: IndexEntry, record: Record, now_ms: int
    ) -> bool:
        expire_ms = expires_ms(entry, record, cursor.queue.topic.policy.message_ttl_ms)
        if self.is_strict:
            # No time to live at all is over when it is stored, also within the millisecond.
            return expire_ms > 0 and (expire_ms < now_ms or expire_ms <= entry[3])
        if expire_ms == now_ms <= entry[3]:
            # So a consumer that waited for it has it, but only once.
            return entry[1] in cursor.redelivery.counts
        return 0 < expire_ms < now_ms and entry[1] < cursor.offered_upto

    def _wanted(self, cursor: QueueCursor, entries: list[IndexEntry]) -> list[IndexEntry]:
        assert self.filter is not None
        matches = self.filter.matches_entry
        wanted = []
        for entry in entries:
            # Of a batch the index knows no tags.
            if entry[5] > 1 or matches(entry[6]):
                wanted.append(entry)
            else:
                self._drop(cursor, Cause.ACKED, entry[1], entry[5])
        return wanted

    def _fill_holes(self, cursor: QueueCursor, start: int, entries: list[IndexEntry]) -> None:
        """Offsets that no entry has are settled, or the low mark would wait for them for ever."""
        for entry in entries:
            if entry[1] > start:
                self.skip_missing(cursor, start, entry[1])
            start = entry[1] + entry[5]

    def skip_missing(self, cursor: QueueCursor, start: int, end: int) -> None:
        """These offsets no longer exist: settled, or the low mark would wait for them."""
        self.skipped += self._drop(cursor, Cause.COMMITTED, start, end - start)

    def _drop(self, cursor: QueueCursor, cause: Cause, offset: int, span: int) -> int:
        fresh = cursor.settle(cause, offset, offset + span)
        cursor.redelivery.counts.pop(offset, None)
        return fresh


def _is_whole(records: list[Record | None]) -> TypeGuard[list[Record]]:
    """True when every record could be read."""
    return all(records)


def _batches(
    cursor: QueueCursor, start: int, count_max: tuple[int, int], bytes_max: int
) -> list[IndexEntry]:
    """Entries for so many (entries, messages) and bytes, a few more at most.

    Of ``count_max`` entries all but the first few would be unpacked for nothing, were they batches.
    """
    entries_max, messages_max = count_max
    index, mean = cursor.index, cursor.messages_per_entry
    entries: list[IndexEntry] = []
    messages = 0
    while len(entries) < entries_max and messages < messages_max:
        wanted = min(entries_max - len(entries), ceil((messages_max - messages) / mean))
        more = index.entries(start, wanted)
        if not more:
            break
        entries += more
        messages += sum([entry[5] for entry in more])
        last = more[-1]
        start = last[1] + last[5]
        if start >= cursor.end or last[2] + last[4] - entries[0][2] > bytes_max:
            break
    return entries


def entries_at(cursor: QueueCursor, offsets: list[int]) -> dict[int, IndexEntry]:
    """The entries that hold these offsets, in their order; what is gone is not among them."""
    index = cursor.index
    there: dict[int, IndexEntry] = {}
    for at, count in _runs(sorted(offsets)):
        for entry in index.entries(at, count):
            if entry[5] == 1:
                there[entry[1]] = entry
            else:
                held = range(max(at, entry[1]), min(at + count, entry[1] + entry[5]))
                there.update(dict.fromkeys(held, entry))
    # Above a hole the index answers with a later entry, which is not meant.
    return {offset: there[offset] for offset in offsets if offset in there}


def _learn_batches(cursor: QueueCursor, entries: list[IndexEntry]) -> None:
    messages = sum([entry[5] for entry in entries]) / len(entries)
    cursor.messages_per_entry += (messages - cursor.messages_per_entry) / MEAN_OVER


def _expiring_head(cursor: QueueCursor) -> IndexEntry | None:
    """The entry at the head if it can expire at all."""
    if not cursor.redelivery.ready:
        cursor.next_offset = cursor.settled.next_unsettled(cursor.next_offset)
    head = cursor.head
    found = cursor.index.entries(head, 1) if head < cursor.end else []
    if not found or found[0][1] >= cursor.end:
        return None
    entry = found[0]
    can_expire = entry[7] & _EXPIRES or cursor.queue.topic.policy.message_ttl_ms
    return entry if can_expire else None


def _runs(offsets: list[int]) -> Iterable[tuple[int, int]]:
    """(start, count) of the consecutive runs in ascending offsets."""
    start = count = 0
    for offset in offsets:
        if count and offset == start + count:
            count += 1
        else:
            if count:
                yield start, count
            start, count = offset, 1
    if count:
        yield start, count


def _cut(
    entries: list[IndexEntry], messages_max: int, bytes_max: int, end: int
) -> list[IndexEntry]:
    """The entries that fit: below ``end``, within messages (one batch may cross) and bytes."""
    kept: list[IndexEntry] = []
    messages = size = 0
    for entry in entries:
        size += entry[4]
        if entry[1] >= end or messages >= messages_max or (kept and size > bytes_max):
            break
        kept.append(entry)
        messages += entry[5]
    return kept


def expires_ms(entry: IndexEntry, record: Record, ttl_ms: int) -> int:
    """Wall time after which the message is expired; 0 = never."""
    own = record.expire_ms
    if not ttl_ms:
        return own
    by_topic = entry[3] + max(ttl_ms, 0)
    return min(own, by_topic) if own else by_topic


def expired_backlog(cursor: QueueCursor, host: Host) -> UndoneView | None:
    """What is out of time and still there, if anything is: at least so many, and since when."""
    wall_ms, now_ms = host.clock.wall_ms(), host.clock.monotonic_ms()
    head, ttl_ms = cursor.head, cursor.queue.topic.policy.message_ttl_ms
    if not 0 < cursor.head_deadline_ms <= now_ms:
        return None
    found = cursor.index.entries(head, 1)
    record = host.read([(found[0][0], found[0][4])])[0] if found else None
    if record is None:
        return None
    late_ms = wall_ms - expires_ms(found[0], record, ttl_ms)
    # Of those with a time of their own nobody knows before they are read.
    end = cursor.index.search_time(wall_ms - max(ttl_ms, 0)) if ttl_ms else 0
    return UndoneView(EXPIRIES, max(1, min(end, cursor.end) - head), now_ms - max(0, late_ms))
