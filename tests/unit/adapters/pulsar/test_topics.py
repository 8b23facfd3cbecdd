"""Unit tests for topics as Pulsar names them: what a name means, who uses it, and how it ends."""

import pytest

from kit.pulsar.bench import PulsarBench
from kit.pulsar.consumers import TOPIC, Publisher, Subscriber
from penstock.adapters.pulsar.errors import PulsarError
from penstock.adapters.pulsar.naming import parse_name
from penstock.model.errors import AlreadyExists, NotFound
from penstock.model.names import NON_PERSISTENT, topic_name
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.wire.pulsar.frames import ServerError

ORDERS = parse_name(TOPIC)
UNLOGGED = parse_name("non-persistent://public/default/orders")


class User:
    """A producer or consumer, as its topic sees it."""

    def __init__(self, topic):
        self.topic = topic
        self.told = []
        topic.join(self)

    def topic_closed(self, cause):
        self.told.append(cause)
        self.topic.leave(self)


@pytest.fixture
def topics(bench):
    return bench.broker.topics


def spelt(names):
    return [each.local for each in names]


# ---- what a name means --------------------------------------------------------------------------


def test_a_plain_topic_has_no_partitions_and_its_name_means_its_queue(topics):
    topics.create(ORDERS)

    assert topics.partitions(ORDERS) == 0
    assert topics.address(ORDERS) == (ORDERS.topic_name, -1)


def test_a_partition_means_a_queue_and_the_whole_means_none(topics):
    topics.create(ORDERS, 3)

    assert topics.partitions(ORDERS) == 3
    assert topics.address(ORDERS) is None
    assert topics.address(ORDERS.of_partition(2)) == (ORDERS.topic_name, 2)
    assert topics.address(ORDERS.of_partition(3)) is None
    assert topics.find(ORDERS) is None


def test_a_topic_of_one_partition_is_told_from_a_plain_one_after_a_restart_too(bench, topics):
    topics.create(ORDERS, 1)
    bench.stop()

    assert bench.broker.topics.partitions(ORDERS) == 1
    assert bench.broker.topics.address(ORDERS.of_partition(0)) == (ORDERS.topic_name, 0)


def test_a_topic_with_queues_of_another_protocol_is_partitioned(bench, topics):
    bench.engine.create_topic(topic_name("orders"), queues=4)

    assert topics.partitions(ORDERS) == 4


def test_a_plain_topic_may_be_named_like_a_partition_of_none(topics):
    topic = topics.open(ORDERS.of_partition(5), may_create=True)

    assert (topic.partition, topic.is_partition) == (-1, False)
    assert topics.partitions(ORDERS) is None


def test_what_is_not_there_is_nothing(topics):
    assert topics.partitions(ORDERS) is None
    assert topics.find(ORDERS) is None
    assert topics.address(ORDERS.of_partition(0)) is None


# ---- made ---------------------------------------------------------------------------------------


def test_a_topic_is_made_by_its_first_use_where_that_is_allowed(topics):
    with pytest.raises(PulsarError) as refused:
        topics.open(ORDERS, may_create=False)
    assert refused.value.code is ServerError.TopicNotFound
    topics.open(ORDERS, may_create=True)

    assert topics.partitions(ORDERS) == 0


def test_a_partition_of_a_partitioned_topic_is_not_made_by_use(topics):
    topics.create(ORDERS, 2)
    with pytest.raises(PulsarError) as refused:
        topics.open(ORDERS.of_partition(2), may_create=True)

    assert refused.value.code is ServerError.TopicNotFound


def test_where_topics_are_made_partitioned_asking_for_their_partitions_makes_them():
    settings = PulsarSettings(
        allow_auto_topic_creation_type="partitioned", default_num_partitions=3
    )
    topics = PulsarBench(Settings(pulsar=settings)).broker.topics

    assert topics.partitions_for(ORDERS, may_create=False) is None
    assert topics.partitions(ORDERS) is None
    assert topics.partitions_for(ORDERS, may_create=True) == 3
    assert topics.partitions(ORDERS) == 3
    assert topics.partitions_for(ORDERS.of_partition(1), may_create=True) == 0


def test_a_name_is_taken_once_with_partitions_or_without(topics):
    topics.create(ORDERS, 2)
    for name, partitions in ((ORDERS, 0), (ORDERS, 5), (ORDERS.of_partition(1), 0)):
        with pytest.raises(AlreadyExists, match="This topic already exists"):
            topics.create(name, partitions)


def test_topics_want_a_namespace(topics):
    elsewhere = parse_name("persistent://public/nowhere/orders")
    with pytest.raises(PulsarError) as refused:
        topics.create(elsewhere)
    assert refused.value.code is ServerError.TopicNotFound
    with pytest.raises(PulsarError) as refused:
        topics.open(elsewhere, may_create=True)

    assert refused.value.code is ServerError.ServiceNotReady


# ---- grown and listed ---------------------------------------------------------------------------


def test_a_partitioned_topic_grows_and_whoever_watches_hears(topics):
    heard = []
    topics.watch_growth(heard.append)
    topics.create(ORDERS, 2)
    topics.grow(ORDERS, 4)

    assert topics.partitions(ORDERS) == 4
    assert heard == [ORDERS]


