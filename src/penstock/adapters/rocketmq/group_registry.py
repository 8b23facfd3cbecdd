"""What the catalog knows of consumer groups: configurations and committed offsets.

A group is known once somebody heard of it (auto-created, RocketMQ's usual way) or an operator made
it. Configurations are rows of kind ``rocketmq.group``, so that switches survive a restart; a group
with usual settings has a row, too, because it shall be listed.

Invariant: groups are bounded; beyond the bound a new one is unknown, which pulls answer with 26.
Not here: members (``groups.py``), requests about offsets (``offsets.py``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.adapters.rocketmq.naming import (
    DLQ_PREFIX,
    GROUP_TOPIC_CHARS_MAX,
    RETRY_PREFIX,
    neutral_name,
)
from penstock.adapters.rocketmq.requests import ErrorResponse
from penstock.engine.group.switches import ALL_ON, GroupSwitches
from penstock.engine.host import Start, SubscriptionOptions
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Queue, Topic
from penstock.model.ids import is_transient_id
from penstock.model.names import control_problem
from penstock.wire.rocketmq.bodies import SubscriptionGroupConfig, decode_body, encode_body
from penstock.wire.rocketmq.codes import ResponseCode
from penstock.wire.rocketmq.command import Malformed

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.broker import RocketmqBroker

_log = logging.getLogger(__name__)

GROUP_KIND: Final = "rocketmq.group"

GROUPS_MAX: Final = 10_000

OFFSETS_KIND: Final = "rocketmq.offsets"

PREFIX: Final = "rocketmq/"

NO_OFFSET: Final = -1

RESETS_MAX: Final = 100_000
"""Queues that wait for their readers to notice a reset."""

PULLED_MAX: Final = 100_000
"""Queues of groups whose reading position is kept; beyond it the oldest one goes, and what such a
group has in flight is not told."""

OPTIONS: Final = SubscriptionOptions(holds_data=False, start=Start.LATEST)

_PRUNE_MIN: Final = 1_000

GROUP_CHARS_MAX: Final = GROUP_TOPIC_CHARS_MAX - len(RETRY_PREFIX)
"""Its retry topic must have a name."""

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def problem_with_group(group: str) -> str | None:
    """What is wrong with a group's name; None when it will do."""
    if not group.strip():
        return "The specified group is blank."
    if _ALLOWED.fullmatch(group) is None or group.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return (
            f"The specified group[{group[:80]}] contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    if len(group) > GROUP_CHARS_MAX:
        return f"The specified group is longer than group max length {GROUP_CHARS_MAX}."
    # As its retry topic would be called in other protocols.
    return control_problem("The specified group", neutral_name(group).name)


class GroupRegistry:
    """The configurations of all groups."""

    __slots__ = (
        "_engine", "_groups", "_reserve", "_switches", "groups_max", "is_auto_creating",
    )  # fmt: skip

    def __init__(self, broker: RocketmqBroker, *, groups_max: int = GROUPS_MAX) -> None:
        self._engine = engine = broker.engine
        self._switches = broker.switches
        self._reserve = engine.new_reserve()
        self.is_auto_creating = broker.settings.is_auto_creating_groups
        self.groups_max = groups_max
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        for name, body in engine.definitions(GROUP_KIND).items():
            try:
                self._take(decode_body(body, SubscriptionGroupConfig))
            except Malformed as problem:
                # Losing switches is better than a broker that does not start.
                _log.error(
                    "the settings of a group cannot be read; defaults hold",
                    extra={"group": name, "problem": str(problem)},
                )

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, if it is known; nothing is created."""
        return self._groups.get(group)

    def find(self, group: str, maker: str = "") -> SubscriptionGroupConfig | None:
        """The group, created if that is allowed; None = it does not exist (26).

        Raises ``ErrorResponse`` 26 for a maker of many when only the reserve is left.
        """
        found = self._groups.get(group)
        if found is not None or not self.is_auto_creating:
            return found
        if problem_with_group(group) is not None or len(self._groups) >= self.groups_max:
            return None
        problem = self._reserve.refusal(maker, len(self._groups), self.groups_max)
        if problem is not None:
            raise ErrorResponse(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] is not created, no more groups: {problem}",
            )
        self._reserve.made(maker)
        made = SubscriptionGroupConfig(group_name=group)
        self.put(made)
        _log.info("a consumer group was created", extra={"group": group})
        return made

    def require(self, group: str, maker: str = "") -> SubscriptionGroupConfig:
        """The group, created if that is allowed; raises ``ErrorResponse`` 26."""
        config = self.find(group, maker)
        if config is None:
            raise ErrorResponse(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        return config

    def put(self, config: SubscriptionGroupConfig) -> bool:
        """Create a group or change it; False when there is no room for another one."""
        name = config.group_name
        if name not in self._groups and len(self._groups) >= self.groups_max:
            return False
        self._take(config)
        self._engine.define(GROUP_KIND, name, encode_body(config))
        return True

    def delete(self, group: str) -> bool:
        """Forget a group; False when nobody knew it."""
        if self._groups.pop(group, None) is None:
            return False
        self._switches.set(group, ALL_ON)
        self._engine.define(GROUP_KIND, group, None)
        return True

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        return dict(self._groups)

    def _take(self, config: SubscriptionGroupConfig) -> None:
        self._groups[config.group_name] = config
        self._switches.set(
            config.group_name,
            GroupSwitches(
                config.consume_enable,
                config.consume_broadcast_enable,
                config.notify_consumer_ids_changed_enable,
            ),
        )


def subscription_name(group: str) -> str:
    """What the engine calls a group's subscription."""
    return PREFIX + group


def group_name(subscription: str) -> str | None:
    """The group of an engine subscription; None when it is not RocketMQ's."""
    return subscription.removeprefix(PREFIX) if subscription.startswith(PREFIX) else None


def _nobody_listens(_queue: Queue, _group: str, _begin: int, _end: int, _messages: int) -> None:
    """Until somebody wants to hear of pulls without a place."""


class OffsetRegistry:
    """Where groups stand: an engine subscription per (topic, group) that only commits (D11).

    A group reads by itself and says from time to time how far it is; the subscription's low mark in
    a queue is that offset. A queue that the group never committed has no offset, which is different
    from offset 0: new groups decide for themselves where to begin. So beside the subscription a row
    of kind ``rocketmq.offsets`` remembers which queues were committed; it changes once per queue.

    The subscription is called ``rocketmq/<group>``, so that one of another protocol with the same
    name is another one. It holds no data: messages go by age.

    After a reset on this side, commits of a group's queue are ignored until its members were told
    by their next pull (5.x), or an old member would undo the reset.

    A negative offset is none, and never replaces one; an offset beyond the end is stored as the
    end; a lower one is obeyed and logged.
    """

    __slots__ = (
        "_committed",
        "_engine",
        "_prune_at",
        "_pulled",
        "_resets",
        "pulled_by_new",
        "went_back",
    )

    def __init__(self, broker: RocketmqBroker) -> None:
        self._engine = engine = broker.engine
        self.went_back = 0
        """Commits below what was stored."""
        self.pulled_by_new: Callable[[Queue, str, int, int, int], None] = _nobody_listens
        """Told of pulls of groups that never committed (``new_groups.py``)."""
        # subscription id -> ids of the queues that were committed
        self._committed: dict[int, set[int]] = {}
        self._prune_at = _PRUNE_MIN
        # (subscription id, queue id) -> where the readers shall go on
        self._resets: dict[tuple[int, int], int] = {}
        # (queue id, group) -> where the next pull begins; of this process only, for statistics
        self._pulled: dict[tuple[int, str], int] = {}
        alive = self._alive()
        for key, body in engine.definitions(OFFSETS_KIND).items():
            if key.isdecimal() and int(key) in alive:
                self._committed[int(key)] = set(msgspec.json.decode(body, type=list[int]))
            else:
                engine.define(OFFSETS_KIND, key, None)

    def subscription(self, topic: Topic, group: str) -> Subscription | None:
        """The group's subscription, if it ever committed (or popped)."""
        return topic.subscriptions.get(subscription_name(group))

    def opened(self, topic: Topic, group: str) -> Subscription:
        """The group's subscription, made if need be; raises ``AlreadyExists`` for no room."""
        found = self.subscription(topic, group)
        if found is None:
            self._prune()
            found = self._engine.create_subscription(topic.name, subscription_name(group), OPTIONS)
        return found

    def committed(self, queue: Queue, group: str) -> int:
        """Where the group stands; ``NO_OFFSET`` when it never said."""
        found = self.subscription(queue.topic, group)
        if found is None or queue.queue_id not in self._committed.get(found.subscription_id, ()):
            return NO_OFFSET
        return found.low_mark(queue.queue_id)

    def commit(self, queue: Queue, group: str, offset: int, peer: str = "") -> bool:
        """The group stands at ``offset``; False when that was ignored."""
        if offset < 0:
            return False
        subscription = self.opened(queue.topic, group)
        if (subscription.subscription_id, queue.queue_id) in self._resets:
            return False
        self._store(subscription, queue, offset, peer)
        return True

    def reset(self, queue: Queue, group: str, offset: int, *, is_announced: bool = True) -> int:
        """Move a group on purpose; its readers are told by their next pull if ``is_announced``."""
        subscription = self.opened(queue.topic, group)
        # Also to where it stands: what was popped and is invisible comes again from there on.
        subscription.seek(queue.queue_id, min(offset, queue.visible_end(False)))
        stored = subscription.low_mark(queue.queue_id)
        self._pulled.pop((queue.queue_id, group), None)
        known = self._committed.setdefault(subscription.subscription_id, set())
        if queue.queue_id not in known:
            known.add(queue.queue_id)
            self._save(subscription.subscription_id)
        if is_announced and len(self._resets) < RESETS_MAX:
            self._resets[subscription.subscription_id, queue.queue_id] = stored
        return stored

    def pulled(
        self, queue: Queue, group: str, offset: int, *, begin: int, messages: int = 0
    ) -> None:
        """The group has read from ``begin`` up to ``offset``, and was given so many."""
        found = self.subscription(queue.topic, group)
        if found is not None:
            found.note_read()
        else:
            self.pulled_by_new(queue, group, begin, offset, messages)
        key = (queue.queue_id, group)
        if key not in self._pulled and len(self._pulled) >= PULLED_MAX:
            del self._pulled[next(iter(self._pulled))]
        self._pulled[key] = offset

    def read_up_to(self, queue: Queue, group: str) -> int:
        """How far the group has read, which is never less than what it committed."""
        return max(self._pulled.get((queue.queue_id, group), 0), self.committed(queue, group), 0)

    def take_reset(self, queue: Queue, group: str) -> int | None:
        """Where a reader must go on that does not know it yet; told once."""
        if not self._resets:
            return None
        found = self.subscription(queue.topic, group)
        if found is None:
            return None
        return self._resets.pop((found.subscription_id, queue.queue_id), None)

    def topics_of(self, group: str) -> list[Topic]:
        """The topics a group has offsets of."""
        name = subscription_name(group)
        return [topic for topic in self._engine.topics() if name in topic.subscriptions]

    def groups_of(self, topic: Topic) -> list[str]:
        """The groups that have offsets of a topic."""
        names = [group_name(name) for name in topic.subscriptions]
        return [name for name in names if name is not None]

    def forget(self, topic: Topic, group: str) -> bool:
        """The group's offsets of a topic go."""
        for queue in topic.queues:
            self._pulled.pop((queue.queue_id, group), None)
        found = self.subscription(topic, group)
        if found is None:
            return False
        self._drop(found.subscription_id)
        self._engine.delete_subscription(topic.name, found.name)
        return True

    def _store(self, subscription: Subscription, queue: Queue, offset: int, peer: str) -> None:
        queue_id = queue.queue_id
        subscription.note_read()
        offset = min(offset, queue.visible_end(False))
        known = self._committed.setdefault(subscription.subscription_id, set())
        low = subscription.low_mark(queue_id)
        if queue_id not in known:
            # What stands there is only where the subscription was made: nobody went back.
            if offset != low:
                subscription.seek(queue_id, offset)
            known.add(queue_id)
            self._save(subscription.subscription_id)
        elif offset != low:
            if offset < low:
                self._note_back(subscription, queue, (low, offset), peer)
            subscription.commit(queue_id, offset)

    def _note_back(
        self, subscription: Subscription, queue: Queue, move: tuple[int, int], peer: str
    ) -> None:
        self.went_back += 1
        _log.warning(
            "[NOTIFYME]update consumer offset less than store",
            extra={
                "group": group_name(subscription.name),
                "queue": queue.name,
                "from": move[0],
                "to": move[1],
                "peer": peer,
            },
        )

    def _save(self, subscription_id: int) -> None:
        if not is_transient_id(subscription_id):
            body = msgspec.json.encode(sorted(self._committed[subscription_id]))
            self._engine.define(OFFSETS_KIND, str(subscription_id), body)

    def _drop(self, subscription_id: int) -> None:
        self._committed.pop(subscription_id, None)
        self._engine.define(OFFSETS_KIND, str(subscription_id), None)
        for key in [key for key in self._resets if key[0] == subscription_id]:
            del self._resets[key]

    def _prune(self) -> None:
        """Forget subscriptions that went with their topics; now and then, not each time."""
        if len(self._committed) < self._prune_at:
            return
        alive = self._alive()
        for gone in [each for each in self._committed if each not in alive]:
            self._drop(gone)
        self._prune_at = max(_PRUNE_MIN, 2 * len(self._committed))

    def _alive(self) -> set[int]:
        return {
            subscription.subscription_id
            for topic in self._engine.topics()
            for subscription in topic.subscriptions.values()
        }
