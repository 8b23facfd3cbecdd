"""A consumer in a process of its own, which says when it begins and ends each message.

    python -m kit.client.pulsar_worker URL TOPIC SUBSCRIPTION TYPE NAME

One line for each: ``begin <monotonic seconds> <key> <body>``, and ``end ...`` once the broker has
the ack. The clock is one for all processes of a machine.
"""

import sys
import time

from penstock.client.pulsar import Client, InitialPosition, SubscriptionType

WORK_SECONDS = 0.001


def main(url: str, topic: str, subscription: str, kind: str, name: str) -> None:
    """Consume until killed."""
    with Client(url) as client:
        consumer = client.subscribe(
            topic,
            subscription,
            subscription_type=SubscriptionType[kind],
            consumer_name=name,
            has_ack_receipts=True,
            receiver_queue_size=20,
            initial_position=InitialPosition.EARLIEST,
        )
        print("ready", flush=True)
        for message in consumer:
            body = message.data.decode()
            print("begin", time.monotonic(), message.key, body, flush=True)
            time.sleep(WORK_SECONDS)
            consumer.acknowledge(message)
            print("end", time.monotonic(), message.key, body, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:6])
