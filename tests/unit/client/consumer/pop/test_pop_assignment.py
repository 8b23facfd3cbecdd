"""What a broker's assignment changes."""

from penstock.client.consumer.pop import BrokerAssignment, Changes, assigned, changes
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import MessageQueue, QueueAssignment, RequestMode


def ref(queue, broker="b"):
    return QueueRef("t", broker, queue)


def told(*queues, mode=RequestMode.POP, topic="t"):
    return [
        QueueAssignment(
            message_queue=MessageQueue(topic=topic, broker_name="b", queue_id=queue), mode=mode
        )
        for queue in queues
    ]


def test_keep_changes_nothing_and_empty_leaves_everything():
    assert not changes([ref(0)], [ref(1)], None)
    left = changes([ref(0)], [ref(1)], assigned("t", []))
    assert left == Changes(stop_pull=frozenset([ref(0)]), stop_pop=frozenset([ref(1)]))


def test_a_queue_that_changes_its_mode_is_left_and_begun():
    found = changes([ref(0)], [], assigned("t", told(0)))
    assert found.stop_pull == found.start_pop == {ref(0)}
    back = changes([], [ref(0)], assigned("t", told(0, mode=RequestMode.PULL)))
    assert back.stop_pop == back.start_pull == {ref(0)}


def test_all_queues_of_a_broker_are_one_place_to_pop_from():
    found = changes([ref(0), ref(1)], [], assigned("t", told(-1)))
    assert found.start_pop == {ref(-1)}
    assert found.stop_pull == {ref(0), ref(1)}


def test_what_stays_is_not_touched():
    assert not changes(
        [ref(3)], [ref(1)], BrokerAssignment(frozenset([ref(3)]), frozenset([ref(1)]))
    )


def test_queues_of_another_topic_are_not_taken():
    assert assigned("t", told(0, topic="u")) == BrokerAssignment()


def test_the_mode_of_a_topic_is_known_when_all_its_queues_have_it():
    assert assigned("t", told(0, 1)).mode is RequestMode.POP
    assert assigned("t", told(0, mode=RequestMode.PULL)).mode is RequestMode.PULL
    assert assigned("t", [*told(0), *told(1, mode=RequestMode.PULL)]).mode is None
    assert BrokerAssignment().mode is None
