"""The way of a send on the client's thread: choose a queue, try, read the answer, retry or end.

    begin -> (route) -> _try: _choose_queue, _transmit -> answered -> _retry_or_end -> _end

No coroutine and no task per send: each step is a call, and the network calls back with the answer.
Only a topic without a route makes sends wait, together, for one look-up (``RouteWaits``).

Before that, asynchronous sends are admitted into the window (``InFlight``, F16), on the thread of
the caller: what gets no permit waits there and is begun here when an answer frees one.

A send has one deadline for all its tries, permit and route included. ``RetryPolicy`` says when it
is tried again.

Invariant: every ``Send`` ends exactly once (``_end``, or ``_refuse`` before it began), whatever
happens; its permit, if it has one, is given back there.
Not here: encoding and the threads of callers (``producer.py``), how a caller hears the end
(``send.py``), round robin and fault tolerance (``selection.py``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from penstock.client.errors import (
    Attempt,
    BrokerBusy,
    BrokerRefused,
    ClientError,
    NoRoute,
    SendFailed,
    StateError,
    TimedOut,
    Unreachable,
    WouldBlock,
)
from penstock.client.instance import ClientInstance
from penstock.client.message import SendResult, SendStatus
from penstock.client.producer.hooks import SendHook, call_hooks
from penstock.client.producer.selection import (
    BROKERS_MAX,
    LatencyFaultTolerance,
    RoundRobin,
    call_selector,
    queue_of_key,
)
from penstock.client.producer.send import Outcome, Send
from penstock.client.routes import RouteCache
from penstock.flow.budgets import SendWindow
from penstock.flow.episodes import Episode, Episodes
from penstock.flow.reason import Reason
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command

_log: Final = logging.getLogger(__name__)

TIMER_MS: Final = 50
"""How often those who wait for a permit or a route are looked at, while there are any."""
REFRESH_SPACING_MS: Final = 1000
"""A dead broker fails thousands of sends a second; the name server is asked once."""

BUSY: Final = int(ResponseCode.SYSTEM_BUSY)

RETRIED_CODES: Final = frozenset(
    map(
        int,
        (
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.NO_PERMISSION,
            ResponseCode.NO_BUYER_ID,
            ResponseCode.NOT_IN_CURRENT_UNIT,
            ResponseCode.GO_AWAY,
        ),
    )
)
"""What another broker may well answer differently; the set of RocketMQ 5.x without busy."""

STALE_ROUTE_CODES: Final = frozenset(
    map(int, (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION, ResponseCode.GO_AWAY))
)
"""The broker no longer takes what the route says it takes: worth asking the name server."""

STORED_CODES: Final = frozenset(
    map(
        int,
        (
            ResponseCode.SUCCESS,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
        ),
    )
)

_STATUS: Final = {status.value: status for status in SendStatus}

RouteReady = Callable[[Send, ClientError | None], None]


class Sender:
    """All sends of one producer; lives on the client's thread."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        policy: RetryPolicy,
        in_flight: InFlight,
        round_robin: RoundRobin,
        *,
        faults: LatencyFaultTolerance | None = None,
        hooks: Sequence[SendHook] = (),
        try_timeout_ms: int = 0,
        auto_create_queues: int = 4,
    ) -> None:
        self.counters: Final = SendCounters()
        self.topics: Final[dict[str, None]] = {}
        """Topics sent to; their routes are kept fresh. Bounded by ``routes.ROUTES_MAX``."""
        self.under_way = 0
        """Sends begun and not ended."""
        self.is_stopped = False
        self._is_closed = False
        self._instance = instance
        self._network = instance.network
        self._is_signing = instance.network.is_signing
        self._routes = instance.routes
        self._clock = instance.clock
        self._group = group
        self._policy = policy
        self._in_flight = in_flight
        self._round_robin = round_robin
        self._faults = faults
        self._hooks = tuple(hooks)
        self._try_timeout_ms = try_timeout_ms
        self._route_waits = RouteWaits(
            instance.routes, default_queues=auto_create_queues, ready=self._route_ready
        )
        self._announced: set[str] = set()
        """Brokers that were sent a heartbeat because a message goes there."""
        self._admitted: deque[Send] = deque()
        """Sends that got a permit and have not begun; bounded by the window."""
        self._is_admitting = False
        self._on_answer = self.answered
        """Bound once: each send holds it."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None

    # --- begin ------------------------------------------------------------------------------------

    def begin(self, send: Send) -> None:
        """Start a send that has its permit, or needs none."""
        self.under_way += 1
        if self.is_stopped and not send.is_internal:
            self._end(send, StateError("the producer was stopped before the message was sent"))
            return
        send.on_answer = self._on_answer
        route = self._routes.get(send.encoded.topic)
        if route is None:
            self._route_waits.wait(send)
            self.start_timer()
            return
        self._try(send, route.write_queues())

    def _route_ready(self, send: Send, problem: ClientError | None) -> None:
        if problem is not None:
            self._end(send, problem)
        else:
            self._try(send, self._write_queues(send.topic))

    def _write_queues(self, topic: str) -> Sequence[QueueRef]:
        route = self._routes.get(topic)
        return () if route is None else route.write_queues()

    # --- one try ----------------------------------------------------------------------------------

    def _try(self, send: Send, queues: Sequence[QueueRef]) -> None:
        now_ms = self._clock.monotonic_ms()
        left_ms = send.deadline_ms - now_ms
        if left_ms <= 0:
            self._end(send, send.degraded or self._failure(send))
            return
        try:
            queue = self._choose_queue(send, queues, now_ms)
        except ClientError as problem:
            self._end(send, problem)
            return
        send.queue = queue
        send.tries += 1
        send.tried_ms = now_ms
        address = self._routes.address(queue.broker)
        send.address = address or ""
        if self._hooks and send.context is None and not send.is_internal:
            context = send.hook_context(self._group)
            call_hooks(self._hooks, "before", lambda hook: hook.before(context))
        if address is None:
            error = Unreachable(queue.broker, "no route names an address of this broker")
            self._loop.call_soon(send, error)
            return
        self.topics[send.encoded.topic] = None
        if queue.broker not in self._announced:
            self._announce(queue.broker)
        timeout_ms = left_ms
        if self._try_timeout_ms and send.pinned is None and send.tries < self._policy.tries_max:
            timeout_ms = min(left_ms, self._try_timeout_ms)
        try:
            self._transmit(send, address, timeout_ms)
        except Exception as problem:
            _log.exception("message could not be written", extra={"topic": send.topic})
            self._end(send, ClientError(f"message could not be written: {problem!r}"))

    def _choose_queue(self, send: Send, queues: Sequence[QueueRef], now_ms: int) -> QueueRef:
        """The queue given, that of the selector or the ordering key, or the next in turn.

        A send that must go to one queue remembers it: its tries (it has one) and hooks see no
        other. Raises ``NoRoute`` or ``InvalidMessage``.
        """
        if send.pinned is not None:
            return send.pinned
        if not queues:
            raise NoRoute(send.topic, "none of its queues can be written to")
        message = send.message
        if send.selector is not None:
            send.pinned = call_selector(send.selector, queues, message)
        elif message.ordering_key:
            send.pinned = queue_of_key(queues, message.ordering_key)
        else:
            return self._round_robin.pick(send.topic, queues, send.avoided, now_ms)
        return send.pinned

    def _announce(self, broker: str) -> None:
        """A broker must know a producer's group before it can ask about transactions."""
        if len(self._announced) >= BROKERS_MAX:
            self._announced.clear()
        self._announced.add(broker)
        self._instance.heartbeat_now()

    def _transmit(self, send: Send, address: str, timeout_ms: int) -> None:
        network, encoded, queue = self._network, send.encoded, send.queue
        if self._is_signing:
            # A signature covers the fields of the header, so they must be there one by one.
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

    # --- the answer -------------------------------------------------------------------------------

    def answered(self, send: Send, answer: Command | ClientError) -> None:
        code, result, error = _parse_answer(send, answer)
        now_ms = 0
        if code != 0 or self._faults is not None:
            now_ms = self._clock.monotonic_ms()
        if self._faults is not None:
            if error is None or code == BUSY:
                self._faults.answered(send.queue.broker, now_ms - send.tried_ms, now_ms)
            else:
                self._faults.failed(send.queue.broker, now_ms)
        if code == 0:
            self._end(send, result)
        else:
            self._retry_or_end(send, code, result, error, now_ms)

    def _retry_or_end(
        self,
        send: Send,
        code: int | None,
        result: SendResult | None,
        error: ClientError | None,
        now_ms: int,
    ) -> None:
        decision = self._policy.decide(
            code,
            tries=send.tries,
            is_pinned=send.pinned is not None,
            left_ms=0 if self._is_closed else send.deadline_ms - now_ms,
        )
        if decision is RetryDecision.STORED and result is not None:
            self._end(send, result)
            return
        send.degraded = result or send.degraded
        if send.attempts is None:
            send.attempts = []
        queue, detail = send.queue, "" if result is None else result.status.name
        send.attempts.append(
            Attempt(queue.broker, queue.queue, now_ms - send.tried_ms, error, detail)
        )
        if (code is None or code in STALE_ROUTE_CODES) and not self._is_closed:
            self._route_waits.refresh(send.topic, now_ms)
        if decision is RetryDecision.RETRY:
            self.counters.retried += 1
            send.avoided = (*send.avoided, queue.broker)
            self._try(send, self._write_queues(send.topic))
        else:
            self._end(send, send.degraded or self._failure(send))

    def _end(self, send: Send, outcome: Outcome | None) -> None:
        """``None`` is the end of a oneway send: nobody knows what became of it."""
        self.under_way -= 1
        self.counters.ended(outcome)
        if send.has_permit and not send.keeps_permit:
            self._give_back(send)
        if (context := send.context) is not None:
            send.fill_context(outcome, self._clock.monotonic_ms())
            call_hooks(self._hooks, "after", lambda hook: hook.after(context))
        if outcome is not None:
            send.done(outcome)
        if not self.under_way and self._idle is not None:
            self._idle.set()

    def _failure(self, send: Send) -> SendFailed:
        return failure(send.topic, send.attempts or (), send.timeout_ms)

    # --- those who wait for a permit --------------------------------------------------------------

    def admit(self, sends: Sequence[Send]) -> None:
        """These have a permit by now: they begin."""
        # A loop: one that fails as soon as it begins admits others, thousands perhaps.
        self._admitted.extend(sends)
        if self._is_admitting:
            return
        self._is_admitting = True
        try:
            while self._admitted:
                send = self._admitted.popleft()
                send.has_permit = True
                if send.admitted is not None:
                    send.admitted.set()
                if send.is_cancelled:
                    self._give_back(send)
                else:
                    self.begin(send)
        finally:
            self._is_admitting = False

    def _give_back(self, send: Send) -> None:
        send.has_permit = False
        admitted = self._in_flight.give(send.encoded.size_bytes)
        if admitted:
            self.admit(admitted)

    def _refuse(self, send: Send, error: ClientError) -> None:
        """It got no permit, and never began."""
        self.counters.ended(error)
        if send.admitted is not None:
            send.admitted.set()
        send.done(error)

    # --- time -------------------------------------------------------------------------------------

    def start_timer(self) -> None:
        """Somebody waits for a permit or a route: see that no deadline is missed."""
        if self.is_stopped:
            self._refuse_waiting()
        elif self._timer is None:
            self._timer = self._loop.call_later(TIMER_MS / 1000, self._on_timer)

    def _on_timer(self) -> None:
        """End those whose time is up while they wait for a permit or a route."""
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        in_flight = self._in_flight
        expired, admitted = in_flight.expire(now_ms)
        for send in expired:
            self._refuse(send, in_flight.refusal(send))
        self.admit(admitted)
        for send in self._route_waits.expire(now_ms):
            self._end(send, TimedOut("the name servers", send.timeout_ms, "route look-up"))
        in_flight.settle()
        if in_flight.waiting or self._route_waits or in_flight.episodes.is_lingering:
            self.start_timer()

    def _refuse_waiting(self) -> None:
        for send in self._in_flight.drain():
            self._refuse(send, StateError("the producer was stopped"))

    async def stop(self, timeout_ms: int) -> None:
        """No new sends; wait for those under way, then fail what is left."""
        self.is_stopped = True
        self._refuse_waiting()
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


