from penstock.client.admin_tables import (
    connections,
    consume_stats,
    offset_table,
    topic_stats,
)
from penstock.model.assignment import QueueRef

KEY = '{"brokerName":"b","queueId":%d,"topic":"t"}'


def test_statistics_of_a_topic_are_by_queue_though_keys_are_objects():
    rows = ",".join(
        f'{KEY % queue}:{{"lastUpdateTimestamp":7,"maxOffset":{queue + 5},"minOffset":2}}'
        for queue in (0, 1)
    )
    found = topic_stats(f'{{"offsetTable":{{{rows}}},"topicPutTps":0.5}}'.encode())
    assert list(found) == [QueueRef("t", "b", 0), QueueRef("t", "b", 1)]
    assert [each.messages for each in found.values()] == [3, 4]
    assert found[QueueRef("t", "b", 0)].changed_at_ms == 7


def test_lag_counts_from_what_was_committed_and_never_below_nothing():
    row = '{"brokerOffset":10,"consumerOffset":%d,"lastTimestamp":1,"pullOffset":8}'
    body = f'{{"consumeTps":0,"offsetTable":{{{KEY % 0}:{row % 4},{KEY % 1}:{row % -1}}}}}'
    found = consume_stats(body.encode())
    assert [(each.lag, each.in_flight) for each in found.values()] == [(6, 4), (10, 8)]


def test_an_empty_answer_to_a_reset_is_no_offsets():
    assert offset_table(b"") == {}
    assert offset_table(f'{{"offsetTable":{{{KEY % 3}:17}}}}'.encode()) == {
        QueueRef("t", "b", 3): 17
    }


def test_connections_of_a_group_say_who_and_what():
    body = (
        b'{"connectionSet":[{"clientAddr":"1.2.3.4:5","clientId":"c","language":"JAVA",'
        b'"version":475}],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":'
        b'"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{"t":'
        b'{"codeSet":[],"subString":"*","tagsSet":[],"topic":"t","subVersion":1}}}'
    )
    found = connections(body)
    assert [each.client_id for each in found.connections] == ["c"]
    assert found.subscriptions["t"].sub_string == "*"
    assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert connections(b'{"connectionSet":[{"clientId":"p"}]}').connections[0].language == ""
