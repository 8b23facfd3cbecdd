"""What brokers of RocketMQ 4.9 do not know, and what is done about it."""

import asyncio

from kit.rocketmq.remoting_peer import RemotingPeer
from penstock.client.instance import ClientInstance
from penstock.client.options import InstanceOptions, resolve
from penstock.testing.clock import ManualClock
from penstock.wire.rocketmq.codes import RequestCode, ResponseCode
from penstock.wire.rocketmq.command import Command
from penstock.wire.rocketmq.headers import PullHeader

OFFSETS = {"suggestWhichBrokerId": "0", "nextBeginOffset": "9", "minOffset": "0", "maxOffset": "12"}
PULL = PullHeader(consumer_group="g", topic="t", queue_id=3, queue_offset=5)


def test_a_broker_that_knows_no_lite_pulls_gets_plain_ones_from_then_on():
    async def run():
        peer = RemotingPeer(
            {
                int(RequestCode.LITE_PULL_MESSAGE): Command(
                    int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
                ),
                int(RequestCode.PULL_MESSAGE): OFFSETS,
            }
        )
        options = resolve(InstanceOptions, {})
        made = ClientInstance(("ns:1",), options, "me", clock=ManualClock(), connect=peer.connect)
        pulled = [
            await made.requests.pull("a:1", PULL, timeout_ms=100, is_lite=True) for _ in range(2)
        ]
        return [each.header.next_begin_offset for each in pulled], [
            each.code for _, each in peer.asked
        ]

    offsets, codes = asyncio.run(run())
    assert offsets == [9, 9]
    assert codes == [
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.PULL_MESSAGE,
    ]
