"""Unit tests for single messages over REST: peeked, by id, from an end, and ids themselves."""

import json
import zlib

import pytest

from kit.pulsar.bench import message_tail
from penstock.adapters.pulsar import subscriptions as room
from penstock.model.names import topic_name
from penstock.server.pulsar_rest import messages
from penstock.wire.pulsar.protocol_pb2 import EncryptionKeys, KeyValue

TOPIC = "persistent/public/default/orders"
PEEK = f"{TOPIC}/subscription/s/position"
EARLIEST = {"ledgerId": -1, "entryId": -1}


@pytest.fixture
def subscribed(rest, shop):
    rest.done("PUT", f"{TOPIC}/subscription/s", EARLIEST)
    return shop


def peek(rest, number=1):
    found = rest("GET", f"{PEEK}/{number}")
    assert found.status == 200, found
    return found


# ---- peeking


def test_a_message_is_peeked_by_its_place(rest, subscribed):
    for body in (b"a", b"b", b"c"):
        subscribed.send(body)
    assert [peek(rest, number).body for number in (1, 2, 3)] == [b"a", b"b", b"c"]
    assert rest.refused("GET", f"{PEEK}/4") == (404, "Message not found")
    # It is still there.
    assert peek(rest).body == b"a"


def test_what_is_acked_is_not_peeked(rest, subscribed):
    entries = [subscribed.send(body) for body in (b"a", b"b", b"c")]
    consumer = subscribed.subscribe("s", "Shared", permits=10)
    subscribed.delivered()
    subscribed.ack(consumer, entries[0], entries[1])
    assert peek(rest).body == b"c"


def test_a_far_place_is_looked_for_in_pieces(monkeypatch, rest, subscribed):
    monkeypatch.setattr(room, "ENTRIES_AT_A_TIME", 2)
    for number in range(7):
        subscribed.send(b"%d" % number)
    assert peek(rest, 6).body == b"5"
    assert rest("GET", f"{PEEK}/8").status == 404


def test_headers_say_what_metadata_do(rest, subscribed):
    tail = message_tail(
        7,
        b"body",
        producer_name="till",
        publish_time=1_700_000_000_123,
        event_time=1_600_000_000_000,
        partition_key="k",
        ordering_key=b"ok",
        schema_version=b"\0" * 8,
        properties=[KeyValue(key="colour", value="grün\n")],
    )
    entry = subscribed.send(tail=tail)
    found = peek(rest)
    assert found.body == b"body"
    headers = found.headers
    ledger = rest.get(f"{TOPIC}/lastMessageId")["ledgerId"]
    assert headers["x-pulsar-message-id"] == f"{ledger}:{entry}"
    assert json.loads(headers["x-pulsar-property"]) == {"colour": "grün\n"}
    assert headers["x-pulsar-publish-time"] == "2023-11-14T22:13:20.123Z"
    assert headers["x-pulsar-event-time"] == "2020-09-13T12:26:40.000Z"
    assert headers["x-pulsar-producer-name"] == "till"
    assert headers["x-pulsar-sequence-id"] == "7"
    assert headers["x-pulsar-partition-key"] == "k"
    assert headers["x-pulsar-base64-ordering-key"] == "b2s="
    assert headers["x-pulsar-base64-schema-version"] == "AAAAAAAAAAA="
    assert headers["x-pulsar-is-encrypted"] == "false"
    assert "x-pulsar-num-batch-message" not in headers


def test_a_batch_comes_whole_with_the_number_of_its_messages(rest, subscribed):
    subscribed.send(b"one", b"two")
    found = peek(rest)
    assert found.headers["x-pulsar-num-batch-message"] == "2"
    assert found.body.count(b"one") == found.body.count(b"two") == 1
    assert rest("GET", f"{PEEK}/2").status == 404


def test_a_compressed_body_comes_as_its_user_gave_it(rest, subscribed):
    packed = zlib.compress(b"zip" * 100)
    tail = message_tail(0, packed, compression="ZLIB", uncompressed_size=300)
    subscribed.send(tail=tail)
    found = peek(rest)
    assert found.body == b"zip" * 100
    assert found.headers["x-pulsar-compression"] == "ZLIB"
    assert found.headers["x-pulsar-uncompressed-size"] == "300"