def _parse_answer(
    send: Send, answer: Command | ClientError
) -> tuple[int | None, SendResult | None, ClientError | None]:
    """(code, result, error) of a try; an answer that makes no sense is an error without a code."""
    if isinstance(answer, ClientError):
        return None, None, answer
    code = answer.code
    if code not in STORED_CODES:
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


def failure(topic: str, attempts: Sequence[Attempt], timeout_ms: int) -> SendFailed:
    """The error of a send whose last try failed; every try is told."""
    last = attempts[-1].error if attempts else None
    if isinstance(last, BrokerRefused) and last.code == BUSY:
        return BrokerBusy(attempts[-1].broker, last.remark, attempts)
    count = len(attempts)
    tries = "1 try" if count == 1 else f"{count} tries"
    told = "; ".join(f"{each.broker or 'no broker'} after {each.cost_ms} ms" for each in attempts)
    why = f": {last}" if last is not None else ""
    error = SendFailed(
        f"message for topic {topic!r} was not sent in {tries} within {timeout_ms} ms ({told}){why}",
        attempts,
    )
    if isinstance(last, ClientError):
        error.__cause__ = last
    return error


class RetryDecision(Enum):
    """What becomes of a send after a try."""

    STORED = "stored"
    RETRY = "retry"
    FAILED = "failed"


