from penstock.client.admin import QueueProgress, QueueStats, merge_connections, read_rows
from penstock.model.assignment import QueueRef


def test_statistics_of_a_topic_count_messages_and_are_sorted():
    rows = {
        QueueRef("t", "b", queue): {"lastUpdateTimestamp": "7", "maxOffset": 5 + queue,
                                    "minOffset": 2}
        for queue in (1, 0)
    }  # fmt: skip
    found = read_rows(rows, QueueStats)
    assert [(queue.queue, each.messages) for queue, each in found.items()] == [(0, 3), (1, 4)]
    assert found[QueueRef("t", "b", 0)].changed_at_ms == 7


def test_lag_counts_from_what_was_committed_and_never_below_nothing():
    rows = {
        QueueRef("t", "b", number): {"brokerOffset": 10, "consumerOffset": committed,
                                     "lastTimestamp": 1, "pullOffset": 8}
        for number, committed in enumerate((4, -1, 12))
    }  # fmt: skip
    found = read_rows(rows, QueueProgress).values()
    assert [(each.lag, each.in_flight) for each in found] == [(6, 4), (10, 8), (0, 0)]


def test_connections_of_several_brokers_name_each_client_once():
    one = {
        "connectionSet": [{"clientId": "c", "clientAddr": "1.2.3.4:5", "language": "JAVA"}],
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {"t": {"topic": "t", "subString": "*"}},
    }
    other = {**one, "connectionSet": [{"clientId": "a"}, {"clientId": "c"}]}
    found = merge_connections([one, other])
    assert found.client_ids == ["a", "c"]
    assert found.subscriptions["t"].sub_string == "*"
    assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert merge_connections([]).connections == []
