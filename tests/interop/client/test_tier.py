"""The tier itself: whatever broker it is, it takes a message and gives it back."""


def bodies(client, topic):
    return [message.body for message in client.pull(topic).messages]


def test_a_message_goes_through_the_broker_under_test(cluster, topic, eventually):
    with cluster.connect() as client:
        assert client.send(topic, b"hello").is_ok
        # Apache's broker makes a stored message readable a moment later.
        assert eventually(lambda: bodies(client, topic), what="it can be read") == [b"hello"]


def test_a_killed_broker_comes_back_on_the_same_port(own_cluster, unique, eventually):
    name = unique()
    own_cluster.create_topic(name, 1)
    with own_cluster.connect() as client:
        assert client.send(name, b"kept").is_ok
    own_cluster.kill()
    own_cluster.start()
    with own_cluster.connect() as client:
        assert eventually(lambda: bodies(client, name), what="it can be read") == [b"kept"]
