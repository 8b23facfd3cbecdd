"""Dead letters: a message that died becomes a new record in the dead-letter topic (D13).

It is appended in the same frame as the settlement that removes the original, so a crash leaves the
one or the other, never both or none. How it looks is its protocol's business
(``DeadLetterFormat``); records of our own protocol get ``dead.*`` properties. A topic whose
protocol routes dead letters itself has a ``dead_letter_router``, which is asked instead of the
policy and may name several queues.

Dead letters pass no admission: they come from what is already stored. Only a topic that rejects
what is too much has no place for them when it is full, as for anybody else; then they are dropped.
While the disk is slow they wait here, and when a turn's worth of them does, dispatch and expiry
rest until it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.engine.commit import Frame
from penstock.engine.flow_context import FlowContext
from penstock.engine.ports import DeadLetterFormat, Death
from penstock.engine.topic import route_to
from penstock.flow.reason import Culprit
from penstock.log.encode import Appending
from penstock.model.names import TopicName
from penstock.model.record import NO_STAMP, Record, RecordFlag, RecordKind, Wire
from penstock.model.settlement import Cause

if TYPE_CHECKING:
    from penstock.engine.topic import Queue, Topic

NAME_END: Final = b"\x01"
PAIR_END: Final = b"\x02"
"""Separators of the neutral properties string (D3): name 01 value 02."""

PREFIX: Final = b"dead."

_KEPT_FLAGS: Final = int(RecordFlag.TRANSIENT | RecordFlag.COMPRESSED)

Waiting = tuple[Record, tuple["Queue", ...]]


DEAD_LETTERS: Final = "dead-letters"
LETTERS_LOST: Final = "letters-lost"
LETTERS_UNROUTED: Final = "letters-unrouted"
_FAILURES: Final = (Cause.REJECTED, Cause.DELIVERY_LIMIT)
"""Somebody could not cope with it; what expires or is dropped may be meant to."""


class NeutralDeadLetterFormat:
    """Records of our own protocol: the death is written into their properties."""

    def rewrite(self, record: Record, death: Death) -> Record:
        """The same message with ``dead.*`` properties; those of an earlier death are replaced."""
        facts = {
            b"cause": Cause(death.cause).name.lower().encode(),
            b"space": death.space.encode(),
            b"topic": death.topic.encode(),
            b"queue": b"%d" % death.queue,
            b"offset": b"%d" % death.offset,
            b"attempts": b"%d" % death.attempts,
            b"time_ms": b"%d" % death.time_ms,
        }
        kept = [
            pair
            for pair in record.properties.split(PAIR_END)
            if pair and not pair.startswith(PREFIX)
        ]
        pairs = kept + [PREFIX + name + NAME_END + value for name, value in facts.items()]
        properties = b"".join([pair + PAIR_END for pair in pairs])
        head = record.key + record.tag
        copy = plain_copy(record)
        copy.origin = head + properties + record.body
        copy.reshape(
            key_at=0,
            tag_at=record.shape.key_len,
            props_at=len(head),
            props_len=len(properties),
            body_at=len(head) + len(properties),
        )
        return copy


class PlainDeadLetterFormat:
    """Other protocols, until they bring their own: the message as it was."""

    def rewrite(self, record: Record, death: Death) -> Record:
        """The same bytes as a new record."""
        del death
        return plain_copy(record)


class DeadLetters:
    """Deaths since the last frame."""

    def __init__(
        self,
        chain: FlowContext,
        topic_of: Callable[[TopicName], Topic | None],
        formats: Mapping[int, DeadLetterFormat],
    ) -> None:
        self._chain = chain
        self._topic_of = topic_of
        self._formats: dict[int, DeadLetterFormat] = {
            Wire.NEUTRAL: NeutralDeadLetterFormat(),
            **formats,
        }
        self._plain = PlainDeadLetterFormat()
        # Bounded by the in-flight limits of consumers and by what one turn drops or expires.
        self.waiting: list[Waiting] = []
        """Letters that want a frame; to be looked at only."""
        # Of those, messages and body bytes for topics that reject what is too much.
        self._coming: dict[Topic, tuple[int, int]] = {}
        self.dead_lettered = 0
        self.carried = 0
        """Moved to another queue, alive."""
        self.dropped = 0
        """Deaths without a dead-letter target."""
        self._stored_end = 0

    def add(self, queue: Queue, offset: int, record: Record, cause: Cause, attempts: int) -> None:
        """A message died; if its topic names a target, a copy is in the next frame."""
        topic = queue.topic
        letters: list[Waiting] = []
        if cause.is_dead_letter:
            death = Death(
                cause=int(cause),
                space=topic.name.space,
                topic=topic.name.name,
                queue=queue.number,
                offset=offset,
                attempts=attempts,
                time_ms=self._chain.clock.wall_ms(),
            )
            if topic.dead_letter_router is not None:
                letters = list(topic.dead_letter_router.route(record, death))
            else:
                letters = self._by_policy(topic, record, death)
            if not letters and cause in _FAILURES and _has_target(topic):
                self.note(topic.name, None, LETTERS_UNROUTED)
            admitted = [self._admitted(topic, each) for each in letters]
            letters = [each for each in admitted if each[1]]
        if not letters:
            self.dropped += 1
            return
        self.waiting += letters
        self.dead_lettered += 1
        if cause in _FAILURES:
            self._note(topic, letters, DEAD_LETTERS)
        self._chain.request_turn()

    def _note(self, topic: Topic, letters: list[Waiting], cause: str) -> None:
        for target in {queue.topic for _, queues in letters for queue in queues}:
            full_by = target.limits.full_by if target.limits is not None else ""
            limit_id = full_by if cause == LETTERS_LOST else ""
            self.note(target.name, topic.name, cause, limit_id)

    def note(
        self,
        at: TopicName,
        source: TopicName | None,
        cause: str = DEAD_LETTERS,
        limit_id: str = "",
    ) -> None:
        """For the diagnosis: where a letter arrives, or is lost, and whose it is."""
        self._chain.troubles.note(
            cause,
            Culprit(str(at), at.id, limit_id),
            1,
            self._chain.now_ms,
            publisher=None if source is None else Culprit(str(source), source.id),
        )

    def _admitted(self, topic: Topic, waiting: Waiting) -> Waiting:
        """The letter with the queues that have a place for it; in the others it is lost."""
        letter, queues = waiting
        if all(queue.topic.limits is None for queue in queues):
            return waiting
        admitted = tuple([queue for queue in queues if self._has_place(queue.topic, letter)])
        if len(admitted) < len(queues):
            lost = tuple([queue for queue in queues if queue not in admitted])
            self._note(topic, [(letter, lost)], LETTERS_LOST)
        return letter, admitted

    def _has_place(self, topic: Topic, letter: Record) -> bool:
        limits = topic.limits
        if limits is None or not limits.rejects:
            return True
        if not limits.has_place(letter, *self._coming.get(topic, (0, 0))):
            return False
        self._count(topic, letter)
        return True

    def _count(self, topic: Topic, letter: Record) -> None:
        messages, body_bytes = self._coming.get(topic, (0, 0))
        self._coming[topic] = messages + letter.messages, body_bytes + letter.shape.body_len

    def _by_policy(self, topic: Topic, record: Record, death: Death) -> list[Waiting]:
        """One letter to the topic that the policy names, if there is one."""
        name = topic.policy.dead_letter
        target = None if name is None else self._topic_of(name)
        if target is None:
            return []
        death = replace(death, target_space=target.name.space, target_topic=target.name.name)
        letter = self._formats.get(record.wire, self._plain).rewrite(record, death)
        return [] if letter is None else [(letter, route_to(target).targets(letter))]

    def carry(self, record: Record, target: Queue) -> None:
        """A message moves: its copy takes the way of a dead letter, to a queue that is named."""
        self.waiting.append((record, (target,)))
        self.carried += 1
        self._chain.request_turn()

    def put(self, frame: Frame) -> list[Waiting]:
        """Put everything that waits into the frame; what was taken, for ``failed``."""
        taken, self.waiting = self.waiting, []
        self._coming.clear()
        for letter, queues in taken:
            alive = tuple([queue for queue in queues if not queue.is_deleted])
            if alive:
                frame.append(Appending(letter, tuple([queue.index for queue in alive])), alive)
        return taken

    def stored(self, end_position: int) -> None:
        """A frame with letters is written, and ends there."""
        self._stored_end = end_position

    def failed(self, taken: list[Waiting]) -> None:
        """The frame was refused: they go into the next one, before newer ones."""
        self.waiting = taken + self.waiting
        for letter, queues in taken:
            for queue in queues:
                limits = queue.topic.limits
                if limits is not None and limits.rejects:
                    self._count(queue.topic, letter)

    def is_unsafe(self, durable_position: int) -> bool:
        """True while there are dead letters that a crash could undo."""
        return bool(self.waiting) or self._stored_end > durable_position

    @property
    def is_crowded(self) -> bool:
        """True when more than a turn's worth waits for the disk."""
        return len(self.waiting) >= self._chain.flow.turn_messages_max


def _has_target(topic: Topic) -> bool:
    return topic.dead_letter_router is not None or topic.policy.dead_letter is not None


def plain_copy(record: Record) -> Record:
    """A new record with the same bytes and facts, free of times that died with the original."""
    copy = Record(record.origin, record.shape, record.born_ms)
    copy.reshape(
        kind=int(RecordKind.MESSAGE),
        flags=record.flags & _KEPT_FLAGS,
        expire_ms=0,
        deliver_ms=0,
        stamp_offset_at=NO_STAMP,
        stamp_position_at=NO_STAMP,
        stamp_store_ms_at=NO_STAMP,
    )
    return copy
