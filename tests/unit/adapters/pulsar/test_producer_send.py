"""Unit tests for SEND: what is stored, what is answered, in which order, and what pressure does."""

import pytest

from kit.pulsar.bench import PulsarBench, command, message_tail
from penstock.adapters.pulsar import producer as room
from penstock.adapters.pulsar.errors import QUOTA_EXCEEDED
from penstock.adapters.pulsar.namespaces import (
    DelayedDeliveryRule,
    PublishRate,
    QuotaRule,
)
from penstock.engine.connection import Channel
from penstock.model.names import topic_name
from penstock.model.record import Wire
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings
from penstock.settings.protocols import PulsarSettings
from penstock.wire.pulsar.frames import NO_ID, ServerError, payload_frame
from penstock.wire.pulsar.metadata import read_metadata
from penstock.wire.pulsar.protocol_pb2 import BaseCommand

TOPIC = "persistent://public/default/orders"
UNLOGGED = "non-persistent://public/default/ticks"
HOLD_MS = FlowSettings().hold_ms_max


@pytest.fixture
def producing(client):
    """A client with producer 1."""
    create(client)
    return client


def create(client, producer_id=1, topic=TOPIC, **fields):
    answer = client.call("PRODUCER", topic=topic, producer_id=producer_id, request_id=1, **fields)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
    return answer.producer_success


def fails(client, **fields):
    answer = client.call("PRODUCER", topic=TOPIC, producer_id=1, request_id=1, **fields)
    assert answer.type == BaseCommand.ERROR, answer
    return ServerError(answer.error.error), answer.error.message


def kinds(client):
    return [BaseCommand.Type.Name(each.type) for each in client.commands()]


def receipts(client):
    """Of everything that came: sequence id, ledger, entry."""
    found = []
    for each in client.commands():
        assert each.type == BaseCommand.SEND_RECEIPT, each
        message_id = each.send_receipt.message_id
        found.append((each.send_receipt.sequence_id, message_id.ledgerId, message_id.entryId))
    return found


def topic_of(bench):
    return bench.engine.topic(topic_name("orders"))


def frame(producer_id, sequence_id, tail):
    said = command("SEND", producer_id=producer_id, sequence_id=sequence_id, num_messages=1)
    return b"".join(payload_frame(said.SerializeToString(), tail))


def policies(bench, **changes):
    bench.broker.namespaces.set_policies("public/default", **changes)
    while bench.broker.namespaces.is_applying:
        bench.broker.namespaces.apply_some()


# ---- what is stored, and its receipt ------------------------------------------------------------


def test_the_tail_is_stored_byte_for_byte(bench, producing):
    tail = message_tail(0, b"hello", properties=[{"key": "a", "value": "b"}])
    producing.publish(1, 0, tail=tail)
    producing.commands()

    (record,) = bench.records(topic_of(bench))
    assert record.origin == tail
    assert record.wire == Wire.PULSAR


def test_a_receipt_comes_when_the_message_is_durable(bench, producing):
    producing.publish(1, 4, b"x")
    bench.turns()
    assert producing.connection.outgoing() == []

    incarnation = topic_of(bench).queues[0].incarnation
    assert receipts(producing) == [(4, incarnation, 0)]
    bench.cut_power()
    assert len(bench.records(topic_of(bench))) == 1


def test_a_batch_takes_an_offset_for_each_message(bench, producing):
    producing.publish(1, 0, b"a", b"b", b"c")
    producing.publish(1, 3, b"d")

    incarnation = topic_of(bench).queues[0].incarnation
    assert receipts(producing) == [(0, incarnation, 0), (3, incarnation, 3)]


def test_the_highest_sequence_id_is_always_told(producing):
    producing.publish(1, 0, b"x")
    producing.publish(1, 1, b"y", b"z", highest_sequence_id=2)

    told = [each.send_receipt.highest_sequence_id for each in producing.commands()]
    assert told == [NO_ID, 2]


def test_sequence_ids_are_stored_as_they_come_without_deduplication(bench, producing):
    for number in (5, 3, 3):
        producing.publish(1, number, b"x")

    assert [each[0] for each in receipts(producing)] == [5, 3, 3]
    assert len(bench.records(topic_of(bench))) == 3


@pytest.mark.parametrize("said", [0, -1, 7])
def test_what_a_send_says_of_its_number_of_messages_does_not_matter(bench, producing, said):
    producing.publish(1, 0, b"x", num_messages=said)

    assert len(receipts(producing)) == 1
    assert bench.records(topic_of(bench))[0].messages == 1


