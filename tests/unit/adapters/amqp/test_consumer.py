"""Deliveries on their way out: several queues, priorities, slow readers."""

from __future__ import annotations

from typing import cast

import pytest

from kit.amqp.peer import AmqpBench, AmqpPeer
from penstock.adapters.amqp.consumer import (
    RUN_AGE_MS_MAX,
    AttachedConsumer,
    UnackedTags,
    tag_ranges,
)
from penstock.adapters.amqp.topology.queue import AmqpQueue
from penstock.engine.subscription.subscription import Subscription
from penstock.model.ids import QueueId
from penstock.model.record import neutral_record
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.wire.amqp.codes import AmqpError, ReplyCode
from penstock.wire.amqp.methods import channel as channel_methods
from penstock.wire.amqp.methods import connection
from penstock.wire.amqp.methods.basic import (
    Ack,
    Consume,
    Deliver,
    Nack,
    Qos,
    QosOk,
    Recover,
    RecoverAsync,
    RecoverOk,
    Reject,
)
from penstock.wire.amqp.methods.channel import (
    Close,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
)
from penstock.wire.amqp.methods.queue import Declare, DeclareOk
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties


def came(peer: AmqpPeer) -> list[bytes]:
    peer.turn()
    return [heard.body for heard in peer.take() if isinstance(heard.method, Deliver)]


def fill(peer: AmqpPeer, count: int, queue: str = "q") -> None:
    for number in range(count):
        peer.publish(1, "", queue, b"%d" % number)
    peer.turn()


def test_different_messages_travel_in_one_list() -> None:
    peer = AmqpBench().client(frame_max=4096)
    peer.call(1, Declare(queue="q"))
    properties = encode_properties(Properties(content_type="text/plain", headers={"a": [1, "b"]}))
    bodies = [b"", b"short", b"long" * 3000, b"short"]
    for body in bodies:
        peer.publish(1, "", "q", body, properties)
    peer.turn()
    peer.call(1, Consume(queue="q"))
    peer.turn()
    heard = [each for each in peer.take() if isinstance(each.method, Deliver)]
    assert [each.body for each in heard] == bodies
    assert {each.properties for each in heard} == {properties}


def test_the_highest_priority_comes_first_and_acks_find_their_queues() -> None:
    peer = AmqpBench().client()
    peer.call(1, Declare(queue="q", arguments={"x-max-priority": 3}))
    for number, priority in enumerate((0, 3, 1, 3, 0)):
        peer.publish(1, "", "q", b"%d" % number, encode_properties(Properties(priority=priority)))
    peer.turn()
    peer.call(1, Consume(queue="q"))
    assert came(peer) == [b"1", b"3", b"2", b"0", b"4"]
    peer.send(1, Ack(2), Ack(4), Ack(3))
    peer.turn()
    queue = peer.bench.broker.vhosts["/"].queues.get("q")
    assert queue is not None
    assert (queue.ready, queue.unacked) == (0, 2)


def test_a_peer_that_does_not_read_gets_no_more() -> None:
    bench = AmqpBench()
    slow, quick = bench.client(), bench.client()
    for name in ("q", "p"):
        slow.call(1, Declare(queue=name))
    slow.unsent_bytes = 1
    slow.call(1, Consume(queue="q", is_no_ack=True))
    quick.call(1, Consume(queue="p", is_no_ack=True))
    limit = bench.settings.flow.unsent_messages_max
    fill(quick, 3 * limit)
    fill(quick, 3 * limit, "p")
    assert len(came(slow)) == limit
    assert len(came(quick)) == 3 * limit
    assert came(slow) == []
    # The socket takes it: the rest follows.
    slow.unsent_bytes = 0
    assert len(came(slow)) == 2 * limit


def test_all_consumers_of_a_connection_share_its_backlog() -> None:
    bench = AmqpBench()
    slow, quick = bench.client(), bench.client()
    slow.call(1, Declare(queue="q"))
    slow.unsent_bytes = 1
    for tag in ("a", "b", "c"):
        slow.call(1, Consume(queue="q", consumer_tag=tag))
    slow.open(2)
    slow.call(2, Consume(queue="q", consumer_tag="d"))
    limit = bench.settings.flow.unsent_messages_max
    fill(quick, 3 * limit)
    assert len(came(slow)) == limit
    slow.unsent_bytes = 0
    assert len(came(slow)) == 2 * limit


