"""Fast failure: what waited too long is answered "busy" instead of being served late (F5).

Who spends: each request, a place in the bounded queue of its class. Who grants: the engine, by
taking requests when the log has credit (D24). Who stops: nobody waits longer than the class allows.
What wakes it: a sweep every 10 ms that looks at the oldest request only, and nothing when empty.

Inside a class every key (topic) has its own sub-queue, and ``take`` goes round them: a topic that
floods waits behind itself. Age counts from arrival. A class whose store is busy is drained at once.

Invariants: a request leaves exactly once, taken or refused; a refused one was never taken, so never
stored (law 6); never more than ``capacity`` wait; order within a key is arrival order.
Not here: the wording of a protocol (RocketMQ's remarks are built from the numbers in ``Busy``).
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Final, Generic, TypeVar

import msgspec

from penstock.model.refusal import Refusal, RefusalKind

RequestT = TypeVar("RequestT")

_STALE_MIN: Final = 64
"""Below this many entries already taken, the arrival order is not tidied up."""


class RequestClass(msgspec.Struct, frozen=True, gc=False):
    """A kind of request and what it may cost."""

    name: str
    age_ms_max: int
    capacity: int


#: RocketMQ's classes, ages and capacities (flow-control.md F5).
REQUEST_CLASSES: Final = (
    RequestClass("send", 200, 10_000),
    RequestClass("pull", 5_000, 100_000),
    RequestClass("heartbeat", 31_000, 50_000),
    RequestClass("end-transaction", 3_000, 100_000),
    RequestClass("ack", 3_000, 100_000),
    RequestClass("admin", 5_000, 10_000),
)


class BusyCause(Enum):
    """Which of the three ways to be refused."""

    OVERLOAD = "overload"
    """The class's queue was full at arrival."""
    AGE = "age"
    """Waited longer than its class allows."""
    STORE = "store"
    """Drained because the store is busy (F6)."""


class Busy(Refusal, frozen=True, gc=False):
    """A refusal with its numbers."""

    cause: BusyCause
    request_class: str
    waited_ms: int
    queued: int
    """Requests of the class waiting at that moment, itself included."""


class RequestClassStatistics(msgspec.Struct, frozen=True, gc=False):
    """One class of requests now (F5), for observers."""

    request_class: str
    waiting: int
    age_ms: int
    """Of the oldest that waits."""
    age_ms_max: int
    capacity: int
    refused: dict[str, int]
    """Since the start: ``overload``, ``age``, ``store`` of those that waited; ``busy`` and
    ``no-buffer`` of those that were turned away at the door (F6, F7)."""


class _Waiting(Generic[RequestT]):
    __slots__ = ("arrived_ms", "is_gone", "key", "request")

    def __init__(self, request: RequestT, key: Hashable, arrived_ms: int) -> None:
        self.request = request
        self.key = key
        self.arrived_ms = arrived_ms
        self.is_gone = False


