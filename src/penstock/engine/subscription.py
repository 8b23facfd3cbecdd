"""skeleton"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.engine.consumer import Consumer, ConsumerOutlet, KeyRange
from penstock.engine.host import Host, SubscribedQueue
from penstock.engine.pending import Delivery, Held
from penstock.engine.subscription_options import SubscriptionOptions
from penstock.flow.demand import Demand
from penstock.flow.unsent import UnsentLimit
from penstock.log.cursors import CursorState
from penstock.model.position import QueueId, SubscriptionId
from penstock.model.refusal import Refusal
from penstock.model.settlement import Cause, QueueSettlement, Settlement


class Subscription:
    """A named reader of a topic: one cursor per queue, any number of consumers."""

    def __init__(
        self,
        subscription_id: SubscriptionId,
        name: str,
        queues: Sequence[SubscribedQueue],
        options: SubscriptionOptions,
        host: Host,
    ) -> None: ...

    # life of consumers
    def attach(
        self,
        outlet: ConsumerOutlet,
        demand: Demand,
        *,
        name: str,
        priority: int = 0,
        key_ranges: Sequence[KeyRange] = (),
        queue_ids: Sequence[QueueId] = (),
        is_auto_settled: bool = False,
        is_passive: bool = False,
        visibility_ms: int = 0,
        unsent: UnsentLimit | None = None,
    ) -> Consumer | ConsumerRefusal: ...
    def cancel(self, consumer: Consumer) -> None: ...  # stops deliveries, keeps what is in flight
    def detach(self, consumer: Consumer, *, count: bool = False) -> None: ...  # cancel + requeue
    def close(self, cause: str) -> None: ...  # deleted: every consumer is told cancelled(cause)

    # the engine's turn
    def add_queue(self, queue: SubscribedQueue) -> None: ...
    def arrived(
        self, queue_id: QueueId
    ) -> None: ...  # new visible entries (wakes if anyone could take)
    def dispatch(self, messages_max: int) -> int: ...
    def due(self, now_ms: int) -> None: ...
    def next_deadline_ms(self) -> int | None: ...
    def take_settlements(self) -> list[Settlement]: ...  # host.note_settlement(self) announced them

    # settlement
    def settle(self, queue_id: QueueId, offsets: Sequence[int]) -> int: ...
    def settle_upto(self, queue_id: QueueId, offset: int) -> int: ...  # everything below offset
    def commit(self, queue_id: QueueId, offset: int) -> None: ...  # as settle_upto; lower = back
    def requeue(
        self, queue_id: QueueId, offsets: Sequence[int], *, delay_ms: int = 0, count: bool = True
    ) -> int: ...
    def reject(self, queue_id: QueueId, offsets: Sequence[int]) -> int: ...
    def extend(self, queue_id: QueueId, offset: int, deadline_ms: int) -> bool: ...
    def held(self, queue_id: QueueId, offset: int) -> Held | None: ...
    def take(self, consumer: Consumer, messages_max: int) -> list[Delivery]: ...  # at once (get)

    # moving on purpose
    def seek(self, queue_id: QueueId, offset: int) -> None: ...
    def seek_time(self, store_ms: int) -> None: ...
    def purge(self, queue_id: QueueId) -> int: ...
    def drop_head(
        self, queue_id: QueueId, messages: int, cause: Cause = Cause.DROPPED_HEAD
    ) -> int: ...

    # recovery and snapshots
    def restore(self, queue_id: QueueId, state: CursorState) -> None: ...
    def apply(self, cause: int, settlement: QueueSettlement) -> None: ...
    def state(self, queue_id: QueueId, *, is_final: bool = False) -> CursorState: ...
    def low_mark(self, queue_id: QueueId) -> int: ...

    # numbers
    def ready(self, queue_id: QueueId) -> int: ...
    def backlog_bytes(self, queue_id: QueueId) -> int: ...
