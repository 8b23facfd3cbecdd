"""Topics by request: made, changed, deleted, listed, and known after a restart."""

import pytest

from kit.rocketmq.bench import RocketmqBench
from penstock.model.names import topic_name
from penstock.wire.rocketmq.bodies import TopicConfig, TopicConfigTable, decode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode

CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC


@pytest.fixture
def bench():
    return RocketmqBench()


@pytest.fixture
def client(bench):
    return bench.client()


def create(client, **ext):
    return client.ask(CREATE, {"topic": "orders", "defaultTopic": "TBW102", **ext})


def test_a_topic_is_made_as_asked(bench, client):
    answer = create(
        client, readQueueNums="3", writeQueueNums="2", perm="4", order="true",
        attributes="+message.type=FIFO,+a=b",
    )  # fmt: skip
    assert answer.code == 0
    place = bench.broker.topics.find("orders")
    config = place.config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 2, 4)
    assert config.order
    assert config.attributes == {"message.type": "FIFO", "a": "b"}
    assert len(place.topic.queues) == 3
    assert (place.is_readable, place.is_writable) == (True, False)


def test_it_is_answered_once_it_is_durable(bench, client):
    client.write(CREATE, {"topic": "orders"})
    bench.engine.turn()
    assert client.session.outgoing() == []
    bench.settle()
    assert len(client.session.outgoing()) == 1


def test_a_topic_and_its_configuration_survive_a_kill(bench, client):
    create(client, readQueueNums="3", writeQueueNums="2", perm="4", attributes="+a=b")
    bench.kill()
    config = bench.broker.topics.find("orders").config
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 2, 4)
    assert config.attributes == {"a": "b"}


def test_more_queues_are_added_and_fewer_only_hidden(bench, client):
    create(client, readQueueNums="2", writeQueueNums="2")
    create(client, readQueueNums="4", writeQueueNums="4")
    assert client.send("orders", queue=3).code == 0
    create(client, readQueueNums="1", writeQueueNums="1")
    assert client.send("orders", queue=1).code == 29
    assert len(bench.broker.topics.find("orders").topic.queues) == 4
    assert len(bench.stored("orders", 3)) == 1


def test_attributes_are_added_and_taken_away(bench, client):
    create(client, attributes="+a=1,+b=2")
    create(client, attributes="-a,+c=3")
    assert bench.broker.topics.find("orders").config.attributes == {"b": "2", "c": "3"}


@pytest.mark.parametrize(
    "ext",
    [
        {"topic": "a.b"},
        {"topic": ""},
        {"topic": "TBW102"},
        {"topic": "SELF_TEST_TOPIC"},
        {"readQueueNums": "0"},
        {"writeQueueNums": "-1"},
        {"readQueueNums": "1025"},
        {"perm": "16"},
        {"perm": "-1"},
        {"attributes": "a=b"},
        {"attributes": "-a=b"},
    ],
)
def test_what_makes_no_sense_is_29_and_makes_nothing(bench, client, ext):
    answer = create(client, **ext)
    assert answer.code in (29, 1)
    assert answer.remark
    assert bench.engine.topics() == []


def test_a_deleted_topic_is_gone_and_its_name_free(bench, client):
    client.send("orders")
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    assert bench.engine.topics() == []
    assert bench.broker.topics.find("orders") is None
    answer = client.send("orders")
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")


def test_deleting_what_is_not_there_is_no_error_but_system_topics_stay(client):
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "nothing"}).code == 0
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}).code == 29
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": " "}).code == 29


def test_topics_of_other_protocols_are_seen_with_all_their_queues(bench, client):
    bench.engine.create_topic(topic_name("orders.eu"), queues=3)
    config = bench.broker.topics.find("orders%2Eeu").config
    assert (config.read_queue_nums, config.perm) == (3, 6)
    assert client.send("orders%2Eeu", queue=2).code == 0


def test_the_configuration_of_one_topic_is_shown(client):
    create(client, readQueueNums="3", writeQueueNums="2", perm="6")
    answer = client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders", "lo": "true"})
    config = decode_body(answer.body, TopicConfig)
    assert (config.topic_name, config.read_queue_nums, config.write_queue_nums) == ("orders", 3, 2)
    unknown = client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "nowhere"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
    assert unknown.remark == "No topic in this broker. topic: nowhere"


def test_all_topics_are_listed_with_the_model(bench, client):
    client.send("orders")
    table = decode_body(client.ask(21).body, TopicConfigTable)
    assert list(table.topic_config_table) == [
        "TBW102",
        "DefaultCluster",
        "penstock",
        "DefaultCluster_REPLY_TOPIC",
        "orders",
    ]
    assert table.topic_config_table["TBW102"].perm == 7
    before = table.data_version.counter
    client.send("bills")
    assert decode_body(client.ask(21).body, TopicConfigTable).data_version.counter > before


def test_what_was_said_of_a_topic_is_not_said_of_its_successor(bench, client):
    create(client, readQueueNums="4", writeQueueNums="4", perm="4")
    bench.engine.delete_topic(topic_name("orders"))
    bench.engine.create_topic(topic_name("orders"), queues=1)
    bench.settle()
    for _ in range(2):
        config = bench.broker.topics.find("orders").config
        assert (config.write_queue_nums, config.perm) == (1, 6)
        bench.kill()


def test_other_protocols_own_topics_are_in_no_list(bench, client):
    for name in ("amq.gen-x", "penstock.flow", "orders.eu"):
        bench.engine.create_topic(topic_name(name))
    listed = ["TBW102", "DefaultCluster", "penstock", "DefaultCluster_REPLY_TOPIC", "orders%2Eeu"]
    assert list(bench.broker.topics.configs()) == listed
