"""Why a reader is behind, or nobody reads what was read before.

For each subscription that is behind: who asks, is below its own limits and gets nothing has a
reason (a rate, its keys drain, no room to put delayed ones aside); a consumer at its in-flight
limit is slow, or never acks; one below it whose socket does not take its bytes is not reading;
a client that says itself why it takes no more is believed;
nobody with demand means nobody pulls; where consumers would take more it may be that the dead are
buried first. A Spark query that takes all its limits allow and is behind is slow itself, and its
progress says where: read, transform or sink.

Not here: why publishers wait, and which finding is the answer (``diagnosis.py``).
"""

import shlex
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.flow.credit import stage_label
from penstock.flow.demand import ClientCause, ClientSays, Withheld
from penstock.flow.finding import (
    WAITERS_MAX,
    Advice,
    Finding,
    Severity,
    advice_for,
    topic_of_limit,
    topic_of_queue,
)
from penstock.flow.progress import STUCK_MS, UNSETTLED_MIN, ProgressView
from penstock.flow.views import (
    BURIALS,
    RECENT_MS,
    ConsumerView,
    MemberView,
    QueryView,
    Ref,
    StageView,
)
from penstock.model.ids import size_text
from penstock.model.names import object_id
from penstock.model.steps import Steps

PARKED_MAX: Final = 20
"""Readers that nobody misses which are listed."""
SLOW_BURIALS_MS: Final = 5000
"""Dead letters that are not written after this time have a slow target."""
FROZEN_MS: Final = 15_000
"""Clients commit every 5 s: an offset that stands still for three of them is no accident."""
USUAL_TIMES: Final = 2
"""Who settles nothing for so many times as long as it usually takes does so no more."""
IDLE_MS: Final = 5000
"""Of several at their limits, one that gave nothing back for so long is worse than others."""


LOOK: Final = 0.03
JUDGEMENT: Final = 1.0
"""Steps that a look at a stage is, and a judgement of a reader."""


def delivery_side(stages: Sequence[StageView]) -> Steps[list[Finding]]:
    """Of every reader of which something is to be said; the longest backlog first."""
    holding = {topic_of_limit(each.waits_for) for each in stages if each.is_held}
    yield LOOK * len(stages)
    slow = [each for each in stages if _is_looked_at(each)]
    yield LOOK * len(stages)
    slow.sort(key=lambda each: each.ready, reverse=True)
    found: list[Finding] = []
    for stage in slow:
        found += _subscription(stage, holding)
        yield JUDGEMENT
    found = _with_publishers(found, stages)
    parked = [each for each in found if each.severity == "parked"]
    return [each for each in found if each.severity != "parked"] + parked[:PARKED_MAX]


def _is_looked_at(stage: StageView) -> bool:
    if stage.ready > 0 or stage.query is not None:
        return True
    if stage.undone is not None and stage.undone.what == BURIALS:
        return True
    progress = stage.progress
    return progress is not None and (
        progress.loops > 0
        or progress.discarding_ms is not None
        or progress.unacked_since_ms is not None
        or any(each.is_passive for each in stage.consumers)
    )


def _subscription(stage: StageView, holding: set[str]) -> list[Finding]:
    """Why messages that are ready are not delivered; nothing when they are about to be."""
    if stage.query is not None:
        found = _query(stage, stage.query)
        return [] if found is None else [found]
    progress = stage.progress
    findings = _slow_burials(stage)
    if progress is not None:
        if progress.discarding_ms is not None:
            findings.append(_discarding(stage, progress))
        if progress.loops and stage.consumers and progress.unsettled_ms >= RECENT_MS:
            return [*findings, _looping(stage, progress)]
        unread = _much_unsettled(stage, progress) or _never_settled(stage, progress)
        if unread is not None:
            return [*findings, unread]
        if not progress.is_behind:
            return findings
    if not stage.ready:
        return findings
    finding = _behind(stage, progress, is_holding=stage.belongs_to in holding)
    return findings if finding is None else [*findings, finding]


