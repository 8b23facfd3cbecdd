"""Consume from Pulsar with others: acks, messages that come again, and why it waits.

    python examples/pulsar_consumer.py [SERVICE_URL] [TOPIC] [SUBSCRIPTION]

Needs a broker: `./penstock up`, or any Pulsar at pulsar://localhost:6650. Ctrl-C ends it.
"""

import sys

from penstock.client.pulsar import (
    Client,
    DeadLetterPolicy,
    InitialPosition,
    NothingReceived,
    SubscriptionType,
)

URL = sys.argv[1] if len(sys.argv) > 1 else "pulsar://localhost:6650"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "orders"
SUBSCRIPTION = sys.argv[3] if len(sys.argv) > 3 else "billing"


def main() -> None:
    with Client(URL) as client:
        consumer = client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            subscription_type=SubscriptionType.SHARED,
            initial_position=InitialPosition.EARLIEST,
            negative_ack_delay_ms=1000,
            dead_letter_policy=DeadLetterPolicy(redeliveries_max=3),
        )
        while True:
            try:
                message = consumer.receive(timeout_ms=5000)
            except NothingReceived:
                print(f"nothing for 5 s: {consumer.why()}", flush=True)
                continue
            try:
                print(f"{message.key}: {message.data.decode()}", flush=True)
            except UnicodeDecodeError:
                # It comes again in a second; after three times it goes to orders-billing-DLQ.
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("bye")
