"""The tier itself: whatever broker it is, it takes a message and gives it back."""


def test_a_message_goes_through_the_broker_under_test(cluster, topic):
    with cluster.connect() as client:
        assert client.send(topic, b"hello").is_ok
        assert [message.body for message in client.pull(topic).messages] == [b"hello"]


def test_a_killed_broker_comes_back_on_the_same_port(own_cluster, unique):
    name = unique()
    own_cluster.create_topic(name, 1)
    with own_cluster.connect() as client:
        assert client.send(name, b"kept").is_ok
    own_cluster.kill()
    own_cluster.start()
    with own_cluster.connect() as client:
        assert [message.body for message in client.pull(name).messages] == [b"kept"]
