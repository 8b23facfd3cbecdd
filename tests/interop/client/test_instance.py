"""The client instance against a running broker: joining, leaving, notices, lost brokers, forks."""

import contextlib
import os
import signal
import time

import pytest

from penstock.client.errors import ClientError, NoRoute, TimedOut
from penstock.client.instance import instance
from penstock.client.loop import client_loop
from penstock.client.states import State
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.bodies import ConsumerData, SubscriptionData


class Member:
    """A consumer that only counts."""

    def __init__(self, group, topic):
        self.group, self.topic, self.rebalances = group, topic, 0

    def heartbeat(self):
        wanted = [SubscriptionData(topic=self.topic, sub_version=1)]
        return ConsumerData(group_name=self.group, subscription_data_set=wanted)

    def topics(self):
        return {self.topic}

    def route_changed(self, topic):
        pass

    async def rebalance(self):
        self.rebalances += 1
        return True

    async def persist_offsets(self):
        pass


@contextlib.contextmanager
def joined(name_servers, member, name, **options):
    """The instance of a member, from its start to its end; called as users do, from outside."""

    async def start():
        found = instance(name_servers, {"instance_name": name, **options})
        found.add_consumer(member)
        await found.start()
        await found.routes.look_up(member.topic)
        await found.heartbeat()
        found.rebalance_now()
        return found

    found = client_loop().run(start())
    try:
        yield found
    finally:
        client_loop().run(found.remove_consumer(member))


def members(found, group, topic):
    try:
        return set(client_loop().run(found.requests.consumers_of(group, topic)))
    except ClientError:
        return set()


def test_a_member_is_known_while_it_is_here_and_forgotten_when_it_left(
    cluster, topic, group, unique, eventually
):
    with (
        joined(cluster.name_server, Member(unique("other"), topic), unique("i")) as witness,
        joined(cluster.name_server, Member(group, topic), unique("i")) as found,
    ):
        assert members(witness, group, topic) == {found.client_id}
        assert found.broker_version(next(iter(found.routes.brokers()))) >= 232
        client_loop().run(found.remove_consumer(found.consumer(group)))
        assert found.state is State.STOPPED
        eventually(lambda: members(witness, group, topic) == set(), what="the member is gone")


def test_those_who_stay_are_told_when_a_member_comes_and_goes(
    cluster, topic, group, unique, eventually
):
    stays = Member(group, topic)
    with joined(cluster.name_server, stays, unique("i"), rebalance_spacing_ms=50):
        eventually(lambda: stays.rebalances > 0, what="the first division")
        before = stays.rebalances
        with joined(cluster.name_server, Member(group, topic), unique("i")):
            eventually(lambda: stays.rebalances > before, what="a notice of the one who came")
            before = stays.rebalances
        eventually(lambda: stays.rebalances > before, what="a notice of the one who left")


def test_a_dead_name_server_in_the_list_does_no_harm(cluster, topic, group, unique, unused_port):
    servers = f"127.0.0.1:{unused_port};{cluster.name_server}"
    with joined(servers, Member(group, topic), unique("i")) as found:
        for _ in range(3):
            client_loop().run(found.routes.look_up(topic))


def test_a_topic_that_does_not_exist_has_a_stand_in_for_producers_only(
    cluster, topic, group, unique
):
    with joined(cluster.name_server, Member(group, topic), unique("i")) as found:
        run, missing = client_loop().run, unique("missing")
        route = run(found.routes.look_up(missing, default_queues=4))
        assert route.is_default
        assert len(route.write_queues()) == 4
        with pytest.raises(NoRoute):
            run(found.routes.get_or_look_up(missing))


def test_offsets_go_to_the_broker_and_back(cluster, topic, group, unique, eventually):
    with joined(cluster.name_server, Member(group, topic), unique("i")) as found:
        run = client_loop().run
        queue = found.routes.get(topic).read_queues()[0]
        assert run(found.requests.max_offset(queue)) == 0
        run(found.requests.update_offset(queue, group, 0, oneway=False))
        eventually(lambda: run(found.requests.query_offset(queue, group)) == 0, what="the offset")
        with pytest.raises(ClientError):
            run(found.requests.max_offset(QueueRef(topic, "no-such-broker", 0)))


def test_a_broker_that_comes_back_knows_its_members_again(own_cluster, unique, eventually):
    topic, group = unique("t"), unique("g")
    own_cluster.create_topic(topic, 1)
    member = Member(group, topic)
    with joined(own_cluster.name_server, member, unique("i"), reconnect_wait_max_ms=200) as found:
        queue = found.routes.get(topic).read_queues()[0]
        own_cluster.kill()
        began = time.monotonic()
        with pytest.raises(ClientError):
            client_loop().run(found.requests.max_offset(queue))
        assert time.monotonic() - began < 3.5
        own_cluster.start()
        eventually(lambda: members(found, group, topic) == {found.client_id}, what="it is back")


def test_a_broker_that_hangs_is_left_within_the_time_out_and_used_again(
    own_cluster, unique, eventually
):
    topic = unique("t")
    own_cluster.create_topic(topic, 1)
    member = Member(unique("g"), topic)
    with joined(own_cluster.name_server, member, unique("i"), request_timeout_ms=200) as found:
        run, queue = client_loop().run, found.routes.get(topic).read_queues()[0]
        os.kill(own_cluster.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(TimedOut, match="within 200 ms"):
                run(found.requests.max_offset(queue))
            assert time.monotonic() - began < 2
        finally:
            os.kill(own_cluster.pid, signal.SIGCONT)

        def is_back():
            with contextlib.suppress(TimedOut):
                return run(found.requests.max_offset(queue)) == 0

        eventually(is_back)


def test_the_child_of_a_fork_has_a_client_of_its_own(cluster, topic, group, unique):
    with joined(cluster.name_server, Member(group, topic), unique("i")) as found:
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                member = Member(unique("child"), topic)
                with joined(cluster.name_server, member, "child") as mine:
                    code = 42 if mine is not found and mine.routes.get(topic) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert client_loop().run(found.requests.consumers_of(group, topic)) == [found.client_id]
