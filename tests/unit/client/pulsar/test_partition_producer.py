"""A producer of one partition: numbers, batches, resends, refusals; no socket."""

import asyncio

import pytest

from kit.client.pulsar_producer import LIMITS, ProducerBench, until
from penstock.client.pulsar.batching import Batching
from penstock.client.pulsar.errors import ClientError, Refused, StateError, TimedOut, Unreachable
from penstock.client.pulsar.message import MessageId
from penstock.client.pulsar.partition_producer import AccessMode
from penstock.client.pulsar.schema import StringSchema
from penstock.client.pulsar.why import Waits
from penstock.wire.pulsar import protocol_pb2 as pb
from penstock.wire.pulsar.frames import ServerError


def scene(test):
    """A test that runs on an event loop, with a bench."""

    def run():
        asyncio.run(test(ProducerBench()))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@scene
async def test_messages_are_numbered_from_zero_and_end_with_their_ids(bench):
    producer = await bench.partition("t-partition-2")
    sends = bench.sends(b"a", b"b")
    producer.begin(sends)
    assert [each.sequence_id for each in bench.broker.sends] == [0, 1]
    assert producer.last_sequence_id == -1
    bench.broker.confirm()
    assert [each.outcome for each in sends] == [MessageId(3, 0, 2), MessageId(3, 1, 2)]
    assert producer.last_sequence_id == 1
    assert bench.over == sends
    assert producer.counters.stored == 2


@scene
async def test_producer_says_who_it_is(bench):
    await bench.partition(
        producer_name="me",
        access_mode=AccessMode.EXCLUSIVE,
        properties={"a": "b"},
        initial_subscription_name="s",
        schema=StringSchema().to_wire(),
    )
    (asked,) = bench.broker.asked
    assert asked.topic == "persistent://public/default/t"
    assert (asked.producer_name, asked.user_provided_producer_name) == ("me", True)
    assert asked.producer_access_mode == pb.Exclusive
    assert asked.metadata[0].key == "a"
    assert asked.initial_subscription_name == "s"
    assert asked.schema.type == pb.Schema.String
    assert asked.epoch == 0


@scene
async def test_the_version_of_its_schema_is_in_each_message(bench):
    producer = await bench.partition(schema=StringSchema().to_wire())
    producer.begin(bench.sends(b"a"))
    assert bench.broker.sends[0].metadata.schema_version == b"\0" * 8


@scene
async def test_numbers_go_on_where_the_broker_remembers_them(bench):
    bench.broker.last_sequence_id = 41
    producer = await bench.partition(producer_name="me")
    assert producer.last_sequence_id == 41
    producer.begin(bench.sends(b"a"))
    assert bench.broker.sends[0].sequence_id == 42


@scene
async def test_numbers_begin_behind_the_one_that_was_given(bench):
    producer = await bench.partition(initial_sequence_id=9)
    producer.begin(bench.sends(b"a"))
    assert bench.broker.sends[0].sequence_id == 10


@scene
async def test_a_batch_leaves_when_it_is_full(bench):
    producer = await bench.partition(limits=LIMITS)
    sends = bench.sends(b"a", b"b", b"c", b"d")
    producer.begin(sends)
    (sent,) = bench.broker.sends
    assert sent.payloads == [b"a", b"b", b"c"]
    bench.broker.confirm()
    assert sends[1].outcome == MessageId(3, 0, -1, 1)
    assert sends[3].outcome is None
    assert producer.why().reason is Waits.BATCH
    producer.send_batches()
    (sent,) = bench.broker.sends
    assert sent.payloads == [b"d"]
    assert not sent.metadata.HasField("num_messages_in_batch")
    assert sent.sequence_id == 3


@scene
async def test_a_batch_leaves_when_its_time_is_up(bench):
    producer = await bench.partition(limits=LIMITS.__class__(100, 1000, 1))
    producer.begin(bench.sends(b"a", b"b"))
    await until(lambda: bench.broker.sends)
    assert bench.broker.sends[0].payloads == [b"a", b"b"]


@scene
async def test_what_cannot_be_batched_goes_alone_behind_what_gathered(bench):
    producer = await bench.partition(limits=LIMITS)
    producer.begin([
        bench.send(b"a"), bench.send(b"later", deliver_at_ms=5), bench.send(bytes(2000)),
        bench.send(b"b"),
    ])  # fmt: skip
    producer.send_batches()
    assert [each.sequence_id for each in bench.broker.sends] == [0, 1, 2, 3]
    assert bench.broker.sends[1].metadata.deliver_at_time == 5


