"""What real clients said to RabbitMQ 3.10, said to Penstock: the same answers, whatever the cut.

The tapes are made by ``tests/interop/amqp/record_tapes.py``.
"""

import socket
from pathlib import Path

import pytest

from kit.amqp.peer import AmqpBench
from kit.amqp.tape import Piece, Tape, account, recording, replay
from penstock.wire.amqp.frames import method_frame
from penstock.wire.amqp.methods.basic import Ack, Nack

TAPES = sorted((Path(__file__).parent / "tapes").glob("*.tape"))


def test_there_are_tapes_of_every_client():
    assert [path.stem for path in TAPES] == ["aio_pika", "amqplib", "kombu", "pika"]


@pytest.mark.parametrize("cut_bytes", [0, 1, 7, 100])
@pytest.mark.parametrize("path", TAPES, ids=lambda path: path.stem)
def test_penstock_says_what_rabbitmq_said(path, cut_bytes):
    tape = Tape.load(path)
    heard = replay(tape, AmqpBench(), cut_bytes)
    for connection, data in tape.said().items():
        ours, theirs = account(heard[connection]), account(data)
        assert ours.keys() == theirs.keys()
        for channel, said in theirs.items():
            for part, entries in vars(said).items():
                assert vars(ours[channel])[part] == entries, (connection, channel, part)


def test_a_tape_is_read_as_it_was_written(tmp_path):
    pieces = [Piece(1, True, b"a" * 100), Piece(1, False, b"b"), Piece(2, True, b"\0\xff")]
    Tape("title", pieces).save(tmp_path / "t.tape")
    assert Tape.load(tmp_path / "t.tape") == Tape("title", pieces)


def test_an_account_does_not_depend_on_how_confirms_were_joined():
    def said(*methods):
        return account(b"".join(method_frame(1, each) for each in methods))

    single = said(Ack(1), Ack(3), Nack(2), Ack(4))
    assert single == said(Ack(1), Nack(2), Ack(4, is_multiple=True))
    assert single != said(Ack(4, is_multiple=True))


def test_a_link_keeps_what_both_sides_say():
    with (
        socket.create_server(("127.0.0.1", 0)) as broker,
        recording(broker.getsockname()) as (port, pieces),
    ):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"hello")
            link, _ = broker.accept()
            with link:
                link.sendall(link.recv(10).upper())
                assert client.recv(10) == b"HELLO"
        assert pieces == [Piece(1, True, b"hello"), Piece(1, False, b"HELLO")]
