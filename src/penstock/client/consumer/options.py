"""Options of the three consumers; defaults are RocketMQ's.

Not here: what they do (each in the module that reads it), options of the shared instance
(``client/options.py``).
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, TypedDict

from penstock.client.consumer.executor import ConsumeHook
from penstock.client.consumer.offsets import OffsetStore
from penstock.client.consumer.rebalance import strategy_of
from penstock.client.consumer.subscription import ConsumeFrom, FilterHook
from penstock.client.options import InstanceOptions, Option
from penstock.client.trace import TraceOptions
from penstock.model.assignment import AVG, QueueRef, Strategy

QueueListener = Callable[[str, list[QueueRef], list[QueueRef]], object]
"""Gets a topic, all its queues and those owned from now on; called on a thread."""

AllocationStrategy = Annotated[
    str | Strategy,
    Option(AVG, "How queues are divided: the name of a strategy, or a function of your own."),
]
ConsumeFromOption = Annotated[
    str,
    Option(
        "last",
        "Where a group without stored offsets begins; last is the end of the topic as it was when"
        " the consumer started, also of a young topic.",
        choices=[*ConsumeFrom],
    ),
]
ConsumeTimestamp = Annotated[
    datetime | str | int | None,
    Option(
        None,
        "Where consume_from='timestamp' begins: a datetime, yyyyMMddHHmmss in local time, or"
        " milliseconds since 1970. Default: half an hour ago.",
    ),
]
OffsetStoreOption = Annotated[
    OffsetStore | Any | None,
    Option(
        None,
        "Where offsets are kept: an object with read(queue) and write(offsets), plain or"
        " coroutines. Default: the broker, or a local file when broadcasting.",
    ),
]
OffsetsDirectory = Annotated[
    str | None,
    Option(None, "Where local offset files are; default ~/.penstock_offsets."),
]


class MemberOptions(TypedDict, total=False):
    """The options that all members of groups read (``member.py``), where a consumer has them."""

    is_broadcasting: bool
    consume_from: ConsumeFromOption
    consume_timestamp: ConsumeTimestamp
    strategy: AllocationStrategy
    queue_listener: QueueListener | None
    offset_store: OffsetStoreOption
    offsets_directory: OffsetsDirectory


class PushConsumerOptions(InstanceOptions, TraceOptions, total=False):
    """How a push consumer pulls, consumes, retries and remembers."""

    is_ordered: Annotated[
        bool,
        Option(False, "One message of a queue after the other, each queue locked at its broker."),
    ]
    is_broadcasting: Annotated[
        bool,
        Option(
            False,
            "Every member of the group gets every message; offsets are kept in a local file, and"
            " what fails is not tried again.",
        ),
    ]
    consume_from: ConsumeFromOption
    consume_timestamp: ConsumeTimestamp
    consume_threads: Annotated[
        int,
        Option(20, "How many calls of the listener may run at once (threads, or coroutines).", 1),
    ]
    consume_batch: Annotated[
        int,
        Option(1, "Messages in one call of the listener; above 1 it gets a list.", 1, 1024),
    ]
    consume_timeout_ms: Annotated[
        int,
        Option(
            15 * 60_000,
            "A call that takes longer is a time-out: its messages are given back to the broker.",
            1,
        ),
    ]
    retries_max: Annotated[
        int,
        Option(
            -1,
            "How often a message is tried again before it is a dead letter; -1: 16, for ordered"
            " consumers without end.",
            -1,
        ),
    ]
    local_retry_ms: Annotated[
        int,
        Option(5_000, "When a message that could not be given back is tried again here.", 1),
    ]
    is_auto_commit: Annotated[
        bool,
        Option(True, "Ordered: success commits; else only COMMIT does, and ROLLBACK goes back."),
    ]
    suspend_ms: Annotated[
        int,
        Option(1_000, "Ordered: pause of a queue before its messages are tried again.", 10, 30_000),
    ]
    lock_renewal_ms: Annotated[
        int, Option(20_000, "Ordered: how often the broker's locks on queues are renewed.", 10)
    ]
    lock_stale_ms: Annotated[
        int,
        Option(
            30_000,
            "Ordered: nothing new is consumed under a lock that was not renewed for this long; half"
            " of the time for which brokers keep it, so that a call can end before it is lost.",
            10,
        ),
    ]
    pull_batch: Annotated[int, Option(32, "Messages asked for in one pull.", 1, 1024)]
    pull_batch_bytes: Annotated[
        int, Option(256 * 1024, "Bytes asked for in one pull; at least one message comes.", 1)
    ]
    pull_interval_ms: Annotated[int, Option(0, "Wait between two pulls of a queue.", 0, 65_535)]
    pull_suspend_ms: Annotated[
        int, Option(15_000, "How long a broker holds a pull that finds nothing.", 1)
    ]
    pull_timeout_ms: Annotated[
        int, Option(30_000, "How long the answer to a pull may take; above pull_suspend_ms.", 1)
    ]
    pull_error_wait_ms: Annotated[
        int, Option(1_000, "Wait after a pull that failed; 20 ms when the broker says busy.", 1)
    ]
    pull_threshold_messages: Annotated[
        int,
        Option(1_000, "Unsettled messages of a queue above which it is not pulled.", 1, 65_535),
    ]
    pull_threshold_bytes: Annotated[
        int, Option(100 << 20, "Bytes of unsettled messages of a queue, likewise.", 1)
    ]
    pull_threshold_span: Annotated[
        int,
        Option(
            2_000,
            "Distance of the first and last unsettled offset of a queue, likewise (not ordered).",
            1,
            65_535,
        ),
    ]
    topic_threshold_messages: Annotated[
        int, Option(-1, "pull_threshold_messages for all owned queues of a topic; -1: none.", -1)
    ]
    topic_threshold_bytes: Annotated[
        int, Option(-1, "pull_threshold_bytes for all owned queues of a topic; -1: none.", -1)
    ]
    is_subscription_posted: Annotated[
        bool, Option(False, "Send the tag expression with each pull, not only in heartbeats.")
    ]
    strategy: AllocationStrategy
    queue_listener: Annotated[
        QueueListener | None, Option(None, "Called with (topic, all queues, mine) at each change.")
    ]
    offset_store: OffsetStoreOption
    offsets_directory: OffsetsDirectory
    hooks: Annotated[
        Sequence[ConsumeHook], Option((), "Called before and after each call of the listener.")
    ]
    filters: Annotated[
        Sequence[FilterHook],
        Option((), "Each gets the messages of a pull or pop and gives those to consume."),
    ]
    is_popping: Annotated[
        bool,
        Option(
            False,
            "Let a broker divide the queues, and pop messages one by one where it has switched the"
            " group to that.",
        ),
    ]
    pop_batch: Annotated[int, Option(32, "Pop: messages asked for at once.", 1, 32)]
    pop_threshold: Annotated[
        int, Option(96, "Pop: unsettled messages of a queue above which it is not popped.", 1)
    ]
    pop_invisible_ms: Annotated[
        int,
        Option(
            60_000,
            "Pop: how long a message is kept from others; what takes longer comes again.",
            5_000,
            300_000,
        ),
    ]
    pop_poll_ms: Annotated[
        int, Option(15_000, "Pop: how long a broker holds a pop that finds nothing.", 0)
    ]
    await_termination_ms: Annotated[
        int,
        Option(
            10_000, "How long stop() waits for listeners that run, but the one that calls it.", 0
        ),
    ]


def check_options(options: PushConsumerOptions) -> None:
    """Refuse what cannot work, before anybody is asked for anything."""
    strategy_of(options["strategy"])
    if options["pull_timeout_ms"] <= options["pull_suspend_ms"]:
        raise ValueError(
            f"pull_timeout_ms is {options['pull_timeout_ms']}: brokers hold a pull for"
            f" {options['pull_suspend_ms']} (pull_suspend_ms), the answer must be waited for longer"
        )
    if options["is_popping"] and options["is_broadcasting"]:
        raise ValueError("is_popping needs a group that shares its queues, not is_broadcasting")


class PullOptions(InstanceOptions, total=False):
    """Options of ``PullConsumer``."""

    registers_group: Annotated[
        bool,
        Option(
            True,
            "Brokers are told of this consumer, and divide queues with the other members of its"
            " group. False: nobody hears of it; for readers that know their queues and offsets.",
        ),
    ]
    pull_timeout_ms: Annotated[
        int, Option(10_000, "How long an answer may take, beyond the time a pull may wait.", 1)
    ]
    pull_bytes_max: Annotated[
        int | None,
        Option(None, "Bytes of messages one pull asks for; None: the broker's limit.", 1),
    ]
    strategy: AllocationStrategy
    retries_max: Annotated[
        int, Option(16, "How often a message can be sent back before it is a dead letter.", 0)
    ]


class LitePullOptions(InstanceOptions, total=False):
    """Options of ``LitePullConsumer``."""

    is_auto_commit: Annotated[
        bool, Option(True, "Offsets of what earlier polls gave are stored by ``poll()`` itself.")
    ]
    auto_commit_interval_ms: Annotated[int, Option(5_000, "How often they are.", minimum=1_000)]
    poll_timeout_ms: Annotated[int, Option(5_000, "How long ``poll()`` waits for messages.", 0)]
    pull_batch: Annotated[
        int, Option(10, "Messages one pull asks for, and one poll gives.", 1, 1024)
    ]
    pull_threshold_all: Annotated[
        int, Option(10_000, "Messages pulled and not polled, of all queues; 0: no limit.", 0)
    ]
    pull_threshold_messages: Annotated[
        int,
        Option(1_000, "Messages pulled and not polled above which a queue waits.", 1, 65_535),
    ]
    pull_threshold_bytes: Annotated[
        int, Option(100 << 20, "Bytes pulled and not polled, likewise.", 1)
    ]
    pull_threshold_span: Annotated[
        int, Option(2_000, "Distance of the first and last such offset, likewise.", 1, 65_535)
    ]
    pull_suspend_ms: Annotated[
        int, Option(20_000, "How long a broker holds a pull that finds nothing.", 1)
    ]
    pull_timeout_ms: Annotated[
        int, Option(10_000, "How long an answer may take, beyond the time a pull is held.", 1)
    ]
    pull_error_wait_ms: Annotated[
        int, Option(1_000, "Wait after a pull that failed; 20 ms when the broker says busy.", 1)
    ]
    consume_from: ConsumeFromOption
    consume_timestamp: ConsumeTimestamp
    is_broadcasting: Annotated[
        bool,
        Option(False, "Every member reads every queue; offsets are kept in a local file."),
    ]
    strategy: AllocationStrategy
    queue_listener: Annotated[
        QueueListener | None,
        Option(None, "Called with (topic, all queues, mine) when the share changes."),
    ]
    metadata_check_interval_ms: Annotated[
        int, Option(30_000, "How often it is looked whether a topic has other queues.", 10)
    ]
    offset_store: OffsetStoreOption
    offsets_directory: OffsetsDirectory
