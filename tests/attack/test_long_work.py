"""Questions that make much work: patterns, leases, selectors and imports are done in pieces.

Each is measured in turns: as many passed while it was worked on as there are pieces, so everybody
else had that many chances. Milliseconds are only reported.
"""

import base64
import json
import threading
import time
import urllib.request

import pika
import pytest

from kit.pulsar_payload import PulsarMessage, batch_tail
from kit.pulsar_peer import PulsarPeer, PulsarRest
from penstock.bulk.client import BulkClient
from penstock.bulk.tickets import BulkError
from penstock.cli.remoting import RemotingClient
from penstock.model.queries import LeaseRequest
from penstock.testing.running import eventually
from penstock.wire.rocketmq.bodies import encode_body
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode

PATIENCE_S = 60.0
PAGE_KEPT_S = 2.0
"""Longer than the page of a broker with thousands of queues is shown again."""


def imported(victim, names):
    """POST a document with these queues, as ``guest``."""
    document = {"queues": [{"name": name, "vhost": "/"} for name in names]}
    request = urllib.request.Request(
        f"{victim.broker.http_url}/api/definitions",
        json.dumps(document).encode(),
        {
            "Content-Type": "application/json",
            "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(),
        },
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 204


def turns_of(victim):
    """Turns so far; the page of a broker with much to tell is kept for a while."""
    time.sleep(PAGE_KEPT_S)
    return victim.metric("penstock_turns_total")


@pytest.fixture
def flight(attack):
    """A broker and a client of its Flight port."""
    with (
        attack("--flight", "0") as victim,
        BulkClient(victim.broker.endpoints["flight"], patience_s=PATIENCE_S) as client,
    ):
        yield victim, client


def test_a_pattern_over_many_long_names_lets_others_have_their_turns(flight):
    victim, client = flight
    imported(victim, ["a" * 245 + f"{number:03d}" for number in range(300)])
    before = turns_of(victim)
    assert client.resolve(pattern=".*a.*!").topics == []
    assert turns_of(victim) - before >= 30  # at most nine names in a turn
    for pattern in (".*a.*a.*a!", "a{99999999999}", "(?:(?:(?:){255}){255}){255}x", "(" * 400):
        with pytest.raises(BulkError, match=r"may take too long|no regular expression"):
            client.resolve(pattern=pattern)
    with pytest.raises(BulkError, match="there is no topic"):
        client.resolve(["a" * 244])
    turns_of(victim)
    victim.serves()


def test_leases_over_very_many_topics_are_bounded_and_looked_at_in_pieces(flight):
    victim, client = flight
    imported(victim, [f"t{number:04d}" for number in range(900)])
    victim.keeps()
    taken, refused = [], []
    for number in range(30):
        order = LeaseRequest(subscription=f"q{number}", pattern="t.*", ttl_ms=10**15)
        try:
            taken.append(client.lease(order))
        except BulkError as problem:
            refused.append(str(problem))
    assert {each.ttl_ms for each in taken} == {86_400_000}
    assert (len(taken), len(refused)) == (11, 19)
    assert all("spark.positions_max" in each for each in refused)
    turns_of(victim)
    victim.serves()
    for number in range(11):
        client.release(f"q{number}", is_final=True)


def selector(number):
    return f"a{number}=1" + " AND a=1" * 120


def test_new_selectors_are_compiled_over_many_turns(attack):
    def check(client, expression):
        data = {"topic": "honest-topic", "subString": expression, "expressionType": "SQL92"}
        body = {"clientId": "c", "group": "g", "subscriptionData": data}
        return client.start(int(RequestCode.CHECK_CLIENT_CONFIG), body=encode_body(body))

    with attack() as victim, RemotingClient(*victim.broker.address("rocketmq_broker")) as client:
        answers = []

        def hostile():
            started = [check(client, selector(number)) for number in range(60)]
            answers.extend(client.wait(each, PATIENCE_S) for each in started)

        before = turns_of(victim)
        hostile()
        assert {each.code for each in answers} == {ResponseCode.SUCCESS}
        assert (
            turns_of(victim) - before >= 50
        )  # at most one in a turn, but for what came in the same read
        answer = client.wait(check(client, "a=1" + " AND a=1" * 1000))
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "make it shorter" in answer.remark
        victim.serves()


def test_publishers_are_confirmed_while_thousands_of_queues_are_imported(attack):
    with attack() as victim:
        names = [f"imported-{number}" for number in range(4000)]
        done = threading.Event()

        def hostile():
            imported(victim, names)
            done.set()

        confirmed = 0
        with pika.BlockingConnection(pika.URLParameters(victim.broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_declare("busy")
            channel.confirm_delivery()
            importer = threading.Thread(target=hostile)
            before = turns_of(victim)
            importer.start()
            while not done.is_set():
                channel.basic_publish("", "busy", b"x")
                confirmed += 1
            importer.join()
        # The page may be an old one for as long as four of them take to make.
        eventually(
            lambda: victim.metric("penstock_topics") > len(names), PATIENCE_S, "a page made since"
        )
        # 4,000 queues are 330 pieces or more; somebody else had a turn between most of them.
        assert turns_of(victim) - before >= 100
        assert confirmed >= 20
        victim.serves()


def test_a_large_topic_is_compacted_over_many_turns(attack):
    topic, place = "persistent://public/default/large", "persistent/public/default/large/compaction"
    with attack() as victim:
        with PulsarPeer(victim.broker.address("pulsar"), seconds=PATIENCE_S) as peer:
            peer.connect()
            producer = peer.producer(topic)
            for number in range(40):
                keys = [PulsarMessage(b"x", f"k{number * 250 + each}") for each in range(500)]
                tail = batch_tail(*keys)
                peer.command("send", tail, producer_id=producer.id, sequence_id=number)
                producer.receipt()
        rest = PulsarRest(f"http://{victim.broker.endpoints['pulsar_http']}")
        before = turns_of(victim)
        assert rest.put(place).status == 204
        victim.serves()
        eventually(
            lambda: rest.get(place).json["status"] == "SUCCESS", PATIENCE_S, "it is compacted"
        )
        # At most two hundred messages in a turn, looked at twice.
        assert turns_of(victim) - before >= 2 * 40 * 500 // 200
        victim.serves()
