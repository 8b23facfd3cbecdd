"""What Pulsar's subscriptions do, in a few lines of Python and without anything of the broker's.

A ``ModelTopic`` is a list of entries; a ``ModelSubscription`` knows of every message whether it is
acked, who has which entry, and what each consumer may still be sent. It does not foretell who of
several gets what: ``delivered`` is told of each MESSAGE and says what is wrong with it, and
``owed`` says what should have been sent by the time the broker is at rest.

Laws: an entry is in one hand at a time; permits are never overdrawn by more than the last entry; a
MESSAGE says which of its messages are acked and how often it came back; who reads alone gets
everything in order; of one key everything is in one hand at a time, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ALONE = ("Exclusive", "Failover")
SHARED = ("Shared", "Key_Shared")


@dataclass
class ModelEntry:
    """One SEND."""

    first: int
    messages: int
    key: str
    publish_ms: int

    @property
    def offsets(self) -> range:
        return range(self.first, self.first + self.messages)


@dataclass
class ModelTopic:
    """Everything that was published."""

    entries: list[ModelEntry] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.entries[-1].offsets.stop if self.entries else 0

    def add(self, messages: int, key: str, publish_ms: int) -> ModelEntry:
        entry = ModelEntry(self.end, messages, key, publish_ms)
        self.entries.append(entry)
        return entry

    def at(self, first: int) -> ModelEntry:
        (found,) = [each for each in self.entries if each.first == first]
        return found

    def at_time(self, publish_ms: int) -> int:
        """Where the first entry published then or later begins."""
        later = [each.first for each in self.entries if each.publish_ms >= publish_ms]
        return later[0] if later else self.end


@dataclass(eq=False)
class ModelConsumer:
    """One consumer."""

    kind: str
    limit: int = 0
    """Messages it may have unacked; 0 = any number."""
    permits: int = 0
    aside: int = 0
    is_blocked: bool = False
    is_active: bool = True

    def grant(self, permits: int) -> None:
        if self.is_blocked:
            self.aside += permits
        else:
            self.permits += permits

    def unblock(self) -> None:
        self.is_blocked = False
        self.permits += self.aside
        self.aside = 0

    @property
    def takes_more(self) -> bool:
        return self.permits > 0 and not self.is_blocked and self.is_active


class ModelSubscription:
    """One subscription."""

    def __init__(self, topic: ModelTopic, start: int, *, is_durable: bool = True) -> None:
        self.topic = topic
        self.is_durable = is_durable
        self.acked = set(range(start))
        self.consumers: list[ModelConsumer] = []
        self.holders: dict[int, ModelConsumer] = {}
        """First offset of an entry -> who has it."""
        self.counts: dict[int, int] = {}
        self.delivered_ever: set[int] = set()
        """First offsets of entries that somebody had since the last seek or start."""

    # What it is.

    @property
    def kind(self) -> str:
        return self.consumers[0].kind if self.consumers else ""

    def left_of(self, entry: ModelEntry) -> list[int]:
        """Its messages that are not acked, counted from 0."""
        return [at - entry.first for at in entry.offsets if at not in self.acked]

    def unacked(self, consumer: ModelConsumer) -> int:
        return sum(
            len(self.left_of(self.topic.at(first)))
            for first, holder in self.holders.items()
            if holder is consumer
        )

    def held_by(self, consumer: ModelConsumer) -> list[int]:
        return sorted(first for first, holder in self.holders.items() if holder is consumer)

    @property
    def waiting(self) -> list[ModelEntry]:
        """What nobody has and is not acked, in order."""
        return [
            each
            for each in self.topic.entries
            if each.first not in self.holders and self.left_of(each)
        ]

    @property
    def mark_delete(self) -> int:
        """First offset of the last entry up to which everything is acked; -1 = of none."""
        mark = -1
        for each in self.topic.entries:
            if self.left_of(each):
                break
            mark = each.first
        return mark

    # What consumers say.

    def redeliver(self, consumer: ModelConsumer, firsts: list[int] | None) -> None:
        for first in self.held_by(consumer):
            if self.kind in ALONE:
                del self.holders[first]
            elif firsts is None or first in firsts:
                del self.holders[first]
                self.counts[first] = self.counts.get(first, 0) + 1
        self._settle(consumer)
        if consumer.is_blocked and self.unacked(consumer) < consumer.limit:
            consumer.unblock()

    def ack(self, offsets: set[int]) -> None:
        self.acked |= offsets
        for first in list(self.holders):
            if not self.left_of(self.topic.at(first)):
                del self.holders[first]
                self.counts.pop(first, None)
        for each in self.consumers:
            self._settle(each)

    def _settle(self, consumer: ModelConsumer) -> None:
        if consumer.is_blocked and self.unacked(consumer) <= consumer.limit // 2:
            consumer.unblock()

    def displace(self, consumer: ModelConsumer) -> None:
        """It is not the active one any more: what it has is the next one's."""
        for first in self.held_by(consumer):
            del self.holders[first]
        consumer.is_active = False

    def leave(self, consumer: ModelConsumer) -> None:
        for first in self.held_by(consumer):
            del self.holders[first]
        self.consumers.remove(consumer)
        if not self.consumers:
            self.counts.clear()

    def seek(self, offset: int, acked: set[int]) -> None:
        for each in list(self.consumers):
            self.leave(each)
        self.acked = set(range(offset)) | acked
        self.delivered_ever.clear()

    # What the broker does.

    def delivered(
        self, consumer: ModelConsumer, first: int, count: int, words: list[int]
    ) -> list[str]:
        """A MESSAGE; what is wrong with it."""
        entry = self.topic.at(first)
        left = self.left_of(entry)
        wrong = []
        if first in self.holders:
            wrong.append("somebody has it already")
        if not left:
            wrong.append("it is acked")
        if not consumer.takes_more:
            wrong.append(f"the consumer takes no more: {consumer}")
        expected = 0 if self.kind in ALONE else self.counts.get(first, 0)
        if count != expected:
            wrong.append(f"redelivery count {count}, not {expected}")
        bits = sum(1 << at for at in left) if len(left) < entry.messages else 0
        said = sum((word & (2**64 - 1)) << (64 * at) for at, word in enumerate(words))
        if said != bits:
            wrong.append(f"ack set {said:b}, not {bits:b}")
        if self.kind in ALONE and self.waiting and self.waiting[0].first != first:
            wrong.append(f"{self.waiting[0].first} is before it")
        if self.kind == "Key_Shared":
            wrong += self._wrong_with_key(consumer, entry)
        self.holders[first] = consumer
        self.delivered_ever.add(first)
        consumer.permits -= len(left)
        if 0 < consumer.limit <= self.unacked(consumer):
            consumer.is_blocked = True
        return wrong

    def _wrong_with_key(self, consumer: ModelConsumer, entry: ModelEntry) -> list[str]:
        held = [
            f"another has {first} of key {entry.key}"
            for first, holder in self.holders.items()
            if self.topic.at(first).key == entry.key and holder is not consumer
        ]
        before = [
            f"{each.first} of key {entry.key} is before it"
            for each in self.waiting
            if each.key == entry.key and each.first < entry.first
        ]
        return held + before

    def owed(self) -> list[int]:
        """What somebody would take now and did not get."""
        takers = [each for each in self.consumers if each.takes_more]
        if not takers:
            return []
        if self.kind != "Key_Shared":
            return [each.first for each in self.waiting]
        if len(takers) < len(self.consumers):
            # Whose keys they are only the ring knows.
            return []
        under_way = {self.topic.at(first).key for first in self.holders}
        return [each.first for each in self.waiting if each.key not in under_way]