def _behind(stage: StageView, progress: ProgressView | None, *, is_holding: bool) -> Finding | None:
    are = "message is" if stage.ready == 1 else "messages are"
    behind = f"{stage.ready} {are} ready in {stage.label}"
    if stage.members:
        return _member(stage, progress, behind)
    consumers = stage.consumers
    if not consumers:
        return _nobody(stage, progress, behind, is_holding=is_holding)
    if all(each.is_passive for each in consumers):
        return _burying(stage, behind) or _taker(stage, progress, behind)
    if any(_is_served(consumer) for consumer in consumers):
        return _burying(stage, behind)
    # Who stands by is not the reason, unless all do.
    consumers = tuple(each for each in consumers if not _stands_by(each)) or consumers
    reason, concerned = _withheld(consumers)
    # What concerns all goes before the limits of some: others could take more but for that.
    one = None if reason in _OF_ALL else _one_of_them(stage, consumers, progress, behind)
    # Who waits on purpose is named when nobody else is to blame.
    idle = [] if reason in _OF_ALL else _saying(consumers, _IDLE)
    if one is None and reason is Withheld.DEMAND:
        silent = [each for each in concerned if each not in idle]
        one = _slow_holder(stage, silent, progress, behind)
    if one is None and idle:
        one = _told(stage, max(idle, key=_stillness), behind)
    if one is not None:
        return one
    found = _delivery(
        stage, reason, stage.name, f"{behind}, but {_why(reason, concerned)}.", cause=reason.value
    )
    return replace(found, detail=_names(concerned))


def readers_of(stages: Sequence[StageView], topic_id: str) -> str:
    """Who should take what is in a topic and does not, as a sentence; empty = all of them do."""
    said = []
    for stage in stages:
        if stage.kind != "subscription" or stage.belongs_to != topic_id:
            continue
        slow = [each for each in stage.consumers if each.is_at_limit]
        if slow:
            worst = max(slow, key=lambda each: (_idleness(each, stage.progress), each.unacked))
            said.append(_slow(worst))
        elif stage.ready and not (stage.consumers or stage.members):
            said.append(f"nobody consumes {stage.label}")
        elif stage.ready and not any(_is_served(each) for each in stage.consumers):
            said.append(f"{stage.ready} messages wait in {stage.label}")
    text = "; ".join(said[:NAMED_MAX])
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _nobody(
    stage: StageView, progress: ProgressView | None, behind: str, *, is_holding: bool
) -> Finding:
    is_missed = progress is None or progress.was_read or is_holding
    nobody = "nobody consumes" if is_missed else "nobody has consumed for an hour, or ever"
    return _delivery(
        stage,
        "subscription",
        stage.name,
        f"{behind}, but {nobody}.",
        cause="nobody",
        severity="behind" if is_missed else "parked",
    )


def _one_of_them(
    stage: StageView,
    consumers: Sequence[ConsumerView],
    progress: ProgressView | None,
    behind: str,
) -> Finding | None:
    """A consumer that says what keeps it, is at its limit, or does not read; the worst of them."""
    blamed, idle = _saying(consumers, _OF_APPLICATION), _saying(consumers, _IDLE)
    if blamed:
        return _told(stage, max(blamed, key=_stillness), behind)
    consumers = [each for each in consumers if each not in idle]
    at_limit = [consumer for consumer in consumers if consumer.is_at_limit]
    if at_limit:
        worst = max(at_limit, key=lambda each: (_idleness(each, progress), each.unacked))
        return _slow_consumer(stage, worst, progress, f"{behind}; ")
    unread = [consumer for consumer in consumers if consumer.is_unsent_high]
    if not unread:
        return None
    name = unread[0].name
    deaf = f"the network or consumer {name} is slow: it does not read what it was sent"
    found = _delivery(stage, "network", name, f"{behind}; {deaf}.", cause="not-reading")
    return _of_consumer(found, stage, unread[0])


