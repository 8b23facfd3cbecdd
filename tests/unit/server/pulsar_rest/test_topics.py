"""Unit tests for topics over REST: made, grown, ended, deleted, listed."""

import pytest

from kit.pulsar.bench import PulsarBench, message_tail
from kit.pulsar.rest_tool import RestTool
from penstock.flow.demand import Window
from penstock.model.names import topic_name
from penstock.server.pulsar_rest import topics as room
from penstock.settings.broker import TopicSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.wire.pulsar.frames import ServerError
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

HERE = "persistent/public/default"
TOPIC = f"{HERE}/orders"
PARTS = f"{HERE}/parts"
NAME = "persistent://public/default/orders"
NOT_FOUND = (404, "Topic persistent://public/default/orders not found")


@pytest.fixture
def parts(rest):
    rest.done("PUT", f"{PARTS}/partitions", 3)


# ---- made and grown


def test_a_topic_is_made_once_and_is_there_after_a_kill(bench, rest):
    rest.done("PUT", TOPIC)
    assert rest.refused("PUT", TOPIC) == (409, "This topic already exists")
    bench.kill()
    assert rest.get(HERE) == [NAME]
    assert rest.get(f"{TOPIC}/partitions") == {"partitions": 0, "deleted": False}


def test_a_topic_needs_its_namespace(rest):
    assert rest.refused("PUT", "persistent/public/nowhere/x") == (404, "Namespace not found")


def test_the_name_of_a_partition_makes_no_topic(rest, parts):
    assert rest("PUT", f"{PARTS}-partition-1").status == 409
    for name in ("parts-partition-9", "orders-partition-1"):
        assert rest("PUT", f"{HERE}/{name}").status == 412
        assert rest("PUT", f"{HERE}/{name}/partitions", 2).status == 412


def test_a_bad_name_is_refused(rest):
    assert rest("PUT", f"{HERE}/a%20b").status == 412


@pytest.mark.parametrize(
    ("body", "status"), [(0, 406), (-1, 406), (10_001, 406), (b"x", 400), (b"", 400), ([], 400)]
)
def test_a_number_of_partitions_that_cannot_be(rest, body, status):
    assert rest("PUT", f"{PARTS}/partitions", body).status == status
    assert rest.get(HERE) == []


def test_partitions_are_made_and_grow(bench, rest, parts):
    assert rest.refused("PUT", f"{PARTS}/partitions", 3) == (409, "This topic already exists")
    rest.done("POST", f"{PARTS}/partitions", 3)
    rest.done("POST", f"{PARTS}/partitions", 5)
    bench.kill()
    assert rest.get(f"{PARTS}/partitions")["partitions"] == 5
    text = "Desired partitions 2 can't be less than the current partitions 5."
    assert rest.refused("POST", f"{PARTS}/partitions", 2) == (422, text)
    assert rest("POST", f"{PARTS}/partitions", 10_001).status == 406


def test_what_is_not_partitioned_does_not_grow(rest):
    rest.done("PUT", TOPIC)
    text = f"Topic {NAME} is not the partitioned topic."
    assert rest.refused("POST", f"{TOPIC}/partitions", 2) == (409, text)


def test_asking_for_partitions_makes_them_where_topics_have_some(bench, rest):
    assert rest.refused("GET", f"{TOPIC}/partitions") == NOT_FOUND
    rule = {"topicType": "partitioned", "defaultNumPartitions": 4}
    rest.done("POST", "namespaces/public/default/autoTopicCreation", rule)
    assert rest.refused("GET", f"{TOPIC}/partitions") == NOT_FOUND
    asked = f"{TOPIC}/partitions?checkAllowAutoCreation=true"
    assert rest.get(asked)["partitions"] == 4
    bench.kill()
    assert rest.get(f"{TOPIC}/partitions")["partitions"] == 4


# ---- deleted


def test_a_topic_is_deleted_with_all_it_has(bench, rest, shop):
    shop.send(b"x")
    rest.done("PUT", f"{TOPIC}/subscription/s")
    shop.client.vanish()
    rest.done("DELETE", TOPIC)
    bench.kill()
    assert rest.refused("DELETE", TOPIC) == NOT_FOUND
    assert rest.get(HERE) == []


def test_a_topic_in_use_is_deleted_by_force_only(rest, shop):
    shop.subscribe("s")
    text = "Topic has 2 connected producers/consumers"
    assert rest.refused("DELETE", TOPIC) == (412, text)
    rest.done("DELETE", f"{TOPIC}?force=true")
    assert sorted(shop.kinds()) == ["CLOSE_CONSUMER", "CLOSE_PRODUCER"]
    assert rest("GET", f"{TOPIC}/stats").status == 404


