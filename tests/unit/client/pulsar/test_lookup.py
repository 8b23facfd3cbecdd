"""Look-ups: redirects, proxies, refusals, what cannot be believed."""

import asyncio

import pytest

from kit.client.pulsar_consumer import TYPES, scene, until
from penstock.client.pulsar import lookup
from penstock.client.pulsar.errors import Refused
from penstock.client.pulsar.topics import parse_topic
from penstock.wire.pulsar import protocol_pb2 as pb
from penstock.wire.pulsar.frames import ServerError, encode

TOPIC = parse_topic("t")


def answers(bench, *answered):
    """What LOOKUPs are answered with, one after the other; the last one for ever."""
    answered = list(answered)
    rest = bench.broker._answer

    def answer(transport, command):
        if command.type != TYPES.LOOKUP:
            rest(transport, command)
            return
        fields = answered.pop(0) if len(answered) > 1 else answered[0]
        said = pb.BaseCommand(type=TYPES.LOOKUP_RESPONSE)
        it = said.lookup_topic_response
        it.MergeFrom(
            pb.CommandLookupTopicResponse(request_id=command.lookup_topic.request_id, **fields)
        )
        transport.answer(encode(said))

    bench.broker._answer = answer


REDIRECT = pb.CommandLookupTopicResponse.Redirect
CONNECT = pb.CommandLookupTopicResponse.Connect
FAILED = pb.CommandLookupTopicResponse.Failed


@scene
async def test_a_redirect_is_followed_and_its_authority_passed_on(bench):
    answers(
        bench,
        {"response": REDIRECT, "brokerServiceUrl": "pulsar://other:1", "authoritative": True},
        {"response": CONNECT, "brokerServiceUrl": "pulsar://third:2"},
    )
    connection = await bench.client._cluster.connect(TOPIC)
    assert connection.address == "third:2"
    assert [each.authoritative for each in bench.broker.all(TYPES.LOOKUP)] == [False, True]
    assert len(bench.broker.transports) == 3


@scene
async def test_redirects_have_an_end(bench):
    answers(bench, {"response": REDIRECT, "brokerServiceUrl": "pulsar://broker:6650"})
    with pytest.raises(Refused, match="redirected more than"):
        await bench.client._cluster.connect(TOPIC)


@scene
async def test_a_broker_behind_a_proxy_is_reached_through_it(bench):
    answers(
        bench,
        {
            "response": CONNECT,
            "brokerServiceUrl": "pulsar://inside:9",
            "proxy_through_service_url": True,
        },
    )
    connection = await bench.client._cluster.connect(TOPIC)
    assert connection.address == "broker:6650"
    assert bench.broker.all(TYPES.CONNECT)[-1].proxy_to_broker_url == "inside:9"


@scene
async def test_a_look_up_that_fails_says_what_and_why(bench):
    answers(bench, {"response": FAILED, "error": ServerError.TopicNotFound, "message": "no ns"})
    with pytest.raises(Refused, match=r"look-up of topic .*: no ns"):
        await bench.client._cluster.connect(TOPIC)


@scene
async def test_equal_questions_at_the_same_time_are_one_and_later_ones_are_new(bench):
    cluster = bench.client._cluster
    await asyncio.gather(*[cluster.partitions(TOPIC) for _ in range(10)])
    assert len(bench.broker.all(TYPES.PARTITIONED_METADATA)) == 1
    await cluster.partitions(TOPIC)
    assert len(bench.broker.all(TYPES.PARTITIONED_METADATA)) == 2


@scene
async def test_no_more_questions_are_under_way_than_allowed(bench):
    await bench.client.close_async()
    bench.client = bench.make_client(concurrent_lookups_max=2)
    bench.broker.held.add(TYPES.PARTITIONED_METADATA)
    asked = [
        asyncio.ensure_future(bench.client._cluster.partitions(parse_topic(f"t{number}")))
        for number in range(3)
    ]
    await until(lambda: len(bench.broker.waiting) == 2)
    await bench.settle()
    assert len(bench.broker.all(TYPES.PARTITIONED_METADATA)) == 2
    bench.broker.release(TYPES.PARTITIONED_METADATA)
    assert await asyncio.gather(*asked) == [0, 0, 0]


@scene
async def test_a_partition_has_no_partitions_and_nobody_is_asked(bench):
    assert await bench.client._cluster.partitions(TOPIC.of_partition(3)) == 0
    assert bench.broker.commands == []


@scene
async def test_more_partitions_than_can_be_are_not_believed(bench):
    bench.broker.partitions[str(TOPIC)] = lookup.PARTITIONS_MAX + 1
    with pytest.raises(Refused):
        await bench.client._cluster.partitions(TOPIC)


@scene
async def test_who_gives_up_waiting_does_not_take_the_answer_from_others(bench):
    bench.broker.held.add(TYPES.PARTITIONED_METADATA)
    cluster = bench.client._cluster
    one, two = [asyncio.ensure_future(cluster.partitions(TOPIC)) for _ in range(2)]
    await bench.settle()
    one.cancel()
    await bench.settle()
    bench.broker.release(TYPES.PARTITIONED_METADATA)
    assert await two == 0