def _slow_holder(
    stage: StageView, silent: Sequence[ConsumerView], progress: ProgressView | None, behind: str
) -> Finding | None:
    """Of those who ask for no more: one that works on what it has, or has long ceased to."""
    holders = [
        each
        for each in silent
        if each.unacked and (each.has_settled or _unsettled_ms(each, progress) >= STUCK_MS)
    ]
    if not holders:
        return None
    worst = max(holders, key=lambda each: (_idleness(each, progress), each.unacked))
    return _slow_consumer(stage, worst, progress, f"{behind}; ")


_OF_APPLICATION: Final = (
    ClientCause.NOT_RECEIVED,
    ClientCause.QUEUE_BYTES,
    ClientCause.LISTENERS,
    ClientCause.LETTERS,
)
"""But ``UNACKED``: what is held and not acked the broker knows by itself, and since when."""
_IDLE: Final = (ClientCause.PAUSED, ClientCause.STARTING)


def _saying(consumers: Sequence[ConsumerView], causes: Sequence[ClientCause]) -> list[ConsumerView]:
    return [each for each in consumers if each.says is not None and each.says.cause in causes]


def _stillness(consumer: ConsumerView) -> tuple[int, int]:
    """How little its application does, in steps, and how much waits for it."""
    says = consumer.says
    assert says is not None
    return (says.lasted_ms >= IDLE_MS) + (says.lasted_ms >= STUCK_MS), says.waiting


def _told(stage: StageView, consumer: ConsumerView, behind: str) -> Finding:
    """Its client says why it takes no more."""
    says = consumer.says
    assert says is not None
    said, cause = _client_words(consumer.name, says), says.cause.value
    is_moving = says.lasted_ms < IDLE_MS
    if is_moving and says.cause in (ClientCause.NOT_RECEIVED, ClientCause.LISTENERS):
        cause = "slow-consumer"
        whom = "its application" if says.cause is ClientCause.NOT_RECEIVED else "its listener"
        said = (
            f"consumer {consumer.name} is slow: {says.waiting:,} messages wait in its receiver "
            f"queue for {whom}"
        )
    held = consumer.unacked - says.waiting
    if held > 0 and says.cause is not ClientCause.LETTERS:
        said += f"; it holds {held:,} more, unacked"
    found = _delivery(stage, "consumer", consumer.name, f"{behind}; {said}.", cause=cause)
    return _of_consumer(found, stage, consumer)


def _client_words(name: str, says: ClientSays) -> str:
    words = _CLIENT_WORDS[says.cause]
    if says.cause is ClientCause.NOT_RECEIVED and not says.limit:
        words = "the application of consumer {name} has not asked for a message {lasted}"
    is_size = says.cause is ClientCause.QUEUE_BYTES
    return words.format(
        name=name,
        waiting=f"{says.waiting:,}",
        limit=size_text(says.limit) if is_size else says.limit,
        lasted=f"for {says.lasted_ms // 1000} s",
    )


_CLIENT_WORDS: Final = {
    ClientCause.NOT_RECEIVED: "the application of consumer {name} has not taken {waiting} messages "
    "out of its receiver queue {lasted}",
    ClientCause.QUEUE_BYTES: "consumer {name} does not read what it was sent: {waiting} messages "
    "wait for its application {lasted}, and its receiver queue has as many bytes as it may "
    "({limit})",
    ClientCause.LISTENERS: "consumer {name} is busy: its listener (threads: {limit}) took nothing "
    "{lasted}, and {waiting} messages wait for it",
    ClientCause.PAUSED: "consumer {name} is paused by its application, {lasted}",
    ClientCause.LETTERS: "consumer {name} waits for its retry-letter or dead-letter topic: "
    "{waiting} of its messages got no receipt {lasted}",
    ClientCause.STARTING: "consumer {name} has not begun: other partitions or topics of it are not "
    "subscribed yet, {lasted}",
}


def _names(consumers: Sequence[ConsumerView]) -> str:
    return "Consumers: " + ", ".join([each.name for each in consumers[:WAITERS_MAX]]) + "."


