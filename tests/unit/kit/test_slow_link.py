"""A link that takes its time: everything arrives, in order, and not before it may."""

import contextlib
import socket
import socketserver
import threading
import time

import pytest

from kit.slow_link import carried, slow_link

ONE_WAY_MS = 20


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65_536):
            self.request.sendall(data)


@pytest.fixture
def echo():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address
        server.shutdown()
        thread.join()


@pytest.fixture
def dial(echo):
    with slow_link("127.0.0.1", 0, echo, one_way_ms=ONE_WAY_MS) as port:
        yield lambda: socket.create_connection(("127.0.0.1", port), timeout=5)


def read(client, size):
    with client.makefile("rb") as file:
        return file.read(size)


def test_an_answer_takes_both_ways_and_is_whole(dial):
    with dial() as client:
        began = time.monotonic()
        client.sendall(b"hello")
        assert read(client, 5) == b"hello"
        assert time.monotonic() - began >= 2 * ONE_WAY_MS / 1000


def test_much_arrives_in_order(dial):
    sent = bytes(range(256)) * 4096
    with dial() as client:
        writer = threading.Thread(target=client.sendall, args=(sent,))
        writer.start()
        assert read(client, len(sent)) == sent
        writer.join()


def test_an_end_is_passed_on(dial):
    with dial() as client:
        client.sendall(b"bye")
        client.shutdown(socket.SHUT_WR)
        rest = b""
        with contextlib.suppress(ConnectionError):
            while data := client.recv(100):
                rest += data
        assert rest in (b"", b"bye")


def test_whoever_dials_a_server_that_is_gone_is_hung_up_on():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        link = slow_link("127.0.0.1", 0, nobody.getsockname(), one_way_ms=1)
        with link as port, socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            assert client.recv(1) == b""


def test_its_port_is_free_again_afterwards(echo):
    with slow_link("127.0.0.1", 0, echo, one_way_ms=1) as port:
        client = socket.create_connection(("127.0.0.1", port), timeout=5)
    client.close()
    with slow_link("127.0.0.1", port, echo, one_way_ms=1) as again:
        assert again == port


def test_a_port_that_is_taken_is_an_error(echo):
    link = slow_link("127.0.0.1", echo[1], echo, one_way_ms=1)
    with pytest.raises(OSError, match="in use"), link:
        pass


def test_a_cut_ends_every_connection_and_no_later_one(echo):
    with carried(echo) as link:
        place = ("127.0.0.1", link.port)
        with socket.create_connection(place, 5) as first, socket.create_connection(place, 5) as two:
            for each in (first, two):
                each.sendall(b"here")
                assert read(each, 4) == b"here"
            link.cut()
            assert first.recv(1) == two.recv(1) == b""
        with socket.create_connection(place, 5) as later:
            later.sendall(b"again")
            assert read(later, 5) == b"again"
