"""Sockets that only sit there: on every port somebody else must find a place."""

import contextlib

import pytest

from penstock.testing.running import eventually

FLAGS = ("--set", "listeners.connections_per_address_max=300")
SILENT = 400
"""More than one address may have connections, and few enough for ``select`` in this process."""
HTTP_IDLE = 100
"""More than there are places."""


@contextlib.contextmanager
def crowd(victim, listener, count, first=b""):
    """``count`` sockets that say ``first`` and nothing else; those cut off meanwhile may be."""
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(count):
            peer = stack.enter_context(victim.dial(listener))
            with contextlib.suppress(ConnectionError):
                peer.sendall(first)
            peers.append(peer)
        yield peers


@pytest.mark.parametrize("listener", ["amqp", "rocketmq", "rocketmq_broker"])
def test_silent_peers_lock_nobody_out(attack, listener):
    with attack(*FLAGS) as victim, crowd(victim, listener, SILENT):
        victim.serves()
        assert victim.metric("penstock_connections") <= 256
        assert 'reason="idle, made room"' in victim.page("/metrics")


def test_half_log_ins_lock_nobody_out(attack):
    with attack(*FLAGS) as victim, crowd(victim, "amqp", SILENT, b"AMQP\0\0\x09\x01"):
        victim.serves()


IDLE = {
    "silent": b"",
    "half a head": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-",
    "kept alive": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("first", IDLE.values(), ids=IDLE)
def test_idle_sockets_do_not_keep_http_from_others(attack, first):
    with attack() as victim, crowd(victim, "http", HTTP_IDLE, first):
        victim.serves()


def test_health_is_answered_while_every_place_waits_for_a_body(attack):
    head = (
        b"POST /api/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    with attack() as victim, contextlib.ExitStack() as stack:

        def has_no_place():
            """One more; it may have taken the place of one whose head was not read yet."""
            stack.enter_context(crowd(victim, "http", 1, head))
            return status(victim) == b"503"

        stack.enter_context(crowd(victim, "http", HTTP_IDLE, head))
        eventually(has_no_place)
        for path in ("/livez", "/readyz"):
            assert victim.page(path)
        stack.close()
        eventually(lambda: status(victim) == b"200")


def status(victim):
    """Of a page that is no health check."""
    with victim.dial("http") as peer:
        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return peer.recv(65536).split()[1]
