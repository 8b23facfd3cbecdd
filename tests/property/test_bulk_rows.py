"""The vectorised decoder gives, row for row, what the log's own reader and wire facts give."""

import tempfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.bulk_data import BulkData
from penstock.bulk.maps import amqp_properties
from penstock.bulk.offline import OfflineBulk
from penstock.bulk.tickets import COLUMNS, SQL92, TAG, RowFilter, Ticket
from penstock.engine.filter.filters import tag_filter
from penstock.engine.filter.sql92 import compile_selector
from penstock.log.format import record_length
from penstock.model.record import RecordFlag, Wire, neutral_record
from penstock.settings.broker import StorageSettings
from penstock.wire.amqp.origin import AmqpFacts, PublishHead, publish_record
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.properties import parse_properties
from penstock.wire.rocketmq.stored import RocketmqFacts, stored_record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ["TAGS", "KEYS", "WAIT", "UNIQ_KEY", "region", "__SHARDINGKEY", "n", "", "a\0", "größe"]
VALUES = ["A", "B", "a longer value than twelve bytes", "", "x\x01y", "ü", "7"]

pieces = st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)).map(
    lambda pair: f"{pair[0]}\x01{pair[1]}\x02".encode()
)
junk = st.sampled_from(
    [b"", b"\x02", b"\x01\x02", b"name\x02", b"last\x01one", b"b\x01\xff\xfe\x02"]
)
property_strings = st.lists(st.one_of(pieces, pieces, junk), max_size=6).map(b"".join)
content_headers = st.builds(
    Properties,
    content_type=st.sampled_from([None, "text/plain"]),
    headers=st.one_of(
        st.none(),
        st.dictionaries(
            st.sampled_from(["region", "n", "key", "größe"]),
            st.sampled_from(["A", "B", 7, -1, 0.5, True, {"a": [1]}, None]),
            max_size=3,
        ),
    ),
    message_id=st.sampled_from([None, "", "m-1"]),
    timestamp=st.sampled_from([None, 1_600_000_000]),
    type=st.sampled_from([None, "A", "another"]),
).map(encode_properties)
publish_heads = st.sampled_from(
    [PublishHead("", "orders", False, False, b"\0\x06orders"),
     PublishHead("x", "eu.new", False, False, b"\x01x\x06eu.new")]
)  # fmt: skip
bodies = st.one_of(
    st.binary(max_size=20), st.sampled_from([100, 3000, 30000]).map(lambda n: b"x" * n)
)


@st.composite
def messages(draw):
    """(record, goes to both queues, is delayed)"""
    body, properties = draw(bodies), draw(property_strings)
    wire = draw(st.sampled_from([*Wire.__members__.values()]))
    if wire == Wire.AMQP:
        head = draw(publish_heads)
        record = publish_record(head, draw(content_headers), body, now_ms=1_700_000_000_000)
        record.reshape(flags=0)
    elif wire == Wire.NEUTRAL:
        record = neutral_record(
            body,
            properties=properties,
            key=draw(st.binary(max_size=14)),
            tag=draw(st.binary(max_size=3)),
        )
    else:
        sys_flag = 0
        if draw(st.integers(0, 4)) == 0:
            body, sys_flag = draw(st.sampled_from([(zlib.compress(body), 1), (body, 1)]))
        record = stored_record(
            "orders", 0, body, properties, born_ms=draw(st.integers(0, 10**13)), sys_flag=sys_flag
        )
    kind = draw(st.integers(0, 9))
    if kind == 0:
        record.reshape(messages=draw(st.integers(2, 400)))
    if kind == 1:
        record.reshape(flags=record.flags | int(RecordFlag.DELAYED), deliver_ms=9)
    return record, draw(st.integers(0, 4)) == 0, kind == 1


