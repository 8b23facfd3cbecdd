"""A pipeline file: what it may say, and what is said of one that is wrong."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.pipelines.flow_file import (
    DEAD_KEYS,
    DECODE_KEYS,
    DEDUPLICATE_KEYS,
    FLOW_KEYS,
    RETRY_KEYS,
    SOURCE_KEYS,
    SPARK_KEYS,
    TARGET_KEYS,
    TOP_KEYS,
    WATERMARK_KEYS,
    BadPipeline,
    KeyLines,
    load_pipeline,
    parse_pipeline,
)

GOOD = """
endpoint = "broker:8815"

[spark]
master = "local[2,4]"
settings = { "spark.sql.shuffle.partitions" = 8, "spark.ui.enabled" = false }

[flow.orders]
decode = { format = "json", schema = "id long, cents int" }
sql = "SELECT value.id FROM messages"

[flow.orders.from]
topics = ["orders", "refunds"]
starting = "2026-01-31T12:00:00Z"
filter = "new || paid"
max_bytes = "64m"
options = { failOnDataLoss = false, leaseTtl = "1d" }

[flow.orders.to]
parquet = "out/orders"
partition_by = ["day"]
roll_time = "30s"

[flow.calls]
from = { pattern = "calls-.*", endpoint = "other:1234", subscription = "calls-etl" }
map = "shop.calls:enrich"
output = "id long"
retry = { max_attempts = 3, delays = ["1s", "1m"] }
dead = { topic = "calls.broken" }
to = { delta = "/srv/calls" }
trigger = "10s"
"""


def parse(text, given=None, **environment):
    path = Path("/srv/shop/shop.toml")
    return parse_pipeline(text, path=path, environment=environment, given=given or {})


def problem(text, given=None, **environment):
    with pytest.raises(BadPipeline) as caught:
        parse(text, given, **environment)
    return str(caught.value)


def flow(**changes):
    parts = {"from": '{ topics = "orders" }', "to": '{ parquet = "out" }', **changes}
    return "[flow.x]\n" + "".join(f"{key} = {value}\n" for key, value in parts.items() if value)


def test_a_whole_file_becomes_frozen_flows():
    found = parse(GOOD)
    orders, calls = found.flows
    assert (found.master, found.state) == ("local[2,4]", Path("/srv/shop/penstock-pipelines"))
    assert found.settings == {"spark.sql.shuffle.partitions": "8", "spark.ui.enabled": "false"}
    assert orders.source.spark_options() == {
        "endpoint": "broker:8815",
        "subscription": "orders",
        "topics": "orders,refunds",
        "startingTimestamp": "2026-01-31T12:00:00Z",
        "filter": "new || paid",
        "maxBytesPerTrigger": str(64 << 20),
        "failOnDataLoss": "false",
        "leaseTtl": "1d",
    }
    assert (orders.target.kind, orders.target.place) == ("parquet", "/srv/shop/out/orders")
    assert (orders.target.partition_by, orders.target.roll_s) == (("day",), 30)
    assert (orders.dead_topic, orders.can_retry, orders.can_fail) == ("orders-dead", False, True)
    assert calls.source.spark_options()["topicsPattern"] == "calls-.*"
    assert (calls.source.endpoint, calls.source.subscription) == ("other:1234", "calls-etl")
    assert (calls.retry.max_attempts, calls.retry.delays_ms) == (3, (1000, 60_000))
    assert (calls.dead_topic, calls.retry_topic) == ("calls.broken", "penstock.retry.calls")
    assert (calls.target.place, calls.trigger) == ("/srv/calls", "10 seconds")


def test_offsets_by_queue_may_be_given_as_a_table():
    text = flow(**{"from": '{ topics = "orders", starting = { orders = { 0 = 17 } } }'})
    (found,) = parse(text).flows
    assert found.source.spark_options()["startingOffsets"] == '{"orders": {"0": 17}}'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[flow.x]\nfrom = {", "shop.toml: "),
        ("", "shop.toml: flow: a pipeline needs a flow"),
        ("flows = 1", "shop.toml:1: flows: there is no such key; did you mean flow?"),
        ("[flow.x]\nto = { parquet = 'o' }", "shop.toml:1: flow.x: from is missing"),
        ("[flow.x]\nfrom = { topics = 'a' }", "shop.toml:1: flow.x: to is missing"),
        (
            "[flow.x]\n\nfrom = { topcis = ['a'] }\nto = { parquet = 'o' }",
            "shop.toml:3: flow.x.from.topcis: there is no such key; did you mean topics?",
        ),
        (
            "[flow.x.from]\ntopics = 'a'\nstart = 'latest'\n[flow.x.to]\nparquet = 'o'",
            "shop.toml:3: flow.x.from.start: there is no such key; did you mean starting?",
        ),
        (flow(sq='"SELECT 1"'), "shop.toml:4: flow.x.sq: there is no such key; did you mean sql?"),
        (flow(decode='{ format = "jsn" }'), "flow.x.decode.format: 'jsn' is not there; did you"),
        (flow(to='{ parquet = "o", topic = "t" }'), "give one of topic, parquet and delta"),
        (flow(to='{ parquet = "o", key = "id" }'), "flow.x.to.key: means nothing to a parquet"),
        (flow(to='{ topic = "o", roll_rows = 5 }'), "roll_rows: means nothing to a topic target"),
        (flow(to='{ parquet = "o", roll_time = 5 }'), "roll_time: 5 is no duration"),
        (flow(to='{ parquet = "o", roll_rows = 0 }'), "'0' is no whole number from 1 on"),
        (flow(**{"from": '{ topics = "a", pattern = "b" }'}), "give one of topics, pattern"),
        (flow(**{"from": '{ topics = "a", starting = "soon" }'}), "'soon' is neither earliest"),
        (flow(**{"from": '{ topics = "a", rate = 5 }'}), "rate: is for an archive"),
        (flow(**{"from": '{ archive = "a", filter = "x" }'}), "filter: means nothing to an arch"),
        (flow(**{"from": '{ topics = "a", endpoint = "here" }'}), "'here' is no endpoint"),
        (
            flow(**{"from": '{ topics = "a", options = { failOnDatLoss = true } }'}),
            "there is no option 'failOnDatLoss'; did you mean failOnDataLoss?",
        ),
        (flow(sql='"x"', python='"a:b"'), "sql and python: a flow has one of them"),
        (flow(map='"enrich"'), "'enrich' is no function; write it like"),
        (flow(map='"a:b"'), "needs output"),
        (flow(output='"id long"'), "says what map returns"),
        (flow(retry="{ max_attempts = 2 }"), "retry: is for map"),
        (flow(dead='{ topic = "d" }'), "no row can die"),
        (flow(decode='{ format = "text", schema = "a int" }'), 'is for format = "json"'),
        (flow(map='"a:b"', to='{ topic = "x-dead" }'), "to.topic: is where the dead letters go"),
        (flow(watermark='{ delay = "1h" }', deduplicate='{ within = "2h" }'), "the watermark says"),
        (
            flow(
                **{"from": '{ topics = "a", endpoint = "rocketmq://h:1" }'},
                decode='{format="text"}',
            ),
            "dead letters need a Penstock",
        ),
        (
            flow(**{"from": '{ topics = "a", endpoint = "rocketmq://h:1" }'}, to='{ topic = "b" }'),
            "x.to: a topic target needs a Penstock; name it",
        ),
        ("[flow.'a b']\nfrom = {}", "a flow's name has letters"),
        ("[flow.a]\n[flow.A]", "from is missing"),
        ("[spark]\nsettings = { spark.ui.enabled = 1 }\n" + flow(), "with quotes"),
    ],
)
def test_what_is_wrong_is_told_with_line_key_and_the_nearest_right_one(text, sentence):
    assert sentence in problem(text)


def test_two_flows_that_differ_in_case_only_are_refused():
    text = flow() + flow().replace("flow.x", "flow.X")
    assert "only in upper and lower case" in problem(text)


def test_variables_come_from_the_command_line_the_environment_or_their_default():
    text = flow(**{"from": '{ topics = "${TOPICS}", filter = "${TAG:-new}" }'})
    (found,) = parse(text, {"TOPICS": "a, b"}).flows
    assert (found.source.topics, found.source.filter) == (("a", "b"), "new")
    (found,) = parse(text, TOPICS="c", TAG="old").flows
    assert (found.source.topics, found.source.filter) == (("c",), "old")
    assert "${TOPICS} is not in the environment; export TOPICS" in problem(text)
    assert "nothing in it is called ${TOPIC}" in problem(text, {"TOPICS": "a", "TOPIC": "b"})


def test_secrets_are_never_printed():
    secret = "hunter2-and-more"
    text = flow(**{"from": '{ topics = "a", endpoint = "${PASSWORD}" }'})
    said = problem(text, PASSWORD=secret)
    assert secret not in said
    assert "'${PASSWORD}' is no endpoint" in said
    found = parse(flow(sql="\"SELECT '${PASSWORD}' AS p FROM messages\""), PASSWORD=secret)
    assert secret in found.flows[0].sql
    assert secret not in repr(replace(found, flows=()))
    assert found.redacted(f"failed: {secret}!") == "failed: ${PASSWORD}!"
    assert secret not in str(found.flows[0].fingerprint())


def test_of_secrets_that_hold_each_other_the_longest_is_the_one():
    text = flow(sql="\"SELECT '${A}${AB}${B}' AS p FROM messages\"")
    given = {"A": "hunter2", "AB": "hunter2-and-more", "B": "${AB"}
    found = parse(text, **given)
    assert found.redacted("failed: hunter2-and-more, hunter2") == "failed: ${AB}, ${A}"
    text = flow(**{"from": '{ topics = "a${A}", endpoint = "${AB}" }'})
    assert "'${AB}' is no endpoint" in problem(text, **given)


@pytest.mark.parametrize(
    "value", ['pass"word', "it's me", "back\\slash", "über alles", "two\nlines"]
)
def test_a_secret_is_found_as_json_and_python_write_it_and_on_one_line(value):
    found = parse(flow(sql="\"SELECT '${PW}' AS p FROM messages\""), PW=value)
    one_line, last_line = " ".join(value.split()), value.splitlines()[-1]
    said = found.redacted(f"{json.dumps(value)} {value!r} {one_line} {last_line}")
    assert re.sub("[\"']", "", said) == "${PW} ${PW} ${PW} ${PW}"


def test_a_long_secret_is_not_shown_by_half():
    text = flow(to='{ parquet = "o", roll_time = ["${PASSWORD}"] }')
    assert "hunter2" not in problem(text, PASSWORD="hunter2 " * 20)


def test_a_fingerprint_changes_with_what_a_checkpoint_depends_on_and_nothing_else():
    before = parse(flow(sql='"SELECT  a FROM messages"')).flows[0].fingerprint()
    same = flow(
        sql='"SELECT a\\n FROM messages"',
        to='{ parquet = "out", roll_time = "9s" }',
        trigger='"5s"',
    )
    assert parse(same).flows[0].fingerprint() == before
    other = parse(flow(sql='"SELECT b FROM messages"')).flows[0].fingerprint()
    assert [part for part, digest in other.items() if before[part] != digest] == ["sql"]


def test_flows_are_chosen_by_name():
    found = parse(GOOD)
    assert [each.name for each in found.only(("calls",))] == ["calls"]
    assert found.only(()) == found.flows
    with pytest.raises(BadPipeline, match="no flow 'order'; did you mean orders"):
        found.only(("order",))


def test_a_broker_is_looked_for_only_when_the_file_names_none(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(flow())
    found = load_pipeline(path, environment={}, endpoint=lambda: "127.0.0.1:4711")
    assert found.flows[0].source.endpoint == "127.0.0.1:4711"
    assert found.directory == tmp_path
    path.write_text('endpoint = "a:1"\n' + flow())

    def never():
        raise AssertionError

    assert load_pipeline(path, environment={}, endpoint=never).flows[0].source.endpoint == "a:1"
    elsewhere = load_pipeline(path, environment={}, state=tmp_path / "s", directory=tmp_path / "d")
    assert (elsewhere.state, elsewhere.directory) == (tmp_path / "s", tmp_path / "d")
    with pytest.raises(BadPipeline, match="no such file; `penstock pipeline init` writes one"):
        load_pipeline(tmp_path / "nosuch.toml")
    with pytest.raises(BadPipeline, match=r"cannot be read \(Is a directory\)$"):
        load_pipeline(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadPipeline, match="is no UTF-8 text"):
        load_pipeline(path)


def test_keys_in_texts_of_several_lines_are_none():
    lines = KeyLines('a = """\nb = 1\n"""\nc = { d = "e = 1", f = 2 }\n[g."h.i"]\nj.k = 1')
    assert [lines.of(each) for each in (("b",), ("c", "d"), ("c", "f"))] == [0, 4, 4]
    assert lines.of(("c", "e")) == 4
    assert lines.of(("g", "h.i", "j", "k")) == 6


ROOT = Path(__file__).parents[3]


def test_the_flows_on_the_page_and_the_shipped_ones_are_right():
    page = (ROOT / "docs" / "pipelines.md").read_text()
    texts = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert [parse(each).flows[0].name for each in texts] == ["orders", "enriched"]
    place = ROOT / "src" / "penstock" / "pipelines" / "shipped"
    given = {"example": {}, "archive": {"TOPICS": "a,b", "ROLL_ROWS": "5"}, "replay": {"RATE": "5"}}
    found = {
        name: parse((place / f"{name}.toml").read_text(), values).flows[0]
        for name, values in given.items()
    }
    assert found["archive"].source.topics == ("a", "b")
    assert found["archive"].target.roll_rows == 5
    assert found["replay"].source.rate == 5
    assert found["example"].target.partition_by == ("day",)


@pytest.mark.parametrize("name", ["archive", "replay"])
def test_a_shipped_pipeline_has_a_page_with_every_value_that_can_be_set(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    text = (ROOT / "src" / "penstock" / "pipelines" / "shipped" / f"{name}.toml").read_text()
    values = dict(re.findall(r"\$\{(\w+)(?::-([^}]*))?\}", text))
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for value, default in values.items():
        (row,) = (each for each in rows if f"`{value}`" in each)
        assert f"`{default}`" in row or value in ("TOPICS", "TO"), row
    assert f"({name}.md)" in (ROOT / "docs" / "pipelines.md").read_text()


def test_every_key_is_on_the_page():
    page = (ROOT / "docs" / "pipelines.md").read_text()
    keys = {
        *SOURCE_KEYS, *DECODE_KEYS, *WATERMARK_KEYS, *DEDUPLICATE_KEYS, *RETRY_KEYS, *DEAD_KEYS,
        *TARGET_KEYS, *FLOW_KEYS, *TOP_KEYS, *SPARK_KEYS,
    }  # fmt: skip
    assert [key for key in sorted(keys) if key not in page] == []
