"""Who reads a group's topic, for the diagnosis: its members, and what keeps each from asking.

Members of a group read by asking, so a broker sees only that they do not. Which of a client's own
thresholds holds one of its queues (F15) the client alone knows, and it says so in its running info
(307): Penstock's client by name, others by what they have cached, which is held against RocketMQ's
usual thresholds. Whoever consumes in order stops at a message that fails: then the offset of its
queue stands still, and the running info has failures; or the lock of the queue belongs to a client
that is gone.

A client is asked only when its group is behind, at most every ``ASK_MS``, and nobody waits for the
answer: it is there at the next look. One that does not answer is judged without.

Invariants: what clients said is bounded (``ANSWERS_MAX``), and goes when it is old; a look sends
at most ``MEMBERS_ASKED_MAX`` questions.
Not here: what follows from it (``flow/delivery.py``), questions of operators (``admin.py``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.rocketmq.admin import ClientCalls
from penstock.adapters.rocketmq.group_registry import group_name
from penstock.adapters.rocketmq.naming import wire_name
from penstock.adapters.rocketmq.requests import ErrorResponse
from penstock.flow.thresholds import Cached, Threshold, Thresholds
from penstock.flow.views import GroupView, MemberView
from penstock.model.ids import ConnectionId
from penstock.wire.rocketmq.bodies import decode_body
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import Command, Malformed

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RemotingPeer, RocketmqBroker
    from penstock.engine.subscription.subscription import Subscription
    from penstock.engine.topic import Queue, Topic

ASK_MS: Final = 5000
"""Between two questions to the same client."""
OLD_MS: Final = 4 * ASK_MS
"""What a client said is no news after that."""
MEMBERS_ASKED_MAX: Final = 16
"""Of one group; the diagnosis names a few."""
ANSWERS_MAX: Final = 1024
"""Clients whose answers are kept; the oldest goes first."""
QUEUES_MAX: Final = 1024
"""Queues of one answer that are looked at."""
USUAL: Final = Thresholds()
"""RocketMQ's, unless a client was told otherwise, which is not in its running info."""
MIB: Final = 1 << 20

_HELD: Final = re.compile(
    r"(?P<queue>[^;]+) by (?P<threshold>messages|bytes|span) \(limit (?P<limit>\d+)\)"
)
"""How Penstock's client names a queue that a threshold holds (``consumer/statistics.py``)."""


class RunningQueue(msgspec.Struct, rename="camel"):
    """A queue in the hands of a client."""

    commit_offset: int = -1
    cached_msg_count: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_size: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_count: int = 0
    """In the hands of an ordered listener."""

    @property
    def cached(self) -> Cached:
        messages = self.cached_msg_count + self.transaction_msg_count
        span = self.cached_msg_max_offset - self.cached_msg_min_offset
        return Cached(messages, self.cached_msg_size * MIB, span)


class RunningTopic(msgspec.Struct):
    """What became of messages in the hands of a client."""

    failed_per_s: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    failed: int = msgspec.field(default=0, name="consumeFailedMsgs")


class RunningState(msgspec.Struct):
    """What a client says of itself, as far as it is of use here."""

    properties: dict[str, str] = {}
    queues: dict[str, RunningQueue] = msgspec.field(default={}, name="mqTable")
    """By a queue, written as JSON."""
    topics: dict[str, RunningTopic] = msgspec.field(default={}, name="statusTable")


class QueueName(msgspec.Struct, rename="camel"):
    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0


class GroupReaders:
    """Members of groups as the diagnosis sees them; asks those of groups that are behind."""

    def __init__(self, broker: RocketmqBroker) -> None:
        self._broker = broker
        self._answers: dict[tuple[str, str], Answer] = {}
        broker.engine.members_of.append(self.of)

    def __len__(self) -> int:
        return len(self._answers)

    def of(self, topic: Topic, subscription: Subscription, is_behind: bool) -> GroupView | None:
        """Clients that want the topic for their group; they are no consumers of it."""
        name = group_name(subscription.name)
        if name is None:
            return None
        found = self.members(topic, name, is_behind=is_behind)
        if found is None or not is_behind:
            return found
        queues = [each for each in topic.queues[:QUEUES_MAX] if subscription.ready(each.queue_id)]
        return msgspec.structs.replace(found, lock_owner=self._gone_owner(name, topic, queues))

    def members(self, topic: Topic, name: str, *, is_behind: bool) -> GroupView | None:
        """Clients of a group that wants the topic; they are asked when it is behind."""
        broker = self._broker
        group = broker.consumers.group(name)
        wanted = wire_name(topic.name)
        if group is None or group.is_empty or (group.wanted and wanted not in group.wanted):
            return None  # who pulls by itself may name no topics: then it may be any
        clients = group.client_ids[:MEMBERS_ASKED_MAX]
        if not is_behind:
            return GroupView(tuple([MemberView(each) for each in clients]))
        now_ms = broker.clock.monotonic_ms()
        return GroupView(tuple([self._member(name, each, wanted, now_ms) for each in clients]))

    def _gone_owner(self, group: str, topic: Topic, queues: list[Queue]) -> str:
        """Who has locked a queue with messages, and is no member any more."""
        broker = self._broker
        now_ms, name = broker.clock.monotonic_ms(), wire_name(topic.name)
        members = set(broker.consumers.client_ids(group) or ())
        for queue in queues:
            owner = broker.locks.owner(group, (name, queue.number), now_ms)
            if owner is not None and owner not in members:
                return owner
        return ""

    # What clients say.

    def _member(self, group: str, client: str, topic: str, now_ms: int) -> MemberView:
        key = (group, client)
        answer = self._answers.get(key)
        if answer is None or now_ms - answer.asked_ms >= ASK_MS:
            answer = self._ask(key, answer, now_ms)
        if answer is None:
            return MemberView(client)
        return answer.view(client, topic, now_ms)

    def _ask(self, key: tuple[str, str], before: Answer | None, now_ms: int) -> Answer | None:
        """Ask a client once more; what it said before stands until it answers."""
        group, client = key
        found = self._broker.consumers.group(group)
        member = None if found is None else found.by_client_id(client)
        if member is None:
            return before
        peer = self._broker.connections.get(ConnectionId(member.connection))
        if peer is None or not peer.is_taking:
            return before
        answer = before or Answer()
        answer.asked_ms = now_ms
        # Put anew, so that those asked last are the last to go.
        self._answers.pop(key, None)
        self._answers[key] = answer
        while len(self._answers) > ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        # Operators may have asked so much that nobody else may: without this answer, then.
        with contextlib.suppress(ErrorResponse):
            self._broker.service(ClientCalls).start(RunningInfoCall(peer, group, client, answer))
        return answer


