"""Positions of a streaming query against an upstream of lists."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from kit.fake_upstream import FakeUpstream
from penstock.bulk.tickets import BulkError
from penstock.spark.options import read_options
from penstock.spark.query import (
    FIRST_ROWS,
    FIXED_ROOM,
    LOOK_AGAIN,
    POLL_MS,
    ROWS_MIN,
    STEP_LATE,
    STEP_MAX,
    STEP_MIN,
    Admission,
    BatchPlanner,
    ending,
    starting,
)
from penstock.spark.upstream import BadOffsets, position, rows_between


class Clock:
    """Time that stands still until it is told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def query(upstream, **options):
    clock = Clock()
    chosen = {"topics": "orders", "startingOffsets": "earliest", **options}
    made = BatchPlanner(read_options(chosen), upstream, clock=clock)
    return made, clock


def offsets(answer):
    return answer["offsets"]["orders"]


def test_a_new_stream_begins_at_the_latest_offset_unless_told_otherwise():
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 7)
    made, _ = query(upstream, startingOffsets="latest")
    assert offsets(made.initial()) == {"0": 7}
    plain = BatchPlanner(read_options({"topics": "orders"}), upstream)
    assert offsets(plain.initial()) == {"0": 7}


def test_the_id_of_a_checkpoint_is_made_once_and_stays_over_restarts():
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 7)
    made, _ = query(upstream, maxRowsPerTrigger="3")
    start = made.initial()
    end = made.following(start)
    assert end["checkpoint"] == start["checkpoint"] == made.latest()["checkpoint"]
    again, _ = query(upstream)
    assert again.following(end)["checkpoint"] == start["checkpoint"]
    assert {each.checkpoint for each in upstream.asked} == {start["checkpoint"]}
    other, _ = query(upstream)
    assert other.initial()["checkpoint"] != start["checkpoint"]


def test_a_query_that_is_to_rest_offers_nothing_and_says_where_it_stands(tmp_path):
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 7)
    place, rests = tmp_path / "pause", []
    chosen = {"topics": "orders", "startingOffsets": "earliest", "maxRowsPerTrigger": "3"}
    given = read_options({**chosen, "pauseFile": str(place)})
    made = BatchPlanner(given, upstream, clock=Clock(), rest=rests.append)
    end = made.following(made.initial())
    place.touch()
    assert made.following(end) is end
    assert (place.read_text(), len(rests)) == ("paused", 1)
    assert upstream.asked[-1].start == {"orders": {"0": 3}}
    asked = len(upstream.asked)
    assert made.following(end) is end
    assert len(upstream.asked) == asked
    place.unlink()
    assert offsets(made.following(end)) == {"0": 6}


def test_the_latest_offset_carries_the_figures_of_the_source():
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 7)
    made, _ = query(upstream, maxRowsPerTrigger="3")
    made.following(made.initial())
    assert (made.latest()["lag_rows"], made.latest()["admitted_rows"]) == (7, 3)


def test_a_checkpoint_without_an_id_gets_one_with_its_next_batch():
    upstream = FakeUpstream(orders=1)
    made, _ = query(upstream)
    old = {name: value for name, value in made.initial().items() if name != "checkpoint"}
    assert made.following(old) is old
    upstream.grow("orders", "0", 7)
    assert made.following(old)["checkpoint"] == upstream.asked[0].checkpoint != ""


def test_with_nothing_new_the_very_start_comes_back():
    made, _ = query(FakeUpstream(orders=2))
    start = made.initial()
    assert made.following(start) is start


def test_idle_queries_wait_at_the_broker_and_available_now_does_not():
    upstream = FakeUpstream(orders=1)
    made, _ = query(upstream)
    start = made.initial()
    made.following(start)
    assert upstream.asked[-1].wait_ms == POLL_MS
    made.freeze()
    made.following(start)
    assert upstream.asked[-1].wait_ms == 0


def test_the_start_is_acknowledged_with_what_the_batch_took():
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 10)
    made, clock = query(upstream, maxRowsPerTrigger="4")
    first = made.following(made.initial())
    clock.now += 2
    made.following(first)
    assert upstream.asked[-1].start == {"orders": {"0": 4}}
    report = upstream.asked[-1].report
    assert (report.rows, report.bytes, report.batch_ms) == (4, 400, 2000)
    made.following(first)
    assert upstream.asked[-1].report is None


