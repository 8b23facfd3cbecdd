"""Unit tests for statistics over REST: who uses a topic, how far behind, and how fast."""

import asyncio
import json

import pytest

from kit.pulsar.bench import message_tail
from penstock.adapters.pulsar.naming import parse_name
from penstock.model.names import topic_name
from penstock.server.pulsar_rest import request as pieces
from penstock.server.pulsar_rest import statistics as room
from penstock.wire.pulsar.protocol_pb2 import KeyValue

TOPIC = "persistent/public/default/orders"
PARTS = "persistent/public/default/parts"


def stats(rest, topic=TOPIC, query=""):
    return rest.get(f"{topic}/stats{query}")


def subscription(rest, name="s", topic=TOPIC):
    return stats(rest, topic)["subscriptions"][name]


# ---- a topic


def test_a_topic_that_nobody_uses(rest):
    rest.done("PUT", TOPIC)
    found = stats(rest)
    assert (found["msgInCounter"], found["storageSize"], found["averageMsgSize"]) == (0, 0, 0.0)
    assert (found["publishers"], found["subscriptions"]) == ([], {})
    assert found["deduplicationStatus"] == "Disabled"
    assert found["backlogQuotaLimitSize"] == -1
    assert found["ownerBroker"] == "localhost"


def test_what_came_in_is_counted_in_messages(rest, shop):
    shop.send(b"a")
    shop.send(b"b", b"c")
    found = stats(rest)
    assert found["msgInCounter"] == 3
    assert found["storageSize"] == found["bytesInCounter"] > 0
    assert found["averageMsgSize"] == found["bytesInCounter"] / 3


def test_policies_are_told_with_the_figures_they_limit(rest, shop):
    rest.done("POST", "namespaces/public/default/deduplication", True)
    quota = {"limitSize": 1000, "policy": "producer_exception"}
    rest.done("POST", f"{TOPIC}/backlogQuota", quota)
    found = stats(rest)
    assert (found["deduplicationStatus"], found["backlogQuotaLimitSize"]) == ("Enabled", 1000)


def test_producers_are_shown_with_their_rates(bench, rest, shop):
    for _ in range(20):
        shop.send(b"x")
    bench.clock.advance(10_000)
    found = stats(rest)
    (told,) = found["publishers"]
    assert (told["producerName"], told["producerId"], told["accessMode"]) == ("till", 1, "Shared")
    assert told["address"].startswith("/127.0.0.1:")
    assert told["clientVersion"] == "Pulsar-Test"
    assert told["connectedSince"].endswith("Z")
    assert told["msgRateIn"] == found["msgRateIn"] == 2.0
    assert told["averageMsgSize"] > 0
    assert stats(rest, query="?excludePublishers=true")["publishers"] == []


def test_producers_that_wait_are_counted(bench, rest, shop):
    asked = {"topic": "persistent://public/default/orders", "producer_id": 2, "request_id": 2}
    shop.client.call("PRODUCER", **asked, producer_access_mode="WaitForExclusive")
    found = stats(rest)
    assert (len(found["publishers"]), found["waitingPublishers"]) == (1, 1)


# ---- its subscriptions


def test_consumers_are_shown_with_permits_and_what_they_have(rest, shop):
    for _ in range(3):
        shop.send(b"x")
    metadata = [KeyValue(key="app", value="billing")]
    shop.subscribe("s", "Shared", permits=10, consumer_name="c", metadata=metadata)
    shop.delivered()
    shop.ack(1, 1)
    found = subscription(rest)
    assert (found["type"], found["isDurable"]) == ("Shared", True)
    assert (found["msgBacklog"], found["unackedMessages"]) == (2, 2)
    assert found["nonContiguousDeletedMessagesRanges"] == 1
    (told,) = found["consumers"]
    assert (told["consumerName"], told["availablePermits"], told["unackedMessages"]) == ("c", 7, 2)
    assert told["metadata"] == {"app": "billing"}
    assert not told["blockedConsumerOnUnackedMsgs"]
    assert told["msgOutCounter"] == found["msgOutCounter"] == stats(rest)["msgOutCounter"] == 3
    found = stats(rest, query="?excludeConsumers=true")["subscriptions"]["s"]
    assert (found["consumers"], found["msgOutCounter"]) == ([], 3)


