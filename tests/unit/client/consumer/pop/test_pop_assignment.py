"""What a broker assigns, by mode."""

from penstock.client.consumer.pop import BrokerAssignment, parse_assignment
from penstock.wire.rocketmq.bodies import MessageQueue, QueueAssignment, RequestMode


def told(*queues, mode=RequestMode.POP, topic="t"):
    return [
        QueueAssignment(
            message_queue=MessageQueue(topic=topic, broker_name="b", queue_id=queue), mode=mode
        )
        for queue in queues
    ]


def test_queues_of_another_topic_are_not_taken():
    assert parse_assignment("t", told(0, topic="u")) == BrokerAssignment()


def test_the_mode_of_a_topic_is_known_when_all_its_queues_have_it():
    assert parse_assignment("t", told(0, 1)).mode is RequestMode.POP
    assert parse_assignment("t", told(0, mode=RequestMode.PULL)).mode is RequestMode.PULL
    assert parse_assignment("t", [*told(0), *told(1, mode=RequestMode.PULL)]).mode is None
    assert BrokerAssignment().mode is None