def test_deliveries_behind_an_answer_that_waits_count_as_unsent() -> None:
    bench = AmqpBench()
    peer, other = bench.client(), bench.client()
    peer.call(1, Declare(queue="q"))
    peer.call(1, Consume(queue="q", is_no_ack=True))
    peer.send(1, Declare(queue="durable", is_durable=True))
    other.publish(1, "", "q", b"one")
    bench.engine.turn()
    peer.hear()
    assert peer.received == []
    assert peer.session.unsent.messages == 1
    peer.turn()
    assert isinstance(peer.answer(1), DeclareOk)
    assert came(peer) == [b"one"]
    assert peer.session.unsent.messages == 0


def test_records_of_another_protocol_are_presented() -> None:
    bench = AmqpBench()
    topic = bench.topic("made-elsewhere", queues=3)
    peer = bench.client()
    peer.call(1, Consume(queue="made-elsewhere", consumer_tag="c"))
    bench.publish(bench.channel(), topic, b"a", b"b")
    peer.turn()
    heard = [each for each in peer.take() if isinstance(each.method, Deliver)]
    assert sorted(each.body for each in heard) == [b"a", b"b"]
    assert isinstance(heard[0].method, Deliver)
    assert (heard[0].method.exchange, heard[0].method.routing_key) == ("", "made-elsewhere")
    peer.send(1, Ack(0, is_multiple=True))
    peer.turn()
    assert peer.session.channels[1].consumers.unacked_count == 0


def test_a_batch_of_another_protocol_is_one_delivery_and_settled_as_a_whole() -> None:
    bench = AmqpBench()
    topic = bench.topic("batches")
    peer = bench.client()
    peer.call(1, Consume(queue="batches", consumer_tag="c"))
    batch = neutral_record(b"five in one")
    batch.reshape(messages=5)
    bench.publish(bench.channel(), topic, b"single", batch, b"another")
    assert came(peer) == [b"single", b"five in one", b"another"]
    queue = bench.broker.vhosts["/"].queues.get("batches")
    assert queue is not None
    assert queue.unacked == 7
    peer.send(1, Ack(2))
    peer.turn()
    assert queue.unacked == 2
    peer.send(1, Ack(3, is_multiple=True))
    peer.turn()
    assert (queue.ready, queue.unacked) == (0, 0)


