"""Thresholds: a consumer that is slow stops asking, by number, by bytes and by span (F15).

Three acts, each with one limit made small. The listener hangs; the cache of its queue fills up to
the limit, the pulls stop, and the consumer says which limit holds which queue since when. The
broker asks it, and names the client and its limit to whoever wants to know why messages wait. Then
the listener goes on, and everything is consumed.
"""

import threading
import time
from functools import partial
from typing import Any, Final

from penstock.client import Message, Producer, PushConsumer, ReceivedMessage
from penstock.client.admin import Admin
from penstock.demo.scenes.scene import SCENE_SECONDS_MAX, SOON_BEHIND, Blame, Scene, comes_true

SETTINGS: Final = SOON_BEHIND
MESSAGES: Final = 1200
BODY_BYTES: Final = 2048
PULL: Final = 32
"""Messages of one pull: a cache passes its limit by at most one answer."""
WATCHED_SECONDS: Final = 0.7
ACT_SECONDS_MAX: Final = 8.0

SPAN: Final = 300

ACTS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("messages", {"pull_threshold_messages": 200}, "every call hangs: 200 messages are the limit"),
    ("bytes", {"pull_threshold_bytes": 256 << 10}, "every call hangs: 256 KiB are the limit"),
    ("span", {"pull_threshold_span": SPAN}, "the first message hangs, the next 300 do not"),
)


async def play(scene: Scene) -> None:
    for limit, options, what in ACTS:
        scene.say(f"{limit}: {what}")
        await _act(scene, limit, options)


class Slow:
    """A listener that hangs until it is let go; except, if told so, in the first span."""

    def __init__(self, *, passes_first_span: bool) -> None:
        self.done: set[int] = set()
        self.is_free = threading.Event()
        self._passing = range(1, SPAN if passes_first_span else 0)

    def __call__(self, message: ReceivedMessage) -> None:
        if message.offset not in self._passing:
            self.is_free.wait(SCENE_SECONDS_MAX)
        self.done.add(message.offset)


async def _act(scene: Scene, limit: str, options: dict[str, Any]) -> None:
    topic, group = f"slow-{limit}", f"slow-by-{limit}"
    await scene.away(partial(_fill, scene, topic))
    listener = Slow(passes_first_span=limit == "span")
    consumer = PushConsumer(
        scene.name_server, group, listener, consume_from="first", instance_name=group,
        pull_batch=PULL, **options,
    )  # fmt: skip
    consumer.subscribe(topic)
    try:
        await scene.away(consumer.start)
        (most,) = options.values()
        await scene.away(partial(_is_held, scene, limit, consumer, most))
        blame = Blame("behind", f"threshold-{limit}", "client/")
        claim = f"{limit}: the broker names its client, and which limit"
        await scene.check_answer(claim, blame, seconds_max=ACT_SECONDS_MAX)
        await scene.away(partial(_goes_on, scene, limit, consumer, listener))
    finally:
        listener.is_free.set()
        await scene.away(consumer.stop)


def _is_held(scene: Scene, limit: str, consumer: PushConsumer, most: int) -> None:
    is_held = comes_true(lambda: bool(consumer.statistics().held), ACT_SECONDS_MAX)
    peaks = _watch(consumer)
    figures = consumer.statistics()
    held = figures.held[0] if figures.held else None
    scene.check(
        f"{limit}: the consumer says which limit holds which queue since when",
        is_held and held is not None and held.threshold.value == limit,
        f"{held.queue.topic}, {held.threshold.value} {held.limit}, for {held.held_ms} ms"
        if held
        else "nothing held",
    )
    slack = {"messages": PULL, "bytes": PULL * BODY_BYTES, "span": PULL + 1}[limit]
    scene.check(
        f"{limit}: the cache stays within the limit and one pull",
        0 < peaks[limit] <= most + slack,
        f"at most {peaks[limit]:,}, limit {most:,}",
    )
    scene.check(f"{limit}: a queue that is held stays with its consumer", peaks["queues"] == 1)


def _goes_on(scene: Scene, limit: str, consumer: PushConsumer, listener: Slow) -> None:
    listener.is_free.set()
    is_done = comes_true(lambda: len(listener.done) == MESSAGES, ACT_SECONDS_MAX)
    is_free = comes_true(lambda: not consumer.statistics().held, ACT_SECONDS_MAX)
    scene.check(
        f"{limit}: let go, it consumes everything, and nothing is held any more",
        is_done and is_free,
        f"{len(listener.done):,} of {MESSAGES:,}",
    )


def _fill(scene: Scene, topic: str) -> None:
    with Admin(scene.name_server) as admin:
        admin.create_topic(topic, queues=1)
    with Producer(scene.name_server, f"fill-{topic}") as producer:
        batch = [Message(topic, bytes(BODY_BYTES)) for _ in range(100)]
        for _ in range(MESSAGES // len(batch)):
            producer.send_batch(batch)


def _watch(consumer: PushConsumer) -> dict[str, int]:
    """The fullest cache over a while, and the fewest queues."""
    peaks = {"messages": 0, "bytes": 0, "span": 0, "queues": 1}
    until = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < until:
        queues = [each for each in consumer.statistics().queues if each.queue.topic[0] != "%"]
        for each in queues:
            peaks["messages"] = max(peaks["messages"], each.cached_messages)
            peaks["bytes"] = max(peaks["bytes"], each.cached_bytes)
            peaks["span"] = max(peaks["span"], each.span)
        peaks["queues"] = min(peaks["queues"], len(queues))
        time.sleep(0.01)
    return peaks
