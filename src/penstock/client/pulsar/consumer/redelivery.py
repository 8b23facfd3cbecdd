"""What has to come again: messages not acked in time, messages given back, and dead letters.

``UnackedTracker`` knows what the application has and for how long; ``NegativeAcks`` what it gave
back, and when that is to be asked for. Both deal in entries: a broker sends entries again, not
single messages of a batch. ``DeadLetterCandidates`` keeps messages that came so often that the
next time they go to the dead-letter topic instead (as Pulsar's Java client does it).

Pure: time is an argument. Bounds: ``TRACKED_MAX`` entries of each kind; of those the application
has the oldest is forgotten, of those given back the newest, and then it comes again only when the
consumer reconnects.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.client.pulsar.message import EntryId, MessageId, ReceivedMessage
from penstock.client.pulsar.options import DeadLetterPolicy, RedeliveryBackoff
from penstock.model.clock import Deadlines

TRACKED_MAX: Final = 1_000_000
DEAD_CANDIDATES_MAX: Final = 10_000
"""Messages at the end of their lives, with their bodies."""

STRAY_MS: Final = 500
"""So long a chunk is waited for that others came before; twice as long each time."""
STRAY_RETURNS_MAX: Final = 6
"""Of a message whose producer died in the midst of it the rest never comes."""

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
RECONSUME_TIMES: Final = "RECONSUMETIMES"
DELAY_TIME: Final = "DELAY_TIME"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_ID_OLD: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""Java's own two names for it, the second of which is older."""


class UnackedTracker:
    """Entries the application has received and not acked, oldest first; ack time-out."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms: Final = timeout_ms
        self._since: OrderedDict[EntryId, int] = OrderedDict()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._since)

    def add(self, entry: EntryId, now_ms: int) -> None:
        """A message of it was received; the time of the last one counts."""
        since = self._since
        if entry in since:
            since.move_to_end(entry)
        elif len(since) >= TRACKED_MAX:
            since.popitem(last=False)
            self.dropped += 1
        since[entry] = now_ms

    def remove(self, entry: EntryId) -> None:
        self._since.pop(entry, None)

    def remove_up_to(self, entry: EntryId) -> None:
        """A cumulative ack."""
        for each in [each for each in self._since if each <= entry]:
            del self._since[each]

    def clear(self) -> None:
        self._since.clear()

    def due(self, now_ms: int) -> list[EntryId]:
        """Those whose time is up; they are no longer tracked."""
        found = []
        while self._since:
            entry, since_ms = next(iter(self._since.items()))
            if since_ms + self.timeout_ms > now_ms:
                break
            del self._since[entry]
            found.append(entry)
        return found


class NegativeAcks:
    """Entries given back, by the time at which they are asked for again."""

    def __init__(self, delay_ms: int, backoff: RedeliveryBackoff | None = None) -> None:
        self._delay_ms = delay_ms
        self._backoff = backoff
        self._deadlines: Deadlines[EntryId] = Deadlines()

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def next_ms(self) -> int | None:
        """When to look; None = nothing was given back."""
        heap = self._deadlines.heap
        return heap[0][0] if heap else None

    def add(self, entry: EntryId, redelivery_count: int, now_ms: int, least_ms: int = 0) -> None:
        """Give one message back; of a batch that was given back already nothing changes."""
        if entry in self._deadlines:
            return
        backoff = self._backoff
        delay_ms = self._delay_ms if backoff is None else backoff.delay_ms(redelivery_count)
        self._add_at(entry, now_ms + max(delay_ms, least_ms))

    def add_stray(self, entry: EntryId, redelivery_count: int, now_ms: int) -> None:
        """A chunk that came in the wrong order; one that never fits is left alone after a while."""
        if redelivery_count < STRAY_RETURNS_MAX and entry not in self._deadlines:
            self._add_at(entry, now_ms + (STRAY_MS << redelivery_count))

    def _add_at(self, entry: EntryId, due_ms: int) -> None:
        if len(self._deadlines) < TRACKED_MAX:
            self._deadlines.arm(entry, due_ms)

    def remove(self, entry: EntryId) -> None:
        """It was acked after all."""
        self._deadlines.disarm(entry)

    def clear(self) -> None:
        self._deadlines.clear()

    def due(self, now_ms: int) -> list[EntryId]:
        """Those to ask for now."""
        return self._deadlines.take_due(now_ms)


class DeadLetterCandidates:
    """Messages whose next redelivery is their death; cleared on every reconnect (B23)."""

    def __init__(self, policy: DeadLetterPolicy) -> None:
        self.policy: Final = policy
        self._candidates: dict[EntryId, list[ReceivedMessage]] = {}
        self._messages = 0

    def __len__(self) -> int:
        return self._messages

    def judge(self, messages: list[ReceivedMessage], redelivery_count: int) -> bool:
        """An entry came for the how-manieth time; True = it must not be handed out any more."""
        if not messages or redelivery_count < self.policy.redeliveries_max:
            return False
        entry = messages[0].message_id.entry
        if entry not in self._candidates and self._messages < DEAD_CANDIDATES_MAX:
            self._candidates[entry] = list(messages)
            self._messages += len(messages)
        return redelivery_count > self.policy.redeliveries_max and entry in self._candidates

    def settled(self, message_id: MessageId) -> None:
        """It was acked: it lives on elsewhere."""
        left = self._candidates.get(message_id.entry)
        if left is None:
            return
        kept = [each for each in left if each.message_id != message_id]
        self._messages -= len(left) - len(kept)
        if kept:
            self._candidates[message_id.entry] = kept
        else:
            del self._candidates[message_id.entry]

    def take(self, entry: EntryId) -> list[ReceivedMessage]:
        """Messages of an entry that is asked for again and must not come: to be sent away."""
        found = self._candidates.pop(entry, [])
        self._messages -= len(found)
        return found

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        """They could not be sent away; the next redelivery tries again."""
        if messages and self._messages < DEAD_CANDIDATES_MAX:
            self._candidates[messages[0].message_id.entry] = messages
            self._messages += len(messages)

    def clear(self) -> None:
        self._candidates.clear()
        self._messages = 0


def dead_letter_properties(message: ReceivedMessage) -> dict[str, str]:
    """What a dead letter says of where it was: the first place, however often it moved."""
    properties = dict(message.properties)
    properties.setdefault(REAL_TOPIC, message.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, str(message.message_id))
    properties.setdefault(ORIGIN_MESSAGE_ID_OLD, str(message.message_id))
    return properties


def retry_properties(
    message: ReceivedMessage, subscription: str, delay_ms: int
) -> tuple[dict[str, str], int]:
    """Properties of a retry letter, and how often it will have been consumed anew."""
    properties = dead_letter_properties(message)
    told = properties.get(RECONSUME_TIMES, "0")
    times = (int(told) if told.isdecimal() and len(told) < 10 else 0) + 1
    properties.setdefault(REAL_SUBSCRIPTION, subscription)
    properties[RECONSUME_TIMES] = str(times)
    properties[DELAY_TIME] = str(delay_ms)
    return properties, times


def dead_letter_topic(policy: DeadLetterPolicy, topic: str, subscription: str) -> str:
    return policy.dead_letter_topic or f"{topic}-{subscription}-DLQ"


def retry_letter_topic(policy: DeadLetterPolicy | None, topic: str, subscription: str) -> str:
    given = None if policy is None else policy.retry_letter_topic
    return given or f"{topic}-{subscription}-RETRY"
