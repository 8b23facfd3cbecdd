"""The one rule by which every verb finds its broker.

    1. a flag          --endpoint (HTTP), --name-server (RocketMQ) or --flight (Spark); else
                       --data DIR: the ready file of the broker on that directory
    2. the environment PENSTOCK_ENDPOINT, PENSTOCK_FLIGHT, or NAMESRV_ADDR as RocketMQ's own tools
                       read it
    3. the ready file  of the data directory that `penstock up` takes here: PENSTOCK_BROKER_DATA,
                       else ./penstock-data
    4. the default     port of the protocol on this machine

A flag is obvious, and so is the broker of the directory one is in; the other two are said on the
error output, once, so that nobody changes a broker that was not meant. A broker that is ready but
has no such port is an error and not passed over: the next one in line would be another broker.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from penstock.model.errors import NotFound, PenstockError
from penstock.settings.broker import BrokerSettings, ListenerSettings
from penstock.settings.load import variable_name


class Door(NamedTuple):
    """A port of a broker as verbs look for it."""

    listener: str
    """Its name in the ready file and among the settings."""
    title: str
    flag: str
    variable: str


HTTP: Final = Door("http", "HTTP port", "--endpoint", "PENSTOCK_ENDPOINT")
NAME_SERVER: Final = Door("rocketmq", "name server", "--name-server", "NAMESRV_ADDR")
FLIGHT: Final = Door("flight", "Flight port", "--flight", "PENSTOCK_FLIGHT")

DATA_VARIABLE: Final = variable_name("broker.data")

_DATA: Final = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help=f"Data directory of the broker, whose ready file says where it is "
    f"[{BrokerSettings().data}]",
)


def takes_endpoint(verb: Callable[..., None]) -> Callable[..., None]:
    """``--data`` and ``--endpoint``."""
    text = f"Its HTTP port [{HTTP.variable}, the ready file in --data, {default_of(HTTP)}]"
    return _DATA(click.option(HTTP.flag, default="", metavar="HOST:PORT", help=text)(verb))


def takes_name_server(verb: Callable[..., None]) -> Callable[..., None]:
    """``--data`` and ``--name-server``."""
    text = (
        f"Name server; several with semicolons [{NAME_SERVER.variable}, the ready file in "
        f"--data, {default_of(NAME_SERVER)}]"
    )
    option = click.option(NAME_SERVER.flag, "-n", default="", metavar="HOST:PORT", help=text)
    return _DATA(option(verb))


def takes_flight(verb: Callable[..., None]) -> Callable[..., None]:
    """``--data`` and ``--flight``."""
    text = f"Its Flight port [{FLIGHT.variable}, the ready file in --data, {default_of(FLIGHT)}]"
    return _DATA(click.option(FLIGHT.flag, default="", metavar="HOST:PORT", help=text)(verb))


def find_endpoint(door: Door, given: str, data: Path | None) -> str:
    """Where the broker that is meant has this door, as the rule says."""
    if given:
        return given
    if data is not None:
        return _ready_endpoint(door, data)
    from_environment = os.environ.get(door.variable, "")
    if from_environment:
        _say(f"{door.title} {from_environment}, from {door.variable}")
        return from_environment
    directory = Path(os.environ.get(DATA_VARIABLE) or BrokerSettings().data)
    try:
        return _ready_endpoint(door, directory)
    except NotFound:
        _say(f"{door.title} {default_of(door)}, the default: no broker is ready on {directory}")
        return default_of(door)


def default_of(door: Door) -> str:
    """The default port on this machine."""
    return f"127.0.0.1:{ListenerSettings().port(door.listener)}"


def _ready_endpoint(door: Door, data: Path) -> str:
    # Imported only here: the rest of the server would come with it.
    from penstock.server.ready_file import find_ready

    endpoint = find_ready(data, door.flag).endpoints.get(door.listener, "")
    if not endpoint:
        raise PenstockError(
            f"the broker on {data} has no {door.title}; start it with --{door.listener}, or give "
            f"{door.flag}"
        )
    return endpoint


def _say(sentence: str) -> None:
    context = click.get_current_context(silent=True)
    said: dict[str, Any] = {} if context is None else context.meta
    if said.get(__name__) != sentence:
        said[__name__] = sentence
        click.echo(f"penstock: {sentence}", err=True)
