"""One thing that is wrong: who is to blame, why, since when, who waits, and what helps.

Severities, the words of each cause, and the commands that help. Not here: the rules by which
something is found (``diagnosis.py``, ``delivery.py``).
"""

import shlex
from typing import Final, Literal
from urllib.parse import unquote

import msgspec

from penstock.flow.demand import Withheld
from penstock.flow.views import Ref, WaiterView

Severity = Literal["alarm", "holding", "refusing", "discarding", "behind", "dead", "parked", "ok"]

SEVERITIES: Final[tuple[Severity, ...]] = (
    "alarm",
    "holding",
    "refusing",
    "discarding",
    "behind",
    "dead",
    "parked",
)
"""The worst first."""

WAITERS_MAX: Final = 16
"""Who waits, by name; ten thousand held connections are one finding, not a page."""


class Advice(msgspec.Struct, frozen=True):
    """A command that helps, and what for."""

    why: str
    command: str


class HeadlinePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a headline; with an id it is the name of something."""

    text: str
    id: str = ""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, or that nothing is."""

    kind: str
    """Kind of stage (channel, queue, log, consumer ...), alarm (memory, disk), limit or none."""
    name: str
    sentence: str
    side: Literal["publish", "delivery", "none"] = "none"
    chain: tuple[str, ...] = ()
    """Labels of the held stages that led there, upstream first."""
    share: float = 0.0
    """How much of the last 10 s the first of them stood still."""
    is_felt: bool = True
    """False: no publisher waits for it, and it is not for long either."""
    severity: Severity = "behind"
    culprit: Ref = Ref("none", "", "")
    cause: str = ""
    since_ms: int | None = None
    """When the episode began."""
    is_now: bool = True
    """False: it is over, and shown for a moment longer."""
    waiters: tuple[WaiterView, ...] = ()
    """At most ``WAITERS_MAX`` of those who wait."""
    waiters_total: int = 0
    path: tuple[str, ...] = ()
    """Ids from who waits to the culprit."""
    starved: tuple[str, ...] = ()
    """Ids of topics that get nothing because their publishers wait."""
    detail: str = ""
    do: tuple[Advice, ...] = ()

    @property
    def id(self) -> str:
        """The same as long as the episode lasts."""
        return f"{self.severity}/{self.culprit.id}"

    @property
    def headline(self) -> tuple[HeadlinePart, ...]:
        """The shortest way to say it."""
        return _headline(self)


NOTHING: Final = Finding(
    "none",
    "",
    "Nothing is held back: the publishers, the network or their own limits set the pace.",
    severity="ok",
)


def _headline(finding: Finding) -> tuple[HeadlinePart, ...]:
    if finding.severity == "ok":
        return (HeadlinePart("Nothing is held back."),)
    culprit = finding.culprit
    named = HeadlinePart(culprit.name or finding.name, culprit.id)
    words = CAUSE_WORDS.get(finding.cause, finding.cause)
    words = _WORDS_OF_KINDS.get((culprit.kind, finding.cause), words)
    if finding.severity == "holding":
        words = f"is the bottleneck: {_HOLDING_WORDS.get(finding.cause, f'it {words}')}"
    elif not finding.is_felt:
        words = f"is waited for now and then: {_HOLDING_WORDS.get(finding.cause, f'it {words}')}"
    parts = [named, HeadlinePart(f" {words}.")]
    # Who publishes what nobody wants is its own connection: there is nothing to add.
    if finding.waiters and finding.cause != "unroutable":
        first = finding.waiters[0]
        others = finding.waiters_total - 1
        before, one, several = _WAITER_WORDS.get(finding.severity, _WAIT_WORDS)
        more = f" and {others} other{'s' if others > 1 else ''}{several}." if others else ""
        parts += [HeadlinePart(f" {before}"), HeadlinePart(first.name, first.id)]
        parts.append(HeadlinePart(more or f"{one}."))
    return tuple(parts)


_WAIT_WORDS: Final = ("", " waits for it", " wait for it")
_WAITER_WORDS: Final = {
    "refusing": ("", " is refused", " are refused"),
    "discarding": ("They come from ", "", ""),
    "dead": ("They come from ", "", ""),
}
"""Severity -> what is said of those concerned: before the first, after one, after several."""


