"""Options of a producer; the defaults are RocketMQ's, except where the meaning says otherwise."""

from collections.abc import Sequence
from typing import Annotated

from penstock.client.options import InstanceOptions, Option
from penstock.client.producer.hooks import SendHook
from penstock.client.trace import TraceOptions


class ProducerOptions(InstanceOptions, TraceOptions, total=False):
    """What ``Producer`` takes as keywords."""

    send_timeout_ms: Annotated[
        int, Option(3000, "How long one send may take: permit, route and all tries together.", 1)
    ]
    try_timeout_ms: Annotated[
        int,
        Option(
            0,
            "How long one try may take while others may follow; 0: as long as the send. Less than"
            " a third of send_timeout_ms lets a send get away from a broker that hangs.",
            0,
        ),
    ]
    retries: Annotated[
        int, Option(2, "Tries after the first one, each with another broker if there is one.", 0)
    ]
    retry_on_busy: Annotated[
        bool,
        Option(
            False,
            "Try another broker when one is under flow control (code 2). RocketMQ's 5.x client"
            " does for synchronous sends; off, the sender hears of it at once and slows down.",
        ),
    ]
    retry_another_broker_when_not_store_ok: Annotated[
        bool,
        Option(False, "Try another broker when a message was stored, but not as well as wanted."),
    ]
    send_latency_fault: Annotated[
        bool, Option(False, "Avoid brokers that were slow or failed, for up to 30 s.")
    ]
    in_flight_messages_max: Annotated[
        int, Option(1024, "Asynchronous sends not answered yet; the next one waits (F16).", 1)
    ]
    in_flight_bytes_max: Annotated[
        int, Option(100 * 1024 * 1024, "The same in bytes of their bodies (F16).", 1)
    ]
    message_bytes_max: Annotated[
        int,
        Option(4 * 1024 * 1024, "Largest body and largest batch; brokers have a limit, too.", 1),
    ]
    compress_bytes_min: Annotated[
        int, Option(4096, "Bodies of at least this size are compressed with zlib.", 1)
    ]
    compress_level: Annotated[int, Option(5, "zlib's level.", 1, 9)]
    auto_create_queues: Annotated[
        int, Option(4, "Queues per broker of a topic that is made by sending to it.", 1)
    ]
    check_threads: Annotated[
        int, Option(1, "Threads on which a transaction_check that is a plain function runs.", 1)
    ]
    checks_waiting_max: Annotated[
        int,
        Option(2000, "Questions about transactions that wait; more are left to the next round.", 1),
    ]
    hooks: Annotated[Sequence[SendHook], Option((), "Who sees every send before and after it.")]
