"""Unit tests for subscriptions over REST: listed, made, deleted, skipped, expired, reset."""

import time

import pytest

from kit.pulsar.bench import message_tail
from penstock.adapters.pulsar import subscriptions as room
from penstock.engine.host import Start, SubscriptionOptions
from penstock.model.names import topic_name
from penstock.server.pulsar_rest import subscriptions as calls

TOPIC = "persistent/public/default/orders"
PARTS = "persistent/public/default/parts"
WITHOUT_LOG = "non-persistent/public/default/orders"
EARLIEST = {"ledgerId": -1, "entryId": -1}
NOWHERE = "persistent/public/default/nowhere"


def backlog(rest, name="s", topic=TOPIC):
    return rest.get(f"{topic}/stats")["subscriptions"][name]["msgBacklog"]


def ledger(bench, rest, topic=TOPIC):
    return rest.get(f"{topic}/lastMessageId")["ledgerId"]


@pytest.fixture
def sent(shop, rest):
    """Five messages and a subscription that has acked none of them: their entries."""
    rest.done("PUT", f"{TOPIC}/subscription/s", EARLIEST)
    return [shop.send(b"%d" % number) for number in range(5)]


@pytest.fixture
def parts(rest, shop_of):
    """A topic of three partitions with a subscription, and a client for each partition."""
    rest.done("PUT", f"{PARTS}/partitions", 3)
    rest.done("PUT", f"{PARTS}/subscription/s", EARLIEST)
    shops = [shop_of(f"persistent://public/default/parts-partition-{i}") for i in range(3)]
    for each in shops:
        each.send(b"a")
        each.send(b"b")
    return shops


# ---- listed


def test_a_topic_lists_its_subscriptions(rest, shop):
    assert rest.get(f"{TOPIC}/subscriptions") == []
    shop.subscribe("b")
    shop.subscribe("a")
    assert rest.get(f"{TOPIC}/subscriptions") == ["a", "b"]


def test_a_partitioned_topic_lists_those_of_any_partition(rest, parts):
    rest.done("PUT", f"{PARTS}-partition-1/subscription/only", EARLIEST)
    assert rest.get(f"{PARTS}/subscriptions") == ["only", "s"]
    assert rest.get(f"{PARTS}-partition-0/subscriptions") == ["s"]


def test_a_topic_without_a_log_lists_its_subscriptions(rest, shop_of):
    shop_of("non-persistent://public/default/orders").subscribe("s", "Shared")
    assert rest.get(f"{WITHOUT_LOG}/subscriptions") == ["s"]


def test_subscriptions_of_what_is_not_there(rest):
    text = "Topic persistent://public/default/nowhere not found"
    assert rest.refused("GET", f"{NOWHERE}/subscriptions") == (404, text)
    unknown = "persistent/public/nowhere/x/subscriptions"
    assert rest.refused("GET", unknown) == (404, "Namespace not found")


# ---- made


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (None, 0),
        (b"null", 0),
        (b'"latest"', 0),
        (b'"earliest"', 3),
        (b"{}", 3),
        (EARLIEST, 3),
        ({"ledgerId": 9223372036854775807, "entryId": 9223372036854775807}, 0),
        ({"ledgerId": 1 << 62, "entryId": 5}, 0),
    ],
)
def test_a_subscription_begins_where_it_is_told(rest, shop, body, left):
    for _ in range(3):
        shop.send(b"x")
    rest.done("PUT", f"{TOPIC}/subscription/s", body)
    assert backlog(rest) == left


def test_a_subscription_begins_at_a_message(bench, rest, shop):
    entries = [shop.send(b"x"), shop.send(b"a", b"b", b"c"), shop.send(b"y")]
    where = {"ledgerId": ledger(bench, rest), "entryId": entries[1], "partitionIndex": -1}
    rest.done("PUT", f"{TOPIC}/subscription/s", where)
    assert backlog(rest) == 4
    rest.done("PUT", f"{TOPIC}/subscription/same", {**where, "excluded": True})
    assert backlog(rest, "same") == 4