@scene
async def test_a_batch_that_would_pass_its_bytes_leaves_before(bench):
    producer = await bench.partition(limits=LIMITS)
    producer.begin(bench.sends(bytes(600), bytes(500)))
    (sent,) = bench.broker.sends
    assert sent.payloads == [bytes(600)]


@scene
async def test_a_batch_larger_than_the_broker_takes_leaves_in_parts(bench):
    bench.broker.max_message_size = 100
    producer = await bench.partition(limits=LIMITS.__class__(4, 1000, 10_000))
    sends = bench.sends(bytes(40), bytes(40), bytes(40), bytes(200))
    producer.begin(sends)
    assert [each.payloads for each in bench.broker.sends] == [[bytes(40)] * 2, [bytes(40)]]
    assert "chunking_enabled" in str(sends[3].outcome)


@scene
async def test_a_batch_of_one_is_cut_into_chunks_where_it_must_be(bench):
    producer = await bench.partition(limits=LIMITS, chunk_bytes_max=50)
    producer.begin(bench.sends(bytes(90)))
    producer.send_batches()
    assert [len(each.payload) for each in bench.broker.sends] == [50, 40]


@scene
async def test_batches_by_key_are_numbered_so_that_dedup_drops_none(bench):
    producer = await bench.partition(
        limits=LIMITS.__class__(100, 10_000, 10_000), batching=Batching.KEY
    )
    producer.begin([bench.send(b"%d" % n, key=key) for n, key in enumerate("abab")])
    producer.send_batches()
    sent = bench.broker.sends
    assert [each.payloads for each in sent] == [[b"0", b"2"], [b"1", b"3"]]
    assert [each.sequence_id for each in sent] == [0, 2]
    assert [each.metadata.partition_key for each in sent] == ["a", "b"]


# ---- reconnect ----------------------------------------------------------------------------------


@scene
async def test_what_has_no_receipt_goes_out_again_in_order_with_its_numbers(bench):
    producer = await bench.partition()
    sends = bench.sends(b"a", b"b", b"c")
    producer.begin(sends)
    bench.broker.confirm(1)
    bench.cut()
    assert producer.why().reason is Waits.CONNECTION
    late = bench.send(b"d")
    producer.begin([late])
    await until(lambda: producer.handler.ready_connection is not None)
    assert [each.payload for each in bench.broker.sends] == [b"b", b"c", b"d"]
    assert [each.sequence_id for each in bench.broker.sends] == [1, 2, 3]
    bench.broker.confirm()
    assert all(each.outcome.ledger_id == 3 for each in [*sends, late])
    assert producer.counters.resent == 3
    asked = bench.broker.asked[-1]
    assert (asked.producer_name, asked.user_provided_producer_name) == ("made-by-broker", False)
    assert asked.epoch == 1


@scene
async def test_a_try_to_come_back_is_made_just_before_sends_time_out(bench):
    producer = await bench.partition(send_timeout_ms=5_000)
    assert producer.handler._backoff._stop_ms == 4_900
    producer = await bench.partition(send_timeout_ms=0)
    assert producer.handler._backoff._stop_ms == 0


@scene
async def test_a_batch_goes_out_again_as_the_same_bytes(bench):
    producer = await bench.partition(limits=LIMITS)
    producer.begin(bench.sends(b"a", b"b", b"c"))
    (first,) = bench.broker.sends
    bench.clock.advance(50)
    bench.cut()
    await until(lambda: producer.handler.ready_connection is not None)
    (again,) = bench.broker.sends
    assert again.metadata == first.metadata
    assert again.payload == first.payload


@scene
async def test_what_the_broker_had_already_is_confirmed_as_a_duplicate(bench):
    producer = await bench.partition(producer_name="me")
    sends = bench.sends(b"a", b"b")
    producer.begin(sends)
    bench.cut()
    await until(lambda: producer.handler.ready_connection is not None)
    bench.broker.confirm_one(1, is_duplicate=True)
    bench.broker.confirm_one(0, is_duplicate=True)
    assert [each.outcome for each in sends] == [MessageId.earliest, MessageId.earliest]
    assert producer.counters.duplicates == 2


@scene
async def test_closed_by_the_broker_it_comes_back_and_sends_again(bench):
    producer = await bench.partition()
    producer.begin(bench.sends(b"a"))
    bench.broker.connection.sends.clear()
    bench.broker.connection.say(pb.BaseCommand.CLOSE_PRODUCER, request_id=0)
    await until(lambda: bench.broker.sends)
    assert len(bench.broker.connections) == 1
    assert bench.broker.sends[0].payload == b"a"