def test_what_is_not_partitioned_does_not_grow(topics):
    topics.create(ORDERS)
    with pytest.raises(NotFound):
        topics.grow(ORDERS, 4)


def test_topics_are_listed_by_namespace_and_domain_partitions_each(bench, topics):
    bench.broker.namespaces.create("public/other")
    topics.create(ORDERS, 2)
    topics.create(parse_name("plain"))
    topics.create(UNLOGGED)
    topics.create(parse_name("persistent://public/other/far"))

    both = ["orders-partition-0", "orders-partition-1", "plain"]
    assert spelt(topics.names("public/default")) == both
    assert spelt(topics.names("public/default", NON_PERSISTENT)) == ["orders"]
    assert spelt(topics.names("public/default", "all")) == ["orders", *both]
    assert spelt(topics.names("public/other")) == ["far"]
    assert sorted(spelt(filter(None, topics.walk("public/default")))) == ["orders", "plain"]


# ---- used ---------------------------------------------------------------------------------------


def test_a_topic_is_known_here_while_it_is_used(topics):
    first, second = [User(topics.open(ORDERS, may_create=True)) for _ in "ab"]
    assert first.topic is second.topic
    first.topic.leave(first)
    assert topics.used(ORDERS) == [second.topic]
    second.topic.leave(second)

    assert not topics._used


def test_who_leaves_twice_counts_once(topics):
    user, other = [User(topics.open(ORDERS, may_create=True)) for _ in "ab"]
    user.topic.leave(user)
    user.topic.leave(user)

    assert list(user.topic.users) == [other]


def test_used_partitions_are_found_by_the_name_of_the_whole(topics):
    topics.create(ORDERS, 3)
    users = [User(topics.open(ORDERS.of_partition(at), may_create=True)) for at in (0, 2)]

    assert topics.used(ORDERS) == [each.topic for each in users]
    assert topics.used(ORDERS.of_partition(2)) == [users[1].topic]


@pytest.mark.parametrize("how", ["unload", "delete"])
def test_unloading_and_deleting_tell_the_users_of_all_partitions(topics, how):
    topics.create(ORDERS, 2)
    users = [User(topics.open(ORDERS.of_partition(at), may_create=True)) for at in (0, 1)]
    getattr(topics, how)(ORDERS)

    assert [each.told for each in users] == [[f"{how.rstrip('e')}ed"]] * 2
    assert not topics._used


def test_whoever_comes_while_users_are_told_is_not_let_in(topics):
    """A client that is closed comes again at once."""
    refused = []

    class Quick(User):
        def topic_closed(self, cause):
            super().topic_closed(cause)
            with pytest.raises(PulsarError) as error:
                topics.open(ORDERS, may_create=True)
            refused.append(error.value.code)

    keep = User(topics.open(ORDERS, may_create=True))
    Quick(topics.open(ORDERS, may_create=True))
    keep.topic_closed = lambda cause: None
    topics.unload(ORDERS)

    assert refused == [ServerError.ServiceNotReady]
    topics.open(ORDERS, may_create=True)


def test_a_topic_that_another_protocol_deletes_is_gone_here_too(bench, topics):
    topics.create(ORDERS, 2)
    user = User(topics.open(ORDERS.of_partition(0), may_create=True))
    bench.engine.delete_topic(topic_name("orders"))
    bench.settle()

    assert user.told == ["deleted"]
    assert topics.partitions(ORDERS) is None
    topics.create(ORDERS)
    assert topics.partitions(ORDERS) == 0
    bench.stop()
    assert bench.broker.topics.partitions(ORDERS) == 0


def test_deleting_what_is_not_there_is_not_found(topics):
    with pytest.raises(NotFound):
        topics.delete(ORDERS)


def test_a_deleted_topic_is_gone_with_its_subscriptions_and_its_place(bench, client, topics):
    publisher = Publisher(client)
    publisher.publish_all(3)
    Subscriber(client).opened()
    topics.delete(ORDERS)
    bench.settle()
    assert topics.find(ORDERS) is None

    consumer = Subscriber(client, initialPosition="Earliest").opened().flow(10)
    assert consumer.ids() == []


def test_a_topic_without_a_log_is_deleted_by_its_own_name(bench, topics):
    topics.create(ORDERS)
    topics.create(UNLOGGED)
    topics.delete(UNLOGGED)

    assert topics.partitions(UNLOGGED) is None
    assert topics.partitions(ORDERS) == 0


# ---- fenced -------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["unloading", "deleting", "failed"])
def test_a_fence_keeps_newcomers_out_and_leaves_no_trace(bench, topics, monkeypatch, why):
    topics.create(ORDERS)
    if why == "unloading":
        User(topics.open(ORDERS, may_create=True)).topic.fence = why
    elif why == "deleting":
        bench.engine.topic(topic_name("orders")).is_deleting = True
    else:
        monkeypatch.setattr(type(bench.engine), "is_failed", property(lambda _: True))
    used = dict(topics._used)
    with pytest.raises(PulsarError) as refused:
        topics.open(ORDERS, may_create=True)

    assert refused.value.code is ServerError.ServiceNotReady
    assert topics._used == used