def test_rows_are_divided_by_what_waits_in_each_queue():
    upstream = FakeUpstream(orders=2)
    upstream.grow("orders", "0", 300)
    upstream.grow("orders", "1", 100)
    made, _ = query(upstream, maxRowsPerTrigger="40")
    assert offsets(made.following(made.initial())) == {"0": 30, "1": 10}


def test_bytes_are_a_limit_too():
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 300)
    made, _ = query(upstream, maxBytesPerTrigger="1000")
    assert offsets(made.following(made.initial())) == {"0": 10}


def test_a_read_of_everything_knows_no_limit():
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 300)
    made, _ = query(upstream, maxRowsPerTrigger="4", minRowsPerTrigger="2")
    assert offsets(made.following(made.initial(), is_unlimited=True)) == {"0": 300}


def test_batches_wait_for_enough_rows_or_long_enough():
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 3)
    made, clock = query(upstream, minRowsPerTrigger="5", maxTriggerDelay="10s")
    start = made.initial()
    assert made.following(start) is start
    clock.now += 11
    assert offsets(made.following(start)) == {"0": 3}
    upstream.grow("orders", "0", 5)
    clock.now -= 11
    assert offsets(made.following(start)) == {"0": 8}


def test_batches_roll_by_rows_but_never_above_what_is_admitted():
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 30)
    options = {"rollRows": "50", "maxTriggerDelay": "10s"}
    made, clock = query(upstream, **options)
    start = made.initial()
    assert made.following(start) is start
    assert upstream.asked[-1].rows_min == 50
    clock.now += 11
    assert offsets(made.following(start)) == {"0": 30}
    limited, _ = query(upstream, maxRowsPerTrigger="20", **options)
    assert offsets(limited.following(start)) == {"0": 20}
    by_bytes, _ = query(upstream, maxBytesPerTrigger="1000", **options)
    assert offsets(by_bytes.following(start)) == {"0": 10}


def test_a_queue_that_appears_begins_at_its_earliest_and_says_so_in_the_batch():
    upstream = FakeUpstream(orders=1)
    made, _ = query(upstream)
    start = made.initial()
    upstream.make("orders", "1", earliest=5, end=9)
    upstream.make("orders", "2")
    end = made.following(start)
    assert offsets(end) == {"0": 0, "1": 9}
    assert end["begins"] == {"orders": {"1": 5}}
    assert rows_between(position(start), position(end)) == 4
    assert made.following(end) is end


def test_what_spark_shows_as_latest_says_whose_it_is():
    upstream = FakeUpstream(orders=1)
    made, _ = query(upstream, subscription="etl", endpoint="h:1")
    assert made.latest() is None
    start = made.initial()
    upstream.grow("orders", "0", 3)
    made.following(start)
    latest = made.latest()
    assert offsets(latest) == {"0": 3}
    assert (latest["subscription"], latest["endpoint"]) == ("etl", "h:1")


def remade(upstream):
    upstream.make("orders", "0", earliest=2, end=100)


def removed(upstream):
    upstream.move("orders", "0", earliest=40)


def cut_off(upstream):
    upstream.move("orders", "0", end=10)


def deleted(upstream):
    del upstream.queues["orders", "0"]


@pytest.mark.parametrize(
    ("accident", "words"),
    [
        (remade, "deleted and made anew"),
        (removed, "20 messages of queue 0 of topic 'orders' were removed"),
        (cut_off, "ends at 10, below the position 20"),
        (deleted, "is gone"),
    ],
)
def test_what_happened_to_a_checkpoints_queue_is_said_and_what_to_do(accident, words):
    upstream = FakeUpstream(orders=2)
    upstream.grow("orders", "0", 50)
    made, _ = query(upstream, maxRowsPerTrigger="20")
    end = made.following(made.initial())
    accident(upstream)
    with pytest.raises(BulkError, match=words) as raised:
        made.following(end)
    assert "failOnDataLoss=false" in str(raised.value)
    assert raised.value.kind == "data-loss"


