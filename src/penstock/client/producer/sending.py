"""The way of a send on the client's thread: a queue, a try, the verdict, perhaps another try.

No coroutine and no task per send: each step is a call, and the network calls back with the answer.
Only a topic without a route makes sends wait, together, for one look-up.

Invariants: every ``Send`` ends exactly once (``_end``), whatever happens; its permit, if it has
one, is given back there (``admission.py`` begins those who wait for it).
Not here: the rule for another try (``attempts.py``), the choice of the queue (``selection.py``),
threads of callers (``producer.py``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from penstock.client.connection import Network
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
from penstock.client.message import SendResult, SendStatus
from penstock.client.producer.selection import (
    BROKERS_MAX,
    FaultTable,
    QueueTurns,
    queue_of_key,
    selected,
)
from penstock.client.producer.send import Outcome, Send, SendHook, tell_after, tell_before
from penstock.client.routes import RouteCache
from penstock.flow.budgets import SendWindow
from penstock.flow.episodes import Episode, Episodes
from penstock.flow.reason import Reason
from penstock.model.assignment import QueueRef
from penstock.model.clock import Clock
from penstock.wire.rocketmq.codes import ResponseCode
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
            if error is None or code == BUSY:
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
        if (code is None or code in STALE_ROUTE_CODES) and not self._is_closed:
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
        return failure(send.topic, send.attempts or (), send.timeout_ms)


def _read(
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


# ---- admission ----------------------------------------------------------------------------------
# Sends that waited for a permit: begun when they have one, sent away when they get none.
#
# Lives on the client's thread. Not here: the queue itself (``in_flight.py``).


class Admission:
    """Between the window and the sender of one producer."""

    def __init__(
        self, in_flight: InFlight, counts: SendCounts, begin: Callable[[Send], None]
    ) -> None:
        self._in_flight = in_flight
        self._counts = counts
        self._begin = begin
        self._admitted: deque[Send] = deque()
        """Bounded by the window."""
        self._is_admitting = False

    def give_back(self, send: Send) -> None:
        """Its permit is free; whoever has one by this begins."""
        if send.has_permit:
            send.has_permit = False
            admitted = self._in_flight.give(send.encoded.size_bytes)
            if admitted:
                self.admit(admitted)

    def leave_overdue(self, now_ms: int) -> None:
        """Send away those whose time is up."""
        left, admitted = self._in_flight.leave_overdue(now_ms)
        for send in left:
            self._give_up(send, self._in_flight.refusal(send))
        self.admit(admitted)

    def turn_away(self) -> None:
        """The producer stops."""
        for send in self._in_flight.leave_all():
            self._give_up(send, StateError("the producer was stopped"))

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
                if send.entered is not None:
                    send.entered.set()
                if send.is_given_up:
                    self.give_back(send)
                else:
                    self._begin(send)
        finally:
            self._is_admitting = False

    def _give_up(self, send: Send, error: ClientError) -> None:
        self._counts.ended(error)
        if send.entered is not None:
            send.entered.set()
        send.done(error)


# ---- in flight ----------------------------------------------------------------------------------
# Permits of asynchronous sends (F16): taken by the caller's thread, given back by the client's.
#
# A send that gets no permit stands in the queue of the window. The answer that makes room starts it
# at once, on the client's thread; a caller that blocks is told then. One whose deadline comes first
# leaves the queue, and its sender hears that the broker is too slow for it.
#
# Held and released many times a second is one episode (``flow/episodes.py``): one line in the log
# when it begins, one when it is over.
#
# Threads: callers take, the client's thread gives; a lock is between them.
# Not here: the arithmetic (``flow/budgets.py``), what a send is (``sending.py``).


class InFlight:
    """The window of one producer."""

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
        """True with a permit; False: it waits, and ``give`` or ``leave`` will name it."""
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

    def leave_overdue(self, now_ms: int) -> tuple[list[Send], list[Send]]:
        """(those whose time is up or whom nobody waits for; those who have a permit by that)."""
        with self._lock:
            window = self._window
            left = [
                each for each in window.waiters() if each.deadline_ms <= now_ms or each.is_given_up
            ]
            admitted = window.forget(left) if left else []
            if left:
                self._left()
            return left, admitted

    def leave_all(self) -> list[Send]:
        """The producer stops; everybody who waited."""
        with self._lock:
            waiters = self._window.forget_all()
            self.episodes.close(self._clock.monotonic_ms())
            return waiters

    @property
    def waiting(self) -> int:
        """How many sends wait for a permit."""
        return self._window.waiting

    @property
    def messages(self) -> int:
        """Sends in flight."""
        return self._window.messages

    @property
    def bytes(self) -> int:
        """Bytes in flight."""
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
        """The first send waits."""
        _log.warning("sends wait for permits", extra={"group": episodes.name, "why": culprit})

    def ended(self, episodes: Episodes, episode: Episode) -> None:
        """Nobody has waited for a while."""
        _log.info(
            "sends wait no more",
            extra={
                "group": episodes.name,
                "lasted_ms": episode.until_ms - episode.since_ms,
                "waited_ms": episode.stalled_ms,
                "stalls": episode.stalls,
            },
        )


# ---- route waits --------------------------------------------------------------------------------
# Sends that wait for the route of their topic: together, for one look-up.
#
# Also the other way round: a try that failed may mean that a route is old; then the name server is
# asked anew, at most once in ``REFRESH_SPACING_MS``, and nobody waits for it.
#
# Bound: those who wait hold permits or block their callers.
# Not here: routes themselves (``client/routes.py``).


REFRESH_SPACING_MS: Final = 1000
"""A dead broker fails thousands of sends a second; the name server is asked once."""

RouteReady = Callable[[Send, ClientError | None], None]


class RouteWaits:
    """Who waits for which topic; lives on the client's thread."""

    def __init__(self, routes: RouteCache, *, default_queues: int, found: RouteReady) -> None:
        self._routes = routes
        self._default_queues = default_queues
        self._found = found
        self._waiting: dict[str, list[Send]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshed_ms: int | None = None

    def __len__(self) -> int:
        """Topics that sends wait for."""
        return len(self._waiting)

    def wait(self, send: Send) -> None:
        """``found`` will be called with it: with a route in the cache, or with an error."""
        waiting = self._waiting.get(send.topic)
        if waiting is not None:
            waiting.append(send)
            return
        self._waiting[send.topic] = [send]
        self._spawn(self._look_up(send.topic))

    def leave_overdue(self, now_ms: int) -> list[Send]:
        """Those whose time is up; ``found`` is not called for them."""
        over: list[Send] = []
        for topic, waiting in self._waiting.items():
            late = [each for each in waiting if each.deadline_ms <= now_ms]
            if late:
                over += late
                self._waiting[topic] = [each for each in waiting if each.deadline_ms > now_ms]
        return over

    def refresh(self, topic: str, now_ms: int) -> None:
        """The route may be old."""
        last_ms = self._refreshed_ms
        if last_ms is not None and now_ms - last_ms < REFRESH_SPACING_MS:
            return
        self._refreshed_ms = now_ms
        self._spawn(self._routes.refresh([topic]))

    def close(self) -> None:
        """Ask no more."""
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
                self._found(send, problem)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("route look-up failed", exc_info=problem)


# ---- attempts -----------------------------------------------------------------------------------
# When a send is tried again: how often, after which answers, within one deadline.
#
# A send has one deadline for all its tries, permit and route included. A try that could not be
# carried (no connection, no answer) is repeated with another broker; of the error codes only those
# that another broker may not answer. Busy (code 2) is not among them: a broker under flow control
# asks for fewer messages, and every try would be one more (``retry_on_busy`` says otherwise).
#
# A message that must go to one queue (an ordering key, a selector, a queue given) is tried once:
# there is no other broker for it, and a repetition could be stored behind its successors.
#
# "Stored, but not as well as wanted" (flush or replica late) is a result, not an error. With
# ``retry_another_broker_when_not_store_ok`` it is tried again, and stays the result if nothing
# better comes.
#
# Pure. Not here: choosing the queue (``selection.py``), the tries themselves (``sending.py``).


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


class Verdict(Enum):
    """What becomes of a send after a try."""

    STORED = "stored"
    AGAIN = "again"
    FAILED = "failed"


class RetryRule:
    """The rule of one producer."""

    __slots__ = ("_codes", "_is_better_wanted", "_tries_max")

    def __init__(
        self, *, retries: int, retry_on_busy: bool = False, retry_when_not_store_ok: bool = False
    ) -> None:
        self._tries_max = 1 + retries
        self._codes = RETRIED_CODES | {BUSY} if retry_on_busy else RETRIED_CODES
        self._is_better_wanted = retry_when_not_store_ok

    def judge(self, code: int | None, *, tries: int, is_pinned: bool, left_ms: int) -> Verdict:
        """After the last of so many tries was answered with this code, or failed without one."""
        if code == 0:
            return Verdict.STORED
        is_again = not is_pinned and tries < self._tries_max and left_ms > 0
        if code is None:
            return Verdict.AGAIN if is_again else Verdict.FAILED
        if code in STORED_CODES:
            return Verdict.AGAIN if is_again and self._is_better_wanted else Verdict.STORED
        return Verdict.AGAIN if is_again and code in self._codes else Verdict.FAILED


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


# ---- choosing -----------------------------------------------------------------------------------
# The queue of one try: the one that was given, the one of its key, or the next in turn.
#
# Not here: the turns and the hash (``selection.py``).


def choose(send: Send, queues: Sequence[QueueRef], turns: QueueTurns, now_ms: int) -> QueueRef:
    """Where a try goes; raises ``NoRoute`` or ``InvalidMessage``.

    A send that must go to one queue remembers it: its tries (it has one) and hooks see no other.
    """
    if send.pinned is not None:
        return send.pinned
    if not queues:
        raise NoRoute(send.topic, "none of its queues can be written to")
    message = send.message
    if send.selector is not None:
        send.pinned = selected(send.selector, queues, message)
    elif message.ordering_key:
        send.pinned = queue_of_key(queues, message.ordering_key)
    else:
        return turns.pick(send.topic, queues, send.avoided, now_ms)
    return send.pinned


# ---- counts -------------------------------------------------------------------------------------
# What a producer counted, and what its statistics show.


class SendCounts:
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
        """A send is over."""
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
