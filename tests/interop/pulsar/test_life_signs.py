"""Who is silent: PINGs and the end of a connection, by the clock (observations 1).

These take up to 95 s and run against the real server, or with ``--long``. In CI the same waits run
on a manual clock: ``tests/unit/adapters/pulsar/test_connection.py`` and ``test_pump.py``.
"""

import selectors
import time

import pytest

from kit.pulsar_peer import frame

PING_SECONDS = 30
SLACK_SECONDS = 3
END_SECONDS = 95


@pytest.fixture(autouse=True)
def patient(pulsar, request):
    if not (pulsar.is_real or request.config.getoption("--long")):
        pytest.skip("takes 95 s: --long; tests/unit/adapters/pulsar has it on a manual clock")


@pytest.mark.timeout(2 * END_SECONDS)
def test_every_connection_is_pinged_every_30_s_and_the_silent_ones_go(pulsar, topic):
    """All of it at once: what each of some clients hears, and when."""
    silent, talking, answering = pulsar.peer(), pulsar.peer(), pulsar.peer()
    consumer = talking.consumer(topic, "s")
    stranger, half = pulsar.raw(), pulsar.raw()
    half.write(frame("connect", client_version="x")[:10])
    peers = {
        "silent": silent, "talking": talking, "answering": answering,
        "stranger": stranger, "half": half,
    }  # fmt: skip
    heard = listen(peers, consumer)

    # Nothing at all since the last PING ends it; any frame is a sign of life, a PONG is not needed.
    assert heard["silent"] == [("ping", 30), ("end", 60)]
    assert heard["talking"] == [("ping", 30), ("ping", 60), ("ping", 90)]
    assert heard["answering"] == [("ping", 30), ("ping", 60), ("ping", 90)]
    # Penstock gives strangers 10 s (listeners.handshake_ms_max).
    seconds = 30 if pulsar.is_real else 10
    for name in ("stranger", "half"):
        assert [each for each in heard[name] if each[0] == "end"] == [("end", seconds)]


def listen(peers, consumer):
    """What comes to each until the time is over, with the nearest ten seconds."""
    began = time.monotonic()
    heard = {name: [] for name in peers}
    watch = selectors.DefaultSelector()
    for name, peer in peers.items():
        watch.register(peer.socket, selectors.EVENT_READ, name)
    next_flow = 10
    while (now := time.monotonic() - began) < END_SECONDS:
        if now >= next_flow:
            consumer.flow(1)
            next_flow += 10
        for key, _ in watch.select(timeout=0.5):
            name = key.data
            at = round((time.monotonic() - began) / 10) * 10
            try:
                found = peers[name].receive(1)
            except TimeoutError:
                continue
            except OSError:
                heard[name].append(("end", at))
                watch.unregister(key.fileobj)
                continue
            heard[name].append((found.kind, at))
            if name == "answering":
                peers[name].command("pong")
    watch.close()
    return heard