def test_a_lease_that_was_broken_is_told_to_the_user_with_its_reason(caplog):
    class Broken(FakeUpstream):
        def poll(self, request):
            answer = super().poll(request)
            return replace(answer, lost="its lease was broken, it held 9 GiB")

    upstream = Broken(orders=1)
    upstream.grow("orders", "0", 50)
    strict, _ = query(upstream, maxRowsPerTrigger="20")
    end = strict.following(strict.initial())
    removed(upstream)
    with pytest.raises(
        BulkError, match="the broker says: its lease was broken, it held 9 GiB; set"
    ):
        strict.following(end)
    lax, _ = query(upstream, failOnDataLoss="false")
    lax.following(end)
    assert "its lease was broken, it held 9 GiB" in caplog.text


@pytest.mark.parametrize(
    ("accident", "begin", "end"),
    [(remade, 2, 22), (removed, 20, 50), (cut_off, 10, 10)],
)
def test_those_who_accept_loss_go_on_with_what_there_is(accident, begin, end):
    upstream = FakeUpstream(orders=1)
    upstream.grow("orders", "0", 50)
    made, _ = query(upstream, maxRowsPerTrigger="20", failOnDataLoss="false")
    start = made.following(made.initial())
    accident(upstream)
    following = made.following(start)
    batch = position(following)
    assert position(start).begin_of(batch, "orders", "0") == begin
    assert offsets(following) == {"0": end}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_checkpoint_of_a_query_that_reads_other_topics_is_refused_in_any_case(fails):
    upstream = FakeUpstream(orders=1)
    made, _ = query(upstream)
    start = made.initial()
    upstream = FakeUpstream(payments=1, late=1)
    upstream.grow("payments", "0", 5)
    given = {"topics": "payments", "optionalTopics": "late", "failOnDataLoss": fails}
    other, _ = query(upstream, **given)
    words = "is of a query that reads 'orders', and this one reads 'payments': begin with a new ch"
    with pytest.raises(BadOffsets, match=words) as caught:
        other.following(start)
    assert "failOnDataLoss" not in str(caught.value)
    assert upstream.asked == []


def test_a_topic_that_is_not_read_any_more_may_be_left_out_by_those_who_accept_loss():
    upstream = FakeUpstream(orders=1, payments=1)
    start = query(upstream, topics="orders,payments")[0].initial()
    del upstream.queues["payments", "0"]
    upstream.grow("orders", "0", 5)
    strict, _ = query(upstream)
    with pytest.raises(BadOffsets, match=r"reads 'orders', 'payments', .*'orders': name .*fail"):
        strict.following(start)
    lax, _ = query(upstream, failOnDataLoss="false")
    assert lax.following(start)["offsets"] == {"orders": {"0": 5}}


def test_a_pattern_may_match_fewer_topics_than_before():
    upstream = FakeUpstream(orders=1, payments=1)
    made, _ = query(upstream, topics="orders,payments")
    start = made.initial()
    chosen = read_options({"topicsPattern": "pay.*", "failOnDataLoss": "false"})
    other = BatchPlanner(chosen, upstream, clock=Clock())
    assert other.following(start) is start


def test_a_topic_that_is_gone_is_forgotten_by_those_who_accept_loss():
    upstream = FakeUpstream(orders=1, payments=1)
    upstream.grow("orders", "0", 5)
    made, _ = query(upstream, failOnDataLoss="false")
    start = made.following(made.initial())
    del upstream.queues["payments", "0"]
    following = made.following(start)
    assert following["offsets"] == {"orders": {"0": 5}}
    assert made.following(following) is following


def test_offsets_of_another_epoch_are_refused_by_the_broker_and_we_say_what_to_do():
    class Restarted(FakeUpstream):
        def poll(self, request):
            if request.epoch != self.epoch:
                raise BulkError("epoch", "the offsets are of epoch 1")
            return super().poll(request)

    upstream = Restarted(orders=1)
    strict, _ = query(upstream)
    lax, _ = query(upstream, failOnDataLoss="false")
    start = strict.initial()
    upstream.epoch = 2
    upstream.grow("orders", "0", 3)
    with pytest.raises(BulkError, match="failOnDataLoss=false"):
        strict.following(start)
    end = lax.following(start)
    assert (end["epoch"], offsets(end)) == (2, {"0": 3})


