"""Message trace without a network: what hooks record, and what is sent of it."""

import asyncio

import pytest

from penstock.client.consumer.results import Finished, ResultKind
from penstock.client.consumer.tracing import ConsumeTrace
from penstock.client.loop import client_loop
from penstock.client.message import Message, ReceivedMessage, SendResult, SendStatus
from penstock.client.producer.hooks import EndContext, SendContext, SendKind
from penstock.client.producer.tracing import SendTrace
from penstock.client.producer.transaction_state import TransactionState
from penstock.client.trace import Trace
from penstock.client.trace_records import TRACE_TOPIC, parse_records
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
    trace = Trace(sent)
    SendTrace(trace).after(a_send(Message("orders", b"a", tag="t"), Message("orders", b"bb")))
    stop(trace)
    assert [(row[5], row[6], row[9], row[10], row[12], row[13]) for row in sent.records] == [
        ("ID0", "t", "1", "4", "OFF0", "true"),
        ("ID1", "", "2", "4", "OFF1", "true"),
    ]
    assert sent.messages[0].topic == TRACE_TOPIC
    assert sent.messages[0].keys == ("ID0", "ID1")


def test_a_failed_send_is_traced_as_failed_and_a_delayed_one_as_delayed(sent):
    trace = Trace(sent)
    SendTrace(trace).after(a_send(Message("orders", b"a"), result=None, kind=SendKind.DELAYED))
    stop(trace)
    assert [(row[11], row[13]) for row in sent.records] == [("3", "false")]


def test_oneway_sends_and_trace_messages_themselves_leave_no_record(sent):
    trace = Trace(sent)
    hook = SendTrace(trace)
    hook.after(a_send(Message("orders", b"a"), is_oneway=True, result=None))
    hook.after(a_send(Message(TRACE_TOPIC, b"a")))
    stop(trace)
    assert sent.messages == []


def test_the_end_of_a_transaction_is_traced(sent):
    trace = Trace(sent)
    context = EndContext("g", "orders", "ID0", TransactionState.ROLLBACK)
    context.transaction_id = "ID0"
    SendTrace(trace).transaction_ended(context)
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
    trace = Trace(sent)
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
    trace = Trace(sent)
    ConsumeTrace(trace).before("g", QUEUE, [received(TRACE_ON="false")])
    stop(trace)
    assert sent.messages == []


def test_ten_records_make_a_trace_message_at_once(sent):
    trace = Trace(sent)
    hook = SendTrace(trace)

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
            SendTrace(trace).after(a_send(Message("orders", b"a")))
        sent.gate.set()
        await trace.stop()

    trace = Trace(sent)
    client_loop().run(fill(trace), 10)
    assert trace.counts.forgotten > 800
    assert trace.counts.sent + trace.counts.forgotten == 3000


def test_trace_messages_that_fail_are_counted_and_hurt_nobody(sent):
    sent.error = RuntimeError("no trace topic")
    trace = Trace(sent)
    SendTrace(trace).after(a_send(Message("orders", b"a")))
    stop(trace)
    assert trace.counts.failed == 1
