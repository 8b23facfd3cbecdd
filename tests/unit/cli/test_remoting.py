"""The blocking client against a server that is told what to say."""

import socket
import threading

import pytest

from penstock.cli.remoting import RemotingClient
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command, Serialization, response_to
from penstock.wire.rocketmq.frames import RemotingFrames, encode
from penstock.wire.rocketmq.headers import parse_send_header
from penstock.wire.rocketmq.stored import StoredMessage, encode_stored


class Scripted:
    """One peer that hands every command to a function and sends what it returns."""

    def __init__(self, react):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._react = react
        self.heard = []
        self.address = self._listening.getsockname()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        peer, _ = self._listening.accept()
        frames = RemotingFrames()
        with peer:
            while data := peer.recv(65536):
                frames.feed(data)
                for command in frames.commands():
                    self.heard.append(command)
                    for answer in self._react(command):
                        peer.sendall(encode(answer))

    def close(self):
        self._thread.join(5)
        self._listening.close()


@pytest.fixture
def scripted():
    made = []

    def make(react, **options):
        server = Scripted(react)
        client = RemotingClient(*server.address, **options)
        made.append((client, server))
        return client, server

    yield make
    for client, server in made:
        client.close()
        server.close()


def test_answers_are_matched_by_opaque_whatever_their_order(scripted):
    waiting = []

    def react(command):
        waiting.append(command)
        if len(waiting) < 2:
            return []
        return [response_to(each, 0, remark=each.ext["topic"]) for each in reversed(waiting)]

    client, _ = scripted(react)
    first = client.start(RequestCode.GET_MAX_OFFSET, {"topic": "a"})
    second = client.start(RequestCode.GET_MAX_OFFSET, {"topic": "b"})
    assert client.wait(first).remark == "a"
    assert client.wait(second).remark == "b"


def test_requests_of_the_server_are_kept_apart_from_answers(scripted):
    def react(command):
        push = Command(int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED), {"consumerGroup": "g"})
        return [push, response_to(command, 0)]

    client, _ = scripted(react)
    assert client.heartbeat().is_ok
    push = client.wait_push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    assert push.ext == {"consumerGroup": "g"}
    assert not client.pushes


def test_a_send_says_topic_queue_tags_and_body_in_either_form(scripted):
    client, server = scripted(lambda command: [response_to(command, 0, ext={"queueOffset": "7"})])
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        answer = client.send("orders", b"hello", queue_id=3, tags="new", code=code)
        assert answer.number("queueOffset") == 7
        header = parse_send_header(server.heard[-1])
        assert (header.topic, header.queue_id, header.properties) == (
            "orders", 3, "TAGS\x01new\x02",
        )  # fmt: skip
        assert server.heard[-1].body == b"hello"


def test_a_pull_gives_the_messages_of_its_body(scripted):
    stored = encode_stored(StoredMessage(topic="orders", body=b"one", queue_offset=5))
    client, server = scripted(
        lambda command: [response_to(command, 0, body=stored * 2)],
        serialization=Serialization.BINARY,
    )
    assert [each.body for each in client.pull("orders", 0, 5, hold_ms=100).messages] == [b"one"] * 2
    assert server.heard[0].serialization == Serialization.BINARY
    assert server.heard[0].ext["sysFlag"] == "6"


def test_silence_and_a_closed_connection_are_two_different_errors(scripted):
    client, server = scripted(lambda command: [])
    opaque = client.oneway(RequestCode.HEART_BEAT)
    assert not client.has_answer(opaque, 0.01)
    with pytest.raises(TimeoutError, match="answer to request"):
        client.wait(opaque, 0.01)
    client._socket.shutdown(socket.SHUT_WR)
    client.wait_closed()
    with pytest.raises(ConnectionError, match="hung up"):
        client.wait(opaque)
    assert server.heard[0].is_oneway
