import json
from types import SimpleNamespace

import pytest

from kit.fake_upstream import FakeUpstream
from penstock.bulk.tickets import BulkError
from penstock.spark.listener import PenstockListener, broker_of
from penstock.spark.readers import LeaseKeeper
from penstock.spark.upstream import Position


def source(endpoint="h:8815", subscription="etl", **more):
    latest = {"offsets": {}, "endpoint": endpoint, "subscription": subscription, **more}
    return SimpleNamespace(latestOffset=json.dumps(latest))


def progress(rows=10, sources=None):
    return SimpleNamespace(
        runId="run", id="query", name="orders", batchId=7, numInputRows=rows,
        sources=sources or [source()],
        durationMs={
            "addBatch": 700, "walCommit": 40, "commitOffsets": 60, "triggerExecution": 900,
        },
    )  # fmt: skip


@pytest.fixture
def told():
    return []


@pytest.fixture
def listener(told):
    return PenstockListener(told.append)


def test_a_batch_is_told_to_the_broker_it_came_from(listener, told):
    listener.onQueryProgress(SimpleNamespace(progress=progress()))
    (one,) = told
    assert (one.endpoint, one.subscription, one.state) == ("h:8815", "etl", "running")
    assert (one.progress.rows, one.progress.batch_ms, one.progress.sink_ms) == (10, 900, 100)
    assert one.progress.work_ms == 700
    assert (one.progress.batch_id, one.progress.query_name) == (7, "orders")


def test_what_a_flow_counted_is_told_with_its_batch(listener, told):
    counted = SimpleNamespace(asDict=lambda: {"rows": 8, "retries": 1, "dead": 2})
    made = progress()
    made.observedMetrics = {"penstock_flow": counted}
    listener.onQueryProgress(SimpleNamespace(progress=made))
    assert (told[0].progress.retries, told[0].progress.dead) == (1, 2)


def test_of_the_queries_on_a_subscription_the_one_is_named_that_it_is_about(listener, told):
    sources = [source(checkpoint="c1"), source(checkpoint="c2")]
    listener.onQueryProgress(SimpleNamespace(progress=progress(sources=sources)))
    listener.onQueryIdle(SimpleNamespace(id="query", runId="run"))
    listener.onQueryTerminated(SimpleNamespace(id="query", runId="run", exception=None))
    assert [each.progress.checkpoint for each in told] == ["c1", "c2"] * 3


def test_other_sources_directories_and_rocketmq_are_left_alone(listener, told):
    others = [
        SimpleNamespace(latestOffset=None),
        SimpleNamespace(latestOffset="12"),
        source(endpoint="rocketmq://h:9876"),
        source(endpoint="data"),
    ]
    listener.onQueryProgress(SimpleNamespace(progress=progress(sources=others)))
    assert told == []
    assert broker_of(source()) == ("h:8815", "etl", "")
    assert broker_of(source(checkpoint="c1")) == ("h:8815", "etl", "c1")


def test_the_end_of_a_query_is_told_with_its_cause(listener, told):
    listener.onQueryProgress(SimpleNamespace(progress=progress(rows=0)))
    listener.onQueryIdle(SimpleNamespace(id="query", runId="run"))
    ended = SimpleNamespace(id="query", runId="run", exception="it broke\n  at line 1")
    listener.onQueryTerminated(ended)
    listener.onQueryTerminated(ended)
    assert [(each.state, each.text) for each in told] == [
        ("idle", ""),
        ("idle", ""),
        ("failed", "it broke"),
    ]


def test_a_query_that_fails_in_its_first_batch_is_told_of_where_its_name_says(told):
    listener = PenstockListener(told.append, sources={"orders": ("h:8815", "etl")})
    for name in ("orders", "another"):
        listener.onQueryStarted(SimpleNamespace(id="query", runId=name, name=name))
        ended = SimpleNamespace(id="query", runId=name, exception="it broke")
        listener.onQueryTerminated(ended)
    began, one = told
    assert (began.state, began.progress.query_id) == ("running", "query")
    assert (one.endpoint, one.subscription, one.state) == ("h:8815", "etl", "failed")
    assert (one.text, one.progress.query_id, one.progress.checkpoint) == ("it broke", "query", "")


def test_a_secret_in_the_cause_is_not_told(told):
    listener = PenstockListener(told.append, redacted=lambda text: text.replace("hunter2", "***"))
    listener.onQueryProgress(SimpleNamespace(progress=progress()))
    ended = SimpleNamespace(id="query", runId="run", exception="no login with hunter2")
    listener.onQueryTerminated(ended)
    assert told[-1].text == "no login with ***"


def test_the_lease_is_taken_at_the_position_and_renewed_without_one(caplog):
    upstream = FakeUpstream(orders=1)
    keeper = LeaseKeeper(upstream)
    at = Position(offsets={"orders": {"0": 5}})
    keeper.renew_lease(at)
    keeper.renew_lease(Position())
    assert upstream.kept == [at, Position()]
    upstream.renew_lease = lambda _: "it held too much"
    keeper.renew_lease(at)

    def unreachable(_):
        raise BulkError("unreachable", "nobody there")

    upstream.renew_lease = unreachable
    keeper.renew_lease(at)
    assert "it held too much" in caplog.text
    assert "nobody there" in caplog.text
