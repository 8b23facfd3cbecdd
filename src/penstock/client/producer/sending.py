"""The way of a send on the client's thread: a queue, a try, the verdict, perhaps another try.

No coroutine and no task per send: each step is a call, and the network calls back with the answer.
Only a topic without a route makes sends wait, together, for one look-up.

Invariants: every ``Send`` ends exactly once (``_end``), whatever happens; its permit, if it has
one, is given back there (``admission.py`` begins those who wait for it).
Not here: the rule for another try (``attempts.py``), the choice of the queue (``selection.py``),
threads of callers (``producer.py``).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.client.errors import (
    Attempt,
    BrokerRefused,
    ClientError,
    SendFailed,
    StateError,
    TimedOut,
    Unreachable,
)
from penstock.client.message import SendResult, SendStatus
from penstock.client.network import Network
from penstock.client.producer import attempts
from penstock.client.producer.admission import Admission
from penstock.client.producer.attempts import RetryRule, Verdict
from penstock.client.producer.choosing import choose
from penstock.client.producer.counts import SendCounts
from penstock.client.producer.hooks import SendHook, tell_after, tell_before
from penstock.client.producer.in_flight import InFlight
from penstock.client.producer.latency import BROKERS_MAX, FaultTable
from penstock.client.producer.route_waits import RouteWaits
from penstock.client.producer.selection import QueueTurns
from penstock.client.producer.send import Outcome, Send
from penstock.client.routes import RouteCache
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command

_log: Final = logging.getLogger(__name__)

LOOK_MS: Final = 50
"""How often those who wait for a permit or a route are looked at, while there are any."""

_STATUS: Final = {status.value: status for status in SendStatus}


class Surroundings(Protocol):
    """What sending needs of the client instance."""

    @property
    def network(self) -> Network:
        """Where requests go."""
        ...

    @property
    def routes(self) -> RouteCache:
        """Where queues are."""
        ...

    @property
    def clock(self) -> Clock:
        """What time it is."""
        ...

    def heartbeat_now(self) -> None:
        """Tell all brokers who is here."""
        ...


class Sender:
    """All sends of one producer."""

    def __init__(
        self,
        instance: Surroundings,
        group: str,
        rule: RetryRule,
        in_flight: InFlight,
        turns: QueueTurns,
        *,
        faults: FaultTable | None = None,
        hooks: Sequence[SendHook] = (),
        try_timeout_ms: int = 0,
        tries_max: int = 3,
        auto_create_queues: int = 4,
    ) -> None:
        self.counts: Final = SendCounts()
        self.admission: Final = Admission(in_flight, self.counts, self.begin)
        self._greeted: set[str] = set()
        self._instance = instance
        self.topics: Final[dict[str, None]] = {}
        """Topics sent to; their routes are kept fresh. Bounded by ``routes.ROUTES_MAX``."""
        self._network = instance.network
        self._routes = instance.routes
        self._clock = instance.clock
        self._group = group
        self._rule = rule
        self._in_flight = in_flight
        self._turns = turns
        self._faults = faults
        self._hooks = tuple(hooks)
        self._try_timeout_ms = try_timeout_ms
        self._tries_max = tries_max
        self._route_waits = RouteWaits(
            instance.routes, default_queues=auto_create_queues, found=self._routed
        )
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_signing = instance.network.is_signing
        self.under_way = 0
        """Sends begun and not ended."""
        self._idle: asyncio.Event | None = None
        self.is_stopped = False
        self._is_closed = False

    def begin(self, send: Send) -> None:
        """Start a send that has its permit, or needs none."""
        self.under_way += 1
        if self.is_stopped and not send.is_unseen:
            self._end(send, StateError("the producer was stopped before the message was sent"))
            return
        send.judge = self
        route = self._routes.get(send.encoded.topic)
        if route is None:
            self._route_waits.wait(send)
            self.watch()
            return
        self._try(send, route.write_queues())

    def watch(self) -> None:
        """Somebody waits for a permit or a route: see that no deadline is missed."""
        if self.is_stopped:
            self.admission.turn_away()
        elif self._timer is None:
            self._timer = self._loop.call_later(LOOK_MS / 1000, self._look)

    async def stop(self, timeout_ms: int) -> None:
        """No new sends; wait for those under way, then fail what is left."""
        self.is_stopped = True
        self.admission.turn_away()
        if self.under_way:
            self._idle = asyncio.Event()
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_ms / 1000)
            except TimeoutError:
                _log.warning("producer stopped with sends under way", extra={"group": self._group})

    def close(self) -> None:
        """After ``stop`` and what it made others send: nothing more is looked after."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._route_waits.close()

    def _routed(self, send: Send, problem: ClientError | None) -> None:
        if problem is not None:
            self._end(send, problem)
            return
        route = self._routes.get(send.topic)
        self._try(send, () if route is None else route.write_queues())

    def _look(self) -> None:
        """End those whose time is up while they wait for a permit or a route."""
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        self.admission.leave_overdue(now_ms)
        for send in self._route_waits.leave_overdue(now_ms):
            self._end(send, TimedOut("the name servers", send.timeout_ms, "route look-up"))
        in_flight = self._in_flight
        in_flight.settle()
        if in_flight.waiting or self._route_waits or in_flight.episodes.is_lingering:
            self.watch()

    def _try(self, send: Send, queues: Sequence[QueueRef]) -> None:
        now_ms = self._clock.monotonic_ms()
        left_ms = send.deadline_ms - now_ms
        if left_ms <= 0:
            self._end(send, send.degraded or self._failure(send))
            return
        try:
            queue = choose(send, queues, self._turns, now_ms)
        except ClientError as problem:
            self._end(send, problem)
            return
        send.queue = queue
        send.tries += 1
        send.tried_ms = now_ms
        address = self._routes.address(queue.broker)
        send.address = address or ""
        if self._hooks and send.context is None and not send.is_unseen:
            tell_before(self._hooks, send.hook_context(self._group))
        if address is None:
            error = Unreachable(queue.broker, "no route names an address of this broker")
            self._loop.call_soon(send, error)
            return
        self.topics[send.encoded.topic] = None
        if queue.broker not in self._greeted:
            self._greet(queue.broker)
        timeout_ms = left_ms
        if self._try_timeout_ms and send.pinned is None and send.tries < self._tries_max:
            timeout_ms = min(left_ms, self._try_timeout_ms)
        try:
            self._hand_over(send, address, timeout_ms)
        except Exception as problem:
            _log.exception("message could not be written", extra={"topic": send.topic})
            self._end(send, ClientError(f"message could not be written: {problem!r}"))

    def _greet(self, broker: str) -> None:
        """A broker must know a producer's group before it can ask about transactions."""
        if len(self._greeted) >= BROKERS_MAX:
            self._greeted.clear()
        self._greeted.add(broker)
        self._instance.heartbeat_now()

    def _hand_over(self, send: Send, address: str, timeout_ms: int) -> None:
        network, encoded, queue = self._network, send.encoded, send.queue
        if self._is_signing:
            if send.is_oneway:
                network.oneway(address, encoded.command(queue))
            else:
                network.start(address, encoded.command(queue), timeout_ms, send)
        else:
            opaque = network.next_opaque()
            if send.is_oneway:
                network.oneway_frame(address, encoded.frame(queue, opaque, FLAG_ONEWAY))
            else:
                network.start_frame(address, opaque, encoded.frame(queue, opaque), timeout_ms, send)
        if send.is_oneway:
            self._end(send, None)

    def answered(self, send: Send, answer: Command | ClientError) -> None:
        """A try is over."""
        code, result, error = _read(send, answer)
        if code == 0 and result is not None and self._faults is None:
            self._end(send, result)
            return
        now_ms = self._clock.monotonic_ms()
        cost_ms = now_ms - send.tried_ms
        broker = send.queue.broker
        if self._faults is not None:
            if error is None or code == attempts.BUSY:
                self._faults.answered(broker, cost_ms, now_ms)
            else:
                self._faults.failed(broker, now_ms)
        if code == 0 and result is not None:
            self._end(send, result)
        else:
            self._judge(send, Attempt(broker, send.queue.queue, cost_ms, error), code, result)

    def _judge(
        self, send: Send, attempt: Attempt, code: int | None, result: SendResult | None
    ) -> None:
        now_ms = self._clock.monotonic_ms()
        verdict = self._rule.judge(
            code,
            tries=send.tries,
            is_pinned=send.pinned is not None,
            left_ms=0 if self._is_closed else send.deadline_ms - now_ms,
        )
        if verdict is Verdict.STORED and result is not None:
            self._end(send, result)
            return
        send.degraded = result or send.degraded
        if send.attempts is None:
            send.attempts = []
        detail = "" if result is None else result.status.name
        send.attempts.append(attempt._replace(detail=detail))
        if (code is None or code in attempts.STALE_ROUTE_CODES) and not self._is_closed:
            self._route_waits.refresh(send.topic, now_ms)
        if verdict is Verdict.AGAIN:
            self._again(send)
        else:
            self._end(send, send.degraded or self._failure(send))

    def _again(self, send: Send) -> None:
        self.counts.retried += 1
        send.avoided = (*send.avoided, send.queue.broker)
        route = self._routes.get(send.topic)
        self._try(send, () if route is None else route.write_queues())

    def _end(self, send: Send, outcome: Outcome | None) -> None:
        """``None`` is the end of a oneway send: nobody knows what became of it."""
        self.under_way -= 1
        self.counts.ended(outcome)
        if send.has_permit and not send.keeps_permit:
            self.admission.give_back(send)
        if send.context is not None:
            send.fill_context(outcome, self._clock.monotonic_ms())
            tell_after(self._hooks, send.context)
        if outcome is not None:
            send.done(outcome)
        if not self.under_way and self._idle is not None:
            self._idle.set()

    def _failure(self, send: Send) -> SendFailed:
        return attempts.failure(send.topic, send.attempts or (), send.timeout_ms)


def _read(
    send: Send, answer: Command | ClientError
) -> tuple[int | None, SendResult | None, ClientError | None]:
    """(code, result, error) of a try; an answer that makes no sense is an error without a code."""
    if isinstance(answer, ClientError):
        return None, None, answer
    code = answer.code
    if code not in attempts.STORED_CODES:
        return code, None, BrokerRefused(code, answer.remark, send.address)
    ext, queue = answer.ext, send.queue
    try:
        number = int(ext["queueId"])
        if number != queue.queue:
            queue = QueueRef(queue.topic, queue.broker, number)
        result = SendResult(
            _STATUS[code],
            send.encoded.unique_key,
            ext["msgId"],
            queue,
            int(ext["queueOffset"]),
            ext.get("transactionId"),
        )
    except (KeyError, ValueError) as problem:
        text = f"{send.address} answered a send without sense: {problem!r}"
        return None, None, ClientError(text)
    return code, result, None