def test_a_subscription_that_is_there_is_a_conflict(rest, shop):
    rest.done("PUT", f"{TOPIC}/subscription/s")
    text = "Subscription already exists for topic"
    assert rest.refused("PUT", f"{TOPIC}/subscription/s") == (409, text)


def test_a_subscription_is_there_after_a_kill(bench, rest, shop):
    shop.send(b"x")
    rest.done("PUT", f"{TOPIC}/subscription/a%2Fb%20c", EARLIEST)
    bench.kill()
    assert rest.get(f"{TOPIC}/subscriptions") == ["a/b c"]
    assert backlog(rest, "a/b c") == 1


@pytest.mark.parametrize("body", [b"{x", b"17", b'"what"', {"ledgerId": "one"}])
def test_a_bad_position_is_refused(rest, shop, body):
    assert rest("PUT", f"{TOPIC}/subscription/s", body).status == 400
    assert rest.get(f"{TOPIC}/subscriptions") == []


def test_making_a_subscription_makes_its_topic(rest):
    rest.done("PUT", f"{NOWHERE}/subscription/s")
    assert rest.get(f"{NOWHERE}/subscriptions") == ["s"]


def test_making_a_subscription_makes_partitions_where_topics_have_some(rest):
    rule = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    rest.done("POST", "namespaces/public/default/autoTopicCreation", rule)
    rest.done("PUT", f"{NOWHERE}/subscription/s")
    assert rest.get(f"{NOWHERE}/partitions")["partitions"] == 2
    assert rest.get(f"{NOWHERE}-partition-1/subscriptions") == ["s"]


def test_making_a_subscription_makes_no_topic_where_clients_may_not(rest):
    rule = {"allowAutoTopicCreation": False}
    rest.done("POST", "namespaces/public/default/autoTopicCreation", rule)
    assert rest("PUT", f"{NOWHERE}/subscription/s").status == 404


def test_making_a_subscription_makes_no_partition_that_is_not_there(rest, parts):
    assert rest("PUT", f"{PARTS}-partition-7/subscription/s").status == 404


def test_a_partitioned_topic_gets_it_in_every_partition_that_has_none(rest, parts):
    rest.done("PUT", f"{PARTS}-partition-1/subscription/t", EARLIEST)
    rest.done("PUT", f"{PARTS}/subscription/t", EARLIEST)
    for number in range(3):
        assert "t" in rest.get(f"{PARTS}-partition-{number}/subscriptions")
    assert rest("PUT", f"{PARTS}/subscription/t", EARLIEST).status == 409


def test_a_topic_without_a_log_gets_them_from_clients_only(rest):
    rest.done("PUT", WITHOUT_LOG)
    text = "Create subscription on non-persistent topic can only be done through client"
    assert rest.refused("PUT", f"{WITHOUT_LOG}/subscription/s") == (400, text)


# ---- deleted


def test_a_subscription_goes_for_good(bench, rest, sent):
    rest.done("DELETE", f"{TOPIC}/subscription/s")
    bench.kill()
    assert rest.get(f"{TOPIC}/subscriptions") == []
    text = "Subscription s not found for topic persistent://public/default/orders"
    assert rest.refused("DELETE", f"{TOPIC}/subscription/s") == (404, text)


def test_a_subscription_in_use_goes_by_force_only(rest, shop):
    shop.subscribe("s")
    text = "Subscription has active connected consumers"
    assert rest.refused("DELETE", f"{TOPIC}/subscription/s") == (412, text)
    assert rest.get(f"{TOPIC}/subscriptions") == ["s"]
    rest.done("DELETE", f"{TOPIC}/subscription/s?force=true")
    assert shop.kinds() == ["CLOSE_CONSUMER"]


def test_of_a_partitioned_topic_it_goes_from_all_partitions_or_from_none(rest, parts):
    parts[2].subscribe("s")
    assert rest("DELETE", f"{PARTS}/subscription/s").status == 412
    assert rest.get(f"{PARTS}-partition-0/subscriptions") == ["s"]
    rest.done("DELETE", f"{PARTS}/subscription/s?force=true")
    assert rest.get(f"{PARTS}/subscriptions") == []
    assert rest("DELETE", f"{PARTS}/subscription/s").status == 404


# ---- skipped


