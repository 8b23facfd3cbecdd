from penstock.client.trace_records import (
    BATCH_CHARS_MAX,
    BATCH_WAIT_MS,
    ConsumeOutcome,
    TraceBatches,
    TracedKind,
    TraceRecord,
    consumed,
    consuming,
    parse_records,
    published,
    transaction_ended,
)


def a_publish(**changes):
    fields = {
        "at_ms": 1700000000000,
        "group": "g",
        "topic": "orders",
        "message_id": "AA01",
        "tag": "new",
        "keys": "k1 k2",
        "store_host": "127.0.0.1:10911",
        "body_bytes": 5,
        "cost_ms": 3,
        "kind": TracedKind.DELAY,
        "offset_message_id": "7F01",
        "is_ok": True,
    }
    return published(**{**fields, **changes})


def test_a_publish_is_fourteen_fields_in_rocketmqs_order():
    record = a_publish()
    assert record.text == (
        "Pub\x011700000000000\x01DefaultRegion\x01g\x01orders\x01AA01\x01new\x01k1 k2"
        "\x01127.0.0.1:10911\x015\x013\x013\x017F01\x01true\x02"
    )
    assert record.keys == ("AA01", "k1", "k2")


def test_a_call_of_a_listener_is_two_records_with_one_request_id():
    before = consuming(
        at_ms=5, group="g", request_id="R", message_id="AA01", retry_times=2, keys="k"
    )
    after = consumed(
        at_ms=9, group="g", request_id="R", message_id="AA01", cost_ms=4, keys="k",
        outcome=ConsumeOutcome.EXCEPTION,
    )  # fmt: skip
    assert parse_records(before.text + after.text) == [
        ["SubBefore", "5", "DefaultRegion", "g", "R", "AA01", "2", "k"],
        ["SubAfter", "R", "AA01", "4", "false", "k", "2", "9", "g"],
    ]


def test_the_end_of_a_transaction_says_state_and_who_asked():
    record = transaction_ended(
        at_ms=5, group="g", topic="t", message_id="AA", tag="", keys="", store_host="h:1",
        transaction_id="AA", state="COMMIT_MESSAGE", is_from_check=True,
    )  # fmt: skip
    assert parse_records(record.text)[0] == [
        "EndTransaction", "5", "DefaultRegion", "g", "t", "AA", "", "", "h:1", "2", "AA",
        "COMMIT_MESSAGE", "true",
    ]  # fmt: skip


def test_separators_inside_a_field_do_not_make_two_fields_of_it():
    record = a_publish(tag="a\x01b", keys="c\x02d")
    (fields,) = parse_records(record.text)
    assert len(fields) == 14
    assert fields[6:8] == ["a b", "c d"]


def test_a_batch_is_sent_when_it_is_complete_or_five_seconds_old():
    batches = TraceBatches(3)
    assert [batches.add(a_publish(message_id=name), 0) for name in "ABC"] == [False, False, True]
    ((text, keys),) = batches.due(0)
    assert len(parse_records(text)) == 3
    assert keys == ("A", "k1", "k2", "B", "C")
    batches.add(a_publish(), 100)
    assert batches.due(99 + BATCH_WAIT_MS) == []
    assert len(batches.due(100 + BATCH_WAIT_MS)) == 1
    assert len(batches) == 0


def test_what_is_left_of_several_batches_waits_for_its_own_five_seconds():
    batches = TraceBatches(2)
    for _ in range(5):
        batches.add(a_publish(), 0)
    assert len(batches.due(1000)) == 2
    assert batches.due(BATCH_WAIT_MS) == []
    assert len(batches.due(1000 + BATCH_WAIT_MS)) == 1


def test_a_trace_message_stays_below_its_limit_unless_one_record_is_larger():
    batches = TraceBatches(10)
    for chars in (BATCH_CHARS_MAX // 2, BATCH_CHARS_MAX // 2 + 1, BATCH_CHARS_MAX + 1):
        batches.add(TraceRecord("x" * chars, ()), 0)
    assert [len(text) for text, _ in batches.due(0, is_last=True)] == [
        BATCH_CHARS_MAX // 2,
        BATCH_CHARS_MAX // 2 + 1,
        BATCH_CHARS_MAX + 1,
    ]


def test_records_beyond_the_bound_are_counted_and_forgotten():
    batches = TraceBatches(10, waiting_max=4)
    for _ in range(6):
        batches.add(a_publish(), 0)
    assert (len(batches), batches.forgotten) == (4, 2)