def _member(stage: StageView, progress: ProgressView | None, behind: str) -> Finding:
    """A group that reads by asking: it has members, so somebody consumes.

    Why a client does not ask it knows best; what it does not say is judged by what it asks for.
    """
    group = stage.group
    assert group is not None
    if group.lock_owner:
        said = f"a queue is locked by {group.lock_owner}, who is gone; the lock ends by itself"
        return _of_client(stage, group.lock_owner, f"{behind}, but {said}.", "lock-owner-gone")
    members = group.members
    stuck = [each for each in members if each.is_ordered and each.frozen_ms >= FROZEN_MS]
    failing = [each for each in stuck if each.is_failing]
    if failing:
        worst = max(failing, key=lambda each: each.frozen_ms)
        said = (
            f"{worst.client} consumes in order, and {worst.frozen_queue} stands still: "
            f"its first message fails, again and again, for {worst.frozen_ms // 1000} s"
        )
        return _of_client(stage, worst.client, f"{behind}; {said}.", "ordered-stuck")
    held = [each for each in members if each.threshold]
    if held:
        worst = max(held, key=lambda each: (each.is_certain, each.cached))
        said = f"its client {worst.client} is slow: {_threshold(worst)}"
        return _of_client(stage, worst.client, f"{behind}; {said}.", f"threshold-{worst.threshold}")
    if stuck:
        said = f"{stuck[0].client} consumes in order, and {stuck[0].frozen_queue} is slow"
        return _of_client(stage, stuck[0].client, f"{behind}; {said}.", "ordered-slow")
    return _threshold_unknown(stage, members, progress, behind)


def _threshold_unknown(
    stage: StageView,
    members: Sequence[MemberView],
    progress: ProgressView | None,
    behind: str,
) -> Finding:
    """None of them said what keeps it: judged by what they have, and when they last asked."""
    busiest = max(members, key=lambda each: each.unsettled)
    if 2 * sum([each.unsettled for each in members]) >= stage.ready:
        # They asked for them, and were given them: it is not that they do not ask.
        has = f"it has {busiest.unsettled:,} messages that it has not settled"
        said = f"its client {busiest.client} is slow: {has}"
        return _of_client(stage, busiest.client, f"{behind}; {said}.", "slow-consumer")
    unread_ms = 0 if progress is None or progress.unread_ms is None else progress.unread_ms
    if progress is not None and progress.unread_ms is not None and unread_ms < IDLE_MS:
        said = f"its client {members[0].client} is slow: it asks for more than it settles"
        return _of_client(stage, members[0].client, f"{behind}; {said}.", "slow-consumer")
    stopped = unread_ms >= STUCK_MS
    names = ", ".join([each.client for each in members[:NAMED_MAX]])
    more = len(members) - NAMED_MAX
    who = names + (f" and {more} more" if more > 0 else "")
    said = (
        f"has not pulled for {unread_ms // 1000} s"
        if stopped
        else "does not ask for more: it is slow, or at a threshold of its own"
    )
    cause = "stopped-pulling" if stopped else "does-not-ask"
    return _of_client(stage, members[0].client, f"{behind}, but its client {who} {said}.", cause)


def _threshold(member: MemberView) -> str:
    amount = size_text if member.threshold == "bytes" else "{:,}".format
    limit = f"{'its' if member.is_certain else 'the usual'} limit is {amount(member.limit)}"
    if member.cached < 0:
        return f"a queue is above its threshold of {member.threshold}, {limit}"
    if member.threshold == "span":
        return f"what it has of a queue is {member.cached:,} offsets apart, {limit}"
    unit = " messages" if member.threshold == "messages" else ""
    return f"it has {amount(member.cached)}{unit} of a queue, {limit}"


def _of_client(stage: StageView, client: str, sentence: str, cause: str) -> Finding:
    found = _delivery(stage, "consumer", client, sentence, cause=cause)
    culprit = Ref("client", object_id("client", client), client)
    return replace(found, culprit=culprit, path=(*found.path, culprit.id))


