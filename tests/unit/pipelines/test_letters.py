import pyarrow as pa

from penstock.pipelines.letters import LETTER, Origin, Postmaster, RowMapper, cause_of, origin

LETTER_TYPE = pa.struct(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("tag", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("delay_ms", pa.int64()),
    ]
)
OUT = pa.schema([("id", pa.int64()), ("name", pa.string()), (LETTER, LETTER_TYPE)])
IN = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("tag", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("value", pa.int64()),
        ("_attempts", pa.int32()),
        ("_bad", pa.string()),
    ]
)
OFFICE = Postmaster("etl", "etl-dead", "penstock.retry.etl", 3, (10_000, 30_000))


def row(offset, value=0, **changes):
    return {
        "topic": "eu/orders",
        "queue": 2,
        "offset": offset,
        "key": "k",
        "tag": "t",
        "properties": [("n", "1"), ("penstock.cause", "forged")],
        "body": b"%d" % offset,
        "value": value,
        "_attempts": 0,
        "_bad": None,
        **changes,
    }


def mapped(function, *rows):
    batches = list(RowMapper(function, OUT, OFFICE)([pa.RecordBatch.from_pylist(rows, IN)]))
    assert all(each.schema.equals(OUT) for each in batches)
    found = [each for batch in batches for each in batch.to_pylist()]
    good = [(each["id"], each["name"]) for each in found if each[LETTER] is None]
    return good, [each[LETTER] for each in found if each[LETTER] is not None]


def test_an_origin_reads_back_also_from_topics_with_slashes():
    assert origin(str(Origin("eu/orders", 2, 17))) == Origin("eu/orders", 2, 17)
    assert origin("orders") is origin("orders/x/1") is origin("") is None


def test_a_cause_is_one_bounded_line():
    assert cause_of(ValueError("no\n  such thing")) == "ValueError: no such thing"
    assert cause_of(KeyError()) == "KeyError"
    assert len(cause_of(ValueError("x" * 10_000))) == 500


def test_a_function_sees_a_dict_and_may_return_one_many_or_none():
    seen = []

    def function(each):
        seen.append(each)
        rows = [{"id": each["offset"], "name": "a"}, {"id": -each["offset"]}]
        return {0: None, 1: rows[0], 2: rows}[each["offset"]]

    good, letters = mapped(function, row(0), row(1), row(2))
    assert good == [(1, "a"), (2, "a"), (-2, None)]
    assert letters == []
    assert seen[0]["properties"] == {"n": "1", "penstock.cause": "forged"}
    assert not {"_attempts", "_bad"} & seen[0].keys()


def test_what_raises_is_tried_again_later_and_dead_after_its_last_try():
    def function(each):
        raise ValueError(f"no {each['value']}")

    good, letters = mapped(function, row(0, 7), row(1, _attempts=1), row(2, _attempts=2))
    assert good == []
    assert [(each["topic"], each["delay_ms"]) for each in letters] == [
        ("penstock.retry.etl", 10_000),
        ("penstock.retry.etl", 30_000),
        ("etl-dead", None),
    ]
    assert dict(letters[0]["properties"]) == {
        "n": "1",
        "penstock.flow": "etl",
        "penstock.cause": "ValueError: no 7",
        "penstock.attempts": "1",
        "penstock.origin": "eu/orders/2/0",
    }
    assert (letters[0]["key"], letters[0]["tag"], letters[0]["body"]) == ("k", "t", b"0")
    assert dict(letters[2]["properties"])["penstock.attempts"] == "3"


def test_what_cannot_be_decoded_is_dead_at_once_and_never_seen_by_the_function():
    seen = []
    good, letters = mapped(seen.append, row(0, _bad="the body is no JSON"))
    assert (good, seen) == ([], [])
    assert [each["topic"] for each in letters] == ["etl-dead"]
    assert dict(letters[0]["properties"])["penstock.cause"] == "the body is no JSON"


def test_a_result_of_another_type_is_the_fault_of_its_row_alone():
    def function(each):
        return [{"id": 1}, {"id": each["key"]}] if each["offset"] == 1 else {"id": each["offset"]}

    good, letters = mapped(function, row(0), row(1, key="x"), row(2))
    assert good == [(0, None), (2, None)]
    assert [dict(each["properties"])["penstock.origin"] for each in letters] == ["eu/orders/2/1"]


def test_columns_that_are_not_in_the_output_and_results_that_are_no_dicts_are_errors_of_the_row():
    good, letters = mapped(lambda each: {"idd": 1} if each["offset"] else "text", row(0), row(1))
    assert good == []
    causes = [dict(each["properties"])["penstock.cause"] for each in letters]
    assert "returns dicts, a list of them or None, not 't'" in causes[0]
    assert "there is no column 'idd' in output" in causes[1]
