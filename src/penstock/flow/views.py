"""What the diagnosis judges: stages, readers, queries, refusals and alarms as they are now.

Plain values without a rule: the engine makes them (``engine/flow_map.py``), ``diagnosis.py`` and
``delivery.py`` judge them, ``/api/flow`` shows them. Everything has an id; names are for people.
"""

from typing import Final, Literal

import msgspec

from penstock.flow.credit import stage_label
from penstock.flow.demand import ClientSays, Withheld
from penstock.flow.progress import ProgressView
from penstock.flow.reason import Reason

State = Literal["running", "flow", "blocking", "blocked", "slow"]

RECENT_MS: Final = 2000
"""What was slow before that is history; shorter, and one slow sync would be all there is."""


BURIALS: Final = "burials"
EXPIRIES: Final = "expiries"
COMMANDS: Final = "commands"
PUBLISHES_AFTER_CLOSE: Final = "publishes after close"
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
    """Since when it is held: of the episode, not of its last moment."""
    share: float = 0.0
    """Fraction of the last 10 s it was held."""
    downstream: tuple[str, ...] = ()
    """Labels of the stages it hands messages to."""
    ready: int = 0
    """Subscription: messages that could be delivered now."""
    consumers: "tuple[ConsumerView, ...]" = ()
    """Subscription: its consumers; of very many the worst of each kind (``crowd.py``)."""
    query: "QueryView | None" = None
    """Query: what it says of itself."""
    refusal: str = ""
    """Log: the kind of what it says then (``RefusalKind``)."""
    refusing: str = ""
    """Log: why whoever will not wait is turned away at once (F6, F7); nobody is held then."""
    recent: float | None = None
    """``share`` of the last moments (``RECENT_MS``) only: by it blame is shared out."""
    stalls: int = 0
    """How often it was held in the last moments."""
    is_stalled: bool = True
    """False: it runs at this moment, and was held a moment ago."""
    undone: "UndoneView | None" = None
    """What it has begun and goes on with in the next turns, if there is such a thing."""
    id: str = ""
    waits_for: str = ""
    """Id of what holds it."""
    belongs_to: str = ""
    """Id of what it is a part of: a channel's connection, a queue's or a subscription's topic."""
    downstream_ids: tuple[str, ...] = ()
    progress: ProgressView | None = None
    """Subscription: its past; None = not known, and then what is ready counts."""
    group: "GroupView | None" = None
    """Subscription: clients that read it by asking (RocketMQ); None = there are none such."""
    sync: "SyncView | None" = None
    """Log: what the disk does."""

    per_s: float = 0.0
    """Messages a second through it; of a subscription those that are settled."""
    hops: tuple[tuple[str, float], ...] = ()
    """(id of a stage, messages a second that go to it), the busiest first."""
    has_most: bool = False
    """Connection: more than half of what all publish and the log does not have yet is its own."""
    others: int = 0
    """Connection: so many more wait for the same as it does, and have no view of their own."""
    consumers_left_out: int = 0
    """Subscription: so many more consumers have no view, each like one that has."""
    held_ms: int = 0
    """For how long it is held by now; 0 = not known, or it is not."""

    @property
    def label(self) -> str:
        return stage_label(self.kind, self.name)

    @property
    def ref(self) -> "Ref":
        return Ref(self.kind, self.key, self.name)

    @property
    def waiter(self) -> "WaiterView":
        # What was sent before its client went is held on, but nobody waits for it any more.
        is_left = self.undone is not None and self.undone.what == PUBLISHES_AFTER_CLOSE
        name = f"{self.name} (closed)" if is_left else self.name
        return WaiterView(self.key, name, self.since_ms, self.share)

    @property
    def members(self) -> tuple[str, ...]:
        """Clients that read it by asking, by name."""
        return () if self.group is None else tuple([each.client for each in self.group.members])

    @property
    def key(self) -> str:
        """What others know it by."""
        return self.id or self.label

    @property
    def awaited(self) -> str:
        """The key of what holds it."""
        return self.waits_for or self.culprit

    @property
    def is_held(self) -> bool:
        return self.state not in ("running", "slow")

    @property
    def weight(self) -> float:
        """How much it waits, for the diagnosis."""
        return self.share if self.recent is None else self.recent


class UndoneView(msgspec.Struct, frozen=True):
    """Work of a stage that is spread over turns, so that others are served between them (law 5)."""

    what: str
    """Subscription: ``BURIALS``, ``EXPIRIES``; connection: ``COMMANDS``; channel:
    ``PUBLISHES_AFTER_CLOSE``."""
    count: int
    """How many are left; at least so many."""
    since_ms: int
    waits_for: str = ""
    """Label of the stage for which it waits, if it is more than the next turn."""
    age_ms: int = 0


