"""The options of ``format("penstock")``: names as in Kafka's connector where it has them.

``read_options`` turns the texts that Spark hands over into one frozen ``SourceOptions``, and
``read_sink_options`` into ``SinkOptions``; or they raise ``BadOption`` that names the option, what
is wrong with it, and for an unknown one the nearest.

Invariant: pure and cheap; Spark makes a source several times for one query, in several processes.
Not here: what offsets mean (``upstream.py``, ``query.py``).
"""

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from penstock.bulk.tickets import SQL92, TAG, RowFilter
from penstock.model.errors import PenstockError
from penstock.model.spark_batch import EXACTLY_ONCE, GUARANTEES

# ---- quantities ---------------------------------------------------------------------------------
# Durations, sizes, numbers and times as people write them in options: "5s", "64m", "200 ms".


_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_SECONDS: Final = {
    "ms": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60,
    "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip
_BYTES: Final = {
    "": 1, "b": 1, "k": 2**10, "kb": 2**10, "kib": 2**10, "m": 2**20, "mb": 2**20, "mib": 2**20,
    "g": 2**30, "gb": 2**30, "gib": 2**30, "t": 2**40, "tb": 2**40, "tib": 2**40,
}  # fmt: skip
_TRUTHS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def seconds(text: str) -> float:
    """``5s``, ``200ms``, ``1.5 min``; a plain number is milliseconds, as Spark reads it."""
    number, unit = _parts(text)
    if not unit:
        return number / 1000
    factor = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s"))
    if factor is None:
        raise ValueError(f"{text!r} is no duration; write it like 5s, 200ms or 15m")
    return number * factor


def size(text: str) -> int:
    """``64m``, ``1 GiB``, or plain bytes; units are powers of 1024."""
    number, unit = _parts(text)
    if unit not in _BYTES:
        raise ValueError(f"{text!r} is no size; write it like 64m, 1g or plain bytes")
    return int(number * _BYTES[unit])


def count(text: str) -> int:
    """A whole number from 1 on; underscores may stand in it."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{text!r} is no whole number from 1 on")
    return number


def truth(text: str) -> bool:
    try:
        return _TRUTHS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def wall_ms(text: str) -> int:
    """Milliseconds since 1970, or ISO 8601; without a zone it is UTC."""
    if text.strip().isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is no time; give milliseconds since 1970 or 2026-01-31T12:00:00Z"
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _parts(text: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} does not begin with a number, or something stands behind it")
    return float(found[1]), found[2].lower()


# ---- options ------------------------------------------------------------------------------------


ENDPOINT: Final = "127.0.0.1:8815"
PAUSED: Final = "paused"
"""What a source writes into its ``pauseFile`` once it rests."""
ROCKETMQ: Final = "rocketmq://"
TARGET_BATCH_S: Final = 5.0
TRIGGER_DELAY_S_MAX: Final = 15 * 60.0
"""As Kafka's maxTriggerDelay."""
RETRY_S: Final = 30.0

FROM_KAFKA: Final = {
    "kafka.bootstrap.servers": "endpoint",
    "subscribe": "topics",
    "topic": "topics",
    "assign": "startingOffsets",
    "subscribepattern": "topicsPattern",
    "maxoffsetspertrigger": "maxRowsPerTrigger",
    "minoffsetspertrigger": "minRowsPerTrigger",
    "includeheaders": "includeProperties",
    "kafka.group.id": "subscription",
    "groupidprefix": "subscription",
}
"""What people bring along under another name."""

_TAGS: Final = re.compile(r"[\w.%-]+(\s*\|\|\s*[\w.%-]+)*")


class BadOption(PenstockError):
    """An option that cannot be used as it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Everything a reader needs to know; the same in every process of a query."""

    endpoint: str = ENDPOINT
    path: str = ""
    """A data directory that is read without a broker; the endpoint is not used then."""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    optional_topics: tuple[str, ...] = ()
    """More topics, each of them read once it exists; names only, also hidden ones."""
    subscription: str = ""
    is_named: bool = False
    """Whether the user gave the subscription's name."""
    starting: str = ""
    ending: str = ""
    starting_at_ms: int = -1
    ending_at_ms: int = -1
    starting_times: str = ""
    ending_times: str = ""
    rows_max: int = 0
    bytes_max: int = 0
    rows_min: int = 0
    roll_rows: int = 0
    """As ``rows_min``, but a batch never gets larger by it than it would be: files, not latency."""
    trigger_delay_s_max: float = TRIGGER_DELAY_S_MAX
    partitions_min: int = 0
    partition_rows_max: int = 0
    fails_on_data_loss: bool = True
    filter: RowFilter | None = None
    target_batch_s: float = TARGET_BATCH_S
    """0 = no adaptive admission."""
    has_properties: bool = True
    has_body: bool = True
    rows_per_batch: int = 10_000
    checks_records: bool = False
    retry_s: float = RETRY_S
    lease_ttl_s: float = 0.0
    """0 = the broker's default."""
    pause_file: str = ""
    """While this file exists, nothing more is offered; on the driver's machine."""

    @property
    def is_rocketmq(self) -> bool:
        """Whether a RocketMQ is read, not a Penstock."""
        return self.endpoint.startswith(ROCKETMQ)

    @property
    def location(self) -> str:
        """Where rows come from, for people."""
        return self.path or self.endpoint


def _names(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not found:
        raise ValueError("there is no name in it; write it like orders,payments")
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise ValueError(f"{text!r} is no regular expression: {problem}") from None
    return text


def _filter(text: str) -> RowFilter:
    """``A || B`` is tags, everything else SQL92; ``tag:`` or ``sql:`` in front decides."""
    kind, _, rest = text.partition(":")
    explicit = {"tag": TAG, "sql": SQL92, SQL92: SQL92}.get(kind.strip().lower())
    if explicit:
        return RowFilter(explicit, rest.strip())
    return RowFilter(TAG if _TAGS.fullmatch(text.strip()) else SQL92, text.strip())


def _optional_seconds(text: str) -> float:
    return 0.0 if text.strip().lower() in ("off", "0") else seconds(text)


def _endpoint(text: str) -> str:
    given = text.strip().removeprefix("penstock://").removeprefix("grpc://")
    addresses = given.removeprefix(ROCKETMQ).split(";")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{text!r} is no endpoint; write host:8815 or {ROCKETMQ}host:9876")
    if len(addresses) > 1 and not given.startswith(ROCKETMQ):
        raise ValueError(f"{text!r} names several brokers; one Penstock has one Flight port")
    return given


OptionTable = dict[str, tuple[str, Callable[[str], Any]]]

OPTIONS: Final[OptionTable] = {
    "endpoint": ("endpoint", _endpoint),
    "path": ("path", str),
    "topics": ("topics", _names),
    "topicsPattern": ("pattern", _pattern),
    "optionalTopics": ("optional_topics", _names),
    "subscription": ("subscription", str.strip),
    "startingOffsets": ("starting", str.strip),
    "endingOffsets": ("ending", str.strip),
    "startingTimestamp": ("starting_at_ms", wall_ms),
    "endingTimestamp": ("ending_at_ms", wall_ms),
    "startingOffsetsByTimestamp": ("starting_times", str.strip),
    "endingOffsetsByTimestamp": ("ending_times", str.strip),
    "maxRowsPerTrigger": ("rows_max", count),
    "maxBytesPerTrigger": ("bytes_max", size),
    "minRowsPerTrigger": ("rows_min", count),
    "rollRows": ("roll_rows", count),
    "maxTriggerDelay": ("trigger_delay_s_max", seconds),
    "minPartitions": ("partitions_min", count),
    "maxRecordsPerPartition": ("partition_rows_max", count),
    "failOnDataLoss": ("fails_on_data_loss", truth),
    "filter": ("filter", _filter),
    "targetBatchDuration": ("target_batch_s", _optional_seconds),
    "includeProperties": ("has_properties", truth),
    "includeBody": ("has_body", truth),
    "rowsPerBatch": ("rows_per_batch", count),
    "checkRecords": ("checks_records", truth),
    "retryTimeout": ("retry_s", seconds),
    "leaseTtl": ("lease_ttl_s", seconds),
    "pauseFile": ("pause_file", str),
}
"""Every option by the name users write: the field of ``SourceOptions`` and how its text is read."""


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a query; raises ``BadOption``."""
    fields, named = _read(given, OPTIONS)
    options = SourceOptions(**fields)
    _check(options, named)
    name = options.subscription or _made_up_name(options)
    return dataclasses.replace(options, subscription=name, is_named=bool(options.subscription))


def _read(given: Mapping[str, str], known: OptionTable) -> tuple[dict[str, Any], set[str]]:
    """Fields and their values, and the options that were given, by their right names."""
    by_lower = {name.lower(): name for name in known}
    fields: dict[str, Any] = {}
    named = set()
    for key, text in given.items():
        name = by_lower.get(key.lower())
        if name is None:
            raise BadOption(_unknown(key, known))
        field, read = known[name]
        named.add(name)
        try:
            fields[field] = read(str(text))
        except ValueError as problem:
            raise BadOption(f"option {name}: {problem}") from None
    return fields, named


def _check(options: SourceOptions, given: set[str]) -> None:
    """Options that contradict each other."""
    wrong = ""
    if {"endpoint", "path"} <= given:
        wrong = "endpoint and path are two places to read from; give one of them"
    elif not options.topics and not options.pattern:
        wrong = "which topics? Give topics (orders,payments) or topicsPattern"
    elif options.topics and options.pattern:
        wrong = "topics and topicsPattern exclude each other; give one of them"
    elif options.rows_max and options.rows_min > options.rows_max:
        wrong = (
            f"minRowsPerTrigger {options.rows_min} is above maxRowsPerTrigger {options.rows_max}"
        )
    elif options.optional_topics and (options.is_rocketmq or options.path):
        wrong = "optionalTopics: only a running Penstock has topics that come later; use topics"
    elif options.is_rocketmq and options.bytes_max:
        wrong = "maxBytesPerTrigger: RocketMQ does not say sizes; use maxRowsPerTrigger"
    elif options.rows_per_batch > 100_000:
        wrong = "rowsPerBatch is at most 100000: a batch must fit into Arrow's 2 GiB"
    for side in ("starting", "ending"):
        names = {f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"} & given
        if len(names) > 1:
            wrong = f"{' and '.join(sorted(names))} say the same thing twice; give one of them"
    if wrong:
        raise BadOption(wrong)


def _unknown(key: str, known: OptionTable) -> str:
    nearest = FROM_KAFKA.get(key.lower())
    if nearest not in known:
        by_lower = {name.lower(): name for name in known}
        close = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.5)
        nearest = by_lower[close[0]] if close else None
    hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(known)}"
    return f"there is no option {key!r}; {hint}"


def _made_up_name(options: SourceOptions) -> str:
    """The same for the same question: the checkpoint's path is not known here."""
    wanted = options.filter and dataclasses.asdict(options.filter)
    asked = [options.location, options.topics, options.pattern, wanted]
    what = json.dumps(asked, separators=(",", ":"), ensure_ascii=False).encode()
    topics = options.topics[0] if len(options.topics) == 1 else "topics"
    return f"{topics}-{hashlib.sha256(what).hexdigest()[:8]}"


# ---- the sink -----------------------------------------------------------------------------------


COMMIT_S: Final = 600.0
"""How long a commit waits for topics above their limit before the query fails."""
TOPICS: Final = "topics"
"""The sink's name where each row names its topic."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Where rows go, and how surely."""

    endpoint: str = ENDPOINT
    topic: str = ""
    """For rows without a topic of their own."""
    sink: str = ""
    """Tells the sinks of one query apart; by default the target."""
    guarantee: str = EXACTLY_ONCE
    transactional_id: str = ""
    batch: int = -1
    retry_s: float = RETRY_S
    commit_s: float = COMMIT_S
    passing: tuple[str, ...] = ()
    """Topics whose limits do not hold the rows: those of a flow's letters. No option says it, only
    the sink of flows (``source.py``)."""

    @property
    def name(self) -> str:
        return self.sink or self.topic or TOPICS


def _topic(text: str) -> str:
    found = _names(text)
    if len(found) > 1:
        raise ValueError(f"{text!r} is more than one topic; give each row its topic in a column")
    return found[0]


def _guarantee(text: str) -> str:
    if text.strip().lower() not in GUARANTEES:
        raise ValueError(f"{text!r} is none of {', '.join(GUARANTEES)}")
    return text.strip().lower()


def _batch_number(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError(f"{text!r} is no whole number from 0 on")
    return int(text)


SINK_OPTIONS: Final[OptionTable] = {
    "endpoint": ("endpoint", _endpoint),
    "topic": ("topic", _topic),
    "sink": ("sink", str.strip),
    "guarantee": ("guarantee", _guarantee),
    "transactionalId": ("transactional_id", str.strip),
    "batch": ("batch", _batch_number),
    "retryTimeout": ("retry_s", seconds),
    "commitTimeout": ("commit_s", seconds),
}
SPARKS_OWN: Final = frozenset(("checkpointlocation", "path", "queryname"))
"""What Spark hands a sink beside its own options."""


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write; raises ``BadOption``."""
    ours = {key: text for key, text in given.items() if key.lower() not in SPARKS_OWN}
    fields, _ = _read(ours, SINK_OPTIONS)
    options = SinkOptions(**fields)
    if options.endpoint.startswith(ROCKETMQ):
        raise BadOption("endpoint: rows are written to a Penstock; give its Flight port, host:8815")
    if bool(options.transactional_id) != (options.batch >= 0):
        raise BadOption(
            "transactionalId and batch belong together: the id of what is written, and the number"
            " of this write of it, which rises"
        )
    return options