def expected_row(record, offset, store_ms):
    facts = RocketmqFacts()
    if record.wire == Wire.AMQP:
        properties, body = amqp_properties(record.properties), record.body
    elif record.wire == Wire.ROCKETMQ:
        properties = facts.facts(record).properties
        try:
            body = facts.body(record, 1 << 26)
        except Malformed:
            body = record.body
    else:
        properties, body = parse_properties(record.properties), record.body
    return {
        "topic": "orders",
        "queue": 0,
        "offset": offset,
        "timestamp": EPOCH + timedelta(milliseconds=store_ms),
        "born_timestamp": EPOCH + timedelta(milliseconds=record.born_ms)
        if record.born_ms
        else None,
        "key": record.key.decode("utf-8", "replace") or None,
        "tag": record.tag.decode("utf-8", "replace") or None,
        "properties": list(properties.items()),
        "protocol": Wire(record.wire).name.lower(),
        "body": body,
    }


def written(directory, made):
    """Write messages in frames of three; what the log's reader gives for queue 0 afterwards."""
    data = BulkData(directory, StorageSettings(segment_bytes_max=65536, index_file_entries_max=8))
    orders, other = data.topic("orders")[0], data.topic("other")[0]
    for at in range(0, len(made), 3):
        frame = made[at : at + 3]
        queues = [(orders, other) if both else (orders,) for _, both, _ in frame]
        data.append(*((record, to) for (record, *_), to in zip(frame, queues, strict=True)))
        data.commit()
        if at % 2:
            data.snapshot()
        for (record, _, is_delayed), to in zip(frame, queues, strict=True):
            if is_delayed:
                data.release(record, record_length(record, len(to)), *to)
    data.commit()
    expected = []
    for position, first, _, store_ms, length, count, *_ in orders.entries(0, 1 << 20):
        [record] = data.store.read([(position, length)])
        expected += [(record, expected_row(record, first + i, store_ms)) for i in range(count)]
    data.store.release()
    return expected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    made=st.lists(messages(), min_size=1, max_size=24),
    start=st.integers(0, 30),
    length=st.integers(0, 2000),
    columns=st.one_of(
        st.none(), st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True, max_size=4)
    ),
    row_filter=st.sampled_from(
        [
            None,
            None,
            RowFilter(TAG, "A || B"),
            RowFilter(TAG, "*"),
            RowFilter(SQL92, "region = 'A' OR n > 6"),
        ]
    ),
    rows_per_batch=st.sampled_from([1, 3, 10_000]),
    check=st.booleans(),
)
def test_a_range_gives_the_rows_that_the_logs_own_reader_gives(
    *, made, start, length, columns, row_filter, rows_per_batch, check
):
    with tempfile.TemporaryDirectory() as place:
        expected = written(Path(place) / "data", made)
        end = min(start + length, len(expected))
        start = min(start, end)
        wanted = [
            {name: row[name] for name in columns or COLUMNS}
            for record, row in expected[start:end]
            if is_wanted(row_filter, record)
        ]
        with OfflineBulk(Path(place) / "data") as bulk:
            ticket = Ticket(
                topic="orders",
                queue=0,
                start=start,
                end=end,
                columns=columns,
                filter=row_filter,
                rows_per_batch=rows_per_batch,
                check=check,
            )
            batches = list(bulk.read(ticket))
            summary = bulk.summary
        assert [row for batch in batches for row in batch.to_pylist()] == wanted
        assert (summary.next_offset, summary.read, summary.lost) == (end, end - start, 0) or (
            start == end and not batches
        )
        assert summary.rows == len(wanted)


def is_wanted(row_filter, record):
    if row_filter is None:
        return True
    if row_filter.kind == TAG:
        chosen = tag_filter(row_filter.text)
        return chosen is None or chosen.matches_record(record)
    if record.wire == Wire.AMQP:
        return compile_selector(row_filter.text).matches(AmqpFacts().properties(record))
    properties = parse_properties(record.properties)
    if record.wire == Wire.NEUTRAL and record.tag:
        properties.setdefault("TAGS", record.tag.decode("utf-8", "replace"))
    return compile_selector(row_filter.text).matches(properties)
