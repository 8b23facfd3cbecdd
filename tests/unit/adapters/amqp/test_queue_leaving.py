"""A queue that is deleted while thousands wait for their dead letters: in turn, and in order."""

from itertools import pairwise

import pytest

from kit.amqp.management_tool import ManagementTool
from kit.amqp.peer import AmqpBench
from penstock.engine.subscription.settle import REJECTS_PER_TURN
from penstock.wire.amqp.frames import content_frames, method_frame
from penstock.wire.amqp.methods.basic import Cancel, Consume, Nack, Publish, Return
from penstock.wire.amqp.methods.channel import Close
from penstock.wire.amqp.methods.queue import Declare, DeclareOk, Delete, DeleteOk, Purge, PurgeOk
from penstock.wire.amqp.properties import Properties, encode_properties

PERSISTENT = encode_properties(Properties(delivery_mode=2))
MANY = 4 * REJECTS_PER_TURN + 3
LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}


class Scene:
    """A queue full of messages that its consumer has just refused; nothing is buried yet."""

    def __init__(self, *, ready=0, **declared):
        self.bench = AmqpBench()
        self.client = client = self.bench.client()
        self.other = self.bench.client()
        client.open(2)
        client.call(2, Declare(queue="grave", is_durable=True))
        arguments = LETTERS | declared.pop("arguments", {})
        client.call(1, Declare(queue="q", arguments=arguments, **declared))
        self.publish(MANY)
        client.call(1, Consume(queue="q", consumer_tag="c"))
        self.held = client.session.channels[1].consumers.unacked
        while self.held.count < MANY:
            client.turn()
        client.take()
        if ready:
            client.send(1, Cancel("c"))
            self.publish(ready)
            client.take()
        self.refusal = method_frame(1, Nack(0, is_multiple=True))

    def publish(self, count):
        for start in range(0, count, 500):
            self.client.raw(self.message("q") * min(500, count - start))
            self.client.turn()

    def message(self, key, *, is_mandatory=False):
        frames = content_frames(2, PERSISTENT, b"x", self.client.frame_max)
        return method_frame(2, Publish(0, "", key, is_mandatory)) + frames

    @property
    def book(self):
        return self.bench.broker.vhosts["/"].queues

    @property
    def letters(self):
        return self.book.get("grave").topic.queues[0].index.next_offset

    def each_turn(self):
        """Turn by turn, as a server does, until nothing moves: how many are buried then."""
        seen = [self.letters]
        for _ in range(1000):
            engine = self.bench.engine
            is_quiet = not engine.needs_turn
            if not is_quiet:
                engine.turn()
            self.client.hear()
            self.other.hear()
            seen.append(self.letters)
            if not self.bench.sync() and is_quiet and not engine.needs_turn:
                break
        return seen

    def check_turns(self):
        seen = self.each_turn()
        assert max(after - before for before, after in pairwise(seen)) <= REJECTS_PER_TURN
        assert seen[-1] == MANY
        assert self.book.get("q") is None


def test_a_deleted_queue_buries_them_in_turn_and_answers_with_what_was_ready():
    scene = Scene(ready=5, is_durable=True)
    scene.client.raw(scene.refusal + method_frame(1, Delete(queue="q")))
    assert scene.book.get("q").is_deleting
    scene.check_turns()
    answer = scene.client.answer(1)
    assert isinstance(answer, DeleteOk)
    assert answer.messages == 5


def test_delete_ok_leaves_when_they_are_durable_and_not_before():
    scene = Scene(is_durable=True)
    scene.client.raw(scene.refusal + method_frame(1, Delete(queue="q")))
    scene.bench.turns()
    assert scene.letters == MANY
    assert scene.client.methods(1) == []
    assert not scene.client.session.is_reading
    scene.client.turn()
    assert isinstance(scene.client.answer(1), DeleteOk)
    assert scene.client.session.is_reading


@pytest.mark.parametrize("is_nowait", [True, False])
def test_what_is_behind_a_delete_finds_the_queue_gone(is_nowait):
    scene = Scene()
    scene.client.raw(
        scene.refusal
        + method_frame(1, Delete(queue="q", is_nowait=is_nowait))
        + scene.message("q", is_mandatory=True)
        + method_frame(2, Declare(queue="q"))
    )
    scene.client.turn()
    kinds = [type(method) for method in scene.client.methods(2)]
    assert kinds == [Return, DeclareOk]
    assert scene.letters == MANY
    assert scene.book.get("q").arguments == {}, "made anew, without letters"