def test_another_producers_name_in_the_metadata_is_accepted(producing):
    producing.publish(1, 0, tail=message_tail(0, b"x", producer_name="somebody else"))

    assert len(receipts(producing)) == 1


def test_metadata_that_cannot_be_read_are_accepted(producing):
    producing.publish(1, 0, tail=b"\0\0\0\x02\xff\xff")

    assert len(receipts(producing)) == 1


def test_a_tail_without_checksum_is_accepted(bench, producing):
    producing.publish(1, 0, tail=message_tail(0, b"x")[6:])

    assert len(receipts(producing)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"compression": "LZ4", "uncompressed_size": 100},
        {"encryption_keys": [{"key": "k", "value": b"v"}], "encryption_algo": "AES"},
        {"uuid": "u", "num_chunks_from_msg": 3, "chunk_id": 1, "total_chunk_msg_size": 9},
    ],
)
def test_what_is_compressed_encrypted_or_a_chunk_is_passed_on(bench, producing, fields):
    tail = message_tail(0, b"whatever", **fields)
    producing.publish(1, 0, tail=tail, is_chunk="chunk_id" in fields)

    assert len(receipts(producing)) == 1
    (record,) = bench.records(topic_of(bench))
    assert record.origin == tail
    assert record.messages == 1


def test_all_sends_of_one_read_are_one_list_and_their_receipts_one_write(
    bench, producing, monkeypatch
):
    lists = []
    publish = Channel.publish

    def count(channel, publications):
        lists.append(len(publications))
        publish(channel, publications)

    monkeypatch.setattr(Channel, "publish", count)
    producing.raw(b"".join([frame(1, each, message_tail(each, b"x")) for each in range(100)]))
    assert lists == [100]
    bench.settle()

    assert len(producing.connection.outgoing()) == 1


def test_two_producers_of_one_read_have_a_list_each(bench, producing):
    create(producing, 2, topic="other")
    data = [frame(1 + each % 2, each, message_tail(each, b"x")) for each in range(10)]
    producing.raw(b"".join(data))

    heard = producing.commands()
    for producer_id in (1, 2):
        numbers = [
            each.send_receipt.sequence_id
            for each in heard
            if each.send_receipt.producer_id == producer_id
        ]
        assert numbers == list(range(producer_id - 1, 10, 2))


def test_a_command_behind_sends_finds_them_published(producing):
    producing.raw(frame(1, 0, message_tail(0, b"x")))
    producing.say("CLOSE_PRODUCER", producer_id=1, request_id=2)

    assert kinds(producing) == ["SEND_RECEIPT", "SUCCESS"]


# ---- what is not stored -------------------------------------------------------------------------


def test_a_send_to_an_unknown_producer_closes_the_connection(client):
    client.publish(9, 0, b"x")

    assert client.is_closed


def test_a_send_before_its_producer_is_answered_closes_the_connection(client):
    client.say("PRODUCER", topic=TOPIC, producer_id=1, request_id=1)
    client.publish(1, 0, b"x")

    assert client.is_closed


def test_a_send_without_payload_closes_the_connection(producing):
    producing.say("SEND", producer_id=1, sequence_id=0)

    assert producing.is_closed


def test_a_bad_checksum_costs_the_message_only(bench, producing):
    tail = bytearray(message_tail(3, b"x"))
    tail[-1] ^= 1
    producing.publish(1, 3, tail=bytes(tail))
    producing.publish(1, 4, b"y")

    error, receipt = producing.commands()
    assert (error.send_error.sequence_id, error.send_error.error, error.send_error.message) == (
        3,
        ServerError.ChecksumError,
        "Checksum failed on the broker",
    )
    assert receipt.send_receipt.sequence_id == 4
    assert not producing.is_closed


def test_an_error_waits_for_the_receipts_before_it(producing):
    good, bad = message_tail(0, b"x"), bytearray(message_tail(1, b"x"))
    bad[-1] ^= 1
    producing.raw(frame(1, 0, good) + frame(1, 1, bytes(bad)) + frame(1, 2, good))
    producing.raw(frame(1, 3, bytes(bad)))

    assert kinds(producing) == ["SEND_RECEIPT", "SEND_ERROR", "SEND_RECEIPT", "SEND_ERROR"]


def test_answers_that_wait_are_bounded(bench, producing, monkeypatch):
    monkeypatch.setattr(room, "LATE_MAX", 2)
    bad = bytearray(message_tail(1, b"x"))
    bad[-1] ^= 1
    producing.publish(1, 0, b"x")
    for number in range(1, 4):
        producing.publish(1, number, tail=bytes(bad))

    assert producing.is_closed


