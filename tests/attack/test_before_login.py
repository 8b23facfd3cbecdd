"""Peers that have not said one good thing: what they can make the broker keep, and for how long."""

import contextlib

import pytest

MIB = 1024 * 1024
CONNECTIONS = 40
FRAME_MS_MAX = 1_000
FLAGS = ("--set", f"rocketmq.frame_ms_max={FRAME_MS_MAX}")
HALF_MESSAGE = (16 * MIB - 100).to_bytes(4, "big") + bytes(16 * MIB - 4096)


def until_closed(peer):
    with contextlib.suppress(ConnectionError):
        while peer.recv(65536):
            pass


@pytest.mark.parametrize("listener", ["rocketmq_broker", "rocketmq"])
def test_frames_that_never_end_are_not_kept(attack, listener):
    with attack(*FLAGS) as victim, contextlib.ExitStack() as stack:
        before_bytes = victim.resident_bytes
        peers = [stack.enter_context(victim.dial(listener)) for _ in range(CONNECTIONS)]
        for peer in peers:
            # Some are cut off in the midst of it.
            with contextlib.suppress(ConnectionError):
                peer.sendall(HALF_MESSAGE)
        # 640 MiB were sent; what strangers may have is 32, and pages come back late.
        assert victim.resident_bytes < before_bytes + 128 * MIB
        victim.serves()
        for peer in peers:
            until_closed(peer)


def is_closed_while_dribbling(peer, count_max=1000):
    """A byte now and then, until the broker hangs up."""
    peer.settimeout(0.05)
    for _ in range(count_max):
        try:
            peer.sendall(b"\0")
            if not peer.recv(1):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_bytes_that_dribble_in_keep_no_connection_alive(attack):
    with attack(*FLAGS) as victim, victim.dial("rocketmq_broker") as peer:
        peer.sendall(HALF_MESSAGE[:1000])
        assert is_closed_while_dribbling(peer)
        assert "rocketmq.frame_ms_max" in victim.log


def test_a_peer_that_says_nothing_has_little_time(attack):
    flags = ("--set", "listeners.handshake_ms_max=700")
    with attack(*flags) as victim:
        for listener in ("rocketmq", "rocketmq_broker", "amqp"):
            with victim.dial(listener) as peer:
                until_closed(peer)