CAUSE_WORDS: Final = {
    "memory": "is raised: too much is used",
    "disk": "is raised: too little is free",
    "work": "does all it can",
    "busy": "is busy, and tells senders so",
    "no-buffer": "has no write buffer left: all wait for the disk",
    "write-failed": "could not be written to",
    "sync-failed": "could not be synced",
    "busy-host": "has its CPUs taken by others",
    "routing": "is busy with parsing and routing",
    "index": "is busy: index writes, or one hot queue",
    "slow": "is slow",
    "hung": "has a sync that does not come back",
    "room": "has most of the in-flight pool",
    "noisy": "has most of what waits for the disk",
    "limit": "is reached",
    "read": "has a slow read",
    "transform": "has a slow transform",
    "sink": "has a slow sink",
    "transform-or-sink": "has a slow transform, or a slow sink",
    "unknown": "is slow, which part of it is not known",
    "own-limit": "takes no more than its own limit allows",
    "silent": "does not poll",
    "stopped": "was stopped",
    "failed": "failed",
    "not-started": "has a lease and did not begin",
    "lease-broken": "lost its lease",
    "nobody": "has messages, and nobody consumes",
    "never-acks": "never acks",
    "slow-consumer": "is slow",
    "not-received": "has messages that its application does not take",
    "queue-bytes": "has its receiver queue full: its application does not take messages",
    "listeners-busy": "has a listener all of whose threads are busy",
    "paused": "is paused by its application",
    "letters-wait": "waits for its retry-letter or dead-letter topic",
    "starting": "has not begun: other parts of it are not subscribed yet",
    "not-reading": "does not read what it was sent",
    "requeue-loop": "takes the same message and gives it back, again and again",
    "unroutable": "publishes what no queue wants",
    "drop-head": "drops its oldest messages: it is full",
    "evict": "drops its oldest messages: it is further behind than its quota allows",
    "ring": "keeps the newest only, as it was asked to",
    "length-limit": "refuses what is published: it is full",
    "dead-letters": "has more and more dead letters",
    "held": "is reached",
    "rate": "is used up",
    "quota": "is passed: a reader is too far behind",
    "pending": "is reached: too much is not confirmed yet",
    "stage": "is used up: too many staged rows are not committed",
    "held-too-long": "held publishes for as long as it may, and refuses them",
    "too-large": "refuses messages that are too large",
    "terminated": "is ended for good, and takes no more",
    "demand": "has consumers that do not ask for messages",
    "subscription-unsettled": "has as many unsettled as it allows",
    "delayed-room": "has no room to put delayed messages aside",
    "draining": "waits for the keys of a former consumer",
    "look-ahead": "has too much for consumers of other keys",
    "inactive": "waits for a consumer that is to take over",
    "nothing-ready": "has messages in queues that nobody reads",
    "flow": "waits for what comes after it",
    "spark": "is behind its bound",
    "memory-alarm": "refuses publishes: the memory alarm is raised",
    "disk-alarm": "refuses publishes: the disk alarm is raised",
    "no-route": "refuses what no queue wants",
    "closing": "is about to stop",
    "letters-lost": "has no room for dead letters: they are lost",
    "letters-unrouted": "has dead letters that no queue wants: they are lost",
    "letters-slow": "buries messages that died, and is not done",
    "external": "is beside the chain",
    "cycle": "wait for each other",
    "does-not-ask": "does not ask for more",
    "stopped-pulling": "has stopped pulling",
    "threshold-messages": "is slow: it has as many messages as it keeps",
    "threshold-bytes": "is slow: it has as many bytes as it keeps",
    "threshold-span": "is slow: one message keeps it from going on",
    "ordered-stuck": "consumes in order, and a message fails again and again",
    "ordered-slow": "consumes in order, and is slow",
    "lock-owner-gone": "is gone, and still has a lock",
    "burials": "buries messages that died",
}
"""Cause -> what is said of the culprit after its name."""

_HOLDING_WORDS: Final = {
    "busy-host": "its CPUs are taken by others",
    "cycle": "they wait for each other",
    "hung": "a sync does not come back",
    "no-buffer": "all its write buffers wait for the disk",
    "quota": "it is passed",
    "read": "its read is slow",
    "routing": "parsing and routing",
    "index": "index writes, or one hot queue",
    "sink": "its sink is slow",
    "transform": "its transform is slow",
    "transform-or-sink": "its transform or its sink is slow",
    "unknown": "which part of it is slow is not known",
    "external": "it is in the way",
}
"""After "is the bottleneck: ", where "it" and the words above are not the shortest way."""

_WORDS_OF_KINDS: Final = {
    ("limit", "length-limit"): "is reached, and what is published is refused",
    ("pool", "room"): "is full, and nobody has most of it",
    ("subscription", "rate"): "has used up its dispatch rate",
    ("topic", "quota"): "refuses what is published: a reader is further behind than its quota",
}
"""(kind of the culprit, cause) -> the same where the cause alone says too little."""

LIMIT_WORDS: Final = {
    "length_max": "length limit",
    "bytes_max": "size limit",
    "publish_messages_per_s": "publish rate",
    "publish_bytes_per_s": "publish rate in bytes",
    "quota_bytes_max": "backlog quota",
    "quota_age_ms_max": "backlog quota by age",
    "unacked_max": "unacked limit",
    "flow.pending_publishes_max": "limit of unconfirmed publishes",
    "spark.stage_bytes_max": "room for staged rows",
}
"""Setting -> what people call the limit."""


