"""Message trace without a network: what hooks record, and what is sent of it."""

import asyncio

import pytest

from penstock.client.consumer.executor import Finished, ResultKind
from penstock.client.consumer.push_member import ConsumeTrace
from penstock.client.loop import client_loop
from penstock.client.message import Message, ReceivedMessage, SendResult, SendStatus
from penstock.client.producer.hooks import (
    EndContext,
    SendContext,
    SendKind,
    SendTraceHook,
    TransactionState,
)
from penstock.client.trace import (
    BATCH_CHARS_MAX,
    BATCH_WAIT_MS,
    TRACE_TOPIC,
    ConsumeOutcome,
    TraceBatches,
    TraceDispatcher,
    TraceRecord,
    consume_begin_record,
    consume_end_record,
    parse_records,
    publish_record,
    transaction_record,
)
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.properties import format_properties
from penstock.wire.rocketmq.stored import StoredMessage

QUEUE = QueueRef("orders", "b", 1)


class Sent:
    """Where trace messages go."""

    def __init__(self):
        self.messages = []
        self.error = None
        self.gate = None

    async def __call__(self, message):
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.messages.append(message)

    @property
    def records(self):
        return [each for one in self.messages for each in parse_records(one.body.decode())]


@pytest.fixture
def sent():
    return Sent()


def stop(trace):
    client_loop().run(trace.stop(), 10)


def a_send(*messages, **changes):
    context = SendContext("g", messages, [f"ID{n}" for n in range(len(messages))], 1000)
    context.queue, context.address, context.cost_ms = QUEUE, "127.0.0.1:10911", 8
    ids = ",".join(f"OFF{n}" for n in range(len(messages)))
    context.result = SendResult(SendStatus.SEND_OK, "ID0", ids, QUEUE, 5)
    for name, value in changes.items():
        setattr(context, name, value)
    return context


def received(**properties):
    packed = format_properties({"UNIQ_KEY": "ID0", "KEYS": "k1 k2", **properties})
    stored = StoredMessage(topic="orders", body=b"x", queue_id=1, properties=packed)
    return ReceivedMessage(stored, QUEUE)


def test_every_message_of_a_batch_leaves_a_record_with_its_own_ids(sent):
    trace = TraceDispatcher(sent)
    SendTraceHook(trace).after(a_send(Message("orders", b"a", tag="t"), Message("orders", b"bb")))
    stop(trace)
    assert [(row[5], row[6], row[9], row[10], row[12], row[13]) for row in sent.records] == [
        ("ID0", "t", "1", "4", "OFF0", "true"),
        ("ID1", "", "2", "4", "OFF1", "true"),
    ]
    assert sent.messages[0].topic == TRACE_TOPIC
    assert sent.messages[0].keys == ("ID0", "ID1")


def test_a_failed_send_is_traced_as_failed_and_a_delayed_one_as_delayed(sent):
    trace = TraceDispatcher(sent)
    SendTraceHook(trace).after(a_send(Message("orders", b"a"), result=None, kind=SendKind.DELAYED))
    stop(trace)
    assert [(row[11], row[13]) for row in sent.records] == [("3", "false")]


def test_oneway_sends_and_trace_messages_themselves_leave_no_record(sent):
    trace = TraceDispatcher(sent)
    hook = SendTraceHook(trace)
    hook.after(a_send(Message("orders", b"a"), is_oneway=True, result=None))
    hook.after(a_send(Message(TRACE_TOPIC, b"a")))
    stop(trace)
    assert sent.messages == []


def test_the_end_of_a_transaction_is_traced(sent):
    trace = TraceDispatcher(sent)
    context = EndContext("g", "orders", "ID0", TransactionState.ROLLBACK)
    context.transaction_id = "ID0"
    SendTraceHook(trace).transaction_ended(context)
    stop(trace)
    (row,) = sent.records
    assert (row[0], row[5], row[11], row[12]) == (
        "EndTransaction",
        "ID0",
        "ROLLBACK_MESSAGE",
        "false",
    )