class _ClassQueue(Generic[RequestT]):
    """One class: sub-queues for service, one arrival order for age."""

    __slots__ = ("_arrivals", "_by_key", "count", "refused", "request_class")

    def __init__(self, request_class: RequestClass) -> None:
        self.request_class = request_class
        self.count = 0
        self.refused = dict.fromkeys(BusyCause, 0)
        # The first key is served next. Keys without requests are not kept.
        self._by_key: OrderedDict[Hashable, deque[_Waiting[RequestT]]] = OrderedDict()
        self._arrivals: deque[_Waiting[RequestT]] = deque()

    def offer(self, key: Hashable, request: RequestT, now_ms: int) -> Busy | None:
        if self.count >= self.request_class.capacity:
            return self._refuse(BusyCause.OVERLOAD, 0)
        waiting = _Waiting(request, key, now_ms)
        queue = self._by_key.get(key)
        if queue is None:
            queue = self._by_key[key] = deque()
        queue.append(waiting)
        self._arrivals.append(waiting)
        self.count += 1
        return None

    def take(self, n: int) -> list[RequestT]:
        taken: list[RequestT] = []
        by_key = self._by_key
        while by_key and len(taken) < n:
            key, queue = next(iter(by_key.items()))
            waiting = queue.popleft()
            waiting.is_gone = True
            taken.append(waiting.request)
            if queue:
                by_key.move_to_end(key)
            else:
                del by_key[key]
        self.count -= len(taken)
        self._tidy()
        return taken

    def oldest_ms(self) -> int | None:
        arrivals = self._arrivals
        while arrivals and arrivals[0].is_gone:
            arrivals.popleft()
        return arrivals[0].arrived_ms if arrivals else None

    def sweep(self, now_ms: int) -> list[tuple[RequestT, Busy]]:
        return self._refuse_older(now_ms - self.request_class.age_ms_max, BusyCause.AGE, now_ms)

    def drain(self, now_ms: int) -> list[tuple[RequestT, Busy]]:
        return self._refuse_older(now_ms, BusyCause.STORE, now_ms)

    def _refuse_older(
        self, arrived_upto_ms: int, cause: BusyCause, now_ms: int
    ) -> list[tuple[RequestT, Busy]]:
        refused: list[tuple[RequestT, Busy]] = []
        while True:
            oldest_ms = self.oldest_ms()
            if oldest_ms is None or oldest_ms > arrived_upto_ms:
                return refused
            waiting = self._arrivals.popleft()
            # The oldest of all is the oldest of its key: both queues are in arrival order.
            queue = self._by_key[waiting.key]
            queue.popleft()
            if not queue:
                del self._by_key[waiting.key]
            refused.append((waiting.request, self._refuse(cause, now_ms - waiting.arrived_ms)))
            self.count -= 1

    def _refuse(self, cause: BusyCause, waited_ms: int) -> Busy:
        self.refused[cause] += 1
        name, limit = self.request_class.name, self.request_class
        why = {
            BusyCause.OVERLOAD: f"its queue is full ({limit.capacity})",
            BusyCause.AGE: f"it waited {waited_ms} ms, limit {limit.age_ms_max} ms",
            BusyCause.STORE: f"the store is busy, it waited {waited_ms} ms",
        }[cause]
        return Busy(
            kind=RefusalKind.BUSY,
            culprit=name,
            text=f"{name} request not served: {why}; {self.count} waiting; nothing was stored",
            cause=cause,
            request_class=name,
            waited_ms=waited_ms,
            queued=self.count,
        )

    def _tidy(self) -> None:
        """Forget taken entries, so that the arrival order stays as bounded as the class."""
        self.oldest_ms()
        if len(self._arrivals) > 2 * self.count + _STALE_MIN:
            self._arrivals = deque(waiting for waiting in self._arrivals if not waiting.is_gone)