def _never_settled(stage: StageView, progress: ProgressView) -> Finding | None:
    """A group took messages for a limited time (pop) and settles none of them."""
    held = [each for each in stage.consumers if each.is_passive and each.unacked]
    held_ms = max((each.unsettled_ms or 0 for each in held), default=0)
    # That they come back after their time is no settlement, so only what the group says counts.
    unsettled_ms = min(held_ms, progress.unsettled_ms)
    if stage.group is None or unsettled_ms < STUCK_MS:
        return None
    client = stage.group.members[0].client
    unacked = sum([each.unacked for each in held])
    said = f"and nothing is settled for {unsettled_ms // 1000} s"
    found = _of_client(
        stage,
        client,
        f"Clients of {stage.label} have {unacked} messages, {said}: {client} never acks.",
        "never-acks",
    )
    return replace(found, since_ms=progress.at_ms - unsettled_ms)


def _taker(stage: StageView, progress: ProgressView | None, behind: str) -> Finding | None:
    """Nobody is sent messages: who takes them one by one takes too few."""
    taker = max(stage.consumers, key=lambda each: each.unacked)
    unread_ms = 0 if progress is None or progress.unread_ms is None else progress.unread_ms
    stopped = unread_ms >= STUCK_MS
    if progress is not None and progress.age_ms <= unread_ms and not stopped:
        # It took all there was, and comes again: what waits is younger than its last visit.
        return None
    said = f"has not asked for {unread_ms // 1000} s" if stopped else "asks for too few"
    found = _delivery(
        stage,
        "consumer",
        taker.name,
        f"{behind}, but consumer {taker.name}, which takes them one by one, {said}.",
        cause="stopped-pulling" if stopped else "does-not-ask",
    )
    return _of_consumer(found, stage, taker)


def _slow_consumer(
    stage: StageView, consumer: ConsumerView, progress: ProgressView | None, before: str
) -> Finding:
    unsettled_ms = _unsettled_ms(consumer, progress)
    is_stuck = _is_stuck(consumer, progress)
    if consumer.says is not None and consumer.says.cause is ClientCause.UNACKED:
        # Its client has handed out everything: they are not on their way, nor in its queue.
        said = (
            f"consumer {consumer.name} {'never acks' if is_stuck else 'is slow'}: its application "
            f"holds {consumer.unacked:,} messages and has acked none for {unsettled_ms // 1000} s"
        )
    elif is_stuck:
        said = (
            f"consumer {consumer.name} never acks: it has {_unsettled(consumer)} "
            f"and has settled nothing for {unsettled_ms // 1000} s"
        )
    else:
        said = _slow(consumer)
    found = _delivery(
        stage,
        "consumer",
        consumer.name,
        f"{before}{said}.",
        cause="never-acks" if is_stuck else "slow-consumer",
    )
    return _of_consumer(found, stage, consumer)


def _idleness(consumer: ConsumerView, progress: ProgressView | None) -> int:
    """How little it does, in steps: who is named should not be another one in every look."""
    return (_unsettled_ms(consumer, progress) >= IDLE_MS) + _is_stuck(consumer, progress)


def _is_stuck(consumer: ConsumerView, progress: ProgressView | None) -> bool:
    """Whose jobs take minutes is slow; who takes more than twice as long as usual never acks."""
    stuck_ms = max(STUCK_MS, USUAL_TIMES * consumer.usual_ms)
    return _unsettled_ms(consumer, progress) >= stuck_ms


def _unsettled_ms(consumer: ConsumerView, progress: ProgressView | None) -> int:
    """For how long a consumer settles nothing of what it has."""
    if consumer.unsettled_ms is not None:
        return consumer.unsettled_ms
    return 0 if progress is None else progress.unsettled_ms


