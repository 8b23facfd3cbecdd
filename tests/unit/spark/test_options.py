import pickle

import pytest

from penstock.bulk.tickets import RowFilter
from penstock.spark.options import BadOption, read_options, read_sink_options


def test_without_an_endpoint_the_local_flight_port_is_read():
    options = read_options({"topics": "orders"})
    assert (options.endpoint, options.topics) == ("127.0.0.1:8815", ("orders",))


def test_names_are_read_in_any_case_and_quantities_as_people_write_them():
    options = read_options(
        {
            "TOPICS": "orders, payments,orders",
            "maxrowspertrigger": "10_000",
            "maxBytesPerTrigger": "64m",
            "minRowsPerTrigger": "500",
            "maxTriggerDelay": "2 minutes",
            "targetBatchDuration": "1500ms",
            "failOnDataLoss": "FALSE",
            "retryTimeout": "250",
            "leaseTtl": "1d",
        }
    )
    assert options.topics == ("orders", "payments")
    assert (options.rows_max, options.bytes_max, options.rows_min) == (10_000, 64 << 20, 500)
    assert (options.trigger_delay_s_max, options.target_batch_s) == (120, 1.5)
    assert (options.retry_s, options.lease_ttl_s) == (0.25, 86400)
    assert options.fails_on_data_loss is False


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxRowPerTriger", "maxRowsPerTrigger"),
        ("subscribe", "topics"),
        ("kafka.bootstrap.servers", "endpoint"),
        ("maxOffsetsPerTrigger", "maxRowsPerTrigger"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest(given, nearest):
    with pytest.raises(BadOption, match=f"'{given}'; did you mean {nearest}"):
        read_options({"topics": "orders", given: "1"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "which topics"),
        ({"topics": " , "}, "option topics"),
        ({"topics": "a", "topicsPattern": "b"}, "exclude each other"),
        ({"topicsPattern": "("}, "regular expression"),
        ({"topics": "a", "endpoint": "h:1", "path": "d"}, "endpoint and path"),
        ({"topics": "a", "endpoint": "nowhere"}, "no endpoint"),
        ({"topics": "a", "endpoint": "a:1;b:2"}, "several brokers"),
        ({"topics": "a", "maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger"),
        ({"topics": "a", "maxRowsPerTrigger": "5", "minRowsPerTrigger": "6"}, "is above"),
        ({"topics": "a", "targetBatchDuration": "fast"}, "option targetBatchDuration"),
        ({"topics": "a", "targetBatchDuration": "5 parsecs"}, "is no duration"),
        ({"topics": "a", "maxBytesPerTrigger": "3 apples"}, "is no size"),
        ({"topics": "a", "failOnDataLoss": "perhaps"}, "neither true nor false"),
        ({"topics": "a", "startingTimestamp": "yesterday"}, "is no time"),
        ({"topics": "a", "startingTimestamp": "1", "startingOffsets": "latest"}, "twice"),
        ({"topics": "a", "rowsPerBatch": "100001"}, "at most 100000"),
        (
            {"topics": "a", "endpoint": "rocketmq://h:9876", "maxBytesPerTrigger": "1m"},
            "does not say sizes",
        ),
    ],
)
def test_what_makes_no_sense_is_said_in_words(given, words):
    with pytest.raises(BadOption, match=words):
        read_options(given)


@pytest.mark.parametrize(
    ("text", "kind", "rest"),
    [
        ("paid", "tag", "paid"),
        ("A || B||C-1", "tag", "A || B||C-1"),
        ("amount > 5", "sql92", "amount > 5"),
        ("a = 1 || b", "sql92", "a = 1 || b"),
        ("sql: is_paid", "sql92", "is_paid"),
        ("tag: A B", "tag", "A B"),
    ],
)
def test_tags_and_expressions_are_told_apart(text, kind, rest):
    assert read_options({"topics": "a", "filter": text}).filter == RowFilter(kind, rest)


def test_a_query_without_a_name_gets_one_that_is_the_same_in_every_process():
    first = read_options({"topics": "orders"})
    assert first.subscription == read_options({"topics": "orders"}).subscription
    assert first.subscription != read_options({"topics": "orders", "filter": "A"}).subscription
    assert first.subscription.startswith("orders-")
    assert not first.is_named
    named = read_options({"topics": "orders", "subscription": "etl"})
    assert (named.subscription, named.is_named) == ("etl", True)


def test_several_name_servers_are_one_rocketmq():
    options = read_options({"topics": "a", "endpoint": "rocketmq://a:9876;b:9876"})
    assert options.is_rocketmq


def test_times_are_milliseconds_or_iso_and_utc_unless_they_say_otherwise():
    plain = read_options({"topics": "a", "startingTimestamp": "1700000000000"})
    assert plain.starting_at_ms == 1_700_000_000_000
    for text in ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "2023-11-14T23:13:20+01:00"):
        assert read_options({"topics": "a", "endingTimestamp": text}).ending_at_ms == (
            1_700_000_000_000
        )


def test_options_survive_pickling():
    options = read_options({"topics": "orders", "filter": "A || B"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_sink_ignores_what_spark_adds_of_its_own():
    given = {"topic": "out", "queryName": "etl", "checkpointLocation": "/x", "path": "y"}
    assert read_sink_options(given).topic == "out"
