"""Long polling: pulls that find nothing wait in the broker and cost nothing there (F12).

A thousand pulls wait on queues of their own. A send wakes exactly the one that waits for its queue,
at once; a filter is asked before anybody is woken; whoever waits in vain is told so at his time.
"""

import time
from typing import Final

from penstock.cli.remoting import RemotingClient
from penstock.demo.scenes.scene import Scene
from penstock.wire.rocketmq.codes import ResponseCode

QUEUES: Final = 1000
ASLEEP_SECONDS: Final = 2.0


async def play(scene: Scene) -> None:
    reader = await scene.away(scene.rocketmq)
    sender = await scene.away(scene.rocketmq)
    await scene.away(lambda: sender.create_topic("quiet", QUEUES))
    pulls = await scene.away(
        lambda: [reader.start_pull("quiet", queue, hold_ms=25_000) for queue in range(QUEUES)]
    )
    scene.say(f"{QUEUES:,} pulls wait")
    await scene.wait(0.5)
    turns = scene.broker.engine.statistics().turns
    await scene.wait(ASLEEP_SECONDS)
    turns = scene.broker.engine.statistics().turns - turns
    scene.check("pulls that wait cost no turns of the engine", turns < 200, f"{turns} in 2 s")
    await scene.away(lambda: _wake_one(scene, reader, sender, pulls))
    await scene.away(lambda: _filtered(scene, reader, sender))
    await scene.away(lambda: _in_vain(scene, reader))
    await scene.check_all_is_well()


def _wake_one(
    scene: Scene, reader: RemotingClient, sender: RemotingClient, pulls: list[int]
) -> None:
    began = time.monotonic()
    sender.send("quiet", b"wake up", queue_id=417)
    answer = reader.wait(pulls[417])
    ms = (time.monotonic() - began) * 1000
    scene.check(
        "a send wakes the pull that waits for its queue, at once",
        [each.body for each in answer.messages] == [b"wake up"] and ms < 500,
        f"{ms:.1f} ms from send to delivery, the disk included",
    )
    others = reader.take_answers(pulls)
    scene.check("nobody else is woken", not others, f"{len(others)} of {QUEUES - 1}")


def _filtered(scene: Scene, reader: RemotingClient, sender: RemotingClient) -> None:
    sender.create_topic("tagged", 1)
    held = reader.start_pull("tagged", hold_ms=10_000, subscription="urgent")
    sender.send("tagged", b"no", tags="usual")
    is_asleep = not reader.has_answer(held, 0.3)
    sender.send("tagged", b"yes", tags="urgent")
    bodies = [each.body for each in reader.wait(held).messages]
    scene.check(
        "a message that the filter does not want wakes nobody", is_asleep and bodies == [b"yes"]
    )


def _in_vain(scene: Scene, reader: RemotingClient) -> None:
    began = time.monotonic()
    answer = reader.pull("tagged", 0, 2, hold_ms=800)
    waited = time.monotonic() - began
    scene.check(
        "whoever waits in vain is told so when its time is up",
        answer.code == ResponseCode.PULL_NOT_FOUND and 0.7 < waited < 3,
        f"asked for 0.8 s, waited {waited:.2f} s",
    )