class SyncView(msgspec.Struct, frozen=True):
    """The disk, as the log sees it."""

    since_ms: int | None = None
    """When the sync under way began."""
    age_ms: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    """Of the last syncs."""
    unsynced_bytes: int = 0


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
    bound: tuple[str, int] = ("", 0)
    """Then: the setting of the topic that lets them wait, and what it is."""
    lease_text: str = ""
    """Why its lease is broken; empty = it is not."""
    lease_since_ms: int | None = None
    """Since when; None = not known, the broker was started since."""
    polls: int = 1
    """How often it asked for messages; 0 = it has a lease and did not begin."""
    age_ms: int | None = None
    """Of the oldest message it did not get; None = not known."""
    own_rows_max: int = 0
    """Rows of its last batch when its user allows no more (``maxRowsPerTrigger``); else 0."""
    is_stopped: bool = False
    """It said that it is over."""
    failure: str = ""
    """Why it failed, until a batch of it is done."""
    silent_ms: int = 0
    """Since its last word."""


class ConsumerView(msgspec.Struct, frozen=True):
    """One consumer of a subscription."""

    name: str
    unacked: int = 0
    unacked_max: int = 0
    """Its window or in-flight limit, whichever binds; 0 = none."""
    unacked_bytes: int = 0
    unacked_bytes_max: int = 0
    """0 = none."""
    is_unsent_high: bool = False
    """Its socket has not taken what it was sent (F14)."""
    has_demand: bool = True
    """It has asked for messages it did not get yet: permits, an open window, a held pull."""
    blocked_by: tuple[Withheld, ...] = ()
    """Everything that keeps messages from it (``Withheld``); empty = it would get the next one."""
    waits_for: str = ""
    """The consumer that is active in its place, or has to settle messages of its keys first."""
    last_grant_ms: int | None = None
    """When it was last granted permits (monotonic); None = never, or it has none."""
    id: str = ""
    connection: str = ""
    """Id of its connection."""
    connection_name: str = ""
    """What people call that; empty = not known."""
    is_unlimited: bool = False
    """It asked for no window at all: whatever comes is sent to it."""
    unsettled_ms: int | None = None
    """For how long it holds messages and gave none of them back; None = not known."""
    usual_ms: int = 0
    """How long that took lately, when it did give something back; 0 = not known."""
    has_settled: bool = False
    """It gave something back since it came: it works, however slowly."""
    is_passive: bool = False
    """It takes by itself, now and then: that it could take more says nothing."""
    says: ClientSays | None = None
    """Why it takes no more, in its client's words; None = it does, or its client does not tell."""
    others: int = 0
    """So many more of them are like it, and have no view of their own."""

    @property
    def is_at_limit(self) -> bool:
        """True when it settles slower than it is served."""
        return self.unacked >= self.unacked_max > 0


class GroupView(msgspec.Struct, frozen=True):
    """Clients that read a subscription by asking for messages."""

    members: "tuple[MemberView, ...]" = ()
    lock_owner: str = ""
    """Who has locked a queue that has messages, and is gone; empty = nobody."""


class MemberView(msgspec.Struct, frozen=True):
    """A client of a group, with what it says of itself when it is asked."""

    client: str
    threshold: str = ""
    """Which of its own limits holds a queue: ``messages``, ``bytes`` or ``span`` (F15)."""
    limit: int = 0
    cached: int = 0
    """What it has of that, when it said so; -1 = it did not."""
    is_certain: bool = True
    """False: its counts were held against the usual limits, it may have set others."""
    is_ordered: bool = False
    is_failing: bool = False
    """Messages failed in its hands lately."""
    frozen_ms: int = 0
    """For how long the offset of some queue did not move that it has messages of."""
    frozen_queue: str = ""
    unsettled: int = 0
    """Messages of the topic that it has, as far as it said so."""


class Ref(msgspec.Struct, frozen=True):
    """Something that has an id, with the name that people know it by."""

    kind: str
    id: str
    name: str


class WaiterView(msgspec.Struct, frozen=True):
    """Who waits, or is told no."""

    id: str
    name: str
    since_ms: int | None = None
    share: float = 0.0


class TroubleView(msgspec.Struct, frozen=True):
    """Refusals or losses that happen again and again, each kind for each place once."""

    severity: Literal["refusing", "discarding", "dead"]
    culprit: Ref
    cause: str
    text: str
    """What happens, as a sentence without its stop."""
    since_ms: int
    count: int
    waiters: tuple[WaiterView, ...] = ()
    waiters_total: int = 0
    via: str = ""
    """Id of what it passed on its way there: an exchange."""
    limit: str = ""
    """Id of the limit by which it happens; empty = it is none."""


class AlarmView(msgspec.Struct, frozen=True):
    """A raised alarm."""

    reason: Reason
    text: str
    since_ms: int | None = None