def test_a_message_above_the_policy_is_not_allowed(bench, producing):
    policies(bench, max_message_size=200)
    producing.publish(1, 0, b"x" * 300)
    producing.publish(1, 1, b"y")

    error, receipt = producing.commands()
    assert error.send_error.error == ServerError.NotAllowedError
    assert receipt.send_receipt.sequence_id == 1


def test_a_delay_above_the_policy_is_not_allowed(bench, producing):
    policies(bench, delayed_delivery=DelayedDeliveryRule(max_delivery_delay_in_millis=5_000))
    now_ms = bench.clock.wall_ms()
    for number, delay_ms in enumerate((5_000, 6_000)):
        tail = message_tail(number, b"x", deliver_at_time=now_ms + delay_ms)
        producing.publish(1, number, tail=tail)

    receipt, error = producing.commands()
    assert receipt.send_receipt.sequence_id == 0
    assert error.send_error.error == ServerError.NotAllowedError


def test_a_send_of_a_transaction_is_not_allowed(producing):
    producing.publish(1, 0, b"x", txnid_least_bits=1, txnid_most_bits=2)

    (error,) = producing.commands()
    assert error.send_error.error == ServerError.NotAllowedError
    assert error.send_error.message == "Transactions are not enabled."


# ---- without a log ------------------------------------------------------------------------------


def test_without_a_log_every_receipt_says_0_0(client):
    create(client, topic=UNLOGGED)
    for number in range(3):
        client.publish(1, number, b"x")

    assert receipts(client) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_without_a_log_what_is_too_much_at_once_is_dropped_with_a_receipt_of_no_id():
    bench = PulsarBench(Settings(pulsar=PulsarSettings(max_concurrent_non_persistent_messages=2)))
    client = bench.client()
    create(client, topic=UNLOGGED)
    client.raw(b"".join([frame(1, each, message_tail(each, b"x")) for each in range(4)]))

    assert receipts(client) == [(0, 0, 0), (1, 0, 0), (2, NO_ID, NO_ID), (3, NO_ID, NO_ID)]
    client.publish(1, 4, b"x")
    assert receipts(client) == [(4, 0, 0)]


def test_without_a_log_the_count_of_what_is_under_way_comes_back(bench, client):
    commands = client.connection._groups[1]
    create(client, topic=UNLOGGED)
    client.publish(1, 0, b"x")
    bench.broker.topics.unload(next(iter(bench.broker.topics._used)))

    assert commands.unlogged_in_flight == 0


def test_without_a_log_a_topic_that_was_unused_is_there_again(bench, client):
    create(client, topic=UNLOGGED)
    for _ in range(9):
        bench.pass_time(20_000)
        client.say("PING")
    client.commands()
    assert not list(bench.engine.non_persistent)
    client.publish(1, 0, b"x")

    assert receipts(client) == [(0, 0, 0)]


# ---- pressure -----------------------------------------------------------------------------------


def alarmed(bench):
    bench.engine.set_alarm("disk", 1 << 40)
    bench.engine.set_alarm_limits(memory_bytes=1_000, disk_free_bytes=1)
    bench.engine.set_alarm("memory", 2_000)


def calm(bench):
    bench.engine.set_alarm("memory", 0)


def with_quota(bench, policy, limit=1_000):
    create(bench.clients[0], initial_subscription_name="s")
    rule = QuotaRule(limit_size=limit, policy=policy)
    policies(bench, backlog_quotas={"destination_storage": rule})


