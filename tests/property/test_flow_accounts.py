"""Accounts that must come out even: confirms, tokens, gates (law 7), shares, and the diagnosis."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow.confirms import ConfirmLedger
from penstock.flow.credit import Gate
from penstock.flow.diagnosis import findings_of
from penstock.flow.episodes import SLOTS, Journal, StallShare
from penstock.flow.rate import TokenBucket
from penstock.flow.reason import Reason
from penstock.flow.views import ConsumerView, StageView

quick = settings(max_examples=100, deadline=None)


@quick
@given(data=st.data(), count=st.integers(1, 60))
def test_a_client_hears_of_every_publish_once_and_rightly(data, count):
    ledger = ConfirmLedger()
    fates = dict(enumerate(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), 1))
    open_tokens = set(fates)
    heard = {}
    assert ledger.expect(count) == 1

    def hear(answers, is_ack):
        covered = set(answers.singles)
        if answers.upto is not None:
            # A cumulative answer covers everything the client still has open below it.
            covered |= {token for token in open_tokens if token <= answers.upto}
        for token in covered:
            open_tokens.remove(token)
            heard[token] = is_ack

    left = data.draw(st.permutations(list(fates)))
    while left:
        n = data.draw(st.integers(1, len(left)))
        turn, left = left[:n], left[n:]
        verdicts = ledger.answer([t for t in turn if fates[t]], [t for t in turn if not fates[t]])
        hear(verdicts.acks, True)
        hear(verdicts.nacks, False)
        assert ledger.outstanding == len(left)
        assert ledger.outstanding_min == min(left, default=count + 1)
    assert heard == fates


@quick
@given(
    rate=st.integers(1, 5000),
    burst=st.integers(1, 500),
    steps=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 600)), max_size=40),
)
def test_a_bucket_never_gives_more_than_rate_times_time_plus_burst(rate, burst, steps):
    bucket = TokenBucket(rate, burst)
    now_ms, taken = 0, []
    for wait_ms, wanted in steps:
        now_ms += wait_ms
        n = min(wanted, burst)
        if bucket.take(n, now_ms):
            taken.append((now_ms, n))
    for first, (since_ms, _) in enumerate(taken):
        total = 0
        for until_ms, n in taken[first:]:
            total += n
            assert total * 1000 <= burst * 1000 + rate * (until_ms - since_ms)


@quick
@given(
    rate=st.integers(1, 5000),
    burst=st.integers(1, 500),
    charged=st.integers(0, 5000),
    n=st.integers(1, 1000),
)
def test_the_wait_a_bucket_tells_is_exact(rate, burst, charged, n):
    def fresh():
        bucket = TokenBucket(rate, burst)
        bucket.charge(charged, 0)
        return bucket

    wait_ms = fresh().wait_ms(n, 0)
    assert fresh().take(n, wait_ms)
    assert wait_ms == 0 or not fresh().take(n, wait_ms - 1)


EVENTS = st.tuples(st.sampled_from(list(Reason)), st.booleans(), st.integers(0, 700))


@quick
@given(events=st.lists(EVENTS, max_size=60), memory_ms=st.sampled_from([0, 100, 1000]))
def test_every_reason_is_opened_once_per_episode_also_when_the_peer_dies(events, memory_ms):
    journal = Journal(0, memory_ms=memory_ms)
    episodes = journal.episodes("connection", "c")
    gate = Gate(episodes)
    closed_at, stalled_ms, edges = {}, dict.fromkeys(Reason, 0), []
    for reason, is_close, ms in events:
        journal.tick(journal.now_ms + ms)
        now_ms = journal.now_ms
        if is_close:
            assert gate.close(reason, "x", now_ms) == (reason not in closed_at)
            closed_at.setdefault(reason, now_ms)
        else:
            assert gate.open(reason, now_ms) == (reason in closed_at)
            if reason in closed_at:
                stalled_ms[reason] += now_ms - closed_at.pop(reason)
        assert set(gate.reasons) == set(closed_at)
        assert gate.is_open == (not closed_at)
        assert gate.since_ms == min(closed_at.values(), default=None)
        edges += journal.take_edges()
    journal.tick(journal.now_ms + 5)
    for reason, at_ms in closed_at.items():
        stalled_ms[reason] += journal.now_ms - at_ms
    assert set(gate.clear(journal.now_ms)) == set(closed_at)
    episodes.close(journal.now_ms)
    edges += journal.take_edges()
    for reason in Reason:
        mine = [edge for edge in edges if edge.reason is reason]
        # Entered and left alternate, and every episode ends.
        assert [edge.episode is None for edge in mine] == [True, False] * (len(mine) // 2)
        ended = [edge.episode for edge in mine if edge.episode is not None]
        assert sum(episode.stalled_ms for episode in ended) == stalled_ms[reason]
        assert episodes.stalled_ms(reason, journal.now_ms) == stalled_ms[reason]
        assert episodes.count(reason) == len(ended)


@quick
@given(
    gaps=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), max_size=40),
    after_ms=st.integers(0, 12_000),
)
def test_the_share_is_right_to_one_slot(gaps, after_ms):
    share, stalls, now_ms = StallShare(10_000), [], 0
    for idle_ms, stalled_ms in gaps:
        since_ms = now_ms + idle_ms
        now_ms = since_ms + stalled_ms
        share.add(since_ms, now_ms)
        stalls.append((since_ms, now_ms))
    now_ms += after_ms
    start_ms = now_ms - 10_000
    exact = sum(max(0, until - max(since, start_ms)) for since, until in stalls)
    assert abs(share.stalled_ms(now_ms) - exact) <= 10_000 // SLOTS


LABELS = [f"{kind} {n}" for kind in ("connection", "channel", "queue", "log") for n in range(2)]
CONSUMERS = st.builds(
    ConsumerView,
    name=st.sampled_from(["a", "b"]),
    unacked=st.integers(0, 3),
    unacked_max=st.integers(0, 3),
    is_unsent_high=st.booleans(),
    has_demand=st.booleans(),
)


@st.composite
def views(draw):
    made = []
    for label in draw(st.lists(st.sampled_from(LABELS), unique=True)):
        kind, name = label.split(" ")
        state = draw(st.sampled_from(["running", "flow", "blocking", "blocked"]))
        made.append(
            StageView(
                kind,
                name,
                state,
                draw(st.sampled_from([None, *Reason])) if state != "running" else None,
                draw(st.sampled_from(["", "elsewhere", *LABELS])),
                share=draw(st.floats(0, 1)),
                downstream=tuple(draw(st.lists(st.sampled_from(LABELS), max_size=3))),
                ready=draw(st.integers(0, 2)),
                consumers=tuple(draw(st.lists(CONSUMERS, max_size=2))),
            )
        )
    return made


@quick
@given(stages=views())
def test_a_diagnosis_always_ends_and_never_blames_a_stage_that_waits_as_long_itself(stages):
    held = {stage.label: stage for stage in stages if stage.is_held}
    findings = findings_of(stages)
    for finding in findings:
        assert finding.sentence.endswith(".")
        blamed = held.get(f"{finding.kind} {finding.name}")
        assert blamed is None or blamed.share < finding.share / 2
    flowing = [s for s in stages if s.state == "flow" and s.reason is not Reason.MEMORY]
    if flowing or any(stage.is_held for stage in stages):
        assert findings
