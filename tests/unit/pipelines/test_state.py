import json
import os
from pathlib import Path

import pytest

from penstock.bulk.tickets import BulkError
from penstock.pipelines.flow_file import parse_pipeline
from penstock.pipelines.state import FlowState, NotYet, Plan, StateError, infer
from penstock.pipelines.table import Batch, StagedFile, Table


@pytest.fixture
def state(tmp_path):
    """``state(sql=...)``: the state of flow x with this SQL, in the same place each time."""

    def state(sql="SELECT 1", place="state"):
        text = f'[flow.x]\nfrom = {{ topics = "a" }}\nsql = "{sql}"\nto = {{ parquet = "out" }}'
        path = tmp_path / "p.toml"
        (flow,) = parse_pipeline(text, path=path, environment={}, given={}).flows
        return FlowState(tmp_path / place, flow)

    return state


def opened(state, **options):
    with state.locked():
        state.open(**options)
        state.checkpoint.mkdir(exist_ok=True)
    return state


def test_an_id_is_made_once_and_stays_until_it_is_reset(state):
    first = opened(state())
    assert first.is_new
    again = opened(state())
    assert (again.id, again.is_new) == (first.id, False)
    again.reset()
    assert not again.checkpoint.exists()
    assert opened(state()).id != first.id


def test_a_flow_that_changed_does_not_go_on_with_its_old_checkpoint(state):
    first = opened(state())
    with pytest.raises(StateError, match=r"flow 'x': its sql changed .* --reset .* another name"):
        opened(state("SELECT 2"))
    assert opened(state("SELECT 2"), is_accepted=True).id == first.id
    assert opened(state("SELECT 2")).id == first.id


def test_a_flow_that_changed_before_its_first_batch_just_begins(state):
    made = state()
    with made.locked():
        made.open()
    assert opened(state("SELECT 2")).id == made.id


def test_a_checkpoint_of_another_program_is_refused(state):
    made = state()
    made.checkpoint.mkdir(parents=True)
    with pytest.raises(StateError, match="checkpoint of another program"):
        opened(made)


def test_one_process_runs_a_flow(state):
    with state().locked(), pytest.raises(StateError, match=f"process {os.getpid()} already"):
        opened(state())
    opened(state())


def test_an_inferred_schema_is_kept_until_a_reset(state):
    made = opened(state())
    assert made.pinned_schema() == ""
    made.pin_schema("id long")
    assert state().pinned_schema() == "id long"
    made.reset()
    assert state().pinned_schema() == ""


def test_a_state_that_rests_says_so(state):
    made = opened(state())
    assert not made.is_paused
    made.pause()
    assert not made.is_paused
    made.pause_file.write_text("paused")
    assert made.is_paused
    assert not opened(state()).pause_file.exists()


def test_a_damaged_state_is_told(state):
    made = opened(state())
    (made.path / "flow.json").write_text("{")
    with pytest.raises(StateError, match="is damaged; --reset"):
        opened(state())
    # What it says helps.
    state().reset()
    assert opened(state()).is_new


def test_a_table_is_not_filled_twice_because_the_state_is_looked_for_elsewhere(state):
    first = opened(state())
    table = Table(first.flow.target.place)
    table.open()
    table.register(first.id, flow="x", state=str(first.path))
    other = opened(state(place="elsewhere"))
    other.is_new = True
    with pytest.raises(StateError, match="has rows of it already") as caught:
        other.check_target()
    assert str(first.path) in str(caught.value)
    place = table.staging(first.id, 3, "attempt")
    (place / "0.staged").touch()
    name = str((place / "0.staged").relative_to(table.control))
    staged = StagedFile(staged=name, path="a.parquet", rows=1, bytes=0)
    table.prepare(Batch(writer=first.id, batch=3, files=(staged,)))
    first.reset()
    other.check_target()
    assert not list(table.control.rglob("*.staged"))
    assert table.undecided_paths() == set()