def test_rates_of_consumers_are_summed(bench, rest, shop):
    for _ in range(20):
        shop.send(b"x")
    shop.subscribe("s", "Shared", permits=100)
    entries = shop.delivered()
    shop.ack(1, *entries[:10])
    shop.client.say("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    shop.delivered()
    bench.clock.advance(10_000)
    found = subscription(rest)
    assert (found["msgRateOut"], found["messageAckRate"]) == (3.0, 1.0)
    assert found["msgRateRedeliver"] == 1.0
    assert stats(rest)["msgRateOut"] == 3.0


def test_the_type_is_that_of_who_is_there(rest, shop):
    rest.done("PUT", f"{TOPIC}/subscription/s")
    assert (subscription(rest)["type"], subscription(rest)["consumers"]) == ("None", [])
    for kind in ("Shared", "Exclusive", "Key_Shared", "Failover"):
        consumer = shop.subscribe("s", kind)
        assert subscription(rest)["type"] == kind
        shop.client.call("CLOSE_CONSUMER", consumer_id=consumer, request_id=9)


def test_the_active_consumer_is_named(bench, rest, shop):
    for name in "ab":
        shop.subscribe("s", "Failover", consumer_name=name)
        bench.advance(2_000)
        shop.kinds()
    assert subscription(rest)["activeConsumerName"] in {"a", "b"}
    shop.subscribe("t", consumer_name="only")
    assert subscription(rest, "t")["activeConsumerName"] == "only"


def test_ranges_of_keys_are_shown(rest, shop):
    meta = {"keySharedMode": "STICKY", "hashRanges": [{"start": 0, "end": 100}]}
    shop.subscribe("s", "Key_Shared", keySharedMeta=meta)
    found = subscription(rest)
    assert found["keySharedMode"] == "STICKY"
    assert found["consumers"][0]["keyHashRangeArrays"] == [[0, 100]]
    shop.subscribe("t", "Key_Shared")
    assert subscription(rest, "t")["keySharedMode"] == "AUTO_SPLIT"


def test_what_is_delayed_is_part_of_the_backlog(bench, rest, shop):
    shop.subscribe("s", "Shared", permits=10)
    later = bench.clock.wall_ms() + 60_000
    shop.send(tail=message_tail(0, b"x", deliver_at_time=later))
    shop.send(b"now")
    found = subscription(rest)
    assert (found["msgBacklog"], found["msgBacklogNoDelayed"], found["msgDelayed"]) == (2, 1, 1)


def test_a_reader_is_shown_while_it_reads(rest, shop):
    shop.send(b"x")
    shop.subscribe("r", durable=False)
    found = subscription(rest, "r")
    assert (found["isDurable"], found["msgBacklog"]) == (False, 1)
    shop.client.call("CLOSE_CONSUMER", consumer_id=1, request_id=9)
    assert stats(rest)["subscriptions"] == {}


def test_the_oldest_time_of_a_backlog_is_told_when_asked_for(rest, shop):
    rest.done("PUT", f"{TOPIC}/subscription/s")
    for number, ms in enumerate((5_000, 6_000)):
        shop.send(tail=message_tail(number, b"x", publish_time=ms, event_time=1))
    assert "earliestMsgPublishTimeInBacklog" not in subscription(rest)
    asked = "?getEarliestTimeInBacklog=true"
    rest.done("POST", f"{TOPIC}/subscription/s/skip/1")
    found = stats(rest, query=asked)["subscriptions"]["s"]
    assert found["earliestMsgPublishTimeInBacklog"] == 6_000
    rest.done("POST", f"{TOPIC}/subscription/s/skip_all")
    found = stats(rest, query=asked)["subscriptions"]["s"]
    assert found["earliestMsgPublishTimeInBacklog"] == 0


def test_subscriptions_of_other_protocols_are_not_shown(bench, rest, shop):
    bench.reader(bench.engine.topic(topic_name("orders")))
    assert stats(rest)["subscriptions"] == {}


def test_a_topic_without_a_log_counts_what_it_drops(rest, shop_of):
    shop = shop_of("non-persistent://public/default/orders")
    place = "non-persistent/public/default/orders"
    shop.client.publish(1, 0, b"dropped")
    shop.subscribe("s", "Shared", permits=1)
    shop.client.publish(1, 1, b"taken")
    shop.kinds()
    found = rest.get(f"{place}/stats")
    assert (found["msgInCounter"], found["msgDropped"], found["msgOutCounter"]) == (2, 1, 1)
    told = found["subscriptions"]["s"]
    assert (told["type"], told["msgBacklog"], told["isDurable"]) == ("Shared", 0, False)
    assert told["consumers"][0]["availablePermits"] == 0
    assert rest.get(f"{place}/internalStats")["cursors"] == {"s": {}}


# ---- partitions


@pytest.fixture
def parts(rest, shop_of):
    """Three partitions; of each a client has a producer and a consumer of ``s``."""
    rest.done("PUT", f"{PARTS}/partitions", 3)
    shops = [shop_of(f"persistent://public/default/parts-partition-{i}") for i in range(3)]
    for number, each in enumerate(shops):
        for _ in range(number):
            each.send(b"x")
        each.subscribe("s", "Shared", permits=10, consumer_name="c")
        each.delivered()
    return shops


def test_a_partitioned_topic_is_the_sum_of_its_partitions(rest, parts):
    found = rest.get(f"{PARTS}/partitioned-stats")
    assert found["metadata"] == {"partitions": 3, "deleted": False}
    assert found["msgInCounter"] == 3
    told = found["subscriptions"]["s"]
    assert (told["msgBacklog"], told["unackedMessages"], told["type"]) == (3, 3, "Shared")
    assert len(told["consumers"]) == len(found["publishers"]) == 3
    each = found["partitions"]
    assert [each[f"persistent://public/default/parts-partition-{i}"]["msgInCounter"]
            for i in range(3)] == [0, 1, 2]  # fmt: skip
    assert rest.get(f"{PARTS}/partitioned-stats?perPartition=false")["partitions"] == {}
    assert rest("GET", f"{PARTS}/stats").status == 404
    assert stats(rest, f"{PARTS}-partition-2")["msgInCounter"] == 2


def test_a_client_with_all_partitions_is_one_consumer_and_one_producer(bench, rest, parts):
    shop = parts[0]
    for number in (1, 2):
        topic = f"persistent://public/default/parts-partition-{number}"
        shop.subscribe("s", "Shared", permits=10, topic=topic, consumer_name="c")
        shop.client.call(
            "PRODUCER", topic=topic, producer_id=10 + number, request_id=9, producer_name="other"
        )
    shop.client.commands()
    found = rest.get(f"{PARTS}/partitioned-stats")
    told = [each["availablePermits"] for each in found["subscriptions"]["s"]["consumers"]]
    assert sorted(told) == [8, 9, 30]
    assert sorted([each["producerName"] for each in found["publishers"]]) == [
        "other", "till", "till", "till",
    ]  # fmt: skip


def test_a_subscription_of_one_partition_is_in_the_sum(rest, parts):
    rest.done("PUT", f"{PARTS}-partition-1/subscription/only")
    found = rest.get(f"{PARTS}/partitioned-stats")["subscriptions"]
    assert (found["only"]["type"], found["s"]["type"]) == ("None", "Shared")


def test_very_many_partitions_come_in_pieces(monkeypatch, rest, parts):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 200)
    monkeypatch.setattr(pieces, "STEPS_AT_A_TIME", 2)
    found = rest("GET", f"{PARTS}/partitioned-stats")
    assert len(found.json["partitions"]) == 3
    assert found.pieces > 10
    found = rest("GET", f"{PARTS}/partitioned-internalStats")
    assert len(found.json["partitions"]) == 3
    assert found.pieces > 3


