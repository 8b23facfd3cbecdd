"""A pipeline file: TOML in, frozen flows out, or one sentence with line, key and the nearest right.

    [flow.orders]
    from = { topics = ["orders"] }
    decode = { format = "json", schema = "id long, cents int" }
    sql = "SELECT value.id, value.cents / 100 AS euros FROM messages"
    to = { parquet = "out/orders" }

``"${NAME}"`` anywhere in a text is the environment's value and counts as a secret: ``redacted``
takes it out of whatever is printed. ``"${NAME:-text}"`` has a default, and ``--set NAME=VALUE``
comes before both.

Invariants: pure but for the file itself and the environment; no Spark. Relative paths are relative
to the file.
Not here: whether SQL, schemas and functions are right (``query.py`` asks Spark).
"""

import difflib
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from penstock.model.errors import SettingsError
from penstock.spark.options import (
    ENDPOINT,
    OPTIONS,
    ROCKETMQ,
    BadOption,
    count,
    read_options,
    seconds,
    size,
    wall_ms,
)

STATE: Final = "penstock-pipelines"
"""Where checkpoints are, beside the file."""
MAX_ATTEMPTS: Final = 5
DELAYS: Final = ("10s", "30s", "1m", "2m", "3m", "4m", "5m", "6m", "7m", "8m", "9m", "10m", "20m")
"""Between tries, as RocketMQ's consumers have them; the last one for all that follow."""
ROLL_ROWS: Final = 100_000
ROLL_S: Final = 60.0
"""A table's batch waits for so many rows, but not longer: fewer and larger files."""
FLOWS_MAX: Final = 64
"""Each is a query with processes of its own."""
SECRET_CHARACTERS_MIN: Final = 4
"""Shorter values are in every other word; nobody guesses them from a line that shows them."""
SENTENCE_CHARACTERS_MAX: Final = 1000
"""Of what is wrong with a file: it may hold a value of any length."""

JSON: Final = "json"
TEXT: Final = "text"
RAW: Final = "raw"
TOPIC: Final = "topic"
PARQUET: Final = "parquet"
DELTA: Final = "delta"
GUARANTEES: Final = ("exactly-once", "at-least-once")
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class BadPipeline(SettingsError):
    """A pipeline file that cannot be used as it is."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the rows of a flow come from."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    archive: str = ""
    """A directory of Parquet that a flow wrote; instead of topics."""
    rate: float = 0.0
    """Rows a second of an archive; 0 = as fast as they are taken."""
    endpoint: str = ""
    subscription: str = ""
    starting: str = "earliest"
    filter: str = ""
    columns: tuple[str, ...] = ()
    """Only these are read; empty = all."""
    target_batch: str = ""
    max_rows: int = 0
    max_bytes: int = 0
    tasks: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of the source, by their own names."""

    def spark_options(self, *, with_topics: tuple[str, ...] = ()) -> dict[str, str]:
        """Options of ``format("penstock")``; ``with_topics`` are read besides."""
        chosen: dict[str, str] = {"endpoint": self.endpoint, "subscription": self.subscription}
        if self.pattern:
            chosen["topicsPattern"] = self.pattern
        else:
            chosen["topics"] = ",".join((*self.topics, *with_topics))
        chosen.update(_starting_options(self.starting))
        numbers = {
            "maxRowsPerTrigger": self.max_rows,
            "maxBytesPerTrigger": self.max_bytes,
            "minPartitions": self.tasks,
        }
        chosen.update({name: str(number) for name, number in numbers.items() if number})
        texts = {"filter": self.filter, "targetBatchDuration": self.target_batch}
        chosen.update({name: text for name, text in texts.items() if text})
        return {**chosen, **self.options}


@dataclass(frozen=True, kw_only=True)
class Decode:
    """What a body is."""

    format: str = RAW
    schema: str = ""
    """Spark's DDL; empty with JSON = inferred from the first messages, and then kept."""
    samples: int = 1000
    """Messages that a schema is inferred from."""


@dataclass(frozen=True, kw_only=True)
class Watermark:
    """How late rows may be."""

    column: str = "timestamp"
    delay: str = "10 minutes"


