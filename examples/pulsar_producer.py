"""Send messages to Pulsar: one and wait, many at once, by key, later, without doubles.

    python examples/pulsar_producer.py [SERVICE_URL] [TOPIC]

Needs a broker: `./penstock up`, or any Pulsar at pulsar://localhost:6650.
"""

import asyncio
import sys

from penstock.client.pulsar import Client, ClientError, MessageId

URL = sys.argv[1] if len(sys.argv) > 1 else "pulsar://localhost:6650"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "orders"


def one_by_one(client: Client) -> None:
    """Each send returns once the broker has stored the message."""
    with client.create_producer(TOPIC) as producer:
        stored = producer.send(b"hello", key="order-1", properties={"kind": "greeting"})
        print(f"stored: {stored}")

        # Shared consumers get it in two seconds.
        producer.send(b"and now?", deliver_after_ms=2000)


def many_at_once(client: Client) -> None:
    """Calls back when each is stored; blocks while too many are on their way."""
    outcomes: list[MessageId | ClientError] = []
    with client.create_producer(TOPIC, max_pending_messages=500) as producer:
        for number in range(1000):
            producer.send_callback(b"%d" % number, outcomes.append, key=f"order-{number % 10}")
        producer.flush()
        figures = producer.statistics()
    failed = sum(isinstance(each, ClientError) for each in outcomes)
    print(f"{figures.stored} stored in {figures.entries} entries, {failed} failed")


async def awaited() -> None:
    """The same from an event loop."""
    async with Client(URL) as client:
        producer = await client.create_producer_async(TOPIC)
        async with producer:
            sends = [producer.send_async(b"%d" % number) for number in range(100)]
            print(f"{len(await asyncio.gather(*sends))} stored, awaited")


if __name__ == "__main__":
    with Client(URL) as our_client:
        one_by_one(our_client)
        many_at_once(our_client)
    asyncio.run(awaited())