def _of_consumer(finding: Finding, stage: StageView, consumer: ConsumerView) -> Finding:
    culprit = Ref("consumer", consumer.id or f"consumer/{consumer.name}", consumer.name)
    advice = Advice("see all that read it", f"penstock why {shlex.quote(stage.name)}")
    path = (stage.key, culprit.id, *([consumer.connection] if consumer.connection else []))
    named = stage_label("connection", consumer.connection_name) if consumer.connection_name else ""
    detail = f"It is on {named or consumer.connection}." if consumer.connection else ""
    return replace(finding, culprit=culprit, path=path, detail=detail, do=(advice,))


def _much_unsettled(stage: StageView, progress: ProgressView) -> Finding | None:
    """A consumer with no window, or one so wide that nothing is ever ready: it has everything."""
    held = [
        each
        for each in stage.consumers
        if each.unacked >= UNSETTLED_MIN and not (each.is_at_limit or each.is_passive)
    ]
    if not held or progress.unacked_since_ms is None or progress.is_unacked_less:
        return None
    worst = max(held, key=lambda each: (_idleness(each, progress), each.unacked))
    if worst.is_unlimited:
        worst = replace(worst, unacked_max=0)
    oldest = f"the oldest {progress.unacked_age_ms // 1000} s old"
    behind = f"{stage.label} has unsettled messages, {oldest}"
    if _saying([worst], (*_OF_APPLICATION, *_IDLE)):
        found = _told(stage, worst, behind)
    else:
        found = _slow_consumer(stage, worst, progress, f"{behind}; ")
    return replace(found, since_ms=progress.unacked_since_ms)


def _looping(stage: StageView, progress: ProgressView) -> Finding:
    one = stage.consumers[0] if len(stage.consumers) == 1 else None
    who = "its consumers requeue it" if one is None else f"consumer {one.name} requeues it"
    said = (
        f"message {progress.loop_offset} of {stage.label} came back {progress.loops} times in a "
        "row, and nothing is settled"
    )
    kind, name = ("subscription", stage.name) if one is None else ("consumer", one.name)
    found = _delivery(stage, kind, name, f"{said}: {who}.", cause="requeue-loop")
    found = replace(found, since_ms=progress.loop_since_ms)
    return found if one is None else _of_consumer(found, stage, one)


def _slow_burials(stage: StageView) -> list[Finding]:
    """Messages that died are not where they belong, and it takes long."""
    undone = stage.undone
    if undone is None or undone.what != BURIALS or undone.age_ms < SLOW_BURIALS_MS:
        return []
    said = f"it buries messages that died, {undone.count} are left after {undone.age_ms // 1000} s"
    found = _delivery(
        stage,
        "subscription",
        stage.name,
        f"The dead letters of {stage.label} are slow: {said}.",
        cause="letters-slow",
        severity="dead",
    )
    return [replace(found, since_ms=undone.since_ms)]


def _discarding(stage: StageView, progress: ProgressView) -> Finding:
    """Old messages make room for new ones: a loss to who reads them, a ring to who does not."""
    is_ring = not progress.was_read
    by = progress.discarded_by
    is_quota = by.startswith("quota_")
    count = progress.discarded
    said = f"is full: {count} of its oldest messages were dropped for want of room"
    if is_quota:
        said = f"is too far behind: {count} of its oldest messages were dropped, as its quota says"
    slow = [each for each in stage.consumers if each.is_at_limit]
    if slow:
        worst = max(slow, key=lambda each: (_idleness(each, progress), each.unacked))
        said += f"; {_slow(worst)}"
    elif is_ring:
        said = f"keeps the newest only: {progress.discarded} older ones made room, and nobody reads"
    elif not (stage.consumers or stage.members):
        said += "; nobody consumes"
    found = _delivery(
        stage,
        "subscription",
        stage.name,
        f"{stage.label} {said}.",
        cause="ring" if is_ring else "evict" if is_quota else "drop-head",
        severity="parked" if is_ring else "discarding",
    )
    do = advice_for(f"limit/{by}/{stage.belongs_to}", found.cause)
    return replace(found, since_ms=progress.discarding_ms, do=do)


_DROPPING: Final = ("drop-head", "evict")
"""Causes that say that what was published is thrown away."""