@dataclass(frozen=True, kw_only=True)
class Deduplicate:
    """Rows whose id was seen lately are dropped."""

    by: str = "message_id"
    within: str = "1 hour"


@dataclass(frozen=True, kw_only=True)
class Retry:
    """What becomes of a row whose function raises."""

    max_attempts: int = MAX_ATTEMPTS
    delays_ms: tuple[int, ...] = tuple(int(seconds(each) * 1000) for each in DELAYS)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the rows go."""

    kind: str
    place: str
    """Name of a topic, or path of a table."""
    endpoint: str = ""
    """Broker of the topic, and of dead letters; empty = where the rows come from."""
    key: str = ""
    """Topic: the column whose value is the key, when bodies are made of all columns."""
    guarantee: str = "exactly-once"
    partition_by: tuple[str, ...] = ()
    roll_rows: int = ROLL_ROWS
    roll_s: float = ROLL_S
    compression: str = "zstd"
    tasks: int = 0
    """Of a table: tasks that write; 0 = as many as the session has cores."""

    @property
    def is_table(self) -> bool:
        return self.kind != TOPIC


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One query: from topics or an archive to one target."""

    name: str
    source: Source
    target: Target
    decode: Decode = Decode()
    sql: str = ""
    python: str = ""
    map: str = ""
    output: str = ""
    """What ``map`` returns, as Spark's DDL."""
    watermark: Watermark | None = None
    deduplicate: Deduplicate | None = None
    retry: Retry = Retry()
    dead_topic: str = ""
    trigger: str = ""
    """Least time from batch to batch; empty = as soon as there is something."""

    @property
    def retry_topic(self) -> str:
        """Hidden from listings, and this flow's alone."""
        return f"penstock.retry.{self.name}"

    @property
    def can_retry(self) -> bool:
        return bool(self.map) and self.retry.max_attempts > 1

    @property
    def can_fail(self) -> bool:
        """True when a row may become a dead letter."""
        return bool(self.map) or self.decode.format != RAW

    @property
    def letter_topics(self) -> tuple[str, ...]:
        """Where rows go that cannot be processed, now or ever."""
        retries = (self.retry_topic,) if self.can_retry else ()
        return (*retries, self.dead_topic) if self.can_fail else ()

    @property
    def writes_to(self) -> str:
        """The broker that messages and letters go to."""
        return self.target.endpoint or self.source.endpoint

    def fingerprint(self) -> dict[str, str]:
        """What a checkpoint was made for, part by part; secrets do not stand in it."""
        target = self.target
        parts: dict[str, Any] = {
            "from": [self.source.topics, self.source.pattern, self.source.archive],
            "filter": self.source.filter,
            "decode": [self.decode.format, self.decode.schema],
            "sql": " ".join(self.sql.split()),
            "python": self.python,
            "map": [self.map, self.output],
            "watermark": self.watermark and [self.watermark.column, self.watermark.delay],
            "deduplicate": self.deduplicate and [self.deduplicate.by, self.deduplicate.within],
            "to": [target.kind, target.place, target.partition_by],
        }
        return {name: _digest(value) for name, value in parts.items()}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Everything in one file."""

    path: Path
    state: Path
    flows: tuple[Flow, ...]
    master: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Spark's own."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def directory(self) -> Path:
        """Where functions of the flows are looked for first."""
        return self.path.parent

    def redacted(self, text: str) -> str:
        """The text with ``${NAME}`` in place of what the environment gave."""
        return _redacted(text, self.secrets)

    def only(self, names: tuple[str, ...]) -> tuple[Flow, ...]:
        """The flows of these names, or all."""
        known = {flow.name: flow for flow in self.flows}
        for name in names:
            if name not in known:
                raise BadPipeline(f"{self.path.name}: there is no flow {name!r}{hint(name, known)}")
        return tuple(known[name] for name in names) if names else self.flows


def load_pipeline(
    path: Path,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
    state: Path | None = None,
    endpoint: Callable[[], str] = lambda: ENDPOINT,
) -> Pipeline:
    """The pipeline of a file; ``directory`` is what its paths are relative to.

    ``state`` comes before the file's own; ``endpoint`` finds the broker if the file names none.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise BadPipeline(
            f"{path}: there is no such file; `penstock pipeline init` writes one to begin with"
        ) from None
    except OSError as problem:
        raise BadPipeline(f"{path}: cannot be read ({problem.strerror})") from None
    except UnicodeDecodeError:
        raise BadPipeline(f"{path}: is no UTF-8 text") from None
    home = (directory or path.parent).resolve()
    found = parse_pipeline(
        text,
        path=home / path.name,
        environment=os.environ if environment is None else environment,
        given=given or {},
        endpoint=endpoint,
    )
    return found if state is None else replace(found, state=state.resolve())