class RetryPolicy:
    """When a send is tried again: how often, after which answers; pure.

    A try that could not be carried (no connection, no answer) is repeated with another broker; of
    the error codes only those that another broker may not answer. Busy (code 2) is not among them:
    a broker under flow control asks for fewer messages, and every try would be one more
    (``retry_on_busy`` says otherwise).

    A message that must go to one queue (an ordering key, a selector, a queue given) is tried once:
    there is no other broker for it, and a repetition could be stored behind its successors.

    "Stored, but not as well as wanted" (flush or replica late) is a result, not an error. With
    ``retry_another_broker_when_not_store_ok`` it is tried again, and stays the result if nothing
    better comes.
    """

    __slots__ = ("_codes", "_is_better_wanted", "tries_max")

    def __init__(
        self, *, retries: int, retry_on_busy: bool = False, retry_when_not_store_ok: bool = False
    ) -> None:
        self.tries_max = 1 + retries
        self._codes = RETRIED_CODES | {BUSY} if retry_on_busy else RETRIED_CODES
        self._is_better_wanted = retry_when_not_store_ok

    def decide(
        self, code: int | None, *, tries: int, is_pinned: bool, left_ms: int
    ) -> RetryDecision:
        """After the last of so many tries was answered with this code, or failed without one."""
        if code == 0:
            return RetryDecision.STORED
        is_again = not is_pinned and tries < self.tries_max and left_ms > 0
        if code is None:
            return RetryDecision.RETRY if is_again else RetryDecision.FAILED
        if code in STORED_CODES:
            return (
                RetryDecision.RETRY if is_again and self._is_better_wanted else RetryDecision.STORED
            )
        return RetryDecision.RETRY if is_again and code in self._codes else RetryDecision.FAILED


