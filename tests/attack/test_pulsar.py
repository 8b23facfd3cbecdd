"""Hostile clients of Pulsar: bad bytes, half frames, strangers, floods, names without end.

Beside each of them an honest client of every protocol is served within its turns.
"""

import contextlib
import random
import socket
import struct
import threading

from kit.pulsar_peer import PulsarPeer, as_id, frame, framed, stored
from penstock.testing.running import eventually
from penstock.wire.pulsar import protocol_pb2 as pb

MIB = 1024 * 1024
CONNECTIONS = 40
SILENT = 400
"""More than one address may have connections, and few enough for ``select`` in this process."""
FRAME_MS_MAX = 1_000
HALF_SEND = frame("send", bytes(4 * MIB), producer_id=1, sequence_id=0)[: 4 * MIB - 4096]
TOPIC = "persistent://public/default/hostile"
CONNECT = frame("connect", client_version="hostile", protocol_version=20)


def until_closed(sock):
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass


def is_closed_while_dribbling(sock, data=b"\0", count_max=1000):
    """A byte now and then, until the broker hangs up."""
    sock.settimeout(0.05)
    for number in range(count_max):
        try:
            sock.sendall(data[number % len(data) :][:1])
            if not sock.recv(65536):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@contextlib.contextmanager
def client_of(victim, **fields):
    with PulsarPeer(victim.broker.address("pulsar"), seconds=60) as peer:
        peer.connect(**fields)
        yield peer


# ---- strangers ----------------------------------------------------------------------------------

STRANGERS = {
    "silent": b"",
    "half a frame": CONNECT[:10],
    "signs of life": frame("ping"),
}


def test_a_stranger_has_little_time_whatever_he_says(attack):
    with attack("--set", "listeners.handshake_ms_max=700") as victim:
        for first in STRANGERS.values():
            with victim.dial("pulsar") as peer:
                peer.sendall(first)
                until_closed(peer)
        with victim.dial("pulsar") as peer:
            assert is_closed_while_dribbling(peer, CONNECT[:-1] + b"\0" * 40)


def test_strangers_lock_nobody_out(attack):
    flags = ("--set", "listeners.connections_per_address_max=300")
    with attack(*flags) as victim, contextlib.ExitStack() as stack:
        for number in range(SILENT):
            peer = stack.enter_context(victim.dial("pulsar"))
            with contextlib.suppress(ConnectionError):
                peer.sendall(list(STRANGERS.values())[number % 3])
        victim.serves()


def test_half_frames_of_strangers_are_not_kept(attack):
    with attack() as victim, contextlib.ExitStack() as stack:
        before_bytes = victim.resident_bytes
        peers = [stack.enter_context(victim.dial("pulsar")) for _ in range(CONNECTIONS)]
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                peer.sendall(HALF_SEND)
        assert victim.resident_bytes < before_bytes + 64 * MIB
        for peer in peers:
            until_closed(peer)


def test_half_frames_of_clients_have_a_bound_and_a_time(attack):
    flags = (
        "--set", f"pulsar.frame_ms_max={FRAME_MS_MAX}", "--set", "flow.inflight_bytes_max=48MiB",
    )  # fmt: skip
    with attack(*flags) as victim, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(victim.dial("pulsar")) for _ in range(CONNECTIONS)]
        for peer in peers:
            peer.setblocking(False)
            with contextlib.suppress(ConnectionError, BlockingIOError):
                peer.send(CONNECT + HALF_SEND)
        # 160 MiB are offered; contents that are not complete share 36.
        eventually(lambda: victim.metric("penstock_connections_held") > 0, what="a full pool")
        victim.serves()
        assert victim.resident_bytes < victim.before_bytes + 64 * MIB


# ---- bad bytes ----------------------------------------------------------------------------------