def keep_alive(bench, client, ms):
    """Time passes; the client answers."""
    for _ in range(ms // 5_000):
        bench.pass_time(5_000)
        client.say("PONG")


def test_an_alarm_withholds_receipts_and_the_connection_is_read_on(bench, producing):
    alarmed(bench)
    producing.publish(1, 0, b"x")

    assert kinds(producing) == []
    assert producing.connection.is_reading
    assert producing.call("PING").type == BaseCommand.PONG
    calm(bench)
    assert kinds(producing) == ["SEND_RECEIPT"]


def test_held_too_long_it_is_closed_and_told_7_while_the_alarm_lasts(bench, producing):
    alarmed(bench)
    producing.publish(1, 0, b"x")
    keep_alive(bench, producing, HOLD_MS)

    assert "CLOSE_PRODUCER" in kinds(producing)
    producing.publish(1, 1, b"y")
    code, _ = fails(producing, epoch=1)
    assert code is ServerError.ProducerBlockedQuotaExceededError
    calm(bench)
    create(producing, epoch=1)
    producing.publish(1, 0, b"x")
    producing.publish(1, 1, b"y")
    assert [each[0] for each in receipts(producing)] == [0, 1]


def test_a_new_producer_is_let_in_while_an_alarm_lasts_and_held(bench, client):
    alarmed(bench)
    create(client)
    client.publish(1, 0, b"x")

    assert kinds(client) == []


def test_quota_hold_withholds_then_closes_then_says_7_until_it_is_drained(bench, client):
    with_quota(bench, "producer_request_hold")
    client.publish(1, 0, b"x" * 1_500)
    client.publish(1, 1, b"y")
    assert [each[0] for each in receipts(client)] == [0]
    keep_alive(bench, client, HOLD_MS)
    assert "CLOSE_PRODUCER" in kinds(client)
    assert fails(client, epoch=1) == (
        ServerError.ProducerBlockedQuotaExceededError,
        QUOTA_EXCEEDED,
    )

    bench.engine.delete_subscription(topic_name("orders"), "pulsar/s")
    create(client, epoch=2)
    client.publish(1, 1, b"y")
    assert [each[0] for each in receipts(client)] == [1]


def test_quota_hold_that_passes_in_time_is_not_noticed(bench, client):
    with_quota(bench, "producer_request_hold")
    client.publish(1, 0, b"x" * 1_500)
    client.publish(1, 1, b"y")
    client.commands()
    bench.engine.delete_subscription(topic_name("orders"), "pulsar/s")

    assert [each[0] for each in receipts(client)] == [1]


def test_quota_exception_closes_at_once_and_says_8(bench, client):
    with_quota(bench, "producer_exception")
    client.publish(1, 0, b"x" * 1_500)
    client.publish(1, 1, b"y")

    assert kinds(client) == ["SEND_RECEIPT", "CLOSE_PRODUCER"]
    assert fails(client, epoch=1) == (
        ServerError.ProducerBlockedQuotaExceededException,
        QUOTA_EXCEEDED,
    )


def test_quota_eviction_does_not_disturb_producers(bench, client):
    with_quota(bench, "consumer_backlog_eviction")
    for number in range(5):
        client.publish(1, number, b"x" * 1_500)

    assert [each[0] for each in receipts(client)] == [0, 1, 2, 3, 4]
    create(client, 2)


def test_a_rate_delays_receipts_and_nothing_else(bench, producing):
    policies(bench, publish_rate=PublishRate(publish_throttling_rate_in_msg=10))
    create(producing, 2, topic="unlimited-by-itself")
    for number in range(30):
        producing.publish(1, number, b"x")
    first = len(receipts(producing))
    assert 10 <= first < 30
    assert producing.call("PING").type == BaseCommand.PONG
    bench.pass_time(3_000)

    assert len(receipts(producing)) == 30 - first


def test_behind_a_refused_send_nothing_is_stored_and_nothing_before_it_is_lost(bench, client):
    with_quota(bench, "producer_exception")
    tails = [message_tail(0, b"x"), message_tail(1, b"x" * 1_500), message_tail(2, b"y")]
    client.raw(b"".join([frame(1, each, tail) for each, tail in enumerate(tails)]))
    bench.engine.delete_subscription(topic_name("orders"), "pulsar/s")
    client.raw(frame(1, 3, message_tail(3, b"z")))
    heard = kinds(client)

    stored = [read_metadata(each.origin)[0].sequence_id for each in bench.records(topic_of(bench))]
    assert stored == list(range(heard.count("SEND_RECEIPT")))


def test_a_failed_write_closes_the_producer_after_the_receipts_before_it(bench, producing):
    producing.publish(1, 0, b"x")
    bench.turns()
    bench.storage.capacity_bytes = 0
    producing.publish(1, 1, b"y")
    bench.turns()
    heard = kinds(producing)

    assert heard == ["SEND_RECEIPT", "CLOSE_PRODUCER"]


def test_a_failed_sync_closes_producers_and_fences_topics(bench, producing):
    producing.publish(1, 0, b"x")
    bench.turns()
    job = bench.engine.take_sync_job()
    bench.engine.synced(job, OSError("planned"))

    assert kinds(producing) == ["CLOSE_PRODUCER"]
    assert fails(producing, epoch=1)[0] is ServerError.ServiceNotReady


def test_a_held_producer_leaves_others_of_its_connection_alone(bench, client):
    with_quota(bench, "producer_exception")
    rule = QuotaRule(limit_size=1_000)
    policies(bench, backlog_quotas={"destination_storage": rule})
    create(client, 2, topic="free")
    client.publish(1, 0, b"x" * 1_500)
    client.publish(1, 1, b"y")
    client.publish(2, 7, b"z")

    assert sorted(each[0] for each in receipts(client)) == [0, 7]


def test_close_of_a_held_producer_waits_for_it(bench, producing):
    alarmed(bench)
    producing.publish(1, 0, b"x")
    producing.say("CLOSE_PRODUCER", producer_id=1, request_id=5)
    assert kinds(producing) == []
    calm(bench)

    assert kinds(producing) == ["SEND_RECEIPT", "SUCCESS"]


# ---- many at a time -----------------------------------------------------------------------------


@pytest.fixture
def in_runs(producing, monkeypatch):
    """``producing``, after a SEND by which those that follow are known, and the runs of it."""
    runs = []
    add_run = room.Producer.add_run

    def note(producer, run):
        runs.append(run.sequence_ids)
        return add_run(producer, run)

    monkeypatch.setattr(room.Producer, "add_run", note)
    producing.raw(frame(1, 0, message_tail(0, b"first")))
    assert len(receipts(producing)) == 1
    return producing, runs


def many(numbers, **tails):
    """SENDs in a row; the tail of some is given as ``n7``."""
    return b"".join(
        [frame(1, each, tails.get(f"n{each}", message_tail(each, b"body"))) for each in numbers]
    )


def test_sends_in_a_row_are_stored_and_answered_like_single_ones(bench, in_runs):
    client, runs = in_runs
    client.raw(many(range(1, 300)))

    assert [each[0] for each in receipts(client)] == list(range(1, 300))
    assert sum(map(len, runs)) >= 296
    stored = bench.records(topic_of(bench))[1:]
    assert [each.origin for each in stored] == [
        message_tail(each, b"body") for each in range(1, 300)
    ]


def test_a_bad_checksum_among_many_costs_the_message_only(bench, in_runs):
    client, runs = in_runs
    bad = message_tail(5, b"body")[:-1] + b"?"
    client.raw(many(range(1, 10), n5=bad))

    answers = client.commands()
    assert [each.type for each in answers] == [
        *[BaseCommand.SEND_RECEIPT] * 4, BaseCommand.SEND_ERROR, *[BaseCommand.SEND_RECEIPT] * 4,
    ]  # fmt: skip
    assert answers[4].send_error.sequence_id == 5
    assert runs == [[1, 2, 3, 4], [6, 7, 8, 9]]


def test_a_large_message_among_many_is_refused_by_itself(bench, in_runs):
    client, runs = in_runs
    policies(bench, max_message_size=200)
    client.raw(many(range(1, 6), n3=message_tail(3, b"x" * 300)))

    answers = client.commands()
    assert [each.type for each in answers] == [
        *[BaseCommand.SEND_RECEIPT] * 2, BaseCommand.SEND_ERROR, *[BaseCommand.SEND_RECEIPT] * 2,
    ]  # fmt: skip
    assert answers[2].send_error.error == ServerError.NotAllowedError
    assert runs == [[1, 2, 3, 4, 5]]


def test_duplicates_among_many_are_told_apart(bench, in_runs):
    client, runs = in_runs
    policies(bench, deduplication=True)
    client.raw(many([1, 2, 3]))
    receipts(client)
    client.raw(many([2, 3, 4, 1, 5]))

    found = receipts(client)
    assert [each[0] for each in found] == [2, 3, 4, 1, 5]
    assert [each[2] == NO_ID for each in found] == [True, True, False, True, False]
    assert runs == [[1, 2, 3], [2, 3, 4, 1, 5]]


def test_many_to_a_producer_that_is_gone_close_the_connection(in_runs):
    client, runs = in_runs
    client.call("CLOSE_PRODUCER", producer_id=1, request_id=9)
    client.raw(many(range(1, 5)))
    assert client.is_closed
    assert runs == []


def test_many_to_a_producer_that_we_closed_are_dropped(bench, in_runs):
    client, runs = in_runs
    bench.broker.topics.unload(next(iter(bench.broker.topics._used)))
    assert kinds(client) == ["CLOSE_PRODUCER"]
    client.raw(many(range(1, 5)))
    assert kinds(client) == []
    assert not client.is_closed
    assert runs == []
