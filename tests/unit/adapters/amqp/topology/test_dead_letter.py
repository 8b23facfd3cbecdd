"""Dead letters through exchanges: where they go, what they tell, when they vanish."""

import pytest

from kit.amqp.peer import PERSISTENT, durable_topic, put
from penstock.adapters.amqp.topology.dead_letter import (
    COUNT_MAX,
    DEATHS_MAX,
    XDeath,
    deaths_of,
    is_cycle,
    letter_head,
    with_death,
)
from penstock.engine.ports import Publication
from penstock.engine.topic import route_to
from penstock.model.names import TopicName
from penstock.model.record import neutral_record
from penstock.testing.storage import FaultKind
from penstock.wire.amqp.methods.basic import Get, GetEmpty, GetOk, Nack, Reject
from penstock.wire.amqp.methods.channel import ConfirmSelect
from penstock.wire.amqp.methods.exchange import Declare as DeclareExchange
from penstock.wire.amqp.methods.queue import Bind, Purge
from penstock.wire.amqp.methods.queue import Delete as DeleteQueue
from penstock.wire.amqp.origin import publish_record
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.serializer import names_of
from penstock.wire.amqp.table import Timestamp, decode_table, encode_table, split_table


@pytest.fixture
def peer(bench):
    """A client with queue ``dead`` bound to exchange ``dlx`` by every key."""
    peer = bench.client()
    peer.call(1, DeclareExchange(exchange="dlx", kind="topic"))
    durable_topic(peer, "dead")
    peer.call(1, Bind(queue="dead", exchange="dlx", routing_key="#"))
    return peer


def mortal(peer, name="q", exchange="dlx", **arguments):
    """A queue with a dead-letter exchange."""
    names = {key.replace("_", "-"): value for key, value in arguments.items()}
    return durable_topic(peer, name, **{"x-dead-letter-exchange": exchange, **names})


def topic(bench, name):
    return bench.engine.topic(TopicName("", name))


def letters(bench, name="dead"):
    return bench.records(topic(bench, name))


def headers(record):
    return decode_properties(record.properties).headers


def publish(peer, body=b"m", key="q", exchange="", **properties):
    peer.publish(1, exchange, key, body, encode_properties(Properties(**properties)))
    peer.turn()


def reject(peer, queue="q"):
    got = peer.call(1, Get(queue=queue))
    assert isinstance(got, GetOk)
    peer.send(1, Reject(got.delivery_tag, is_requeue=False))
    peer.turn()