def topic_of_limit(limit_id: str) -> str:
    """The id of the topic that a limit limits; empty when it is no such limit."""
    if not limit_id.startswith("limit/"):
        return ""
    _, _, limited = limit_id.removeprefix("limit/").partition("/")
    return limited if limited.startswith("topic/") else ""


def topic_of_queue(queue_id: str) -> str:
    """``queue/NAME/2`` is a part of ``topic/NAME``."""
    return "topic/" + queue_id.removeprefix("queue/").rpartition("/")[0]


def percent(share: float) -> str:
    return f"{round(share * 100)} %"


# ---- advice -------------------------------------------------------------------------------------
# Commands that help, by what is to blame. Each exists and works (tests/unit/flow/test_finding.py).


def advice_for(culprit_id: str, cause: str) -> tuple[Advice, ...]:
    kind, _, rest = culprit_id.partition("/")
    if kind == "alarm":
        return _ALARM_ADVICE[rest]
    if kind == "limit":
        setting, _, limited = rest.partition("/")
        if limited.startswith("sub/"):
            limited = f"topic/{limited.split('/')[1]}"
        if not limited.startswith("topic/") or setting not in LIMIT_OPTIONS:
            return (Advice("see what the setting means", "penstock settings"),)
        return (_limit_advice(limited, setting),)
    if kind in ("topic", "sub"):
        return _topic_advice(f"topic/{rest.partition('/')[0]}", cause)
    return _STAGE_ADVICE.get(kind, ())


def _topic_advice(topic: str, cause: str) -> tuple[Advice, ...]:
    if cause == Withheld.RATE:
        # Pulsar's rules of a topic, a namespace or a subscription: no command of ours changes them.
        return ()
    if cause == Withheld.SUBSCRIPTION:
        return (_limit_advice(topic, "unacked_max"),)
    return (Advice("see who reads it", f"penstock topics show {topic_argument(topic)}"),)


def _limit_advice(topic_id: str, setting: str) -> Advice:
    why, option = LIMIT_OPTIONS[setting]
    return Advice(why, f"penstock topics set {topic_argument(topic_id)} {option}")


_STAGE_ADVICE: Final = {
    "query": (Advice("see what it says of itself", "penstock queries"),),
    "log": (Advice("look at the disk and the settings", "penstock doctor"),),
}


def topic_argument(topic_id: str) -> str:
    """A topic's id as an argument of a command."""
    name, *rest = topic_id.removeprefix("topic/").split("@")
    quoted = shlex.quote(unquote(name))
    return f"{quoted} --space {shlex.quote(unquote(rest[0]))}" if rest and rest[0] else quoted


def brake_advice(topic_id: str, setting: str, limit: int) -> tuple[Advice, ...]:
    """What helps those who wait for a Spark query that is behind the bound of a topic."""
    change = f"penstock topics set {topic_argument(topic_id)}"
    off = Advice("let publishers run", f"{change} --spark-backpressure off")
    if setting not in _BOUND_OPTIONS:
        return (off,)
    option, unit = _BOUND_OPTIONS[setting]
    return (Advice("raise the bound", f"{change} {option} {RAISED * limit}{unit}"), off)


RAISED: Final = 2
"""A bound that is raised is so many times what it was."""
_BOUND_OPTIONS: Final = {
    "spark_backlog_messages_max": ("--spark-backlog-max", ""),
    "spark_backlog_bytes_max": ("--spark-backlog-bytes-max", ""),
    "spark_backlog_age_ms_max": ("--spark-backlog-age-max", "ms"),
}
"""Setting of a topic -> the option of ``penstock topics set``, and the unit of its figure."""

_ALARM_ADVICE: Final = {
    "memory": (
        Advice("see who is behind", "penstock groups list"),
        Advice("allow more, until the next start", "penstock limits set --memory 0.9"),
    ),
    "disk": (
        Advice("see who fills the disk", "penstock topics list"),
        Advice("ask for less, until the next start", "penstock limits set --disk-free 1GiB"),
    ),
}

LIMIT_OPTIONS: Final = {
    "length_max": ("take the limit away", "--length-max 0"),
    "bytes_max": ("take the limit away", "--bytes-max 0"),
    "publish_messages_per_s": ("take the limit away", "--publish-rate 0"),
    "publish_bytes_per_s": ("take the limit away", "--publish-bytes-rate 0"),
    "quota_bytes_max": ("take the limit away", "--quota-bytes-max 0"),
    "quota_age_ms_max": ("take the limit away", "--quota-age-max 0"),
    "unacked_max": ("take the limit away", "--unacked 0"),
}
"""Setting of a topic -> what to do about it, as an option of ``penstock topics set``."""
