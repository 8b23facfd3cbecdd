"""Consume messages as they come; Ctrl-C ends it.

    python examples/push_consumer.py [NAME_SERVER] [TOPIC] [GROUP]

Start it twice: the two processes share the queues of the topic, and take over each other's when
one of them goes. Send something with `python examples/producer.py`.
"""

import signal
import sys
import threading

from penstock.client import ConsumeResult, PushConsumer, ReceivedMessage

NAME_SERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "orders"
GROUP = sys.argv[3] if len(sys.argv) > 3 else "example-consumers"


def listener(message: ReceivedMessage) -> ConsumeResult | None:
    """Called on one of 20 threads, one message at a time.

    Returning nothing is success. Raising, or returning LATER, has the message come again after a
    delay that grows with each try, at most 16 times; then it is a dead letter.
    """
    if message.tag == "reminder" and message.reconsume_times == 0:
        print("a reminder: later", flush=True)
        return ConsumeResult.LATER
    print(f"{message.tag or '-'}: {message.body.decode()}", flush=True)
    return None


def main() -> None:
    """Consume until somebody says stop."""
    consumer = PushConsumer(NAME_SERVER, GROUP, listener, consume_from="first")
    consumer.subscribe(TOPIC)  # tags="paid || shipped", or sql="amount > 100"
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    with consumer:
        print(f"consuming {TOPIC}; Ctrl-C ends", flush=True)
        over.wait()
        held = consumer.statistics().held  # queues that a limit keeps from being pulled
    print(f"bye; {len(held)} queues were held back", flush=True)


if __name__ == "__main__":
    main()