def test_a_broker_that_gives_rows_beyond_the_frozen_target_does_not_stop_the_query():
    class Onesided(FakeUpstream):
        def poll(self, request):
            answer = super().poll(request)
            ends = {"orders": {**request.start["orders"], "0": answer.latest["orders"]["0"]}}
            return type(answer)(
                epoch=1, ends=ends, latest=answer.latest, starts={}, incarnations={}
            )

    upstream = Onesided(orders=2)
    upstream.grow("orders", "1", 10)
    made, _ = query(upstream, maxRowsPerTrigger="4")
    start = made.initial()
    made.freeze()
    upstream.grow("orders", "0", 1000)
    ends = []
    for _ in range(4):
        start = made.following(start)
        ends.append(offsets(start)["1"])
    assert ends == [4, 8, 10, 10]
    assert offsets(start)["0"] == 0


class Batches(RuleBasedStateMachine):
    """Any growth and any limits: never back, never beyond, and AvailableNow arrives."""

    @initialize(rows=st.integers(1, 50), size=st.integers(1, 5000), least=st.integers(1, 60))
    def begin(self, rows, size, least):
        self.upstream = FakeUpstream(orders=3)
        self.limits = (rows, size)
        self.query, self.clock = query(
            self.upstream,
            maxRowsPerTrigger=str(rows),
            maxBytesPerTrigger=str(size),
            minRowsPerTrigger=str(min(least, rows)),
        )
        self.at = self.query.initial()
        self.frozen = None

    @rule(queue=st.integers(0, 2), rows=st.integers(1, 80))
    def grow(self, queue, rows):
        self.upstream.grow("orders", str(queue), rows)

    @rule(earliest=st.integers(0, 5))
    def another_queue(self, earliest):
        number = str(len(self.upstream.queues))
        if len(self.upstream.queues) < 6:
            self.upstream.make("orders", number, earliest=earliest, end=earliest + 10)

    @rule(seconds=st.floats(0.01, 1000))
    def batch(self, seconds):
        end = self.query.following(self.at)
        self.check(end)
        self.clock.now += seconds
        self.at = end

    @rule()
    def all_available_now(self):
        self.query.freeze()
        target = self.upstream.resolve().by_queue("end")
        self.upstream.grow("orders", "0", 5)
        for _ in range(2000):
            end = self.query.following(self.at)
            if end is self.at:
                break
            self.check(end)
            self.clock.now += 1
            self.at = end
        there = {queue: end for queue, end in target["orders"].items() if end}
        assert {queue: end for queue, end in offsets(self.at).items() if end} == there
        self.query._target = None

    def check(self, end):
        start, end = position(self.at), position(end)
        latest = self.upstream.resolve().by_queue("end")["orders"]
        for queue, offset in end.offsets["orders"].items():
            assert start.begin_of(end, "orders", queue) <= offset <= latest[queue]
            assert start.offsets["orders"].get(queue, 0) <= offset
        rows, size = self.limits
        average = self.upstream.resolve().row_bytes
        assert rows_between(start, end) <= max(1, min(rows, size / average if average else rows))

    @invariant()
    def knows_where_it_is(self):
        if hasattr(self, "at"):
            assert position(self.at).as_json() == self.at


TestBatches = Batches.TestCase
TestBatches.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@given(waiting=st.lists(st.integers(0, 100), min_size=1, max_size=6), limit=st.integers(1, 200))
def test_a_limit_is_used_up_as_far_as_rows_wait(waiting, limit):
    upstream = FakeUpstream(orders=len(waiting))
    for number, rows in enumerate(waiting):
        if rows:
            upstream.grow("orders", str(number), rows)
    made, _ = query(upstream, maxRowsPerTrigger=str(limit))
    start = made.initial()
    end = made.following(start)
    assert rows_between(position(start), position(end)) == min(limit, sum(waiting))


# ---- admission ----------------------------------------------------------------------------------
# F17: rows of the next batch follow the time of the last one.


def run(admission, batches, *, row_s, fixed_s=0.0, waiting=10**12, cold_s=0.0):
    """Batches of a query whose rows take ``row_s`` each; the times they took."""
    took = []
    for number in range(batches):
        rows = min(admission.rows, waiting)
        took.append(fixed_s + rows * row_s + (cold_s if not number else 0))
        admission.observe(rows, took[-1])
    return took


