"""The engine: everything between adapters and the log, behind one door.

Adapters and the server use this class, connections, channels and subscriptions; nothing else. It is
deterministic: what it does depends on the verbs called, the clock given and the store's answers.

Who drives it (``server/turns.py`` or a test)::

    while engine.needs_turn or a deadline is due: engine.turn()
    job = engine.take_sync_job(); job.run() anywhere; engine.synced(job, error)

Not here: one turn (``turn.py``), the journey in (``publish.py``) and out (``deliver.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.engine.connection import Connection, ConnectionOptions
from penstock.engine.ports import Burial, FactsReader, Outlet
from penstock.engine.subscription import Subscription, SubscriptionOptions
from penstock.engine.topic import Topic, TopicPolicy
from penstock.log.store import Recovered, Store, SyncJob
from penstock.model.clock import Clock
from penstock.model.names import TopicName
from penstock.model.position import ConnectionId
from penstock.model.refusal import Refusal
from penstock.settings.load import Settings


class Engine:
    """The broker without its sockets."""

    needs_turn: bool
    is_failed: bool
    log_is_held: bool

    def __init__(
        self,
        store: Store,
        recovered: Recovered,
        clock: Clock,
        settings: Settings,
        *,
        facts: Mapping[int, FactsReader] | None = None,
        burials: Mapping[int, Burial] | None = None,
    ) -> None: ...

    # Definitions.
    def topic(self, name: TopicName) -> Topic | None:
        raise NotImplementedError

    def topics(self) -> list[Topic]:
        raise NotImplementedError

    def create_topic(
        self,
        name: TopicName,
        *,
        queues: int = 1,
        policy: TopicPolicy | None = None,
        is_durable: bool = True,
    ) -> Topic:
        raise NotImplementedError

    def grow_topic(self, name: TopicName, queues: int) -> Topic:
        raise NotImplementedError

    def set_policy(self, name: TopicName, policy: TopicPolicy) -> Topic:
        raise NotImplementedError

    def delete_topic(self, name: TopicName) -> None:
        raise NotImplementedError

    def create_subscription(
        self, topic: TopicName, name: str, options: SubscriptionOptions
    ) -> Subscription:
        raise NotImplementedError

    def delete_subscription(self, topic: TopicName, name: str) -> None:
        raise NotImplementedError

    def define(self, kind: str, key: str, body: bytes | None) -> None:
        raise NotImplementedError

    def definitions(self, kind: str) -> dict[str, bytes]:
        raise NotImplementedError

    def after_durable(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    # Connections.
    def connect(
        self,
        connection_id: ConnectionId,
        outlet: Outlet,
        name: str,
        options: ConnectionOptions | None = None,
    ) -> Connection:
        raise NotImplementedError

    def refuse_now(self) -> Refusal | None:
        raise NotImplementedError

    # Driving it.
    def turn(self) -> None:
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        raise NotImplementedError

    def take_sync_job(self) -> SyncJob | None:
        raise NotImplementedError

    def synced(self, job: SyncJob, error: Exception | None) -> None:
        raise NotImplementedError

    def set_alarm(self, name: str, value: int) -> None:
        raise NotImplementedError
