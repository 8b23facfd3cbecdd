import json

from penstock.pipelines.figures import Figures, rows_between


def offset(**queues):
    return json.dumps({"version": 1, "offsets": {"orders": queues}})


def progress(batch, start, end, latest, **more):
    latest = {**json.loads(latest), "lag_ms": 2500, "admitted_rows": 400}
    source = {"startOffset": start, "endOffset": end, "latestOffset": json.dumps(latest)}
    return {
        "batchId": batch,
        "sources": [source],
        "durationMs": {"triggerExecution": 500},
        "observedMetrics": {"penstock_flow": {"rows": 8, "retries": 1, "dead": 1}},
        **more,
    }


ONE = progress(0, offset(a=0, b=0), offset(a=6, b=4), offset(a=10, b=16))


def test_rows_are_counted_by_offsets():
    assert rows_between(offset(a=1), offset(a=5, b=3)) == 4 + 3
    assert rows_between(None, offset(a=5)) == 5
    assert rows_between("{}", "no JSON") == rows_between(None, None) == 0
    begins = json.dumps({"offsets": {"orders": {"a": 9}}, "begins": {"orders": {"a": 7}}})
    assert rows_between(offset(), begins) == 2
    assert rows_between('{"row": 3}', '{"row": 8}') == 5


def test_a_batch_adds_to_what_was_there():
    one = Figures(flow="etl").after(ONE)
    assert (one.rows, one.rows_out, one.lag_messages, one.lag_s) == (10, 8, 16, 2.5)
    assert (one.rows_per_s, one.batch_s, one.admitted_rows) == (20, 0.5, 400)
    assert (one.retries, one.dead, one.state) == (1, 1, "running")
    assert one.after(ONE).rows == 10
    late = {"stateOperators": [{"numRowsDroppedByWatermark": 3}]}
    observed = {"penstock_decode": {"new_fields": 2, "new_field": "size"}}
    after = progress(
        1,
        offset(a=6, b=4),
        offset(a=10, b=16),
        offset(a=10, b=16),
        observedMetrics=observed,
        **late,
    )
    two = one.after(after)
    assert (two.rows, two.dead, two.late, two.new_fields) == (26, 1, 3, 2)
    assert (two.lag_messages, two.new_field) == (0, "size")
    idle = two.after(progress(2, offset(a=10), offset(a=10), offset(a=10), timestamp="1"))
    assert (idle.state, idle.rows_per_s) == ("idle", 0)
    # Spark gives an idle moment the number of the batch that comes next.
    assert (idle.lag_messages, idle.lag_s) == (0, 0)
    waits = two.after(progress(2, offset(a=10), offset(a=10), offset(a=12), timestamp="1"))
    assert (waits.state, waits.lag_messages, waits.lag_s) == ("idle", 2, 2.5)
    later = progress(2, offset(a=10), offset(a=13), offset(a=13), timestamp="2")
    assert idle.after(later).rows == 29


def test_a_line_says_what_happens_and_nothing_that_does_not():
    assert Figures(flow="etl").line() == "etl: starting"
    line = Figures(flow="etl").after(ONE).line()
    assert line == (
        "etl: running, 10 rows, 20/s, lag 16 (2.5 s), batches of 400, 0.5 s each, 1 retried, 1 dead"
    )
    failed = Figures(flow="etl", state="waiting", restarts=2, text="no broker")
    assert failed.line() == "etl: waiting, started 3 times, no broker"
    assert json.loads(failed.as_json())["state"] == "waiting"


def test_a_bar_says_how_far_it_is():
    assert Figures(flow="etl").bar() == "etl: starting"
    bar = Figures(flow="etl").after(ONE).bar()
    assert bar.startswith("etl [#########---------------] 38%, 10 of 26 rows, 20/s, 1 s left")


def test_odd_progress_does_no_harm():
    assert Figures(flow="etl").after({}).rows == 0
    assert Figures(flow="etl").after({"sources": [], "observedMetrics": None}).batch == -1