def test_what_the_engine_would_not_store_is_refused_by_its_header() -> None:
    peer = AmqpBench(Settings(topics=TopicSettings(message_bytes_max=1000))).client()
    peer.call(1, Declare(queue="q"))
    peer.publish(1, "", "q", b"x" * 1001)
    peer.turn()
    close = peer.answer(1)
    assert isinstance(close, Close)
    assert close.reply_text == (
        "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    )


# ---- unacked ------------------------------------------------------------------------------------
# The ledger of delivery tags, by examples; the law is in ``property/test_unacked_ledger.py``.


A, B = cast("list[AttachedConsumer]", [object(), object()])
Q = QueueId(7)


def ledger(count: int = 0) -> UnackedTags:
    """Tags 1 to ``count`` with offsets from 100 on."""
    unacked = UnackedTags()
    if count:
        unacked.add(A, Q, list(range(100, 100 + count)), 0)
    return unacked


def offsets(unacked: UnackedTags, *tags: int, is_multiple: bool = False) -> list[int]:
    take = unacked.take_multiples if is_multiple else unacked.take_each
    pieces, unknown = take(list(tags))
    assert unknown is None
    return [offset for piece in pieces for offset in piece.settled_offsets]


def test_tags_begin_with_one_and_count_everything() -> None:
    unacked = UnackedTags()
    assert unacked.add(A, Q, [5, 6], 0) == 1
    assert unacked.skip(3) == 3
    assert unacked.add_batch(A, Q, [7, 8, 9], 0) == 6
    assert unacked.add(B, Q, [10], 0) == 7
    assert unacked.count == 4


def test_one_ack_in_the_middle_leaves_both_sides() -> None:
    unacked = ledger(5)
    assert offsets(unacked, 3) == [102]
    assert unacked.count == 4
    assert offsets(unacked, 4, is_multiple=True) == [100, 101, 103]
    assert offsets(unacked, 5) == [104]


def test_acks_of_neighbours_are_one_piece() -> None:
    unacked = ledger(1000)
    pieces, unknown = unacked.take_each(list(range(1, 501)))
    assert unknown is None
    assert [piece.tags for piece in pieces] == [500]
    pieces, unknown = unacked.take_each(list(range(1000, 500, -1)))
    assert unknown is None
    assert [piece.tags for piece in pieces] == [500]
    assert unacked.count == 0


def test_a_batch_is_one_tag_with_all_its_offsets() -> None:
    unacked = UnackedTags()
    unacked.add(A, Q, [1], 0)
    unacked.add_batch(A, Q, [2, 3, 4], 0)
    unacked.add(A, Q, [5], 0)
    assert offsets(unacked, 2) == [2, 3, 4]
    assert unacked.count == 2


def test_an_unknown_tag_is_told_and_what_was_before_it_is_taken() -> None:
    unacked = ledger(4)
    pieces, unknown = unacked.take_each([3, 1, 9, 2])
    assert unknown == 9
    assert sorted(piece.settled_offsets[0] for piece in pieces) == [100, 102]
    assert unacked.count == 2


def test_an_unknown_tag_of_a_nack_is_an_error() -> None:
    unacked = ledger(2)
    with pytest.raises(AmqpError, match="unknown delivery tag 3") as caught:
        unacked.take(3, is_multiple=True)
    assert caught.value.code is ReplyCode.PRECONDITION_FAILED
    assert unacked.count == 2


def test_zero_means_all_only_when_it_is_multiple() -> None:
    unacked = ledger(2)
    with pytest.raises(AmqpError, match="unknown delivery tag 0"):
        unacked.take(0, is_multiple=False)
    assert unacked.take(0, is_multiple=True)
    assert unacked.take(0, is_multiple=True) == []


def test_what_was_taken_can_be_put_back() -> None:
    unacked = ledger(6)
    pieces = unacked.take(4, is_multiple=False) + unacked.take(2, is_multiple=True)
    unacked.put_back(pieces)
    assert unacked.count == 6
    assert offsets(unacked, 6, is_multiple=True) == [100, 101, 102, 103, 104, 105]


def test_a_run_is_as_old_as_its_first_delivery() -> None:
    unacked = UnackedTags()
    assert unacked.oldest_ms is None
    unacked.add(A, Q, [1], 1000)
    unacked.add(A, Q, [2], 1000 + RUN_AGE_MS_MAX - 1)
    unacked.add(A, Q, [3], 1000 + RUN_AGE_MS_MAX)
    assert unacked.oldest_ms == 1000
    unacked.take(2, is_multiple=True)
    assert unacked.oldest_ms == 1000 + RUN_AGE_MS_MAX


def test_ranges_of_tags_are_found_in_any_order() -> None:
    assert tag_ranges([4]) == [(4, 4)]
    assert tag_ranges([4, 5, 6]) == [(4, 6)]
    assert tag_ranges([9, 5, 4, 7, 6]) == [(4, 7), (9, 9)]
    assert tag_ranges([4, 4]) == [(4, 4), (4, 4)]


def test_rising_multiple_acks_of_one_run_are_one_piece() -> None:
    unacked = ledger(10)
    pieces, unknown = unacked.take_multiples([3, 5, 8])
    assert unknown is None
    assert [piece.settled_offsets for piece in pieces] == [list(range(100, 108))]
    assert unacked.count == 2


def test_of_multiple_acks_those_before_the_unknown_one_are_settled() -> None:
    unacked = ledger(10)
    unacked.take_each([5])
    pieces, unknown = unacked.take_multiples([3, 5, 8])
    assert unknown == 5
    assert [offset for piece in pieces for offset in piece.settled_offsets] == [100, 101, 102]
    assert unacked.count == 6


# ---- settling -----------------------------------------------------------------------------------
# ack, nack, reject and recover: what a channel says of messages it was given.


QUORUM = {"x-queue-type": "quorum"}


class Scene:
    """A queue with some messages in the hands of one consumer."""

    def __init__(self, count: int, **declared: object) -> None:
        self.bench = AmqpBench()
        self.peer = self.bench.client()
        arguments = declared.pop("arguments", {})
        assert isinstance(arguments, dict)
        is_durable = bool(arguments)
        self.peer.call(1, Declare(queue="q", is_durable=is_durable, arguments=arguments))
        self.peer.open(2)
        self.peer.call(2, Consume(queue="q", consumer_tag="c"))
        for number in range(1, count + 1):
            self.peer.publish(1, "", "q", b"%d" % number)
        self.peer.turn()
        assert [tag for tag, _, _ in self.came()] == list(range(1, count + 1))

    @property
    def queue(self) -> AmqpQueue:
        found = self.bench.broker.vhosts["/"].queues.get("q")
        assert found is not None
        return found

    @property
    def counts(self) -> tuple[int, int]:
        """Ready and unacked."""
        return self.queue.ready, self.queue.unacked

    def came(self) -> list[tuple[int, bool, bytes]]:
        """Delivery tag, redelivered and body of everything new."""
        self.peer.turn()
        return [
            (heard.method.delivery_tag, heard.method.is_redelivered, heard.body)
            for heard in self.peer.take()
            if isinstance(heard.method, Deliver)
        ]

    def closed(self, channel: int = 2) -> str:
        """Why the channel was closed."""
        close = self.peer.answer(channel)
        assert isinstance(close, (channel_methods.Close, connection.Close))
        return close.reply_text


def test_one_ack_settles_one_message() -> None:
    scene = Scene(3)
    scene.peer.send(2, Ack(2))
    scene.peer.turn()
    assert scene.counts == (0, 2)


def test_acks_in_any_order_settle_all_they_name() -> None:
    scene = Scene(5)
    scene.peer.send(2, Ack(4), Ack(1), Ack(2), Ack(5))
    scene.peer.turn()
    assert scene.counts == (0, 1)
    assert scene.peer.session.channels[2].consumers.unacked_count == 1


def test_a_multiple_ack_settles_everything_up_to_its_tag() -> None:
    scene = Scene(5)
    scene.peer.send(2, Ack(2), Ack(4, is_multiple=True))
    scene.peer.turn()
    assert scene.counts == (0, 1)


def test_tag_zero_and_multiple_settle_all_there_are() -> None:
    scene = Scene(3)
    scene.peer.send(2, Ack(0, is_multiple=True), Ack(0, is_multiple=True))
    scene.peer.turn()
    assert scene.counts == (0, 0)


@pytest.mark.parametrize("ack", [Ack(4), Ack(4, is_multiple=True), Ack(0), Nack(4), Reject(4)])
def test_a_tag_nobody_knows_costs_the_channel(ack: Ack | Nack | Reject) -> None:
    scene = Scene(3)
    scene.peer.send(2, ack)
    scene.peer.turn()
    assert scene.closed() == f"PRECONDITION_FAILED - unknown delivery tag {ack.delivery_tag}"
    assert scene.counts == (3, 0)


def test_what_was_acked_before_an_unknown_tag_stays_acked() -> None:
    scene = Scene(3)
    scene.peer.send(2, Ack(1), Ack(1), Ack(2))
    scene.peer.turn()
    assert scene.closed() == "PRECONDITION_FAILED - unknown delivery tag 1"
    assert scene.counts == (2, 0)


@pytest.mark.parametrize("back", [Nack(2, is_requeue=True), Reject(2, is_requeue=True)])
def test_what_is_requeued_comes_again_and_says_so(back: Nack | Reject) -> None:
    scene = Scene(3)
    scene.peer.send(2, back)
    assert scene.came() == [(4, True, b"2")]


def test_requeued_messages_take_their_original_place() -> None:
    scene = Scene(3)
    scene.peer.call(2, Qos(0, 3, is_global=True))
    scene.peer.publish(1, "", "q", b"4")
    assert scene.came() == []
    scene.peer.send(2, Nack(2, is_multiple=True, is_requeue=True))
    assert scene.came() == [(4, True, b"1"), (5, True, b"2")]
    scene.peer.send(2, Ack(0, is_multiple=True))
    assert scene.came() == [(6, False, b"4")]


def test_what_is_rejected_is_gone() -> None:
    scene = Scene(3)
    scene.peer.send(2, Reject(1, is_requeue=False))
    scene.peer.send(2, Nack(3, is_multiple=True, is_requeue=False))
    scene.peer.turn()
    assert scene.counts == (0, 0)
    assert scene.came() == []


def test_what_is_rejected_goes_to_the_dead_letter_exchange() -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    scene = Scene(2, arguments=arguments)
    scene.peer.call(1, Declare(queue="grave"))
    scene.peer.call(1, Consume(queue="grave", consumer_tag="d"))
    scene.peer.send(2, Nack(0, is_multiple=True, is_requeue=False))
    scene.peer.turn()
    letters = [heard for heard in scene.peer.take() if isinstance(heard.method, Deliver)]
    assert [heard.body for heard in letters] == [b"1", b"2"]
    headers = decode_properties(letters[0].properties).headers
    assert headers is not None
    assert headers["x-death"][0]["reason"] == "rejected"


def buried(scene: Scene) -> list[bytes]:
    """What is in the grave, in order."""
    scene.peer.turn()
    scene.peer.take()
    scene.peer.call(1, Consume(queue="grave", consumer_tag="d", is_no_ack=True))
    scene.peer.turn()
    return [each.body for each in scene.peer.take() if isinstance(each.method, Deliver)]


def mortal(count: int, **arguments: object) -> Scene:
    """A queue whose dead are kept."""
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
    scene = Scene(count, arguments=letters | arguments)
    scene.peer.call(1, Declare(queue="grave"))
    return scene


@pytest.mark.parametrize("verb", ["requeue", "reject", "settle"])
def test_a_row_of_single_words_is_one_verb(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(60)
    word = {
        "requeue": lambda tag: (Nack if tag % 2 else Reject)(tag, is_requeue=True),
        "reject": lambda tag: (Nack if tag % 2 else Reject)(tag),
        "settle": Ack,
    }[verb]
    lists: list[int] = []
    genuine = getattr(Subscription, verb)

    def counted(
        subscription: Subscription, queue_id: QueueId, offsets: list[int], **options: bool
    ) -> int:
        lists.append(len(offsets))
        done = genuine(subscription, queue_id, offsets, **options)
        assert isinstance(done, int)
        return done

    monkeypatch.setattr(Subscription, verb, counted)
    scene.peer.send(2, *map(word, range(1, 61)))
    assert lists == [60]


def test_words_of_all_kinds_may_come_in_any_order() -> None:
    scene = mortal(6)
    scene.peer.send(
        2, Nack(6), Ack(3), Reject(1, is_requeue=True), Nack(2), Ack(5), Nack(4, is_requeue=True)
    )
    assert [body for _, _, body in scene.came()] == [b"1", b"4"]
    assert scene.counts == (0, 2)
    assert buried(scene) == [b"6", b"2"]


def test_what_was_said_before_an_unknown_tag_holds_and_nothing_after_it() -> None:
    scene = mortal(6)
    scene.peer.send(2, Nack(2), Ack(1), Reject(3), Nack(2, is_requeue=True), Ack(5), Nack(6))
    scene.peer.turn()
    close = scene.peer.answer(2)
    assert isinstance(close, channel_methods.Close)
    assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 2"
    assert (close.failing_class, close.failing_method) == (60, Nack.method_id)
    assert scene.counts == (3, 0)
    assert buried(scene) == [b"2", b"3"]


@pytest.mark.parametrize("tags", [[3, 2, 1], [2, 3, 1], [1, 3, 2]])
def test_letters_are_in_the_order_in_which_they_were_refused(tags: list[int]) -> None:
    scene = mortal(3)
    scene.peer.send(2, *[Nack(tag) for tag in tags])
    assert buried(scene) == [b"%d" % tag for tag in tags]


def test_who_came_back_too_often_is_buried_between_those_who_were_refused() -> None:
    scene = mortal(4, **{"x-queue-type": "quorum", "x-delivery-limit": 0})
    scene.peer.send(2, Nack(4), Nack(2, is_requeue=True), Nack(3), Nack(1, is_requeue=True))
    assert buried(scene) == [b"4", b"2", b"3", b"1"]


def test_a_rollback_undoes_words_of_all_kinds() -> None:
    scene = mortal(4)
    scene.peer.call(2, TxSelect())
    scene.peer.send(2, Nack(4), Ack(1), Reject(2, is_requeue=True))
    assert isinstance(scene.peer.call(2, TxRollback()), TxRollbackOk)
    assert scene.counts == (0, 4)
    scene.peer.send(2, Ack(2), Nack(3), Reject(1))
    assert isinstance(scene.peer.call(2, TxCommit()), TxCommitOk)
    assert scene.counts == (0, 1)
    assert buried(scene) == [b"3", b"1"]


def test_recover_gives_everything_back() -> None:
    scene = Scene(3)
    scene.peer.send(2, Ack(2))
    assert scene.peer.call(2, Recover(is_requeue=True)) == RecoverOk()
    assert scene.came() == [(4, True, b"1"), (5, True, b"3")]
    scene.peer.send(2, RecoverAsync(is_requeue=True))
    assert scene.came() == [(6, True, b"1"), (7, True, b"3")]


def test_recover_without_requeueing_is_not_implemented() -> None:
    scene = Scene(1)
    scene.peer.send(2, Recover(is_requeue=False))
    assert scene.closed(0).startswith("NOT_IMPLEMENTED - ")


def test_a_quorum_queue_counts_what_comes_back() -> None:
    scene = Scene(1, arguments={**QUORUM, "x-delivery-limit": 2})
    counts = []
    for tag in (1, 2, 3):
        scene.peer.send(2, Reject(tag, is_requeue=True))
        scene.peer.turn()
        for heard in scene.peer.take():
            headers = decode_properties(heard.properties).headers or {}
            counts.append(headers.get("x-delivery-count"))
    # The limit is two: the message is dropped when it would come for the fourth time.
    assert counts == [1, 2]
    assert scene.counts == (0, 0)


def test_a_classic_queue_does_not_count() -> None:
    scene = Scene(1)
    for tag in range(1, 30):
        scene.peer.send(2, Reject(tag, is_requeue=True))
        scene.peer.turn()
    last = scene.peer.take()[-1]
    assert last.properties == b"\0\0"
    assert scene.counts == (0, 1)


def test_a_channel_that_fails_counts_in_quorum_queues_too() -> None:
    scene = Scene(1, arguments=QUORUM)
    scene.peer.send(2, Ack(99))
    scene.peer.turn()
    scene.peer.take()
    scene.peer.open(3)
    scene.peer.call(3, Consume(queue="q", consumer_tag="d"))
    heard = next(each for each in scene.peer.take() if isinstance(each.method, Deliver))
    assert decode_properties(heard.properties).headers == {"x-delivery-count": 1}


def test_acks_wait_for_the_commit() -> None:
    scene = Scene(4)
    assert scene.peer.call(2, TxSelect()) is not None
    scene.peer.send(2, Ack(1), Ack(2))
    scene.peer.send(2, Nack(3, is_requeue=False))
    scene.peer.turn()
    assert scene.counts == (0, 4)
    assert scene.peer.session.channels[2].consumers.unacked_count == 1
    assert scene.peer.call(2, TxCommit()) == TxCommitOk()
    assert scene.counts == (0, 1)


def test_a_rollback_leaves_messages_where_they_were() -> None:
    scene = Scene(3)
    scene.peer.call(2, TxSelect())
    scene.peer.send(2, Ack(2, is_multiple=True))
    assert scene.peer.call(2, TxRollback()) == TxRollbackOk()
    assert scene.came() == []
    assert scene.counts == (0, 3)
    scene.peer.send(2, Ack(3, is_multiple=True))
    assert scene.peer.call(2, TxCommit()) == TxCommitOk()
    assert scene.counts == (0, 0)


def test_settlements_survive_a_crash() -> None:
    scene = Scene(3, arguments={"x-max-length": 100})
    scene.peer.publish(1, "", "q", b"kept", b"\x10\x00\x02")
    scene.peer.turn()
    scene.peer.send(2, Ack(3, is_multiple=True))
    scene.peer.turn()
    scene.bench.kill()
    peer: AmqpPeer = scene.bench.client()
    peer.call(1, Consume(queue="q"))
    heard = [each for each in peer.take() if isinstance(each.method, Deliver)]
    assert [each.body for each in heard] == [b"kept"]
    assert isinstance(heard[0].method, Deliver)
    assert heard[0].method.is_redelivered


def test_unsettled_messages_of_another_channel_are_not_touched() -> None:
    scene = Scene(2)
    scene.peer.send(1, Ack(1))
    assert scene.closed(1) == "PRECONDITION_FAILED - unknown delivery tag 1"
    assert scene.counts == (0, 2)
    assert scene.peer.call(2, Qos()) == QosOk()