def test_a_rejected_message_is_published_to_the_exchange_with_its_old_key(bench, peer):
    mortal(peer)
    publish(peer, b"bad", headers={"own": 1}, delivery_mode=2, message_id="m")
    reject(peer)
    (letter,) = letters(bench)
    assert names_of(letter) == ("dlx", "q")
    assert letter.body == b"bad"
    properties = decode_properties(letter.properties)
    assert (properties.message_id, properties.delivery_mode) == ("m", 2)
    assert properties.headers["own"] == 1
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("rejected", "q", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", ["q"])
    assert death["time"] == bench.clock.wall_ms() // 1000
    assert properties.headers["x-first-death-reason"] == "rejected"
    assert properties.headers["x-last-death-queue"] == "q"


def test_the_routing_key_of_the_queue_replaces_the_old_ones_and_cc(bench, peer):
    mortal(peer, x_dead_letter_routing_key="fixed")
    publish(peer, headers={"CC": ["elsewhere"]})
    reject(peer)
    (letter,) = letters(bench)
    assert names_of(letter) == ("dlx", "fixed")
    found = headers(letter)
    assert "CC" not in found
    assert found["x-death"][0]["routing-keys"] == ["q", "elsewhere"]


def test_without_one_a_letter_goes_to_all_old_keys_cc_included(bench, peer):
    other = durable_topic(peer, "other")
    peer.call(1, DeclareExchange(exchange="exact", kind="direct"))
    peer.call(1, Bind(queue="dead", exchange="exact", routing_key="q"))
    peer.call(1, Bind(queue="other", exchange="exact", routing_key="copy"))
    mortal(peer, exchange="exact")
    publish(peer, headers={"CC": ["copy"]})
    reject(peer)
    assert len(letters(bench)) == len(bench.records(other)) == 1
    assert headers(letters(bench)[0])["CC"] == ["copy"]
    assert letters(bench)[0].position == bench.records(other)[0].position, "stored once"


def secret_ways(peer):
    """A direct exchange that knows the old key and a secret one, and a queue that dies into it."""
    peer.call(1, DeclareExchange(exchange="exact", kind="direct"))
    peer.call(1, Bind(queue="dead", exchange="exact", routing_key="q"))
    mortal(peer, "secret", exchange="exact")
    peer.call(1, Bind(queue="secret", exchange="exact", routing_key="hidden"))
    mortal(peer, exchange="exact")


def test_a_letter_goes_to_the_keys_of_bcc_and_does_not_tell_them(bench, peer):
    secret_ways(peer)
    publish(peer, headers={"BCC": ["hidden"], "own": 1})
    reject(peer)
    for name in ("dead", "secret"):
        (letter,) = letters(bench, name)
        assert names_of(letter) == ("exact", "q")
        assert "BCC" not in headers(letter)
        assert headers(letter)["x-death"][0]["routing-keys"] == ["q"]
        assert letter.body == b"m"


def test_the_keys_of_bcc_outlive_a_second_death(bench, peer):
    secret_ways(peer)
    publish(peer, headers={"BCC": ["hidden"]}, delivery_mode=2)
    reject(peer)
    reject(peer, "secret")
    assert len(letters(bench, "dead")) == 2
    (again,) = letters(bench, "secret")[1:]
    assert [death["queue"] for death in headers(again)["x-death"]] == ["secret", "q"]


def test_a_routing_key_of_the_queue_replaces_those_of_bcc_for_ever(bench, peer):
    secret_ways(peer)
    mortal(peer, "strict", exchange="exact", x_dead_letter_routing_key="q")
    mortal(peer, "dead2", exchange="exact")
    peer.call(1, Bind(queue="dead2", exchange="exact", routing_key="q"))
    publish(peer, key="strict", headers={"BCC": ["hidden"]})
    reject(peer, "strict")
    reject(peer, "dead2")
    assert len(letters(bench, "dead")) == 2
    assert letters(bench, "secret") == []


def test_an_expired_message_keeps_its_expiration_as_the_original_one_and_lives_on(bench, peer):
    mortal(peer)
    publish(peer, expiration="1000", delivery_mode=2)
    bench.advance(1001)
    peer.turn()
    (letter,) = letters(bench)
    properties = decode_properties(letter.properties)
    assert properties.expiration is None
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "1000")
    assert letter.expire_ms == 0
    bench.advance(10_000)
    assert isinstance(peer.call(1, Get(queue="dead")), GetOk)


def test_a_queues_time_to_live_is_no_original_expiration(bench, peer):
    mortal(peer, x_message_ttl=500)
    publish(peer)
    bench.advance(501)
    peer.turn()
    (death,) = headers(letters(bench)[0])["x-death"]
    assert death["reason"] == "expired"
    assert "original-expiration" not in death


def test_what_a_length_limit_pushes_out_died_of_maxlen(bench, peer):
    mortal(peer, x_max_length=1)
    for body in (b"a", b"b", b"c"):
        publish(peer, body)
    assert [letter.body for letter in letters(bench)] == [b"a", b"b"]
    assert {headers(letter)["x-death"][0]["reason"] for letter in letters(bench)} == {"maxlen"}


def test_reject_publish_dlx_buries_what_it_refuses(bench, peer):
    mortal(peer, x_max_length=1, x_overflow="reject-publish-dlx")
    peer.call(1, ConfirmSelect())
    publish(peer, b"a")
    publish(peer, b"b")
    assert [letter.body for letter in letters(bench)] == [b"b"]
    assert headers(letters(bench)[0])["x-death"][0]["reason"] == "maxlen"
    assert any(isinstance(each, Nack) for each in peer.methods(1))


