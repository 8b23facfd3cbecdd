"""Queries at the desk: what a poll gets, where a query stands, what a restart leaves."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.workbench import Workbench
from penstock.engine.spark.query import (
    FORGET_STEPS,
    LOOK_PIECE_MS,
    LOOK_STEPS_MAX,
    POSITION_STEPS,
    QUERY_KIND,
    QUEUE_POSITION_STEPS,
    QueryRefused,
)
from penstock.engine.spark.query_service import (
    QUEUE_STEPS,
    STEPS_MAX,
    TASKS_MAX,
    QueueSlice,
    fair_ends,
    max_min_shares,
)
from penstock.engine.spark.topic_search import WAYS_MAX
from penstock.engine.topic import DirectRoute
from penstock.model.names import topic_name
from penstock.model.queries import (
    CommitBatchRequest,
    LeaseRequest,
    LeaseResponse,
    LocateRequest,
    PollRequest,
    ReportRequest,
    ResolveRequest,
)
from penstock.model.spark_batch import BatchProgress
from penstock.settings.load import Settings
from penstock.settings.protocols import SparkSettings


class Asker:
    def __init__(self):
        self.answers = []

    def answered(self, order, answer):
        self.answers.append(answer)


class Bench(Workbench):
    def poll(self, start=None, name="etl", asker=None, topics=("orders",), **changes):
        order = PollRequest(
            subscription=name,
            topics=list(topics) if topics is not None else None,
            start={"orders": start} if start is not None else {},
            **changes,
        )
        return self.engine.queries.poll(order, asker or Asker())

    def lease(self, start, name="etl", **changes):
        order = LeaseRequest(subscription=name, topics=["orders"], start=start, **changes)
        return self.engine.queries.handle(order, Asker())

    def resolve(self, asker=None, **changes):
        return self.engine.queries.handle(ResolveRequest(**changes), asker or Asker())

    def query(self, name="etl"):
        return self.engine.queries.registry.queries[name]


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def orders(bench):
    topic = bench.topic(queues=2)
    bench.channel_of_all = bench.channel()
    return topic


def fill(bench, topic, *counts):
    for queue, count in zip(topic.queues, counts, strict=False):
        bodies = [b"%04d" % number for number in range(count)]
        bench.publish(bench.channel_of_all, DirectRoute(queue), *bodies)
    bench.settle()


def test_a_first_poll_gives_everything_from_the_earliest_offset(bench, orders):
    fill(bench, orders, 5, 3)
    answer = bench.poll()
    assert answer.ends == answer.latest == {"orders": {0: 5, 1: 3}}
    assert answer.starts == {"orders": {0: 0, 1: 0}}
    assert (answer.rows, answer.lag_rows) == (8, 8)
    assert answer.bytes == answer.lag_bytes > 0


def test_a_poll_says_how_old_the_oldest_unread_message_is(bench, orders):
    fill(bench, orders, 1, 0)
    bench.clock.advance(2500)
    fill(bench, orders, 0, 1)
    assert bench.poll().lag_ms >= 2500
    assert bench.poll(start={0: 1, 1: 1}).lag_ms == 0


def test_an_optional_topic_is_read_once_it_is_there(bench, orders):
    fill(bench, orders, 2, 0)
    assert bench.poll(optional=["penstock.retry.etl"]).rows == 2
    retries = bench.topic("penstock.retry.etl", queues=1)
    fill(bench, retries, 3)
    answer = bench.poll(optional=["penstock.retry.etl"], start={0: 2, 1: 0})
    assert answer.ends["penstock.retry.etl"] == {0: 3}
    assert answer.rows == 3
    found = bench.resolve(topics=["orders"], optional=["nosuch", "penstock.retry.etl"])
    assert [each.name for each in found.topics] == ["orders", "penstock.retry.etl"]


def test_limits_are_shared_fairly_by_the_queues(bench, orders):
    fill(bench, orders, 100, 10)
    assert bench.poll(rows_max=40).ends == {"orders": {0: 30, 1: 10}}
    size = bench.poll(rows_max=1).bytes
    assert bench.poll(bytes_max=6 * size).rows == 6
    assert bench.query().is_limited


def test_only_what_is_durable_is_given(bench, orders):
    bench.publish(bench.channel_of_all, orders, b"1")
    bench.turns()
    assert bench.poll().rows == 0
    bench.settle()
    assert bench.poll().rows == 1


def test_a_poll_waits_for_an_arrival(bench, orders):
    asker = Asker()
    assert bench.poll({0: 0, 1: 0}, asker=asker, wait_ms=500) is None
    bench.advance(400)
    assert not asker.answers
    fill(bench, orders, 2)
    assert [each.rows for each in asker.answers] == [2]


def test_a_poll_that_wants_more_rows_waits_for_them_until_its_time_is_up(bench, orders):
    asker = Asker()
    bench.poll({}, asker=asker, wait_ms=500, rows_min=3)
    fill(bench, orders, 1, 1)
    assert not asker.answers
    fill(bench, orders, 1)
    assert asker.answers.pop().rows == 3
    bench.poll({0: 2, 1: 1}, asker=asker, wait_ms=500, rows_min=3)
    bench.advance(499)
    assert not asker.answers
    bench.advance(1)
    assert asker.answers.pop().rows == 0


def test_an_asker_that_is_gone_is_not_answered(bench, orders):
    asker = Asker()
    bench.poll({}, asker=asker, wait_ms=500)
    bench.engine.queries.disconnected(asker)
    fill(bench, orders, 1)
    bench.advance(1000)
    assert not asker.answers


def test_a_topic_deleted_under_a_waiting_poll_is_an_error(bench, orders):
    asker = Asker()
    bench.poll({}, asker=asker, wait_ms=500)
    bench.engine.delete_topic(orders.name)
    bench.advance(500)
    assert [each.kind for each in asker.answers] == ["no-topic"]


def test_an_unknown_topic_names_the_nearest(bench, orders):
    with pytest.raises(QueryRefused, match="did you mean 'orders'") as refused:
        bench.poll(topics=["order"])
    assert refused.value.kind == "no-topic"


def test_a_pattern_never_matches_hidden_topics(bench, orders):
    bench.topic("penstock.secret")
    assert [each.name for each in bench.resolve(pattern=".*").topics] == ["orders"]
    with pytest.raises(QueryRefused, match="no regular expression"):
        bench.resolve(pattern="(")


def test_offsets_above_the_end_are_shown_to_be_and_not_believed(bench, orders):
    answer = bench.poll({0: 7, 9: 5})
    assert (answer.ends, answer.latest) == ({"orders": {0: 7, 1: 0}}, {"orders": {0: 0, 1: 0}})
    assert (answer.rows, answer.lag_rows) == (0, 0)
    assert bench.query().position(orders.queues[0]) == 0


def test_offsets_of_another_epoch_are_refused(bench, orders):
    with pytest.raises(QueryRefused) as refused:
        bench.poll(epoch=bench.engine.queries.epoch + 1)
    assert refused.value.kind == "epoch"


def test_the_start_of_a_poll_is_the_position_and_survives_kill_nine(bench, orders):
    fill(bench, orders, 10, 10)
    bench.poll({0: 4, 1: 6})
    bench.settle()
    bench.kill()
    query = bench.query()
    queues = bench.engine.topics()[0].queues
    assert [query.position(queue) for queue in queues] == [4, 6]
    assert query.lease.holds


def test_one_late_poll_does_not_set_a_position_back_but_two_do(bench, orders):
    fill(bench, orders, 10)
    queue = orders.queues[0]
    bench.poll({0: 8})
    bench.poll({0: 2})
    assert bench.query().position(queue) == 8
    assert bench.query().lowest(queue) == 2
    bench.poll({0: 2})
    assert bench.query().position(queue) == 2


def test_a_lease_of_a_query_that_was_silent_sets_its_position_back(bench, orders):
    fill(bench, orders, 10)
    bench.poll({0: 8})
    bench.lease({"orders": {0: 3}})
    assert bench.query().position(orders.queues[0]) == 8
    bench.poll({0: 8})
    bench.advance(61_000)
    bench.lease({"orders": {0: 3}})
    assert bench.query().position(orders.queues[0]) == 3


def test_a_final_release_forgets_the_query(bench, orders):
    bench.poll()
    bench.engine.queries.release("etl", is_final=True)
    assert not orders.subscriptions
    bench.settle()
    bench.kill()
    assert not bench.engine.queries.registry.queries


def test_offsets_by_time_are_those_of_the_first_message_stored_then(bench, orders):
    fill(bench, orders, 3)
    bench.advance(1000)
    wall_ms = bench.engine.clock.wall_ms()
    fill(bench, orders, 3)
    assert bench.engine.queries.by_time(orders, wall_ms) == {0: 3, 1: 0}


def test_progress_is_remembered_and_says_which_part_is_slow(bench, orders):
    bench.poll(
        report=BatchProgress(rows=5, batch_ms=900, read_ms=50, transform_ms=100, sink_ms=700)
    )
    assert bench.query().last.slow_part == "sink"


def test_what_tasks_listener_and_poll_say_of_a_batch_adds_up_in_any_order(bench, orders):
    words = [
        BatchProgress(rows=2, read_ms=30, transform_ms=400, batch_id=4),
        BatchProgress(rows=5, batch_ms=900, sink_ms=100, batch_id=4, query_name="etl"),
        BatchProgress(rows=5, bytes=50, batch_ms=910),
    ]
    for order in permutations(words):
        last = BatchProgress()
        for word in order:
            last = word.over(last)
        assert (last.rows, last.bytes, last.batch_id, last.query_name) == (5, 50, 4, "etl")
        assert (last.read_ms, last.transform_ms, last.sink_ms) == (30, 400, 100)
        assert last.slow_part == "transform or sink", "tasks do both"


def test_work_that_no_task_saw_is_the_transformations(bench, orders):
    # A range of a few hundred rows is read at once; the slow function behind it runs later.
    task = BatchProgress(rows=300, read_ms=20, transform_ms=5, batch_id=4)
    spark = BatchProgress(rows=300, batch_ms=7900, work_ms=7500, sink_ms=300, batch_id=4)
    assert spark.over(task).slow_part == "transform or sink"
    assert task.over(spark).slow_part == "transform or sink"
    slow_read = BatchProgress(rows=300, read_ms=7400, batch_id=5)
    assert spark.over(slow_read).slow_part == "read"


@pytest.mark.parametrize(
    ("put_ms", "part"), [(6000, "sink"), (500, "transform"), (0, "transform or sink")]
)
def test_a_writer_that_times_itself_tells_transform_and_sink_apart(bench, orders, put_ms, part):
    report = BatchProgress(
        rows=300, batch_ms=7900, work_ms=7500, read_ms=20, batch_id=4, query_id="of-spark"
    )
    bench.poll(report=report)
    request = CommitBatchRequest(sink="s", query="of-spark", batch=4, put_ms=put_ms)
    bench.engine.queries.handle(request, Asker())
    assert bench.query().last.slow_part == part


def test_a_query_at_its_users_own_limit_is_known_by_the_rows_of_its_batch(bench, orders):
    fill(bench, orders, 50)
    bench.poll(rows_max=10, own_rows_max=10)
    assert bench.query().own_rows_max == 10
    bench.poll(rows_max=5, own_rows_max=10)
    assert bench.query().own_rows_max == 0, "what earlier batches have taught is not its user's"
    bench.poll(rows_max=100, own_rows_max=100)
    assert bench.query().own_rows_max == 0


def told(bench, state, text="", **changes):
    request = ReportRequest(
        subscription="etl", progress=BatchProgress(**changes), state=state, text=text
    )
    bench.engine.queries.handle(request, Asker())


def test_why_a_query_failed_is_known_until_a_batch_of_it_is_done(bench, orders):
    fill(bench, orders, 5)
    bench.poll(checkpoint="c")
    told(bench, "failed", "ValueError: no", checkpoint="c")
    # Its source goes down with it and says so; its next start does the batch before it polls.
    told(bench, "stopped", checkpoint="c")
    assert (bench.query().state, bench.query().failure) == ("failed", "ValueError: no")
    told(bench, "running", checkpoint="c", rows=5, read_ms=3)
    assert (bench.query().state, bench.query().failure) == ("running", "ValueError: no")
    told(bench, "running", checkpoint="c", rows=5, batch_ms=300)
    assert bench.query().failure == ""
    told(bench, "failed", "ValueError: no", checkpoint="c")
    bench.poll(checkpoint="c", report=BatchProgress(rows=5, batch_ms=300))
    assert bench.query().failure == ""


def test_a_failure_that_names_no_checkpoint_is_of_the_query_that_was_heard_last(bench, orders):
    bench.poll(checkpoint="old")
    bench.advance(10)
    bench.poll(checkpoint="new")
    told(bench, "failed", "ValueError: no", query_id="of-spark")
    failures = {
        each.checkpoint: each.failure for each in bench.engine.queries.registry.queries.values()
    }
    assert failures == {"old": "", "new": "ValueError: no"}
    bench.poll(checkpoint="old", report=BatchProgress(rows=5, batch_ms=300))
    told(bench, "failed", "again", query_id="of-spark")
    assert bench.query().failure == "", "Spark's id says which of them it is"
    told(bench, "running", query_id="of-spark")
    told(bench, "running", query_id="never-heard-of")
    states = [each.state for each in bench.engine.queries.registry.queries.values()]
    assert states == ["idle", "running"]


def test_the_flow_map_tells_a_query_that_failed_from_one_that_is_silent(bench, orders):
    fill(bench, orders, 5)

    def seen():
        views = bench.engine.flow_map(bench.clock.monotonic_ms()).views
        (found,) = (each.query for each in views if each.query is not None)
        return found.is_stopped, found.failure, found.silent_ms

    bench.poll()
    bench.advance(2000)
    assert seen() == (False, "", 2000)
    told(bench, "failed", "ValueError: no")
    assert seen() == (True, "ValueError: no", 0)


def span_of(queue, start, end):
    return LocateRequest(topic="orders", queue=queue, start=start, end=end)


def test_entries_that_are_not_on_file_are_given_as_they_are(bench, orders):
    fill(bench, orders, 10)
    span = bench.engine.queries.locate(span_of(0, 2, 100), entries_max=5)
    assert (span.end, span.files, len(span.tail)) == (7, [], 5 * 48)
    span = bench.engine.queries.locate(span_of(0, 7, 100), entries_max=5)
    assert (span.end, len(span.tail)) == (10, 3 * 48)
    with pytest.raises(QueryRefused, match="queues 0 to 1"):
        bench.engine.queries.locate(span_of(2, 0, 1), entries_max=5)


# ---- pieces ---
# Nothing that goes over many topics is done in one turn.


TOPICS = 400


def crowd(count=TOPICS, queues=1, **spark):
    bench = Bench(Settings(spark=SparkSettings(**spark)))
    for number in range(count):
        bench.topic(f"t{number:04d}", queues=queues)
    bench.settle()
    return bench


def turns_until_answered(bench, asker):
    """How many turns pass; whoever else has something to do has it done in each of them."""
    turns = 0
    while not asker.answers:
        assert bench.engine.needs_turn
        bench.engine.turn()
        turns += 1
    return turns


def test_a_pattern_over_many_topics_takes_several_turns_and_finds_them_all():
    bench, asker = crowd(), Asker()
    assert bench.resolve(asker, pattern="t.*") is None
    # Each name is a step, each queue of the answer two.
    assert turns_until_answered(bench, asker) == (1 + QUEUE_STEPS) * TOPICS // STEPS_MAX
    assert [each.name for each in asker.answers[0].topics] == sorted(
        f"t{number:04d}" for number in range(TOPICS)
    )


def test_a_costly_pattern_gets_fewer_names_in_a_turn():
    cheap, costly = Asker(), Asker()
    bench = Bench()
    for number in range(60):
        bench.topic("a" * 240 + f"{number:02d}")
    bench.settle()
    assert bench.resolve(cheap, pattern=".*!").topics == []
    bench.engine.turn()
    assert bench.resolve(costly, pattern=".*a.*!") is None
    assert turns_until_answered(bench, costly) >= 60 * 242**2 // 1000 // (
        STEPS_MAX + WAYS_MAX // 1000
    )
    assert costly.answers[0].topics == []


def test_who_asks_for_one_topic_is_answered_while_a_search_goes_on():
    bench, asker, other = crowd(1000), Asker(), Asker()
    assert bench.resolve(asker, pattern="t.*") is None
    assert bench.resolve(other, topics=["t0003"]) is None
    turns_until_answered(bench, other)
    assert asker.answers == []
    turns_until_answered(bench, asker)


def test_an_unknown_name_among_many_topics_is_looked_up_in_pieces_too():
    bench, asker = crowd(), Asker()
    assert bench.resolve(asker, topics=["t0003x"]) is None
    turns_until_answered(bench, asker)
    assert "did you mean 't0003'?" in str(asker.answers[0])


def test_a_poll_over_many_queues_is_answered_in_pieces_and_once():
    bench, asker = crowd(), Asker()
    assert bench.poll(asker=asker, topics=None, pattern="t.*") is None
    assert turns_until_answered(bench, asker) > 1
    assert len(asker.answers) == 1
    assert len(asker.answers[0].ends) == TOPICS


def test_a_held_poll_over_many_queues_is_answered_after_an_arrival():
    bench, asker = crowd(), Asker()
    bench.poll(asker=asker, topics=None, pattern="t.*", wait_ms=30_000)
    bench.settle()
    assert (asker.answers, bench.engine.queries.polls_held) == ([], 1)
    bench.publish(bench.channel(), bench.engine.topics()[7], b"x")
    bench.settle()
    (answer,) = asker.answers
    assert answer.rows == 1


def test_polls_whose_time_is_up_together_are_answered_over_several_turns():
    bench, askers = crowd(40, queries_max=100), [Asker() for _ in range(30)]
    for number, asker in enumerate(askers):
        bench.poll(asker=asker, topics=None, name=f"q{number}", pattern="t.*", wait_ms=1000)
        bench.settle()
    assert bench.engine.queries.polls_held == 30
    bench.clock.advance(1000)
    bench.engine.turn()
    assert 0 < sum(len(each.answers) for each in askers) < 30
    bench.settle()
    assert [len(each.answers) for each in askers] == [1] * 30


def test_an_asker_that_is_gone_takes_its_search_along():
    bench, asker = crowd(), Asker()
    bench.resolve(asker, pattern="t.*")
    bench.engine.queries.disconnected(asker)
    bench.settle()
    assert asker.answers == []


def test_searches_under_way_are_bounded():
    bench, asker = crowd(), Asker()
    for _ in range(TASKS_MAX):
        assert bench.resolve(asker, pattern="t.*") is None
    with pytest.raises(QueryRefused, match=f"{TASKS_MAX} questions"):
        bench.resolve(asker, pattern="t.*")


def test_a_topic_deleted_during_a_search_is_left_out():
    bench, asker = crowd(), Asker()
    bench.resolve(asker, pattern="t.*")
    bench.engine.delete_topic(topic_name("t0398"))
    bench.engine.delete_topic(topic_name("t0399"))
    bench.settle()
    assert len(asker.answers[0].topics) == TOPICS - 2


def test_more_queues_than_one_question_may_mean_are_refused():
    bench, asker = crowd(20, queues=3, query_queues_max=50), Asker()
    with pytest.raises(QueryRefused, match=r"spark\.query_queues_max"):
        bench.resolve(asker, pattern="t.*")
    with pytest.raises(QueryRefused, match=r"spark\.query_queues_max"):
        bench.poll(topics=None, pattern="t.*")
    assert len(bench.resolve(pattern="t000.").topics) == 10


def positions(bench, name="etl"):
    return [topic for topic in bench.engine.topics() if f"spark/{name}" in topic.subscriptions]


def long_lease(bench, name="etl"):
    asker = Asker()
    order = LeaseRequest(subscription=name, pattern="t.*")
    assert bench.engine.queries.handle(order, asker) is None
    return asker


def test_a_first_lease_over_many_topics_makes_its_positions_over_several_turns():
    bench = crowd()
    asker = long_lease(bench)
    made = [0, len(positions(bench))]
    while not asker.answers:
        bench.engine.turn()
        made.append(len(positions(bench)))
    each = POSITION_STEPS + QUEUE_POSITION_STEPS
    assert max(after - before for before, after in pairwise(made)) <= STEPS_MAX // each + 1
    assert made[-1] == TOPICS
    assert isinstance(asker.answers[0], LeaseResponse)


def test_a_kill_while_positions_are_made_leaves_some_and_the_same_request_makes_the_rest():
    bench = crowd()
    long_lease(bench)
    while len(positions(bench)) < TOPICS // 2:
        bench.engine.turn()
    bench.sync()
    bench.kill()
    found = {topic.name: topic.subscriptions["spark/etl"] for topic in positions(bench)}
    assert TOPICS // 2 <= len(found) < TOPICS
    assert len(bench.query().reads) == len(found)
    asker = long_lease(bench)
    turns_until_answered(bench, asker)
    assert len(positions(bench)) == TOPICS
    assert all(bench.engine.topic(name).subscriptions["spark/etl"] is found[name] for name in found)


def test_a_query_that_is_forgotten_while_its_positions_are_made_leaves_none():
    bench = crowd()
    asker = long_lease(bench)
    while not positions(bench):
        bench.engine.turn()
    bench.engine.queries.release("etl", is_final=True)
    turns_until_answered(bench, asker)
    assert "was forgotten while its positions were made" in str(asker.answers[0])
    assert positions(bench) == []
    assert bench.engine.queries.registry.positions == 0


def test_an_asker_that_is_gone_while_positions_are_made_takes_no_room_for_the_rest():
    bench = crowd(positions_max=TOPICS)
    asker = long_lease(bench)
    while not positions(bench):
        bench.engine.turn()
    bench.engine.queries.disconnected(asker)
    asker = long_lease(bench)
    turns_until_answered(bench, asker)
    assert isinstance(asker.answers[0], LeaseResponse)


def test_first_leases_side_by_side_keep_the_bound_of_all_positions():
    bench = crowd(positions_max=2 * TOPICS)
    askers = [long_lease(bench, f"q{number}") for number in range(3)]
    for asker in askers:
        turns_until_answered(bench, asker)
    kinds = [type(asker.answers[0]) for asker in askers]
    assert kinds == [LeaseResponse, LeaseResponse, QueryRefused]
    assert bench.engine.queries.registry.positions == 2 * TOPICS


def test_a_lease_lasts_no_longer_than_the_setting_whatever_is_asked_for(bench, orders):
    longest_ms = bench.settings.spark.lease_ms_max
    assert bench.lease({}, ttl_ms=10**15).ttl_ms == longest_ms
    assert bench.lease({}, ttl_ms=-1).ttl_ms == longest_ms
    assert bench.lease({}, ttl_ms=5_000).ttl_ms == 5_000


# ---- shares -------------------------------------------------------------------------------------
# Limits of rows and bytes over queues.


class Entries:
    """An index of single messages with these sizes."""

    def __init__(self, *sizes, store_ms=0):
        self.sizes = sizes
        self.store_ms = store_ms

    def bytes_between(self, start, end):
        return sum(self.sizes[start:end])

    def entries(self, start, _count):
        return [(0, start, 0, self.store_ms, self.sizes[start], 1, 0, 0)]


def finished(steps):
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def stretch(*sizes, store_ms=0):
    return QueueSlice(Entries(*sizes, store_ms=store_ms), 0, len(sizes))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(0, 4000))
def test_shares_use_all_there_is_and_nobody_is_envied(wanted, total):
    shares = max_min_shares(wanted, total)
    assert sum(shares) == min(total, sum(wanted))
    for share, want in zip(shares, wanted, strict=True):
        assert share <= want
        # Who got less than it wants got at least as much as anybody, but for the rounding.
        assert share == want or share >= max(shares) - len(wanted)


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=30), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(0, 600),
)
def test_ends_keep_both_limits_and_always_move_on(queues, rows_max, bytes_max):
    stretches = [stretch(*sizes) for sizes in queues]
    ends = finished(fair_ends(stretches, rows_max, bytes_max))
    rows = sum(ends)
    size = sum(each._replace(end=end).size_bytes for each, end in zip(stretches, ends, strict=True))
    assert not rows_max or rows <= rows_max
    assert not bytes_max or size <= bytes_max or rows == 1
    assert rows > 0 or not any(queues)
    if not rows_max and not bytes_max:
        assert ends == [len(each) for each in queues]


def test_when_nothing_fits_the_oldest_message_goes():
    stretches = [stretch(500, store_ms=9), stretch(500, store_ms=5)]
    assert finished(fair_ends(stretches, 0, 10)) == [0, 1]


def test_a_final_release_over_many_topics_removes_its_positions_over_several_turns():
    bench = crowd()
    turns_until_answered(bench, long_lease(bench))
    left = [len(positions(bench))]
    bench.engine.queries.release("etl", is_final=True)
    assert not bench.engine.queries.registry.queries
    left.append(len(positions(bench)))
    bench.settle()
    left.append(len(positions(bench)))
    while left[-1]:
        bench.advance(LOOK_PIECE_MS)
        left.append(len(positions(bench)))
    gone = [before - after for before, after in pairwise(left)]
    assert max(gone) == LOOK_STEPS_MAX // (2 * FORGET_STEPS)
    assert sum(gone) == TOPICS
    assert bench.engine.queries.registry.positions == 0


def test_a_final_release_goes_on_behind_a_crash():
    bench = crowd()
    turns_until_answered(bench, long_lease(bench))
    bench.engine.queries.release("etl", is_final=True)
    bench.sync()
    bench.kill()
    assert not bench.engine.queries.registry.queries
    assert positions(bench)
    while positions(bench):
        bench.advance(LOOK_PIECE_MS)
    bench.settle()
    bench.kill()
    assert bench.engine.definitions(QUERY_KIND) == {}


def test_a_query_that_comes_again_while_its_positions_are_removed_begins_anew():
    bench = crowd()
    turns_until_answered(bench, long_lease(bench))
    before = bench.query()
    bench.engine.queries.release("etl", is_final=True)
    assert positions(bench)
    turns_until_answered(bench, long_lease(bench))
    bench.advance(1000)
    assert bench.query() is not before
    assert len(positions(bench)) == TOPICS
    assert bench.engine.queries.registry.positions == TOPICS