def test_an_encrypted_body_and_a_chunk_come_as_they_are(rest, subscribed):
    key = EncryptionKeys(key="k", value=b"v")
    subscribed.send(
        tail=message_tail(0, b"secret", encryption_keys=[key], compression="ZLIB",
                          uncompressed_size=9)
    )  # fmt: skip
    subscribed.send(
        tail=message_tail(1, b"part", uuid="u", chunk_id=0, num_chunks_from_msg=2,
                          total_chunk_msg_size=8, compression="ZLIB")
    )  # fmt: skip
    secret, part = peek(rest, 1), peek(rest, 2)
    assert (secret.body, secret.headers["x-pulsar-is-encrypted"]) == (b"secret", "true")
    assert secret.headers["x-pulsar-base64-encryption-keys"] == "CgFrEgF2"
    assert (part.body, part.headers["x-pulsar-chunk-id"]) == (b"part", "0")
    assert part.headers["x-pulsar-property-total-chunks"] == "2"


def test_a_message_without_a_value_has_no_body(rest, subscribed):
    subscribed.send(tail=message_tail(0, b"", null_value=True, partition_key="gone"))
    found = peek(rest)
    assert (found.body, found.headers["x-pulsar-null-value"]) == (b"", "true")


def test_a_message_of_another_protocol_is_peeked_like_any_other(bench, rest, subscribed):
    topic = bench.engine.topic(topic_name("orders"))
    bench.publish(bench.channel(), topic, b"from elsewhere")
    bench.settle()
    found = peek(rest)
    assert found.body == b"from elsewhere"
    assert found.headers["x-pulsar-producer-name"] == "neutral"


def test_what_a_client_says_cannot_add_headers(rest, subscribed):
    tail = message_tail(
        0, b"x", partition_key="a\r\nset-cookie: b", producer_name=" ü ☃ ", event_time=(1 << 64) - 1
    )
    subscribed.send(tail=tail)
    headers = peek(rest).headers
    assert headers["x-pulsar-partition-key"] == "a??set-cookie: b"
    assert headers["x-pulsar-producer-name"] == "ü ?"
    assert headers["x-pulsar-event-time"].startswith("9999-12-31")
    assert "set-cookie" not in headers


def test_properties_that_no_head_can_hold_are_left_out(monkeypatch, rest, subscribed):
    monkeypatch.setattr(messages, "PROPERTIES_BYTES_MAX", 100)
    tail = message_tail(0, b"x", properties=[KeyValue(key="a", value="b" * 100)])
    subscribed.send(tail=tail)
    shown = json.loads(peek(rest).headers["x-pulsar-property"])
    assert shown == {"penstock.unopened": "its properties are more than 100 bytes"}


@pytest.mark.parametrize("tail", [
    message_tail(0, b"not zlib", compression="ZLIB", uncompressed_size=300),
    b"\0\0\0\7garbage",
])  # fmt: skip
def test_what_cannot_be_read_is_an_error_and_the_next_one_is_peeked(rest, subscribed, tail):
    subscribed.send(tail=tail)
    subscribed.send(b"behind")
    found = rest("GET", f"{PEEK}/1")
    assert found.status == 500
    assert found.reason.startswith("the message cannot be read")
    assert peek(rest, 2).body == b"behind"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("persistent/public/default/nowhere/subscription/s/position/1", 404),
        (f"{TOPIC}/subscription/t/position/1", 404),
        (f"{PEEK}/0", 412),
        (f"{PEEK}/-1", 412),
        (f"{PEEK}/x", 400),
        ("persistent/public/default/parts/subscription/s/position/1", 405),
        ("non-persistent/public/default/orders/subscription/s/position/1", 405),
    ],
)
def test_what_cannot_be_peeked(rest, subscribed, path, status):
    rest.done("PUT", "persistent/public/default/parts/partitions", 2)
    assert rest("GET", path).status == status


# ---- by id and from an end


