"""Spark back-pressure: a query that falls behind slows, then holds, the publishers of its topic.

A scripted reader plays the Spark query: it polls as Spark's source does, takes a batch, works on it
for as long as its sink needs, and polls again. One publisher sends five times what it drains, one
sends to another topic. With ``soft`` the first is slowed to a little more than the query drains, as
soon as the backlog passes its bound; with ``hard`` it is held, and the backlog ends at the bound.
The other publisher never notices. When the query goes, so does the hold.
"""

import asyncio
from typing import Final

from penstock.demo.scenes.scene import Blame, Scene
from penstock.engine.spark.query import QueryRefused
from penstock.engine.topic import Topic, TopicPolicy
from penstock.model.queries import AnyRequest, AnyResponse, PollRequest
from penstock.model.spark_batch import BatchProgress

SETTINGS: Final = {"spark.backlog_messages_max": "500", "spark.alive_ms_max": "1s"}
DRAIN_PER_S: Final = 200
BATCH_SECONDS: Final = 0.25
PER_SECOND: Final = 5 * DRAIN_PER_S


class SlowQuery:
    """What Spark's source does, with a sink that takes its time."""

    def __init__(self, scene: Scene, topic: Topic) -> None:
        self._house = scene
        self._topic = topic
        self._start = 0
        self._batches = 0
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        self._task.cancel()

    def answered(self, request: AnyRequest, answer: AnyResponse | QueryRefused) -> None:
        """No poll of this query waits at the broker."""

    @property
    def backlog(self) -> int:
        """Messages it has not processed."""
        return self._topic.queues[0].index.next_offset - self._start

    async def _run(self) -> None:
        name = str(self._topic.name)
        while True:
            sink_ms = BATCH_SECONDS * 900
            request = PollRequest(
                subscription="orders-etl",
                topics=[name],
                start={name: {0: self._start}},
                rows_max=int(DRAIN_PER_S * BATCH_SECONDS),
                report=BatchProgress(
                    batch_id=self._batches, batch_ms=BATCH_SECONDS * 1000, read_ms=10,
                    transform_ms=15, sink_ms=sink_ms,
                ),
            )  # fmt: skip
            answer = self._house.broker.engine.queries.poll(request, self)
            self._house.broker.wake()
            await asyncio.sleep(BATCH_SECONDS)
            if answer is not None:
                self._start = answer.ends[name][0]
            self._batches += 1


async def play(scene: Scene) -> None:
    engine = scene.broker.engine
    orders, other = scene.topic("orders"), scene.topic("other")
    query = SlowQuery(scene, orders)
    busy = scene.publisher("orders", orders, per_second=PER_SECOND)
    calm = scene.publisher("other", other, per_second=200)
    scene.say(f"a query drains {DRAIN_PER_S} a second, its publisher sends {PER_SECOND}")
    await scene.until(lambda: bool(busy.gates), 6)
    await scene.wait(1.0)
    before = len(busy.confirmed_numbers)
    await scene.wait(2.0)
    slowed = (len(busy.confirmed_numbers) - before) / 2
    scene.check(
        "soft: past the bound the publisher is slowed to a little more than the query drains",
        0.5 * DRAIN_PER_S <= slowed <= 1.6 * DRAIN_PER_S,
        f"{slowed:.0f} a second in, {DRAIN_PER_S} drained",
    )
    scene.say("now hard, with a bound a little above what is behind already")
    bound = query.backlog + 200
    engine.set_policy(
        orders.name,
        TopicPolicy(spark_backpressure="hard", spark_backlog_messages_max=bound),
    )
    most = 0
    for _ in range(20):
        await scene.wait(0.1)
        most = max(most, query.backlog)
    scene.check("hard: the backlog ends at its bound", most <= bound + 60, f"{most} of {bound}")
    claim = "the broker names the query, and which part of it is slow"
    await scene.check_answer(claim, Blame("holding", "sink", "query/orders-etl"))
    scene.check("the publisher of another topic never waits", not calm.gates)
    query.stop()
    scene.say("the query dies without a word; its lease goes on, its hold does not")
    before = len(busy.confirmed_numbers)
    is_free = await scene.until(lambda: len(busy.confirmed_numbers) > before + PER_SECOND, 8)
    scene.check("no dead query holds publishers", is_free)
    lease = engine.queries.registry.queries["orders-etl"].lease
    scene.check("what it has not processed is still kept for it", lease.holds)
    for each in (busy, calm):
        each.stop()
    answered = await scene.until(lambda: not (busy.outstanding or calm.outstanding), 5)
    scene.check("every publish was answered, none refused", answered and not busy.refusals)
