"""Unit tests for the handshake, the life signs and the end of a Pulsar connection."""

import pytest

from kit.pulsar.bench import command
from penstock.adapters.pulsar.connection import COMMANDS_AT_ONCE, PING_MS, PROBE_MS
from penstock.wire.pulsar.frames import NO_ID, ServerError, encode
from penstock.wire.pulsar.protocol_pb2 import BaseCommand


def kinds(client):
    return [BaseCommand.Type.Name(each.type) for each in client.commands()]


@pytest.mark.parametrize(("offered", "spoken"), [(20, 20), (21, 21), (99, 21), (0, 0)])
def test_connected_tells_the_older_version_and_the_largest_message(bench, offered, spoken):
    answer = bench.stranger().call("CONNECT", client_version="x", protocol_version=offered)

    assert answer.connected.protocol_version == spoken
    assert answer.connected.max_message_size == 5 * 1024 * 1024
    assert answer.connected.server_version.startswith("Penstock ")
    flags = answer.connected.feature_flags
    assert flags.supports_get_partitioned_metadata_without_auto_creation
    assert flags.supports_topic_watchers


def test_a_ping_is_answered_before_connect_too(bench):
    stranger = bench.stranger()

    assert stranger.call("PING").type == BaseCommand.PONG
    assert not stranger.is_closed


@pytest.mark.parametrize("kind", ["LOOKUP", "PARTITIONED_METADATA", "GET_TOPICS_OF_NAMESPACE"])
def test_a_command_before_connect_closes_without_a_word(bench, kind):
    stranger = bench.stranger()
    fields = {"request_id": 1}
    fields |= {"namespace": "public/default"} if "NAMESPACE" in kind else {"topic": "t"}
    stranger.say(kind, **fields)

    assert stranger.is_closed
    assert stranger.commands() == []


def test_a_second_connect_closes(client):
    client.say("CONNECT", client_version="x")

    assert client.is_closed
    assert client.commands() == []


@pytest.mark.parametrize("kind", ["SUCCESS", "PRODUCER_SUCCESS"])
def test_a_command_of_brokers_from_a_client_closes(client, kind):
    fields = {"producer_name": "p"} if kind == "PRODUCER_SUCCESS" else {}
    client.say(kind, request_id=1, **fields)

    assert client.is_closed
    assert client.commands() == []


def test_bytes_that_are_no_frame_close_after_what_came_before_them(client):
    client.raw(encode(command("PING")) + b"\0\0\0\0")

    assert client.is_closed
    assert kinds(client) == ["PONG"]


def test_auth_response_that_nobody_asked_for_fails_and_closes(client):
    client.say("AUTH_RESPONSE", client_version="x")

    (answer,) = client.commands()
    assert (answer.error.request_id, answer.error.error) == (
        NO_ID,
        ServerError.AuthenticationError,
    )
    assert client.is_closed


def test_a_ping_is_sent_every_30_s_and_silence_between_two_ends_it(bench, client):
    bench.pass_time(PING_MS)
    assert kinds(client) == ["PING"]
    client.say("PONG")
    bench.pass_time(PING_MS)
    assert kinds(client) == ["PING"]
    bench.pass_time(PING_MS)

    assert client.connection.is_over