def test_a_quorum_queues_delivery_limit_is_a_reason(bench, peer):
    mortal(peer, x_queue_type="quorum", x_delivery_limit=1)
    publish(peer)
    for _ in range(2):
        got = peer.call(1, Get(queue="q"))
        peer.send(1, Reject(got.delivery_tag, is_requeue=True))
        peer.turn()
    assert headers(letters(bench)[0])["x-death"][0]["reason"] == "delivery_limit"


def test_letter_and_settlement_are_one_frame(bench, peer):
    mortal(peer)
    publish(peer, delivery_mode=2)
    got = peer.call(1, Get(queue="q"))
    frames = bench.store.counters.frames
    peer.send(1, Reject(got.delivery_tag, is_requeue=False))
    bench.turns()
    assert bench.store.counters.frames == frames + 1


def test_after_a_refused_write_and_a_crash_the_letter_is_there_once(bench, peer):
    mortal(peer)
    publish(peer, delivery_mode=2)
    got = peer.call(1, Get(queue="q"))
    bench.storage.plan.fail_next("write", FaultKind.ENOSPC)
    peer.send(1, Reject(got.delivery_tag, is_requeue=False))
    bench.turns()
    assert letters(bench) == []
    bench.advance(200)
    bench.settle()
    bench.kill()
    assert len(letters(bench)) == 1
    again = bench.client()
    assert isinstance(again.call(1, Get(queue="q")), GetEmpty)


def test_graves_are_there_again_after_a_restart(bench, peer):
    peer.call(1, DeclareExchange(exchange="kept", kind="fanout", is_durable=True))
    peer.call(1, Bind(queue="dead", exchange="kept"))
    mortal(peer, exchange="kept")
    publish(peer, delivery_mode=2)
    bench.kill()
    reject(bench.client())
    assert len(letters(bench)) == 1


def test_a_missing_exchange_drops_the_dead_silently(bench, peer):
    mortal(peer, exchange="nowhere")
    publish(peer)
    reject(peer)
    assert letters(bench) == []
    assert isinstance(peer.call(1, Get(queue="q")), GetEmpty)


def test_routes_are_those_of_the_moment_of_death(bench, peer):
    mortal(peer, exchange="later")
    publish(peer)
    peer.call(1, DeclareExchange(exchange="later", kind="fanout", is_internal=True))
    peer.call(1, Bind(queue="dead", exchange="later"))
    reject(peer)
    assert len(letters(bench)) == 1, "an internal exchange, too"


def test_a_letter_nobody_is_bound_for_vanishes(bench, peer):
    mortal(peer, exchange="amq.direct")
    publish(peer)
    reject(peer)
    assert bench.engine.statistics().deaths_dropped == 1


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_that_rejects_has_no_place_for_letters_either(bench, peer, overflow):
    durable_topic(peer, "narrow", **{"x-max-length": 2, "x-overflow": overflow})
    mortal(peer, exchange="", x_dead_letter_routing_key="narrow", x_message_ttl=10)
    put(peer, "q", *(b"%d" % number for number in range(5)))
    bench.advance(11)
    peer.turn()
    assert [letter.body for letter in letters(bench, "narrow")] == [b"0", b"1"]
    assert bench.engine.statistics().deaths_dropped == 3
    peer.call(1, Purge(queue="narrow"))
    publish(peer, b"later")
    bench.advance(11)
    peer.turn()
    assert letters(bench, "narrow")[-1].body == b"later"


def test_a_full_queue_that_drops_its_head_takes_letters(bench, peer):
    durable_topic(peer, "narrow", **{"x-max-length": 2})
    mortal(peer, exchange="", x_dead_letter_routing_key="narrow", x_message_ttl=10)
    put(peer, "q", *(b"%d" % number for number in range(5)))
    bench.advance(11)
    peer.turn()
    assert [peer.call(1, Get(queue="narrow")).messages for _ in range(2)] == [1, 0]


def test_purged_and_deleted_messages_do_not_die(bench, peer):
    mortal(peer)
    publish(peer)
    peer.call(1, Purge(queue="q"))
    publish(peer)
    peer.call(1, DeleteQueue(queue="q"))
    assert letters(bench) == []


