"""Listening: both loopbacks on one port, taken ports, refusals, and accept without handles."""

import asyncio
import contextlib
import errno
import resource
import socket

import pytest

from penstock.model.errors import StartRefused
from penstock.server import listener as listener_module
from penstock.server.listener import (
    MADE_ROOM,
    NO_FILES,
    RESERVED_FILES,
    TOO_MANY,
    TOO_MANY_OF_ADDRESS,
    ConnectionLimit,
    Listener,
    files_max,
    open_sockets,
    protocol_limit,
)
from penstock.settings.broker import ListenerSettings

LOCALHOST = ("127.0.0.1", "::1")


class Echo(asyncio.Protocol):
    def __init__(self, peer, place):
        self.place = place
        place.busy()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

    def connection_lost(self, exc):
        self.place.release()


@contextlib.contextmanager
def listening(limit, make=Echo):
    sockets = open_sockets("amqp", LOCALHOST, 0)
    loop = asyncio.get_running_loop()
    listener = Listener("amqp", sockets, limit, make, loop=loop)
    listener.start()
    try:
        yield listener, sockets[0].getsockname()[1]
    finally:
        listener.stop()


async def ask(port, host="127.0.0.1"):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"ping")
    answer = await reader.read(100)
    return answer, writer


async def hang_up(*writers):
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_localhost_is_both_loopbacks_on_the_same_free_port():
    sockets = open_sockets("amqp", LOCALHOST, 0)
    ports = {each.getsockname()[1] for each in sockets}
    for each in sockets:
        each.close()
    assert len(ports) == 1
    assert ports != {0}


def test_a_taken_port_is_refused_in_a_sentence_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(StartRefused, match=rf"port {port} for amqp .* taken .*--amqp"):
            open_sockets("amqp", LOCALHOST, port)


def test_a_port_that_somebody_took_between_bind_and_listen_is_refused_in_the_same_words():
    async def scene():
        limit = ConnectionLimit(1, per_address_max=1)
        with listening(limit) as (_, port):
            pass
        sockets = open_sockets("amqp", ("127.0.0.1",), port)
        others = open_sockets("amqp", ("127.0.0.1",), port)
        others[0].listen()
        loop = asyncio.get_running_loop()
        late = Listener("amqp", sockets, limit, Echo, loop=loop)
        try:
            with pytest.raises(StartRefused, match=rf"port {port} for amqp .* taken"):
                late.start()
        finally:
            late.stop()
            others[0].close()

    asyncio.run(scene())


def test_before_it_listens_peers_are_refused_and_do_not_wait():
    (bound,) = open_sockets("amqp", ("127.0.0.1",), 0)
    with bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname())


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(StartRefused, match=r"198\.51\.100\.7"):
        open_sockets("amqp", ("198.51.100.7",), 0)


def test_peers_of_both_families_are_served():
    async def scene():
        with listening(ConnectionLimit(10, per_address_max=10)) as (_, port):
            answers = [await ask(port, host) for host in LOCALHOST]
            await hang_up(*(writer for _, writer in answers))
            return [answer for answer, _ in answers]

    assert asyncio.run(scene()) == [b"ping", b"ping"]


def test_a_peer_without_a_place_is_closed_and_the_next_one_served():
    async def scene():
        limit = ConnectionLimit(1, per_address_max=10)
        with listening(limit) as (_, port):
            _, first = await ask(port)
            answer, second = await ask(port)
            await hang_up(first, second)
            while limit.taken:
                await asyncio.sleep(0)
            third_answer, third = await ask(port)
            await hang_up(third)
            return answer, limit.refused[TOO_MANY], third_answer

    assert asyncio.run(scene()) == (b"", 1, b"ping")


def test_a_protocol_that_cannot_be_made_gives_its_place_back(caplog):
    def broken(peer, place):
        raise ValueError("no adapter today")

    async def scene():
        limit = ConnectionLimit(1, per_address_max=1)
        with listening(limit, broken) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            await hang_up(writer)
        return limit.taken

    assert asyncio.run(scene()) == 0
    assert "could not be served" in caplog.text