def test_some_messages_are_skipped(rest, sent):
    rest.done("POST", f"{TOPIC}/subscription/s/skip/2")
    assert backlog(rest) == 3
    rest.done("POST", f"{TOPIC}/subscription/s/skip/0")
    assert backlog(rest) == 3
    rest.done("POST", f"{TOPIC}/subscription/s/skip/100")
    assert backlog(rest) == 0


def test_a_batch_is_skipped_as_one(rest, shop):
    rest.done("PUT", f"{TOPIC}/subscription/s")
    shop.send(b"a", b"b", b"c")
    shop.send(b"d")
    rest.done("POST", f"{TOPIC}/subscription/s/skip/1")
    assert backlog(rest) == 1


def test_what_is_acked_already_is_not_counted_as_skipped(rest, shop, sent):
    consumer = shop.subscribe("s", "Shared", permits=10)
    shop.delivered()
    shop.ack(consumer, sent[1], sent[2])
    rest.done("POST", f"{TOPIC}/subscription/s/skip/2")
    assert backlog(rest) == 1


def test_very_many_are_skipped_in_pieces(monkeypatch, rest, sent):
    monkeypatch.setattr(room, "ENTRIES_AT_A_TIME", 2)
    rest.done("POST", f"{TOPIC}/subscription/s/skip/4")
    assert backlog(rest) == 1


def test_a_skip_survives_a_kill(bench, rest, sent):
    rest.done("POST", f"{TOPIC}/subscription/s/skip/2")
    bench.kill()
    assert backlog(rest) == 3


def test_everything_is_skipped(rest, shop, sent):
    shop.subscribe("s", "Shared", permits=2)
    assert shop.delivered() == sent[:2]
    rest.done("POST", f"{TOPIC}/subscription/s/skip_all")
    assert backlog(rest) == 0
    assert shop.kinds() == []


def test_a_truncated_topic_has_no_backlog_for_anybody(rest, sent):
    rest.done("PUT", f"{TOPIC}/subscription/t", EARLIEST)
    rest.done("DELETE", f"{TOPIC}/truncate")
    assert (backlog(rest), backlog(rest, "t")) == (0, 0)


def test_other_protocols_keep_what_is_truncated(bench, rest, sent):
    topic = bench.engine.topic(topic_name("orders"))
    options = SubscriptionOptions(start=Start.EARLIEST)
    bench.engine.create_subscription(topic.name, "rocketmq/shop", options)
    rest.done("DELETE", f"{TOPIC}/truncate")
    queue_id = topic.queues[0].queue_id
    assert topic.subscriptions["rocketmq/shop"].unsettled(queue_id) == 5


def test_all_partitions_are_truncated(rest, parts):
    rest.done("DELETE", f"{PARTS}/truncate")
    assert [backlog(rest, topic=f"{PARTS}-partition-{i}") for i in range(3)] == [0, 0, 0]


def test_only_a_topic_with_a_log_is_truncated(rest, shop_of):
    shop_of("non-persistent://public/default/orders").subscribe("s", "Shared")
    assert rest.refused("DELETE", f"{WITHOUT_LOG}/truncate") == (412, "unsupport truncate")
    assert rest("DELETE", f"{NOWHERE}/truncate").status == 404


def analyzed(rest, body=None):
    found = rest("POST", f"{TOPIC}/subscription/s/analyzeBacklog", body)
    assert found.status == 200
    return found.json


def test_a_backlog_is_analyzed_entry_by_entry(bench, monkeypatch, rest, shop, sent):
    monkeypatch.setattr(room, "ENTRIES_AT_A_TIME", 2)
    batch = shop.send(b"a", b"b", b"c")
    consumer = shop.subscribe("s", "Shared", permits=10)
    shop.delivered()
    shop.ack(consumer, sent[1])
    found = analyzed(rest)
    number = ledger(bench, rest)
    assert (found["entries"], found["messages"], found["aborted"]) == (5, 7, False)
    assert (found["filterAcceptedEntries"], found["filterAcceptedMessages"]) == (5, 7)
    assert found["firstMessageId"] == f"{number}:{sent[0]}"
    assert found["lastMessageId"] == f"{number}:{batch}"
    later = analyzed(rest, {"ledgerId": number, "entryId": 3})
    assert (later["entries"], later["messages"]) == (3, 5)
    assert later["firstMessageId"] == f"{number}:3"


