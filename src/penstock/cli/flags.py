"""Flags of every verb that needs settings, made from the settings' own declarations.

``@takes_settings`` below ``@click.command`` gives ``verb(settings, ...)`` a flag for each setting
declared with one, ``--set part.name=value`` for all of them, and ``--config``.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from penstock.model.errors import SettingsError
from penstock.settings.describe import Described, describe
from penstock.settings.load import Given, Settings, load_settings, service_links

_PARTS: Final = ("broker", "listeners", "storage", "flow", "rocketmq")
FLAGGED: Final = {
    each.flag.removeprefix("--").replace("-", "_"): each
    for each in sorted(
        [each for each in describe(Settings()) if each.flag and each.part in _PARTS],
        key=lambda each: _PARTS.index(each.part),
    )
}
"""Name of the parameter -> the setting its flag sets, in the order in which help shows them."""


def takes_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Call ``verb(settings, **own)`` with the settings in force; its own options pass through."""

    @wraps(verb)
    def command(config: str | None, assignments: tuple[str, ...], **values: Any) -> None:
        flags = tuple(_given({name: values.pop(name) for name in FLAGGED}, assignments))
        path = Path(config) if config else None
        _say_ignored(service_links(os.environ))
        verb(load_settings(flags, environ=os.environ, config=path), **values)

    # Decorators apply from the inside out, help lists from the outside in.
    for option in reversed([*(_option(*each) for each in FLAGGED.items()), _CONFIG, _SET]):
        command = option(command)
    return command


def _say_ignored(links: list[str]) -> None:
    if links:
        click.echo(
            f"penstock: ignored {len(links)} variables that Kubernetes sets for a service named "
            f"penstock ({links[0]} ...); `enableServiceLinks: false` in the pod's spec keeps them "
            "away",
            err=True,
        )


def _given(
    values: Mapping[str, str | bool | None], assignments: tuple[str, ...]
) -> Iterator[Given]:
    for name, value in values.items():
        if value is not None:
            yield Given(FLAGGED[name].key, value, f"flag {FLAGGED[name].flag}")
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(
                f"--set {text} has no value; write it as --set part.name=value, for example "
                "--set flow.queue_log_credit=8000"
            )
        yield Given(key.strip(), value.strip(), "flag --set")


def _option(name: str, setting: Described) -> Callable[..., Any]:
    # "F3: memory alarm ..." helps in the reference, where F3 is explained; here it only puzzles.
    meaning = _MECHANISM.sub("", setting.doc)
    meaning = meaning[0].upper() + meaning[1:]
    if isinstance(setting.default, bool):
        return click.option(setting.flag, name, is_flag=True, default=None, help=meaning)
    # The default of the flag is "not given"; what people want to see is the setting's.
    shown = f" [{setting.default}]" if setting.default else ""
    metavar = _METAVARS.get(name, "PORT")
    return click.option(setting.flag, name, metavar=metavar, default=None, help=meaning + shown)


_MECHANISM: Final = re.compile(r"^[DF]\d+: ")

_METAVARS: Final = {
    "data": "DIR",
    "bind": "ADDRESS",
    "durability": "MODE",
    "memory_limit": "AMOUNT",
    "disk_free_limit": "AMOUNT",
    "ready_file": "FILE",
    "join": "HOST:PORT",
    "broker_name": "NAME",
    "advertise": "IP",
}

_CONFIG: Final = click.option(
    "--config",
    metavar="FILE",
    help="TOML file with settings; flags and PENSTOCK_... variables go before it",
)

_SET: Final = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="PART.NAME=VALUE",
    help="Any other setting; may be given several times",
)
