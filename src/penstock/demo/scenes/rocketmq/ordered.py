"""Ordered: the steps of each order are consumed one after the other, whoever consumes them.

Messages of one ordering key are in one queue. An ordered consumer works on a queue only while it
holds the broker's lock on it, and on one message of it at a time. Consumers join and leave in the
middle, one listener asks for a pause, and still no order sees its steps out of turn.
"""

import threading
import time
from collections import defaultdict
from typing import Final

from penstock.client import ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from penstock.client.admin import Admin
from penstock.demo.scenes.scene import Scene, comes_true

TOPIC: Final = "order-steps"
GROUP: Final = "fulfilment"
QUEUES: Final = 6
ORDERS: Final = 24
STEPS: Final = 40
TROUBLED: Final = "order-5"
SUSPENSIONS: Final = 3
CHANGE_SECONDS_MAX: Final = 6.0


async def play(scene: Scene) -> None:
    await scene.away(lambda: _play(scene))
    await scene.check_all_is_well()


class StepRecorder:
    """What the listeners saw, by order."""

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = defaultdict(list)
        self.suspended = 0
        self.collisions = 0
        """Calls for a queue on which another call was still at work."""
        self._busy: set[object] = set()
        self._lock = threading.Lock()

    def consume(self, message: ReceivedMessage) -> ConsumeResult | None:
        with self._lock:
            self.collisions += message.queue in self._busy
            self._busy.add(message.queue)
        time.sleep(0.002)
        order = message.ordering_key or ""
        with self._lock:
            self._busy.discard(message.queue)
            if order == TROUBLED and self.suspended < SUSPENSIONS:
                self.suspended += 1
                return ConsumeResult.SUSPEND
            self.steps[order].append(int(message.body))
        return None

    @property
    def seen(self) -> int:
        """Different steps of all orders."""
        return sum(len(set(each)) for each in self.steps.values())

    @property
    def again(self) -> int:
        """Steps that were consumed more than once."""
        return sum(len(each) - len(set(each)) for each in self.steps.values())

    def out_of_turn(self) -> list[str]:
        """Orders that saw a step before one that comes earlier."""
        return [
            order
            for order, steps in self.steps.items()
            if list(dict.fromkeys(steps)) != sorted(set(steps))
        ]


def _play(scene: Scene) -> None:
    with Admin(scene.name_server) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    recorder = StepRecorder()
    sender = threading.Thread(target=_send, args=(scene.name_server,))
    sender.start()
    ann, bob, eve = (_consumer(scene.name_server, recorder, name) for name in ("ann", "bob", "eve"))
    with ann:
        scene.check(
            "ann locks every queue", comes_true(lambda: _locked(ann) == QUEUES, CHANGE_SECONDS_MAX)
        )
        bob.start()
        eve.start()
        is_shared = comes_true(
            lambda: [_locked(each) for each in (ann, bob, eve)] == [2, 2, 2], CHANGE_SECONDS_MAX
        )
        scene.say(f"bob and eve joined: {[_locked(each) for each in (ann, bob, eve)]} locked")
        scene.check("bob and eve take over their part, lock by lock", is_shared)
        bob.stop()
        scene.say("bob left in the middle")
        is_left = comes_true(lambda: _locked(ann) + _locked(eve) == QUEUES, CHANGE_SECONDS_MAX)
        scene.check("what bob had goes to ann and eve", is_left)
        sender.join()
        is_done = comes_true(lambda: recorder.seen == ORDERS * STEPS, CHANGE_SECONDS_MAX)
        eve.stop()
    scene.check(
        "every step of every order was consumed",
        is_done,
        f"{recorder.seen} of {ORDERS * STEPS}, {recorder.again} of them again",
    )
    scene.check(
        "no order saw a step out of turn", not recorder.out_of_turn(), f"{recorder.out_of_turn()}"
    )
    scene.check(
        "no queue had two listeners at once", recorder.collisions == 0, f"{recorder.collisions}"
    )
    scene.check(
        "a listener that asked for a pause got the same step again",
        recorder.suspended == SUSPENSIONS and 0 in recorder.steps[TROUBLED],
        f"{recorder.suspended} times",
    )


def _consumer(name_server: str, recorder: StepRecorder, name: str) -> PushConsumer:
    consumer = PushConsumer(
        name_server, GROUP, recorder.consume, is_ordered=True, consume_from="first", suspend_ms=100,
        instance_name=name, rebalance_interval_ms=1000, rebalance_spacing_ms=100,
    )  # fmt: skip
    consumer.subscribe(TOPIC)
    return consumer


def _send(name_server: str) -> None:
    with Producer(name_server, "shops") as producer:
        for step in range(STEPS):
            for order in range(ORDERS):
                body = b"%d" % step
                producer.send(Message(TOPIC, body, ordering_key=f"order-{order}"))


def _locked(consumer: PushConsumer) -> int:
    return sum(each.is_locked for each in consumer.statistics().queues if each.queue.topic == TOPIC)