def test_an_analysis_of_nothing_names_no_ids(rest, sent):
    rest.done("POST", f"{TOPIC}/subscription/s/skip_all")
    found = analyzed(rest)
    assert (found["entries"], found["messages"], found["aborted"]) == (0, 0, False)
    assert "firstMessageId" not in found


def test_an_analysis_ends_after_so_many_entries(monkeypatch, rest, sent):
    monkeypatch.setattr(calls, "ANALYZED_ENTRIES_MAX", 3)
    found = analyzed(rest)
    assert (found["entries"], found["aborted"]) == (3, True)


def test_partitions_are_analyzed_one_by_one(rest, parts):
    text = "Analyze backlog on a partitioned topic is not allowed"
    assert rest.refused("POST", f"{PARTS}/subscription/s/analyzeBacklog") == (405, text)


def test_everything_is_skipped_in_all_partitions(rest, parts):
    rest.done("POST", f"{PARTS}/subscription/s/skip_all")
    assert [backlog(rest, topic=f"{PARTS}-partition-{i}") for i in range(3)] == [0, 0, 0]


def test_some_cannot_be_skipped_in_all_partitions(rest, parts):
    text = "Skip messages on a partitioned topic is not allowed"
    assert rest.refused("POST", f"{PARTS}/subscription/s/skip/1") == (405, text)
    rest.done("POST", f"{PARTS}-partition-1/subscription/s/skip/1")
    assert backlog(rest, topic=f"{PARTS}-partition-1") == 1


# ---- expired


@pytest.fixture
def aged(bench, rest, shop):
    """One message each of 100, 50 and 0 seconds ago."""
    rest.done("PUT", f"{TOPIC}/subscription/s")
    rest.done("PUT", f"{TOPIC}/subscription/t")
    now_ms = bench.clock.wall_ms()
    for number, age_s in enumerate((100, 50, 0)):
        tail = message_tail(number, b"x", publish_time=now_ms - age_s * 1000)
        shop.send(b"x", tail=tail)


@pytest.mark.parametrize(
    ("seconds", "left"), [(1000, 3), (75, 2), (25, 1), (0, 3), (-1, 0), (10**18, 3)]
)
def test_what_is_older_expires(rest, aged, seconds, left):
    rest.done("POST", f"{TOPIC}/subscription/s/expireMessages/{seconds}")
    assert backlog(rest) == left
    assert backlog(rest, "t") == 3


def test_what_is_older_expires_for_all_subscriptions(rest, aged):
    rest.done("POST", f"{TOPIC}/all_subscription/expireMessages/25")
    assert (backlog(rest), backlog(rest, "t")) == (1, 1)


def test_everything_up_to_a_message_expires(bench, rest, sent):
    rest.done("POST", f"{TOPIC}/subscription/s/expireMessages", {"ledgerId": 0, "entryId": 0})
    assert backlog(rest) == 5
    where = {"ledgerId": ledger(bench, rest), "entryId": sent[2]}
    rest.done("POST", f"{TOPIC}/subscription/s/expireMessages", where)
    assert backlog(rest) == 2


def test_of_a_partitioned_topic_it_expires_everywhere(bench, rest, parts):
    bench.clock.advance(10_000)
    rest.done("POST", f"{PARTS}/subscription/s/expireMessages/5")
    assert [backlog(rest, topic=f"{PARTS}-partition-{i}") for i in range(3)] == [0, 0, 0]
    rest.done("POST", f"{PARTS}/all_subscription/expireMessages/5")


# ---- reset


def test_a_reset_to_a_time_begins_with_what_was_published_then(bench, rest, aged):
    rest.done("POST", f"{TOPIC}/subscription/s/skip_all")
    at_ms = bench.clock.wall_ms() - 60_000
    rest.done("POST", f"{TOPIC}/subscription/s/resetcursor/{at_ms}")
    assert backlog(rest) == 2
    rest.done("POST", f"{TOPIC}/subscription/s/resetcursor/0")
    assert backlog(rest) == 3
    rest.done("POST", f"{TOPIC}/subscription/s/resetcursor/{int(time.time() * 10_000)}")
    assert backlog(rest) == 0


