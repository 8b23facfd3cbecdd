"""Pop: eight consumers share four queues, and one that hangs holds none of them.

With pull, four queues keep four of eight consumers busy, and a reader that hangs stops its queue.
With pop the broker hands out messages: everybody gets some, what the hung one took becomes visible
again after its invisible time, and somebody else finishes it. So nobody waits for the hung one, and
the broker says that all is well.
"""

import time
from collections.abc import Callable
from typing import Final

from penstock.cli.remoting import RemotingClient
from penstock.demo.scenes.scene import Scene

GROUP: Final = "workers"
TOPIC: Final = "jobs"
QUEUES: Final = 4
JOBS: Final = 160
INVISIBLE_MS: Final = 3000


async def play(scene: Scene) -> None:
    workers = [await scene.away(scene.rocketmq) for _ in range(8)]
    hung, *lively = workers
    taken = await scene.away(lambda: _hang(scene, hung))
    done: dict[int, int] = {}
    await scene.away(lambda: _others(scene, lively, done, taken))
    answer = (await scene.flow())["answer"]
    scene.check("nobody waits for it: all is well", answer["severity"] == "ok", answer["sentence"])
    await scene.away(lambda: _again(scene, lively, done, taken))


def _hang(scene: Scene, hung: RemotingClient) -> list[int]:
    hung.create_topic(TOPIC, QUEUES)
    for number in range(JOBS):
        hung.send(TOPIC, b"%d" % number, queue_id=number % QUEUES)
    taken = _take(hung)
    scene.say(f"one worker takes {len(taken)} jobs and hangs")
    return taken


def _others(
    scene: Scene, lively: list[RemotingClient], done: dict[int, int], taken: list[int]
) -> None:
    share = _work(lively, done, until=lambda: len(done) >= JOBS - len(taken))
    scene.check(
        "the others do everything else meanwhile, from all queues",
        len(done) == JOBS - len(taken) and not done.keys() & set(taken),
        f"{len(done)} of {JOBS} jobs done",
    )
    scene.check("seven workers on four queues, each got some", all(share), f"shares {share}")
    scene.check("the hung one holds its jobs for now", not done.keys() & set(taken), f"{taken}")


def _again(
    scene: Scene, lively: list[RemotingClient], done: dict[int, int], taken: list[int]
) -> None:
    began = time.monotonic()
    _work(lively, done, until=lambda: len(done) >= JOBS)
    waited = time.monotonic() - began
    scene.check(
        "when their time is up, somebody else gets them",
        set(taken) <= done.keys(),
        f"after {waited:.1f} s more; invisible time {INVISIBLE_MS / 1000:.0f} s",
    )
    scene.check("they are counted as tried before", all(done[each] > 0 for each in taken))
    scene.check("every job was done", sorted(done) == list(range(JOBS)))


def _take(worker: RemotingClient) -> list[int]:
    answer = worker.pop(TOPIC, consumer_group=GROUP, max_msg_nums=8, invisible_time=INVISIBLE_MS)
    return [int(message.body) for message, _ in worker.popped(answer)]


def _work(
    workers: list[RemotingClient], done: dict[int, int], until: Callable[[], bool]
) -> list[int]:
    """Do jobs; how many each of them did."""
    share = [0] * len(workers)
    end = time.monotonic() + 15
    while not until() and time.monotonic() < end:
        for number, worker in enumerate(workers):
            answer = worker.pop(TOPIC, consumer_group=GROUP, max_msg_nums=4, poll_ms=20)
            for message, handle in worker.popped(answer):
                if worker.ack(TOPIC, message, handle, GROUP).is_ok:
                    done[int(message.body)] = message.reconsume_times
                    share[number] += 1
    return share
