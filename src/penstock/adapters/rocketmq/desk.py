"""What operators see and do through the house: satisfies ``server/admin_views.Desk``.

Topics made here keep their messages ``retention_ms`` like those of any RocketMQ client, and are
told to name servers. A reset is announced to members with their next pull, as request 222 does it.

Not here: the same by RocketMQ's own requests (``topic_admin.py``, ``groups.py``, ``mode.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.adapters.rocketmq.group_book import GroupBook
from penstock.adapters.rocketmq.groups import delete_group
from penstock.adapters.rocketmq.mode import Modes
from penstock.adapters.rocketmq.naming import wire_name
from penstock.adapters.rocketmq.offset_book import NO_OFFSET, PREFIX, OffsetBook
from penstock.adapters.rocketmq.pops import forget_retries
from penstock.adapters.rocketmq.replies import Answer
from penstock.engine.group.assignment import ConsumeMode, ModeSetting
from penstock.engine.topic import Queue, Topic
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.wire.rocketmq.bodies import TopicConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.adapters.rocketmq.house import House


class OperatorDesk:
    """Operators' requests, answered by one house."""

    prefix: Final = PREFIX

    def __init__(self, house: House) -> None:
        self._house = house
        self._groups = house.part(GroupBook)
        self._offsets = house.part(OffsetBook)

    def place(self) -> dict[str, str]:
        """This broker as its name server lists it."""
        house = self._house
        return {
            "broker": house.broker_name,
            "cluster": house.cluster,
            "address": house.address if house.broker_port else "",
            "name_server": house.name_server,
        }

    def create_topic(self, name: TopicName, queues: int) -> None:
        """A topic that clients may send to and read from."""
        config = TopicConfig(
            topic_name=wire_name(name), read_queue_nums=queues, write_queue_nums=queues
        )
        self._house.topics.put(config)

    def delete_topic(self, topic: Topic) -> None:
        """The topic goes, with its configuration and its groups' modes."""
        name = wire_name(topic.name)
        forget_retries(self._house, name)
        self._house.topics.delete(name)
        self._house.part(Modes).forget_topic(name)

    def group_names(self) -> Collection[str]:
        """Every configured group, and whoever is connected."""
        return self._groups.all()

    def members(self, group: str) -> Sequence[str]:
        """Client ids."""
        found = self._house.consumers.group(group)
        return found.client_ids if found is not None else []

    def has_offset(self, queue: Queue, group: str) -> bool:
        """Whether it was ever committed."""
        return self._offsets.committed(queue, group) != NO_OFFSET

    def mode(self, topic: Topic, group: str) -> tuple[str, int]:
        """Pull or pop, and how many help."""
        setting = self._house.modes.get(wire_name(topic.name), group)
        return setting.mode.value, setting.share

    def set_mode(self, topic: Topic, group: str, mode: str, share: int) -> None:
        """Pull or pop from the members' next look on."""
        setting = ModeSetting(ConsumeMode(mode), share)
        try:
            self._house.part(Modes).set(wire_name(topic.name), group, setting)
        except Answer as refused:
            raise PenstockError(refused.remark) from None

    def reset(self, queue: Queue, group: str, offset: int) -> None:
        """Members notice with their next pull."""
        self._offsets.reset(queue, group, offset)

    def forget(self, topic: Topic | None, group: str) -> None:
        """Offsets of one topic, or the group."""
        if topic is not None:
            self._offsets.forget(topic, group)
        else:
            delete_group(self._house, group, is_forgetting=True)
