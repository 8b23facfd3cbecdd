"""What is in a topic, read without Spark, for tests of what Spark wrote there."""

from typing import NamedTuple

from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import Ticket


class TopicMessage(NamedTuple):
    key: str | None
    properties: dict[str, str]
    body: bytes


def topic_rows(endpoint: str, topic: str) -> list[TopicMessage]:
    """Every message; none when there is no such topic yet."""
    rows = []
    with BulkClient(endpoint) as client:
        for found in client.resolve([], optional=[topic]).topics:
            for queue in found.queues:
                if queue.end > queue.earliest:
                    ticket = Ticket(
                        topic=topic,
                        queue=queue.queue,
                        start=queue.earliest,
                        end=queue.end,
                        columns=list(TopicMessage._fields),
                    )
                    for batch in client.read(ticket):
                        rows += batch.to_pylist()
    return [TopicMessage(each["key"], dict(each["properties"]), each["body"]) for each in rows]
