"""Administration against a broker that runs."""

import asyncio
import time

import pytest

from penstock.client.admin import Admin
from penstock.client.errors import NoRoute, StateError
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.properties import UNIQ_KEY


@pytest.fixture
def admin(cluster):
    with Admin(cluster.name_server) as admin:
        yield admin


@pytest.fixture
def filled(cluster, unique):
    """A topic with two queues and five messages in each; the time between the two halves."""
    topic = unique("admin")
    cluster.create_topic(topic, 2)
    with cluster.connect() as client:
        for number in range(10):
            answer = client.send(
                topic, b"%d" % number, queue_id=number % 2, keys=f"key{number} all",
                properties={UNIQ_KEY: f"{topic}-id{number}"},
            )  # fmt: skip
            assert answer.is_ok, answer
    return topic


def commit(cluster, topic, group, *offsets):
    with cluster.connect() as client:
        client.create_group(group)
        for queue, offset in enumerate(offsets):
            place = {"topic": topic, "consumerGroup": group, "queueId": str(queue)}
            ext = {**place, "commitOffset": str(offset)}
            assert client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext).is_ok


def test_a_topic_is_made_listed_changed_and_deleted(admin, unique, eventually):
    topic = unique("made")
    assert admin.route(topic) is None
    admin.create_topic(topic, queues=3)
    route = eventually(lambda: admin.route(topic))
    assert len(route.write_queues()) == 3
    assert topic in admin.topics()
    admin.create_topic(topic, queues=5)
    eventually(lambda: len(admin.route(topic).write_queues()) == 5)
    admin.delete_topic(topic)
    eventually(lambda: admin.route(topic) is None)


def test_a_topic_can_be_made_on_named_brokers_only(admin, unique, eventually):
    (name, addresses) = next(iter(admin.brokers().items()))
    assert 0 in addresses
    topic = unique("named")
    admin.create_topic(topic, queues=1, brokers=[name])
    eventually(lambda: admin.route(topic))
    with pytest.raises(ValueError, match="no master of nowhere"):
        admin.create_topic(topic, queues=1, brokers=["nowhere"])


def test_statistics_of_a_topic_count_its_messages(admin, filled, eventually):
    eventually(lambda: [each.messages for each in admin.topic_stats(filled).values()] == [5, 5])
    with pytest.raises(NoRoute):
        admin.topic_stats(f"{filled}-not")


def test_a_group_is_made_listed_and_deleted(admin, group):
    admin.create_group(group, retries_max=3)
    assert admin.groups()[group].retry_max_times == 3
    admin.delete_group(group)
    assert group not in admin.groups()


def test_lag_is_what_a_group_has_still_to_consume(admin, cluster, filled, group, eventually):
    cluster.create_group(group)
    commit(cluster, filled, group, 2, 5)
    queue = QueueRef(filled, next(iter(admin.brokers())), 0)
    eventually(lambda: admin.committed(group, queue) == 2)
    eventually(lambda: admin.lag(group, filled) == 3)
    assert [each.lag for each in admin.progress(group, filled).values()] == [3, 0]


def test_offsets_are_reset_to_the_ends_to_a_time_and_to_a_number(
    admin, cluster, filled, group, eventually
):
    cluster.create_group(group)
    commit(cluster, filled, group, 2, 5)
    queues = [QueueRef(filled, next(iter(admin.brokers())), number) for number in (0, 1)]

    def offsets():
        return [admin.committed(group, each) for each in queues]

    eventually(lambda: offsets() == [2, 5])
    admin.reset_offsets(group, filled, "earliest")
    eventually(lambda: offsets() == [0, 0])
    admin.reset_offsets(group, filled, "latest")
    eventually(lambda: offsets() == [5, 5])
    admin.reset_offsets(group, filled, int(time.time() * 1000) - 3_600_000)
    eventually(lambda: offsets() == [0, 0])
    admin.set_offset(group, queues[1], 3)
    eventually(lambda: offsets() == [0, 3])


def test_a_message_is_found_by_the_senders_id_and_by_the_brokers(admin, filled, eventually):
    found = eventually(lambda: admin.message(filled, f"{filled}-id3"))
    assert found.body == b"3"
    assert admin.message(filled, found.offset_message_id).body == b"3"
    assert admin.message(filled, "no such id") is None
    assert admin.message(filled, "0" * 32) is None


def test_messages_are_found_by_key(admin, filled, eventually):
    (one,) = eventually(lambda: admin.messages_by_key(filled, "key4"))
    assert one.body == b"4"
    eventually(lambda: len(admin.messages_by_key(filled, "all")) == 10)
    assert [each.body for each in admin.messages_by_key(filled, "all", count_max=2)] != []
    assert admin.messages_by_key(filled, "nothing") == []


def test_messages_are_found_by_time(admin, filled, eventually):
    now_ms = int(time.time() * 1000)
    every = eventually(
        lambda: (
            found
            if len(found := admin.messages_between(filled, now_ms - 3_600_000, now_ms + 60_000))
            == 10
            else None
        )
    )
    assert sorted(each.body for each in every) == [b"%d" % number for number in range(10)]
    fifth = sorted(each.stored_at_ms for each in every)[5]
    later = admin.messages_between(filled, fifth, now_ms + 60_000)
    assert {each.body for each in later} == {
        each.body for each in every if each.stored_at_ms >= fifth
    }
    assert admin.messages_between(filled, 0, 1) == []
    assert len(admin.messages_between(filled, 0, now_ms + 60_000, count_max=3)) == 3


def test_nobody_is_connected_for_a_group_that_nobody_uses(admin, group):
    assert admin.connections(group).connections == []
    assert admin.producer_connections(group).connections == []


def test_a_groups_mode_is_set(admin, cluster, filled, group):
    cluster.create_group(group)
    admin.set_consume_mode(group, filled, "POP", share=2)
    admin.set_consume_mode(group, filled, "PULL")
    with pytest.raises(ValueError, match="PUSH"):
        admin.set_consume_mode(group, filled, "PUSH")


def test_every_method_can_be_awaited_instead(cluster, filled):
    async def ask():
        async with Admin(cluster.name_server) as admin:
            stats = await admin.topic_stats_async(filled)
            names = await admin.topics_async()
            return stats, names

    stats, names = asyncio.run(ask())
    assert len(stats) == 2
    assert filled in names


def test_an_admin_that_does_not_run_says_so(cluster):
    admin = Admin(cluster.name_server)
    with pytest.raises(StateError, match="does not run"):
        admin.topics()
    with admin, pytest.raises(StateError, match="started before"):
        admin.start()
