"""Unit tests for the handshake, the life signs and the end of a Pulsar connection."""

import pytest

from kit.pulsar.bench import command
from penstock.adapters.pulsar.connection import PING_MS, PROBE_MS
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
