"""Filter: what a consumer does not want does not cross the wire (tags by hash, SQL92 by property).

Tags are compared in the index, without reading a message. An SQL92 selector is compiled once and
judges properties with three-valued logic: a property that is missing is neither true nor false. An
expression that is wrong is refused with words, and nothing is delivered by mistake.
"""

from typing import Final

from penstock.cli.remoting import RemotingClient
from penstock.demo.scenes.scene import Scene
from penstock.wire.rocketmq.codes import ResponseCode

MESSAGES: Final = 300
REGIONS: Final = ("eu", "us", "")


async def play(scene: Scene) -> None:
    client = await scene.away(scene.rocketmq)
    await scene.away(lambda: _play(scene, client))
    await scene.check_all_is_well()


def _play(scene: Scene, client: RemotingClient) -> None:
    client.create_topic("orders", 1)
    started = []
    for number in range(MESSAGES):
        properties = {"amount": str(number), "region": REGIONS[number % 3]}
        tags = "red" if number % 10 == 0 else "blue"
        started.append(
            client.start_send("orders", b"%d" % number, tags=tags, properties=properties)
        )
    scene.check("all are stored", all(client.wait(opaque).is_ok for opaque in started))
    everything, whole = _read(client, "*", "TAG")
    scene.check("without a filter, all come", everything == list(range(MESSAGES)))
    red, size = _read(client, "red", "TAG")
    scene.check(
        "by tag, only the red ones",
        red == list(range(0, MESSAGES, 10)),
        f"{len(red)} messages, {size:,} instead of {whole:,} bytes on the wire",
    )
    both, _ = _read(client, "red || blue", "TAG")
    scene.check("by two tags, both kinds", both == everything)
    rich, size = _read(client, "amount BETWEEN 100 AND 199 AND region = 'eu'", "SQL92")
    scene.check(
        "by SQL92, rich Europeans",
        rich == [number for number in range(100, 200) if number % 3 == 0],
        f"{len(rich)} messages, {size:,} bytes",
    )
    unknown, _ = _read(client, "region <> 'eu'", "SQL92")
    scene.check(
        "a missing property is unknown, not unequal",
        unknown == [number for number in range(MESSAGES) if number % 3 == 1],
    )
    wrong = client.pull("orders", subscription="amount >", expression_type="SQL92")
    scene.check(
        "a wrong expression is refused and says why",
        wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED and not wrong.body,
        wrong.remark.splitlines()[0] if wrong.remark else "",
    )


def _read(client: RemotingClient, expression: str, language: str) -> tuple[list[int], int]:
    """Everything of the topic that the expression lets through; its numbers and bytes."""
    numbers: list[int] = []
    offset = size = 0
    while offset < MESSAGES:
        answer = client.pull("orders", 0, offset, subscription=expression, expression_type=language)
        numbers += [int(each.body) for each in answer.messages]
        size += len(answer.body)
        if answer.number("nextBeginOffset") <= offset:
            break
        offset = answer.number("nextBeginOffset")
    return numbers, size
