"""What the diagnosis says of Spark queries."""

from penstock.flow.diagnosis import QueryView, StageView, findings_of
from penstock.flow.reason import Reason


def query(ready=500, **changes):
    view = QueryView(**{"name": "etl", "is_limited": True, "messages_per_s": 99.6} | changes)
    return StageView("query", "etl on orders", ready=ready, query=view)


def sentences(*stages):
    return [finding.sentence for finding in findings_of(stages)]


def test_a_query_at_its_limit_is_slow_and_its_slow_part_is_named():
    assert sentences(query(slow_part="sink")) == [
        "Spark query etl is 500 messages behind at 100 messages a second: "
        "its sink is the slow part."
    ]


def test_a_query_that_keeps_up_is_not_mentioned():
    assert not sentences(query(ready=0))
    assert not sentences(query(is_limited=False))


def test_a_query_that_fell_silent_is_said_not_to_poll():
    assert "does not poll" in sentences(query(is_alive=False))[0]


def test_a_held_publisher_leads_to_the_query():
    held = StageView("channel", "c/1", "flow", Reason.SPARK, "Spark query 'etl' is behind")
    found = findings_of([held, query(is_holding=True, slow_part="read")])
    assert [each.kind for each in found] == ["query", "query"]
    assert "publishers wait for it" in found[1].sentence