def test_a_reset_to_a_message_begins_with_it(bench, rest, sent):
    where = {"ledgerId": ledger(bench, rest), "entryId": sent[3], "partitionIndex": -1}
    rest.done("POST", f"{TOPIC}/subscription/s/resetcursor", where)
    assert backlog(rest) == 2
    rest.done("POST", f"{TOPIC}/subscription/s/resetcursor", {**where, "excluded": True})
    assert backlog(rest) == 1
    rest.done("POST", f"{TOPIC}/subscription/s/resetcursor", EARLIEST)
    assert backlog(rest) == 5


def test_a_reset_closes_the_consumers_and_survives_a_kill(bench, rest, shop, sent):
    shop.subscribe("s", permits=10)
    assert shop.delivered() == sent
    rest.done("POST", f"{TOPIC}/subscription/s/skip_all")
    rest.done("POST", f"{TOPIC}/subscription/s/resetcursor/0")
    assert shop.kinds() == ["CLOSE_CONSUMER"]
    bench.kill()
    assert backlog(rest) == 5


def test_all_partitions_are_reset_by_time_and_none_by_id(rest, parts):
    rest.done("POST", f"{PARTS}/subscription/s/skip_all")
    rest.done("POST", f"{PARTS}/subscription/s/resetcursor/0")
    assert [backlog(rest, topic=f"{PARTS}-partition-{i}") for i in range(3)] == [2, 2, 2]
    text = "Reset-cursor at position is not allowed for partitioned-topic"
    assert rest.refused("POST", f"{PARTS}/subscription/s/resetcursor", EARLIEST) == (405, text)


# ---- what is refused, whatever is asked

MOVES = [
    ("skip/1", None),
    ("skip_all", None),
    ("analyzeBacklog", None),
    ("expireMessages/1", None),
    ("expireMessages", EARLIEST),
    ("resetcursor/1", None),
    ("resetcursor", EARLIEST),
]


@pytest.mark.parametrize(("move", "body"), MOVES)
def test_nothing_moves_without_a_topic_or_a_subscription(rest, shop, move, body):
    assert rest("POST", f"{NOWHERE}/subscription/s/{move}", body).status == 404
    text = "Subscription s not found for topic persistent://public/default/orders"
    assert rest.refused("POST", f"{TOPIC}/subscription/s/{move}", body) == (404, text)


@pytest.mark.parametrize(
    "move", ["skip/x", "expireMessages/x", "resetcursor/x", "skip/" + "9" * 30]
)
def test_what_is_no_number_is_refused(rest, sent, move):
    assert rest("POST", f"{TOPIC}/subscription/s/{move}").status == 400
    assert backlog(rest) == 5


@pytest.mark.parametrize("body", [b"{x", b"", b"7", {"ledgerId": None, "entryId": []}])
@pytest.mark.parametrize("move", ["resetcursor", "expireMessages"])
def test_what_is_no_position_is_refused(rest, sent, move, body):
    assert rest("POST", f"{TOPIC}/subscription/s/{move}", body).status == 400
    assert backlog(rest) == 5


@pytest.mark.parametrize("move", ["skip/1", "skip_all", "expireMessages/1"])
def test_without_a_log_there_is_nothing_to_move(rest, shop_of, move):
    shop_of("non-persistent://public/default/orders").subscribe("s", "Shared")
    found = rest("POST", f"{WITHOUT_LOG}/subscription/s/{move}")
    assert found.status == 405
    assert "non-persistent topic is not allowed" in found.reason


def test_without_a_log_a_reset_by_time_does_nothing(rest, shop_of):
    shop = shop_of("non-persistent://public/default/orders")
    shop.subscribe("s", "Shared")
    rest.done("POST", f"{WITHOUT_LOG}/subscription/s/resetcursor/0")
    assert shop.kinds() == []


def test_changes_are_for_this_machine(rest, sent):
    found = rest("POST", f"{TOPIC}/subscription/s/skip_all", client="192.0.2.1", host="192.0.2.9")
    assert found.status == 403
    assert backlog(rest) == 5