def test_a_slow_transformation_comes_to_its_target_within_three_batches():
    took = run(Admission(2.0), 12, row_s=0.0005, fixed_s=0.25, cold_s=4)
    assert all(1.7 <= each <= 2.3 for each in took[2:])


def test_a_very_slow_one_is_halved_until_it_fits():
    took = run(Admission(2.0), 20, row_s=0.01, fixed_s=0.25)
    assert all(each <= 2.7 for each in took[8:])
    assert took[-1] > 1.7


def test_a_fast_one_is_doubled_until_it_fits():
    admission = Admission(5.0)
    took = run(admission, 30, row_s=1 / 500_000, fixed_s=0.25)
    assert 4.5 < took[-1] < 5.5
    assert 450_000 < admission.rate < 550_000


def test_the_first_batch_pays_for_a_cold_start_and_raises_nothing():
    admission = Admission(5.0)
    admission.observe(FIRST_ROWS, 0.1)
    assert (admission.rows, admission.rate) == (FIRST_ROWS, 0.0)
    admission = Admission(1.0)
    admission.observe(FIRST_ROWS, 60)
    assert admission.rows == FIRST_ROWS // 2


def test_the_users_limit_is_never_passed():
    admission = Admission(5.0, 7_000)
    run(admission, 10, row_s=1e-6)
    assert admission.rows == 7_000


def test_few_rows_say_nothing_about_many():
    admission = Admission(5.0)
    run(admission, 30, row_s=1e-6, fixed_s=0.2)
    before = admission.rows
    run(admission, 30, row_s=1e-6, fixed_s=0.2, waiting=10)
    assert admission.rows == before


def test_one_hiccup_is_forgotten():
    admission = Admission(2.0)
    run(admission, 10, row_s=0.001)
    admission.observe(admission.rows, 8)
    took = run(admission, 6, row_s=0.001)
    assert 1.5 < took[-1] < 2.5


def test_a_trigger_interval_above_the_target_does_not_starve_the_query():
    """Every batch seems to take ten seconds, because Spark asks only then."""
    admission = Admission(5.0)
    run(admission, 20, row_s=1e-5, fixed_s=0.2)
    before = admission.rows
    for _ in range(100):
        admission.observe(admission.rows, max(10.0, admission.rows * 1e-5))
        assert admission.rows > before / 4
    assert admission.goal_s >= 10


def test_a_fixed_cost_just_above_the_target_does_not_starve_it_either():
    admission = Admission(5.0)
    run(admission, 20, row_s=1e-5, fixed_s=0.2)
    before = admission.rows
    took = run(admission, 200, row_s=1e-6, fixed_s=5.5)
    assert admission.rows > before / 4
    assert max(took) < 9


def test_a_fixed_cost_below_the_target_leaves_the_target_in_force():
    took = run(Admission(5.0), 60, row_s=1e-4, fixed_s=3.0)
    assert 4.5 < took[-1] < 5.5


def test_a_fixed_cost_that_was_a_hiccup_is_doubted_after_a_while():
    admission = Admission(2.0)
    run(admission, 10, row_s=0.001)
    for _ in range(3):
        admission.observe(admission.rows, 8)
    assert admission.goal_s > 8
    took = run(admission, 40, row_s=0.001)
    assert sum(1.5 < each < 2.5 for each in took) >= 36


def test_a_small_batch_that_takes_the_target_is_tried_with_more_rows():
    """Ten rows take as long as a hundred thousand would: the least limit is no trap."""
    for fixed_s in (4.8, 5.0, 5.3, 20.0):
        admission = Admission(5.0)
        admission.rows = ROWS_MIN
        run(admission, 60, row_s=1e-5, fixed_s=fixed_s)
        assert admission.rows > 50_000


def keep_up(seed, *, rows_per_s, fixed_s, sigma, seconds):
    """A query on a busy machine: its batches last as they like, mostly without regard to rows.

    How many rows waited behind each of them.
    """
    chance, admission = random.Random(seed), Admission(3.0)
    now, waiting, found = 0.0, 300.0, []
    while now < seconds:
        rows = int(min(admission.rows, waiting))
        took = fixed_s * chance.lognormvariate(0, sigma) + rows * 0.0005
        took += 15 if not admission.batches else 0
        admission.observe(rows, took)
        now += took
        waiting += rows_per_s * took - rows
        found.append((now, waiting))
    return found