def test_a_circle_without_a_rejection_ends(bench, peer):
    mortal(peer, "a", exchange="", x_dead_letter_routing_key="b", x_message_ttl=100)
    mortal(peer, "b", exchange="", x_dead_letter_routing_key="a", x_message_ttl=100)
    publish(peer, key="a")
    for _ in range(5):
        bench.advance(101)
        peer.turn()
    assert [len(letters(bench, name)) for name in ("a", "b")] == [1, 1], "once in each"


def test_a_queue_that_is_its_own_grave_drops_what_expires_and_keeps_what_is_rejected(bench, peer):
    mortal(peer, exchange="", x_message_ttl=1000)
    publish(peer, b"rejected")
    reject(peer)
    got = peer.call(1, Get(queue="q"))
    assert isinstance(got, GetOk), "a rejection is a consumer's wish"
    peer.send(1, Reject(got.delivery_tag, is_requeue=True))
    bench.advance(1001)
    peer.turn()
    assert isinstance(peer.call(1, Get(queue="q")), GetEmpty)


def test_repeated_deaths_are_counted(bench, peer):
    mortal(peer, exchange="")
    publish(peer)
    for _ in range(3):
        reject(peer)
    peer.send(1, Get(queue="q"))
    peer.turn()
    got, raw, _ = peer.answer_with_content(1)
    assert isinstance(got, GetOk)
    (death,) = decode_properties(raw).headers["x-death"]
    assert (death["count"], death["reason"]) == (3, "rejected")


def test_a_message_of_another_protocol_is_put_into_amqps_words_first(bench, peer):
    found = mortal(peer)
    record = neutral_record(b"neutral", properties=b"colour\x01red\x02", key=b"k")
    channel = bench.channel()
    channel.publish([Publication(record, route=route_to(found), token=1)])
    bench.settle()
    reject(peer)
    (letter,) = letters(bench)
    assert (names_of(letter), letter.body) == (("dlx", "q"), b"neutral")
    told = headers(letter)
    assert told["colour"] == "red"
    assert told["x-death"][0]["routing-keys"] == ["q"]


def test_a_cc_header_that_is_no_array_does_not_keep_anything_alive(bench, peer):
    found = mortal(peer)
    raw = encode_properties(Properties(headers={"CC": "text"}))
    record = publish_record(letter_head("", "q"), raw, b"odd", bench.clock.wall_ms())
    bench.channel().publish([Publication(record, route=route_to(found), token=1)])
    bench.settle()
    reject(peer)
    assert len(letters(bench)) == 1


def test_a_queue_full_of_dead_is_buried_in_order(bench, peer):
    mortal(peer, x_message_ttl=10)
    for number in range(50):
        peer.publish(1, "", "q", b"%d" % number, PERSISTENT)
    peer.turn()
    bench.advance(11)
    peer.turn()
    assert [letter.body for letter in letters(bench)] == [b"%d" % number for number in range(50)]


# ---- x death ------------------------------------------------------------------------------------
# x-death: what a dead letter tells of its lives.


def note(reason="expired", queue="q", **changes):
    values = {"time_s": 1_700_000_000, "exchange": "e", "routing_keys": ("k",)}
    return XDeath(reason, queue, **{**values, **changes})


def read(headers):
    return decode_table(headers)[0]


def test_the_first_death_is_told_with_every_field_in_rabbitmqs_types():
    headers = with_death(None, note(routing_keys=("k", "cc"), expiration="60000"))
    (entry,) = read(headers)["x-death"]
    assert entry == {
        "count": 1,
        "reason": "expired",
        "queue": "q",
        "time": 1_700_000_000,
        "exchange": "e",
        "routing-keys": ["k", "cc"],
        "original-expiration": "60000",
    }
    assert isinstance(entry["time"], Timestamp)
    assert b"\x05countl" in headers, "a long, as RabbitMQ writes it"


def test_without_an_expiration_there_is_no_original_one():
    assert "original-expiration" not in deaths_of(with_death(None, note()))[0]


def test_a_death_of_the_same_queue_and_reason_is_counted_and_keeps_its_first_time():
    headers = with_death(None, note())
    headers = with_death(headers, note(time_s=1_800_000_000))
    (entry,) = deaths_of(headers)
    assert (entry["count"], entry["time"]) == (2, 1_700_000_000)


