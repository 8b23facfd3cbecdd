"""What an operator sees of a stage, and one finding about all of them.

Plain values, made by ``engine/flow_map.py``, judged by ``diagnosis.py``, shown by ``/api/flow``.
"""

from typing import Final, Literal

import msgspec

from penstock.flow.reason import Reason
from penstock.flow.stage import stage_label

State = Literal["running", "flow", "blocking", "blocked"]

RECENT_MS: Final = 2000
"""What was slow before that is history; shorter, and one slow sync would be all there is."""


BURIALS: Final = "burials"
EXPIRIES: Final = "expiries"
COMMANDS: Final = "commands"
"""What may be spread over turns (``UndoneView``)."""


class StageView(msgspec.Struct, frozen=True):
    """One stage as an operator sees it now."""

    kind: str
    name: str
    state: State = "running"
    reason: Reason | None = None
    culprit: str = ""
    """What holds it: the label (``kind name``) of a stage, or an alarm's or limit's own words."""
    since_ms: int | None = None
    share: float = 0.0
    """Fraction of the last 10 s it was held."""
    downstream: tuple[str, ...] = ()
    """Labels of the stages it hands messages to."""
    ready: int = 0
    """Subscription: messages that could be delivered now."""
    consumers: "tuple[ConsumerView, ...]" = ()
    """Subscription: its consumers."""
    query: "QueryView | None" = None
    """Query: what it says of itself."""
    refusing: str = ""
    """Log: why whoever will not wait is turned away at once (F6, F7); nobody is held then."""
    recent: float | None = None
    """``share`` of the last moments (``RECENT_MS``) only: by it blame is shared out."""
    stalls: int = 0
    """How often it was held in the last moments."""
    undone: "UndoneView | None" = None
    """What it has begun and goes on with in the next turns, if there is such a thing."""

    @property
    def label(self) -> str:
        """How other stages name it."""
        return stage_label(self.kind, self.name)

    @property
    def is_held(self) -> bool:
        """True in every state but ``running``."""
        return self.state != "running"

    @property
    def weight(self) -> float:
        """How much it waits, for the diagnosis."""
        return self.share if self.recent is None else self.recent


class UndoneView(msgspec.Struct, frozen=True):
    """Work of a stage that is spread over turns, so that others are served between them (law 5)."""

    what: str
    """Subscription: ``BURIALS``, ``EXPIRIES``; connection: ``COMMANDS``."""
    count: int
    """How many are left; at least so many."""
    since_ms: int
    waits_for: str = ""
    """Label of the stage for which it waits, if it is more than the next turn."""


class QueryView(msgspec.Struct, frozen=True):
    """A Spark query (F18)."""

    name: str
    slow_part: str = ""
    """Which part of its batches takes longest: read, transform or sink; empty = not known."""
    messages_per_s: float = 0.0
    is_limited: bool = False
    """It takes as much as its own limits allow, and there is more."""
    is_alive: bool = True
    is_holding: bool = False
    """Publishers wait for it."""


class ConsumerView(msgspec.Struct, frozen=True):
    """One consumer of a subscription."""

    name: str
    unacked: int = 0
    unacked_max: int = 0
    """Its in-flight limit or window, whichever binds; 0 = none."""
    is_unsent_high: bool = False
    """Its socket has not taken what it was sent (F14)."""
    has_demand: bool = True
    """It has asked for messages it did not get yet: permits, an open window, a held pull."""

    @property
    def is_at_limit(self) -> bool:
        """True when it settles slower than it is served."""
        return self.unacked >= self.unacked_max > 0


class Diagnosis(msgspec.Struct, frozen=True):
    """One finding."""

    kind: str
    """Kind of stage (channel, queue, log, consumer ...), alarm (memory, disk), limit or none."""
    name: str
    sentence: str
    side: Literal["publish", "delivery", "none"] = "none"
    chain: tuple[str, ...] = ()
    """The held stages that led there, upstream first."""
    share: float = 0.0
    """How much of the last 10 s the first of them stood still."""
    is_felt: bool = True
    """False: no publisher waits for it, and it is not for long either."""
