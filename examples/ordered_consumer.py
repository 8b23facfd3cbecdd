"""Consume in order: the steps of one order one after the other, many orders side by side.

    python examples/ordered_consumer.py [NAME_SERVER] [TOPIC] [GROUP]

Messages with the same ordering key are in one queue. An ordered consumer locks each of its queues
at the broker, so that nobody else works on it, and gives its messages to the listener one by one.
This one sends itself ten orders of three steps and ends when it has seen them all.
"""

import sys
import threading
from collections import defaultdict

from penstock.client import ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage

NAME_SERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "order-steps"
GROUP = sys.argv[3] if len(sys.argv) > 3 else "example-ordered-consumers"
STEPS = ["created", "paid", "shipped"]
ORDERS = [f"order-{number}" for number in range(10)]

seen: dict[str, list[str]] = defaultdict(list)
is_complete = threading.Event()
has_failed_once = threading.Event()


def listener(message: ReceivedMessage) -> ConsumeResult | None:
    """SUSPEND has the same message come again in a moment, and nothing of its queue before."""
    order, step = message.ordering_key or "", message.body.decode()
    if order == "order-3" and step == "paid" and not has_failed_once.is_set():
        has_failed_once.set()
        print("order-3 cannot be paid yet: the queue waits", flush=True)
        return ConsumeResult.SUSPEND
    seen[order].append(step)
    if sum(map(len, seen.values())) == len(ORDERS) * len(STEPS):
        is_complete.set()
    return None


def main() -> None:
    """Send, consume, look."""
    with Producer(NAME_SERVER, "example-order-senders") as producer:
        for step in STEPS:
            for order in ORDERS:
                producer.send(Message(TOPIC, step.encode(), ordering_key=order))
    consumer = PushConsumer(
        NAME_SERVER, GROUP, listener, is_ordered=True, consume_from="first", suspend_ms=200
    )
    consumer.subscribe(TOPIC)
    with consumer:
        if not is_complete.wait(60):
            sys.exit(f"only {dict(seen)} within a minute")
    for order in ORDERS:
        print(f"{order}: {', '.join(seen[order])}", flush=True)


if __name__ == "__main__":
    main()