@pytest.mark.parametrize(
    ("kind", "number", "is_ok"),
    [
        (ResultKind.SUCCESS, "0", "true"),
        (ResultKind.TIME_OUT, "1", "false"),
        (ResultKind.EXCEPTION, "2", "false"),
        (ResultKind.LATER, "4", "false"),
    ],
)
def test_a_call_of_a_listener_is_traced_before_and_after(sent, kind, number, is_ok):
    trace = TraceDispatcher(sent)
    hook = ConsumeTrace(trace)
    message = received()
    context = hook.before("g", QUEUE, [message])
    hook.after("g", QUEUE, Finished([message], None, None, kind, 12.5), context)
    stop(trace)
    before, after = sent.records
    assert (before[0], before[3], before[5], before[7]) == ("SubBefore", "g", "ID0", "k1 k2")
    assert (after[0], after[2], after[3], after[4], after[6]) == (
        "SubAfter",
        "ID0",
        "12",
        is_ok,
        number,
    )
    assert before[4] == after[1]


def test_a_message_whose_sender_wanted_no_trace_is_not_traced(sent):
    trace = TraceDispatcher(sent)
    ConsumeTrace(trace).before("g", QUEUE, [received(TRACE_ON="false")])
    stop(trace)
    assert sent.messages == []


def test_ten_records_make_a_trace_message_at_once(sent):
    trace = TraceDispatcher(sent)
    hook = SendTraceHook(trace)

    async def fill():
        for _ in range(25):
            hook.after(a_send(Message("orders", b"a")))
        while len(sent.messages) < 2:
            await asyncio.sleep(0)
        return len(sent.messages)

    assert client_loop().run(fill(), 10) == 2
    stop(trace)
    assert [len(parse_records(each.body.decode())) for each in sent.messages] == [10, 10, 5]
    assert trace.counts.sent == 25


def test_when_trace_messages_cannot_leave_records_wait_within_a_bound_and_are_counted(sent):
    async def fill(trace):
        sent.gate = asyncio.Event()
        for _ in range(3000):
            SendTraceHook(trace).after(a_send(Message("orders", b"a")))
        sent.gate.set()
        await trace.stop()

    trace = TraceDispatcher(sent)
    client_loop().run(fill(trace), 10)
    assert trace.counts.forgotten > 800
    assert trace.counts.sent + trace.counts.forgotten == 3000


def test_trace_messages_that_fail_are_counted_and_hurt_nobody(sent):
    sent.error = RuntimeError("no trace topic")
    trace = TraceDispatcher(sent)
    SendTraceHook(trace).after(a_send(Message("orders", b"a")))
    stop(trace)
    assert trace.counts.failed == 1


# ---- trace records ------------------------------------------------------------------------------


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
        "kind": SendKind.DELAYED.value,
        "offset_message_id": "7F01",
        "is_ok": True,
    }
    return publish_record(**{**fields, **changes})


def test_a_publish_is_fourteen_fields_in_rocketmqs_order():
    record = a_publish()
    assert record.text == (
        "Pub\x011700000000000\x01DefaultRegion\x01g\x01orders\x01AA01\x01new\x01k1 k2"
        "\x01127.0.0.1:10911\x015\x013\x013\x017F01\x01true\x02"
    )
    assert record.keys == ("AA01", "k1", "k2")


def test_a_call_of_a_listener_is_two_records_with_one_request_id():
    before = consume_begin_record(
        at_ms=5, group="g", request_id="R", message_id="AA01", retry_times=2, keys="k"
    )
    after = consume_end_record(
        at_ms=9, group="g", request_id="R", message_id="AA01", cost_ms=4, keys="k",
        outcome=ConsumeOutcome.EXCEPTION,
    )  # fmt: skip
    assert parse_records(before.text + after.text) == [
        ["SubBefore", "5", "DefaultRegion", "g", "R", "AA01", "2", "k"],
        ["SubAfter", "R", "AA01", "4", "false", "k", "2", "9", "g"],
    ]


def test_the_end_of_a_transaction_says_state_and_who_asked():
    record = transaction_record(
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