def test_accepting_goes_on_after_the_process_ran_out_of_file_handles(monkeypatch):
    monkeypatch.setattr(listener_module, "REST_SECONDS", 0.001)

    class Exhausted:
        """A listening socket whose first accepts fail; the rest is the real one."""

        def __init__(self, real, failures):
            self.real = real
            self.failures = failures

        def accept(self):
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.real.accept()

        def __getattr__(self, name):
            return getattr(self.real, name)

    async def scene():
        limit = ConnectionLimit(10, per_address_max=10)
        with listening(limit) as (listener, port):
            loop = asyncio.get_running_loop()
            for real in list(listener._sockets):
                loop.remove_reader(real)
            # The first accept fails, so does the one with the spare handle: nothing is lost.
            listener._sockets = [Exhausted(each, 2) for each in listener._sockets]
            listener.start()
            answer, writer = await asyncio.wait_for(ask(port), 10)
            await hang_up(writer)
            return answer, limit.refused[NO_FILES]

    assert asyncio.run(scene()) == (b"ping", 1)


def test_the_endpoint_is_what_a_client_dials():
    async def scene():
        with listening(ConnectionLimit(1, per_address_max=1)) as (listener, port):
            return listener.endpoint, port

    endpoint, port = asyncio.run(scene())
    assert endpoint == f"127.0.0.1:{port}"


def test_a_small_receive_buffer_reaches_the_connections():
    sockets = open_sockets("amqp", ("127.0.0.1",), 0, receive_bytes=65536)
    sockets[0].listen()
    with sockets[0] as server, socket.create_connection(server.getsockname()) as client:
        server.setblocking(True)
        accepted, _ = server.accept()
        with accepted, client:
            size = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    assert size <= 2 * 65536


# ---- places -------------------------------------------------------------------------------------
# Places: how many peers, and why one was turned away.


def busy(limit, address):
    place = limit.acquire(address)
    if place is not None:
        place.busy()
    return place


def test_a_full_house_turns_peers_away_and_counts_them():
    limit = ConnectionLimit(2, per_address_max=2)
    first, second, third = (busy(limit, address) for address in ("a", "b", "c"))
    assert (bool(first), bool(second), third) == (True, True, None)
    assert limit.refused[TOO_MANY] == 1
    first.release()
    assert busy(limit, "c")


def test_one_address_cannot_take_all_places():
    limit = ConnectionLimit(10, per_address_max=1)
    assert busy(limit, "a")
    assert busy(limit, "a") is None
    assert busy(limit, "b")
    assert limit.refused[TOO_MANY_OF_ADDRESS] == 1


def test_an_address_that_left_is_forgotten():
    limit = ConnectionLimit(10, per_address_max=1)
    for number in range(100):
        limit.acquire(str(number % 50)).release()
    assert (limit.taken, dict(limit._per_address), limit._idle_of) == (0, {}, {})


def test_the_oldest_idle_one_of_the_same_address_makes_room():
    limit = ConnectionLimit(10, per_address_max=10, idle_max=4, idle_per_address_max=2)
    ended = []
    places = {}
    for name in ("b1", "a1", "a2", "a3"):
        places[name] = limit.acquire(name[0])
        places[name].end = lambda name=name: ended.append(name)
    assert ended == ["a1"]
    assert limit.taken == 3
    places["a1"].release()  # when its connection is gone: counted once
    assert limit.taken == 3


def test_of_many_addresses_the_oldest_idle_one_makes_room():
    limit = ConnectionLimit(10, per_address_max=10, idle_max=2)
    ended = []
    for name in "abc":
        limit.acquire(name).end = lambda name=name: ended.append(name)
    assert ended == ["a"]
    assert limit.refused[MADE_ROOM] == 1


def test_who_was_served_is_the_youngest_of_the_idle():
    limit = ConnectionLimit(2, per_address_max=2)
    ended = []
    first, second = limit.acquire("a"), limit.acquire("a")
    first.end, second.end = (lambda: ended.append(1)), (lambda: ended.append(2))
    first.busy()
    first.idle()
    limit.acquire("a")
    assert ended == [2]


def test_when_all_are_busy_there_are_places_for_health_the_oldest_goes():
    limit = ConnectionLimit(1, per_address_max=1, health_max=2)
    ended = []
    assert not busy(limit, "a").is_for_health
    for number in range(3):
        place = limit.acquire("a")
        assert place.is_for_health
        place.end = lambda number=number: ended.append(number)
        place.busy()
    assert ended == [0]
    assert limit.taken == 1


def test_the_log_keeps_its_file_handles_whatever_the_settings_allow():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = ListenerSettings(connections_max=10_000_000)
    assert protocol_limit(settings).connections_max <= files_max() - RESERVED_FILES
    assert files_max() >= soft
