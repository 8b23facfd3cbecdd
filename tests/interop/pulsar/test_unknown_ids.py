"""Ids of producers and consumers that do not exist (observations 2)."""

import pytest

from kit.pulsar_peer import NONE


def test_closing_what_is_not_there_succeeds(peer):
    assert peer.ask("close_producer", producer_id=99).kind == "success"
    assert peer.ask("close_consumer", consumer_id=99).kind == "success"


@pytest.mark.parametrize("kind", ["unsubscribe", "get_last_message_id"])
def test_a_request_for_an_unknown_consumer_is_a_metadata_error(peer, kind):
    peer.refused("MetadataError", "Consumer not found", kind, consumer_id=99)


def test_seek_of_an_unknown_consumer_is_a_metadata_error(peer):
    target = {"ledgerId": 1, "entryId": 1}
    peer.refused("MetadataError", "Consumer not found", "seek", consumer_id=99, message_id=target)


@pytest.mark.parametrize("permits", [0, 10])
def test_flow_for_an_unknown_consumer_is_ignored(peer, permits):
    peer.command("flow", consumer_id=99, messagePermits=permits)
    peer.expect_nothing()


def test_acks_for_an_unknown_consumer_get_no_answer(peer):
    one, two = {"ledgerId": 1, "entryId": 1}, {"ledgerId": 1, "entryId": 2}
    peer.command("ack", consumer_id=99, ack_type="Individual", message_id=[one])
    peer.command("ack", consumer_id=99, ack_type="Individual", message_id=[one], request_id=7)
    peer.command("ack", consumer_id=99, ack_type="Cumulative", message_id=[one, two])
    peer.expect_nothing()


def test_redeliver_for_an_unknown_consumer_is_ignored(peer):
    peer.command("redeliver_unacknowledged_messages", consumer_id=99)
    peer.expect_nothing()


def test_send_for_an_unknown_producer_is_closed(peer, topic):
    producer = peer.producer(topic)
    producer.id = 99
    producer.send()
    peer.expect_closed()


def test_send_after_the_client_s_own_close_is_closed(peer, topic):
    producer = peer.producer(topic)
    producer.close()
    producer.send()
    peer.expect_closed()


def test_send_after_the_broker_s_close_is_dropped(pulsar, peer, topic):
    producer = peer.producer(topic)
    producer.publish()
    pulsar.rest.done("PUT", f"{pulsar.path(topic)}/unload")
    peer.expect("close_producer", producer_id=producer.id, request_id=NONE)
    producer.send()
    peer.expect_nothing()