def parse_pipeline(
    text: str,
    *,
    path: Path,
    environment: Mapping[str, str],
    given: Mapping[str, str],
    endpoint: Callable[[], str] = lambda: ENDPOINT,
) -> Pipeline:
    """The same of a text."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise BadPipeline(f"{path.name}: {problem}") from None
    return _Reader(text, path, environment, given).pipeline(data, endpoint)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _redacted(text: str, secrets: Mapping[str, str]) -> str:
    """``${NAME}`` in place of each secret, the longest first: one may be a part of another."""
    names = {form: name for name, value in secrets.items() for form in _forms(value)}
    if not names:
        return text
    words = sorted(names, key=len, reverse=True)
    # In one go: what stands for a secret may look like another one.
    return re.sub("|".join(map(re.escape, words)), lambda found: f"${{{names[found[0]]}}}", text)


def _forms(value: str) -> set[str]:
    """How a secret may be written: as it is, by JSON or Python, on one line, or line by line."""
    forms = {json.dumps(value)[1:-1], repr(value)[1:-1], " ".join(value.split())}
    lines = {each.strip() for each in value.splitlines()}
    return {value} | {each for each in forms | lines if len(each) >= SECRET_CHARACTERS_MIN}


def hint(word: str, known: Any) -> str:
    """The nearest of the names that are known, or all of them; goes on with a sentence."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]}?" if close else f"; there are {', '.join(known)}"


# ---- values -------------------------------------------------------------------------------------
# One function for each kind of value: what TOML has in, what a flow has out, else ``ValueError``.


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{_shown(value)} is no text")
    return value.strip()


