"""``penstock pipeline`` without Spark: what it writes, refuses and shows."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bulk.tickets import BulkError
from penstock.cli import main as cli
from penstock.cli import pipeline as verb
from penstock.pipelines import launch
from penstock.pipelines.figures import Figures
from penstock.pipelines.flow_file import load_pipeline
from penstock.pipelines.table import Table

ROOT = Path(__file__).parents[3]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(("pipeline", *arguments))
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_an_example_that_can_be_loaded_as_it_is(place, capsys):
    code, out, _ = run(capsys, "init")
    assert code == 0
    assert out == "pipeline.toml written. Run it: penstock pipeline run pipeline.toml\n"
    (flow,) = load_pipeline(place / "pipeline.toml", environment={}).flows
    assert (flow.name, flow.target.place) == ("orders", str(place / "out" / "orders"))
    code, _, err = run(capsys, "init")
    assert (code, "pipeline.toml exists; give another name" in err) == (2, True)


@pytest.mark.parametrize("kind", ["archive", "replay"])
def test_init_writes_a_copy_of_a_shipped_one(place, capsys, kind):
    code, out, _ = run(capsys, "init", "mine.toml", "--from", kind)
    assert (code, "its first lines say how" in out) == (0, True)
    given = {"TOPICS": "orders"} if kind == "archive" else {}
    (flow,) = load_pipeline(place / "mine.toml", environment={}, given=given).flows
    assert flow.name == kind


def test_a_wheel_has_the_shipped_pipelines(tmp_path):
    """As hatchling makes one: the packages, without what git ignores. Below, one that it made."""
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages = target["targets"]["wheel"]
    assert packages == {"packages": ["src/penstock", "src/pyspark_penstock"]}
    assert not {"include", "exclude", "only-include"} & target.keys()

    def git(*words):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.split()

    names = git("ls-files", *packages["packages"])
    shipped = [f"src/penstock/pipelines/shipped/{each}.toml" for each in verb.SHIPPED]
    assert set(shipped) <= set(names)
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *shipped], cwd=ROOT, capture_output=True, check=False
    )
    assert ignored.stdout == b""
    for name in names:
        copy = tmp_path / "site" / Path(name).relative_to("src")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    where = "import penstock, penstock.cli.main as m; print(penstock.__file__); m.main()"
    done = subprocess.run(
        [sys.executable, "-c", where, "pipeline", "init"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert "[flow.orders]" in (tmp_path / "pipeline.toml").read_text()


@pytest.mark.long
def test_a_wheel_that_is_built_has_both_packages_and_the_shipped_pipelines(tmp_path):
    """What builds it is fetched, so with ``--long`` only."""
    words = ["-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *words], check=True)
    (wheel,) = tmp_path.glob("penstock_broker-*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    assert {each.name for each in site.iterdir() if "-" not in each.name} == {
        "penstock",
        "pyspark_penstock",
    }
    where = "import penstock, penstock.cli.main as m; print(penstock.__file__); m.main()"
    for kind in verb.SHIPPED:
        done = subprocess.run(
            [sys.executable, "-c", where, "pipeline", "init", f"{kind}.toml", "--from", kind],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith(str(site))
        assert (tmp_path / f"{kind}.toml").read_text() == verb.shipped(kind).read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nosuch.toml"], "nosuch.toml: there is no such file; `penstock pipeline init`"),
        (["run", "archive"], "${TOPICS} is not in the environment; export TOPICS, or --set"),
        (["run", "archive", "--set", "TOPICS"], "--set 'TOPICS': write it like NAME=VALUE"),
        (["run", "replay", "--set", "RAT=5"], "nothing in it is called ${RAT}"),
        (["run", "replay", "--flow", "repaly"], "no flow 'repaly'; did you mean replay?"),
        (["compact", "out", "--size", "big"], "--size: "),
        (["compact", "nowhere"], "nowhere is neither a table nor a pipeline file"),
        (["init", "nowhere/a.toml"], "nowhere/a.toml cannot be written (No such file or directory"),
    ],
)
def test_what_is_wrong_is_told_before_spark_starts(place, capsys, arguments, words):
    flight = ["--flight", "127.0.0.1:1"] if arguments[0] == "run" else []
    code, _, err = run(capsys, *arguments, *flight)
    assert code in (1, 2), err
    assert words in err


SECRET = """
[flow.x]
from = { topics = "a" }
to = { parquet = "${PLACE}/out" }
"""


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_dry_run_prints_no_secret(place, capsys, monkeypatch, flags):
    monkeypatch.setenv("PLACE", "hunter2")
    (place / "x.toml").write_text(SECRET)
    words = ("run", "x.toml", "--flight", "127.0.0.1:1", "--dry-run", *flags)

    def found(pipeline, flows, **_):
        yield flows[0], ["id bigint"]
        raise BulkError("unreachable", "no answer of hunter2")

    monkeypatch.setattr(launch, "dry_run", found)
    code, out, err = run(capsys, *words)
    assert (code, err) == (1, "penstock: no answer of ${PLACE}\n")
    assert "${PLACE}/out" in out
    assert "hunter2" not in out


def test_a_dry_run_prints_no_secret_in_the_words_of_json_either(place, capsys, monkeypatch):
    monkeypatch.setenv("PLACE", 'a"b\nc\\d')
    (place / "x.toml").write_text(SECRET)
    monkeypatch.setattr(launch, "dry_run", lambda _, flows, **__: [(flows[0], ["id bigint"])])
    code, out, _ = run(capsys, "run", "x.toml", "--flight", "127.0.0.1:1", "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["to"] == {"parquet": f"{place}/${{PLACE}}/out"}


def test_a_compaction_prints_no_secret(place, capsys, monkeypatch):
    monkeypatch.setenv("PLACE", "hunter2")
    (place / "x.toml").write_text(SECRET)
    code, _, err = run(capsys, "compact", "x.toml")
    assert (code, "${PLACE}/out is no table of a flow" in err) == (1, True)
    Table(place / "hunter2" / "out").open()
    assert run(capsys, "compact", "x.toml")[1].endswith("/${PLACE}/out: nothing to merge\n")


def test_a_delta_table_that_is_not_there_yet_is_told(place, capsys):
    (place / "x.toml").write_text(SECRET.replace("parquet", "delta").replace("${PLACE}/", ""))
    code, _, err = run(capsys, "compact", "x.toml")
    assert (code, err) == (1, f"penstock: {place}/out is no Delta table (yet)\n")


def test_without_spark_it_says_what_to_install(place, capsys, monkeypatch):
    monkeypatch.setattr(verb, "find_spec", lambda _: None)
    code, _, err = run(capsys, "compact", "out")
    assert code != 0
    assert "pip install 'penstock-broker[spark]'" in err


def test_a_table_is_compacted(place, capsys):
    code, _, err = run(capsys, "compact", str(place))
    assert (code, "is no table of a flow" in err) == (1, True)
    Table(place / "out").open()
    for number in range(3):
        pq.write_table(pa.table({"id": [number]}), place / "out" / f"{number}.parquet")
    code, out, _ = run(capsys, "compact", "out", "--json")
    (answer,) = json.loads(out)
    assert (code, answer["before"], answer["after"], answer["rows"]) == (0, 3, 1, 3)
    assert sorted(pq.read_table(place / "out").column("id").to_pylist()) == [0, 1, 2]


def test_the_tables_of_a_file_are_compacted_with_the_values_it_was_run_with(place, capsys):
    run(capsys, "init", "my.toml", "--from", "archive")
    code, _, err = run(capsys, "compact", "my.toml")
    assert (code, "export TOPICS, or --set" in err) == (2, True)
    Table(place / "kept").open()
    for number in range(2):
        pq.write_table(pa.table({"id": [number]}), place / "kept" / f"{number}.parquet")
    values = ["--set", "TOPICS=orders", "--set", "OUT=kept"]
    code, out, _ = run(capsys, "compact", "my.toml", *values, "--json")
    (answer,) = json.loads(out)
    assert (code, answer["before"], answer["after"]) == (0, 2, 1)


@pytest.fixture
def handlers():
    """Signals as they were."""
    kept = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in kept.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_brings_flows_to_rest_and_a_second_ctrl_c_ends_at_once(
    place, capsys, monkeypatch, handlers, number
):
    (place / "x.toml").write_text(SECRET.replace("${PLACE}", "."))
    seen = []

    def launched(*_, is_stopping, **__):
        seen.append(is_stopping())
        os.kill(os.getpid(), number)
        seen.append(is_stopping())
        if len(seen) > 2:
            os.kill(os.getpid(), signal.SIGINT)
        return True

    monkeypatch.setattr(launch, "launch", launched)
    words = ("run", "x.toml", "--flight", "127.0.0.1:1")
    assert run(capsys, *words)[0] == 0
    assert seen == [False, True]
    if number == signal.SIGINT:
        code, _, err = run(capsys, *words)
        assert (code, "Aborted!" in err) == (1, True)


# ---- what is shown ------------------------------------------------------------------------------


ONE = Figures(flow="one", state="running", batch=0, rows=5)
TWO = Figures(flow="two", state="waiting", text="no broker")


def test_programs_get_an_object_for_every_batch_and_change(capsys):
    show = verb.output(is_json=True, is_once=False)
    show([ONE, TWO])
    show([ONE, TWO])
    show([Figures(flow="one", state="idle", batch=1), TWO])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["flow"], each["state"]) for each in lines] == [
        ("one", "running"), ("two", "waiting"), ("one", "idle"),
    ]  # fmt: skip
    assert "told" not in lines[0]


def test_a_pipe_gets_a_line_when_a_state_changes_and_not_for_every_batch(capsys):
    show = verb.output(is_json=False, is_once=False)
    show([ONE, TWO])
    show([Figures(flow="one", state="idle", batch=1), TWO])
    show([Figures(flow="one", state="failed", batch=1, text="no table"), TWO])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1].partition(",")[0] for line in lines] == [
        "one: running", "two: waiting", "one: failed",
    ]  # fmt: skip
    assert "no table" in lines[-1]


def test_a_pipe_is_not_told_the_same_again_and_again(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(verb.time, "monotonic", lambda: now[0])
    show = verb.output(is_json=False, is_once=False)
    for rows in (5, 5, 9):
        now[0] += verb.LINE_S
        show([Figures(flow="one", state="running", batch=0, rows=rows), TWO])
    assert [line.split(" ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "one:", "two:", "one:",
    ]  # fmt: skip


def test_no_process_prints_a_secret_to_the_error_output(capfd):
    with verb.error_output(lambda text: text.replace("hunter2", "${PW}")):
        script = "import sys; print('login hunter2', 'at hunter2', file=sys.stderr)"
        subprocess.run([sys.executable, "-c", script], check=True)
        os.write(2, b"WARNING: Using incubator modules: jdk.incubator.vector\n")
        os.write(2, b"no newline: hunter2")
    os.write(2, b" - as before")
    assert capfd.readouterr().err == "login ${PW} at ${PW}\nno newline: ${PW} - as before"


def test_what_nobody_expected_is_told_without_secrets_and_without_a_stack(
    place, capsys, monkeypatch
):
    monkeypatch.setenv("PLACE", "hunter2")
    (place / "x.toml").write_text(SECRET)

    def launched(*_, **__):
        raise RuntimeError("login hunter2\n\tat org.apache.spark.Main(Main.scala:1)")

    monkeypatch.setattr(launch, "launch", launched)
    code, _, err = run(capsys, "run", "x.toml", "--flight", "127.0.0.1:1")
    assert (code, err) == (1, "penstock: RuntimeError: login ${PLACE}\n")


def test_what_is_said_while_spark_starts_is_held_and_shown_when_it_has(capfd):
    with verb.error_output(lambda text: text.replace("hunter2", "${PW}")) as output:
        with output.starting() as said:
            os.write(2, b"fetching hunter2\nWARNING: Using incubator modules: x\nno newline")
            assert said() == "fetching ${PW}\nno newline\n"
            assert capfd.readouterr().err == ""
        os.write(2, b"running\n")
    assert capfd.readouterr().err == "fetching ${PW}\nno newline\nrunning\n"


def test_what_is_said_while_spark_fails_to_start_is_not_shown(capfd):
    def start(output):
        with output.starting():
            os.write(2, b"a stack of the JVM\n")
            raise LookupError("no such master")

    with verb.error_output(str) as output:
        with pytest.raises(LookupError):
            start(output)
        os.write(2, b"more of it\n")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("is_once", "words"), [(False, "one: running, 5 rows"), (True, "one [")])
def test_a_terminal_has_a_line_a_flow_and_a_bar_for_what_ends(capsys, monkeypatch, is_once, words):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((100, 30)))
    show = verb.output(is_json=False, is_once=is_once)
    assert isinstance(show, verb.LiveLines)
    show([ONE, TWO])
    first = capsys.readouterr().out
    assert words in first
    show([ONE, TWO])
    assert capsys.readouterr().out == ""
