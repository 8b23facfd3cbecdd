"""ack, nack, reject and recover: what a channel says of messages it was given."""

import pytest

from penstock.adapters.amqp.queue import AmqpQueue
from penstock.engine.subscription.subscription import Subscription
from penstock.model.ids import QueueId
from penstock.testing.amqp_peer import AmqpBench, AmqpPeer
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
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
)
from penstock.wire.amqp.methods.queue import Declare
from penstock.wire.amqp.properties import decode_properties

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
        found = self.bench.house.vhosts["/"].queues.get("q")
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
    assert scene.peer.session.channels[2].consuming.unacked_count == 1


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
    assert scene.peer.session.channels[2].consuming.unacked_count == 1
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
