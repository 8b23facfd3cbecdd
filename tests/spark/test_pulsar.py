"""What Pulsar's clients published, as rows of a real Spark (D16): batches, compressed and not."""

import pytest

from kit.pulsar_payload import PulsarMessage, batch_tail, single_tail
from kit.pulsar_peer import PulsarPeer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SINGLE = 0
SENDS = [
    (SINGLE, "NONE"),
    (SINGLE, "LZ4"),
    (1, "ZLIB"),
    (3, "NONE"),
    (3, "SNAPPY"),
    (1_000, "ZSTD"),
]
"""Size and compression of each SEND, one after the other."""
BORN_MS = 1_700_000_000_000


def sent_messages(first, count):
    return [
        PulsarMessage(
            b"body %d" % number,
            f"customer-{number % 7}",
            {"TAGS": f"tag-{number % 2}", "message_id": f"id-{number}", "n": f"{number}"},
            event_ms=BORN_MS + number,
        )
        for number in range(first, first + count)
    ]


@pytest.fixture
def topic(broker, topic):
    """One of Pulsar's own, with all of that in it."""
    name = f"pulsar-{topic}"
    count = 0
    with PulsarPeer(broker.address("pulsar")) as peer:
        peer.connect()
        producer = peer.producer(f"persistent://public/default/{name}")
        for number, (size, compression) in enumerate(SENDS):
            sent = sent_messages(count, size or 1)
            more = {"producer_name": producer.name, "compression": compression}
            tail = single_tail(*sent, **more) if size == SINGLE else batch_tail(*sent, **more)
            told = {"producer_id": producer.id, "sequence_id": number, "num_messages": len(sent)}
            peer.command("send", tail, **told)
            producer.receipt()
            count += len(sent)
    return name


def test_each_message_of_a_batch_is_a_row_however_it_was_compressed(bench, topic):
    wanted = sent_messages(0, sum(size or 1 for size, _ in SENDS))
    rows = sorted(bench.table(topics=topic).collect(), key=lambda row: row.offset)
    assert [row.offset for row in rows] == list(range(len(wanted)))
    assert [bytes(row.body) for row in rows] == [each.body for each in wanted]
    assert [row.key for row in rows] == [each.key for each in wanted]
    assert [row.tag for row in rows] == [each.properties["TAGS"] for each in wanted]
    assert {row.protocol for row in rows} == {"pulsar"}
    own = [{name: each.properties[name] for name in ("message_id", "n")} for each in wanted]
    assert [row.properties for row in rows] == own
    born = bench.table(topics=topic).selectExpr("unix_millis(born_timestamp) AS born").collect()
    assert sorted(row.born for row in born) == [each.event_ms for each in wanted]
    assert bench.table(topics=topic, filter="tag-1").count() == len(wanted) // 2
    assert bench.table(topics=topic, filter="n < 5").count() == 5


def test_a_stream_reads_them_once(bench, topic):
    wanted = sent_messages(0, sum(size or 1 for size, _ in SENDS))
    assert sum(bench.run(topics=topic)) == len(wanted)
    found = [bytes(row.body) for row in bench.written()]
    assert sorted(found) == sorted(each.body for each in wanted)
