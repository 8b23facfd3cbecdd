"""What happened to a group, told to its members: NOTIFY_CONSUMER_IDS_CHANGED (40).

Every member is told of every change, the newcomer included; clients divide the queues anew at once
(ali-ons ignores the notice and finds out by its own timer). Broadcasting groups are never told, a
broker or a group may be set not to tell. A client id that two connections use is a mistake of its
owner that shows as messages consumed twice or never, so it is said in the log.

Invariant: at most one push per member for one heartbeat, leave or close.
Not here: who is a member (``engine/group/membership.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.adapters.rocketmq.filter_maps import FilterMaps
from penstock.engine.group.membership import Notice, NoticeKind
from penstock.model.ids import ConnectionId
from penstock.wire.rocketmq.codes import RequestCode
from penstock.wire.rocketmq.command import FLAG_ONEWAY, Command
from penstock.wire.rocketmq.headers import GroupHeader, fields

if TYPE_CHECKING:
    from penstock.adapters.rocketmq.house import House
    from penstock.adapters.rocketmq.session import Session

_log = logging.getLogger(__name__)


class Notices:
    """Tells peers and the log."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._maps = house.part(FilterMaps)
        self.counts = {kind.value: 0 for kind in NoticeKind}
        """What happened to groups, by kind; ``changed`` counts members that were told."""
        house.engine.tallies.show(
            "rocketmq_group_events", "Members that came, went or were told", "kind", self.counts
        )

    def tell(self, notices: Sequence[Notice]) -> str | None:
        """Pass on what happened; the text of a refusal, if there is one."""
        refusal: str | None = None
        for notice in notices:
            kind = notice.kind
            self.counts[kind.value] += 1 if kind is not NoticeKind.CHANGED else 0
            match kind:
                case NoticeKind.CHANGED:
                    self._changed(notice)
                case NoticeKind.DUPLICATE:
                    _log.warning(notice.text, extra=_where(notice))
                case NoticeKind.EXPIRED:
                    self._expired(notice)
                case NoticeKind.REFUSED:
                    refusal = notice.text
                    _log.warning("a client was not registered: %s", notice.text)
                case NoticeKind.JOINED | NoticeKind.LEFT:
                    _log.info("a member %s", kind.value, extra=_where(notice))
                case NoticeKind.WANTS:
                    self._maps.changed(notice.group, notice.topics)
                    _log.debug("a group wants something else", extra=_where(notice))
                case NoticeKind.FORGOTTEN:
                    self._maps.forgotten(notice.group)
                    _log.debug("a group is forgotten", extra=_where(notice))
        return refusal

    def sessions_of(self, group: str) -> list[Session]:
        """The connections of a group's members that still live."""
        found = self._house.consumers.group(group)
        if found is None:
            return []
        sessions = self._house.sessions
        alive = [sessions.get(ConnectionId(each)) for each in found.connections]
        return [session for session in alive if session is not None]

    def _changed(self, notice: Notice) -> None:
        if not self._house.settings.is_notifying_members:
            return
        sessions = self._house.sessions
        ext = fields(GroupHeader(consumer_group=notice.group))
        for connection in notice.audience:
            session = sessions.get(ConnectionId(connection))
            if session is not None:
                code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                session.push(Command(code, ext, flag=FLAG_ONEWAY))
                self.counts[notice.kind.value] += 1

    def _expired(self, notice: Notice) -> None:
        _log.warning("a member was silent for too long", extra=_where(notice))
        session = self._house.sessions.get(ConnectionId(notice.connection))
        if session is not None:
            session.wants_close = True
            session.write()


def _where(notice: Notice) -> dict[str, object]:
    return {
        "group": notice.group,
        "client": notice.client_id,
        "connection": notice.connection,
        "topics": notice.topics,
    }