def test_the_latest_death_is_in_front_also_when_it_is_counted_in_an_older_entry():
    headers = None
    for queue in ("a", "b", "a"):
        headers = with_death(headers, note(queue=queue))
    assert [(each["queue"], each["count"]) for each in deaths_of(headers)] == [("a", 2), ("b", 1)]


def test_another_reason_in_the_same_queue_is_another_entry():
    headers = with_death(with_death(None, note("expired")), note("rejected"))
    assert [each["reason"] for each in deaths_of(headers)] == ["rejected", "expired"]


def test_the_first_death_stays_and_the_last_one_changes():
    headers = with_death(None, note("expired", "a", exchange="x"))
    headers = read(with_death(headers, note("maxlen", "b", exchange="y")))
    first = [headers[f"x-first-death-{name}"] for name in ("reason", "queue", "exchange")]
    last = [headers[f"x-last-death-{name}"] for name in ("reason", "queue", "exchange")]
    assert first == ["expired", "a", "x"]
    assert last == ["maxlen", "b", "y"]


def test_other_headers_stay_byte_for_byte_and_in_order():
    own = encode_table({"a": 1, "b": [1.5, {"c": None}], "z": "\udcff"})
    headers = with_death(own, note())
    assert split_table(headers)[:3] == split_table(own)


def test_cc_goes_only_when_asked():
    own = encode_table({"CC": ["x"]})
    assert "CC" in read(with_death(own, note()))
    assert "CC" not in read(with_death(own, note(), drops_cc=True))


@pytest.mark.parametrize("value", ["text", 7, {"a": 1}])
def test_an_x_death_that_is_no_array_is_begun_anew(value):
    headers = with_death(encode_table({"x-death": value}), note())
    assert [each["queue"] for each in deaths_of(headers)] == ["q"]


def test_entries_that_are_no_tables_are_passed_over_and_kept():
    headers = with_death(encode_table({"x-death": ["odd", {"queue": "q"}]}), note())
    assert [type(each) for each in deaths_of(headers)] == [dict, str, dict]
    assert not is_cycle(["odd", 7], "q")


def test_entries_that_a_client_wrote_twice_are_merged():
    there = {"queue": "other", "reason": "expired", "count": 2}
    mine = {"queue": "q", "reason": "expired"}
    table = {"x-death": [there, mine, there, {**mine, "exchange": "late"}]}
    headers = with_death(encode_table(table), note())
    assert deaths_of(headers) == [{**mine, "count": 3}, {**there, "count": 4}]


def test_a_count_that_a_client_wrote_does_not_outgrow_its_field():
    most = {"queue": "q", "reason": "expired", "count": (1 << 63) - 1}
    (entry,) = deaths_of(with_death(encode_table({"x-death": [most, most]}), note()))
    assert entry["count"] == COUNT_MAX + 1


def test_a_wanderer_forgets_its_oldest_deaths():
    headers = None
    for number in range(DEATHS_MAX + 5):
        headers = with_death(headers, note(queue=f"q{number}"))
    deaths = deaths_of(headers)
    assert len(deaths) == DEATHS_MAX
    assert deaths[0]["queue"] == f"q{DEATHS_MAX + 4}"


def deaths(*pairs):
    return [{"queue": queue, "reason": reason} for queue, reason in pairs]


def test_coming_back_to_a_queue_without_a_rejection_is_a_cycle():
    assert is_cycle(deaths(("b", "expired"), ("a", "maxlen")), "a")
    assert is_cycle(deaths(("a", "expired")), "a")
    assert not is_cycle(deaths(("b", "expired")), "a")
    assert not is_cycle([], "a")


def test_a_rejection_on_the_way_or_there_makes_it_no_cycle():
    assert not is_cycle(deaths(("b", "rejected"), ("a", "expired")), "a")
    assert not is_cycle(deaths(("b", "expired"), ("a", "rejected")), "a")
    assert is_cycle(deaths(("a", "expired"), ("b", "rejected")), "a"), "older than the last visit"
