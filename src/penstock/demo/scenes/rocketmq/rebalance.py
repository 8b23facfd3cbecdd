"""Rebalance: eight consumers come and go, and every queue always has exactly one of them.

One consumer has all sixteen queues; seven more join, and each has two; five leave, and three share
what is left. Meanwhile somebody keeps sending. Nobody is told what to do: each member divides the
same queues among the same members by the same rule, when the broker says that somebody came or
went, or by its own timer.
"""

import threading
import time
from collections import Counter
from typing import Final

from penstock.client import Message, Producer, PushConsumer, ReceivedMessage
from penstock.client.admin import Admin
from penstock.demo.scenes.scene import Scene, comes_true

TOPIC: Final = "shifts"
GROUP: Final = "workers"
QUEUES: Final = 16
PERIOD_MS: Final = 2000
"""Two of these are what a change may take; a notice of the broker makes it far less."""
PERSIST_MS: Final = 200
"""Who takes a queue over begins at the stored offset: what was consumed since comes again."""
MESSAGES_PER_SECOND: Final = 400
CALM_SECONDS: Final = 0.7


async def play(scene: Scene) -> None:
    await scene.away(lambda: _play(scene))
    await scene.check_all_is_well()


class Team:
    """The consumers, and what they consumed."""

    def __init__(self, name_server: str) -> None:
        self.consumed: Counter[bytes] = Counter()
        self.members: list[PushConsumer] = []
        self._name_server = name_server
        self._hired = 0
        self._lock = threading.Lock()

    def hire(self, count: int) -> None:
        for _ in range(count):
            self._hired += 1
            consumer = PushConsumer(
                self._name_server, GROUP, self._consume, consume_from="first", consume_threads=2,
                instance_name=f"worker-{self._hired}", rebalance_interval_ms=PERIOD_MS,
                rebalance_spacing_ms=100, persist_interval_ms=PERSIST_MS,
            )  # fmt: skip
            consumer.subscribe(TOPIC)
            consumer.start()
            self.members.append(consumer)

    def dismiss(self, count: int) -> None:
        """So many fewer, the oldest first."""
        for _ in range(count):
            self.members.pop(0).stop()

    def shares(self) -> list[int]:
        """How many queues each member has, most first; empty while one is taken twice or free."""
        owned = [
            {each.queue for each in member.statistics().queues if each.queue.topic == TOPIC}
            for member in self.members
        ]
        every = Counter(queue for queues in owned for queue in queues)
        is_clean = len(every) == QUEUES and set(every.values()) == {1}
        return sorted(map(len, owned), reverse=True) if is_clean else []

    def _consume(self, message: ReceivedMessage) -> None:
        with self._lock:
            self.consumed[message.body] += 1


def _play(scene: Scene) -> None:
    with Admin(scene.name_server) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    team = Team(scene.name_server)
    sent: list[bytes] = []
    is_over = threading.Event()
    sender = threading.Thread(target=_send, args=(scene.name_server, sent, is_over))
    sender.start()
    try:
        team.hire(1)
        _balanced(scene, team, "one consumer has all queues", [16])
        team.hire(7)
        _balanced(scene, team, "eight have two each", [2] * 8)
        team.dismiss(5)
        _balanced(scene, team, "five left: three share what there is", [6, 5, 5])
        team.hire(5)
        _balanced(scene, team, "five came: eight have two each again", [2] * 8)
        team.dismiss(7)
        _balanced(scene, team, "the last one has all queues", [16])
    finally:
        is_over.set()
        sender.join()
    is_drained = comes_true(lambda: len(team.consumed) == len(sent), 8)
    again = sum(team.consumed.values()) - len(team.consumed)
    scene.check(
        "whatever was stored meanwhile was consumed",
        is_drained and set(sent) == set(team.consumed),
        f"{len(team.consumed):,} of {len(sent):,}",
    )
    scene.check(
        "what was consumed twice is a small part",
        again <= len(sent) // 4,
        f"{again} of {len(sent):,}, at the moments when queues changed hands",
    )
    team.dismiss(len(team.members))


def _balanced(scene: Scene, team: Team, claim: str, shares: list[int]) -> None:
    began = time.monotonic()
    is_balanced = comes_true(lambda: team.shares() == shares, 2 * PERIOD_MS / 1000)
    took = time.monotonic() - began
    scene.say(f"{claim}: {team.shares()} after {took:.2f} s")
    time.sleep(CALM_SECONDS)
    scene.check(
        claim, is_balanced, f"after {took:.2f} s; two periods are {2 * PERIOD_MS / 1000:.0f} s"
    )


def _send(name_server: str, sent: list[bytes], is_over: threading.Event) -> None:
    with Producer(name_server, "foremen") as producer:
        number = 0
        while not is_over.wait(1 / MESSAGES_PER_SECOND):
            number += 1
            body = b"%d" % number
            producer.send(Message(TOPIC, body))
            sent.append(body)
