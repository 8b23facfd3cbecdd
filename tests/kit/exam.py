"""The exam's bench: a broker on the manual clock, asked who is slow at the promised instants.

    exam = Exam()                                   # or Exam(RocketmqBench)
    topic, subscription = exam.topic()
    reader = exam.reader(subscription, Window(5), "mailer")
    exam.begins()                                   # ok until now
    exam.publish(topic, 50)
    exam.found("behind", "slow-consumer", "consumer/", name="mailer")
    reader.ack_all()
    exam.ok_again()

``found`` lets the time pass that may go by until something of that severity is found
(``FOUND_MS``), asks, and asks once more in the middle; ``ok_again`` asks when all must be well
(``OK_MS``). What goes on while time passes (who publishes, acks, looks) is ``meanwhile``. An audit
queue that nobody reads on purpose lies beside all of it.

A test that says ``begins`` has to ask all three times: ``unfinished`` tells who did not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kit.workbench import Workbench
from penstock.engine.host import SubscriptionOptions
from penstock.flow.demand import Window
from penstock.flow.diagnosis import answer_of, findings_of
from penstock.settings.flow import FlowSettings
from penstock.settings.load import Settings

EVERYTHING: Final = SubscriptionOptions(sees_unsynced=True)
AT_ONCE_MS: Final = 2_000
FOUND_MS: Final = {
    "alarm": AT_ONCE_MS,
    "holding": AT_ONCE_MS,
    "refusing": AT_ONCE_MS,
    "discarding": AT_ONCE_MS,
    "dead": AT_ONCE_MS,
    "behind": 10_000,
}
"""Within which time of its beginning a thing is found, by its severity."""
OK_MS: Final = 5_000
"""Within which time of its end the answer is ``ok`` again."""
MIDDLE_MS: Final = 1_500
"""How long after the first question the second one comes."""
KINDS: Final = {"sub": "subscription"}
"""Kinds whose ids begin with another word."""
STEP_MS: Final = 500
"""How often what goes on goes on."""


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
        self.meanwhile: Callable[[], object] | None = None
        self._began_ms: int | None = None
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

    # Time.

    def pass_ms(self, ms: int) -> None:
        """Let time pass, with what goes on meanwhile."""
        end_ms, took_ms = self.now_ms + ms, 0
        while self.now_ms < end_ms:
            # What goes on may take time by itself, and must not make a question come too late.
            if self.meanwhile is not None and self.now_ms + took_ms <= end_ms:
                before_ms = self.now_ms
                self.meanwhile()
                took_ms = self.now_ms - before_ms
                if took_ms:
                    continue
            self.bench.advance(min(STEP_MS, max(0, end_ms - self.now_ms)))

    @property
    def now_ms(self) -> int:
        return int(self.bench.clock.monotonic_ms())

    # Questions.

    def findings(self) -> list[Any]:
        self.map = self.bench.engine.flow_map(self.now_ms)
        return findings_of(self.map.views, self.map.troubles, self.map.alarms, self.map.host)

    def answer(self) -> Any:
        return answer_of(self.findings(), self.map.views)

    def ok(self) -> None:
        answer = self.answer()
        assert answer.severity == "ok", answer.sentence

    def begins(self) -> None:
        """All is well until now; from now on it counts how long it takes to be found."""
        self.ok()
        self._began_ms = self.now_ms
        _unfinished[id(self)] = "nothing was asked while it lasted"

    def found(
        self,
        severity: str,
        cause: str,
        culprit: str,
        *,
        name: str = "",
        waiting: list[str] | None = None,
        within_ms: int = 0,
        is_older: bool = False,
    ) -> Any:
        """What is found when it must be found at the latest, and in its middle; the latter.

        ``within_ms`` is for what is only said after a time of its own, as "never acks" is;
        ``is_older`` for what was there before somebody had to wait for it.
        """
        assert self._began_ms is not None, "begins() says when"
        left_ms = self._began_ms + (within_ms or FOUND_MS[severity]) - self.now_ms
        assert left_ms >= 0, "it is too late to ask if it is found in time"
        self.pass_ms(left_ms)
        expected = (severity, cause, culprit, name, waiting)
        answer = self.now(*expected)
        self.pass_ms(MIDDLE_MS)
        later = self.now(*expected)
        assert later.id == answer.id
        assert later.since_ms == answer.since_ms, "of the episode"
        assert later.since_ms is not None
        assert (later.since_ms < self._began_ms) is is_older, "when it began"
        _unfinished[id(self)] = "nothing was asked after its end"
        return later

    def now(
        self,
        severity: str,
        cause: str,
        culprit: str,
        name: str = "",
        waiting: list[str] | None = None,
    ) -> Any:
        """What is found at this moment."""
        answer = self.answer()
        assert (answer.severity, answer.cause) == (severity, cause), answer.sentence
        assert answer.culprit.id.startswith(culprit), answer.culprit
        kind = answer.culprit.id.partition("/")[0]
        assert answer.culprit.kind == KINDS.get(kind, kind), answer.culprit
        assert not name or answer.culprit.name == name, answer.culprit
        assert answer.sentence
        assert answer.headline
        named = sorted(each.id for each in answer.waiters)
        wanted = sorted(waiting or [])
        assert (named, answer.waiters_total) == (wanted, len(wanted)), named
        return answer

    def ok_again(self) -> None:
        """It ended just now: so much later all is well, and stays so."""
        self._began_ms = None
        _unfinished.pop(id(self), None)
        self.pass_ms(OK_MS)
        self.ok()
        self.pass_ms(MIDDLE_MS)
        self.ok()


_unfinished: dict[int, str] = {}
"""Of exams that began."""


def unfinished() -> list[str]:
    """What was not asked by those that began since the last call."""
    found = list(_unfinished.values())
    _unfinished.clear()
    return found
