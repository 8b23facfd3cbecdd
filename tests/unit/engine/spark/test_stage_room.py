"""The room for staged rows by itself: what it counts, and who may pass it."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.spark.query import QueryRefused
from penstock.engine.spark.stage_room import PASSING_MS, StageRoom
from penstock.log.staging import batch_path
from penstock.model.queries import StageRoomRequest
from penstock.model.spark_batch import TOO_LARGE
from penstock.settings.protocols import SparkSettings


class Chain:
    def __init__(self):
        self.now_ms = 1000
        self.topics = SimpleNamespace(reserve_percent=10)

    def request_turn(self):
        pass


def room(found=(), **limits):
    removed = []
    made = StageRoom(
        SparkSettings(**limits),
        Chain(),
        dict(found),
        remove=lambda path: None,
        remove_puts=lambda path, names: removed.extend(names),
    )
    made.removed = removed
    return made, made._chain


def asked(size, batch=0, name="0.a", query="q"):
    return StageRoomRequest(
        sink="s", query=query, batch=batch, name=name, bytes=size, topics=[], maker=""
    )


STEPS = st.one_of(
    st.tuples(
        st.just("charge"), st.integers(0, 3), st.sampled_from(["0.a", "1.b"]), st.integers(1, 99)
    ),
    st.tuples(
        st.just("ended"), st.integers(0, 3), st.sampled_from(["0.a", "1.b"]), st.integers(0, 99)
    ),
    st.tuples(st.sampled_from(["forget", "drop", "drop_older", "gone"]), st.integers(0, 3)),
)


@given(st.lists(STEPS, max_size=40))
def test_bytes_and_puts_add_up_whatever_happens(steps):
    made, _ = room({"stage/s/q/0": {"0.a": 30, "7.z": 20}, "stage/s/q/not-a-batch": {"0.a": 9}})
    assert made.size_bytes == 50
    for what, number, *more in steps:
        path = batch_path("s", "q", number)
        if what == "charge":
            made.charge(asked(more[1], number, more[0]), path)
        elif what == "ended":
            made.ended(path, *more)
        elif what == "forget":
            made.forget(path, ["0.a"])
        elif what == "gone":
            made.disconnected(path)
        else:
            getattr(made, what)(path)
        puts = [each.puts for each in made.batches.values()]
        assert made.size_bytes == sum(sum(each.values()) for each in puts)
        assert made._put_count == sum(bool(name) for each in puts for name in each)
        assert all(puts)


def test_a_batch_that_would_be_too_large_for_itself_is_refused():
    made, _ = room(stage_batch_bytes_max=100)
    made.charge(asked(60), "writer")
    with pytest.raises(QueryRefused, match="maxRowsPerTrigger") as refused:
        made.check_batch(asked(41))
    assert refused.value.kind == TOO_LARGE
    made.check_batch(asked(40))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_batch_that_is_done_again_replaces_what_was_put_before(is_restarted):
    """Spark was killed between the puts and the commit: both times together are above the bound."""
    path = batch_path("s", "q", 0)
    lost = {f"{task}.lost": 30 for task in range(3)}
    made, _ = room({path: lost} if is_restarted else (), stage_batch_bytes_max=100)
    for name in () if is_restarted else lost:
        put(made, name)
    for task in range(3):
        put(made, f"{task}.again")
    assert made.removed == [*lost]
    assert sorted(made.batches[path].puts) == [f"{task}.again" for task in range(3)]
    assert made.size_bytes == 90
    with pytest.raises(QueryRefused, match="maxRowsPerTrigger"):
        put(made, "3.again")


def test_a_put_under_way_is_not_replaced_by_another_of_its_task():
    made, _ = room(stage_batch_bytes_max=100)
    made.charge(asked(60, name="0.slow"), "writer")
    with pytest.raises(QueryRefused, match="maxRowsPerTrigger"):
        put(made, "0.fast", 60)
    assert made.removed == []


def put(made, name, size=30):
    """A put from its first word to its last."""
    request = asked(size, name=name)
    made.check_batch(request)
    made.charge(request, "writer")
    made.ended(batch_path("s", "q", 0), name, size)


def test_of_batches_that_fill_the_room_one_goes_on_and_the_next_when_it_stands_still():
    made, chain = room(stage_bytes_max=100)
    for batch in (0, 1):
        made.charge(asked(50, batch), "writer")
    assert made.full(asked(10, 0)) is None
    assert "spark.stage_bytes_max" in made.full(asked(10, 1)).culprit
    assert made.full(asked(10, 2)) is not None
    chain.now_ms += PASSING_MS + 1
    assert made.full(asked(10, 1)) is None
