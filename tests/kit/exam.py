"""The exam's bench: a broker on the manual clock, asked who is slow, with an unread queue beside.

    exam = Exam()                                   # or Exam(RocketmqBench)
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(5), "mailer")
    exam.publish(topic, 50)
    exam.found("behind", "slow-consumer", "consumer/", after_ms=6_000)
    reader.ack()
    exam.ok()

``found`` asks twice, in time and in the middle, unless it is told not to.
"""

from __future__ import annotations

from typing import Any, Final

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.flow.demand import Window
from penstock.flow.diagnosis import answer_of, findings_of
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings

EVERYTHING: Final = SubscriptionOptions(sees_unsynced=True)
MIDDLE_MS: Final = 1_500
"""How long after the first question the second one comes."""


class Outlet:
    """A peer that takes what it gets and settles when it is told to."""

    def __init__(self) -> None:
        self.deliveries: list[Any] = []

    def deliver(self, consumer: Any, deliveries: list[Any]) -> None:
        self.deliveries += deliveries
        consumer.sent(
            sum(each.messages for each in deliveries), sum(each.size for each in deliveries)
        )

    def active_changed(self, consumer: Any, is_active: bool) -> None: ...

    def cancelled(self, consumer: Any, cause: str) -> None: ...


class Reader:
    """A consumer of a subscription."""

    def __init__(
        self, bench: Workbench, subscription: Any, demand: Any, name: str, **keywords: Any
    ) -> None:
        self.bench = bench
        self.subscription = subscription
        self.outlet = Outlet()
        self.consumer = subscription.attach(self.outlet, demand, name=name, **keywords)
        bench.settle()

    def _taken(self, count: int) -> list[tuple[int, int]]:
        taken = self.outlet.deliveries[:count]
        del self.outlet.deliveries[: len(taken)]
        return [(each.queue_id, each.offset) for each in taken]

    def ack(self, count: int = 1 << 30) -> None:
        for queue_id, offset in self._taken(count):
            self.subscription.settle(queue_id, [offset])
        self.bench.settle()

    def ack_all(self) -> None:
        """Also what comes when these are settled."""
        while self.outlet.deliveries:
            self.ack()

    def nack(self, count: int = 1 << 30) -> None:
        for queue_id, offset in self._taken(count):
            self.subscription.requeue(queue_id, [offset])
        self.bench.settle()

    def reject(self, count: int = 1 << 30) -> None:
        for queue_id, offset in self._taken(count):
            self.subscription.reject(queue_id, [offset])
        self.bench.settle()


class Exam:
    """A broker with an audit queue that nobody reads on purpose."""

    def __init__(
        self, make: type[Workbench] = Workbench, *, parts: dict[str, Any] | None = None, **flow: Any
    ) -> None:
        own = FlowSettings(**{"pending_publishes_max": 0, **flow})
        self.bench: Any = make(Settings(flow=own, **(parts or {})))
        audit = self.bench.topic("audit")
        self.bench.engine.create_subscription(audit.name, "archive", EVERYTHING)
        self.bench.publish(self.bench.channel(), audit, *[b"x"] * 500)
        self.bench.settle()
        self.bench.advance(60_000)
        self.ok()

    def topic(
        self, name: str = "orders", policy: Any = None, sub: str = "billing", **options: Any
    ) -> tuple[Any, Any]:
        topic = self.bench.topic(name, policy)
        wanted = SubscriptionOptions(sees_unsynced=True, **options)
        return topic, self.bench.engine.create_subscription(topic.name, sub, wanted)

    def reader(
        self, subscription: Any, demand: Any = None, name: str = "worker", **keywords: Any
    ) -> Reader:
        return Reader(self.bench, subscription, demand or Window(0), name, **keywords)

    def publish(self, topic: Any, count: int = 1, channel: Any = None) -> None:
        self.bench.publish(channel or self.bench.channel(), topic, *[b"x"] * count)
        self.bench.settle()

    # Questions.

    def findings(self) -> list[Any]:
        self.now = self.bench.engine.flow_map(self.bench.clock.monotonic_ms())
        return findings_of(self.now.views, self.now.troubles, self.now.alarms, self.now.host)

    def answer(self) -> Any:
        return answer_of(self.findings(), self.now.views)

    def ok(self) -> None:
        answer = self.answer()
        assert answer.severity == "ok", answer.sentence

    def found(
        self,
        severity: str,
        cause: str,
        culprit: str,
        *,
        waiting: list[str] | None = None,
        is_lasting: bool = False,
    ) -> Any:
        """What is found now; of something that lasts the same must be found in its middle."""
        answer = self._found(severity, cause, culprit, waiting)
        if is_lasting:
            self.bench.advance(MIDDLE_MS)
            later = self._found(severity, cause, culprit, waiting)
            assert later.id == answer.id
            assert later.since_ms == answer.since_ms, "of the episode"
        return answer

    def _found(self, severity: str, cause: str, culprit: str, waiting: list[str] | None) -> Any:
        answer = self.answer()
        assert (answer.severity, answer.cause) == (severity, cause), answer.sentence
        assert answer.culprit.id.startswith(culprit), answer.culprit
        assert answer.sentence
        assert answer.headline
        if waiting is not None:
            named = sorted(each.id for each in answer.waiters)
            assert (named, answer.waiters_total) == (sorted(waiting), len(waiting)), named
        return answer
