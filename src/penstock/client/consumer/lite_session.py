"""The life of a lite pull consumer: made, started, stopped.

Not here: what it does in between (``lite_pull_consumer.py``).
"""

from collections import deque
from typing import Self, Unpack

from penstock.client.clock import MachineClock
from penstock.client.consumer.lite_member import LiteMember
from penstock.client.consumer.pull_options import LitePullOptions
from penstock.client.consumer.subscription import Subscriptions
from penstock.client.errors import StateError
from penstock.client.instance import instance
from penstock.client.message import ReceivedMessage
from penstock.client.name_servers import NameServerList, parse_name_servers
from penstock.client.options import resolve
from penstock.client.states import Life, State
from penstock.client.twins import awaitable, blocking
from penstock.model.assignment import QueueRef


class LiteSession:
    """Start and stop, and what is known before and after."""

    def __init__(
        self, name_servers: NameServerList, group: str, **options: Unpack[LitePullOptions]
    ) -> None:
        if not group:
            raise ValueError("a consumer needs a group")
        self.group = group
        self._name_servers = parse_name_servers(name_servers)
        self._options = resolve(LitePullOptions, options)
        self._life = Life(f"lite pull consumer {group!r}")
        self._subscriptions = Subscriptions(MachineClock().wall_ms)
        self._is_subscribed = False
        self._assigned: list[QueueRef] | None = None
        self._member: LiteMember | None = None
        self._given: deque[ReceivedMessage] = deque()
        """Polled by an iterator, and not yet given to the user."""

    @property
    def state(self) -> State:
        """Created, running, stopped or failed."""
        return self._life.state

    async def _start(self) -> None:
        """Join the group and pull."""
        self._life.begin()
        shared = instance(
            self._name_servers,
            self._options,
            is_named_by_process=not self._options["is_broadcasting"],
        )
        member = LiteMember(shared, self.group, self._options, self._subscriptions)
        await member.start(self._assigned)
        self._member = member
        self._life.started()

    start = blocking(_start)
    start_async = awaitable(_start)

    async def _stop(self, *, is_clean: bool = True) -> None:
        """Commit (if that is automatic) and leave; not ``is_clean``: earlier polls only."""
        member, self._member = self._member, None
        if member is None:
            return
        self._life.state = State.STOPPING
        try:
            await member.stop(is_clean=is_clean, held=self._held())
        finally:
            self._life.state = State.STOPPED

    stop = blocking(_stop)
    stop_async = awaitable(_stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(is_clean=kind is None)

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.stop_async(is_clean=kind is None)

    def _held(self) -> dict[QueueRef, int]:
        """Where the messages begin that an iterator holds for the user."""
        found: dict[QueueRef, int] = {}
        for message in list(self._given):
            found.setdefault(message.queue, message.offset)
        return found

    def _running(self) -> LiteMember:
        self._life.check_running()
        if self._member is None:
            raise StateError(f"lite pull consumer {self.group!r} is stopping")
        return self._member
