"""The instance: states, members, heartbeats, good-byes, lost connections."""

import asyncio
import ipaddress
import os

import pytest

from kit.rocketmq.remoting_peer import RemotingPeer
from penstock.client.errors import GroupTaken, StateError
from penstock.client.instance import (
    ClientInstance,
    RebalanceTimer,
    client_id,
    instance,
    local_ip,
    process_name,
)
from penstock.client.options import InstanceOptions, resolve
from penstock.client.states import State
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.bodies import (
    BrokerData,
    ConsumerData,
    HeartbeatData,
    QueueData,
    TopicRouteData,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command

BEAT, BYE, ROUTE = 34, 35, 105
ADDRESSES = {"a": {"0": "a:1", "1": "slave:1"}, "b": {"0": "b:1"}}


def route(brokers=("a", "b")):
    return TopicRouteData(
        queue_datas=[
            QueueData(broker_name=each, read_queue_nums=1, write_queue_nums=1) for each in brokers
        ],
        broker_datas=[
            BrokerData(broker_name=each, broker_addrs=ADDRESSES[each]) for each in brokers
        ],
    )


class Consumer:
    def __init__(self, group="g"):
        self.group, self.rebalances, self.changed = group, 0, []

    def heartbeat(self):
        return ConsumerData(group_name=self.group)

    def topics(self):
        return {"t"}

    def route_changed(self, topic):
        self.changed.append(topic)

    async def rebalance(self):
        self.rebalances += 1
        return True

    async def persist_offsets(self):
        pass


class Producer:
    group = "p"

    def topics(self):
        return {"t"}


class Bench:
    def __init__(self, **options):
        self.brokers = ["a", "b"]
        self.peer = RemotingPeer(
            {ROUTE: lambda *_: Command(0, body=encode_body(route(self.brokers)))}
        )
        options.setdefault("reconnect_wait_min_ms", 1)
        chosen = resolve(InstanceOptions, options)
        self.clock = ManualClock()
        self.instance = ClientInstance(
            ("ns:1",), chosen, "me", clock=self.clock, connect=self.peer.connect
        )

    async def with_consumer(self):
        consumer = Consumer()
        self.instance.add_consumer(consumer)
        await self.instance.start()
        await self.instance.routes.look_up("t")
        await self.instance.heartbeat()
        return consumer

    def addresses(self, code):
        return sorted({address for address, command in self.peer.asked if command.code == code})


async def until(condition):
    """A few turns of the loop are enough for everything that needs no time."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def run(test):
    asyncio.run(test())


def test_an_instance_runs_once_and_starting_it_again_changes_nothing():
    async def test():
        each = Bench().instance
        assert each.state is State.CREATED
        await each.start()
        await each.start()
        assert each.state is State.RUNNING
        await each.stop()
        assert each.state is State.STOPPED
        with pytest.raises(StateError, match="stopped"):
            await each.start()
        with pytest.raises(StateError, match="stopped"):
            each.add_consumer(Consumer())

    run(test)


def test_two_consumers_of_one_group_are_refused():
    async def test():
        each = Bench().instance
        each.add_consumer(Consumer())
        with pytest.raises(GroupTaken):
            each.add_consumer(Consumer())
        each.add_consumer(Consumer("other"))

    run(test)


def test_consumers_are_told_to_every_broker_and_its_version_is_learned():
    async def test():
        bench = Bench()
        await bench.with_consumer()
        assert bench.addresses(BEAT) == ["a:1", "b:1", "slave:1"]
        body = next(command.body for _, command in bench.peer.asked if command.code == BEAT)
        assert decode_body(body, HeartbeatData).consumer_data_set[0].group_name == "g"
        assert bench.instance.broker_version("a") >= 413
        assert bench.instance.broker_version("unknown") == 0
        await bench.instance.stop()

    run(test)


def test_producers_are_told_to_masters_only():
    async def test():
        bench = Bench()
        bench.instance.add_producer(Producer())
        await bench.instance.start()
        await bench.instance.routes.look_up("t")
        await bench.instance.heartbeat()
        assert bench.addresses(BEAT) == ["a:1", "b:1"]
        await bench.instance.stop()

    run(test)


def test_a_dead_broker_keeps_no_other_from_hearing():
    async def test():
        bench = Bench()
        bench.peer.dead.add("a:1")
        await bench.with_consumer()
        assert bench.addresses(BEAT) == ["b:1", "slave:1"]
        await bench.instance.stop()

    run(test)


def test_the_last_member_to_leave_says_good_bye_everywhere_and_stops_the_instance():
    async def test():
        bench = Bench()
        consumer = await bench.with_consumer()
        producer = Producer()
        bench.instance.add_producer(producer)
        await bench.instance.remove_consumer(consumer)
        assert bench.addresses(BYE) == ["a:1", "b:1", "slave:1"]
        assert bench.instance.state is State.RUNNING
        await bench.instance.remove_producer(producer)
        assert bench.instance.state is State.STOPPED
        assert all(each.is_over for each in bench.peer.transports)
        groups = {command.ext.get("producerGroup") for _, command in bench.peer.asked}
        assert "p" in groups

    run(test)


def test_a_notice_of_a_broker_leads_to_a_rebalance():
    async def test():
        bench = Bench()
        consumer = await bench.with_consumer()
        before = consumer.rebalances
        bench.clock.advance(1_000)
        code = int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
        line = next(each for each in bench.peer.transports if each.address == "a:1")
        line.push(Command(code, {"consumerGroup": "g"}, flag=FLAG_ONEWAY))
        await until(lambda: consumer.rebalances > before)
        await bench.instance.stop()

    run(test)


def test_a_changed_route_is_told_and_a_new_broker_hears_of_this_client():
    async def test():
        bench = Bench()
        bench.brokers = ["b"]
        consumer = await bench.with_consumer()
        assert bench.addresses(BEAT) == ["b:1"]
        bench.brokers = ["a", "b"]
        await bench.instance.refresh_routes()
        assert consumer.changed == ["t", "t"]
        await until(lambda: "a:1" in bench.addresses(BEAT))
        await bench.instance.stop()

    run(test)


def test_after_a_lost_connection_the_broker_hears_of_this_client_as_soon_as_it_is_back():
    async def test():
        bench = Bench(reconnect_wait_max_ms=1)
        consumer = await bench.with_consumer()
        bench.clock.advance(1_000)
        await until(lambda: consumer.rebalances == 1)
        line = next(each for each in bench.peer.transports if each.address == "b:1")
        bench.peer.dead.add("b:1")
        line.break_off()
        await until(lambda: bench.peer.dials.count("b:1") > 1)
        before = bench.peer.codes("b:1").count(BEAT)
        bench.peer.dead.clear()
        bench.clock.advance(1_000)
        await until(lambda: bench.peer.codes("b:1").count(BEAT) > before)
        await until(lambda: consumer.rebalances > 1)
        await bench.instance.stop()

    run(test)


def test_stopping_without_time_for_good_byes_says_none():
    async def test():
        bench = Bench(stop_timeout_ms=0)
        await bench.with_consumer()
        await bench.instance.stop()
        assert bench.addresses(BYE) == []

    run(test)


def test_an_instance_is_shared_by_name_and_name_servers_until_it_stops():
    async def test():
        one = instance("x:1;y:2", {})
        assert instance(["x:1", "y:2"], {}) is one
        assert instance("x:1", {}) is not one
        assert instance("x:1;y:2", {"instance_name": "mine"}) is not one
        assert f"@{os.getpid()}#" in one.client_id
        await one.stop()
        assert instance("x:1;y:2", {}) is not one

    run(test)


def test_a_broadcasting_consumer_keeps_the_same_name_in_every_process():
    async def test():
        found = instance("x:1", {"client_ip": "10.0.0.1"}, is_named_by_process=False)
        assert found.client_id == "10.0.0.1@DEFAULT"

    run(test)


# ---- rebalance timer ----------------------------------------------------------------------------
# When queues are divided: interval, notices, spacing, and again while it fails.


def timer(now_ms=0):
    return RebalanceTimer(now_ms, interval_ms=20_000, spacing_ms=1_000)


def divide(each, now_ms, *, is_balanced=True):
    each.begin()
    each.ended(now_ms, is_balanced=is_balanced)


def test_without_notices_it_is_due_every_interval():
    each = timer()
    assert each.due_ms == 20_000
    divide(each, 20_100)
    assert each.due_ms == 40_100


def test_a_first_notice_is_obeyed_at_once():
    assert timer().notice(500) == 500


def test_notices_soon_after_a_division_wait_for_the_spacing():
    each = timer()
    divide(each, 5_000)
    assert each.notice(5_100) == 6_000
    assert each.notice(5_900) == 6_000
    assert each.notice(6_500) == 6_000


def test_a_notice_long_after_a_division_is_obeyed_at_once():
    each = timer()
    divide(each, 5_000)
    assert each.notice(9_000) == 9_000


def test_an_unbalanced_division_is_repeated_soon():
    each = timer()
    divide(each, 5_000, is_balanced=False)
    assert each.due_ms == 6_000


def test_a_notice_during_a_division_is_not_forgotten():
    each = timer()
    each.begin()
    each.notice(5_050)
    each.ended(5_100, is_balanced=True)
    assert each.due_ms == 6_100


# ---- identity -----------------------------------------------------------------------------------
# Client ids.


def test_a_client_id_is_ip_name_and_unit():
    assert client_id("10.0.0.1", "X") == "10.0.0.1@X"
    assert client_id("10.0.0.1", "X", "u") == "10.0.0.1@X@u"


def test_a_process_has_one_name_that_begins_with_its_pid():
    assert process_name() == process_name()
    assert process_name().startswith(f"{os.getpid()}#")


def test_the_child_of_a_fork_has_another_name():
    mine = process_name()
    child = os.fork()
    if child == 0:
        os._exit(0 if process_name().partition("#")[0] == str(os.getpid()) != mine else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_ip_is_one():
    ipaddress.ip_address(local_ip())
