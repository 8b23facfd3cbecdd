"""All settings of a broker, and the one way they are put together.

A value comes from a flag, else from an environment variable ``PENSTOCK_<PART>_<NAME>``, else from
the TOML file (its tables are the parts), else it is the default; ``Settings.origins`` remembers
which. An unknown key or variable is an error that names the nearest one, so a misspelt limit never
silently leaves the default in force. One kind is passed over: what Kubernetes sets in every pod for
a service whose name begins with penstock (``service_links``).

Not here: the settings themselves (``broker.py``, ``flow.py``, ``protocols.py``), text to
values (``declare.py``), printing (``describe.py``).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock.model.errors import SettingsError
from penstock.settings.broker import (
    BrokerSettings,
    ListenerSettings,
    StorageSettings,
    TopicSettings,
)
from penstock.settings.declare import convert
from penstock.settings.flow import FlowSettings
from penstock.settings.protocols import (
    AmqpSettings,
    PulsarSettings,
    RocketmqSettings,
    SparkSettings,
)

PREFIX: Final = "PENSTOCK_"
OTHER_VARIABLES: Final = frozenset(
    (
        "PENSTOCK_CONFIG",
        "PENSTOCK_PYTHON",
        "PENSTOCK_ENDPOINT",
        "PENSTOCK_USER",
        "PENSTOCK_PASSWORD",
    )
)
"""Variables with our prefix that are not settings: the TOML file to read, the interpreter that the
``./penstock`` script is told to use, and which broker verbs ask, as whom."""

DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an operator may set; ``Settings()`` is all defaults."""

    storage: StorageSettings = field(default_factory=StorageSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    listeners: ListenerSettings = field(default_factory=ListenerSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    rocketmq: RocketmqSettings = field(default_factory=RocketmqSettings)
    amqp: AmqpSettings = field(default_factory=AmqpSettings)
    pulsar: PulsarSettings = field(default_factory=PulsarSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    origins: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )
    """``part.name`` -> where the value came from; what is not in it is a default."""

    def origin(self, key: str) -> str:
        """Where the value of ``part.name`` came from."""
        return self.origins.get(key, DEFAULT)


PARTS: Final[Mapping[str, type]] = {
    "storage": StorageSettings,
    "flow": FlowSettings,
    "topics": TopicSettings,
    "listeners": ListenerSettings,
    "broker": BrokerSettings,
    "rocketmq": RocketmqSettings,
    "amqp": AmqpSettings,
    "pulsar": PulsarSettings,
    "spark": SparkSettings,
}

KINDS: Final[Mapping[str, object]] = {
    f"{part}.{each.name}": each.type for part, kind in PARTS.items() for each in fields(kind)
}
"""``part.name`` of every setting -> its type."""


class Given(NamedTuple):
    """One value that somebody gave, before it is checked."""

    key: str
    value: object
    origin: str


def load_settings(
    flags: Iterable[Given] = (),
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Settings:
    """Settings from all sources; raises ``SettingsError`` at the first thing that is wrong."""
    environ = environ or {}
    if config is None and environ.get("PENSTOCK_CONFIG"):
        config = Path(environ["PENSTOCK_CONFIG"])
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for given in (*_from_file(config), *_from_environment(environ), *flags):
        values[given.key] = _checked(given)
        origins[given.key] = given.origin
    _follow(values, origins)
    parts = {part: _build(part, kind, values, origins) for part, kind in PARTS.items()}
    return replace(Settings(**parts), origins=MappingProxyType(origins))


def variable_name(key: str) -> str:
    """Environment variable of a setting: ``storage.durability`` -> PENSTOCK_STORAGE_DURABILITY."""
    return PREFIX + key.replace(".", "_").upper()


def service_links(environ: Mapping[str, str]) -> list[str]:
    """Variables of ours by prefix that Kubernetes made of a service named ``penstock``.

    Their values tell as well: ``PENSTOCK_PORT`` is ``tcp://10.0.0.1:5672`` there, and a misspelt
    setting of a port is a bare number.
    """
    known = {variable_name(key) for key in KINDS}
    return [name for name in sorted(environ) if name not in known and _is_link(name, environ[name])]


def _is_link(name: str, value: str) -> bool:
    if _LINK.fullmatch(name):
        return True
    is_url = value.startswith(("tcp://", "udp://", "sctp://"))
    return is_url and _LINK_URL.fullmatch(name) is not None


_LINK: Final = re.compile(
    PREFIX + r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR))"
)
_LINK_URL: Final = re.compile(PREFIX + r"(\w+_)?PORT(_\d+_(TCP|UDP|SCTP))?")


def _from_file(config: Path | None) -> Iterator[Given]:
    if config is None:
        return
    # Imported only here: without a file, start-up does not pay for the TOML parser.
    import tomllib

    try:
        tables = tomllib.loads(config.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {config}: {error.strerror or error}; "
            "check the path given by --config"
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"the settings file {config} is not valid TOML: {error}") from error
    for part, table in tables.items():
        if part not in PARTS or not isinstance(table, dict):
            expected = ", ".join(f"[{name}]" for name in PARTS)
            raise SettingsError(
                f"unknown {_what(table)} {part!r} in {config}; {_nearest(part, PARTS)}"
                f"settings live in the sections {expected}"
            )
        for name, value in table.items():
            yield Given(f"{part}.{name}", value, f"file {config}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    keys = {variable_name(key): key for key in KINDS}
    links = service_links(environ)
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or variable in links:
            continue
        if variable not in keys:
            raise SettingsError(
                f"unknown environment variable {variable}; {_nearest(variable, keys)}"
                "`penstock settings` lists all"
            )
        yield Given(keys[variable], environ[variable], f"environment {variable}")


def _checked(given: Given) -> object:
    if given.key not in KINDS:
        raise SettingsError(
            f"unknown setting {given.key} ({given.origin}); {_nearest(given.key, KINDS)}"
            "`penstock settings` lists all"
        )
    try:
        return convert(given.key.partition(".")[2], KINDS[given.key], given.value)
    except ValueError as error:
        raise SettingsError(f"{given.key} is {given.value!r} ({given.origin}); {error}") from error


def _follow(values: dict[str, Any], origins: dict[str, str]) -> None:
    """D21: without a name server the RocketMQ broker port is off too, unless it was asked for.

    D20: a broker that joins a name server runs none of its own.
    """
    if values.get("rocketmq.join"):
        if "listeners.rocketmq" not in values:
            values["listeners.rocketmq"] = "off"
            origins["listeners.rocketmq"] = "follows rocketmq.join"
        return
    if values.get("listeners.rocketmq") == "off" and "listeners.rocketmq_broker" not in values:
        values["listeners.rocketmq_broker"] = "off"
        origins["listeners.rocketmq_broker"] = "follows listeners.rocketmq"


def _build(part: str, kind: type, values: dict[str, Any], origins: dict[str, str]) -> Any:
    mine = {
        key.partition(".")[2]: value for key, value in values.items() if key.startswith(part + ".")
    }
    try:
        return kind(**mine)
    except SettingsError as error:
        # A relation between settings is checked by the part, which does not know who set them.
        sources = {origins[f"{part}.{name}"] for name in mine if f"{part}.{name}" in str(error)}
        where = f" ({', '.join(sorted(sources))})" if sources else ""
        raise SettingsError(f"{error}{where}") from error


def _what(table: object) -> str:
    return "section" if isinstance(table, dict) else "setting outside any section"


def _nearest(word: str, known: Iterable[str]) -> str:
    # Imported only here: it costs start-up time and is needed once, to refuse.
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}? " if close else ""