@pytest.mark.parametrize("fixed_s", [1, 3, 4, 6])
@pytest.mark.parametrize(("rows_per_s", "sigma"), [(20, 0.1), (20, 0.3), (200, 0.1), (200, 0.3)])
def test_chance_does_not_make_batches_ever_smaller(rows_per_s, fixed_s, sigma):
    """Each lasts long whatever it holds; a query that takes ever fewer rows is behind for good."""
    for seed in range(12):
        options = {"rows_per_s": rows_per_s, "fixed_s": fixed_s, "sigma": sigma}
        found = keep_up(seed, **options, seconds=300 * fixed_s)
        lately = statistics.median(waiting for at, waiting in found if at > 200 * fixed_s)
        assert lately < 2 * rows_per_s * fixed_s, seed


def test_rows_that_become_slow_make_the_very_next_batch_small_enough():
    admission = Admission(3.0)
    run(admission, 30, row_s=0.0001, fixed_s=0.5, waiting=200)
    assert run(admission, 1, row_s=0.02, fixed_s=0.5, waiting=200) == [4.5]
    took = run(admission, 8, row_s=0.02, fixed_s=0.5)
    assert 2 < min(took) < max(took) < 3.5


def slowed(seed, *, fixed_s, sigma):
    """Rows of the batches from the third on behind the one in which rows became slow."""
    chance, admission = random.Random(seed), Admission(3.0)
    waiting, now, since = 300.0, 0.0, 0
    found = []
    while len(found) < 4:
        rows = int(min(admission.rows, waiting))
        is_slow = now > 30 * fixed_s
        since += is_slow
        took = max(1.0, fixed_s * chance.lognormvariate(0, sigma))
        took += rows * (0.015 if is_slow else 0.0005) + (15 if not admission.batches else 0)
        admission.observe(rows, took)
        now += took
        waiting = min(waiting - rows + 200 * took, 1600 if is_slow else 10**9)
        if since > 3:
            found.append(rows)
    return found


@pytest.mark.parametrize(("fixed_s", "sigma"), [(0.7, 0.3), (2, 0.1), (2, 0.3), (4, 0.1), (4, 0.3)])
def test_rows_that_become_slow_are_told_from_chance_on_a_busy_machine_too(fixed_s, sigma):
    """As in ``penstock demo``: hundreds wait, and a large batch would take twenty seconds."""
    large = sum(max(slowed(seed, fixed_s=fixed_s, sigma=sigma)) > 800 for seed in range(60))
    assert large <= (3 if sigma > 0.1 else 0)


def test_a_cost_of_rows_is_not_taken_for_a_fixed_one_by_looking_again():
    took = run(Admission(2.0), 200, row_s=0.001, fixed_s=0.2)
    assert max(took[4:]) < 2.2
    assert sum(each > 1.8 for each in took[4:]) > 180


@given(
    target=st.floats(0.5, 60),
    drowned=st.lists(
        st.tuples(st.floats(0.1, 100), st.floats(1e-7, 1), st.floats(0.01, 1)), max_size=60
    ),
    fixed=st.floats(0, 4),
    rows=st.floats(100, 1e7),
    limit=st.sampled_from([1 << 40, 100_000]),
)
def test_when_the_machine_is_quick_again_the_rows_come_back(target, drowned, fixed, rows, limit):
    """Whatever batches were and took before, and however much of a batch is not its rows' time."""
    admission = Admission(target, limit)
    for times, row_s, part in drowned:
        done = max(1, int(admission.rows * part))
        admission.observe(done, target * times + row_s * done)
    fixed_s = fixed * target
    goal_s = max(target, FIXED_ROOM * fixed_s)
    row_s = (goal_s - fixed_s) / rows
    wanted = min(rows, limit)
    steps_up = math.log(max(wanted / ROWS_MIN, 2), STEP_LATE)
    steps_down = math.log(max(admission.rows / wanted, 2), 1 / STEP_MIN)
    run(admission, 2 * LOOK_AGAIN + math.ceil(steps_up + steps_down), row_s=row_s, fixed_s=fixed_s)
    reached = []
    for _ in range(2 * LOOK_AGAIN):
        run(admission, 1, row_s=row_s, fixed_s=fixed_s)
        reached.append(admission.rows)
    assert statistics.median(reached) > wanted / 2
    assert statistics.median(reached) < wanted * 2 + 2 * ROWS_MIN


