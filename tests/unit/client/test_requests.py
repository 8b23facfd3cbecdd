"""One coroutine per request: where it goes, what it carries, what its answer becomes."""

import asyncio

import pytest

from kit.rocketmq.remoting_peer import RemotingPeer
from penstock.client.errors import BrokerRefused, ClientError, Unreachable
from penstock.client.instance import ClientInstance
from penstock.client.options import InstanceOptions, resolve
from penstock.client.requests import encode_tables, message_queue, queue_ref, read_offsets
from penstock.client.routes import Route
from penstock.model.assignment import QueueRef
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.bodies import (
    BrokerData,
    ConsumerList,
    LockBatchAnswer,
    LockBatchBody,
    QueryAssignmentAnswer,
    QueueData,
    TopicRouteData,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import PopHeader, PullHeader

QUEUE = QueueRef("t", "a", 3)
OFFSETS = {"nextBeginOffset": "9", "minOffset": "0", "maxOffset": "12"}
PULL = PullHeader(consumer_group="g", topic="t", queue_id=3, queue_offset=5)


def call(code, answer, action):
    """(result of ``action(calls)``, the requests with that code)."""

    async def run():
        peer = RemotingPeer({int(code): answer})
        options = resolve(InstanceOptions, {})
        made = ClientInstance(("ns:1",), options, "me", clock=ManualClock(), connect=peer.connect)
        data = TopicRouteData(
            queue_datas=[QueueData(broker_name="a", read_queue_nums=4, write_queue_nums=4)],
            broker_datas=[BrokerData(broker_name="a", broker_addrs={"0": "a:1"})],
        )
        made.routes.put(Route("t", data))
        result = await action(made.requests)
        for _ in range(5):
            await asyncio.sleep(0)
        return result, [each for _, each in peer.asked if each.code == code]

    return asyncio.run(run())


def test_a_stored_offset_is_told():
    found, asked = call(14, {"offset": "7"}, lambda c: c.query_offset(QUEUE, "g"))
    assert found == 7
    assert asked[0].ext == {"consumerGroup": "g", "topic": "t", "queueId": "3"}


@pytest.mark.parametrize("answer", [Command(22), {"offset": "-1"}])
def test_no_stored_offset_is_none(answer):
    assert call(14, answer, lambda c: c.query_offset(QUEUE, "g"))[0] is None


def test_another_code_is_a_refusal_with_the_words_of_the_broker():
    with pytest.raises(BrokerRefused, match=r"NO_PERMISSION \(16\): not you") as caught:
        call(14, Command(16, remark="not you"), lambda c: c.query_offset(QUEUE, "g"))
    assert (caught.value.code, caught.value.address) == (16, "a:1")


@pytest.mark.parametrize("is_oneway", [True, False])
def test_offsets_are_stored_with_or_without_an_answer(is_oneway):
    _, asked = call(15, {}, lambda c: c.update_offset(QUEUE, "g", 8, oneway=is_oneway))
    assert asked[0].ext["commitOffset"] == "8"
    assert asked[0].is_oneway is is_oneway


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_the_outcomes_of_a_pull_are_answers(code):
    pulled, _ = call(
        11, Command(code, OFFSETS, b"x"), lambda c: c.pull("a:1", PULL, timeout_ms=1000)
    )
    assert (pulled.code, pulled.header.next_begin_offset, pulled.body) == (code, 9, b"x")


def test_flow_control_of_a_pull_is_a_refusal():
    with pytest.raises(BrokerRefused) as caught:
        call(11, Command(215), lambda c: c.pull("a:1", PULL, timeout_ms=1000))
    assert caught.value.code == ResponseCode.FLOW_CONTROL


def test_an_answer_without_its_fields_is_an_error_that_names_them():
    with pytest.raises(ClientError, match="nextBeginOffset"):
        call(11, {}, lambda c: c.pull("a:1", PULL, timeout_ms=1000))


def test_a_lite_pull_has_a_code_of_its_own():
    _, asked = call(361, OFFSETS, lambda c: c.pull("a:1", PULL, timeout_ms=1000, is_lite=True))
    assert len(asked) == 1


def test_members_of_a_group_are_asked_of_a_broker_of_the_topic():
    body = encode_body(ConsumerList(consumer_id_list=["x", "y"]))
    assert call(38, Command(0, body=body), lambda c: c.consumers_of("g", "t"))[0] == ["x", "y"]


def test_locks_name_this_client_and_tell_what_it_holds():
    body = encode_body(LockBatchAnswer(locked=[message_queue(QUEUE)]))
    others = [QUEUE, QUEUE._replace(queue=4)]
    held, asked = call(41, Command(0, body=body), lambda c: c.lock("a", "g", others))
    assert held == {QUEUE}
    sent = decode_body(asked[0].body, LockBatchBody)
    assert (sent.client_id, sent.consumer_group, len(sent.mq_set)) == ("me", "g", 2)


def test_nothing_to_lock_asks_nobody():
    assert call(41, {}, lambda c: c.lock("a", "g", [])) == (set(), [])


def test_an_assignment_of_none_means_keep():
    body = encode_body(QueryAssignmentAnswer(message_queue_assignments=None))
    found, _ = call(400, Command(0, body=body), lambda c: c.query_assignment("t", "g"))
    assert found is None


@pytest.mark.parametrize("code", [19, 209, 210])
def test_a_pop_that_finds_nothing_is_an_answer(code):
    header = PopHeader(consumer_group="g", topic="t")
    popped, _ = call(
        RequestCode.POP_MESSAGE, Command(code), lambda c: c.pop("a:1", header, timeout_ms=1000)
    )
    assert (popped.code, popped.header) == (code, None)


def test_a_queue_whose_broker_no_route_names_is_unreachable():
    answer = Command(0, body=encode_body(TopicRouteData()))
    with pytest.raises(Unreachable, match="names its master"):
        call(105, answer, lambda c: c.max_offset(QUEUE._replace(broker="gone")))


def test_lag_is_read_from_maps_with_objects_as_keys():
    body = encode_tables({"offsetTable": {QUEUE: {"brokerOffset": 9, "consumerOffset": 4}}})
    found, _ = call(208, Command(0, body=body), lambda c: c.consume_stats("a:1", "g"))
    assert found[QUEUE]["brokerOffset"] == 9


def test_leaving_names_client_and_group():
    _, asked = call(35, {}, lambda c: c.unregister("a:1", consumer_group="g"))
    assert asked[0].ext == {"clientID": "me", "consumerGroup": "g"}


# ---- queue tables -------------------------------------------------------------------------------
# Maps by queue as Java writes and reads them.


A, B = QueueRef("t", "a", 0), QueueRef("t", "b", 1)


def test_names_of_a_queue_go_both_ways():
    assert queue_ref(message_queue(A)) == A


def test_what_is_written_with_objects_as_keys_is_read_again():
    body = encode_tables({"offsetTable": {A: 5, B: 7}, "plain": {"x": 1}, "list": [1]})
    assert b'{{"topic":"t","brokerName":"a","queueId":0}:5' in body
    found = decode_body(body, dict[str, object])
    assert read_offsets(found["offsetTable"]) == {A: 5, B: 7}
    assert found["plain"] == {"x": 1}


def test_the_list_for_cpp_clients_is_read_too():
    rows = [{"topic": "t", "brokerName": "a", "queueId": 0, "offset": "5"}]
    assert read_offsets(rows) == {A: 5}