def _with_publishers(found: list[Finding], stages: Sequence[StageView]) -> list[Finding]:
    """Who publishes what is thrown away is known by where channels hand their messages to."""
    if not any(each.cause in _DROPPING for each in found):
        return found
    by_id = {each.id: each for each in stages}
    publishers: dict[str, dict[str, StageView]] = {}
    for stage in stages:
        for queue_id in stage.downstream_ids if stage.kind == "channel" else ():
            one = by_id.get(stage.belongs_to, stage)
            publishers.setdefault(topic_of_queue(queue_id), {})[one.id] = one
    return [
        each
        if each.cause not in _DROPPING
        else _published_by(each, list(publishers.get(each.path[0], {}).values()))
        for each in found
    ]


def _published_by(finding: Finding, linked: list[StageView]) -> Finding:
    # Rates are means of five seconds: before that whoever has published to it is named.
    busy = [each for each in linked if each.per_s > 0] or linked
    publishers = tuple([each.waiter for each in busy])
    return replace(
        finding,
        waiters=publishers[:WAITERS_MAX],
        waiters_total=len(publishers),
        path=(*[each.id for each in publishers[:1]], *finding.path),
    )


WITHHELD_WORDS: Final = {
    Withheld.SUBSCRIPTION: "its consumers together have as many unsettled as it allows",
    Withheld.RATE: "its dispatch rate is used up",
    Withheld.DELAYED_ROOM: "those next may have to be put aside until their time, "
    "and there is no room for that on disk (topics.delayed_on_disk_max)",
    Withheld.DRAINING: "they wait until the consumer that had their keys before has settled them",
    Withheld.LOOK_AHEAD: "too many wait for consumers of other keys that ask for nothing",
    Withheld.INACTIVE: "another consumer is to take over first",
    Withheld.NOTHING_READY: "nobody consumes the queues they are in",
    Withheld.DEMAND: "no consumer asks for messages: nobody pulls",
}
"""Why those who ask get nothing, the most telling reason first."""

_OF_ALL: Final = (
    Withheld.SUBSCRIPTION,
    Withheld.RATE,
    Withheld.DELAYED_ROOM,
    Withheld.DRAINING,
)
"""Reasons of the subscription and not of one consumer."""

NAMED_MAX: Final = 2
"""Consumers named in one sentence."""


def _withheld(consumers: Sequence[ConsumerView]) -> tuple[Withheld, list[ConsumerView]]:
    """What keeps messages from those who ask and may have them, or that nobody asks; from whom."""
    asking = [
        each
        for each in consumers
        if each.has_demand and not (each.is_at_limit or each.is_unsent_high)
    ]
    silent = [each for each in consumers if each not in asking]
    for reason in WITHHELD_WORDS:
        concerned = [each for each in asking if reason in each.blocked_by]
        # Where some ask and there is nothing for them, it is for those who do not: their keys.
        if concerned and not (reason is Withheld.NOTHING_READY and silent):
            return reason, concerned
    return Withheld.DEMAND, silent or list(consumers)


def _why(reason: Withheld, concerned: Sequence[ConsumerView]) -> str:
    names = [each.name for each in concerned[:NAMED_MAX]]
    more = len(concerned) + sum([each.others for each in concerned]) - len(names)
    who = ", ".join(names) + (f" and {more} more" if more else "")
    awaited = next((each.waits_for for each in concerned if each.waits_for), "")
    return (
        f"{WITHHELD_WORDS[reason]} ({'consumers' if more or len(names) > 1 else 'consumer'} {who}"
        + (f", for consumer {awaited})" if awaited else ")")
    )


def _slow(consumer: ConsumerView) -> str:
    has = f"{_unsettled(consumer)}, its limit is {consumer.unacked_max}"
    if not (consumer.has_demand or consumer.is_at_limit):
        has = f"{_unsettled(consumer)}, and asks for no more"
    elif not consumer.unacked_max:
        has = f"{_unsettled(consumer)}, and no limit (prefetch)"
    if Withheld.BYTES in consumer.blocked_by and Withheld.UNSETTLED not in consumer.blocked_by:
        has = (
            f"{size_text(consumer.unacked_bytes)} of unsettled messages, "
            f"its limit is {size_text(consumer.unacked_bytes_max)}"
        )
    return f"consumer {consumer.name} is slow: it has {has}"


