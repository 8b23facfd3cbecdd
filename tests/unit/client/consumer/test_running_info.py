"""What a broker is told about a consumer."""

from penstock.client.consumer.assigned import AssignedQueue
from penstock.client.consumer.results import Finished, ResultKind
from penstock.client.consumer.running_info import ConsumerFacts, running_info, stacks
from penstock.client.consumer.statistics import ConsumerStatistics
from penstock.client.consumer.thresholds import HeldQueue
from penstock.flow.thresholds import Cached, Threshold
from penstock.model.assignment import QueueRef
from penstock.testing.client_parts import received_message
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.bodies import SubscriptionData

Q = QueueRef("orders", "broker-a", 3)
FACTS = ConsumerFacts("ns:9876", True, False, 20, 1_700_000_000_000, "penstock")


def info(clock, **changes):
    arguments = {
        "subscriptions": [SubscriptionData(topic="orders")],
        "owned": {},
        "committed": {},
        "topics": {},
        "held": [],
    }
    return running_info(FACTS, **{**arguments, **changes}, clock=clock)


def test_a_queue_is_told_with_rocketmqs_keys_and_wall_times():
    clock = ManualClock(wall_ms=1_700_000_000_000, monotonic_ms=5_000)
    assigned = AssignedQueue(Q, 10, 4_000)
    assigned.process_queue.put([received_message(Q, n, b"x" * (1 << 20)) for n in range(10, 14)])
    assigned.process_queue.take(1)
    assigned.is_locked, assigned.last_locked_ms = True, 4_500
    told = info(clock, owned={Q: assigned}, committed={Q: 10})["mqTable"][Q]
    assert told == {
        "commitOffset": 10,
        "cachedMsgMinOffset": 10,
        "cachedMsgMaxOffset": 13,
        "cachedMsgCount": 3,
        "cachedMsgSizeInMiB": 4,
        "transactionMsgMinOffset": 10,
        "transactionMsgMaxOffset": 10,
        "transactionMsgCount": 1,
        "locked": True,
        "tryUnlockTimes": 0,
        "lastLockTimestamp": 1_700_000_000_000 - 500,
        "droped": False,
        "lastPullTimestamp": 1_700_000_000_000 - 1_000,
        "lastConsumeTimestamp": 1_700_000_000_000 - 1_000,
    }


def test_an_empty_and_never_locked_queue():
    told = info(ManualClock(), owned={Q: AssignedQueue(Q, 10, 4_000)})["mqTable"][Q]
    assert told["commitOffset"] == -1
    assert told["cachedMsgCount"] == told["cachedMsgMaxOffset"] == told["lastLockTimestamp"] == 0


def test_which_threshold_holds_which_queue_since_when():
    clock = ManualClock(wall_ms=1_700_000_060_000, monotonic_ms=60_000)
    held = HeldQueue(Q, Threshold.MESSAGES, 1000, 30_000, 30_000, Cached(1001, 1, 1))
    properties = info(clock, held=[held])["properties"]
    assert properties["heldQueues"] == "1"
    assert properties["held"] == (
        f"orders@broker-a:3 by {Threshold.MESSAGES.value} (limit 1000) since 2023-11-14T22:13:50Z"
    )
    assert info(clock)["properties"]["heldQueues"] == "0"


def test_topics_are_told_with_rates():
    clock = ManualClock()
    statistics = ConsumerStatistics()
    now_ms = clock.monotonic_ms()
    statistics.topic("orders").pulled(32, 5.0, now_ms)
    done = Finished([received_message(Q, 0)], None, None, ResultKind.SUCCESS, 2.0)
    failed = Finished([received_message(Q, 1)], None, KeyError(), ResultKind.EXCEPTION, 4.0)
    statistics.topic("orders").finished([done, failed], now_ms)
    told = info(clock, topics=statistics.figures(now_ms))["statusTable"]["orders"]
    assert told == {
        "pullRT": 5.0,
        "pullTPS": 32.0,
        "consumeRT": 3.0,
        "consumeOKTPS": 1.0,
        "consumeFailedTPS": 1.0,
        "consumeFailedMsgs": 1,
    }


def test_subscriptions_facts_and_stacks():
    told = info(ManualClock())
    assert told["subscriptionSet"][0]["subString"] == "*"
    assert told["properties"]["PROP_CONSUMEORDERLY"] == "true"
    assert "jstack" not in told
    assert "test_subscriptions_facts_and_stacks" in stacks()
