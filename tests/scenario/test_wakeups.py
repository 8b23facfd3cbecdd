"""Lost wake-ups the simulator found, small (law 4)."""

from penstock.engine.host import Mode, SubscriptionOptions
from penstock.engine.ports import Publication
from penstock.engine.topic import route_to
from penstock.flow.demand import Window
from penstock.model.names import topic_name
from penstock.model.record import neutral_record
from penstock.testing.broker import in_memory_engine

NAME = topic_name("orders")


def test_a_parked_message_behind_one_that_expired_is_delivered():
    core = in_memory_engine()
    topic = core.engine.create_topic(NAME)
    options = SubscriptionOptions(mode=Mode.KEY_SHARED)
    subscription = core.engine.create_subscription(NAME, "s", options)
    peer = core.connect()
    subscription.attach(peer, Window(1), name="c")
    records = [neutral_record(body, key=b"k") for body in (b"1", b"2", b"3")]
    records[1].reshape(expire_ms=core.clock.wall_ms() + 100)
    peer.channel.publish(
        [
            Publication(record=record, queues=(), route=route_to(topic), token=number)
            for number, record in enumerate(records)
        ]
    )
    core.settle()
    assert peer.bodies == [b"1"]
    core.clock.advance(200)
    peer.settle_all(subscription)
    core.settle()
    assert peer.bodies == [b"1", b"3"]