def _unsettled(consumer: ConsumerView) -> str:
    return f"{consumer.unacked} unsettled message{'s' if consumer.unacked != 1 else ''}"


def _stands_by(consumer: ConsumerView) -> bool:
    return Withheld.INACTIVE in consumer.blocked_by


def _burying(stage: StageView, behind: str) -> Finding | None:
    """It has consumers who would take them, but nothing is delivered before the dead are buried."""
    undone = stage.undone
    if undone is None or undone.what != BURIALS:
        return None
    does = f"it first buries {undone.count} messages that died"
    return _delivery(stage, BURIALS, stage.name, f"{behind}; {does}.", cause=BURIALS)


def _query(stage: StageView, query: QueryView) -> Finding | None:
    """Why a Spark query is behind; None while it simply has its next batch before it."""
    culprit = Ref("query", stage.id or f"query/{query.name}", query.name)
    behind = f"Spark query {query.name} is {stage.ready} messages behind"

    def found(sentence: str, cause: str) -> Finding:
        finding = _delivery(stage, "query", query.name, sentence, cause=cause)
        return replace(
            finding,
            culprit=culprit,
            path=(stage.belongs_to or stage.key, culprit.id),
            do=advice_for(culprit.id, cause),
        )

    if query.lease_text:
        said = f"The lease of Spark query {query.name} is broken: {query.lease_text}."
        return replace(found(said, "lease-broken"), since_ms=query.lease_since_ms)
    progress = stage.progress
    is_behind = progress is None or progress.is_behind or query.is_holding
    if not stage.ready or not is_behind:
        return None
    if not query.is_alive:
        why, cause = _absence(query)
        return found(f"{behind}: {why}.", cause)
    if query.failure:
        return found(f"{behind}: its batch failed ({query.failure}) and is tried again.", "failed")
    if not (query.is_limited or query.is_holding):
        return None
    cause = (query.slow_part or "unknown").replace(" ", "-")
    part = f"its {query.slow_part} is the slow part" if query.slow_part else "which part is unknown"
    if query.own_rows_max:
        cause = "own-limit"
        part = (
            f"it takes no more than its own limit allows (maxRowsPerTrigger {query.own_rows_max})"
        )
    waits = "; publishers wait for it" if query.is_holding else ""
    return found(
        f"{behind} at {round(query.messages_per_s)} messages a second: {part}{waits}.", cause
    )


def _absence(query: QueryView) -> tuple[str, str]:
    """Why a query that is not alive is not, as far as it said so; and the cause."""
    if query.failure:
        return f"it failed ({query.failure})", "failed"
    if query.is_stopped:
        return "it was stopped", "stopped"
    if not query.polls:
        return "it has a lease and did not begin to read", "not-started"
    return f"it did not poll for {query.silent_ms // 1000} s", "silent"


def _is_served(consumer: ConsumerView) -> bool:
    if not consumer.has_demand or consumer.is_at_limit or consumer.is_unsent_high:
        return False
    return not any(each in WITHHELD_WORDS for each in consumer.blocked_by)


def _delivery(
    stage: StageView,
    kind: str,
    name: str,
    sentence: str,
    *,
    cause: str,
    severity: Severity = "behind",
) -> Finding:
    progress = stage.progress
    return Finding(
        kind,
        name,
        sentence,
        "delivery",
        (stage.label,),
        stage.share,
        severity=severity,
        culprit=stage.ref,
        cause=cause,
        since_ms=stage.since_ms if progress is None else progress.since_ms,
        path=(*([stage.belongs_to] if stage.belongs_to else []), stage.key),
        do=advice_for(stage.key, cause),
    )
