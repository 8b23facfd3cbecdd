"""Of very many consumers the worst of each kind are kept, and judged as all of them would be."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.flow.crowd import SHOWN_MAX, Crowd
from penstock.flow.demand import ClientCause, ClientSays, Withheld
from penstock.flow.diagnosis import findings_of
from penstock.flow.progress import ProgressView
from penstock.flow.views import ConsumerView, StageView


def shown_of(views, count_max=SHOWN_MAX):
    crowd = Crowd(count_max)
    for view in views:
        crowd.add(view)
    return crowd.shown(lambda names: (each for each in views if each.name in names))


def standing_by(count, active):
    return [
        ConsumerView(f"w{number}", blocked_by=(Withheld.INACTIVE,), waits_for=active)
        for number in range(count)
    ]


def test_a_few_are_all_kept_in_the_order_in_which_they_came():
    views = [ConsumerView(f"w{number}", unacked=number % 3) for number in range(SHOWN_MAX)]
    assert shown_of(views) == tuple(views)


def test_of_thousands_that_are_alike_some_are_kept_and_the_others_counted():
    shown = shown_of([ConsumerView(f"w{number}") for number in range(5_000)])
    assert [each.name for each in shown] == [f"w{number}" for number in range(SHOWN_MAX)]
    assert [each.others for each in shown if each.others] == [5_000 - SHOWN_MAX]


def test_the_one_that_is_not_like_the_others_is_kept_wherever_it_comes():
    views = [ConsumerView(f"w{number}", unacked=1, unacked_max=5) for number in range(3_000)]
    views[2_500] = ConsumerView("full", unacked=5, unacked_max=5)
    views[2_600] = ConsumerView("deaf", unacked=1, unacked_max=5, is_unsent_high=True)
    says = ClientSays(ClientCause.PAUSED, 0, 0, 0)
    views[2_700] = ConsumerView("paused", unacked=1, unacked_max=5, says=says)
    assert {"full", "deaf", "paused"} <= {each.name for each in shown_of(views)}


def test_the_worst_of_a_kind_is_kept_wherever_it_comes():
    views = [
        ConsumerView(f"w{number}", unacked=5, unacked_max=5, unsettled_ms=1_000)
        for number in range(3_000)
    ]
    views[2_999] = ConsumerView("stuck", unacked=5, unacked_max=5, unsettled_ms=40_000)
    shown = shown_of(views)
    assert shown[-1].name == "stuck"
    assert shown[-1].others == 0
    assert sum(1 + each.others for each in shown) == 3_000


def test_for_whom_others_wait_is_kept_also_when_it_is_like_very_many():
    busy = [ConsumerView(f"b{number}", unacked=1, unacked_max=9) for number in range(500)]
    waiting = [
        ConsumerView(f"w{number}", blocked_by=(Withheld.DRAINING,), waits_for="b499")
        for number in range(500)
    ]
    shown = shown_of([*busy, *waiting])
    assert "b499" in {each.name for each in shown}
    assert len(shown) == SHOWN_MAX + 1
    assert sum(1 + each.others for each in shown) == 1_000
    shown = shown_of([*standing_by(5_000, "a"), ConsumerView("a")])
    assert "a" in {each.name for each in shown}


KINDS = st.builds(
    ConsumerView,
    name=st.just(""),
    unacked=st.sampled_from([0, 1, 5, 60]),
    unacked_max=st.sampled_from([0, 5, 100]),
    is_unsent_high=st.sampled_from([False, False, True]),
    has_demand=st.booleans(),
    has_settled=st.booleans(),
    is_unlimited=st.booleans(),
    usual_ms=st.sampled_from([0, 40_000]),
    blocked_by=st.sampled_from(
        [(), *[(each,) for each in Withheld], (Withheld.DEMAND, Withheld.DRAINING)]
    ),
)
SAID = st.builds(
    ClientSays,
    st.sampled_from(ClientCause),
    waiting=st.sampled_from([0, 7, 70]),
    lasted_ms=st.sampled_from([0, 6_000, 31_000]),
)


@st.composite
def crowds(draw, said):
    """Many consumers of a few kinds, some of which do less than others."""
    of_kind = st.builds(lambda kind, says: replace(kind, says=says), KINDS, said)
    kinds = draw(st.lists(of_kind, min_size=1, max_size=3))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=20, max_size=40))
    still = draw(st.dictionaries(st.sampled_from(range(20)), st.sampled_from(STILL_MS), max_size=3))
    return [
        replace(kind, name=f"w{number}", unsettled_ms=still.get(number, 0))
        for number, kind in enumerate(chosen)
    ]


STILL_MS = [6_000, 31_000, 90_000]


def judged(views, ready, *, is_held):
    progress = ProgressView(
        at_ms=90_000,
        is_behind=True,
        since_ms=60_000,
        age_ms=20_000,
        unread_ms=0,
        unacked_since_ms=50_000 if is_held else None,
        unacked_age_ms=40_000 if is_held else 0,
    )
    stage = StageView("subscription", "s", ready=ready, progress=progress, consumers=views)
    return findings_of([stage])


def both_judged(views, ready, *, is_held):
    """Findings among all of them, and among those that are kept."""
    shown = shown_of(views, 10)
    assert len(shown) == 10
    assert sum(1 + each.others for each in shown) == len(views)
    return [judged(given, ready, is_held=is_held) for given in (tuple(views), shown)]


@settings(max_examples=300)
@given(crowds(st.none()), st.sampled_from([0, 7]), st.booleans())
def test_what_is_found_among_those_that_are_kept_is_found_among_all(views, ready, is_held):
    """The same consumer, too; of a group some are named, and which of them says nothing."""
    of_all, of_some = [
        [
            (each.severity, each.cause, each.kind, each.sentence if each.kind == "consumer" else "")
            for each in found
        ]
        for found in both_judged(views, ready, is_held=is_held)
    ]
    assert of_all == of_some


@given(crowds(st.none() | SAID), st.sampled_from([0, 7]), st.booleans())
def test_what_clients_say_of_themselves_is_found_among_those_that_are_kept(views, ready, is_held):
    """Which of several is quoted depends on with whom it is compared."""
    of_all, of_some = [
        [(each.severity, each.kind) for each in found]
        for found in both_judged(views, ready, is_held=is_held)
    ]
    assert of_all == of_some