GOOD = (
    CONNECT,
    frame("producer", topic=TOPIC, producer_id=1, request_id=1),
    frame(
        "subscribe", topic=TOPIC, subscription="s", subType="Shared", consumer_id=1, request_id=2,
        initialPosition="Earliest",
    ),
    frame("flow", consumer_id=1, messagePermits=1000),
    frame(
        "send",
        stored(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x" * 50),
        producer_id=1, sequence_id=0,
    ),
    frame("ack", consumer_id=1, ack_type="Individual", message_id=[as_id((1, 0))]),
    frame("seek", consumer_id=1, request_id=3, message_id=as_id((0, 0))),
)  # fmt: skip
BAD = {
    "length 0": struct.pack(">I", 0),
    "a giant": struct.pack(">II", 0xFFFFFFFF, 4),
    "a command larger than its frame": struct.pack(">II", 8, 2**31),
    "no protobuf": framed(b"\xff" * 40),
    "an unknown command": framed(b"\x08\x7f"),
    "groups in groups": framed(b"\xa3\x1f" * 5_000),
    "a type without its message": framed(b"\x08\x04"),
    "a broker's command": frame("success", request_id=1),
    "a second CONNECT": CONNECT,
    "a SEND to nobody": frame("send", b"", producer_id=99, sequence_id=0),
}


def test_bad_bytes_cost_their_connection_only(attack):
    with attack() as victim:
        for data in BAD.values():
            with victim.dial("pulsar") as peer:
                peer.sendall(CONNECT + data)
                until_closed(peer)
        victim.serves()


def test_conversations_with_changed_bytes_beside_honest_clients(attack):
    chance = random.Random(11)
    with attack() as victim:
        for _ in range(300):
            data = bytearray(b"".join(chance.choices(GOOD, k=6)))
            data[:0] = CONNECT
            for _ in range(chance.randint(1, 5)):
                data[chance.randrange(len(CONNECT), len(data))] = chance.randrange(256)
            with victim.dial("pulsar") as peer, contextlib.suppress(ConnectionError):
                peer.sendall(bytes(data))
        victim.serves()
        with client_of(victim) as peer:
            producer = peer.producer(TOPIC)
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
            changed = stored(metadata, b"x" * 50)[:-1] + b"y"
            peer.write(frame("send", changed, producer_id=producer.id, sequence_id=0))
            assert peer.receive().kind == "send_error"
            assert producer.publish(b"good", sequence=1)


# ---- floods -------------------------------------------------------------------------------------


def many(count, *frames):
    return b"".join(frames) * count


FLOODS = {
    "signs of life": many(20_000, frame("ping")),
    "look-ups": many(5_000, frame("lookup_topic", topic=TOPIC, request_id=1)),
    "permits": many(20_000, frame("flow", consumer_id=1, messagePermits=1)),
    "acks": many(20_000, frame("ack", consumer_id=1, ack_type="Individual",
                               message_id=[as_id((1, 0))])),
    "cumulative acks": many(10_000, frame("ack", consumer_id=1, ack_type="Cumulative",
                                          message_id=[as_id((1, 0))])),
    "acks of very many": many(5, frame(
        "ack", consumer_id=1, ack_type="Individual", request_id=1,
        message_id=[{"ledgerId": 1, "entryId": number % 7, "ack_set": [0]}
                    for number in range(60_000)],
    )),
    "redeliveries": many(10_000, frame("redeliver_unacknowledged_messages", consumer_id=1)),
    "comings and goings": many(
        1_000,
        frame("subscribe", topic=TOPIC, subscription="t", subType="Shared", consumer_id=9,
              request_id=1),
        frame("close_consumer", consumer_id=9, request_id=2),
        frame("producer", topic=TOPIC, producer_id=9, request_id=3),
        frame("close_producer", producer_id=9, request_id=4),
    ),
    "seeks": many(2_000, frame("seek", consumer_id=1, request_id=1, message_id=as_id((0, 0)))),
    "lists of topics": many(2_000, frame("get_topics_of_namespace", request_id=1,
                                          namespace="public/default")),
}  # fmt: skip


@contextlib.contextmanager
def flood(victim, data):
    """A client that sends this and throws away what it hears, until the end."""
    with client_of(victim) as peer:
        peer.producer(TOPIC, producer_id=1).publish_all([b"x"] * 10)
        peer.consumer(TOPIC, "s", "Shared", consumer_id=1).flow(10)

        def hostile():
            with contextlib.suppress(OSError):
                peer.socket.sendall(data)

        def drain():
            with contextlib.suppress(OSError):
                while peer.socket.recv(1 << 20):
                    pass

        threads = [threading.Thread(target=each, daemon=True) for each in (hostile, drain)]
        for each in threads:
            each.start()
        yield
        with contextlib.suppress(OSError):
            peer.socket.shutdown(2)
        for each in threads:
            each.join()


def test_floods_leave_others_their_turns(attack):
    with attack() as victim:
        for data in FLOODS.values():
            with flood(victim, data):
                victim.serves()


def test_a_client_that_asks_and_does_not_listen_is_not_read(attack):
    """Answers that nobody takes are bounded."""
    with attack() as victim, client_of(victim) as peer:
        before_bytes = victim.resident_bytes
        # What the system keeps for the client is no part of it, and takes long to fill.
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        peer.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(25):
                peer.socket.sendall(FLOODS["look-ups"])
        victim.serves()
        assert victim.resident_bytes < before_bytes + 64 * MIB


def test_a_client_that_takes_no_messages_holds_only_itself(attack):
    with attack() as victim, client_of(victim) as deaf, client_of(victim) as peer:
        deaf.consumer(TOPIC, "deaf", "Shared").flow(2**31 - 1)
        before_bytes = victim.resident_bytes
        producer = peer.producer(TOPIC)
        for _ in range(20):
            producer.publish_all([b"x" * 100_000] * 20)
        # 40 MB are on their way to it; no more than its socket and F14 are kept.
        assert victim.resident_bytes < before_bytes + 64 * MIB
        victim.serves()


# ---- names without end --------------------------------------------------------------------------


def refusals(peer, requests):
    found = []
    for request in requests:
        answer = peer.answer(request)
        if answer.kind == "error":
            found.append(answer.command.message)
    return found


def test_topics_without_end_leave_room_for_the_first_of_another(attack):
    with attack("--set", "topics.queues_max=500") as victim, client_of(victim) as peer:
        found = refusals(
            peer,
            [
                peer.request("producer", topic=f"{TOPIC}-{number}", producer_id=number)
                for number in range(501)
            ],
        )
        assert any("made fewer than" in text for text in found)
        with client_of(victim) as honest:
            honest.producer("persistent://public/default/mine").publish()


def test_what_a_client_opens_without_end_is_bounded_and_given_back(attack):
    with attack("--set", "topics.subscriptions_per_topic_max=100") as victim:
        with client_of(victim) as peer:
            requests = [peer.subscribe(TOPIC, f"s{number}", "Shared")[0] for number in range(200)]
            found = refusals(peer, requests)
            assert len(found) == 100
            assert "topics.subscriptions_per_topic_max" in found[0]
        for _ in range(3):
            with client_of(victim) as peer:
                requests = [peer.subscribe(TOPIC, "s1", "Shared")[0] for _ in range(1_000)]
                requests += [
                    peer.request(
                        "watch_topic_list", watcher_id=number, namespace="public/default",
                        topics_pattern="persistent://public/default/h.*",
                    )
                    for number in range(200)
                ]  # fmt: skip
                refusals(peer, requests)
        victim.serves()


def test_a_client_that_hoards_everything_leaves_it_to_others(attack):
    with attack() as victim, client_of(victim) as peer:
        sent = peer.producer(TOPIC).publish_all([b"x"] * 500)
        with client_of(victim) as hoarder:
            consumer = hoarder.consumer(TOPIC, "s", "Shared", initialPosition="Earliest")
            consumer.flow(10_000)
            assert [each.id for each in consumer.messages(500)] == sent
        other = peer.consumer(TOPIC, "s", "Shared")
        other.flow(10_000)
        assert sorted(each.id for each in other.messages(500)) == sent