def test_any_frame_is_a_sign_of_life(bench, client):
    for _ in range(8):
        bench.pass_time(PING_MS // 2)
        client.say("PING")

    assert not client.is_closed


def test_a_probe_is_answered_by_anything_that_is_said(bench, client):
    told = []
    client.connection.probe(told.append)
    assert kinds(client) == ["PING"]
    client.say("PONG")

    assert told == [True]


def test_who_does_not_answer_a_probe_is_cut_off(bench, client):
    told = []
    client.connection.probe(told.append)
    bench.pass_time(PROBE_MS)

    assert told == [False]
    assert client.connection.is_over


# ---- strangers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"", b"\0\0", encode(command("PING")), b"\0\0\0\x20\0\0\0\x1c"])
def test_who_does_not_connect_within_30_s_is_closed(bench, first):
    """Also with half a frame, and whatever was said before."""
    stranger = bench.stranger()
    if first:
        stranger.raw(first)
    bench.pass_time(PING_MS - 100)
    assert not stranger.is_closed
    stranger.commands()
    bench.pass_time(100)

    assert stranger.is_closed
    assert stranger.commands() == []


def test_a_silent_client_is_pinged_at_30_s_and_closed_at_60(bench, client):
    bench.pass_time(PING_MS)
    assert kinds(client) == ["PING"]
    bench.pass_time(PING_MS - 100)
    assert not client.is_closed
    bench.pass_time(100)

    assert client.is_closed


def test_a_client_that_grants_permits_lives_without_a_single_pong(bench, client):
    for _ in range(13):
        bench.pass_time(10_000)
        client.say("FLOW", consumer_id=1, messagePermits=1)

    assert not client.is_closed
    assert kinds(client) == ["PING"] * 4


# ---- a socket that is not read ------------------------------------------------------------------


@pytest.fixture
def unread(bench, client, monkeypatch):
    """A client whose share of memory is used up."""
    engine_connection = client.connection.engine_connection
    held = {"is": True}
    monkeypatch.setattr(
        type(engine_connection), "may_read", property(lambda _: not held["is"]), raising=False
    )
    client.connection.gate_changed(False, {})
    return held


def test_a_client_that_is_not_read_is_sent_a_pong_every_10_s_and_is_not_cut_off(
    bench, client, unread
):
    bench.pass_time(130_000)

    heard = kinds(client)
    assert heard.count("PONG") == 13
    assert not client.is_closed
    assert not client.connection.is_reading


def test_a_client_that_is_read_again_is_sent_no_more_pongs(bench, client, unread):
    bench.pass_time(20_000)
    unread["is"] = False
    kinds(client)
    bench.pass_time(9_000)

    assert "PONG" not in kinds(client)


def test_who_is_not_read_is_not_taken_for_dead_when_its_place_is_wanted(bench, client, unread):
    told = []
    client.connection.probe(told.append)
    bench.pass_time(PROBE_MS)

    assert told == [True]
    assert not client.is_closed


# ---- ids ----------------------------------------------------------------------------------------


def test_request_ids_may_collide(client):
    """Clients count look-ups and everything else apart."""
    client.say("LOOKUP", topic="t", request_id=1)
    client.say("PRODUCER", topic="t", producer_id=1, request_id=1)
    client.say("PARTITIONED_METADATA", topic="t", request_id=1)

    assert sorted(kinds(client)) == [
        "LOOKUP_RESPONSE", "PARTITIONED_METADATA_RESPONSE", "PRODUCER_SUCCESS",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [0, 2**63 - 1, 2**63, NO_ID])
def test_ids_are_any_number_of_64_bits(client, number):
    client.say("PRODUCER", topic="t", producer_id=number, request_id=number)
    (answer,) = client.commands()
    assert answer.producer_success.request_id == number
    client.say(
        "SUBSCRIBE", topic="t", subscription="s", subType="Shared", consumer_id=number,
        request_id=number,
    )  # fmt: skip
    (answer,) = client.commands()

    assert answer.success.request_id == number


def test_transactions_are_not_enabled(client):
    assert client.error("TC_CLIENT_CONNECT_REQUEST", tc_id=0, request_id=3) == (
        ServerError.NotAllowedError,
        "Transactions are not enabled.",
    )


def test_a_probe_is_told_after_what_was_said_is_served(bench, client):
    """Whoever closes its consumer in the read that answers has left its place."""
    order = []
    client.connection.probe(lambda is_alive: order.append(("probe", is_alive)))
    client.connection.write = lambda data: order.append("reply")
    client.say("PING")

    assert order == ["reply", ("probe", True)]


def test_a_client_that_hangs_up_while_it_is_asked_is_gone(bench, client):
    told = []
    client.connection.probe(told.append)
    client.raw(b"\0\0\0\0")
    assert told == []
    client.vanish()

    assert told == [False]


def test_a_broker_that_stops_closes_what_clients_have_and_then_the_connection(client):
    client.say("PRODUCER", topic="t", producer_id=1, request_id=1)
    client.say(
        "SUBSCRIBE", topic="t", subscription="s", subType="Shared", consumer_id=2, request_id=2
    )
    client.heard()
    client.connection.stopping("the broker stops")

    told = {BaseCommand.Type.Name(each.type): each for each in client.commands()}
    assert told.keys() == {"CLOSE_PRODUCER", "CLOSE_CONSUMER"}
    assert told["CLOSE_PRODUCER"].close_producer.request_id == NO_ID
    assert told["CLOSE_CONSUMER"].close_consumer.request_id == NO_ID
    assert client.is_closed


# ---- more than a turn may have ------------------------------------------------------------------


def lookups(count, first=0):
    return b"".join(
        [encode(command("LOOKUP", topic="t", request_id=number)) for number in range(first, count)]
    )


def requests(client):
    return [each.lookup_topic_response.request_id for each in client.heard_so_far()]


def test_more_commands_than_a_turn_may_have_wait_for_the_next_ones(bench, client):
    """Others are served between them; their order stays."""
    client.raw(lookups(1_000))
    assert client.connection.is_working
    assert not client.connection.is_reading
    answered = [len(client.connection.outgoing()) for _ in range(3)]
    assert answered[0] == 2 * COMMANDS_AT_ONCE, "those of the read, and of the first turn"
    assert answered[0] + answered[1] == 1_000
    assert client.connection.is_reading

    client.raw(lookups(5))
    assert requests(client) == [0, 1, 2, 3, 4]


def test_what_waits_is_answered_in_order_and_seen_by_operators(bench, client):
    client.raw(lookups(1_000))
    view = client.connection.engine_connection.undone.view()
    assert view.what == "commands"

    assert [each.lookup_topic_response.request_id for each in client.commands()] == list(
        range(1_000)
    )
    assert client.connection.engine_connection.undone is None


def test_bytes_that_came_meanwhile_are_served_behind_what_waits(client):
    client.raw(lookups(600))
    client.raw(lookups(700, 600))

    assert [each.lookup_topic_response.request_id for each in client.commands()] == list(range(700))


def test_garbage_behind_what_waits_closes_after_it(client):
    client.raw(lookups(1_000) + b"\0\0\0\0")
    assert not client.is_closed

    assert len(client.commands()) == 1_000
    assert client.is_closed


def test_a_peer_that_says_no_more_is_closed_when_all_it_said_is_done(client):
    client.raw(lookups(1_000))
    client.connection.eof()
    assert not client.is_closed
    assert len(client.commands()) == 1_000
    assert client.is_closed


def test_a_peer_that_is_gone_leaves_nothing_undone(client):
    client.raw(lookups(1_000))
    client.vanish()

    assert not client.connection.is_working
    assert client.connection.outgoing() == [] or client.connection.is_over


def test_a_connection_that_is_over_keeps_no_bytes(client):
    client.say("PING")
    client.raw(encode(command("SEND", producer_id=1, sequence_id=0))[:-2] + bytes(0))
    client.raw(b"")
    assert client.connection._parser.held_bytes
    client.vanish()

    assert not client.connection._parser.held_bytes
    assert client.connection.outgoing() == []


def test_a_command_that_closes_ends_what_waits_behind_it(client):
    client.raw(lookups(500) + encode(command("CONNECT", client_version="x")) + lookups(900))

    assert len(client.commands()) == 500
    assert client.is_closed
    assert not client.connection.is_working
