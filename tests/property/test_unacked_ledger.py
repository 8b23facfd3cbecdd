"""The ledger of delivery tags against a dictionary that knows every tag by itself."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.adapters.amqp.consumer import RUN_TAGS_MAX, AttachedConsumer, TagRun, UnackedTags
from penstock.model.ids import QueueId
from penstock.wire.amqp.codes import AmqpError

HOLDERS = cast("list[AttachedConsumer]", [object(), object()])
QUEUES = [QueueId(1), QueueId(2)]

Place = tuple[Any, int, tuple[int, ...]]


def places(pieces: list[TagRun]) -> dict[int, Place]:
    """Every tag of these pieces: who has it, of which queue, with which offsets."""
    found: dict[int, Place] = {}
    for piece in pieces:
        offsets = piece.settled_offsets
        if piece.at < 0:
            found[piece.first_tag] = (piece.holder, piece.queue_id, tuple(offsets))
            continue
        assert len(offsets) == piece.tags
        for step, offset in enumerate(offsets):
            tag = piece.first_tag + step
            assert tag not in found
            found[tag] = (piece.holder, piece.queue_id, (offset,))
    return found


class Ledger(RuleBasedStateMachine):
    """Every verb, with tags that exist and tags that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.unacked = UnackedTags()
        self.model: dict[int, Place] = {}
        self.next_tag = 1
        self.next_offset = 0
        self.now_ms = 0
        self.aside: list[list[TagRun]] = []

    @rule(who=st.integers(0, 1), where=st.integers(0, 1), count=st.integers(1, 9))
    def deliver(self, who: int, where: int, count: int) -> None:
        offsets = [self.next_offset + step * (1 + where) for step in range(count)]
        self.next_offset = offsets[-1] + 1
        for step, offset in enumerate(offsets):
            self.model[self.next_tag + step] = (HOLDERS[who], QUEUES[where], (offset,))
        first = self.unacked.add(HOLDERS[who], QUEUES[where], offsets, self.now_ms)
        assert first == self.next_tag
        self.next_tag += count

    @rule(who=st.integers(0, 1), span=st.integers(2, 5))
    def deliver_batch(self, who: int, span: int) -> None:
        offsets = list(range(self.next_offset, self.next_offset + span))
        self.next_offset += span
        self.model[self.next_tag] = (HOLDERS[who], QUEUES[0], tuple(offsets))
        assert self.unacked.add_batch(HOLDERS[who], QUEUES[0], offsets, self.now_ms) == (
            self.next_tag
        )
        self.next_tag += 1

    @rule(count=st.integers(1, 3))
    def deliver_without_ack(self, count: int) -> None:
        assert self.unacked.skip(count) == self.next_tag
        self.next_tag += count

    @rule(ms=st.integers(1, 900))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(data=st.data(), is_multiple=st.booleans())
    def nack(self, data: st.DataObject, is_multiple: bool) -> None:
        tag = data.draw(st.integers(0, self.next_tag))
        expected = self._expect([tag], is_multiple=is_multiple)
        if expected[1] is None:
            assert places(self.unacked.take(tag, is_multiple=is_multiple)) == expected[0]
        else:
            with pytest.raises(AmqpError, match=f"unknown delivery tag {tag}$"):
                self.unacked.take(tag, is_multiple=is_multiple)

    @rule(data=st.data(), is_multiple=st.booleans(), is_kept=st.booleans())
    def ack_run(self, data: st.DataObject, is_multiple: bool, is_kept: bool) -> None:
        some = st.lists(st.integers(0, self.next_tag), min_size=1, max_size=12)
        row = st.integers(0, self.next_tag).flatmap(
            lambda first: st.integers(1, 12).map(lambda n: list(range(first, first + n)))
        )
        tags = data.draw(some | row)
        expected = self._expect(tags, is_multiple=is_multiple)
        take = self.unacked.take_multiples if is_multiple else self.unacked.take_each
        pieces, unknown = take(tags)
        assert (places(pieces), unknown) == expected
        if is_kept:
            # As in a transaction that may be rolled back.
            self.aside.append(pieces)

    @rule()
    def roll_back(self) -> None:
        for pieces in reversed(self.aside):
            self.model.update(places(pieces))
            self.unacked.put_back(pieces)
        self.aside = []

    @rule()
    def commit(self) -> None:
        self.aside = []

    @rule()
    def recover(self) -> None:
        expected, self.model = self.model, {}
        assert places(self.unacked.take_all()) == expected

    @invariant()
    def count_is_right(self) -> None:
        assert self.unacked.count == len(self.model)
        assert (self.unacked.oldest_ms is None) == (not self.model)

    def _expect(self, tags: list[int], *, is_multiple: bool) -> tuple[dict[int, Place], int | None]:
        taken: dict[int, Place] = {}
        for tag in tags:
            if is_multiple and not tag:
                taken |= self.model
                self.model = {}
            elif tag not in self.model:
                return taken, tag
            elif is_multiple:
                upto = [each for each in self.model if each <= tag]
                taken |= {each: self.model.pop(each) for each in upto}
            else:
                taken[tag] = self.model.pop(tag)
        return taken, None


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_run_goes_on_only_so_far() -> None:
    unacked = UnackedTags()
    for offset in range(RUN_TAGS_MAX + 10):
        unacked.add(HOLDERS[0], QUEUES[0], [offset], 0)
    pieces = unacked.take_all()
    assert [piece.tags for piece in pieces] == [RUN_TAGS_MAX, 10]
