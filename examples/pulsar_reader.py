"""Read a Pulsar topic from its first message, and keep the newest value of each key.

    python examples/pulsar_reader.py [SERVICE_URL] [TOPIC]

Needs a broker: `./penstock up`, or any Pulsar at pulsar://localhost:6650.
"""

import sys
from dataclasses import dataclass

from penstock.client.pulsar import Client, JsonSchema, MessageId

URL = sys.argv[1] if len(sys.argv) > 1 else "pulsar://localhost:6650"
TOPIC = sys.argv[2] if len(sys.argv) > 2 else "prices"


@dataclass
class Price:
    """What the topic's registry is told, too."""

    cents: int
    note: str | None = None


def main() -> None:
    schema = JsonSchema(Price)
    with Client(URL) as client:
        with client.create_producer(TOPIC, schema=schema) as producer:
            producer.send(Price(120), key="pen")
            producer.send(Price(4900, "with a lid"), key="teapot")
            producer.send(Price(110), key="pen")

        with client.create_reader(TOPIC, MessageId.earliest, schema=schema) as reader:
            while reader.has_message_available():
                message = reader.read_next(timeout_ms=5000)
                print(f"{message.message_id}  {message.key}: {message.value.cents}")

        with client.create_table_view(TOPIC, schema=schema) as prices:
            print({key: price.cents for key, price in sorted(prices.items())})


if __name__ == "__main__":
    main()