@pytest.mark.parametrize("what", ["stats", "internalStats", "partitioned-stats",
                                  "partitioned-internalStats"])  # fmt: skip
def test_statistics_of_what_is_not_there(rest, what):
    assert rest("GET", f"persistent/public/default/nowhere/{what}").status == 404
    assert rest("GET", f"persistent/public/nowhere/x/{what}").status == 404
    rest.done("PUT", TOPIC)
    if what.startswith("partitioned"):
        assert rest("GET", f"{TOPIC}/{what}").status == 404


# ---- the inside


def test_the_inside_names_places(rest, shop):
    for _ in range(2):
        shop.send(b"x")
    shop.send(b"a", b"b", b"c")
    shop.send(b"y")
    shop.subscribe("s", "Shared", permits=10)
    shop.delivered()
    shop.ack(1, 0, 2)
    found = rest.get(f"{TOPIC}/internalStats")
    ledger = found["ledgers"][0]["ledgerId"]
    assert (found["numberOfEntries"], found["state"]) == (6, "LedgerOpened")
    assert found["lastConfirmedEntry"] == f"{ledger}:5"
    cursor = found["cursors"]["s"]
    assert cursor["markDeletePosition"] == f"{ledger}:0"
    assert cursor["readPosition"] == f"{ledger}:6"
    assert cursor["individuallyDeletedMessages"] == f"[({ledger}:1..{ledger}:4]]"
    assert cursor["totalNonContiguousDeletedMessagesRange"] == 1
    assert cursor["active"] is True


def test_very_many_holes_are_counted_and_some_shown(monkeypatch, rest, shop):
    monkeypatch.setattr(room, "RANGES_SHOWN", 1)
    for _ in range(6):
        shop.send(b"x")
    shop.subscribe("s", "Shared", permits=10)
    shop.delivered()
    shop.ack(1, 1, 3)
    cursor = rest.get(f"{TOPIC}/internalStats")["cursors"]["s"]
    assert cursor["individuallyDeletedMessages"].count("(") == 1
    assert cursor["totalNonContiguousDeletedMessagesRange"] == 2


def test_the_end_of_a_topic_is_seen_inside(rest, shop):
    rest("POST", f"{TOPIC}/terminate")
    found = rest.get(f"{TOPIC}/internalStats")
    assert (found["state"], found["lastConfirmedEntry"][-3:]) == ("Terminated", ":-1")


def test_partitions_that_go_meanwhile_are_not_shown(bench, rest, parts):
    found = [bench.broker.topics.find(parse_name(f"persistent://public/default/parts-partition-{i}"))
             for i in range(3)]  # fmt: skip
    rest.done("DELETE", f"{PARTS}/partitions?force=true")

    async def told(pieces):
        return json.loads(b"".join([piece async for piece in pieces]))

    def statistics():
        wanted = room.Wanted(pieces.Pace())
        shown = room.partitioned_statistics(bench.broker, found, wanted, is_each_shown=True)
        inside = room.partitioned_internal_statistics(bench.broker, found, pieces.Pace())
        return [list(asyncio.run(told(each))["partitions"]) for each in (shown, inside)]

    assert statistics() == [[], []]
    rest.done("PUT", f"{PARTS}/partitions", 1)
    assert statistics() == [["persistent://public/default/parts-partition-0"]] * 2
