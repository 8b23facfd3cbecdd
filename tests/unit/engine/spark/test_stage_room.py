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
    made = StageRoom(SparkSettings(**limits), Chain(), dict(found), remove=lambda path: None)
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
    made, _ = room({"stage/s/q/0": 50, "stage/s/q/not-a-batch": 9})
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


def test_of_batches_that_fill_the_room_one_goes_on_and_the_next_when_it_stands_still():
    made, chain = room(stage_bytes_max=100)
    for batch in (0, 1):
        made.charge(asked(50, batch), "writer")
    assert made.full(asked(10, 0)) is None
    assert "spark.stage_bytes_max" in made.full(asked(10, 1)).culprit
    assert made.full(asked(10, 2)) is not None
    chain.now_ms += PASSING_MS + 1
    assert made.full(asked(10, 1)) is None
