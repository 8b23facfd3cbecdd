"""Send messages: one and wait, many at once, in order, later.

    python examples/producer.py [NAME_SERVER] [TOPIC]

Needs a broker: `./penstock up`, or any RocketMQ whose name server is at 127.0.0.1:9876.
"""

import asyncio
import sys

from penstock.client import BrokerBusy, ClientError, Message, Producer

NAME_SERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "orders"


def one_by_one() -> None:
    """Each send returns once the broker has stored the message."""
    with Producer(NAME_SERVER, "example-producers") as producer:
        result = producer.send(Message(TOPIC, b"hello", tag="greeting", keys="order-1"))
        print(f"stored: {result.message_id} in queue {result.queue.queue}@{result.queue_offset}")

        # Messages of one ordering key go to one queue and stay in order.
        for step in ("created", "paid", "shipped"):
            producer.send(Message(TOPIC, step.encode(), tag=step, ordering_key="order-1"))

        # Delivered in a second.
        producer.send(Message(TOPIC, b"and now?", tag="reminder", delay_ms=1000))


async def many_at_once() -> None:
    """The client keeps as many under way as its limits allow; the rest wait for a permit."""
    # Waiting for a permit counts, so a send that is one of many gets more than the usual 3 s.
    async with Producer(NAME_SERVER, "example-producers", send_timeout_ms=15_000) as producer:
        sends = [producer.send_async(Message(TOPIC, b"%d" % n, tag="number")) for n in range(1000)]
        results = await asyncio.gather(*sends, return_exceptions=True)
    busy = sum(isinstance(each, BrokerBusy) for each in results)
    failed = sum(isinstance(each, ClientError) for each in results) - busy
    print(f"{len(results) - busy - failed} stored, {busy} refused (broker busy), {failed} failed")


if __name__ == "__main__":
    one_by_one()
    asyncio.run(many_at_once())