def test_a_queue_that_an_operator_deletes_buries_them_in_turn_too(monkeypatch):
    scene = Scene(is_durable=True)
    seen = []
    monkeypatch.setattr(scene.bench, "settle", lambda: seen.extend(scene.each_turn()))
    scene.client.raw(scene.refusal)
    assert ManagementTool(scene.bench)("DELETE", "/api/queues/%2F/q")[0] == 204
    assert max(after - before for before, after in pairwise(seen)) <= REJECTS_PER_TURN
    assert seen[-1] == MANY
    assert scene.book.get("q") is None


def test_an_exclusive_queue_buries_them_when_its_connection_is_gone():
    scene = Scene(is_exclusive=True)
    scene.client.raw(scene.refusal)
    scene.client.leave()
    scene.check_turns()


def test_so_does_a_queue_that_goes_with_its_last_consumer():
    scene = Scene(is_auto_delete=True, is_durable=True)
    scene.client.raw(scene.refusal + method_frame(1, Cancel("c")))
    scene.check_turns()


@pytest.mark.parametrize("declared", [{"is_exclusive": True}, {"is_auto_delete": True}])
def test_whoever_declares_it_again_waits_until_it_is_gone(declared):
    scene = Scene(**declared)
    scene.client.raw(scene.refusal)
    scene.client.leave()
    assert scene.book.get("q").is_deleting
    scene.other.send(1, Declare(queue="q", **declared))
    scene.other.send(1, Declare(queue="", is_exclusive=True))
    assert scene.other.methods(1) == []
    scene.other.turn()
    assert [type(method) for method in scene.other.methods(1)] == [DeclareOk, DeclareOk]
    assert not scene.book.get("q").is_deleting
    assert scene.letters == MANY


def test_a_second_delete_finds_nothing_to_delete():
    scene = Scene()
    scene.client.raw(scene.refusal + method_frame(1, Delete(queue="q")))
    scene.other.send(1, Delete(queue="q"))
    scene.other.turn()
    assert scene.other.answer(1) == DeleteOk(0)
    assert scene.client.answer(1) == DeleteOk(0)


def test_a_purge_buries_nobody_and_counts_only_what_is_ready():
    scene = Scene(ready=5)
    scene.client.raw(scene.refusal + method_frame(1, Purge(queue="q")))
    assert scene.letters == 0
    scene.client.hear()
    seen = scene.each_turn()
    assert max(after - before for before, after in pairwise(seen)) <= REJECTS_PER_TURN
    assert seen[-1] == MANY
    assert scene.client.answer(1) == PurgeOk(5)


def test_whoever_leaves_while_it_waits_does_not_keep_the_queue():
    scene = Scene(is_durable=True)
    scene.client.raw(scene.refusal + method_frame(1, Delete(queue="q")))
    scene.client.leave()
    scene.check_turns()


def test_an_unreadable_frame_behind_a_delete_is_heard_of_after_it():
    scene = Scene()
    scene.client.raw(scene.refusal + method_frame(1, Delete(queue="q")) + b"\x09" * 8)
    scene.client.turn()
    assert isinstance(scene.client.answer(1), DeleteOk)
    assert scene.client.session.is_over


@pytest.mark.parametrize("end", ["kill", "cut_power"])
def test_after_a_crash_in_the_midst_the_queue_is_there_with_those_who_were_not_buried(end):
    scene = Scene(is_durable=True)
    scene.client.raw(scene.refusal + method_frame(1, Delete(queue="q")))
    for _ in range(2):
        scene.bench.engine.turn()
        scene.bench.sync()
    assert 0 < scene.letters < MANY
    getattr(scene.bench, end)()
    queue = scene.book.get("q")
    assert queue.topic.dead_letter_router is not None
    peer = scene.bench.client()
    peer.turn()
    assert scene.letters + queue.ready == MANY
    assert peer.call(1, Delete(queue="q")) == DeleteOk(MANY - scene.letters)


def test_the_channel_may_be_closed_while_its_delete_waits():
    scene = Scene()
    scene.client.raw(scene.refusal + method_frame(1, Delete(queue="q")))
    scene.client.raw(method_frame(1, Close(200, "", 0, 0)))
    scene.client.turn()
    names = [type(method).__name__ for method in scene.client.methods(1)]
    assert names == ["DeleteOk", "Cancel", "CloseOk"]