def test_consumers_of_other_protocols_use_a_topic_too(bench, rest):
    rest.done("PUT", TOPIC)
    reader = bench.reader(bench.engine.topic(topic_name("orders")))
    reader.attach(bench.outlet, Window(1), name="c")
    assert rest.refused("DELETE", TOPIC)[0] == 412


def test_partitions_are_deleted_together(rest, parts):
    assert rest.refused("DELETE", PARTS)[0] == 409
    status, text = rest.refused("DELETE", f"{PARTS}-partition-1")
    assert status == 409
    assert "as a whole only" in text
    rest.done("DELETE", f"{PARTS}/partitions")
    assert rest("DELETE", f"{PARTS}/partitions").status == 404
    assert rest.get(HERE) == []


def test_a_topic_without_a_log_is_made_and_deleted(rest):
    place = "non-persistent/public/default"
    rest.done("PUT", f"{place}/orders")
    assert rest.get(place) == ["non-persistent://public/default/orders"]
    rest.done("PUT", f"{place}/parts/partitions", 2)
    assert rest.get(f"{place}/partitioned") == ["non-persistent://public/default/parts"]
    rest.done("DELETE", f"{place}/orders")
    rest.done("DELETE", f"{place}/parts/partitions")
    assert rest.get(place) == []
    assert rest("DELETE", f"{place}/orders").status == 404


# ---- unloaded and terminated


def test_clients_of_a_topic_that_is_unloaded_come_again(rest, shop):
    shop.subscribe("s")
    rest.done("PUT", f"{TOPIC}/unload")
    assert sorted(shop.kinds()) == ["CLOSE_CONSUMER", "CLOSE_PRODUCER"]
    shop.subscribe("s")
    assert rest("PUT", f"{HERE}/nowhere/unload").status == 404


def test_all_partitions_are_unloaded(rest, parts, shop_of):
    shops = [shop_of(f"persistent://public/default/parts-partition-{i}") for i in range(3)]
    rest.done("PUT", f"{PARTS}/unload")
    assert [each.kinds() for each in shops] == [["CLOSE_PRODUCER"]] * 3


def test_a_terminated_topic_takes_nothing_more_and_tells_its_last_message(bench, rest, shop):
    shop.send(b"a")
    entry = shop.send(b"b")
    shop.subscribe("s", permits=10)
    shop.delivered()
    found = rest("POST", f"{TOPIC}/terminate")
    assert (found.status, found.json["entryId"]) == (200, entry)
    assert shop.kinds() == ["CLOSE_PRODUCER"]
    bench.kill()
    asked = {"topic": NAME, "producer_id": 1, "request_id": 1}
    code, text = bench.client().error("PRODUCER", **asked)
    assert (code, text) == (ServerError.TopicTerminatedError, "Topic was already terminated")


def test_consumers_that_have_acked_all_hear_the_end_at_once(rest, shop):
    entry = shop.send(b"a")
    consumer = shop.subscribe("s", permits=10)
    shop.delivered()
    shop.ack(consumer, entry)
    rest("POST", f"{TOPIC}/terminate")
    assert shop.kinds() == ["CLOSE_PRODUCER", "REACHED_END_OF_TOPIC"]


def test_a_producer_that_waits_is_not_let_in_by_the_end(bench, rest):
    holder, waiter = bench.client(), bench.client()
    asked = {"topic": NAME, "producer_id": 1, "request_id": 1}
    holder.call("PRODUCER", **asked, producer_access_mode="Exclusive")
    waiter.call("PRODUCER", **asked, producer_access_mode="WaitForExclusive")
    rest("POST", f"{TOPIC}/terminate")
    assert [each.type for each in waiter.commands()] == [BaseCommand.ERROR]


def test_partitions_are_terminated_together(rest, parts, shop_of):
    entry = shop_of("persistent://public/default/parts-partition-1").send(b"x")
    assert rest.refused("POST", f"{PARTS}/terminate")[0] == 405
    assert rest.refused("POST", f"{PARTS}-partition-1/terminate")[0] == 409
    found = rest("POST", f"{PARTS}/terminate/partitions").json
    assert {number: each["entryId"] for number, each in found.items()} == {
        "0": -1,
        "1": entry,
        "2": -1,
    }
    assert rest("POST", f"{TOPIC}/terminate/partitions").status == 404


def test_only_a_topic_with_a_log_is_terminated(rest):
    assert rest("POST", "non-persistent/public/default/x/terminate").status == 406
    assert rest.refused("POST", f"{TOPIC}/terminate") == NOT_FOUND


# ---- listed


def test_lists_have_every_partition_and_are_sorted(monkeypatch, rest, parts):
    monkeypatch.setattr(room, "RUN_NAMES", 2)
    for name in ("zebra", "apple"):
        rest.done("PUT", f"{HERE}/{name}")
    rest.done("PUT", "namespaces/public/other")
    rest.done("PUT", "persistent/public/other/elsewhere")
    names = ["apple", *(f"parts-partition-{i}" for i in range(3)), "zebra"]
    assert rest.get(HERE) == [f"persistent://public/default/{each}" for each in names]
    assert rest.get("namespaces/public/default/topics") == rest.get(HERE)
    assert rest.get(f"{HERE}/partitioned") == ["persistent://public/default/parts"]


