"""Options of a push consumer: RocketMQ's defaults, and what cannot work together."""

import pytest

from penstock.client import PushConsumer
from penstock.client.consumer.options import PushConsumerOptions, check_options
from penstock.client.options import resolve


def test_defaults_are_those_of_rocketmq():
    options = resolve(PushConsumerOptions, {})
    check_options(options)
    wanted = {
        "consume_from": "last",
        "consume_threads": 20,
        "consume_batch": 1,
        "consume_timeout_ms": 15 * 60 * 1000,
        "retries_max": -1,
        "pull_batch": 32,
        "pull_batch_bytes": 256 * 1024,
        "pull_interval_ms": 0,
        "pull_suspend_ms": 15_000,
        "pull_timeout_ms": 30_000,
        "pull_threshold_messages": 1000,
        "pull_threshold_bytes": 100 << 20,
        "pull_threshold_span": 2000,
        "topic_threshold_messages": -1,
        "topic_threshold_bytes": -1,
        "pop_invisible_ms": 60_000,
        "pop_threshold": 96,
        "suspend_ms": 1000,
        "strategy": "AVG",
    }
    assert {name: options[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"pull_suspend_ms": 30_000}, "pull_timeout_ms"),
        ({"is_popping": True, "is_broadcasting": True}, "is_popping"),
        ({"consume_from": "middle"}, "consume_from"),
        ({"consume_threads": 0}, "consume_threads"),
        ({"strategy": "FAIR"}, "FAIR"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given, named):
    with pytest.raises(ValueError, match=named):
        PushConsumer("127.0.0.1:1", "g", print, **given)