@scene
async def test_closed_by_the_broker_with_the_answer_it_sends_nothing_before_it_is_back(bench):
    producer = await bench.partition()
    producer.begin(bench.sends(b"a"))
    bench.cut()
    answer = bench.broker.answer

    async def answered_and_closed(*asked):
        found = await answer(*asked)
        if len(bench.broker.asked) == 2:
            bench.broker.connection.say(pb.BaseCommand.CLOSE_PRODUCER, request_id=0)
            assert bench.broker.sends == []
        return found

    bench.broker.answer = answered_and_closed
    await until(lambda: producer.handler.ready_connection is not None)
    assert len(bench.broker.asked) == 3
    assert [each.payload for each in bench.broker.sends] == [b"a"]


@scene
async def test_an_answer_that_does_not_come_in_time_is_not_wanted_any_more(bench):
    bench.broker.refusals = [TimedOut("broker:6650", 30_000)]
    producer = await bench.partition()
    assert len(bench.broker.asked) == 2
    assert bench.broker.connection.goodbyes == [0]
    assert producer.handler.ready_connection is not None


@scene
async def test_who_waits_in_line_when_the_connection_breaks_gets_into_line_again(bench):
    bench.broker.line = asyncio.get_running_loop().create_future()
    opening = asyncio.ensure_future(bench.partition(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE))
    await until(lambda: bench.broker.asked)
    await asyncio.sleep(0)
    bench.clock.advance(100_000)
    line, bench.broker.line = bench.broker.line, None
    line.set_exception(Unreachable("broker:6650", "broken"))
    producer = await opening
    assert producer.handler.ready_connection is not None


@scene
async def test_one_that_is_given_up_in_line_leaves_it_and_nobody_else_loses_the_connection(bench):
    bench.broker.line = asyncio.get_running_loop().create_future()
    opening = asyncio.ensure_future(bench.partition(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE))
    await until(lambda: bench.broker.asked)
    await asyncio.sleep(0)
    (producer,) = bench.broker.connection.owners.values()
    assert producer.is_in_line
    await producer.close()
    with pytest.raises(StateError, match="closed while it was opened"):
        await opening
    await until(lambda: not bench.broker.connection.owners)
    assert bench.broker.connection.goodbyes == [0]
    assert not producer.is_in_line
    bench.broker.line.set_result(None)
    await asyncio.sleep(0)
    assert not bench.broker.connection.is_closed


@scene
async def test_a_receipt_too_early_makes_everything_go_out_again(bench):
    producer = await bench.partition()
    producer.begin(bench.sends(b"a", b"b"))
    bench.broker.confirm_one(1)
    await until(lambda: producer.handler.ready_connection is not None)
    assert len(bench.broker.connections) == 2
    assert [each.payload for each in bench.broker.sends] == [b"a", b"b"]


@scene
async def test_a_late_receipt_of_another_life_is_ignored(bench):
    producer = await bench.partition()
    producer.begin(bench.sends(b"a"))
    bench.broker.confirm()
    bench.broker.confirm_one(0)
    assert producer.counters.stored == 1


@scene
async def test_an_exclusive_producer_comes_back_with_its_epoch(bench):
    producer = await bench.partition(access_mode=AccessMode.EXCLUSIVE)
    bench.cut()
    await until(lambda: producer.handler.ready_connection is not None)
    assert not bench.broker.asked[0].HasField("topic_epoch")
    assert bench.broker.asked[1].topic_epoch == 7


# ---- refusals -----------------------------------------------------------------------------------


@scene
async def test_a_damaged_message_fails_alone(bench):
    producer = await bench.partition()
    sends = bench.sends(b"a", b"b")
    producer.begin(sends)
    bench.broker.connection.say(
        pb.BaseCommand.SEND_ERROR, sequence_id=0, error=pb.ChecksumError, message="damaged"
    )
    assert isinstance(sends[0].outcome, Refused)
    assert bench.over == sends[:1]
    bench.broker.confirm_one(1)
    assert sends[1].outcome == MessageId(3, 0)


@scene
async def test_any_other_refusal_of_a_message_sends_everything_again(bench):
    producer = await bench.partition()
    producer.begin(bench.sends(b"a", b"b"))
    bench.broker.connection.say(
        pb.BaseCommand.SEND_ERROR, sequence_id=0, error=pb.PersistenceError, message="not now"
    )
    await until(lambda: producer.handler.ready_connection is not None)
    assert [each.payload for each in bench.broker.sends] == [b"a", b"b"]


