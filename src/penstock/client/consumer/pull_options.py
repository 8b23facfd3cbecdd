"""Options of the pull consumer and the lite pull consumer.

Not here: what they do (``pull_consumer.py``, ``lite_pull_consumer.py``).
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from penstock.client.consumer.consume_from import ConsumeFrom
from penstock.client.options import InstanceOptions, Option
from penstock.model.assignment import AVG, QueueRef, Strategy

QueuesChanged = Callable[[str, list[QueueRef], list[QueueRef]], object]
"""Gets a topic, all its queues, and this consumer's share of them; called on a thread."""


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
    strategy: Annotated[
        str | Strategy,
        Option(AVG, "How queues are divided: the name of a strategy, or a function of your own."),
    ]
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
    consume_from: Annotated[
        str, Option("last", "Where a group without stored offsets begins.", choices=[*ConsumeFrom])
    ]
    consume_timestamp: Annotated[
        datetime | str | int | None,
        Option(
            None,
            "Where consume_from='timestamp' begins: a datetime, yyyyMMddHHmmss in local time, or"
            " milliseconds since 1970. Default: half an hour ago.",
        ),
    ]
    is_broadcasting: Annotated[
        bool,
        Option(False, "Every member reads every queue; offsets are kept in a local file."),
    ]
    strategy: Annotated[
        str | Strategy,
        Option(AVG, "How queues are divided: the name of a strategy, or a function of your own."),
    ]
    queue_listener: Annotated[
        QueuesChanged | None,
        Option(None, "Called with (topic, all queues, mine) when the share changes."),
    ]
    metadata_check_interval_ms: Annotated[
        int, Option(30_000, "How often it is looked whether a topic has other queues.", 10)
    ]
    offset_store: Annotated[
        Any,
        Option(
            None,
            "Where offsets are kept: an object with read(queue) and write(offsets), plain or"
            " coroutines. Default: the broker, or a local file when broadcasting.",
        ),
    ]
    offsets_directory: Annotated[
        str | None, Option(None, "Where local offset files are; default ~/.penstock_offsets.")
    ]
