"""Popping over real sockets: shared queues, receipts, and messages that come back."""

import json
import time
import urllib.request

import pytest

from penstock.wire.rocketmq.bodies import (
    ConsumerData,
    QueryAssignmentAnswer,
    QueryAssignmentBody,
    RequestMode,
    SetRequestModeBody,
    SubscriptionData,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.headers import ChangeInvisibleHeader


def test_a_popped_message_is_invisible_until_acknowledged_and_then_gone(client):
    client.create_topic("pop", 4)
    client.send("pop", b"one", queue_id=2)
    ((message, handle),) = client.popped(client.pop("pop", invisible_time=60_000))
    assert message.body == b"one"
    assert client.pop("pop").code != ResponseCode.SUCCESS
    assert client.ack("pop", message, handle).is_ok


def test_a_pop_that_waits_is_woken_by_a_send(connect):
    reader, sender = connect(), connect()
    sender.create_topic("pop-wait", 2)
    held = reader.start_pop("pop-wait", poll_ms=10_000)
    assert not reader.has_answer(held, 0.2)
    sender.send("pop-wait", b"now", queue_id=1)
    assert [each.body for each in reader.wait(held).messages] == [b"now"]


def test_what_is_not_acknowledged_in_time_comes_back_from_the_retry_topic(client):
    client.create_topic("pop-late", 1)
    client.send("pop-late", b"again")
    ((first, _),) = client.popped(client.pop("pop-late", invisible_time=1000))
    until = time.monotonic() + 15
    while not (found := client.popped(client.pop("pop-late", poll_ms=1000))):
        assert time.monotonic() < until
    ((second, handle),) = found
    assert (second.body, second.reconsume_times) == (b"again", first.reconsume_times + 1)
    assert client.ack("pop-late", second, handle).is_ok


def test_a_new_invisible_time_gives_a_new_handle(client):
    client.create_topic("pop-change", 1)
    client.send("pop-change", b"x")
    ((message, handle),) = client.popped(client.pop("pop-change", invisible_time=2000))
    answer = client.request(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        ChangeInvisibleHeader(
            consumer_group=client.group,
            topic="pop-change",
            queue_id=message.queue_id,
            extra_info=handle,
            offset=message.queue_offset,
            invisible_time=60_000,
        ),
    )
    assert answer.is_ok
    assert answer.number("invisibleTime") == 60_000


def test_eight_consumers_share_four_queues_and_one_that_hangs_holds_none(connect):
    clients = [connect() for _ in range(8)]
    clients[0].create_topic("pop-share", 4)
    for number in range(80):
        clients[0].send("pop-share", b"%d" % number, queue_id=number % 4)
    hung = [each.body for each in clients[0].pop("pop-share", max_msg_nums=4).messages]
    assert len(hung) == 4  # and it never acknowledges
    seen, active, empty = [], set(), 0
    while empty < 8:
        for number, client in enumerate(clients[1:]):
            found = client.popped(client.pop("pop-share", max_msg_nums=4))
            empty = 0 if found else empty + 1
            for message, handle in found:
                assert client.ack("pop-share", message, handle).is_ok
                seen.append(message.body)
                active.add(number)
    assert sorted([*seen, *hung], key=int) == [b"%d" % number for number in range(80)]
    assert len(active) == 7


@pytest.mark.parametrize("share", [-1, 2])
def test_a_group_is_switched_to_pop_and_its_members_are_told_so(client, share):
    topic, group = f"pop-mode{share}", f"pop-mode-g{share}"
    client.create_topic(topic, 4)
    mode = SetRequestModeBody(
        topic=topic, consumer_group=group, mode=RequestMode.POP, pop_share_queue_num=share
    )
    assert client.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(mode)).is_ok
    client.heartbeat(
        ConsumerData(
            group_name=group, subscription_data_set=[SubscriptionData(topic=topic, sub_version=1)]
        )
    )
    ask = QueryAssignmentBody(topic=topic, consumer_group=group, client_id=client.client_id)
    answer = client.request(RequestCode.QUERY_ASSIGNMENT, body=encode_body(ask))
    assert answer.is_ok
    found = decode_body(answer.body, QueryAssignmentAnswer).message_queue_assignments
    assert {each.mode for each in found} == {RequestMode.POP}
    assert {each.message_queue.queue_id for each in found} == {-1}


def test_what_is_out_and_what_became_of_it_can_be_seen(client, rocketmq_broker):
    client.create_topic("pop-seen", 1)
    for body in (b"a", b"b", b"c"):
        client.send("pop-seen", body)
    popped = client.popped(client.pop("pop-seen", invisible_time=60_000))
    client.ack("pop-seen", *popped[0])

    def look(path):
        url = f"http://{rocketmq_broker.endpoints['http']}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()

    group = json.loads(look(f"/api/groups/{client.group}"))
    (seen,) = [each for each in group["topics"] if each["topic"] == "pop-seen"]
    assert seen["unacked"] == 2
    page = look("/metrics")
    labels = f'topic="pop-seen",subscription="rocketmq/{client.group}"'
    assert f"penstock_subscription_messages_unacked{{{labels}}} 2.0" in page
    assert 'penstock_rocketmq_pops_total{outcome="FOUND"}' in page
    assert 'penstock_rocketmq_popped_messages_total{event="acknowledged"}' in page
