"""The table of requests under way: opaques, deadlines, exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.pending import NEVER_MS, PendingRequests


def test_an_answer_finds_its_request_once():
    pending = PendingRequests()
    pending.add(7, 0, 100, print)
    assert pending.take(7) is print
    assert pending.take(7) is None
    assert pending.take(8) is None


def test_only_the_first_deadline_sets_the_timer():
    pending = PendingRequests()
    assert pending.add(1, 0, 3000, print)
    assert not pending.add(2, 5, 3000, print)
    assert pending.add(3, 10, 100, print)
    assert pending.next_look_ms == 110


def test_a_look_ends_what_is_over_and_finds_the_next_time():
    pending = PendingRequests()
    pending.add(1, 0, 100, print)
    pending.add(2, 0, 200, len)
    assert pending.expire(99) == []
    assert pending.expire(100) == [(100, print)]
    assert pending.next_look_ms == 200
    assert pending.expire(200) == [(200, len)]
    assert pending.next_look_ms == NEVER_MS


def test_the_table_is_full_at_its_bound():
    pending = PendingRequests(2)
    pending.add(1, 0, 1, print)
    assert not pending.is_full
    pending.add(2, 0, 1, print)
    assert pending.is_full


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 50), st.integers(1, 300)),
        st.tuples(st.just("take"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("expire"), st.integers(0, 200), st.just(0)),
    )
)


@given(steps)
def test_each_request_ends_exactly_once_and_never_before_its_deadline(script):
    pending, now, model, ended = PendingRequests(), 0, {}, []
    for number, (kind, key, timeout) in enumerate(script):
        if kind == "add" and key not in model:
            model[key] = (now + timeout, number)
            pending.add(key, now, timeout, lambda _, n=number: n)
        elif kind == "take":
            done = pending.take(key)
            assert (done is None) == (key not in model)
            if done is not None:
                ended.append(done(None))
                assert model.pop(key)[1] == ended[-1]
        elif kind == "expire":
            now += key
            over = {n for deadline, n in model.values() if deadline <= now}
            assert {done(None) for _, done in pending.expire(now)} == over
            model = {key: each for key, each in model.items() if each[1] not in over}
            assert all(pending.next_look_ms <= deadline for deadline, _ in model.values())
    assert {done(None) for done in pending.drain()} == {n for _, n in model.values()}
    assert len(pending) == 0