def test_a_namespace_lists_topics_by_their_domain(rest):
    rest.done("PUT", TOPIC)
    rest.done("PUT", "non-persistent/public/default/fleeting")
    fleeting = "non-persistent://public/default/fleeting"
    place = "namespaces/public/default/topics"
    assert rest.get(f"{place}?mode=NON_PERSISTENT") == [fleeting]
    assert rest.get(f"{place}?mode=ALL") == [fleeting, NAME]
    assert rest("GET", f"{place}?mode=ODD").status == 400


NOWHERE = [
    "persistent/public/nowhere",
    "persistent/public/nowhere/partitioned",
    "namespaces/public/nowhere/topics",
]


@pytest.mark.parametrize("place", NOWHERE)
def test_lists_of_an_unknown_namespace(rest, place):
    assert rest.refused("GET", place) == (404, "Namespace does not exist")


def test_a_long_list_comes_in_pieces(rest):
    rest.done("PUT", f"{PARTS}/partitions", 2_000)
    found = rest("GET", HERE)
    assert len(found.json) == 2_000
    assert found.pieces > 1


def test_nobody_has_permissions(rest):
    rest.done("PUT", TOPIC)
    assert rest.get(f"{TOPIC}/permissions") == {}
    assert rest("GET", f"{HERE}/nowhere/permissions").status == 404


def test_partitions_are_made_some_at_a_time_and_all_or_none(monkeypatch):
    monkeypatch.setattr(room, "PARTITIONS_AT_A_TIME", 2)
    rest = RestTool(PulsarBench(Settings(topics=TopicSettings(queues_max=10))))
    rest.done("PUT", f"{PARTS}/partitions", 5)
    rest.done("POST", f"{PARTS}/partitions", 8)
    assert rest.get(f"{PARTS}/partitions")["partitions"] == 8
    assert rest("PUT", f"{HERE}/others/partitions", 5).status == 409
    assert rest("GET", f"{HERE}/others/partitions").status == 404
    rest.done("PUT", f"{HERE}/others/partitions", 2)


# ---- compacted


def finished(bench, rest, place):
    """Let a compaction come to its end; what is told of it then."""
    for _ in range(100):
        found = rest.get(f"{place}/compaction")
        if found["status"] != "RUNNING":
            return found
        bench.pass_time(100)
    raise AssertionError("the compaction does not end")


def test_a_compaction_runs_once_at_a_time_and_tells_how_it_ended(bench, rest, shop):
    assert rest.get(f"{TOPIC}/compaction") == {"status": "NOT_RUN", "lastError": ""}
    shop.send(tail=message_tail(0, b"1", partition_key="a"))
    rest.done("PUT", f"{TOPIC}/compaction")
    assert rest.get(f"{TOPIC}/compaction") == {"status": "RUNNING", "lastError": ""}
    again = rest.refused("PUT", f"{TOPIC}/compaction")
    assert again == (409, "Compaction already in progress")
    assert finished(bench, rest, TOPIC) == {"status": "SUCCESS", "lastError": ""}
    rest.done("PUT", f"{TOPIC}/compaction")


def test_a_compaction_that_fails_says_why():
    bench = PulsarBench(Settings(pulsar=PulsarSettings(compaction_keys_max=1)))
    rest, client = RestTool(bench), bench.client()
    client.call("PRODUCER", topic=NAME, producer_id=1, request_id=1)
    for number in range(2):
        tail = message_tail(number, b"1", partition_key=str(number))
        client.publish(1, number, tail=tail)
    bench.settle()
    rest.done("PUT", f"{TOPIC}/compaction")
    found = finished(bench, rest, TOPIC)
    assert found["status"] == "ERROR"
    assert "pulsar.compaction_keys_max" in found["lastError"]


def test_partitions_are_compacted_together(bench, rest, parts):
    rest.done("PUT", f"{PARTS}/compaction")
    assert rest("PUT", f"{PARTS}-partition-1/compaction").status == 409
    assert finished(bench, rest, PARTS)["status"] == "SUCCESS"
    assert rest.get(f"{PARTS}-partition-2/compaction")["status"] == "SUCCESS"


def test_only_a_topic_with_a_log_is_compacted(rest):
    rest.done("PUT", "non-persistent/public/default/orders")
    for method in ("PUT", "GET"):
        assert rest(method, "non-persistent/public/default/orders/compaction").status == 405
        assert rest.refused(method, f"{TOPIC}/compaction") == NOT_FOUND
