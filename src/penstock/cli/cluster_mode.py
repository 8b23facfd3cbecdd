"""A group's mode on every broker of a RocketMQ cluster, as operators mean it: ``groups mode``.

The broker that is asked says which name server knows it (``/api/places``); that one lists the
masters of the cluster (request 106), and each of them gets request 401. Brokers are told one after
the other, and one that fails does not keep the rest from being told. A broker that the name server
does not list (yet) is not told, except the one that was asked.

Not here: a broker on its own (``groups.py`` asks it over HTTP), what a mode is (``mode.py`` of the
adapter).
"""

from pathlib import Path
from typing import Any, Final

from penstock.cli.asking import address, asked, path_of
from penstock.cli.remoting import RemotingClient
from penstock.model.errors import NotFound, PenstockError
from penstock.wire.rocketmq.bodies import (
    MASTER,
    Cluster,
    RequestMode,
    SetRequestModeBody,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode

ANSWER_SECONDS_MAX: Final = 5.0
"""A broker that has not taken the order by then is reported; the next one's turn."""

WILDCARDS: Final = ("0.0.0.0", "::")


def cluster_brokers(topic: str, *, data: Path, endpoint: str) -> dict[str, str]:
    """Name -> address of every broker of the asked one's cluster; empty when it is on its own.

    ``NotFound`` when none of them has the topic.
    """
    where: dict[str, Any] = {"data": data, "endpoint": endpoint}
    place = next((each for each in asked("GET", path_of("places"), **where)), None)
    if place is None or not place["name_server"]:
        return {}
    try:
        with _dial(place["name_server"], address(**where)[0]) as names:
            found = _masters(names, place["cluster"])
            if place["address"]:
                found.setdefault(place["broker"], place["address"])
            if set(found) <= {place["broker"]}:
                return {}
            _check_topic(names, topic, where)
    except (OSError, ValueError) as error:
        raise PenstockError(
            f"name server {place['name_server']} does not answer ({error}), so nothing was set: "
            "it knows the brokers of the cluster"
        ) from None
    return found


def set_everywhere(
    brokers: dict[str, str], group: str, topic: str, *, mode: str, share: int
) -> list[dict[str, str]]:
    """Tell each broker; what became of it, ``error`` empty where it is set."""
    body = SetRequestModeBody(
        topic=topic,
        consumer_group=group,
        mode=RequestMode(mode.upper()),
        pop_share_queue_num=share,
    )
    order = encode_body(body)
    return [
        {"broker": name, "address": place, "error": _set(place, order)}
        for name, place in sorted(brokers.items())
    ]


def _set(place: str, order: bytes) -> str:
    try:
        with _dial(place) as broker:
            answer = broker.request(
                RequestCode.SET_MESSAGE_REQUEST_MODE, body=order, seconds_max=ANSWER_SECONDS_MAX
            )
    except (OSError, ValueError) as error:
        return f"it does not answer ({error})"
    return "" if answer.is_ok else answer.remark or f"it refused with code {answer.code}"


def _masters(names: RemotingClient, cluster: str) -> dict[str, str]:
    answer = names.request(RequestCode.GET_BROKER_CLUSTER_INFO, seconds_max=ANSWER_SECONDS_MAX)
    if not answer.is_ok:
        raise PenstockError(f"the name server lists no brokers: {answer.remark}")
    known = decode_body(answer.body, Cluster)
    members = set(known.cluster_addr_table.get(cluster, []))
    return {
        name: each.broker_addrs[MASTER]
        for name, each in known.broker_addr_table.items()
        if name in members and MASTER in each.broker_addrs
    }


def _check_topic(names: RemotingClient, topic: str, where: dict[str, Any]) -> None:
    """A misspelt topic is told before anything is set."""
    try:
        asked("GET", path_of("topics", topic), **where)
    except NotFound:
        if names.route(topic) is None:
            raise


def _dial(place: str, wildcard_host: str = "127.0.0.1") -> RemotingClient:
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    return RemotingClient(
        wildcard_host if host in WILDCARDS else host,
        int(port),
        dial_seconds_max=ANSWER_SECONDS_MAX,
    )
