"""Options of the pull consumer and the lite pull consumer.

Not here: what they do (``pull_consumer.py``, ``lite_pull_consumer.py``).
"""

from datetime import datetime
from typing import Annotated

from penstock.client.consumer.consume_from import ConsumeFrom
from penstock.client.options import InstanceOptions, Option
from penstock.model.assignment import AVG, Strategy
from penstock.wire.rocketmq.bodies import MessageModel


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
    suspend_ms: Annotated[
        int, Option(20_000, "How long a broker may hold a pull that waits for messages.", 1)
    ]
    suspend_timeout_ms: Annotated[
        int, Option(30_000, "How long a pull that waits may take in all; above suspend_ms.", 1)
    ]
    pull_timeout_ms: Annotated[
        int, Option(10_000, "How long a pull that does not wait may take.", 1)
    ]
    pull_bytes_max: Annotated[
        int | None,
        Option(None, "Bytes of messages one pull asks for; None: the broker's limit.", 1),
    ]
    allocation: Annotated[
        str | Strategy, Option(AVG, "How queues are divided among the members of a group.")
    ]
    reconsume_times_max: Annotated[
        int, Option(16, "Deliveries after which a message that is sent back is a dead letter.", 0)
    ]


class LitePullOptions(InstanceOptions, total=False):
    """Options of ``LitePullConsumer``."""

    auto_commit: Annotated[bool, Option(True, "Offsets are stored by themselves, in ``poll()``.")]
    auto_commit_interval_ms: Annotated[int, Option(5_000, "How often they are.", minimum=1_000)]
    poll_timeout_ms: Annotated[int, Option(5_000, "How long ``poll()`` waits for messages.", 0)]
    pull_batch_size: Annotated[
        int, Option(10, "Messages one pull asks for, and one poll gives.", 1, 1024)
    ]
    messages_max: Annotated[
        int, Option(10_000, "Messages pulled and not polled, of all queues (0: no limit).", 0)
    ]
    queue_messages_max: Annotated[
        int, Option(1_000, "Messages pulled and not polled, of one queue.", 1, 65_535)
    ]
    queue_bytes_max: Annotated[
        int, Option(100 << 20, "Bytes pulled and not polled, of one queue.", 1)
    ]
    queue_span_max: Annotated[
        int, Option(2_000, "Offsets between the first and last message of one queue.", 1, 65_535)
    ]
    suspend_ms: Annotated[
        int, Option(20_000, "How long a broker may hold a pull that waits for messages.", 1)
    ]
    suspend_timeout_ms: Annotated[
        int, Option(30_000, "How long such a pull may take in all; above suspend_ms.", 1)
    ]
    exception_delay_ms: Annotated[int, Option(1_000, "Wait after a pull that failed.", 1)]
    consume_from: Annotated[
        ConsumeFrom | str,
        Option(
            ConsumeFrom.LAST,
            "Where a group without a stored offset begins.",
            choices=tuple(ConsumeFrom),
        ),
    ]
    consume_timestamp: Annotated[
        datetime | str | int | None,
        Option(
            None,
            "Where ``timestamp`` begins: a datetime, yyyyMMddHHmmss or milliseconds; None: half"
            " an hour ago.",
        ),
    ]
    model: Annotated[
        MessageModel,
        Option(
            MessageModel.CLUSTERING,
            "CLUSTERING shares the queues among the members of the group; BROADCASTING gives"
            " every member all of them.",
            choices=tuple(MessageModel),
        ),
    ]
    allocation: Annotated[
        str | Strategy, Option(AVG, "How queues are divided among the members of a group.")
    ]
    metadata_check_interval_ms: Annotated[
        int, Option(30_000, "How often listeners of a topic's queues hear of a change.", 10)
    ]
