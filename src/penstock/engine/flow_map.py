"""The stages as an operator sees them: views for the diagnosis and ``/api/flow``.

Publish side: connections, channels (also closed ones whose publishes are held on), sinks of Spark
that wait, queues, the log.
Delivery side: subscriptions (``view`` of each). A stage says whom it waits for by label, so that
the diagnosis can walk the chain.

Views are made of every stage that is held or has work that is spread over turns, of those it names
(its channels, its queues), and of subscriptions with something ready; of the others only so many as
somebody wants to see, the busiest first. All of them are counted. So ten thousand idle connections
cost two looks each, not twenty thousand views; and a map of very many is made in steps, with turns
of the broker in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappush, heappushpop
from typing import Final, Literal
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from penstock.engine.commit import Commits, Frame
from penstock.engine.connection import UNROUTABLE, Channel, Connection, pending_culprit
from penstock.engine.dead_letter import DEAD_LETTERS, LETTERS_LOST, LETTERS_UNROUTED
from penstock.engine.flow_context import FlowContext
from penstock.engine.non_persistent import NonPersistentTopics
from penstock.engine.ports import PoolHolder
from penstock.engine.registry import Registry
from penstock.engine.sampler import HopRates
from penstock.engine.spark.query import PREFIX
from penstock.engine.spark.query_service import QueryService
from penstock.engine.spark.views import stage_of
from penstock.engine.subscription.subscription import Subscription
from penstock.engine.topic import Hold, Queue, Topic, TopicPolicy
from penstock.flow.credit import Stage
from penstock.flow.progress import HostView, Trouble
from penstock.flow.quota import QuotaPolicy
from penstock.flow.rate import TokenBucket
from penstock.flow.reason import Reason, id_of
from penstock.flow.views import (
    PUBLISHES_AFTER_CLOSE,
    RECENT_MS,
    AlarmView,
    ConsumerView,
    GroupView,
    Ref,
    StageView,
    SyncView,
    TroubleView,
    UndoneView,
    WaiterView,
)
from penstock.log.encode import Appending
from penstock.model.errors import AlreadyExists
from penstock.model.names import TopicName, topic_of_id
from penstock.model.record import Record
from penstock.model.refusal import RefusalKind
from penstock.model.steps import A_QUEUE, Steps, finished

EVERY_STAGE: Final = 1 << 62

DETAILS_MAX: Final = 300
"""Held connections and their channels that are looked at closely; of more only what the diagnosis
needs: ten thousand of them wait for the same few, and are one view for each of those."""

READERS_MAX: Final = 200
"""Subscriptions of which something is to be said that are looked at closely: who was read lately
first, then by what is ready."""

VIEW: Final = 1.0
BRIEF: Final = 0.3
LOOK: Final = 0.2
"""Steps that a view of a stage is, one of very many, and a look without one."""

SLOW_SYNC_MS: Final = 1000
"""A sync under way for so long is said to be slow, whoever waits for it."""

FLOW_TOPIC: Final = TopicName("", "penstock.flow")

RATE_PER_S_MAX: Final = 100
"""Records told per second, and at once; an alarm with ten thousand connections makes more."""

POLICY: Final = TopicPolicy(
    message_ttl_ms=24 * 3_600_000,
    quota_bytes_max=16 << 20,
    quota_policy=QuotaPolicy.EVICT,
)
"""What a subscription that is not read may keep of it."""


class FlowMap(msgspec.Struct):
    """The stages at one moment."""

    views: list[StageView] = []
    """All that are held or that a held one waits for, and some that run."""
    stages_total: int = 0
    stages_held: int = 0
    troubles: list[TroubleView] = []
    """Refusals and losses of the last moments."""
    troubles_dropped: int = 0
    """How often one was not noted, because there were too many at once (``TROUBLES_MAX``)."""
    readers_left_out: int = 0
    """Subscriptions that may be behind, and are too many to be judged (``READERS_MAX``)."""
    alarms: list[AlarmView] = []
    host: HostView | None = None
    """The machine, while it is too busy for us."""


MembersOf = Callable[[Topic, Subscription, bool], GroupView | None]
"""Clients that read a subscription by asking: only their protocol knows them. True = it is behind,
so that they may be asked what keeps them."""

StagesBeside = Callable[[], Iterator[StageView]]
"""Readers without a subscription of their own: only their protocol knows them."""


class FlowMapper:
    """Makes one map of the stages as they are now."""

    def __init__(
        self,
        chain: FlowContext,
        *,
        connections: Collection[Connection],
        draining: Collection[Channel],
        registry: Registry,
        commits: Commits,
        queries: QueryService,
        non_persistent: NonPersistentTopics,
        rates: HopRates,
        members_of: Sequence[MembersOf] = (),
        stages_beside: Sequence[StagesBeside] = (),
        now_ms: int,
        running_max: int = EVERY_STAGE,
    ) -> None:
        self._members_of = members_of
        self._stages_beside = stages_beside
        self._rates = rates
        self._chain = chain
        self._connections = connections
        self._draining = draining
        self._registry = registry
        self._commits = commits
        self._queries = queries
        self._non_persistent = non_persistent
        self._now_ms = now_ms
        # Whom an alarm holds keeps its figure of then.
        self._raised: Mapping[Reason, str] = chain.alarms.raised
        # Views that are made of stages nobody waits for, about.
        self._spare = running_max
        self._running_max = running_max
        # Held connections shown with their channels and every figure.
        self._details = DETAILS_MAX
        self._map = FlowMap()
        # Queues that a held channel hands messages to: the diagnosis walks on to them.
        self._named: set[Queue] = set()
        self._keepers: dict[PoolHolder | None, str] = {}
        # Who has most of the pool, as soon as somebody lacks room: that is a look at everybody.
        self._most: str | None = None
        # Held connections beyond those, by what they wait for.
        self._groups: dict[tuple[Reason, str], StageView] = {}
        # Names of connections by id: readers tell theirs.
        self._names: dict[str, str] = {}
        # Subscriptions of which something is to be said, the least important one first.
        self._readers: list[tuple[tuple[bool, int, int], Topic, Subscription]] = []
        self._noteworthy = 0

    def made(self) -> FlowMap:
        """All of it at once."""
        return finished(self.steps())

    def steps(self) -> Steps[FlowMap]:
        """In steps, so that others may have their turns; the stages are not of one moment then."""
        self._add_log()
        yield from self._add_readers()
        yield from self._add_connections()
        yield from self._add_draining()
        self._add_groups()
        self._add_sinks()
        yield from self._add_queues()
        yield from self._add_subscriptions()
        self._map.readers_left_out = self._noteworthy - len(self._readers)
        for stages in self._stages_beside:
            for view in stages():
                self._add(view)
                yield 2 * VIEW
        yield from self._add_troubles()
        self._map.host = self._chain.run_delay.view()
        for direct in list(self._non_persistent):
            for subscription in list(direct.subscriptions.values()):
                # Nothing ever waits in them: shown while there is place.
                if self._spare > 0:
                    self._spare -= 1
                    name = quote(subscription.name, safe="")
                    place = {"id": f"sub/{direct.name.id_part}/{name}"}
                    view = yield from subscription.view_steps()
                    self._add(replace(view, belongs_to=direct.name.id, **place))
                    yield VIEW
                else:
                    self._map.stages_total += 1
                    yield LOOK
        return self._map

    def _add_readers(self) -> Iterator[float]:
        """Subscriptions of which something is to be said are found; there may be very many."""
        for topic in list(self._registry.topics.values()):
            for subscription in list(topic.subscriptions.values()):
                yield BRIEF
                if subscription.name.startswith(PREFIX):
                    continue
                ready = yield from subscription.noteworthy_steps()
                if ready is None:
                    continue
                self._noteworthy += 1
                weight = (subscription.was_read, ready, -self._noteworthy)
                entry = (weight, topic, subscription)
                if len(self._readers) < READERS_MAX:
                    heappush(self._readers, entry)
                else:
                    heappushpop(self._readers, entry)

    def _add_connections(self) -> Iterator[float]:
        found, chain = self._map, self._chain
        queues = len(self._registry.queues)
        # What runs is shown while there is place; each kind has a part of it that others leave.
        spare = max(self._running_max // 3, self._running_max - 2 * queues)
        busy = self._rates.busy_connections.shown
        is_alarmed = chain.alarms.is_raised
        is_quiet = not chain.journal.open
        for connection in self._busiest_first():
            self._names[connection.stage.id] = connection.name
            channels = list(connection.channels.values())
            if (is_quiet or not _is_held(connection)) and connection.undone is None:
                if spare <= 0 and connection.connection_id not in busy:
                    found.stages_total += 1 + len(channels)
                    found.stages_held += is_alarmed
                    yield LOOK
                    continue
                spare -= 1 + len(channels)
                self._spare -= 1 + len(channels)
            elif self._details <= 0 and connection.gate.reasons:
                self._brief(connection)
                yield BRIEF
                continue
            else:
                self._details -= 1 + len(channels)
            view = _connection(connection, self._raised, self._now_ms)
            hops = [(each.stage.id, self._rates.channel(each)) for each in channels]
            has_most = 2 * connection.bytes_held > chain.pool.used
            view = replace(
                view,
                per_s=self._rates.connection(connection),
                hops=_busiest(hops),
                has_most=has_most,
            )
            self._add(self._with_room(connection, view))
            yield VIEW
            for channel in channels:
                view = self._channel(channel)
                if view.is_held:
                    self._named.update(channel.queue_credits)
                self._add(view)
                yield VIEW

    def _busiest_first(self) -> list[Connection]:
        """All that live; those that are shown, if not all are, are those with most to do."""
        found = list(self._connections)
        busy = self._rates.busy_connections.shown
        if busy and len(found) > self._running_max // 3:
            found.sort(key=lambda each: -busy.get(each.connection_id, 0.0))
        return found

    def _channel(self, channel: Channel) -> StageView:
        view, rates = _channel(channel, self._raised, self._now_ms), self._rates
        hops = [(each.stage.id, rates.hop(channel, each)) for each in list(channel.queue_credits)]
        return replace(view, per_s=rates.channel(channel), hops=_busiest(hops))

    def _add_draining(self) -> Iterator[float]:
        """Channels that outlive their connection because their publishes are held (D23)."""
        left = DETAILS_MAX
        for channel in list(self._draining):
            yield BRIEF
            if not channel.connection.is_closed:
                continue
            if left <= 0:
                self._map.stages_total += 1
                self._map.stages_held += channel.hold is not None
                continue
            left -= 1
            self._named.update(channel.queue_credits)
            self._add(_channel(channel, self._raised, self._now_ms))

    def _brief(self, connection: Connection) -> None:
        """One of very many that are held: those that wait for the same are one view."""
        reason, culprit = _gate_reason(connection, self._raised)
        episodes, now_ms = connection.stage.episodes, self._now_ms
        self._map.stages_total += 1
        self._map.stages_held += 1
        waits_for = _waits_for(reason, culprit)
        own = [each for each in connection.channels.values() if each.stage.id == id_of(culprit)]
        # Who waits for a channel of its own is one of all that do, whatever it is called.
        key = (reason, "" if own else waits_for)
        group = self._groups.get(key)
        if group is not None:
            since_ms = episodes.since_ms(now_ms)
            known_ms = group.since_ms if group.since_ms is not None else now_ms
            self._groups[key] = replace(
                group,
                others=group.others + 1,
                since_ms=min(known_ms, now_ms if since_ms is None else since_ms),
            )
        else:
            view = StageView(
                "connection",
                connection.name,
                "blocked" if reason.is_resource else "flow",
                reason,
                str(culprit),
                episodes.since_ms(now_ms),
                id=connection.stage.id,
                waits_for=waits_for,
                share=episodes.share(now_ms),
                recent=episodes.share(now_ms, RECENT_MS),
                stalls=episodes.stalls(now_ms, RECENT_MS),
            )
            self._groups[key] = self._with_room(connection, view)
            for channel in own:
                self._add(self._channel(channel))
        for channel in connection.channels.values():
            if group is None and channel in own:
                continue
            self._map.stages_total += 1
            if channel.stage.is_blocked:
                self._named.update(channel.queue_credits)
            self._map.stages_held += channel.stage.is_blocked or channel.hold is not None

    def _add_groups(self) -> None:
        # Each was counted when it was looked at.
        self._map.views += [self._with_age(each) for each in self._groups.values()]

    def _with_room(self, connection: Connection, view: StageView) -> StageView:
        """The same; when it lacks room, with the name of who has it."""
        if view.reason is not Reason.ROOM:
            return view
        keeper = self._keeper(connection.room)
        if id_of(keeper) == view.id:
            keeper = connection.bytes_culprit()
        if not keeper:
            return view
        return replace(view, culprit=str(keeper), waits_for=id_of(keeper))

    def _keeper(self, room: PoolHolder | None) -> str:
        """Who fills the in-flight pool: with a publish that arrives, or with those that did."""
        if room not in self._keepers:
            holder = room.culprit if room is not None else ""
            self._keepers[room] = holder or self._publisher_with_most()
        return self._keepers[room]

    def _publisher_with_most(self) -> str:
        if self._most is None:
            most = max(self._connections, key=lambda each: each.bytes_held, default=None)
            # Half of what there is, at least: else many have a little, and nobody is to blame.
            is_much = most is not None and 2 * most.bytes_held > self._chain.pool.used
            self._most = most.stage.label if most is not None and is_much else ""
        return self._most

    def _add_sinks(self) -> None:
        """Sinks of Spark whose puts or commits wait (D19)."""
        for sink in self._queries.staged.held.values():
            view = _stage(sink.stage, self._now_ms, ())
            reason = sink.hold.reason
            self._add(
                replace(
                    view,
                    state="blocked" if reason.is_resource else "flow",
                    reason=reason,
                    culprit=str(sink.hold.culprit),
                    waits_for=_waits_for(reason, sink.hold.culprit),
                    since_ms=sink.since_ms,
                )
            )

    def _add_queues(self) -> Iterator[float]:
        log = (self._chain.log,)
        spare = max(self._running_max // 3, self._spare // 2)
        busy, rates = self._rates.busy_queues.shown, self._rates
        # The place of those with most to do is kept for them.
        spare -= min(spare, len(busy))
        for queue in list(self._registry.queues.values()):
            is_busy = queue.queue_id in busy
            if queue.stage.episodes.is_lingering or queue in self._named or is_busy or spare > 0:
                spare -= not is_busy
                self._spare -= 1
                view = _stage(queue.stage, self._now_ms, log)
                per_s = rates.queue(queue)
                hops = _busiest([(log[0].id, per_s)])
                self._add(replace(view, belongs_to=queue.topic.name.id, per_s=per_s, hops=hops))
                yield VIEW
            else:
                self._map.stages_total += 1
                yield LOOK

    def _add_log(self) -> None:
        """The last stage: what holds it is the disk itself, so it never counts as held back."""
        log, commits = self._chain.log, self._commits
        # Senders are told that the store is busy first; others say more of why it is.
        failed = commits.failure or commits.write_failure()
        refusal = failed or commits.lack_of_buffers() or commits.refuse_now()
        refusing = refusal.text.removesuffix("; nothing was stored") if refusal is not None else ""
        since_ms = commits.sync_since_ms
        age_ms = 0 if since_ms is None else self._now_ms - since_ms
        took = sorted(commits.sync_ms) or [0]
        is_slow = bool(refusing) or commits.is_held_at(self._now_ms) or age_ms >= SLOW_SYNC_MS
        view = StageView(
            kind=log.kind,
            name=log.name,
            state="slow" if is_slow else "running",
            since_ms=None if failed is None else commits.failing_since_ms,
            share=log.episodes.share(self._now_ms),
            refusing=refusing,
            refusal="" if refusal is None else refusal.kind.value,
            id=log.id,
            per_s=self._rates.log,
            sync=SyncView(
                since_ms,
                age_ms,
                took[len(took) // 2],
                took[-1 - len(took) // 100],
                commits.unsynced_bytes,
            ),
        )
        self._add(view)

    def _add_subscriptions(self) -> Iterator[float]:
        """What is to be said something of, the busiest, and others while there is place."""
        chosen = {each[2] for each in self._readers}
        chosen |= self._holding()
        busy = self._rates.busy_subscriptions.shown
        for topic in list(self._registry.topics.values()):
            for subscription in list(topic.subscriptions.values()):
                if subscription.name.startswith(PREFIX):
                    self._query(topic, subscription.name.removeprefix(PREFIX))
                    yield VIEW
                    continue
                is_shown = subscription in chosen or subscription.subscription_id in busy
                if is_shown or self._spare > len(chosen) + len(busy):
                    self._spare -= not is_shown
                    view = yield from subscription.view_steps()
                    self._add(self._subscription(topic, subscription, view))
                    yield VIEW + A_QUEUE * len(topic.queues)
                else:
                    self._map.stages_total += 1
                    yield LOOK

    def _holding(self) -> set[Subscription]:
        """Readers of topics that are full, and hold who publishes to them."""
        names = {
            topic_of_id(view.waits_for[view.waits_for.index("topic/") :])
            for view in self._map.views
            if view.waits_for.startswith("limit/") and "topic/" in view.waits_for
        }
        topics = [self._registry.topics.get(each) for each in names]
        return {
            subscription
            for topic in topics
            if topic is not None
            for subscription in topic.subscriptions.values()
        }

    def _subscription(self, topic: Topic, subscription: Subscription, view: StageView) -> StageView:
        is_behind = view.progress is not None and view.progress.is_behind
        found = [ask(topic, subscription, is_behind) for ask in self._members_of]
        sub_id = f"sub/{topic.name.id_part}/{quote(subscription.name, safe='')}"
        return replace(
            view,
            name=f"{topic.name}/{subscription.name}",
            id=sub_id,
            waits_for=f"limit/unacked_max/{sub_id}" if view.is_held else "",
            belongs_to=topic.name.id,
            consumers=tuple([self._with_connection(each) for each in view.consumers]),
            per_s=self._rates.subscription(subscription),
            group=next((each for each in found if each is not None and each.members), None),
        )

    def _with_connection(self, consumer: ConsumerView) -> ConsumerView:
        """The same with the name of its connection: of that its owner has heard."""
        if not consumer.connection:
            return consumer
        return replace(consumer, connection_name=self._names.get(consumer.connection, ""))

    def _add_troubles(self) -> Iterator[float]:
        now_ms, chain = self._now_ms, self._chain
        self._map.alarms = [
            AlarmView(each.reason, chain.alarms.raised[each.reason], each.since_ms)
            for each in chain.alarms.alarms
            if each.is_raised
        ]
        self._map.troubles_dropped = chain.troubles.dropped
        for cause, trouble in chain.troubles.now(now_ms):
            view = self._trouble(cause, trouble)
            if view is not None:
                self._map.troubles.append(view)
            yield VIEW

    def _trouble(self, cause: str, trouble: Trouble) -> TroubleView | None:
        culprit, spell = trouble.culprit, trouble.spell
        kind = culprit.id.partition("/")[0]
        words = f"{kind} {culprit}" if kind != culprit else kind
        severity: Literal["refusing", "discarding", "dead"] = "refusing"
        text = f"{words} refuses what is published: {trouble.text}"
        if kind == "limit":
            said = trouble.text.removesuffix("; publish refused")
            text = f"publishes are refused: {said}"  # which is the limit's own words
        if cause == RefusalKind.BUSY.value:
            text = f"{words} is too slow for senders that do not wait: {trouble.text}"
        elif cause == UNROUTABLE:
            if spell.last_ms - spell.since_ms < self._chain.flow.behind_ms:
                return None
            severity = "discarding"
            through = "" if trouble.via is None else f" through {trouble.via}"
            text = f"{words} publishes what no queue wants: {spell.count} messages went nowhere"
            text += through
        elif cause == LETTERS_UNROUTED:
            severity = "discarding"
            text = f"{words} has dead letters that no queue wants: {spell.count} were lost lately"
        elif cause == LETTERS_LOST:
            severity = "discarding"
            text = f"{words} has no room for dead letters: {spell.count} were lost lately"
        elif cause == DEAD_LETTERS:
            if not self._has_unread(culprit.id):
                return None
            severity = "dead"
            text = f"{words} has more and more dead letters: {spell.count} lately"
        publishers = [WaiterView(each, name) for each, name in trouble.publishers.items()]
        return TroubleView(
            severity,
            Ref(kind, culprit.id, str(culprit)),
            cause,
            text,
            spell.since_ms,
            spell.count,
            tuple(publishers),
            len(publishers) + trouble.publishers_left_out,
            "" if trouble.via is None else trouble.via.id,
            culprit.limit_id,
        )

    def _has_unread(self, topic_id: str) -> bool:
        """Whether something lies in a topic that nobody takes, and that does not go on by itself.

        A topic whose messages die of age and are sent on is a waiting room: what was rejected comes
        back from there after its time. Who reads too slowly is found as any reader is.
        """
        topic = self._registry.topics.get(topic_of_id(topic_id))
        if topic is None:
            return False
        is_sent_on = topic.dead_letter_router is not None or topic.policy.dead_letter is not None
        if topic.policy.message_ttl_ms and is_sent_on:
            return False
        # One that nobody has ever read has no subscription.
        readers = list(topic.subscriptions.values())
        return not readers or any(
            each.counts()[0] > 0 and not self._is_consumed(topic, each) for each in readers
        )

    def _is_consumed(self, topic: Topic, subscription: Subscription) -> bool:
        if any(not each.is_passive for each in subscription.consumers):
            return True
        groups = [ask(topic, subscription, False) for ask in self._members_of]
        return any(each is not None and each.members for each in groups)

    def _query(self, topic: Topic, name: str) -> None:
        query = self._queries.registry.queries.get(name)
        if query is not None and topic in query.reads:
            self._add(stage_of(self._queries, query, topic, self._now_ms))

    def _with_age(self, view: StageView) -> StageView:
        if view.since_ms is None or not view.is_held:
            return view
        return replace(view, held_ms=self._now_ms - view.since_ms)

    def _add(self, view: StageView) -> None:
        self._map.views.append(self._with_age(view))
        self._map.stages_total += 1
        self._map.stages_held += view.is_held


def _busiest(hops: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """The busiest first, and not for ever many."""
    return tuple(sorted(hops, key=lambda each: -each[1])[:HOPS_MAX])


HOPS_MAX: Final = 32


def _is_held(connection: Connection) -> bool:
    """True when it, or a channel of it, is held or was a moment ago."""
    if connection.gate.reasons or connection.stage.episodes.is_lingering:
        return True
    for channel in connection.channels.values():
        if channel.hold is not None or channel.stage.episodes.is_lingering:
            return True
    return False


def _connection(connection: Connection, raised: Mapping[Reason, str], now_ms: int) -> StageView:
    channels = [channel.stage for channel in connection.channels.values()]
    view = replace(_stage(connection.stage, now_ms, channels), belongs_to=connection.application)
    if connection.undone is not None:
        view = replace(view, undone=connection.undone.view())
    if connection.gate.is_open:
        if not raised:
            return view
        reason, culprit = next(iter(raised.items()))
        return replace(
            view,
            state="blocking",
            reason=reason,
            culprit=str(culprit),
            waits_for=_waits_for(reason, culprit),
        )
    reason, culprit = _gate_reason(connection, raised)
    waits_for = _waits_for(reason, culprit)
    if reason is Reason.FLOW and connection.stage.is_blocked:
        culprit, waits_for = view.culprit, view.waits_for
    elif connection.options.holds_channels and not reason.is_resource:
        held = _held_channel(connection, reason)
        if held is not None:
            reason, culprit, waits_for = Reason.FLOW, held.stage.label, held.stage.id
    return replace(
        view,
        state="blocked" if reason.is_resource else "flow",
        reason=reason,
        culprit=str(culprit),
        waits_for=waits_for,
        since_ms=connection.stage.episodes.since_ms(now_ms),
        is_stalled=True,
    )


def _waits_for(reason: Reason, culprit: str) -> str:
    return f"alarm/{reason.value}" if reason.is_resource else id_of(culprit)


def _held_channel(connection: Connection, reason: Reason) -> Channel | None:
    """The channel for which a connection is said to be held that is read all the same."""
    if reason is Reason.PENDING:
        channels = connection.channels.values()
        return next((each for each in channels if each.pending.is_held), None)
    holds = connection.holds.items()
    return next((channel for channel, hold in holds if hold.reason is reason), None)


def _gate_reason(connection: Connection, raised: Mapping[Reason, str]) -> tuple[Reason, str]:
    """What closed its gate; an alarm before anything else."""
    gate = connection.gate
    reason, culprit = next(iter((gate.resources or gate.reasons).items()))
    if reason in raised:
        return reason, raised[reason]
    for hold in connection.holds.values():
        if hold.reason is reason:
            return reason, hold.culprit  # of now, not of when the gate was closed
    if reason is Reason.FLOW and not connection.stage.is_blocked:
        # What closed it then was where its bytes were; they have moved on since.
        culprit = connection.bytes_culprit()
    return reason, culprit


def _channel(channel: Channel, raised: Mapping[Reason, str], now_ms: int) -> StageView:
    queues = [queue.stage for queue in channel.queue_credits]
    view = _stage(channel.stage, now_ms, queues)
    view = replace(view, belongs_to=channel.connection.stage.id)
    if channel.is_closed and channel.inbox:
        left = UndoneView(
            PUBLISHES_AFTER_CLOSE, channel.inbox_messages, channel.inbox[0].arrived_ms
        )
        view = replace(view, undone=left)
    hold = channel.hold
    if hold is not None and hold.reason in raised:
        hold = Hold(hold.reason, raised[hold.reason])
    if view.is_held:
        # For whom it waited when that began is the episode's; for whom it waits now is its hold's.
        return view if hold is None else _held_by(view, hold)
    if hold is None:
        pending = channel.pending
        if pending is channel.connection.pending or not pending.is_held:
            return view
        # F9 of its own: its inbox rests, its connection does not.
        hold = Hold(Reason.PENDING, pending_culprit(pending, channel.stage))
    if channel.connection.options.holds_channels or hold.reason.is_resource:
        # How long and how often is noted with the gate of its connection, which names it.
        episodes = channel.connection.stage.episodes
        view = replace(
            view,
            share=episodes.share(now_ms),
            recent=episodes.share(now_ms, RECENT_MS),
            stalls=episodes.stalls(now_ms, RECENT_MS),
        )
    return replace(
        view,
        state="blocked" if hold.reason.is_resource else "flow",
        reason=hold.reason,
        culprit=str(hold.culprit),
        waits_for=_waits_for(hold.reason, hold.culprit),
        since_ms=channel.inbox[0].arrived_ms if channel.inbox else None,
    )


def _held_by(view: StageView, hold: Hold) -> StageView:
    return replace(
        view,
        state="blocked" if hold.reason.is_resource else "flow",
        reason=hold.reason,
        culprit=str(hold.culprit),
        waits_for=_waits_for(hold.reason, hold.culprit),
        is_stalled=True,
    )


def _stage(stage: Stage, now_ms: int, following: Sequence[Stage]) -> StageView:
    episodes = stage.episodes
    downstream = tuple([str(each.label) for each in following])
    downstream_ids = tuple([each.id for each in following])
    reasons = episodes.reasons(now_ms)
    share = episodes.share(now_ms)
    if not reasons:
        return StageView(
            stage.kind,
            stage.name,
            share=share,
            downstream=downstream,
            id=stage.id,
            downstream_ids=downstream_ids,
        )
    reason, culprit = next(iter(reasons.items()))
    blockers = sorted(stage.blocked_by, key=lambda each: (not each.is_blocked, each.label))
    return StageView(
        kind=stage.kind,
        name=stage.name,
        state="blocked" if reason.is_resource else "flow",
        reason=reason,
        culprit=str(blockers[0].label if blockers else culprit),
        waits_for=blockers[0].id if blockers else _waits_for(reason, culprit),
        id=stage.id,
        downstream_ids=downstream_ids,
        since_ms=episodes.since_ms(now_ms),
        share=share,
        recent=episodes.share(now_ms, RECENT_MS),
        stalls=episodes.stalls(now_ms, RECENT_MS),
        is_stalled=episodes.is_stalled,
        downstream=downstream,
    )


class FlowEventsTopic:
    """A topic the broker writes itself: ``penstock.flow``, the edges of flow control as messages.

    Whoever wants to know yesterday's stalls reads a topic like any other; it is hidden in listings
    (``TopicName.is_hidden``) and made when there is something to tell.

    Telling must never cost more than it is worth. The records pass no admission and spend no
    credit, so no stage can be held by them and telling of a hold makes no new hold to tell of. They
    ride along with the turn's frame. When there are too many (``RATE_PER_S_MAX``), when the log is
    held or a write fails, they are dropped and counted, never kept for later.

    They keep no segment alive: the topic asks for no retention of its own, so they stay as long as
    settled data does (``storage.settled_keep_ms``), and a subscription that falls behind loses its
    oldest (``POLICY``). Not here: what is told (``telemetry/flow_api.py``).
    """

    def __init__(
        self,
        name: TopicName,
        chain: FlowContext,
        registry: Registry,
        commits: Commits,
        *,
        is_on: bool,
    ) -> None:
        self._name = name
        self._chain = chain
        self._registry = registry
        self._commits = commits
        self._is_on = is_on
        self._bucket = TokenBucket(RATE_PER_S_MAX, now_ms=chain.now_ms)
        # At most a second's worth: what the bucket lets pass until the next frame.
        self.waiting: list[Record] = []
        """Records that want a frame; to be looked at only."""
        self.appended = 0
        self.dropped = 0

    def offer(self, records: Sequence[Record]) -> None:
        """Tell these with the next frame, or drop them."""
        if not self._is_on or not records:
            return
        commits, now_ms = self._commits, self._chain.now_ms
        room = min(self._bucket.available(now_ms), RATE_PER_S_MAX - len(self.waiting))
        if commits.failure is not None or commits.is_held or self._queue() is None:
            room = 0
        taken = records[:room]
        self._bucket.charge(len(taken), now_ms)
        self.waiting += taken
        self.dropped += len(records) - len(taken)
        if taken:
            self._chain.request_turn()

    def put(self, frame: Frame) -> int:
        """Put what waits into the frame; how many, for ``failed``."""
        taken, self.waiting = self.waiting, []
        queue = self._queue()
        if queue is None:
            self.dropped += len(taken)
            return 0
        for record in taken:
            frame.append(Appending(record, (queue.index,)), (queue,))
        self.appended += len(taken)
        return len(taken)

    def failed(self, count: int) -> None:
        """The frame was refused: so much for them."""
        self.appended -= count
        self.dropped += count

    def _queue(self) -> Queue | None:
        """Where they go; None when there is no room for one topic more."""
        topic = self._registry.topics.get(self._name)
        if topic is None:
            try:
                topic = self._registry.create_topic(
                    self._name, queues=1, policy=POLICY, is_durable=True
                )
            except AlreadyExists:
                return None
        return topic.queues[0]