def wrote(state, log, batch, *sources):
    """As Spark does."""
    place = state.checkpoint / log
    place.mkdir(exist_ok=True)
    (place / str(batch)).write_text(
        "\n".join(["v1", "{}", *(json.dumps(each) for each in sources)])
    )
    (place / f".{batch}.crc").touch()


def at(offset, **more):
    return {"offsets": {"a": {"0": offset}}, "checkpoint": "c1", **more}


def test_a_batch_that_spark_began_and_did_not_do_is_known_and_can_be_forgotten(state):
    made = opened(state())
    assert (made.plan(), made.source_id, made.spark_id) == (None, "", "")
    (made.checkpoint / "metadata").write_text('{"id":"2be4"}')
    wrote(made, "offsets", 0, at(30, begins={"a": {"0": 20}}))
    assert made.plan() == Plan(batch=0, rows=10, checkpoint="c1")
    wrote(made, "commits", 0)
    assert made.plan() is None
    wrote(made, "offsets", 1, at(70))
    plan = made.plan()
    assert (plan.batch, plan.rows, made.source_id, made.spark_id) == (1, 40, "c1", "2be4")
    made.forget(plan)
    assert made.plan() is None
    assert sorted(each.name for each in (made.checkpoint / "offsets").iterdir()) == [".0.crc", "0"]


def test_the_broker_is_told_of_a_checkpoint_that_is_forgotten(state, monkeypatch):
    told = []

    class Client:
        def __init__(self, endpoint, **_):
            self.endpoint = endpoint

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def release(self, subscription, **which):
            told.append((self.endpoint, subscription, which))
            raise BulkError("unreachable", "it may be away")

    monkeypatch.setattr("penstock.pipelines.state.BulkClient", Client)
    made = opened(state())
    made.reset()
    assert told == []
    opened(made)
    wrote(made, "offsets", 0, at(30))
    made.reset()
    assert told == [(made.flow.source.endpoint, "x", {"checkpoint": "c1", "is_final": True})]
    assert not made.checkpoint.exists()


def test_a_place_that_cannot_be_written_is_told(state, tmp_path):
    Path(tmp_path / "state").write_text("a file")
    with pytest.raises(StateError, match="cannot be written"):
        opened(state())


# ---- an inferred schema -------------------------------------------------------------------------


def of(*values):
    return infer([json.dumps(each).encode() for each in values])


def test_types_are_those_that_hold_every_value():
    assert of({"id": 1, "ok": True, "at": None}, {"id": 2, "at": "now"}) == (
        "id long, ok boolean, at string"
    )
    assert of({"n": 1}, {"n": 2.5}) == "n double"
    assert of({"n": 1}, {"n": "x"}, {"n": [1]}) == "n string"
    assert of({"n": 2**63}) == "n string"
    assert of({"never": None}) == "never string"


def test_objects_and_arrays_keep_their_shape():
    one = {"item": {"name": "teapot"}, "tags": ["a"], "lines": [{"n": 1}, {"m": 2.5}], "e": {}}
    assert of(one, {"item": {"size": 3}, "tags": []}) == (
        "item struct<name: string, size: long>, tags array<string>,"
        " lines array<struct<n: long, m: double>>, e string"
    )


def test_names_that_are_no_words_are_quoted():
    assert of({"a b": 1, "c`d": {"e-f": 2}}) == "`a b` long, `c``d` struct<`e-f`: long>"


def test_what_is_no_object_says_nothing():
    assert infer([b"{", b"[1]", b"\xff", b"1", b'{"a": 1}']) == "a long"
    with pytest.raises(NotYet, match="no message yet has a JSON object"):
        infer([b"text", b"{}"])


def test_depth_and_number_of_fields_are_bounded():
    deep = {}
    for _ in range(60):
        deep = {"d": deep or 1}
    assert of(deep).count("struct") == 31
    assert of({"m": {f"k{n}": 1 for n in range(2000)}}) == "m string"
    assert infer([b"[" * 100_000, b'{"a": 1}']) == "a long"