@scene
async def test_a_quota_that_holds_is_waited_for_and_told(bench):
    producer = await bench.partition()
    (held,) = sends = bench.sends(b"a")
    producer.begin(sends)
    bench.broker.refusals = [int(ServerError.ProducerBlockedQuotaExceededError)] * 3
    bench.cut()
    await until(lambda: producer.why().reason is Waits.QUOTA)
    assert "ProducerBlockedQuotaExceededError" in str(producer.why())
    await until(lambda: producer.handler.ready_connection is not None)
    assert held.outcome is None
    assert bench.broker.sends[0].payload == b"a"


@scene
async def test_a_quota_that_refuses_fails_what_waits_and_is_tried_again(bench):
    producer = await bench.partition()
    (failed,) = sends = bench.sends(b"a")
    producer.begin(sends)
    bench.broker.refusals = [int(ServerError.ProducerBlockedQuotaExceededException)]
    bench.cut()
    await until(lambda: producer.handler.ready_connection is not None)
    assert failed.outcome.code == ServerError.ProducerBlockedQuotaExceededException
    assert bench.broker.sends == []


@pytest.mark.parametrize("code", [ServerError.ProducerFenced, ServerError.TopicTerminatedError])
def test_a_fenced_producer_and_one_of_a_terminated_topic_are_over(code):
    async def run():
        bench = ProducerBench()
        producer = await bench.partition()
        (failed,) = sends = bench.sends(b"a")
        producer.begin(sends)
        bench.broker.refusals = [int(code)]
        bench.cut()
        await until(lambda: producer.handler.is_over)
        assert failed.outcome.code == code
        (later,) = sends = bench.sends(b"b")
        producer.begin(sends)
        assert later.outcome.code == code

    asyncio.run(run())


@scene
async def test_a_name_that_is_taken_is_told_at_once_when_it_is_opened(bench):
    bench.broker.refusals = [int(ServerError.ProducerBusy)]
    with pytest.raises(Refused, match="use another name, or close the one that has it"):
        await bench.partition(producer_name="me")


@scene
async def test_a_producer_in_line_waits_as_long_as_it_takes(bench):
    bench.broker.line = asyncio.get_running_loop().create_future()
    opening = asyncio.ensure_future(bench.partition(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE))
    await until(lambda: bench.broker.asked)
    bench.clock.advance(1_000_000)
    assert not opening.done()
    bench.broker.line.set_result(None)
    producer = await opening
    assert not producer.is_in_line


# ---- time and the end ---------------------------------------------------------------------------


@scene
async def test_a_send_whose_time_is_up_fails_and_the_others_stay_in_order(bench):
    producer = await bench.partition()
    old, young = bench.sends(b"a", b"b")
    old.deadline_ms = bench.clock.monotonic_ms() + 10
    producer.begin([old, young])
    assert producer.deadline_ms == old.deadline_ms
    bench.clock.advance(9)
    producer.expire(bench.clock.monotonic_ms())
    assert old.outcome is None
    bench.clock.advance(1)
    producer.expire(bench.clock.monotonic_ms())
    assert isinstance(old.outcome, TimedOut)
    assert "messages without a receipt: 2, the oldest since 0.0 s" in str(old.outcome)
    # What it would have heard comes too late, and disturbs nobody.
    bench.broker.confirm()
    assert young.outcome == MessageId(3, 1)


@scene
async def test_what_gathers_may_be_too_late_as_well(bench):
    producer = await bench.partition(limits=LIMITS)
    (send,) = sends = bench.sends(b"a")
    send.deadline_ms = 0
    producer.begin(sends)
    assert producer.deadline_ms == 0
    producer.expire(bench.clock.monotonic_ms())
    assert isinstance(send.outcome, TimedOut)
    assert producer.deadline_ms is None


@scene
async def test_flush_waits_for_what_was_sent_before_it_and_no_more(bench):
    producer = await bench.partition(limits=LIMITS)
    producer.begin(bench.sends(b"a"))
    flushing = asyncio.ensure_future(producer.flush())
    await asyncio.sleep(0)
    assert [each.payloads for each in bench.broker.sends] == [[b"a"]]
    producer.begin(bench.sends(b"b"))
    producer.send_batches()
    assert not flushing.done()
    bench.broker.confirm(1)
    await flushing
    assert len(producer.pending) == 1


