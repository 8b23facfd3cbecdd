"""Messages that gather until they are a batch: by count, by bytes, by time.

    Batching.DEFAULT   one batch after the other
    Batching.KEY       one for each key at the same time: what key-shared consumers need, because a
                       broker hands a batch over as a whole, by the key of its first message

Sequence ids are given when a batch leaves, so that they count upwards from entry to entry also
when several batches gather side by side: a broker that deduplicates would drop an entry whose first
id is below the last one's. Ids of the sender's own never stand in one batch in a falling order.

Bounds: ``BatchLimits``; of keys at the same time there are never more than messages.
Not here: the bytes of a batch (``encoding.py``); the clock: whoever owns it says when time is up.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.client.pulsar.encoding import Content
from penstock.client.pulsar.pending import Send
from penstock.client.pulsar.routing import BatchLimits


class Batching(Enum):
    """What gathers in one batch."""

    DEFAULT = "default"
    KEY = "key"


class Numbered(list[Send]):
    """Messages that leave as one entry, and their sequence ids."""

    __slots__ = ("sequence_ids",)

    def __init__(self, sends: list[Send], sequence_ids: list[int]) -> None:
        super().__init__(sends)
        self.sequence_ids: Final = sequence_ids


class SequenceIds:
    """The count of one producer."""

    __slots__ = ("last_sent",)

    def __init__(self, last_sent: int = -1) -> None:
        self.last_sent = last_sent

    def next_for(self, content: Content) -> int:
        """The sender's own, which the count then goes on from, or the next one."""
        given = content.sequence_id
        found = self.last_sent + 1 if given is None else given
        self.last_sent = max(self.last_sent, found)
        return found

    def number(self, sends: list[Send]) -> list[Numbered]:
        """These in as many entries as it takes for ids to rise in each: one, nearly always."""
        first = self.last_sent + 1
        if not any(send.content.sequence_id is not None for send in sends):
            self.last_sent += len(sends)
            return [Numbered(sends, list(range(first, first + len(sends))))]
        found: list[Numbered] = []
        for send in sends:
            number = self.next_for(send.content)
            if not found or number <= found[-1].sequence_ids[-1]:
                found.append(Numbered([], []))
            found[-1].append(send)
            found[-1].sequence_ids.append(number)
        return found


class BatchContainer:
    """What gathers for one partition; on the client's thread."""

    __slots__ = ("_batching", "_groups", "_limits", "bytes", "messages")

    def __init__(self, limits: BatchLimits, batching: Batching = Batching.DEFAULT) -> None:
        self._limits = limits
        self._batching = batching
        self._groups: dict[bytes | str | None, list[Send]] = {}
        """In the order in which they began."""
        self.messages = 0
        self.bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self.messages

    @property
    def is_full(self) -> bool:
        """True when it must leave now."""
        limits = self._limits
        return self.messages >= limits.messages_max or self.bytes >= limits.bytes_max

    @property
    def oldest(self) -> Send | None:
        """The one that waits longest."""
        for group in self._groups.values():
            return group[0]
        return None

    def takes(self, send: Send) -> bool:
        """Whether this may be in a batch at all; if not, what is here leaves before it."""
        content = send.content
        if not content.can_be_batched or send.size_bytes >= self._limits.bytes_max:
            return False
        return self._batching is not Batching.KEY or content.sequence_id is None

    def has_room(self, send: Send) -> bool:
        """Whether it fits to what is here; if not, that leaves before it."""
        return self.is_empty or self.bytes + send.size_bytes <= self._limits.bytes_max

    def add(self, send: Send) -> None:
        key = self._key_of(send.content) if self._batching is Batching.KEY else None
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = [send]
        else:
            group.append(send)
        self.messages += 1
        self.bytes += send.size_bytes

    def take(self) -> list[list[Send]]:
        """All batches, the one that began first first; it is empty then."""
        groups = list(self._groups.values())
        self._groups = {}
        self.messages = self.bytes = 0
        return groups

    def expire(self, now_ms: int) -> list[Send]:
        """Those whose time is up; they leave."""
        found: list[Send] = []
        for key, group in list(self._groups.items()):
            late = [each for each in group if each.is_late(now_ms)]
            if not late:
                continue
            found += late
            kept = [each for each in group if not each.is_late(now_ms)]
            if kept:
                self._groups[key] = kept
            else:
                del self._groups[key]
        self.messages -= len(found)
        self.bytes -= sum(each.size_bytes for each in found)
        return found

    @staticmethod
    def _key_of(content: Content) -> bytes | str | None:
        extras = content.extras
        if extras is not None and extras.ordering_key is not None:
            return extras.ordering_key
        return content.key