class InFlight:
    """The send window of one producer: permits of asynchronous sends, and who waits for one (F16).

    A send that gets no permit stands in the queue of the window. The answer that makes room starts
    it at once, on the client's thread; a caller that blocks is told then. One whose deadline comes
    first leaves the queue, and its sender hears that the broker is too slow for it.

    Callers take, the client's thread gives back; a lock is between them. The arithmetic is
    ``flow.budgets.SendWindow``. Held and released many times a second is one episode
    (``flow.episodes``): one line in the log when it begins, one when it is over.
    """

    def __init__(self, group: str, messages_max: int, bytes_max: int, clock: Clock) -> None:
        self._window: SendWindow[Send] = SendWindow(messages_max, bytes_max)
        self._clock = clock
        self._lock = threading.Lock()
        self.episodes: Final = Episodes(kind="producer", name=group, sink=EpisodeLog())

    def take(self, size_bytes: int) -> bool:
        """A permit, if there is one now."""
        with self._lock:
            return self._window.take(size_bytes)

    def take_or_wait(self, send: Send, size_bytes: int) -> bool:
        """True with a permit; False: it waits; ``give``, ``expire`` or ``drain`` will name it."""
        with self._lock:
            window = self._window
            if window.take(size_bytes):
                return True
            now_ms = self._clock.monotonic_ms()
            window.wait(send, size_bytes, now_ms)
            if window.waiting == 1:
                self.episodes.entered(Reason.PENDING, self._culprit(), now_ms)
            return False

    def give(self, size_bytes: int) -> list[Send]:
        """A send is over; those who have a permit by this."""
        with self._lock:
            admitted = self._window.give(size_bytes)
            if admitted:
                self._left()
            return admitted

    def expire(self, now_ms: int) -> tuple[list[Send], list[Send]]:
        """(those whose time is up or whom nobody waits for; those who have a permit by that)."""
        with self._lock:
            window = self._window
            left = [
                each for each in window.waiters() if each.deadline_ms <= now_ms or each.is_cancelled
            ]
            admitted = window.forget(left) if left else []
            if left:
                self._left()
            return left, admitted

    def drain(self) -> list[Send]:
        """The producer stops; everybody who waited."""
        with self._lock:
            waiters = self._window.forget_all()
            self.episodes.close(self._clock.monotonic_ms())
            return waiters

    @property
    def waiting(self) -> int:
        return self._window.waiting

    @property
    def messages(self) -> int:
        return self._window.messages

    @property
    def bytes(self) -> int:
        return self._window.bytes

    @property
    def waits_since_ms(self) -> int | None:
        """Since when the first of those who wait has been waiting (monotonic)."""
        with self._lock:
            return self._window.waits_since_ms

    @property
    def full(self) -> str:
        """Which ceiling holds those who wait: ``messages``, ``bytes`` or none."""
        with self._lock:
            return self._window.full

    def refusal(self, send: Send) -> WouldBlock:
        """What a send is told that got no permit in time."""
        window = self._window
        return WouldBlock(
            f"message for topic {send.topic!r} was not sent: {window.messages} of"
            f" {window.messages_max} sends and {window.bytes} of {window.bytes_max} bytes were not"
            f" answered, and it waited {send.timeout_ms} ms (in_flight_messages_max,"
            f" in_flight_bytes_max); send slower"
        )

    def settle(self) -> None:
        """End the episode that is over since more than its memory."""
        with self._lock:
            self.episodes.settle(self._clock.monotonic_ms())

    def _left(self) -> None:
        if not self._window.waiting:
            self.episodes.left(Reason.PENDING, self._clock.monotonic_ms())

    def _culprit(self) -> str:
        window = self._window
        if window.full == "bytes":
            return f"{window.bytes} of {window.bytes_max} bytes are not answered"
        return f"{window.messages} of {window.messages_max} sends are not answered"