def _texts(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given:
        raise ValueError(
            f'{_shown(value)} is no list of names; write it like ["orders", "refunds"]'
        )
    return tuple(dict.fromkeys(_text(each) for each in given))


def _topics(value: Any) -> tuple[str, ...]:
    """A text may hold several: it may come from the environment."""
    found = (part.strip() for each in _texts(value) for part in each.split(","))
    return tuple(dict.fromkeys(each for each in found if each))


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{_shown(value)} is no whole number from 1 on")
    return count(str(value))


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{_shown(value)} is no size; write it like 64m, 1g or plain bytes")
    return size(str(value))


def _duration(value: Any) -> float:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no duration; write it with its unit, like 5s or 15m")
    if value.strip().isdigit():
        raise ValueError(f"{_shown(value)} has no unit; write it like 5s or 15m")
    return seconds(value)


def _interval(value: Any) -> str:
    """A duration in Spark's words."""
    return f"{_duration(value):g} seconds"


def _target_batch(value: Any) -> str:
    return "off" if value == "off" else f"{_duration(value):g}s"


def _delays(value: Any) -> tuple[int, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given:
        raise ValueError(f'{_shown(value)} is no list of durations; write it like ["10s", "1m"]')
    return tuple(int(_duration(each) * 1000) for each in given)


def _rate(value: Any) -> float:
    """``5000``, ``"5000/s"`` or ``"off"``."""
    text = str(value).strip().removesuffix("/s")
    if text == "off":
        return 0.0
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if isinstance(value, bool) or number <= 0:
        raise ValueError(f'{_shown(value)} is no rate; write rows a second, like 5000, or "off"')
    return number


def _function(value: Any) -> str:
    if not isinstance(value, str) or not _FUNCTION.fullmatch(value.strip()):
        raise ValueError(f'{_shown(value)} is no function; write it like "shop.orders:enrich"')
    return value.strip()


def _starting(value: Any) -> str:
    """earliest, latest, a time, or offsets by topic and queue."""
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    text = _text(value) if isinstance(value, str) else str(value)
    if text not in ("earliest", "latest"):
        try:
            wall_ms(text)
        except ValueError:
            raise ValueError(
                f"{_shown(value)} is neither earliest, latest, a time like 2026-01-31T12:00:00Z nor"
                " offsets like { orders = { 0 = 17 } }"
            ) from None
    return text


def _starting_options(text: str) -> dict[str, str]:
    is_time = text not in ("earliest", "latest") and not text.startswith("{")
    return {"startingTimestamp" if is_time else "startingOffsets": text}


def _options(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} is no table of options")
    by_lower = {name.lower(): name for name in OPTIONS}
    for name in value:
        if name.lower() not in by_lower:
            raise ValueError(f"there is no option {name!r}{hint(name, OPTIONS)}")
    return {
        by_lower[name.lower()]: str(each).lower() if isinstance(each, bool) else str(each)
        for name, each in value.items()
    }


def _settings(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or any(isinstance(each, dict) for each in value.values()):
        raise ValueError('write settings of Spark with quotes: "spark.sql.shuffle.partitions" = 8')
    return {
        name: str(each).lower() if isinstance(each, bool) else str(each)
        for name, each in value.items()
    }


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{_shown(value)} is not there{hint(str(value), words)}")
        return str(value)

    return read


def _shown(value: Any) -> str:
    # As a whole: half of a secret would not be found in it.
    return repr(value)


Keys = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""By the name in the file: the field, and how its value is read."""

SOURCE_KEYS: Final[Keys] = {
    "topics": ("topics", _topics),
    "pattern": ("pattern", _text),
    "archive": ("archive", _text),
    "rate": ("rate", _rate),
    "endpoint": ("endpoint", _text),
    "subscription": ("subscription", _text),
    "starting": ("starting", _starting),
    "filter": ("filter", _text),
    "columns": ("columns", _texts),
    "target_batch": ("target_batch", _target_batch),
    "max_rows": ("max_rows", _whole),
    "max_bytes": ("max_bytes", _size),
    "tasks": ("tasks", _whole),
    "options": ("options", _options),
}
DECODE_KEYS: Final[Keys] = {
    "format": ("format", _one_of(JSON, TEXT, RAW)),
    "schema": ("schema", _text),
    "samples": ("samples", _whole),
}
WATERMARK_KEYS: Final[Keys] = {"column": ("column", _text), "delay": ("delay", _interval)}
DEDUPLICATE_KEYS: Final[Keys] = {"by": ("by", _text), "within": ("within", _interval)}
RETRY_KEYS: Final[Keys] = {
    "max_attempts": ("max_attempts", _whole),
    "delays": ("delays_ms", _delays),
}
DEAD_KEYS: Final[Keys] = {"topic": ("dead_topic", _text)}
TARGET_KEYS: Final[Keys] = {
    TOPIC: (TOPIC, _text),
    PARQUET: (PARQUET, _text),
    DELTA: (DELTA, _text),
    "endpoint": ("endpoint", _text),
    "key": ("key", _text),
    "guarantee": ("guarantee", _one_of(*GUARANTEES)),
    "partition_by": ("partition_by", _texts),
    "roll_rows": ("roll_rows", _whole),
    "roll_time": ("roll_s", _duration),
    "compression": ("compression", _one_of(*COMPRESSIONS)),
    "tasks": ("tasks", _whole),
}
STEP_KEYS: Final[Keys] = {
    "sql": ("sql", _text),
    "python": ("python", _function),
    "map": ("map", _function),
    "output": ("output", _text),
    "trigger": ("trigger", _interval),
}
SPARK_KEYS: Final[Keys] = {"master": ("master", _text), "settings": ("settings", _settings)}
TABLES: Final = ("from", "decode", "watermark", "deduplicate", "retry", "dead", "to")
"""Keys of a flow that are tables."""
FLOW_KEYS: Final = (*TABLES, *STEP_KEYS)
TOP_KEYS: Final = ("flow", "spark", "state", "endpoint")

OF_TOPICS: Final = ("filter", "starting", "endpoint", "subscription", "target_batch", "options")
"""Keys of ``from`` that mean nothing to an archive."""
OF_TABLES: Final = ("partition_by", "roll_rows", "roll_time", "compression", "tasks")
OF_A_TOPIC: Final = ("key", "guarantee")


class _Reader:
    """One file on its way to a ``Pipeline``."""

    def __init__(
        self, text: str, path: Path, environment: Mapping[str, str], given: Mapping[str, str]
    ) -> None:
        self._path: Final = path
        self._lines: Final = KeyLines(text)
        self._environment: Final = environment
        self._given: Final = given
        self._used: Final = set[str]()
        self._secrets: Final = dict[str, str]()

    def pipeline(self, data: dict[str, Any], find_endpoint: Callable[[], str]) -> Pipeline:
        self._known(data, (), TOP_KEYS)
        data = {key: self._filled(value, (key,)) for key, value in data.items()}
        spark = self._read(data.get("spark", {}), ("spark",), SPARK_KEYS)
        top = self._read(
            {key: data[key] for key in ("state", "endpoint") if key in data},
            (),
            {"state": ("state", _text), "endpoint": ("endpoint", _text)},
        )
        tables = data.get("flow", {})
        if not isinstance(tables, dict) or not tables:
            raise self._bad(("flow",), "a pipeline needs a flow: write [flow.NAME]")
        if len(tables) > FLOWS_MAX:
            raise self._bad(("flow",), f"{len(tables)} flows, and at most {FLOWS_MAX} are possible")
        needs_one = "endpoint" not in top and any(
            isinstance(each, dict) and "endpoint" not in (each.get("from") or ())
            for each in tables.values()
        )
        endpoint = find_endpoint() if needs_one else top.get("endpoint", "")
        flows = tuple(self._flow(name, each, endpoint) for name, each in tables.items())
        unused = sorted(self._given.keys() - self._used)
        if unused:
            raise BadPipeline(f"{self._path.name}: nothing in it is called ${{{unused[0]}}}")
        self._check_names(flows)
        return Pipeline(
            path=self._path,
            state=Path(self._at_home(top.get("state", STATE))),
            flows=flows,
            secrets=self._secrets,
            **spark,
        )

    def _flow(self, name: str, data: Any, endpoint: str) -> Flow:
        where = ("flow", name)
        if not isinstance(data, dict):
            raise self._bad(where, f"a flow is a table: write [flow.{name}]")
        if not _NAME.fullmatch(name):
            raise self._bad(where, "a flow's name has letters, digits, dots, hyphens, underscores")
        self._known(data, where, FLOW_KEYS)
        for key in ("from", "to"):
            if key not in data:
                example = 'from = { topics = ["orders"] }' if key == "from" else (
                    'to = { parquet = "out/orders" }'
                )  # fmt: skip
                raise self._bad(where, f"{key} is missing; write it like {example}")
        steps = {key: value for key, value in data.items() if key in STEP_KEYS}
        fields = self._read(steps, where, STEP_KEYS)
        source = self._source(name, data["from"], endpoint)
        for key, kind, keys in (
            ("decode", Decode, DECODE_KEYS),
            ("watermark", Watermark, WATERMARK_KEYS),
            ("deduplicate", Deduplicate, DEDUPLICATE_KEYS),
            ("retry", Retry, RETRY_KEYS),
        ):
            if key in data:
                fields[key] = kind(**self._read(data[key], (*where, key), keys))
        fields.update(self._read(data.get("dead", {}), (*where, "dead"), DEAD_KEYS))
        fields.setdefault("dead_topic", f"{name}-dead")
        target = self._target(data["to"], (*where, "to"))
        flow = Flow(name=name, source=source, target=target, **fields)
        self._check(flow, data, where)
        return flow

    def _source(self, name: str, data: Any, endpoint: str) -> Source:
        where = ("flow", name, "from")
        fields = self._read(data, where, SOURCE_KEYS)
        kinds = [key for key in ("topics", "pattern", "archive") if key in fields]
        if len(kinds) != 1:
            raise self._bad(where, "give one of topics, pattern and archive")
        fields.setdefault("endpoint", endpoint)
        fields.setdefault("subscription", name)
        if kinds == ["archive"]:
            for key in OF_TOPICS:
                if key in data:
                    raise self._bad((*where, key), "means nothing to an archive; it reads files")
            fields["archive"] = self._at_home(fields["archive"])
            return Source(**fields)
        if "rate" in fields:
            raise self._bad((*where, "rate"), "is for an archive; topics are limited by max_rows")
        source = Source(**fields)
        try:
            read_options(source.spark_options())
        except BadOption as problem:
            raise self._bad(where, str(problem)) from None
        return source

    def _target(self, data: Any, where: tuple[str, ...]) -> Target:
        fields = self._read(data, where, TARGET_KEYS)
        kinds = [key for key in (TOPIC, PARQUET, DELTA) if key in fields]
        if len(kinds) != 1:
            raise self._bad(where, "give one of topic, parquet and delta")
        (kind,) = kinds
        place = fields.pop(kind)
        for key in OF_TABLES if kind == TOPIC else OF_A_TOPIC:
            if key in data:
                raise self._bad((*where, key), f"means nothing to a {kind} target")
        return Target(kind=kind, place=place if kind == TOPIC else self._at_home(place), **fields)

    def _check(self, flow: Flow, data: dict[str, Any], where: tuple[str, ...]) -> None:
        """Keys that contradict each other."""
        steps = [key for key in ("sql", "python", "map") if key in data]
        if len(steps) > 1:
            raise self._bad((*where, steps[1]), f"{' and '.join(steps)}: a flow has one of them")
        if "output" in data and not flow.map:
            raise self._bad((*where, "output"), "says what map returns, and there is no map")
        if flow.map and not flow.output and flow.target.is_table:
            text = 'needs output, the columns it returns: output = "id long, euros double"'
            raise self._bad((*where, "map"), text)
        if "retry" in data and not flow.map:
            raise self._bad((*where, "retry"), "is for map; sql and python fail a whole batch")
        if "dead" in data and not flow.can_fail:
            raise self._bad((*where, "dead"), "no row can die: bodies are raw and there is no map")
        if flow.decode.schema and flow.decode.format != JSON:
            raise self._bad((*where, "decode", "schema"), 'is for format = "json"')
        if flow.watermark is not None and "within" in data.get("deduplicate", {}):
            text = "the watermark says how long ids are remembered; leave one of them out"
            raise self._bad((*where, "deduplicate", "within"), text)
        if flow.decode.format == JSON and not flow.decode.schema and flow.source.archive:
            raise self._bad((*where, "decode"), "of an archive needs its schema")
        if flow.can_retry and flow.source.endpoint.startswith(ROCKETMQ):
            text = "retries need a Penstock to wait in; retry = { max_attempts = 1 } does without"
            raise self._bad((*where, "map"), text)
        if flow.writes_to.startswith(ROCKETMQ) and (flow.can_fail or not flow.target.is_table):
            what = "dead letters need" if flow.target.is_table else "a topic target needs"
            text = f'{what} a Penstock; name it: to = {{ ..., endpoint = "host:8815" }}'
            raise self._bad((*where, "to"), text)
        if flow.source.columns and flow.source.archive:
            raise self._bad((*where, "from", "columns"), "an archive has its own columns; use sql")
        if flow.target.kind == TOPIC and flow.can_fail:
            self._check_letters(flow, where)

    def _check_letters(self, flow: Flow, where: tuple[str, ...]) -> None:
        """Where rows and letters go to topics."""
        if flow.target.place == flow.dead_topic:
            raise self._bad((*where, "to", TOPIC), "is where the dead letters go; name another one")
        if flow.source.archive:
            raise self._bad((*where, "decode"), "what an archive is replayed with stays raw")

    def _check_names(self, flows: tuple[Flow, ...]) -> None:
        """Two flows must not be taken for one."""
        seen: dict[str, str] = {}
        for flow in flows:
            other = seen.setdefault(flow.name.lower(), flow.name)
            if other != flow.name:
                raise self._bad(
                    ("flow", flow.name), f"differs from flow {other!r} only in upper and lower case"
                )

    # What is common to all tables.

    def _read(self, data: Any, where: tuple[str, ...], keys: Keys) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise self._bad(where, f"{_shown(data)} is no table; write it like {{ key = value }}")
        self._known(data, where, keys)
        fields: dict[str, Any] = {}
        for key, value in data.items():
            name, read = keys[key]
            try:
                fields[name] = read(value)
            except ValueError as problem:
                raise self._bad((*where, key), str(problem)) from None
        return fields

    def _known(self, data: dict[str, Any], where: tuple[str, ...], keys: Any) -> None:
        for key in data:
            if key not in keys:
                raise self._bad((*where, key), f"there is no such key{hint(key, keys)}")

    def _filled(self, value: Any, where: tuple[str, ...]) -> Any:
        """The same value with variables in its texts replaced."""
        if isinstance(value, str):
            return _VARIABLE.sub(lambda found: self._variable(found, where), value)
        if isinstance(value, list):
            return [self._filled(each, where) for each in value]
        if isinstance(value, dict):
            return {key: self._filled(each, (*where, key)) for key, each in value.items()}
        return value

    def _variable(self, found: re.Match[str], where: tuple[str, ...]) -> str:
        name, default = found[1], found[2]
        if name in self._given:
            self._used.add(name)
            return self._given[name]
        value = self._environment.get(name)
        if value is not None:
            if len(value) >= SECRET_CHARACTERS_MIN:
                self._secrets[name] = value
            return value
        if default is None:
            raise self._bad(
                where, f"${{{name}}} is not in the environment; export {name}, or --set {name}=..."
            )
        return default

    def _at_home(self, place: str) -> str:
        return str(self._path.parent / Path(place).expanduser())

    def _bad(self, where: tuple[str, ...], sentence: str) -> BadPipeline:
        line = self._lines.of(where)
        key = ".".join(where)
        text = f"{self._path.name}{f':{line}' if line else ''}: {key}: {sentence}"
        return BadPipeline(_redacted(text, self._secrets)[:SENTENCE_CHARACTERS_MAX])


# ---- lines --------------------------------------------------------------------------------------
# On which line a key stands: Python's TOML reader knows it only of what is no TOML at all.


_HEADER: Final = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(
    r"""((?:"[^"]*"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*="""
)
_QUOTED: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'[^']*'""")


class KeyLines:
    """Lines by the path of a key; of one that is not found, those of the nearest table above."""

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        ends_with = ""
        for number, line in enumerate(text.splitlines(), 1):
            if ends_with:
                # Inside a text of several lines nothing is a key.
                ends_with = "" if ends_with in line else ends_with
                continue
            header = _HEADER.fullmatch(line)
            if header is not None:
                table = _path_of(header[1])
                self._add(table, number)
                continue
            self._keys(line, table, number)
            for quotes in ('"""', "'''"):
                if line.count(quotes) % 2:
                    ends_with = quotes

    def of(self, path: tuple[str, ...]) -> int:
        """0 = not even its table is there."""
        while path and path not in self._found:
            path = path[:-1]
        return self._found.get(path, 0)

    def _keys(self, line: str, table: tuple[str, ...], number: int) -> None:
        key = _KEY.match(line.lstrip())
        if key is None:
            return
        path = (*table, *_path_of(key[1]))
        self._add(path, number)
        rest = line.lstrip()[key.end() :].strip()
        if not rest.startswith("{"):
            return
        # An inline table is on one line; keys in texts are none.
        for inner in _KEY.finditer(_QUOTED.sub('""', rest)):
            self._add((*path, *_path_of(inner[1])), number)

    def _add(self, path: tuple[str, ...], number: int) -> None:
        for length in range(1, len(path) + 1):
            self._found.setdefault(path[:length], number)


def _path_of(dotted: str) -> tuple[str, ...]:
    parts = re.findall(r"""\s*("[^"]*"|'[^']*'|[^.]+)\s*(?:\.|$)""", dotted)
    return tuple(each.strip().strip("\"'") for each in parts)
