"""One pull as consumers without a listener make it: with its own subscription, from any offset.

The subscription travels in the request, so a broker needs to know nothing of the group beforehand.
Brokers may suggest a slave for the next pull of a queue; the suggestion is followed. A broker that
cannot be reached is looked up anew for the next time.

Not here: when to pull (``pull_consumer.py``, ``lite_pulling.py``), the push consumer's pulls
(``pulling.py``).
"""

from penstock.client.consumer.pull_result import PULL_CODES, PullResult
from penstock.client.consumer.subscription import Subscription
from penstock.client.errors import ClientError, NoRoute, Unreachable
from penstock.client.instance import ClientInstance
from penstock.client.message import received
from penstock.client.routes import MASTER_ID, Found
from penstock.model.assignment import QueueRef
from penstock.wire.rocketmq.command import Malformed
from penstock.wire.rocketmq.headers import PullFlag, PullHeader


class PullRequests:
    """The pulls of one consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        timeout_ms: int,
        bytes_max: int | None = None,
        is_lite: bool = False,
    ) -> None:
        self._instance = instance
        self._group = group
        self._timeout_ms = timeout_ms
        self._bytes_max = bytes_max
        self._is_lite = is_lite
        self._suggested: dict[QueueRef, int] = {}

    async def pull(
        self, queue: QueueRef, offset: int, subscription: Subscription, *, count: int, wait_ms: int
    ) -> PullResult:
        """Messages from ``offset`` on; ``wait_ms`` is how long the broker may wait for some."""
        found = await self._readable(queue)
        flags = PullFlag.SUBSCRIPTION
        if wait_ms:
            flags |= PullFlag.SUSPEND
        if self._is_lite:
            flags |= PullFlag.LITE
        header = PullHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=int(flags),
            suspend_timeout_millis=wait_ms,
            subscription=subscription.data.sub_string,
            sub_version=subscription.data.sub_version,
            expression_type=subscription.data.expression_type,
            max_msg_bytes=self._bytes_max,
        )
        try:
            answer = await self._instance.calls.pull(
                found.address,
                header,
                timeout_ms=self._timeout_ms + wait_ms,
                is_lite=self._is_lite,
            )
        except Unreachable:
            self._suggested.pop(queue, None)
            await self._instance.routes.refresh([queue.topic])
            raise
        self._follow(queue, answer.header.suggest_which_broker_id)
        try:
            messages = subscription.matching(received(answer.body, queue))
        except Malformed as problem:
            raise ClientError(f"the answer of {found.address} cannot be read: {problem}") from None
        return PullResult(
            queue,
            PULL_CODES[answer.code],
            messages,
            answer.header.next_begin_offset,
            answer.header.min_offset,
            answer.header.max_offset,
        )

    def forget(self, queue: QueueRef) -> None:
        """The queue is not read any more."""
        self._suggested.pop(queue, None)

    def _follow(self, queue: QueueRef, suggested_id: int) -> None:
        if suggested_id == MASTER_ID:
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = suggested_id

    async def _readable(self, queue: QueueRef) -> Found:
        routes = self._instance.routes
        suggested_id = self._suggested.get(queue, MASTER_ID)
        found = routes.readable(queue.broker, suggested_id)
        if found is None:
            await routes.look_up(queue.topic)
            found = routes.readable(queue.broker, suggested_id)
        if found is None:
            raise NoRoute(queue.topic, f"broker {queue.broker} has no address")
        return found
