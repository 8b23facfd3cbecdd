"""Maps by queue as Java writes and reads them."""

from penstock.client.queue_tables import encode_tables, message_queue, queue_ref, read_offsets
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import decode_body

A, B = QueueRef("t", "a", 0), QueueRef("t", "b", 1)


def test_names_of_a_queue_go_both_ways():
    assert queue_ref(message_queue(A)) == A


def test_what_is_written_with_objects_as_keys_is_read_again():
    body = encode_tables({"offsetTable": {A: 5, B: 7}, "plain": {"x": 1}, "list": [1]})
    assert b'{{"topic":"t","brokerName":"a","queueId":0}:5' in body
    found = decode_body(body, dict[str, object])
    assert read_offsets(found["offsetTable"]) == {A: 5, B: 7}
    assert found["plain"] == {"x": 1}


def test_the_list_for_cpp_clients_is_read_too():
    rows = [{"topic": "t", "brokerName": "a", "queueId": 0, "offset": "5"}]
    assert read_offsets(rows) == {A: 5}
