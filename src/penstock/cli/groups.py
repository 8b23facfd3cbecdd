"""``penstock groups``: how far behind each group is, and moving, deleting and switching them."""

import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli.endpoint import takes_endpoint
from penstock.cli.http_client import (
    GROUP_COLUMNS,
    LAG_COLUMNS,
    Column,
    address,
    age_text,
    all_rows,
    as_json,
    asked,
    in_space,
    path_of,
    print_json,
    print_rows,
    say,
    tell,
)
from penstock.cli.remoting import RemotingClient
from penstock.model.errors import NotFound, PenstockError
from penstock.model.ids import size_text
from penstock.wire.rocketmq.bodies import (
    MASTER,
    Cluster,
    RequestMode,
    SetRequestModeBody,
    decode_body,
    encode_body,
)
from penstock.wire.rocketmq.codes import RequestCode

_TOPIC = click.option("--topic", required=True, help="The topic it reads.")

_GROUPS: Final[tuple[Column, ...]] = (
    ("GROUP", lambda row: row["group"]),
    ("TOPIC", lambda row: row["topic"] or "-"),
    *GROUP_COLUMNS,
)
_QUEUES: Final[tuple[Column, ...]] = (
    ("QUEUE", lambda row: f"{row['queue']}"),
    ("OFFSET", lambda row: f"{row['offset']:,}"),
    ("END", lambda row: f"{row['end_offset']:,}"),
    *LAG_COLUMNS,
)


@click.group("groups", short_help="Lag of consumer groups; reset, delete or switch them.")
def command() -> None:
    """See how far behind consumer groups are, and reset, delete or switch them."""


@command.command("list")
@click.argument("contains", default="")
@click.option("--all", "is_hidden", is_flag=True, help="On internal topics, too.")
@as_json
@takes_endpoint
def list_(contains: str, is_hidden: bool, is_json: bool, **where: Any) -> None:
    """List groups whose name contains CONTAINS, on every topic they read."""
    rows = all_rows("groups", contains=contains, is_hidden=is_hidden, **where)
    if is_json:
        print_json(rows)
        return
    print_rows(_GROUPS, rows)


@command.command("show")
@click.argument("group")
@as_json
@takes_endpoint
def show(group: str, is_json: bool, **where: Any) -> None:
    """Show GROUP queue by queue, and who is in it."""
    found = asked("GET", path_of("groups", group), **where)
    if is_json:
        print_json(found)
        return
    for each in found["topics"]:
        share = f" (share {each['share']})" if each["share"] >= 0 else ""
        say(
            f"{group} on {each['topic'] or 'no topic'}: {each['lag_messages']:,} messages, "
            f"{size_text(each['lag_bytes'])}, {age_text(each['lag_seconds'])} behind; "
            f"{each['mode'] or 'idle'}{share}"
        )
        if each["queues"]:
            print_rows(_QUEUES, each["queues"])
        for member in each["members"]:
            say(f"  member {member}")


@command.command("reset")
@click.argument("group")
@_TOPIC
@in_space
@click.option(
    "--to",
    default="latest",
    show_default=True,
    help="earliest, latest, an offset, or a time: 2026-01-31T08:00, or 10m, 2h, 3d ago.",
)
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@as_json
@takes_endpoint
def reset(
    group: str, topic: str, space: str, *, to: str, queue: int | None, is_json: bool, **where: Any
) -> None:
    """Let GROUP read on from elsewhere."""
    order = {"group": group, "topic": topic, "space": space, "to": _target(to), "queue": queue}
    answer = asked("POST", path_of("group-offsets"), order, **where)
    if is_json:
        print_json(answer)
        return
    say(answer["done"])
    print_rows(_QUEUES, answer["queues"])


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _target(to: str) -> str | int:
    if to in ("earliest", "latest"):
        return to
    if to.isdecimal():
        return int(to)
    if to[:-1].isdecimal() and to[-1] in _UNITS_S:
        return f"time:{int((time.time() - int(to[:-1]) * _UNITS_S[to[-1]]) * 1000)}"
    try:
        return f"time:{int(datetime.fromisoformat(to).timestamp() * 1000)}"
    except ValueError:
        raise click.BadParameter(
            f"{to!r} is neither earliest, latest, an offset nor a time such as 2026-01-31T08:00 "
            "or 2h",
            param_hint="--to",
        ) from None


@command.command("delete")
@click.argument("group")
@click.option("--topic", default="", help="Only from this topic; else from all.")
@in_space
@as_json
@takes_endpoint
def delete(group: str, topic: str, space: str, is_json: bool, **where: Any) -> None:
    """Delete GROUP with its offsets."""
    path = path_of("groups", group, topic=topic, space=space)
    tell(asked("DELETE", path, **where), is_json)


@command.command("mode")
@click.argument("group")
@_TOPIC
@click.argument("mode", type=click.Choice(["pop", "pull"]))
@click.option("--share", default=-1, help="With pop: members that help with a queue; -1 = all.")
@as_json
@takes_endpoint
def mode_(group: str, topic: str, mode: str, share: int, is_json: bool, **where: Any) -> None:
    """Switch GROUP between pulling its queues and popping messages (RocketMQ 5).

    Every broker of the cluster is told; one that does not take it is named, the others are set.
    """
    # Imported only here: no other verb of groups speaks RocketMQ.

    brokers = cluster_brokers(topic, **where)
    if not brokers:
        order = {"group": group, "topic": topic, "mode": mode, "share": share}
        tell(asked("POST", path_of("group-modes"), order, **where), is_json)
        return
    outcomes = set_everywhere(brokers, group, topic, mode=mode, share=share)
    done = f"group '{group}' reads '{topic}' by {mode}"
    if is_json:
        print_json({"done": done, "brokers": outcomes})
    failed = [each for each in outcomes if each["error"]]
    for each in outcomes:
        if not is_json and not each["error"]:
            say(f"broker {each['broker']} at {each['address']}: {done}")
    if failed:
        raise PenstockError(
            "not set on "
            + "; ".join(
                f"broker {each['broker']} at {each['address']}: {each['error']}" for each in failed
            )
        )


# ---- cluster mode -------------------------------------------------------------------------------
# A group's mode on every broker of a RocketMQ cluster, as operators mean it: ``groups mode``.
#
# The broker that is asked says which name server knows it (``/api/places``); that one lists the
# masters of the cluster (request 106), and each of them gets request 401. Brokers are told one
# after the other, and one that fails does not keep the rest from being told. A broker that the name
# server does not list (yet) is not told, except the one that was asked.


ANSWER_SECONDS_MAX: Final = 5.0
"""A broker that has not taken the order by then is reported; the next one's turn."""

WILDCARDS: Final = ("0.0.0.0", "::")


def cluster_brokers(topic: str, *, data: Path | None, endpoint: str) -> dict[str, str]:
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