def test_a_message_is_found_by_its_id(rest, shop):
    entries = [shop.send(b"a", b"b"), shop.send(b"c")]
    ledger = rest.get(f"{TOPIC}/lastMessageId")["ledgerId"]
    assert rest("GET", f"{TOPIC}/ledger/{ledger}/entry/{entries[1]}").body == b"c"
    for place in (f"{ledger}/entry/1", f"{ledger}/entry/99", f"{ledger}/entry/-1", "77/entry/0"):
        assert rest.refused("GET", f"{TOPIC}/ledger/{place}") == (404, "Message id not found")
    assert rest("GET", f"{TOPIC}/ledger/x/entry/0").status == 400


def test_a_topic_is_examined_from_both_ends(rest, shop):
    text = "Could not examine messages due to the total message is zero"
    assert rest.refused("GET", f"{TOPIC}/examinemessage") == (404, text)
    for body in (b"a", b"b", b"c"):
        shop.send(body)
    place = f"{TOPIC}/examinemessage?initialPosition"
    assert rest("GET", f"{TOPIC}/examinemessage").body == b"c"
    assert rest("GET", f"{place}=latest&messagePosition=2").body == b"b"
    assert rest("GET", f"{place}=earliest&messagePosition=2").body == b"b"
    assert rest("GET", f"{place}=earliest&messagePosition=9").body == b"c"
    assert rest("GET", f"{place}=middle").status == 412
    assert rest("GET", f"{place}=latest&messagePosition=x").status == 400


def test_a_topic_is_examined_in_pieces(monkeypatch, rest, shop):
    monkeypatch.setattr(messages, "ENTRIES_AT_A_TIME", 2)
    shop.send(b"0a", b"0b", b"0c")
    for number in range(1, 7):
        shop.send(b"%d" % number)
    place = f"{TOPIC}/examinemessage?initialPosition"
    for number in range(1, 7):
        assert rest("GET", f"{place}=earliest&messagePosition={number + 1}").body == b"%d" % number
        assert rest("GET", f"{place}=latest&messagePosition={7 - number}").body == b"%d" % number
    for far in ("latest&messagePosition=7", "latest&messagePosition=999", "earliest"):
        assert b"0a" in rest("GET", f"{place}={far}").body


# ---- ids


def test_the_last_id_names_the_last_message_of_a_batch(rest, shop):
    empty = rest.get(f"{TOPIC}/lastMessageId")
    assert (empty["entryId"], empty["batchIndex"], empty["partitionIndex"]) == (-1, -1, -1)
    entry = shop.send(b"a", b"b", b"c")
    found = rest.get(f"{TOPIC}/lastMessageId")
    assert (found["entryId"], found["batchIndex"]) == (entry, 2)
    entry = shop.send(b"d")
    found = rest.get(f"{TOPIC}/lastMessageId")
    assert (found["entryId"], found["batchIndex"]) == (entry, -1)


def test_an_id_is_found_by_its_time(rest, shop):
    entries = [shop.send(tail=message_tail(n, b"x", publish_time=1000 * (n + 1)))
               for n in range(3)]  # fmt: skip
    found = [rest.get(f"{TOPIC}/messageid/{ms}")["entryId"] for ms in (0, 1500, 3000, 9000)]
    assert found == [entries[0], entries[1], entries[2], entries[2] + 1]
    assert rest("GET", f"{TOPIC}/messageid/x").status == 400


@pytest.mark.parametrize("what", ["lastMessageId", "messageid/0"])
def test_ids_of_what_has_none(rest, what):
    rest.done("PUT", "non-persistent/public/default/orders")
    assert rest("GET", f"persistent/public/default/nowhere/{what}").status == 404
    found = rest("GET", f"non-persistent/public/default/orders/{what}")
    assert found.status == 405
    assert "non-persistent topic is not allowed" in found.reason


def test_times_are_those_of_publishing_whatever_the_event_was(rest, shop):
    for number, event_ms in enumerate((9_000, 5_000, 1_000)):
        tail = message_tail(number, b"x", publish_time=1_000 * (number + 1), event_time=event_ms)
        shop.send(tail=tail)
    assert [rest.get(f"{TOPIC}/messageid/{ms}")["entryId"] for ms in (0, 1_500, 2_500)] == [
        0, 1, 2,
    ]  # fmt: skip
