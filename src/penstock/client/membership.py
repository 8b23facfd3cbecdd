"""The members of one instance, and what is asked of all of them at once.

Invariant: one consumer per group; several producers may share one, the newest answers for it.
Not here: when it is asked (``instance.py``), what members are (``members.py``).
"""

import asyncio
import logging

from penstock.client.errors import GroupTaken
from penstock.client.members import ConsumerMember, ProducerMember
from penstock.wire.rocketmq.bodies import HeartbeatData, ProducerData

_log = logging.getLogger(__name__)


class Membership:
    """Who is here."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._consumers: dict[str, ConsumerMember] = {}
        self._producers: dict[str, list[ProducerMember]] = {}

    @property
    def is_empty(self) -> bool:
        """True when nobody is here."""
        return not self._consumers and not self._producers

    def consumer(self, group: str) -> ConsumerMember | None:
        """The consumer of a group."""
        return self._consumers.get(group)

    def producer(self, group: str) -> ProducerMember | None:
        """The newest producer of a group."""
        members = self._producers.get(group)
        return members[-1] if members else None

    def consumer_groups(self) -> list[str]:
        """Groups with a consumer here."""
        return list(self._consumers)

    def producer_groups(self) -> list[str]:
        """Groups with a producer here."""
        return list(self._producers)

    def add_consumer(self, member: ConsumerMember) -> None:
        """Raises ``GroupTaken`` when its group has one."""
        if member.group in self._consumers:
            raise GroupTaken(member.group, "consumer", self._client_id)
        self._consumers[member.group] = member

    def add_producer(self, member: ProducerMember) -> None:
        """One more, of whichever group."""
        self._producers.setdefault(member.group, []).append(member)

    def drop_consumer(self, member: ConsumerMember) -> bool:
        """True when it was here: brokers must be told."""
        if self._consumers.get(member.group) is not member:
            return False
        del self._consumers[member.group]
        return True

    def drop_producer(self, member: ProducerMember) -> bool:
        """True when it was the last of its group: brokers must be told."""
        members = self._producers.get(member.group, [])
        if member not in members:
            return False
        members.remove(member)
        if members:
            return False
        del self._producers[member.group]
        return True

    def clear(self) -> None:
        """Nobody is here any more."""
        self._consumers.clear()
        self._producers.clear()

    def topics(self) -> set[str]:
        """Topics that somebody uses."""
        found: set[str] = set()
        for consumer in self._consumers.values():
            found |= consumer.topics()
        for members in self._producers.values():
            for producer in members:
                found |= producer.topics()
        return found

    def heartbeat(self) -> HeartbeatData | None:
        """What brokers are told; None when nobody is here."""
        if self.is_empty:
            return None
        return HeartbeatData(
            client_id=self._client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
            consumer_data_set=[each.heartbeat() for each in self._consumers.values()],
        )

    def route_changed(self, topic: str) -> bool:
        """Tell consumers of the topic; True when there are any."""
        concerned = [each for each in self._consumers.values() if topic in each.topics()]
        for member in concerned:
            member.route_changed(topic)
        return bool(concerned)

    async def rebalance(self) -> bool:
        """Have all consumers divide their queues; True when all did."""
        members = list(self._consumers.values())
        asked = [each.rebalance() for each in members]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        for member, outcome in zip(members, outcomes, strict=True):
            if isinstance(outcome, Exception):
                _log.error("rebalance failed", extra={"group": member.group}, exc_info=outcome)
        return all(outcome is True for outcome in outcomes)

    async def persist_offsets(self) -> None:
        """Have all consumers store their offsets."""
        members = list(self._consumers.values())
        asked = [each.persist_offsets() for each in members]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        for member, outcome in zip(members, outcomes, strict=True):
            if isinstance(outcome, Exception):
                extra = {"group": member.group, "why": repr(outcome)}
                _log.warning("offsets not stored", extra=extra)
