"""Compaction over REST: begin it, and ask how far it is."""

from __future__ import annotations

from typing import Any, Final

from msgspec import to_builtins

from penstock.adapters.pulsar.compaction import CompactionStatus
from penstock.adapters.pulsar.naming import PulsarName
from penstock.model.names import PERSISTENT
from penstock.server.pulsar_rest.request import (
    ANY,
    RestContext,
    RestError,
    RestRequest,
    RouteTable,
    of_topic,
)

_WORST_FIRST: Final = ("RUNNING", "ERROR", "NOT_RUN", "SUCCESS")


async def compact(api: RestContext, _request: RestRequest, name: PulsarName) -> None:
    """A partitioned topic is compacted partition by partition."""
    parts, compaction = _parts(api, name), api.broker.compaction
    if any(compaction.status(each).status == "RUNNING" for each in parts):
        raise RestError(409, "Compaction already in progress")
    for each in parts:
        compaction.start(each)


async def compaction_status(
    api: RestContext, _request: RestRequest, name: PulsarName
) -> dict[str, Any]:
    """Of several partitions that of the one which is furthest from being done."""
    found = [api.broker.compaction.status(each) for each in _parts(api, name)]
    worst = min(found, key=lambda each: _WORST_FIRST.index(each.status), default=None)
    return dict(to_builtins(worst or CompactionStatus()))


def _parts(api: RestContext, name: PulsarName) -> list[PulsarName]:
    api.existing(name)
    count = api.broker.topics.partitions(name)
    return [name.of_partition(number) for number in range(count)] if count else [name]


_PATH: Final = (PERSISTENT, ANY, ANY, ANY, "compaction")

COMPACTION_ROUTES: Final[RouteTable] = {
    ("PUT", _PATH): of_topic(compact, PERSISTENT),
    ("GET", _PATH): of_topic(compaction_status, PERSISTENT),
}