class Answer:
    """What a client said last, and since when its offsets stand still."""

    __slots__ = ("_frozen", "asked_ms", "info", "said_ms")

    def __init__(self) -> None:
        self.info = RunningState()
        self.asked_ms = 0
        self.said_ms: int | None = None
        # Queue -> its offset, and since when it is the same.
        self._frozen: dict[str, tuple[int, int]] = {}

    def told(self, info: RunningState, now_ms: int) -> None:
        before, self._frozen = self._frozen, {}
        for key, queue in list(info.queues.items())[:QUEUES_MAX]:
            known = before.get(key)
            since_ms = now_ms
            if known is not None and known[0] == queue.commit_offset and queue.cached.messages:
                since_ms = known[1]
            self._frozen[key] = (queue.commit_offset, since_ms)
        self.info, self.said_ms = info, now_ms

    def view(self, client: str, topic: str, now_ms: int) -> MemberView:
        """What that says about one topic."""
        info = self.info
        if self.said_ms is None or now_ms - self.said_ms > OLD_MS:
            return MemberView(client)
        failed = info.topics.get(topic)
        queues = list(self._queues(topic))
        frozen = max(
            [(now_ms - self._frozen[key][1], name) for key, name, row in queues if _has(row)],
            default=(0, ""),
        )
        threshold, limit, cached, is_certain = self._threshold(topic, queues)
        return MemberView(
            client,
            threshold=threshold,
            limit=limit,
            cached=cached,
            is_certain=is_certain,
            is_ordered=info.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true",
            is_failing=failed is not None and (failed.failed_per_s > 0 or failed.failed > 0),
            frozen_ms=frozen[0],
            frozen_queue=frozen[1],
            unsettled=sum([max(0, row.cached.messages) for _, _, row in queues]),
        )

    def _queues(self, topic: str) -> Iterator[tuple[str, str, RunningQueue]]:
        """Key, name for people and figures of each queue of a topic."""
        for key in self._frozen:
            try:
                name = msgspec.json.decode(key, type=QueueName)
            except msgspec.DecodeError:
                continue
            if name.topic == topic:
                yield key, f"queue {name.queue_id} of {topic}", self.info.queues[key]

    def _threshold(
        self, topic: str, queues: list[tuple[str, str, RunningQueue]]
    ) -> tuple[str, int, int, bool]:
        """Which limit holds a queue, how much it is, what there is of it, and if that is sure."""
        properties = self.info.properties
        if "heldQueues" in properties:
            for held in _HELD.finditer(properties.get("held", "")):
                if held["queue"].strip().rpartition("@")[0] == topic:
                    threshold = Threshold(held["threshold"])
                    most = [_amount(row.cached, threshold) for _, _, row in queues]
                    return threshold, int(held["limit"]), max(most, default=-1), True
            return "", 0, 0, True
        is_ordered = properties.get("PROP_CONSUMEORDERLY", "").lower() == "true"
        limits = USUAL._replace(span_max=0) if is_ordered else USUAL
        for _, _, row in queues:
            # They stop above a limit, and say whole MiB.
            passed = limits.exceeded(row.cached._replace(size_bytes=row.cached.size_bytes + 1))
            if passed is not None:
                return passed, limits.limit_of(passed), _amount(row.cached, passed), False
        return "", 0, 0, True


class RunningInfoCall:
    """One question on its way to a client; satisfies ``admin.WaitingCall``."""

    __slots__ = ("_answer", "client", "forwarded", "is_over")

    def __init__(self, client: RemotingPeer, group: str, client_id: str, answer: Answer) -> None:
        self.client = client
        self.forwarded = Command(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"},
        )
        self.is_over = False
        self._answer = answer

    def on_response(self, answer: Command | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        if answer is None or answer.code:
            return
        try:
            info = decode_body(answer.body, RunningState)
        except Malformed:
            # Its own words, in a shape nobody knows: as if it had said nothing.
            return
        self._answer.told(info, self.client.broker.clock.monotonic_ms())

    def timed_out(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.client.forget(self.forwarded)


def _has(queue: RunningQueue) -> bool:
    return queue.cached.messages > 0


def _amount(cached: Cached, threshold: Threshold) -> int:
    return cached[(Threshold.MESSAGES, Threshold.BYTES, Threshold.SPAN).index(threshold)]