class FastFailQueues(Generic[RequestT]):
    """Every class's waiting requests."""

    __slots__ = ("_classes",)

    def __init__(self, classes: Iterable[RequestClass] = REQUEST_CLASSES) -> None:
        self._classes: dict[str, _ClassQueue[RequestT]] = {
            request_class.name: _ClassQueue(request_class) for request_class in classes
        }

    def offer(self, class_name: str, key: Hashable, request: RequestT, now_ms: int) -> Busy | None:
        """Let a request wait; a refusal when its class is full. ``now_ms`` is its arrival."""
        return self._classes[class_name].offer(key, request, now_ms)

    def take(self, class_name: str, n: int) -> list[RequestT]:
        """At most n requests to serve now, one per key and round."""
        return self._classes[class_name].take(n)

    def sweep(self, now_ms: int) -> list[tuple[RequestT, Busy]]:
        """The requests that waited too long, with the answer for each."""
        refused: list[tuple[RequestT, Busy]] = []
        for queue in self._classes.values():
            if queue.count:
                refused += queue.sweep(now_ms)
        return refused

    def drain(self, class_name: str, now_ms: int) -> list[tuple[RequestT, Busy]]:
        """Refuse everything that waits in a class: the store is busy (F6)."""
        return self._classes[class_name].drain(now_ms)

    def count(self, class_name: str) -> int:
        """Requests of a class waiting now."""
        return self._classes[class_name].count

    def refused(self, class_name: str) -> dict[BusyCause, int]:
        """How many were refused in each way since the start."""
        return dict(self._classes[class_name].refused)

    def age_ms(self, class_name: str, now_ms: int) -> int:
        """How long the oldest request of a class has waited; 0 when none does."""
        oldest_ms = self._classes[class_name].oldest_ms()
        return 0 if oldest_ms is None else now_ms - oldest_ms

    @property
    def is_empty(self) -> bool:
        """True when nothing waits in any class."""
        return not any(queue.count for queue in self._classes.values())

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next request becomes too old; None while nothing waits."""
        return min(
            (
                oldest_ms + queue.request_class.age_ms_max
                for queue in self._classes.values()
                if (oldest_ms := queue.oldest_ms()) is not None
            ),
            default=None,
        )


# ---- store busy ---------------------------------------------------------------------------------
# Store busy: a commit that takes too long refuses new sends instead of collecting them (F6).
#
# Who raises: a write or sync in progress for longer than the limit, or a write the disk refused.
# Who stops: new sends (refused) and queued ones (drained as busy by ``FastFailQueues``). What wakes
# it: the end of that commit; after a refused write, time: the store is tried again after
# ``limit_ms``, because only another write can show that it works again.


class StoreBusy:
    """Watches the one commit in progress."""

    __slots__ = ("_failed_at_ms", "_started_at_ms", "episodes", "limit_ms")

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self.episodes = 0
        """Commits that took longer than the limit, and refused writes."""
        self._started_at_ms: int | None = None
        self._failed_at_ms: int | None = None

    def commit_started(self, now_ms: int) -> None:
        """A write + sync is on its way to the disk."""
        if self._started_at_ms is None:
            self._started_at_ms = now_ms

    def commit_ended(self, now_ms: int) -> None:
        if self._started_at_ms is not None and now_ms - self._started_at_ms > self.limit_ms:
            self.episodes += 1
        self._started_at_ms = None

    def append_failed(self, now_ms: int) -> None:
        """The disk refused a write (full, short)."""
        self.episodes += 1
        self._failed_at_ms = now_ms

    def append_succeeded(self) -> None:
        """A later write went through: the refusal is over."""
        self._failed_at_ms = None

    def busy_ms(self, now_ms: int) -> int:
        """How long the commit in progress has taken; 0 when there is none."""
        return 0 if self._started_at_ms is None else now_ms - self._started_at_ms

    def is_busy(self, now_ms: int) -> bool:
        """True while new sends are to be refused."""
        if self._started_at_ms is not None and now_ms - self._started_at_ms > self.limit_ms:
            return True
        return self.has_failed(now_ms)

    def has_failed(self, now_ms: int) -> bool:
        """True when a write was refused a moment ago, and none went through since."""
        failed_at_ms = self._failed_at_ms
        return failed_at_ms is not None and now_ms - failed_at_ms < self.limit_ms

    def since_ms(self, now_ms: int) -> int | None:
        """When the trouble began; None while not busy."""
        if not self.is_busy(now_ms):
            return None
        began = (self._started_at_ms, self._failed_at_ms)
        return min(at_ms for at_ms in began if at_ms is not None)

    def next_deadline_ms(self) -> int | None:
        """When ``is_busy`` changes by time alone; None while nothing is in progress."""
        began = [at for at in (self._started_at_ms, self._failed_at_ms) if at is not None]
        return min(began) + self.limit_ms if began else None