@given(
    target=st.floats(0.05, 60),
    limit=st.integers(1, 10**7),
    batches=st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 1000)), max_size=40),
)
def test_whatever_happens_limits_hold_and_steps_are_small(target, limit, batches):
    admission = Admission(target, limit)
    for rows, took in batches:
        done = min(rows, admission.rows)
        before = admission.rows
        admission.observe(done, took)
        assert 1 <= admission.rows <= limit
        assert admission.rows <= max(STEP_MAX * max(done, 10), before)
        assert admission.rows >= min(int(STEP_MIN * max(done, 1)), before, limit)


def test_a_batch_too_short_for_the_clock_is_no_division_by_zero():
    admission = Admission(1.0, 2)
    admission.observe(1, 1.0)
    admission.observe(2, 5e-324)
    assert admission.rows == 2
    assert admission.rate > 0


# ---- where a query begins and a read ends -------------------------------------------------------


@pytest.fixture
def upstream():
    made = FakeUpstream(orders=2)
    made.move("orders", "0", earliest=3, end=10)
    made.move("orders", "1", end=20)
    made.times = {1000: 5, 2000: 8}
    return made


def begin(upstream, **given):
    options = read_options({"topics": "orders", **given})
    return starting(options, upstream, upstream.resolve()).offsets["orders"]


def end(upstream, **given):
    options = read_options({"topics": "orders", **given})
    return ending(options, upstream, upstream.resolve()).offsets["orders"]


def test_words(upstream):
    assert begin(upstream) == {"0": 3, "1": 0}
    assert begin(upstream, startingOffsets="EARLIEST") == {"0": 3, "1": 0}
    assert begin(upstream, startingOffsets="latest") == {"0": 10, "1": 20}
    assert end(upstream) == {"0": 10, "1": 20}


def test_offsets_by_queue_with_words_as_numbers_and_the_rest_as_by_default(upstream):
    assert begin(upstream, startingOffsets='{"orders": {"0": 7}}') == {"0": 7, "1": 0}
    text = '{"orders": {"0": -2, "1": -1}}'
    assert begin(upstream, startingOffsets=text) == {"0": 3, "1": 20}
    assert end(upstream, endingOffsets='{"orders": {"1": 4}}') == {"0": 10, "1": 4}


def test_times_for_all_topics_for_a_topic_and_for_a_queue(upstream):
    assert begin(upstream, startingTimestamp="1000") == {"0": 5, "1": 5}
    assert end(upstream, endingTimestamp="2000") == {"0": 8, "1": 8}
    by_topic = '{"orders": 1000}'
    assert begin(upstream, startingOffsetsByTimestamp=by_topic) == {"0": 5, "1": 5}
    by_queue = '{"orders": {"1": 2000}}'
    assert begin(upstream, startingOffsetsByTimestamp=by_queue) == {"0": 3, "1": 8}
    assert end(upstream, endingOffsetsByTimestamp=by_queue) == {"0": 10, "1": 8}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"order": {"0": 1}}', "did you mean 'orders'"),
        ('{"orders": {"7": 1}}', "has no queue '7'; it has 0, 1"),
        ('{"orders": {"0": 11}}', "above its end 10"),
    ],
)
def test_offsets_of_what_is_not_there_are_refused(upstream, text, words):
    with pytest.raises(BadOffsets, match=words):
        begin(upstream, startingOffsets=text)


def test_offsets_that_retention_removed_are_moved_only_for_those_who_accept_loss(upstream):
    text = '{"orders": {"0": 1}}'
    assert begin(upstream, startingOffsets=text)["0"] == 1
    assert begin(upstream, startingOffsets=text, failOnDataLoss="false")["0"] == 3


def test_nothing_ends_at_the_earliest_offset(upstream):
    with pytest.raises(BadOffsets, match="end before it begins"):
        end(upstream, endingOffsets="earliest")