class EpisodeLog:
    """One line when sends begin to wait, one when they no longer do."""

    def entered(self, episodes: Episodes, _reason: Reason, culprit: str, _at_ms: int) -> None:
        _log.warning("sends wait for permits", extra={"group": episodes.name, "why": culprit})

    def left(self, episodes: Episodes) -> None:
        """Its end is told when its memory is over."""

    def ended(self, episodes: Episodes, episode: Episode) -> None:
        _log.info(
            "sends wait no more",
            extra={
                "group": episodes.name,
                "lasted_ms": episode.until_ms - episode.since_ms,
                "waited_ms": episode.stalled_ms,
                "stalls": episode.stalls,
            },
        )


class RouteWaits:
    """Sends that wait for the route of their topic: together, for one look-up.

    Also the other way round: a try that failed may mean that a route is old; then the name server
    is asked anew, at most once in ``REFRESH_SPACING_MS``, and nobody waits for it.

    Bound: those who wait hold permits or block their callers.
    """

    def __init__(self, routes: RouteCache, *, default_queues: int, ready: RouteReady) -> None:
        self._routes = routes
        self._default_queues = default_queues
        self._ready = ready
        self._waiting: dict[str, list[Send]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshed_ms: int | None = None

    def __len__(self) -> int:
        """Topics that sends wait for."""
        return len(self._waiting)

    def wait(self, send: Send) -> None:
        """``ready`` will be called with it: with a route in the cache, or with an error."""
        waiting = self._waiting.get(send.topic)
        if waiting is not None:
            waiting.append(send)
            return
        self._waiting[send.topic] = [send]
        self._spawn(self._look_up(send.topic))

    def expire(self, now_ms: int) -> list[Send]:
        """Those whose time is up; ``ready`` is not called for them."""
        over: list[Send] = []
        for topic, waiting in self._waiting.items():
            late = [each for each in waiting if each.deadline_ms <= now_ms]
            if late:
                over += late
                self._waiting[topic] = [each for each in waiting if each.deadline_ms > now_ms]
        return over

    def refresh(self, topic: str, now_ms: int) -> None:
        last_ms = self._refreshed_ms
        if last_ms is not None and now_ms - last_ms < REFRESH_SPACING_MS:
            return
        self._refreshed_ms = now_ms
        self._spawn(self._routes.refresh([topic]))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _look_up(self, topic: str) -> None:
        problem: ClientError | None = NoRoute(topic, "the client was stopped")
        try:
            await self._routes.look_up(topic, default_queues=self._default_queues)
            problem = None
        except ClientError as error:
            problem = error
        finally:
            for send in self._waiting.pop(topic, []):
                self._ready(send, problem)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("route look-up failed", exc_info=problem)


class SendCounters:
    """Plain counters; the client's thread writes, anybody reads."""

    __slots__ = ("busy", "degraded", "failed", "oneway", "retried", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.degraded = 0
        self.failed = 0
        self.busy = 0
        self.oneway = 0
        self.retried = 0

    def ended(self, outcome: SendResult | ClientError | None) -> None:
        if isinstance(outcome, SendResult):
            self.sent += 1
            if not outcome.is_ok:
                self.degraded += 1
        elif outcome is None:
            self.oneway += 1
        else:
            self.failed += 1
            if isinstance(outcome, BrokerBusy):
                self.busy += 1


@dataclass(frozen=True)
class ProducerStatistics:
    """How a producer does; times are milliseconds ago or from now, not clock readings."""

    group: str
    sent: int
    """Stored, as a broker says; batches count once."""
    degraded: int
    """Of these: not as well as wanted (flush or replica late)."""
    failed: int
    """Ended with an error."""
    busy: int
    """Of these: because a broker was under flow control."""
    oneway: int
    """Handed to the network, whatever became of them."""
    retried: int
    """Tries after the first one."""
    in_flight_messages: int
    in_flight_messages_max: int
    in_flight_bytes: int
    in_flight_bytes_max: int
    waiting: int
    """Sends that wait for a permit now."""
    waiting_ms: int
    """For how long the first of them has."""
    waiting_for: str
    """Which limit holds them: ``messages``, ``bytes`` or nothing."""
    held_episodes: int
    """How often sends began to wait; held and released within a second is one."""
    held_share: float
    """Part of the last ten seconds in which somebody waited."""
    isolated: dict[str, int] = field(default_factory=dict)
    """Brokers that are avoided for being slow, and for how many milliseconds more."""