@scene
async def test_flush_of_nothing_is_over_at_once(bench):
    producer = await bench.partition()
    await producer.flush()


@scene
async def test_flush_ends_when_what_it_waits_for_fails(bench):
    producer = await bench.partition()
    (send,) = sends = bench.sends(b"a")
    send.deadline_ms = 0
    producer.begin(sends)
    flushing = asyncio.ensure_future(producer.flush())
    await asyncio.sleep(0)
    producer.expire(bench.clock.monotonic_ms())
    await flushing


@scene
async def test_closing_tells_those_who_wait(bench):
    producer = await bench.partition()
    sends = bench.sends(b"a")
    producer.begin(sends)
    await producer.close()
    assert isinstance(sends[0].outcome, StateError)
    assert bench.over == sends
    (later,) = sends = bench.sends(b"b")
    producer.begin(sends)
    assert isinstance(later.outcome, StateError)
    assert "closed; make a new one" in str(later.outcome)
    assert producer.why().reason is Waits.CLOSED


@scene
async def test_closing_without_a_connection_waits_for_nobody(bench):
    producer = await bench.partition()
    bench.cluster.is_away = True
    bench.cut()
    await producer.close()
    assert producer.handler.is_over


@scene
async def test_a_message_too_large_fails_and_others_go_on(bench):
    bench.broker.max_message_size = 100
    producer = await bench.partition()
    sends = bench.sends(bytes(200), b"small")
    producer.begin(sends)
    assert "chunking_enabled" in str(sends[0].outcome)
    assert [each.payload for each in bench.broker.sends] == [b"small"]


@scene
async def test_a_message_in_chunks_ends_with_its_last_chunk(bench):
    bench.broker.max_message_size = 3000
    producer = await bench.partition(chunk_bytes_max=0)
    (send,) = sends = bench.sends(bytes(8000))
    producer.begin(sends)
    assert len(bench.broker.sends) == 3
    assert producer.pending.messages == 1
    bench.broker.confirm(2)
    assert send.outcome is None
    bench.broker.confirm(1)
    assert send.outcome == MessageId(3, 2)
    assert send.outcome.first_chunk == MessageId(3, 0)
    assert producer.counters.chunks == 3


@scene
async def test_why_says_what_it_waits_for(bench):
    producer = await bench.partition()
    assert str(producer.why()) == "everything sent is confirmed"
    assert not producer.why().is_waiting
    producer.begin(bench.sends(b"a", b"b"))
    bench.clock.advance(2500)
    why = producer.why()
    assert why.reason is Waits.RECEIPTS
    assert str(why) == "messages without a receipt: 2, the oldest since 2.5 s"
    assert why.lasted_ms == 2500
    bench.cluster.is_away = True
    bench.cut()
    await until(lambda: "nobody is there" in str(producer.why()))
    assert str(producer.why()).startswith("reconnecting since 0.0 s: broker:6650 cannot be reached")
    await producer.close()


@scene
async def test_nobody_at_the_address_is_told_with_the_address(bench):
    bench.cluster.is_away = True
    bench.cluster.options["operation_timeout_ms"] = 0
    with pytest.raises((TimedOut, Unreachable), match="nobody is there"):
        await bench.partition()


class Broken:
    """An encoder that makes one kind of entry, and fails with the other."""

    def __init__(self, encoder):
        self.encoder = encoder

    def alone(self, content, sequence_id, publish_ms):
        if content.payload == b"bad":
            raise ValueError("oops")
        return self.encoder.alone(content, sequence_id, publish_ms)

    def batch(self, contents, sequence_ids, publish_ms):
        raise ValueError("oops")


@pytest.mark.parametrize("limits", [None, LIMITS])
def test_sends_that_cannot_be_encoded_end_whatever_was_wrong_and_others_go_out(limits):
    @scene
    async def play(bench):
        producer = await bench.partition(limits=limits)
        producer._encoder = Broken(producer._encoder)
        bad, good = bench.sends(b"bad", b"bad"), bench.sends(b"good")
        producer.begin(bad)
        producer.send_batches()
        producer.begin(good)
        producer.send_batches()
        assert [each.payload for each in bench.broker.sends] == [b"good"]
        bench.broker.confirm()
        assert bench.over == [*bad, *good]
        assert producer.counters.failed == 2
        for each in bad:
            with pytest.raises(ClientError, match=r"cannot be sent: .*oops"):
                raise each.outcome

    play()
